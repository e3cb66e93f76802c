"""Runs of AG-UI in front of a host, and its endpoint: what a page posts, and what it gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.server.test_api import BEN, serving

from looopy import Agent, AuthContext, LoopConfig, RetryPolicy, open_stores, tool
from looopy.errors import InputNotFound, LLMUnavailable, ValueRefused
from looopy.server import AgentHost, Limits, PageTools, ag_ui_api
from looopy.server.problems import Problem
from looopy.server.protocols.ag_ui import runs
from looopy.server.protocols.ag_ui.request import read_run
from looopy.server.protocols.ag_ui.runs import Runs
from looopy.server.protocols.chains import record_of
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import request_input

ADA = AuthContext("ada")
SAYS = [{"id": "u-1", "role": "user", "content": "Hi."}]
HONK = {"name": "honk", "description": "Honk.", "parameters": {"type": "object"}}


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


@pytest.fixture
async def made():
    """A function that makes runs whose model plays a script, with its provider."""
    hosts = []
    async with open_stores("memory:") as stores:

        def make(*replies: Any) -> tuple[Any, ScriptedProvider]:
            provider = ScriptedProvider(replies, chunk_chars=3)

            def build(context_id: str, stores: Any) -> Agent:
                tools = [pay, request_input, PageTools()]
                return Agent(
                    context_id,
                    llm_provider=provider,
                    tools=tools,
                    stores=stores,
                    loop_config=LoopConfig(retry=RetryPolicy(base_s=0.001)),
                )

            host = AgentHost(build, stores)
            hosts.append(host)

            async def run(
                run_id: str,
                messages: Any = (),
                auth: Any = ADA,
                *,
                slow: bool = False,
                cleared: bool = False,
                **more: Any,
            ) -> Any:
                body = {"threadId": "t", "runId": run_id, "messages": list(messages), **more}
                outs = await Runs(host).run(read_run(body), auth)
                if slow:  # the page reads when the turn is over
                    async with host.agent("t", auth) as agent:
                        await agent.wait_for_idle()
                        if cleared:
                            await agent.clear()
                return [out async for out in outs]

            return run, provider

        yield make
        for host in hosts:
            await host.drain(0.01)


def said(outs: list[Any]) -> str:
    return "".join(out["delta"] for out in outs if out["type"] == "TEXT_MESSAGE_CONTENT")


def answer(outs: list[Any]) -> str:
    """The answer: streamed, or committed already when the page got the messages."""
    return said(outs) or contents(outs[1])[-1]


def contents(out: Any) -> list[Any]:
    return [m.get("content") for m in out["messages"] if m["role"] in ("user", "assistant")]


def says(message_id: str, content: Any) -> list[Any]:
    return [{"id": message_id, "role": "user", "content": content}]


async def test_a_run_that_is_posted_twice_is_one_turn(made):
    """The second request gets the committed messages, and how the run ended."""
    run, provider = made(text("Hello."))
    first, again = await run("r-1", SAYS), await run("r-1", SAYS)
    assert said(first) == "Hello."
    assert [out["type"] for out in again] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert contents(again[1]) == ["Hi.", "Hello."]
    assert again[2] == first[-1]
    assert len(provider.requests) == 1


async def test_a_page_that_opens_a_thread_gets_its_messages_and_starts_no_turn(made):
    """A new thread, somebody else's, one that waits: no turn begins."""
    run, provider = made(tool_call("pay", eur=5))
    empty = await run("r-0")
    assert [out["type"] for out in empty] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    finished = (await run("r-1", SAYS))[-1]
    shown = await run("r-2")
    assert contents(shown[1]) == ["Hi.", None]
    assert shown[-1]["outcome"] == finished["outcome"]
    foreign = await run("r-3", auth=AuthContext("ben"))
    assert foreign[1:] == [out | {"runId": "r-3"} if "runId" in out else out for out in empty][1:]
    assert len(provider.requests) == 1


async def test_the_tools_of_the_page_reach_the_model_for_that_run(made):
    """Their calls are left to the page; what else it sends, tools and prompts may read."""
    run, provider = made(tool_call("honk", times=2), text("Loud."), text("Quiet."))
    more = {"tools": [HONK, {**HONK, "name": "bad name"}], "state": {"gear": 3}}
    outs = await run("r-1", SAYS, **more)
    assert outs[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_1"]}
    assert [o["value"]["code"] for o in outs if o["type"] == "CUSTOM"] == ["tools_unavailable"]
    assert "honk" in [spec.name for spec in provider.requests[0].tools]
    result = {"id": "x", "role": "tool", "toolCallId": "call_1", "content": "honked"}
    assert answer(await run("r-2", [*SAYS, result], **more)) == "Loud."
    assert provider.requests[1].messages[-1].text == "honked"
    await run("r-3", says("u-2", "Again."))
    assert "honk" not in [spec.name for spec in provider.requests[2].tools]


async def test_interrupts_are_answered_given_up_or_refused(made):
    """Every pending request is one; a foreign id is an error with its place."""
    ask = tool_call("request_input", prompt="Where?", input_type="clarification")
    run, provider = made((tool_call("pay", eur=5), ask), text("Rome, paid."), ask, text("Fine."))
    outcome = (await run("r-1", SAYS))[-1]["outcome"]
    assert [(one["reason"], one["message"]) for one in outcome["interrupts"]] == [
        ("approval", "May pay run with these arguments?"),
        ("input", "Where?"),
    ]
    approval, question = (one["id"] for one in outcome["interrupts"])
    with pytest.raises(InputNotFound, match=r"^/resume/0/interruptId: no interrupt has the id"):
        await run("r-2", resume=[{"interruptId": "9-call_9", "status": "resolved"}])
    with pytest.raises(ValueRefused, match=r"^/resume/0/status: a question is answered"):
        await run("r-2", resume=[{"interruptId": question, "status": "cancelled"}])
    assert len(provider.requests) == 1
    answers = [
        {"interruptId": approval, "status": "resolved", "payload": {"approved": True}},
        {"interruptId": question, "status": "resolved", "payload": "Rome"},
    ]
    outs = await run("r-2", resume=answers)
    assert outs[1]["type"] == "MESSAGES_SNAPSHOT"
    assert contents(outs[1])[:2] == ["Hi.", None]
    assert answer(outs) == "Rome, paid."
    asked = (await run("r-3", says("u-2", "More?")))[-1]["outcome"]["interrupts"]
    given_up = [{"interruptId": one["id"], "status": "cancelled"} for one in asked]
    outs = await run("r-4", says("u-3", "Never mind."), resume=given_up)
    assert answer(outs) == "Fine."
    assert "Never mind." in contents(outs[1])


AGAIN = {"forwardedProps": {"looopy": {"again": True}}}
FORCED = {"forwardedProps": {"looopy": {"again": True, "force": True}}}


async def test_a_known_message_is_shown_edited_or_answered_again(made):
    """By the id that the page gave it or that of the snapshot; anew only if it asks for that."""
    run, provider = made(*[text(f"{n}.") for n in range(5)])
    await run("r-1", SAYS)
    await run("r-2", says("u-2", "B"))
    for run_id, message in (("r-3", says("u-2", "B")), ("r-3", SAYS), ("r-4", SAYS)):
        outs = await run(run_id, message)
        assert contents(outs[1]) == ["Hi.", "0.", "B", "1."]
        assert outs[-1]["outcome"] == {"type": "success"}
    for _ in range(2):
        outs = await run("r-5", says("u-2", "B"), **AGAIN)
        assert (contents(outs[1])[:3], answer(outs)) == (["Hi.", "0.", "B"], "2.")
    outs = await run("r-6", says("u-2", "C"))
    assert (contents(outs[1])[2], answer(outs)) == ("C", "3.")
    assert contents((await run("r-5", says("u-2", "B")))[1])[2:] == ["C", "3."]
    outs = await run("r-7", says("message-1", "A"))
    assert (contents(outs[1])[0], answer(outs)) == ("A", "4.")
    assert [m.text for m in provider.requests[-1].messages] == ["A"]


async def test_a_run_with_effects_is_not_done_again_unless_it_is_forced(made):
    """A retry of the client shows the turn; so does one of the answers to its interrupts."""
    run, provider = made(*[tool_call("pay", eur=5), text("Paid.")] * 2)
    asked = (await run("r-1", SAYS))[-1]["outcome"]["interrupts"][0]["id"]
    resume = [{"interruptId": asked, "status": "resolved", "payload": True}]
    assert answer(await run("r-2", resume=resume)) == "Paid."
    for run_id, more in (("r-3", {"resume": resume}), ("r-4", {"messages": SAYS})):
        again = await run(run_id, more.pop("messages", ()), **more)
        assert (answer(again), again[-1]["outcome"]["type"]) == ("Paid.", "success")
    with pytest.raises(Problem, match="the tool pay ran for this request") as refused:
        await run("r-5", SAYS, **AGAIN)
    assert (refused.value.status, refused.value.code) == (409, "effects_repeated")
    assert refused.value.path == "/forwardedProps/looopy/again"
    assert len(provider.requests) == 2
    assert (await run("r-6", SAYS, **FORCED))[-1]["outcome"]["type"] == "interrupt"


async def test_a_slow_page_gets_no_message_twice(made):
    """A snapshot in the middle has the messages up to its place, whatever was committed since."""
    broken = (text("I"), failure(LLMUnavailable))
    run, _ = made(broken, tool_call("request_input", prompt="Where?"))
    outs = await run("r-1", SAYS, slow=True)
    snapshots = [out["messages"] for out in outs if out["type"] == "MESSAGES_SNAPSHOT"]
    assert [len(messages) for messages in snapshots] == [1, 2]


async def test_a_turn_that_ends_while_its_run_begins_is_shown_to_its_end(made, monkeypatch):
    """The answer may come between two reads of the store: no page waits for it in vain."""
    gate = asyncio.Event()

    async def late(_request: Any) -> Any:
        await gate.wait()
        return text("Paid.")

    async def as_it_ends(*which: Any) -> Any:
        gate.set()
        while (found := await record_of(*which)).end_seq is None:  # noqa: ASYNC110 - a store
            await asyncio.sleep(0)
        return found

    run, _ = made(tool_call("pay", eur=5), late)
    asked = (await run("r-1", SAYS))[-1]["outcome"]["interrupts"][0]["id"]
    monkeypatch.setattr(runs, "record_of", as_it_ends)
    outs = await run("r-2", resume=[{"interruptId": asked, "status": "resolved", "payload": True}])
    assert answer(outs) == "Paid."
    assert outs[-1]["outcome"] == {"type": "success"}


async def test_a_page_that_opens_as_a_turn_asks_sees_the_interrupt(monkeypatch):
    """The turn ends between two reads of the store: what it asks is not lost."""
    gate = asyncio.Event()

    async def late(_request: Any) -> Any:
        await gate.wait()
        return tool_call("pay", eur=5)

    def build(context_id: str, stores: Any) -> Agent:
        model = ScriptedProvider([late])
        return Agent(context_id, llm_provider=model, tools=[pay], stores=stores)

    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        begun = await Runs(host).run(read_run(_posted()), ADA)
        async with host.agent("t", ADA) as agent:
            refresh = agent.refresh

            async def as_it_ends() -> Any:
                state = await refresh()
                gate.set()
                await agent.wait_for_idle()
                return state

            monkeypatch.setattr(agent, "refresh", as_it_ends)
            opened = await Runs(host).run(read_run(_posted(runId="r-2", messages=[])), ADA)
            shown = [out async for out in opened]
        await begun.aclose()
    assert [one["reason"] for one in shown[-1]["outcome"]["interrupts"]] == ["approval"]


async def test_a_run_whose_history_was_cleared_ends(made):
    """Nothing more comes of its turn, so no page waits for it."""
    run, _ = made(text("One."), text("Two."))
    await run("r-1", SAYS)
    outs = await run("r-1", SAYS, slow=True, cleared=True)
    assert outs[-1]["type"] == "RUN_FINISHED"
    assert [o["type"] for o in await run("r-1", SAYS)] == [o["type"] for o in outs]
    assert said(await run("r-2", says("u-2", "Again."))) == "Two."


async def test_a_snapshot_of_a_long_thread_has_its_newest_messages():
    """AG-UI's client refuses an event of 10 MiB; of a long turn it gets the end."""
    replies: list[Any] = [text("word " * 200) for _ in range(6)]
    replies += [(text("word " * 580), tool_call("pay", eur=5)), text("Paid.")]
    model = ScriptedProvider(replies)

    def build(context_id: str, stores: Any) -> Agent:
        return Agent(context_id, llm_provider=model, tools=[pay], stores=stores)

    limits = Limits(page_bytes=3_000)
    async with serving(build, protocols=[ag_ui_api], limits=limits) as (
        client,
        _,
    ):

        async def run(**body: Any) -> list[Any]:
            lines = (await client.post("/ag-ui", json=_posted(**body))).text.split("\n\n")
            assert max(map(len, lines)) < 3_200
            return [json.loads(line.removeprefix("data: ")) for line in lines if line]

        for number in range(6):
            await run(runId=f"r-{number}", messages=says(f"u-{number}", f"{number}?"))
        [_, shown, _] = await run(runId="look", messages=[])
        assert [one["id"] for one in shown["messages"]] == ["u-4", "5.1", "u-5", "6.1"]
        asked = (await run(runId="r-6", messages=says("u-6", "Pay.")))[-1]["outcome"]["interrupts"]
        resume = [{"interruptId": asked[0]["id"], "status": "resolved", "payload": True}]
        outs = await run(runId="r-7", messages=[], resume=resume)
        assert (outs[1]["type"], answer(outs)) == ("MESSAGES_SNAPSHOT", "Paid.")
        assert outs[1]["messages"][0]["id"] == "7.1"


def _posted(**body: Any) -> dict[str, Any]:
    return {"threadId": "t", "runId": "r", "messages": SAYS, **body}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        ({"runId": "r", "messages": []}, "/threadId"),
        (_posted(threadId="a b"), "/threadId"),
        (_posted(runId=""), "/runId"),
        (_posted(runId="r" * 201), "/runId"),
        (_posted(messages={}), "/messages"),
        (_posted(messages=[{"id": "u", "role": "root", "content": "x"}]), "/messages/0"),
        (_posted(messages=[{"role": "user", "content": "x"}]), "/messages/0/id"),
        (_posted(messages=[*SAYS, {"id": "u", "role": "user"}]), "/messages/1/content"),
        (_posted(messages=says("u", "  ")), "/messages/0/content"),
        (_posted(messages=says("u", [{"type": "shell"}])), "/messages/0/content/0"),
        (
            _posted(
                messages=says(
                    "u",
                    [{"type": "image", "source": {"type": "url", "value": "file:///etc/x"}}],
                )
            ),
            "/messages/0/content/0/source/value",
        ),
        (_posted(resume=[{"interruptId": "1"}]), "/resume/0/status"),
        (_posted(tools=[{"name": 1, "description": ""}]), "/tools/0/name"),
        (_posted(forwardedProps={"looopy": 1}), "/forwardedProps/looopy"),
        (_posted(forwardedProps={"looopy": {"again": 1}}), "/forwardedProps/looopy/again"),
        (_posted(messages=[], **AGAIN), "/forwardedProps/looopy/again"),
    ],
)
def test_a_malformed_run_is_refused_with_the_place(body, path):
    """The path is a JSON pointer into the body."""
    with pytest.raises(ValueRefused) as refused:
        read_run(body)
    assert refused.value.path == path
    assert str(refused.value).startswith(path)


def test_files_of_the_page_are_kept_as_blocks():
    """A picture, a document and a recording."""
    data = {"type": "data", "value": "aGk=", "mimeType": "audio/wav"}
    parts = [
        {"type": "image", "source": {"type": "url", "value": "https://a/b", "mimeType": "image/x"}},
        {"type": "document", "source": {**data, "mimeType": "text/plain"}},
        {"type": "audio", "source": data},
        {"type": "text", "text": "See."},
    ]
    message = read_run(_posted(messages=says("u", parts))).message
    assert [block.type for block in message.content] == ["image", "document", "audio", "text"]
    assert (message.content[0].url, message.content[1].data) == ("https://a/b", "aGk=")


async def test_the_endpoint_streams_and_refuses_over_http():
    """Errors before the run are statuses with their code and place; nothing is stored."""
    limits = Limits(body_bytes=20_000, message_bytes=4_000)
    async with serving(protocols=[ag_ui_api], limits=limits) as (client, host):
        answer = await client.post("/ag-ui", json=_posted())
        assert answer.headers["content-type"].startswith("text/event-stream")
        outs = [json.loads(line[6:]) for line in answer.text.strip().split("\n\n")]
        assert (outs[0]["type"], said(outs), outs[-1]["type"]) == (
            "RUN_STARTED",
            "Hello there.",
            "RUN_FINISHED",
        )
        before = await host.stores.journal.events("t")
        for body, status, code, path in (
            (_posted(threadId="../x"), 400, "value_refused", "/threadId"),
            (_posted(messages=says("u", "x" * 5_000)), 400, "too_large", "/messages/0/content"),
            (_posted(forwardedProps="x" * 30_000), 413, "too_large", None),
            (
                _posted(messages=[], resume=[{"interruptId": "9", "status": "resolved"}]),
                404,
                "input_not_found",
                None,
            ),
        ):
            answer = await client.post("/ag-ui", json={**body, "runId": "r-2"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error.get("path")) == (status, code, path)
        client.headers["Authorization"] = f"Bearer {BEN}"
        answer = await client.post("/ag-ui", json=_posted(runId="r-3"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "context_not_found")
        assert await host.stores.journal.events("t") == before
