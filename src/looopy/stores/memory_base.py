"""
What the stores in memory stand on: the contexts of all tenants, and a store of one of them.

See `looopy.stores.memory` for the idea.
"""

from __future__ import annotations

from looopy.errors import StoreUnavailable
from looopy.stores.bells import Bells
from looopy.stores.memory_context import StoredContext
from looopy.stores.names import check_context_id
from looopy.types.event import utc_now


class Contexts:
    """The contexts of all tenants; shared by the stores that are made on it."""

    def __init__(self) -> None:
        self.bells = Bells()
        self._contexts: dict[tuple[str, str], StoredContext] = {}
        self._closed = False

    async def open(self) -> None:
        """Allow use, again or for the first time; what was kept is still there."""
        self._closed = False

    async def close(self) -> None:
        """Refuse use from now on, as a closed database does."""
        self._closed = True

    @property
    def contexts(self) -> dict[tuple[str, str], StoredContext]:
        """All contexts by tenant and id."""
        if self._closed:
            raise StoreUnavailable("these stores are closed: open them again with `async with`")
        return self._contexts

    def get(self, tenant: str, context_id: str) -> StoredContext | None:
        """The context, or `None`."""
        return self.contexts.get((tenant, context_id))

    def make(self, tenant: str, context_id: str) -> StoredContext:
        """The context, created on first use."""
        check_context_id(context_id)
        found = self.contexts.get((tenant, context_id))
        if found is None:
            now = utc_now()
            found = self.contexts[tenant, context_id] = StoredContext(now, now)
        return found


class MemoryStore:
    """One store of one tenant; see the protocols for what each does."""

    outlasts = True  # nothing is waited for

    def __init__(self, backend: Contexts | None = None, tenant: str = "default") -> None:
        self.backend = backend or Contexts()
        self.tenant = tenant

    def _get(self, context_id: str) -> StoredContext | None:
        return self.backend.get(self.tenant, context_id)

    def _ring(self, context_id: str, *, inbox: bool = False) -> None:
        self.backend.bells.ring(self.tenant, context_id, inbox=inbox)
