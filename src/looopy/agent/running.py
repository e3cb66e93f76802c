"""
One turn of an agent, from the call to its last event: a supervised task.

Claim, run, commit, announce. First the turn claims its context (`looopy.agent.claim`). Then it
pulls the generator of `looopy.loop.turn` group by group; each group is committed and shown
(`looopy.agent.commit`) before the next is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from looopy.agent.broadcast import Broadcast
from looopy.agent.claim import AlreadyAccepted, Begun, Claiming
from looopy.agent.commit import TurnLog
from looopy.agent.ledger import ledger_of, metered
from looopy.agent.request import TurnRequest, TurnSetup
from looopy.agent.state import counted, spent_before
from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.errors import (
    CommitsLost,
    Fenced,
    IdempotencyConflict,
    LooopyError,
    StoreUnavailable,
)
from looopy.loop.given import Given
from looopy.loop.incoming import Inbox
from looopy.loop.outgoing import Group
from looopy.loop.turn import run_turn
from looopy.stores.owner import Owner
from looopy.telemetry.current import watch_turn
from looopy.types.context import CancelToken, TurnContext
from looopy.types.result import TurnResult


class RunningTurn:
    """
    One call of `execute_turn`.

    Args:
        busy_here: An earlier turn of the agent runs, and this one must not wait for it.
    """

    def __init__(self, setup: TurnSetup, request: TurnRequest, *, busy_here: bool) -> None:
        self.setup = setup
        self.request = request
        self.redactor = Redactor(request.auth_context)
        self.token = CancelToken()
        self.broadcast = Broadcast()
        self._owner = Owner.new()
        self._log: TurnLog | None = None  # once it owns its context
        context_id, redact = setup.known.context_id, self.redactor.value
        self.watch = watch_turn(context_id, setup.subscribers.name, redact)
        self.claiming = Claiming(
            setup, request, self._owner, self.token, busy_here=busy_here, watch=self.watch
        )

    @property
    def turn(self) -> int:
        """Its number; 0 until it owns its context."""
        return 0 if self._log is None else self._log.turn

    @property
    def ended(self) -> bool:
        """True if its last event has been made."""
        return self._log is not None and self._log.result is not None

    def cancel(self) -> None:
        """Request that the turn stop."""
        self.token.cancel()

    def leave(self) -> None:
        """Count as dead: the next process that finds the turn ends it; this one writes no more."""
        self._owner.retire()

    def seen_by(self, request: TurnRequest) -> tuple[Broadcast, Callable[[], object]]:
        """The broadcast and cancel function for a request with the same key, or one that fails."""
        if request.asks_as(self.request.input_hash):
            return self.broadcast, self.token.cancel
        refused = Broadcast()
        refused.fail(
            IdempotencyConflict(
                "this idempotency key names a turn that runs, with another input: use a new key for"
                " a new message"
            )
        )
        return refused, CancelToken().cancel

    async def run(self, before: Claiming | None) -> TurnResult:
        """
        Run the turn to its end; the stream fails with the same error as this.

        Args:
            before: See `Claiming.run`.

        Raises:
            AlreadyAccepted: The key belongs to an accepted turn: watch that one.
        """
        watch = self.watch
        if watch is None:
            return await self._run(before)
        watch.begin()
        try:
            result = await self._run(before)
        except AlreadyAccepted:
            watch.dropped()
            raise
        except BaseException as error:
            watch.failed(error)
            raise
        watch.ended(result)
        return result

    async def _run(self, before: Claiming | None) -> TurnResult:
        try:
            begun = await self.claiming.run(before)
            if self.watch is not None:
                self.watch.claimed(begun.claimed.turn, begun.plan.continues, begun.trace)
            for resumed in begun.plan.resumed.values():
                self.redactor.add(resumed.opened)
            self._log = TurnLog(
                self.setup,
                begun,
                token=self.token,
                redactor=self.redactor,
                broadcast=self.broadcast,
                watch=self.watch,
            )
            return await self._drive(begun, self._log)
        finally:
            self._owner.retire()
            if self._log is not None:
                self._log.close()

    async def _drive(self, begun: Begun, log: TurnLog) -> TurnResult:
        """Pull the turn group by group, to its end."""
        plan, known, config = begun.plan, self.setup.known, self.setup.config
        self.broadcast.accept(log.turn)
        log.hold()
        context = TurnContext(
            context_id=known.context_id,
            turn=log.turn,
            continues=plan.continues,
            auth_context=begun.request.auth_context,
            system_prompt=self.setup.system_prompt,
            metadata=self.request.metadata,
            artifacts=log.artifacts,
            stores=known.stores,
            cancel=self.token,
            epoch=None if self.setup.buffer is not None else begun.claimed.epoch,
        )
        known.view.sent.resume(plan.state.sent)
        record = known.record
        owner = self.request.actor_id if record is None else record.owner_actor
        ledger = ledger_of(known.stores, config, known.context_id, log.turn, owner)
        first = True
        try:
            log.state = await counted(
                known.stores, context.context_id, log.turn, log.state, config.budget
            )
            given = Given(
                context=context,
                provider=metered(self.setup.provider, ledger),
                sources=self.setup.sources,
                config=config,
                redactor=self.redactor,
                keys=self.setup.keys or KeyRing(),
                inbox=log.inbox or Inbox(),
                view=known.view,
                output_type=log.output_type,
                auto_compact=self.setup.auto_compact,
                spent=spent_before(log.state),
                meter=ledger,
                watched=self.broadcast.watched,
                watch=self.watch,
            )
            outs = run_turn(given, plan)
            if ledger is not None:
                ledger.open()
            try:
                async for out in outs:
                    if not isinstance(out, Group):
                        self.broadcast.push(out)
                    elif first:
                        first = False
                        log.opened(out)
                    else:
                        await log.commit(out)
            finally:
                await outs.aclose()
                if ledger is not None:
                    await ledger.close()
        except asyncio.CancelledError:
            if log.result is None:
                raise
        except CommitsLost:
            known.losses_told()
            raise
        except (Fenced, StoreUnavailable):
            known.stale = True
            known.doubted = (log.turn, begun.events[0].timestamp)
            raise
        except Exception as exc:
            if not log.open:
                raise
            await log.fail(exc)
        if log.result is None:
            raise LooopyError("the turn ended without a turn_end")
        return log.result
