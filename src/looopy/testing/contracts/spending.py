"""The contract of `Spending`; see `looopy.testing.stores`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from looopy.errors import BudgetExceeded
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import (
    NOTHING,
    TENANT,
    Allowance,
    Amount,
    Place,
    account_of,
    digest_of,
    nanos_of,
)
from looopy.testing.contracts.turns import Contract, needing

_ADA, _BOB = account_of("ada"), account_of("bob")
_HERE = Place(digest_of("a context"), 1)
_CALL = Amount(100, nanos_of(0.25))


def _day(account: str, tokens: int | None = None, dollars: float | None = None) -> Allowance:
    """The allowance of a day."""
    nanos = None if dollars is None else nanos_of(dollars)
    return Allowance(account, "day", tokens, nanos, "owner_day")


def _month(tokens: int) -> Allowance:
    return Allowance(TENANT, "month", tokens, None, "tenant_month")


async def _sums(stores: Stores, account: str = _ADA) -> list[tuple[Amount, Amount]]:
    """The used and the reserved amount, for each period that has sums."""
    return [(one.used, one.reserved) for one in await stores.spending.spent(account)]


async def _fits(stores: Stores, name: str, most: Amount, allowances: Sequence[Allowance]) -> bool:
    try:
        await stores.spending.reserve(name, most, allowances, place=_HERE)
    except BudgetExceeded:
        return False
    return True


class SpendingContract(Contract):
    """Reservations in accounts that limit what model calls may use in a day or month."""

    needs = ("spending.reserve", "spending.settle", "spending.add", "spending.spent")

    async def test_a_call_is_reserved_and_then_settled(self, stores: Stores) -> None:
        """Each account has the most while the call runs, and what it used afterwards."""
        assert await _sums(stores) == await _sums(stores, TENANT) == []
        await stores.spending.reserve("one", _CALL, [_day(_ADA, 1_000), _month(900)], place=_HERE)
        assert await _sums(stores) == await _sums(stores, TENANT) == [(NOTHING, _CALL)]
        assert await stores.spending.settle("one", Amount(7, 5))
        assert await _sums(stores) == await _sums(stores, TENANT) == [(Amount(7, 5), NOTHING)]
        (day,) = await stores.spending.spent(_ADA)
        (month,) = await stores.spending.spent()
        assert (day.period, month.period) == ("day", "month")
        assert month.since <= day.since < day.until <= month.until
        assert (day.until - day.since).days == 1
        assert 28 <= (month.until - month.since).days <= 31
        assert await _sums(stores, _BOB) == []

    async def test_a_reservation_is_made_once_and_settled_once(self, stores: Stores) -> None:
        """So a writer that got no answer may ask again."""
        allowances = [_day(_ADA, 150)]
        for _ in range(3):
            await stores.spending.reserve("one", _CALL, allowances, place=_HERE)
        assert await _sums(stores) == [(NOTHING, _CALL)]
        settled = [await stores.spending.settle("one", Amount(10, 0)) for _ in range(3)]
        assert settled == [True, False, False]
        assert not await stores.spending.settle("never made", Amount(10, 0))
        assert await _sums(stores) == [(Amount(10, 0), NOTHING)]

    async def test_a_call_fits_up_to_the_limit(self, stores: Stores) -> None:
        """Used, reserved and the call's most together: the limit fits, one more does not."""
        for account, allowance, most, more in (
            (_ADA, _day(_ADA, 220), Amount(tokens=120), Amount(tokens=121)),
            (_BOB, _day(_BOB, None, 0.6), Amount(0, nanos_of(0.35)), Amount(0, nanos_of(0.35) + 1)),
        ):
            await stores.spending.reserve(f"run {account}", _CALL, [allowance], place=_HERE)
            with pytest.raises(BudgetExceeded) as refused:
                await stores.spending.reserve(f"no {account}", more, [allowance], place=_HERE)
            assert refused.value.waits, account
            assert await _sums(stores, account) == [(NOTHING, _CALL)]
            await stores.spending.reserve(f"yes {account}", most, [allowance], place=_HERE)
            assert await stores.spending.settle(f"run {account}", _CALL)
            with pytest.raises(BudgetExceeded) as refused:
                await stores.spending.reserve(f"no {account}", more, [allowance], place=_HERE)
            assert not refused.value.waits, account
            assert not await stores.spending.settle(f"no {account}", NOTHING)

    async def test_a_refusal_names_the_limit_and_the_way_out(self, stores: Stores) -> None:
        """The field of `Budget`, its value, and when the period ends."""
        await stores.spending.add(Amount(90, 0), [_day(_ADA, 100)])
        with pytest.raises(BudgetExceeded, match=r"used 90 of 100 tokens .*Budget\.owner") as no:
            await stores.spending.reserve("one", Amount(11, 0), [_day(_ADA, 100)], place=_HERE)
        (day,) = await stores.spending.spent(_ADA)
        facts = no.value.limit, no.value.value, no.value.resets_at, no.value.waits
        assert facts == ("owner_day_tokens", 100, day.until, False)

    async def test_a_call_without_room_in_one_account_is_in_none(self, stores: Stores) -> None:
        """All accounts have room, or nothing is written in any; in whichever order they come."""
        for small in (_day(_ADA, 99), _month(99)):
            large = _month(1_000) if small.account == _ADA else _day(_ADA, 1_000)
            for allowances in ([small, large], [large, small]):
                with pytest.raises(BudgetExceeded):
                    await stores.spending.reserve("one", _CALL, allowances, place=_HERE)
                assert await _sums(stores) == await _sums(stores, TENANT) == []
                assert not await stores.spending.settle("one", NOTHING)

    async def test_calls_at_once_get_no_more_than_the_limit(self, stores: Stores) -> None:
        """As many of forty calls at once get room as fit, whichever they are."""
        allowances = [_day(_ADA, 1_050), _month(5_000)]
        tried = (_fits(stores, f"call {n}", _CALL, allowances) for n in range(40))
        assert sum(await asyncio.gather(*tried)) == 10
        ten = Amount(1_000, 10 * _CALL.nanos)
        assert await _sums(stores) == await _sums(stores, TENANT) == [(NOTHING, ten)]

    async def test_settled_amounts_add_up_exactly(self, stores: Stores) -> None:
        """Nothing is rounded, and nothing is left over, however many calls are settled at once."""
        allowances = [_day(_ADA, 10**9), _month(10**9)]
        used = [Amount(3 * n + 1, 7 * n + 3) for n in range(30)]

        async def call(n: int) -> None:
            await stores.spending.reserve(f"call {n}", _CALL, allowances, place=_HERE)
            await stores.spending.settle(f"call {n}", used[n])

        await asyncio.gather(*(call(n) for n in range(30)))
        total = Amount(sum(one.tokens for one in used), sum(one.nanos for one in used))
        assert await _sums(stores) == await _sums(stores, TENANT) == [(total, NOTHING)]

    async def test_a_call_may_use_more_than_was_reserved(self, stores: Stores) -> None:
        """The real use counts; the next call has no room."""
        await stores.spending.reserve("one", _CALL, [_day(_ADA, 100)], place=_HERE)
        await stores.spending.settle("one", Amount(130, 0))
        assert await _sums(stores) == [(Amount(130, 0), NOTHING)]
        assert not await _fits(stores, "two", Amount(1, 0), [_day(_ADA, 100)])

    async def test_a_later_turn_settles_the_calls_of_earlier_ones(self, stores: Stores) -> None:
        """Their process is gone: they count at their most, and can be settled no more."""
        allowances = [_day(_ADA, 1_000), _month(1_000)]
        elsewhere = Place(digest_of("another context"), 1)
        await stores.spending.reserve("left", _CALL, allowances, place=_HERE)
        await stores.spending.reserve("runs", _CALL, allowances, place=elsewhere)
        later = Place(_HERE.context, 2)
        await stores.spending.reserve("two", _CALL, allowances, place=later)
        two = Amount(200, 2 * _CALL.nanos)
        assert await _sums(stores) == await _sums(stores, TENANT) == [(_CALL, two)]
        assert not await stores.spending.settle("left", NOTHING)
        assert await stores.spending.settle("runs", NOTHING)
        await stores.spending.reserve("three", _CALL, allowances, place=later)
        assert await _sums(stores) == await _sums(stores, TENANT) == [(_CALL, two)]

    async def test_calls_that_died_leave_no_room_to_a_later_turn(self, stores: Stores) -> None:
        """Settling them frees nothing, so a process that is killed gains nothing."""
        allowances = [_day(_ADA, 150)]
        await stores.spending.reserve("left", _CALL, allowances, place=_HERE)
        with pytest.raises(BudgetExceeded) as refused:
            await stores.spending.reserve("two", _CALL, allowances, place=Place(_HERE.context, 2))
        assert not refused.value.waits
        assert await _sums(stores) == [(NOTHING, _CALL)]

    async def test_an_owed_amount_is_added_with_a_reservation(self, stores: Stores) -> None:
        """It takes room from the call, and is not added if the call has none."""
        owed = Amount(40, 9)
        for most, fits in ((Amount(61, 0), False), (Amount(60, 0), True)):
            try:
                await stores.spending.reserve(
                    "one", most, [_day(_ADA, 100)], place=_HERE, owed=owed
                )
            except BudgetExceeded:
                assert not fits
                assert await _sums(stores) == []
            else:
                assert fits
        assert await _sums(stores) == [(owed, Amount(60, 0))]

    async def test_used_amounts_are_added_beyond_the_limit(self, stores: Stores) -> None:
        """It was used already."""
        await stores.spending.add(Amount(70, 1), [_day(_ADA, 100), _month(100)])
        await stores.spending.add(Amount(70, 1), [_day(_ADA, 100), _month(100)])
        assert await _sums(stores) == await _sums(stores, TENANT) == [(Amount(140, 2), NOTHING)]

    async def test_tenants_have_accounts_of_their_own(self, stores: Stores) -> None:
        """Also for owners of the same name, and reservations of the same name."""
        other = stores.for_tenant("other")
        await stores.spending.reserve("one", _CALL, [_day(_ADA, 100)], place=_HERE)
        assert await _sums(other) == []
        assert not await other.spending.settle("one", NOTHING)
        await other.spending.reserve("one", _CALL, [_day(_ADA, 100)], place=_HERE)
        await other.spending.settle("one", Amount(1, 1))
        assert await _sums(other) == [(Amount(1, 1), NOTHING)]
        assert await _sums(stores) == [(NOTHING, _CALL)]

    async def test_tokens_without_a_price_are_counted_apart(self, stores: Stores) -> None:
        """Used and reserved, so no sum of dollars seems complete that is not."""
        free = Amount(60, 0, 60)
        await stores.spending.reserve("one", _CALL, [_day(_ADA, 1_000)], place=_HERE)
        await stores.spending.reserve("two", free, [_day(_ADA, 1_000)], place=_HERE, owed=free)
        ((used, reserved),) = await _sums(stores)
        assert (used, used.is_priced) == (free, False)
        assert (reserved, reserved.cost_usd) == (Amount(160, _CALL.nanos, 60), 0.25)
        await stores.spending.settle("two", Amount(10, 5))
        ((used, reserved),) = await _sums(stores)
        assert (used, reserved, reserved.is_priced) == (Amount(70, 5, 60), _CALL, True)

    @needing("spending.accounts")
    async def test_accounts_are_listed_with_their_sums(self, stores: Stores) -> None:
        """By name, in pages, only this tenant's; a day without any has only its month's."""
        owners = sorted(map(account_of, ("ada", "bob", "eve", None)))
        for account in owners:
            limits = [_day(account, 100), replace(_day(account, 100), period="month")]
            await stores.spending.add(Amount(1, 2), limits)
        await stores.for_tenant("other").spending.add(Amount(1, 2), [_month(100)])
        whole = await stores.spending.accounts()
        assert [account for account, _ in whole] == owners
        for account, sums in whole:
            assert [one.period for one in sums] == ["day", "month"]
            assert sums == await stores.spending.spent(account)
        first = await stores.spending.accounts(limit=3)
        assert first == whole[:3]
        assert await stores.spending.accounts(after=owners[2], limit=3) == whole[3:]
        day, month = whole[0][1]
        today = day.since.date()
        assert await stores.spending.accounts(day=today) == whole
        other = today.replace(day=1 if today.day > 1 else 2)
        assert await stores.spending.spent(owners[0], day=other) == [month]
        assert await stores.spending.spent(owners[0], day=today.replace(year=2001)) == []
        assert await stores.spending.accounts(day=today.replace(year=2001)) == []

    @needing("spending.held")
    async def test_reservations_are_listed(self, stores: Stores) -> None:
        """With the turn that reserved it, its accounts, and the end of its last period."""
        now = datetime.now(UTC)
        for name, allowances in (("a", [_day(_ADA, 999)]), ("b", [_day(_ADA, 999), _month(999)])):
            await stores.spending.reserve(name, _CALL, allowances, place=_HERE)
        await stores.spending.reserve("c", _CALL, [_day(_ADA, 999)], place=_HERE)
        await stores.spending.settle("c", NOTHING)
        day, both = await stores.spending.held()
        assert [one.reservation for one in (day, both)] == ["a", "b"]
        assert (day.place, day.most, list(day.accounts)) == (_HERE, _CALL, [_ADA])
        assert sorted(both.accounts) == sorted([_ADA, TENANT])
        assert abs(day.since - now) < timedelta(minutes=5)
        assert day.until - day.since <= timedelta(days=1)
        assert (both.until.day, both.until >= day.until) == (1, True)
        assert await stores.spending.held(limit=1) == [day]
        assert await stores.spending.held(after="a") == [both]
        assert await stores.for_tenant("other").spending.held() == []

    @needing("spending.release")
    async def test_a_released_reservation_still_settles(self, stores: Stores) -> None:
        """The room is there again; nothing that is settled later gets lost."""
        allowances = [_day(_ADA, 150), _month(150)]
        await stores.spending.reserve("one", _CALL, allowances, place=_HERE)
        assert not await _fits(stores, "two", _CALL, allowances)
        assert not await stores.for_tenant("other").spending.release("one")
        assert [await stores.spending.release("one") for _ in range(2)] == [True, False]
        assert not await stores.spending.release("never made")
        assert await stores.spending.held() == []
        assert await _sums(stores) == await _sums(stores, TENANT) == [(NOTHING, NOTHING)]
        assert await _fits(stores, "two", _CALL, allowances)
        assert await stores.spending.settle("one", Amount(70, 7))
        assert await _sums(stores) == await _sums(stores, TENANT) == [(Amount(70, 7), _CALL)]
        assert await stores.spending.release("two")
        later = Place(_HERE.context, 2)
        await stores.spending.reserve("three", Amount(1, 1), allowances, place=later)
        assert await _sums(stores) == [(Amount(70, 7), Amount(1, 1))]
