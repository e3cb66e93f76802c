"""The plans of our statements: along an index, whatever the server knew when it made them."""

from __future__ import annotations

import asyncio

import pytest
from tests.postgres import as_driver, ask

from looopy.stores.sql import migrate, statements
from looopy.stores.sql.driver import Query
from looopy.stores.sql.postgres.pool import Pool
from looopy.stores.sql.postgres.url import parse
from looopy.stores.sql.postgres.wire import numbered

_STATEMENTS = {
    name: text
    for name, text in vars(statements).items()
    if isinstance(text, str)
    and not name.startswith("_")
    and text.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"))
}
_LISTINGS = (
    *("FIND_ALL", "FIND_DUE", "FIND_PLACES", "NEWEST_MARKED", "LIST_MARKED", "MARKED_PLACES"),
)
_MANY_ROWS = (
    "INSERT INTO looopy_inbox (tenant_id, context_id, entry, kind, created_at, body)"
    " SELECT 't', 'c', n, 'steer', 0, '{}' FROM generate_series(1, 5000) n"
)
_ITS_CONTEXT = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq, visible_from, cleared_seq, state, metadata, version, created_at, last_activity)"
    " VALUES ('t', 'c', 0, 0, 0, 0, 1, 0, '{}', '{}', 0, 0, 0)"
)


@pytest.fixture(params=["asyncpg", "psycopg"])
async def analysed(fresh_postgres, request):
    """A session on a database whose tables were empty when the server looked at them."""
    await asyncio.to_thread(migrate.upgrade, fresh_postgres)
    ask(fresh_postgres, "ANALYZE")
    pool = Pool(parse(as_driver(fresh_postgres, request.param)))
    async with pool.session() as opened:
        yield opened._wire, fresh_postgres
    await pool.close()


async def _prepare(wire, name, sql):
    """Prepare a statement; what executes it, with nothing for its values."""
    text, values = numbered(sql, write=False)
    await wire.command(f"PREPARE {name} AS {text}")
    return f"EXECUTE {name}" + (f" ({', '.join(['NULL'] * len(values))})" if values else "")


async def _plan(wire, execute):
    rows = await wire.fetch(Query(f"EXPLAIN {execute}", {}), write=False)
    return "\n".join(line for (line,) in rows)


async def test_no_statement_reads_all_of_a_table(analysed):
    """An empty table is soonest read whole, and the plan of that would be kept as it fills."""
    wire, _ = analysed
    assert len(_STATEMENTS) > 40
    whole = {}
    for name, sql in _STATEMENTS.items():
        plan = await _plan(wire, await _prepare(wire, f"p_{name}", sql))
        if "Seq Scan" in plan:
            whole[name] = plan
    assert whole == {}


async def test_rows_are_joined_by_the_whole_of_their_key(analysed):
    """None is read only to be compared: a context's turns would all be read for the open one."""
    wire, _ = analysed
    compared = {}
    for name, sql in _STATEMENTS.items():
        # The open turns of many contexts: it has to be a join.
        if name in ("LIST_CONTEXTS", *_LISTINGS):
            continue
        plan = await _plan(wire, await _prepare(wire, f"p_{name}", sql))
        if "Join Filter" in plan:
            compared[name] = plan
    assert compared == {}


async def test_a_plan_that_was_made_for_an_empty_table_serves_a_full_one(analysed):
    """It is kept, and goes along the index."""
    wire, url = analysed
    execute = await _prepare(wire, "counted", statements.COUNT_ENTRIES)
    await wire.command(execute)
    ask(url, _ITS_CONTEXT)
    ask(url, _MANY_ROWS)
    plan = await _plan(wire, execute)
    assert "pk_looopy_inbox" in plan
    assert "Seq Scan" not in plan


async def test_contexts_are_listed_along_an_index(analysed):
    """Newest first without a sort, which would need all of a tenant's contexts for a page."""
    wire, _ = analysed
    walks = {"FIND_ALL": "all", "FIND_DUE": "due"}
    for name, index in walks.items():
        plan = await _plan(wire, await _prepare(wire, f"p_{name}", _STATEMENTS[name]))
        assert f"ix_looopy_context_index_{index} " in plan, plan
        assert "Sort" not in plan, plan


async def test_no_statement_is_compiled(analysed):
    """A plan that has to do without a better way is dear on paper, and would be compiled anew."""
    wire, _ = analysed
    assert await wire.fetch(Query("SHOW jit", {}), write=False) == [("off",)]
