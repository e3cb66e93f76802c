"""The contract of names of turns, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.key import KeyContract

globals().update(on_every_store("Keys", KeyContract))
