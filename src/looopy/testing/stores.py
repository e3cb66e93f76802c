"""
The contracts of `looopy.stores.base`, sentence by sentence, as tests for every backend.

Subclass the classes below in a test module of the backend and give each a fixture `stores` that
yields open `Stores` on an empty database; pytest with pytest-asyncio does the rest, in either of
its modes. A behaviour that is not tested here is not part of the contract.

    class TestMessagesInMine(MessageStoreContract):
        @pytest_asyncio.fixture
        async def stores(self):
            async with open_mine() as stores:
                yield stores

The classes are in `looopy.testing.contracts`, one a file; import them from this module.
"""

from __future__ import annotations

from looopy.testing.contracts.artifact import ArtifactContentContract, ArtifactStoreContract
from looopy.testing.contracts.erasure import (
    ErasureContract,
    RedactionContract,
    RetentionContract,
)
from looopy.testing.contracts.fork import ForkContract
from looopy.testing.contracts.inbox import InboxContract
from looopy.testing.contracts.journal import JournalContract
from looopy.testing.contracts.key import KeyContract
from looopy.testing.contracts.line import LineContract
from looopy.testing.contracts.listing import ContextIndexContract
from looopy.testing.contracts.message import MessageStoreContract
from looopy.testing.contracts.restore import RestoreContract
from looopy.testing.contracts.search import SearchContract
from looopy.testing.contracts.state import StateStoreContract

__all__ = [
    "ArtifactContentContract",
    "ArtifactStoreContract",
    "ContextIndexContract",
    "ErasureContract",
    "ForkContract",
    "InboxContract",
    "JournalContract",
    "KeyContract",
    "LineContract",
    "MessageStoreContract",
    "RedactionContract",
    "RestoreContract",
    "RetentionContract",
    "SearchContract",
    "StateStoreContract",
]
