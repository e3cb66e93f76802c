"""The contracts of built-in stores, over stores of an application's own."""

from __future__ import annotations

import pytest
from tests.own_stores import own_stores

from looopy.testing.contracts import artifact, inbox, journal, key, message, state, wait_queue

CONTRACTS = (
    artifact.ArtifactStoreContract,
    artifact.ArtifactContentContract,
    inbox.InboxContract,
    journal.JournalContract,
    key.KeyContract,
    message.MessageStoreContract,
    state.StateStoreContract,
    wait_queue.WaitQueueContract,
)


class OnOwnStores:
    """Messages and documents in tables of one file."""

    @pytest.fixture
    async def stores(self, tmp_path):
        """Open and empty."""
        async with own_stores("table", tmp_path) as stores:
            yield stores


for contract in CONTRACTS:
    name = f"Test{contract.__name__.removesuffix('Contract')}OnOwnStores"
    globals()[name] = type(name, (OnOwnStores, contract), {})
