"""An erasure that is killed is ended by the next one, and no stopped process undoes it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.every_store.test_erasure import files_with, tables_with
from tests.shares import split

from looopy import Agent, AuthContext, LoopConfig, ToolContext, open_stores, tool
from looopy._failpoints import arm
from looopy.errors import CommitsLost, Fenced
from looopy.stores.sql.sqlite import backups
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait
from looopy.testing.contracts.erasure import a_whole_context

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]
CANARY = "canary-5c1e"
BOB = f"{CANARY}-bob"
_PLACES = ("B2:1", "B2:2", "E1", "E2:1", "E2:2", "E3")


@asynccontextmanager
async def _open(url, folder):
    blobs = None if url.startswith("sqlite") else str(folder / "blobs")
    async with open_stores(url, blobs=blobs) as stores:
        yield stores


async def _fill(stores):
    """
    Three contexts of Bob, one that works for the first of them and is nobody's, and one of Ann in
    which he has had a turn.
    """
    for number in range(3):
        await a_whole_context(stores, f"bobs-{number}", actor=BOB, words=f"{CANARY}-{number}")
    outer = await stores.state.load("bobs-0")
    inner = "bobs-0:helper:1"
    await stores.contexts.enclose(inner, outer="bobs-0", call="0" * 32, epoch=outer.epoch)
    await a_whole_context(stores, inner, actor=None, words=f"{CANARY}-inner")
    await stores.artifacts.save("anns", "map", b"secret" * 33_333)
    model = ScriptedProvider([text("hi"), text(f"yes, {CANARY}"), text("fine")])
    async with Agent("anns", llm_provider=model, stores=stores) as agent:
        await agent.execute_turn("hello", AuthContext("ann"))
        await agent.execute_turn(f"remember {CANARY}", AuthContext(BOB))
        await agent.execute_turn("go on", AuthContext("ann"))


def _left(url, folder):
    found = files_with(folder, CANARY)
    if not url.startswith("sqlite"):
        found += tables_with(url.replace("+asyncpg", ""), CANARY)
    return found


@pytest.mark.parametrize(
    ("kind", "place"),
    split(
        [*(("sqlite", place) for place in _PLACES), ("asyncpg", "B2:2")],
        [("asyncpg", place) for place in _PLACES if place != "B2:2"],
    ),
)
def test_the_next_erasure_ends_a_killed_one(url, place, tmp_path):
    """Wherever it died; contexts of others stay whole."""
    log = tmp_path / "log"

    async def die():
        async with _open(url, tmp_path) as stores:
            await _fill(stores)
            if url.startswith("sqlite"):
                backups.back_up(tmp_path / "trial.db", "0005")
            arm(place)
            await stores.contexts.erase_person(BOB)

    async def end():
        async with _open(url, tmp_path) as stores:
            before = await stores.messages.records("anns")
            await stores.contexts.erase_person(BOB)
            assert [r.context_id for r in await stores.state.list()] == ["anns"]
            after = await stores.messages.records("anns")
            assert [r.position for r in after] == [r.position for r in before]
            assert [*after[:2], *after[4:]] == [*before[:2], *before[4:]]
            assert [r.message.text for r in after[2:4]] == ["[erased]"] * 2
            assert await stores.artifacts.load("anns", "map") == b"secret" * 33_333

    status = wait(fork(lambda: asyncio.run(die()), log))
    assert status == -signal.SIGKILL, log.read_text()
    assert place == "E3" or _left(url, tmp_path)
    run(lambda: asyncio.run(end()), log)
    assert [one for one in _left(url, tmp_path) if one != log] == []


@pytest.mark.parametrize("kind", split(["sqlite"], ["asyncpg"]))
def test_a_process_stopped_during_an_erasure_restores_no_row(url, tmp_path):
    """It is stopped in its tool, its context is erased, and it continues: it may write nothing."""
    log, ready = tmp_path / "log", tmp_path / "ready"

    @tool
    async def remember(context: ToolContext) -> str:
        """Stop here."""
        ready.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(Fenced):
            await context.artifacts.save("late", CANARY)
        with pytest.raises(Fenced):
            await context.artifacts.save("large", CANARY * 10_000)
        return CANARY

    async def live():
        model = ScriptedProvider([tool_call("remember"), text(CANARY)])
        async with _open(url, tmp_path) as stores:
            config = LoopConfig(tool_timeout_s=None)
            agent = Agent(
                "bobs", llm_provider=model, tools=[remember], stores=stores, loop_config=config
            )
            await agent.start()
            with pytest.raises(CommitsLost):
                await agent.execute_turn(f"remember {CANARY}", AuthContext(BOB))
            await agent.shutdown()

    async def erase():
        async with _open(url, tmp_path) as stores:
            assert (await stores.contexts.erase_person(BOB, force=True)).contexts == 1

    child = fork(lambda: asyncio.run(live()), log)
    os.waitpid(child, os.WUNTRACED)
    assert ready.exists(), log.read_text()
    assert _left(url, tmp_path)
    run(lambda: asyncio.run(erase()), log)
    assert _left(url, tmp_path) == []
    os.kill(child, signal.SIGCONT)
    assert wait(child) == 0, log.read_text()
    assert [one for one in _left(url, tmp_path) if one != log] == []
    assert Path(ready).exists()
