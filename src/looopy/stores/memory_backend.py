"""`MemoryBackend`: the stores of `memory:`. They are apart because `Stores.of` is made of them."""

from __future__ import annotations

from looopy.stores.bundle import Stores
from looopy.stores.memory.artifacts import InMemoryArtifactStore
from looopy.stores.memory.context import Contexts
from looopy.stores.memory.contexts import InMemoryContextIndex
from looopy.stores.memory.journal import InMemoryJournal
from looopy.stores.memory.stores import InMemoryMessageStore, InMemoryStateStore


class MemoryBackend(Contexts):
    """The contexts of all tenants; shared by the stores that are made on it."""

    def stores(self, tenant: str = "default") -> Stores:
        """The stores of one tenant."""
        return Stores(
            InMemoryMessageStore(self, tenant),
            InMemoryArtifactStore(self, tenant),
            InMemoryStateStore(self, tenant),
            InMemoryJournal(self, tenant),
            contexts=InMemoryContextIndex(self, tenant),
            tenant=tenant,
            lifetime=self,
            bind=self.stores,
        )
