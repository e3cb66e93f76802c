"""
With row-level security the server keeps tenants apart, whatever our own statements forget.

The application connects as a role that is not the owner of the tables. The contracts hold as
without it; and statements that no longer name their tenant show nothing of another's.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.migrations.second import second_migration
from tests.postgres import EMPTY, as_driver, ask
from tests.property.test_stores_agree import RUNS, agree

from looopy.cli.main import main
from looopy.errors import ConfigurationError, ContextNotFound, SchemaOutOfDate, StoreUnavailable
from looopy.stores import open_stores
from looopy.stores.records import InboxHead
from looopy.stores.sql import migrate, statements
from looopy.stores.sql.driver import Query
from looopy.stores.sql.postgres import driver as postgres
from looopy.stores.sql.postgres import rls as pg_rls
from looopy.stores.sql.postgres.driver import ask_once
from looopy.stores.sql.statements import HEAD
from looopy.stores.sql.tables import metadata
from looopy.testing import stores as suites
from looopy.testing.contracts.turns import CONTEXT, a_turn, answer, begin, commit, ends, user

APP = "looopy_app"
OWNER = "looopy_owner"
DRIVERS = ("asyncpg", "psycopg")


def as_user(url, name):
    """*url* for another user, whose password is its name."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{name}:{name}@{host}").geturl()


def required(url):
    """*url*, refusing a database that does not protect its tenants."""
    return f"{url}{'&' if urlsplit(url).query else '?'}row_level_security=required"


@pytest.fixture(scope="session")
def roles(postgres_server):
    """The two users, made if the server does not know them; a superuser's URL."""
    admin = postgres_server("postgres")
    for name in (APP, OWNER):
        if not ask(admin, "SELECT 1 FROM pg_roles WHERE rolname = %s", name):
            ask(admin, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    return admin


@pytest.fixture(scope="session")
def secured_database(roles, new_database):
    """A database at the head that is secured for the application's role; a superuser's URL."""
    url = new_database()
    migrate.upgrade(url)
    migrate.secure(url, APP)
    return url


@pytest.fixture
def secured(secured_database):
    """The same, without rows."""
    ask(secured_database, EMPTY)
    return secured_database


@pytest.fixture(params=DRIVERS)
def app_url(request, secured):
    """What the application connects with, over each driver."""
    return as_driver(required(as_user(secured, APP)), request.param)


# --- everything that holds without it ---


@pytest.mark.timeout(0)
def test_a_random_history_is_that_of_the_memory(secured):
    """As the application's role, every answer and every refusal."""
    agree(required(as_user(secured, APP)), max(RUNS // 4, 1))


@pytest.fixture
async def secured_stores(secured):
    """Open stores of the application's role."""
    async with open_stores(required(as_user(secured, APP))) as stores:
        yield stores


class Secured:
    """On Postgres, with row-level security."""

    factory = "looopy.stores:open_stores"

    @pytest.fixture
    def place(self, secured):
        """What the application connects with."""
        return required(as_user(secured, APP))

    @pytest.fixture
    async def stores(self, secured_stores):
        """Open and empty."""
        return secured_stores


# Contracts that fill every table, and read, search and delete what is in it. The others are held in
# the long run: their statements and policies are those of these and of the random history.
_ALWAYS = {"Erasure", "ArtifactContent", "WaitQueue", "Search", "Spending"}

for _name in suites.__all__:
    _subject = _name.removesuffix("Contract")
    _held = type(f"Test{_subject}WhenSecured", (Secured, getattr(suites, _name)), {})
    globals()[_held.__name__] = _held if _subject in _ALWAYS else pytest.mark.long(_held)
del _held  # it would be collected once more


# --- what the server does by itself ---


async def _two_tenants(url):
    for tenant in ("a", "b"):
        async with open_stores(url, tenant=tenant) as stores:
            await a_turn(stores, reply=f"for {tenant} alone")
            await stores.artifacts.save(CONTEXT, "doc", f"{tenant}'s".encode())


def _counts(connection):
    """How many rows of each table a connection sees."""
    return {
        name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for name in metadata.tables
    }


def test_every_table_has_a_tenant_to_be_secured_by():
    """A table without one could not be protected."""
    assert {name for name, t in metadata.tables.items() if "tenant_id" not in t.columns} == set()


def _assert_refused(connection):
    """No table with rows lets a connection look that has not said whose it is."""
    for name in ("looopy_contexts", "looopy_turns", "looopy_messages", "looopy_artifacts"):
        for asked in (
            f"SELECT count(*) FROM {name}",
            f"SELECT * FROM {name} WHERE tenant_id = 'a' AND context_id = '{CONTEXT}'",
            f"DELETE FROM {name}",
        ):
            with (
                pytest.raises(psycopg.Error, match="tenant is not set") as refused,
                connection.transaction(),
            ):
                connection.execute(asked)
            assert refused.value.sqlstate == pg_rls.UNSAID


async def test_no_row_is_visible_without_a_tenant(secured, app_url):
    """Neither before the setting was ever made, nor with the empty one, nor after a transaction."""
    await _two_tenants(app_url)
    with psycopg.connect(as_user(secured, APP), autocommit=True) as connection:
        _assert_refused(connection)
        with connection.transaction():
            connection.execute("SELECT set_config('looopy.tenant', 'a', true)")
            assert _counts(connection)["looopy_contexts"] == 1
            rows = connection.execute("SELECT DISTINCT tenant_id FROM looopy_messages").fetchall()
            assert rows == [("a",)]
        _assert_refused(connection)  # the setting is '' now, and not NULL
        with connection.transaction():
            connection.execute("SELECT set_config('looopy.tenant', '', true)")
            _assert_refused(connection)


async def test_rows_of_another_tenant_can_be_neither_changed_nor_made(secured, app_url):
    """An update finds none, an insert is refused, and so is moving a row."""
    await _two_tenants(app_url)
    with psycopg.connect(as_user(secured, APP)) as connection:
        connection.execute("SELECT set_config('looopy.tenant', 'a', true)")
        found = connection.execute("UPDATE looopy_contexts SET epoch = 99 WHERE tenant_id = 'b'")
        assert found.rowcount == 0
        assert connection.execute("DELETE FROM looopy_contexts WHERE tenant_id = 'b'").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE looopy_contexts SET tenant_id = 'b'")


async def test_the_owner_of_the_tables_is_held_by_the_policies_too(roles, new_database):
    """`FORCE`: whoever connects as the owner by mistake sees one tenant at a time."""
    url = new_database()
    ask(url, f"ALTER SCHEMA public OWNER TO {OWNER}")
    theirs = as_user(url, OWNER)
    await asyncio.to_thread(migrate.upgrade, theirs)
    await asyncio.to_thread(migrate.secure, theirs, APP)
    await _two_tenants(required(as_user(url, APP)))
    with psycopg.connect(theirs, autocommit=True) as connection:
        _assert_refused(connection)
    async with open_stores(required(theirs), tenant="a") as stores:
        assert await stores.messages.count(CONTEXT) == 2


@pytest.fixture
def forgetful(monkeypatch):
    """Every statement of the stores has lost its tenant filter."""
    changed = 0
    for name, sql in vars(statements).copy().items():
        if name.isupper() and isinstance(sql, str):
            careless = sql.replace("tenant_id = :tenant", "tenant_id <> ''")
            monkeypatch.setattr(statements, name, careless)
            changed += careless != sql
    assert changed > 15
    # Folding knows the statements as they were.
    monkeypatch.setattr(postgres, "fold", lambda _work, _mark=None: None)


async def test_stores_that_forgot_their_filters_leak_without_it(postgres, forgetful):
    """The next test would be worth nothing if its statements were still whole."""
    async with open_stores(postgres, tenant="a") as stores:
        await a_turn(stores, reply="for a alone")
        assert await stores.for_tenant("b").messages.count(CONTEXT) == 2


async def test_stores_without_filters_see_no_row_of_other_tenants(app_url, forgetful):
    """Reads, writes and deletes of one tenant find nothing of another's."""
    async with open_stores(app_url, tenant="a") as stores:
        await a_turn(stores, reply="for a alone")
        await stores.artifacts.save(CONTEXT, "doc", b"a's")
        before = await _told(stores)
        other = stores.for_tenant("b")
        assert await other.state.load(CONTEXT) is None
        assert await other.state.list() == []
        assert await other.messages.list(CONTEXT) == []
        assert await other.messages.recent(CONTEXT, limit=5) == []
        assert await other.artifacts.list(CONTEXT) == []
        assert await other.journal.events(CONTEXT) == []
        assert await other.journal.turns(CONTEXT) == []
        assert await other.journal.inbox(CONTEXT) == (InboxHead(), [])
        assert await other.journal.ask_cancel(CONTEXT) is None
        assert await other.journal.withdraw(CONTEXT) == 0
        assert await other.state.wait_queue(CONTEXT) == []
        for refused in (other.state.delete(CONTEXT), other.journal.clear(CONTEXT)):
            with pytest.raises(ContextNotFound):
                await refused
        claimed = await begin(other)
        assert (claimed.epoch, claimed.turn) == (1, 1)
        await commit(other, claimed, release=True)
        await other.state.delete(CONTEXT)
        assert await _told(stores) == before


async def _told(stores):
    return (
        await stores.state.load(CONTEXT),
        await stores.messages.records(CONTEXT),
        await stores.journal.events(CONTEXT),
        await stores.artifacts.load(CONTEXT, "doc"),
    )


async def test_a_connection_does_not_keep_its_tenant(app_url):
    """One connection serves many tenants by turns, reads and writes and failures mixed."""
    names = ["a", "b", "'; DROP TABLE looopy_events; --", "é\\' 漢", "a" * 500]
    async with open_stores(f"{app_url}&pool_size=1") as stores:
        tenants = {name: stores.for_tenant(name) for name in names}
        for name, theirs in tenants.items():
            assert await theirs.state.list() == []
            await a_turn(theirs, reply=name)
            with pytest.raises(ContextNotFound):
                await theirs.state.delete("unknown")
        async with asyncio.TaskGroup() as group:
            found = {
                name: group.create_task(theirs.messages.list(CONTEXT))
                for name, theirs in tenants.items()
                for _ in range(4)
            }
        for name, task in found.items():
            assert task.result() == [user("hello"), answer(name)]
        # The pool's only connection, as the next one gets it.
        driver = stores.messages.backend
        count = Query("SELECT COUNT(*) FROM looopy_contexts", {})
        with pytest.raises(StoreUnavailable) as refused:
            await ask_once(driver._pool, count, driver._url)
        assert refused.value.sqlstate == pg_rls.UNSAID


async def test_row_level_security_holds_behind_a_pooler(app_url):
    """Where nothing may outlive a transaction, the tenant does not either."""
    async with open_stores(f"{app_url}&pooler=transaction") as stores:
        for tenant in ("a", "b"):
            await a_turn(stores.for_tenant(tenant), reply=f"for {tenant} alone")
        for tenant in ("a", "b"):
            found = await stores.for_tenant(tenant).messages.list(CONTEXT)
            assert found == [user("hello"), answer(f"for {tenant} alone")]
        assert await stores.state.list() == []


# --- turning it on, and keeping it ---


async def test_a_url_that_requires_row_level_security_refuses_an_unprotected_database(
    roles, new_database
):
    """Not secured, secured but for one table, or a user whom no policy holds."""
    url = new_database()
    await asyncio.to_thread(migrate.upgrade, url)
    app = required(as_user(url, APP))
    ask(url, f"GRANT SELECT ON looopy_version TO {APP}")
    with pytest.raises(ConfigurationError, match="looopy db secure"):
        async with open_stores(app):
            pass
    await asyncio.to_thread(migrate.secure, url, APP)
    async with open_stores(app) as stores:
        await a_turn(stores)
    with pytest.raises(ConfigurationError, match="is above row-level security"):
        async with open_stores(required(url)):
            pass
    ask(url, "ALTER TABLE looopy_messages DISABLE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match="not on for all tables"):
        async with open_stores(app):
            pass


async def test_it_is_used_wherever_it_is_on(secured):
    """A URL that does not require it works all the same: nobody sees an empty database."""
    async with open_stores(as_user(secured, APP)) as stores:
        await a_turn(stores)
        assert await stores.messages.count(CONTEXT) == 2


@pytest.mark.parametrize("option", ["", "&pooler=transaction"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_it_can_be_turned_on_under_a_running_application(roles, new_database, driver, option):
    """A process that was connected before goes on with its turn, and sees all that is its own."""
    url = new_database()
    await asyncio.to_thread(migrate.upgrade, url)
    ask(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {APP}")
    app = as_driver(as_user(url, APP), driver)
    async with open_stores(f"{app}{option}", tenant="a") as stores:
        other = stores.for_tenant("b")
        for theirs in (stores, other):
            await a_turn(theirs)
        record = await stores.state.load(CONTEXT)
        claimed = await begin(stores, record.epoch)
        await asyncio.to_thread(migrate.secure, url, APP)
        # At once, so that several connections find it out.
        found = await asyncio.gather(
            *(stores.messages.count(CONTEXT) for _ in range(4)),
            *(theirs.state.list() for theirs in (stores, other)),
            commit(stores, claimed, [ends()], release=True),
            other.artifacts.save(CONTEXT, "doc", b"b's"),
        )
        assert found[:4] == [3, 3, 3, 3]
        assert [[c.context_id for c in contexts] for contexts in found[4:6]] == [[CONTEXT]] * 2
        assert await stores.artifacts.list(CONTEXT) == []
        assert len(await stores.journal.turns(CONTEXT)) == 2
        await begin(stores, claimed.epoch)
        assert await other.messages.count(CONTEXT) == 2


async def test_migrations_see_every_row_and_keep_it_on(roles, new_database, tmp_path):
    """Up, down and up again by an owner whom the policies hold; the application still works."""
    url = new_database()
    ask(url, f"ALTER SCHEMA public OWNER TO {OWNER}")
    theirs = as_user(url, OWNER)
    await asyncio.to_thread(migrate.upgrade, theirs)
    ask(  # as if the other tables were new
        theirs,
        "DO $$ BEGIN EXECUTE 'ALTER TABLE looopy_contexts ENABLE ROW LEVEL SECURITY'; EXECUTE"
        f" 'GRANT SELECT, INSERT ON looopy_contexts TO {APP}'; END $$",
    )
    with second_migration(tmp_path):
        await asyncio.to_thread(migrate.upgrade, theirs)
        await _two_tenants(required(as_user(url, APP)))
        await asyncio.to_thread(migrate.downgrade, theirs, HEAD)
    await asyncio.to_thread(migrate.upgrade, theirs)
    engine = create_engine(as_driver(theirs, "psycopg"))
    count = text("SELECT count(*) FROM looopy_messages")
    with engine.begin() as connection:
        with (
            pytest.raises(DBAPIError, match="tenant is not set"),
            connection.begin_nested(),
        ):
            connection.execute(count)
        assert pg_rls.lift(connection) == [APP]
        assert connection.execute(count).scalar_one() == 4
    engine.dispose()
    await asyncio.to_thread(migrate.upgrade, theirs)
    with psycopg.connect(theirs, autocommit=True) as connection:
        _assert_refused(connection)
    async with open_stores(required(as_user(url, APP)), tenant="b") as stores:
        assert await stores.messages.list(CONTEXT) == [user("hello"), answer("for b alone")]
    assert ask(url, "SELECT count(*) FROM looopy_contexts") == [(2,)]


def test_only_a_role_that_it_holds_can_be_given_the_tables(roles, new_database, tmp_path):
    """No superuser, no owner, nobody unknown; no database that is behind, no file."""
    url = new_database()
    with pytest.raises(SchemaOutOfDate, match="looopy db upgrade"):
        migrate.secure(url, APP)
    ask(url, f"ALTER SCHEMA public OWNER TO {OWNER}")
    theirs = as_user(url, OWNER)
    migrate.upgrade(theirs)
    superuser = urlsplit(url).username
    for role, why in ((superuser, "superuser"), (OWNER, "owns"), ("no-such-role", "no role")):
        with pytest.raises(ConfigurationError, match=why):
            migrate.secure(theirs, role)
    migrate.secure(theirs, APP)
    with pytest.raises(StoreUnavailable):  # who may use the tables may not lift their protection
        migrate.secure(as_user(url, APP), "pg_monitor")
    with pytest.raises(ConfigurationError, match="SQLite"):
        migrate.secure(f"sqlite:///{tmp_path / 'chat.db'}", APP)


def test_the_command_line_secures_a_database(roles, new_database, capsys):
    """`looopy db secure`, twice; the password is never shown."""
    url = new_database()
    ask(url, f"ALTER SCHEMA public OWNER TO {OWNER}")
    theirs = as_user(url, OWNER)
    for args in (("upgrade",), ("secure", "--role", APP), ("secure", "--role", APP)):
        assert main(["db", *args, "--db", theirs]) == 0
        out, errors = capsys.readouterr()
        assert f"{OWNER}:{OWNER}" not in out + errors
    assert APP in out
