"""When a lease is renewed, and when one that nobody renews counts as left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from looopy.agent.lease import Lease, left_in_s, seems_left
from looopy.errors import StorageFull, StoreUnavailable
from looopy.stores.owner import Owner
from looopy.stores.records import ContextRecord

TTL_S = 10.0
WHEN = datetime(2026, 11, 22, tzinfo=UTC)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store: Answers | None = None

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Of whoever watches."""
    return Clock()


@pytest.fixture
def record(request) -> ContextRecord:
    """A context whose lease has expired, of an owner about whom nothing can be proved."""
    return ContextRecord(
        context_id=request.node.name,
        epoch=7,
        turn_count=1,
        last_position=1,
        last_seq=2,
        holder=f"abroad/1/1/a;;{TTL_S}",
        lease_until=50.0,
        created_at=WHEN,
        last_activity=WHEN,
    )


class Answers:
    """A state store that takes writes once it is no longer locked."""

    def __init__(self, clock: Clock, locked_until: float) -> None:
        self.clock = clock
        self.locked_until = locked_until
        self.writes = 0

    async def renew(self, _context_id, epoch, _ttl_s):
        """Nobody's lease has this epoch."""
        assert epoch == 0
        self.writes += 1
        self.clock.now = max(self.clock.now, self.locked_until)
        return False


async def left(record, clock, ttl_s=99.0, locked_until=0.0):
    """What one look finds; all looks of a test are at one store."""
    clock.store = clock.store or Answers(clock, locked_until)
    return await left_in_s(clock.store, record, ttl_s, clock)


async def look(record, clock, *, every_s=TTL_S / 10, most=100, locked_until=0.0):
    """Look as often as it says, until the turn is left; how long that took."""
    began = clock.now
    for _ in range(most):
        if (found := await left(record, clock, locked_until=locked_until)) == 0:
            break
        assert found is not None
        assert 0 < found <= TTL_S / 10
        clock.now += every_s
    return clock.now - began


async def test_an_expired_lease_is_left_after_half_of_its_life(record, clock):
    """It was seen the same all the while; the owner would have renewed it within a third."""
    assert await look(record, clock) == pytest.approx(TTL_S / 2)
    assert await left(record, clock) == 0


async def test_a_lease_renewed_meanwhile_is_observed_again(record, clock):
    """Also when it has expired again, as by a clock that jumps."""
    await look(record, clock, most=4)
    renewed = replace(record, lease_until=record.lease_until + 1)
    assert await look(renewed, clock) == pytest.approx(TTL_S / 2)


@pytest.mark.parametrize(
    "change", [{"holder": f"abroad/1/2/a;;{TTL_S}"}, {"holder": f"abroad/2/1/a;;{TTL_S}"}]
)
async def test_the_lease_of_another_process_is_another(record, clock, change):
    """That one was seen says nothing of the other."""
    await look(record, clock)
    assert await left(replace(record, **change), clock) != 0


async def test_leases_of_one_process_that_had_expired_together_are_seen_together(record, clock):
    """One that was renewed later than those that were looked at has to be looked at itself."""
    await look(record, clock)
    other = replace(record, context_id="other", epoch=3, holder=f"abroad/1/1/b;;{TTL_S}")
    assert await left(other, clock) == 0
    assert await left(replace(other, lease_until=record.lease_until - 3), clock) == 0
    assert await left(replace(other, lease_until=record.lease_until + 1), clock) == TTL_S / 10


async def test_many_orphans_of_one_process_cost_as_many_writes_as_one(record, clock):
    """All are looked at together, and all are left after half of a life."""
    orphans = [
        replace(record, context_id=f"o{n}", lease_until=record.lease_until + n / 100)
        for n in range(200)
    ]
    clock.store = store = Answers(clock, 0.0)
    began = clock.now
    while any(await asyncio.gather(*(left(one, clock) for one in orphans))):
        clock.now += TTL_S / 10
    assert clock.now - began == pytest.approx(TTL_S / 2)
    assert store.writes == 6


async def test_a_process_that_renews_another_lease_is_observed_again(record, clock):
    """It lives: what was counted of a lease that it had let expire counts no longer."""
    await look(record, clock)
    assert await left(replace(record, context_id="other", lease_live=True), clock) is None
    assert await left(record, clock) != 0


async def test_time_in_which_the_store_stood_still_hardly_counts(record, clock):
    """Nobody could renew anything: what passes between two looks counts for a fifth of a life."""
    await left(record, clock)
    clock.now += 1000.0  # the second look was answered only now
    assert await left(record, clock) != 0
    assert await look(record, clock) >= TTL_S / 2 - TTL_S / 5 - 0.001


async def test_a_store_that_answers_and_takes_no_writes_has_not_answered(record, clock):
    """As a file that another program keeps locked: its owner cannot have renewed anything."""
    back = clock.now + 1000.0
    await look(record, clock, locked_until=back)
    assert clock.now >= back + TTL_S / 2 - TTL_S / 5 - 0.001


async def test_rare_observations_also_detect_a_dead_owner(record, clock):
    """As a reader does, or one who asks again and again and is refused."""
    assert await look(record, clock, every_s=TTL_S / 5) <= TTL_S
    assert await left(record, clock) == 0


async def test_a_holder_that_does_not_say_has_the_usual_life(record, clock):
    """Such as one of another version."""
    unsaid = replace(record, holder="somebody")
    await left(unsaid, clock, 4.0)
    for _ in range(3):
        clock.now += 0.8
        found = await left(unsaid, clock, 4.0)
    assert found == 0


@pytest.mark.parametrize("lives", [True, False])
async def test_observation_of_an_owner_counts_instead_of_its_clock(record, clock, lives):
    """One that lives keeps its turn for as long as it likes; one that does not has none."""
    owner = Owner.new()
    here = replace(record, holder=owner.token(TTL_S), lease_live=not lives)
    if not lives:
        owner.retire()
    for _ in range(10):
        assert await left(here, clock) == (None if lives else 0)
        clock.now += TTL_S
    assert seems_left(here) is not lives
    owner.retire()


async def test_a_lease_that_lives_or_was_given_back_needs_no_second_look(record, clock):
    """The first is somebody's, the second nobody's."""
    assert await left(replace(record, lease_live=True), clock) is None
    assert await left(replace(record, holder=None), clock) == 0


def test_one_observation_shows_an_expired_lease(record):
    """To a person, who decides nothing by it."""
    assert seems_left(record)
    assert not seems_left(replace(record, lease_live=True))
    assert seems_left(replace(record, holder=None))


async def test_only_so_many_processes_are_kept_in_mind(record, clock):
    """The eldest goes, and is then looked at anew."""
    await look(record, clock)
    for number in range(1024):
        await left(replace(record, holder=f"abroad/{number}/9/a"), clock)
    assert await left(record, clock) != 0


class Renewals:
    """A state store that renews, or fails to."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def renew(self, _context_id, _epoch, _ttl_s):
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "part"),
    [(True, 3), (StoreUnavailable("it stands still"), 12), (StorageFull("no space"), 12)],
)
async def test_a_renewal_that_failed_is_tried_again_soon(answer, part):
    """Once the store is back others look at the lease: it is renewed before they are sure."""
    loop = asyncio.get_running_loop()
    lease = Lease(Renewals(answer), "ada", 1, TTL_S, lambda: None)
    try:
        before = loop.time()
        await lease._renew()
        assert before + TTL_S / part <= lease._timer.due <= loop.time() + TTL_S / part
    finally:
        lease.let_go()


async def test_an_owner_is_informed_that_its_context_moved():
    """Once, and nothing is renewed after it."""
    heard = []
    lease = Lease(Renewals(None), "ada", 1, TTL_S, lambda: heard.append(1))
    was = lease._timer
    await lease._renew()
    assert heard == [1]
    assert lease._timer is was
    lease.let_go()
