"""An agent belongs to one event loop and one process, and is closed with them."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from looopy import Agent, open_stores
from looopy.errors import AgentStateError, StoreUnavailable
from looopy.stores import opening as shared_stores
from looopy.testing import ScriptedProvider, text

pytestmark = pytest.mark.usefixtures("set_aside")


def _agent(url, **options):
    return Agent("ada", llm_provider=ScriptedProvider([text("hi")] * 9), stores=url, **options)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/chat.db"


@pytest.fixture(params=["sqlite", "postgres"])
def any_url(request):
    return request.getfixturevalue("url" if request.param == "sqlite" else "postgres")


@pytest.fixture
def elsewhere():
    """A function that runs a coroutine in another event loop, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("looopy-")}


def _open_files(folder):
    found = Path("/proc/self/fd")
    if not found.exists():
        return []
    links = [fd.readlink() for fd in found.iterdir() if fd.is_symlink()]
    return [link for link in links if link.is_relative_to(folder)]


async def _forget(agent):
    await agent.start()
    await agent.execute_turn("hello")
    return weakref.ref(asyncio.get_running_loop())


def test_a_forgotten_agent_is_closed_when_its_event_loop_ends(url, tmp_path):
    """No thread, file or event loop is left of an agent that nobody has shut down."""
    before = _threads()
    loops = [asyncio.run(_forget(_agent(url))) for _ in range(4)]
    assert _threads() == before
    assert _open_files(tmp_path) == []
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 3


def test_connections_of_a_forgotten_agent_are_closed_with_its_event_loop(postgres):
    """Postgres has no session of an event loop that has ended, and no warning is given."""
    before = set(shared_stores._places)  # of event loops of other tests
    asyncio.run(_forget(_agent(postgres)))
    assert set(shared_stores._places) <= before
    gc.collect()


def test_an_event_loop_that_ends_at_once_is_let_go_of_by_the_next(url):
    """A loop that closes without ending its generators keeps its stores no longer than that."""
    before = _threads()
    loop = asyncio.new_event_loop()
    gone = loop.run_until_complete(_forget(_agent(url)))
    loop.close()
    del loop
    asyncio.run(_forget(_agent(url)))
    gc.collect()
    for thread in _threads() - before:  # told to end, and they know the loop until they have
        thread.join(5)
    assert _threads() == before
    gc.collect()
    assert gone() is None


def test_an_agent_left_open_starts_again_in_the_next_event_loop(any_url):
    """What was acknowledged in the first loop is there in the second, and turns go on."""
    agent = _agent(any_url)
    asyncio.run(_forget(agent))

    async def go_on():
        async with agent:
            await agent.execute_turn("again")
            return [message.text for message in await agent.get_messages()]

    assert asyncio.run(go_on()) == ["hello", "hi", "again", "hi"]


def test_turns_that_were_not_saved_are_reported_when_the_loop_has_ended(url, caplog):
    """With `auto_save=False`, starting anew says how many turns are gone."""
    agent = _agent(url, auto_save=False)
    asyncio.run(_forget(agent))

    async def start():
        async with agent:
            return agent.state.turn_count

    with caplog.at_level(logging.WARNING, logger="looopy"):
        assert asyncio.run(start()) == 0
    assert "1 turns of context ada were not saved" in caplog.text


ACTIONS = {
    "execute_turn": lambda agent: agent.execute_turn("hello"),
    "steer": lambda agent: agent.steer("hello"),
    "cancel": lambda agent: agent.cancel(),
    "clear": lambda agent: agent.clear(),
    "compact": lambda agent: agent.compact(),
    "get_messages": lambda agent: agent.get_messages(),
    "has_queued_messages": lambda agent: agent.has_queued_messages(),
    "pause": lambda agent: agent.pause(),
    "resume": lambda agent: agent.resume(),
    "save_state": lambda agent: agent.save_state(),
    "shutdown": lambda agent: agent.shutdown(),
    "start": lambda agent: agent.start(),
    "wait_for_idle": lambda agent: agent.wait_for_idle(),
}


@pytest.mark.parametrize("action", ACTIONS)
async def test_another_event_loop_is_refused_before_anything_is_written(action, url, elsewhere):
    """The error names the action, nothing is stored, and the agent works on in its own loop."""

    async def act():
        await ACTIONS[action](agent)

    async with _agent(url) as agent:
        with pytest.raises(AgentStateError, match=rf"{action}\(\).*another event loop"):
            await asyncio.to_thread(elsewhere, act())
        assert await agent.get_messages() == []
        await agent.execute_turn("hello")
        assert agent.state.turn_count == 1


def test_a_turn_after_its_event_loop_has_ended_is_refused(any_url):
    """Without `start()`, nothing is written in the next event loop."""
    agent = _agent(any_url)
    asyncio.run(_forget(agent))

    async def go_on():
        with pytest.raises(AgentStateError, match="another event loop"):
            agent.execute_turn("again")
        async with open_stores(any_url) as stores:
            return await stores.messages.count("ada")

    assert asyncio.run(go_on()) == 2


async def test_stores_are_refused_in_another_event_loop(any_url, elsewhere):
    """They are not read, written, opened or closed there, and stay open in their own."""
    async with open_stores(any_url) as stores:
        for use in (stores.messages.count, stores.state.delete):
            with pytest.raises(StoreUnavailable, match="opened in another event loop"):
                await asyncio.to_thread(elsewhere, use("ada"))
        with pytest.raises(StoreUnavailable, match="opened in another event loop"):
            await asyncio.to_thread(elsewhere, stores.__aenter__())
        assert await stores.messages.count("ada") == 0


def test_stores_open_again_once_their_event_loop_has_ended(url):
    """Stores that nobody closed serve the next event loop after they are entered."""
    stores = open_stores(url)

    async def first():
        await stores.__aenter__()
        async with Agent("ada", llm_provider=ScriptedProvider([text("hi")]), stores=stores) as a:
            await a.execute_turn("hello")

    async def second():
        async with stores:
            return await stores.messages.count("ada")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert asyncio.run(second()) == 2


FORK = """
import asyncio, os, sys, warnings
from looopy import Agent
from looopy.errors import AgentStateError
from looopy.testing import ScriptedProvider, text

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
agent = Agent("ada", llm_provider=ScriptedProvider([text("hi")] * 3), stores=sys.argv[1])


async def refused():
    try:
        agent.execute_turn("in the child")
    except AgentStateError as error:
        print(error, flush=True)
    await agent.start()
    await agent.execute_turn("anew in the child")
    await agent.shutdown()


def child():
    asyncio.set_event_loop(None)
    asyncio._set_running_loop(None)  # the child is a copy of a thread that runs one
    asyncio.run(refused())


async def main():
    await agent.start()
    await agent.execute_turn("in the parent")
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
    await agent.execute_turn("in the parent again")
    print([m.text for m in await agent.get_messages() if m.role == "user"], flush=True)
    await agent.shutdown()


asyncio.run(main())
"""


def test_a_forked_child_is_refused_until_it_starts_again(url):
    """The child writes nothing with what it inherited; its parent goes on."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, url], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    refusal, said = done.stdout.splitlines()
    assert "execute_turn() of an agent that was started in the process before it forked" in refusal
    assert said == "['in the parent', 'anew in the child', 'in the parent again']"
