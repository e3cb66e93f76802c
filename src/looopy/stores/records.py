"""
Arguments and results of a store: records of what is stored, and requests to write.

The order that keeps every promise: claim (with the user message), run, commit, announce. Each
commit carries the epoch of its claim. A claim raises the epoch, so an owner that lost its context
can write nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.constructors import quick
from looopy.types.event import AgentEvent, Compaction, MessageEnd
from looopy.types.message import (
    NO_USAGE,
    CustomMessage,
    Message,
    StopReason,
    Usage,
    UserMessage,
)
from looopy.types.ranges import before
from looopy.types.state import AgentStatus, HeldCall, Outcome, PendingRequest
from looopy.types.summary import kept_by

ANY_CALL: Final = "*"
"""Replaces the id of a started call whose row is damaged: it may have been any of the turn's."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """A stored message and its place: `position` in the context, from 1, and `seq` in its log."""

    position: int
    turn: int
    iteration: int
    seq: int
    message: Message


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """
    A turn as it is stored.

    Attributes:
        had_auth: True if the turn had an `AuthContext`; the context itself is never stored.
        outcome: `None` while the turn is open: running, or left by a process that died.
        first_position: The first message it may have added, `last_position` the last;
            `last_position` is smaller if it added no message.
        start_seq: `seq` of its `turn_start`; `end_seq` of its `turn_end`, `None` while open.
        process: The process that ran it (`looopy.telemetry.process_name`); `None`: not recorded.
        recovered_by: The process that took it over, to end it, after its own had died; or `None`.
    """

    turn: int
    continues: int | None = None
    actor_id: str | None = None
    had_auth: bool = False
    outcome: Outcome | None = None
    stop_reason: StopReason | None = None
    start_seq: int
    end_seq: int | None = None
    first_position: int
    last_position: int
    started_at: datetime
    ended_at: datetime | None = None
    usage: Usage = NO_USAGE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    process: str | None = None
    recovered_by: str | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """
    The facts of a context that its next turn needs; replaced whole by the commits that change it.

    Attributes:
        pending: Requests that wait for an answer.
        answered: Requests that were answered, with their values, until their calls have results.
        held: Private data of the calls of these requests, shown to no subscriber.
        error: Class name and message of the last turn's failure, or `None`.
        resumable: The last turn, if `execute_turn(None)` can continue it: interrupted or failed.
        usage: Tokens and cost of all turns.
        output: JSON Schema of the answer that the turn to continue was asked for, or `None`.
        summary: Position of the newest summary (`looopy.types.summary`), or `None`.
        charged: The usage that tools of all turns reported (`ToolContext.charge`).
        run_us: Microseconds that all turns have run; `None`: not counted, add up the turns.
        sent: The beginning of the last request (`looopy.history.sent`), or `None`. After a rewind
            and in a new fork, that word and a space come first.
        trace: The last turn that was traced: its number, a space, and its place as a `traceparent`
            of W3C's Trace Context; or `None`.
        waits_for: A sentence about the budget without room that the turn to continue met, if it
            asks for more (`LoopConfig.on_budget`); or `None`.
        needs_auth: True if the turn to continue waits for credentials of its actor, and for no
            answer.
        concluding: True if the turn to continue had reached `LoopConfig.max_iterations`, and may
            only answer.
        left_as: `paused` or `shutdown`, if an agent was left so and no turn has begun since; or
            `None`.
    """

    pending: Sequence[PendingRequest] = ()
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    held: Sequence[HeldCall] = ()
    error: tuple[str, str] | None = None
    resumable: int | None = None
    usage: Usage = NO_USAGE
    output: Mapping[str, Any] | None = None
    summary: int | None = None
    charged: Usage = NO_USAGE
    run_us: int | None = None
    sent: str | None = None
    trace: str | None = None
    waits_for: str | None = None
    needs_auth: bool = False
    concluding: bool = False
    left_as: AgentStatus | None = None

    @property
    def waits(self) -> bool:
        """True if the context waits for a person."""
        return bool(self.pending) or self.waits_for is not None or self.needs_auth

    @property
    def is_rare(self) -> bool:
        """True if a field is set that hardly any turn sets."""
        return self.needs_auth or self.concluding or self.left_as is not None

    @property
    def sums(self) -> dict[str, Any]:
        """The fields that no turn resets: the counters, `sent` and `trace`."""
        return {
            "usage": self.usage,
            "charged": self.charged,
            "run_us": self.run_us,
            "sent": self.sent,
            "trace": self.trace,
        }


class EntryKind(StrEnum):
    """When the running turn takes a message of the inbox: in the middle, or when it would end."""

    STEER = "steer"
    FOLLOW_UP = "follow_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    A message that waits in the inbox.

    Attributes:
        number: Counts from 1 within the context, never reused; the order of arrival.
        actor_id: The sender. Only a turn of the same actor takes it.
    """

    number: int
    kind: EntryKind
    message: UserMessage
    actor_id: str | None = None
    created_at: datetime


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class InboxHead:
    """
    The state of the inbox in the row of a context.

    Attributes:
        last: Raised by each message and each request to cancel; 0 for none. A reader that has seen
            the inbox up to this number has seen everything in it.
        waiting: How many messages wait.
        cancel_turn: The open turn that was asked to stop, or `None`.
    """

    last: int = 0
    waiting: int = 0
    cancel_turn: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecord:
    """
    A context without its messages.

    Attributes:
        epoch: Raised by each claim and by `clear`, by a random step; every write of a turn names
            the epoch of its claim.
        turn_count: Accepted turns.
        last_position: Position of the newest message, hidden ones included; 0 for none.
        last_seq: Number of the newest event; 0 for none.
        visible_from: Messages below this position were cleared: no method reads them. 1 if no
            message was.
        cleared_seq: `seq` of the newest `history_cleared`, where the readable log begins; 0 for
            none.
        hidden: Ranges of positions that were rewound, in order: kept on record, and not read
            who does not ask for them.
        open_turn: The turn without an end, or `None`.
        holder: The holder of the lease (`Owner.token()`), or `None`.
        lease_live: True if the lease had not expired, by the store's clock, when this was read.
        lease_until: When it expires, by a clock of the store's own. A renewal and a commit change
            it; use it only for comparing.
        owner_actor: The actor of the first turn, or `None`.
        tags: The application's words for this context, sorted; see `ContextIndex.tag`.
        inbox: Messages and cancel requests from outside the turn.
        version: Raised by each write of `metadata`.
        created_at, last_activity: By the store's clock. Each claim, commit and append is an
            activity, and so is a message to the inbox; metadata and tags are not.
    """

    context_id: str
    epoch: int
    turn_count: int
    last_position: int
    last_seq: int
    visible_from: int = 1
    cleared_seq: int = 0
    hidden: Sequence[tuple[int, int]] = ()
    open_turn: TurnRecord | None = None
    holder: str | None = None
    lease_live: bool = False
    lease_until: float = field(default=0.0, compare=False)
    owner_actor: str | None = None
    tags: Sequence[str] = ()
    inbox: InboxHead = field(default_factory=InboxHead)
    state: ContextState = field(default_factory=ContextState)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    created_at: datetime
    last_activity: datetime


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    A request to own a context for one turn, with the first events of that turn.

    Attributes:
        holder: `Owner.token()` of the claimer.
        expected_epoch: The epoch the claimer knows; 0 for a context it believes does not exist.
        displace: The `holder` that the claimer has proved dead, or `None`.
        recover: Take over the open turn instead of starting one; `events` is then empty.
        events: `TurnStart`, an `ApprovalDecided` for each approval that was answered, then a
            `MessageEnd` for each first message, in order. Their `turn` and `seq` are ignored.
        delivered: Numbers of the inbox entries whose messages are among `events`: they leave it.
        key: Names this turn for the life of the context, with `input_hash`; see
            `Journal.turn_of_key`. `None`: it has no name.
        ticket: The claimer's place in the queue, which it leaves; `None` if it did not wait.
        state: Replaces the stored one, or `None` to leave it.
        process: The claimer's name for people, as in the `TurnStart`. It stays with the turn: the
            process that ran it, or that took it over. `None`: it is not recorded.
    """

    context_id: str
    holder: str
    ttl_s: float
    expected_epoch: int
    displace: str | None = None
    recover: bool = False
    events: Sequence[AgentEvent] = ()
    actor_id: str | None = None
    had_auth: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    delivered: Sequence[int] = ()
    key: str | None = None
    input_hash: str | None = None
    ticket: int | None = None
    state: ContextState | None = None
    process: str | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The result of a claim: the new epoch, the turn, and the numbers of its first events."""

    epoch: int
    turn: int
    first_seq: int
    first_position: int
    inbox: InboxHead = field(default_factory=InboxHead)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPart:
    """
    A part of an artifact's content that is outside its row.

    Attributes:
        size: Its bytes. `sha256`: their hex digest.
        rows: How many rows of a dataset it holds.
        blob: Its name in the blob store, or `None` if the database holds `data`. Unless it is
            shared, an upload holds it, which the commit ends.
        shared: The name was found in a row: the commit checks that some row still has it.
    """

    size: int
    sha256: str
    rows: int = 0
    blob: str | None = None
    data: bytes | None = field(default=None, repr=False)
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactWrite:
    """
    A version to save or to begin, checked and serialised.

    Attributes:
        stored: JSON text of a data artifact, bytes of any other; what follows `parts`.
        parts: The content before `stored`, in order.
        status: `building` for a version that is opened.
        size, sha256: Of the whole content; `None`: as in `stored`.
        metadata, columns: As JSON text.
    """

    artifact_id: str
    kind: ArtifactKind
    stored: str | bytes = field(repr=False)
    media_type: str
    parts: Sequence[ArtifactPart] = ()
    status: ArtifactStatus = ArtifactStatus.COMPLETE
    size: int | None = None
    sha256: str | None = None
    rows: int = 0
    description: str | None = None
    metadata: str | None = None
    columns: str | None = None

    @property
    def raw(self) -> bytes:
        """The bytes that size and hash are computed from."""
        return self.stored.encode() if isinstance(self.stored, str) else self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactGrowth:
    """
    A change of a version that is being built: a longer content, its end, or both.

    Attributes:
        version: Must be the newest one, and be building.
        size_before: Must be its size; otherwise another writer appended, and nothing is written.
        parts: New ones, in order.
        tail: Bytes after all parts, old and new; replaces the stored ones.
        size: Of the whole content from now on; `rows` likewise.
        part_count: How many parts it has from now on.
        status: Its new status. `sha256`: of the whole content, once it is complete.
    """

    artifact_id: str
    version: int
    size_before: int
    parts: Sequence[ArtifactPart] = ()
    tail: bytes = field(default=b"", repr=False)
    size: int
    rows: int = 0
    part_count: int = 0
    status: ArtifactStatus = ArtifactStatus.BUILDING
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactDeletion:
    """
    An artifact to remove with all its versions; the id is one that an artifact can have.

    Attributes:
        freed: The store adds the names of the blobs that it had, as the commit finds them. Those
            that no other artifact has are removed afterwards.
    """

    artifact_id: str
    freed: list[str] = field(default_factory=list, compare=False)


ArtifactChange: TypeAlias = ArtifactWrite | ArtifactGrowth | ArtifactDeletion
"""A change of one artifact, as a step of a turn or outside of turns."""


class ArtifactMoved(Exception):
    """
    The change was made for another state of the artifact, or of its blobs; nothing was written. For
    the code that prepares changes, which looks again, never for a user.
    """


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """
    One step of a turn, applied whole or not at all.

    Attributes:
        epoch: The epoch of the claim. If the store has another one, nothing is written and `Fenced`
            is raised.
        turn: The turn the events belong to.
        known_seq: The newest `seq` of the context that the owner knows. If the store has not come
            so far, it went back: nothing is written and `CommitsLost` is raised. 0: it may have.
        events: Durable events in order. A `MessageEnd` also appends its message; a `TurnEnd` closes
            the turn; each takes the next `seq`.
        assistant_position: Position of the assistant message whose calls are being run, when it is
            not among `events`.
        artifact: A change of one artifact, in the same step; `events` is then its one
            `ArtifactUpdate`. The store fills in its kind, and its version: the one that is written,
            or the newest that is deleted.
        artifacts: Changes of artifacts in the same step, in order; each is reported by one of the
            `ArtifactUpdate`s among `events`, in the same order. The store fills in as above. Not
            beside `artifact`.
        state: Replaces the stored one, or `None` to leave it.
        delivered: Numbers of the inbox entries whose messages are among `events`: they leave it.
        heard: For a commit that ends the turn: write it only if the inbox has no newer entry than
            this number. `None`: end it in any case.
        release: Give the lease back. Otherwise it is renewed for `ttl_s`.
    """

    context_id: str
    epoch: int
    turn: int
    events: Sequence[AgentEvent]
    known_seq: int = 0
    assistant_position: int | None = None
    artifact: ArtifactChange | None = None
    artifacts: Sequence[ArtifactChange] = ()
    state: ContextState | None = None
    delivered: Sequence[int] = ()
    heard: int | None = None
    release: bool = False
    ttl_s: float = 10.0


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """
    The numbers that a commit assigned: of its first event, and of its first message (or the next
    one).

    `artifact` is the version that it wrote, or the newest one that it deleted.
    """

    first_seq: int
    first_position: int
    inbox: InboxHead = field(default_factory=InboxHead)
    artifact: Artifact | None = None


class InboxNews(Exception):
    """
    The inbox has news that the turn has not read, so the turn does not end yet; nothing was
    written. For the code that commits, never for a user.
    """

    def __init__(self, inbox: InboxHead) -> None:
        super().__init__(inbox)
        self.inbox = inbox


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSummary:
    """
    A summary to append between two turns.

    Attributes:
        message: See `looopy.types.summary`.
        epoch: The epoch at which the context was read.
        tokens_before, tokens_after, unread, undoes: For its event.
        usage: The usage of writing it, which is added to the context's.
    """

    message: CustomMessage
    epoch: int
    tokens_before: int = 0
    tokens_after: int = 0
    unread: int = 0
    undoes: int | None = None
    usage: Usage = NO_USAGE

    def events(
        self,
        context_id: str,
        *,
        turn: int,
        last_position: int,
        visible_from: int,
        hidden: Sequence[tuple[int, int]] = (),
    ) -> tuple[MessageEnd, Compaction]:
        """A summary to append to a context that has this epoch."""
        position = last_position + 1
        covers = (visible_from, before(last_position, kept_by(self.message), hidden))
        said = MessageEnd(context_id=context_id, turn=turn, message=self.message, position=position)
        compaction = Compaction(
            context_id=context_id,
            turn=turn,
            position=position,
            covers=covers,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            unread=self.unread,
            undoes=self.undoes,
        )
        return said, compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A place in the queue for a context; `alive` is true if it was renewed lately."""

    ticket: int
    holder: str
    alive: bool


INBOX_LIMIT = 256
"""How many messages of one actor may wait in the inbox of a context."""
