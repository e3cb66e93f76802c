"""`Spending` in dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import islice

from looopy.stores.base import Spending
from looopy.stores.contexts.spending import (
    NOTHING,
    TENANT,
    Allowance,
    Amount,
    Held,
    Place,
    Spent,
    charges_of,
    check_room,
    held_of,
    keys_on,
    spent_of,
)
from looopy.stores.memory.accounts import Accounts, Reservation, Sums
from looopy.stores.memory.context import MemoryStore
from looopy.stores.rows.meta import to_us
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
        now_us = to_us(utc_now())
        charges = charges_of(allowances, now_us)
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
        accounts.reservations[reservation] = Reservation(place, most, named, now_us)
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

    async def spent(self, account: str = TENANT, *, day: date | None = None) -> list[Spent]:
        return self._sums(account, day)

    async def accounts(
        self, *, day: date | None = None, after: str = "", limit: int = 200
    ) -> list[tuple[str, Sequence[Spent]]]:
        names = sorted({account for account, _ in self._accounts.sums if account > after})
        found = ((name, self._sums(name, day)) for name in names)
        return list(islice((one for one in found if one[1]), limit))

    async def held(self, *, after: str = "", limit: int = 200) -> list[Held]:
        reservations = sorted(self._accounts.reservations.items())
        found = ((name, one) for name, one in reservations if name > after and any(one.most))
        return [
            held_of(name, one.place, one.most, one.charges, one.made_at_us)
            for name, one in islice(found, limit)
        ]

    async def release(self, reservation: str) -> bool:
        accounts = self._accounts
        found = accounts.reservations.get(reservation)
        if found is None or not any(found.most):
            return False
        accounts.exchange(found, NOTHING)
        accounts.reservations[reservation] = found._replace(most=NOTHING)
        return True

    def _sums(self, account: str, day: date | None) -> list[Spent]:
        keys = keys_on(day or utc_now())
        sums = self._accounts.sums
        return [spent_of(k, *sums[account, k]) for k in keys.values() if (account, k) in sums]

    @property
    def _accounts(self) -> Accounts:
        return self.backend.accounts_of(self.tenant)
