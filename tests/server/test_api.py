"""The HTTP API, in this process: what a client sends, and what it gets."""

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
from tests.going_back import GoingBack
from tests.server.loopback import client_of

from looopy import Agent, open_stores, tool
from looopy.errors import StoreUnavailable
from looopy.server import AgentHost
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores

ADA, BEN, EVE = "a" * 20, "b" * 20, "e" * 20


@asynccontextmanager
async def serving(make=None, limits=None, spied=lambda stores: stores, url="memory:", **options):
    """A client of the user ada, and the host behind it, whose stores are *spied* on."""

    def answering(context_id, stores):
        provider = ScriptedProvider(lambda _: text("Hello there."), chunk_chars=4)
        return Agent(context_id, llm_provider=provider, stores=stores, on_busy="wait")

    async with (
        open_stores(url) as stores,
        AgentHost(make or answering, spied(stores)) as host,
    ):
        tokens = StaticTokens(
            {ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "other"}}
        )
        app = create_app(host, authenticate=tokens, limits=limits, **options)
        async with client_of(app, ADA) as client:
            yield client, host


def frames(body):
    """The server-sent events of a body: id, name and data of each."""
    found = []
    for block in body.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((lines.get("id"), lines["event"], json.loads(lines["data"])))
    return found


async def test_a_turn_is_accepted_or_streamed():
    """By the `Accept` header; durable events have their number as id."""
    async with serving() as (client, _):
        answer = await client.post("/contexts/c/turns", json={"message": "Hi."})
        assert (answer.status_code, answer.json()) == (202, {"context_id": "c", "turn": 1})
        answer = await client.post(
            "/contexts/c/turns", json={"message": "Hi."}, headers={"Accept": "text/event-stream"}
        )
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        seen = frames(answer.text)
        assert [data["type"] for _, _, data in seen] == [name for _, name, _ in seen]
        assert all(place == str(data["seq"]) for place, _, data in seen if place)
        assert [place for place, _, _ in seen if place] == ["5", "6", "7", "8"]
        deltas = [data["delta"] for place, name, data in seen if name == "message_update"]
        assert "".join(deltas) == "Hello there."


async def test_a_request_that_is_sent_again_begins_no_second_turn():
    """With its key: 202 or the whole stream again; 422 with another input."""
    async with serving() as (client, _):
        path, key = "/contexts/c/turns", {"Idempotency-Key": "k"}
        for _ in range(2):
            answer = await client.post(path, json={"message": "Hi."}, headers=key)
            assert (answer.status_code, answer.json()["turn"]) == (202, 1)
        stream = key | {"Accept": "text/event-stream"}
        answer = await client.post(path, json={"message": "Hi."}, headers=stream)
        assert [place for place, _, _ in frames(answer.text) if place] == ["1", "2", "3", "4"]
        answer = await client.post(path, json={"message": "Bye."}, headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_conflict")


@pytest.mark.parametrize(("how", "count"), [("steer", 7), ("follow-up", 8)])
async def test_a_message_to_a_turn_that_is_sent_again_is_taken_once(how, count):
    """With its key, and still after the turn; the key names one message of one turn."""
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        inside.set()
        await go.wait()
        return "waited"

    def reply(request):
        return tool_call("wait") if request.messages[-1].text == "Hi." else text("Done.")

    def make(context_id, stores):
        return Agent(context_id, llm_provider=ScriptedProvider(reply), stores=stores, tools=[wait])

    async with serving(make) as (client, _):

        async def tell(key="k", **said):
            body = {"message": "Faster.", "expected_turn": 1, **said}
            return await client.post(
                f"/contexts/c/{how}", json=body, headers={"Idempotency-Key": key}
            )

        async def code(answering):
            answer = await answering
            error = answer.json()["error"]
            return answer.status_code, error["code"], error.get("path")

        stream = {"Accept": "text/event-stream"}
        path, hi = "/contexts/c/turns", {"message": "Hi."}
        turn = asyncio.create_task(client.post(path, json=hi, headers=stream))
        await inside.wait()
        for _ in range(2):
            answer = await tell()
            assert (answer.status_code, answer.json()) == (202, {"context_id": "c", "turn": 1})
        conflict = (422, "idempotency_conflict", None)
        assert await code(tell(message="Slower.")) == conflict
        missing = (400, "invalid_request", "/expected_turn")
        assert await code(tell(expected_turn=None)) == missing
        assert (await code(tell("")))[0] == 400
        [waits] = (await client.get("/contexts/c/inbox")).json()["items"]
        assert (waits["kind"], waits["message"]["content"]) == (how.replace("-", "_"), "Faster.")
        go.set()
        await turn
        assert (await client.get("/contexts/c/inbox")).json() == {"items": [], "next": None}
        await client.post(path, json={"message": "Bye."}, headers=stream)
        answer = await tell()
        assert (answer.status_code, answer.json()) == (202, {"context_id": "c", "turn": 1})
        assert (await code(tell("new")))[:2] == (409, "turn_mismatch")
        items = (await client.get("/contexts/c/messages")).json()["items"]
        assert [one["message"]["content"] for one in items].count("Faster.") == 1
        assert len(items) == count


async def test_202_comes_after_the_store_has_taken_it():
    """While the store is away, what brings a message fails, and nothing is done later."""
    inside, go, spies = asyncio.Event(), asyncio.Event(), []

    @tool
    async def wait() -> str:
        inside.set()
        await go.wait()
        return "waited"

    def make(context_id, stores):
        model = ScriptedProvider([tool_call("wait"), text("Done.")])
        return Agent(context_id, llm_provider=model, stores=stores, tools=[wait])

    def spied(stores):
        spies.append(SpyStores(stores))
        return spies[0].stores

    def away(name, _):
        if name in ("claim", "post"):
            raise StoreUnavailable("away")

    async with serving(make, spied=spied) as (client, _):
        stream = {"Accept": "text/event-stream"}
        hi = {"message": "Hi."}
        turn = asyncio.create_task(client.post("/contexts/c/turns", json=hi, headers=stream))
        await inside.wait()
        spies[0].hook = away
        for path in ("/contexts/c/steer", "/contexts/c/follow-up", "/contexts/d/turns"):
            answer = await client.post(path, json=hi)
            assert (answer.status_code, path) == (503, path)
        spies[0].hook = None
        go.set()
        assert frames((await turn).text)[-1][2]["outcome"] == "completed"
        assert len((await client.get("/contexts/c/messages")).json()["items"]) == 4
        assert (await client.get("/contexts/d")).status_code == 404


async def test_an_artifact_is_downloaded_and_never_shown():
    """Whatever its name and its type say: a page of ours must not run it."""
    name = 'a/../../b "c";\u202e.html'
    async with serving() as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        save = host.stores.artifacts.save
        await save("c", name, b"<script>alert(1)</script>", media_type="text/html")
        await save("c", "table", "1,2", media_type="text/csv")
        listed = (await client.get("/contexts/c/artifacts?limit=1")).json()
        assert (listed["items"][0]["artifact_id"], listed["next"]) == (name, name)
        answer = await client.get(f"/contexts/c/artifacts/{quote(name, safe='')}")
        assert answer.content == b"<script>alert(1)</script>"
        headers = answer.headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"].startswith("attachment; filename*=UTF-8''a%2F..%2F")
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        answer = await client.get("/contexts/c/artifacts/table")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"


async def test_each_version_of_an_artifact_is_described_without_its_content():
    """Versions of one artifact may have other types and sizes."""
    async with serving() as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        save, path = host.stores.artifacts.save, "/contexts/c/artifacts/a"
        await save("c", "a", "Words.", media_type="text/plain")
        await save("c", "a", b"\x89PNG", media_type="image/png")
        [listed] = (await client.get("/contexts/c/artifacts")).json()["items"]
        assert (await client.get(f"{path}?describe=true")).json() == listed
        first = (await client.get(f"{path}?version=1&describe=true")).json()
        assert first == listed | {
            "version": 1,
            "media_type": "text/plain",
            "size": 6,
            **{name: first[name] for name in ("sha256", "created_at")},
        }
        assert (await client.get(f"{path}?version=3&describe=true")).status_code == 404
        assert (await client.get(f"{path}?describe=maybe")).status_code == 400


async def test_the_compact_format_sends_each_result_once():
    """A result crosses the wire once, and a delta costs at most twice its text."""

    def make(context_id, stores):
        @tool
        def search(query: str) -> str:
            return "R" * 1000

        replies = [tool_call("search", query="Q" * 100), text("word " * 400)]
        model = ScriptedProvider(replies, chunk_chars=5)
        return Agent(context_id, llm_provider=model, stores=stores, tools=[search])

    async with serving(make) as (client, _):
        headers, path = {"Accept": "text/event-stream"}, "/contexts/c/turns?format=compact"
        answer = await client.post(path, json={"message": "Hi there."}, headers=headers)
        assert answer.text.count("R" * 1000) == answer.text.count("Q" * 100) == 1
        assert answer.text.count("Hi there.") == 1
        blocks = answer.text.strip().split("\n\n")
        deltas = [block for block in blocks if block.startswith("data:")]
        assert "".join(json.loads(block[5:]) for block in deltas) == "word " * 400
        assert sum(len(block) + 2 for block in deltas) <= 2 * 2000
        full = await client.get("/contexts/c")
        names = [name for _, name, _ in frames("\n\n".join(b for b in blocks if b not in deltas))]
        assert names == [
            *("turn_start", "message_end", "message_start", "message_end"),
            *("tool_execution_start", "tool_execution_end", "message_end"),
            *("message_start", "message_end", "turn_end"),
        ]
        assert blocks[-1].startswith(f"id: {full.json()['last_seq']}\n")
        assert (await client.get("/contexts/c/events?format=odd")).status_code == 400


@pytest.mark.parametrize("token", [None, BEN, EVE, "c" * 20])
async def test_a_context_is_hidden_from_other_actors(token):
    """401 without credentials; 404 for another actor or tenant, as if there were no context."""
    async with serving() as (client, _):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        client.headers.pop("Authorization")
        if token is not None:
            client.headers["Authorization"] = f"Bearer {token}"
        texts = set()
        for method, path, body in VERBS:
            for name in ("c", "d"):
                answer = await client.request(method, f"/contexts/{name}{path}", json=body)
                texts.add(answer.text.replace("'d'", "'c'"))
                assert answer.status_code == (404 if token in (BEN, EVE) else 401), (method, path)
        assert len(texts) == 1
        answer = await client.get("/contexts")
        assert answer.json()["items"] == [] if token in (BEN, EVE) else answer.status_code == 401


VERBS = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("GET", "/events", None),
    ("GET", "/messages", None),
    ("GET", "/turns", None),
    ("GET", "/inbox", None),
    ("GET", "/artifacts", None),
    ("GET", "/artifacts/x", None),
    ("POST", "/turns", {}),
    ("POST", "/turns/1/replay", {}),
    ("POST", "/turns/1/run-beside", {}),
    ("POST", "/steer", {"message": "Stop."}),
    ("POST", "/follow-up", {"message": "And?"}),
    ("POST", "/cancel", {}),
    ("POST", "/fork", {}),
    ("POST", "/rewind", {"to": 1}),
    ("POST", "/compact", {}),
]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_turn_that_the_store_has_lost_is_reported_once(tmp_path, accept):
    """With 409 `commits_lost`; sent again, the message gets the number of the lost turn."""
    url = f"sqlite:///{tmp_path / 'api.db'}"
    async with serving(url=url) as (client, _):

        async def say(message, accept="text/event-stream"):
            headers = {"Accept": accept}
            return await client.post(
                "/contexts/c/turns", json={"message": message}, headers=headers
            )

        past = GoingBack(url)
        await say("one")
        past.keep()
        await say("lost")
        past.go_back()
        answer = await say("again", accept)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "commits_lost")
        assert (await say("again")).status_code == 200
        items = (await client.get("/contexts/c/messages")).json()["items"]
        said = [one["message"]["content"] for one in items if one["message"]["role"] == "user"]
        assert said == ["one", "again"]
