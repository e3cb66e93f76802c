"""
The stateful agent: one conversation that outlives its process.

An `Agent` owns a context. It starts (reads the context, ends a turn that a dead process left), runs
turns, pauses, resumes and shuts down. Everything a turn produces is committed before it is shown.

This file is the table of contents: the methods, what they take, return and raise. The work is done
by the parts, which share a `Core`: `lifetime` (start to shutdown), `dispatch` (begin a turn),
`queues` (messages for a turn that runs), `history` (read, save and change the conversation), and
`hosted` (the port for hosts).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

from looopy.agent.core import Core
from looopy.agent.dispatch import Dispatcher
from looopy.agent.history import History
from looopy.agent.lifetime import Lifetime
from looopy.agent.queues import Queues
from looopy.agent.request import agent_options
from looopy.agent.resources import Resources, stores_of
from looopy.agent.state import snapshot
from looopy.auth.sealing import KeyRing
from looopy.llm.provider import LLMProvider
from looopy.stores.bundle import Stores
from looopy.stores.records import EntryKind
from looopy.stores.rules import check_context_id
from looopy.tools.gather import ToolSource
from looopy.types.approval import Approve, Deny
from looopy.types.artifact import Artifact
from looopy.types.config import LoopConfig, ModelOptions
from looopy.types.constructors import suggesting
from looopy.types.context import AuthContext, SystemPrompt
from looopy.types.event import AgentEvent, ApprovalDecided, Compaction, HistoryRewound
from looopy.types.message import Message, UserMessage
from looopy.types.result import OutputT, TurnResult
from looopy.types.state import AgentState
from looopy.types.storable import check_after

if TYPE_CHECKING:
    from looopy.agent.hosted import HostPort
    from looopy.agent.stream import TurnStream
    from looopy.stores.base import PlainArtifactStore, PlainMessageStore, PlainStateStore
    from looopy.stores.contexts.search import SearchPage
    from looopy.tools.sources.agents import AgentTool, AgentToolOptions


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
        message_store, artifact_store, state_store: Stores of your own in the place of `stores`; see
            `Stores.of`.

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
        message_store: PlainMessageStore | None = None,
        artifact_store: PlainArtifactStore | None = None,
        state_store: PlainStateStore | None = None,
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
        own = (message_store, artifact_store, state_store)
        where = stores if own == (None, None, None) else stores_of(stores, *own)
        resources = Resources(model=llm_provider, where=where, tools=tools, own=where is not stores)
        self._core = Core(self, resources, system_prompt=system_prompt, keys=KeyRing(auth_key))
        self._lifetime = Lifetime(self._core)
        self._dispatcher = Dispatcher(self._core)
        self._queues = Queues(self._core)
        self._history = History(self._core)
        self._port: HostPort | None = None

    def __stores__(self) -> Stores | None:
        """See `looopy.tools.sources.agents.InStores`."""
        return None if self._core.known is None else self._core.known.stores

    def __host_port__(self) -> HostPort:
        """See `looopy.agent.hosted`."""
        if self._port is None:
            from looopy.agent.hosted import HostPort  # not for agents without a host

            self._port = HostPort(self._core, self._dispatcher)
        return self._port

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
        await self._lifetime.start()

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
        await self._lifetime.pause(cancel=cancel)

    async def resume(self) -> None:
        """
        Make a paused agent ready again; reads only what another process has added.

        Raises:
            AgentNotStarted: The agent is not started.
            AgentStateError: The caller is a tool of one of the agent's turns: a `pause()` may wait
                for that turn.
        """
        await self._lifetime.resume()

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
        await self._lifetime.shutdown(cancel=cancel, notes=not cancel)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self._lifetime.shutdown(cancel=exc_type is not None)

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
        self._core.refuse_inside("wait_for_idle")
        await self._core.turns.end()

    @property
    def state(self) -> AgentState:
        """A snapshot of the context as this process knows it, also after `shutdown()`; no I/O."""
        core = self._core
        record = core.known.record if core.known else core.last_record
        return snapshot(core.lifecycle.status, record)

    def subscribe(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *callback* with every event of every turn, and with changes of the status.

        It must be quick. If it raises, the exception is logged, and other subscribers are not
        affected.

        Returns:
            A function that unsubscribes it.
        """
        return self._core.subscribers.add(callback)

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
        return self._dispatcher.execute(
            user_message,
            auth_context,
            inputs=inputs,
            key=idempotency_key,
            metadata=metadata,
            output_type=output_type,
            options=options,
        )

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
        await self._queues.post(
            "steer",
            EntryKind.STEER,
            message,
            auth_context,
            expected_turn=expected_turn,
            key=idempotency_key,
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
        await self._queues.post(
            "follow_up",
            EntryKind.FOLLOW_UP,
            message,
            auth_context,
            expected_turn=expected_turn,
            key=idempotency_key,
        )

    async def clear_queue(
        self,
        kind: Literal["steer", "follow_up"] | None = None,
        auth_context: AuthContext | None = None,
    ) -> int:
        """
        Remove the messages that no turn has taken, in any process.

        Args:
            kind: Those of `steer()` or of `follow_up()`; `None`: both.
            auth_context: The messages of its actor are removed.

        Returns:
            The number of removed messages. Any other message was delivered, or is being delivered.

        Raises:
            AgentNotStarted: `start()` was not called.
            ValueRefused: *kind* has another value.
            StoreUnavailable: The store did not answer.
        """
        return await self._queues.withdraw(kind, auth_context)

    async def has_queued_messages(self, auth_context: AuthContext | None = None) -> bool:
        """
        Return true if a message of this actor waits: `execute_turn(None)` would begin with it.

        Raises:
            AgentNotStarted: `start()` was not called.
            StoreUnavailable: The store did not answer.
        """
        return await self._queues.any_of(auth_context)

    async def cancel(self) -> None:
        """
        Request that the running turn stop, in any process. It ends as `cancelled`, and keeps its
        results so far. Has no effect if no turn runs.

        Raises:
            StoreUnavailable: The turn runs elsewhere, and the store did not answer.
        """
        await self._dispatcher.cancel()

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
            The stored event. If the same actor repeats the same answer, the first event.

        Raises:
            InputNotFound: No such request is pending; `AlreadyAnswered` if it was answered
                it, `InputExpired` if it has expired.
            ValueRefused: The request is not for an approval, or the answer does not fit it.
            AgentStateError, AgentBusy, AccessDenied, StoreUnavailable: Same as `execute_turn`.
        """
        [decided] = await self._dispatcher.decide({request_id: answer}, auth_context)
        return decided

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
        await self._history.refresh()
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
        return await self._history.messages(after=after, limit=limit, include_hidden=include_hidden)

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
            ValueRefused: The query has no words or is too long, or *after* is not a page's `next`
                of this query.
            StoreUnavailable: The store did not answer.
        """
        contexts = self._core.require("search").stores.contexts
        return await contexts.search(query, context_id=self.context_id, after=after, limit=limit)

    async def get_artifacts(self) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        return await self._core.require("get_artifacts").artifacts.list(self.context_id)

    def events(self, after: int | None = None) -> AsyncIterator[AgentEvent]:
        """
        The durable events of the context: the stored ones, then new ones, from any process.

        Args:
            after: Start after this `seq`; 0 for the beginning, `None` for the head at the call:
                the follower yields every event that this agent makes after it.

        Raises:
            ValueRefused: *after* is not a number.
            ContextNotFound: While iterating: the context was deleted, or *after* is beyond its
                head.
            CommitsLost: While iterating: the store went back, and has other events by now.
            StoreUnavailable: While iterating: the store did not answer. Nothing is lost: follow
                again after the last `seq`.
        """
        if after is not None:
            check_after(after)
        return self._core.follow(self._core.require("events"), after)

    # --- saving and changing ------------------------------------------------------------------

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
                error has an `artifact_id`, that artifact was changed since a buffered turn
                did: save *without* it.
            AgentBusy: With `auto_save=False`, another process uses the context, or waits for it;
                the buffered turns are kept: try again.
            ValueRefused: The metadata cannot be stored.
        """
        await self._history.save(metadata, without)

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
        return await self._history.tag(add, remove)

    async def clear(self, force: bool = False) -> None:
        """
        Delete the history, artifacts and pending requests; positions and counts continue.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere; *force* fences it.
            AgentStateError: With *force*, and the caller is a tool of one of the agent's turns.
        """
        await self._history.clear(force=force)

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
        return await self._history.compact(keep_turns)

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
        return await self._history.undo_compact()

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
            All messages that the model sees only through it, also an earlier summary's; [] if
            no summary counts.

        Raises:
            ValueRefused: *position* is not the position of a summary.
        """
        return await self._history.covered(position, after=after, limit=limit)

    async def fork(self, new_context_id: str, at: int | None = None) -> AgentState:
        """
        Make a context that begins with this one's past and has a future of its own.

        The past is copied: messages, turns and events up to *at*, whose numbers continue there. The
        new context has the owner, the metadata and the artifacts of that place. Its usage
        begins at zero, nothing is pending in it, and no idempotency key is known. What is done to
        one of the two later, also `clear()` and deletion, does not change the other.

        Args:
            new_context_id: The name of the new context; `Agent(new_context_id, ...)` continues it.
            at: The position of the last message to copy: the end of a turn, or 0. A position that
                `rewind()` hides starts from the messages of then. `None`: all of it; while a turn
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
        return await self._history.fork(new_context_id, at)

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
        return await self._history.rewind(to)

    async def undo_rewind(self) -> HistoryRewound:
        """
        Show again what the newest `rewind()` hid, as long as no message was added since.

        Raises:
            StoreConflict: The conversation has gone on: fork it instead.
            ValueRefused: Nothing is rewound.
            AgentBusy, AgentStateError, ContextNotFound: Same as `rewind()`.
        """
        return await self._history.undo_rewind()

    # --- as a part of others -------------------------------------------------------------------

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
        return made.sharing(self._core.resources.tools)

    def _like_this(self, context_id: str, stores: Stores | None) -> Agent:
        """An agent like this one, for *context_id*."""
        core, where = self._core, self._core.resources.where
        made = Agent(
            context_id,
            llm_provider=core.resources.model,
            tools=core.resources.tools,
            system_prompt=core.system_prompt,
            stores=where if where != "memory:" or stores is None else stores,
            loop_config=self.loop_config,
            auto_save=True,  # or a crash would lose its work
            auto_compact=self.auto_compact,
            on_busy="wait",  # an earlier run of the same call may be about to end
            agent_name=self.agent_name,
            auth_key=None,
            message_store=None,  # *where* has the three, open
            artifact_store=None,
            state_store=None,
        )
        made._core.keys = core.keys
        return made

    def __repr__(self) -> str:
        return f"<Agent {self.context_id!r} {self._core.lifecycle.status}>"


__all__ = ["Agent", "TurnResult"]
