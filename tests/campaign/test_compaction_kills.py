"""A compaction, or its undoing, that is killed or raced has happened whole, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import signal

import pytest
from tests.shares import split

from looopy import Agent, LoopConfig, RetryPolicy, open_stores
from looopy._failpoints import arm
from looopy.errors import AgentBusy, StoreConflict
from looopy.testing import ScriptedProvider, text
from looopy.testing.children import fork, run, wait
from looopy.types.event import Compaction, MessageEnd, TurnEnd
from looopy.types.message import UserMessage
from looopy.types.summary import is_summary, kept_by

pytestmark = pytest.mark.campaign
CONFIG = LoopConfig(retry=RetryPolicy(base_s=0), busy_timeout_s=60)
RACERS, STEPS = 3, 8
_WORK = ("compact", "undo_compact")


def an_agent(url, name, **options):
    """One whose model repeats the question; a summary names the last question that it knows."""

    def says(request):
        asked = request.messages[-1].text
        if not request.system_prompt:
            return text(asked.upper())
        return text("In short. " + asked.rpartition("[user]\n")[2].partition("\n")[0])

    model = ScriptedProvider(says)
    return Agent(name, llm_provider=model, stores=url, loop_config=CONFIG, **options), model


async def look(url, name):
    """The stored facts that a kill must leave whole."""
    async with open_stores(url) as stores:
        record = await stores.state.load(name)
        events = await stores.journal.events(name)
        messages = await stores.messages.records(name)
    assert [e.seq for e in events] == list(range(1, record.last_seq + 1))
    assert [r.position for r in messages] == list(range(1, record.last_position + 1))
    stored = [e for e in events if isinstance(e, MessageEnd)]
    assert [(e.position, e.message) for e in stored] == [(r.position, r.message) for r in messages]
    made = [e for e in events if isinstance(e, Compaction)]
    summaries = {r.position: r.message for r in messages if is_summary(r.message)}
    assert [e.position for e in made] == list(summaries)
    for event in made:
        assert event.covers == (1, event.position - 1 - kept_by(summaries[event.position]))
        asked = [
            r.message.text
            for r in messages[: event.covers[1]]
            if isinstance(r.message, UserMessage)
        ]
        if summaries[event.position].content:  # it speaks for all that it covers, and no more
            assert summaries[event.position].content == f"In short. {asked[-1]}"
    last = max(summaries, default=None)
    counts = last if last is not None and summaries[last].content else None
    assert record.state.summary == counts
    assert record.open_turn is None
    written = [e for e in made if e.undoes is None]
    turns = sum(e.usage.total_tokens for e in events if isinstance(e, TurnEnd))
    return len(made), len(written), record.state.usage.total_tokens - turns, messages


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "place", "what"),
    split(
        itertools.product(["sqlite"], ["C1", "B2", "C3"], _WORK),
        itertools.product(["asyncpg", "psycopg"], ["C1", "B2", "C3"], _WORK),
    ),
)
def test_a_killed_compaction_is_whole_or_did_not_happen(url, place, what, tmp_path):
    """And whoever comes next can do it, and sees what counts."""
    name, log = f"killed-{secrets.token_hex(4)}", tmp_path / "log"

    async def die():
        agent, _ = an_agent(url, name)
        async with agent:
            await agent.execute_turn("a?")
            await agent.execute_turn("b?")
            if what == "undo_compact":
                await agent.compact()
            arm(place)
            await getattr(agent, what)()

    async def go_on():
        made, written, spent, _ = await look(url, name)
        happened = place == "C3"
        assert made == happened + (what == "undo_compact")
        assert (spent > 0) == (written > 0)
        agent, model = an_agent(url, name)
        async with agent:
            await agent.execute_turn("c?")
            folded = (what == "compact") == happened
            assert ("In short." in model.requests[0].messages[0].text) == folded
            again = agent.undo_compact if folded else agent.compact
            assert await again() is not None
            await agent.execute_turn("d?")
            shown = model.requests[-1].messages[0].text
            assert ("In short." in shown) == (not folded)
        made_after, *_ = await look(url, name)
        assert made_after == made + 1

    status = wait(fork(lambda: asyncio.run(die()), log))
    assert status == -signal.SIGKILL, log.read_text()
    run(lambda: asyncio.run(go_on()), log)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", split(["sqlite"], ["asyncpg", "psycopg"]))
def test_simultaneous_compactions_and_undoings_lose_no_message(url, tmp_path):
    """Beside turns: each acknowledged message is there once, and each summary fits its place."""
    name = f"raced-{secrets.token_hex(4)}"

    async def race(who):
        agent, _ = an_agent(url, name, on_busy="wait")
        done = []
        async with agent:
            for step in range(STEPS):
                try:
                    if (step + who) % 3 == 0:
                        await agent.compact()
                    elif (step + who) % 3 == 1 and step > 2:
                        await agent.undo_compact()
                    else:
                        await agent.execute_turn(f"{who}.{step}?")
                        done.append(f"{who}.{step}?")
                except (AgentBusy, StoreConflict):
                    await agent.start()
        (tmp_path / f"done-{who}").write_text(json.dumps(done))

    async def judge():
        _, _, _, messages = await look(url, name)
        said = [r.message.text for r in messages if isinstance(r.message, UserMessage)]
        told = [json.loads((tmp_path / f"done-{who}").read_text()) for who in range(RACERS)]
        assert sorted(said) == sorted(one for each in told for one in each)
        assert len(said) >= RACERS

    log = tmp_path / "log"
    pids = [fork(lambda who=who: asyncio.run(race(who)), log) for who in range(RACERS)]
    assert [wait(pid) for pid in pids] == [0] * RACERS, log.read_text()
    run(lambda: asyncio.run(judge()), log)
