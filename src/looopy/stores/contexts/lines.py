"""
The records of a context as lines of JSON, both ways: the context, its turns, events, entries of the
inbox and versions of artifacts.

Reading is strict. An unknown field, a wrong type or a number out of range is refused, so whatever
is read is written again as the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from looopy.errors import LooopyError, ValueRefused
from looopy.stores.contexts.listing import check_tags, new_tags
from looopy.stores.contexts.snapshot import RestoredTurn
from looopy.stores.contexts.sub_contexts import InnerOf, check_link
from looopy.stores.records import ContextRecord, Entry, EntryKind, InboxHead, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rows.writing import message_text, usage_text
from looopy.stores.rules import check_artifact_id, check_columns, check_context_id
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.event import AgentEvent, MessageEnd, ToolExecutionEnd, ToolExecutionStart
from looopy.types.message import Message, StopReason, UserMessage
from looopy.types.message_check import check_message
from looopy.types.message_json import message_from_json, usage_from_json
from looopy.types.state import Outcome
from looopy.types.storable import (
    check_actor,
    check_media_type,
    check_process,
    check_text,
    dump,
    escape,
)

LAST_NUMBER: Final = 2**32 - 2**16 - 1
"""The largest position, turn or `seq` that every backend keeps."""

_MOST: Final = 2**63 - 1
E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


class Fields:
    """
    The members of a JSON object: each is taken once and has one type.

    Args:
        data: The value, which should be an object.

    Raises:
        ValueRefused: In each method too; `path` is a JSON pointer into the object.
    """

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise ValueRefused(f"an object is needed, not {type(data).__name__}", path="")
        self._left: dict[str, Any] = dict(data)

    def value(self, name: str) -> Any:
        """A value of any type, which has to be there."""
        if name not in self._left:
            raise ValueRefused(f"{name!r} is missing", path=f"/{escape(name)}")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        """True if it was not taken yet."""
        return name in self._left

    def text(self, name: str) -> str:
        """A text that can be stored."""
        found = self.value(name)
        if not isinstance(found, str):
            raise refused(name, "text is needed")
        check_text(found, f"/{escape(name)}")
        return found

    def or_none(self, read: Callable[..., T], name: str, *bounds: int) -> T | None:
        """The member that *read*, a method of this object, takes; `None` for null."""
        if self._left.get(name, "") is None:
            self.value(name)
            return None
        return read(name, *bounds)

    def whole(self, name: str, least: int = 0, most: int = LAST_NUMBER) -> int:
        """A whole number within bounds."""
        found = self.value(name)
        if type(found) is not int or not least <= found <= most:
            raise refused(name, f"a whole number from {least} to {most} is needed")
        return found

    def seconds(self, name: str) -> float:
        """A number of seconds from 0."""
        found = self.value(name)
        if type(found) not in (int, float) or not 0 <= found <= 2**40:
            raise refused(name, "a number of seconds is needed")
        return float(found)

    def truth(self, name: str) -> bool:
        """True or false."""
        found = self.value(name)
        if not isinstance(found, bool):
            raise refused(name, "true or false is needed")
        return found

    def moment(self, name: str) -> datetime:
        """A time in UTC, as `isoformat` writes it."""
        said = self.text(name)
        try:
            found = datetime.fromisoformat(said)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None or found.astimezone(UTC).isoformat() != said:
            raise refused(name, "a time in UTC is needed, such as 2026-11-23T02:00:00+00:00")
        return found.astimezone(UTC)

    def one_of(self, name: str, kinds: type[E]) -> E:
        """A member of an enumeration."""
        said = self.text(name)
        try:
            return kinds(said)
        except ValueError:
            raise refused(name, f"one of {', '.join(kinds)} is needed") from None

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object that can be stored."""
        found = self.value(name)
        if not isinstance(found, dict):
            raise refused(name, "an object is needed")
        dump(found, f"/{escape(name)}")
        return found

    def items(self, name: str) -> list[Any]:
        """A list."""
        found = self.value(name)
        if not isinstance(found, list):
            raise refused(name, "a list is needed")
        return found

    def rest(self) -> dict[str, Any]:
        """All members that were not taken yet."""
        found, self._left = self._left, {}
        return found

    def end(self) -> None:
        """Refuse members that were not read."""
        for name in self._left:
            raise refused(name, f"{name!r} is not a field of this version")


def refused(name: str, why: str) -> ValueRefused:
    """The error for a member of an object."""
    return ValueRefused(why, path=f"/{escape(name)}")


# --- a context ---------------------------------------------------------------------------------


def context_to_json(record: ContextRecord, inner_of: InnerOf | None = None) -> dict[str, Any]:
    """The context of a snapshot."""
    return {
        "context_id": record.context_id,
        **({"inner_of": inner_of._asdict()} if inner_of is not None else {}),
        "owner": record.owner_actor,
        "created_at": record.created_at.isoformat(),
        "last_activity": record.last_activity.isoformat(),
        "tags": list(record.tags),
        "metadata": dict(record.metadata),
        "version": record.version,
        "turn_count": record.turn_count,
        "last_position": record.last_position,
        "last_seq": record.last_seq,
        "visible_from": record.visible_from,
        "cleared_seq": record.cleared_seq,
        **({"hidden": [list(one) for one in record.hidden]} if record.hidden else {}),
        "open_turn": None if record.open_turn is None else record.open_turn.turn,
        "inbox_last": record.inbox.last,
        "state": json.loads(rows.state_column(record.state)),
    }


class ReadContext(NamedTuple):
    """A context of an archive: its record without an open turn, that turn, and its outer call."""

    record: ContextRecord
    open_turn: int | None
    inner_of: InnerOf | None


def context_from_json(data: Any) -> ReadContext:
    """The context in an archive, or `ValueRefused` with the `path` of the fault."""
    given = Fields(data)
    context_id = given.text("context_id")
    check_context_id(context_id)
    owner = _actor(given, "owner")
    tags = check_tags(given.items("tags"), "/tags")
    if new_tags(tags, (), ()) != tags:
        raise refused("tags", "tags are sorted, and each is there once")
    turn_count = given.whole("turn_count")
    last_position, last_seq = given.whole("last_position"), given.whole("last_seq")
    open_turn = given.or_none(given.whole, "open_turn", turn_count, turn_count)
    if open_turn == 0:
        raise refused("open_turn", "a turn is counted from 1")
    state = given.mapping("state")
    decoded = rows.decode_state(dump(state), context_id)
    if json.loads(rows.state_column(decoded)) != state:
        raise refused("state", "no state that looopy writes")
    for name in ("usage", "charged"):
        _check_usage(state.get(name, {}), f"/state/{name}")
    if (decoded.run_us or 0) < 0:
        raise ValueRefused("a number from 0 is needed", path="/state/run_us")
    for place, one in enumerate(decoded.held):
        for name, least in (("origin", 1), ("asked_in", 0)):
            number = getattr(one, name)
            if type(number) is not int or not least <= number <= turn_count:
                where = f"/state/held/{place}/{name}"
                raise ValueRefused("a turn of the context is needed", path=where)
    for name in ("resumable", "summary"):
        most = turn_count if name == "resumable" else last_position
        if state.get(name) is not None and not 1 <= state[name] <= most:
            raise ValueRefused(f"{name} is beyond the end of the context", path=f"/state/{name}")
    record = ContextRecord(
        context_id=context_id,
        epoch=0,
        turn_count=turn_count,
        last_position=last_position,
        last_seq=last_seq,
        visible_from=given.whole("visible_from", 1, last_position + 1),
        cleared_seq=given.whole("cleared_seq", 0, last_seq),
        hidden=_hidden(given, last_position) if given.has("hidden") else (),
        owner_actor=owner,
        tags=tags,
        inbox=InboxHead(last=given.whole("inbox_last", 0, _MOST)),
        state=decoded,
        metadata=given.mapping("metadata"),
        version=given.whole("version", 0, _MOST),
        created_at=given.moment("created_at"),
        last_activity=given.moment("last_activity"),
    )
    inner_of = _inner_of(given, context_id) if given.has("inner_of") else None
    given.end()
    return ReadContext(record, open_turn, inner_of)


def _check_usage(usage: Mapping[str, Any], path: str) -> None:
    """Refuse a number below 0, which would give a budget more room."""
    for name, value in usage.items():
        if isinstance(value, dict):
            _check_usage(value, f"{path}/{escape(name)}")
        elif isinstance(value, (int, float)) and value < 0:
            raise ValueRefused("a number from 0 is needed", path=f"{path}/{escape(name)}")


def _inner_of(given: Fields, context_id: str) -> InnerOf:
    named = Fields(given.mapping("inner_of"))
    link = InnerOf(named.text("context_id"), named.text("call"))
    named.end()
    try:
        check_link(context_id, link.context_id, link.call)
    except ValueRefused as error:
        raise refused("inner_of", error.message) from None
    return link


def _hidden(given: Fields, last_position: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for one in given.items("hidden"):
        if not isinstance(one, list) or [type(place) for place in one] != [int, int]:
            raise refused("hidden", "a list of pairs of positions is needed")
        least = found[-1][1] + 2 if found else 1
        if not least <= one[0] <= one[1] <= last_position:
            raise refused("hidden", "ranges follow each other within the log")
        found.append((one[0], one[1]))
    return found


def _actor(given: Fields, name: str) -> str | None:
    found = given.or_none(given.text, name)
    try:
        check_actor(found)
    except ValueRefused as error:
        raise refused(name, error.message) from None
    return found


# --- turns -------------------------------------------------------------------------------------


def _process(given: Fields, name: str) -> str | None:
    """The name of a process, which archives of earlier versions lack."""
    if not given.has(name):
        return None
    found = given.or_none(given.text, name)
    try:
        check_process(found)
    except ValueRefused as error:
        raise refused(name, error.message) from None
    return found


def turn_to_json(turn: TurnRecord, user_position: int | None) -> dict[str, Any]:
    """A turn as a line."""
    names = {"process": turn.process, "recovered_by": turn.recovered_by}
    return {
        "turn": turn.turn,
        "continues": turn.continues,
        "actor_id": turn.actor_id,
        "had_auth": turn.had_auth,
        "outcome": None if turn.outcome is None else turn.outcome.value,
        "stop_reason": None if turn.stop_reason is None else turn.stop_reason.value,
        "start_seq": turn.start_seq,
        "end_seq": turn.end_seq,
        "first_position": turn.first_position,
        "last_position": turn.last_position,
        "user_position": user_position,
        "started_at": turn.started_at.isoformat(),
        "ended_at": None if turn.ended_at is None else turn.ended_at.isoformat(),
        "usage": json.loads(usage_text(turn.usage)),
        "metadata": dict(turn.metadata),
        **{name: value for name, value in names.items() if value is not None},
    }


def turn_from_json(data: Any, number: int, *, is_open: bool) -> RestoredTurn:
    """
    The turn of a line.

    Args:
        number: It must be this one.
        is_open: It must have no end, and any other must have one.

    Raises:
        ValueRefused: It is not one; `path` names the place.
    """
    given = Fields(data)
    given.whole("turn", number, number)
    start_seq = given.whole("start_seq", 1)
    first = given.whole("first_position", 1, LAST_NUMBER + 1)
    ended: dict[str, Any] = {}
    if is_open:
        for name in ("outcome", "stop_reason", "end_seq", "ended_at"):
            if given.value(name) is not None:
                raise refused(name, "this turn is open: it has no end yet")
    else:
        ended = {
            "outcome": given.one_of("outcome", Outcome),
            "stop_reason": given.one_of("stop_reason", StopReason),
            "end_seq": given.whole("end_seq", start_seq + 1),
            "ended_at": given.moment("ended_at"),
        }
    usage = given.mapping("usage")
    _check_usage(usage, "/usage")
    record = TurnRecord(
        turn=number,
        continues=given.or_none(given.whole, "continues", 1, max(number - 1, 1)),
        actor_id=_actor(given, "actor_id"),
        had_auth=given.truth("had_auth"),
        start_seq=start_seq,
        first_position=first,
        last_position=given.whole("last_position", first - 1),
        started_at=given.moment("started_at"),
        usage=usage_from_json(usage),
        metadata=given.mapping("metadata"),
        process=_process(given, "process"),
        recovered_by=_process(given, "recovered_by"),
        **ended,
    )
    user_position = given.or_none(given.whole, "user_position", 1)
    given.end()
    return RestoredTurn(record, user_position)


# --- events ------------------------------------------------------------------------------------


def event_to_line(event: AgentEvent, call_at: Mapping[str, int]) -> str:
    """
    An event as the text of a line.

    Args:
        call_at: The positions of the messages that asked for calls, by id of the call.
    """
    data: dict[str, Any] = {
        "seq": event.seq,
        "type": event.type,
        "turn": event.turn,
        "iteration": event.iteration,
        "timestamp": event.timestamp.isoformat(),
    }
    if event.type in ("turn_start", "turn_end"):  # the rest is the line of the turn
        return dump({name: data[name] for name in ("seq", "type", "turn")})
    if isinstance(event, MessageEnd):
        data["position"] = event.position
        if event.started is not None:
            data["started"] = event.started.isoformat()
        if event.first_delta_s is not None:
            data["first_delta_s"] = event.first_delta_s
        if event.attempts != 1:
            data["attempts"] = event.attempts
        if event.request is not None:
            data["request"] = event.request
        return f'{dump(data)[:-1]},"message":{message_text(event.message)}}}'
    if isinstance(event, ToolExecutionEnd):  # its result is the message after it
        data["tool_call_id"] = event.tool_call_id
        data["started"] = None if event.started is None else event.started.isoformat()
        data["duration_s"] = event.duration_s
        return dump(data)
    if isinstance(event, ToolExecutionStart):  # its arguments are in the message that asks for it
        data["tool_call_id"] = event.tool_call_id
        data["position"] = call_at.get(event.tool_call_id)
        if event.edited:  # by a person
            data["args"] = dict(event.args)
        return dump(data)
    return dump({**data, "data": rows.event_body(event)})


def message_of(given: Fields) -> tuple[Message, str]:
    """The message in a line and the text of its row, or `ValueRefused` with a `path`."""
    data = given.value("message")
    try:
        message = message_from_json(data)
        check_message(message)
        text = message_text(message)
    except ValueRefused as error:
        raise ValueRefused(error.message, path=f"/message{error.path or ''}") from None
    if dump(data, "/message") != text and json.loads(text) != data:
        raise refused("message", "no message that looopy writes")
    return message, text


# --- the inbox ---------------------------------------------------------------------------------


def entry_to_line(entry: Entry) -> str:
    """A message of the inbox as the text of a line."""
    data = {
        "number": entry.number,
        "kind": entry.kind.value,
        "actor_id": entry.actor_id,
        "created_at": entry.created_at.isoformat(),
    }
    return f'{dump(data)[:-1]},"message":{message_text(entry.message)}}}'


def entry_from_json(data: Any, least: int, last: int) -> Entry:
    """The message of the inbox in a line, numbered from *least* to *last*; or `ValueRefused`."""
    given = Fields(data)
    message, _ = message_of(given)
    if not isinstance(message, UserMessage):
        raise refused("message", "a user's message is needed")
    found = Entry(
        number=given.whole("number", least, last),
        kind=given.one_of("kind", EntryKind),
        message=message,
        actor_id=_actor(given, "actor_id"),
        created_at=given.moment("created_at"),
    )
    given.end()
    return found


# --- artifacts ---------------------------------------------------------------------------------


def artifact_to_json(artifact: Artifact, member: str) -> dict[str, Any]:
    """A version of an artifact as a line; its bytes are in *member*."""
    return {
        "artifact_id": artifact.artifact_id,
        "version": artifact.version,
        "kind": artifact.kind.value,
        "media_type": artifact.media_type,
        "status": artifact.status.value,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "created_at": artifact.created_at.isoformat(),
        "turn": artifact.turn,
        "description": artifact.description,
        "metadata": dict(artifact.metadata),
        "columns": None if artifact.columns is None else dict(artifact.columns),
        "rows": artifact.rows,
        "member": member,
    }


def artifact_from_json(data: Any, member: str, turn_count: int) -> Artifact:
    """
    The version of an artifact in a line.

    Args:
        member: The name that its member must have.
        turn_count: Its turn is at most this one.

    Raises:
        ValueRefused: It is not one; `path` names the place.
    """
    given = Fields(data)
    if given.text("member") != member:
        raise refused("member", f"its member is {member}")
    artifact_id = given.text("artifact_id")
    check_artifact_id(artifact_id)
    kind = given.one_of("kind", ArtifactKind)
    status = given.one_of("status", ArtifactStatus)
    columns: Mapping[str, str] | None = None
    if kind is ArtifactKind.DATASET:
        columns = check_columns(given.mapping("columns"))
    elif given.value("columns") is not None:
        raise refused("columns", f"a {kind} artifact has no columns")
    sha256 = given.text("sha256")
    is_hash = len(sha256) == 64 and not set(sha256) - set("0123456789abcdef")
    if not (is_hash if status is ArtifactStatus.COMPLETE else sha256 == "" or is_hash):
        raise refused("sha256", "64 hexadecimal digits are needed")
    if kind is ArtifactKind.DATA and status is not ArtifactStatus.COMPLETE:
        raise refused("status", "a data artifact is saved whole")
    media_type = given.text("media_type")
    check_media_type(media_type, "/media_type")
    found = Artifact(
        artifact_id=artifact_id,
        kind=kind,
        version=given.whole("version", 1),
        status=status,
        size=given.whole("size", 0, _MOST),
        media_type=media_type,
        sha256=sha256,
        created_at=given.moment("created_at"),
        turn=given.whole("turn", 0, turn_count),
        description=given.or_none(given.text, "description"),
        metadata=given.mapping("metadata"),
        columns=columns,
        rows=given.whole("rows", 0, _MOST),
    )
    given.end()
    return found


def line(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """A value as a line."""
    return dump(value).encode() + b"\n"


def place_of(error: Exception) -> str:
    """The JSON pointer in an error of a value, if it has one."""
    return str(getattr(error, "path", None) or "") if isinstance(error, LooopyError) else ""
