"""The four stores of an agent over stores of an application's own."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

from looopy.errors import ConfigurationError
from looopy.stores.artifacts.store import Artifacts
from looopy.stores.defaults import BasicContextIndex
from looopy.stores.memory.artifacts import InMemoryArtifactRows
from looopy.stores.memory.journal import InMemoryJournal
from looopy.stores.memory.stores import InMemoryMessageStore, InMemoryStateStore
from looopy.stores.plain.backend import PlainBackend
from looopy.stores.plain.documents import named_by
from looopy.types.storable import check_after_name, check_limit

if TYPE_CHECKING:
    from looopy.stores.records import Claim, Claimed, ContextRecord

M = TypeVar("M", bound=Callable[..., Awaitable[Any]])


def _context_of(first: object) -> Any:
    """The context that a call is about: its first argument, or that of a claim or commit."""
    return getattr(first, "context_id", first)


def _reads(method: M) -> M:
    @functools.wraps(method)
    async def through(self: Any, first: Any, *args: Any, **options: Any) -> Any:
        async with self.backend.reading(self.tenant, _context_of(first)):
            return await method(self, first, *args, **options)

    return cast("M", through)


def _writes(method: M) -> M:
    @functools.wraps(method)
    async def through(self: Any, first: Any, *args: Any, **options: Any) -> Any:
        step = functools.partial(method, self, first, *args, **options)
        return await self.backend.write(self.tenant, _context_of(first), step)

    return cast("M", through)


def _needs_journal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} needs a store with a journal, such as sqlite:///app.db, in the place of stores of"
        " your own"
    )


def _refused(what: str) -> Any:
    """A method of a feature that one context's documents and messages cannot have."""

    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise _needs_journal(what)

    return refuse


class ComposedMessageStore(InMemoryMessageStore):
    """`MessageStore` over one of an application's own."""

    append = _writes(InMemoryMessageStore.append)
    records = _reads(InMemoryMessageStore.records)
    recent = _reads(InMemoryMessageStore.recent)
    count = _reads(InMemoryMessageStore.count)


class ComposedStateStore(InMemoryStateStore):
    """`StateStore` over one of an application's own."""

    outlasts = False
    backend: PlainBackend

    def make_contexts(self) -> ComposedContextIndex:  # type: ignore[override]  # of its own kind
        """The index that goes with this store."""
        return ComposedContextIndex(ComposedMessageStore(self.backend, self.tenant), self)

    def make_spending(self) -> NoReturn:
        """Refuse: accounts are of many contexts."""
        raise _needs_journal("a budget of a day or month")

    load = _reads(InMemoryStateStore.load)
    save = _writes(InMemoryStateStore.save)
    renew = _writes(InMemoryStateStore.renew)
    release = _writes(InMemoryStateStore.release)
    leave = _writes(InMemoryStateStore.leave)
    join_wait_queue = _writes(InMemoryStateStore.join_wait_queue)
    keep_place = _writes(InMemoryStateStore.keep_place)
    leave_wait_queue = _writes(InMemoryStateStore.leave_wait_queue)
    wait_queue = _reads(InMemoryStateStore.wait_queue)

    async def claim(self, claim: Claim) -> Claimed:
        """Begin a turn, or take one over; see that all messages are there."""
        step = functools.partial(super().claim, claim)
        return await self.backend.write(self.tenant, claim.context_id, step, looks=True)

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        """The contexts by id; needs `list` of the application's store."""
        check_after_name(after)
        check_limit(limit, optional=False)
        self.backend.state.calls.require("list", "listing contexts")
        keys = await self.backend.state.calls("list")
        found = (named_by(key, self.tenant) for key in keys)
        names = sorted(name for name in found if name is not None and name > after)
        records = [await self.load(name) for name in names[:limit]]
        return [one for one in records if one is not None]

    async def delete(self, context_id: str) -> None:
        """Delete a context that no turn uses."""
        delete_it = super().delete

        async def step() -> None:
            known = dict(self.backend.contexts)
            await delete_it(context_id)
            self.backend.contexts.update(known)
            await self.backend.delete(self.tenant, context_id)

        await self.backend.write(self.tenant, context_id, step)


class ComposedJournal(InMemoryJournal):
    """`Journal` over stores of an application's own."""

    outlasts = False

    commit = _writes(InMemoryJournal.commit)
    clear = _writes(InMemoryJournal.clear)
    compact = _writes(InMemoryJournal.compact)
    events = _reads(InMemoryJournal.events)
    turns = _reads(InMemoryJournal.turns)
    started_calls = _reads(InMemoryJournal.started_calls)
    turn_of_key = _reads(InMemoryJournal.turn_of_key)
    post = _writes(InMemoryJournal.post)
    inbox = _reads(InMemoryJournal.inbox)
    withdraw = _writes(InMemoryJournal.withdraw)
    ask_cancel = _writes(InMemoryJournal.ask_cancel)
    rewind = _writes(InMemoryJournal.rewind)
    undo_rewind = _writes(InMemoryJournal.undo_rewind)
    lineage = _reads(InMemoryJournal.lineage)

    fork = _refused("a fork")  # the parent's messages are in the parent's rows alone


class ComposedContextIndex(BasicContextIndex):
    """Lists and searches by reading all contexts, which needs `list` of the state store."""

    tag = _refused("tagging a context")
    enclose = _refused("linking the context of an agent used as a tool")
    erase = erase_person = _refused("erasing (but `stores.state.delete()` removes a context)")
    retain = _refused("removing contexts by age or size")
    sizes = _refused("counting the bytes of contexts")
    snapshot = log_page = _refused("exporting a context")
    restore = _refused("importing a context")


class ComposedArtifactRows(InMemoryArtifactRows):
    """Rows of artifacts whose contents are brought when they are read."""

    backend: PlainBackend

    artifact_ids = _reads(InMemoryArtifactRows.artifact_ids)

    async def stored_versions(self, context_id: str, artifact_id: str) -> Any:
        """See `ArtifactRows`."""
        async with self.backend.reading(self.tenant, context_id):
            await self.backend.fill(self.tenant, context_id, artifact_id)
            return await super().stored_versions(context_id, artifact_id)

    async def parts(self, context_id: str, artifact_id: str, version: int, **page: Any) -> Any:
        """See `ArtifactRows`."""
        async with self.backend.reading(self.tenant, context_id):
            await self.backend.fill(self.tenant, context_id, artifact_id)
            return await super().parts(context_id, artifact_id, version, **page)

    async def apply(self, context_id: str, change: Any) -> Any:
        """See `ArtifactRows`."""
        change_it = super().apply

        async def step() -> Any:
            await self.backend.fill(self.tenant, context_id, change.artifact_id)
            return await change_it(context_id, change)

        return await self.backend.write(self.tenant, context_id, step)


class ComposedArtifactStore(Artifacts):
    """`ArtifactStore` over one of an application's own."""

    def __init__(self, backend: PlainBackend, tenant: str) -> None:
        self.backend = backend
        self.tenant = tenant
        super().__init__(ComposedArtifactRows(backend, tenant), tenant, None)


class Composed(NamedTuple):
    """The four stores of a tenant."""

    messages: ComposedMessageStore
    artifacts: ComposedArtifactStore
    state: ComposedStateStore
    journal: ComposedJournal


def composed(backend: PlainBackend, tenant: str) -> Composed:
    """The four stores of *tenant* over the stores of an application's own."""
    return Composed(
        ComposedMessageStore(backend, tenant),
        ComposedArtifactStore(backend, tenant),
        ComposedStateStore(backend, tenant),
        ComposedJournal(backend, tenant),
    )
