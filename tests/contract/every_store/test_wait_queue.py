"""The contract of the line of those who wait, on each backend."""

from __future__ import annotations

from tests.contract.backends import on_every_store

from looopy.testing.contracts.wait_queue import WaitQueueContract

globals().update(on_every_store("WaitQueue", WaitQueueContract))
