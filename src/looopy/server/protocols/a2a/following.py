"""
A task as it runs: the updates of a stream, out of the events of its context.

The text of an answer comes as chunks of one artifact, which the next answer of the task replaces,
and not more often than a reader can use. The last status message is the answer; so at the end, the
artifact has the same text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

from a2a.types import (
    Artifact,
    Part,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from looopy.server.feed import SlowReader
from looopy.server.host import AgentHost
from looopy.server.protocols.a2a.tasks import Chain, TaskReader
from looopy.server.protocols.deltas import GrowingAnswer
from looopy.stores.records import TurnRecord
from looopy.types.context import AuthContext
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    HistoryCleared,
    HistoryRewound,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TurnEnd,
    TurnStart,
)
from looopy.types.message import AssistantMessage
from looopy.types.notices import notice_of

Update: TypeAlias = TaskStatusUpdateEvent | TaskArtifactUpdateEvent
_PAUSE_S: Final = 0.25  # between two chunks: each costs 200 bytes besides its text
_TURNING: Final = (TurnStart, TurnEnd, HistoryCleared, HistoryRewound)


class _Text:
    """
    The text of the answer that is being written.

    Attributes:
        due: When to show more of it, by the event loop's clock; `None`: there is nothing new.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._answer = GrowingAnswer()
        self._blocks: list[str] = []
        self._shown: str | None = None  # as far as the reader has it; `None`: nothing of any answer
        self._shown_at = 0.0

    def restart(self) -> None:
        """Forget the answer: another one begins, or this one comes again."""
        self._answer.drop()
        self._blocks = []

    def take(self, event: AgentEvent) -> None:
        """Take an event of the turn."""
        if isinstance(event, MessageStart):
            if isinstance(event.message, AssistantMessage):
                self.restart()
        elif isinstance(event, MessageUpdate):
            for piece in self._answer.more(event):
                if piece.kind == "text":
                    if piece.begins:
                        self._blocks.append("")
                    self._blocks[-1] += piece.text
                    self._news()
        elif isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            self._answer.drop()
            if event.message.text and event.message.text != self.text:
                self._blocks = [event.message.text]
                self._news()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self._blocks)

    def chunk(self) -> tuple[str, bool]:
        """The text that the reader lacks, and true if it continues the text that the reader has."""
        self.due, self._shown_at = None, asyncio.get_running_loop().time()
        seen, self._shown = self._shown, self.text
        if seen is not None and self._shown.startswith(seen):
            return self._shown[len(seen) :], True
        return self._shown, False

    def _news(self) -> None:
        if self.due is None:
            self.due = self._shown_at + _PAUSE_S


async def updates(
    host: AgentHost, auth: AuthContext, reader: TaskReader, chain: Chain
) -> AsyncGenerator[Update, None]:
    """
    Yield the updates of the task of *chain* from there on, until it waits or is over.

    A task that waits already is followed until that changes. To leave is to detach: it cancels
    nothing.

    Raises:
        LooopyError: Same as `AgentHost.events`.
    """
    context_id, first = chain.context.context_id, chain.turns[0].turn
    after, waited = chain.context.last_seq, chain.settled
    text = _Text()

    def status(now: TaskStatus) -> TaskStatusUpdateEvent:
        return TaskStatusUpdateEvent(task_id=chain.task_id, context_id=context_id, status=now)

    while True:
        try:
            events = host.events(context_id, auth, after=after)
            async with aclosing(_in_time(events, lambda: text.due)) as timed:
                async for event in timed:
                    if event is None:
                        yield _chunk_update(chain, *text.chunk())
                        continue
                    if event.path or event.context_id != context_id:
                        continue
                    after = event.seq or after
                    if isinstance(event, _TURNING):
                        found = await reader.find(first)
                        if found is None:
                            return
                        begun = found.last.turn != chain.last.turn
                        chain = found
                        if chain.settled and (not waited or begun or chain.over):
                            if text.due is not None:
                                yield _chunk_update(chain, *text.chunk())
                            yield status(await reader.status(chain))
                            return
                        if begun:
                            waited = False
                            yield status(await reader.status(chain))
                    elif event.turn == chain.last.turn:
                        text.take(event)
                        beside = await _beside(reader, chain, event)
                        if beside is not None:
                            yield beside
            return  # the host is about to end
        except SlowReader:
            text.restart()  # read on after the last event; the text so far comes again


async def ending(reader: TaskReader, chain: Chain) -> TaskStatusUpdateEvent:
    """The last update of a stream of a task that waits or is over."""
    status, name = await reader.status(chain), chain.context.context_id
    return TaskStatusUpdateEvent(task_id=chain.task_id, context_id=name, status=status)


async def _beside(reader: TaskReader, chain: Chain, event: AgentEvent) -> Update | None:
    """The update for an event that is no part of the text: an artifact, or a wait for the model."""
    if isinstance(event, ArtifactUpdate):
        return await artifact_update(reader, chain, event)
    said = notice_of(event)
    if said is None:
        return None
    status = reader.notice(chain, said, event.timestamp)
    return TaskStatusUpdateEvent(
        task_id=chain.task_id, context_id=chain.context.context_id, status=status
    )


def _chunk_update(chain: Chain, chunk: str, continues: bool) -> TaskArtifactUpdateEvent:
    """More of the text that is being written; A2A 1.0, section 4.2.2."""
    artifact = Artifact(artifact_id=f"{chain.task_id}.text", parts=[Part(text=chunk)])
    if not continues:
        artifact.name = "text"
        artifact.metadata.update({"kind": "text"})
    return TaskArtifactUpdateEvent(
        task_id=chain.task_id,
        context_id=chain.context.context_id,
        artifact=artifact,
        append=continues,
    )


async def artifact_update(
    reader: TaskReader, chain: Chain, event: ArtifactUpdate
) -> TaskArtifactUpdateEvent | None:
    """The update for a version that is complete; `None` for any other."""
    if not event.last_chunk or event.failed or event.deleted:
        return None
    artifact = await reader.artifact(event.artifact_id, event.version)
    if artifact is None:
        return None
    return TaskArtifactUpdateEvent(
        task_id=chain.task_id,
        context_id=chain.context.context_id,
        artifact=artifact,
        append=False,
        last_chunk=True,
    )


async def _in_time(
    events: AsyncGenerator[AgentEvent, None], due: Callable[[], float | None]
) -> AsyncGenerator[AgentEvent | None, None]:
    """The events, and between them `None` whenever something is *due*."""
    clock = asyncio.get_running_loop().time
    waiting: asyncio.Task[AgentEvent | None] | None = None
    try:
        while True:
            at = due()
            if at is not None and at <= clock():
                yield None
                continue
            if waiting is None:
                waiting = asyncio.ensure_future(_next(events))
            await asyncio.wait({waiting}, timeout=None if at is None else at - clock())
            if waiting.done():
                event, waiting = waiting.result(), None
                if event is None:
                    return
                yield event
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()


async def _next(events: AsyncGenerator[AgentEvent, None]) -> AgentEvent | None:
    return await anext(events, None)


async def ended(host: AgentHost, auth: AuthContext, reader: TaskReader, turn: TurnRecord) -> None:
    """Wait until *turn* has ended, in whatever process it runs."""
    events = host.events(reader.context_id, auth, after=turn.start_seq)
    async with aclosing(events):
        async for event in events:
            if event.path or not isinstance(event, _TURNING):
                continue
            if isinstance(event, TurnEnd) and event.turn == turn.turn:
                return
            found = await reader.turn(turn.turn)  # its end may have been cleared away
            if found is None or found.outcome is not None:
                return
