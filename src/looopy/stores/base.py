"""
What a store promises: three narrow protocols, and the one write path of a turn.

`MessageStore`, `ArtifactStore` and `StateStore` are bound to one tenant; `context_id` always comes
first. What a durable turn needs besides (claims, fenced commits, the event log) is the `Journal`.
The stores of one backend share a journal, and then everything that one step of a turn produces is
one commit, applied whole or not at all.

The order that keeps every promise: claim (with the user message), run, commit, announce. Each
commit carries the epoch of its claim; a claim raises the epoch, so whoever lost a context can write
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from looopy.stores.bells import Bells
from looopy.types.artifact import Artifact, ArtifactKind
from looopy.types.event import AgentEvent
from looopy.types.message import Message, StopReason, Usage, UserMessage
from looopy.types.state import Outcome, PendingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """
    A stored message and its place. `position` counts from 1 within the context, `seq` in its log.
    """

    position: int
    turn: int
    iteration: int
    seq: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """
    A turn as it is stored.

    Attributes:
        had_auth: Whether the turn was given an `AuthContext`; the context itself is never stored.
        outcome: `None` while the turn is open: running, or left by a process that died.
        first_position: The first message it may have added, `last_position` the last;
            `last_position` is smaller when there is none.
        start_seq: `seq` of its `turn_start`; `end_seq` of its `turn_end`, `None` while open.
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
    usage: Usage = field(default_factory=Usage)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """
    What the next turn must know of a context; replaced whole by the commits that change it.

    Attributes:
        pending: Requests that wait for an answer.
        answered: Requests that were answered while others still wait, with their values.
        error: Class name and message of the last turn's failure, or `None`.
        resumable: The last turn, when `execute_turn(None)` can go on from it: interrupted or
            failed.
        usage: Tokens and cost of all turns.
    """

    pending: Sequence[PendingRequest] = ()
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    error: tuple[str, str] | None = None
    resumable: int | None = None
    usage: Usage = field(default_factory=Usage)


class EntryKind(StrEnum):
    """When a message of the inbox is said: within the running turn, or once it would end."""

    STEER = "steer"
    FOLLOW_UP = "follow_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    A message that waits to be said.

    Attributes:
        number: Counts from 1 within the context, never used again; the order of arrival.
        actor_id: Who sent it. Only a turn of the same actor takes it.
    """

    number: int
    kind: EntryKind
    message: UserMessage
    actor_id: str | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxHead:
    """
    What the row of a context says of its inbox.

    Attributes:
        last: Raised by each message and each request to cancel; 0 for none. Whoever has looked at
            the inbox up to here has seen all there is.
        waiting: How many messages wait.
        cancel_turn: The open turn that was asked to stop, or `None`.
    """

    last: int = 0
    waiting: int = 0
    cancel_turn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecord:
    """
    A context without its messages.

    Attributes:
        epoch: Raised by each claim and by `clear`; every write of a turn names the epoch of its
            claim.
        turn_count: Accepted turns.
        last_position: Position of the newest message, hidden ones included; 0 for none.
        last_seq: Number of the newest event; 0 for none.
        visible_from: Messages below this position were cleared: no method reads them. 1 when none
            were.
        cleared_seq: `seq` of the newest `history_cleared`, where the readable log begins; 0 for
            none.
        open_turn: The turn without an end, or `None`.
        holder: Who holds the lease (`Owner.token()`), or `None`.
        lease_live: Whether the lease had not expired by the store's clock when this was read.
        owner_actor: The actor of the first turn, or `None`.
        inbox: What has come in beside the turns.
        version: Raised by each write of `metadata`.
    """

    context_id: str
    epoch: int
    turn_count: int
    last_position: int
    last_seq: int
    visible_from: int = 1
    cleared_seq: int = 0
    open_turn: TurnRecord | None = None
    holder: str | None = None
    lease_live: bool = False
    owner_actor: str | None = None
    inbox: InboxHead = field(default_factory=InboxHead)
    state: ContextState = field(default_factory=ContextState)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    created_at: datetime
    last_activity: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    A wish to own a context for one turn, with what that turn begins with.

    Attributes:
        holder: `Owner.token()` of the claimer.
        expected_epoch: The epoch the claimer knows; 0 for a context it believes does not exist.
        displace: The `holder` that the claimer has proved dead, or `None`.
        recover: Take over the open turn instead of starting one; `events` is then empty.
        events: `TurnStart`, then a `MessageEnd` for each first message, in order. Their `turn` and
            `seq` are not looked at.
        delivered: Numbers of the inbox entries whose messages are among `events`: they leave it.
        key: Names this turn for as long as the context lives, with `input_hash`; see
            `Journal.turn_of_key`. `None`: it has no name.
        ticket: The claimer's place in line, which it leaves; `None` for one who has not waited.
        state: Replaces the stored one, or `None` to leave it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a claim was given: the new epoch, the turn, and the numbers of its first events."""

    epoch: int
    turn: int
    first_seq: int
    first_position: int
    inbox: InboxHead = field(default_factory=InboxHead)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactWrite:
    """A version to save, checked and serialised: JSON text of a data artifact, bytes of a file."""

    artifact_id: str
    kind: ArtifactKind
    stored: str | bytes
    media_type: str

    @property
    def raw(self) -> bytes:
        """What size and hash are taken of."""
        return self.stored.encode() if isinstance(self.stored, str) else self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """
    One step of a turn, applied whole or not at all.

    Attributes:
        epoch: Of the claim. Another one in the store: nothing is written and `Fenced` is raised.
        turn: The turn the events belong to.
        events: Durable events in order. A `MessageEnd` also appends its message; a `TurnEnd` closes
            the turn; each takes the next `seq`.
        assistant_position: Position of the assistant message whose calls are being run, when it is
            not among `events`.
        artifact: A version to save in the same step; `events` is then its one `ArtifactUpdate`, and
            the version in that is the one handed out.
        state: Replaces the stored one, or `None` to leave it.
        delivered: Numbers of the inbox entries whose messages are among `events`: they leave it.
        heard: For a commit that ends the turn: write it only if nothing has come into the inbox
            after this number. `None`: end it whatever waits.
        release: Give the lease back. Otherwise it is renewed for `ttl_s`.
    """

    context_id: str
    epoch: int
    turn: int
    events: Sequence[AgentEvent]
    assistant_position: int | None = None
    artifact: ArtifactWrite | None = None
    state: ContextState | None = None
    delivered: Sequence[int] = ()
    heard: int | None = None
    release: bool = False
    ttl_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """
    The numbers a commit handed out: of its first event, and of its first message (or the next one).
    """

    first_seq: int
    first_position: int
    inbox: InboxHead = field(default_factory=InboxHead)
    artifact: Artifact | None = None


class InboxNews(Exception):
    """
    Something came into the inbox that the turn has not heard of, so it does not end yet; nothing
    was written. For the one who commits, never for a user.
    """

    def __init__(self, inbox: InboxHead) -> None:
        super().__init__(inbox)
        self.inbox = inbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Somebody who waits in line for a context; `alive` says that it has been heard of lately."""

    ticket: int
    holder: str
    alive: bool


class MessageStore(Protocol):
    """
    Keeps what was said, in order.

    Positions start at 1, are handed out without gaps and never used again; the visible history may
    have holes (cleared). What was appended is read back equal, or was refused before anything was
    written.
    """

    async def append(self, context_id: str, messages: Sequence[Message]) -> int:
        """
        Add *messages* to the end of a context: all of them or none.

        Args:
            context_id: Created on first use.
            messages: Oldest first. Empty: nothing is written.

        Returns:
            The position of the last message of the context; 0 if there is none.

        Raises:
            ValueRefused: A value cannot be stored faithfully; `path` names it (`/0/content`).
            AgentBusy: A turn runs on this context.
            StoreUnavailable: The store did not answer.

        The epoch is raised, so that an agent that knew the context reads them before its next turn.
        Once this returns, the messages survive a killed process (in memory: until it ends).
        """
        ...

    async def records(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,
    ) -> list[MessageRecord]:
        """As `list`, with each message's place."""
        ...

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        """The newest *limit* visible messages, oldest first. Reads no more than it returns."""
        ...

    async def count(self, context_id: str, *, include_hidden: bool = False) -> int:
        """How many messages there are; 0 for an unknown context."""
        ...

    async def list(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,
    ) -> list[Message]:
        """
        The messages with a position over *after*, oldest first, at most *limit*; [] if unknown.
        """
        ...


class ArtifactStore(Protocol):
    """Keeps named, versioned results. A version, once saved, never changes."""

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: bytes | str | Mapping[str, Any],
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
    ) -> Artifact:
        """
        Save the next version of an artifact; the context is created on first use.

        Args:
            artifact_id: 1 to 256 characters, none of them a control character. Data, never a path.
            content: `bytes` or `str` (UTF-8) for a file, a JSON object for data.
            kind: `file` or `data`; by default what the content's type says.
            media_type: By default `application/octet-stream`, `text/plain; charset=utf-8` or
                `application/json`.

        Raises:
            ValueRefused: The id, the kind for this content, or a value inside it; nothing was
                written.
            StoreUnavailable: The store did not answer.
        """
        ...

    async def load(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> bytes | dict[str, Any]:
        """
        The content of a version, the newest by default: bytes of a file, the object of a data
        artifact.

        Raises:
            ArtifactNotFound: No such artifact or version in this context.
        """
        ...

    async def list(self, context_id: str) -> list[Artifact]:
        """The newest version of each artifact, by id; [] for an unknown context."""
        ...

    async def delete(self, context_id: str, artifact_id: str) -> None:
        """
        Remove all versions of an artifact.

        Raises:
            ArtifactNotFound: There is none.
        """
        ...


class StateStore(Protocol):
    """Keeps what a context is: its counts, its metadata, and who may write to it now."""

    async def load(self, context_id: str) -> ContextRecord | None:
        """The context, or `None` if it is unknown."""
        ...

    async def save(self, context_id: str, metadata: Mapping[str, Any], *, version: int) -> int:
        """
        Replace the metadata; the context is created if *version* is 0 and it is unknown.

        Returns:
            The new version.

        Raises:
            StoreConflict: Another writer was first.
            ValueRefused: The metadata cannot be stored faithfully.
        """
        ...

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        """Contexts whose id sorts after *after*, by id, at most *limit*."""
        ...

    async def delete(self, context_id: str) -> None:
        """
        Remove a context with everything in it.

        Raises:
            ContextNotFound: There is none.
            AgentBusy: A turn runs on it.
        """
        ...

    async def claim(self, claim: Claim) -> Claimed:
        """
        Own a context for a turn: raise its epoch, take the lease, store what the turn begins with.

        Raises:
            AgentBusy: Another holder's lease is live and was not displaced, and `turn` names its
                turn; or somebody who came earlier waits in line.
            StoreConflict: The epoch is not the expected one, or (without `recover`) a turn is open,
                or (with it) none is. Read the context again.
            ValueRefused: A message cannot be stored faithfully; nothing was written.
        """
        ...

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        """Prolong the lease of *epoch*; `False` when the context has moved on."""
        ...

    async def release(self, context_id: str, epoch: int) -> None:
        """Give the lease of *epoch* back; does nothing when the context has moved on."""
        ...

    async def join_line(self, context_id: str, holder: str, ttl_s: float) -> int:
        """
        Take a place at the end of the line of those who wait for a context; it is created on first
        use.

        Returns:
            The ticket. Tickets rise in order of arrival. A place is kept for *ttl_s* seconds by the
            store's clock, and longer by `keep_place`; one that was not kept holds up nobody.
        """
        ...

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        """Keep a place for another *ttl_s*; `False` when it is no longer there."""
        ...

    async def leave_line(self, context_id: str, ticket: int) -> None:
        """Give a place up; does nothing when it is no longer there."""
        ...

    async def line(self, context_id: str) -> Sequence[Waiter]:
        """Who waits for a context, first come first; [] for an unknown one."""
        ...


class Journal(Protocol):
    """What a durable turn needs beside the three stores; see `Stores`."""

    @property
    def bells(self) -> Bells:
        """Rung when a context has changed, from any process."""
        ...

    async def commit(self, commit: Commit) -> Committed:
        """
        Apply one step of a turn.

        Raises:
            Fenced: The context has another epoch; nothing was written.
            InboxNews: `heard` is not the newest; nothing was written.
            ValueRefused: A value cannot be stored faithfully; nothing was written.
            StoreUnavailable: The store did not answer; `outcome_known` says whether nothing was
                written.
        """
        ...

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        """
        Hide the history, drop artifacts and pending requests, empty the inbox, raise the epoch.

        Returns:
            The new epoch. Positions, `seq` and the turn count go on. A `HistoryCleared` event is
            stored.

        Raises:
            AgentBusy: A turn is open and *force* is false. With it, the turn is fenced and ended as
                `interrupted`.
            ContextNotFound: There is none.
        """
        ...

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        """
        The durable events with a `seq` over *after*, in order, gapless, at most *limit*.

        The log begins at the newest `history_cleared`: an *after* below it gets that event first.
        """
        ...

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        """The turns numbered over *after*, oldest first."""
        ...

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        """Ids of the tool calls of *turn* whose `tool_execution_start` was stored."""
        ...

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        """The turn that was claimed with *key*, and its `input_hash`; `None` if there is none."""
        ...

    # --- the inbox ---

    async def post(
        self,
        context_id: str,
        kind: EntryKind,
        message: UserMessage,
        *,
        actor_id: str | None = None,
        expected_turn: int | None = None,
    ) -> int:
        """
        Put a message into the inbox; the context is created on first use.

        Args:
            actor_id: Who sends it. While a turn is open, its actor; before, the context's owner,
                where there is one.
            expected_turn: Only if this turn is open.

        Returns:
            The number of the entry. Once this returns, the message survives a killed process.

        Raises:
            AccessDenied: The open turn is another actor's; or none is open, and the context is.
            TurnMismatch: Another turn is open, or none.
            LimitExceeded: `INBOX_LIMIT` messages of this actor wait already.
            ValueRefused: The message cannot be stored faithfully.
        """
        ...

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        """The head of the inbox and the entries numbered over *after*, of one moment, in order."""
        ...

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        """
        Ask the open turn to stop, if it is *turn* or that is `None`.

        Returns:
            The turn that was asked; `None` when there was none to ask, and nothing was written.
        """
        ...


INBOX_LIMIT = 256
"""How many messages of one actor may wait in the inbox of a context."""
