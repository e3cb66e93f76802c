"""Stores say whether they wait for their own writes; `Stores` reads that once."""

import pytest

from looopy.errors import ConfigurationError
from looopy.stores import (
    InMemoryArtifactStore,
    InMemoryMessageStore,
    InMemoryStateStore,
    MemoryBackend,
    Stores,
)


def _stores(journal):
    backend = MemoryBackend()
    return Stores(
        InMemoryMessageStore(backend),
        InMemoryArtifactStore(backend),
        InMemoryStateStore(backend),
        journal,
    )


class Journal:
    """One of somebody's own."""


def test_a_journal_without_outlasts_does_not_outlast():
    """Both have to say so: of our own stores all do."""
    assert _stores(None).outlasts is True
    assert _stores(Journal()).outlasts is False


def test_a_wrong_type_is_refused():
    """`outlasts = "no"` would be true."""
    journal = Journal()
    journal.outlasts = "no"
    with pytest.raises(ConfigurationError, match="Journal declares outlasts as str"):
        _stores(journal)
