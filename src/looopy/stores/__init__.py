"""
Remember: the contract of a store, its backends, and the one write path of a turn.

Each step of a turn is one commit, applied whole or not at all, and only the owner of the context
can make it. All backends behave alike, errors and order included; `memory/` is the specification.
The room may import `types`, `errors` and `_failpoints`. Importing it loads no database library.
Exports: the names in `__all__`, above all `open_stores` and `Stores`.

- Contract: `base` (the protocols), `records` and `requests` (their arguments and results), `rules`
  (checks and refusals that all backends share).
- Opening: `opening` (a URL becomes stores), `bundle` (`Stores`: the stores of one tenant as
  one object).
- Artifacts: `artifacts/` (content above the rows), `blobs/` (storage of their large parts).
- Whole contexts: `contexts/` (list, search, erase, fork, spend), `archive/` (as one file, in and
  out).
- For authors of a store: `plain/` (stores with a few methods each, as the stores of an agent),
  `defaults` (base classes with the optional methods), `codec` (messages, events and records as JSON
  text).
- Shared parts: `rows/` (a message or event as a row), `owner` (proof that a lease holder lives or
  is dead), `notifier` (wake-up calls for waiters of a context), `shield` (await a write to
  its end).
- Reading over many rows: `pages` (turns, events and messages page by page), `usage` (sums of tokens
  and dollars), `accounts` (the budgets of a tenant's people).
- Backends: `memory/` with `memory_backend`, and `sql/` with `sqlite/` and `postgres/`. Another SQL
  database is a driver beside those two; any other store implements `base`.

Read `base`, `records`, `bundle`, `opening`, `rows/events`, `memory/stores`, `sql/commit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.stores.archive.importing import import_contexts as import_contexts
    from looopy.stores.archive.writing import ArchiveReport as ArchiveReport
    from looopy.stores.archive.writing import Signature as Signature
    from looopy.stores.archive.writing import export_contexts as export_contexts
    from looopy.stores.archive.writing import export_to_file as export_to_file
    from looopy.stores.base import ArtifactStore as ArtifactStore
    from looopy.stores.base import ContextIndex as ContextIndex
    from looopy.stores.base import Journal as Journal
    from looopy.stores.base import MessageStore as MessageStore
    from looopy.stores.base import PlainArtifactStore as PlainArtifactStore
    from looopy.stores.base import PlainMessageStore as PlainMessageStore
    from looopy.stores.base import PlainStateStore as PlainStateStore
    from looopy.stores.base import StateStore as StateStore
    from looopy.stores.bundle import Stores as Stores
    from looopy.stores.contexts.erasing import Erased as Erased
    from looopy.stores.contexts.listing import ContextPage as ContextPage
    from looopy.stores.contexts.listing import ContextSize as ContextSize
    from looopy.stores.contexts.search import SearchHit as SearchHit
    from looopy.stores.contexts.search import SearchPage as SearchPage
    from looopy.stores.memory.artifacts import InMemoryArtifactStore as InMemoryArtifactStore
    from looopy.stores.memory.stores import InMemoryMessageStore as InMemoryMessageStore
    from looopy.stores.memory.stores import InMemoryStateStore as InMemoryStateStore
    from looopy.stores.memory_backend import MemoryBackend as MemoryBackend
    from looopy.stores.opening import open_stores as open_stores
    from looopy.stores.records import Commit as Commit
    from looopy.stores.records import Committed as Committed
    from looopy.stores.records import ContextRecord as ContextRecord
    from looopy.stores.records import MessageRecord as MessageRecord
    from looopy.stores.sql.artifacts import SQLArtifactStore as SQLArtifactStore
    from looopy.stores.sql.messages import SQLMessageStore as SQLMessageStore
    from looopy.stores.sql.state import SQLStateStore as SQLStateStore

_export(
    globals(),
    {
        ".archive.importing": ("import_contexts",),
        ".archive.writing": ("ArchiveReport", "Signature", "export_contexts", "export_to_file"),
        ".base": (
            "ArtifactStore",
            "ContextIndex",
            "Journal",
            "MessageStore",
            "PlainArtifactStore",
            "PlainMessageStore",
            "PlainStateStore",
            "StateStore",
        ),
        ".contexts.erasing": ("Erased",),
        ".contexts.listing": ("ContextPage", "ContextSize"),
        ".memory.artifacts": ("InMemoryArtifactStore",),
        ".memory.stores": (
            "InMemoryMessageStore",
            "InMemoryStateStore",
        ),
        ".memory_backend": ("MemoryBackend",),
        ".opening": ("open_stores",),
        ".records": (*("Commit", "Committed", "ContextRecord", "MessageRecord"),),
        ".contexts.search": ("SearchHit", "SearchPage"),
        ".sql.artifacts": ("SQLArtifactStore",),
        ".sql.messages": ("SQLMessageStore",),
        ".sql.state": ("SQLStateStore",),
        ".bundle": ("Stores",),
    },
)
