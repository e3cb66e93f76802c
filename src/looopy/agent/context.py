"""
An agent's view of its context: the record, the history for the model, the open calls.

Loading reads a bounded window, newest first, and grows it only while the model could see more.
Messages that the model can no longer see are dropped from memory now and then, so that an agent may
live as long as it likes. Reading again fetches only what another process added. If the turn's owner
is dead, this process ends the turn here, in one fenced commit, before anything else happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import is_
from typing import Any

from looopy._failpoints import reach
from looopy.agent.dead_turns import OpenCall, close_dead_turn, dead_end, runs_again
from looopy.agent.lease import left_in_s
from looopy.agent.plan import Situation
from looopy.errors import AgentBusy, Fenced, StoreConflict, StoreError, ValueRefused
from looopy.history.open_calls import unanswered
from looopy.history.sent import Sent
from looopy.history.tokens import LEAST_COUNTED
from looopy.history.view import View
from looopy.history.window import Limits, fitting, folded
from looopy.stores.base import ArtifactStore, StagedArtifactStore
from looopy.stores.bundle import Stores
from looopy.stores.owner import Owner, provably_dead
from looopy.stores.records import (
    ANY_CALL,
    Claim,
    ContextRecord,
    ContextState,
    MessageRecord,
    TurnRecord,
)
from looopy.stores.rules import commits_lost
from looopy.telemetry.current import note_recovery
from looopy.telemetry.process import process_name
from looopy.tools.base import Tool
from looopy.types.config import LoopConfig
from looopy.types.constructors import amended
from looopy.types.message import AssistantMessage, Message, UserMessage
from looopy.types.ranges import Range, before, counted, shown
from looopy.types.state import AgentStatus
from looopy.types.summary import find_fold, is_summary, kept_by

_logger = logging.getLogger("looopy")
_WINDOW = 256  # messages read at first; doubled while the model could see more
_BEFORE = 32  # read beyond `max_messages`: the visible part begins with a turn
_MOST_READ = 1024  # messages read at once for a summary
_TRIM_ABOVE = 4 * _WINDOW  # messages in memory above which the oldest are dropped


def _shape(record: ContextRecord) -> tuple[object, ...]:
    """Facts that stay equal as long as no message is hidden, shown again or redacted."""
    return record.created_at, record.visible_from, record.hidden


def _page_before(first: int, count: int, begin: int, hidden: Sequence[Range]) -> tuple[int, int]:
    """The position after which to read, and how many, for *count* messages before *first*."""
    after = max(before(first - 1, count, hidden), begin - 1)
    return after, counted(shown(after + 1, first - 1, hidden))


class LogReader:
    """
    Reads the log of a context backwards from the history that is in memory; see `Backlog`.

    The history itself stays the same: the model sees no more because of this.

    Attributes:
        log: The messages read so far, oldest first.
        left: The number of earlier messages that no summary in *log* covers.
    """

    def __init__(self, known: ContextView) -> None:
        self.log: Sequence[Message] = known.history
        self._read = known.stores.messages.records
        self._context_id = known.context_id
        self._page = _WINDOW
        self._first = known.first_position
        self._whole = list(known.history)  # from `_first` on
        self._apart: Message | None = None  # the summary that was read alone
        self._apart_at = 0
        self._hidden = known.hidden
        fold = find_fold(known.history)
        begin = known.record.visible_from if known.record is not None else 1
        if fold is not None:
            position = known.position_at(fold.place)
            kept_after = before(position - 1, kept_by(fold.summary), self._hidden)
            begin = max(begin, kept_after + 1)
            if position < self._first:
                self._apart, self._apart_at = self._whole.pop(0), position
        self._begin = begin
        self.left = 0
        self._count()

    async def more(self) -> bool:
        """Put a page before `log`; false when nothing more can be read."""
        if self._first <= self._begin:
            return False
        after, limit = _page_before(self._first, self._page, self._begin, self._hidden)
        page = await self._read(self._context_id, after=after, limit=limit)
        older = [r for r in page if r.position < self._first]
        if not older:  # hidden in the meantime
            return False
        self._page = min(2 * self._page, _MOST_READ)
        self._first = older[0].position
        self._whole[:0] = [r.message for r in older]
        if self._apart_at >= self._first:
            self._apart = None
        self.log = self._whole if self._apart is None else [self._apart, *self._whole]
        self._count()
        return True

    def _count(self) -> None:
        left = counted(shown(self._begin, self._first - 1, self._hidden))
        self.left = left - (self._apart is not None and left > 0)


class ContextView:
    """
    One context as this process last read it.

    Attributes:
        record: `None` while the context is not known to exist.
        history: Visible messages, oldest first: at least all that the model may see.
        view: The part of the history that the model saw last.
        open_calls: Calls of the last answer that have no result; `announced_at` is its position.
        busy_turn: The turn that a living owner elsewhere runs, or `None`.
        stale: True if another process may have advanced the context since.
        lost: True if the last read found that the store lacks what it had acknowledged.
        doubted: A turn of this process that could not continue, and the time of its start: the next
            read looks whether the store still has it.
        window_tokens: The size of the model's window, if known.
        counted: True if the model's tokenizer counts, which may be half of the estimate.
        saved_epoch, saved_position: The store's values at the last read (for `auto_save=False`).
        staged: The artifacts with the changes of buffered turns; `None`: there is no change.
        heads: Reads by `head` that the store has not answered yet.
    """

    def __init__(
        self,
        stores: Stores,
        context_id: str,
        config: LoopConfig,
        *,
        window_tokens: int | None = None,
        counted: bool = False,
    ) -> None:
        self.stores = stores
        self.context_id = context_id
        self.config = config
        self.window_tokens = window_tokens
        self.counted = counted
        self.record: ContextRecord | None = None
        self.history: list[Message] = []
        self.view = View(self.history)
        self.view.backlog = self.backlog
        self.open_calls: list[OpenCall] = []
        self.announced_at: int | None = None
        self.last: TurnRecord | None = None
        self.busy_turn: int | None = None
        self.stale = True
        self.lost = False
        self.doubted: tuple[int, datetime] | None = None
        self._removal = stores.journal.notifier.removal_of(stores.tenant, context_id)
        self.saved_epoch = 0
        self.saved_position = 0
        self.staged: StagedArtifactStore | None = None
        self.heads: set[asyncio.Task[int]] = set()
        self._places: list[tuple[int, int]] = []  # position and turn of each message of `history`
        self._position = 0
        self._trim_above = _TRIM_ABOVE
        self._visible_from = 1
        self._hidden: Sequence[Range] = ()
        self._born: datetime | None = None

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifacts as this agent sees them."""
        return self.staged or self.stores.artifacts

    @property
    def epoch(self) -> int:
        """The epoch that a claim must name."""
        return self.record.epoch if self.record else 0

    @property
    def last_position(self) -> int:
        """Position of the newest message; 0 while there is none."""
        return self.record.last_position if self.record else 0

    @property
    def hidden(self) -> Sequence[Range]:
        """The positions that were rewound."""
        return self.record.hidden if self.record else ()

    @property
    def state(self) -> ContextState:
        """The stored state."""
        return self.record.state if self.record else ContextState()

    @property
    def situation(self) -> Situation:
        """The input for the plan of the next turn."""
        return Situation(
            self.state, self.history, self.open_calls, self.last, context_id=self.context_id
        )

    @property
    def seq(self) -> int:
        """Number of the newest event; 0 while there is none."""
        return self.record.last_seq if self.record else 0

    async def refresh(
        self,
        tools: Mapping[str, Tool],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """
        Read the changes; end a turn that its owner has left.

        Args:
            tools: By name, for their `on_resume`.
            pause: Waits so many seconds before the next read of an expired lease; half of the
                lease's life in all.
        """
        self.stale = True  # until all of it is read: the store may fail in between
        while True:
            version = self.record.version if self.record else 0
            record = await self.stores.state.load(self.context_id)
            self.lost |= self._went_back(record)
            self.record = record
            if record is not None and self._born is None and record.version != version:
                self.forget()  # another process changed it, and perhaps its messages
            await self._read(record)
            self.busy_turn = None
            if record is None or record.open_turn is None:
                break
            look_in_s = await left_in_s(self.stores.state, record, self.config.lease_ttl_s)
            if look_in_s is None:
                self.busy_turn = record.open_turn.turn
                break
            if look_in_s:
                await pause(look_in_s)
                continue
            reach("R1")
            try:
                await self._close(record, record.open_turn, tools)
            except (StoreConflict, AgentBusy, Fenced):
                continue  # another process was closing it
        await self._find_open_calls(tools)
        if self.doubted is not None:
            self.lost |= await self._lacks(*self.doubted)
            self.doubted = None
        self._forgive_removal()
        self.saved_epoch, self.saved_position = self.epoch, self._position
        self.stale = False

    def tell_losses(self) -> None:
        """Raise `CommitsLost`, once, if `refresh` found that the store went back."""
        if self.lost:
            self.lost = False
            raise commits_lost(self.context_id)

    def losses_told(self) -> None:
        """Take nothing for acknowledged any more: a commit has raised `CommitsLost`."""
        self.stale, self.lost, self.doubted = True, False, None
        self.forget()
        if self.record is not None:
            self.record = replace(self.record, epoch=0, last_seq=0, visible_from=1)

    def _went_back(self, record: ContextRecord | None) -> bool:
        """True if the store has come less far than before, or has another context of the name."""
        before = self.record
        if before is None or not before.last_seq:
            return False
        if record is None:
            return True
        made_anew = (
            self._born not in {None, record.created_at}  # a redaction moves it by a microsecond
            and record.created_at > before.last_activity
        )
        return (
            made_anew
            or record.epoch < before.epoch
            or record.last_seq < before.last_seq
            or record.visible_from < before.visible_from
        )

    def _forgive_removal(self) -> None:
        """Take nothing for lost if this process has deleted the context since the last read."""
        removal = self.stores.journal.notifier.removal_of(self.stores.tenant, self.context_id)
        if removal > self._removal:
            self._removal, self.lost = removal, False

    async def _lacks(self, turn: int, began: datetime) -> bool:
        """True if the store does not have the *turn* that began then."""
        found = await self.stores.journal.turns(self.context_id, after=turn - 1, limit=1)
        return not found or (found[0].turn, found[0].started_at) != (turn, began)

    async def _read(self, record: ContextRecord | None) -> None:
        """Read the changes of the history."""
        if record is None:
            self.forget()
            return
        same = self._born in (None, record.created_at)  # else redacted, or created again
        same = same and (record.visible_from, record.hidden) == (self._visible_from, self._hidden)
        if same and self._places:
            # The last message shows if the store still has what is in memory.
            place, known = self._places[-1], self.history[len(self._places) - 1]
            found = await self.stores.messages.records(self.context_id, after=place[0] - 1)
            behind = any(map(self._reaches_back, found[1:]))
            again = found[0] if found else None
            if again is not None and again.message == known and not behind:
                self._born = record.created_at
                self._extend(found[1:])
                return
            if again is None or (
                (again.position, again.turn, again.message.timestamp) != (*place, known.timestamp)
            ):
                now = await self.stores.state.load(self.context_id)
                # Else it was cleared, rewound or redacted between the two reads.
                self.lost |= now is not None and _shape(now) == _shape(record)
        self.forget()  # at once: after a failed read, the next one would build on it
        self._visible_from, self._born = record.visible_from, record.created_at
        self._hidden = record.hidden
        self._replace(await self._read_anew(record.visible_from, record.state.summary))
        if record.hidden:  # what was read may end before what is hidden
            self._position = max(self._position, record.last_position)

    def _reaches_back(self, record: MessageRecord) -> bool:
        """True for a summary that shows messages which are not in memory: it undoes another one."""
        message = record.message
        return is_summary(message) and record.position - kept_by(message) < self.first_position

    async def _read_anew(self, visible_from: int, summary: int | None) -> Sequence[MessageRecord]:
        """The newest messages: at least all that the model may see, each read once."""
        records = await self._read_newest(visible_from)
        if summary is not None and records and records[0].position > summary >= visible_from:
            read = self.stores.messages.records
            records = [*await read(self.context_id, after=summary - 1, limit=1), *records]
        return records

    async def _read_newest(self, visible_from: int) -> list[MessageRecord]:
        if self.config.max_messages is None and self.config.history_tokens is None:
            return await self.stores.messages.records(self.context_id)
        most = self.config.max_messages
        limit = _WINDOW if most is None else min(_WINDOW, most + _BEFORE)
        records = await self.stores.messages.recent(self.context_id, limit=limit)
        while records and records[0].position > visible_from:
            if self._holds_what_is_seen(records):
                break
            # As many again, of those before.
            first = records[0].position
            after, limit = _page_before(first, len(records), visible_from, self._hidden)
            page = await self.stores.messages.records(self.context_id, after=after, limit=limit)
            # If the history was cleared in between, the page is empty, or has only later messages.
            # This process will notice soon, and the messages read so far were valid until then.
            older = [r for r in page if r.position < first]
            if not older:
                break
            records = older + records
        return records

    def _holds_what_is_seen(self, records: Sequence[MessageRecord]) -> bool:
        """True if the model would see nothing before *records*."""
        messages = [r.message for r in records]
        fold = find_fold(messages)
        if fold is not None and fold.place >= kept_by(fold.summary):
            return True
        asked = any(isinstance(message, UserMessage) for message in messages)
        limits = self._limits()
        offset = self._count_to(max(records[-1].position, self.last_position)) - len(messages)
        return asked and len(folded(messages, self.config, limits=limits, offset=offset)) < len(
            messages
        )

    def _limits(self) -> Limits:
        """The limits of the next turn, or wider ones if its model may need fewer tokens."""
        sent = Sent()
        sent.resume(self.state.sent)
        scale = LEAST_COUNTED if self.counted else min(100, sent.scale.used)
        return Limits.of(self.config, self.window_tokens, scale=scale)

    def backlog(self) -> LogReader:
        """A reader of the log before the history, which may be only the log's end."""
        return LogReader(self)

    @property
    def first_position(self) -> int:
        """Position of the oldest message after which the history has no gap; 0: no message."""
        positions = [position for position, _ in self._places[:2]]
        apart = False  # true of a summary that was read alone
        if len(positions) == 2 and positions[0] + 1 < positions[1]:
            apart = bool(shown(positions[0] + 1, positions[1] - 1, self._hidden))
        return positions[apart] if positions else 0

    def position_at(self, place: int) -> int:
        """Position of the message at *place* in the history."""
        known = len(self._places)
        return self._places[place][0] if place < known else self._position + 1 + place - known

    def _replace(self, records: Sequence[MessageRecord]) -> None:
        self.history.clear()
        self.view.drop()
        self._places.clear()
        self._position = 0
        self._extend(records)

    def forget(self) -> None:
        """Drop the history: the next `refresh` reads it again."""
        self._replace(())
        self._born = None

    def forgive(self) -> None:
        """Clear the error of the last turn; an unfinished turn can still be continued."""
        if self.record is not None and self.record.state.error is not None:
            self.record = replace(self.record, state=replace(self.record.state, error=None))

    def head(self) -> asyncio.Task[int]:
        """
        Start to read the newest `seq`; a commit that awaits `heads_read` first comes after it.

        The task need not be awaited: a follower may never be iterated.

        Raises:
            RuntimeError: No event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._head())
        self.heads.add(task)
        task.add_done_callback(self._head_read)
        return task

    async def _head(self) -> int:
        record = await self.stores.state.load(self.context_id)
        return record.last_seq if record else 0

    def _head_read(self, task: asyncio.Task[int]) -> None:
        self.heads.discard(task)
        if not task.cancelled():
            task.exception()  # an unread exception would be logged

    async def heads_read(self) -> None:
        """Wait until each read of `head` has succeeded or failed."""
        while self.heads:
            await asyncio.wait(self.heads)

    def _append(self, messages: Sequence[Message]) -> None:
        """Put *messages* after the committed ones, in place of the running turn's own."""
        said = self.history[len(self._places) :]
        if len(said) != len(messages) or not all(map(is_, said, messages)):
            if said:  # not all was stored, or it was stored in another form
                self.view.drop()
            self.history[len(self._places) :] = messages

    def _extend(self, records: Sequence[MessageRecord]) -> None:
        self._add([r.message for r in records], [(r.position, r.turn) for r in records])

    def _add(self, messages: Sequence[Message], places: Sequence[tuple[int, int]]) -> None:
        self._append(messages)
        self._places += places
        if places:
            self._position = places[-1][0]
        # Counted from the end, the offset is the same for all processes, however little they have
        # read.
        end = max(self._position, self.last_position)
        self.view.offset = self._count_to(end) - len(self._places)

    def _count_to(self, position: int) -> int:
        """How many messages up to *position* are not rewound: a rewind moves no message."""
        return counted(shown(1, position, self._hidden)) if self._hidden else position

    @property
    def committed(self) -> Sequence[Message]:
        """The history without the messages that a running turn has added."""
        return self.history[: len(self._places)]

    def advance(self, messages: Sequence[Message], turn: int, position: int) -> None:
        """Take over *messages* that a turn has committed here, up to *position*."""
        first = position - len(messages) + 1
        self._add(messages, [(first + i, turn) for i in range(len(messages))])
        if len(self.history) > self._trim_above:
            self._trim()

    def _trim(self) -> None:
        """Drop the oldest messages, down to twice what fits."""
        fits = fitting(self.history, self._limits())
        asked = (i for i, m in enumerate(reversed(self.history), 1) if isinstance(m, UserMessage))
        # One more than fits, so that the rest is known to be too much.
        gone = len(self.history) - max(2 * fits, fits + 1, _WINDOW, next(asked, 0))
        if gone > 0:
            fold = find_fold(self.history)
            stays = fold is not None and fold.place < gone
            kept_at = slice(fold.place, fold.place + 1) if fold and stays else slice(0, 0)
            self.history[:gone] = self.history[kept_at]
            self._places[:gone] = self._places[kept_at]
            self.view.offset = self._count_to(self._position) - len(self._places)
            self.view.drop()
        # If the model sees all, no message is dropped, and the next check comes later and later.
        self._trim_above = max(_TRIM_ABOVE, 2 * len(self.history))

    async def _find_open_calls(self, tools: Mapping[str, Tool]) -> None:
        """Find the calls that the last turn left open, and which of them had started."""
        self.open_calls, self.announced_at, self.last = [], None, None
        record, state = self.record, self.state
        resumable, held = state.resumable, state.held
        if record is None:
            return
        if resumable is None:
            requests = (*state.pending, *(request for request, _ in state.answered))
            turns_of_calls = (*(one.asked_in for one in held), *(one.turn for one in requests))
            resumable = max(turns_of_calls, default=None)
        if resumable is not None:
            turns = await self.stores.journal.turns(self.context_id, after=resumable - 1, limit=1)
            self.last = turns[0] if turns else None
        calls = unanswered(self._without_texts_of(record.open_turn or self.last))
        if not calls:
            return
        self.announced_at, origin = next(
            place
            for message, place in zip(reversed(self.history), reversed(self._places), strict=True)
            if isinstance(message, AssistantMessage)
        )
        asked = {one.tool_call_id: one.asked_in for one in held}
        started: set[str] = set()
        for turn in range(origin, record.turn_count + 1):
            found = await self.stores.journal.started_calls(self.context_id, turn)
            started |= {call_id for call_id in found if turn > asked.get(call_id, 0)}
        self.open_calls = [
            OpenCall(c, origin, c.id in started or ANY_CALL in started, runs_again(c, tools))
            for c in calls
        ]

    def _without_texts_of(self, turn: TurnRecord | None) -> Sequence[Message]:
        """
        The history without the user's messages in *turn*, if that turn continued another one.

        Such a turn may have stored a text beside an approval, and died before the approved call had
        its result. The text then stands between the two. The same holds while a call is held.
        """
        places = zip(self.history, self._places, strict=True)
        if self.state.held:
            since = max(one.origin for one in self.state.held)
            return [m for m, (_, t) in places if t <= since or not isinstance(m, UserMessage)]
        if turn is None or turn.continues is None:
            return self.history
        return [m for m, (_, t) in places if t != turn.turn or not isinstance(m, UserMessage)]

    async def _close(
        self, record: ContextRecord, turn: TurnRecord, tools: Mapping[str, Tool]
    ) -> None:
        """End a dead turn: take it over, answer the calls that must not run again."""
        owner, ttl_s, holder = Owner.new(), self.config.lease_ttl_s, record.holder
        try:
            claimed = await self.stores.state.claim(
                Claim(
                    context_id=self.context_id,
                    holder=owner.token(ttl_s),
                    ttl_s=ttl_s,
                    expected_epoch=record.epoch,
                    # Any other holder may have renewed its lease since.
                    displace=holder if holder is not None and provably_dead(holder) else None,
                    recover=True,
                    process=process_name(),
                )
            )
            reach("R2")
            # The dead owner's last commit may have arrived before the claim.
            self.record = found = await self.stores.state.load(self.context_id)
            if found is None:
                raise StoreConflict("the context was deleted while its last turn was being closed")
            record = found
            turn = record.open_turn or turn
            await self._read(record)
            await self._find_open_calls(tools)
            places = zip(self.history, self._places, strict=True)
            added = [message for message, (_, number) in places if number == turn.turn]
            for ask in (True, False):
                results, left = close_dead_turn(
                    turn.turn, self.open_calls, tools, record.state, ask=ask
                )
                commit = dead_end(self.context_id, turn, claimed.epoch, added, results, left)
                try:
                    await self.stores.commit(commit)
                    state = record.state
                    note_recovery(self.context_id, turn.turn, state.trace, turn.started_at)
                    break
                except ValueRefused:
                    if not (ask and left.pending):
                        raise
                    # The arguments of a call are too large to be stored a second time, in a
                    # request.
            reach("R3")
        finally:
            owner.retire()

    async def save_metadata(self, metadata: Mapping[str, Any], *, idle: bool) -> None:
        """
        Replace the metadata; after a `StoreConflict`, saving the new values again may succeed.

        Args:
            idle: No turn runs, so the record may be read again.
        """
        record, store = self.record, self.stores.state
        try:
            version = await store.save(
                self.context_id, metadata, version=record.version if record else 0
            )
        except StoreConflict:
            found = await store.load(self.context_id)
            self.lost |= self._went_back(found)
            self._forgive_removal()
            if record is not None and found is not None:
                self.remember(
                    now=found.last_activity, version=found.version, metadata=found.metadata
                )
            elif idle:
                self.record = found
            self.stale = True
            raise
        if record is None:
            self.record = await store.load(self.context_id)
        else:
            self.remember(now=record.last_activity, version=version, metadata=metadata)

    async def leave(self, status: AgentStatus) -> None:
        """
        Note in the store that the agent is *status*: `paused`, `shutdown`, or `ready` again.

        It does nothing if a turn has begun elsewhere. A store that does not answer is logged: only
        the note is missing.
        """
        record = self.record
        left_as = None if status is AgentStatus.READY else status
        if record is None or not record.epoch or record.state.left_as is left_as:
            return
        try:
            await self.stores.state.leave(self.context_id, record.epoch, status)
        except StoreError as error:
            said = "context %s: the store did not note that its agent is %s: %s"
            _logger.warning(said, self.context_id, status, error)
            return
        self.remember(now=record.last_activity, state=amended(record.state, left_as=left_as))

    def remember(self, **changes: Any) -> None:
        """Take over the changes of the record by a commit of this process."""
        now = changes.pop("now")
        if self.record is None:
            self.record = ContextRecord(
                context_id=self.context_id,
                epoch=0,
                turn_count=0,
                last_position=0,
                last_seq=0,
                created_at=now,
                last_activity=now,
            )
        self.record = amended(self.record, last_activity=now, **changes)
