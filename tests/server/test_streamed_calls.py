"""The arguments of a call reach a page while the model writes them, under an id of their own."""

from __future__ import annotations

from typing import Any

from looopy import AuthContext
from looopy.auth.redaction import Redactor
from looopy.llm.accumulate import Accumulator
from looopy.server.protocols.ag_ui.events import RunEvents
from looopy.server.protocols.ai_sdk.parts import Parts
from looopy.server.protocols.call_ids import CallIds, newest_id
from looopy.server.protocols.deltas import GrowingAnswer
from looopy.types.event import AgentEvent, MessageEnd, MessageStart, MessageUpdate, TurnStart
from looopy.types.message import AssistantMessage, StopReason, TextContent, ToolCall
from looopy.types.request import StreamEvent


def _answer(*pieces: Any) -> tuple[list[AgentEvent], AssistantMessage]:
    """The events of an answer with one call, whose arguments come in *pieces*."""
    made = Accumulator(api="t", provider="t", model="t")
    said: list[StreamEvent] = [*made.text_delta("Well. ")]
    said += made.tool_call(0, call_id="c1", name="add")
    for piece in pieces:
        said += made.tool_call(0, arguments_delta=piece)
    message = made.done(StopReason.STOP)[-1].message
    assert message is not None
    one = {"context_id": "c", "turn": 1, "iteration": 1}
    events: list[AgentEvent] = [
        TurnStart(context_id="c", turn=1),
        MessageStart(**one, message=AssistantMessage()),
    ]
    for event in said:
        delta = event.delta if event.type == "text_delta" else ""
        index = event.content_index
        events.append(MessageUpdate(**one, delta=delta, event=event, content_index=index))
    return events, message


def test_the_ai_sdk_gets_the_arguments_as_they_grow():
    """The committed call is their end, with the whole input."""
    events, message = _answer('{"a"', ": 2}")
    end = MessageEnd(context_id="c", turn=1, iteration=1, message=message, position=1)
    parts = Parts()
    seen = [part for event in [*events, end] for part in parts.see(event)]
    call = {"toolCallId": "c1"}
    assert [part for part in seen if "toolCallId" in part] == [
        {"type": "tool-input-start", **call, "toolName": "add"},
        {"type": "tool-input-delta", **call, "inputTextDelta": '{"a"'},
        {"type": "tool-input-delta", **call, "inputTextDelta": ": 2}"},
        {"type": "tool-input-available", **call, "toolName": "add", "input": {"a": 2}},
    ]


def test_ag_ui_gets_the_arguments_as_they_grow():
    """The call ends when it is committed; a call without arguments has an empty object."""
    for pieces, deltas in ((('{"a"', ": 2}"), ['{"a"', ": 2}"]), ((), ["{}"])):
        events, message = _answer(*pieces)
        end = MessageEnd(context_id="c", turn=1, iteration=1, message=message, position=1)
        run = RunEvents("c", "r", 1)
        live = [out["type"] for event in events for out in run.see(event)]
        assert live[-1] == ("TOOL_CALL_ARGS" if pieces else "TOOL_CALL_START")
        run = RunEvents("c", "r", 1)
        seen = [out for event in [*events, end] for out in run.see(event)]
        assert [out["delta"] for out in seen if out["type"] == "TOOL_CALL_ARGS"] == deltas
        assert [out["type"] for out in seen].count("TOOL_CALL_END") == 1


def test_the_start_of_a_call_shows_no_secret():
    """Neither as its name nor as its id."""
    redactor = Redactor(AuthContext("ada", credentials={"key": "s3cret-s3cret"}))
    made = Accumulator(api="t", provider="t", model="t")
    [start] = made.tool_call(0, call_id="c", name="use s3cret-s3cret")
    [shown] = redactor.deltas()(start)
    assert shown.tool_call is not None
    assert shown.tool_call.name == "use [redacted]"


def test_an_id_that_comes_again_gets_the_number_of_its_turn():
    """A viewer who has the ids finds the newest; an answer that is taken back frees its own."""
    ids = CallIds()
    assert [ids.new("c", 1), ids.new("c", 1), ids.of("c")] == ["c", "c", "c"]
    ids.commit()
    assert [ids.new("c", 3), ids.of("c")] == ["c~3", "c~3"]
    assert ids.take_back() == ["c~3"]
    assert [ids.of("c"), ids.new("c", 4)] == ["c", "c~4"]
    ids.commit()
    later = CallIds(["c", "c~4", "c~x", "d~9"])
    assert [later.of("c"), later.new("c", 5), later.of("c"), later.of("e")] == [
        *("c~4", "c~5", "c~5", "e")
    ]
    assert newest_id("c", ["c~10", "c~9", "c"]) == "c~10"


def test_a_call_that_is_not_committed_as_it_was_shown_is_taken_back():
    """It was cut, or text turned out to stand behind a call that could not be shown."""
    for final, anew in (
        ((TextContent("Well. "), ToolCall("c1", "add", {"a": 2})), False),
        ((TextContent("Well. "),), True),
        ((TextContent("Well. "), ToolCall("c1_2", "add", {"a": 2})), True),
        ((ToolCall("c0", "add", {}), TextContent("Well. "), ToolCall("c1", "add", {})), True),
    ):
        events, _ = _answer('{"a"', ": 2}")
        answer = GrowingAnswer(lambda _: True)
        for event in events:
            if isinstance(event, MessageUpdate):
                list(answer.more(event))
        assert answer.end(AssistantMessage(final))[0] is anew
