"""
Remember: the store contracts, their implementations, and the one write path of a turn.

Importing this package imports no database library; opening a database does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.stores.base import ArtifactStore, Journal, MessageStore, StateStore
    from looopy.stores.memory import (
        InMemoryArtifactStore,
        InMemoryMessageStore,
        InMemoryStateStore,
        MemoryBackend,
    )
    from looopy.stores.records import Commit, Committed, MessageRecord
    from looopy.stores.sql.artifacts import SQLArtifactStore
    from looopy.stores.sql.messages import SQLMessageStore
    from looopy.stores.sql.state import SQLStateStore
    from looopy.stores.stores import Stores, open_stores

_HOME = {
    "ArtifactStore": "base",
    "Commit": "records",
    "Committed": "records",
    "InMemoryArtifactStore": "memory",
    "InMemoryMessageStore": "memory",
    "InMemoryStateStore": "memory",
    "Journal": "base",
    "MemoryBackend": "memory",
    "MessageRecord": "records",
    "MessageStore": "base",
    "SQLArtifactStore": "sql.artifacts",
    "SQLMessageStore": "sql.messages",
    "SQLStateStore": "sql.state",
    "StateStore": "base",
    "Stores": "stores",
    "open_stores": "stores",
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
