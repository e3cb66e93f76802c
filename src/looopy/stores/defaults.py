"""
Base classes for a store of one's own: each has defaults for the optional methods of a protocol.

A default is made of the required methods. It is correct, and slower: it reads a whole context, or
all contexts, where a database would follow an index. A subclass defines the required methods and
may replace any default. Features that cannot be made of the required methods, such as forks, raise
`ConfigurationError`. `docs/stores.md` lists which method is which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NoReturn, Self, Unpack

from looopy.errors import ConfigurationError, StoreConflict
from looopy.stores.artifacts.basic import BasicArtifactRows
from looopy.stores.artifacts.rows import StoredPart, StoredVersion
from looopy.stores.artifacts.store import Artifacts
from looopy.stores.base import ContextIndex, Journal, MessageStore, StateStore
from looopy.stores.contexts.lineage import Lineage
from looopy.stores.contexts.listing import FOR_EVER, Lister, Listing, check_owner, meets
from looopy.stores.contexts.log import is_little, off_loop
from looopy.stores.contexts.search import Conditions, Place, Searcher, SearchHit, SearchPage, Wanted
from looopy.stores.records import ANY_CALL, ContextRecord, MessageRecord, Waiter
from looopy.stores.rows.meta import to_us
from looopy.stores.rows.reading import DAMAGED
from looopy.types.event import ToolExecutionStart, TurnWarning
from looopy.types.state import AgentStatus
from looopy.types.storable import check_limit

__all__ = [
    "BasicArtifactRows",
    "BasicArtifactStore",
    "BasicContextIndex",
    "BasicJournal",
    "BasicMessageStore",
    "BasicStateStore",
    "StoredPart",
    "StoredVersion",
]

_PAGE = 1_000
_CHUNK = 32
_PROTOCOLS = MessageStore.__module__


def _refused(why: str) -> Any:
    """A method of a feature that cannot be made of the required methods."""

    async def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(f"the store {type(self).__name__} {why}: open a store that does")

    return refuse


def _module_of(method: object) -> str | None:
    function = method.fget if isinstance(method, property) else method
    return getattr(function, "__module__", None)


class _Complete:
    """Refuses to make an object of a class that lacks a required method."""

    required: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *_: object, **__: object) -> Self:
        found = {name: getattr(cls, name) for name in cls.required}
        missing = [n for n, one in found.items() if _module_of(one) == _PROTOCOLS]
        if missing:
            raise TypeError(f"{cls.__name__} has to define {', '.join(missing)}")
        return super().__new__(cls)


class BasicMessageStore(_Complete, MessageStore):
    """Required: `append`, `records`. Defaults: `list`, `recent`, `count`."""

    required = ("append", "records")

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        """See `MessageStore`. The default reads all messages of the context."""
        check_limit(limit, optional=False)
        found = await self.records(context_id)
        return found[max(len(found) - limit, 0) :]

    async def count(self, context_id: str, *, include_hidden: bool = False) -> int:
        """See `MessageStore`. The default reads all messages of the context."""
        return len(await self.records(context_id, include_hidden=include_hidden))


class BasicArtifactStore(Artifacts):
    """
    All of `ArtifactStore`, on rows.

    Args:
        rows: The rows of one tenant.
        tenant: Their owner.
    """

    def __init__(self, rows: BasicArtifactRows, tenant: str = "default") -> None:
        super().__init__(rows, tenant, None)


class BasicStateStore(_Complete, StateStore):
    """
    Required: `load`, `save`, `list`, `delete`, `claim`, `renew`, `release`.

    By default there is no line: several agents that wait for a context try again and again, and any
    of them may be the next. `WaitQueueContract` is skipped for such a store. No other process sees
    that an agent was paused or shut down.
    """

    required = ("load", "save", "list", "delete", "claim", "renew", "release")

    async def leave(self, context_id: str, epoch: int, status: AgentStatus) -> None:
        """Note nothing."""

    async def join_wait_queue(self, context_id: str, holder: str, ttl_s: float) -> int:
        """Take no place; every waiter has the ticket 1. The context is created on first use."""
        if await self.load(context_id) is None:
            with suppress(StoreConflict):  # another writer was first
                await self.save(context_id, {}, version=0)
        return 1

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        """True: no place can be lost."""
        return True

    async def leave_wait_queue(self, context_id: str, ticket: int) -> None:
        """Do nothing."""

    async def wait_queue(self, context_id: str) -> Sequence[Waiter]:
        """No waiters."""
        return ()


class BasicJournal(_Complete, Journal):
    """
    Required: `commit`, `clear`, `compact`, `events`, `turns`, `turn_of_key`; for the inbox `post`,
    `inbox`, `withdraw`, `ask_cancel`; and `notifier`, which every write of the store calls.

    `fork`, `rewind` and `undo_rewind` raise `ConfigurationError`; `ForkContract` is skipped for
    such a store.
    """

    required = (
        *("commit", "clear", "compact", "events", "turns", "turn_of_key"),
        *("post", "inbox", "withdraw", "ask_cancel", "notifier"),
    )

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        """See `Journal`. The default reads all events of the context."""
        found: set[str] = set()
        for event in await self.events(context_id):
            if event.turn == turn:
                if isinstance(event, ToolExecutionStart):
                    found.add(event.tool_call_id)
                elif isinstance(event, TurnWarning) and event.code == DAMAGED:
                    found.add(ANY_CALL)
        return found

    async def lineage(self, context_id: str) -> Lineage:
        """No relatives."""
        return Lineage()

    fork = _refused("has no forks")
    rewind = undo_rewind = _refused("hides no part of a history")


class BasicContextIndex(Lister, ContextIndex):
    """
    Lists and searches by reading all contexts.

    `tag`, `enclose` and everything that erases or exports raise `ConfigurationError`.
    `StateStore.delete` removes a context all the same.

    Args:
        messages, state: The stores of one tenant.
    """

    def __init__(self, messages: MessageStore, state: StateStore) -> None:
        self._messages = messages
        self._state = state

    async def matching(self, wanted: Listing) -> Sequence[tuple[int, ContextRecord]]:
        """The contexts that meet *wanted*. The default reads all contexts."""
        found = [one async for one in _all(self._state) if meets(one, wanted)]
        found.sort(key=_place, reverse=True)
        return [(_place(one).touched, one) for one in found[: wanted.limit + 1]]

    async def running(self, *, owner: str | None = None, limit: int = 50) -> list[str]:
        """See `ContextIndex`. The default reads all contexts."""
        check_owner(owner)
        check_limit(limit, optional=False)
        found = [
            one.context_id
            async for one in _all(self._state)
            if one.open_turn is not None and one.lease_live and owner in (None, one.owner_actor)
        ]
        return sorted(found)[:limit]

    async def search(self, query: str, **conditions: Unpack[Conditions]) -> SearchPage:
        """See `ContextIndex`. The default reads all messages until it has a page."""
        searcher = _Searcher(self._messages, self._state)
        return await searcher.search(query, **conditions)

    async def inner(self, context_id: str, *, call: str | None = None) -> list[str]:
        """See `ContextIndex`. No context has any."""
        return []

    tag = _refused("keeps no tags")
    enclose = _refused("links no contexts")
    erase = _refused("erases nothing; `stores.state.delete()` removes a context")
    erase_person = retain = _refused("erases nothing")
    sizes = _refused("does not count bytes")
    snapshot = log_page = _refused("exports no contexts")
    restore = _refused("imports no contexts")


async def _all(state: StateStore) -> AsyncIterator[ContextRecord]:
    after = ""
    while page := await state.list(after=after, limit=_PAGE):
        for one in page:
            yield one
        after = page[-1].context_id


def _place(record: ContextRecord) -> Place:
    return Place(to_us(record.last_activity), record.context_id)


class _Searcher(Searcher):
    def __init__(self, messages: MessageStore, state: StateStore) -> None:
        self._messages = messages
        self._state = state

    async def _is_of(self, context_id: str, owner: str | None) -> bool:
        record = await self._state.load(context_id)
        return record is not None and owner in (None, record.owner_actor)

    async def _contexts(self, owner: str | None, after: Place | None, most: int) -> list[Place]:
        behind = after or Place(FOR_EVER, "")
        found = [
            _place(one)
            async for one in _all(self._state)
            if owner in (None, one.owner_actor) and _place(one) < behind
        ]
        return sorted(found, reverse=True)[:most]

    async def _likely(self, context_ids: Sequence[str], wanted: Wanted) -> Iterable[str]:
        return context_ids

    async def _below(
        self, context_id: str, wanted: Wanted, before: int | None, most: int
    ) -> list[SearchHit]:
        kept = (await self._messages.records(context_id))[::-1]
        wanted_ones = [one for one in kept if before is None or one.position < before]
        parts = [
            wanted_ones[start : start + _CHUNK] for start in range(0, len(wanted_ones), _CHUNK)
        ]
        hits: list[SearchHit] = []
        for part in parts:
            if len(hits) < most:
                found = map(list, [wanted.hits(context_id, part)])
                hits += await off_loop(found, little=is_little(len(wanted_ones), ()))
        return hits[:most]
