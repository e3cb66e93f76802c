"""
Lets a turn take its context: in order, once, and with its first messages already stored.

The claim is the only gate between two turns of one conversation. It names the epoch that this
process knows. If the context has moved on or is busy, the claimer reads it again, and waits in the
queue if `on_busy` says so. A turn with an idempotency key is first looked up, whatever the state of
the context, because an accepted request is never accepted again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from looopy._failpoints import reach
from looopy.agent.plan import Plan, drop_plan, plan_turn
from looopy.agent.request import TurnRequest, TurnSetup
from looopy.agent.wait_queue import QueuePlace
from looopy.auth.redaction import Redactor
from looopy.errors import (
    AgentBusy,
    CannotContinue,
    IdempotencyConflict,
    InputNotFound,
    StoreConflict,
    StoreError,
    TurnIncomplete,
)
from looopy.loop.interrupt import CancelScope, TurnInterrupted
from looopy.stores.owner import Owner, is_here
from looopy.stores.records import Claim, Claimed, ContextRecord, ContextState
from looopy.stores.rules import no_context
from looopy.stores.shield import settle_write
from looopy.telemetry.process import process_name
from looopy.tools.gather import gather_tools
from looopy.types.constructors import amended, quick
from looopy.types.context import CancelToken
from looopy.types.event import AgentEvent, ApprovalDecided, MessageEnd, TurnStart
from looopy.types.state import Outcome, PendingKind

if TYPE_CHECKING:
    from looopy.telemetry.watch import TurnWatch


@quick
@dataclass(frozen=True, slots=True)
class Begun:
    """
    A turn that owns its context: its plan, and the events that the claim has stored.

    `request` has the auth context that the turn acts with; `trace` is that of `ContextState` before
    the claim.
    """

    request: TurnRequest
    plan: Plan
    claimed: Claimed
    events: Sequence[AgentEvent]
    trace: str | None = None


class AlreadyAccepted(Exception):
    """The idempotency key belongs to an accepted turn: watch that one. Never raised to a user."""

    def __init__(self, turn: int) -> None:
        super().__init__(turn)
        self.turn = turn


class Claiming:
    """
    The claim of one turn, with the waiting before it.

    Args:
        busy_here: An earlier turn of the same agent runs, and this one must not wait for it.
        watch: Has the place of the turn in its trace, which is stored with the claim.

    Attributes:
        first: True once no earlier turn of the agent is left.
        placed: Set when this one has its place in the queue, or needs none: then the next may
            take its own.
    """

    def __init__(
        self,
        setup: TurnSetup,
        request: TurnRequest,
        owner: Owner,
        token: CancelToken,
        *,
        busy_here: bool,
        watch: TurnWatch | None = None,
    ) -> None:
        known = setup.known
        self.first = False
        self.placed = asyncio.Event()
        self._setup = setup
        self._known = known
        self._request = request
        self._token = token
        self._busy_here = busy_here
        self._watch = watch
        self._buffer = setup.buffer
        self._holder = owner.token(known.config.lease_ttl_s)
        self._process = process_name()
        self._place: QueuePlace | None = None
        self._scope: CancelScope | None = None
        self._waits = request.on_busy == "wait" and setup.buffer is None

    @property
    def _queue_place(self) -> QueuePlace:
        """The place in the queue for the context, made when somebody has to wait."""
        if self._place is None:
            known = self._known
            self._place = QueuePlace(known.stores, known.context_id, self._holder, self._token)
        return self._place

    @property
    def _interruptible(self) -> CancelScope:
        """The section in which a cancel interrupts the claim, made when something is awaited."""
        if self._scope is None:
            self._scope = CancelScope(self._token)
        return self._scope

    async def run(self, before: Claiming | None) -> Begun:
        """
        Claim the context. Errors: `AlreadyAccepted`, and those of `Agent.execute_turn`.

        Args:
            before: The claiming of the agent's previous turn, unless that turn is over.
        """
        deadline = _now() + self._known.config.busy_timeout_s
        if before is not None:
            before._queue_place.lead(self._queue_place)  # noqa: SLF001 - one of this class
        try:
            await self._look_for_key()
            await self._wait_for_own(before, deadline)
            return await self._claim(deadline)
        except TurnInterrupted:
            raise _cancelled_early() from None
        finally:
            if self._scope is not None:
                self._scope.close()
            self.placed.set()
            if self._place is not None:
                with contextlib.suppress(StoreError):  # a place that is not renewed lapses soon
                    await self._place.leave()

    async def _look_for_key(self) -> None:
        key = self._request.key
        if key is None:
            return
        known = self._known
        found = await known.stores.journal.turn_of_key(known.context_id, key)
        if found is None:
            return
        turn, input_hash = found
        if not self._request.asks_as(input_hash):
            raise IdempotencyConflict(
                f"this idempotency key was used for turn {turn}, with another input: use a new key"
                " for a new message"
            )
        raise AlreadyAccepted(turn)

    async def _wait_for_own(self, before: Claiming | None, deadline: float) -> None:
        """Wait until the agent's earlier turns have ended, in order of arrival."""
        if self.first:
            return
        if self._busy_here:
            raise AgentBusy(
                "a turn of this agent is running: wait for it, or use on_busy='wait'",
                turn=self._known.record.turn_count if self._known.record else None,
            )
        leave = self._token.on_cancel(self.go)
        try:
            if before is not None:  # or tickets would not rise in order of arrival
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        with self._interruptible:
                            await before.placed.wait()
            if self._waits and not self.first:
                await self._queue_place.join()
            self.placed.set()
            while not self.first and _now() < deadline:
                await self._queue_place.tick(deadline - _now())
        finally:
            leave()
        if not self.first:
            turn = self._known.record.turn_count if self._known.record else None
            raise self._too_long("an earlier turn is still running", turn)

    def go(self) -> None:
        """Note that no earlier turn of the agent is left."""
        self.first = True
        if self._place is not None:
            self._place.ring()

    async def _claim(self, deadline: float) -> Begun:
        known, swept, too_late = self._known, False, False
        while True:
            if self._token.cancelled:
                raise _cancelled_early()
            fresh = known.stale or known.busy_turn is not None
            try:
                if fresh and not self._buffer:  # a buffered turn is in no store
                    with self._interruptible:
                        tools = await gather_tools(self._setup.sources)
                    await known.refresh(tools, self._pause)
                    await self._look_for_key()
                known.tell_losses()
                self._refuse_strangers()
                self._refuse_if_busy()  # before the claim would: this check is cheaper
                plan = await self._plan()
                events = self._first_events(plan)
                before, request = known.state.trace, self._request
                if plan.anonymous:
                    request = replace(request, auth_context=None)
                claimed = await self._try(request, plan, events)
                return Begun(request, plan, claimed, events, before)
            except StoreConflict:
                known.stale = True
            except (CannotContinue, InputNotFound) as error:
                from looopy.agent.decisions import who_was_first  # few turns come too late

                if fresh:
                    first = await who_was_first(known.stores.journal, known.context_id, error)
                    if first is None:
                        raise
                    raise first from None
                known.stale = True  # another process may have left something to continue
            except AgentBusy as busy:
                known.stale = True
                if not fresh:
                    continue  # the owner may be dead: read before giving up
                await self._look_for_key()  # it may be busy with this very request
                if not self._waits:
                    swept = (
                        not swept and busy.turn is None and await self._queue_place.drop_the_dead()
                    )
                    if swept:  # the queue had only dead waiters
                        continue
                    raise
                if self._queue_place.ticket is None:
                    await self._queue_place.join()  # and try again: the context may be free by then
                    self.placed.set()
                elif too_late:
                    turn = busy.turn
                    why = "others wait too" if turn is None else f"turn {turn} is still running"
                    raise self._too_long(why, turn) from None
                else:  # the context may have become free: one last try
                    too_late = not await self._queue_place.wait(deadline)

    async def _pause(self, seconds: float) -> None:
        with self._interruptible:
            await asyncio.sleep(seconds)

    def _too_long(self, why: str, turn: int | None) -> AgentBusy:
        waited = self._known.config.busy_timeout_s
        return AgentBusy(
            f"{why}: waited {waited} s (LoopConfig.busy_timeout_s); try again", turn=turn
        )

    def _refuse_strangers(self) -> None:
        """The claim names the epoch of the record that is judged here: no owner comes between."""
        record = self._known.record
        if not self._setup.owner_only or record is None or self._request.judged is not None:
            return
        if not may_begin(record, self._request.actor_id):
            raise no_context(self._known.context_id)

    def _refuse_if_busy(self) -> None:
        turn = self._known.busy_turn
        if turn is not None:
            holder = self._known.record.holder if self._known.record else None
            here = holder is not None and is_here(holder)
            where = "another Agent of this process" if here else "another process"
            raise AgentBusy(
                f"turn {turn} is running in {where}: wait for it, or use on_busy='wait'",
                turn=turn,
            )

    async def _plan(self) -> Plan:
        known, request = self._known, self._request
        situation = known.situation
        if request.drops is not None:
            is_last = known.record is not None and known.record.turn_count == request.drops
            return drop_plan(situation, is_last=is_last)
        if request.user_message is None and not request.inputs and self._buffer is None:
            _, entries = await known.stores.journal.inbox(known.context_id)
            mine = [e for e in entries if e.actor_id == request.actor_id]
            situation = replace(situation, queued=mine)
        plan = plan_turn(
            situation,
            request.user_message,
            request.inputs,
            has_auth=request.has_auth,
            keys=self._setup.keys,
            redactor=Redactor(request.auth_context) if request.inputs else None,
            actor_id=request.actor_id,
            decides=request.decides,
            judged=request.judged,
            answered_by=request.answered_by,
        )
        asked = {one.request_id for one in known.state.pending if one.kind is PendingKind.AUTH}
        request.secret.update(asked & request.inputs.keys())
        state, output = plan.state, self._output(known.state)
        if state.left_as is not None:
            state = replace(state, left_as=None)
        if output != state.output:
            state = replace(state, output=output)
        if self._watch is not None and self._watch.trace is not None:
            turn = 1 + (known.record.turn_count if known.record is not None else 0)
            state = amended(state, trace=f"{turn} {self._watch.trace}")
        return plan if state is plan.state else amended(plan, state=state)

    def _output(self, state: ContextState) -> Mapping[str, Any] | None:
        """The type of the answer: as requested now, or by the turn that this one continues."""
        request = self._request
        if request.output_type is not None:
            return request.output_type.schema
        goes_on = request.user_message is None or bool(request.inputs)
        return state.output if goes_on else None

    def _first_events(self, plan: Plan) -> list[AgentEvent]:
        """The events that the claim stores: the durable ones of the turn's first group."""
        context_id = self._known.context_id
        return [
            TurnStart(
                context_id=context_id,
                user_message=plan.user_message,
                continues=plan.continues,
                process=self._process,
            ),
            *(ApprovalDecided(context_id=context_id, **facts) for facts in plan.decided),
            *(
                MessageEnd(context_id=context_id, iteration=1, message=message)
                for message in plan.prompts
            ),
        ]

    async def _try(self, request: TurnRequest, plan: Plan, events: Sequence[AgentEvent]) -> Claimed:
        known = self._known
        # A turn that continues one with credentials needs them too, also after a crash.
        had_auth = request.auth_context is not None or (
            plan.continues is not None and known.last is not None and known.last.had_auth
        )
        if self._buffer is not None:
            record = known.record
            from looopy.agent.buffer import BufferedTurn  # not what an import pays for

            self._buffer.append(BufferedTurn(request.actor_id, had_auth, request.metadata))
            return Claimed(
                epoch=known.epoch,
                turn=(record.turn_count if record else 0) + 1,
                first_seq=0,
                first_position=(record.last_position if record else 0) + 1,
            )
        if known.heads:
            await known.heads_read()
        reach("B1")
        claimed: Claimed = await settle_write(
            known.stores.state.claim(
                Claim(
                    context_id=known.context_id,
                    holder=self._holder,
                    ttl_s=known.config.lease_ttl_s,
                    expected_epoch=known.epoch,
                    events=events,
                    actor_id=request.actor_id,
                    had_auth=had_auth,
                    metadata=request.metadata,
                    delivered=plan.delivered,
                    key=request.key,
                    input_hash=request.input_hash,
                    ticket=None if self._place is None else self._place.ticket,
                    state=plan.state,
                    process=self._process,
                )
            ),
            self._token.cancel,
            outlasts=known.stores.outlasts,
        )
        reach("B3")
        if self._place is not None:
            self._place.used()
        return claimed


def may_begin(record: ContextRecord, actor_id: str | None) -> bool:
    """True if *actor_id* owns the context, or its first turn would make it the owner."""
    nobodys = record.owner_actor is None and not record.turn_count
    return nobodys or record.owner_actor == actor_id


def _cancelled_early() -> TurnIncomplete:
    return TurnIncomplete(
        "the turn was cancelled before it was accepted: nothing was stored",
        outcome=Outcome.CANCELLED.value,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
