"""
Remember: the store contracts, their implementations, and the one write path of a turn.

Importing this package imports no database library; opening a database does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.stores.base import ArtifactStore, Journal, MessageStore, StateStore
    from looopy.stores.memory.stores import (
        InMemoryArtifactStore,
        InMemoryMessageStore,
        InMemoryStateStore,
        MemoryBackend,
    )
    from looopy.stores.opening import open_stores
    from looopy.stores.records import Commit, Committed, MessageRecord
    from looopy.stores.sql.artifacts import SQLArtifactStore
    from looopy.stores.sql.messages import SQLMessageStore
    from looopy.stores.sql.state import SQLStateStore
    from looopy.stores.stores import Stores

_HOME = {
    "ArtifactStore": "base",
    "Commit": "records",
    "Committed": "records",
    "InMemoryArtifactStore": "memory.stores",
    "InMemoryMessageStore": "memory.stores",
    "InMemoryStateStore": "memory.stores",
    "Journal": "base",
    "MemoryBackend": "memory.stores",
    "MessageRecord": "records",
    "MessageStore": "base",
    "SQLArtifactStore": "sql.artifacts",
    "SQLMessageStore": "sql.messages",
    "SQLStateStore": "sql.state",
    "StateStore": "base",
    "Stores": "stores",
    "open_stores": "opening",
}

__all__ = [
    "ArtifactStore",
    "Commit",
    "Committed",
    "InMemoryArtifactStore",
    "InMemoryMessageStore",
    "InMemoryStateStore",
    "Journal",
    "MemoryBackend",
    "MessageRecord",
    "MessageStore",
    "SQLArtifactStore",
    "SQLMessageStore",
    "SQLStateStore",
    "StateStore",
    "Stores",
    "open_stores",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"looopy.stores.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
