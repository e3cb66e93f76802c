"""
Threads for tools that block, and for nothing else.

The event loop's default executor also resolves host names, so a few hung tools in it would stop
every model call. These threads are ours: at most `MAX_THREADS`, made when needed and reused, and
daemons, so that a tool which never returns cannot hold up the end of the process.

A thread cannot be stopped. When its caller gives up, the call is abandoned: a call that has not
begun is never begun, and one that has runs on, its late result dropped. The caller learns which of
the two it was from a note on its `CancelledError` (`NOT_STARTED`).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from looopy.tools.asking import NeedsInput

MAX_THREADS = 32
NOT_STARTED = "every tool thread was busy: the tool did not start"


@dataclass(eq=False, slots=True)
class _Call:
    function: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[tuple[bool, Any]]

    def deliver(self, outcome: tuple[bool, Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle, outcome)
        except RuntimeError:  # the loop is closed: it has no waiters any more
            return

    def _settle(self, outcome: tuple[bool, Any]) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


def _outcome(function: Callable[[], Any], context: contextvars.Context) -> tuple[bool, Any]:
    """
    True if *function* succeeded, and its result or exception.

    The traceback of the exception holds this frame, so this frame knows nothing of the future.
    """
    try:
        return True, context.run(function)
    except BaseException as error:  # noqa: BLE001 - a tool's sys.exit() must not end the thread
        return False, error


class ToolThreads:
    """
    A bounded pool of daemon threads, named `looopy-tool-1` and so on.

    Args:
        limit: How many calls may run at once. Further ones wait in order of arrival.
    """

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._waiting: deque[_Call] = deque()
        self._wake = threading.Condition()
        self._open = (
            0  # calls that wait or run; while there are no more than threads, none is needed
        )
        self._count = 0
        self._number = itertools.count(1)

    async def run(self, function: Callable[[], Any]) -> Any:
        """
        Call *function* in a thread, in a copy of the caller's context variables.

        Raises:
            asyncio.CancelledError: The caller was cancelled. It carries the note `NOT_STARTED` if
                the function did not begin and never will; otherwise it may still be running.
            Exception: The one of *function*; `SystemExit` and the like as `RuntimeError`.
            NeedsInput: It asks.
        """
        loop = asyncio.get_running_loop()
        call = _Call(function, contextvars.copy_context(), loop, loop.create_future())
        self._submit(call)
        try:
            succeeded, value = await call.future
        except asyncio.CancelledError as error:
            if self._withdraw(call):
                error.add_note(NOT_STARTED)
            raise
        if succeeded:
            return value
        try:
            if isinstance(value, (Exception, NeedsInput)):
                raise value
            raise RuntimeError(f"the tool raised {type(value).__name__}: {value}") from value
        finally:
            del call, value  # the traceback holds this frame

    def _submit(self, call: _Call) -> None:
        with self._wake:
            self._waiting.append(call)
            if self._count <= self._open and self._count < self._limit:
                name = f"looopy-tool-{next(self._number)}"
                try:
                    threading.Thread(target=self._work, name=name, daemon=True).start()
                except RuntimeError:  # the system has no thread left: this call fails, no other
                    self._waiting.pop()
                    raise
                self._count += 1
            self._open += 1
            self._wake.notify()

    def _withdraw(self, call: _Call) -> bool:
        with self._wake:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
            self._open -= 1
            return True

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                call = self._waiting.popleft()
            outcome = _outcome(call.function, call.context)
            with self._wake:
                self._open -= 1  # before the caller knows, so that its next call finds this thread
            call.deliver(outcome)
            del call, outcome  # an idle thread keeps nothing of the last call alive


_threads: ToolThreads | None = None
_lock = threading.Lock()


def tool_threads() -> ToolThreads:
    """The pool of this process, made on first use; a forked child makes its own."""
    global _threads  # noqa: PLW0603 - one pool for the process
    with _lock:
        if _threads is None:
            _threads = ToolThreads()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_forget)
        return _threads


def _forget() -> None:
    global _threads, _lock
    _threads, _lock = None, threading.Lock()
