"""A process that has a database open when a newer version migrates it writes no more."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from tests.migrations import databases
from tests.migrations.second import SECOND, migrate_elsewhere, second_migration
from tests.postgres import as_driver, ask
from tests.shares import PSYCOPG, split

from looopy import Agent, tool
from looopy.errors import SchemaOutOfDate
from looopy.stores import open_stores
from looopy.stores.archive.importing import import_contexts
from looopy.stores.archive.writing import export_contexts
from looopy.stores.contexts.spending import Amount, Place, allowances_of, digest_of
from looopy.stores.records import EntryKind, NewSummary
from looopy.stores.sql import migrate
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.url import parse
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.erasure import a_whole_context
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, ends, user
from looopy.types.config import Budget
from looopy.types.summary import summary_message


@pytest.fixture(params=["sqlite", "asyncpg", PSYCOPG])
def place(request, tmp_path):
    """The URL of an empty database, through each driver."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'chat.db'}"
    return as_driver(request.getfixturevalue("fresh_postgres"), request.param)


def _set(url, revision):
    databases.change(url, f"UPDATE looopy_version SET version_num = '{revision}'")


async def _import(stores, archive):
    async def pieces():
        yield archive

    await import_contexts(stores, pieces(), new_ids=True)


async def test_no_write_passes_the_fence(place):
    """Each kind of write is refused and changes nothing; reads go on."""
    async with open_stores(place, migrate=True) as stores:
        await a_whole_context(stores)
        await stores.messages.append("idle", [user("hello"), answer("hi")])
        archive = b"".join([piece async for piece in export_contexts(stores, ["idle"])])
        open_turn = await begin(stores, context_id="runs")
        epoch = (await stores.state.load("idle")).epoch
        allowances = allowances_of(Budget(owner_day_tokens=9_000), "ann")
        at = {"place": Place(digest_of("x"), 1)}
        await stores.spending.reserve("held", Amount(1, 1), allowances, **at)
        journal, state, contexts = stores.journal, stores.state, stores.contexts
        writes = {
            "claim": lambda: begin(stores, epoch, context_id="idle"),
            "first claim": lambda: begin(stores, context_id="new"),
            "commit": lambda: commit(stores, open_turn, [ends(context_id="runs")]),
            "renew": lambda: state.renew("runs", open_turn.epoch, 60.0),
            "release": lambda: state.release("runs", open_turn.epoch),
            "line": lambda: state.join_wait_queue("idle", "holder", 60.0),
            "append": lambda: stores.messages.append("idle", [user("x")]),
            "artifact": lambda: stores.artifacts.save("idle", "doc", b"x"),
            "large artifact": lambda: stores.artifacts.save("idle", "doc", b"x" * 2_000_000),
            "artifact gone": lambda: stores.artifacts.delete(CONTEXT, "plan"),
            "metadata": lambda: state.save("idle", {"a": 1}, version=0),
            "tags": lambda: contexts.tag("idle", add=["x"]),
            "summary": lambda: journal.compact(
                "idle", NewSummary(message=summary_message("short", kept=0), epoch=epoch)
            ),
            "clear": lambda: journal.clear("idle"),
            "fork": lambda: journal.fork("idle", "other"),
            "rewind": lambda: journal.rewind("idle", 0),
            "delete": lambda: state.delete("idle"),
            "erase": lambda: contexts.erase("idle"),
            "erase a person": lambda: contexts.erase_person("ann"),
            "retain": lambda: contexts.retain(larger_than=1),
            "import": lambda: _import(stores, archive),
            "inbox": lambda: journal.post("runs", EntryKind.STEER, user("x")),
            "cancel": lambda: journal.ask_cancel("runs"),
            "reserve": lambda: stores.spending.reserve("r", Amount(1, 1), allowances, **at),
            "settle": lambda: stores.spending.settle("held", Amount(1, 1)),
            "add": lambda: stores.spending.add(Amount(1, 1), allowances),
        }
        await contexts.list()
        await contexts.search("hello")
        _set(place, "0099_later")
        before = databases.dump(place)
        for kind, write in writes.items():
            with pytest.raises(SchemaOutOfDate, match="upgrade looopy") as refused:
                await write()
            assert (refused.value.found, refused.value.expected) == ("0099_later", migrate.HEAD)
            assert databases.dump(place) == before, kind
        assert await stores.messages.count("idle") == 2
        assert len(await journal.events("idle")) == 2
        _set(place, migrate.HEAD)
        await stores.messages.append("idle", [user("goes on")])


@pytest.mark.parametrize("place", split(["sqlite"], ["asyncpg", "psycopg"]), indirect=True)
async def test_a_running_turn_ends_at_the_fence_and_a_newer_process_continues_it(place, tmp_path):
    """The migration comes while a tool runs: its result is not written into the new schema."""

    @tool
    async def work() -> str:
        """Work, while an administrator migrates the database."""
        await migrate_elsewhere(place, tmp_path)
        return "done"

    async with open_stores(place, migrate=True) as stores:
        model = ScriptedProvider([tool_call("work"), text("never said")])
        agent = Agent("ada", llm_provider=model, tools=[work], stores=stores)
        await agent.start()
        with pytest.raises(SchemaOutOfDate) as refused:
            await agent.execute_turn("go")
        assert refused.value.found == SECOND
        await agent.shutdown()
        assert (await stores.state.load("ada")).open_turn is not None


@pytest.mark.parametrize("place", split(["asyncpg"], ["sqlite", "psycopg"]), indirect=True)
async def test_a_migration_under_load_loses_no_acknowledged_turn(place, tmp_path):
    """Conversations run while the schema changes: each ends at the fence, whole up to there."""
    model, running, migrated = ScriptedProvider(lambda _: text("hi")), asyncio.Event(), False
    names = ["ada", "bob", "eve"]
    said = {name: [] for name in names}

    async def converse(stores, name):
        async with Agent(name, llm_provider=model, stores=stores) as agent:
            while True:
                last = migrated
                try:
                    said[name] += (await agent.execute_turn("and?")).messages
                except SchemaOutOfDate:
                    return
                assert not last, "a turn ran in the new schema"
                if all(said.values()):
                    running.set()

    async with open_stores(place, migrate=True) as stores:
        conversations = [asyncio.create_task(converse(stores, name)) for name in names]
        await running.wait()
        await migrate_elsewhere(place, tmp_path)
        migrated = True
        await asyncio.gather(*conversations)
        for name in names:
            found = await stores.messages.list(name)
            assert found[: len(said[name])] == said[name]
    columns = {row["context_id"]: row["colour"] for row in databases.dump(place)["looopy_contexts"]}
    assert columns == {name: name for name in names}


# A lock of a table that somebody waits for.
_QUEUED = (
    "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " WHERE datname = current_database() AND locktype = 'relation' AND NOT granted"
)


async def test_a_migration_waits_for_a_write_that_has_begun(fresh_postgres, tmp_path):
    """A transaction that has looked at the schema ends in the schema that it saw."""
    await asyncio.to_thread(migrate.upgrade, fresh_postgres)
    begin_write = PostgresDriver(parse(fresh_postgres))._begin_write
    with second_migration(tmp_path), psycopg.connect(fresh_postgres, autocommit=True) as write:
        write.execute(begin_write)
        migrating = asyncio.create_task(asyncio.to_thread(migrate.upgrade, fresh_postgres))
        while not (migrating.done() or ask(fresh_postgres, _QUEUED)):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0)
        assert not migrating.done()
        write.execute("COMMIT")
        await migrating
        with pytest.raises(psycopg.errors.DivisionByZero):
            write.execute(begin_write)
