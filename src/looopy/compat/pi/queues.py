"""
pi's two queues, over the inbox of a context.

pi queues at once and in memory; we return once a message is stored. Here both hold: a queued
message counts at once, and is stored in order in the background, so that it also survives the
process. To wait for that, await the result of `steer()`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from looopy.errors import ConfigurationError
from looopy.types.context import AuthContext
from looopy.types.message import Message, UserMessage

_logger = logging.getLogger("looopy")

Kind = Literal["steering", "follow_up"]


def check_modes(steering: str, follow_up: str) -> None:
    """Raise `ConfigurationError` for an unknown mode of a queue."""
    if not {steering, follow_up} <= {"one-at-a-time", "all"}:
        raise ConfigurationError(
            "steering_mode and follow_up_mode must be 'one-at-a-time' or 'all'"
        )


@dataclass(slots=True, eq=False)
class _Entry:
    kind: Kind
    message: UserMessage
    auth_context: AuthContext | None  # until it is stored
    stored: bool = False


@dataclass(slots=True)
class Queues:
    """
    The queued messages.

    Args:
        post: Stores one message.
        drop: Takes back the stored messages of a kind that no turn has taken.
    """

    post: Callable[[Kind, UserMessage, AuthContext | None], Awaitable[object]]
    drop: Callable[[Kind], Awaitable[object]]
    _entries: list[_Entry] = field(default_factory=list)
    _last: asyncio.Task[None] | None = None

    def add(
        self, kind: Kind, message: UserMessage, auth_context: AuthContext | None
    ) -> asyncio.Task[None] | None:
        """Queue *message*; the task stores it, where an event loop runs."""
        self._entries.append(_Entry(kind, message, auth_context))
        return self._soon(self._store)

    def clear(self, kind: Kind) -> None:
        """Forget what waits; what is stored already is taken back as soon as may be."""
        stored = any(e.stored for e in self._entries if e.kind == kind)
        self._entries = [e for e in self._entries if e.kind != kind]
        if stored:
            self._soon(lambda: self.drop(kind))

    def of(self, kind: Kind) -> list[UserMessage]:
        """The waiting messages, oldest first."""
        return [e.message for e in self._entries if e.kind == kind]

    def said(self, message: Message) -> None:
        """Remove *message*, which a turn has used."""
        for entry in self._entries:
            if entry.message == message:
                self._entries.remove(entry)
                return

    def lost(self) -> None:
        """The store has forgotten what it was given: give it again."""
        for entry in self._entries:
            entry.stored = False

    async def settle(self) -> None:
        """Wait until all writes have ended, well or not."""
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def flush(self) -> None:
        """Wait until all that waits is stored."""
        while self._last is not None and not self._last.done():
            await asyncio.shield(self._last)
        await self._store()

    async def _store(self) -> None:
        for entry in tuple(self._entries):
            if not entry.stored and entry in self._entries:
                entry.stored = True
                try:
                    await self.post(entry.kind, entry.message, entry.auth_context)
                    entry.auth_context = None
                except BaseException:
                    entry.stored = False
                    raise

    def _soon(self, act: Callable[[], Awaitable[Any]]) -> asyncio.Task[None] | None:
        """Do *act* after what was begun before."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        task = self._last = loop.create_task(_after(self._last, act), name="looopy pi queue")
        task.add_done_callback(_report)
        return task


async def _after(before: asyncio.Task[None] | None, act: Callable[[], Awaitable[Any]]) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])
    await act()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("a queued message is not stored yet: %s", error)
