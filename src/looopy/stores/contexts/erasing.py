"""
Erasing contexts: the order of its steps, which every backend shares.

A context is erased in one commit, so no reader sees half of it. Its inner contexts go before it:
a process that is killed in between leaves the links that the next erasure follows. If it has blobs,
that commit leaves an empty context which still names them; they are removed, and then the context
is. A process that is killed meanwhile leaves such a context, and the next erasure ends the work.

Many contexts are erased a few at a time. The copies that migrations have left are removed before
them, and afterwards the log of the database is emptied.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from looopy._failpoints import reach
from looopy.errors import AgentBusy, StorageFull, ValueRefused
from looopy.stores.contexts.families import Candidate, Families, by_depth
from looopy.stores.contexts.log import off_loop
from looopy.stores.rows.meta import to_us
from looopy.stores.rules import MAY_FORCE, busy
from looopy.types.event import utc_now
from looopy.types.storable import check_name

T = TypeVar("T")
_AT_ONCE = 32
_ROWS_AT_ONCE = 20_000
_PAGE = 500
EMPTY = hashlib.sha256(b"").hexdigest()
"""The hash of the content that a redacted artifact has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """
    The report of an erasure: how much of each kind is gone, or would be.

    Attributes:
        contexts: How many contexts; `context_ids` are their ids, in the order of the erasure: inner
            contexts before the one that their agents worked for.
        redacted_ids: Contexts of others, in which the person had a part; they stay.
        redacted: How many of their messages lost the person's words.
        messages: All of the history, also rewound ones and ones that a summary covers.
        artifacts: Artifacts, whatever the number of their versions.
        events: Durable events of the log.
        turns: Turns.
        inbox: Messages that waited in the inbox.
        keys: Idempotency keys.
        blobs: Objects of the blob store. Those that artifacts of other contexts share stay.
        bytes: The size of messages, events, and all versions of artifacts.
        backups: Copies of the database file that migrations had left beside it.
        backups_left: Such copies that were kept; what was erased may still be in them.
        dry_run: True if nothing was erased.

    A fork counts like any context, since it has copies. Blobs alone are shared.
    """

    context_ids: tuple[str, ...] = ()
    redacted_ids: tuple[str, ...] = ()
    redacted: int = 0
    messages: int = 0
    artifacts: int = 0
    events: int = 0
    turns: int = 0
    inbox: int = 0
    keys: int = 0
    blobs: int = 0
    bytes: int = 0
    backups: int = 0
    backups_left: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def contexts(self) -> int:
        """How many contexts were erased."""
        return len(self.context_ids)


class Gone(NamedTuple):
    """
    The content of a context that was erased.

    Attributes:
        counts: How much of each kind of `Erased`.
        blobs: Their names, to be removed next.
        epoch: Of the empty context that names them; `None` if the context is gone.
        inner: Contexts that work for it. If there are any, nothing was erased.
    """

    counts: Counter[str]
    blobs: Sequence[str] = ()
    epoch: int | None = None
    inner: Sequence[str] = ()


class Redacted(NamedTuple):
    """
    The parts that were taken out of another person's context.

    Attributes:
        messages: How many messages are redacted.
        inbox, keys: How many are gone.
        turns: Their numbers, for `end_redaction`.
        blobs: To be removed before that.
    """

    messages: int
    inbox: int
    keys: int
    turns: Sequence[int]
    blobs: Sequence[str]


class Terms(NamedTuple):
    """
    The conditions of an erasure, which are checked under the lock of the context's row.

    Attributes:
        owner: Its owner; `None` for any.
        force: True if a turn may run on it.
        touched: Its last activity, as it was seen before; `None` for any.
        outer: The context that it works for, as the store recorded it; `None` for any or none.
    """

    owner: str | None = None
    force: bool = False
    touched: int | None = None
    outer: str | None = None


def counted(
    *, messages: int, last_seq: int, cleared_seq: int, turns: int, **others: int
) -> Counter[str]:
    """The counts of a context; the log begins at the newest `history_cleared`, if there is one."""
    events = last_seq - max(cleared_seq - 1, 0)
    return Counter(messages=messages, events=events, turns=turns, **others)


class ErasureRows(Protocol):
    """The rows of one tenant's contexts, which a backend supplies."""

    async def erase_rows(self, context_id: str, terms: Terms) -> Gone | None:
        """
        Erase a context in one commit; `None` if there is none, or it does not meet *terms*.

        A context that others work for stays as it is: `Gone.inner` has them.

        Raises:
            AgentBusy: A turn runs on it, and it may not be forced.
        """
        ...

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Remove an empty context whose blobs are gone, unless it was used since."""
        ...

    async def remove_blobs(self, names: Collection[str]) -> int:
        """Remove those blobs that no artifact has any more, and count them."""
        ...

    async def counts_of(self, context_id: str) -> Counter[str] | None:
        """How much of each kind there is in a context; `None` if there is none."""
        ...

    async def candidate(self, context_id: str) -> Candidate | None:
        """A context; `None` if there is none."""
        ...

    async def candidates(self, *, after: str, limit: int) -> list[Candidate]:
        """The contexts with an id over *after*, in the order of their ids, at most *limit*."""
        ...

    async def inner_of(self, context_id: str) -> list[Candidate]:
        """The contexts that work for a context, which need not exist."""
        ...

    async def spoke_in(self, actor_id: str, *, after: str, last: str) -> set[str]:
        """The contexts between *after* and *last* in which they began a turn, or sent a message."""
        ...

    async def redact(self, context_id: str, actor_id: str, *, force: bool) -> Redacted | None:
        """
        Redact some turns of an actor, in one commit; `None` if there are none.

        The turns stay known as theirs until `end_redaction`, so that another erasure finds them.

        Raises:
            AgentBusy: A turn runs on the context, and *force* is false.
        """
        ...

    async def end_redaction(self, context_id: str, turns: Sequence[int]) -> None:
        """Forget whose turns they were, and the names of blobs that are gone."""
        ...

    async def backups(self, *, remove: bool) -> Sequence[Path]:
        """
        The copies of the database that migrations have left.

        Raises:
            StoreUnavailable: One cannot be removed.
        """
        ...

    async def scrub(self) -> None:
        """
        Wait until no file of the database holds what was deleted.

        Raises:
            StoreUnavailable: Something keeps the log from being emptied.
        """
        ...


class Erasures(ErasureRows):
    """The public methods; see `ContextIndex`. A backend adds the methods of `ErasureRows`."""

    async def erase(
        self,
        context_id: str,
        *,
        owner: str | None = None,
        force: bool = False,
        keep_backups: bool = False,
    ) -> Erased:
        """Erase a context."""
        if owner is not None:
            check_name(owner, "an owner", "/owner")
        one = await self.candidate(context_id)
        found = [] if one is None or owner not in (None, one.owner) else [one]
        if one is None:  # its inner contexts have saved turns, and it has none
            found = [i for i in await self.inner_of(context_id) if owner in (None, i.owner)]
        found = await _with_inner(self, found)
        running = [each.running for each in found if each.running is not None]
        if running and not force:
            raise busy(running[0], MAY_FORCE)

        def terms(each: Candidate) -> Terms:
            is_inner = each.context_id != context_id
            return Terms(None if is_inner else owner, force, outer=each.outer if is_inner else None)

        return await _Work(self, keep_backups=keep_backups).erase(found, terms)

    async def erase_person(
        self, actor_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Erased:
        """Erase what belongs to a person."""
        check_name(actor_id, "an actor id", "/actor_id")
        found, others = await self._part_of(actor_id)
        running = [one for one in (*found, *others) if one.running is not None]
        if running and not force:
            first = running[0]
            which = f"context {first.context_id!r}"
            if len(running) > 1:
                which = f"{len(running)} contexts, such as {first.context_id!r}"
            raise AgentBusy(
                f"a turn is running on {which}, in which this person has a part; nothing was"
                f" erased: {MAY_FORCE}",
                turn=first.running,
            )
        work = _Work(self, keep_backups=keep_backups)
        seen: set[str] = set()
        # One of them may have been forked in the meantime.
        while names := [one.context_id for one in others if one.context_id not in seen]:
            await work.redact(names, actor_id, force=force)
            seen.update(names)
            found, others = await self._part_of(actor_id)

        def terms(one: Candidate) -> Terms:
            # An inner context goes with the outer one, whichever person began it.
            if one.owner == actor_id:
                return Terms(actor_id, force)
            return Terms(None, force, outer=one.outer)

        return await work.erase(found, terms)

    async def _part_of(self, actor_id: str) -> tuple[list[Candidate], list[Candidate]]:
        """A person's contexts, and contexts of others with contents of that person."""
        known: list[Candidate] = []
        spoken: set[str] = set()
        after = ""
        while page := await self.candidates(after=after, limit=_PAGE):
            last = page[-1].context_id
            spoke = await self.spoke_in(actor_id, after=after, last=last)
            # Keep only the contexts that this erasure can touch.
            known += [
                one
                for one in page
                if one.owner == actor_id or one.outer is not None or one.context_id in spoke
            ]
            spoken |= spoke
            after = last

        def sorted_out() -> list[list[Candidate]]:
            theirs = [one for one in known if one.owner == actor_id]
            found = Families(known).with_inner(theirs)
            going = {one.context_id for one in found}
            spoke = (one for one in known if one.context_id in spoken)
            return [found, [one for one in spoke if one.context_id not in going]]

        found, others = await _beside(sorted_out, known)
        return found, others

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
        """Erase what is too old, or too much."""
        rule = Retention(older_than, larger_than, per, owner, waiting=waiting)
        known = [one async for one in _all(self)]
        found = [one for one in known if rule.covers(one)]
        sizes: dict[str, int] = {}
        if larger_than is not None:
            for some in batches(found):
                counts = await asyncio.gather(*(self.counts_of(one.context_id) for one in some))
                sizes |= {
                    one.context_id: 0 if of_it is None else of_it["bytes"]
                    for one, of_it in zip(some, counts, strict=True)
                }
        work = _Work(self, keep_backups=keep_backups, dry_run=dry_run)
        chosen = await _beside(lambda: rule.choose(found, sizes, Families(known)), known)
        return await work.erase(chosen, lambda one: Terms(touched=one.touched))


class Retention:
    """
    Which contexts are too old, or too much.

    Raises:
        ValueRefused: An argument is invalid; see `ContextIndex.retain`.
    """

    def __init__(
        self,
        older_than: object,
        larger_than: object,
        per: object,
        owner: str | None,
        *,
        waiting: bool,
    ) -> None:
        if older_than is None and larger_than is None:
            raise ValueRefused("name what may go: older_than, or larger_than", path="/older_than")
        self._before = 0 if older_than is None else _moment(older_than)
        if larger_than is not None and (
            isinstance(larger_than, bool) or not isinstance(larger_than, int) or larger_than < 0
        ):
            raise ValueRefused("a size is a whole number of bytes from 0", path="/larger_than")
        if per not in ("owner", "tenant"):
            raise ValueRefused("a size holds per 'owner' or per 'tenant'", path="/per")
        if owner is not None:
            check_name(owner, "an owner", "/owner")
        self._most: int | None = larger_than
        self._per_owner = per == "owner"
        self._owner = owner
        self._waiting = waiting

    def covers(self, one: Candidate) -> bool:
        """True if it is about this context at all."""
        return self._owner is None or one.owner == self._owner

    def choose(
        self, found: Sequence[Candidate], sizes: Mapping[str, int], families: Families
    ) -> list[Candidate]:
        """
        Those of *found* that go, the longest inactive first.

        A context goes with its inner ones, or not at all. It is as young as the youngest of them.
        An inner one stays while a turn runs, or waits, on a context that it works for.
        """
        chosen: dict[str, Candidate] = {}
        used: Counter[str | None] = Counter()
        for one in found:
            used[self._group(one)] += sizes.get(one.context_id, 0)
        ages = {one.context_id: families.touched(one) for one in found}
        for one in sorted(found, key=lambda one: (ages[one.context_id], one.context_id)):
            family = [one, *families.below(one)]
            if any(map(self._stays, (*family, *families.above(one)))):
                continue
            too_much = self._most is not None and used[self._group(one)] > self._most
            if ages[one.context_id] < self._before or too_much:
                for member in family:
                    if chosen.setdefault(member.context_id, member) is member:
                        used[self._group(member)] -= sizes.get(member.context_id, 0)
        return list(chosen.values())

    def _stays(self, one: Candidate) -> bool:
        return one.running is not None or (one.waits and not self._waiting)

    def _group(self, one: Candidate) -> str | None:
        return one.owner if self._per_owner else None


def _moment(older_than: object) -> int:
    """The moment before which a context is too old, in microseconds; or `ValueRefused`."""
    if isinstance(older_than, datetime) and older_than.tzinfo is not None:
        return to_us(older_than)
    if isinstance(older_than, timedelta) and older_than >= timedelta(0):
        try:
            return to_us(utc_now() - older_than)
        except OverflowError:
            return 0
    raise ValueRefused(
        "an age is a timedelta from 0, or a datetime with a time zone", path="/older_than"
    )


async def _beside(work: Callable[[], list[T]], known: Sequence[Candidate]) -> list[T]:
    """The outcome of *work*, which looks at all that is *known*: in a thread if that is much."""
    return await off_loop((work() for _ in range(1)), little=len(known) <= _PAGE)


async def _all(rows: ErasureRows) -> AsyncIterator[Candidate]:
    """All contexts of the tenant, by id."""
    after = ""
    while page := await rows.candidates(after=after, limit=_PAGE):
        for one in page:
            yield one
        after = page[-1].context_id


async def _with_inner(rows: ErasureRows, found: Sequence[Candidate]) -> list[Candidate]:
    """*found*, and the contexts that work for each of them."""
    all_of_them = {one.context_id: one for one in found}
    left = list(found)
    while left:
        new = [
            one
            for one in await rows.inner_of(left.pop().context_id)
            if one.context_id not in all_of_them
        ]
        all_of_them.update((one.context_id, one) for one in new)
        left += new
    return list(all_of_them.values())


def batches(found: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """*found*, as many at a time as are erased together."""
    some: list[Candidate] = []
    rows = 0
    for one in found:
        if some and (len(some) == _AT_ONCE or rows + one.rows > _ROWS_AT_ONCE):
            yield some
            some, rows = [], 0
        some.append(one)
        rows += one.rows
    if some:
        yield some


@contextlib.contextmanager
def _naming_room() -> Iterator[None]:
    """Add to `StorageFull`, the error of a full disk, how to erase all the same."""
    try:
        yield
    except StorageFull as error:
        raise StorageFull(
            f"{error.message}; an erasure needs a little space, because the database first writes"
            " to its log: `looopy db backups --remove` removes copies that migrations left, and"
            " other space is for you to free; then erase again, which ends the work",
            **error.facts,
        ) from error


class _Work:
    """One erasure and its report; with *dry_run* it only counts."""

    def __init__(self, rows: ErasureRows, *, keep_backups: bool, dry_run: bool = False) -> None:
        self._rows = rows
        self._keep_backups = keep_backups
        self._dry_run = dry_run
        self._gone: list[str] = []
        self._redacted: set[str] = set()
        self._copies: dict[Path, None] = {}
        self._counts: Counter[str] = Counter()

    async def erase(
        self, found: Sequence[Candidate], terms: Callable[[Candidate], Terms]
    ) -> Erased:
        """Erase *found*, leave nothing in the files of the database, and report what is gone."""
        if self._dry_run:
            await self._count(found)
        else:
            with _naming_room():
                await self._erase_all(found, terms)
        copies = tuple(map(str, self._copies))
        return Erased(
            context_ids=tuple(self._gone),
            redacted_ids=tuple(sorted(self._redacted)),
            backups=0 if self._keep_backups else len(copies),
            backups_left=copies if self._keep_backups else (),
            dry_run=self._dry_run,
            **self._counts,
        )

    async def _erase_all(
        self, found: Sequence[Candidate], terms: Callable[[Candidate], Terms]
    ) -> None:
        if found:
            await self._look_for_copies()
        for level in by_depth(found):
            for some in batches(level):
                await self._erase_some([(one.context_id, terms(one)) for one in some])
        reach("E3")
        await self._rows.scrub()

    async def redact(self, names: Sequence[str], actor_id: str, *, force: bool) -> None:
        """Redact an actor's turns in contexts of others, some turns at a time."""
        with _naming_room():
            await self._redact_all(names, actor_id, force=force)

    async def _redact_all(self, names: Sequence[str], actor_id: str, *, force: bool) -> None:
        if names:
            await self._look_for_copies()
        for name in names:
            some = await self._rows.redact(name, actor_id, force=force)
            while some is not None:
                self._counts["blobs"] += await self._rows.remove_blobs(some.blobs)
                self._counts.update(redacted=some.messages, inbox=some.inbox, keys=some.keys)
                reach("E2")
                await self._rows.end_redaction(name, some.turns)
                self._redacted.add(name)
                some = await self._rows.redact(name, actor_id, force=force)

    async def _look_for_copies(self) -> None:
        # First: a killed erasure leaves something to erase, so the next one looks for them, too.
        self._copies |= dict.fromkeys(await self._rows.backups(remove=not self._keep_backups))

    async def _count(self, found: Sequence[Candidate]) -> None:
        for one in (one for level in by_depth(found) for one in level):
            counts = await self._rows.counts_of(one.context_id)
            if counts is not None:
                self._gone.append(one.context_id)
                self._counts.update(counts)

    async def _erase_some(self, wanted: Sequence[tuple[str, Terms]]) -> None:
        """Erase some contexts at once, each in a commit of its own."""
        # A driver makes several commits at once where that is cheaper.
        answers = await asyncio.gather(
            *(self._rows.erase_rows(name, terms) for name, terms in wanted),
            return_exceptions=True,
        )
        found = [
            (name, gone)
            for (name, _), gone in zip(wanted, answers, strict=True)
            if isinstance(gone, Gone) and not gone.inner
        ]
        reach("E1")
        blobs = {blob for _, gone in found for blob in gone.blobs}
        removed = await self._rows.remove_blobs(blobs)
        reach("E2")
        for name, gone in found:
            if gone.epoch is not None:
                await self._rows.end_erasure(name, gone.epoch)
            self._gone.append(name)
            self._counts.update(gone.counts)
        self._counts["blobs"] += removed
        for (name, its), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, BaseException):
                try:
                    raise answer
                finally:
                    del answer, answers  # its traceback holds this frame
            # Its turn has begun a call since it was read. *force* does not make a context too old.
            if answer is not None and answer.inner and its.touched is None:
                inner = [(one, Terms(None, its.force, outer=name)) for one in answer.inner]
                await self._erase_some(inner)
                await self._erase_some([(name, its)])
