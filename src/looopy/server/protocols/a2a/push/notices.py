"""
The durable events of a task as the updates that are sent, and their bodies.

Each beginning and end of a turn is a status, each complete artifact an artifact update. They are
made of the log alone, so a process that comes later makes the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.types import Task, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]  # no stubs

from looopy.server.host import AgentHost
from looopy.server.protocols.a2a.following import Update, artifact_update
from looopy.server.protocols.a2a.listing import settle_dead
from looopy.server.protocols.a2a.push.configs import Config
from looopy.server.protocols.a2a.tasks import Chain, TaskReader, asks
from looopy.stores.bundle import Stores
from looopy.types.context import AuthContext
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    HistoryCleared,
    HistoryRewound,
    TurnEnd,
    TurnStart,
)

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Notice:
    """The body of a notification, and the `seq` of its event."""

    seq: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """
    The next notifications of a task.

    Attributes:
        upto: The `seq` of the last event that was read.
        is_last: The log has no more events now.
        is_over: The task has no more events at all.
    """

    notices: Sequence[Notice]
    upto: int
    is_last: bool
    is_over: bool


class Notices:
    """
    Reads the notifications of one configuration.

    Args:
        stores: Those of its tenant.
    """

    def __init__(self, stores: Stores, config: Config) -> None:
        self._stores = stores
        self._config = config
        self._reader = TaskReader(stores, config.context_id, config.base)

    async def settle(self, host: AgentHost, auth: AuthContext) -> bool:
        """End the turn of the task if its process died; true if there was something to end."""
        chain = await self._reader.find(self._config.first)
        return chain is not None and await settle_dead(host, chain, auth)

    async def read(self, after: int) -> Page:
        """The notifications of the next events after *after*."""
        chain = await self._reader.find(self._config.first)
        if chain is None:
            return Page((), after, is_last=True, is_over=True)
        was_over = chain.over
        events = await self._stores.journal.events(
            self._config.context_id, after=after, limit=_PAGE
        )
        if events and not was_over:  # it may have gone on between the two
            chain = await self._reader.find(self._config.first)
            if chain is None:
                return Page((), after, is_last=True, is_over=True)
        notices: list[Notice] = []
        for event in events:
            update = await self._update(chain, event)
            if update is not None:
                notices.append(Notice(event.seq or after, await self._body(chain, update)))
        is_last = len(events) < _PAGE
        upto = (events[-1].seq or after) if events else after
        return Page(notices, upto, is_last, is_over=was_over and is_last)

    async def _update(self, chain: Chain, event: AgentEvent) -> Update | None:
        if event.path or event.context_id != self._config.context_id:
            return None
        turns = {turn.turn: turn for turn in chain.turns}
        turn = turns.get(event.turn)
        if isinstance(event, ArtifactUpdate):
            return None if turn is None else await artifact_update(self._reader, chain, event)
        if isinstance(event, TurnEnd) and turn is not None:
            return self._status(await self._reader.ended(chain, turn))
        if isinstance(event, TurnStart) and turn is not None:
            return self._status(self._reader.began(turn))
        if _drops(event, chain):
            return self._status(await self._reader.status(chain))
        return None

    def _status(self, status: TaskStatus) -> TaskStatusUpdateEvent:
        config = self._config
        return TaskStatusUpdateEvent(
            task_id=config.task_id, context_id=config.context_id, status=status
        )

    async def _body(self, chain: Chain, update: Update) -> bytes:
        if not self._config.is_old:
            return _json(MessageToDict(to_stream_response(update)))
        task = await self._reader.task(chain)  # 0.3 sends the whole task
        if isinstance(update, TaskStatusUpdateEvent):
            task.status.CopyFrom(update.status)
        return _old_json(task)


def _drops(event: AgentEvent, chain: Chain) -> bool:
    """True if *event* took the unanswered question of the task away."""
    if not chain.over or not asks(chain.last):
        return False
    if isinstance(event, TurnStart):
        return event.turn == chain.last.turn + 1
    return isinstance(event, (HistoryCleared, HistoryRewound))


def _old_json(task: Task) -> bytes:
    said = to_compat_task(task).model_dump(mode="json", by_alias=True, exclude_none=True)
    return _json(said)


def _json(said: object) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
