"""Our events as parts of the AI SDK's stream; `tests/web` reads them with its client."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from looopy import ImageContent, TextContent
from looopy.server.protocols.ai_sdk.parts import Parts, line, output_of
from looopy.server.protocols.ai_sdk.transcript import Transcript
from looopy.types.artifact import ArtifactKind
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    ArtifactUpdate,
    HistoryCleared,
    HistoryRewound,
    InputRequired,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ModelRerouted,
    RateLimit,
    ServerToolEnd,
    ServerToolStart,
    StatusChange,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnStart,
    TurnWarning,
)
from looopy.types.message import (
    AssistantMessage,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import RateQuota, StreamEvent
from looopy.types.state import AgentStatus, Outcome, PendingKind, PendingRequest

TOKENS = RateQuota(kind="tokens", left=5, limit=9, resets_at=datetime(2026, 1, 2, tzinfo=UTC))
PAY = ToolCall("c1", "pay", {"eur": 5})


def _turn(number: int, *events: Any, said: str | None = "Hi.", **about: Any) -> list[AgentEvent]:
    """The events of a turn; each of *events* is a class and its fields, or a message."""
    message = None if said is None else UserMessage(said, timestamp=number)
    start = TurnStart(
        context_id="c", turn=number, user_message=message, continues=about.get("continues")
    )
    made: list[AgentEvent] = [start]
    position = number * 100
    for event in ([] if message is None else [message]) + list(events):
        common: dict[str, Any] = {"context_id": "c", "turn": number, "iteration": 1}
        if isinstance(event, tuple):
            kind, fields = event
            made.append(kind(**{**common, **fields}))
        else:
            position += 1
            made.append(MessageEnd(**common, message=event, position=position))
    reason = about.get("reason", StopReason.STOP)
    outcome = about.get("outcome", Outcome.COMPLETED)
    end = TurnEnd(context_id="c", turn=number, outcome=outcome, stop_reason=reason)
    return [*made, end]


def _parts(events: list[AgentEvent], **options: Any) -> list[Any]:
    parts = Parts(**options)
    found = [part for event in events for part in parts.see(event)]
    return [{k: v for k, v in part.items() if k != "messageMetadata"} for part in found]


def _approval(**fields: Any) -> tuple[Any, Any]:
    asked = PendingRequest(
        request_id="1-c1",
        kind=PendingKind.APPROVAL,
        tool_name="pay",
        args={},
        tool_call_id="c1",
        turn=1,
        prompt="May it?",
    )
    return InputRequired, {"pending": [asked], **fields}


def _waiting() -> list[AgentEvent]:
    return _turn(
        1,
        AssistantMessage((TextContent("Paying."), PAY)),
        _approval(),
        outcome=Outcome.INPUT_REQUIRED,
        reason=StopReason.INPUT_REQUIRED,
    )


def _denied() -> list[AgentEvent]:
    decided = {
        "request_id": "1-c1",
        "tool_call_id": "c1",
        "tool_name": "pay",
        "decision": "denied",
        "text": "too much",
    }
    return _turn(
        2,
        (ApprovalDecided, decided),
        ToolResultMessage(tool_call_id="c1", tool_name="pay", content="too much", is_error=True),
        AssistantMessage("Then not."),
        said=None,
        continues=1,
    )


def test_an_approval_is_requested_and_its_denial_ends_the_call():
    """The turn that asks and the turn that continues it write one message."""
    asked = _parts(_waiting())
    assert asked == [
        {"type": "start", "messageId": "turn-1"},
        {"type": "start-step"},
        {"type": "text-start", "id": "1.1.0"},
        {"type": "text-delta", "id": "1.1.0", "delta": "Paying."},
        {"type": "text-end", "id": "1.1.0"},
        {
            "type": "tool-input-available",
            "toolCallId": "c1",
            "toolName": "pay",
            "input": {"eur": 5},
        },
        {
            "type": "tool-approval-request",
            "approvalId": "1-c1",
            "toolCallId": "c1",
            "reason": "May it?",
        },
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "tool-calls"},
    ]
    answer = [
        {
            "type": "tool-approval-response",
            "approvalId": "1-c1",
            "approved": False,
            "reason": "too much",
        },
        {"type": "tool-output-denied", "toolCallId": "c1"},
        {"type": "start-step"},
        {"type": "text-start", "id": "2.1.0"},
        {"type": "text-delta", "id": "2.1.0", "delta": "Then not."},
        {"type": "text-end", "id": "2.1.0"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]
    first = {"type": "start", "messageId": "turn-1"}
    told = _parts(_denied(), message_id="turn-1", known=["c1"], asked=["1-c1"])
    assert told == [first, *answer]
    # A replay of both is one stream with one end.
    whole = _parts(_waiting() + _denied(), until=2)
    assert whole == asked[:-1] + answer


def test_a_viewer_without_the_call_is_not_sent_its_result():
    """The AI SDK's client breaks the stream off at a result whose call it does not have."""
    types = [part["type"] for part in _parts(_denied())]
    assert not [kind for kind in types if kind.startswith("tool-")]
    assert types[0] == "start"
    assert types[-1] == "finish"


def test_how_a_turn_ended_is_how_the_stream_ends():
    """A failure says its error, a cancelled turn is aborted, an interrupted one can continue."""
    failed = _turn(
        1,
        (TurnError, {"code": "error", "text": "no model"}),
        outcome=Outcome.FAILED,
        reason=StopReason.ERROR,
    )
    assert _parts(failed)[-2:] == [
        {"type": "error", "errorText": "no model"},
        {"type": "finish", "finishReason": "error"},
    ]
    cancelled = _turn(1, outcome=Outcome.CANCELLED, reason=StopReason.CANCELLED)
    assert _parts(cancelled)[-1] == {"type": "abort", "reason": "cancelled"}
    died = _turn(1, outcome=Outcome.INTERRUPTED, reason=StopReason.INTERRUPTED)
    assert _parts(died)[-1] == {"type": "finish", "finishReason": "interrupted"}
    capped = _turn(1, reason=StopReason.MAX_ITERATIONS)
    assert _parts(capped)[-1] == {"type": "finish", "finishReason": "other"}


def test_thinking_that_was_never_committed_is_taken_back():
    """The page shows what the log has: a call of the model that failed leaves nothing."""
    delta = StreamEvent("thinking_delta", delta="hm")
    failed = _turn(
        1,
        (MessageStart, {"message": AssistantMessage()}),
        (MessageUpdate, {"event": delta}),
        outcome=Outcome.CANCELLED,
        reason=StopReason.CANCELLED,
    )
    assert [part["type"] for part in _parts(failed)][1:7] == [
        "start-step",
        "reasoning-start",
        "reasoning-delta",
        "reset-step",
        "finish-step",
        "message-metadata",
    ]


def test_a_tool_of_the_provider_has_its_call_and_its_result():
    """Each part says that the provider ran it, so that the page does not."""
    call = ServerToolCall("s1", "web_search", {"q": "x"}, item={"raw": 1})
    result = ServerToolResult("s1", "web_search", item={"found": 2})
    started = {"tool_call_id": "s1", "tool_name": "web_search", "args": {"q": "x"}}
    events = _turn(
        1,
        (ServerToolStart, started),
        (ServerToolEnd, started),
        AssistantMessage((call, result, TextContent("Found."))),
    )
    tools = [part for part in _parts(events) if part["type"].startswith("tool-")]
    assert [(p["type"], p.get("input"), p.get("output")) for p in tools] == [
        ("tool-input-available", {"q": "x"}, None),
        ("tool-output-available", None, {"found": 2}),
    ]
    assert all(part["providerExecuted"] for part in tools)


def test_an_event_without_a_part_becomes_a_data_part():
    """Artifacts stay with the message; warnings, retries and reports pass by."""
    nested = PendingRequest(
        request_id="1.0-c1",
        kind=PendingKind.APPROVAL,
        tool_name="inner",
        args={"x": 1},
        tool_call_id="c1",
        turn=1,
    )
    changed = {"artifact_id": "a.txt", "kind": ArtifactKind.FILE, "version": 3}
    report = {"tool_call_id": "c1", "tool_name": "pay", "partial_result": "half", "progress": 0.5}
    retry = {"status": AgentStatus.BUSY, "attempt": 2, "delay_s": 1.0, "reason": "busy"}
    retry |= {"next_at": datetime(2026, 1, 2, tzinfo=UTC), "rate_limited": True}
    events = _turn(
        1,
        AssistantMessage((PAY,)),
        (ToolExecutionUpdate, report),
        (ArtifactUpdate, changed),
        (TurnWarning, {"code": "w", "text": "careful"}),
        (StatusChange, retry),
        (StatusChange, {"status": AgentStatus.READY}),
        (RateLimit, {"provider": "p", "model": "m", "limits": [TOKENS]}),
        (ModelRerouted, {"asked": "p/m", "answered": "p/n", "by": "server"}),
        (InputRequired, {"pending": [nested]}),
        (ToolExecutionUpdate, {**report, "path": ("agent:inner",)}),
    )
    found = [p for p in _parts(events) if p["type"].startswith("data-") or "preliminary" in p]
    assert [(p["type"], p.get("id"), p.get("transient", False)) for p in found] == [
        ("tool-output-available", None, False),
        ("data-progress", None, True),
        ("data-artifact", "a.txt", False),
        ("data-warning", None, True),
        ("data-retry", None, True),
        ("data-rate-limit", None, True),
        ("data-model-rerouted", None, True),
        ("data-request", "1.0-c1", False),
    ]
    assert found[-1]["data"]["args"] == {"x": 1}
    assert found[4]["data"] == {
        "attempt": 2,
        "delayS": 1.0,
        "nextAt": "2026-01-02T00:00:00+00:00",
        "rateLimited": True,
        "reason": "busy",
    }
    assert found[5]["data"] == {
        "provider": "p",
        "model": "m",
        "refused": False,
        "retryAt": None,
        "limits": [
            {"kind": "tokens", "left": 5, "limit": 9, "resetsAt": "2026-01-02T00:00:00+00:00"}
        ],
    }
    assert found[6]["data"] == {"asked": "p/m", "answered": "p/n", "by": "server", "reason": ""}


def test_the_output_part_has_the_result_of_the_tool():
    """An object is an object again; text that is none of ours stays text; images are files."""
    assert output_of(ToolResultMessage(content='{"a": [1]}')) == {"a": [1]}
    assert output_of(ToolResultMessage(content="[not json")) == "[not json"
    assert output_of(ToolResultMessage(content="5")) == "5"
    image = (TextContent("see"), ImageContent("aGk=", mime_type="image/gif"))
    assert output_of(ToolResultMessage(content=image))[1] == {
        "type": "file",
        "mediaType": "image/gif",
        "url": "data:image/gif;base64,aGk=",
    }


def test_a_line_survives_any_text():
    """Line ends and lone surrogates break neither the frame nor the encoding."""
    framed = line({"type": "text-delta", "delta": "a\n\u2028\ud800"})
    assert framed.startswith(b"data: {")
    assert framed.endswith(b"}\n\n")
    assert framed.count(b"\n") == 2


def test_the_transcript_follows_the_history():
    """A message that came in between, a rewound turn, its return, and a cleared history."""
    two = {"iteration": 2, "message": AssistantMessage("Two."), "position": 104}
    first = _turn(1, AssistantMessage("One."), UserMessage("Wait!"), (MessageEnd, two))
    second = _turn(2, AssistantMessage("Three."))
    transcript = Transcript()

    def see(*events: AgentEvent) -> list[Any]:
        for event in events:
            transcript.see(event)
        return [
            (m["id"], [p.get("text", p["type"]) for p in m["parts"]]) for m in transcript.messages()
        ]

    told = see(*first, *second)
    step = "step-start"
    assert told == [
        ("message-101", ["Hi."]),
        ("turn-1", [step, "One.", "steering-message", step, "Two."]),
        ("message-201", ["Hi."]),
        ("turn-2", [step, "Three."]),
    ]
    gone = HistoryRewound(context_id="c", covers=(201, 202))
    assert see(gone) == told[:2]
    assert see(HistoryRewound(context_id="c", covers=(201, 202), undone=True)) == told
    assert see(HistoryCleared(context_id="c", covers=(1, 202)), *second) == told[2:]


def test_the_answer_to_an_older_question_belongs_to_the_older_message():
    """A new message gives up what waited: its call ends in the message that has it."""
    cancelled = ToolResultMessage(
        tool_call_id="c1", tool_name="pay", content="cancelled", is_error=True
    )
    transcript = Transcript()
    for event in _waiting() + _turn(2, cancelled, AssistantMessage("Fine."), said="No."):
        transcript.see(event)
    shown = transcript.messages()
    ids = [message["id"] for message in shown]
    assert ids == ["message-101", "turn-1", "message-201", "turn-2"]
    pay = shown[1]["parts"][-1]
    assert (pay["type"], pay["state"]) == ("tool-pay", "output-error")
    assert pay["errorText"] == "cancelled"


def test_a_redacted_thought_is_no_block():
    """Thinking without text shows nothing, and moves no other block."""
    message = AssistantMessage((ThinkingContent("", redacted=True), TextContent("So.")))
    parts = _parts(_turn(1, message))
    assert [p["id"] for p in parts if p["type"] == "text-start"] == ["1.1.0"]
    assert not [p for p in parts if p["type"].startswith("reasoning")]


def test_a_history_that_is_cleared_ends_the_stream():
    """Its turn has no end any more, so nobody waits for it."""
    parts = Parts(until=9)
    begun = [part for event in _waiting() for part in parts.see(event)]
    assert begun
    assert not parts.ended
    cleared = HistoryCleared(context_id="c", covers=(1, 9))
    assert list(parts.see(cleared))[-1]["type"] == "abort"
    assert parts.ended
