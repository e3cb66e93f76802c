"""A context and its forks in a file: one write at a time, so relatives never meet."""

from __future__ import annotations

import asyncio
import threading

import pytest

from looopy.stores import open_stores
from looopy.stores.sql import statements as s
from looopy.testing.contracts.turns import CONTEXT, begin, commit, ends


def _watched(stores, name, log, *, stops=False):
    """Keep the statements of its writes in *log*; the first write may stop after its first one."""
    backend, reached, go = stores.state.backend, threading.Event(), threading.Event()
    run = backend.run

    def run_watched(work, *, write, ring=None):
        def steps():
            inner, rows = work(), None
            try:
                query = next(inner)
                while True:
                    log.append((name, query.sql))
                    rows = yield query
                    if stops and not reached.is_set():
                        reached.set()
                        go.wait()
                    query = inner.send(rows)
            except StopIteration as stop:
                return stop.value

        return run(steps if write else work, write=write, ring=ring)

    backend.run = run_watched
    return reached, go


@pytest.mark.parametrize("goes", ["parent", "person"])
async def test_a_write_about_relatives_keeps_the_others_out(sqlite_file, goes):
    """From its first statement on, which on a server would only lock its own row."""
    url, log = f"sqlite:///{sqlite_file}", []
    async with open_stores(url) as one, open_stores(url) as other:
        for actor in ("owner", "guest"):
            record = await one.state.load(CONTEXT)
            claimed = await begin(one, record.epoch if record else 0, actor_id=actor)
            await commit(one, claimed, [ends()], release=True)
        await one.journal.fork(CONTEXT, "fork")
        if goes == "person":
            await one.journal.fork(CONTEXT, "other")
            await one.state.delete(CONTEXT)
        reached, go = _watched(one, "one", log, stops=True)
        _watched(other, "other", log)
        erasing = one.contexts.erase_person("guest")
        first = asyncio.create_task(erasing if goes == "person" else one.state.delete(CONTEXT))
        if goes == "parent":
            erasing.close()
        await asyncio.to_thread(reached.wait)
        second = asyncio.create_task(other.state.delete("fork"))
        # By now a write on a server would stand at what the first one has locked.
        await other.state.load("fork")
        before = [name for name, _ in log]
        go.set()
        await asyncio.gather(first, second)
        assert set(before) == {"one"}
        assert ("other", s.DELETE_CONTEXT) in log
        if goes == "person":
            await one.state.delete("other")
        assert await _left(one) == []


async def test_what_a_guest_said_goes_although_the_parent_does_first(sqlite_file):
    """Then the fork reads it under an id that was not listed when the erasure began."""
    async with open_stores(f"sqlite:///{sqlite_file}") as stores:
        claimed = await begin(stores, actor_id="owner")
        await commit(stores, claimed, [ends()], release=True)
        claimed = await begin(stores, claimed.epoch, actor_id="guest", text="canary")
        await commit(stores, claimed, [ends()], release=True)
        await stores.journal.fork(CONTEXT, "fork")
        redact = stores.contexts.redact

        async def after_its_deletion(context_id, *given, **options):
            if context_id == CONTEXT:
                await stores.state.delete(CONTEXT)
            return await redact(context_id, *given, **options)

        stores.contexts.redact = after_its_deletion
        report = await stores.contexts.erase_person("guest")
        assert [one.text for one in await stores.messages.list("fork")] == ["hello", "[erased]"]
        assert report.redacted_ids == ("fork",)


async def _left(stores):
    """Ids of the contexts that are left, ghosts included."""
    return [one.context_id for one in await stores.contexts.candidates(after="", limit=9)]
