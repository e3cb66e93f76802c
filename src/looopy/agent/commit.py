"""
The part of the log that one turn writes, once it owns its context.

Commit, then announce: the durable events of a group are stored, given their numbers, and only then
shown. A commit in flight is never abandoned: a cancelled task waits for its outcome first, and the
turn then ends in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from looopy._failpoints import reach
from looopy.agent.broadcast import Broadcast
from looopy.agent.claim import Begun
from looopy.agent.dead_turns import OpenCall, failed_end
from looopy.agent.inbox import TurnInbox
from looopy.agent.lease import Lease
from looopy.agent.request import TurnSetup
from looopy.agent.result import Tally
from looopy.agent.state import state_after, state_beside
from looopy.auth.redaction import Redactor
from looopy.errors import LooopyError, StoreConflict, StoreError, StoreUnavailable
from looopy.loop.compaction import placed
from looopy.loop.outgoing import Group
from looopy.loop.output import output_type_of
from looopy.loop.progress import Asked
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    Commit,
    Committed,
    ContextState,
    InboxNews,
    TurnRecord,
)
from looopy.stores.shield import WriteLock, settle_write
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.context import CancelToken
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    Compaction,
    MessageEnd,
    TurnEnd,
    durable,
    number,
    utc_now,
)
from looopy.types.message import NO_USAGE, AssistantMessage
from looopy.types.result import TurnResult

if TYPE_CHECKING:
    from looopy.agent.artifacts import TurnArtifacts
    from looopy.stores.base import StagedArtifactStore
    from looopy.telemetry.watch import TurnWatch

_logger = logging.getLogger("looopy")


class TurnLog:
    """
    The events of one turn, stored and shown.

    It has many fields, and stays one object, because each of them belongs to the order that is
    promised here: a group, an artifact's change and the end of the turn take the same lock, store
    the next numbers under the same epoch, and are shown only then.

    Args:
        begun: The claim, and the plan of the turn.
        broadcast: Shows the turn's events.
        watch: Times the commits; `None`: that is not wanted.

    Attributes:
        inbox: Messages and cancel requests for the turn; `None` with `auto_save=False`.
        output_type: The type of the answer, as requested now or by the turn that is continued.
        open: False once the end of the turn is stored.
        state: The state that the turn began with, and the position of its newest summary.
        result: Made with the last event.
    """

    def __init__(
        self,
        setup: TurnSetup,
        begun: Begun,
        *,
        token: CancelToken,
        redactor: Redactor,
        broadcast: Broadcast,
        watch: TurnWatch | None = None,
    ) -> None:
        request, plan, claimed, known = begun.request, begun.plan, begun.claimed, setup.known
        self.turn = claimed.turn
        self.open = True
        self.output_type = request.output_type or output_type_of(plan.state.output)
        self.result: TurnResult | None = None
        self.state = plan.state
        self.inbox: TurnInbox | None = None
        self._lease: Lease | None = None
        self._ended = setup.ended
        self._known = known
        self._stores = known.stores
        self._store = known.stores.commit if watch is None else watch.timed(known.stores.commit)
        self._begun = begun
        self._token = token
        self._redactor = redactor
        self._broadcast = broadcast
        broadcast.subscribers = setup.subscribers
        self._buffer = setup.buffer
        self._tally = Tally()
        self._writing = WriteLock()
        self._settle = partial(settle_write, outlasts=known.stores.outlasts)
        self._ttl_s = setup.config.lease_ttl_s
        self._commit = partial(
            Commit,
            context_id=known.context_id,
            epoch=claimed.epoch,
            turn=claimed.turn,
            ttl_s=self._ttl_s,
        )
        self._assistant_position = known.announced_at if plan.run else None
        self._seq = 0
        self._iteration = 0
        self._read: set[str] = set()  # artifacts, by the tools
        self._asked: Sequence[Asked] = ()
        before = known.record
        last_seq = claimed.first_seq + len(begun.events) - 1
        known.remember(
            now=utc_now(),
            owner_actor=(before and before.owner_actor) or request.actor_id,  # as the claim stored
            epoch=claimed.epoch,
            turn_count=claimed.turn,
            last_position=claimed.first_position + len(plan.prompts) - 1,
            state=plan.state,
            **({"last_seq": last_seq} if claimed.first_seq else {}),
        )
        if self._buffer is None:
            self.inbox = TurnInbox(
                self._stores,
                known.context_id,
                claimed.turn,
                request.actor_id,
                setup.config,
                token,
                head=claimed.inbox,
            )

    def hold(self) -> None:
        """From now on, listen to the inbox and renew the lease."""
        if self.inbox is None:
            return
        self.inbox.listen()  # first: its timer is the earlier one
        self._lease = Lease(
            self._stores.state,
            self._known.context_id,
            self._begun.claimed.epoch,
            self._ttl_s,
            partial(self._token.cancel, "fenced"),  # not this log, which holds the lease
        )

    def close(self) -> None:
        """Release the lease and the inbox."""
        if self._lease is not None:
            self._lease.let_go()
        if self.inbox is not None:
            self.inbox.close()

    @property
    def artifacts(self) -> TurnArtifacts:
        """The `ArtifactWriter` of the turn's tools."""
        from looopy.agent.artifacts import TurnArtifacts  # not what an import pays for

        known, redactor = self._known, self._redactor
        if self._buffer is None:
            store, change = self._stores.artifacts, self._change_artifact
            return TurnArtifacts(
                store, known.context_id, change, redactor=redactor, seen=self._read
            )
        known.staged = known.staged or self._stores.stage_artifacts()
        hold = None if known.staged is None else partial(self._hold_artifact, known.staged)
        return TurnArtifacts(
            known.artifacts, known.context_id, hold, redactor=redactor, seen=self._read
        )

    def opened(self, group: Group) -> None:
        """Show the first group, which the claim has stored."""
        claimed, stored = self._begun.claimed, durable(group.events)
        self._announce(group, stored, claimed.first_seq, claimed.first_position, claimed=True)

    async def commit(self, group: Group) -> None:
        """Store a group's durable events, then show the whole group, unless news came first."""
        group = self._placed(group)
        stored = durable(group.events)
        concludes = group.concluding and not self.state.concluding
        if not (stored or group.asked or concludes):
            self._announce(group, (), 0, 0)
            return
        ends = bool(stored) and isinstance(stored[-1], TurnEnd)
        self._asked = group.asked
        begun = self.state = replace(self.state, concluding=True) if concludes else self.state
        if group.charged is not NO_USAGE:
            begun = replace(begun, charged=begun.charged + group.charged)
        first = self._begun.plan.state
        changed = begun is not self.state or (begun.summary, begun.concluding) != (
            first.summary,
            first.concluding,
        )
        state = begun if changed else None
        if ends:
            sent = self._known.view.sent.text
            state = state_after(group, begun, self._begun.events[0].timestamp, sent=sent)
        if self._buffer is not None:
            self.open = not ends
            self._announce(group, stored, 0, self._known.last_position + 1, state)
            return
        while self._known.heads:
            try:
                await self._known.heads_read()
            except asyncio.CancelledError:  # as below: the results so far are stored all the same
                self._token.cancel()
        reach("B13" if ends else "B6")
        await self._writing.take(self._token.cancel)
        try:
            commit = self._commit(
                events=stored,
                known_seq=self._seq,
                assistant_position=self._assistant_position,
                state=state_beside(begun, group.asked) if group.asked and not ends else state,
                delivered=group.delivered,
                heard=group.heard,
                release=ends,
            )
            if ends and self.inbox is not None:
                self.inbox.ending()
            try:
                done = await self._settle(self._store(commit), self._token.cancel)
            except InboxNews as news:
                if self.inbox is None:
                    raise
                self.inbox.refuse(news.inbox)
                return
            except StoreConflict:
                if self.inbox is None:
                    raise
                looking = self.inbox.look_for_withdrawn(group.delivered)
                if not await self._settle(looking, self._token.cancel):
                    raise
                return
            reach("B14" if ends else "B7")
            self.open = not ends
            self._receive(done)
            self._announce(group, stored, done.first_seq, done.first_position, state)
        finally:
            self._writing.give_back()

    def _placed(self, group: Group) -> Group:
        if Compaction not in map(type, group.events):
            return group
        record = self._known.record
        first = 1 if record is None else record.visible_from
        events, summary = placed(group.events, self._known.last_position, first, self._known.hidden)
        self.state = replace(self.state, summary=summary)
        return replace(group, events=events)

    def _receive(self, done: Committed) -> None:
        if self.inbox is not None:
            self.inbox.told(done.inbox)

    def _announce(
        self,
        group: Group,
        stored: Sequence[AgentEvent],
        seq: int,
        position: int,
        state: ContextState | None = None,
        *,
        claimed: bool = False,
    ) -> None:
        """
        Number the *stored* events, a claim's if *claimed*; remember them and show the group.
        """
        number(stored, seq, position, self._begun.events if claimed else ())
        changes: dict[str, Any] = {}
        for event in stored:
            if isinstance(event, MessageEnd):
                changes["last_position"] = event.position
                if isinstance(event.message, AssistantMessage):
                    self._assistant_position = event.position
        if seq and stored:
            self._seq = changes["last_seq"] = seq + len(stored) - 1
        if state is not None:
            changes["state"] = state
        if self._buffer is not None:
            buffered = self._buffer[-1]
            buffered.events += stored
            buffered.state = state or buffered.state
        if not claimed:  # `__init__` has remembered the claim
            self._known.remember(now=utc_now(), **changes)
        if not group.events:
            return
        *events, last = group.events
        self._iteration = last.iteration
        self._tally.see(group.events)
        self._broadcast.show(events)
        if isinstance(last, TurnEnd):
            self._finish(last)
        self._broadcast.push(last)

    def _finish(self, end: TurnEnd) -> None:
        """Make the result, and leave the agent ready, before the last event is shown."""
        position = self._known.last_position
        self._known.advance(self._tally.messages, self.turn, position)
        state, left = self._known.state, self._known.open_calls
        held = {one.tool_call_id for one in state.held}
        last, self._known.open_calls, self._known.last = self._known.last, [], None
        if state.pending or state.answered or state.resumable is not None:
            self._known.stale = True  # open calls are found by reading the store
            if self._buffer is not None:  # without a store to read
                self._known.last = TurnRecord(
                    turn=self.turn,
                    actor_id=self._buffer[-1].actor_id,
                    had_auth=self._buffer[-1].had_auth,
                    start_seq=0,
                    first_position=position - len(self._tally.messages) + 1,
                    last_position=position,
                    started_at=end.timestamp,
                )
                if last is not None and last.turn == state.resumable:  # this turn only waited
                    self._known.last = last
                asked = [OpenCall(one.call, one.held.origin, started=False) for one in self._asked]
                self._known.open_calls = asked or [one for one in left if one.call.id in held]
                self._known.announced_at = self._assistant_position
        failure = self._tally.failure
        self.result = self._tally.result(
            self.turn,
            end.outcome,
            end.stop_reason,
            usage=end.usage,
            pending=state.pending,
            error=failure.error if failure is not None else None,
            output_type=self.output_type,
        )
        self._ended()

    async def fail(self, exc: Exception) -> None:
        """End a turn whose step could not be stored, with a result for each open call."""
        name, context_id = type(exc).__name__, self._known.context_id
        _logger.warning(
            "context %s, turn %s could not go on: %s",
            *(context_id, self.turn, name),
            exc_info=None if isinstance(exc, StoreError) else exc,  # a driver's may quote rows
            extra={"context_id": context_id, "turn": self.turn},
        )
        error = exc if isinstance(exc, LooopyError) else LooopyError(repr(exc))
        error = self._redactor.error(error)
        events = failed_end(
            self._known.context_id,
            self.turn,
            before=self._known.committed,
            added=self._tally.messages,
            resumed=self._begun.plan.run,
            error=error,
        )
        try:
            self.state = self._known.state
            await self.commit(Group(events))
        except StoreError:
            self._known.stale = True
            raise exc from None
        self._known.stale = True

    async def _change_artifact(self, change: ArtifactChange) -> Artifact:
        """
        Change an artifact, with its event, under this turn's epoch; errors as `Journal.commit`.
        """
        event = self._update_of(change)
        commit = self._commit(events=[event], known_seq=self._seq, artifact=change)
        # `settle` runs this in a task of its own: no cancellation reaches it, and it waits for the
        # end.
        await self._writing.take(_nobody)
        try:
            done = await self._settle(self._store(commit), _nobody)
            self._receive(done)
            artifact = done.artifact
            if artifact is None:
                raise StoreUnavailable("the store changed no artifact and did not say why")
            self._show_change(event, artifact, done.first_seq, done.first_position)
        finally:
            self._writing.give_back()
        return artifact

    async def _hold_artifact(self, staged: StagedArtifactStore, change: ArtifactChange) -> Artifact:
        """Keep a change and its event with the turn that waits to be saved."""
        artifact = await staged.hold(self._known.context_id, change, turn=self.turn)
        if self._buffer is not None:
            self._buffer[-1].changes.append(change)
        self._show_change(self._update_of(change), artifact, 0, self._known.last_position + 1)
        return artifact

    def _update_of(self, change: ArtifactChange) -> ArtifactUpdate:
        """The event of a change, with a kind and a version to replace."""
        deleted, status = True, ArtifactStatus.COMPLETE
        if not isinstance(change, ArtifactDeletion):
            deleted, status = False, change.status
        return ArtifactUpdate(
            context_id=self._known.context_id,
            turn=self.turn,
            iteration=self._iteration,
            artifact_id=change.artifact_id,
            kind=ArtifactKind.FILE,
            version=0,
            deleted=deleted,
            append=isinstance(change, ArtifactGrowth),
            last_chunk=status is not ArtifactStatus.BUILDING,
            failed=status is ArtifactStatus.FAILED,
            anew=change.artifact_id not in self._read,
        )

    def _show_change(
        self, event: ArtifactUpdate, artifact: Artifact, seq: int, position: int
    ) -> None:
        if event.deleted:
            self._tally.drop(artifact.artifact_id)
        else:
            self._tally.keep(artifact)
        event = replace(event, kind=artifact.kind, version=artifact.version)
        self._announce(Group([event]), [event], seq, position)


def _nobody() -> None:
    """Ignore a cancellation."""
