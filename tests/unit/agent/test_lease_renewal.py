"""A lease is renewed in time, survives a store that is away for a moment, and ends when let go."""

from __future__ import annotations

import asyncio

from tests.loop_time import advance

from looopy.agent.lease import Lease
from looopy.errors import StoreUnavailable


class Renewing:
    """A store that answers renewals from a script, and then always that the lease is held."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def renew(self, context_id, epoch, ttl_s):
        """Renew it, or not."""
        self.asked.append((context_id, epoch, ttl_s))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


async def a_third():
    """Let the time until the next renewal pass, and the renewal be made."""
    advance(21)
    for _ in range(5):
        await asyncio.sleep(0)


def leased(store):
    """A lease of a minute, and how often it was lost."""
    lost = []
    return Lease(store, "ada", 7, 60.0, lambda: lost.append(1)), lost


async def test_it_is_renewed_again_and_again():
    """Three times within its life, with the epoch of its claim."""
    store = Renewing()
    lease, lost = leased(store)
    for _ in range(4):
        await a_third()
    assert store.asked == [("ada", 7, 60.0)] * 4
    assert lost == []
    lease.let_go()


async def test_a_renewal_that_the_store_did_not_answer_is_made_again():
    """The lease is not lost by it: the holder goes on, and renews at the next time."""
    store = Renewing(StoreUnavailable("away"), StoreUnavailable("away"))
    lease, lost = leased(store)
    for _ in range(3):
        await a_third()
    assert len(store.asked) == 3
    assert lost == []
    lease.let_go()


async def test_the_loss_of_a_lease_is_reported_once():
    """After that nothing is renewed."""
    store = Renewing(*[True, False])
    lease, lost = leased(store)
    for _ in range(4):
        await a_third()
    assert len(store.asked) == 2
    assert lost == [1]
    lease.let_go()


async def test_a_released_lease_is_not_renewed():
    """Nor is a renewal that is under way waited for."""
    store = Renewing()
    lease, lost = leased(store)
    await a_third()
    lease.let_go()
    for _ in range(3):
        await a_third()
    assert len(store.asked) == 1
    assert lost == []
