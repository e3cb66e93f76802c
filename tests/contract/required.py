"""A store that has the required methods only: those of the stores in memory, and nothing else."""

from __future__ import annotations

from looopy.stores.bundle import Stores
from looopy.stores.defaults import (
    BasicArtifactRows,
    BasicArtifactStore,
    BasicContextIndex,
    BasicJournal,
    BasicMessageStore,
    BasicStateStore,
    StoredVersion,
)
from looopy.stores.memory.artifacts import InMemoryArtifactRows
from looopy.stores.memory_backend import MemoryBackend

ROWS = ("artifact_ids", "stored_versions", "parts", "apply")


def passing_on(base, names):
    """A class with *base*'s defaults, whose methods of these *names* are those of another store."""

    def to(name):
        def call(self, *args, **options):
            return getattr(self.inner, name)(*args, **options)

        return call

    return type(f"Required{base.__name__}", (base,), {name: to(name) for name in names})


class RequiredRows(BasicArtifactRows):
    """As above, for rows of artifacts."""

    def __init__(self, backend, tenant):
        self.backend = backend
        self.tenant = tenant
        self.rows = InMemoryArtifactRows(backend, tenant)

    def _artifacts(self, context_id):
        found = self.backend.contexts.get((self.tenant, context_id))
        return {} if found is None else found.artifacts

    async def artifact_ids(self, context_id):
        """In the order in which they were made."""
        return list(self._artifacts(context_id))

    async def stored_versions(self, context_id, artifact_id):
        """As the memory has them."""
        return [
            StoredVersion(one.artifact, one.text, one.tail, len(one.parts))
            for one in self._artifacts(context_id).get(artifact_id, ())
        ]

    async def parts(self, context_id, artifact_id, version, *, after, limit):
        """As the memory has them."""
        return await self.rows.parts(context_id, artifact_id, version, after=after, limit=limit)

    async def apply(self, context_id, change):
        """As the memory does."""
        return await self.rows.apply(context_id, change)


RequiredMessages = passing_on(BasicMessageStore, BasicMessageStore.required)
RequiredState = passing_on(BasicStateStore, BasicStateStore.required)


class RequiredJournal(passing_on(BasicJournal, set(BasicJournal.required) - {"notifier"})):
    """With notifier, which the memory rings."""

    @property
    def notifier(self):
        """Those of the memory."""
        return self.inner.notifier


WithTags = passing_on(BasicContextIndex, ("tag",))


def required_stores(
    backend: MemoryBackend, tenant: str = "default", index: type[BasicContextIndex] = WithTags
) -> Stores:
    """Stores on *backend* by the required methods alone, and by `tag` unless *index* has none."""
    inner = backend.stores(tenant)

    def made(kind, of, *args):
        store = kind(*args)
        store.inner = of
        return store

    messages = made(RequiredMessages, inner.messages)
    state = made(RequiredState, inner.state)
    return Stores(
        messages,
        BasicArtifactStore(RequiredRows(backend, tenant), tenant),
        state,
        made(RequiredJournal, inner.journal),
        contexts=made(index, inner.contexts, messages, state),
        tenant=tenant,
        lifetime=backend,
        bind=lambda other: required_stores(backend, other, index),
    )


def open_required(_place: str) -> Stores:
    """A new store, for `Contract.factory`."""
    return required_stores(MemoryBackend())


def open_basic(_place: str) -> Stores:
    """As above, without tags: each optional method is that of its base class."""
    return required_stores(MemoryBackend(), index=BasicContextIndex)
