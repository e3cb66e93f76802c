"""Turns at once and stored bytes, of tenants and actors: refused before anything is stored."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.server.loopback import client_of
from tests.server.test_api import ADA, BEN, EVE, serving

from looopy import Agent, AuthContext, open_stores, tool
from looopy.errors import ConfigurationError
from looopy.server import AgentHost, Limits, a2a_api, ag_ui_api, ai_sdk_api, responses_api
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.server.gate.quotas import Quotas
from looopy.server.problems import Problem
from looopy.testing import ScriptedProvider, text, tool_call

FACES = [a2a_api, ag_ui_api, ai_sdk_api, responses_api]
RUN = {"threadId": "new", "runId": "r", "state": None, "tools": [], "context": []}
SAID = {"role": "user", "id": "m", "content": "Hi."}
A2A = {"messageId": "m", "role": "ROLE_USER", "contextId": "new", "parts": [{"text": "Hi."}]}
# Each way to store something: the path, the body, and where the answer says `limit_exceeded`.
BEGINNINGS = {
    "/contexts/new/turns": ({"message": "Hi."}, ("error", "code")),
    "/api/chat": (
        {
            "id": "new",
            "messages": [{"role": "user", "id": "m", "parts": [{"type": "text", "text": "Hi."}]}],
            "trigger": "submit-message",
        },
        None,
    ),
    "/ag-ui": ({**RUN, "messages": [SAID], "forwardedProps": None}, ("error", "code")),
    "/v1/responses": ({"model": "looopy", "input": "Hi."}, ("error", "code")),
    "/message:send": ({"message": A2A}, ("error", "details", 0, "metadata", "code")),
    "/a2a/v1": (
        {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": A2A}},
        ("error", "data", 0, "metadata", "code"),
    ),
}


@asynccontextmanager
async def limited_client(stores, limits, go):
    """A client of ada, whose turns wait until *go* is set, and the host behind it."""

    @tool(effects="idempotent")
    async def wait() -> str:
        await go.wait()
        return "done"

    def reply(request):
        called = request.messages[-1].role == "toolResult"
        return text("Done.") if called else tool_call("wait")

    def build(context_id, bound):
        return Agent(context_id, llm_provider=ScriptedProvider(reply), stores=bound, tools=[wait])

    tokens = StaticTokens({ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "other"}})
    async with AgentHost(build, stores) as host:
        app = create_app(host, authenticate=tokens, limits=limits)
        async with client_of(app, ADA) as client:
            try:
                yield client
            finally:
                go.set()


def found_at(body, path):
    """The value at *path* of an answer."""
    for key in path:
        body = body[key]
    return body


async def test_turns_at_once_are_counted_in_all_processes(tmp_path):
    """Of a tenant and of an actor; two servers have a database, and a turn that ends makes room."""
    url, go = f"sqlite:///{tmp_path}/app.db", asyncio.Event()
    limits = Limits(running_turns_per_tenant=3, running_turns_per_actor=2)
    async with (
        open_stores(url) as one,
        open_stores(url) as two,
        limited_client(one, limits, go) as here,
        limited_client(two, limits, go) as there,
    ):

        async def begin(client, context_id, token=ADA):
            headers = {"Authorization": f"Bearer {token}"}
            path = f"/contexts/{context_id}/turns"
            return await client.post(path, json={"message": "Hi."}, headers=headers)

        assert (await begin(here, "a")).status_code == 202
        assert (await begin(there, "b")).status_code == 202
        for client in (here, there):
            refused = await begin(client, "c")
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "limit_exceeded"
            assert "2 turns at once are the limit of one actor" in refused.text
            assert refused.headers["retry-after"] == "1"
        assert await one.state.load("c") is None
        assert (await begin(here, "a")).json()["error"]["code"] == "agent_busy"  # its own place
        assert (await begin(here, "d", BEN)).status_code == 202
        assert "3 turns at once are the limit of one tenant" in (await begin(there, "e", BEN)).text
        assert (await begin(there, "a", EVE)).status_code == 202  # of another tenant
        go.set()
        for client, name, actor in ((here, "a", "ada"), (there, "b", "ada"), (here, "d", "ben")):
            host = client._transport.app.state.context.host
            async with host.agent(name, AuthContext(actor)) as agent:
                await agent.wait_for_idle()
        assert (await begin(there, "c")).status_code == 202


async def test_requests_that_meet_get_no_place_twice():
    """They all ask before the first of them has begun its turn."""
    limits = Limits(running_turns_per_tenant=3)
    async with (
        open_stores("memory:") as stores,
        limited_client(stores, limits, asyncio.Event()) as one,
    ):
        found = await asyncio.gather(
            *(one.post(f"/contexts/c{n}/turns", json={"message": "Hi."}) for n in range(8))
        )
        assert sorted(answer.status_code for answer in found) == [202] * 3 + [429] * 5
        assert len(await stores.state.list()) == 3


async def test_stored_bytes_are_limited_until_something_is_erased():
    """Whatever adds to them is refused; reading and erasing are not, and others have their own."""
    limits = Limits(stored_bytes_per_tenant=20_000, stored_bytes_per_actor=10_000)
    async with serving(limits=limits) as (client, host):
        app_context = client._transport.app.state.context
        for name in ("c", "d"):
            answer = await client.post(f"/contexts/{name}/turns", json={"message": "x" * 3000})
            assert answer.status_code == 202
            async with host.agent(name, AuthContext("ada")) as agent:
                await agent.wait_for_idle()
        await host.stores.artifacts.save("c", "art", b"y" * 5000)
        app_context._quotas.freed("default")
        for path, body in (
            ("/contexts/e/turns", {"message": "Hi."}),
            ("/contexts/c/turns", {"message": "Hi."}),
            ("/contexts/c/turns/1/run-beside", {}),
            ("/contexts/c/steer", {"message": "Hi."}),
            ("/contexts/c/follow-up", {"message": "Hi."}),
            ("/contexts/c/fork", {}),
            ("/contexts/c/compact", {}),
        ):
            refused = await client.post(path, json=body)
            assert (refused.status_code, path) == (429, path)
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert "this actor has stored 1" in refused.text
        assert (await client.get("/contexts/c/messages")).status_code == 200
        assert len(await host.stores.state.list()) == 2
        ben = {"Authorization": f"Bearer {BEN}"}
        answer = await client.post("/contexts/b/turns", json={"message": "z" * 9000}, headers=ben)
        assert answer.status_code == 202
        async with host.agent("b", AuthContext("ben")) as agent:
            await agent.wait_for_idle()
        assert (await client.delete("/contexts/c")).status_code == 204
        answer = await client.post("/contexts/e/turns", json={"message": "Hi."})
        assert answer.status_code == 202
        await host.stores.artifacts.save("b", "art", b"y" * 9000)
        app_context._quotas.freed("default")
        answer = await client.post("/contexts/e/turns", json={"message": "Hi."})
        assert "this tenant has stored 2" in answer.text


@pytest.mark.parametrize("path", ["/contexts/c", "/v1/conversations/c", "/v1/responses/resp_1_c"])
async def test_there_is_room_again_after_each_way_to_erase(path):
    """The bytes are counted again, although the count of before is recent."""
    limits = Limits(stored_bytes_per_actor=10_000)
    async with serving(limits=limits, protocols=FACES) as (
        client,
        host,
    ):
        said = {"message": "Hi."}
        assert (await client.post("/contexts/c/turns", json=said)).status_code == 202
        async with host.agent("c", AuthContext("ada")) as agent:
            await agent.wait_for_idle()
        await host.stores.artifacts.save("c", "art", b"y" * 10_000)
        client._transport.app.state.context._quotas.freed("default")
        assert (await client.post("/contexts/e/turns", json=said)).status_code == 429
        assert (await client.delete(path)).status_code in (200, 204)
        assert (await client.post("/contexts/e/turns", json=said)).status_code == 202


async def test_every_face_refuses_a_turn_beyond_a_limit():
    """In its own form, with the time to wait; nothing is stored."""
    full = Limits(stored_bytes_per_tenant=1)
    busy = Limits(running_turns_per_actor=1)
    async with serving(limits=full, protocols=FACES) as (client, host):
        await host.stores.artifacts.save("old", "art", b"yy")
        for limits in (full, busy):
            app_context = client._transport.app.state.context
            app_context.limits, app_context._quotas = limits, Quotas(limits)
            if limits is busy:
                app_context._quotas._beginning["default"] = {1: ("other", "ada")}
            for path, (body, place) in BEGINNINGS.items():
                answer = await client.post(path, json=body, headers={"A2A-Version": "1.0"})
                assert answer.status_code == 429, path
                assert int(answer.headers["retry-after"]) >= 1
                if place is None:
                    assert answer.text.startswith(("this tenant has", "1 turns at once are"))
                else:
                    assert found_at(answer.json(), place) == "limit_exceeded", path
        assert [one.context_id for one in await host.stores.state.list()] == ["old"]


async def test_bytes_are_counted_again_after_a_while():
    """`count_bytes_s` later, in the background: the request that finds them old does not wait."""
    async with open_stores("memory:") as stores:
        quotas = Quotas(Limits(stored_bytes_per_tenant=10, count_bytes_s=1000))
        await quotas.space(stores, "ada")
        await stores.artifacts.save("c", "art", b"x" * 10)
        await quotas.space(stores, "ada")
        known = quotas._known["default"]
        assert 900 < known.next_s <= 1000
        known._due_at = 0.0
        await quotas.space(stores, "ada")
        await known.counting
        with pytest.raises(Problem, match="10 bytes of 10") as refused:
            await quotas.space(stores, "ada")
        assert 900 < int(refused.value.headers["Retry-After"]) <= 1000


async def test_bytes_that_cannot_be_counted_are_reported():
    """A store that does not count them does not let everybody pass."""

    class Index:
        async def sizes(self, **_):
            raise ConfigurationError("the store Index does not count bytes")

    async with open_stores("memory:") as stores:
        stores._contexts = Index()
        quotas = Quotas(Limits(stored_bytes_per_tenant=1))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="does not count"):
                await quotas.space(stores, "ada")
        await quotas.close()
