"""A PgBouncer between looopy and Postgres: refused by name, or used as the URL says."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from tests.pgbouncer import MISSING, Bouncer, binary
from tests.postgres import as_driver, ask

from looopy.errors import StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.stores.sql.driver import Query
from looopy.testing.contracts.turns import a_turn, begin, user

pytestmark = pytest.mark.skipif(binary() is None, reason=MISSING)

_SETTINGS = (
    "SELECT name, setting FROM pg_settings WHERE source IN ('session', 'client')"
    " AND name NOT IN ('application_name', 'client_encoding')"
)


@pytest.fixture(params=["asyncpg", "psycopg"])
def name(request):
    """Which driver."""
    return request.param


@pytest.fixture
def transactions(postgres):
    """A pooler that shares two connections, transaction by transaction."""
    with Bouncer(postgres, "transaction") as made:
        yield made


def _shown(setting):
    return lambda: (yield Query(f"SHOW {setting}", {}, alone=True))


def _left_behind(bouncer):
    """Settings and prepared statements that another client finds on the connections it shares."""
    found = []
    with (
        psycopg.connect(bouncer.url, prepare_threshold=None) as one,
        psycopg.connect(bouncer.url, prepare_threshold=None) as other,
    ):
        for connection in (one, other):  # both transactions are open at the same time
            found += connection.execute(_SETTINGS).fetchall()
            found += connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
    return found


@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("ignored", ["extra_float_digits", "extra_float_digits, options"])
async def test_a_pooler_that_the_url_does_not_name_is_refused_by_name(
    postgres, name, mode, ignored
):
    """At opening, with the option to add; nothing of ours stays on its connections."""
    with Bouncer(postgres, mode, ignore_startup_parameters=ignored) as bouncer:
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="pooler=transaction") as refused:
                async with open_stores(as_driver(bouncer.url, name)):
                    pass
            assert "pooler=session" in str(refused.value)
        assert _left_behind(bouncer) == []


async def test_a_migration_through_a_pooler_is_refused_by_name_too(fresh_postgres, name):
    """And made where the URL says it."""
    with Bouncer(fresh_postgres, "transaction") as bouncer:
        url = as_driver(bouncer.url, name)
        with pytest.raises(StoreUnavailable, match="pooler=transaction"):
            await asyncio.to_thread(migrate.upgrade, url)
        await asyncio.to_thread(migrate.upgrade, f"{url}&pooler=transaction")
        async with open_stores(f"{url}&pooler=transaction") as stores:
            assert await stores.state.list() == []


async def test_turns_share_the_connections_of_a_pooler(transactions, name):
    """Eight users on two connections: each reads what it wrote, and leaves nothing there."""
    url = f"{as_driver(transactions.url, name)}&pooler=transaction&pool_size=8"

    async def use(stores, number):
        context_id = f"c{number}"
        await stores.messages.append(context_id, [user(f"said by {number}")])
        for _ in range(10):
            found = await stores.messages.recent(context_id, limit=number + 1)
            assert [record.message.text for record in found] == [f"said by {number}"]
            assert await stores.messages.count(context_id) == 1
            assert (await stores.state.load(context_id)).turn_count == 0

    async with open_stores(url) as stores:
        await asyncio.gather(*(use(stores, number) for number in range(8)))
        await a_turn(stores)
        with pytest.raises(StoreUnavailable):
            await stores.state.backend.run(_shown("nothing_like_this"), write=False)
    assert _left_behind(transactions) == []


async def test_a_pooler_of_sessions_is_used_as_a_server(postgres, name):
    """Its connections are set up for commits of one statement, and reset for the next client."""
    with Bouncer(postgres, "session", default_pool_size=4) as bouncer:
        async with open_stores(f"{as_driver(bouncer.url, name)}&pooler=session") as stores:
            await begin(stores)
            driver = stores.state.backend
            assert driver._alone
            assert await driver.run(_shown("statement_timeout"), write=False) == [("30s",)]
        assert _left_behind(bouncer) == []


async def test_an_option_of_the_url_goes_with_ours(postgres, name):
    """A direct connection takes both."""
    url = f"{as_driver(postgres, name)}&options=-c%20work_mem%3D5MB"
    async with open_stores(url) as stores:
        driver = stores.state.backend
        assert await driver.run(_shown("work_mem"), write=False) == [("5MB",)]
        assert driver._alone
    assert ask(postgres, "SHOW work_mem") != [("5MB",)]
