"""
Begin the turns of an agent: check the caller's request, put the turn in the queue, return a view.

Also the turns that call no model: those that store decisions, and those that drop what a turn
waits for.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from looopy.agent.core import Core
from looopy.agent.events import watch_turn
from looopy.agent.request import TurnRequest, TurnSetup
from looopy.agent.running import RunningTurn
from looopy.errors import AgentBusy, AgentStateError, InputExpired, InputNotFound
from looopy.stores.shield import settle
from looopy.types.config import LoopConfig, ModelOptions, model_options
from looopy.types.context import AuthContext
from looopy.types.event import ApprovalDecided
from looopy.types.message import UserMessage
from looopy.types.result import TurnResult
from looopy.types.state import AgentStatus, PendingRequest

if TYPE_CHECKING:
    from looopy.agent.context import ContextView
    from looopy.agent.stream import TurnStream


class Dispatcher:
    """Begins the turns of one agent; the errors are those of the `Agent`'s methods."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def execute(
        self,
        user_message: str | UserMessage | None,
        auth_context: AuthContext | None,
        *,
        inputs: Mapping[str, Any] | None,
        key: str | None,
        metadata: Mapping[str, Any] | None,
        output_type: Any,
        options: ModelOptions | Mapping[str, Any] | None,
    ) -> TurnStream[Any]:
        """See `Agent.execute_turn`."""
        core = self._core
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise core.lifecycle.refusal(
                "execute_turn",
                "execute_turn() needs a running event loop: use looopy.sync.Agent in blocking code",
            ) from None
        core.lifecycle.check_home("execute_turn")
        status = core.lifecycle.with_turn()
        if core.known is None:
            raise self._not_started()
        config = core.options.loop_config
        if options is not None:
            config = replace(config, options=model_options(options).over(config.options))
        request = TurnRequest.checked(
            user_message,
            inputs=inputs,
            auth_context=auth_context,
            tenant=core.known.stores.tenant,
            metadata=metadata,
            output_type=output_type,
            on_busy=core.options.on_busy,
            key=key,
        )
        return self._begin(request, config, status)

    async def drop(self, turn: int, auth_context: AuthContext | None) -> None:
        """See `HostPort.give_up`."""
        request = self._without_model("execute_turn", auth_context)
        status = self._core.lifecycle.with_turn()
        await self._begin(replace(request, drops=turn), self._core.options.loop_config, status)

    async def decide(
        self,
        answers: Mapping[str, Any],
        auth_context: AuthContext | None,
        judged: Mapping[str, PendingRequest] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[ApprovalDecided]:
        """See `HostPort.decide`."""
        core = self._core
        known = core.require("decide", saving=True)
        request = self._without_model("decide", auth_context, answers, metadata)
        request = replace(request, decides=True, judged=judged)
        made: dict[str, ApprovalDecided] = {}
        while left := {name: said for name, said in request.inputs.items() if name not in made}:
            status = core.lifecycle.with_turn()
            try:
                turn = self._begin(replace(request, inputs=left), core.options.loop_config, status)
                async for event in turn:
                    if isinstance(event, ApprovalDecided) and event.request_id in left:
                        made[event.request_id] = event
                await turn
            except InputExpired:
                raise
            except (InputNotFound, AgentBusy) as error:
                from looopy.agent.decisions import decision_about, repeated  # as in `claim`

                for name, said in left.items():
                    found = await decision_about(known.stores.journal, core.context_id, name)
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

    async def ask_cancel(self, known: ContextView, turn: int | None) -> None:
        """Request that *turn*, or the running one, stop: it runs in another process."""
        await settle(known.stores.journal.ask_cancel(self._core.context_id, turn))

    async def cancel(self) -> None:
        """See `Agent.cancel`."""
        core = self._core
        core.lifecycle.check_home("cancel")
        if core.turns.running is not None:
            core.turns.running.cancel()
        elif core.known is not None and core.options.auto_save:
            await self.ask_cancel(core.known, None)

    def _without_model(
        self,
        action: str,
        auth_context: AuthContext | None,
        inputs: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> TurnRequest:
        """The request of a turn that begins with no message; a turn that runs refuses it."""
        return TurnRequest.checked(
            None,
            inputs=inputs,
            auth_context=auth_context,
            tenant=self._core.require(action).stores.tenant,
            metadata=metadata,
            output_type=None,
            on_busy="reject",
            key=None,
        )

    def _begin(
        self, request: TurnRequest, config: LoopConfig, status: AgentStatus
    ) -> TurnStream[Any]:
        """Begin the turn of a *request* that was checked; the agent then has this *status*."""
        from looopy.agent.stream import TurnStream  # reactivex: keeps it out of start-up

        core = self._core
        if core.known is None or core.resources.provider is None:
            raise self._not_started()
        if request.key is not None:
            core.require_saving("idempotency_key")
        running = core.turns.running
        busy_here = running is not None and request.on_busy == "reject"
        if running is not None and busy_here and request.key is None:
            raise AgentBusy(
                "a turn of this agent is running: wait for it, or use on_busy='wait'",
                turn=running.turn or None,
                status=core.lifecycle.status.value,
                action="execute_turn",
            )
        if (same := core.turns.with_key(request.key)) is not None:
            return TurnStream(*same.seen_by(request))
        setup = TurnSetup(
            known=core.known,
            provider=core.resources.provider,
            sources=core.resources.tools,
            config=config,
            system_prompt=core.system_prompt,
            keys=core.keys,
            auto_compact=core.options.auto_compact,
            buffer=None if core.options.auto_save else core.buffer,
            subscribers=core.subscribers,
            ended=core.idle,
            watch=self._watch,
            owner_only=core.owner_only,
        )
        turn = RunningTurn(setup, request, busy_here=busy_here)
        core.turns.start(turn)
        core.lifecycle.set(status)
        return TurnStream(turn.broadcast, turn.token.cancel)  # not the turn, which has credentials

    def _not_started(self) -> AgentStateError:
        status = self._core.lifecycle.status.value
        return AgentStateError("the agent is not started", status=status)

    async def _watch(self, number: int, view: RunningTurn) -> TurnResult:
        """Show in *view* an accepted turn; cancelling the view cancels that turn."""
        core = self._core
        known = core.require("execute_turn")
        leave = view.token.on_cancel(lambda: core.turns.also(self.ask_cancel(known, number)))
        try:
            return await watch_turn(
                known.stores,
                core.context_id,
                number,
                view.broadcast,
                functools.partial(core.follow, known),
                view.request.output_type,
            )
        finally:
            leave()
