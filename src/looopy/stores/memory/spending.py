"""`Spending` in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from looopy.stores.base import Spending
from looopy.stores.memory.accounts import Accounts, Reservation, Sums
from looopy.stores.memory.context import MemoryStore
from looopy.stores.rows.meta import to_us
from looopy.stores.spending import (
    NOTHING,
    TENANT,
    Allowance,
    Amount,
    Place,
    Spent,
    charges_of,
    check_room,
    key_of,
    spent_of,
)
from looopy.types.event import utc_now


class InMemorySpending(MemoryStore, Spending):
    """See `Spending` for the contract."""

    async def reserve(
        self,
        reservation: str,
        most: Amount,
        allowances: Sequence[Allowance],
        *,
        place: Place,
        owed: Amount = NOTHING,
    ) -> None:
        accounts = self._accounts
        if reservation in accounts.reservations:
            return
        charges = charges_of(allowances, to_us(utc_now()))
        earlier = {
            name: one
            for name, one in accounts.reservations.items()
            if one.place.context == place.context and one.place.turn < place.turn
        }
        for allowance, period in charges:
            used, reserved = accounts.sums.get((allowance.account, period), Sums())
            for one in earlier.values():
                if (allowance.account, period) in one.charges:
                    used, reserved = used.plus(one.most), reserved.minus(one.most)
            check_room(allowance, period, most, used.plus(owed), reserved)
        for name, one in earlier.items():
            del accounts.reservations[name]
            accounts.exchange(one, one.most)
        named = [(allowance.account, period) for allowance, period in charges]
        accounts.reservations[reservation] = Reservation(place, most, named)
        for charge in named:
            accounts.add(charge, owed, most)

    async def settle(self, reservation: str, used: Amount) -> bool:
        accounts = self._accounts
        taken = accounts.reservations.pop(reservation, None)
        if taken is None:
            return False
        accounts.exchange(taken, used)
        return True

    async def add(self, used: Amount, allowances: Sequence[Allowance]) -> None:
        for allowance, period in charges_of(allowances, to_us(utc_now())):
            self._accounts.add((allowance.account, period), used, NOTHING)

    async def spent(self, account: str = TENANT) -> list[Spent]:
        now_us = to_us(utc_now())
        found = []
        for key in (key_of("day", now_us), key_of("month", now_us)):
            sums = self._accounts.sums.get((account, key))
            if sums is not None:
                found.append(spent_of(key, *sums))
        return found

    @property
    def _accounts(self) -> Accounts:
        return self.backend.accounts_of(self.tenant)
