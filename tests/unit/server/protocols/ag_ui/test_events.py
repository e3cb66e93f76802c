"""Our events as those of AG-UI; `tests/web` reads them with its client."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from looopy.server.protocols.ag_ui.events import RunEvents, content_of, outcome_of, rest_of
from looopy.types.artifact import ArtifactKind
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    AuthRequired,
    HistoryCleared,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ModelRerouted,
    RateLimit,
    ServerToolStart,
    StatusChange,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import StreamEvent
from looopy.types.state import AgentStatus, Outcome

ONE: dict[str, Any] = {"context_id": "c", "turn": 1, "iteration": 1}


def _delta(text: str) -> MessageUpdate:
    return MessageUpdate(**ONE, delta=text, event=StreamEvent("text_delta", delta=text))


def _outs(*events: Any, outcome: Outcome = Outcome.COMPLETED) -> list[Any]:
    """The events of a run, without the fields that every one has."""
    reason = StopReason.STOP if outcome is Outcome.COMPLETED else StopReason(outcome.value)
    said = UserMessage("Hi.")
    turn: list[AgentEvent] = [
        TurnStart(context_id="c", turn=1, user_message=said),
        MessageEnd(**ONE, message=said, position=1),
        *events,
        TurnEnd(context_id="c", turn=1, outcome=outcome, stop_reason=reason),
    ]
    mapped = RunEvents("t", "r")
    outs = [out for event in turn for out in mapped.see(event)]
    assert mapped.ended
    for out in outs:
        assert out.pop("timestamp") > 0
    return outs


def test_an_answer_that_was_not_committed_is_taken_back():
    """Another id tells the second try from the first; a snapshot gives the message its own."""
    call = ToolCall("c1", "pay", {"eur": 5})
    outs = _outs(
        MessageStart(**ONE, message=AssistantMessage()),
        _delta("He"),
        MessageStart(**ONE, message=AssistantMessage()),
        _delta("Hel"),
        MessageEnd(**ONE, message=AssistantMessage((TextContent("Hello"), call)), position=2),
        MessageEnd(**ONE, message=ToolResultMessage(tool_call_id="c1", content="ok"), position=3),
    )
    assert [(out["type"], out.get("messageId"), out.get("delta")) for out in outs[:-2]] == [
        ("STEP_STARTED", None, None),
        ("TEXT_MESSAGE_START", "1.1", None),
        ("TEXT_MESSAGE_CONTENT", "1.1", "He"),
        ("TEXT_MESSAGE_END", "1.1", None),
        ("MESSAGES_SNAPSHOT", None, None),
        ("TEXT_MESSAGE_START", "1.1-2", None),
        ("TEXT_MESSAGE_CONTENT", "1.1-2", "Hel"),
        ("TEXT_MESSAGE_CONTENT", "1.1-2", "lo"),
        ("TEXT_MESSAGE_END", "1.1-2", None),
        ("MESSAGES_SNAPSHOT", None, None),  # with the call
        ("TOOL_CALL_RESULT", "message-3", None),
    ]


def test_texts_of_one_message_are_joined_as_in_a_snapshot():
    """By a newline; a tool that the provider runs has its call and its result."""
    search = ServerToolCall("s1", "web_search", {"q": "x"})
    found = ServerToolResult("s1", "web_search", item={"found": 2})
    message = AssistantMessage((TextContent("One."), search, found, TextContent("Two.")))
    started = ServerToolStart(**ONE, tool_call_id="s1", tool_name="web_search", args={"q": "x"})
    outs = _outs(started, MessageEnd(**ONE, message=message, position=2))
    text = "".join(out["delta"] for out in outs if out["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == message.text
    tools = [out for out in outs if out["type"].startswith("TOOL_CALL")]
    assert [out["type"] for out in tools] == [
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
    ]
    assert tools[-1]["content"] == '{"found": 2}'


def test_how_a_turn_ended_is_how_the_run_ends():
    """A failure and a process that died are errors; a cancelled turn is an outcome."""
    failed = _outs(
        TurnError(context_id="c", turn=1, code="budget", text="no budget"),
        outcome=Outcome.INTERRUPTED,
    )
    assert failed == [{"type": "RUN_ERROR", "message": "no budget", "code": "interrupted"}]
    assert _outs(outcome=Outcome.CANCELLED)[-1]["outcome"] == {"type": "cancelled"}
    fresh = _outs(AuthRequired(context_id="c", turn=1), outcome=Outcome.AUTH_REQUIRED)
    assert fresh[-1]["outcome"] == outcome_of([])
    assert fresh[-1]["outcome"]["interrupts"][0]["id"] == "credentials"


def test_other_events_are_custom_and_those_of_inner_agents_are_left_out():
    """Their names have a namespace; a message that came in between is the user's."""
    changed = ArtifactUpdate(**ONE, artifact_id="a", kind=ArtifactKind.FILE, version=1)
    report = ToolExecutionUpdate(**ONE, tool_call_id="c1", tool_name="pay", progress=0.5)
    inner = ToolExecutionUpdate(**ONE, tool_call_id="c1", tool_name="pay", path=("agent:inner",))
    steered = MessageEnd(**ONE, message=UserMessage("Wait!"), position=4)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    waits: dict[str, Any] = {"attempt": 2, "delay_s": 1.0, "next_at": moment, "reason": "busy"}
    retry = StatusChange(**ONE, status=AgentStatus.BUSY, rate_limited=True, **waits)
    limits = RateLimit(**ONE, provider="p", model="m", refused=True, retry_at=moment)
    other = ModelRerouted(**ONE, asked="p/m", answered="p/n", by="server")
    outs = _outs(changed, report, limits, other, retry, inner, steered)
    custom = [out for out in outs if out["type"] == "CUSTOM"]
    assert [out["name"] for out in custom] == [
        "looopy.artifact",
        "looopy.progress",
        "looopy.rate_limit",
        "looopy.model_rerouted",
        "looopy.retry",
    ]
    assert custom[2]["value"]["retryAt"] == "2026-01-02T00:00:00+00:00"
    assert custom[3]["value"]["answered"] == "p/n"
    assert custom[-1]["value"] == {
        "attempt": 2,
        "delayS": 1.0,
        "nextAt": "2026-01-02T00:00:00+00:00",
        "rateLimited": True,
        "reason": "busy",
    }
    assert [out["messageId"] for out in outs if "messageId" in out] == ["message-4"] * 3


def test_content_is_text_unless_there_is_a_file():
    """A file is a part with its source."""
    assert content_of((TextContent("a"), TextContent("b"))) == "a\nb"
    assert content_of((TextContent("a"), ImageContent("aGk=", mime_type="image/gif")))[1] == {
        "type": "image",
        "source": {"type": "data", "value": "aGk=", "mimeType": "image/gif"},
    }


def test_a_history_that_is_cleared_ends_the_run():
    """Its turn has no end any more."""
    mapped = RunEvents("t", "r", turn=1)
    outs = [o for e in (_delta("Hi"), HistoryCleared(context_id="c")) for o in mapped.see(e)]
    assert [out["type"] for out in outs[-3:]] == [
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert mapped.ended


@pytest.mark.parametrize(
    "text", ['{"a": [1, {"b\\u00e9": "x\\n\\"y"}], "c": true, "d": null, "e": -1.5}', "{}"]
)
def test_arguments_that_break_off_anywhere_are_ended_as_json(text):
    """A page reads the arguments of each call that ends, also of one that was not made."""
    for length in range(len(text) + 1):
        begun = text[:length]
        assert isinstance(json.loads(begun + rest_of(begun)), dict), begun
    assert rest_of("nonsense") == ""
