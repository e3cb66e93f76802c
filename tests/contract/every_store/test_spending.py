"""The contract of the accounts of owners and tenants, on each backend."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

from tests.contract.backends import on_every_store

from looopy.stores import open_stores
from looopy.stores.contexts.spending import Allowance, Amount, Place, digest_of
from looopy.stores.rows.meta import to_us
from looopy.stores.sql.sqlite import connection
from looopy.testing.contracts.spending import SpendingContract

globals().update(on_every_store("Spending", SpendingContract))


async def test_old_sums_of_days_and_months_are_dropped(sqlite_file, monkeypatch):
    """Days after two months, months after more than a year, with the first call of a period."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    monkeypatch.setattr(connection, "_now_us", lambda: to_us(now))
    limits = [Allowance("ada", period, 10**6, None, "x") for period in ("day", "month")]
    kept = []
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        for days in (0, 100, 900):
            now += timedelta(days=days)
            place = Place(digest_of("c"), 1)
            await stores.spending.reserve(f"r{days}", Amount(1, 1), limits, place=place)
            with closing(sqlite3.connect(sqlite_file)) as file:
                found = file.execute("SELECT period FROM looopy_spending ORDER BY period")
                kept.append([period for (period,) in found])
    assert kept == [
        ["d2026-01-01", "m2026-01"],
        ["d2026-04-11", "m2026-01", "m2026-04"],
        ["d2028-09-27", "m2028-09"],
    ]
