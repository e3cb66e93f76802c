"""`LoopConfig(on_max_iterations="answer")`: one more model call, without tools, at the limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from pydantic import BaseModel
from tests.agent.kit import Gate, assert_valid, assert_whole

from looopy import Budget, LoopConfig, agent_loop, open_stores, tool
from looopy.errors import LLMError, OutputInvalid
from looopy.loop.iteration import NO_TOOLS
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.config import ModelOptions, RetryPolicy
from looopy.types.event import TurnEnd
from looopy.types.message import StopReason
from looopy.types.state import Outcome

ANSWER = LoopConfig(
    max_iterations=2, on_max_iterations="answer", retry=RetryPolicy(attempts=0), max_tool_calls=9
)
LIMIT = "The limit of 2 model calls for this turn is reached. No tool can be called any more."


class Total(BaseModel):
    """The type of an answer."""

    total: int


@pytest.fixture
def looked():
    """The words that the tool `look` was called with."""
    return []


@pytest.fixture
def look(looked):
    """A tool that notes its calls."""

    @tool(name="look", effects="none")
    def look(word: str) -> str:
        """Look a word up."""
        looked.append(word)
        return word.upper()

    return look


def two_looks():
    """The answers that use up the limit."""
    return [tool_call("look", word="a"), tool_call("look", word="b")]


def tools_of(provider):
    """The names of the tools of each request."""
    return [[one.name for one in request.tools] for request in provider.requests]


async def test_turn_at_its_limit_ends_with_an_answer(make_agent, stores, look, looked):
    """The last request has no tools and the reason; neither the log nor the next turn has it."""
    options = ModelOptions(tool_choice="look", strict_tools=["look"])
    provider = ScriptedProvider([*two_looks(), text("I know A and B."), text("Hello.")])
    agent = await make_agent(
        provider, tools=[look], stores=stores, loop_config=replace(ANSWER, options=options)
    )
    stream = agent.execute_turn("look up all")
    events = [event async for event in stream]
    result = await stream

    assert (result.outcome, result.stop_reason) == (Outcome.COMPLETED, StopReason.MAX_ITERATIONS)
    assert (result.text, result.error) == ("I know A and B.", None)
    assert tools_of(provider) == [["look"], ["look"], []]
    assert LIMIT in provider.requests[2].messages[-1].text
    assert [one.tool_choice for one in provider.options] == ["look", None, None]
    assert [m.role for m in result.messages][-2:] == ["toolResult", "assistant"]
    [warning] = [event for event in events if event.type == "warning"]
    assert (warning.code, "without tools" in warning.text) == ("max_iterations", True)
    end = events[-1]
    assert (end.stop_reason, end.iterations) == (StopReason.MAX_ITERATIONS, 3)
    stored = [one for one in await stores.journal.events("ada") if isinstance(one, TurnEnd)]
    assert [one.iterations for one in stored] == [3]
    second = agent.execute_turn("hello")
    assert [e.type for e in [e async for e in second] if e.type == "warning"] == [], "cache_broken"
    assert tools_of(provider)[3] == ["look"]
    assert LIMIT not in provider.requests[3].messages[-1].text
    await assert_whole(stores)


async def test_calls_in_the_last_answer_do_not_run(make_agent, stores, look, looked):
    """Each has its result, and the turn ends, with or without words."""
    provider = ScriptedProvider([*two_looks(), (text("Let me see."), tool_call("look", word="c"))])
    agent = await make_agent(provider, tools=[look], stores=stores, loop_config=ANSWER)
    result = await agent.execute_turn("look up all")

    assert (result.stop_reason, result.text) == (StopReason.MAX_ITERATIONS, "Let me see.")
    assert (looked, result.messages[-1].text) == (["a", "b"], NO_TOOLS)
    assert_valid(await agent.get_messages())
    await assert_whole(stores)


async def test_turn_without_a_limit_of_iterations_goes_on(make_agent, look, looked):
    """Other limits hold."""
    config = LoopConfig(max_iterations=None, max_tool_calls=40, on_doom_loop="warn")
    provider = ScriptedProvider([tool_call("look", word="a")], repeat=True)
    agent = await make_agent(provider, tools=[look], loop_config=config)
    result = await agent.execute_turn("go")

    assert (len(looked), result.stop_reason) == (40, StopReason.MAX_TOOL_CALLS)


@pytest.mark.parametrize("on_budget", ["stop", "ask"])
async def test_used_up_budget_forbids_the_last_call(make_agent, stores, look, on_budget):
    """Once there is room, the turn that continues it only answers."""
    config = replace(ANSWER, budget=Budget(tokens=1), max_iterations=1, on_budget=on_budget)
    agent = await make_agent(two_looks(), tools=[look], stores=stores, loop_config=config)
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.BUDGET

    provider = ScriptedProvider([text("Only A.")])
    other = await make_agent(provider, tools=[look], stores=stores, loop_config=ANSWER)
    result = await other.execute_turn(None)
    assert (result.text, result.stop_reason) == ("Only A.", StopReason.MAX_ITERATIONS)
    assert tools_of(provider) == [[]]


@pytest.mark.parametrize("native", [True, False])
async def test_last_answer_fits_its_type(make_agent, stores, look, looked, native):
    """It is corrected as any other one, without tools but the one that takes the answer."""
    good = text('{"total": 3}') if native else tool_call("final_answer", total=3)
    bad = text("three") if native else tool_call("final_answer", total="three")
    provider = ScriptedProvider([*two_looks(), tool_call("look", word="c"), bad, good])
    provider.structured_output = native
    agent = await make_agent(provider, tools=[look], stores=stores, loop_config=ANSWER)
    result = await agent.execute_turn("add", output_type=Total)

    assert (result.outcome, result.stop_reason) == (Outcome.COMPLETED, StopReason.MAX_ITERATIONS)
    assert (result.require_output(), looked) == (Total(total=3), ["a", "b"])
    assert tools_of(provider)[2:] == [[] if native else ["final_answer"]] * 3
    await assert_whole(stores)


async def test_last_answer_that_never_fits_fails_the_turn(make_agent, look):
    """After `max_output_retries`, as any other answer."""
    config = replace(ANSWER, max_output_retries=1)
    provider = ScriptedProvider([*two_looks(), text("three"), text("four")])
    provider.structured_output = True
    agent = await make_agent(provider, tools=[look], loop_config=config)
    result = await agent.execute_turn("add", output_type=Total)

    assert isinstance(result.error, OutputInvalid)
    assert (result.output, len(provider.requests)) == (None, 4)


async def test_steering_before_the_last_call_is_in_it(make_agent, stores, look):
    """A message after it stays in the inbox."""
    gate = Gate()
    provider = ScriptedProvider([tool_call("gate"), text("Yes, in metres.")])
    config = replace(ANSWER, max_iterations=1)
    agent = await make_agent(provider, tools=[gate.tool], stores=stores, loop_config=config)
    stream = agent.execute_turn("how far?")
    await gate.entered.wait()
    await agent.steer("in metres, please")
    gate.open.set()
    result = await stream

    assert (result.text, result.stop_reason) == ("Yes, in metres.", StopReason.MAX_ITERATIONS)
    said = provider.requests[1].messages[-1].text
    assert said.startswith("in metres, please")
    assert "The limit of 1 model calls" in said
    assert (await stores.state.load("ada")).inbox.waiting == 0


async def test_failed_last_call_is_made_again_without_tools(make_agent, stores, look, looked):
    """By `execute_turn(None)`, also once the limit is another one."""
    provider = ScriptedProvider([*two_looks(), failure(LLMError)])
    agent = await make_agent(provider, tools=[look], stores=stores, loop_config=ANSWER)
    assert (await agent.execute_turn("go")).outcome is Outcome.FAILED

    provider = ScriptedProvider([tool_call("look", word="c")])
    agent = await make_agent(provider, tools=[look], stores=stores)
    result = await agent.execute_turn(None)
    assert (result.stop_reason, looked) == (StopReason.MAX_ITERATIONS, ["a", "b"])
    assert "The limit of model calls for this turn" in provider.requests[0].messages[-1].text


async def test_new_message_after_a_failed_last_call_has_tools_again(
    make_agent, stores, look, looked
):
    """It begins a turn of its own."""
    replies = [*two_looks(), failure(LLMError), tool_call("look", word="c"), text("C.")]
    agent = await make_agent(replies, tools=[look], stores=stores, loop_config=ANSWER)
    assert (await agent.execute_turn("go")).outcome is Outcome.FAILED
    result = await agent.execute_turn("and c?")
    assert (result.text, result.stop_reason, looked) == ("C.", StopReason.STOP, ["a", "b", "c"])


async def test_bare_loop_ends_with_an_answer(look):
    """Without a store."""
    provider = ScriptedProvider([*two_looks(), text("A and B.")])
    turn = agent_loop("go", llm_provider=provider, tools=[look], config=ANSWER)
    events = [event async for event in turn]
    assert (events[-1].stop_reason, events[-1].iterations) == (StopReason.MAX_ITERATIONS, 3)
    assert events[-1].messages[-1].text == "A and B."


CHILD = """
    import asyncio, sys
    from looopy import Agent, LoopConfig, tool
    from looopy.testing import ScriptedProvider, text, tool_call

    @tool(effects="external")
    def look(word: str) -> str:
        print("ran", word, flush=True)
        return word.upper()

    async def main():
        url, words = sys.argv[1], sys.argv[2:]
        calls = [tool_call("look", word=word) for word in words]
        last = (text("I know these. " * 50), tool_call("look", word="x"))
        model = ScriptedProvider([*calls, last], chunk_chars=4)
        config = LoopConfig(max_iterations=2, on_max_iterations="answer")
        agent = Agent("ada", llm_provider=model, tools=[look], stores=url, loop_config=config)
        async with agent:
            result = await agent.execute_turn(None if not words else "look up all")
            tools = [len(request.tools) for request in model.requests]
            print(result.outcome, result.stop_reason, tools, result.text[:13], flush=True)

    asyncio.run(main())
"""


def run(url, *words, failpoint=None):
    """The exit code and the lines of a process that runs a turn, or continues one."""
    code = textwrap.dedent(CHILD)
    environment = {**os.environ, **({"LOOOPY_FAILPOINT": failpoint} if failpoint else {})}
    done = subprocess.run(
        [sys.executable, "-c", code, url, *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


async def test_killed_last_call_is_made_again_without_tools(tmp_path):
    """Kills before it, amid its words, and before its end is stored, and a second kill after it."""
    for place in ("B4:3", "B5:60", "B13"):
        url = f"sqlite:///{tmp_path}/{place.replace(':', '-')}.db"
        code, lines, _ = run(url, "a", "b", failpoint=place)
        assert (code, lines) == (-signal.SIGKILL, ["ran a", "ran b"]), place
        code, lines, _ = run(url, failpoint="B5:60")
        assert (code, lines) == (-signal.SIGKILL, []), place
        code, lines, errors = run(url)
        assert code == 0, errors
        assert lines == ["completed max_iterations [0] I know these."], place
        async with open_stores(url) as stores:
            await assert_whole(stores)
            turns = await stores.journal.turns("ada")
            assert [str(turn.stop_reason) for turn in turns] == [
                *("interrupted", "interrupted"),
                "max_iterations",
            ]
            record = await stores.state.load("ada")
            assert (record.state.concluding, record.state.resumable) == (False, None)
