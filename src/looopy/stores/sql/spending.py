"""`Spending` on SQL: one row for each account and period, and one for each running call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from looopy.stores.base import Spending
from looopy.stores.spending import (
    KEPT_DAYS,
    NOTHING,
    TENANT,
    Allowance,
    Amount,
    Place,
    Spent,
    charges_of,
    check_room,
    key_of,
    oldest_kept,
    spent_of,
)
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
            "context": " ".join(sorted(accounts)),  # those that wait for the same rows
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

    async def spent(self, account: str = TENANT) -> list[Spent]:
        key = {"tenant": self.tenant, "account": account}
        found = await self.backend.run(partial(_spent, key), write=False)
        return [spent_of(row[0], Amount(*row[1:3]), Amount(*row[3:5])) for row in found]


def _reserve(
    key: Mapping[str, Any], most: Amount, allowances: Sequence[Allowance], owed: Amount
) -> Steps[None]:
    now_us = yield from _now(key)
    charges = charges_of(allowances, now_us)
    named = json.dumps([(one.account, period) for one, period in charges])
    if not (yield Query(s.ADD_RESERVATION, {**key, "charges": named, "now": now_us})):
        return  # by an earlier try, whose answer was lost
    for row in (yield Query(s.TAKE_EARLIER, key)):
        yield from _exchange(key, row, Amount(*row[:2]))
    for allowance, period in charges:
        total = yield from _spend(key, allowance, period, owed, most)
        used, held = Amount(*total[:2]), Amount(*total[2:4])
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


def _spent(key: Mapping[str, Any]) -> Steps[Rows]:
    now_us = yield from _now(key)
    periods = {"day": key_of("day", now_us), "month": key_of("month", now_us)}
    return (yield Query(s.SPENT, {**key, **periods}))


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
    tokens, nanos, charges = row
    changed = _sums(used, NOTHING.minus(Amount(tokens, nanos)))
    for account, period in json.loads(charges):
        place = {"tenant": key["tenant"], "account": account, "period": period}
        yield Query(s.SETTLE, {**place, **changed})


def _sums(used: Amount, held: Amount) -> dict[str, int]:
    return {
        "tokens": used.tokens,
        "nanos": used.nanos,
        "held_tokens": held.tokens,
        "held_nanos": held.nanos,
    }
