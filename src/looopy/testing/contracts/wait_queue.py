"""
The line of waiting claims: part of the contract of a `StateStore`; see `looopy.testing.stores`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from looopy.errors import AgentBusy, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed, Waiter
from looopy.testing.contracts.turns import (
    CONTEXT,
    LONG_S,
    Contract,
    a_turn,
    at_once,
    begin,
    commit,
    ends,
    numbers,
    record_of,
    refuses,
)


async def _join(stores: Stores, *ttls: float, context_id: str = CONTEXT) -> list[int]:
    """Join once for each of *ttls*, and return the tickets."""
    join = stores.state.join_wait_queue
    return [await join(context_id, f"holder-{ttl_s:.0f}", ttl_s) for ttl_s in ttls]


async def _places(stores: Stores, context_id: str = CONTEXT) -> list[tuple[int, bool]]:
    return [(w.ticket, w.alive) for w in await stores.state.wait_queue(context_id)]


async def _held_up(stores: Stores, ticket: int | None = None) -> None:
    """Check that a claim is refused because of the queue alone, and changes nothing."""
    before = await stores.state.load(CONTEXT), await stores.state.wait_queue(CONTEXT)
    with pytest.raises(AgentBusy, match="queued") as refused:
        await begin(stores, ticket=ticket)
    assert refused.value.turn is None
    assert (await stores.state.load(CONTEXT), await stores.state.wait_queue(CONTEXT)) == before


async def _served(stores: Stores, ticket: int | None = None) -> Claimed:
    """A turn that the queue lets through, from its claim to its end."""
    claimed = await begin(stores, ticket=ticket)
    await commit(stores, claimed, [ends()], release=True)
    return claimed


class WaitQueueContract(Contract):
    """The order in which several waiters get a context."""

    needs = (
        "state.join_wait_queue",
        "state.keep_place",
        "state.leave_wait_queue",
        "state.wait_queue",
    )

    # --- places ---

    async def test_tickets_rise_in_order_of_arrival(self, stores: Stores) -> None:
        """The line lists them in that order; joining creates the context."""
        assert await _join(stores, LONG_S, LONG_S, 0) == [1, 2, 3]
        assert await _places(stores) == [(1, True), (2, True), (3, False)]
        (first, *_) = await stores.state.wait_queue(CONTEXT)
        assert first == Waiter(ticket=1, holder="holder-3600", alive=True)
        found = await record_of(stores)
        assert (found.epoch, found.turn_count, found.last_seq) == (0, 0, 0)

    async def test_concurrent_waiters_get_a_place_each(self, stores: Stores) -> None:
        """Each waiter gets its own ticket, even if joining creates the context."""
        tickets = await at_once(*(_join(stores, LONG_S) for _ in range(16)))
        assert sorted(tickets) == [[n] for n in range(1, 17)]
        assert await _places(stores) == [(n, True) for n in range(1, 17)]

    async def test_an_unknown_context_has_no_line(self, stores: Stores) -> None:
        """Reading, keeping and leaving create nothing; an invalid id cannot join."""
        for context_id in ("nobody", "no id"):
            assert await stores.state.wait_queue(context_id) == []
            assert not await stores.state.keep_place(context_id, 1, LONG_S)
            await stores.state.leave_wait_queue(context_id, 1)
        assert await stores.state.list() == []
        with pytest.raises(ValueRefused):
            await stores.state.join_wait_queue("no id", "holder-1", LONG_S)

    async def test_a_place_takes_a_ticket_and_a_time(self, stores: Stores) -> None:
        """The error names the argument, and nothing has changed."""
        assert await _join(stores, LONG_S) == [1]
        state = stores.state
        for bad in ("1", None, True, 1.5):
            with refuses(ValueRefused, path="/ticket"):
                await state.keep_place(CONTEXT, bad, LONG_S)  # type: ignore[arg-type] # on purpose
            with refuses(ValueRefused, path="/ticket"):
                await state.leave_wait_queue(CONTEXT, bad)  # type: ignore[arg-type] # as above
        for time in ("60", None, True, -1, float("nan")):
            with refuses(ValueRefused, path="/ttl_s"):
                await state.keep_place(CONTEXT, 1, time)  # type: ignore[arg-type] # as above
            with refuses(ValueRefused, path="/ttl_s"):
                await state.join_wait_queue(CONTEXT, "h", time)  # type: ignore[arg-type] # as above
        assert await _places(stores) == [(1, True)]

    async def test_a_place_is_kept_as_long_as_it_is_asked_for(self, stores: Stores) -> None:
        """The new time may be longer or shorter; a lapsed place can be renewed."""
        await _join(stores, LONG_S, 0)
        for ttl_s, alive in ((LONG_S, True), (0, False), (LONG_S, True)):
            assert await stores.state.keep_place(CONTEXT, 2, ttl_s)
            assert await _places(stores) == [(1, True), (2, alive)]
        for ticket in (0, 3, -1, 2**70):
            assert not await stores.state.keep_place(CONTEXT, ticket, LONG_S)

    async def test_a_lapsed_place_is_dropped_when_the_next_one_comes(self, stores: Stores) -> None:
        """Dead waiters do not fill the queue; one that renews too late must join again."""
        await _join(stores, 0, LONG_S, 0)
        assert await _join(stores, LONG_S) == [4]
        assert await _places(stores) == [(2, True), (4, True)]
        assert not await stores.state.keep_place(CONTEXT, 1, LONG_S)

    async def test_a_ticket_that_left_is_not_served(self, stores: Stores) -> None:
        """Leaving twice does no harm; a ticket is never used again."""
        await _join(stores, LONG_S, LONG_S)
        for ticket in (2, 2, 7, 0):
            await stores.state.leave_wait_queue(CONTEXT, ticket)
        assert await _places(stores) == [(1, True)]
        assert await _join(stores, LONG_S) == [3]

    # --- who may claim ---

    async def test_a_claim_without_a_ticket_waits_for_the_queue(self, stores: Stores) -> None:
        """A claim without a ticket is refused until the last waiter has left."""
        await a_turn(stores)
        first, second = await _join(stores, LONG_S, LONG_S)
        await _held_up(stores)
        await stores.state.leave_wait_queue(CONTEXT, first)
        await _held_up(stores)
        await stores.state.leave_wait_queue(CONTEXT, second)
        await _served(stores)

    async def test_tickets_are_served_in_order(self, stores: Stores) -> None:
        """In each round only the first waiter gets the context."""
        waiting = await _join(stores, *[LONG_S] * 5)
        for ticket in tuple(waiting):
            for later in reversed(waiting):
                if later != ticket:
                    await _held_up(stores, later)
            await _served(stores, ticket)
            waiting.remove(ticket)
            assert await _places(stores) == [(t, True) for t in waiting]
        await _served(stores)

    async def test_a_served_ticket_leaves_the_queue(self, stores: Stores) -> None:
        """The waiters after it hold up a claim without a ticket until they are served."""
        first, second = await _join(stores, LONG_S, LONG_S)
        await _served(stores, first)
        await _held_up(stores)
        await _served(stores, second)
        await _served(stores)

    async def test_a_place_that_was_not_kept_holds_up_nobody(self, stores: Stores) -> None:
        """It holds up neither the waiter after it nor a claim without a ticket."""
        await _join(stores, 0)
        await _served(stores)
        first, second = await _join(stores, LONG_S, LONG_S)
        await _held_up(stores, second)
        assert await stores.state.keep_place(CONTEXT, first, 0)
        await _held_up(stores)
        await _served(stores, second)
        await _served(stores)

    async def test_a_renewed_place_counts_until_it_lapses(self, stores: Stores) -> None:
        """A renewed place counts again until it lapses."""
        (ticket,) = await _join(stores, 0)
        assert await stores.state.keep_place(CONTEXT, ticket, LONG_S)
        await _held_up(stores)
        assert await stores.state.keep_place(CONTEXT, ticket, 0)
        await _served(stores)

    async def test_a_lapsed_ticket_waits_only_for_those_before_it(self, stores: Stores) -> None:
        """It still counts by its number: waiters that came later do not hold it up."""
        lapsed, _ = await _join(stores, 0, LONG_S)
        await _held_up(stores)
        await _served(stores, lapsed)
        assert await _places(stores) == [(2, True)]

    # --- what counts more than the queue ---

    async def test_taking_over_does_not_wait_in_line(self, stores: Stores) -> None:
        """A turn that was left open blocks every waiter; the waiters keep their places."""
        await begin(stores, ttl_s=0)
        first, second = await _join(stores, LONG_S, LONG_S)
        taken = await begin(stores, holder="h2", recover=True)
        assert await _places(stores) == [(first, True), (second, True)]
        await commit(stores, taken, [ends()], release=True)
        await _held_up(stores)
        await _served(stores, first)

    async def test_a_recovering_claim_uses_up_its_ticket(self, stores: Stores) -> None:
        """A claim uses up the ticket that it names."""
        await begin(stores, ttl_s=0)
        (ticket,) = await _join(stores, LONG_S)
        await begin(stores, holder="h2", recover=True, ticket=ticket)
        assert await _places(stores) == []

    async def test_a_running_turn_is_named_before_the_line(self, stores: Stores) -> None:
        """The refusal names the turn, and no refused claim costs the place."""
        claimed = await begin(stores)
        (ticket,) = await _join(stores, LONG_S)
        for mine in (None, ticket):
            with refuses(AgentBusy, turn=1):
                await begin(stores, holder="h2", ticket=mine)
        await commit(stores, claimed, [ends()], release=True)
        for mine in (None, ticket):
            with pytest.raises(StoreConflict):
                await begin(stores, 0, ticket=mine)
        assert await _places(stores) == [(ticket, True)]
        await _served(stores, ticket)

    async def test_clearing_and_appending_leave_the_line_alone(self, stores: Stores) -> None:
        """The waiter keeps its place."""
        (ticket,) = await _join(stores, LONG_S)
        await stores.messages.append(CONTEXT, ())
        await stores.journal.clear(CONTEXT)
        await _held_up(stores)
        await _served(stores, ticket)

    async def test_deleting_ends_the_line(self, stores: Stores) -> None:
        """A waiter in it cannot renew its place."""
        (ticket,) = await _join(stores, LONG_S)
        await stores.state.delete(CONTEXT)
        assert await stores.state.wait_queue(CONTEXT) == []
        assert not await stores.state.keep_place(CONTEXT, ticket, LONG_S)
        await _served(stores)
        assert await _join(stores, LONG_S) == [1]

    async def test_lines_of_other_contexts_and_tenants_are_others(self, stores: Stores) -> None:
        """The same id of another tenant has no line, and its tickets are separate."""
        await _join(stores, LONG_S, LONG_S)
        other = stores.for_tenant("other")
        assert await other.state.wait_queue(CONTEXT) == []
        assert not await other.state.keep_place(CONTEXT, 1, 0)
        await other.state.leave_wait_queue(CONTEXT, 1)
        assert await _join(stores, LONG_S, context_id="beside") == [1]
        await stores.state.leave_wait_queue("beside", 1)
        assert await _places(stores) == [(1, True), (2, True)]
        await _served(other)
        assert await _join(other, LONG_S) == [1]
        await _held_up(stores, 2)

    async def test_a_claim_that_the_line_lets_through_begins_as_any(self, stores: Stores) -> None:
        """The numbers and the state are the same as without a line."""
        plain = await begin(stores, context_id="beside", actor_id="u1")
        (ticket,) = await _join(stores, LONG_S)
        mine = await begin(stores, ticket=ticket, actor_id="u1")
        assert numbers(mine) == numbers(plain)
        found = await record_of(stores)
        beside = await record_of(stores, "beside")
        assert found == replace(
            beside,
            context_id=CONTEXT,
            epoch=mine.epoch,
            open_turn=found.open_turn,
            created_at=found.created_at,
            last_activity=found.last_activity,
        )

    async def test_joining_and_leaving_ring(self, stores: Stores) -> None:
        """Leaving is news for the waiters: one of them may be first now."""
        rung: list[bool] = []
        with stores.journal.notifier.listen(stores.tenant, CONTEXT, rung.append):
            (ticket,) = await _join(stores, LONG_S)
            assert rung
            rung.clear()
            await stores.state.leave_wait_queue(CONTEXT, ticket)
            assert True in rung
