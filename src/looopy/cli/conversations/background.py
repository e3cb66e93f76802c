"""
Conversations for code that blocks.

A chat waits for a person in the main thread, where Ctrl-C arrives. So the conversations are in the
event loop of another thread, and whatever happens there comes into one queue of news.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, TypeVar

from looopy.cli.conversations.base import LiveConversations
from looopy.cli.terminal import Terminal
from looopy.errors import ContextNotFound, LooopyError
from looopy.types.event import AgentEvent, Event

T = TypeVar("T")
_LOOK_S: Final = 1.0  # between two looks for a context that does not exist yet


@dataclass(frozen=True, slots=True)
class Away:
    """The server does not answer, and why; or it does again (`None`)."""

    error: LooopyError | None


News: TypeAlias = AgentEvent | Away | LooopyError | None
"""An event; a change of the connection; the error that ended the events; a call that is done."""


def show_away(terminal: Terminal, error: LooopyError | None) -> None:
    """Report that the server is away, and why; or that it is back (`None`)."""
    if error is None:
        terminal.notice("[the server is back]")
    else:
        terminal.notice("[the server does not answer; trying again]")


class Background:
    """
    An event loop in a thread of its own, and the news from it.

    Attributes:
        news: The events so far, in order.
        bell: A file descriptor that can be read once there is news that a person at a prompt should
            see. A passing event is not, such as a change of the status.
    """

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.bell, self._rope = os.pipe()
        os.set_blocking(self._rope, False)
        os.set_blocking(self.bell, False)
        self._lock = threading.Lock()
        self._urgent = 0  # how many of the news ring
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="looopy-chat", daemon=True
        )
        self._follower: Future[None] | None = None
        self._thread.start()

    def put(self, one: News) -> None:
        """Add to the news; for any thread."""
        with self._lock:
            self.news.put(one)
            if _is_urgent(one):
                self._urgent += 1
                with suppress(BlockingIOError):  # it rings already
                    os.write(self._rope, b"1")

    def take(self) -> News:
        """The next of the news; waits for it."""
        one = self.news.get()
        if _is_urgent(one):
            with self._lock:
                self._urgent -= 1
                if not self._urgent:
                    os.read(self.bell, 65536)
        return one

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run *work*; its end is news, too."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self.put(None))
        return future

    def follow(self, place: LiveConversations, context_id: str, after: int) -> None:
        """Let the events of a context come as news, in place of another context's."""
        self.leave()
        self._follower = asyncio.run_coroutine_threadsafe(
            self._follow(place, context_id, after), self._loop
        )

    def expect(self, place: LiveConversations, context_id: str) -> None:
        """Like `follow`, of a context that does not exist yet, from its first event on."""
        self.leave()
        self._follower = asyncio.run_coroutine_threadsafe(
            self._expect(place, context_id), self._loop
        )

    def leave(self) -> None:
        """Follow no context; what has not been taken is dropped."""
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None
            # The task ends in a later step of the loop, and may put news until then.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()
        while not self.news.empty():
            self.take()

    async def _expect(self, place: LiveConversations, context_id: str) -> None:
        try:
            while True:
                with suppress(ContextNotFound):
                    await place.context(context_id)
                    break
                await asyncio.sleep(_LOOK_S)
        except LooopyError as error:
            self.put(error)
        else:
            await self._follow(place, context_id, 0)

    async def _follow(self, place: LiveConversations, context_id: str, after: int) -> None:
        try:
            async for event in place.events(context_id, after=after):
                self.put(event)
        except LooopyError as error:
            self.put(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        os.close(self.bell)
        os.close(self._rope)


def _is_urgent(one: News) -> bool:
    return one is not None and not (isinstance(one, Event) and one.seq is None)
