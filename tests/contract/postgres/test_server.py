"""What only a server can do: be away, come back, cut a connection, refuse a login, run full."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import traceback

import psycopg
import pytest
from tests.cutting import Cutter
from tests.postgres import GUARDED, Server, as_driver, ask
from tests.shares import PSYCOPG

from looopy.errors import (
    AgentBusy,
    ConfigurationError,
    LimitExceeded,
    LooopyError,
    MissingExtra,
    SchemaOutOfDate,
    StorageFull,
    StoreConflict,
    StoreUnavailable,
    how_to_install,
)
from looopy.stores import open_stores
from looopy.stores.notifier import Notifier
from looopy.stores.owner import Owner
from looopy.stores.records import INBOX_LIMIT, EntryKind, InboxHead
from looopy.stores.sql import migrate, statements
from looopy.stores.sql.driver import Query
from looopy.stores.sql.engine import bind
from looopy.stores.sql.migrate import bring_to_head
from looopy.stores.sql.postgres import pool as pg_pool
from looopy.stores.sql.postgres import url as pg_url
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.notify import News
from looopy.stores.sql.postgres.pool import Pool
from looopy.stores.sql.store import NO_LIMIT
from looopy.stores.sql.tables import metadata
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_turn,
    answer,
    begin,
    commit,
    ends,
    finishes,
    said,
    starts,
    user,
)
from looopy.types.message import ToolCall

_INSERT = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq,"
    " visible_from, cleared_seq, state, metadata, version, created_at, last_activity)"
    " VALUES (:tenant, :context, 0, 0, 0, 0, 1, 0, '{}', '{}', 0, 0, 0)"
)
_COUNT = "SELECT COUNT(*) FROM looopy_contexts"


def _one(sql, **params):
    """An operation of one statement; it answers with the rows."""

    def work():
        return (yield Query(sql, params))

    return work


def _driver(url, name, **options):
    return PostgresDriver(pg_url.parse(as_driver(url, name)), **options)


@pytest.fixture(params=["asyncpg", "psycopg"])
def name(request):
    """Which driver."""
    return request.param


over_asyncpg = pytest.mark.parametrize("name", ["asyncpg", PSYCOPG])
"""What the server does, and no driver can change: over the second one in the long run."""


@pytest.fixture
async def driver(postgres, name):
    """An open driver on an empty database."""
    opened = _driver(postgres, name)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def own_server():
    """A server that a test may stop, and its database `head`, which is to be copied."""
    server = Server()
    server.start()
    ask(server.url("postgres"), "CREATE DATABASE head")
    migrate.upgrade(server.url("head"))
    yield server
    server.remove()


@pytest.fixture
def own_database(own_server):
    """A database at the head on a server that runs and may be stopped."""
    own_server.start_if_stopped()
    ask(own_server.url("postgres"), "DROP DATABASE IF EXISTS app WITH (FORCE)")
    ask(own_server.url("postgres"), "CREATE DATABASE app TEMPLATE head STRATEGY FILE_COPY")
    return own_server.url("app")


def _end_all(url):
    """Cut every other connection to the database, as an administrator does."""
    ask(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def _until(holds):
    """Wait until *holds* says so, letting everything else go on."""
    while not holds():  # noqa: ASYNC110 - what is waited for is in another process
        await asyncio.sleep(0)


def _shown(error):
    """Everything that a log would show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.facts)


# --- settings and transactions ---


async def test_a_session_cannot_hold_on_to_its_locks_for_long(driver):
    """Neither a slow statement, nor a wait for a row, nor a client that is gone."""
    for setting, wanted in (
        ("statement_timeout", "30s"),
        ("lock_timeout", "10s"),
        ("idle_in_transaction_session_timeout", "30s"),
        ("client_connection_check_interval", "500ms"),
    ):
        assert await driver.run(_one(f"SHOW {setting}"), write=False) == [(wanted,)]


@over_asyncpg
async def test_a_long_history_is_read_in_order_and_not_sorted(driver):
    """Also when nothing else is in the table, where a server would read all of it first."""
    await bind(driver, "t").messages.append("c", [user("a" * 200)] * 2000)
    await driver.run(_one("ANALYZE looopy_messages"), write=True)
    for statement, params in (
        (statements.LIST_RECORDS, {"after": 0, "limit": NO_LIMIT}),
        (statements.LIST_RECORDS, {"after": 1990, "limit": NO_LIMIT}),
        (statements.LIST_NEWEST, {"limit": 1000}),
    ):
        work = _one(f"EXPLAIN {statement}", tenant="t", context="c", **params)
        plan = "".join(line for (line,) in await driver.run(work, write=False))
        assert "Index Scan using pk_looopy_messages" in plan
        assert "Sort" not in plan


async def test_a_statement_is_planned_once(postgres, name):
    """For all values: not five times for those that it is given, as a server does by itself."""
    driver = _driver(f"{postgres}&pool_size=1", name)  # plans are counted by connection
    await driver.open()
    stores = bind(driver, "t")
    await stores.messages.append("c", [user("a")])
    for _ in range(2):
        assert len(await stores.messages.records("c")) == 1
    assert await driver.run(_one("SHOW plan_cache_mode"), write=False) == [("force_generic_plan",)]
    if name == "asyncpg":  # the other one prepares what it has run five times
        plans = (
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE"
        )
        work = _one(f"{plans} 'SELECT position, turn%'")
        assert await driver.run(work, write=False) == [(2, 0)]
    await driver.close()


async def test_a_server_without_a_check_of_clients_is_used(postgres, name, monkeypatch):
    """Not every system can: it refuses the setting, and every other one is made."""
    refused = Query("SELECT set_config('client_connection_check_interval', 'never', false)", {})
    monkeypatch.setattr(pg_pool, "_SET_UP", refused)
    opened = _driver(postgres, name)
    await opened.open()
    assert await opened.run(_one("SHOW lock_timeout"), write=False) == [("10s",)]
    async with opened._pool.session() as session:
        assert session.backend is not None
    await opened.close()


async def test_a_commit_is_durable_whatever_the_database_says(fresh_postgres, name):
    """A commit that a power cut may take back would break the first promise."""
    ask(
        fresh_postgres,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
        " current_database()); END $$",
    )
    migrate_and_open = _driver(fresh_postgres, name, bring_to_head=bring_to_head)
    await migrate_and_open.open()
    assert await migrate_and_open.run(_one("SHOW synchronous_commit"), write=True) == [("on",)]
    await migrate_and_open.close()


async def test_settings_of_an_administrator_stay(fresh_postgres, name):
    """And a statement that takes longer is said to have, with nothing written."""
    migrating = _driver(fresh_postgres, name, bring_to_head=bring_to_head)
    await migrating.open()  # without that limit, which a busy machine exceeds
    await migrating.close()
    ask(
        fresh_postgres,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 1000',"
        " current_database()); END $$",
    )
    opened = _driver(fresh_postgres, name)
    await opened.open()
    with pytest.raises(StoreUnavailable, match="took too long") as refused:
        await opened.run(_one("SELECT pg_sleep(60)"), write=True)
    assert (refused.value.outcome_known, refused.value.sqlstate) == (True, "57014")
    await opened.close()


def test_a_database_at_the_head_is_opened_without_its_schema(postgres, name):
    """
    The names of the tables are known beside the statements: SQLAlchemy is not loaded, nor SQLite.
    """
    assert set(metadata.tables) == statements.TABLES
    code = (
        "import asyncio, sys\n"
        "from looopy import open_stores\n"
        "async def main():\n"
        "    async with open_stores(sys.argv[1]) as stores:\n"
        "        print(await stores.messages.count('ada'))\n"
        "asyncio.run(main())\n"
        "print(*sorted({'alembic', 'sqlalchemy', 'sqlite3'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, as_driver(postgres, name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["0"], "")


async def test_a_read_cannot_write_a_row(driver):
    """A transaction that reads refuses every change."""
    with pytest.raises(StoreUnavailable) as refused:
        await driver.run(_one(_INSERT, tenant="t", context="c"), write=False)
    assert refused.value.sqlstate == "25006"


@pytest.mark.parametrize("option", ["", "&pooler=transaction"])
@over_asyncpg
async def test_a_database_that_is_set_to_be_read_only_is_not_written_to(
    fresh_postgres, postgres_server, name, option
):
    """An administrator has frozen it: reads are answered, writes and migrations refused."""
    url = as_driver(fresh_postgres, name) + option
    async with open_stores(url, migrate=True) as stores:
        await a_turn(stores)
    ((database,),) = ask(fresh_postgres, "SELECT current_database()")
    admin = postgres_server("postgres")
    ask(admin, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    async with open_stores(url) as stores:
        await _assert_only_read(stores)
    with pytest.raises(StoreUnavailable, match="default_transaction_read_only"):
        await asyncio.to_thread(migrate.downgrade, url, "base")
    ask(admin, f"ALTER DATABASE {database} RESET default_transaction_read_only")
    async with open_stores(url) as stores:
        assert await stores.messages.count(CONTEXT) == 2
        await stores.messages.append(CONTEXT, [user("more")])


async def _assert_only_read(stores):
    """Reads work; a turn, a message and a deletion are refused before anything is written."""
    assert [one.context_id for one in (await stores.contexts.list()).items] == [CONTEXT]
    for context_id in (CONTEXT, None):
        (hit,) = (await stores.contexts.search("hello", context_id=context_id)).items
        assert (hit.context_id, hit.position) == (CONTEXT, 1)
    record = await stores.state.load(CONTEXT)
    assert await stores.messages.list(CONTEXT) == [user("hello"), answer("hi")]
    for writing in (
        begin(stores, record.epoch),
        stores.messages.append(CONTEXT, [user("more")]),
        stores.artifacts.save(CONTEXT, "doc", b"x"),
        stores.state.delete(CONTEXT),
        begin(stores, context_id="new"),
    ):
        with pytest.raises(StoreUnavailable, match="is read-only, so nothing was") as refused:
            await writing
        assert (refused.value.outcome_known, refused.value.sqlstate) == (True, "25006")
    assert await stores.state.load(CONTEXT) == record


@over_asyncpg
async def test_a_standby_is_read_and_not_written_to(name):
    """A server in recovery, as a replica is: it says that the primary has to be named."""
    server = Server("hot_standby=on")
    try:
        server.start()
        url = as_driver(server.url("postgres"), name)
        async with open_stores(url, migrate=True) as stores:
            await a_turn(stores)
        server.stop()
        server.follow()
        server.start()
        assert ask(server.url("postgres"), "SELECT pg_is_in_recovery()") == [(True,)]
        async with open_stores(url) as stores:
            await _assert_only_read(stores)
        with pytest.raises(StoreUnavailable, match="name the primary server"):
            await asyncio.to_thread(migrate.downgrade, url, "base")
    finally:
        server.remove()


async def test_a_read_of_many_statements_sees_one_snapshot(driver, postgres):
    """Two statements of one read see the same rows, though another commits in between."""

    def two_reads():
        first = yield Query(_COUNT, {})
        ask(postgres, _INSERT.replace(":tenant, :context", "'t', 'c'"))
        second = yield Query(_COUNT, {})
        return first, second

    assert await driver.run(two_reads, write=False) == ([(0,)], [(0,)])
    assert await driver.run(_one(_COUNT), write=False) == [(1,)]


async def test_a_server_refuses_a_row_without_a_tenant(driver):
    """The last line of defence, should a caller get past all others."""
    with pytest.raises(StoreUnavailable) as refused:
        await driver.run(_one(_INSERT, tenant="", context="c"), write=True)
    assert refused.value.sqlstate == "23514"


async def test_a_cancelled_caller_leaves_a_write_to_be_carried_out(driver):
    """Cancelled is not rolled back, and leaves no transaction open."""
    reached = asyncio.Event()

    def work():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        reached.set()
        yield Query("SELECT 1", {})

    task = asyncio.create_task(driver.run(work, write=True))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await driver.close()  # waits for what was accepted
    await driver.open()
    assert await driver.run(_one(_COUNT), write=False) == [(1,)]


async def test_a_defect_in_an_operation_takes_it_back(driver):
    """An error that is none of ours reaches its caller; the connection serves on."""

    def broken():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        raise ZeroDivisionError

    def refused():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        raise StoreConflict("no", expected=1, actual=2)

    with pytest.raises(ZeroDivisionError):
        await driver.run(broken, write=True)
    with pytest.raises(StoreConflict):
        await driver.run(refused, write=True)
    assert await driver.run(_one(_COUNT), write=False) == [(0,)]


async def test_a_transaction_pooler_gets_no_leftover_state(postgres, name):
    """No prepared statement and no setting of the session: the next client gets it as it was."""
    url = f"{postgres}&pooler=transaction&pool_size=1"
    opened = _driver(url, name)
    await opened.open()
    await a_turn(bind(opened, "default"))
    for _ in range(12):  # more often than a driver needs to see a statement before it prepares it
        await opened.run(_one("SELECT :limit", limit=1), write=True)
    held = "SELECT statement FROM pg_prepared_statements WHERE name <> ''"
    assert await opened.run(_one(held), write=False) == []
    assert await opened.run(_one("SHOW statement_timeout"), write=True) == [("30s",)]
    timeout = Query("SHOW statement_timeout", {}, alone=True)
    assert await opened.run(lambda: (yield timeout), write=False) == [("0",)]
    await opened.close()


async def test_closing_leaves_no_connection(fresh_postgres, name):
    """Twice is once, and opening again works."""
    mine = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    stores = open_stores(as_driver(fresh_postgres, name), migrate=True)
    for position in (1, 2):
        async with stores:
            assert await stores.messages.append(CONTEXT, [user("a")]) == position
        await stores.__aexit__(None, None, None)
        # The server needs a moment to see it.
        await _until(lambda: ask(fresh_postgres, mine) == [(0,)])


# --- one statement for a commit ---


async def test_a_commit_of_a_turn_is_one_round_trip_whatever_it_writes(cutter, name):
    """One statement, a transaction of its own: what needs the numbers is told to the server."""
    opened = _driver(f"{cutter.url}&pool_size=1", name)  # or connecting would count
    await opened.open()
    stores = bind(opened, "default")
    call = ToolCall("c", "t", {"a": 1})
    asked = []
    for epoch in range(8):  # at first a driver gets to know its statements
        asked.append(cutter.asked)
        claimed = await begin(stores, epoch)
        asked.append(cutter.asked)
        await commit(stores, claimed, [said(answer("", call)), starts(call)])
        asked.append(cutter.asked)
        await commit(
            stores, claimed, [*finishes(call, "3"), said(answer("x")), ends()], release=True
        )
    asked.append(cutter.asked)
    assert [b - a for a, b in itertools.pairwise(asked[-4:])] == [1, 1, 1]
    assert [e.seq for e in await stores.journal.events(CONTEXT)] == list(range(1, 8 * 8 + 1))
    await opened.close()


async def test_opening_and_reading_take_as_few_round_trips_as_they_can(cutter, name):
    """Logging in, making the session ready, looking at the schema; then one a question."""
    opened = _driver(f"{cutter.url}&pool_size=1", name)
    asked = [cutter.asked]
    await opened.open()
    asked.append(cutter.asked)
    assert asked[1] - asked[0] <= (5 if name == "asyncpg" else 3)  # it asks for types first
    stores = bind(opened, "default")
    await stores.messages.append(CONTEXT, [user("a")])
    for read in (
        lambda: stores.state.load(CONTEXT),
        lambda: stores.messages.records(CONTEXT),
        lambda: stores.messages.recent(CONTEXT, limit=1),
    ):
        asked = [cutter.asked]
        for _ in range(5):
            await read()
            asked.append(cutter.asked)
        assert min(b - a for a, b in itertools.pairwise(asked)) == 1  # others hear of the append
    await opened.close()


async def test_a_name_and_a_delivery_cost_no_round_trip(cutter, name):
    """They ride with the claim and the commit; what has no place in line asks for none."""
    opened = _driver(f"{cutter.url}&pool_size=1", name)  # or connecting would count
    await opened.open()
    stores = bind(opened, "default")
    trips = []
    for epoch in range(8):
        for _ in range(2):
            await stores.journal.post(CONTEXT, EntryKind.STEER, user("wait"))
        first, second = 2 * epoch + 1, 2 * epoch + 2
        asked = [cutter.asked]
        named = {"key": f"k{epoch}", "input_hash": "h"}
        claimed = await begin(stores, epoch, delivered=[first], **named)
        asked.append(cutter.asked)
        group = [said(answer("x")), ends()]
        heard = {"delivered": [second], "heard": second}
        done = await commit(stores, claimed, group, release=True, **heard)
        asked.append(cutter.asked)
        assert done.inbox == InboxHead(last=second)
        trips.append([b - a for a, b in itertools.pairwise(asked)])
    assert [min(of_each) for of_each in zip(*trips, strict=True)] == [1, 1]
    assert await stores.journal.turn_of_key(CONTEXT, "k7") == (8, "h")
    assert await stores.journal.inbox(CONTEXT) == (InboxHead(last=16), [])
    await opened.close()


async def test_a_turn_that_is_not_open_is_not_closed_by_one_statement_either(driver):
    """A defect of the caller: nothing of the commit is kept, as on every other store."""
    stores = bind(driver, "default")
    claimed = await begin(stores)
    await commit(stores, claimed, [said(answer("a")), ends()])
    before = await stores.state.load(CONTEXT)
    with pytest.raises(ValueError, match="not open"):
        await commit(stores, claimed, [said(answer("b")), ends()])
    assert await stores.state.load(CONTEXT) == before
    assert await stores.messages.count(CONTEXT) == 2


# --- many at once ---


@over_asyncpg
async def test_an_inbox_is_not_filled_over_its_limit_by_many_at_once(postgres, name):
    """Each has a pool of its own; for the last place there is one message."""
    many = [_driver(postgres, name, patience_s=30) for _ in range(4)]
    for driver in many:
        await driver.open()
    stores = [bind(driver, "default") for driver in many]
    for n in range(INBOX_LIMIT - 1):
        await stores[0].journal.post(CONTEXT, EntryKind.STEER, user(str(n)))
    last = [one.journal.post(CONTEXT, EntryKind.STEER, user("last")) for one in stores]
    answers = await asyncio.gather(*last, return_exceptions=True)
    assert answers.count(INBOX_LIMIT) == 1
    assert sum(isinstance(answer, LimitExceeded) for answer in answers) == 3
    assert (await stores[0].journal.inbox(CONTEXT))[0].waiting == INBOX_LIMIT
    for driver in many:
        await driver.close()


@over_asyncpg
async def test_processes_that_make_one_context_at_once_all_succeed(postgres, name):
    """Each has a pool of its own; positions have no gap and artifacts no lost version."""
    many = [_driver(postgres, name, patience_s=30) for _ in range(4)]
    for driver in many:
        await driver.open()
    stores = [bind(driver, "default") for driver in many]
    async with asyncio.TaskGroup() as group:
        for n in range(24):
            mine = stores[n % 4]
            group.create_task(mine.messages.append(CONTEXT, [user(str(n)), user(str(n))]))
            group.create_task(mine.artifacts.save(CONTEXT, "doc", str(n)))
            group.create_task(mine.artifacts.save(f"new-{n % 3}", "doc", str(n)))
    found = await stores[0].messages.records(CONTEXT)
    assert [r.position for r in found] == list(range(1, 49))
    assert sorted(r.message.text for r in found) == sorted(str(n // 2) for n in range(48))
    assert [a.version for a in await stores[0].artifacts.list(CONTEXT)] == [24]
    for n in range(3):
        assert [a.version for a in await stores[0].artifacts.list(f"new-{n}")] == [8]
    for driver in many:
        await driver.close()


async def test_a_claim_that_waits_for_a_commit_finds_the_turn_closed(driver):
    """Whoever loses the race for the row is told what is there now, or wins after all."""
    stores = bind(driver, "default")
    claimed = await begin(stores)
    for epoch in range(1, 12):
        done, taken = await asyncio.gather(
            commit(stores, claimed, [said(answer("a")), ends()], release=True),
            begin(stores, epoch),
            return_exceptions=True,
        )
        assert not isinstance(done, BaseException)
        if isinstance(taken, BaseException):
            assert type(taken).__name__ == "AgentBusy"
            taken = await begin(stores, epoch)
        claimed = taken
        assert claimed.epoch == epoch + 1


@pytest.mark.parametrize("what", ["delete", "clear"])
async def test_a_write_that_reads_first_waits_for_a_running_claim(driver, postgres, what):
    """It sees the turn that began meanwhile, and leaves it alone."""
    stores = bind(driver, "default")
    await stores.messages.append(CONTEXT, [user("a")])
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with psycopg.connect(postgres) as claimer:
        in_a_minute = "60000000 + CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1e6 AS bigint)"
        claimer.execute(
            f"UPDATE looopy_contexts SET open_turn = 1, holder = 'h', lease_until = {in_a_minute}"
        )
        act = stores.state.delete if what == "delete" else stores.journal.clear
        task = asyncio.create_task(act(CONTEXT))
        await _until(lambda: ask(postgres, waiting, claimer.info.dbname))
        claimer.commit()
    with pytest.raises(AgentBusy):
        await task
    assert await stores.messages.count(CONTEXT) == 1


_HOLDER = """
import asyncio, os, signal, sys
from looopy.stores import open_stores
from looopy.stores.owner import Owner
from looopy.testing.contracts.turns import begin

async def main():
    async with open_stores(sys.argv[1]) as stores:
        await begin(stores, holder=Owner.new().token())
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@over_asyncpg
async def test_a_killed_holder_is_displaced_at_once(postgres, name):
    """Its lease is live for an hour, but the process is provably gone."""
    from looopy.stores.owner import provably_dead

    child = [sys.executable, "-c", _HOLDER, as_driver(postgres, name)]
    await asyncio.to_thread(subprocess.run, child, check=False)
    async with open_stores(as_driver(postgres, name)) as stores:
        found = await stores.state.load(CONTEXT)
        assert found.lease_live
        assert provably_dead(found.holder)
        mine = Owner.new().token()
        taken = await begin(stores, found.epoch, holder=mine, displace=found.holder, recover=True)
        assert taken.epoch == found.epoch + 1


# --- cuts ---


async def test_connections_that_were_cut_while_idle_are_replaced(driver, postgres):
    """Nobody notices, whatever their number."""
    await asyncio.gather(*(driver.run(_one("SELECT pg_sleep(0)"), write=True) for _ in range(20)))
    await asyncio.to_thread(_end_all, postgres)
    await driver.run(_one(_INSERT, tenant="t", context="c"), write=True)
    await asyncio.to_thread(_end_all, postgres)
    assert await driver.run(_one(_COUNT), write=False) == [(1,)]


async def test_an_operation_that_is_cut_in_the_middle_is_run_again(driver, postgres):
    """Nothing of the first try was written."""
    tries = 0

    def work():
        nonlocal tries
        yield Query("SELECT 1", {})
        tries += 1
        yield Query(_INSERT, {"tenant": "t", "context": f"c{tries}"})
        if tries == 1:
            _end_all(postgres)
        yield Query("SELECT 1", {})

    await driver.run(work, write=True)
    assert tries == 2
    assert ask(postgres, "SELECT context_id FROM looopy_contexts") == [("c2",)]


@pytest.mark.parametrize("where", ["before", "after", "middle"])
async def test_a_commit_that_is_cut_is_made_exactly_once(cutter, name, where):
    """Whether the cut came before the server committed or after is read back from it."""
    opened = _driver(cutter.url, name)
    await opened.open()
    stores = bind(opened, "default")
    claimed = await begin(stores)
    for n in range(2, 6):
        cutter.cuts = [where]
        done = await commit(stores, claimed, [said(answer(str(n)))])
        assert (done.first_position, cutter.cuts) == (n, [])
    cutter.cuts = [where, where]
    done = await commit(stores, claimed, [said(answer("6")), ends()], release=True)
    cutter.cuts = [where]
    assert await stores.messages.append(CONTEXT, [user("7")]) == 7
    epoch = (await stores.state.load(CONTEXT)).epoch
    cutter.cuts = [where]
    assert (await begin(stores, epoch, text="8")).turn == 2
    cutter.cuts = [where]
    assert await stores.journal.clear(CONTEXT, force=True) == epoch + 2
    assert cutter.cuts == []
    found = await stores.state.load(CONTEXT)
    assert (found.last_position, found.epoch) == (8, epoch + 2)
    await opened.close()


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_cut_commit_that_cannot_be_read_back_is_of_unknown_outcome(
    cutter, postgres, name, where
):
    """The error says so, and holds nothing of what was written."""
    opened = _driver(cutter.url, name, patience_s=0.3)
    await opened.open()
    stores = bind(opened, "default")
    cutter.cuts = [where]

    def work():
        yield Query(_INSERT, {"tenant": "t", "context": "secret"})
        cutter.refusing = True

    with pytest.raises(StoreUnavailable, match="not known") as refused:
        await opened.run(work, write=True)
    assert not refused.value.outcome_known
    assert "secret" not in _shown(refused.value)
    cutter.refusing = False
    assert await stores.messages.append(CONTEXT, [user("it is back")]) == 1
    written = ask(postgres, "SELECT COUNT(*) FROM looopy_contexts WHERE context_id = 'secret'")
    assert written == [(int(where == "after"),)]
    await opened.close()


# --- a server that is away ---


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
@over_asyncpg
async def test_a_server_that_stops_in_the_middle_and_comes_back_is_waited_for(
    own_server, own_database, name, how
):
    """What was acknowledged is there once, what was refused is not, the rest is said to be open."""
    opened = _driver(own_database, name, patience_s=30)
    await opened.open()
    stores = bind(opened, "default")
    told = {}

    async def write(text):
        try:
            told[text] = await stores.messages.append(CONTEXT, [user(text)])
        except StoreUnavailable as error:
            told[text] = error

    for round_ in range(3):
        waiting = [asyncio.create_task(write(f"{round_}.{n}")) for n in range(9)]
        await waiting[0]
        await asyncio.to_thread(own_server.stop, how)
        late = asyncio.create_task(write(f"{round_}.late"))
        await asyncio.to_thread(own_server.start)
        await asyncio.gather(*waiting, late)
    found = [r.message.text for r in await stores.messages.records(CONTEXT)]
    await opened.close()
    assert len(found) == len(set(found))
    for text, answered in told.items():
        if isinstance(answered, int):
            assert found.index(text) == answered - 1
        else:
            assert not answered.outcome_known
    assert all(isinstance(told[f"{round_}.late"], int) for round_ in range(3))


@over_asyncpg
async def test_a_transaction_id_reused_after_a_crash_is_not_taken_as_proof(
    own_server, own_database, name
):
    """Transactions that had not reached the disk are forgotten, and their numbers used again."""
    async with Cutter(own_database) as cutter:
        opened = _driver(cutter.url, name, patience_s=30)
        await opened.open()
        stores = bind(opened, "default")
        assert await stores.messages.append(CONTEXT, [user("kept")]) == 1

        def work():
            yield Query(_INSERT, {"tenant": "t", "context": "lost"})
            cutter.cuts, cutter.refusing = ["before"], True

        writing = asyncio.create_task(opened.run(work, write=True))
        await _until(lambda: cutter.refusing and not cutter.cuts)
        own_server.stop(signal.SIGQUIT)
        await asyncio.to_thread(own_server.start)
        ask(own_database, _INSERT.replace(":tenant, :context", "'t', 'other'"))
        cutter.refusing = False
        (told,) = await asyncio.gather(writing, return_exceptions=True)
        assert told is None or (isinstance(told, StoreUnavailable) and not told.outcome_known)
        question = "SELECT COUNT(*) FROM looopy_contexts WHERE context_id = 'lost'"
        written = ask(own_database, question)
        assert written == [(int(told is None),)]
        await opened.close()


async def test_a_server_that_stays_away_is_unavailable_until_it_is_back(
    own_server, own_database, name
):
    """Nothing was written, and serving goes on by itself, without opening again."""
    opened = _driver(own_database, name, patience_s=0.2)
    await opened.open()
    stores = bind(opened, "default")
    await stores.messages.append(CONTEXT, [user("before")])
    await asyncio.to_thread(own_server.stop)
    for ask_it in (
        lambda: stores.messages.append(CONTEXT, [user("away")]),
        lambda: stores.messages.list(CONTEXT),
    ):
        with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
            await ask_it()
        assert refused.value.outcome_known
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        async with open_stores(as_driver(own_database, name)):
            pass
    await asyncio.to_thread(own_server.start)
    assert await stores.messages.append(CONTEXT, [user("after")]) == 2
    await opened.close()


# --- what can be wrong with a URL, a login, a schema, a disk ---


async def _refused(url, **options):
    with pytest.raises(StoreUnavailable) as refused:
        async with open_stores(url, **options):
            pass
    return refused.value


async def test_the_error_of_a_closed_port_names_it(name):
    """With the host, and without the password."""
    url = as_driver("postgresql://ada:hunter2@127.0.0.1:1/app", name)
    error = await _refused(url)
    assert "127.0.0.1:1/app cannot be reached" in str(error)
    assert "hunter2" not in _shown(error)


async def test_a_wrong_password_is_refused_and_never_shown(own_server, own_database, name):
    """Nor is the right one, or the URL that holds it."""
    admin = own_server.url("app")
    ask(admin, f"DROP ROLE IF EXISTS {GUARDED}")
    ask(admin, f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'sesame'")
    url = as_driver(own_server.url("app"), name)
    for password in ("hunter2", ""):
        wrong = url.replace("postgres@", f"{GUARDED}:{password}@")
        error = await _refused(wrong)
        assert "check user and password" in str(error)
        assert "hunter2" not in _shown(error)
    error = await _refused(url.replace("postgres@", f"{GUARDED}:sesame@"))
    assert error.sqlstate == "42501"
    assert "rights" in str(error)
    assert "sesame" not in _shown(error)


async def test_a_database_that_is_not_there_is_named_in_the_error(postgres_server, name):
    """It is not made: the name may be a slip."""
    error = await _refused(as_driver(postgres_server("no_such_db"), name), migrate=True)
    assert "no_such_db does not exist" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@host:port/app",
        "postgresql://ada:hunter2@host/app?pooler=maybe",
        "postgresql://ada:hunter2@host/app?pool_size=0",
        "postgresql://ada:hunter2@host/app?pool_size",
        "postgresql://ada:hunter2@[host/app",
    ],
)
def test_a_malformed_postgres_url_is_refused_at_the_call(url, name):
    """The error says how it is written and does not repeat it."""
    with pytest.raises(ConfigurationError, match="Postgres URL") as refused:
        open_stores(as_driver(url, name))
    assert "hunter2" not in _shown(refused.value)


def test_a_missing_driver_names_the_command_that_installs_it(name):
    """At the call."""
    code = f"""
import sys
sys.modules[{name!r}] = None
from looopy import open_stores
from looopy.errors import MissingExtra
try:
    open_stores("postgresql+{name}://localhost/app")
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f": {how_to_install('postgres')}\n")
    assert issubclass(MissingExtra, ConfigurationError)


@over_asyncpg
async def test_a_full_disk_of_a_server_raises_storage_full(driver):
    """`StorageFull`: freeing space helps, and nothing was written."""
    full = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$"

    def work():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        yield Query(full, {})

    with pytest.raises(StorageFull, match="free some space") as refused:
        await driver.run(work, write=True)
    assert refused.value.outcome_known
    assert await driver.run(_one(_COUNT), write=False) == [(0,)]


async def test_no_error_of_a_server_shows_the_content_of_a_row(driver, postgres):
    """Rows, parameters and statements are in what the server says, and in nothing that we say."""

    def twice():
        for _ in range(2):
            yield Query(_INSERT, {"tenant": "hunter2", "context": "hunter2"})

    def bad_value():
        yield Query("SELECT CAST(:body AS BIGINT)", {"body": "hunter2"})

    def bad_statement():
        yield Query("SELECT hunter2", {})

    def bad_parameter():
        yield Query("SELECT :limit", {"limit": "hunter2"})

    for work in (twice, bad_value, bad_statement, bad_parameter):
        with pytest.raises(StoreUnavailable) as refused:
            await driver.run(work, write=True)
        assert "hunter2" not in _shown(refused.value).replace('"hunter2"', "").replace(
            "SELECT hunter2", ""
        )


@over_asyncpg
async def test_a_schema_is_never_made_unasked(fresh_postgres, name):
    """A server is shared: its administrator decides, and the error names the command."""
    url = as_driver(fresh_postgres, name)
    for options in ({}, {"migrate": False}):
        with pytest.raises(SchemaOutOfDate, match="looopy db upgrade") as refused:
            async with open_stores(url, **options):
                pass
        assert (refused.value.found, refused.value.expected) == (None, migrate.HEAD)
    async with open_stores(url, migrate=True) as stores:
        assert await stores.messages.append(CONTEXT, [user("a")]) == 1


# --- a silent server ---


async def test_a_listening_connection_that_has_gone_silent_is_replaced(own_database, name):
    """One on which the server does not answer in time; closing does not wait for it either."""
    url = pg_url.parse(as_driver(own_database, name))
    pool, notifier, rung = Pool(url), Notifier(), asyncio.Event()
    news = News(url, notifier, pool, quiet_s=0.05, answer_s=0.2)
    frozen = []
    try:
        with notifier.listen("t", "c", lambda _: rung.set()):
            for _ in range(2):
                async with asyncio.timeout(300):
                    await rung.wait()
                rung.clear()
                frozen.append(_freeze_newest(own_database))
            await news.close()
        assert notifier.noticed is None
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        await pool.close()


def _freeze_newest(url):
    """Stop the newest server process that serves another connection to the database."""
    ((pid,),) = ask(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        " ORDER BY backend_start DESC LIMIT 1",
    )
    os.kill(pid, signal.SIGSTOP)
    return pid


async def test_the_short_scheme_of_hosting_services_is_understood(postgres):
    """`postgres://`, as they hand it out."""
    async with open_stores(postgres.replace("postgresql://", "postgres://", 1)) as stores:
        assert await stores.state.list() == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_unknown_option_is_not_reported_as_an_absent_server(postgres, driver):
    """A slip in the URL: the server is there, and the message does not send anybody to look."""
    with pytest.raises(LooopyError) as refused:
        async with open_stores(f"{as_driver(postgres, driver)}&pool_sise=4"):
            pass
    assert "cannot be reached" not in str(refused.value)
