"""The contract of messages, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.message import MessageStoreContract

globals().update(on_every_store("Messages", MessageStoreContract))
