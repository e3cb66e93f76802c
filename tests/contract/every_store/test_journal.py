"""The contract of journal, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.stores.memory_backend import MemoryBackend
from looopy.stores.sql.driver import Query
from looopy.stores.sql.statements import TABLES
from looopy.testing.contracts.journal import JournalContract


class KeepingJournalContract(JournalContract):
    """Looks into the dictionaries, or the tables, for what is kept."""

    async def kept(self, stores):
        """Every context with all that hangs on it, or every row of every table."""
        backend = stores.journal.backend
        if isinstance(backend, MemoryBackend):
            return repr(backend.contexts)

        def work():
            found = []
            for table in sorted(TABLES):
                found += yield Query(f"SELECT * FROM {table}", {})
            return found

        return repr(await backend.run(work, write=False))


globals().update(on_every_store("Journal", KeepingJournalContract))
