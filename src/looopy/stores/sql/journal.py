"""
`Journal` on SQL: the commits of a turn, and the log that is read back from what they stored.

An event is a message's row, a turn's row or a row of its own (see `rows/events.py`), so the log is
three ranges merged by `seq`. Messages and turns are found from a `seq` by halving their range of
primary keys. Rows beyond *limit* are neither decoded nor read, except for one row a range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from looopy._failpoints import reach
from looopy.stores.base import Journal
from looopy.stores.contexts.lineage import Lineage, check_place
from looopy.stores.contexts.log import (
    PAGE,
    LogEntry,
    LogPage,
    entries,
    events_of,
    fitting,
    is_little,
    off_loop,
    positions,
    read_rows,
)
from looopy.stores.notifier import Notifier
from looopy.stores.records import (
    INBOX_LIMIT,
    ArtifactDeletion,
    Commit,
    Committed,
    ContextRecord,
    Entry,
    EntryKind,
    InboxHead,
    NewSummary,
    TurnRecord,
)
from looopy.stores.rows import events as rows
from looopy.stores.rules import (
    can_name,
    check_context_id,
    check_post,
    check_post_key,
    entry_kind,
    fenced,
    no_context,
)
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import drop_blobs
from looopy.stores.sql.commit import (
    clear_steps,
    commit_steps,
    compact_steps,
    create,
    encode_commit,
)
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.fork import (
    fork_steps,
    lineage_steps,
    rewind_steps,
    undo_steps,
)
from looopy.stores.sql.head import Head, inbox_head, peek
from looopy.stores.sql.store import SQLStore, bounded, can_exist, one_step
from looopy.stores.sql.turns import context_record, turn_record
from looopy.types.event import AgentEvent, Compaction, HistoryRewound
from looopy.types.message import UserMessage
from looopy.types.storable import (
    check_actor,
    check_after,
    check_limit,
    check_number,
    check_turn,
)

_USER_POSITION = 16
_SEQ = 3  # of a message
_NEAR = 64  # positions that are read on the way to another one


class SQLJournal(SQLStore, Journal):
    """See `Journal` for the contract."""

    @property
    def notifier(self) -> Notifier:
        """Rung when a context has changed, from any process."""
        return self.backend.notifier

    async def commit(self, commit: Commit) -> Committed:
        given = encode_commit(self.params(commit.context_id), commit)
        if not can_exist(commit.context_id):
            raise fenced(commit.context_id)
        over = commit.release or given.encoded.closing is not None
        work = partial(commit_steps, given)
        done = await self.write(work, commit.context_id, inbox=over)
        if commit.artifacts:
            deleted = (one for one in commit.artifacts if isinstance(one, ArtifactDeletion))
            freed = [name for one in deleted for name in one.freed]
            await drop_blobs(self.backend, self.tenant, freed)
        return done

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        if not can_exist(context_id):
            raise no_context(context_id)
        has_blobs = self.backend.blobs is not None
        key = self.params(context_id)
        work = partial(clear_steps, key, context_id, force=force, blobs=has_blobs)
        epoch, freed = await self.write(work, context_id, inbox=True, removes=True)
        await drop_blobs(self.backend, self.tenant, freed)
        return epoch

    async def compact(self, context_id: str, compaction: NewSummary) -> tuple[int, Compaction]:
        if not can_exist(context_id):
            raise no_context(context_id)
        work = partial(compact_steps, self.params(context_id), context_id, compaction)
        return await self.write(work, context_id)

    async def fork(
        self, context_id: str, new_context_id: str, *, at: int | None = None
    ) -> ContextRecord:
        check_context_id(new_context_id)
        if at is not None:
            check_place(at)
        if not can_exist(context_id):
            raise no_context(context_id)
        key, new = self.params(context_id), self.params(new_context_id)
        place = None if at is None else bounded(at)

        def work() -> Steps[ContextRecord]:
            yield from fork_steps(key, new_context_id, place)
            (row,) = yield Query(s.LOAD_CONTEXT, new)
            return context_record(row)

        made = await self.write(work, new_context_id)
        reach("F1")
        return made

    async def rewind(self, context_id: str, to: int) -> tuple[int, HistoryRewound]:
        check_place(to, "/to")
        if not can_exist(context_id):
            raise no_context(context_id)
        work = partial(rewind_steps, self.params(context_id), bounded(to))
        return await self.write(work, context_id)

    async def undo_rewind(self, context_id: str) -> tuple[int, HistoryRewound]:
        if not can_exist(context_id):
            raise no_context(context_id)
        return await self.write(partial(undo_steps, self.params(context_id)), context_id)

    async def lineage(self, context_id: str) -> Lineage:
        work = partial(lineage_steps, self.params(context_id))
        return await self.backend.run(work, write=False) if can_exist(context_id) else Lineage()

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        check_after(after)
        check_limit(limit)
        if not can_exist(context_id):
            return []
        most = bounded(limit)
        work = partial(read_log, self.params(context_id), bounded(after), most)
        pages = await self.backend.run(work, write=False)
        bodies = [row[-1] for page in pages[:1] for row in (*page.messages, *page.events)]
        little = len(pages) < 2 and is_little(len(bodies), bodies)
        parts = (part for page in pages for part in events_of(context_id, page))
        return (await off_loop(parts, little=little))[:most]

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        check_after(after)
        check_limit(limit, optional=False)
        bounds = {"after": bounded(after), "limit": bounded(limit)}
        found = await self._ask(s.LIST_TURNS, context_id, **bounds)
        return await read_rows(found, turn_record)

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        check_number(turn, "/turn", "pass the number of a turn")
        found = await self._ask(s.STARTED_CALLS, context_id, turn=bounded(turn))
        return {rows.started_call(body) for (body,) in found}

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        found = await self._ask(s.TURN_OF_KEY, context_id, key=key) if can_name(key) else []
        return (int(found[0][0]), str(found[0][1])) if found else None

    # --- the inbox: messages to a running turn, from any process ---

    # The context's row counts the messages and names the turn that is to stop. So the commit of a
    # step gets the news from a statement that it runs anyway. A message is a row of its own, and
    # leaves in the commit that puts it into the history.

    async def post(
        self,
        context_id: str,
        kind: EntryKind,
        message: UserMessage,
        *,
        actor_id: str | None = None,
        expected_turn: int | None = None,
        key: str | None = None,
        input_hash: str | None = None,
    ) -> int:
        check_context_id(context_id)
        check_turn(expected_turn, "/expected_turn")
        check_post_key(key, input_hash, expected_turn)
        body = rows.entry_body(message, actor_id)
        stored_kind = entry_kind(kind).value
        params = self.params(context_id, kind=stored_kind, actor=actor_id, body=body)
        named = self.params(context_id, key=key, turn=expected_turn, input_hash=input_hash)

        def work() -> Steps[int]:
            while True:
                head = yield from peek(params, lock=True)
                turn = head.open_turn if head else None
                belongs_to = head.owner_actor if head else None
                if turn is not None:
                    ((belongs_to,),) = yield Query(s.TURN_ACTOR, {**params, "turn": turn})
                waiting = head.inbox_waiting if head else 0
                if waiting >= INBOX_LIMIT:  # they may have several actors
                    ((waiting,),) = yield Query(s.COUNT_ENTRIES, params)
                check_post(
                    open_turn=turn,
                    belongs_to=belongs_to,
                    waiting=waiting,
                    actor_id=actor_id,
                    expected_turn=expected_turn,
                )
                if head is not None:
                    break
                yield from create(params)
            if key is not None and not (yield Query(s.ADD_KEY, named)):
                return 0
            ((number,),) = yield Query(s.POST, params)
            yield Query(s.ADD_ENTRY, {**params, "entry": number})
            yield Query(s.UNINDEX, params)
            return int(number)

        return await self.write(work, context_id, inbox=True)

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        check_after(after)
        found = await self._ask(s.LIST_INBOX, context_id, after=bounded(after))
        head = inbox_head(*found[0][:3]) if found else InboxHead()
        return head, [rows.decode_entry(*row[3:]) for row in found if row[3] is not None]

    async def withdraw(
        self, context_id: str, kind: EntryKind | None = None, *, actor_id: str | None = None
    ) -> int:
        check_actor(actor_id)
        one, other = EntryKind if kind is None else (entry_kind(kind),) * 2
        params = self.params(context_id, kind=one.value, other_kind=other.value, actor=actor_id)

        def work() -> Steps[int]:
            if (yield from peek(params, lock=True)) is None:
                return 0
            taken = len((yield Query(s.WITHDRAW, params)))
            if taken:
                yield Query(s.WITHDRAWN, {**params, "taken": taken})
                yield Query(s.UNINDEX, params)
            return taken

        if not can_exist(context_id):
            return 0
        return await self.write(work, context_id, inbox=True, removes=True)

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        check_turn(turn)
        params = self.params(context_id, turn=None if turn is None else bounded(turn))
        if not can_exist(context_id):
            return None
        work = partial(one_step, Query(s.ASK_CANCEL, params))
        asked = await self.write(work, context_id, inbox=True)
        return int(asked[0][0]) if asked else None


def read_log(
    key: Mapping[str, Any], after: int, limit: int, most_bytes: int | None = None
) -> Steps[list[LogPage]]:
    """
    The rows of the events over *after*.

    Args:
        most_bytes: One page that has about so many bytes at most, and is `brief`.
    """
    head = yield from peek(key)
    if head is None or after >= head.last_seq:
        return []
    reader = _LogReader(key, head, most_bytes)
    return (yield from reader.read(max(after, head.cleared_seq - 1), limit))


class _LogReader:
    """
    One reading of the log of a context: pages of rows, of one snapshot.

    Args:
        most_bytes: See `read_log`.
    """

    def __init__(self, key: Mapping[str, Any], head: Head, most_bytes: int | None = None) -> None:
        self._key = key
        self._head = head
        self._most_bytes = most_bytes

    def read(self, after: int, limit: int) -> Steps[list[LogPage]]:
        """
        The rows of the events over *after*, of at most *limit* and perhaps one page more.

        A page takes some eight statements, whatever it holds.
        """
        pages: list[LogPage] = []
        while limit > 0:
            most = min(limit, PAGE)
            page, found = yield from self._page(after, most)
            pages.append(page)
            if len(found) < most or self._most_bytes is not None:
                break
            after = found[-1][0]
            limit -= most
        return pages

    def _page(self, after: int, limit: int) -> Steps[tuple[LogPage, list[LogEntry]]]:
        # Each source gives its part of the next *limit* numbers; the nearest of all count.
        low, high = self._head.visible_from, self._head.last_position + 1
        first = yield from self._find(s.FIND_POSITION, after, low, high)
        which = {**self._key, "after": first - 1, "limit": limit}
        messages, upto = yield from self._rows(s.LIST_MESSAGES, s.LIST_SIZES, which, _SEQ)
        which = {**self._key, "after": after, "limit": limit}
        events, end = yield from self._rows(s.LIST_EVENTS, s.LIST_EVENT_SIZES, which, 0)
        turns = yield from self._turns(after, limit)
        known = {row[0]: row for row in messages}
        told = [(turn_record(row), row[_USER_POSITION]) for row in turns]
        brief = self._most_bytes is not None
        page = LogPage(after, limit, messages, events, told, known.get, min(upto, end), brief)
        found = entries(page)
        wanted = {p for places in positions(found, brief=brief) for p in places} - known.keys()
        for low, high in _ranges(sorted(wanted)):
            params = {**self._key, "after": low - 1, "limit": high - low + 1}
            more = yield Query(s.LIST_MESSAGES, params)
            known.update((row[0], row) for row in more)
        return page, found

    def _rows(
        self, statement: str, sizes: str, params: Mapping[str, Any], seq: int
    ) -> Steps[tuple[Rows, int]]:
        """
        The rows of one source that a page takes, and the `seq` up to which all of them are there.

        Args:
            sizes: The statement that returns their lengths.
            seq: The place of their number in a row.
        """
        if self._most_bytes is None:
            return (yield Query(statement, params)), self._head.last_seq
        # A database may read a whole text to measure it: no more of them than are needed.
        limit, looked = params["limit"], 2
        while True:
            there = yield Query(sizes, {**params, "limit": min(looked, limit)})
            most = fitting((size for (size,) in there), self._most_bytes)
            if len(there) < looked or looked >= limit or most < len(there):
                break
            looked *= 4
        found = yield Query(statement, {**params, "limit": most})
        whole = len(there) <= most
        return found, self._head.last_seq if whole else int(found[-1][seq])

    def _turns(self, after: int, limit: int) -> Steps[list[tuple[Any, ...]]]:
        first = yield from self._find(s.FIND_TURN, after, 1, self._head.turn_count + 1)
        # The turn before it began earlier, and may end later.
        params = {**self._key, "after": first - 2, "limit": limit + 1}
        return (yield Query(s.LIST_TURNS, params))

    def _find(self, statement: str, after: int, low: int, high: int) -> Steps[int]:
        params = {**self._key, "after": after, "low": low, "high": high}
        found = yield Query(statement, params)
        return int(found[0][0])


def _ranges(wanted: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of positions that follow each other, or nearly so."""
    found: list[tuple[int, int]] = []
    for position in wanted:
        if found and position - found[-1][1] <= _NEAR:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found
