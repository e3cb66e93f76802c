"""
The stateful agent: one conversation that outlives its process.

An `Agent` owns a context. It starts (reading what there is, ending what a dead process left), runs
turns, pauses, resumes and shuts down. Everything a turn produces is committed before it is shown;
see `looopy.agent.running` for a turn, `looopy.agent.lifecycle` for the table of statuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from looopy.agent import lifecycle
from looopy.agent.base import LivingAgent
from looopy.agent.buffer import buffered_messages
from looopy.agent.compact import condense
from looopy.agent.context import Known
from looopy.agent.events import end_dead_turn
from looopy.agent.request import TurnRequest, check_at_least_one, check_auth_context, check_storable
from looopy.agent.running import RunningTurn
from looopy.errors import AgentBusy, AgentStateError, ContextNotFound
from looopy.loop.incoming import as_user_message
from looopy.stores.records import EntryKind
from looopy.stores.settle import settle
from looopy.stores.stores import Stores
from looopy.tools.gather import gather_tools
from looopy.types.artifact import Artifact
from looopy.types.context import AuthContext, CancelToken
from looopy.types.event import AgentEvent, Compaction
from looopy.types.message import Message, UserMessage
from looopy.types.result import TurnResult

if TYPE_CHECKING:
    from looopy.agent.stream import TurnStream
    from looopy.tools.sources.agents import AgentTool, AgentToolOptions



class Agent(LivingAgent):
    """
    One conversation, kept in stores, continued in any process.

    Constructing does no I/O. `start()` comes first; `async with Agent(...)` is `start()` and
    `shutdown()`.

    Args:
        context_id: Names the conversation: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
        llm_provider: A provider, or a model name such as `"local"` or `"openai/gpt-5-mini"`.
        tools: Functions, `Tool`s or `ToolProvider`s.
        system_prompt: Text, a function of the `TurnContext`, or a list of these and of
            `PromptPart`s; asked for each model call, never stored.
        stores: `Stores` that are open, or a URL that `start()` opens and `shutdown()` closes.
        loop_config: Limits and choices of a turn.
        auto_save: `False` keeps turns in memory until `save_state()`, `pause()` or `shutdown()`; a
            crash loses them.
        auto_compact: Summarise the older part of a history that has outgrown `max_messages` or
            `history_tokens`, before the model is asked; otherwise there is one warning.
        on_busy: When a turn runs on the context already: `"reject"` with `AgentBusy`, or `"wait"`
            up to `LoopConfig.busy_timeout_s`.
        agent_name: For people and traces.
        auth_key: A secret of at least 32 bytes with which the keys of requests for credentials are
            stored encrypted; `None`: such a request is answered in this process, or asked again.

    Raises:
        ValueRefused: The context id is not usable.
        ConfigurationError: An option is not one of its values.
    """

    # --- turns ---------------------------------------------------------------------------------

    def execute_turn(
        self,
        user_message: str | UserMessage | None = None,
        auth_context: AuthContext | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output_type: Any = None,
    ) -> TurnStream:
        """
        Start a turn, at the call; the result is a view of it that nobody has to read.

        Args:
            user_message: What the user says, or `None` to continue: an interrupted or failed turn,
                a history that ends in something unanswered, what `steer` or `follow_up` left
                queued, or, with *inputs*, what waits for them.
            auth_context: Credentials for this turn alone; never stored.
            inputs: Answers to pending requests, by `request_id`.
            idempotency_key: Names this request for as long as the context lives. Sent again with
                the same input, it gives a view of the same turn, which is not run again, whatever
                the context is doing; 1 to 256 characters.
            metadata: Kept with the turn; JSON values.
            output_type: What the answer has to be: a type that pydantic's `TypeAdapter` takes, or a
                JSON Schema. It is then `TurnResult.output`. A turn that goes on from another is
                still asked for what that one was; without *output_type* it is given as plain JSON.

        Returns:
            `async for` gives its events, `await` its `TurnResult`, `accepted()` waits until the
            message is safe, `cancel()` stops it.

        Raises:
            AgentNotStarted: `start()` comes first.
            AgentStateError: The agent is paused, or about to be paused or shut down, or no event
                loop runs (use `looopy.sync`).
            AgentBusy: A turn of this agent runs, and `on_busy` is `"reject"`.
            ValueRefused: The message is empty or cannot be stored; nothing was.
            AccessDenied: The auth context belongs to another tenant.
            ConfigurationError: *output_type* cannot be described to a model.

        What only the store knows comes from the stream: `AgentBusy` elsewhere, `CannotContinue`,
        `IdempotencyConflict`, `InputNotFound`, `Fenced`, `StoreUnavailable`.
        """
        from looopy.agent.stream import TurnStream  # reactivex: not paid for at start-up

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise AgentStateError(
                "execute_turn() needs a running event loop: use looopy.sync.Agent in blocking code",
                status=self._status.value,
                action="execute_turn",
            ) from None
        self._check_home("execute_turn")
        status = self._status
        if not self._rereading:  # else the turn waits for what is read
            status = lifecycle.after(status, "execute_turn")
        if self._leaving is not None:
            raise AgentStateError(
                f"{self._leaving}() waits for the last turn to end: no other may start",
                status=self._status.value,
                action="execute_turn",
            )
        if self._known is None or self._provider is None:
            raise AgentStateError("the agent is not started", status=self._status.value)
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
        if request.key is not None:
            self._require_saving("idempotency_key")
        running = self._turns.running
        busy_here = running is not None and self.on_busy == "reject"
        if running is not None and busy_here and request.key is None:
            raise AgentBusy(
                "a turn of this agent is running: wait for it, or use on_busy='wait'",
                turn=running.turn or None,
                status=self._status.value,
                action="execute_turn",
            )
        if (same := self._turns.with_key(request.key)) is not None:
            return TurnStream(*same.seen_by(request))
        turn = RunningTurn(
            self._known,
            provider=self._provider,
            sources=self._tools,
            config=self.loop_config,
            system_prompt=self._system_prompt,
            request=request,
            busy_here=busy_here,
            announce=self._tell,
            buffer=None if self.auto_save else self._buffer,
            auto_compact=self.auto_compact,
            keys=self._keys,
        )
        self._turns.start(turn)
        self._set(status)
        return TurnStream(turn.broadcast, turn.token.cancel)  # not the turn: it has credentials

    # --- while a turn runs, here or elsewhere -----------------------------------------------------

    async def steer(
        self,
        message: str | UserMessage,
        auth_context: AuthContext | None = None,
        *,
        expected_turn: int | None = None,
    ) -> None:
        """
        Say something to the turn that runs, in whichever process: the model hears it at its next
        call, and tool calls that have not started give way (`LoopConfig.steering`).

        When this returns, the message is stored. What no turn has taken is said by the next one;
        `execute_turn(None)` begins with it.

        Args:
            auth_context: Of the same actor as the running turn; never stored.
            expected_turn: Only if this turn runs.

        Raises:
            AgentNotStarted: `start()` comes first.
            AccessDenied: The turn, or the context, belongs to another actor.
            TurnMismatch: Another turn runs, or none.
            LimitExceeded: Too many messages wait already.
            ValueRefused: The message is empty or cannot be stored.
            StoreUnavailable: The store did not answer.
        """
        await self._post("steer", EntryKind.STEER, message, auth_context, expected_turn)

    async def follow_up(
        self, message: str | UserMessage, auth_context: AuthContext | None = None
    ) -> None:
        """
        Say something once the turn that runs, in whichever process, would end; it then goes on.

        As `steer()` in all else.
        """
        await self._post("follow_up", EntryKind.FOLLOW_UP, message, auth_context, None)

    async def _post(
        self,
        action: str,
        kind: EntryKind,
        message: str | UserMessage,
        auth_context: AuthContext | None,
        expected_turn: int | None,
    ) -> None:
        stores = self._require(action).stores
        self._require_saving(action)
        said = as_user_message(message, may_be_none=False)
        auth = check_auth_context(auth_context, stores.tenant)
        post = stores.journal.post(
            self.context_id,
            kind,
            said,
            actor_id=auth.actor_id if auth else None,
            expected_turn=expected_turn,
        )
        await settle(post)

    async def clear_steering_queue(self, auth_context: AuthContext | None = None) -> int:
        """
        Take back what `steer()` has left queued, in any process, and no turn has said.

        Args:
            auth_context: Whose messages: those of the same actor.

        Returns:
            How many there were. What is not among them was said, or is being said.

        Raises:
            AgentNotStarted: `start()` comes first.
            StoreUnavailable: The store did not answer.
        """
        return await self._withdraw("clear_steering_queue", EntryKind.STEER, auth_context)

    async def clear_follow_up_queue(self, auth_context: AuthContext | None = None) -> int:
        """Take back what `follow_up()` has left queued; as `clear_steering_queue()`."""
        return await self._withdraw("clear_follow_up_queue", EntryKind.FOLLOW_UP, auth_context)

    async def clear_all_queues(self, auth_context: AuthContext | None = None) -> int:
        """Take back what either has left queued; as `clear_steering_queue()`."""
        return await self._withdraw("clear_all_queues", None, auth_context)

    async def _withdraw(
        self, action: str, kind: EntryKind | None, auth_context: AuthContext | None
    ) -> int:
        stores = self._require(action).stores
        self._require_saving(action)
        auth = check_auth_context(auth_context, stores.tenant)
        actor_id = auth.actor_id if auth else None
        return await settle(stores.journal.withdraw(self.context_id, kind, actor_id=actor_id))

    async def has_queued_messages(self, auth_context: AuthContext | None = None) -> bool:
        """
        Whether a message of this actor waits to be said: `execute_turn(None)` would begin with it.

        Raises:
            AgentNotStarted: `start()` comes first.
            StoreUnavailable: The store did not answer.
        """
        stores = self._require("has_queued_messages").stores
        auth = check_auth_context(auth_context, stores.tenant)
        _, entries = await stores.journal.inbox(self.context_id)
        return any(e.actor_id == (auth.actor_id if auth else None) for e in entries)

    async def cancel(self) -> None:
        """
        Ask the running turn to stop, in whichever process; it ends as `cancelled`, keeping what
        happened. Harmless when idle.

        Raises:
            StoreUnavailable: The turn runs elsewhere, and the store did not answer.
        """
        self._check_home("cancel")
        if self._turns.running is not None:
            self._turns.running.cancel()
        elif self._known is not None and self.auto_save:
            await self._ask_cancel(self._known, None)

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool:
        """
        A tool behind which agents like this one work, each call in a context of its own.

        This agent is only what they are made after: it need not be started, and its own context is
        not touched. Theirs are in its stores; or, if those are `"memory:"`, in the stores of the
        agent that calls.

        Args:
            name: The `agent_name` by default.
            description: For the model: what the agent is asked for.
            options: See `looopy.tools.AgentTool`.

        Raises:
            InvalidTool: The name or an option will not do.
        """
        from looopy.tools.sources.agents import AgentTool

        if name is None:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", self.agent_name)[:64]
        made = AgentTool(self._like_this, name=name, description=description or "", **options)
        return made.sharing(self._tools)

    def _like_this(self, context_id: str, stores: Stores | None) -> Agent:
        """Another agent, of that context."""
        kept = self._where if self._where != "memory:" or stores is None else stores
        made = Agent(
            context_id,
            llm_provider=self._llm,
            tools=self._tools,
            system_prompt=self._system_prompt,
            stores=kept,
            loop_config=self.loop_config,
            auto_save=True,  # or a crash would lose what it has done
            auto_compact=self.auto_compact,
            on_busy="wait",  # an earlier run of the same call may be about to end
            agent_name=self.agent_name,
            auth_key=None,
        )
        made._keys = self._keys
        return made

    # --- reading -------------------------------------------------------------------------------

    async def get_messages(
        self, *, after: int = 0, limit: int | None = None, include_hidden: bool = False
    ) -> list[Message]:
        """
        The messages of the context, oldest first.

        Args:
            after: Only those with a greater position.
            limit: At most so many.
        """
        known = self._require("get_messages")
        found = await known.stores.messages.list(
            self.context_id, after=after, limit=limit, include_hidden=include_hidden
        )
        if self.auto_save:
            return found
        found += buffered_messages(self._buffer, after=after - known.saved_position)
        return found if limit is None else found[:limit]

    async def get_artifacts(self) -> list[Artifact]:
        """The newest version of each artifact, by id."""
        return await self._require("get_artifacts").stores.artifacts.list(self.context_id)

    def events(self, after: int | None = None) -> AsyncIterator[AgentEvent]:
        """
        The durable events of the context: those stored, then those to come, from any process.

        Args:
            after: Start behind this `seq`; 0 for the beginning, `None` for the head at the call:
                the follower gives every event that this agent makes after it.

        Raises:
            ContextNotFound: While iterating: the context was deleted, or *after* is beyond its
                head.
            StoreUnavailable: While iterating: the store did not answer. Nothing is lost: follow
                again behind the last `seq`.
        """
        return self._follow(self._require("events"), after)

    # --- writing -------------------------------------------------------------------------------

    async def save_state(self, metadata: Mapping[str, Any] | None = None) -> None:
        """
        Save the metadata; with `auto_save=False`, first the turns that wait in memory.

        Args:
            metadata: Replaces `state.metadata`; `None` saves it as it is.

        Raises:
            StoreConflict: Another process has changed the metadata, which are now those of `state`;
                or it has advanced the context, and what is buffered is kept.
            AgentBusy: With `auto_save=False`, another process uses the context, or waits for it;
                what is buffered is kept: try again.
            ValueRefused: The metadata cannot be stored.
        """
        self._require("save_state")
        kept = check_storable(metadata, "/metadata")
        async with self._saving.held():
            known = self._require("save_state")  # whoever had it may have shut the agent down
            await self._flush()
            if metadata is not None or known.record is None:
                await known.save_metadata(kept, idle=not self._turns)

    async def clear(self, force: bool = False) -> None:
        """
        Delete the history, artifacts and what is pending; positions and counts go on.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere; *force* fences it.
            AgentStateError: With *force*, and a turn of the agent waits for the caller, a tool.
        """
        self._require("clear")
        self._refuse_while_busy(force=force)
        self._refuse_within("clear")
        self._turns.cancel()  # before the lock: who holds it may wait for them
        self._stop_summarising()
        async with self._lifecycle.held():
            known = self._require("clear")
            self._refuse_while_busy(force=force)
            with self._turns.held():  # a turn that came now would see half a history
                self._turns.cancel()
                await self._turns.end_present()
                await self._clear(known, force=force)
                if not self._turns:
                    self._set(lifecycle.after(self._status, "clear"))

    async def compact(self, keep_turns: int = 1) -> Compaction | None:
        """
        Have the model summarise all but the newest *keep_turns* questions and what followed them.

        The model is from then on shown the summary in place of that part; nothing is taken out of
        the history, and `get_messages()` reads all of it, the summary included. Nothing of it is
        counted in `state.usage`.

        Returns:
            The event that was stored; `None` when there was nothing to summarise.

        Raises:
            AgentBusy: A turn runs on the context, here or elsewhere.
            LLMError: The model wrote no summary; nothing was stored.
            StoreConflict: The history was cleared, or the context deleted, meanwhile.
            AgentStateError: The agent is not started, or was stopped meanwhile.
            ValueRefused: *keep_turns* is no whole number of at least 1.
        """
        known = self._require("compact")
        check_at_least_one(keep_turns, "/keep_turns")
        self._require_saving("compact")
        self._refuse_while_busy(force=False)
        async with self._lifecycle.held():
            known = self._require("compact")
            self._refuse_while_busy(force=False)
            if self._provider is None:
                raise AgentStateError("the agent is not started")
            tools = await gather_tools(self._tools)
            self._summarising = CancelToken()
            try:
                with self._turns.held():  # a turn that came now would see half of it
                    return await condense(
                        known,
                        self._provider,
                        self.loop_config,
                        tools,
                        self._summarising,
                        keep_turns=keep_turns,
                    )
            finally:
                self._summarising = None

    async def _clear(self, known: Known, *, force: bool) -> None:
        tools = await gather_tools(self._tools)
        # What a dead process left is no turn that runs.
        await end_dead_turn(known, self.loop_config, self._tools)
        known.stale = True  # whatever becomes of it
        await known.heads_read()
        async with self._saving.held():
            with contextlib.suppress(ContextNotFound):  # then there is nothing to hide
                await settle(known.stores.journal.clear(self.context_id, force=force))
            self._buffer.clear()  # not before: a clear that is refused loses nothing
        known.forget()
        await known.refresh(tools)


__all__ = ["Agent", "TurnResult"]
