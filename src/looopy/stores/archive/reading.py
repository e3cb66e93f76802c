"""
The checks of an archive, and its contexts as rows to restore.

`Archive` reads all of it once and compares every size, hash and number before any write. The
rows are made again, line by line, when a store asks for them. So no step holds more than a line, or
a block of an artifact, in memory. All of it may be called from a thread.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from looopy.auth.sealing import signature
from looopy.errors import ArchiveRefused, LooopyError, ValueRefused
from looopy.stores.archive import format as form
from looopy.stores.archive.container import Member, Reader, refuse
from looopy.stores.archive.writing import ALGORITHM, Signature
from looopy.stores.contexts.lines import (
    Fields,
    ReadContext,
    artifact_from_json,
    context_from_json,
    entry_from_json,
    message_of,
    place_of,
    refused,
    turn_from_json,
)
from looopy.stores.contexts.log import StoredEvent, StoredMessage
from looopy.stores.contexts.snapshot import (
    RestoredContext,
    RestoredMessage,
    RestoredTurn,
    RestoredVersion,
)
from looopy.stores.contexts.sub_contexts import InnerOf
from looopy.stores.records import ContextState, Entry, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import encode_meta, to_us
from looopy.stores.rules import check_context_id, checked_rows
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.event import ApprovalDecided, MessageEnd, ToolExecutionEnd, utc_now
from looopy.types.message import AssistantMessage, ToolResultMessage
from looopy.types.state import HeldCall
from looopy.types.storable import MAX_BODY_BYTES, dump

_MOST_CONTEXT_BYTES = 2 * MAX_BODY_BYTES + 1024 * 1024  # metadata and state


class Listed(NamedTuple):
    """A context as the manifest lists it."""

    context_id: str
    folder: str
    counts: Mapping[str, int]


class Archive:
    """
    An archive whose directory and manifest are read.

    Args:
        file: It can be sought in, and is not closed.

    Attributes:
        contexts: In their order. `digest`: SHA-256 of the manifest.

    Raises:
        ArchiveRefused: It is truncated, of a newer version, or no archive.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._reader = Reader(file)
        self._members = self._reader.members
        manifest = self._member(form.MANIFEST).whole(form.MOST_MANIFEST_BYTES)
        self.digest = hashlib.sha256(manifest).hexdigest()
        self._manifest = manifest
        with _place(form.MANIFEST):
            given = Fields(form.parse(manifest))
            _check_version(given)
            contexts = given.items("contexts")
            members = given.value("members")
            if not isinstance(members, dict):
                raise refused("members", "an object is needed")
            given.end()
        self._said = members
        self.contexts = [self._listed(n, one) for n, one in enumerate(contexts, 1)]

    def read(self, number: int) -> Checked:
        """Check all lines and bytes of the context at this place, from 0; or `ArchiveRefused`."""
        return Checked(self, self.contexts[number])

    def check_members(self) -> None:
        """Raise `ArchiveRefused` if a member is missing, or is not in the manifest."""
        apart = {form.MANIFEST, form.SIGNATURE}
        if strangers := self._members.keys() - self._said.keys() - apart:
            raise refuse(f"{form.MANIFEST} does not name it", min(strangers))
        # First: a manifest of a few bytes may claim billions.
        versions_listed = sum(listed.counts["versions"] for listed in self.contexts)
        if len(self.contexts) + versions_listed > form.MOST_MEMBERS:
            raise refuse(f"more than {form.MOST_MEMBERS:,} members", form.MANIFEST)
        expected = {
            listed.folder + name
            for listed in self.contexts
            for name in (form.CONTEXT, form.TURNS, form.EVENTS, form.INBOX, form.ARTIFACTS)
        }
        for listed in self.contexts:
            versions = range(1, listed.counts["versions"] + 1)
            expected.update(f"{listed.folder}artifacts/{n}" for n in versions)
        if strangers := self._said.keys() - expected:
            raise refuse("it belongs to no context", min(strangers))
        if missing := expected - self._said.keys():
            raise refuse(f"{form.MANIFEST} does not name it", min(missing))
        if missing := self._said.keys() - self._members.keys():
            raise refuse("it is missing", min(missing))

    def checked_member(self, name: str) -> Member:
        """A member whose bytes have the hash of the manifest."""
        member, said = self._member(name), self._said.get(name)
        if not isinstance(said, dict):
            raise refuse(f"{form.MANIFEST} does not name it", name)
        member.check(said)
        return member

    def signature(self, auth_key: str | bytes | None) -> Signature:
        """See if the archive was signed with *auth_key*; `ArchiveRefused` if that is unknown."""
        if form.SIGNATURE not in self._members:
            return Signature.NONE
        with _place(form.SIGNATURE):
            raw = self._member(form.SIGNATURE).whole(form.MOST_SIGNATURE_BYTES)
            given = Fields(form.parse(raw))
            algorithm, mac = given.text("algorithm"), given.text("mac")
            given.end()
        if auth_key is None:
            return Signature.UNCHECKED
        expected = signature(auth_key, self._manifest, option="auth_key")
        known = algorithm == ALGORITHM and hmac.compare_digest(mac.encode(), expected.encode())
        return Signature.VALID if known else Signature.INVALID

    def unchanged(self) -> None:
        """Refuse a file that was changed since it was opened."""
        self._reader.unchanged()

    def _member(self, name: str) -> Member:
        found = self._members.get(name)
        if found is None:
            raise refuse("it is missing", name)
        return found

    def _listed(self, number: int, data: Any) -> Listed:
        path = f"/contexts/{number - 1}"
        with _place(form.MANIFEST, path=path):
            given = Fields(data)
            context_id = given.text("context_id")
            check_context_id(context_id)
            folder = form.folder_of(number)
            if given.text("folder") + "/" != folder:
                raise refused("folder", f"its folder is {folder[:-1]}")
            names = ("turns", "messages", "events", "entries", "versions")
            counts = {name: given.whole(name) for name in names}
            given.end()
        return Listed(context_id, folder, counts)


def _check_version(given: Fields) -> None:
    if given.text("format") != form.FORMAT:
        raise refused("format", f"it is not a {form.FORMAT}")
    version = given.value("version")
    if type(version) is int and version > form.VERSION:
        raise refused("version", f"version {version} is newer than {form.VERSION}: upgrade looopy")
    if type(version) is not int or version != form.VERSION:  # 1.0 and true are equal to 1
        raise refused("version", f"version {form.VERSION} is needed")


class Checked:
    """
    A context of an archive in which everything fits together.

    Attributes:
        listed: As the manifest lists it.
        actors: The first two whom it names, with the place: member, line and path. One of any two
            is not the importer, and an archive may name millions.
    """

    def __init__(self, archive: Archive, listed: Listed) -> None:
        self._archive = archive
        self.listed = listed
        self.actors: dict[str, tuple[str, int | None, str]] = {}
        self._context = self._read_context()
        folder, counts = listed.folder, listed.counts
        self._turns = archive.checked_member(folder + form.TURNS)
        self._events = archive.checked_member(folder + form.EVENTS)
        self._artifacts = archive.checked_member(folder + form.ARTIFACTS)
        self._inbox = archive.checked_member(folder + form.INBOX)
        entries = sum(1 for _ in self._read_entries())
        record = self._context.record
        found = {
            "turns": record.turn_count,
            "messages": record.last_position - record.visible_from + 1,
            "events": self._check_log(),
            "entries": entries,
            "versions": self._check_versions(),
        }
        for name, count in found.items():
            if count != counts[name]:
                why = f"{name}: it says {counts[name]}, but there are {count}"
                raise refuse(why, form.MANIFEST)

    @property
    def inner_of(self) -> InnerOf | None:
        """The call that it works for."""
        return self._context.inner_of

    def restored(
        self, ids: Mapping[str, str], owner: str | None, *, keep_owners: bool
    ) -> RestoredContext:
        """
        The context for a store.

        Args:
            ids: The ids of all contexts from now on, by those in the archive. A link to any other
                context is left out: an archive can name any person's.
            owner: Its owner from now on, unless *keep_owners*.
        """
        context_id, now = ids[self.listed.context_id], utc_now()
        link = self.inner_of
        if link is not None:
            outer = ids.get(link.context_id)
            link = None if outer is None else link._replace(context_id=outer)
        record = replace(
            self._context.record,
            context_id=context_id,
            open_turn=self._open_turn(),
            owner_actor=self._context.record.owner_actor if keep_owners else owner,
            state=asking_again(self._context.record.state, self._context.record.turn_count),
            created_at=min(self._context.record.created_at, now),
            last_activity=min(self._context.record.last_activity, now),
        )
        return RestoredContext(
            record=record,
            turns=self._read_turns,
            log=self._checked_log,
            versions=self._versions,
            entries=_Entries(self._read_entries, self.listed.counts["entries"]),
            inner_of=link,
        )

    # --- the parts ---

    def _read_context(self) -> ReadContext:
        member = self._archive.checked_member(self.listed.folder + form.CONTEXT)
        with _place(member.name):
            found = context_from_json(form.parse(member.whole(_MOST_CONTEXT_BYTES)))
            if found.record.context_id != self.listed.context_id:
                raise refused("context_id", f"{form.MANIFEST} names another one")
        self._notice(found.record.owner_actor, member.name, None, "/owner")
        return found

    def _notice(self, actor: str | None, member: str, line: int | None, path: str) -> None:
        if actor is not None and len(self.actors) < 2:
            self.actors.setdefault(actor, (member, line, path))

    def _read_entries(self) -> Iterator[Entry]:
        """The messages that wait, in order; their numbers rise."""
        member, least = self._inbox, 1
        last = self._context.record.inbox.last
        for number, raw in member.lines():
            with _place(member.name, number):
                entry = entry_from_json(form.parse(raw), least, last)
            least = entry.number + 1
            self._notice(entry.actor_id, member.name, number, "/actor_id")
            yield entry

    def _read_turns(self) -> Iterator[RestoredTurn]:
        """The turns, in order; their numbers rise."""
        context, member = self._context, self._turns
        record, last_seq, count = context.record, 0, 0
        for number, raw in member.lines():
            with _place(member.name, number):
                if number > record.turn_count:
                    raise ValueRefused("more turns than its context has", path="/turn")
                is_open = number == context.open_turn
                turn = turn_from_json(form.parse(raw), number, is_open=is_open)
                one = turn.record
                end = one.start_seq if one.end_seq is None else one.end_seq
                if one.start_seq <= last_seq:
                    raise refused("start_seq", "turns follow each other")
                if end > record.last_seq:
                    raise refused("end_seq", "beyond the log")
                if max(one.first_position - 1, one.last_position) > record.last_position:
                    raise refused("last_position", "beyond the last message")
                if turn.user_position is not None and not (
                    one.first_position <= turn.user_position <= record.last_position
                    and turn.user_position >= record.visible_from
                ):
                    raise refused("user_position", "no message of this turn")
                last_seq, count = end, number
            self._notice(one.actor_id, member.name, number, "/actor_id")
            yield turn
        if count != record.turn_count:
            raise refuse(f"{count} turns, not {record.turn_count}", member.name)

    def _open_turn(self) -> TurnRecord | None:
        if self._context.open_turn is None:
            return None
        (last,) = deque(self._read_turns(), maxlen=1)
        return last.record

    def _check_log(self) -> int:
        """Read all of the log and all turns, which name each other's numbers; count the events."""
        record, member = self._context.record, self._events
        expected = (
            (seq, turn.record.turn)
            for turn in self._read_turns()
            for seq in (turn.record.start_seq, turn.record.end_seq)
            if seq is not None and seq >= record.cleared_seq
        )

        def compare(seq: int, turn: int) -> None:
            if next(expected, None) != (seq, turn):
                raise refused("seq", f"turn {turn} neither begins nor ends here")

        for _ in self._read_log(compare):
            pass
        if (missing := next(expected, None)) is not None:
            raise refuse(f"no event {missing[0]} of turn {missing[1]}", member.name)
        return record.last_seq - max(record.cleared_seq - 1, 0)

    def _checked_log(self) -> Iterator[RestoredMessage | StoredEvent]:
        yield from self._read_log(lambda _, __: None)
        self._archive.unchanged()

    def _read_log(
        self, mark: Callable[[int, int], None]
    ) -> Iterator[RestoredMessage | StoredEvent]:
        """
        The rows of the log, in order.

        Args:
            mark: Called with `seq` and turn of each `turn_start` and `turn_end`.
        """
        record, member = self._context.record, self._events
        log = _LogReader(
            after=max(record.cleared_seq - 1, 0),
            position=record.visible_from - 1,
            turn_count=record.turn_count,
            mark=mark,
        )
        for number, raw in member.lines():
            with _place(member.name, number):
                row = log.row(form.parse(raw))
            if isinstance(row, StoredEvent) and row.type == ApprovalDecided.type:
                actor = json.loads(row.body)["actor_id"]
                if actor is not None:
                    place = (member.name, number, "/data/actor_id")
                    self.actors.setdefault(actor, place)
            if row is not None:
                yield row
        log.end(member.name, last_seq=record.last_seq, last_position=record.last_position)

    # --- artifacts ---

    def _check_versions(self) -> int:
        """Check all versions and their bytes; how many there are."""
        count, last = 0, ("", 0)
        for artifact, number in self._read_artifacts():
            with _place(self._artifacts.name, number):
                if artifact.artifact_id < last[0]:
                    raise refused("artifact_id", "artifacts are sorted by id")
                expected = last[1] + 1 if artifact.artifact_id == last[0] else 1
                if artifact.version != expected:
                    raise refused("version", f"version {expected} is needed here")
            member = self._archive.checked_member(self._content_name(number))
            _check_content(member, artifact)
            count, last = number, (artifact.artifact_id, artifact.version)
        return count

    def _versions(self) -> Iterator[RestoredVersion]:
        for artifact, number in self._read_artifacts():
            member = self._archive._member(self._content_name(number))  # noqa: SLF001 - of its own
            yield RestoredVersion(artifact=artifact, content=partial(_blocks, member))

    def _read_artifacts(self) -> Iterator[tuple[Artifact, int]]:
        member = self._artifacts
        for number, raw in member.lines():
            with _place(member.name, number):
                found = artifact_from_json(
                    form.parse(raw), self._content_name(number), self._context.record.turn_count
                )
            yield found, number

    def _content_name(self, number: int) -> str:
        return f"{self.listed.folder}artifacts/{number}"


class _Entries(Collection[Entry]):
    """The messages of an inbox, of which one at a time is in memory."""

    def __init__(self, read: Callable[[], Iterator[Entry]], count: int) -> None:
        self._read = read
        self._count = count

    def __contains__(self, one: object) -> bool:
        return any(entry == one for entry in self)

    def __iter__(self) -> Iterator[Entry]:
        return self._read()

    def __len__(self) -> int:
        return self._count


def _blocks(member: Member, start: int) -> Iterator[bytes]:
    return member.blocks(start)


def _check_content(member: Member, artifact: Artifact) -> None:
    """Compare bytes with their artifact: size, hash, JSON, rows; or `ArchiveRefused`."""
    if member.size != artifact.size:
        raise refuse(f"{member.size} bytes, not {artifact.size} as its artifact says", member.name)
    if artifact.status is ArtifactStatus.COMPLETE:
        digest = hashlib.sha256()
        for block in member.blocks():
            digest.update(block)
        if digest.hexdigest() != artifact.sha256:
            raise refuse(f"its SHA-256 differs from {artifact.artifact_id!r}", member.name)
    if artifact.kind is ArtifactKind.DATA:
        with _place(member.name):
            text = member.whole(MAX_BODY_BYTES)
            value = form.parse(text)
            if not isinstance(value, dict) or dump(value).encode() != text:
                raise ValueRefused("no JSON object as looopy writes it", path="")
    elif artifact.columns is not None:
        count = 0
        for number, raw in member.lines():
            with _place(member.name, number):
                lines, _ = checked_rows([form.parse(raw)], artifact.columns, "")
                if lines != raw + b"\n":
                    raise ValueRefused("no row as looopy writes it", path="")
            count = number
        if count != artifact.rows:
            raise refuse(f"{count} rows, not {artifact.rows} as its artifact says", member.name)
    elif artifact.rows:
        raise refuse("its artifact has no rows", member.name)


class _LogReader:
    """
    Reads the lines of a log as rows, and checks that their numbers follow each other.

    Args:
        after: The first line has the `seq` after this one.
        position: The first message has the position after this one.
        turn_count: No event has a later turn.
        mark: Called with `seq` and turn of each `turn_start` and `turn_end`.
    """

    def __init__(
        self, *, after: int, position: int, turn_count: int, mark: Callable[[int, int], None]
    ) -> None:
        self._seq = after
        self._position = position
        self._turn = 0
        self._turn_count = turn_count
        self._mark = mark
        self._ended: dict[str, Any] | None = None  # of a tool whose result is the next message
        self._calls: dict[str, int] = {}

    def row(self, data: Any) -> RestoredMessage | StoredEvent | None:
        """
        The row of a line; `None` if its row is one of another line or of a turn.

        Raises:
            ValueRefused: It is not an event of this place; `path` names the fault.
        """
        given = Fields(data)
        seq = given.whole("seq", self._seq + 1, self._seq + 1)
        kind = given.text("type")
        turn = given.whole("turn", self._turn, self._turn_count)
        self._seq, self._turn = seq, turn
        if not rows.is_stored(kind):
            raise refused("type", "no event that is stored")
        if self._ended is not None and kind != "message_end":
            raise refused("type", "the message of a tool's result has to follow its end")
        if kind in ("turn_start", "turn_end"):
            given.end()
            self._mark(seq, turn)
            return None
        common: dict[str, Any] = {
            "context_id": "",
            "turn": turn,
            "iteration": given.whole("iteration"),
            "timestamp": given.moment("timestamp"),
        }
        if kind == "message_end":
            return self._message(given, common)
        if kind == "tool_execution_end":
            common["tool_call_id"] = given.text("tool_call_id")
            common["started"] = given.or_none(given.moment, "started")
            common["duration_s"] = given.seconds("duration_s")
            given.end()
            self._ended = common
            return None
        body, position = "", None
        if kind == "tool_execution_start":
            call = given.text("tool_call_id")
            body = dump({"tool_call_id": call})
            if given.has("args"):
                body = rows.start_body(call, given.mapping("args"))
            position = given.or_none(given.whole, "position", 1)
            if position is not None and self._calls.get(call) != position:
                raise refused("position", "no message there asks for this call")
        else:
            fields = given.mapping("data")
            try:
                rows.check_body(kind, fields)
            except ValueRefused as error:
                raise ValueRefused(error.message, path=error.path or "/data") from None
            body = dump(fields)
        given.end()
        return StoredEvent(
            seq=seq,
            turn=turn,
            iteration=common["iteration"],
            type=kind,
            created_us=to_us(common["timestamp"]),
            position=position,
            body=body,
        )

    def _message(self, given: Fields, common: dict[str, Any]) -> RestoredMessage:
        position = given.whole("position", self._position + 1, self._position + 1)
        message, body = message_of(given)
        timed: dict[str, Any] = {}
        if given.has("started"):
            timed["started"] = given.moment("started")
        if given.has("first_delta_s"):
            timed["first_delta_s"] = given.seconds("first_delta_s")
        if given.has("attempts"):
            timed["attempts"] = given.whole("attempts", 1)
        if given.has("request"):
            timed["request"] = given.text("request")
        given.end()
        event = MessageEnd(message=message, **common, **timed)
        ended: ToolExecutionEnd | None = None
        if self._ended is not None:
            if not isinstance(message, ToolResultMessage):
                raise refused("message", "the result of a tool is needed here")
            ended = ToolExecutionEnd(tool_name=message.tool_name, result=message, **self._ended)
            if (ended.tool_call_id, ended.turn) != (message.tool_call_id, event.turn):
                raise refused("message", "the result of another call")
            self._ended = None
        if isinstance(message, AssistantMessage):
            self._calls.update(dict.fromkeys((call.id for call in message.tool_calls), position))
        elif isinstance(message, ToolResultMessage):
            self._calls.pop(message.tool_call_id, None)
        created = to_us(event.timestamp)
        row = StoredMessage(
            position=position,
            turn=event.turn,
            iteration=event.iteration,
            seq=self._seq,
            created_us=created,
            meta=encode_meta(event, ended, created),
            body=body,
        )
        self._position = position
        return RestoredMessage(row, message.role)

    def end(self, member: str, *, last_seq: int, last_position: int) -> None:
        """Raise `ArchiveRefused` unless the log ends at its context's `last_seq`."""
        if self._seq != last_seq and not (last_seq == 0 and self._seq <= 0):
            raise refuse(f"the last event is {self._seq}, not {last_seq}", member)
        if self._position != last_position:
            raise refuse(f"the last message is {self._position}, not {last_position}", member)
        if self._ended is not None:
            raise refuse("the message of a tool's result is missing at the end", member)


def asking_again(state: ContextState, turn_count: int) -> ContextState:
    """
    *state* without the permissions in it: decisions of an archive are history.

    A file can contain any decision, other arguments, or a tool's private state. And a decision
    that an archive repeats would count once for each copy. So the open calls stay open, and ask
    for their answers when the last turn is continued. A call that was running when its process
    died has an unknown outcome then.
    """
    if not (state.pending or state.answered or state.held):
        return state
    held = [
        HeldCall(tool_call_id=one.tool_call_id, origin=one.origin, asked_in=one.asked_in)
        for one in state.held
        if not one.died
    ]
    asked_in = max((one.asked_in for one in state.held), default=0)
    resumable = state.resumable or asked_in or turn_count
    return replace(state, pending=(), answered=(), held=held, resumable=resumable)


class _place:  # noqa: N801 - reads as a word of the language
    """Names the place of whatever is refused inside of it."""

    def __init__(self, member: str, line: int | None = None, *, path: str = "") -> None:
        self._facts = (member, line, path)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, ArchiveRefused):
            return
        member, line, path = self._facts
        path += place_of(error)
        if isinstance(error, LooopyError):
            raise refuse(error.message, member, line=line, path=path) from error
        if isinstance(error, (ValueError, TypeError, KeyError, OverflowError, RecursionError)):
            why = f"no value that looopy writes ({type(error).__name__})"
            raise refuse(why, member, line=line, path=path) from error
