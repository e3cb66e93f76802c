"""
The stateful agent: one conversation that outlives its process.

An `Agent` owns a context. It starts (reads the context, ends a turn that a dead process left), runs
turns, pauses, resumes and shuts down. Everything a turn produces is committed before it is shown.
`resources` holds what an agent opens and closes, `lifecycle` the statuses that allow each method;
`running` is one turn. A method that changes the agent as a whole runs alone, and first lets the
present turns end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

from looopy.agent.broadcast import Subscribers
from looopy.agent.buffer import BufferedTurn, abandon, buffered_messages, save_turns
from looopy.agent.compact import condense, covered, undo
from looopy.agent.context import ContextView
from looopy.agent.decisions import decision_about, repeated
from looopy.agent.events import end_dead_turn, follow, watch_turn
from looopy.agent.lifecycle import TRANSITIONS, Lifecycle, LoopLock
from looopy.agent.request import (
    TurnRequest,
    TurnSetup,
    agent_options,
    check_at_least_one,
    check_auth_context,
    check_storable,
    input_hash,
)
from looopy.agent.resources import Resources
from looopy.agent.running import RunningTurn
from looopy.agent.state import snapshot
from looopy.agent.turns import Turns
from looopy.auth.sealing import KeyRing
from looopy.errors import (
    AgentBusy,
    AgentStateError,
    ContextNotFound,
    IdempotencyConflict,
    InputExpired,
    InputNotFound,
    StoreConflict,
    TurnMismatch,
)
from looopy.llm.provider import LLMProvider
from looopy.loop.incoming import as_user_message
from looopy.stores.base import Journal
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord, EntryKind
from looopy.stores.rules import check_context_id
from looopy.stores.shield import settle
from looopy.tools.base import Tool
from looopy.tools.gather import ToolSource
from looopy.types.approval import Approve, Deny
from looopy.types.artifact import Artifact
from looopy.types.config import LoopConfig, ModelOptions, model_options
from looopy.types.constructors import suggesting
from looopy.types.context import AuthContext, CancelToken, SystemPrompt
from looopy.types.event import AgentEvent, ApprovalDecided, Compaction, HistoryRewound
from looopy.types.message import Message, UserMessage
from looopy.types.result import OutputT, TurnResult
from looopy.types.state import AgentState, AgentStatus, PendingRequest
from looopy.types.storable import check_after

if TYPE_CHECKING:
    from looopy.agent.stream import TurnStream
    from looopy.stores.contexts.search import SearchPage
    from looopy.tools.sources.agents import AgentTool, AgentToolOptions

_logger = logging.getLogger("looopy")


@suggesting
class Agent:
    """
    One conversation, kept in stores, continued in any process.

    Constructing does no I/O. Call `start()` first; `async with Agent(...)` calls `start()` and
    `shutdown()`.

    Args:
        context_id: Names the conversation: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
        llm_provider: A provider, or a model name such as `"local"` or `"openai/gpt-5-mini"`.
        tools: Functions, `Tool`s or `ToolProvider`s.
        system_prompt: Text, a function of the `TurnContext`, or a list of these and of
            `PromptPart`s; built for each model call, never stored.
        stores: `Stores` that are open, or a URL that `start()` opens and `shutdown()` closes.
        loop_config: Limits and choices of a turn.
        auto_save: `False` keeps turns in memory until `save_state()`, `pause()` or `shutdown()`; a
            crash loses them.
        auto_compact: Summarise the older part of a history that exceeds `max_messages` or
            `history_tokens`, before the model call; otherwise the turn warns once.
        on_busy: If a turn already runs on the context: `"reject"` raises `AgentBusy`, `"wait"`
            waits up to `LoopConfig.busy_timeout_s`.
        agent_name: For people and traces.
        auth_key: A secret of at least 32 bytes that encrypts the stored keys of requests for
            credentials. `None`: only this process can decrypt the answer to such a request; another
            one asks again.

    Raises:
        ValueRefused: The context id is invalid.
        ConfigurationError: An option has an invalid value.
    """

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
        self._keys = KeyRing(auth_key)
        self._system_prompt = system_prompt
        self._resources = Resources(model=llm_provider, where=stores, tools=tools)
        self._subscribers = Subscribers(agent_name)
        self._lifecycle = Lifecycle(context_id, self._subscribers)
        self._known: ContextView | None = None
        self._last_record: ContextRecord | None = None
        self._buffer: list[BufferedTurn] = []
        self._owner_only = False  # see `looopy.agent.hosted`
        self._settle_in()

    def __stores__(self) -> Stores | None:
        """See `looopy.tools.sources.agents.InStores`."""
        return None if self._known is None else self._known.stores

    def _settle_in(self) -> None:
        """Make the objects that belong to one event loop; they are not bound to one yet."""
        self._turns = Turns(self.agent_name, idle=self._idle, watch=self._watch)
        self._saving = LoopLock()
        self._summarising: CancelToken | None = None  # cancels `compact`

    # --- start and end -------------------------------------------------------------------------

    async def start(self) -> None:
        """
        Make the agent ready: open the stores, read the context, end a turn that a dead process
        left.

        May be called twice. It also restarts an agent after `shutdown` or `failed`, and reads what
        another process has done; on a paused agent it works as `resume()`. If a living process runs
        a turn, the status is then `busy`.

        An agent belongs to the event loop and the process that it was started in. If that loop has
        ended, or this process was forked, the agent starts again, without turns that were not
        saved.

        Raises:
            AgentStateError: It was started in another event loop, which has not ended.
            ConfigurationError: An unknown model or URL, a missing key or extra, colliding tool
                names.
            SchemaOutOfDate: The database needs migrating, or is newer than this version.
            StoreUnavailable: The database cannot be reached.
        """
        if self._lifecycle.home_is_gone:
            self._leave_home()
        self._lifecycle.check_home("start")
        if self._turns.running is not None:
            return
        async with self._lifecycle.alone.held():
            self._lifecycle.move_in()
            if self._lifecycle.status is AgentStatus.READY or self._turns.running is not None:
                return
            await self._start("start")

    async def pause(self, cancel: bool = False) -> None:
        """
        Refuse turns and keep everything in memory; `resume()` continues without loading again.

        Lets a running turn end first; *cancel* requests that it stop.

        Raises:
            AgentStateError: The agent is not started; or the caller is a tool of one of the agent's
                turns, which would then wait for itself.
            StoreConflict: With `auto_save=False`, another process has advanced the context; the
                buffer is kept. `AgentBusy` if another process uses the context, or waits for it,
                right now.
        """
        self._check_outside("pause")
        if cancel:
            self._stop_summarising()  # before the lock, which `compact` holds
        async with self._lifecycle.alone.held():
            self._lifecycle.after("pause")
            if cancel:
                self._turns.cancel()
            with self._lifecycle.last_turns("pause"):
                await self._turns.end()
                before = self._lifecycle.status
                self._lifecycle.take("pause")  # from here on, turns are refused
            try:
                async with self._saving.held():
                    await self._flush()
            except BaseException:
                self._lifecycle.set(before)
                raise

    async def resume(self) -> None:
        """
        Make a paused agent ready again; reads only what another process has added.

        Raises:
            AgentNotStarted: The agent is not started.
            AgentStateError: The caller is a tool of one of the agent's turns: a `pause()` may wait
                for that turn.
        """
        self._check_outside("resume")
        async with self._lifecycle.alone.held():
            if self._lifecycle.after("resume") is AgentStatus.STARTING:
                await self._start("resume")

    async def shutdown(self, cancel: bool = False) -> None:
        """
        Release everything; `start()` makes the agent ready again. May be called twice.

        Lets a running turn end first; *cancel* requests that it stop.

        Raises:
            StoreConflict: With `auto_save=False`, another process has advanced the context: the
                buffered turns are dropped. Likewise with `AgentBusy` if another process uses the
                context, or waits for it, right now. To keep the turns, call `save_state()` first.
            AgentStateError: The caller is a tool of one of the agent's turns, which would then wait
                for itself.
        """
        if self._lifecycle.home_is_gone:
            self._leave_home()
        self._check_outside("shutdown")
        if cancel:
            self._stop_summarising()  # before the lock, which `compact` holds
        async with self._lifecycle.alone.held():
            if cancel:
                self._turns.cancel()
            with self._lifecycle.last_turns("shutdown"):
                await self._turns.end()
                await self._turns.detach()
                await self._turns.end()  # work that views have started in the meantime
                self._lifecycle.take("shutdown")
            try:
                await settle(self._save_last())
            finally:
                await self._resources.close()
                self._lifecycle.home = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.shutdown(cancel=exc_type is not None)

    if not TYPE_CHECKING:  # a type checker refuses `with` itself

        def __enter__(self) -> NoReturn:
            """Raise `TypeError`."""
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
            AgentStateError: The caller is a tool of one of the agent's turns, which would then wait
                for itself.
        """
        self._check_outside("wait_for_idle")
        await self._turns.end()

    @property
    def state(self) -> AgentState:
        """A snapshot of the context as this process knows it, also after `shutdown()`; no I/O."""
        record = self._known.record if self._known else self._last_record
        return snapshot(self._lifecycle.status, record)

    def subscribe(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *callback* with every event of every turn, and with changes of the status.

        It must be quick. If it raises, the exception is logged, and other subscribers are not
        affected.

        Returns:
            A function that unsubscribes it.
        """
        return self._subscribers.add(callback)

    async def _start(self, action: str) -> None:
        """
        Start; if that fails, restore the previous status.

        An agent that was started before still accepts turns: they wait until it has read the
        context.
        """
        new, life = self._known is None, self._lifecycle
        before = life.status
        life.rereading = not new and (before, "execute_turn") in TRANSITIONS
        life.take(action)
        try:
            with self._turns.held() if life.rereading else contextlib.nullcontext():
                await self._open()
        except BaseException:
            try:
                if new:
                    self._known = None
                    await self._resources.close()
                    life.home = None
            finally:
                life.take("to created" if new else f"to {before}")
            raise
        finally:
            life.rereading = False
            if self._turns.running is not None:
                life.take("execute_turn")

    async def _open(self) -> None:
        """Open the agent's resources, and read its context."""
        stores, tools = await self._resources.open(self.loop_config)
        if self._known is None:
            self._known = ContextView(
                stores,
                self.context_id,
                self.loop_config,
                window_tokens=self._resources.abilities.window_tokens,
                counted=self._resources.abilities.count_tokens is not None,
            )
        if not self._buffer:
            await self._known.refresh(tools)
        self._known.forgive()
        self._settle()

    async def _save_last(self) -> None:
        """Save the buffered turns, after any other save, and forget the context."""
        async with self._saving.held():
            try:
                await self._flush()
            finally:
                if self._known is not None:
                    await self._known.heads_read()
                    await abandon(self._known, self._buffer)
                self._forget()

    def _forget(self) -> None:
        self._buffer.clear()
        if self._known is not None:
            self._last_record, self._known = self._known.record, None

    def _leave_home(self) -> None:
        """Release what was bound to an event loop that has ended, and return to `created`."""
        if self._buffer:
            _logger.warning(
                "%d turns of context %s were not saved before their event loop ended",
                len(self._buffer),
                self.context_id,
            )
        self._forget()
        self._resources.abandon()
        self._lifecycle.reset()
        self._settle_in()
        self._lifecycle.set(AgentStatus.CREATED)

    def _settle(self) -> None:
        """Set the status that follows from the known context."""
        if self._known is not None:
            self._lifecycle.settle(self._known.busy_turn, self._known.state)

    def _check_outside(self, action: str) -> None:
        """Refuse a call from another event loop, and one from a tool of a running turn."""
        self._lifecycle.check_home(action)
        turn = self._turns.around()
        if turn is not None:
            raise self._lifecycle.refusal(
                action,
                f"{action}() would wait for turn {turn.turn}, which waits for the tool that calls"
                " it: call it once that turn has ended, from outside of it",
            )

    def _stop_summarising(self) -> None:
        if self._summarising is not None:
            self._summarising.cancel()

    # --- turns ---------------------------------------------------------------------------------

    @overload
    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output_type: type[OutputT],
        options: ModelOptions | Mapping[str, Any] | None = None,
    ) -> TurnStream[OutputT]: ...

    @overload
    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output_type: Any = None,
        options: ModelOptions | Mapping[str, Any] | None = None,
    ) -> TurnStream[Any]: ...

    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output_type: Any = None,
        options: ModelOptions | Mapping[str, Any] | None = None,
    ) -> TurnStream[Any]:
        """
        Start a turn, at the call, and return a view of it; the turn runs without viewers too.

        Args:
            user_message: The user's message, or `None` to continue: an interrupted or failed turn,
                a history that ends in something unanswered, messages that `steer` or `follow_up`
                left queued, or, with *inputs*, the calls that wait for them.
            auth_context: Credentials for this turn alone; never stored.
            inputs: Answers to pending requests, by `request_id`.
            idempotency_key: Names this request for as long as the context lives. A repeated request
                with the same input returns a view of the same turn, whatever the state of the
                context, and does not run it again; 1 to 256 characters.
            metadata: Stored with the turn; JSON values.
            output_type: The type of the answer: a type that pydantic's `TypeAdapter` takes, or a
                JSON Schema. The answer is then `TurnResult.output`. A turn that continues another
                one keeps that turn's schema; without *output_type* its output is plain JSON.
            options: How this turn's model calls are made, over `LoopConfig.options`: another model,
                a forced tool, stop, temperature, seed, headers. Never stored, and no part of the
                input that an idempotency key stands for: pass them again to continue the turn.

        Returns:
            A stream: `async for` yields the turn's events, `await` returns its `TurnResult`,
            `accepted()` waits until the message is stored, `cancel()` stops the turn.

        Raises:
            AgentNotStarted: `start()` was not called.
            AgentStateError: The agent is paused, or about to be paused or shut down, or no event
                loop runs (use `looopy.sync`).
            AgentBusy: A turn of this agent runs, and `on_busy` is `"reject"`.
            ValueRefused: The message is empty or cannot be stored; nothing was stored.
            AccessDenied: The auth context belongs to another tenant.
            ConfigurationError: *output_type* cannot be described to a model, or *options* has a
                wrong name or value.

        Errors that need the store come from the stream: `AgentBusy` elsewhere, `CannotContinue`,
        `IdempotencyConflict`, `InputNotFound`, `Fenced`, `StoreUnavailable`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise self._lifecycle.refusal(
                "execute_turn",
                "execute_turn() needs a running event loop: use looopy.sync.Agent in blocking code",
            ) from None
        self._lifecycle.check_home("execute_turn")
        status = self._lifecycle.with_turn()
        if self._known is None:
            raise AgentStateError("the agent is not started", status=self._lifecycle.status.value)
        config = self.loop_config
        if options is not None:
            config = replace(config, options=model_options(options).over(config.options))
        request = TurnRequest.checked(
            user_message,
            inputs=inputs,
            auth_context=auth_context,
            tenant=self._known.stores.tenant,
            metadata=metadata,
            output_type=output_type,
            on_busy=self.on_busy,
            key=idempotency_key,
        )
        return self._begin_turn(request, config, status)

    def _begin_turn(
        self, request: TurnRequest, config: LoopConfig, status: AgentStatus
    ) -> TurnStream[Any]:
        """Begin the turn of a *request* that was checked; the agent then has this *status*."""
        from looopy.agent.stream import TurnStream  # reactivex: keeps it out of start-up

        if self._known is None or self._resources.provider is None:
            raise AgentStateError("the agent is not started", status=self._lifecycle.status.value)
        if request.key is not None:
            self._require_saving("idempotency_key")
        running = self._turns.running
        busy_here = running is not None and request.on_busy == "reject"
        if running is not None and busy_here and request.key is None:
            raise AgentBusy(
                "a turn of this agent is running: wait for it, or use on_busy='wait'",
                turn=running.turn or None,
                status=self._lifecycle.status.value,
                action="execute_turn",
            )
        if (same := self._turns.with_key(request.key)) is not None:
            return TurnStream(*same.seen_by(request))
        setup = TurnSetup(
            known=self._known,
            provider=self._resources.provider,
            sources=self._resources.tools,
            config=config,
            system_prompt=self._system_prompt,
            keys=self._keys,
            auto_compact=self.auto_compact,
            buffer=None if self.auto_save else self._buffer,
            subscribers=self._subscribers,
            ended=self._idle,
            owner_only=self._owner_only,
        )
        turn = RunningTurn(setup, request, busy_here=busy_here)
        self._turns.start(turn)
        self._lifecycle.set(status)
        return TurnStream(turn.broadcast, turn.token.cancel)  # not the turn, which has credentials

    async def _watch(self, number: int, view: RunningTurn) -> TurnResult:
        """Show in *view* an accepted turn; cancelling the view cancels that turn."""
        known = self._require("execute_turn")
        leave = view.token.on_cancel(lambda: self._turns.also(self._ask_cancel(known, number)))
        try:
            return await watch_turn(
                known.stores,
                self.context_id,
                number,
                view.broadcast,
                functools.partial(self._follow, known),
                view.request.output_type,
            )
        finally:
            leave()

    def _idle(self) -> None:
        """End the status `busy`, unless another turn runs."""
        if self._turns.running is None and self._lifecycle.status is AgentStatus.BUSY:
            self._settle()

    # --- while a turn runs, here or elsewhere -----------------------------------------------------

    async def steer(
        self,
        message: str | UserMessage,
        auth_context: AuthContext | None = None,
        *,
        expected_turn: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """
        Send a message to the running turn, in any process. The model sees it in its next call, and
        tool calls that have not started are skipped (`LoopConfig.steering`).

        When this returns, the message is stored. If no turn takes it, the next turn does;
        `execute_turn(None)` begins with it.

        Args:
            auth_context: Must have the same actor as the running turn; never stored.
            expected_turn: Send it only if this turn runs.
            idempotency_key: Names the message, so that it is taken once, however often it is sent:
                also after the turn. It needs `expected_turn`, and shares its names with the keys of
                turns.

        Raises:
            AgentNotStarted: `start()` was not called.
            AccessDenied: The turn, or the context, belongs to another actor.
            IdempotencyConflict: The key was used before, for another message or a turn.
            TurnMismatch: Another turn runs, or no turn.
            LimitExceeded: Too many messages wait already.
            ValueRefused: The message is empty or cannot be stored.
            StoreUnavailable: The store did not answer.
        """
        await self._post(
            "steer", EntryKind.STEER, message, auth_context, expected_turn, idempotency_key
        )

    async def follow_up(
        self,
        message: str | UserMessage,
        auth_context: AuthContext | None = None,
        *,
        expected_turn: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """
        Send a message for the end of the running turn, in any process; the turn then continues.

        Otherwise as `steer()`.
        """
        await self._post(
            "follow_up", EntryKind.FOLLOW_UP, message, auth_context, expected_turn, idempotency_key
        )

    async def _post(
        self,
        action: str,
        kind: EntryKind,
        message: str | UserMessage,
        auth_context: AuthContext | None,
        expected_turn: int | None,
        key: str | None,
    ) -> None:
        stores = self._require(action, saving=True).stores
        said = as_user_message(message, may_be_none=False)
        actor_id = _actor_of(auth_context, stores)
        journal, named = stores.journal, {}
        if key is not None:
            named = {"key": key, "input_hash": input_hash(said, {}, {})}
        try:
            number = await settle(
                journal.post(
                    self.context_id,
                    kind,
                    said,
                    actor_id=actor_id,
                    expected_turn=expected_turn,
                    **named,
                )
            )
        except TurnMismatch:
            known = None if key is None else await journal.turn_of_key(self.context_id, key)
            if known is None or known[0] != expected_turn:
                raise
            number = 0  # the turn that ended since had been given it
        if key is not None and not number:
            known = await journal.turn_of_key(self.context_id, key)
            if known is not None and known[1] != named["input_hash"]:
                raise IdempotencyConflict(
                    f"this idempotency key was used in turn {known[0]}, for another message: use"
                    " a new key"
                )

    async def clear_steering_queue(self, auth_context: AuthContext | None = None) -> int:
        """
        Remove the messages of `steer()` that no turn has taken, in any process.

        Args:
            auth_context: The messages of its actor are removed.

        Returns:
            The number of removed messages. Any other message was delivered, or is being delivered.

        Raises:
            AgentNotStarted: `start()` was not called.
            StoreUnavailable: The store did not answer.
        """
        return await self._withdraw("clear_steering_queue", EntryKind.STEER, auth_context)

    async def clear_follow_up_queue(self, auth_context: AuthContext | None = None) -> int:
        """Remove the messages of `follow_up()` that no turn took, as `clear_steering_queue()`."""
        return await self._withdraw("clear_follow_up_queue", EntryKind.FOLLOW_UP, auth_context)

    async def clear_all_queues(self, auth_context: AuthContext | None = None) -> int:
        """Remove the messages of both queues that no turn took, as `clear_steering_queue()`."""
        return await self._withdraw("clear_all_queues", None, auth_context)

    async def _withdraw(
        self, action: str, kind: EntryKind | None, auth_context: AuthContext | None
    ) -> int:
        stores = self._require(action, saving=True).stores
        actor_id = _actor_of(auth_context, stores)
        return await settle(stores.journal.withdraw(self.context_id, kind, actor_id=actor_id))

    async def has_queued_messages(self, auth_context: AuthContext | None = None) -> bool:
        """
        Return true if a message of this actor waits: `execute_turn(None)` would begin with it.

        Raises:
            AgentNotStarted: `start()` was not called.
            StoreUnavailable: The store did not answer.
        """
        stores = self._require("has_queued_messages").stores
        actor_id = _actor_of(auth_context, stores)
        _, entries = await stores.journal.inbox(self.context_id)
        return any(entry.actor_id == actor_id for entry in entries)

    async def cancel(self) -> None:
        """
        Request that the running turn stop, in any process. It ends as `cancelled`, and keeps its
        results so far. Has no effect if no turn runs.

        Raises:
            StoreUnavailable: The turn runs elsewhere, and the store did not answer.
        """
        self._lifecycle.check_home("cancel")
        if self._turns.running is not None:
            self._turns.running.cancel()
        elif self._known is not None and self.auto_save:
            await self._ask_cancel(self._known, None)

    async def _ask_cancel(self, known: ContextView, turn: int | None) -> None:
        await settle(known.stores.journal.ask_cancel(self.context_id, turn))

    async def decide(
        self,
        request_id: str,
        answer: bool | Approve | Deny,
        auth_context: AuthContext | None = None,
    ) -> ApprovalDecided:
        """
        Store the decision of a person about a call that waits for approval. The call does not run.

        The turn that asked then waits for its own actor: `execute_turn(None, auth_context)` with
        the actor's credentials runs the call, or gives the model the denial, without another
        question. No credential of the decider reaches the call.

        Args:
            auth_context: The person who decides. It need not be the actor of the turn.

        Returns:
            The stored event. If the same actor repeats the same answer, that of the first time.

        Raises:
            InputNotFound: No such request is pending; `AlreadyAnswered` if somebody has answered
                it, `InputExpired` if it has expired.
            ValueRefused: The request is not for an approval, or the answer does not fit it.
            AgentStateError, AgentBusy, AccessDenied, StoreUnavailable: As `execute_turn`.
        """
        [decided] = await self._decide({request_id: answer}, auth_context)
        return decided

    async def _decide(
        self,
        answers: Mapping[str, Any],
        auth_context: AuthContext | None,
        judged: Mapping[str, PendingRequest] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[ApprovalDecided]:
        """See `looopy.agent.hosted.decide_as`."""
        known = self._require("decide", saving=True)
        request = TurnRequest.checked(
            None,
            inputs=answers,
            auth_context=auth_context,
            tenant=known.stores.tenant,
            metadata=metadata,
            output_type=None,
            on_busy="reject",  # a turn that runs may have the answers
            key=None,
        )
        request = replace(request, decides=True, judged=judged)
        made: dict[str, ApprovalDecided] = {}
        while left := {name: said for name, said in request.inputs.items() if name not in made}:
            status = self._lifecycle.with_turn()
            try:
                turn = self._begin_turn(replace(request, inputs=left), self.loop_config, status)
                async for event in turn:
                    if isinstance(event, ApprovalDecided) and event.request_id in left:
                        made[event.request_id] = event
                await turn
            except InputExpired:
                raise
            except (InputNotFound, AgentBusy) as error:
                for name, said in left.items():
                    found = await decision_about(known.stores.journal, self.context_id, name)
                    if found is not None:
                        made[name] = repeated(found, said, request.actor_id)
                if isinstance(error, InputNotFound):
                    if error.request_id not in made:
                        raise
                elif request.on_busy == "wait":
                    raise
                request = replace(request, on_busy="wait")  # another decision takes a moment
            else:
                if not made.keys() >= left.keys():
                    raise AgentStateError("the turn that stores the decision ended without it")
        return [made[name] for name in request.inputs]

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool:
        """
        Make a tool that runs agents like this one, each call in its own context.

        This agent is only their model: it need not be started, and its own context is not used.
        Their contexts are in its stores; if those are `"memory:"`, in the stores of the calling
        agent.

        Args:
            name: The `agent_name` by default.
            description: For the model: the tasks for the agent.
            options: See `looopy.tools.AgentTool`.

        Raises:
            InvalidTool: The name or an option is invalid.
        """
        from looopy.tools.sources.agents import AgentTool

        if name is None:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", self.agent_name)[:64]
        made = AgentTool(self._like_this, name=name, description=description or "", **options)
        return made.sharing(self._resources.tools)

    def _like_this(self, context_id: str, stores: Stores | None) -> Agent:
        """An agent like this one, for *context_id*."""
        resources = self._resources
        where = resources.where if resources.where != "memory:" or stores is None else stores
        made = Agent(
            context_id,
            llm_provider=resources.model,
            tools=resources.tools,
            system_prompt=self._system_prompt,
            stores=where,
            loop_config=self.loop_config,
            auto_save=True,  # or a crash would lose its work
            auto_compact=self.auto_compact,
            on_busy="wait",  # an earlier run of the same call may be about to end
            agent_name=self.agent_name,
            auth_key=None,
        )
        made._keys = self._keys
        return made

    # --- reading -------------------------------------------------------------------------------

    async def refresh(self) -> AgentState:
        """
        Read what other processes have done to the context, and return the new `state`.

        While a turn of this agent runs, the agent owns the context and reads nothing. As `start()`
        does, this ends a turn that a dead process left. It keeps the error of a failed turn. On a
        paused agent it brings the counts up to date, and the agent stays paused.

        Raises:
            AgentNotStarted: `start()` was not called.
            StoreUnavailable: The store did not answer; `state` is as before.
        """
        self._require("refresh")
        if self._turns.running is None:
            async with self._lifecycle.alone.held():
                known = self._require("refresh")
                if self._turns.running is None and not self._buffer:
                    tools = await self._resources.gather()
                    with self._turns.held():  # a turn that began now would read at the same time
                        await known.refresh(tools)
                    if self._turns.running is None:
                        self._lifecycle.reread(known.busy_turn, known.state)
        return self.state

    async def get_messages(
        self, *, after: int = 0, limit: int | None = None, include_hidden: bool = False
    ) -> list[Message]:
        """
        The messages of the context, oldest first.

        Args:
            after: Only those with a greater position.
            limit: At most so many.
            include_hidden: With the messages that `rewind()` hides.
        """
        known = self._require("get_messages")
        found = await known.stores.messages.list(
            self.context_id, after=after, limit=limit, include_hidden=include_hidden
        )
        if self.auto_save:
            return found
        found += buffered_messages(self._buffer, after=after - known.saved_position)
        return found if limit is None else found[:limit]

    async def search(self, query: str, *, after: str | None = None, limit: int = 20) -> SearchPage:
        """
        A page of the messages of the context that have all words of *query*, the newest first.

        It finds what `get_messages()` returns, messages that a summary covers included; with
        `auto_save=False`, what was saved. `stores.contexts.search` searches all contexts.

        Args:
            query: Words, `"a phrase"`, or `beginn*`; see `ContextIndex.search`.
            after: The `next` of the page before.
            limit: At most so many.

        Raises:
            AgentNotStarted: `start()` was not called.
            ValueRefused: The query has no words or is too long, or *after* is no `next` of a page
                of this query.
            StoreUnavailable: The store did not answer.
        """
        contexts = self._require("search").stores.contexts
        return await contexts.search(query, context_id=self.context_id, after=after, limit=limit)

    async def get_artifacts(self) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        return await self._require("get_artifacts").artifacts.list(self.context_id)

    def events(self, after: int | None = None) -> AsyncIterator[AgentEvent]:
        """
        The durable events of the context: the stored ones, then new ones, from any process.

        Args:
            after: Start behind this `seq`; 0 for the beginning, `None` for the head at the call:
                the follower yields every event that this agent makes after it.

        Raises:
            ValueRefused: *after* is no number.
            ContextNotFound: While iterating: the context was deleted, or *after* is beyond its
                head.
            CommitsLost: While iterating: the store went back, and has other events by now.
            StoreUnavailable: While iterating: the store did not answer. Nothing is lost: follow
                again behind the last `seq`.
        """
        if after is not None:
            check_after(after)
        return self._follow(self._require("events"), after)

    def _follow(
        self, known: ContextView, after: int | None, seen: Callable[[], int] | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        config = self.loop_config
        behind: int | Awaitable[int] | None = after
        if after is None:
            with contextlib.suppress(RuntimeError):  # without a loop: at the first iteration
                behind = known.head()
        return follow(
            known.stores,
            self.context_id,
            behind,
            idle=lambda: not self._turns,
            end_dead_turn=lambda: end_dead_turn(known, config, self._resources.tools),
            longest_s=config.lease_ttl_s,
            seen=seen,
        )

    # --- writing -------------------------------------------------------------------------------

    async def save_state(
        self, metadata: Mapping[str, Any] | None = None, *, without: Collection[str] = ()
    ) -> None:
        """
        Save the metadata; with `auto_save=False`, first the turns that wait in memory.

        Args:
            metadata: Replaces `state.metadata`; `None` saves the present value.
            without: With `auto_save=False`, ids of artifacts: what the turns have changed in them
                is not saved.

        Raises:
            StoreConflict: Another process has changed the metadata, and `state` now has the new
                values; or it has advanced the context, and the buffered turns are kept. If the
                error has an `artifact_id`, somebody has changed that artifact since a buffered turn
                did: save *without* it.
            AgentBusy: With `auto_save=False`, another process uses the context, or waits for it;
                the buffered turns are kept: try again.
            ValueRefused: The metadata cannot be stored.
        """
        self._require("save_state")
        kept = check_storable(metadata, "/metadata")
        async with self._saving.held():
            known = self._require("save_state")  # the last holder may have shut the agent down
            await self._flush(without)
            if metadata is not None or known.record is None:
                await known.save_metadata(kept, idle=not self._turns)

    async def tag(self, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, ...]:
        """
        Add tags to the context and remove others, at once; `stores.contexts.list(tags=...)` finds
        it by them. A turn may run, here or elsewhere.

        Returns:
            All its tags now, sorted; `state.tags` has them too.

        Raises:
            AgentNotStarted: `start()` was not called.
            ValueRefused: A tag is not 1 to 64 characters without control characters.
            LimitExceeded: The context would have more than 32 tags.
            StoreUnavailable: The store did not answer.
        """
        known = self._require("tag")
        tagging = functools.partial(known.stores.contexts.tag, self.context_id)
        try:
            tags = await settle(tagging(add=add, remove=remove))
        except ContextNotFound:
            with contextlib.suppress(StoreConflict):  # another process was first
                await known.stores.state.save(self.context_id, {}, version=0)
            tags = await settle(tagging(add=add, remove=remove))
        if known.record is not None:
            known.remember(now=known.record.last_activity, tags=tags)
        elif self._turns.running is None:
            known.record = await known.stores.state.load(self.context_id)
        return tags

    async def clear(self, force: bool = False) -> None:
        """
        Delete the history, artifacts and pending requests; positions and counts continue.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere; *force* fences it.
            AgentStateError: With *force*, and the caller is a tool of one of the agent's turns.
        """
        self._require("clear")
        self._refuse_while_busy(force=force)
        self._check_outside("clear")
        self._turns.cancel()  # before the lock, whose holder may wait for them
        self._stop_summarising()
        async with self._lifecycle.alone.held():
            known = self._require("clear")
            self._refuse_while_busy(force=force)
            with self._turns.held():  # a turn that began now would see half a history
                self._turns.cancel()
                await self._turns.end_present()
                await self._clear(known, force=force)
                if not self._turns:
                    self._lifecycle.take("clear")

    async def compact(self, keep_turns: int = 1) -> Compaction | None:
        """
        Have the model summarise all but the newest *keep_turns* questions and the messages after
        them.

        From then on the model sees the summary instead of that part. The history keeps everything,
        and `get_messages()` returns all of it, the summary included. `state.usage` counts these
        model calls.

        Returns:
            The event that was stored; `None` if there was nothing to summarise.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere.
            LLMError: The model wrote no summary; nothing was stored.
            StoreConflict: The history was cleared, or the context deleted, in the meantime.
            AgentStateError: The agent is not started, or was stopped in the meantime.
            ValueRefused: *keep_turns* is not a whole number of at least 1.
        """
        self._require("compact")
        check_at_least_one(keep_turns, "/keep_turns")
        async with self._alone("compact") as known:
            provider = self._resources.provider
            if provider is None:
                raise AgentStateError("the agent is not started")
            tools = await self._resources.gather()
            self._summarising = CancelToken()
            try:
                with self._turns.held():  # a turn that began now would see half of it
                    return await condense(
                        known,
                        provider,
                        self.loop_config,
                        tools,
                        self._summarising,
                        keep_turns=keep_turns,
                    )
            finally:
                self._summarising = None

    async def undo_compact(self) -> Compaction | None:
        """
        Let the newest summary no longer count: the model sees the messages again that it replaced.

        If that summary spoke for an earlier one, the earlier one counts again. Nothing is removed:
        looopy appends a summary that repeats the earlier one, or is empty.

        Returns:
            The event that was stored; `None` if no summary counts.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere.
            StoreConflict: Another summary was stored in the meantime, or the history was cleared.
            AgentStateError: The agent is not started.
        """
        async with self._alone("undo_compact") as known:
            tools = await self._resources.gather()
            with self._turns.held():
                return await undo(known, tools)

    async def get_covered(
        self, position: int | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[Message]:
        """
        The messages that went into a summary, oldest first.

        Args:
            position: The position of the summary; `None`: the one that counts.
            after: Only those with a greater position.
            limit: At most so many.

        Returns:
            All messages that the model sees only through it, those of an earlier summary too; [] if
            no summary counts.

        Raises:
            ValueRefused: *position* is not the position of a summary.
        """
        known = self._require("get_covered")
        return await covered(known, position, after=after, limit=limit)

    async def fork(self, new_context_id: str, at: int | None = None) -> AgentState:
        """
        Make a context that begins with this one's past and has a future of its own.

        The past is copied: messages, turns and events up to *at*, whose numbers go on from there.
        The new context has the owner, the metadata and the artifacts of that place. Its usage
        begins at zero, nothing is pending in it, and no idempotency key is known. What is done to
        one of the two later, also `clear()` and deletion, does not change the other.

        Args:
            new_context_id: The name of the new context; `Agent(new_context_id, ...)` continues it.
            at: The position of the last message to copy: the end of a turn, or 0. A position that
                `rewind()` hides starts from what was said then. `None`: all of it; while a turn
                runs, what came before that turn.

        Returns:
            The state of the new context.

        Raises:
            AgentStateError: The agent is not started, or has `auto_save=False`.
            ValueRefused: *at* is not the end of a turn: the message names the nearest; or the new
                id is invalid.
            StoreConflict: The new context exists already.
            ContextNotFound: This context has no turn yet.
        """
        stores = self._require("fork").stores
        self._require_saving("fork")
        made = await settle(stores.journal.fork(self.context_id, new_context_id, at=at))
        return snapshot(AgentStatus.READY, made)

    async def rewind(self, to: int) -> HistoryRewound:
        """
        Go back to before the turn *to*: hide it, and everything after it, from the model.

        The next message then takes its place: `rewind(3)` and `execute_turn("...")` edit the third
        question. Nothing is deleted. `get_messages(include_hidden=True)` lists the hidden messages,
        `undo_rewind()` shows them again, and `fork()` at a position among them continues there.
        Numbers are not used twice. Artifacts, usage and `state.turn_count` stay as they are, and
        what was pending is dropped.

        Args:
            to: The number of the first turn that is hidden.

        Returns:
            The event that was stored.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere.
            AgentStateError: The agent is not started, or has `auto_save=False`.
            ValueRefused: There is no such turn, or it is hidden or cleared.
            ContextNotFound: This context has no turn yet.
        """
        return await self._rewind("rewind", lambda journal: journal.rewind(self.context_id, to))

    async def undo_rewind(self) -> HistoryRewound:
        """
        Show again what the newest `rewind()` hid, as long as nothing was said since.

        Raises:
            StoreConflict: The conversation has gone on: fork it instead.
            ValueRefused: Nothing is rewound.
            AgentBusy, AgentStateError, ContextNotFound: As `rewind()`.
        """
        return await self._rewind(
            "undo_rewind", lambda journal: journal.undo_rewind(self.context_id)
        )

    async def _rewind(
        self, action: str, write: Callable[[Journal], Awaitable[tuple[int, HistoryRewound]]]
    ) -> HistoryRewound:
        async with self._alone(action, outside=True) as known:
            with self._turns.held():  # a turn that began now would see half a history
                tools = await self._end_past(known)
                _, event = await settle(write(known.stores.journal))
                await known.refresh(tools)
                self._lifecycle.reread(known.busy_turn, known.state)
        return event

    async def _clear(self, known: ContextView, *, force: bool) -> None:
        tools = await self._end_past(known)
        async with self._saving.held():
            with contextlib.suppress(ContextNotFound):  # then there is nothing to clear
                await settle(known.stores.journal.clear(self.context_id, force=force))
            self._buffer.clear()  # only now: a refused clear must lose nothing
            known.staged = None
        known.forget()
        await known.refresh(tools)

    async def _flush(self, without: Collection[str] = ()) -> None:
        """
        Append buffered turns, oldest first; each stored turn leaves the buffer at once.

        The caller holds `_saving`.
        """
        if self.auto_save or not self._buffer or self._known is None:
            return
        await save_turns(self._known, self._buffer, self.loop_config.lease_ttl_s, without)
        await self._known.refresh(await self._resources.gather())

    # --- inside ---

    @contextlib.asynccontextmanager
    async def _alone(self, action: str, *, outside: bool = False) -> AsyncIterator[ContextView]:
        """Hold the context while no turn runs; *outside*: refuse a tool of a turn as well."""
        self._require(action, saving=True)
        self._refuse_while_busy(force=False)
        if outside:
            self._check_outside(action)
        async with self._lifecycle.alone.held():
            known = self._require(action)
            self._refuse_while_busy(force=False)
            yield known

    async def _end_past(self, known: ContextView) -> Mapping[str, Tool]:
        """End a turn that a dead process left, which does not count as running; the tools."""
        tools = await self._resources.gather()
        newest = await end_dead_turn(known, self.loop_config, self._resources.tools)
        if newest < known.seq:
            await known.refresh(tools)
        known.tell_losses()
        known.stale = True  # whatever becomes of the change that follows
        await known.heads_read()
        return tools

    def _require(self, action: str, *, saving: bool = False) -> ContextView:
        self._lifecycle.check_home(action)
        if self._known is None:
            self._lifecycle.after(action)
        if self._known is None:
            raise AgentStateError("the agent is not started")
        if saving:
            self._require_saving(action)
        return self._known

    def _require_saving(self, what: str) -> None:
        if not self.auto_save:
            raise self._lifecycle.refusal(
                what,
                f"{what} needs auto_save=True: what is kept in memory alone has no name and no"
                " inbox",
            )

    def _refuse_while_busy(self, *, force: bool) -> None:
        if self._turns.running is not None and not force:
            raise AgentBusy(
                "a turn of this agent is running", turn=self._turns.running.turn or None
            )

    def __repr__(self) -> str:
        return f"<Agent {self.context_id!r} {self._lifecycle.status}>"


def _actor_of(auth_context: AuthContext | None, stores: Stores) -> str | None:
    auth = check_auth_context(auth_context, stores.tenant)
    return auth.actor_id if auth else None


__all__ = ["Agent", "TurnResult"]
