"""The contract of the inbox, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.inbox import InboxContract

globals().update(on_every_store("Inbox", InboxContract))
