"""The blocking face: the same agent for scripts, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests.agent.kit import add, assert_whole

import looopy
from looopy import open_stores, sync
from looopy.errors import (
    AgentNotStarted,
    AgentStateError,
    CannotContinue,
    LLMError,
    StoreUnavailable,
    ValueRefused,
)
from looopy.sync import Agent
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import StopReason
from looopy.types.state import AgentStatus, Outcome


def test_a_script_runs_turns(store_url):
    """`with`, `execute_turn`, reading: all of it without await."""
    provider = ScriptedProvider([text("hello"), tool_call("add", a=1, b=2), text("3")])
    with Agent("sync-1", llm_provider=provider, tools=[add], stores=store_url) as agent:
        assert agent.context_id == "sync-1"
        result = agent.execute_turn("hi")
        assert (result.turn, result.text) == (1, "hello")
        assert agent.execute_turn("1 + 2?").raise_for_outcome().text == "3"
        assert [m.text for m in agent.get_messages(limit=2)] == ["hi", "hello"]
        assert agent.state.turn_count == 2
        agent.save_state({"title": "sums"})
        assert agent.refresh().metadata == {"title": "sums"}
        assert agent.search("nothing of this").items == []
        assert agent.tag(add=["sums"]) == ("sums",)
        agent.pause()
        assert agent.state.status is AgentStatus.PAUSED
        agent.resume()
        agent.cancel()
        agent.steer("never mind")
        agent.follow_up("later")
        assert agent.clear_queue("steer") == 1
        assert agent.has_queued_messages()
        assert (agent.clear_queue("follow_up"), agent.clear_queue()) == (1, 0)
        assert agent.get_artifacts() == []
        agent.clear()
        assert agent.get_messages() == []
        assert "sync-1" in repr(agent)
    assert agent.state.status is AgentStatus.SHUTDOWN


def test_events_can_be_iterated_over():
    """`stream_turn` gives what `async for` gives."""
    provider = ScriptedProvider([text("hello")], chunk_chars=1)
    heard = []
    with Agent("sync-2", llm_provider=provider) as agent:
        leave = agent.subscribe(heard.append)
        events = list(agent.stream_turn("hi"))
        leave()
    assert "".join(e.delta for e in events if e.type == "message_update") == "hello"
    assert events[0].type == "turn_start"
    assert events[-1].type == "turn_end"
    assert [e for e in heard if e.type != "status_change"] == events


def test_leaving_the_iteration_leaves_the_turn_running():
    """The turn ends by itself, and the next one works."""
    provider = ScriptedProvider([text("one"), text("two")])
    with Agent("sync-3", llm_provider=provider, on_busy="wait") as agent:
        for _ in agent.stream_turn("a"):
            break
        assert agent.execute_turn("b").turn == 2


def test_errors_arrive_where_the_call_is_made():
    """Misuse, what the store knows, and failures inside the turn, as with await."""
    provider = ScriptedProvider([failure(LLMError("no")), text("yes")])
    agent = Agent("sync-4", llm_provider=provider)
    with pytest.raises(AgentNotStarted):
        agent.execute_turn("hi")
    with agent:
        with pytest.raises(ValueRefused):
            agent.execute_turn("")
        with pytest.raises(CannotContinue):
            agent.execute_turn(None)
        with pytest.raises(CannotContinue):
            list(agent.stream_turn(None))
        result = agent.execute_turn("hi")
        assert result.outcome is Outcome.FAILED
        with pytest.raises(LLMError, match="no"):
            result.raise_for_outcome()
        assert agent.execute_turn("again").text == "yes"


async def test_inside_a_running_loop_it_is_refused():
    """Blocking there would stop the loop: the error names the other face."""
    agent = Agent("sync-5", llm_provider=ScriptedProvider([text("hi")]))
    for blocking in (agent.start, agent.shutdown, lambda: agent.execute_turn("hi")):
        with pytest.raises(AgentStateError, match=r"looopy\.Agent"):
            blocking()


CELLS = """
import asyncio, sys
from IPython.core.interactiveshell import InteractiveShell

CELLS = [
    "from looopy.sync import Agent",
    "from looopy.testing import ScriptedProvider, text",
    "model = ScriptedProvider([text('one'), text('two')])",
    "agent = Agent('ada', llm_provider=model, stores='memory:')",
    "agent.start(); print(agent.execute_turn('hi').text)",
    "print([e.type for e in agent.stream_turn('again')][-1]); agent.shutdown()",
    "await __import__('asyncio').sleep(0)  # the kernel's loop still runs",
]

async def kernel():
    shell = InteractiveShell.instance(history_file=":memory:", colors="nocolor")
    for cell in CELLS:
        code = shell.transform_cell(cell)
        (await shell.run_cell_async(cell, transformed_cell=code)).raise_error()

asyncio.run(kernel())
"""


def test_a_cell_of_a_notebook_may_block(tmp_path):
    """The kernel runs it in its event loop, and waits for its end anyway."""
    done = subprocess.run(
        [sys.executable, "-c", CELLS],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["one", "turn_end"], done.stderr


async def test_open_stores_are_refused():
    """They belong to another event loop."""
    async with open_stores("memory:") as stores:
        with pytest.raises(StoreUnavailable, match="URL"):
            Agent("sync-6", llm_provider=ScriptedProvider([]), stores=stores)


def test_an_exception_in_the_block_cancels_the_turn(sqlite_url):
    """It is not waited for, and is closed all the same."""
    provider = ScriptedProvider([text("never to be heard")], chunk_chars=1, delay_s=5)

    def leave():
        with Agent("ada", llm_provider=provider, stores=sqlite_url) as agent:
            for _ in agent.stream_turn("hi"):
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave()
    asyncio.run(look(sqlite_url, Outcome.CANCELLED))


async def look(url, outcome):
    """The one turn has ended so, and the context is whole."""
    async with open_stores(url) as stores:
        await assert_whole(stores)
        [turn] = await stores.journal.turns("ada")
        assert turn.outcome is outcome


CHILD = """
import asyncio
import inspect
import os
import sys
import threading
from looopy.sync import Agent
from looopy.testing import ScriptedProvider, text

async def until_looopy_waits():
    # Ctrl-C reaches whatever code the main thread runs: this program's own, between two events.
    seen = 0
    while seen < 5:
        frame = sys._current_frames().get(threading.main_thread().ident)
        here = frame is not None and frame.f_code.co_filename == "<string>"
        seen = 0 if here else seen + 1
        await asyncio.sleep(0.01)

class Hanging(ScriptedProvider):
    async def stream(self, request, options=None):
        async for event in super().stream(request, options):
            yield event
            if event.type == "text_delta":
                if "ctrl-c" in sys.argv:
                    await until_looopy_waits()
                print("speaking", flush=True)
                await asyncio.Event().wait()

agent = Agent("ada", llm_provider=Hanging([text("half an answer")]), stores=sys.argv[1])
agent.start()
"""


def child(url, code, *options):
    """A process that runs the agent as *code* says, once it speaks."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD + textwrap.dedent(code), url, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "speaking\n"
    return process


@pytest.mark.parametrize(
    "run",
    ['agent.execute_turn("hi")', 'for _ in agent.stream_turn("hi"): pass'],
    ids=["execute_turn", "stream_turn"],
)
def test_ctrl_c_cancels_the_turn_and_leaves_it_closed(sqlite_url, run):
    """`KeyboardInterrupt` as usual; the partial answer is kept; nothing else is said."""
    code = f"""
try:
    {run}
except KeyboardInterrupt:
    print("interrupted", agent.state.status, flush=True)
    agent.shutdown()
"""
    process = child(sqlite_url, code, "ctrl-c")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("interrupted ready\n", "", 0)

    async def inspect():
        await look(sqlite_url, Outcome.CANCELLED)
        async with open_stores(sqlite_url) as stores:
            last = (await stores.messages.list("ada"))[-1]
            assert (last.text, last.stop_reason) == ("half an answer", StopReason.ABORTED)

    asyncio.run(inspect())


def test_a_process_may_end_while_a_turn_runs(sqlite_url):
    """No noise, no hanging, and the turn is closed on the way out."""
    code = """
events = agent.stream_turn("hi")
for event in events:
    if event.type == "message_update" and event.delta:
        break
"""
    process = child(sqlite_url, code)
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("", "", 0)
    asyncio.run(look(sqlite_url, Outcome.CANCELLED))


WORKER = """
import asyncio, sys, threading
from looopy.sync import Agent
from looopy.testing import ScriptedProvider, text

main = threading.main_thread()

class Slow(ScriptedProvider):
    async def stream(self, request, options):
        await asyncio.to_thread(main.join)  # as the resolution of a name: a thread of the loop's
        async for event in super().stream(request, options):
            yield event

def work():
    main.join()
    for number in range(2):
        for event in agent.stream_turn("go"):
            pass
        print(event.type, event.outcome, agent.execute_turn("again").text, flush=True)
    agent.shutdown()

agent = Agent("ada", llm_provider=Slow([text("ok")], repeat=True), stores=sys.argv[1])
agent.start()
threading.Thread(target=work).start()
"""


def test_a_worker_may_go_on_when_the_main_thread_has_ended(sqlite_url):
    """Python waits for it, and so does the event loop."""
    ended = subprocess.run(
        [sys.executable, "-c", WORKER, sqlite_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "turn_end completed ok\n" * 2, ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_who_reads_a_stream_is_told_that_the_loop_ends():
    """Its task is cancelled, as at the end of a program; nobody waits for ever."""
    with Agent("sync-ends", llm_provider=ScriptedProvider([text("ok")], delay_s=60)) as agent:
        events = agent.stream_turn("go")
        assert next(events).type == "turn_start"

        async def end():
            for task in asyncio.all_tasks():
                if task.get_name() == "looopy stream":
                    task.cancel()

        sync._thread.call(end())
        with pytest.raises(AgentStateError, match="the program ends"):
            list(events)
        agent.cancel()


def test_sys_exit_in_a_subscriber_does_not_end_the_shared_loop():
    """`sys.exit()` in a subscriber runs in a thread that is not the program's."""
    with Agent("sync-exit", llm_provider=ScriptedProvider([text("ok")], repeat=True)) as agent:
        remove = agent.subscribe(lambda _event: sys.exit(3))
        assert agent.execute_turn("go").text == "ok"
        remove()
        assert agent.execute_turn("and now?").text == "ok"


def test_importing_sync_starts_no_thread():
    """Importing starts no thread and no loop."""
    code = "import threading, looopy.sync; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_agents_of_a_process_share_one_thread():
    """However many there are."""
    import threading

    agents = [Agent(f"sync-t{n}", llm_provider=ScriptedProvider([])) for n in range(3)]
    for agent in agents:
        agent.start()
    named = [t.name for t in threading.enumerate() if t.name == "looopy-sync"]
    for agent in agents:
        agent.shutdown()
    assert len(named) == 1


def test_a_blocking_method_has_the_parameters_and_the_docstring_of_the_other():
    """`help()` and `inspect.signature()` show them. It blocks, and so is no coroutine."""
    public = {name: one for name, one in vars(Agent).items() if not name.startswith("_")}
    names = [name for name, one in public.items() if hasattr(one, "__wrapped__")]
    assert {"start", "shutdown", "steer", "compact", "get_messages"} <= set(names)
    for name in names:
        blocking, other = getattr(Agent, name), getattr(looopy.Agent, name)
        assert inspect.signature(blocking) == inspect.signature(other)
        assert blocking.__doc__ == other.__doc__
        assert (blocking.__name__, blocking.__qualname__) == (name, f"Agent.{name}")
        assert blocking.__module__ == "looopy.sync"
        assert not inspect.iscoroutinefunction(blocking)
    with pytest.raises(TypeError, match="canel"):
        Agent("ada", llm_provider=ScriptedProvider([])).pause(canel=True)
