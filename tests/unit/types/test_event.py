"""Every event can be written as JSON, whole, and says whether it is durable."""

import dataclasses
import json
import re
from datetime import UTC, datetime
from typing import get_args

import pytest

from looopy.errors import LooopyError
from looopy.types import event as events
from looopy.types.artifact import ArtifactKind
from looopy.types.event import AgentEvent, Event, event_to_json, is_durable
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_json import message_from_json
from looopy.types.notices import notice_of
from looopy.types.request import RateQuota, StreamEvent
from looopy.types.state import AgentStatus, Outcome, PendingKind, PendingRequest

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
USER = UserMessage("hi", timestamp=1)
ANSWER = AssistantMessage([TextContent("5"), ToolCall("c1", "add", {"a": 2})], timestamp=2)
RESULT = ToolResultMessage(tool_call_id="c1", tool_name="add", content="5", timestamp=3)
NOTE = CustomMessage("note", {"a": [1]}, timestamp=4)
ASKED = PendingRequest(
    request_id="r1",
    kind=PendingKind.APPROVAL,
    tool_name="add",
    args={"a": 2},
    tool_call_id="c1",
    turn=2,
    options=("yes", "no"),
    schema={"type": "boolean"},
    expires_at=NOON,
)
CALL = {"tool_call_id": "c1", "tool_name": "add"}
SAMPLES: dict[str, dict] = {
    "turn_start": {"user_message": USER, "continues": 1},
    "iteration_start": {},
    "iteration_end": {"message": ANSWER, "tool_results": (RESULT,), "usage": Usage(input=3)},
    "message_start": {"message": NOTE},
    "message_update": {"delta": "5", "event": StreamEvent("text_delta", delta="5")},
    "message_end": {"message": ANSWER, "position": 4, "started": NOON, "usage": Usage(output=2)},
    "tool_execution_start": {**CALL, "args": {"a": {"b": [1, None]}}},
    "tool_execution_update": {**CALL, "partial_result": {"rows": 5}, "progress": 0.5},
    "tool_execution_end": {**CALL, "result": RESULT, "started": NOON, "duration_s": 0.25},
    "server_tool_start": {**CALL, "args": {"query": "weather"}},
    "server_tool_end": {**CALL, "args": {"query": "weather"}, "is_error": True},
    "artifact_update": {"artifact_id": "a", "kind": ArtifactKind.DATA, "version": 1},
    "input_required": {"pending": (ASKED,)},
    "auth_required": {"pending": (ASKED,)},
    "approval_decided": {
        **CALL,
        "request_id": "r1",
        "decision": "approved",
        "actor_id": "ada",
        "args": {"a": 3},
        "text": "less",
    },
    "status_change": {"status": AgentStatus.BUSY, "attempt": 1, "delay_s": 2.0, "reason": "429"},
    "rate_limit": {
        "provider": "p",
        "model": "m",
        "limits": (RateQuota(kind="tokens", left=5, limit=9, resets_at=NOON),),
        "retry_at": NOON,
    },
    "model_rerouted": {"asked": "p/m", "answered": "p/n", "by": "server"},
    "usage": {"usage": Usage(input=3), "turn_usage": Usage(input=5)},
    "compaction": {
        "covers": (1, 4),
        "position": 7,
        "tokens_before": 90,
        "tokens_after": 20,
        "unread": 3,
    },
    "history_cleared": {"covers": (1, 9)},
    "history_rewound": {"covers": (3, 9), "undone": True},
    "warning": {"code": "doom_loop", "text": "again"},
    "error": {"code": "budget", "text": "spent", "error": LooopyError("spent")},
    "turn_end": {
        "outcome": Outcome.COMPLETED,
        "stop_reason": StopReason.STOP,
        "messages": (USER, ANSWER, RESULT, NOTE),
        "usage": Usage(input=3),
    },
}
DURABLE = {
    "turn_start",
    "message_end",
    "tool_execution_start",
    "tool_execution_end",
    "server_tool_start",
    "server_tool_end",
    "artifact_update",
    "input_required",
    "auth_required",
    "approval_decided",
    "history_cleared",
    "history_rewound",
    "compaction",
    "error",
    "turn_end",
}
TYPES = sorted(get_args(AgentEvent), key=lambda cls: cls.type)


def _sample(cls, **more):
    return cls(context_id="ada", turn=2, iteration=1, timestamp=NOON, **SAMPLES[cls.type], **more)


def test_the_union_holds_every_event():
    """A new event is in `AgentEvent`, has a word of its own, and a sample here."""
    defined = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, Event) and value is not Event
    }
    assert set(TYPES) == defined
    assert len({cls.type for cls in TYPES}) == len(TYPES)
    assert {cls.type for cls in TYPES} == SAMPLES.keys()


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.type)
def test_an_event_is_written_as_json(cls):
    """Its own words and fields, times as ISO 8601, nothing by reference, a `seq` if it has one."""
    data = event_to_json(_sample(cls))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["type"], data["context_id"], data["turn"], data["iteration"]) == (
        cls.type,
        "ada",
        2,
        1,
    )
    assert data["timestamp"] == "2026-01-02T12:00:00.000005+00:00"
    left_out = {"error", "event", "has_effects", "partial", "seq"}
    counted = {name for name, one in vars(cls).items() if isinstance(one, property)}
    assert data.keys() == {f.name for f in dataclasses.fields(cls)} - left_out | {"type"} | counted
    assert event_to_json(_sample(cls, seq=7))["seq"] == 7


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.type)
def test_the_messages_of_an_event_are_pis(cls):
    """Whoever reads the stream gets messages as `message_from_json` reads them."""
    data, event = event_to_json(_sample(cls)), _sample(cls)
    for name in ("message", "user_message", "result"):
        if getattr(event, name, None) is not None:
            assert message_from_json(data[name]) == getattr(event, name)
    for name in ("messages", "tool_results"):
        assert [message_from_json(m) for m in data.get(name, [])] == list(getattr(event, name, ()))


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.type)
def test_durable_events_are_the_listed_ones(cls):
    """What is stored and numbered is pinned."""
    assert is_durable(_sample(cls)) is (cls.type in DURABLE)


def test_the_start_of_a_tool_without_effects_is_not_stored():
    """Nobody needs to know after a crash whether it had begun."""
    assert not is_durable(events.ToolExecutionStart(context_id="ada", **CALL, has_effects=False))


def test_a_pending_request_is_written_whole():
    """A person answers it in another process, from these words alone."""
    (pending,) = event_to_json(_sample(events.InputRequired))["pending"]
    assert pending == {
        "request_id": "r1",
        "kind": "approval",
        "tool_name": "add",
        "args": {"a": 2},
        "tool_call_id": "c1",
        "turn": 2,
        "prompt": "",
        "schema": {"type": "boolean"},
        "options": ["yes", "no"],
        "expires_at": "2026-01-02T12:00:00.000005+00:00",
    }


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.type)
def test_an_event_cannot_be_changed(cls):
    """Every subscriber sees the same one."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        _sample(cls).turn = 3


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.type)
def test_the_word_of_an_event_follows_from_its_class(cls):
    """`ToolExecutionStart` is `tool_execution_start`; two words clash with built-in names."""
    clash = {"TurnWarning": "warning", "TurnError": "error", "UsageReport": "usage"}
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    assert cls.type == clash.get(cls.__name__, snake)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, None),
        ({"attempt": 2, "delay_s": 0.0}, "The model did not answer. Trying again."),
        ({"attempt": 2, "delay_s": 11.01}, "The model did not answer. Trying again in 12 s."),
        (
            {"attempt": 3, "delay_s": 12.0, "rate_limited": True},
            "The model is busy. Trying again in 12 s.",
        ),
    ],
)
def test_a_wait_for_the_model_is_a_sentence(facts, said):
    """Its seconds are rounded up."""
    change = events.StatusChange(context_id="c", status=AgentStatus.BUSY, **facts)
    assert notice_of(change) == said


@pytest.mark.parametrize(
    ("limits", "refused", "said"),
    [
        ([], True, None),
        ([RateQuota(kind="requests", left=13, limit=60)], False, None),
        ([RateQuota(kind="requests", left=0, limit=60)], True, None),
        (
            [
                RateQuota(kind="requests", left=13, limit=60),
                RateQuota(kind="input_tokens", left=1600, limit=8000),
            ],
            False,
            "The model may soon be busy: 1,600 of 8,000 input tokens are left.",
        ),
        (
            [RateQuota(kind="tokens", left=0)],
            False,
            "The model may soon be busy: 0 tokens are left.",
        ),
    ],
)
def test_a_limit_of_which_a_fifth_is_left_is_a_sentence(limits, refused, said):
    """The wait after a refusal has a sentence of its own."""
    facts = {"provider": "p", "model": "m", "limits": limits, "refused": refused}
    assert notice_of(events.RateLimit(context_id="c", **facts)) == said
