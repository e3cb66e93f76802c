"""A2A as the official SDK's client sees it, over JSON-RPC and REST, on a real connection."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tests.killed import killed_in_a_tool
from tests.server.loopback import listening

from looopy import Agent, AuthContext, open_stores, tool
from looopy.errors import RateLimited
from looopy.server import AgentHost, Limits, StaticTokens, a2a_api, create_app
from looopy.server.app_context import AppContext
from looopy.server.protocols.a2a.parts import data_part
from looopy.server.protocols.a2a.routes import PATHS
from looopy.server.protocols.a2a.wires import wired
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import RemoteAgent, request_input
from looopy.tools.base import ToolContext

ADA, BEN = "a" * 20, "b" * 20


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


@tool(effects="none")
async def keep(context: ToolContext) -> str:
    """Keep artifacts."""
    await context.artifacts.save("report", {"n": 3})
    await context.artifacts.save("notes.txt", "hello")
    await context.artifacts.save("big.bin", b"x" * 100_000)
    return "kept"


@tool(effects="idempotent")
async def hold() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "held"


def reply(request):
    """What the model says: it does what its last message asks for."""
    last = request.messages[-1]
    if last.role == "toolResult":
        return text(f"Result: {last.text}")
    match last.text:
        case "send":
            return (text("I will."), tool_call("send", to="Ada"))
        case "ask":
            return tool_call("request_input", prompt="Which city?")
        case "keep":
            return tool_call("keep")
        case "hold":
            return (text("Let me see."), tool_call("hold"))
        case "fail":
            return failure(ValueError("no idea"))
        case "busy":
            return failure(RateLimited("slow", retry_after_s=0.001))
        case "count":
            return text(" ".join(map(str, range(100))))
    return text(f"I heard {[m.text for m in request.messages if m.role == 'user']}")


def build(context_id, stores):
    """An agent."""
    model = ScriptedProvider(reply, chunk_chars=8, delay_s=0.003)
    return Agent(
        context_id,
        llm_provider=model,
        tools=[send, keep, hold, request_input],
        stores=stores,
    )


@asynccontextmanager
async def served(stores, limits=None, authenticate=None, http_api=True):
    """The address of a server."""
    async with AgentHost(build, stores, drain_s=0.01) as host:
        tokens = authenticate or StaticTokens({ADA: "ada", BEN: "ben"})
        app = create_app(
            host, authenticate=tokens, protocols=[a2a_api], limits=limits, http_api=http_api
        )
        async with listening(app, lifespan="off") as url:
            yield url


class Caller:
    """The SDK's client, with what the tests do again and again."""

    def __init__(self, http, card, binding):
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        self.sdk = ClientFactory(config).create(card)

    def stream(self, said, *, key=None, options=None, **place):
        """The responses to a message: a text, or a part of data."""
        message = new_text_message(
            said if isinstance(said, str) else "", role=Role.ROLE_USER, **place
        )
        if not isinstance(said, str):
            message.parts[0].CopyFrom(said)
        if key is not None:
            message.message_id = key
        request = SendMessageRequest(message=message, configuration=options)
        return self.sdk.send_message(request)

    async def say(self, said, **more):
        """All responses to a message; the task, as it is then."""
        seen = [one async for one in self.stream(said, **more)]
        return seen, await self.get(seen[0].task.id)

    async def get(self, task_id, **more):
        """A task."""
        return await self.sdk.get_task(GetTaskRequest(id=task_id, **more))

    async def cancel(self, task_id):
        """Cancel a task."""
        return await self.sdk.cancel_task(CancelTaskRequest(id=task_id))

    def subscribe(self, task_id):
        """Subscribe to a task."""
        return self.sdk.subscribe(SubscribeToTaskRequest(id=task_id))


@asynccontextmanager
async def calling(url, token=ADA, bindings=("JSONRPC", "HTTP+JSON"), patience_s=30):
    """Clients, one for each binding."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=patience_s) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        yield [Caller(http, card, binding) for binding in bindings]


@asynccontextmanager
async def both(**options):
    """A server, and clients for both bindings."""
    async with (
        open_stores("memory:") as stores,
        served(stores, **options) as url,
        calling(url) as callers,
    ):
        yield callers


def state(shown):
    """The state of a task, or of a response of a stream."""
    if isinstance(shown, StreamResponse):
        shown = shown.task if shown.WhichOneof("payload") == "task" else shown.status_update
    return TaskState.Name(shown.status.state).removeprefix("TASK_STATE_")


def answer(task):
    """The text of the last status message."""
    return task.status.message.parts[0].text


def assembled(seen):
    """The task that the functions of the SDK make of a stream."""
    task = Task()
    task.CopyFrom(seen[0].task)
    for one in seen[1:]:
        if one.HasField("artifact_update"):
            append_artifact_to_task(task, one.artifact_update)
        else:
            task.status.CopyFrom(one.status_update.status)
    return task


async def test_the_text_of_each_answer_takes_the_place_of_the_one_before():
    """So at the end of a task, the artifact with its text is the last answer, like its status."""
    async with both() as callers:
        for caller in callers:
            seen, task = await caller.say("keep")
            built = assembled(seen)
            [said] = [one for one in built.artifacts if one.name == "text"]
            assert "".join(part.text for part in said.parts) == answer(task)
            assert said.artifact_id == f"{task.id}.text"


async def test_a_wait_for_the_model_is_a_status_message():
    """Each wait, while the task works; the last status has the failure."""
    async with both() as callers:
        for caller in callers:
            seen, _ = await caller.say("busy")
            waits = [one.status_update for one in seen[1:-1]]
            assert [state(one) for one in seen[1:]] == ["WORKING"] * 3 + ["FAILED"]
            assert {answer(one) for one in waits} == {"The model is busy. Trying again in 1 s."}
            assert len({one.status.message.message_id for one in waits}) == 3


async def test_errors_of_a_client_are_no_warnings_in_the_log(caplog):
    """They are the answer; somebody who debugs sees them."""
    async with open_stores("memory:") as stores, served(stores) as url:
        headers = {"Authorization": f"Bearer {ADA}", "A2A-Version": "1.0"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            for level, logged in ((logging.INFO, False), (logging.DEBUG, True)):
                caplog.clear()
                caplog.set_level(level)
                for name in ("a2a.utils.error_handlers", "a2a.server.routes.jsonrpc_dispatcher"):
                    caplog.set_level(level, logger=name)
                assert (await http.get("/tasks/none")).status_code == 404
                wrong = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": 5}}
                assert "error" in (await http.post("/a2a/v1", json=wrong)).json()
                assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
                said = [one for one in caplog.records if "Request error" in one.message]
                assert bool(said) is logged


async def test_a_conversation_of_tasks():
    """A stream is a snapshot, the text in chunks, and the answer; a second task has its context."""
    async with both() as callers:
        for number, caller in enumerate(callers):
            key = f"my-id-{number}"
            seen, task = await caller.say("count", key=key)
            whole = " ".join(map(str, range(100)))
            assert (state(seen[-1]), answer(seen[-1].status_update)) == ("COMPLETED", whole)
            chunks = [one.artifact_update for one in seen[1:-1]]
            assert [one.append for one in chunks] == [False, *[True] * (len(chunks) - 1)]
            shown = "".join(part.text for one in chunks for part in one.artifact.parts)
            assert shown == whole  # each character once
            [text] = assembled(seen).artifacts
            assert "".join(part.text for part in text.parts) == whole
            assert task.status == seen[-1].status_update.status
            assert [one.message_id for one in task.history] == [key]
            for _ in range(2):  # the same message, which names no context
                again, same = await caller.say("count", key=key)
                assert (len(again), same) == (2, task)  # with the update that ends a stream
                assert again[-1].status_update.status == task.status
            _, other = await caller.say("again", key=key)
            assert other.context_id != task.context_id
            assert not (await caller.get(task.id, history_length=0)).history
            _, second = await caller.say("again", context_id=task.context_id)
            assert second.id != task.id
            assert second.context_id == task.context_id
            assert answer(second) == "I heard ['count', 'again']"
            _, broken = await caller.say("fail")
            assert (state(broken), answer(broken)) == ("FAILED", "ValueError: no idea")


async def test_artifacts_of_a_task():
    """Data as data, a text as text, a large file by its address."""
    async with both() as [caller, _]:
        seen, task = await caller.say("keep")
        streamed = [one.artifact_update for one in seen if one.HasField("artifact_update")]
        streamed = [one for one in streamed if not one.artifact.artifact_id.endswith(".text")]
        assert sorted(one.artifact.artifact_id for one in streamed) == [
            "big.bin", "notes.txt", "report"
        ]  # fmt: skip
        assert all(one.last_chunk and not one.append for one in streamed)
        big, notes, report = task.artifacts
        assert report.parts[0].data.struct_value["n"] == 3
        assert (notes.parts[0].text, notes.parts[0].filename) == ("hello", "notes.txt")
        signed_in = {"Authorization": f"Bearer {ADA}"}
        async with httpx.AsyncClient(headers=signed_in, timeout=60) as http:
            assert len((await http.get(big.parts[0].url)).content) == 100_000


async def test_questions_and_their_answers():
    """By a word, or by the id of the request; the task goes on, and its turns are its history."""
    async with both() as callers:
        for caller in callers:
            seen, task = await caller.say("send")
            assert (state(seen[-1]), state(task)) == ("INPUT_REQUIRED",) * 2
            question, requests = task.status.message.parts
            assert question.text.startswith("I will.\n\nMay send run")
            with pytest.raises(InvalidParamsError, match="approve"):
                await caller.say("perhaps", task_id=task.id)
            with pytest.raises(InvalidParamsError, match="another context"):
                await caller.say("approve", task_id=task.id, context_id="c")
            seen, task = await caller.say("approve", task_id=task.id, key="yes-1")
            assert state(seen[-1]) == "COMPLETED"
            assert answer(task) == "Result: sent to Ada"
            assert [one.role for one in task.history] == [Role.ROLE_USER, Role.ROLE_AGENT]
            seen, again = await caller.say("approve", task_id=task.id, key="yes-1")  # sent twice
            assert again == task
            with pytest.raises(UnsupportedOperationError, match="over"):
                await caller.say("more", task_id=task.id)
            [asked] = requests.data.struct_value["requests"]
            _, task = await caller.say("send")
            with pytest.raises(InvalidParamsError, match="an approval takes"):
                await caller.say(data_part({"another": True}), task_id=task.id)
            _, task = await caller.say(data_part({asked["request_id"]: True}), task_id=task.id)
            assert state(task) == "COMPLETED"
            _, task = await caller.say("send")
            _, task = await caller.say("deny: too late", task_id=task.id)
            assert answer(task).endswith("too late")
            _, task = await caller.say("ask")
            assert answer(task) == "Which city?"
            _, task = await caller.say("Turin", task_id=task.id)
            assert answer(task) == "Result: Turin"


async def test_artifacts_have_addresses_without_the_http_api():
    """Their content is the one path of it that A2A needs."""
    async with open_stores("memory:") as stores, served(stores, http_api=False) as url:
        headers = {"Authorization": f"Bearer {ADA}", "A2A-Version": "1.0"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "keep"}]}
            said = await http.post("/message:send", json={"message": message})
            big = said.json()["task"]["artifacts"][0]["parts"][0]["url"]
            assert len((await http.get(big)).content) == 100_000
            context_id = said.json()["task"]["contextId"]
            for path in ("/contexts", f"/contexts/{context_id}/messages", "/openapi.json"):
                assert (await http.get(path)).status_code == 404


async def test_a_task_that_runs():
    """It is watched again, told more, and stopped; a client that leaves stops nothing."""
    async with both() as callers:
        for caller in callers:
            stream = caller.stream("hold")
            task = (await anext(stream)).task
            await stream.aclose()
            with pytest.raises(UnsupportedOperationError, match="is working"):
                await caller.say("and?", context_id=task.context_id)
            async with aclosing(caller.subscribe(task.id)) as watched:
                assert state(await anext(watched)) == "WORKING"
                now = SendMessageConfiguration(return_immediately=True)
                told = SendMessageRequest(
                    message=new_text_message("wait", role=Role.ROLE_USER, task_id=task.id),
                    configuration=now,
                )
                transport = caller.sdk._transport
                assert state((await transport.send_message(told)).task) == "WORKING"
                assert state(await caller.cancel(task.id)) == "CANCELED"
                shown = [one async for one in watched]
            assert state(shown[-1]) == "CANCELED"
            with pytest.raises(TaskNotCancelableError):
                await caller.cancel(task.id)
            with pytest.raises(UnsupportedOperationError):
                await anext(caller.subscribe(task.id))


async def test_a_question_that_is_cancelled_or_passed_over():
    """No model is called for it; a subscriber sees it, and the conversation goes on."""
    async with both() as [caller, other]:
        _, task = await caller.say("send")
        async with aclosing(other.subscribe(task.id)) as watched:
            assert state(await anext(watched)) == "INPUT_REQUIRED"
            assert state(await caller.cancel(task.id)) == "CANCELED"
            assert [state(one) async for one in watched] == ["CANCELED"]
        _, after = await caller.say("after", context_id=task.context_id)
        assert answer(after) == "I heard ['send', 'after']"
        _, task = await caller.say("ask")
        async with aclosing(other.subscribe(task.id)) as watched:
            await anext(watched)
            await caller.say("never mind", context_id=task.context_id)
            assert [state(one) async for one in watched] == ["CANCELED"]
        assert state(await caller.get(task.id)) == "CANCELED"


async def test_tasks_are_listed_page_by_page():
    """Those of one context, or of all; with a state; the newest first."""
    async with both() as [caller, rest]:
        _, first = await caller.say("hi", context_id="one")
        await caller.say("send", context_id="two")
        await caller.say("fail", context_id="one")
        _, waits = await caller.say("ask", context_id="two")
        _, done = await caller.say("Rome", task_id=waits.id)

        async def listed(by=rest, **query):
            found, token = [], ""
            while True:
                page = await by.sdk.list_tasks(ListTasksRequest(page_token=token, **query))
                found += page.tasks
                token = page.next_page_token
                if not token:
                    assert page.total_size == len(found)
                    return [one.id for one in found]

        everything = ["task_2_two", "task_1_two", "task_2_one", "task_1_one"]
        for size in (1, 2, 3, 100):
            assert await listed(page_size=size) == everything
        assert waits.id == done.id == everything[0]
        assert await listed(caller, page_size=1, context_id="one") == everything[2:]
        assert await listed(page_size=1, status=TaskState.TASK_STATE_CANCELED) == everything[1:2]
        assert await listed(status_timestamp_after=done.status.timestamp) == everything[:1]
        assert await listed(context_id="nobody") == []
        page = await rest.sdk.list_tasks(ListTasksRequest(history_length=1, page_size=4))
        assert page.tasks[-1].history == first.history
        for query in ({"page_token": "x"}, {"page_size": 101}, {"history_length": -1}):
            with pytest.raises(InvalidParamsError):
                await rest.sdk.list_tasks(ListTasksRequest(**query))


async def test_a_message_to_a_working_task_is_taken_once_however_often_it_is_sent():
    """Sent by several at once, again, and once the task is over; another message is another one."""
    at_once = SendMessageConfiguration(return_immediately=True)
    async with open_stores("memory:") as stores, served(stores) as url, calling(url) as callers:
        held = callers[0].stream("hold", context_id="c")
        task = (await anext(held)).task
        begun: set[str] = set()
        while "tool_execution_start" not in begun:  # before it, a call to the model takes messages
            await asyncio.sleep(0)
            begun = {event.type for event in await stores.journal.events("c")}

        async def say(caller, said, key):
            message = new_text_message(said, role=Role.ROLE_USER, task_id=task.id)
            message.message_id = key
            request = SendMessageRequest(message=message, configuration=at_once)
            return (await caller.sdk._transport.send_message(request)).task.id

        same = [say(caller, "and then", "m-2") for caller in callers * 2]
        assert await asyncio.gather(*same) == [task.id] * 4
        await say(callers[1], "at last", "m-3")
        await say(callers[0], "and then", "m-2")
        _, waiting = await stores.journal.inbox("c")
        assert [one.message.text for one in waiting] == ["and then", "at last"]
        await callers[0].cancel(task.id)
        await held.aclose()
        assert await say(callers[0], "at last", "m-3") == task.id
        with pytest.raises(UnsupportedOperationError, match="over"):
            await say(callers[0], "and then", "m-4")


async def test_the_tasks_of_another_do_not_exist():
    """Whatever the verb; and what there is not is refused in A2A's own words."""
    async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
        async with served(stores) as url, calling(url) as mine, calling(url, BEN) as theirs:
            _, task = await mine[0].say("send", context_id="c")
            for ben in theirs:
                for verb in (
                    lambda ben=ben: ben.get(task.id),
                    lambda ben=ben: ben.cancel(task.id),
                    lambda ben=ben: ben.say("approve", task_id=task.id),
                    lambda ben=ben: anext(ben.subscribe(task.id)),
                    lambda ben=ben: ben.get("task_1_nobody"),
                    lambda ben=ben: ben.get("task_9_c"),
                    lambda ben=ben: ben.get("task"),
                ):
                    with pytest.raises(TaskNotFoundError):
                        await verb()
                with pytest.raises(InvalidParamsError, match="does not exist"):
                    await ben.say("hi", context_id="c")
                assert not (await ben.sdk.list_tasks(ListTasksRequest(context_id="c"))).tasks
            push = TaskPushNotificationConfig(task_id=task.id, url="http://127.0.0.1/")
            wanted = SendMessageConfiguration(task_push_notification_config=push)
            request = SendMessageRequest(
                message=new_text_message("x", role=Role.ROLE_USER), configuration=wanted
            )
            for ada in mine:
                for asked in (
                    ada.sdk._transport.create_task_push_notification_config(push),
                    ada.sdk._transport.send_message(request),
                ):
                    with pytest.raises(PushNotificationNotSupportedError):
                        await asked


async def test_credentials_that_expire_and_fresh_ones():
    """The task waits for them, and continues with them."""

    def who(request):
        return AuthContext("ada", credentials={"token": "t"})

    async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
        async with served(stores, authenticate=who) as url, calling(url) as [caller, _]:
            async with Agent(
                "c",
                llm_provider=ScriptedProvider([tool_call("send", to="Ada")]),
                tools=[send],
                stores=stores,
            ) as agent:
                await agent.execute_turn("send", AuthContext("ada", credentials={"token": "t"}))
                [asked] = agent.state.pending
                await agent.execute_turn(None, inputs={asked.request_id: True})  # without any
            task = await caller.get("task_1_c")
            assert state(task) == "AUTH_REQUIRED"
            _, task = await caller.say("go on", task_id=task.id)
            assert answer(task) == "Result: sent to Ada"


async def test_older_clients_speak_0_3():
    """On the same address, and over REST; its errors too."""
    async with open_stores("memory:") as stores, served(stores) as url:
        headers = {"Authorization": f"Bearer {ADA}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            part = {"kind": "text", "text": "hi"}
            message = {"kind": "message", "messageId": "m", "role": "user", "parts": [part]}
            call = {"jsonrpc": "2.0", "id": 1, "method": "message/send"}
            answered = await http.post("/a2a/v1/", json=call | {"params": {"message": message}})
            task = answered.json()["result"]
            assert (task["kind"], task["status"]["state"]) == ("task", "completed")
            got = await http.get(f"/v1/tasks/{task['id']}")
            assert got.json()["status"]["state"] == "TASK_STATE_COMPLETED"
            lost = await http.get("/v1/tasks/task_1_x:subscribe")
            assert (lost.status_code, lost.json()["error"]["code"]) == (404, 404)
            card = (await http.get("/.well-known/agent-card.json")).json()
            assert (card["protocolVersion"], card["url"]) == ("0.3", f"{url}/a2a/v1/")
            assert card["supportsAuthenticatedExtendedCard"]


async def test_only_a_caller_who_signed_in_sees_the_tools_on_a_card():
    """In the extended card, over every protocol; the public one tells of the conversation."""
    tools = ["send", "keep", "hold", "request_input"]
    async with open_stores("memory:") as stores, served(stores) as url:  # noqa: SIM117
        async with httpx.AsyncClient(base_url=url) as http:
            card = (await http.get("/.well-known/agent-card.json")).json()
            assert [one["id"] for one in card["skills"]] == ["chat"]
            assert card["capabilities"]["extendedAgentCard"]
            rpc = {"jsonrpc": "2.0", "id": 1, "params": {}}
            old = rpc | {"method": "agent/getAuthenticatedExtendedCard"}
            new = rpc | {"method": "GetExtendedAgentCard"}
            for name in ("extendedAgentCard", "v1/card"):
                assert (await http.get(f"/{name}")).status_code == 401
            assert (await http.post("/a2a/v1/", json=new)).status_code == 401
            http.headers["Authorization"] = f"Bearer {ADA}"
            newer = {"A2A-Version": "1.0"}
            extended = (await http.get("/extendedAgentCard", headers=newer)).json()
            assert [one["id"] for one in extended["skills"]] == tools
            assert extended["supportedInterfaces"] == card["supportedInterfaces"]
            called = (await http.post("/a2a/v1/", json=new, headers=newer)).json()
            assert called["result"] == extended
            for answer in (await http.get("/v1/card"), await http.post("/a2a/v1/", json=old)):
                found = answer.json().get("result", answer.json())
                assert [one["id"] for one in found["skills"]] == tools, answer.text


async def test_an_agent_of_ours_calls_one_of_ours():
    """`RemoteAgent` at the other end: its question is the user's, and the answer goes on there."""
    script = [tool_call("agent__far__invoke", prompt="send"), text("Done.")]
    async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
        async with served(stores) as url, open_stores("memory:") as near:
            far = RemoteAgent(url, name="far", headers={"Authorization": f"Bearer {ADA}"})
            model = ScriptedProvider(script)
            async with Agent("c", llm_provider=model, tools=[far], stores=near) as agent:
                asked = await agent.execute_turn("Send it.", AuthContext("ada"))
                [tool] = model.requests[0].tools
                assert "- send: Send it." in tool.description  # from the extended card
                [question] = asked.pending
                assert "May send run" in question.prompt
                inputs = {question.request_id: "approve"}
                done = await agent.execute_turn(None, AuthContext("ada"), inputs=inputs)
                assert [m.text for m in done.messages] == ["Result: sent to Ada", "Done."]


def rpc(parts=b'[{"text":"x"}]', more=b""):
    """The body of a call."""
    return (
        b'{"jsonrpc":"2.0","id":"i","method":"SendMessage","params":{"message":{"messageId":"m",'
        b'"role":"ROLE_USER","parts":%s%s}}}' % (parts, more)
    )


BAD = [
    (b"{", 400, -32700, None),
    (b'{"a":NaN}', 400, -32700, None),
    (b"[]", 400, -32602, ""),
    (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", 400, -32602, "/a" + "/0" * 63),
    (rpc(b'[{"text":"\\ud800"}]'), 400, -32602, "/params/message/parts/0/text"),
    (b'{"a":"' + b"x" * 3000 + b'"}', 413, -32600, None),
    (rpc(b'[{"text":"%s"}]' % (b"x" * 101)), 200, -32602, "/message/parts"),
    (rpc(b"[]"), 200, -32602, None),
    (rpc(b'[{"text":" "}]'), 200, -32602, "/message/parts"),
    (rpc(b"[{}]"), 200, -32602, "/message/parts/0"),
    (rpc(b'[{"raw":"UEs=","mediaType":"application/zip"}]'), 200, -32005, "/message/parts/0"),
    (rpc(more=b',"contextId":"a b"'), 200, -32602, "/message/contextId"),
    (rpc(more=b',"taskId":"x"'), 200, -32001, None),
    (rpc().replace(b"ROLE_USER", b"ROLE_AGENT"), 200, -32602, "/message/role"),
    (rpc().replace(b"SendMessage", b"Send"), 200, -32601, None),
]


async def test_bad_requests_are_answered_in_the_form_of_the_wire():
    """Status, code and place; nothing is stored. Wrong credentials and limits too."""
    limits = Limits(body_bytes=2000, message_bytes=100, streams_per_actor=1, turns_per_minute=1)
    async with open_stores("memory:") as stores, served(stores, limits=limits) as url:
        kept = {"Content-Type": "application/json", "A2A-Version": "1.0"}
        async with httpx.AsyncClient(base_url=url, headers=kept) as http:
            assert (await http.post("/a2a/v1/", content=rpc())).status_code == 401
            refused = await http.get("/tasks")
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["status"] == "UNAUTHENTICATED"
            http.headers["Authorization"] = f"Bearer {ADA}"
            other = {"Content-Type": "text/plain"}
            answered = await http.post("/a2a/v1/", content=rpc(), headers=other)
            assert (answered.status_code, answered.json()["error"]["code"]) == (415, -32005)
            for body, status, code, path in BAD:
                answered = await http.post("/a2a/v1/", content=body)
                error = answered.json()["error"]
                assert (answered.status_code, error["code"]) == (status, code), body[:80]
                facts = [one.get("metadata") or {} for one in error.get("data") or []]
                assert path in [one.get("path") for one in facts] or path is None, error
                if status != 200 and code != -32602:
                    continue
                sent = json.loads(body).get("params") if b"params" in body else None
                if sent is None or code == -32601:
                    continue
                over_rest = await http.post("/message:send", content=json.dumps(sent))
                assert 400 <= over_rest.status_code < 500, body[:80]
                assert over_rest.json()["error"]["code"] == over_rest.status_code
            plain = await http.post(
                "/message:send", content=b"{}", headers={"Content-Type": "text/plain"}
            )
            assert plain.status_code == 415
            assert not (await stores.contexts.list()).items
            stream = rpc(b'[{"text":"hold"}]').replace(b"SendMessage", b"SendStreamingMessage")
            async with http.stream("POST", "/a2a/v1", content=stream) as held:
                lines = held.aiter_lines()
                task = json.loads((await anext(lines)).removeprefix("data: "))["result"]["task"]
                refused = await http.get(f"/tasks/{task['id']}:subscribe")
                assert refused.status_code == 429
                assert refused.headers["retry-after"] == "1"
                assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
                refused = await http.post("/a2a/v1", content=rpc())
                assert (refused.status_code, refused.json()["id"]) == (429, "i")
                assert refused.json()["error"]["data"][0]["reason"] == "LIMIT_EXCEEDED"
                answered = await http.post(f"/tasks/{task['id']}:cancel")  # without a body
                assert answered.json()["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_dead_process_leaves_no_task_working(preloaded, tmp_path):
    """Whoever asks next sees it failed, and the conversation goes on."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with open_stores(url) as stores:  # noqa: SIM117 - too long in one
        async with served(stores) as address, calling(address) as [caller, _]:
            await caller.say("hi", context_id="c")  # from here on, this process has an agent of it
            await killed_in_a_tool(preloaded, url, name="hold", effects="idempotent")
            record = await stores.state.load("c")
            assert record is not None
            assert record.open_turn is not None
            found = await caller.sdk.list_tasks(ListTasksRequest())
            assert [state(one) for one in found.tasks] == ["FAILED", "COMPLETED"]
            task = await caller.get("task_2_c")
            assert state(task) == "FAILED"
            assert "Send a message" in answer(task)
            _, after = await caller.say("after", context_id="c")
            assert state(after) == "COMPLETED"


async def test_the_paths_are_those_of_the_sdk():
    """A face has its paths before the SDK is imported."""
    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        app_context = AppContext(host, StaticTokens({}))
        assert sorted(wired(app_context, {}, None)) == sorted(PATHS)


def test_the_sdk_is_imported_when_the_application_starts():
    """In a thread, before anybody calls; the import takes seconds of a processor."""
    code = (
        "import asyncio, sys\n"
        "from looopy import open_stores\n"
        "from looopy.server import AgentHost, a2a_api, create_app, mcp_api\n"
        "async def main():\n"
        "    async with open_stores('memory:') as stores, AgentHost(print, stores) as host:\n"
        "        app = create_app(host, protocols=[a2a_api, mcp_api])\n"
        "        assert not {'a2a', 'mcp'} & sys.modules.keys()\n"
        "        async with app.router.lifespan_context(app):\n"
        "            for name in ('a2a.wires', 'mcp.streamable'):\n"
        "                name = 'looopy.server.protocols.' + name\n"
        "                while not hasattr(sys.modules.get(name), 'Final'):\n"
        "                    await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
