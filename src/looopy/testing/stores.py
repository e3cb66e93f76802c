"""
The contracts of `looopy.stores.base`, sentence by sentence, as tests for every backend.

Subclass the classes below in a test module of the backend, and name a function that opens the
store at a place; pytest with pytest-asyncio does the rest, in either of its modes. A behaviour that
none of them tests is not part of the contract.

    class TestMessagesInMine(MessageStoreContract):
        factory = "my_package.stores:open"

The place is a path in a temporary folder; a fixture `place` gives another one, such as a URL of an
empty database. A class may have a fixture `stores` instead, which yields open `Stores`. Only
`DurabilityContract` and `ProcessesContract` need a `factory`, because they open the store in other
processes as well.

The classes are in `looopy.testing.contracts`, one a file; import them from this module.
"""

from __future__ import annotations

from looopy.testing.contracts.artifact import ArtifactContentContract, ArtifactStoreContract
from looopy.testing.contracts.durability import DurabilityContract
from looopy.testing.contracts.erasure import (
    ErasureContract,
    RedactionContract,
    RetentionContract,
)
from looopy.testing.contracts.fork import ForkContract
from looopy.testing.contracts.inbox import InboxContract
from looopy.testing.contracts.inner import InnerContextContract
from looopy.testing.contracts.journal import JournalContract
from looopy.testing.contracts.key import KeyContract
from looopy.testing.contracts.listing import ContextIndexContract
from looopy.testing.contracts.message import MessageStoreContract
from looopy.testing.contracts.processes import ProcessesContract
from looopy.testing.contracts.restore import RestoreContract
from looopy.testing.contracts.search import SearchContract
from looopy.testing.contracts.spending import SpendingContract
from looopy.testing.contracts.state import StateStoreContract
from looopy.testing.contracts.wait_queue import WaitQueueContract

__all__ = [
    "ArtifactContentContract",
    "ArtifactStoreContract",
    "ContextIndexContract",
    "DurabilityContract",
    "ErasureContract",
    "ForkContract",
    "InboxContract",
    "InnerContextContract",
    "JournalContract",
    "KeyContract",
    "WaitQueueContract",
    "MessageStoreContract",
    "ProcessesContract",
    "RedactionContract",
    "RestoreContract",
    "RetentionContract",
    "SearchContract",
    "SpendingContract",
    "StateStoreContract",
]
