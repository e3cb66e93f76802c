"""
The log of a context, put together from rows and decoded beside the event loop.

An event is a message's row, a turn's row or a row of its own (see `rows/events.py`). A store
supplies the rows of a page, and a way to look up the messages that they refer to; decoding is the
same for every store. Decoding takes ten microseconds a row or more, and a caller may ask for any
number of rows. So more than a few rows are decoded in a thread, in small parts, and the event loop
keeps running. A thread is not enough for a very long list, because a full collection of garbage
stops every thread: see `_Collections`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, NamedTuple, TypeAlias, TypeVar

from looopy.stores.records import MessageRecord, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rows.reading import decode_records, read_message
from looopy.stores.shield import answer
from looopy.types.event import AgentEvent, MessageEnd
from looopy.types.message import AssistantMessage, Message, ToolCall
from looopy.types.storable import check_after, check_limit, check_number

T = TypeVar("T")
R = TypeVar("R")


class StoredMessage(NamedTuple):
    """The row of a message."""

    position: int
    turn: int
    iteration: int
    seq: int
    created_us: int
    meta: str | None
    body: str


class StoredEvent(NamedTuple):
    """The row of any other event."""

    seq: int
    turn: int
    iteration: int
    type: str
    created_us: int
    position: int | None
    body: str


MessageRow: TypeAlias = Sequence[Any]
"""The fields of a `StoredMessage`."""

EventRow: TypeAlias = Sequence[Any]
"""The fields of a `StoredEvent`."""

PAGE = 1000
"""The number of rows that one read of a log fetches."""

_CHUNK = 256
_FEW_ROWS = 64
_LOOK_S = 1.0  # at a loop that may have been stopped for good
_FEW_CHARACTERS = 100_000
_MANY = 5_000  # objects of a list, from which on full collections are kept away
_PUT_OFF_AT_MOST = 4_000_000  # objects between two full collections
# Python 3.14 collects old objects in steps, and freezing may take long there.
_HAS_FULL_COLLECTIONS = sys.version_info < (3, 14)
# CPython 3.12 starts with a few hundred objects frozen; an application freezes thousands.
_FROZEN_AT_START = 1_000


def is_little(count: int, bodies: Iterable[object]) -> bool:
    """True if so many rows, with these texts, take no time to decode."""
    if count > _FEW_ROWS:
        return False
    return sum(len(body) for body in bodies if isinstance(body, str)) <= _FEW_CHARACTERS


async def off_loop(parts: Iterator[list[T]], *, little: bool, in_turns: bool = False) -> list[T]:
    """
    All that *parts* yields, one list after another, taken in a thread unless it is *little*.

    Args:
        parts: Each part is little work. If the caller is cancelled, no further one is taken.
        in_turns: After each part the thread waits until the event loop has run once. A thread that
            computes in Python otherwise takes the interpreter from the loop at each of its steps.
    """
    if little:
        return [one for part in parts for one in part]
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[list[T]] = loop.create_future()
    # Not the loop's executor: its queue may hold work that waits for this.
    if in_turns:
        parts = _in_turns(parts, loop)
    work = partial(_take, parts, loop, waiter)
    threading.Thread(target=work, name="looopy-decoder", daemon=True).start()
    return await waiter


def _in_turns(parts: Iterator[list[T]], loop: asyncio.AbstractEventLoop) -> Iterator[list[T]]:
    """*parts*, with a run of the event loop between two of them."""
    for part in parts:
        yield part
        ran = threading.Event()
        loop.call_soon_threadsafe(ran.set)
        while not ran.wait(_LOOK_S):
            if loop.is_closed():
                return


class _Collections:
    """
    Keep full collections of garbage away from one long read.

    A full collection inspects every object of the process while all threads stand still, and a
    growing list causes one after the other. `gc.freeze()` and `gc.unfreeze()` together move all
    objects to the oldest generation without inspecting them, and reset the count to the next full
    collection. Young objects are collected as before.

    Until that collection, cycles of other code stay in memory. A process that only reads
    still needs one, so it is put off for `_PUT_OFF_AT_MOST` objects and no longer.
    """

    _full = -1  # full collections of this process, when one was put off last
    _put_off_for = 0

    def __init__(self) -> None:
        self._on = _HAS_FULL_COLLECTIONS and gc.isenabled()
        self._due = _MANY

    def put_off(self, taken: int) -> None:
        """Put off the next full collection; *taken* objects have been read."""
        if taken < self._due or not self._on:
            return
        self._due = taken + _CHUNK
        # An application that has frozen its own objects keeps them frozen.
        self._on = self._may_put_off() and gc.get_freeze_count() < _FROZEN_AT_START
        if self._on:
            gc.freeze()
            gc.unfreeze()

    @classmethod
    def _may_put_off(cls) -> bool:
        full = gc.get_stats()[-1]["collections"]
        if full != cls._full:
            cls._full, cls._put_off_for = full, 0
        cls._put_off_for += _CHUNK
        return cls._put_off_for <= _PUT_OFF_AT_MOST


def _take(
    parts: Iterator[list[T]], loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[list[T]]
) -> None:
    taken: list[T] = []
    failed: BaseException | None = None
    collections = _Collections()
    try:
        for part in parts:
            if waiter.cancelled():
                return
            taken += part
            collections.put_off(len(taken))
    except Exception as error:  # noqa: BLE001 - handed to the one who asked
        failed = error

    try:
        loop.call_soon_threadsafe(answer, waiter, taken, failed)
    except RuntimeError:  # the loop is closed: it has no waiters
        return


RecordRow: TypeAlias = tuple[int, int, int, int, str]
"""Position, turn, iteration, seq and body of a message."""


async def read_records(found: Sequence[R], as_row: Callable[[R], RecordRow]) -> list[MessageRecord]:
    """Messages with their places; *as_row* is called where they are decoded."""

    def part(start: int) -> list[MessageRecord]:
        return decode_records([as_row(one) for one in found[start : start + _CHUNK]])

    parts = map(part, range(0, len(found), _CHUNK))
    return await off_loop(parts, little=is_little(len(found), (as_row(one)[4] for one in found)))


async def read_rows(found: Sequence[Sequence[Any]], decode: Callable[[Any], T]) -> list[T]:
    """Each row of *found* as *decode* reads it."""

    def part(start: int) -> list[T]:
        return [decode(one) for one in found[start : start + _CHUNK]]

    parts = map(part, range(0, len(found), _CHUNK))
    little = is_little(len(found), (value for one in found for value in one))
    return await off_loop(parts, little=little)


class LogPage(NamedTuple):
    """
    Rows of a log in the order of their numbers, and the messages that they refer to.

    Attributes:
        after: Only events above this `seq`.
        limit: At most so many rows, the first ones.
        turns: With the position of the message that each began with.
        message_at: The row of a message by its position; `None` if it is not there.
        upto: Only events up to this `seq`.
        brief: Ends of turns name no messages.
    """

    after: int
    limit: int
    messages: Iterable[MessageRow]
    events: Iterable[EventRow]
    turns: Iterable[tuple[TurnRecord, int | None]]
    message_at: Callable[[int], MessageRow | None]
    upto: int = sys.maxsize
    brief: bool = False


def check_page(after: object, limit: object, most_bytes: object) -> None:
    """Raise `ValueRefused` for the arguments of no page; see `ContextIndex.log_page`."""
    check_after(after)
    check_limit(limit, optional=False)
    check_number(most_bytes, "/most_bytes", "pass how many bytes a page may have", least=1)


def fitting(sizes: Iterable[int], most_bytes: int) -> int:
    """How many rows of these sizes make a page of at most so many bytes; one at least."""
    return max(1, sum(1 for _ in takewhile(most_bytes.__ge__, accumulate(sizes))))


LogEntry: TypeAlias = tuple[int, str, Any]
"""The `seq` of a row's event, what the row is, and the row."""


def entries(page: LogPage) -> list[LogEntry]:
    """The events of a page's rows, by `seq`."""
    found: list[LogEntry] = [(row[3], "message", row) for row in page.messages]
    found += [(row[0], "event", row) for row in page.events]
    for record, position in page.turns:
        found.append((record.start_seq, "start", (record, position)))
        if record.end_seq is not None:
            found.append((record.end_seq, "end", record))
    found.sort(key=_seq)
    # A turn that ends in a page may have begun before it.
    after, upto = page.after, page.upto
    return [entry for entry in found if after < entry[0] <= upto][: page.limit]


def _seq(entry: LogEntry) -> int:
    return entry[0]


def positions(found: Iterable[LogEntry], *, brief: bool = False) -> Iterator[range]:
    """Places of the messages that these rows refer to; if *brief*, without ended turns."""
    for _, kind, row in found:
        if kind == "end":
            yield range(0) if brief else range(row.first_position, row.last_position + 1)
        else:
            position = row[5] if kind == "event" else row[1] if kind == "start" else None
            if position is not None:
                yield range(position, position + 1)


def events_of(context_id: str, page: LogPage) -> Iterator[list[AgentEvent]]:
    """The events of a page in small parts; the last rows may have one event more than asked for."""
    decoder = _Decoder(context_id, page)
    for entry in entries(page):
        # A message may bring an event that is one number below its own.
        yield [e for e in decoder.decode(entry) if e.seq is None or e.seq > page.after]


class _Decoder:
    """Decodes the rows of one page, each message once."""

    def __init__(self, context_id: str, page: LogPage) -> None:
        self._context_id = context_id
        self._row_at = page.message_at
        self._brief = page.brief
        self._messages: dict[int, Message] = {}
        self._calls: dict[int, dict[str, ToolCall]] = {}  # by position of their message

    def decode(self, entry: LogEntry) -> list[AgentEvent]:
        _, kind, row = entry
        if kind == "message":
            return self._message(row)
        if kind == "event":
            return [rows.decode_event(self._context_id, row, self._calls_at(row[5]))]
        if kind == "start":
            record, position = row
            user = self._message_at(position)
            return [rows.decode_turn_start(self._context_id, record, user)]
        return [self._turn_end(row)]

    def _message(self, row: MessageRow) -> list[AgentEvent]:
        events = rows.decode_message_events(self._context_id, row)
        if isinstance(said := events[-1], MessageEnd):
            self._messages[row[0]] = said.message
        return events

    def _turn_end(self, record: TurnRecord) -> AgentEvent:
        last = 0 if self._brief else record.last_position
        places = range(record.first_position, last + 1)
        found = [row for row in map(self._row_at, places) if row is not None]
        iteration = max((row[2] for row in found), default=0)
        messages = [m for row in found if (m := self._message_at(row[0])) is not None]
        return rows.decode_turn_end(self._context_id, record, iteration, messages)

    def _calls_at(self, position: int | None) -> Mapping[str, ToolCall]:
        """The calls of a message by id, of equal ids the first: a message may have thousands."""
        if position is None:
            return {}
        if (found := self._calls.get(position)) is None:
            message = self._message_at(position)
            calls = message.tool_calls if isinstance(message, AssistantMessage) else []
            found = self._calls[position] = {call.id: call for call in reversed(calls)}
        return found

    def _message_at(self, position: int | None) -> Message | None:
        if position is None:
            return None
        message = self._messages.get(position)
        if message is None and (row := self._row_at(position)) is not None:
            message = self._messages[position] = read_message(row[6], position=position)
        return message
