"""`Spending` on SQL: one row for each account and period, and one for each running call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from looopy.stores.base import Spending
from looopy.stores.contexts.spending import (
    KEPT_DAYS,
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
    oldest_kept,
    spent_of,
)
from looopy.stores.rows.meta import from_us
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.store import SQLStore, bounded

_KEPT_US = timedelta(days=KEPT_DAYS) // timedelta(microseconds=1)


class SQLSpending(SQLStore, Spending):
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
        accounts = {one.account for one in allowances}
        key = {
            "tenant": self.tenant,
            "context": " ".join(sorted(accounts)),  # writers that wait for the same rows
            "reservation": reservation,
            "place": place.context,
            "turn": bounded(place.turn),
            **most._asdict(),
        }
        await self.backend.run(partial(_reserve, key, most, allowances, owed), write=True)

    async def settle(self, reservation: str, used: Amount) -> bool:
        key = {"tenant": self.tenant, "reservation": reservation}
        return await self.backend.run(partial(_settle, key, used), write=True)

    async def add(self, used: Amount, allowances: Sequence[Allowance]) -> None:
        await self.backend.run(partial(_add, {"tenant": self.tenant}, used, allowances), write=True)

    async def spent(self, account: str = TENANT, *, day: date | None = None) -> list[Spent]:
        key = {"tenant": self.tenant, "account": account}
        found = await self.backend.run(partial(_spent, s.SPENT, key, day), write=False)
        return [_sum_of(row) for row in found]

    async def accounts(
        self, *, day: date | None = None, after: str = "", limit: int = 200
    ) -> list[tuple[str, Sequence[Spent]]]:
        # An account has two rows at most, so this many have all rows of the first accounts.
        key = {"tenant": self.tenant, "account": after, "limit": 2 * limit}
        found = await self.backend.run(partial(_spent, s.ACCOUNTS, key, day), write=False)
        accounts = groupby(found, key=itemgetter(0))
        return [
            (account, [_sum_of(row[1:]) for row in rows])
            for account, rows in islice(accounts, limit)
        ]

    async def held(self, *, after: str = "", limit: int = 200) -> list[Held]:
        key = {"tenant": self.tenant, "reservation": after, "limit": limit}
        found = await self.backend.run(partial(_rows, s.RESERVATIONS, key), write=False)
        return [
            held_of(row[0], Place(*row[1:3]), Amount(*row[3:6]), json.loads(row[6]), row[7])
            for row in found
        ]

    async def release(self, reservation: str) -> bool:
        key = {"tenant": self.tenant, "reservation": reservation}
        return await self.backend.run(partial(_release, key), write=True)


def _reserve(
    key: Mapping[str, Any], most: Amount, allowances: Sequence[Allowance], owed: Amount
) -> Steps[None]:
    now_us = yield from _now(key)
    charges = charges_of(allowances, now_us)
    named = json.dumps([(one.account, period) for one, period in charges])
    if not (yield Query(s.ADD_RESERVATION, {**key, "charges": named, "now": now_us})):
        return  # by an earlier try, whose answer was lost
    for row in (yield Query(s.TAKE_EARLIER, key)):
        yield from _exchange(key, row, Amount(*row[:3]))
    for allowance, period in charges:
        total = yield from _spend(key, allowance, period, owed, most)
        used, held = Amount(*total[:3]), Amount(*total[3:6])
        check_room(allowance, period, most, used, held.minus(most))
        if used == owed and held == most:  # the first call of this account in this period
            params = {**key, "account": allowance.account, **oldest_kept(now_us)}
            yield Query(s.DROP_OLD_SUMS, params)
            yield Query(s.DROP_OLD_RESERVATIONS, {**key, "before": now_us - _KEPT_US})


def _settle(key: Mapping[str, Any], used: Amount) -> Steps[bool]:
    found = yield Query(s.TAKE_RESERVATION, key)
    if not found:
        return False
    yield from _exchange(key, found[0], used)
    return True


def _add(key: Mapping[str, Any], used: Amount, allowances: Sequence[Allowance]) -> Steps[None]:
    now_us = yield from _now(key)
    for allowance, period in charges_of(allowances, now_us):
        yield from _spend(key, allowance, period, used, NOTHING)


def _release(key: Mapping[str, Any]) -> Steps[bool]:
    found = yield Query(s.HELD, key)
    if not found:
        return False
    yield Query(s.EMPTY_RESERVATION, key)
    yield from _exchange(key, found[0], NOTHING)
    return True


def _spent(sql: str, key: Mapping[str, Any], day: date | None) -> Steps[Rows]:
    if day is None:
        day = from_us((yield from _now(key)))
    return (yield Query(sql, {**key, **keys_on(day)}))


def _rows(sql: str, key: Mapping[str, Any]) -> Steps[Rows]:
    return (yield Query(sql, key))


def _sum_of(row: Sequence[Any]) -> Spent:
    """The sums of a row that begins with its period."""
    return spent_of(row[0], Amount(*row[1:4]), Amount(*row[4:7]))


def _now(key: Mapping[str, Any]) -> Steps[int]:
    rows = yield Query(s.NOW, key)
    return int(rows[0][0])


def _spend(
    key: Mapping[str, Any], allowance: Allowance, period: str, used: Amount, held: Amount
) -> Steps[tuple[Any, ...]]:
    """Add to the sums of an account; the sums then."""
    place = {"tenant": key["tenant"], "account": allowance.account, "period": period}
    rows = yield Query(s.SPEND, {**place, **_sums(used, held)})
    return rows[0]


def _exchange(key: Mapping[str, Any], row: Sequence[Any], used: Amount) -> Steps[None]:
    """Put *used* in the place of a reservation that was taken away."""
    changed = _sums(used, NOTHING.minus(Amount(*row[:3])))
    for account, period in json.loads(row[3]):
        place = {"tenant": key["tenant"], "account": account, "period": period}
        yield Query(s.SETTLE, {**place, **changed})


def _sums(used: Amount, held: Amount) -> dict[str, int]:
    return {**used._asdict(), **{f"held_{name}": n for name, n in held._asdict().items()}}
