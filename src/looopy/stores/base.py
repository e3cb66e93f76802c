"""
The contract of a store: three narrow protocols, and the one write path of a turn.

`MessageStore`, `ArtifactStore` and `StateStore` are bound to one tenant; `context_id` always comes
first. The `Journal` adds what a durable turn needs: claims, fenced commits, the event log. The
stores of one backend share a journal, so everything that one step of a turn produces is one commit,
applied whole or not at all. Their arguments and results are in `looopy.stores.records`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from looopy.stores.contexts.spending import NOTHING, TENANT, Allowance, Amount, Held, Place, Spent
from looopy.stores.notifier import Notifier
from looopy.stores.records import (
    ArtifactChange,
    Claim,
    Claimed,
    Commit,
    Committed,
    ContextRecord,
    Entry,
    EntryKind,
    InboxHead,
    MessageRecord,
    NewSummary,
    TurnRecord,
    Waiter,
)
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus, Chunk, Content, Loaded
from looopy.types.event import AgentEvent, Compaction, HistoryRewound
from looopy.types.message import Message, UserMessage
from looopy.types.state import AgentStatus

if TYPE_CHECKING:
    from looopy.stores.contexts.erasing import Erased
    from looopy.stores.contexts.lineage import Lineage
    from looopy.stores.contexts.listing import ContextPage, ContextSize
    from looopy.stores.contexts.search import SearchPage
    from looopy.stores.contexts.snapshot import ContextSnapshot, RestoredContext
    from looopy.stores.requests import Request


class MessageStore(Protocol):
    """
    Keeps the messages of a context, in order.

    Positions start at 1, have no gaps and are never reused; the visible history may have holes
    (cleared). A message is read back equal, or was refused before anything was written.
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
        """
        Like `list`, with each message's place.

        Args:
            include_hidden: Messages that were rewound as well (`Journal.rewind`).
        """
        ...

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        """
        The newest *limit* visible messages, oldest first. Reads no more than it returns.

        Raises:
            ValueRefused: The limit is not a whole number from 0.
        """
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

        Raises:
            ValueRefused: *after* is not a whole number, or the limit is not one from 0.
        """
        found = await self.records(
            context_id, after=after, limit=limit, include_hidden=include_hidden
        )
        return [record.message for record in found]


class ArtifactStore(Protocol):
    """
    Keeps named, versioned results of three kinds.

    A file is bytes, a data artifact one JSON object, a dataset rows with typed columns. A version
    is saved whole, or opened, appended to and completed. A complete version never changes.

    Changes of one artifact are made in the order in which they were requested from this object, and
    changes of different artifacts do not wait for each other. Bytes are returned only if they have
    the hash that was stored with them.
    """

    async def save(
        self,
        context_id: str,
        artifact_id: str,
        content: Content,
        *,
        kind: ArtifactKind | str | None = None,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Artifact:
        """
        Save the next version of an artifact; the context is created on first use.

        Args:
            artifact_id: 1 to 256 characters, none of them a control character. Data, never a path.
            content: `bytes` or `str` (UTF-8) of a file, a JSON object, or a list of rows.
            kind: By default the content's type decides.
            media_type: By default `application/octet-stream`, `text/plain; charset=utf-8`,
                `application/json` or `application/x-ndjson`.
            description: A sentence for people and models.
            metadata: A JSON object.
            columns: For a dataset, and only for one: types by name. The types are `string`,
                `number`, `integer`, `boolean` and `any`. A value may also be null or absent.

        Raises:
            ValueRefused: The id, the kind for this content, or a value inside it; nothing was
                written. `path` names the place, such as `/content/3/name`.
            StoreUnavailable: The store did not answer.
        """
        ...

    async def open(
        self,
        context_id: str,
        artifact_id: str,
        *,
        kind: ArtifactKind | str = ArtifactKind.FILE,
        media_type: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Artifact:
        """
        Begin the next version of a file or dataset, empty and `building`; arguments as for `save`.

        An earlier version that is still being built has failed from then on.

        Raises:
            ValueRefused: Same as `save`; also for the kind `data`, which is saved whole.
        """
        ...

    async def append(
        self,
        context_id: str,
        artifact_id: str,
        chunk: Chunk,
        *,
        version: int | None = None,
        last: bool = False,
    ) -> Artifact:
        """
        Append to the version that is being built.

        Args:
            chunk: Bytes or text of a file, rows of a dataset. It may be empty.
            version: Only if this is the version.
            last: Complete the version in the same step.

        Returns:
            The version with its new size. Once this returns, the chunk survives a killed process.

        Raises:
            ArtifactNotFound: There is no such artifact or version.
            StoreConflict: The version is complete or has failed; nothing was written.
            ValueRefused: The kind, or a row that breaks the columns; nothing was written.
        """
        ...

    async def complete(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> Artifact:
        """End the version that is being built; it now has its hash. Errors as `append`."""
        ...

    async def fail(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> Artifact:
        """Give the version that is being built up; what it holds stays readable by its number."""
        ...

    async def load(self, context_id: str, artifact_id: str, version: int | None = None) -> Loaded:
        """
        The content of a version: bytes, an object, or a list of rows.

        Args:
            version: Also one that is not complete. `None`: the newest complete one.

        Raises:
            ArtifactNotFound: No such artifact or version in this context.
            ArtifactDamaged: Bytes have vanished or were altered; nothing is returned.
        """
        ...

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        start: int = 0,
        size: int | None = None,
        version: int | None = None,
    ) -> bytes:
        """*size* bytes of the content from *start*; fewer at its end. Errors as `load`."""
        ...

    def stream(
        self, context_id: str, artifact_id: str, *, version: int | None = None
    ) -> AsyncIterator[bytes]:
        """The content in pieces of at most 8 MiB, in order. Errors as `load`, at any piece."""
        ...

    async def rows(
        self,
        context_id: str,
        artifact_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        version: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        At most *limit* rows of a dataset after the first *after*. Raises the errors of `load`.

        Raises:
            ValueRefused: It is not a dataset.
        """
        ...

    async def get(self, context_id: str, artifact_id: str, version: int | None = None) -> Artifact:
        """
        A version without its content; by default the newest, complete or not.

        Raises:
            ArtifactNotFound: No such artifact or version in this context.
        """
        ...

    async def versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """
        All versions, oldest first.

        Raises:
            ArtifactNotFound: No such artifact in this context.
        """
        ...

    async def list(
        self,
        context_id: str,
        *,
        turn: int | None = None,
        kind: ArtifactKind | str | None = None,
        status: ArtifactStatus | str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Artifact]:
        """
        The newest version of each artifact, by id; [] for an unknown context.

        Args:
            turn, kind, status: Only those whose newest version has them.
            after: Only ids that sort after this one. `limit`: at most so many.
        """
        ...

    async def delete(self, context_id: str, artifact_id: str) -> None:
        """
        Remove all versions of an artifact.

        This is for the application, outside of turns: it needs no claim and stores no event. A tool
        deletes by `ToolContext.artifacts`, as a step of its turn (`Commit.artifact`).

        Raises:
            ArtifactNotFound: The context has no artifact of this id.
        """
        ...

    async def change(
        self,
        context_id: str,
        request: Request,
        commit: Callable[[ArtifactChange], Awaitable[Artifact]] | None = None,
    ) -> Artifact:
        """
        Prepare a change in its turn among the artifact's changes, and have it committed.

        Args:
            request: See `looopy.stores.requests`.
            commit: Makes the commit. It may be called again if that raised `ArtifactMoved`. `None`:
                the commit is one of its own.
        """
        ...

    async def collect(self, grace_s: float) -> int:
        """
        Remove bytes that no version refers to and that are older than *grace_s*, and count them.

        Such bytes are left by a process that died between writing them and its commit. Bytes of a
        save that is on its way, or of a buffered turn, are held by their process and stay, whatever
        the grace time. They are held no longer than a day; a commit that comes after they were
        removed is refused. The stores look for such bytes now and then by themselves.
        """
        ...


class StagedArtifactStore(ArtifactStore, Protocol):
    """
    An `ArtifactStore` whose changes wait for a commit, and whose reads see them.

    `change` still stores large parts at once, and holds them for a day. If the process dies before
    the commit, `collect` removes them.
    """

    async def hold(self, context_id: str, change: ArtifactChange, *, turn: int) -> Artifact:
        """
        Keep a change that `change` has prepared, for `Commit.artifacts`.

        Args:
            turn: The turn that makes it.

        Raises:
            ArtifactMoved: It was made for another state.
            ArtifactNotFound: There is no artifact to delete.
        """
        ...

    async def renew(self, changes: Sequence[ArtifactChange]) -> str | None:
        """
        Keep the large parts of waiting changes from `collect` for another day.

        Returns:
            An artifact whose parts were not kept any more, or `None`: a commit would be refused.
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
        """
        Contexts whose id sorts after *after*, by id, at most *limit*.

        Raises:
            ValueRefused: *after* is not text, or the limit is not a whole number from 0.
        """
        ...

    async def delete(self, context_id: str) -> None:
        """
        Remove a context with everything in it, and the contexts that work for it.

        Raises:
            ContextNotFound: The context does not exist.
            AgentBusy: A turn runs on one of them; nothing was removed.
        """
        ...

    async def claim(self, claim: Claim) -> Claimed:
        """
        Own a context for a turn: raise its epoch, take the lease, store what the turn begins with.

        Raises:
            AgentBusy: Another holder's lease is live and was not displaced, and `turn` names its
                turn; or other turns are queued for this context.
            StoreConflict: The epoch is not the expected one, or (without `recover`) a turn is open,
                or (with it) none is. Read the context again.
            ValueRefused: A message cannot be stored faithfully; nothing was written.
        """
        ...

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        """
        Prolong the lease of *epoch*; `False` when the context has moved on.

        Raises:
            ValueRefused: The epoch is not a whole number, or *ttl_s* no number of seconds from 0.
        """
        ...

    async def release(self, context_id: str, epoch: int) -> None:
        """
        Give the lease of *epoch* back; does nothing when the context has moved on.

        Raises:
            ValueRefused: The epoch is not a whole number.
        """
        ...

    async def leave(self, context_id: str, epoch: int, status: AgentStatus) -> None:
        """
        Note in the state that an agent is `paused` or `shutdown`; `ready` removes the note.

        It is no activity, and does nothing if a turn is open or the context has moved on.

        Raises:
            ValueRefused: The epoch is not a whole number, or it is another status.
        """
        ...

    async def join_wait_queue(self, context_id: str, holder: str, ttl_s: float) -> int:
        """
        Take a place at the end of the queue for a context; the context is created on first use.

        Returns:
            The ticket. Tickets rise in order of arrival. A place is kept for *ttl_s* seconds by the
            store's clock, and longer by `keep_place`; an expired place blocks no claim.
        """
        ...

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        """Keep a place for another *ttl_s*; `False` when it is no longer there."""
        ...

    async def leave_wait_queue(self, context_id: str, ticket: int) -> None:
        """Give a place up; does nothing when it is no longer there."""
        ...

    async def wait_queue(self, context_id: str) -> Sequence[Waiter]:
        """The waiters for a context, first come first; [] for an unknown one."""
        ...


class ContextIndex(Protocol):
    """
    Lists contexts, the last active first (`ContextRecord.last_activity`), and searches messages.

    A listing knows every commit that was acknowledged before it began, and so does a search. Each
    brings its index up to date first, so the first one after many turns takes longer.
    """

    async def list(
        self,
        *,
        owner: str | None = None,
        status: AgentStatus | str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        active_since: datetime | None = None,
        active_before: datetime | None = None,
        due: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> ContextPage:
        """
        A page of the contexts that meet all conditions, the last active first.

        Args:
            owner: The actor of the first turn (`ContextRecord.owner_actor`).
            status: `ready`, `busy`, `waiting` or `failed`. A turn whose lease has expired does not
                count: its context is `ready`, or `waiting` if the turn stored an answer and left
                other requests open.
            tags: All of them; see `tag`.
            metadata: Each entry equal. The value is a text, a whole number or a boolean. Only the
                first 64 such entries of a context count, by key, and none that has more than 200
                characters as JSON.
            active_since, active_before: Last active at or after a moment, and before one.
            due: Only contexts that need an action: a turn whose process died, an interrupted turn
                that can be continued, messages in the inbox, a request that has expired; always
                while no turn runs.
            after: The `next` of the page before, with the same conditions except the moments. A
                context that becomes active between two pages moves to the front and is not
                listed again. No other one is left out or repeated.
            limit: At most so many.

        Raises:
            ValueRefused: A condition is invalid, or *after* belongs to another listing; `path`
                names it.
            LimitExceeded: More than 8 tags and entries of metadata.
        """
        ...

    async def running(self, *, owner: str | None = None, limit: int = 50) -> Sequence[str]:
        """
        The ids of contexts in which a turn runs now, in any process, at most *limit*, by id.

        A turn whose lease has expired does not run. Unlike `list`, this writes nothing, unless very
        many contexts have changed since the last listing.

        Args:
            owner: Only contexts of this owner (`ContextRecord.owner_actor`).

        Raises:
            ValueRefused: The owner cannot be one, or the limit is not a whole number from 0.
        """
        ...

    async def sizes(self, *, after: str = "", limit: int = 32) -> Sequence[ContextSize]:
        """
        How many bytes each context has, by id, at most *limit*.

        This reads the rows of each of these contexts, so it is for a count now and then.

        Args:
            after: Only ids that sort after this one.

        Raises:
            ValueRefused: *after* is not text, or the limit is not a whole number from 0.
        """
        ...

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> SearchPage:
        """
        A page of the messages that have all words of a query, the newest first.

        A search finds the messages that `MessageStore.list` returns, also ones that a summary
        covers. It reads texts, tool calls and results, in the first 100,000 characters of a
        message. Case, accents and compatibility forms make no difference.

        A database first adds the messages to its index that are not there yet, in many small
        transactions. Turns continue meanwhile. If this is cancelled or killed, the next search
        adds the others.

        Args:
            query: Words, in any order; `"a phrase"` for words that follow each other; `beginn*` for
                the beginning of a word. A word with punctuation inside, such as `a-b`, is a phrase.
                Every other character separates words: there are no operators.
            context_id: Only in this context. `None`: in all, in the order of `list`; then the
                newest message of a context comes first.
            owner: Only in contexts of this owner (`ContextRecord.owner_actor`).
            after: The `next` of the page before, which had the same words and conditions. A context
                that becomes active between two pages moves to the front and is not searched again.
            limit: At most so many.

        Raises:
            ValueRefused: The query has no words, or is longer than 1,000 characters or 32 words and
                phrases; or another argument is invalid. `path` names it.
        """
        ...

    async def tag(
        self, context_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """
        Add tags to a context and remove others; a tag in both lists is removed.

        Returns:
            All its tags now, sorted. Turns and their owners are not disturbed.

        Raises:
            ContextNotFound: The context does not exist.
            ValueRefused: A tag is not 1 to 64 characters without control characters; `path` names
                it.
            LimitExceeded: The context would have more than 32 tags; nothing was changed.
        """
        ...

    async def erase(
        self,
        context_id: str,
        *,
        owner: str | None = None,
        force: bool = False,
        keep_backups: bool = False,
    ) -> Erased:
        """
        Remove a context and all that is in it, also from the files in which it was stored.

        Once this returns, the content is in no table, no log and no blob of these stores, nor in a
        copy that a migration has left, and no turn that still runs can bring it back. It does
        not reach an administrator's copies, such as backups of Postgres.

        Contexts that work for it (`enclose`) go with it, and theirs, whichever actor owns them.

        Args:
            owner: Only if the context belongs to this actor.
            force: Erase them even if a turn runs, which is then fenced.
            keep_backups: Leave the copies of the database; `Erased.backups_left` names them. Such a
                copy holds all contexts as they were before the migration.

        Returns:
            A report of what was removed, empty if there is no such context or if it belongs to
            another actor: the two are not distinguished.

        Raises:
            AgentBusy: A turn runs on one of them and *force* is false; nothing was erased.
            StoreUnavailable: Not all of it was erased, or a file still holds a part of it. Erase
                again to end the work.
        """
        ...

    async def erase_person(
        self, actor_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Erased:
        """
        Erase all contexts that belong to an actor, a few at a time; see `erase`.

        Contexts of others in which the actor began a turn stay, and so do the places of all
        messages in them. In that actor's turns, messages, questions and arguments of calls are
        replaced by `[erased]`, and contents of artifacts by nothing; metadata, keys, and messages
        that wait in the inbox are removed. So are the results of that actor's calls, wherever they
        are, and answers to requests that may be that actor's. A later summary is emptied if it may
        contain them. Messages of others about them, in their own turns, stay.

        It may be killed or cancelled on the way, and called again to end the work.

        Raises:
            AgentBusy: A turn runs on one of these contexts and *force* is false. Nothing was
                erased, unless that turn began on the way.
            ValueRefused: No actor can have this id.
            StoreUnavailable: See `erase`.
        """
        ...

    async def enclose(
        self, context_id: str, *, outer: str, call: str, epoch: int | None = None
    ) -> str:
        """
        Make a context that works for a call of another one, unless the call has one.

        The link between the two is made together with the context and goes with it. No other method
        makes one, so no caller can give another actor's context a link.

        Args:
            context_id: The context to make. One that exists stays as it is, without a link.
            outer: The context that the call belongs to.
            call: The key of the call: 32 hexadecimal digits.
            epoch: Of the turn that makes the call. `None`: its turn waits for its save.

        Returns:
            The context of the call: *context_id*, or the one that was made before.

        Raises:
            Fenced: The outer context has another epoch, or is gone; nothing was written.
            ValueRefused: An argument is invalid.
        """
        ...

    async def inner(self, context_id: str, *, call: str | None = None) -> Sequence[str]:
        """
        The contexts that were made to work for a context, by id; see `enclose`.

        Args:
            call: Only the one for this call.
        """
        ...

    async def snapshot(self, context_id: str) -> ContextSnapshot:
        """
        Everything of a context that may change, as it was at one moment.

        Its messages, events and turns up to the numbers in the record do not change, unless the
        context is cleared or deleted.

        Raises:
            ContextNotFound: The context does not exist.
        """
        ...

    async def log_page(
        self, context_id: str, *, after: int = 0, limit: int = 100, most_bytes: int = 2**20
    ) -> Sequence[AgentEvent]:
        """
        The next events of a log for an export, in a page of limited size.

        Like `Journal.events`, but an end of a turn names no messages, and has no `iterations`.

        Args:
            most_bytes: The messages of a page have at most so many bytes together, or there is one,
                and so have its other events. A start of a call or turn may bring one more message.

        Raises:
            ValueRefused: A number is not a whole number, or is too small.
        """
        ...

    async def restore(self, contexts: Sequence[RestoredContext]) -> None:
        """
        Make contexts with everything in them: all of them at once, or none.

        Numbers, times and texts stay as given. Each context has a new epoch, no lease,
        no queue and no idempotency keys. If a turn is open, its process counts as dead. No reader
        sees a context before all of it is there; a process that is killed before that leaves
        nothing but bytes for `ArtifactStore.collect`.

        Raises:
            StoreConflict: A context exists already; nothing was written.
            StoreUnavailable: The store did not answer.
        """
        ...

    async def retain(
        self,
        *,
        older_than: timedelta | datetime | None = None,
        larger_than: int | None = None,
        per: str = "owner",
        owner: str | None = None,
        waiting: bool = False,
        dry_run: bool = False,
        keep_backups: bool = False,
    ) -> Erased:
        """
        Erase contexts that are too old, or too much, the longest inactive first; see `erase`.

        A context on which a turn runs is never erased, nor one that becomes active on the way. A
        context and its inner contexts (`enclose`) go together, and so are as young as the
        youngest. Such a context alone may go as well, but not while a turn runs or waits on one
        that it works for.

        Args:
            older_than: Erase those whose last activity is longer ago than this, or before a moment.
            larger_than: Erase until what is left has at most so many bytes (`Erased.bytes`).
            per: That limit holds for the contexts of each `"owner"`, those without one together, or
                for the contexts of the whole `"tenant"`.
            owner: Only contexts of this actor.
            waiting: Also where a request to a person is pending.
            dry_run: Erase nothing. The report has what would go.
            keep_backups: See `erase`.

        Raises:
            ValueRefused: An argument is invalid, or neither age nor size is given; `path` names it.
            StoreUnavailable: See `erase`.
        """
        ...


class Spending(Protocol):
    """
    Keeps what model calls have used in the days and months of accounts: see `stores.spending`.

    The clock is the store's. Amounts are added and compared in one transaction, so processes that
    reserve at the same time get no more together than each account allows.
    """

    async def reserve(
        self,
        reservation: str,
        most: Amount,
        allowances: Sequence[Allowance],
        *,
        place: Place,
        owed: Amount = NOTHING,
    ) -> None:
        """
        Set the most that a model call may use aside in each account, or nothing in any.

        Reservations of earlier turns of *place* are settled at their most, because a turn begins
        only after the process of the one before it has ended. To reserve again under a name that is
        reserved changes nothing.

        Args:
            reservation: See `new_reservation`.
            owed: Used without a reservation, and added in any case if the call fits.

        Raises:
            BudgetExceeded: It does not fit an account; nothing was written.
            StoreUnavailable: The store did not answer.
        """
        ...

    async def settle(self, reservation: str, used: Amount) -> bool:
        """
        Exchange a reservation for what its call has used, in the periods that it was made in.

        Returns:
            False if there is no such reservation: it was settled before, or never made.
        """
        ...

    async def add(self, used: Amount, allowances: Sequence[Allowance]) -> None:
        """Add what was used without a reservation, whether it fits or not."""
        ...

    async def spent(self, account: str = TENANT, *, day: date | None = None) -> Sequence[Spent]:
        """
        The sums of an account in a day and in its month, as far as they are kept.

        Args:
            account: `account_of(owner)`, or the whole tenant's. Only periods that a budget limited
                when calls were made have sums.
            day: The day, in UTC; today by default.
        """
        ...

    async def accounts(
        self, *, day: date | None = None, after: str = "", limit: int = 200
    ) -> Sequence[tuple[str, Sequence[Spent]]]:
        """
        All accounts that have sums in a day or in its month, by name, with these sums.

        Args:
            day: As for `spent`.
            after: Begin after this account.
            limit: At most so many accounts.
        """
        ...

    async def held(self, *, after: str = "", limit: int = 200) -> Sequence[Held]:
        """
        The reservations that hold something, by name, in whichever accounts.

        Args:
            after: Begin after this reservation.
            limit: At most so many.
        """
        ...

    async def release(self, reservation: str) -> bool:
        """
        Give back what a reservation holds, because its call is known to have used nothing.

        It stays known: should its call be settled after all, that counts in full.

        Returns:
            False if it holds nothing: it was settled or released before, or never made.
        """
        ...


class Journal(Protocol):
    """The part of a store that a durable turn needs beside the three stores; see `Stores`."""

    @property
    def notifier(self) -> Notifier:
        """Rung when a context has changed, from any process."""
        ...

    async def commit(self, commit: Commit) -> Committed:
        """
        Apply one step of a turn; a `TurnEnd` among its events closes the turn's record.

        Raises:
            ValueError: The turn has ended already, or two ends are in one commit.
            Fenced: The context has another epoch; nothing was written.
            CommitsLost: The store has not come to `known_seq`; nothing was written.
            InboxNews: `heard` is not the newest; nothing was written.
            ArtifactNotFound: The artifact to delete does not exist; nothing was written.
            ValueRefused: A value cannot be stored faithfully; nothing was written.
            StoreUnavailable: The store did not answer; `outcome_known` is true if nothing was
                written.
        """
        ...

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        """
        Delete the history, artifacts and pending requests, empty the inbox, raise the epoch.

        Returns:
            The new epoch. Positions, `seq` and the turn count are not reset. A `HistoryCleared`
            event is stored. Messages, older events and the metadata of turns are deleted in the
            same commit; the rest of a turn's record, keys and the context's own metadata stay.

        Raises:
            AgentBusy: A turn is open and *force* is false. With it, the turn is fenced and ended as
                `interrupted`.
            ContextNotFound: The context does not exist.
        """
        ...

    async def compact(self, context_id: str, compaction: NewSummary) -> tuple[int, Compaction]:
        """
        Append a summary between two turns, with its `compaction` event, and raise the epoch.

        `ContextState.summary` is then its position, or `None` if the summary is empty.

        Returns:
            The new epoch, and the event.

        Raises:
            AgentBusy: A turn is open.
            StoreConflict: The context has another epoch: it may have messages that the summary does
                not know.
            ContextNotFound: The context does not exist.
            ValueRefused: The summary cannot be stored faithfully; nothing was written.
        """
        ...

    async def fork(
        self, context_id: str, new_context_id: str, *, at: int | None = None
    ) -> ContextRecord:
        """
        Make a context that begins with the past of another one up to a place between two turns.

        Messages, turns, events and artifacts up to there are copied under the same numbers, and so
        are owner, metadata and tags. Bytes in a blob store are shared. The new context has no
        lease, inbox, keys, pending requests or usage. Later changes of either context do not
        affect the other one. Turns of *context_id* continue meanwhile. No reader sees the new
        context before all of it is there; a process that is killed before that leaves nothing.

        Args:
            at: The position of the last message that is copied: the last one of a turn, or 0. For a
                rewound context: as it was when that message was the last one. `None`: the present;
                while a turn is open, the place before it.

        Returns:
            The new context.

        Raises:
            ValueRefused: *at* is within a turn, was cleared or does not exist; or the new id is
                invalid.
            StoreConflict: The new context exists already.
            ContextNotFound: There is no context to fork.
        """
        ...

    async def rewind(self, context_id: str, to: int) -> tuple[int, HistoryRewound]:
        """
        Hide the turn *to* and everything after it, between two turns; raise the epoch.

        The hidden messages stay on record: `include_hidden` lists them, `undo_rewind` shows them
        again, and `fork` at a position among them starts there. Turns and events stay listed, and
        numbers continue. Nothing is pending afterwards; artifacts are not changed.

        Returns:
            The new epoch, and the event.

        Raises:
            AgentBusy: A turn is open.
            ValueRefused: There is no such turn, or it is hidden or cleared.
            ContextNotFound: The context does not exist.
        """
        ...

    async def undo_rewind(self, context_id: str) -> tuple[int, HistoryRewound]:
        """
        Show again what the newest rewind hid; returns what `rewind` returns.

        Raises:
            AgentBusy: A turn is open.
            StoreConflict: There are messages after the hidden ones.
            ValueRefused: Nothing is rewound.
            ContextNotFound: The context does not exist.
        """
        ...

    async def lineage(self, context_id: str) -> Lineage:
        """The parent of a context, and its forks; empty for an unknown context."""
        ...

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        """
        The durable events with a `seq` over *after*, in order, gapless, at most *limit*.

        The log begins at the newest `history_cleared`: an *after* below it gets that event first.

        Raises:
            ValueRefused: *after* is not a whole number, or the limit is not one from 0.
        """
        ...

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        """
        The turns numbered over *after*, oldest first, at most *limit*.

        Raises:
            ValueRefused: *after* is not a whole number, or the limit is not one from 0.
        """
        ...

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        """Ids of the tool calls of *turn* whose `tool_execution_start` was stored."""
        ...

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        """
        The turn that was claimed with *key*, or that a message with it was for, and `input_hash`.

        `None` if the key was not used.
        """
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
        key: str | None = None,
        input_hash: str | None = None,
    ) -> int:
        """
        Put a message into the inbox; the context is created on first use.

        Args:
            actor_id: The sender. While a turn is open, its actor; otherwise the context's owner, if
                it has one.
            expected_turn: Only if this turn is open.
            key: Names this message for the life of the context, with `input_hash`; `turn_of_key`
                then leads to `expected_turn`. Messages and turns share the keys.

        Returns:
            The number of the entry. Once this returns, the message survives a killed process. 0 if
            the key was used before, by whatever process: nothing was written.

        Raises:
            AccessDenied: The open turn belongs to another actor; or no turn is open, and the
                context does.
            TurnMismatch: Another turn is open, or no turn.
            LimitExceeded: `INBOX_LIMIT` messages of this actor are waiting already.
            ValueRefused: The message cannot be stored faithfully; or there is a key, and no
                `input_hash` or no `expected_turn`.
        """
        ...

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        """The head of the inbox and the entries numbered over *after*, of one moment, in order."""
        ...

    async def withdraw(
        self, context_id: str, kind: EntryKind | None = None, *, actor_id: str | None = None
    ) -> int:
        """
        Take messages of an actor out of the inbox again: of *kind*, or of both.

        Returns:
            How many there were. A turn that has read one of them and not committed it cannot
            deliver it any more: its commit is refused with `StoreConflict`. `InboxHead.last` is
            raised if there was one.

        Raises:
            ValueRefused: The kind is not an `EntryKind`, or the actor cannot be stored.
        """
        ...

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        """
        Ask the open turn to stop, if it is *turn* or that is `None`.

        Returns:
            The turn that was asked; `None` when there was none to ask, and nothing was written.
        """
        ...


# --- stores of an application's own, for `Stores.of` ---------------------------------------------

# Each method may be `async` or not. One that is not runs in a thread of its own, one call after the
# other. What needs an optional method that is missing is refused by name.


class PlainMessageStore(Protocol):
    """
    The messages of a context, in order.

    Beside `append` it has `list(context_id)` or `get_all(context_id)`: all messages of a context,
    oldest first, and none for an unknown one. Each is as it was appended, or its JSON object, or a
    pydantic model of that.

    Optional: `clear(context_id)` removes all of them. Without it, a context can be neither cleared
    nor deleted.
    """

    @property
    def append(self) -> Callable[..., Any]:
        """
        The method `append(context_id, messages)`, which adds a list of messages to the end.

        `message_to_json` makes a JSON object of each. If the method has a parameter `position`, it
        gets the position of the first message, from 1: a unique key of context and position keeps
        out what a process writes late that was taken for dead.
        """
        ...


class PlainArtifactStore(Protocol):
    """
    The contents of artifacts. Each version has a name of its own: `report@1`, `report@2`.

    Optional: `delete(context_id, name)`; without it, contents stay when their artifact is deleted.
    """

    def save(self, context_id: str, name: str, content: bytes) -> Any:
        """Keep *content* under *name*, in the place of what was there."""
        ...

    def load(self, context_id: str, name: str) -> Any:
        """The bytes of *name*."""
        ...


class PlainStateStore(Protocol):
    """
    Documents by key. A context has one under its id, and some that begin with its id and `#`.

    Optional: `compare_and_set(key, document, revision)` writes only if the stored document has this
    `"revision"` (0: if there is none), and returns whether it did: with it, two processes cannot
    use one context at once. `delete(key)`: without it, a context cannot be deleted. `list()`: all
    keys; without it, contexts cannot be listed.
    """

    def load(self, key: str) -> Any:
        """The document that was saved last, or `None`."""
        ...

    def save(self, key: str, document: Mapping[str, Any]) -> Any:
        """Keep *document*, an object of JSON, in the place of what was there."""
        ...
