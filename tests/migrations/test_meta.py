"""What is said of messages was named up to schema 0002 and is a list since: both are read."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from looopy.stores import open_stores
from looopy.stores.sql import migrate
from looopy.stores.sql.sqlite import connection
from looopy.stores.sql.sqlite.connection import sqlite_path
from looopy.testing.contracts.turns import (
    CONTEXT,
    WHEN,
    answer,
    begin,
    commit,
    ends,
    finishes,
    said,
    starts,
)
from looopy.types.event import MessageEnd, ToolExecutionEnd, event_to_json
from looopy.types.message import ToolCall

_SELECT = "SELECT meta FROM looopy_messages ORDER BY context_id, position"
_CALL = ToolCall("c", "t", {})


def _metas(url):
    if url.startswith("sqlite"):
        with closing(connection.connect(sqlite_path(url))) as opened:
            return [meta for (meta,) in opened.execute(_SELECT)]
    with psycopg.connect(url) as opened:
        return [meta for (meta,) in opened.execute(_SELECT)]


def _ran(event, began_us, ended_us):
    """A result whose tool ran at other times than its row was made."""
    if isinstance(event, ToolExecutionEnd):
        started = None if began_us is None else WHEN + timedelta(microseconds=began_us)
        moment = WHEN + timedelta(microseconds=ended_us)
        return replace(event, started=started, duration_s=0.000_123, timestamp=moment)
    return event


async def _fill(stores, context_id):
    in_it = {"context_id": context_id}
    claimed = await begin(stores, **in_it)
    begun = replace(said(answer("", _CALL), **in_it), started=WHEN - timedelta(microseconds=290))
    await commit(stores, claimed, [begun, starts(_CALL, **in_it)], **in_it)
    result = [_ran(event, -400, -7) for event in finishes(_CALL, "3", **in_it)]
    await commit(stores, claimed, result, **in_it)
    result = [_ran(event, None, 5) for event in finishes(_CALL, "4", **in_it)]
    await commit(stores, claimed, result, **in_it)
    bare = MessageEnd(timestamp=WHEN, iteration=2, message=answer("bye"), attempts=3, **in_it)
    await commit(stores, claimed, [bare, ends(**in_it)], release=True, **in_it)


async def _read(stores, context_id):
    found = [event_to_json(event) for event in await stores.journal.events(context_id)]
    for event in found:
        event.pop("process", None)  # the names of processes go down with another schema
    return found


_AT = 1_795_264_215_123_456
_LISTS = [None, "[290,250000,2]", "[null,null,null,400,123,7]", "[null,null,null,null,123,-5]"]
_NAMED = [
    None,
    {"started": _AT - 290, "first_delta_s": 0.25, "attempts": 2},
    {"ran": [_AT - 400, 0.000_123, _AT - 7]},
    {"ran": [None, 0.000_123, _AT + 5]},
    {"attempts": 3},
]


@pytest.mark.parametrize("contexts", [1, 130])
async def test_what_is_said_of_a_message_survives_a_downgrade_and_back(empty, contexts):
    """With the names that the older version looks for; there are more rows than fit one batch."""
    names = [CONTEXT, *(f"{CONTEXT}-{n:03}" for n in range(1, contexts))]
    await asyncio.to_thread(migrate.upgrade, empty)
    async with open_stores(empty) as stores:
        for context_id in names:
            await _fill(stores, context_id)
        before = [await _read(stores, context_id) for context_id in names]
    assert _metas(empty) == [*_LISTS, "[null,null,3]"] * contexts
    await asyncio.to_thread(migrate.downgrade, empty, "0002")
    named = [meta and json.loads(meta) for meta in _metas(empty)]
    assert named == _NAMED * contexts
    await asyncio.to_thread(migrate.upgrade, empty)
    async with open_stores(empty) as stores:
        assert [await _read(stores, context_id) for context_id in names] == before
