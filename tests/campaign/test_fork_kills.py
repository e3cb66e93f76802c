"""A fork, a rewind, or the deletion of a parent that is killed happened whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal

import pytest
from tests.shares import split

from looopy import Agent, open_stores
from looopy._failpoints import arm
from looopy.errors import StoreConflict
from looopy.stores.sql import journal
from looopy.stores.sql import statements as s
from looopy.testing import ScriptedProvider, text
from looopy.testing.children import fork, run, wait

pytestmark = pytest.mark.campaign
LARGE = b"shared" * 20_000  # has a part of its own


async def make(stores, name):
    """A parent of two turns and an artifact, and its fork."""
    model = ScriptedProvider([text("A."), text("B.")])
    async with Agent(name, llm_provider=model, stores=stores) as agent:
        await agent.execute_turn("a?")
        await stores.artifacts.save(name, "report", LARGE)
        await agent.execute_turn("b?")
        await agent.fork(f"{name}-fork")


async def said(stores, name):
    """The whole readable state of a context; its numbers have no gap."""
    record = await stores.state.load(name)
    if record is None:
        return None
    events = await stores.journal.events(name)
    assert [e.seq for e in events] == list(range(1, record.last_seq + 1))
    artifacts = {
        one.artifact_id: await stores.artifacts.load(name, one.artifact_id)
        for one in await stores.artifacts.list(name)
    }
    return [m.text for m in await stores.messages.list(name)], artifacts


WHOLE = (["a?", "A.", "b?", "B."], {"report": LARGE})
WORK = {
    "fork": lambda stores, name: stores.journal.fork(name, f"{name}-new", at=2),
    "rewind": lambda stores, name: stores.journal.rewind(name, 2),
    "delete": lambda stores, name: stores.state.delete(name),
    "delete an artifact": lambda stores, name: stores.artifacts.delete(name, "report"),
    "erase": lambda stores, name: stores.contexts.erase(name),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "what"),
    split(
        [*(("sqlite", what) for what in WORK), ("asyncpg", "fork")],
        [("asyncpg", what) for what in WORK if what != "fork"],
    ),
)
def test_a_killed_branch_is_whole_or_did_not_happen(url, what, tmp_path):
    """The fork has lost nothing, and whoever comes next does it."""
    name, log = f"killed-{secrets.token_hex(4)}", tmp_path / "log"

    async def die():
        async with open_stores(url) as stores:
            await make(stores, name)
            arm("B2")  # all is written, and not committed
            await WORK[what](stores, name)

    async def go_on():
        async with open_stores(url) as stores:
            for context in (name, f"{name}-fork"):
                assert await said(stores, context) == WHOLE
            assert await stores.state.load(f"{name}-new") is None
            await WORK[what](stores, name)
            assert await said(stores, f"{name}-fork") == WHOLE
            await stores.artifacts.collect(0)
            assert await said(stores, f"{name}-fork") == WHOLE
            changed = await said(stores, name)
            assert (changed == WHOLE) == (what == "fork")
            if what == "fork":
                assert (await said(stores, f"{name}-new"))[0] == ["a?", "A."]
            page = await stores.contexts.list(limit=1000)
            left = {one.context_id for one in page.items if name in one.context_id}
            assert left >= {f"{name}-fork"}
            for one in sorted(left):
                await stores.contexts.erase(one)
            page = await stores.contexts.list(limit=1000)
            assert not [one for one in page.items if name in one.context_id]

    status = wait(fork(lambda: asyncio.run(die()), log))
    assert status == -signal.SIGKILL, log.read_text()
    run(lambda: asyncio.run(go_on()), log)


# --- the fork itself ---

GROWING = b"half of it" * 9_000


def _stop_within(trial):
    """Let this process die when the fork has its rows, and its growing artifact has no parts."""
    whole = journal.fork_steps

    def fork_steps(*args):
        steps, rows = whole(*args), None
        while (query := steps.send(rows)).sql != s.COPY_PARTS:
            rows = yield query
        os.kill(os.getpid(), signal.SIGKILL)

    trial.setattr(journal, "fork_steps", fork_steps)


PLACES = {
    "before its commit": lambda _: arm("B2"),
    "between its artifacts": _stop_within,
    "before its caller knows": lambda _: arm("F1"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", split(["sqlite"], ["asyncpg"]))
def test_a_fork_that_is_killed_is_whole_or_absent(url, tmp_path, monkeypatch):
    """With its artifacts; who asks for the same name again gets it, or hears that it exists."""
    log = tmp_path / "log"
    names = {place: f"killed-{secrets.token_hex(4)}" for place in PLACES}

    async def fill():
        async with open_stores(url) as stores:
            for name in names.values():
                await make(stores, name)
                await stores.artifacts.open(name, "growing")
                await stores.artifacts.append(name, "growing", GROWING)

    async def die(place):
        async with (
            open_stores(url) as stores,
            Agent(names[place], llm_provider=ScriptedProvider([]), stores=stores) as agent,
        ):
            PLACES[place](monkeypatch)
            await agent.fork(f"{names[place]}-new")

    async def go_on(place):
        name, new = names[place], f"{names[place]}-new"
        model = ScriptedProvider([text("C.")])
        async with open_stores(url) as stores:
            there = await stores.state.load(new) is not None
            assert there == (place == "before its caller knows")
            forks = [one.context_id for one in (await stores.journal.lineage(name)).forks]
            assert (new in forks) == there
            if not there:
                assert await stores.artifacts.list(new) == []
                await stores.journal.fork(name, new)
            with pytest.raises(StoreConflict, match=f"there is a context '{new}' already"):
                await stores.journal.fork(name, new)
            await stores.artifacts.append(name, "growing", b"!", last=True)
            await stores.artifacts.append(new, "growing", b"?", last=True)
            assert await stores.artifacts.load(new, "growing") == GROWING + b"?"
            assert await stores.artifacts.load(name, "growing") == GROWING + b"!"
            async with Agent(new, llm_provider=model, stores=stores) as agent:
                await agent.execute_turn("c?")
            whole = [*WHOLE[0], "c?", "C."], {**WHOLE[1], "growing": GROWING + b"?"}
            assert await said(stores, new) == whole

    async def go_on_everywhere():
        for place in PLACES:
            await go_on(place)

    run(lambda: asyncio.run(fill()), log)
    for place in PLACES:
        status = wait(fork(lambda place=place: asyncio.run(die(place)), log))
        assert status == -signal.SIGKILL, log.read_text()
    run(lambda: asyncio.run(go_on_everywhere()), log)
