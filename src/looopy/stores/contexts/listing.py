"""
Listing contexts: the facts that they are listed by, and the conditions of a listing.

Every backend uses these functions. A context is listed by its owner, its status, its labels (tags
and entries of metadata), its last activity, and by what is due in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from looopy.errors import LimitExceeded, ValueRefused
from looopy.stores.records import ContextRecord, ContextState
from looopy.stores.rows.meta import to_us
from looopy.types.event import utc_now
from looopy.types.state import AgentStatus
from looopy.types.storable import check_limit, check_name, check_text, dump


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPage:
    """
    A page of contexts.

    Attributes:
        items: In the order of the listing.
        next: Pass it as `after` for the next page; `None` if this is the last one.
    """

    items: Sequence[ContextRecord]
    next: str | None = None


class ContextSize(NamedTuple):
    """
    The size of a context.

    Attributes:
        owner: The actor of its first turn, or `None`.
        bytes: The size of messages, events, and all versions of artifacts.
    """

    context_id: str
    owner: str | None
    bytes: int


class Facts(NamedTuple):
    """
    Status and `due` of a context, as the index has them.

    `due` is the time in microseconds from which an action is due while no turn runs, or `None`.
    """

    status: str
    due: int | None


def facts(*, open_turn: int | None, waiting: int, state: ContextState) -> Facts:
    """
    The facts by which a context is listed.

    An interrupted turn should be continued at once (`due` is 0), and messages of the inbox be read.
    A request expires at its time. A failed turn waits for a decision.

    Args:
        waiting: How many messages wait in the inbox.
    """
    if open_turn is not None:
        return Facts(AgentStatus.BUSY.value, 0)
    status = AgentStatus.READY if state.error is None else AgentStatus.FAILED
    if state.waits:
        status = AgentStatus.WAITING
    if waiting or (status is AgentStatus.READY and state.resumable is not None):
        return Facts(status.value, 0)
    times = [to_us(one.expires_at) for one in state.pending if one.expires_at is not None]
    return Facts(status.value, min(times, default=None))


MOST_TAGS = 32
MOST_CONDITIONS = 8
_MOST_METADATA = 64
_LONGEST_TAG = 64
_LONGEST_ENTRY = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CURSOR = re.compile(r"([0-9]{1,19})-([A-Za-z0-9._:-]{1,128})-([0-9a-f]{12})")
FOR_EVER: Final = 2**63 - 1


def mark_of(*query: Any) -> str:
    """A text in the cursors of a query, by which they are known as its own."""
    return hashlib.sha256(json.dumps(query).encode()).hexdigest()[:12]


def no_cursor() -> ValueRefused:
    """The error for an `after` that no page has as its `next`."""
    return ValueRefused("/after: pass the `next` of a page as `after`", path="/after")


def another_query() -> ValueRefused:
    """The error for the `next` of a page of something else."""
    return ValueRefused(
        "/after: it is the `next` of another query: repeat the one whose page had it, or begin"
        " without `after`",
        path="/after",
    )


def check_tags(tags: object, path: str) -> tuple[str, ...]:
    """The tags as a tuple; `ValueRefused` unless each is 1 to 64 characters without controls."""
    if isinstance(tags, str) or not isinstance(tags, Collection):
        raise ValueRefused("tags are a list of texts", path=path)
    for place, tag in enumerate(tags):
        where = f"{path}/{place}"
        if not isinstance(tag, str) or not 1 <= len(tag) <= _LONGEST_TAG or _CONTROL.search(tag):
            raise ValueRefused(
                f"a tag is 1 to {_LONGEST_TAG} characters, none of them a control character",
                path=where,
            )
        check_text(tag, where)
    return tuple(tags)


def new_tags(present: Iterable[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """The tags of a context after a change, sorted; `LimitExceeded` if they are too many."""
    found = tuple(sorted({*present, *add} - set(remove)))
    if len(found) > MOST_TAGS:
        raise LimitExceeded(
            f"a context has at most {MOST_TAGS} tags: remove some", limit="tags", value=MOST_TAGS
        )
    return found


def labels(
    owner: str | None, status: str, tags: Iterable[str], metadata: Mapping[str, Any]
) -> set[str]:
    """
    The labels under which a context is in the index: owner, status, tags, entries of metadata.

    Most contexts are ready, so that status has none.

    An entry counts if its value is a text, a whole number or a boolean, and if it is short. Only
    the first 64 such entries count, by key.
    """
    entries = (label_of(key, metadata[key]) for key in sorted(metadata))
    found = [entry for entry in entries if entry is not None][:_MOST_METADATA]
    if status != AgentStatus.READY:
        found.append(f"s:{status}")
    if owner is not None:
        found.append(f"o:{owner}")
    return {*(f"t:{tag}" for tag in tags), *found}


def label_of(key: str, value: object) -> str | None:
    """The label of an entry of metadata; `None` if contexts cannot be listed by it."""
    if not isinstance(value, str | int):
        return None
    said = f"m:{json.dumps(key, ensure_ascii=False)}{json.dumps(value, ensure_ascii=False)}"
    return said if len(said) <= _LONGEST_ENTRY else None


class Listing:
    """
    The conditions of a listing, checked.

    Attributes:
        labels: All of them are needed; `""` is the label of every context.
        needles: Texts that the stored JSON of tags and metadata contains, for each condition of
            theirs.
        since, until, after_id: Bounds of the place in the order, in microseconds and by id.
    """

    def __init__(
        self,
        *,
        owner: str | None,
        status: AgentStatus | str | None,
        tags: Sequence[str],
        metadata: Mapping[str, Any],
        active_since: datetime | None,
        active_before: datetime | None,
        due: bool,
        after: str | None,
        limit: int,
    ) -> None:
        check_owner(owner)
        check_limit(limit, optional=False)
        if not isinstance(due, bool):
            raise ValueRefused("due is True or False", path="/due")
        self.status = _listed_status(status)
        wanted_tags = dict.fromkeys(check_tags(tags, "/tags"))
        self.labels = [f"t:{tag}" for tag in wanted_tags]
        self.labels += _listed_metadata(metadata)
        self.needles = [dump(tag) for tag in wanted_tags]
        self.needles += [dump({key: value})[1:-1] for key, value in metadata.items()]
        if len(self.labels) > MOST_CONDITIONS:
            raise LimitExceeded(
                f"contexts are listed by at most {MOST_CONDITIONS} tags and entries of metadata",
                limit="conditions",
                value=MOST_CONDITIONS,
            )
        if self.status not in (None, AgentStatus.READY):
            self.labels.insert(0, f"s:{self.status}")
        if owner is not None:
            self.labels.insert(0, f"o:{owner}")
        self.labels = self.labels or [""]
        self.owner = owner
        self.due = due
        self.limit = limit
        self.since = 0 if active_since is None else _moment(active_since, "/active_since")
        self.until, self.after_id = FOR_EVER, ""
        if active_before is not None:
            self.until = _moment(active_before, "/active_before")
        if after is not None:
            found = _CURSOR.fullmatch(after) if isinstance(after, str) else None
            if found is None or int(found[1]) > FOR_EVER:
                raise no_cursor()
            if found[3] != self._mark:
                raise another_query()
            self.begin_after(int(found[1]), found[2])

    @property
    def _mark(self) -> str:
        # Without the moments: a caller may count them from the present, again for each page.
        return mark_of("list", sorted(self.labels), self.status, self.due)

    def begin_after(self, touched: int, context_id: str) -> None:
        """Leave out a place in the order, and all before it."""
        self.until, self.after_id = min((self.until, self.after_id), (touched, context_id))

    def page(self, found: Sequence[tuple[int, ContextRecord]]) -> ContextPage:
        """The page of *found*, of which one more than the limit was read if there was one."""
        items = [record for _, record in found[: self.limit]]
        if len(found) <= self.limit or not items:
            return ContextPage(items=items)
        place = f"{found[self.limit - 1][0]}-{items[-1].context_id}"
        return ContextPage(items=items, next=f"{place}-{self._mark}")


class Lister:
    """Makes `ContextIndex.list` of `matching`: its conditions are checked once, for every store."""

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
        """See `ContextIndex`."""
        wanted = Listing(
            owner=owner,
            status=status,
            tags=tags,
            metadata={} if metadata is None else metadata,
            active_since=active_since,
            active_before=active_before,
            due=due,
            after=after,
            limit=limit,
        )
        return wanted.page(await self.matching(wanted))

    async def matching(self, wanted: Listing) -> Sequence[tuple[int, ContextRecord]]:
        """
        The contexts that meet *wanted*, the last active first, each after its place in that order.

        One more than `wanted.limit`, if there are so many.
        """
        raise NotImplementedError


def meets(record: ContextRecord, wanted: Listing, now_us: int | None = None) -> bool:
    """
    True if a context that no index knows meets all conditions of a listing.

    Args:
        now_us: The time by the store's clock; `None`: this process's clock.
    """
    open_turn = None if record.open_turn is None else record.open_turn.turn
    known = facts(open_turn=open_turn, waiting=record.inbox.waiting, state=record.state)
    runs = open_turn is not None and record.lease_live
    status = known.status
    if open_turn is not None and not runs:  # its process died
        status = AgentStatus.WAITING if record.state.waits else AgentStatus.READY
    touched = to_us(record.last_activity)
    of_it = labels(record.owner_actor, status, record.tags, record.metadata)
    return (
        wanted.since <= touched
        and (touched, record.context_id) < (wanted.until, wanted.after_id)
        and wanted.status in (None, status)
        and {"", *of_it}.issuperset(wanted.labels)
        and (not wanted.due or (_is_over(known.due, now_us) and not runs))
    )


def check_owner(owner: object) -> None:
    """Raise `ValueRefused` unless it is the name of an actor, or `None`."""
    if owner is not None:
        check_name(owner, "an owner", "/owner")


def _is_over(due: int | None, now_us: int | None) -> bool:
    return due is not None and due <= (to_us(utc_now()) if now_us is None else now_us)


def _listed_status(status: AgentStatus | str | None) -> str | None:
    kept = (AgentStatus.READY, AgentStatus.BUSY, AgentStatus.WAITING, AgentStatus.FAILED)
    if status is not None and status not in kept:
        raise ValueRefused(
            f"contexts are listed by the status {', '.join(kept[:-1])} or {kept[-1]}",
            path="/status",
        )
    return None if status is None else str(status)


def _listed_metadata(metadata: Mapping[str, Any]) -> list[str]:
    if not isinstance(metadata, Mapping):
        raise ValueRefused("metadata is a JSON object", path="/metadata")
    found = []
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise ValueRefused("keys of metadata are texts", path=f"/metadata/{key}")
        check_text(key, "/metadata")
        where = f"/metadata/{key}"
        if isinstance(value, str):
            check_text(value, where)
        label = label_of(key, value)
        if label is None:
            raise ValueRefused(
                "contexts are listed by a text, a whole number or a boolean of metadata, which"
                f" has at most {_LONGEST_ENTRY} characters with its key",
                path=where,
            )
        found.append(label)
    return found


def _moment(value: object, path: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueRefused("a moment is a datetime with a time zone", path=path)
    return max(0, to_us(value))
