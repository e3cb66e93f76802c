"""
The same `Agent`, blocking: for scripts, notebooks and prompts.

All agents of a process share one event loop in one background thread. A blocking call hands its
coroutine to that loop and waits; Ctrl-C while a turn is awaited cancels the turn, which then ends
in order, and raises `KeyboardInterrupt` as usual. Inside a running event loop use `looopy.Agent`:
blocking there would stop it.

The loop lives as long as there is a thread that Python waits for at exit, and not only as long as
the main one: a worker may run turns when the main thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack

from looopy.agent.agent import Agent as _Agent
from looopy.agent.stream import TurnStream
from looopy.errors import AgentStateError, LooopyError, StoreUnavailable
from looopy.types.artifact import Artifact
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, Compaction
from looopy.types.message import Message, UserMessage
from looopy.types.result import TurnResult
from looopy.types.state import AgentState

if TYPE_CHECKING:
    from looopy.tools.sources.agents import AgentTool, AgentToolOptions

T = TypeVar("T")
_logger = logging.getLogger("looopy")
_ENDED = "the program ends, and the event loop of looopy.sync with it"
_Arrived: TypeAlias = "queue.SimpleQueue[AgentEvent | BaseException | None]"


class _Helpers(ThreadPoolExecutor):
    """
    Threads for what the loop hands out, such as the resolution of names.

    Python's own pools take nothing more once the main thread has ended.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whoever waits is to know
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
        """
        The loop, which runs.

        Raises:
            AgentStateError: The program ends.
        """
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
                # `SystemExit` out of a subscriber, say: it ends its turn, not everybody's loop.
                _logger.exception("code that runs in the event loop of looopy.sync wants it to end")
            else:
                return

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop and wait for it; an interrupt cancels it and goes on at once."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise AgentStateError(
                "looopy.sync blocks and an event loop runs here: use looopy.Agent with await"
            )
        try:
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

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        # Not by atexit: what a running turn needs to end in order (threads of a store, of name
        # resolution) is let go there, in an order that nobody knows.
        threading.main_thread().join()
        # Any of these may have an agent, though it has not called it yet.
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


_thread = _LoopThread()


class Agent:
    """
    `looopy.Agent` with blocking methods; see there for arguments, results and errors.

    `with Agent(...)` starts and shuts down. `execute_turn` returns the `TurnResult`, `stream_turn`
    iterates over the events. Stores that are already open belong to another event loop: pass a URL.
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

    def start(self) -> None:
        """See `looopy.Agent.start`."""
        _thread.call(self._agent.start())

    def pause(self, cancel: bool = False) -> None:
        """See `looopy.Agent.pause`."""
        _thread.call(self._agent.pause(cancel))

    def resume(self) -> None:
        """See `looopy.Agent.resume`."""
        _thread.call(self._agent.resume())

    def shutdown(self, cancel: bool = False) -> None:
        """See `looopy.Agent.shutdown`."""
        _thread.call(self._agent.shutdown(cancel))

    def clear(self, force: bool = False) -> None:
        """See `looopy.Agent.clear`."""
        _thread.call(self._agent.clear(force))

    def compact(self, keep_turns: int = 1) -> Compaction | None:
        """See `looopy.Agent.compact`."""
        return _thread.call(self._agent.compact(keep_turns))

    def save_state(self, metadata: Mapping[str, Any] | None = None) -> None:
        """See `looopy.Agent.save_state`."""
        _thread.call(self._agent.save_state(metadata))

    def cancel(self) -> None:
        """Ask the running turn to stop; callable from any thread."""
        _thread.call(self._agent.cancel())

    def steer(
        self,
        message: str | UserMessage,
        auth_context: AuthContext | None = None,
        *,
        expected_turn: int | None = None,
    ) -> None:
        """See `looopy.Agent.steer`; callable from any thread."""
        _thread.call(self._agent.steer(message, auth_context, expected_turn=expected_turn))

    def follow_up(
        self, message: str | UserMessage, auth_context: AuthContext | None = None
    ) -> None:
        """See `looopy.Agent.follow_up`; callable from any thread."""
        _thread.call(self._agent.follow_up(message, auth_context))

    def clear_steering_queue(self, auth_context: AuthContext | None = None) -> int:
        """See `looopy.Agent.clear_steering_queue`; callable from any thread."""
        return _thread.call(self._agent.clear_steering_queue(auth_context))

    def clear_follow_up_queue(self, auth_context: AuthContext | None = None) -> int:
        """See `looopy.Agent.clear_follow_up_queue`; callable from any thread."""
        return _thread.call(self._agent.clear_follow_up_queue(auth_context))

    def clear_all_queues(self, auth_context: AuthContext | None = None) -> int:
        """See `looopy.Agent.clear_all_queues`; callable from any thread."""
        return _thread.call(self._agent.clear_all_queues(auth_context))

    def has_queued_messages(self, auth_context: AuthContext | None = None) -> bool:
        """See `looopy.Agent.has_queued_messages`; callable from any thread."""
        return _thread.call(self._agent.has_queued_messages(auth_context))

    def get_messages(self, **options: Any) -> list[Message]:
        """See `looopy.Agent.get_messages`."""
        return _thread.call(self._agent.get_messages(**options))

    def get_artifacts(self) -> list[Artifact]:
        """See `looopy.Agent.get_artifacts`."""
        return _thread.call(self._agent.get_artifacts())

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

    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        **options: Any,
    ) -> TurnResult:
        """
        Run a turn to its end; see `looopy.Agent.execute_turn`.

        Ctrl-C cancels the turn, waits for its end, and raises `KeyboardInterrupt`.
        """
        stream = self._begin(user_message, auth_context, options)

        async def result() -> TurnResult:
            return await stream

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
                if not begun.done():
                    begun.set_exception(exc)
                arrived.put(exc)
            except BaseException:  # nobody may wait for ever
                arrived.put(AgentStateError(_ENDED))
                raise
            else:
                arrived.put(None)

        async def begin() -> tuple[TurnStream, asyncio.Task[None]]:
            loop = asyncio.get_running_loop()
            begun: asyncio.Future[TurnStream] = loop.create_future()
            pumping = loop.create_task(pump(begun), name="looopy stream")
            return await begun, pumping

        return self._events(*_thread.call(begin()), arrived)

    def _begin(
        self,
        user_message: str | UserMessage | None,
        auth_context: AuthContext | None,
        options: Mapping[str, Any],
    ) -> TurnStream:
        async def begin() -> TurnStream:
            return self._agent.execute_turn(user_message, auth_context, **options)

        return _thread.call(begin())

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
            loop = pumping.get_loop()
            if not loop.is_closed():  # at exit it may be
                loop.call_soon_threadsafe(pumping.cancel)

    @staticmethod
    def _stop(stream: TurnStream) -> None:
        async def stop() -> None:
            stream.cancel()
            with contextlib.suppress(LooopyError):  # the interrupt is what the caller hears of
                await stream

        _thread.call(stop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.shutdown(cancel=exc_type is not None)

    def __repr__(self) -> str:
        return repr(self._agent)


__all__: Sequence[str] = ["Agent"]
