"""The public codec: what an author of a store encodes comes back equal, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest

from looopy.errors import ValueRefused
from looopy.stores.codec import (
    decode_event,
    decode_message,
    decode_record,
    encode_event,
    encode_message,
    encode_record,
    event_from_json,
)
from looopy.stores.memory_backend import MemoryBackend
from looopy.stores.records import ContextRecord, ContextState, Entry, MessageRecord, TurnRecord
from looopy.testing.contracts.walk import NAMES, take
from looopy.types import event as events
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.auth import AuthRequest
from looopy.types.event import (
    ApprovalDecided,
    AuthRequired,
    HistoryRewound,
    InputRequired,
    MessageStart,
    ServerToolEnd,
    ServerToolStart,
    TurnError,
    TurnStart,
    event_to_json,
)
from looopy.types.message import UserMessage
from looopy.types.request import RateQuota
from looopy.types.state import AgentStatus, PendingKind, PendingRequest

AT = datetime(2026, 11, 23, 6, 30, 15, 123457, tzinfo=UTC)
_ASKED = {"tool_name": "pay", "tool_call_id": "c1", "turn": 1, "expires_at": AT}
INPUT = PendingRequest(
    request_id="r1", kind=PendingKind.INPUT, args={"n": [1, 2.5, None]}, options=("a",), **_ASKED
)
AUTH = PendingRequest(
    request_id="r2",
    kind=PendingKind.AUTH,
    args={},
    auth=AuthRequest(type="api-key", provider="bank", scopes=("read", "pay")),
    **_ASKED,
)
SEARCH = {"tool_call_id": "srv_1", "tool_name": "web_search"}
OTHERS = [
    ApprovalDecided(
        context_id="ada",
        timestamp=AT,
        request_id="r1",
        tool_call_id="c1",
        tool_name="pay",
        decision="approved",
        args={"n": 2.5},
    ),
    InputRequired(context_id="ada", turn=1, seq=3, timestamp=AT, pending=(INPUT,)),
    AuthRequired(context_id="ada", turn=1, seq=4, timestamp=AT, pending=(AUTH,)),
    HistoryRewound(context_id="ada", timestamp=AT, covers=(3, 4), undone=True),
    TurnError(context_id="ada", timestamp=AT, code="error", text="too many"),
    ServerToolStart(context_id="ada", timestamp=AT, **SEARCH, args={"query": "x"}),
    ServerToolEnd(context_id="ada", timestamp=AT, **SEARCH, is_error=True),
]
PASSING = [
    events.MessageUpdate(context_id="ada", turn=1, timestamp=AT, delta="Hel"),
    events.MessageStart(context_id="ada", timestamp=AT, message=UserMessage("Hi.", timestamp=1)),
    events.ToolExecutionUpdate(
        context_id="ada", timestamp=AT, partial_result={"n": 1}, progress=0.5, **SEARCH
    ),
    events.StatusChange(context_id="ada", timestamp=AT, status=AgentStatus.BUSY, attempt=2),
    events.RateLimit(
        context_id="ada",
        timestamp=AT,
        provider="p",
        model="m",
        limits=(RateQuota(kind="tokens", left=5, limit=9, resets_at=AT),),
        retry_at=AT,
    ),
    events.ModelRerouted(
        context_id="ada", timestamp=AT, asked="p/m", answered="p/n", by="fallback", reason="busy"
    ),
    events.IterationEnd(context_id="ada", timestamp=AT),
]


async def test_everything_that_a_store_returns_comes_back_equal():
    """Messages, each durable event, and all records of a walk through the writes of a store."""
    stores = MemoryBackend().stores()
    seen = {event.type for event in OTHERS}
    for name in NAMES[:-1]:
        await take(stores, "ada", name)
        record = await stores.state.load("ada")
        kept = [
            (ContextRecord, [record]),
            (ContextState, [record.state]),
            (MessageRecord, await stores.messages.records("ada")),
            (TurnRecord, await stores.journal.turns("ada")),
            (Entry, (await stores.journal.inbox("ada"))[1]),
            (Artifact, await stores.artifacts.list("ada")),
        ]
        for kind, found in kept:
            assert [decode_record(kind, encode_record(one)) for one in found] == list(found)
        for message in await stores.messages.list("ada"):
            assert decode_message(encode_message(message)) == message
        for event in await stores.journal.events("ada"):
            assert decode_event(encode_event(event)) == event
            seen.add(event.type)
    durable = {
        one.type
        for one in vars(events).values()
        if isinstance(one, type) and issubclass(one, events.Event) and one.durable
    }
    assert seen == durable | {"tool_execution_start"}


@pytest.mark.parametrize("event", OTHERS, ids=lambda event: event.type)
def test_events_that_stop_a_turn_come_back_equal(event):
    """With requests, their credentials' names, ranges and moments."""
    assert decode_event(encode_event(event)) == event


ARTIFACT = Artifact(
    artifact_id="report",
    kind=ArtifactKind.FILE,
    version=1,
    status=ArtifactStatus.COMPLETE,
    size=2,
    media_type="text/plain",
    sha256="ab",
    created_at=AT,
)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"size": "2"}, "/size"),
        ({"size": True}, "/size"),
        ({"kind": "folder"}, "/kind"),
        ({"created_at": "2026-11-23T06:30:15"}, "/created_at"),
        ({"created_at": 5}, "/created_at"),
        ({"columns": []}, "/columns"),
        ({"colour": "red"}, "/colour"),
        ({"version": ...}, "/version"),
    ],
)
def test_text_of_another_kind_is_refused_by_its_place(change, path):
    """A wrong type, an unknown field, a missing one."""
    data = {**json.loads(encode_record(ARTIFACT)), **change}
    text = json.dumps({name: value for name, value in data.items() if value is not ...})
    with pytest.raises(ValueRefused) as refused:
        decode_record(Artifact, text)
    assert refused.value.path == path


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"type":"message_start"}', "[" * 100_000])
def test_text_that_is_no_event_is_refused(text):
    """Not JSON, not an object, or a type that no store keeps."""
    with pytest.raises(ValueRefused):
        decode_event(text)
    with pytest.raises(ValueRefused):
        decode_message(text)


def test_a_bad_message_within_an_event_is_refused_by_its_place():
    """The path begins at the event."""
    said = encode_event(TurnStart(context_id="ada", user_message=UserMessage("hi", timestamp=1)))
    with pytest.raises(ValueRefused) as refused:
        decode_event(said.replace('"hi"', "5"))
    assert refused.value.path == "/user_message/content"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (TurnError(context_id="ada", code="error", text="\0"), "/text"),
        (TurnStart(context_id="ada", user_message=UserMessage("\ud800")), "/user_message/content"),
        (TurnStart(context_id="ada", timestamp=datetime.fromtimestamp(0)), "/timestamp"),  # noqa: DTZ006 - it has no zone
        (MessageStart(context_id="ada", message=UserMessage("hi")), "/type"),
    ],
)
def test_a_value_that_would_change_is_refused_before_it_is_written(value, path):
    """As every store refuses it."""
    with pytest.raises(ValueRefused) as refused:
        encode_event(value)
    assert refused.value.path == path


TURN = TurnRecord(turn=1, start_seq=1, first_position=1, last_position=1, started_at=AT)


def test_a_value_of_any_depth_is_refused_by_its_place():
    """And not by Python's own limit."""
    deep = reduce(lambda inner, _: [inner], range(5_000), 1)
    with pytest.raises(ValueRefused, match="nested deeper than 64 levels") as refused:
        encode_record(replace(TURN, metadata={"v": deep}))
    assert refused.value.path.startswith("/metadata/v/0/0")


def test_moments_keep_their_zone_and_microseconds():
    """ISO 8601, not a float."""
    zone = datetime.fromisoformat("2026-11-23T08:30:15.000001+02:00")
    made = decode_event(encode_event(TurnStart(context_id="ada", timestamp=zone)))
    assert made.timestamp == zone
    assert made.timestamp.utcoffset() == timedelta(hours=2)


@pytest.mark.parametrize("event", [*OTHERS, *PASSING], ids=lambda event: event.type)
def test_an_event_of_a_later_version_is_read_as_far_as_it_is_known(event):
    """Its unknown fields are left out; an unknown type is no event."""
    written = json.loads(json.dumps(event_to_json(event)))
    assert event_from_json({**written, "colour": "red"}) == event
    assert event_from_json({**written, "type": "brand_new"}) is None
