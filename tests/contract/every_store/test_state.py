"""The contract of state, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.state import StateStoreContract

globals().update(on_every_store("State", StateStoreContract))
