"""
The same `Agent`, blocking: for scripts, notebooks and prompts.

All agents of a process share one event loop in one background thread. A blocking call passes its
coroutine to that loop and waits. Ctrl-C during a turn cancels the turn, lets it end in order, and
raises `KeyboardInterrupt` as usual. Inside a running event loop use `looopy.Agent`, because
blocking would stop that loop. A notebook's cell also runs in an event loop, and may block it.

The loop lives as long as any thread that Python waits for at exit, not only the main one: a worker
may still run turns when the main thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from looopy.agent.agent import Agent as _Agent
from looopy.agent.stream import TurnStream
from looopy.errors import AgentStateError, LooopyError, StoreUnavailable
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent
from looopy.types.message import UserMessage
from looopy.types.result import OutputT, TurnResult
from looopy.types.state import AgentState

if TYPE_CHECKING:
    from looopy.tools.sources.agents import AgentTool, AgentToolOptions

P = ParamSpec("P")
T = TypeVar("T")
_logger = logging.getLogger("looopy")
_ENDED = "the program ends, and the event loop of looopy.sync with it"
_Arrived: TypeAlias = "queue.SimpleQueue[AgentEvent | BaseException | None]"


class _Helpers(ThreadPoolExecutor):
    """
    Threads for work outside the loop, such as the resolution of names.

    Python's own pools accept no work once the main thread has ended.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                future.set_exception(error)

        threading.Thread(target=run, name="looopy-sync-helper", daemon=True).start()
        return future


class _LoopThread:
    """The process's event loop for blocking callers; started on first use, stopped at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._enders: set[threading.Thread] = set()
        self._ending = False

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, or `AgentStateError` if the program is ending."""
        with self._lock:
            if self._ending:
                raise AgentStateError(_ENDED)
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                loop = self._loop = asyncio.new_event_loop()
                loop.set_default_executor(_Helpers())
                self._thread = threading.Thread(
                    target=self._serve, args=(loop,), name="looopy-sync", daemon=True
                )
                self._thread.start()
                ender = threading.Thread(
                    target=self._stop, args=(loop, self._thread), name="looopy-sync-end"
                )
                self._enders.add(ender)
                ender.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                loop.run_forever()
            except BaseException:
                # `SystemExit` out of a subscriber, say: it ends its turn, not the loop that all
                # agents share.
                _logger.exception("code that runs in the event loop of looopy.sync wants it to end")
            else:
                return

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop and wait for it; an interrupt cancels it and returns at once."""
        try:
            self._check_may_block()
            loop = self.loop()
        except AgentStateError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError:
            raise AgentStateError(_ENDED) from None
        finally:
            del future  # it holds the exception, whose traceback holds this frame

    def _check_may_block(self) -> None:
        """
        Refuse to block an event loop, except a notebook's.

        A notebook's kernel runs a cell inside its event loop, and waits for the cell's end anyway.

        Raises:
            AgentStateError: Blocking would stop other work of the loop, or wait for itself.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self._loop or not _is_in_notebook():
            raise AgentStateError(
                "looopy.sync blocks and an event loop runs here: use looopy.Agent with await"
            )

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        # Not by atexit: it releases what a running turn needs to end in order (threads of a store,
        # of name resolution), in an undefined order.
        threading.main_thread().join()
        # Any of these may have an agent, even without a call so far.
        while workers := [t for t in threading.enumerate() if self._may_call(t)]:
            workers[0].join()
        with self._lock:
            self._ending = True

        async def finish() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await loop.shutdown_asyncgens()

        asyncio.run_coroutine_threadsafe(finish(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        if not thread.is_alive():
            loop.close()

    def _may_call(self, thread: threading.Thread) -> bool:
        main = threading.main_thread()
        return thread is not main and not thread.daemon and thread not in self._enders


def _is_in_notebook() -> bool:
    """True in a program that IPython runs, such as a notebook's kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


_thread = _LoopThread()


def _blocking(
    method: Callable[Concatenate[_Agent, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Agent, P], T]:
    """*method* for a caller that waits, with the same parameters and docstring."""

    @functools.wraps(method, assigned=("__name__", "__doc__"))
    def call(self: Agent, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _thread.call(method(self._agent, *args, **kwargs))

    call.__qualname__ = f"Agent.{method.__name__}"
    return call


class Agent:
    """
    `looopy.Agent` with blocking methods; see there for arguments, results and errors.

    `with Agent(...)` starts and shuts down. `execute_turn` returns the `TurnResult`, `stream_turn`
    iterates over the events. Any thread may call `cancel`, `steer`, `follow_up` and the methods of
    the queues. Stores that are already open belong to another event loop: pass a URL.
    """

    def __init__(self, context_id: str, **options: Any) -> None:
        self._agent = _Agent(context_id, **options)
        if not isinstance(options.get("stores", ""), str):
            raise StoreUnavailable(
                "open stores belong to the event loop that opened them: pass a URL instead"
            )

    @property
    def context_id(self) -> str:
        """The conversation's name."""
        return self._agent.context_id

    @property
    def state(self) -> AgentState:
        """A snapshot of what this process knows."""
        return self._agent.state

    start = _blocking(_Agent.start)
    pause = _blocking(_Agent.pause)
    resume = _blocking(_Agent.resume)
    shutdown = _blocking(_Agent.shutdown)
    clear = _blocking(_Agent.clear)
    compact = _blocking(_Agent.compact)
    undo_compact = _blocking(_Agent.undo_compact)
    get_covered = _blocking(_Agent.get_covered)
    fork = _blocking(_Agent.fork)
    rewind = _blocking(_Agent.rewind)
    undo_rewind = _blocking(_Agent.undo_rewind)
    save_state = _blocking(_Agent.save_state)
    tag = _blocking(_Agent.tag)
    decide = _blocking(_Agent.decide)
    cancel = _blocking(_Agent.cancel)
    steer = _blocking(_Agent.steer)
    follow_up = _blocking(_Agent.follow_up)
    clear_queue = _blocking(_Agent.clear_queue)
    has_queued_messages = _blocking(_Agent.has_queued_messages)
    refresh = _blocking(_Agent.refresh)
    search = _blocking(_Agent.search)
    get_messages = _blocking(_Agent.get_messages)
    get_artifacts = _blocking(_Agent.get_artifacts)

    def subscribe(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """See `looopy.Agent.subscribe`; *callback* runs in the loop's thread."""
        return self._agent.subscribe(callback)

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool:
        """See `looopy.Agent.as_tool`."""
        return self._agent.as_tool(name, description, **options)

    @overload
    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        *,
        output_type: type[OutputT],
        **options: Any,
    ) -> TurnResult[OutputT]: ...

    @overload
    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        **options: Any,
    ) -> TurnResult[Any]: ...

    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        **options: Any,
    ) -> TurnResult[Any]:
        """
        Run a turn to its end; see `looopy.Agent.execute_turn`.

        Ctrl-C cancels the turn, waits for its end, and raises `KeyboardInterrupt`.
        """

        async def begin() -> TurnStream:
            return self._agent.execute_turn(user_message, auth_context, **options)

        async def result() -> TurnResult:
            return await stream

        stream = _thread.call(begin())
        try:
            return _thread.call(result())
        except KeyboardInterrupt:
            self._stop(stream)
            raise

    def stream_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        **options: Any,
    ) -> Iterator[AgentEvent]:
        """
        Run a turn and iterate over its events. The turn starts at the call.

        Leaving the loop early leaves the turn running; Ctrl-C inside it cancels the turn.
        """
        arrived: _Arrived = queue.SimpleQueue()

        async def pump(begun: asyncio.Future[TurnStream]) -> None:
            # It begins and attaches in one step of the loop: no delta comes in between.
            try:
                stream = self._agent.execute_turn(user_message, auth_context, **options)
                begun.set_result(stream)
                async for event in stream:
                    arrived.put(event)
            except Exception as exc:  # noqa: BLE001 - raised again in the caller's thread
                # The traceback holds this frame, which then holds the exception no more.
                if begun.done():
                    arrived.put(exc)
                else:
                    begun.set_exception(exc)
                del begun
            except BaseException:  # the caller must not wait for ever
                arrived.put(AgentStateError(_ENDED))
                raise
            else:
                arrived.put(None)

        async def begin() -> tuple[TurnStream, asyncio.Task[None]]:
            loop = asyncio.get_running_loop()
            begun: asyncio.Future[TurnStream] = loop.create_future()
            pumping = loop.create_task(pump(begun), name="looopy stream")
            try:
                return await begun, pumping
            finally:
                del begun, pumping

        return self._events(*_thread.call(begin()), arrived)

    def _events(
        self, stream: TurnStream, pumping: asyncio.Task[None], arrived: _Arrived
    ) -> Iterator[AgentEvent]:
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        except KeyboardInterrupt:
            self._stop(stream)
            raise
        finally:
            item = None  # the traceback of an error holds this frame
            loop = pumping.get_loop()
            if not loop.is_closed():  # at exit it may be closed
                loop.call_soon_threadsafe(pumping.cancel)

    @staticmethod
    def _stop(stream: TurnStream) -> None:
        async def stop() -> None:
            stream.cancel()
            with contextlib.suppress(LooopyError):  # the caller gets the interrupt
                await stream

        _thread.call(stop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel=exc_type is not None)

    def __repr__(self) -> str:
        return repr(self._agent)


__all__: Sequence[str] = ["Agent"]
