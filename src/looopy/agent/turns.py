"""
The turns of one agent in this process: in order of arrival, each in a task of its own.

The first one runs, the others wait for it. A request with the key of an accepted turn leaves the
queue at once and becomes a view of that turn. Views end with their turn, or with the agent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from looopy.agent.claim import AlreadyAccepted, Claiming
from looopy.agent.running import RunningTurn
from looopy.errors import AgentStateError, LooopyError, TurnIncomplete
from looopy.types.state import Outcome

_logger = logging.getLogger("looopy")
# The tasks of the turns around a tool call: its own agent's turn, and those it works for.
_around: ContextVar[tuple[asyncio.Task[Any], ...]] = ContextVar("looopy_around", default=())


class Turns:
    """
    Turns in the queue.

    Args:
        name: The agent's name, for the log.
        idle: Called when the last one has ended.
    """

    def __init__(self, name: str, *, idle: Callable[[], object]) -> None:
        self._name = name
        self._idle = idle
        self._queue: list[RunningTurn] = []
        self._tasks: dict[asyncio.Task[None], RunningTurn | None] = {}  # `None`: other work
        self._views: dict[asyncio.Task[None], RunningTurn] = {}
        self._held = False
        self._left = False
        self._fewer = asyncio.Event()  # a new one each time, because it belongs to its event loop

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def running(self) -> RunningTurn | None:
        """The running turn, or the next to run."""
        return next((turn for turn in self._queue if not turn.ended), None)

    def around(self) -> RunningTurn | None:
        """The running turn that waits for the caller, such as for its tool."""
        found = (self._tasks.get(task) or self._views.get(task) for task in _around.get())
        return next((turn for turn in found if turn is not None and not turn.ended), None)

    def with_key(self, key: str | None) -> RunningTurn | None:
        """The turn that was begun with *key* and is not over."""
        if key is None:
            return None
        return next((turn for turn in self._queue if turn.request.key == key), None)

    def start(self, turn: RunningTurn) -> None:
        """Put *turn* at the end of the queue."""
        before = self._queue[-1].claiming if self._queue else None
        self._queue.append(turn)
        self._call_next()
        name = f"looopy {turn.setup.known.context_id}"
        task = asyncio.create_task(self._supervise(turn, before), name=name)
        self._tasks[task] = turn
        task.add_done_callback(functools.partial(self._ended, turn))

    def cancel(self) -> None:
        """Request that all of them stop."""
        for turn in self._queue:
            turn.cancel()

    async def end(self) -> None:
        """Wait until no turn is left; views do not count."""
        while self._tasks:
            await self.end_present()

    async def end_present(self) -> None:
        """Wait until the present turns have ended, or have become views."""
        present = set(self._tasks)
        while present & self._tasks.keys():
            await self._fewer.wait()

    def also(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside the turns; `end` waits for it too, and its failure is logged."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._also_ended)

    def _also_ended(self, task: asyncio.Task[None]) -> None:
        self._gone(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("a turn elsewhere was not asked to stop: %s", type(error).__name__)

    def _gone(self, task: asyncio.Task[None]) -> None:
        """Wake the waiters: a task no longer counts."""
        self._tasks.pop(task, None)
        fewer, self._fewer = self._fewer, asyncio.Event()
        fewer.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block, no waiting turn may start to run."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._call_next()

    async def detach(self) -> None:
        """End the views; the turns that they show continue where they run."""
        for task in self._views:
            task.cancel()
        if self._views:
            await asyncio.wait(set(self._views))

    def leave(self) -> None:
        """Count as dead from now on, so that any process may end the turns as `interrupted`."""
        self._left = True
        for turn in self._queue:
            turn.leave()

    async def abort(self) -> None:
        """Cancel the tasks of all turns and views, and wait for them."""
        present = {*self._tasks, *self._views}
        for task in present:
            task.cancel()
        if present:
            await asyncio.wait(present)

    async def _supervise(self, turn: RunningTurn, before: Claiming | None) -> None:
        """Run a turn; its errors belong to its stream."""
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment] # it is one
        if task not in self._tasks:  # the loop has begun it before `start` could add it
            await asyncio.sleep(0)
        _around.set((*(one for one in _around.get() if not one.done()), task))
        try:
            try:
                result = await turn.run(before)
            except AlreadyAccepted as found:
                self._become_view(turn)
                result = await turn.setup.watch(found.turn, turn)
        except Exception as exc:
            if not isinstance(exc, LooopyError):
                _logger.exception("a turn of %s failed unexpectedly", self._name)
            self._over(turn)
            self._fail(turn, turn.redactor.error(exc))
        except (KeyboardInterrupt, SystemExit):
            self._over(turn)
            text = "the program was asked to end while the turn ran"
            turn.broadcast.fail(AgentStateError(text))  # the loop stops with this: now, or never
            raise
        else:
            self._over(turn)
            turn.broadcast.finish(result)
        finally:
            _around.set(())  # else the task's context refers to the task, and both live longer

    def _become_view(self, turn: RunningTurn) -> None:
        task = next(task for task in self._tasks if task is asyncio.current_task())
        self._views[task] = turn
        self._over(turn)
        self._gone(task)

    def _ended(self, turn: RunningTurn, task: asyncio.Task[None]) -> None:
        """Forget a turn's task; a cancelled one may never have begun."""
        viewed = self._views.pop(task, None) is not None
        self._over(turn)
        self._gone(task)
        if not turn.broadcast.done:
            what = "agent was shut down" if viewed else "event loop stopped"
            self._fail(turn, AgentStateError(f"the {what} before the turn ended"))

    def _fail(self, turn: RunningTurn, error: Exception) -> None:
        if self._left:
            text = "the turn was cut, because its process ends: it can be continued"
            error = TurnIncomplete(text, outcome=Outcome.INTERRUPTED.value)
        turn.broadcast.fail(error)

    def _over(self, turn: RunningTurn) -> None:
        if turn not in self._queue:
            return
        self._queue.remove(turn)
        self._call_next()
        if not self._queue:
            self._idle()

    def _call_next(self) -> None:
        """Let the first turn in the queue run."""
        if self._queue and not self._held:
            self._queue[0].claiming.go()
