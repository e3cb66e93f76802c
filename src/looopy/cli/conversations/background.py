"""
A client of a server for code that blocks.

A chat waits for a person in the main thread, where Ctrl-C arrives. So the client runs in the event
loop of another thread, and puts whatever happens into one queue of news.
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
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from looopy.errors import ContextNotFound, LooopyError
from looopy.types.event import AgentEvent, Event

if TYPE_CHECKING:
    from looopy.server.client import Client

T = TypeVar("T")
_LOOK_S: Final = 1.0  # between two looks for a context that does not exist yet


@dataclass(frozen=True, slots=True)
class Away:
    """The server does not answer, and why; or it does again (`None`)."""

    error: LooopyError | None


News: TypeAlias = AgentEvent | Away | LooopyError | None
"""An event; a change of the connection; the error that ended the events; a call that is done."""


class Background:
    """
    A client in an event loop of its own thread.

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="looopy-client", daemon=True
        )
        self._follower: Future[None] | None = None
        self._thread.start()

    def put(self, one: News) -> None:
        """Add to the news; for any thread."""
        self.news.put(one)
        if one is not None and not (isinstance(one, Event) and one.seq is None):
            self._ring()

    def take(self) -> News:
        """The next of the news; waits for it."""
        one = self.news.get()
        if self.news.empty():
            with suppress(BlockingIOError):
                os.read(self.bell, 4096)
            if not self.news.empty():  # in the meantime
                self._ring()
        return one

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it rings already
            os.write(self._rope, b"1")

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run *work*; its end is news, too."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self.put(None))
        return future

    def follow(self, client: Client, context_id: str, after: int) -> None:
        """Let the events of a context come as news, in the place of those of another one."""
        self.leave()
        self._follower = asyncio.run_coroutine_threadsafe(
            self._follow(client, context_id, after), self._loop
        )

    def expect(self, client: Client, context_id: str) -> None:
        """As `follow`, of a context that does not exist yet, from its first event on."""
        self.leave()
        self._follower = asyncio.run_coroutine_threadsafe(
            self._expect(client, context_id), self._loop
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

    async def _expect(self, client: Client, context_id: str) -> None:
        try:
            while True:
                with suppress(ContextNotFound):
                    await client.context(context_id)
                    break
                await asyncio.sleep(_LOOK_S)
        except LooopyError as error:
            self.put(error)
        else:
            await self._follow(client, context_id, 0)

    async def _follow(self, client: Client, context_id: str, after: int) -> None:
        try:
            async for event in client.events(context_id, after=after):
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
