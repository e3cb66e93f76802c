"""
The events of one context for many readers: the log, and between its events what runs here.

The log has the durable events of every process. The agent's subscribers also see deltas, reports
and starts, which nothing stores. A `Feed` joins both into one order: each durable event exactly
once, and a passing event only in its place among them. So a reader may leave at any moment and
continue after the last `seq`, without a gap and without a text that comes twice. A reader that
comes in the middle of an answer gets the text so far, in one piece for each block.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from looopy.agent.agent import Agent
from looopy.agent.hosted import port_of
from looopy.errors import ContextNotFound, LooopyError
from looopy.stores.bundle import Stores
from looopy.stores.pages import Portion, messages_in
from looopy.stores.rules import commits_lost
from looopy.types.event import AgentEvent, MessageEnd, MessageStart, MessageUpdate, TurnEnd
from looopy.types.message import AssistantMessage

_PAGE = 500


class SlowReader(LooopyError):
    """A reader did not take its events in time; it can continue after the last `seq`."""


class _Block:
    """Neighbouring pieces of one kind in an answer that is being written."""

    def __init__(self, update: MessageUpdate) -> None:
        self.newest = update
        self.pieces = [_piece(update)]

    def takes(self, update: MessageUpdate) -> bool:
        """True if *update* was added."""
        one, other = self.newest.event, update.event
        if (
            one is None
            or other is None
            or (one.type, one.content_index)
            != (
                other.type,
                other.content_index,
            )
        ):
            return False
        self.newest = update
        self.pieces.append(_piece(update))
        return True

    def update(self) -> MessageUpdate:
        """All of it, as one event."""
        newest, whole = self.newest, "".join(self.pieces)
        if newest.event is None or len(self.pieces) == 1:
            return newest
        return replace(
            newest,
            delta=whole if newest.delta else "",
            event=replace(newest.event, delta=whole),
        )


def _piece(update: MessageUpdate) -> str:
    return update.delta if update.event is None else update.event.delta


class _Answer:
    """
    The model's answer that is being written: what a reader who comes now has missed.

    Attributes:
        after: The `seq` of the durable event before it; `None` if unknown.
    """

    def __init__(self, start: MessageStart, behind: int | None) -> None:
        self.behind = behind
        self._start = start
        self._blocks: list[_Block] = []

    def add(self, update: MessageUpdate) -> None:
        """Add the next piece."""
        if not self._blocks or not self._blocks[-1].takes(update):
            self._blocks.append(_Block(update))

    def events(self) -> list[AgentEvent]:
        """Its start, and one event for each run of pieces."""
        return [self._start, *(block.update() for block in self._blocks)]


class _Reader:
    """
    The waiting events of one reader.

    Args:
        limit: The most events that may wait.

    Attributes:
        upto: The newest durable event that was emitted before it was admitted.
        so_far: What it has missed of the answer that was being written then.
    """

    def __init__(self, limit: int) -> None:
        self.waiting: deque[AgentEvent] = deque()
        self.news = asyncio.Event()
        self.admitted = False
        self.ended = False
        self.error: Exception | None = None
        self.upto = 0
        self.so_far: list[AgentEvent] = []
        self._limit = limit

    def admit(self, upto: int, so_far: list[AgentEvent]) -> None:
        """Let it have every event from now on."""
        self.admitted, self.upto, self.so_far = True, upto, so_far
        self.news.set()

    def push(self, event: AgentEvent) -> None:
        """Let *event* wait."""
        if self.ended:
            return
        if len(self.waiting) >= self._limit:
            self.end(
                SlowReader(
                    f"{self._limit} events wait for this reader: continue after the last one"
                )
            )
            return
        self.waiting.append(event)
        self.news.set()

    def end(self, error: Exception | None = None) -> None:
        """End it after its waiting events, with *error* if there is one."""
        self.ended, self.error = True, error
        self.news.set()

    async def some(self) -> None:
        """Wait for news."""
        self.news.clear()
        await self.news.wait()


class Feed:
    """
    The events of the context of *agent*, for any number of readers.

    Make it before the agent runs a turn, and close it with the agent.

    Args:
        agent: Started before the first reader comes.
        stores: The stores of the agent.
        limit: The most events that may wait for one reader.
    """

    def __init__(self, agent: Agent, stores: Stores, *, limit: int = 1024) -> None:
        self._agent = agent
        self._stores = stores
        self._limit = limit
        self._readers: set[_Reader] = set()
        self._follower: asyncio.Task[None] | None = None
        self._ready = False  # the follower knows the head of the log
        self._cursor = 0  # the newest durable event that was emitted
        self._shown: int | None = None  # the newest durable event that the agent has shown
        self._waiting: deque[tuple[AgentEvent, int | None]] = deque()
        self._answer: _Answer | None = None
        self._leave = agent.subscribe(self._show)

    @property
    def readers(self) -> int:
        """The number of present readers."""
        return len(self._readers)

    async def close(self) -> None:
        """End the readers, each after the events that wait for it."""
        self._leave()
        for reader in self._readers:
            reader.end()
        await self._rest()

    async def follow(self, after: int | None = None) -> AsyncGenerator[AgentEvent, None]:
        """
        The durable events after *after* and those to come, and the passing ones of turns here.

        A reader that comes while an answer is being written gets it as far as it has come.

        Args:
            after: A `seq`; 0 for the beginning, `None` for the head.

        Raises:
            ContextNotFound: The context was deleted, or *after* is beyond its head.
            CommitsLost: The store lacks events that this has yielded.
            SlowReader: Too many events waited for the reader.
            StoreUnavailable: The store did not answer. Resume after the last `seq`.
        """
        reader = _Reader(self._limit)
        self._readers.add(reader)
        self._admit(reader)
        try:
            while not reader.admitted and not reader.ended:
                await reader.some()
            if after is not None and reader.admitted:
                async with aclosing(self._past(after, reader.upto)) as past:
                    async for event in past:
                        yield event
            for event in reader.so_far:
                yield event
            while True:
                while reader.waiting:
                    event = reader.waiting.popleft()
                    if after is None or event.seq is None or event.seq > after:
                        yield event
                if reader.ended:
                    break
                await reader.some()
            if reader.error is not None:
                raise reader.error
        finally:
            self._readers.discard(reader)
            if not self._readers:
                await self._rest()

    async def _past(self, after: int, upto: int) -> AsyncGenerator[AgentEvent, None]:
        """The stored events after *after*, up to the first that the reader gets by itself."""
        name = self._agent.context_id
        if after > upto:
            record = await self._stores.state.load(name)
            if record is None or record.last_seq < after:
                raise ContextNotFound(
                    f"this context has no event {after}: it was deleted, or the number is another's"
                )
        portion = Portion(_PAGE)
        while after < upto:
            limit = min(portion.rows, upto - after)
            found = await self._stores.journal.events(name, after=after, limit=limit)
            portion.took(len(found), messages_in(found))
            for event in found:
                if event.seq is None or event.seq > upto:
                    return
                after = event.seq
                yield event
            if not found:
                return

    # --- one order out of two sources -------------------------------------------------------------

    def _admit(self, reader: _Reader) -> None:
        if self._ready:
            so_far = self._answer.events() if self._answer is not None else []
            reader.admit(self._cursor, so_far)
        elif self._follower is None:
            self._follower = asyncio.create_task(self._follow_log())
            self._follower.add_done_callback(self._followed)

    async def _rest(self) -> None:
        """Do not follow the log any more: there is no reader."""
        follower = self._follower
        self._stop_following()
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def _follow_log(self) -> None:
        """Emit what other processes add, and whatever the agent does not show."""
        record = await self._stores.state.load(self._agent.context_id)
        self._cursor = record.last_seq if record else 0
        if self._answer is not None and self._answer.behind not in (None, self._cursor):
            self._answer = None  # the log has all of it
        self._ready = True
        for reader in self._readers:
            self._admit(reader)
        self._flush()
        async for event in port_of(self._agent).events_besides(lambda: self._cursor):
            if event.seq is not None and event.seq > self._cursor:
                self._emit(event)
                self._flush()

    def _followed(self, follower: asyncio.Task[None]) -> None:
        """End the readers if the log cannot be followed."""
        if follower.cancelled() or self._follower is not follower:
            return
        self._stop_following()
        error = follower.exception()
        for reader in self._readers:
            reader.end(error if isinstance(error, Exception) else None)

    def _stop_following(self) -> None:
        """Keep what waits of the answer that is being written, for the next reader."""
        self._follower, self._ready = None, False
        while self._waiting:
            event, behind = self._waiting.popleft()
            self._note(event, behind)

    def _show(self, event: AgentEvent) -> None:
        """Take an event that the agent shows."""
        seq = self._seq(event)
        if seq is not None and self._shown is not None and seq <= self._shown:
            self._start_over()  # the store went back, and the agent continues from there
        if self._follower is None:  # no reader
            self._note(event, self._shown)
        else:
            self._waiting.append((event, self._shown))
        self._shown = seq or self._shown
        if self._ready:
            self._flush()

    def _start_over(self) -> None:
        """End the readers: they have got events that the store has lost."""
        follower, self._shown, self._answer = self._follower, None, None
        self._waiting.clear()
        self._stop_following()
        if follower is not None:
            follower.cancel()
        for reader in self._readers:
            reader.end(commits_lost(self._agent.context_id))

    def _flush(self) -> None:
        """Emit the shown events whose place has come; drop those whose place is past."""
        waiting = self._waiting
        while waiting:
            event, behind = waiting[0]
            if (seq := self._seq(event)) is not None:
                if seq > self._cursor + 1:
                    return  # the log has others before it
                now = seq > self._cursor
            elif event.turn == 0 or behind is None:  # a status of the agent
                now = True
            else:
                now = behind == self._cursor
            waiting.popleft()
            if now:
                self._emit(event)

    def _emit(self, event: AgentEvent) -> None:
        self._note(event, self._cursor)
        self._cursor = self._seq(event) or self._cursor
        for reader in self._readers:
            if reader.admitted:
                reader.push(event)

    def _seq(self, event: AgentEvent) -> int | None:
        """Its place in the log; `None` for a passing event, or one of another agent."""
        own = not event.path and event.context_id == self._agent.context_id
        return event.seq if own else None

    def _note(self, event: AgentEvent, behind: int | None) -> None:
        """Keep the answer that is being written."""
        if event.path:
            return
        if isinstance(event, MessageUpdate):
            if self._answer is not None:
                self._answer.add(event)
        elif isinstance(event, MessageStart):
            begins = isinstance(event.message, AssistantMessage)
            self._answer = _Answer(event, behind) if begins else None
        elif isinstance(event, (MessageEnd, TurnEnd)):
            self._answer = None
