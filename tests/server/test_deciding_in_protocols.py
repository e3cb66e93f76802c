"""A person decides a call of somebody else in the words of each protocol, and sees nothing more."""

import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.server.test_deciding import ADA, TOKENS, ask, ask_all, hosting, managers

from looopy import Approve, server
from looopy._failpoints import arm
from looopy.server import Limits, StaticTokens, create_app
from looopy.testing.children import fork, wait
from looopy.types.event import ApprovalDecided
from looopy.types.state import Outcome

SECRET = "the secret invoice"
PROTOCOLS = [server.ag_ui_api, server.ai_sdk_api, server.a2a_api, server.responses_api]


class Protocol:
    """A protocol: the body of the request that decides, and of the one that says more besides."""

    def __init__(self, client):
        self.client = client


class AgUi(Protocol):
    """The interrupts of a run that are resolved."""

    path = "/ag-ui"

    def body(self, context_id, answers):
        resume = [
            {"interruptId": name, "status": "resolved", "payload": {"approved": approved}}
            for name, approved in answers.items()
        ]
        empty = {"state": {}, "messages": [], "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": context_id, "runId": "r", **empty, "resume": resume}

    def with_text(self, body):
        return {**body, "messages": [{"id": "m", "role": "user", "content": "hi"}]}


class UseChat(Protocol):
    """The tool parts of the page's last message."""

    path = "/api/chat"

    def body(self, context_id, answers):
        parts = [
            {
                "type": "tool-pay",
                "toolCallId": name,
                "state": "approval-responded",
                "input": {},
                "approval": {"id": name, "approved": approved},
            }
            for name, approved in answers.items()
        ]
        messages = [{"id": "turn-1", "role": "assistant", "parts": parts}]
        return {"id": context_id, "trigger": "submit-message", "messages": messages}

    def with_text(self, body):
        said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
        return {**body, "messages": [*body["messages"], said]}


class Responses(Protocol):
    """The items of an input."""

    path = "/v1/responses"

    def body(self, context_id, answers):
        items = [
            {"type": "mcp_approval_response", "approval_request_id": name, "approve": approved}
            for name, approved in answers.items()
        ]
        return {"model": "looopy", "conversation": context_id, "input": items}

    def with_text(self, body):
        return {**body, "input": [*body["input"], {"role": "user", "content": "hi"}]}


class Previous(Responses):
    """The same, behind a response."""

    def body(self, context_id, answers):
        body = super().body(context_id, answers) | {"previous_response_id": f"resp_1_{context_id}"}
        del body["conversation"]
        return body


class A2A(Protocol):
    """A message to the task, with data."""

    path = "/message:send"

    def body(self, context_id, answers):
        self.client.headers["A2A-Version"] = "1.0"
        message = {
            "messageId": f"m-{json.dumps(answers)}",
            "taskId": f"task_1_{context_id}",
            "role": "ROLE_USER",
            "parts": [{"data": answers}],
        }
        return {"message": message}

    def with_text(self, body):
        parts = [*body["message"]["parts"], {"text": "hi"}]
        return {"message": {**body["message"], "parts": parts}}


@asynccontextmanager
async def served(protocol, url="memory:", *, may_answer=managers, limits=None):
    """The host and its office, and a function that sends a body as somebody."""
    async with hosting(url, may_answer) as (host, office):
        tokens = {token: {"actor_id": name} for name, token in TOKENS.items()}
        tokens[TOKENS["boss"]] = {"actor_id": "boss", "scopes": ["manager"]}
        app = create_app(
            host, authenticate=StaticTokens(tokens), protocols=PROTOCOLS, limits=limits
        )
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:

            async def post(name, body):
                signed = {"Authorization": f"Bearer {TOKENS[name]}"}
                return await client.post(protocol.path, json=body, headers=signed)

            yield host, office, protocol(client), post


every_protocol = pytest.mark.parametrize("protocol", [AgUi, UseChat, Responses, Previous, A2A])


@every_protocol
async def test_a_second_person_decides_and_the_call_runs_as_its_owner(protocol):
    """Once; the answer holds the decision, the same each time, and nothing of the conversation."""
    async with served(protocol) as (host, office, said, post):
        name = await ask(host)
        made = await post("boss", said.body("c", {name: True}))
        assert made.status_code == 200, made.text
        for text in (SECRET, "done", "cents"):
            assert text not in made.text
        assert office.ran == []
        [decided] = await decisions(host)
        assert (decided.actor_id, decided.decision) == ("boss", "approved")
        for _ in range(2):
            assert (await post("boss", said.body("c", {name: True}))).text == made.text
            other = await post("boss", said.body("c", {name: False}))
            assert "was approved before by 'boss'" in other.text
            assert other.status_code in (400, 409)
            if not office.ran:
                async with host.agent("c", ADA) as agent:
                    result = await agent.execute_turn(None, ADA)
                assert result.outcome is Outcome.COMPLETED
        assert office.ran == [("ada", {"token": "ada's-token-1"})]
        assert await decisions(host) == [decided]


async def decisions(host, context_id="c"):
    """The decisions in the log of a context."""
    events = await host.stores.journal.events(context_id)
    return [event for event in events if isinstance(event, ApprovalDecided)]


@every_protocol
@pytest.mark.parametrize("may_answer", [managers, None])
async def test_an_actor_who_may_not_decide_gets_the_answer_for_an_unknown_context(
    protocol, may_answer
):
    """So does a person who says more than decisions, before the decision and after it."""
    async with served(protocol, may_answer=may_answer) as (host, office, said, post):
        name, dropping = await ask(host), await ask(host, "d", "drop")
        for turn in range(2):
            refused = [("eve", "c", {name: True}), ("boss", "d", {dropping: True})]
            refused += [("boss", "c", {"1-none": True}), ("boss", "c", {name: True, "x": True})]
            refused += [] if may_answer else [("boss", "c", {name: True})]
            for who, context_id, answers in refused:
                await like_unknown(said, post, who, said.body(context_id, answers), context_id)
            more = said.with_text(said.body("c", {name: True}))
            await like_unknown(said, post, "boss", more, "c", brings_text=True)
            if not turn:
                await host.decide("c", name, Approve(), ADA)
        assert office.ran == []
        assert [one.actor_id for one in await decisions(host)] == ["ada"]


async def like_unknown(said, post, who, body, context_id, *, brings_text=False):
    """Check that the answer is that for a context that does not exist."""
    shown = await post(who, body)
    if not brings_text:
        text = json.dumps(body).replace(f'"{context_id}"', '"none"')
        text = re.sub(rf"(resp|task)_1_{context_id}", r"\1_1_none", text)
        unknown = await post(who, json.loads(text))
        assert shown.text.replace(f"'{context_id}'", "'none'") == unknown.text
        assert shown.status_code == unknown.status_code
    assert shown.status_code == 404, shown.text


@every_protocol
async def test_decisions_of_several_calls_are_stored_together(protocol):
    """Those that the same person has given before may come with them."""
    async with served(protocol) as (host, office, said, post):
        first, second = await ask_all(host)
        assert (await post("boss", said.body("c", {first: False}))).status_code == 200
        both = said.body("c", {first: False, second: True})
        assert (await post("boss", both)).status_code == 200
        assert [one.decision for one in await decisions(host)] == ["denied", "approved"]
        async with host.agent("c", ADA) as agent:
            await agent.execute_turn(None, ADA)
        assert [actor for actor, _ in office.ran] == ["ada"]


@every_protocol
async def test_an_owners_decision_that_comes_again_is_the_same_and_another_is_refused(
    protocol, sqlite_file
):
    """Before a restart and after it: the call runs once."""
    url, ran = f"sqlite:///{sqlite_file}", []
    async with served(protocol, url) as (host, office, said, post):
        name = await ask(host)
        first = await post("ada", said.body("c", {name: True}))
        assert first.status_code == 200, first.text
        ran += office.ran
    for _ in range(2):
        async with served(protocol, url) as (host, office, said, post):
            again = await post("ada", said.body("c", {name: True}))
            assert again.status_code == 200, again.text
            other = await post("ada", said.body("c", {name: False}))
            assert other.status_code in (400, 409), other.text
            ran += office.ran
            assert len(await decisions(host)) == 1
    assert len(ran) == 1
    async with served(protocol, url) as (host, *_):
        assert [one.context_id for one in await host.stores.state.list()] == ["c"]  # no fork


@pytest.mark.parametrize("protocol", [Previous, A2A])
async def test_limits_reveal_no_context_to_a_stranger(protocol):
    """Where the answer for an unknown context comes before all limits."""
    async with served(protocol, limits=Limits(turns_per_minute=1)) as (host, _, said, post):
        dropping = await ask(host, "d", "drop")
        for context_id, status in (("b", 200), ("c", 429)):
            body = said.body(context_id, {await ask(host, context_id): True})
            assert (await post("boss", body)).status_code == status
        await like_unknown(said, post, "boss", said.body("d", {dropping: True}), "d")


@every_protocol
async def test_a_decision_repeated_after_losing_permission_gets_the_answer_for_an_unknown_context(
    protocol,
):
    """The same decision, sent again after that, is one about an unknown context."""
    allowed = ["boss"]
    async with served(protocol, may_answer=lambda _, auth: auth.actor_id in allowed) as (
        host,
        _,
        said,
        post,
    ):
        body = said.body("c", {await ask(host): True})
        assert (await post("boss", body)).status_code == 200
        allowed.clear()
        await like_unknown(said, post, "boss", body, "c")


async def test_a_text_over_a2a_decides_the_one_request_that_its_sender_may_decide():
    """Several are named by their ids. A message that comes again has the same answer."""
    async with served(A2A) as (host, _, said, post):
        await ask(host)
        body = said.body("c", {})
        body["message"] |= {"messageId": "m", "parts": [{"text": "deny: too much"}]}
        made = await post("boss", body)
        assert made.json()["message"]["parts"][0]["text"].startswith("pay: denied")
        assert (await post("boss", body)).text == made.text
        [decided] = await decisions(host)
        assert (decided.text, decided.actor_id) == ("too much", "boss")
        await ask_all(host, "b")
        body["message"] |= {"messageId": "m2", "taskId": "task_1_b"}
        assert "2 requests wait" in (await post("boss", body)).text
        body["message"]["messageId"] = "m3"
        assert (await post("eve", body)).status_code == 404


@pytest.mark.parametrize("decides", ["boss", "ada"])
@pytest.mark.parametrize("to_task", [True, False])
def test_task_waits_after_the_process_of_a_decision_died(decides, to_task, sqlite_file, tmp_path):
    """A message to the task runs the call that was allowed; another conversation drops it."""
    url = f"sqlite:///{sqlite_file}"

    async def asking():
        async with served(A2A, url) as (host, *_):
            return await ask(host)

    async def deciding():
        arm("B3")
        async with served(A2A, url) as (_, _, said, post):
            await post(decides, said.body("c", {name: True}))

    async def going_on():
        async with served(A2A, url) as (_, office, said, post):
            body = said.body("c", {})
            signed = {"Authorization": f"Bearer {TOKENS['ada']}"}

            async def task():
                return (await said.client.get("/tasks/task_1_c", headers=signed)).json()

            while (asked := await task())["status"]["state"] == "TASK_STATE_WORKING":
                pass  # the lease of the dead process has not expired
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert "Send a message to the task" in asked["status"]["message"]["parts"][0]["text"]
            body["message"] |= {"messageId": "m", "parts": [{"text": "go on"}]}
            if not to_task:
                del body["message"]["taskId"]
                body["message"]["contextId"] = "c"
            made = (await post("ada", body)).json()["task"]
            old = await task()
            if to_task:
                assert [actor for actor, _ in office.ran] == ["ada"]
                assert made == old
                assert old["status"]["state"] == "TASK_STATE_COMPLETED"
            else:
                assert office.ran == []
                assert made["id"] == "task_3_c"
                assert old["status"]["state"] == "TASK_STATE_CANCELED"

    name = asyncio.run(asking())
    assert wait(fork(lambda: asyncio.run(deciding()), tmp_path / "log")) == -signal.SIGKILL
    asyncio.run(going_on())
