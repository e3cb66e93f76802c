"""
One turn of an agent, from the call to its last event: a supervised task that nobody has to watch.

Claim, run, commit, announce. The generator of `looopy.loop.turn` is pulled group by group; each
group's durable events are committed, given their numbers, and only then shown. A commit in flight
is never abandoned: a cancelled task waits for its outcome first, and the turn then ends in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from looopy._failpoints import reach
from looopy.agent.artifacts import TurnArtifacts
from looopy.agent.broadcast import Broadcast
from looopy.agent.buffer import BufferedTurn
from looopy.agent.claim import Begun, Claiming
from looopy.agent.closing import OpenCall, failed_end
from looopy.agent.context import Known
from looopy.agent.inbox import TurnInbox
from looopy.agent.lease import Lease
from looopy.agent.request import TurnRequest
from looopy.agent.result import COUNTED, Tally
from looopy.agent.state import counted, spent_before, state_after, state_beside
from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.errors import (
    Fenced,
    IdempotencyConflict,
    LooopyError,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from looopy.llm.provider import LLMProvider
from looopy.loop.compaction import placed
from looopy.loop.output import OutputType, output_type_of
from looopy.loop.progress import Asked, Group
from looopy.loop.turn import run_turn
from looopy.stores.owner import Owner
from looopy.stores.records import (
    ArtifactDeletion,
    ArtifactWrite,
    Commit,
    Committed,
    ContextState,
    InboxNews,
    TurnRecord,
)
from looopy.stores.settle import WriteLock, settle_write
from looopy.stores.stores import Stores
from looopy.tools.gather import ToolSource
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken, SystemPrompt, TurnContext
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    Compaction,
    MessageEnd,
    TurnEnd,
    is_durable,
    utc_now,
)
from looopy.types.maker import stamp
from looopy.types.message import NO_USAGE, AssistantMessage, ToolCall
from looopy.types.result import TurnResult

_logger = logging.getLogger("looopy")


class RunningTurn:
    """
    One call of `execute_turn`.

    Args:
        known: What the agent knows of the context; kept up to date.
        busy_here: An earlier turn of the agent runs, and this one is not to wait for it.
        announce: Shows an event to the agent's own subscribers.
        buffer: Instead of committing, groups go here (`auto_save=False`).
        keys: Makes and keeps the keys that credentials are encrypted to.
        auto_compact: Summarise a history of which the model would not be shown all.
    """

    def __init__(
        self,
        known: Known,
        *,
        provider: LLMProvider,
        sources: Sequence[ToolSource],
        config: LoopConfig,
        system_prompt: SystemPrompt,
        request: TurnRequest,
        busy_here: bool,
        announce: Callable[[AgentEvent], None],
        buffer: list[BufferedTurn] | None,
        auto_compact: bool = False,
        keys: KeyRing | None = None,
    ) -> None:
        self.known = known
        self.provider = provider
        self.sources = sources
        self.config = config
        self.system_prompt = system_prompt
        self.request = request
        self.redactor = Redactor(request.auth_context)
        self.token = CancelToken()
        self.broadcast = Broadcast()
        self.turn = 0
        self._announce_to_agent = announce
        self._buffer = buffer
        self._keys = keys
        self._owner = Owner.new()
        self._epoch = 0
        self._started_at: datetime | None = None
        self._summary: int | None = None  # position of the newest one
        self._auto_compact = auto_compact
        self._assistant_position: int | None = None
        self._open = False  # claimed, and not ended yet
        self._asked: Sequence[Asked] = ()
        self._output_type: OutputType | None = None
        self._last_position = 0
        self._resumed: Sequence[ToolCall] = ()  # of an earlier turn
        self._tally = Tally()
        self._artifacts: list[Artifact] = []
        self._iteration = 0
        self._committing = WriteLock()
        self._result: TurnResult | None = None
        self._lease: Lease | None = None
        self._inbox: TurnInbox | None = None
        self.claiming = Claiming(
            known,
            request,
            sources=sources,
            owner=self._owner,
            token=self.token,
            busy_here=busy_here,
            buffer=buffer,
            keys=keys,
        )

    @property
    def stores(self) -> Stores:
        """The agent's stores."""
        return self.known.stores

    def cancel(self) -> None:
        """Ask the turn to stop."""
        self.token.cancel()

    def seen_by(self, request: TurnRequest) -> tuple[Broadcast, Callable[[], object]]:
        """
        For a request with the same idempotency key: this turn and what cancels it, or why not.
        """
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

    @property
    def ended(self) -> bool:
        """Whether its last event has been made."""
        return self._result is not None

    async def run(self, before: Claiming | None) -> TurnResult:
        """
        Run the turn to its end.

        Args:
            before: See `Claiming.run`.

        Raises:
            AlreadyAccepted: There is such a turn already: watch that one.
            LooopyError: What only the store knows; the stream fails with it too.
        """
        try:
            return await self._drive(await self.claiming.run(before))
        finally:
            self._owner.retire()
            if self._lease is not None:
                self._lease.let_go()
            if self._inbox is not None:
                self._inbox.close()

    # --- running -------------------------------------------------------------------------------

    async def _drive(self, begun: Begun) -> TurnResult:
        plan, claimed, stored = begun.plan, begun.claimed, begun.events
        for resumed in plan.resumed.values():
            self.redactor.add(resumed.opened)
        self._open = True
        self.turn, self._epoch = claimed.turn, claimed.epoch
        self._started_at = stored[0].timestamp
        self._last_position = claimed.first_position - 1
        self._summary = plan.state.summary
        self._resumed = plan.run
        self._assistant_position = self.known.announced_at if plan.run else None
        self.known.remember(
            now=utc_now(), epoch=claimed.epoch, turn_count=claimed.turn, state=plan.state
        )
        self.broadcast.accept(claimed.turn)
        if self._buffer is None:
            self._lease = Lease(
                self.stores.state,
                self.known.context_id,
                claimed.epoch,
                self.config.lease_ttl_s,
                partial(self.token.cancel, "fenced"),  # not this turn: it holds the lease
            )
            self._inbox = TurnInbox(
                self.stores,
                self.known.context_id,
                claimed.turn,
                self.request.actor_id,
                self.config,
                self.token,
                head=claimed.inbox,
            )
            self._inbox.listen()
        context = TurnContext(
            context_id=self.known.context_id,
            turn=claimed.turn,
            continues=plan.continues,
            auth_context=self.request.auth_context,
            system_prompt=self.system_prompt,
            metadata=self.request.metadata,
            artifacts=TurnArtifacts(
                self.stores.artifacts,
                self.known.context_id,
                self._change_artifact if self._buffer is None else None,
                redactor=self.redactor,
            ),
            stores=self.stores,
            cancel=self.token,
        )
        self._output_type = self.request.output_type or output_type_of(plan.state.output)
        first = True
        try:
            state = await counted(
                self.stores, context.context_id, self.turn, plan.state, self.config.budget
            )
            outs = run_turn(
                self.provider,
                self.sources,
                self.config,
                context,
                self.known.history,
                plan.prompts,
                user_message=plan.user_message,
                open_calls=plan.run,
                call_turn=plan.call_turn,
                resumed=plan.resumed,
                keys=self._keys,
                ends=plan.ends,
                pending=plan.state.pending,
                redactor=self.redactor,
                inbox=self._inbox,
                spoken=bool(plan.delivered) and self.config.queue_mode == "one-at-a-time",
                view=self.known.view,
                auto_compact=self._auto_compact,
                spent=spent_before(state),
                output_type=self._output_type,
            )
            try:
                async for out in outs:
                    if not isinstance(out, Group):
                        self._show(out)
                    elif first:
                        first = False
                        _date_as_stored(out.events, stored)
                        self._announce(out.events, claimed.first_seq, claimed.first_position)
                    else:
                        await self._commit(out, state)
            finally:
                await outs.aclose()
        except asyncio.CancelledError:
            if self._result is None:
                raise
        except (Fenced, StoreUnavailable):
            self.known.stale = True
            raise
        except Exception as exc:
            if not self._open:
                raise
            await self._close_after(exc)
        if self._result is None:
            raise LooopyError("the turn ended without a turn_end")
        return self._result

    async def _commit(self, group: Group, begun: ContextState) -> None:
        """Store a group's durable events, then show the whole group, unless news came first."""
        events = self._placed(group.events)
        durable = [e for e in events if is_durable(e)]
        if not durable and not group.asked:
            self._announce(events, 0, 0)
            return
        end = durable[-1] if durable and isinstance(durable[-1], TurnEnd) else None
        self._asked = group.asked
        changed = self._summary != begun.summary
        if changed:
            begun = replace(begun, summary=self._summary)
        if group.charged is not NO_USAGE:
            begun = replace(begun, charged=begun.charged + group.charged)
            changed = True
        state = begun if changed else None
        if end is not None:
            state = state_after(end, group, begun, self._started_at or end.timestamp)
        if self._buffer is not None:
            self._open = end is None
            self._announce(events, 0, self._last_position + 1, state=state)
            return
        while self.known.heads:
            try:
                await self.known.heads_read()
            except asyncio.CancelledError:  # as below: what has happened is stored all the same
                self.token.cancel()
        reach("B6" if end is None else "B13")
        await self._committing.take(self.token.cancel)
        try:
            commit = Commit(
                context_id=self.known.context_id,
                epoch=self._epoch,
                turn=self.turn,
                events=durable,
                assistant_position=self._assistant_position,
                state=state_beside(begun, group.asked) if group.asked and end is None else state,
                delivered=group.delivered,
                heard=group.heard,
                release=end is not None,
                ttl_s=self.config.lease_ttl_s,
            )
            if end is not None and self._inbox is not None:
                self._inbox.ending()
            try:
                done = await settle_write(
                    self.stores.commit(commit), self.token.cancel, outlasts=self.stores.outlasts
                )
            except InboxNews as news:
                if self._inbox is None:
                    raise
                self._inbox.refuse(news.inbox)
                return
            except StoreConflict:
                if not await self._was_withdrawn(group):
                    raise
                return
            reach("B7" if end is None else "B14")
            self._open = end is None
            self._hear(done)
            self._announce(events, done.first_seq, done.first_position, state=state)
        finally:
            self._committing.give_back()

    async def _was_withdrawn(self, group: Group) -> bool:
        if self._inbox is None:
            return False
        looking = self._inbox.look_for_withdrawn(group.delivered)
        return await settle_write(looking, self.token.cancel, outlasts=self.stores.outlasts)

    def _placed(self, events: Sequence[AgentEvent]) -> Sequence[AgentEvent]:
        if Compaction not in {event.__class__ for event in events}:
            return events
        first = 1 if self.known.record is None else self.known.record.visible_from
        events, self._summary = placed(events, self._last_position, first)
        return events

    def _hear(self, done: Committed) -> None:
        if self._inbox is not None:
            self._inbox.told(done.inbox)

    def _announce(
        self,
        events: Sequence[AgentEvent],
        seq: int,
        position: int,
        state: ContextState | None = None,
    ) -> None:
        """Give committed events their numbers, take them over, and show the group."""
        for event in events:
            if not is_durable(event):
                continue
            if isinstance(event, MessageEnd):
                stamp(event, seq=seq or None, position=position)
                if isinstance(event.message, AssistantMessage):
                    self._assistant_position = position
                self._last_position = position
                position += 1
            elif seq:
                stamp(event, seq=seq)
            seq += 1 if seq else 0
        if self._buffer is not None:
            self._buffer[-1].events += [e for e in events if is_durable(e)]
        changes: dict[str, Any] = {"last_position": self._last_position}
        if seq:
            changes["last_seq"] = seq - 1
        if state is not None:
            changes["state"] = state
            if self._buffer is not None:
                self._buffer[-1].state = state
        self.known.remember(now=utc_now(), **changes)
        for event in events:
            self._show(event)

    def _show(self, event: AgentEvent) -> None:
        if not event.path:  # another agent's is shown here and no more
            if event.__class__ in COUNTED:
                self._tally.see(event)
            elif isinstance(event, TurnEnd):
                self._finish(event)
            self._iteration = event.iteration
        self._announce_to_agent(event)
        self.broadcast.push(event)

    def _finish(self, end: TurnEnd) -> None:
        """Make the result, and leave the agent ready, before the last event is shown."""
        self.known.advance(self._tally.messages, self.turn, self._last_position)
        state, left = self.known.state, self.known.open_calls
        held = {one.tool_call_id for one in state.held}
        self.known.open_calls, self.known.last = [], None
        if state.pending or state.answered or state.resumable is not None:
            self.known.stale = True  # open calls are found by reading
            if self._buffer is not None:  # where there is nothing to read
                self.known.last = TurnRecord(
                    turn=self.turn,
                    had_auth=self._buffer[-1].had_auth,
                    start_seq=0,
                    first_position=self._last_position - len(self._tally.messages) + 1,
                    last_position=self._last_position,
                    started_at=end.timestamp,
                )
                asked = [OpenCall(one.call, one.held.origin, started=False) for one in self._asked]
                self.known.open_calls = asked or [one for one in left if one.call.id in held]
                self.known.announced_at = self._assistant_position
        failure = self._tally.failure
        self._result = self._tally.result(
            self.turn,
            end.outcome,
            end.stop_reason,
            usage=end.usage,
            pending=state.pending,
            artifacts=self._artifacts,
            error=failure.error if failure is not None else None,
            output_type=self._output_type,
        )

    async def _close_after(self, exc: Exception) -> None:
        """
        End a turn whose step could not be stored: read back what was, answer what is open, say why.
        """
        _logger.warning("turn %s could not go on: %s", self.turn, type(exc).__name__)
        error = exc if isinstance(exc, LooopyError) else LooopyError(repr(exc))
        error = self.redactor.error(error)
        events = failed_end(
            self.known.context_id,
            self.turn,
            before=self.known.committed,
            added=self._tally.messages,
            resumed=self._resumed,
            error=error,
        )
        try:
            await self._commit(Group(events), self.known.state)
        except StoreError:
            self.known.stale = True
            raise exc from None
        self.known.stale = True

    # --- artifacts -----------------------------------------------------------------------------

    async def _change_artifact(self, change: ArtifactWrite | ArtifactDeletion) -> Artifact:
        """
        Save a version, or delete an artifact, together with its event, under this turn's epoch.

        Raises:
            Fenced: Another owner has the context; nothing was changed.
            ArtifactNotFound: There is no artifact to delete.
        """
        deleted = isinstance(change, ArtifactDeletion)
        event = ArtifactUpdate(
            context_id=self.known.context_id,
            turn=self.turn,
            iteration=self._iteration,
            artifact_id=change.artifact_id,
            kind=ArtifactKind.FILE,  # kind and version are what the store finds
            version=0,
            deleted=deleted,
        )
        commit = Commit(
            context_id=self.known.context_id,
            epoch=self._epoch,
            turn=self.turn,
            events=[event],
            artifact=change,
            ttl_s=self.config.lease_ttl_s,
        )
        # Its task is one that `settle` has made: told of nothing, it only waits for the end.
        await self._committing.take(_nobody)
        try:
            done = await settle_write(
                self.stores.commit(commit), _nobody, outlasts=self.stores.outlasts
            )
            self._hear(done)
            artifact = done.artifact
            if artifact is None:
                raise StoreUnavailable("the store changed no artifact and did not say why")
            if deleted:
                left = [one for one in self._artifacts if one.artifact_id != artifact.artifact_id]
                self._artifacts[:] = left
            else:
                self._artifacts.append(artifact)
            event = replace(event, kind=artifact.kind, version=artifact.version)
            self._announce([event], done.first_seq, done.first_position)
        finally:
            self._committing.give_back()
        return artifact


def _nobody() -> None:
    """Be told of a cancellation."""


def _date_as_stored(events: Sequence[AgentEvent], stored: Sequence[AgentEvent]) -> None:
    """Give the first group the times that the claim has stored for its durable events."""
    for event, same in zip(filter(is_durable, events), stored, strict=True):
        stamp(event, timestamp=same.timestamp)
