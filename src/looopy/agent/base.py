"""
What lives of an agent: its status, its stores and provider, the turns it runs, who is told of them.

`looopy.agent.lifecycle` is the table of statuses. Whoever changes the agent as a whole (starts,
pauses, clears it) does so alone, and lets the turns end first that there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, ParamSpec, Self

from looopy.agent import lifecycle
from looopy.agent.broadcast import Subscribers
from looopy.agent.buffer import BufferedTurn, save_turns
from looopy.agent.context import Known
from looopy.agent.events import end_dead_turn, follow, watch_turn
from looopy.agent.request import agent_options, priced
from looopy.agent.running import RunningTurn
from looopy.agent.state import snapshot
from looopy.agent.turns import Turns
from looopy.auth.sealing import KeyRing
from looopy.errors import AgentBusy, AgentStateError
from looopy.llm.provider import LLMProvider
from looopy.loop.output import with_output
from looopy.stores.opening import acquire_shared, release_shared
from looopy.stores.records import ContextRecord
from looopy.stores.rules import check_context_id
from looopy.stores.settle import settle
from looopy.stores.stores import Stores
from looopy.tools.gather import HeldTools, ToolSource, gather_tools, wrap_tools
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken, SystemPrompt
from looopy.types.event import AgentEvent, StatusChange, TurnEnd
from looopy.types.result import TurnResult
from looopy.types.state import AgentState, AgentStatus

_logger = logging.getLogger("looopy")

P = ParamSpec("P")
_MEANT = {
    "model": "llm_provider",
    "llm": "llm_provider",
    "provider": "llm_provider",
    "instructions": "system_prompt",
    "prompt": "system_prompt",
    "system": "system_prompt",
    "store": "stores",
    "config": "loop_config",
    "name": "agent_name",
}


def _named_agent(init: Callable[P, None]) -> Callable[P, None]:
    """*init*, whose refusals speak of the class that users know, and of the name they meant."""
    init.__qualname__ = "Agent"

    @functools.wraps(init)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        for name in options.keys() - init.__annotations__.keys():
            from difflib import get_close_matches  # for mistakes alone

            close = [_MEANT[name]] if name in _MEANT else get_close_matches(name, _options(init))
            raise TypeError(
                f"Agent() has no option {name!r}: "
                + (f"did you mean {close[0]!r}?" if close else f"it takes {_options(init)}")
            )
        init(*args, **options)

    return checked


def _options(init: Callable[..., None]) -> list[str]:
    return [name for name in init.__annotations__ if name != "return"]


class _LoopLock:
    """A lock for one event loop after another, as an agent may be used."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0  # who has it or waits for it

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Within the block, nobody else has it."""
        self._users += 1
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1
            if not self._users:
                self._lock = asyncio.Lock()  # one that was waited for belongs to its loop


class LivingAgent:
    """An agent without what is said to it and read of it; for arguments see `looopy.Agent`."""

    @_named_agent
    def __init__(
        self,
        context_id: str,
        *,
        llm_provider: LLMProvider | str,
        tools: Sequence[ToolSource] = (),
        system_prompt: SystemPrompt = "",
        stores: Stores | str = "memory:",
        loop_config: LoopConfig | None = None,
        auto_save: bool = True,
        auto_compact: bool = False,
        on_busy: Literal["reject", "wait"] = "reject",
        agent_name: str = "agent",
        auth_key: str | bytes | None = None,
    ) -> None:
        check_context_id(context_id)
        agent_options(
            on_busy=on_busy,
            tools=tools,
            loop_config=loop_config,
            system_prompt=system_prompt,
            stores=stores,
        )
        self.context_id = context_id
        self.agent_name = agent_name
        self.loop_config = loop_config or LoopConfig()
        self.auto_save = auto_save
        self.auto_compact = auto_compact
        self.on_busy: Literal["reject", "wait"] = on_busy
        self._llm = llm_provider
        self._keys = KeyRing(auth_key)
        self._tools: tuple[ToolSource, ...] = tuple(tools)
        self._system_prompt = system_prompt
        self._where = stores
        self._status = AgentStatus.CREATED
        self._stores: Stores | None = stores if isinstance(stores, Stores) else None
        self._known: Known | None = None
        self._last_record: ContextRecord | None = None
        self._provider: LLMProvider | None = None
        self._subscribers = Subscribers(agent_name)
        self._buffer: list[BufferedTurn] = []
        self._settle_in()

    def _settle_in(self) -> None:
        """Make what belongs to one event loop; none of it is bound to one yet."""
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None  # and the process
        self._turns = Turns(self.agent_name, idle=self._idle, watch=self._watch)
        self._lifecycle = _LoopLock()
        self._saving = _LoopLock()
        self._leaving: str | None = None  # `pause` or `shutdown`, while it lets turns end
        self._rereading = False  # started before, and being started again
        self._summarising: CancelToken | None = None  # what stops `compact`
        self._held = HeldTools()

    # --- what a user calls ---

    async def start(self) -> None:
        """
        Make the agent ready: open the stores, read the context, end a turn that a dead process
        left.

        May be called twice. It is also the way back from `shutdown`, `failed` and another process;
        on a paused agent it is `resume()`. While a living process runs a turn, the status is `busy`
        after it.

        An agent belongs to the event loop and the process that it was started in. Where that loop
        has ended, or this process was forked, it starts anew, without turns that were not saved.

        Raises:
            AgentStateError: It was started in another event loop, which has not ended.
            ConfigurationError: An unknown model or URL, a missing key or extra, colliding tool
                names.
            SchemaOutOfDate: The database needs migrating, or is newer than this version.
            StoreUnavailable: The database cannot be reached.
        """
        if self._has_lost_home():
            self._leave_home()
        self._check_home("start")
        if self._turns.running is not None:
            return
        async with self._lifecycle.held():
            self._home = (asyncio.get_running_loop(), os.getpid())
            if self._status is AgentStatus.READY or self._turns.running is not None:
                return
            await self._start_from(self._status, "start")

    async def pause(self, cancel: bool = False) -> None:
        """
        Refuse turns and keep everything in memory; `resume()` goes on without loading again.

        Lets a running turn end first; *cancel* asks it to stop.

        Raises:
            AgentStateError: The agent is not started; or a turn of its own waits for the caller, a
                tool: it would wait for itself.
            StoreConflict: With `auto_save=False`, another process has advanced the context; the
                buffer is kept. `AgentBusy` when one uses it, or waits for it, right now.
        """
        self._check_home("pause")
        self._refuse_within("pause")
        if cancel:
            self._stop_summarising()  # before the lock: it has it
        async with self._lifecycle.held():
            lifecycle.after(self._status, "pause")
            with self._last_turns("pause", cancel=cancel):
                await self._turns.end()
                before = self._status
                self._set(lifecycle.after(before, "pause"))  # from here on, turns are refused
            try:
                async with self._saving.held():
                    await self._flush()
            except BaseException:
                self._set(before)
                raise

    async def resume(self) -> None:
        """
        Make a paused agent ready again; reads only what another process added meanwhile.

        Raises:
            AgentNotStarted: The agent is not started.
            AgentStateError: A turn of the agent waits for the caller, a tool: whoever pauses the
                agent may wait for that turn.
        """
        self._check_home("resume")
        self._refuse_within("resume")
        async with self._lifecycle.held():
            if lifecycle.after(self._status, "resume") is AgentStatus.STARTING:
                await self._start_from(self._status, "resume")

    async def shutdown(self, cancel: bool = False) -> None:
        """
        Let go of everything; `start()` is the way back. May be called twice.

        Lets a running turn end first; *cancel* asks it to stop.

        Raises:
            StoreConflict: With `auto_save=False`, another process has advanced the context: the
                buffered turns are dropped. Likewise with `AgentBusy` when one uses it, or waits for
                it, right now: `save_state()` first keeps them.
            AgentStateError: A turn of the agent waits for the caller, a tool: it would wait for
                itself.
        """
        if self._has_lost_home():
            self._leave_home()
        self._check_home("shutdown")
        self._refuse_within("shutdown")
        if cancel:
            self._stop_summarising()  # before the lock: it has it
        async with self._lifecycle.held():
            with self._last_turns("shutdown", cancel=cancel):
                await self._turns.end()
                await self._turns.detach()
                await self._turns.end()  # what views have asked for meanwhile
                self._set(lifecycle.after(self._status, "shutdown"))
            try:
                await settle(self._save_last())
            finally:
                await self._let_go()
                self._home = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.shutdown(cancel=exc_type is not None)

    if not TYPE_CHECKING:  # a type checker refuses `with` by itself

        def __enter__(self) -> NoReturn:
            """
            Refuse `with`.

            Raises:
                TypeError: Always.
            """
            raise TypeError(
                "an Agent is entered with `async with`; blocking code uses `with` and"
                " looopy.sync.Agent"
            )

        def __exit__(self, *_: object) -> None:
            """Never reached."""

    async def wait_for_idle(self) -> None:
        """
        Wait until no turn of this agent runs.

        Raises:
            AgentStateError: A turn of the agent waits for the caller, a tool: it would wait for
                itself.
        """
        self._check_home("wait_for_idle")
        self._refuse_within("wait_for_idle")
        await self._turns.end()

    @property
    def state(self) -> AgentState:
        """A snapshot of what this process knows, or knew before `shutdown()`; does no I/O."""
        return snapshot(self._status, self._known.record if self._known else self._last_record)

    def subscribe(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *callback* with every event of every turn, and with changes of the status.

        It must be quick; one that raises is logged and harms nobody.

        Returns:
            What unsubscribes it.
        """
        return self._subscribers.add(callback)

    # --- inside ---

    def _check_home(self, action: str) -> None:
        """
        Refuse what is asked in another event loop, or in a forked child.

        Raises:
            AgentStateError: It is; nothing was done.
        """
        if self._home is None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # what needs one says so
            return
        loop, process = self._home
        if here is loop and os.getpid() == process:
            return
        where = "another event loop" if os.getpid() == process else "the process before it forked"
        raise AgentStateError(
            f"{action}() of an agent that was started in {where}: use it there, or make another"
            " Agent with its context_id here",
            status=self._status.value,
            action=action,
        )

    def _has_lost_home(self) -> bool:
        """Whether its event loop has ended, or is that of another process."""
        return self._home is not None and (
            self._home[0].is_closed() or self._home[1] != os.getpid()
        )

    def _leave_home(self) -> None:
        """Let go of what was bound to an event loop that runs no more, and be as never started."""
        if self._buffer:
            _logger.warning(
                "%d turns of context %s were not saved before their event loop ended",
                len(self._buffer),
                self.context_id,
            )
            self._buffer.clear()
        if self._known is not None:
            self._last_record, self._known = self._known.record, None
        if isinstance(self._where, str):
            self._stores = None
        if isinstance(self._llm, str):
            self._provider = None
        self._settle_in()
        self._set(AgentStatus.CREATED)

    async def _start_from(self, before: AgentStatus, action: str) -> None:
        """
        Start; when that fails, be what the agent was before.

        An agent that takes turns goes on to take them: they wait until it has read the context.
        """
        new = self._known is None
        self._rereading = not new and (before, "execute_turn") in lifecycle.TRANSITIONS
        self._set(lifecycle.after(before, action))
        try:
            with self._turns.held() if self._rereading else contextlib.nullcontext():
                await self._start()
        except BaseException:
            try:
                if new:
                    self._known = None
                    await self._let_go()
                    self._home = None
            finally:
                self._set(lifecycle.after(self._status, "to created" if new else f"to {before}"))
            raise
        finally:
            self._rereading = False
            if self._turns.running is not None:
                self._set(lifecycle.after(self._status, "execute_turn"))

    async def _start(self) -> None:
        from looopy.llm.resolve import resolve_provider

        if self._provider is None:
            # With a hook that brings the key of each call, none has to be set.
            by_call = self.loop_config.hooks.get_api_key is not None
            named = isinstance(self._llm, str) and not self._llm.startswith("local")
            options = {"api_key": ""} if by_call and named else {}
            self._provider = resolve_provider(self._llm, **options)
        self._tools = wrap_tools(self._tools)
        self._held.hold(self._tools)
        tools = await gather_tools(self._tools)
        prepare = getattr(self._provider, "prepare", None)
        if prepare is not None:
            await prepare()
        priced(self._provider, self.loop_config.budget)
        if self._stores is None:
            self._stores = await acquire_shared(str(self._where))
        if self._known is None:
            self._known = Known(
                self._stores,
                self.context_id,
                self.loop_config,
                window_tokens=getattr(self._provider, "window_tokens", None),
            )
        if not self._buffer:
            await self._known.refresh(tools)
        self._known.forgive()
        self._settle()

    def _refuse_within(self, action: str) -> None:
        """Refuse to wait for a turn that waits for the caller."""
        turn = self._turns.around()
        if turn is not None:
            raise AgentStateError(
                f"{action}() would wait for turn {turn.turn}, which waits for the tool that calls"
                " it: call it once that turn has ended, from outside of it",
                status=self._status.value,
                action=action,
            )

    def _stop_summarising(self) -> None:
        if self._summarising is not None:
            self._summarising.cancel()

    @contextlib.contextmanager
    def _last_turns(self, action: str, *, cancel: bool) -> Iterator[None]:
        """Within the block, turns are refused: those that there are end, or there is no end."""
        if cancel:
            self._turns.cancel()
        self._leaving = action
        try:
            yield
        finally:
            self._leaving = None

    async def _save_last(self) -> None:
        """Save what is buffered, after whoever does so now, and forget the context."""
        async with self._saving.held():
            try:
                await self._flush()
            finally:
                self._buffer.clear()
                if self._known is not None:
                    await self._known.heads_read()
                    self._last_record, self._known = self._known.record, None

    async def _let_go(self) -> None:
        """Close what this agent opened, to the end, though the caller may be cancelled."""
        await settle(self._close())

    async def _close(self) -> None:
        await self._held.let_go()
        if isinstance(self._where, str) and self._stores is not None:
            self._stores = None
            await release_shared(self._where)
        if self._provider is not None and isinstance(self._llm, str):
            provider, self._provider = self._provider, None
            close = getattr(provider, "aclose", None)
            if close is not None:
                await close()

    async def _watch(self, number: int, view: RunningTurn) -> TurnResult:
        """Show in *view* a turn that was accepted before; cancelling the view cancels that turn."""
        known = self._require("execute_turn")
        leave = view.token.on_cancel(lambda: self._turns.also(self._ask_cancel(known, number)))
        try:
            result = await watch_turn(
                known.stores,
                self.context_id,
                number,
                view.broadcast,
                functools.partial(self._follow, known),
            )
            return with_output(result, view.request.output_type)
        finally:
            leave()

    def _follow(self, known: Known, after: int | None) -> AsyncGenerator[AgentEvent, None]:
        config = self.loop_config
        behind: int | Awaitable[int] | None = after
        if after is None:
            with contextlib.suppress(RuntimeError):  # called in a thread: at the first iteration
                behind = known.head()
        return follow(
            known.stores,
            self.context_id,
            behind,
            idle=lambda: not self._turns,
            end_dead_turn=lambda: end_dead_turn(known, config, self._tools),
            longest_s=config.lease_ttl_s,
        )

    def _idle(self) -> None:
        if self._status is AgentStatus.BUSY:
            self._settle()

    async def _ask_cancel(self, known: Known, turn: int | None) -> None:
        await settle(known.stores.journal.ask_cancel(self.context_id, turn))

    async def _flush(self) -> None:
        """
        Append buffered turns, oldest first; those that are stored leave the buffer one by one.

        Whoever calls this has `_saving`.
        """
        if self.auto_save or not self._buffer or self._known is None:
            return
        await save_turns(self._known, self._buffer, self.loop_config.lease_ttl_s)
        await self._known.refresh(await gather_tools(self._tools))

    def _require(self, action: str) -> Known:
        self._check_home(action)
        if self._known is None:
            lifecycle.after(self._status, action)
        if self._known is None:
            raise AgentStateError("the agent is not started")
        return self._known

    def _require_saving(self, what: str) -> None:
        if not self.auto_save:
            raise AgentStateError(
                f"{what} needs auto_save=True: what is kept in memory alone has no name and no"
                " inbox",
                status=self._status.value,
                action=what,
            )

    def _refuse_while_busy(self, *, force: bool) -> None:
        if self._turns.running is not None and not force:
            raise AgentBusy(
                "a turn of this agent is running", turn=self._turns.running.turn or None
            )

    def _settle(self) -> None:
        """Take the status that what is known of the context means."""
        known = self._known
        if known is None:
            return
        target = AgentStatus.READY
        if known.busy_turn is not None:
            target = AgentStatus.BUSY
        elif known.state.pending:
            target = AgentStatus.WAITING
        elif known.state.error is not None:
            target = AgentStatus.FAILED
        self._set(lifecycle.after(self._status, f"to {target}"))

    def _set(self, status: AgentStatus) -> None:
        if status is not self._status:
            self._status = status
            self._tell(StatusChange(context_id=self.context_id, status=status))

    def _tell(self, event: AgentEvent) -> None:
        over = isinstance(event, TurnEnd) and self._turns.running is None
        if over and self._status is AgentStatus.BUSY:
            self._settle()
        if self._subscribers.present:
            self._subscribers.tell(event)

    def __repr__(self) -> str:
        return f"<Agent {self.context_id!r} {self._status}>"
