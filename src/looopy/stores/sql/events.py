"""
`Journal` on SQL: the commits of a turn, and the log that is read back from what they stored.

An event is a message's row, a turn's row or a row of its own (see `rows.py`), so the log is three
ranges merged by `seq`. Messages and turns are found from a `seq` by halving their range of primary
keys. What lies beyond *limit* is neither decoded nor, but for one row a range, read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from looopy.stores import rows
from looopy.stores.gate import check_actor, check_limit
from looopy.stores.meta import from_us
from looopy.stores.names import can_name, check_context_id, fenced, no_context
from looopy.stores.reading import read_message
from looopy.stores.records import (
    Commit,
    Committed,
    Entry,
    EntryKind,
    InboxHead,
    NewSummary,
    TurnRecord,
)
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import (
    Head,
    clear_steps,
    commit_steps,
    compact_steps,
    encode_commit,
    peek,
)
from looopy.stores.sql.driver import Driver, Query, Steps
from looopy.stores.sql.inbox import cancel_steps, post_steps, read_inbox, withdraw_steps
from looopy.stores.sql.store import NO_LIMIT, SQLStore, bounded, can_exist
from looopy.types.event import AgentEvent, Compaction
from looopy.types.message import Message, UserMessage

_Row: TypeAlias = Sequence[Any]
_USER_POSITION = 14


class SQLJournal(SQLStore):
    """See `Journal` for the contract."""

    def __init__(self, backend: Driver, tenant: str = "default") -> None:
        super().__init__(backend, tenant)
        self.bells = backend.bells

    async def commit(self, commit: Commit) -> Committed:
        """Apply one step of a turn."""
        given = encode_commit(self.params(commit.context_id), commit)
        if not can_exist(commit.context_id):
            raise fenced(commit.context_id)
        over = commit.release or given.encoded.closing is not None
        work = partial(commit_steps, given)
        return await self.write(work, commit.context_id, inbox=over)

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        """Hide the history."""
        if not can_exist(context_id):
            raise no_context(context_id)
        work = partial(clear_steps, self.params(context_id), context_id, force=force)
        return await self.write(work, context_id, inbox=True)

    async def compact(self, context_id: str, compaction: NewSummary) -> tuple[int, Compaction]:
        """Append a summary."""
        if not can_exist(context_id):
            raise no_context(context_id)
        work = partial(compact_steps, self.params(context_id), context_id, compaction)
        return await self.write(work, context_id)

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        """The durable events over *after*."""
        check_limit(limit)

        def work() -> Steps[list[AgentEvent]]:
            key = self.params(context_id)
            head = yield from peek(key)
            start = bounded(after)
            if head is None or start >= head.last_seq or limit == 0:
                return []
            reader = _LogReader(context_id, key, head, max(start, head.cleared_seq - 1))
            return (yield from reader.read(bounded(limit)))

        return await self.backend.run(work, write=False) if can_exist(context_id) else []

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        """The turns over *after*."""
        check_limit(limit)
        params = self.params(context_id, after=bounded(after), limit=bounded(limit))

        def work() -> Steps[list[TurnRecord]]:
            found = yield Query(s.LIST_TURNS, params, alone=True)
            return [turn_record(row) for row in found]

        return await self.backend.run(work, write=False) if can_exist(context_id) else []

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        """Which calls of a turn were started."""
        params = self.params(context_id, turn=bounded(turn))

        def work() -> Steps[set[str]]:
            found = yield Query(s.STARTED_CALLS, params, alone=True)
            return {rows.started_call(body) for (body,) in found}

        return await self.backend.run(work, write=False) if can_exist(context_id) else set()

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        """Which turn was claimed with a key."""
        params = self.params(context_id, key=key)

        def work() -> Steps[tuple[int, str] | None]:
            found = yield Query(s.TURN_OF_KEY, params, alone=True)
            return (int(found[0][0]), str(found[0][1])) if found else None

        is_known = can_exist(context_id) and can_name(key)
        return await self.backend.run(work, write=False) if is_known else None

    # --- the inbox ---

    async def post(
        self,
        context_id: str,
        kind: EntryKind,
        message: UserMessage,
        *,
        actor_id: str | None = None,
        expected_turn: int | None = None,
    ) -> int:
        """Put a message into the inbox."""
        check_context_id(context_id)
        body = rows.entry_body(message, actor_id)
        params = self.params(context_id, kind=kind.value, actor=actor_id, body=body)
        work = partial(post_steps, params, expected_turn)
        return await self.write(work, context_id, inbox=True)

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        """What waits over *after*."""
        work = partial(read_inbox, self.params(context_id, after=bounded(after)))
        if not can_exist(context_id):
            return InboxHead(), []
        return await self.backend.run(work, write=False)

    async def withdraw(
        self, context_id: str, kind: EntryKind | None = None, *, actor_id: str | None = None
    ) -> int:
        """Take messages of an actor out again."""
        check_actor(actor_id)
        one, other = (kind, kind) if kind is not None else EntryKind
        params = self.params(context_id, kind=one.value, other_kind=other.value, actor=actor_id)
        if not can_exist(context_id):
            return 0
        return await self.write(partial(withdraw_steps, params), context_id, inbox=True)

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        """Ask the open turn to stop."""
        params = self.params(context_id, turn=None if turn is None else bounded(turn))
        if not can_exist(context_id):
            return None
        return await self.write(partial(cancel_steps, params), context_id, inbox=True)


class _LogReader:
    """One reading of the log of a context, from a `seq` that is not in it any more to a limit."""

    def __init__(self, context_id: str, key: Mapping[str, Any], head: Head, after: int) -> None:
        self._context_id = context_id
        self._key = key
        self._head = head
        self._after = after
        self._bodies: dict[int, Message] = {}

    def read(self, limit: int) -> Steps[list[AgentEvent]]:
        """The events over the `seq` it was made with, in order, at most *limit*."""
        # Each source gives what it holds of the next *limit* numbers; the nearest of all are
        # decoded.
        found: list[tuple[int, Callable[[], Steps[list[AgentEvent]]]]] = []
        messages = yield from self._messages(limit)
        found += [(row[3], partial(self._message_events, row)) for row in messages]
        others = yield Query(s.LIST_EVENTS, {**self._key, "after": self._after, "limit": limit})
        found += [(row[0], partial(self._event, row)) for row in others]
        for row in (yield from self._turns(limit)):
            record = turn_record(row)
            found.append((record.start_seq, partial(self._turn_start, record, row)))
            if record.end_seq is not None:
                found.append((record.end_seq, partial(self._turn_end, record)))
        found.sort(key=_seq)
        events: list[AgentEvent] = []
        for seq, decode in found:
            if seq <= self._after:  # of the turn that began before
                continue
            # A message may bring an event that is one number below its own.
            events += [e for e in (yield from decode()) if e.seq is None or e.seq > self._after]
            if len(events) >= limit:
                break
        return events[:limit]

    def _messages(self, limit: int) -> Steps[list[tuple[Any, ...]]]:
        low, high = self._head.visible_from, self._head.last_position + 1
        first = yield from self._find(s.FIND_POSITION, low, high)
        params = {**self._key, "after": first - 1, "limit": limit}
        return (yield Query(s.LIST_MESSAGES, params))

    def _turns(self, limit: int) -> Steps[list[tuple[Any, ...]]]:
        first = yield from self._find(s.FIND_TURN, 1, self._head.turn_count + 1)
        # The turn before it began earlier, and may end later.
        params = {**self._key, "after": first - 2, "limit": min(limit, NO_LIMIT - 1) + 1}
        return (yield Query(s.LIST_TURNS, params))

    def _find(self, statement: str, low: int, high: int) -> Steps[int]:
        params = {**self._key, "after": self._after, "low": low, "high": high}
        found = yield Query(statement, params)
        return int(found[0][0])

    def _message_events(self, row: _Row) -> Steps[list[AgentEvent]]:
        position, turn, iteration, seq, created_us, meta, body = row
        events = rows.decode_message_events(
            context_id=self._context_id,
            turn=turn,
            position=position,
            seq=seq,
            iteration=iteration,
            created_us=created_us,
            body=body,
            meta=meta,
        )
        yield from ()  # as the others: some of them read another row
        return events

    def _event(self, row: _Row) -> Steps[list[AgentEvent]]:
        seq, turn, iteration, kind, created_us, position, body = row
        announced = None if position is None else (yield from self._message_at(position))
        event = rows.decode_event(
            context_id=self._context_id,
            turn=turn,
            seq=seq,
            iteration=iteration,
            type=kind,
            created_us=created_us,
            body=body,
            announced_by=announced,
        )
        return [event]

    def _turn_start(self, record: TurnRecord, row: _Row) -> Steps[list[AgentEvent]]:
        position = row[_USER_POSITION]
        user = None if position is None else (yield from self._message_at(position))
        return [rows.decode_turn_start(self._context_id, record, user)]

    def _turn_end(self, record: TurnRecord) -> Steps[list[AgentEvent]]:
        first, last = record.first_position, record.last_position
        found: list[tuple[Any, ...]] = []
        if last >= first:
            params = {**self._key, "after": first - 1, "limit": last - first + 1}
            found = yield Query(s.LIST_MESSAGES, params)
        iteration = max((row[2] for row in found), default=0)
        messages = [read_message(row[6], position=row[0]) for row in found]
        return [rows.decode_turn_end(self._context_id, record, iteration, messages)]

    def _message_at(self, position: int) -> Steps[Message]:
        if position not in self._bodies:
            params = {**self._key, "after": position - 1, "limit": 1}
            found = yield Query(s.LIST_MESSAGES, params)
            self._bodies[position] = read_message(found[0][6], position=position)
        return self._bodies[position]


def _seq(found: tuple[int, object]) -> int:
    return found[0]


def turn_record(row: _Row) -> TurnRecord:
    """A turn from the columns of `statements.TURN_COLUMNS`."""
    return TurnRecord(
        turn=row[0],
        continues=row[1],
        actor_id=row[2],
        had_auth=bool(row[3]),
        outcome=rows.outcome_column(row[4]),
        stop_reason=rows.stop_reason_column(row[5]),
        start_seq=row[6],
        end_seq=row[7],
        first_position=row[8],
        last_position=row[9],
        started_at=from_us(row[10]),
        ended_at=None if row[11] is None else from_us(row[11]),
        usage=rows.decode_usage(row[12]),
        metadata=rows.decode_object(row[13], f"the metadata of turn {row[0]}"),
    )
