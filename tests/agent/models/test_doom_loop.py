"""A model that goes round in circles: warned of, asked about, or stopped."""

from __future__ import annotations

import pytest
from tests.agent.kit import assert_whole, collect

from looopy import Hooks, LoopConfig, tool
from looopy.errors import ConfigurationError
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind


@pytest.fixture
def ran():
    """What the tool was asked."""
    return []


@pytest.fixture
def look(ran):
    """A tool that finds nothing, however often."""

    @tool(effects="none")
    def look(n: int = 0) -> str:
        """Look."""
        ran.append(n)
        return "nothing"

    return look


def asking(**options):
    """Limits under which a person is asked."""
    return LoopConfig(on_doom_loop="ask", **options)


def results(result):
    """The texts of a turn's results."""
    return [m.text for m in result.messages if isinstance(m, ToolResultMessage)]


@pytest.mark.parametrize("answer", [True, False])
async def test_a_person_is_asked_whether_it_may_go_on(make_agent, stores, look, ran, answer):
    """In the third round, in any process: yes runs the call, no denies it; the model goes on."""
    agent = await make_agent(
        [tool_call("look")] * 3, tools=[look], stores=stores, loop_config=asking()
    )
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.outcome, ran) == (Outcome.INPUT_REQUIRED, [0, 0])
    assert [e.code for e in events if e.type == "warning"] == ["doom_loop"]
    assert [e.type for e in events][-2:] == ["input_required", "turn_end"]
    [asked] = result.pending
    assert (asked.kind, asked.tool_name, asked.args) == (PendingKind.APPROVAL, "look", {})
    assert asked.prompt.startswith("the model called 'look' 3 times running with the same")
    assert agent.state.status is AgentStatus.WAITING
    await agent.shutdown()
    other = await make_agent([text("ok")], tools=[look], stores=stores, loop_config=asking())
    result = await other.execute_turn(None, inputs={asked.request_id: answer})
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "ok")
    assert len(ran) == (3 if answer else 2)
    assert results(result) == ["nothing"] if answer else "denied" in results(result)[0]
    await assert_whole(stores)


async def test_each_call_of_a_loop_in_one_answer_is_asked_about(make_agent, stores, look, ran):
    """None slips through beside another."""
    agent = await make_agent(
        [tuple(tool_call("look") for _ in range(5)), text("ok")],
        tools=[look],
        stores=stores,
        loop_config=asking(),
    )
    result = await agent.execute_turn("go")
    assert (result.outcome, len(result.pending), len(ran)) == (Outcome.INPUT_REQUIRED, 3, 2)
    inputs = {p.request_id: n != 1 for n, p in enumerate(result.pending)}
    result = await agent.execute_turn(None, inputs=inputs)
    assert (result.text, len(ran)) == ("ok", 4)
    await assert_whole(stores)


async def test_a_circle_of_two_is_asked_about(make_agent, stores, look, ran):
    """A, B, A, B, A, B: at its last call."""
    circle = [tool_call("look", n=n % 2) for n in range(6)]
    agent = await make_agent(circle, tools=[look], stores=stores, loop_config=asking())
    result = await agent.execute_turn("go")
    assert (result.outcome, ran) == (Outcome.INPUT_REQUIRED, [0, 1, 0, 1, 0])
    assert "made the same 2 calls 3 times running" in result.pending[0].prompt


async def test_the_call_as_changed_by_a_hook_is_approved(make_agent, stores, look, ran):
    """Yes is said to what would run, once."""
    hooks = Hooks(before_tool_call=lambda _call, _context: {"n": 7})
    agent = await make_agent(
        [tool_call("look"), tool_call("look"), text("ok")],
        tools=[look],
        stores=stores,
        loop_config=asking(doom_loop_threshold=2, hooks=hooks),
    )
    result = await agent.execute_turn("go")
    [asked] = result.pending
    assert (asked.args, ran) == ({"n": 7}, [7])
    result = await agent.execute_turn(None, inputs={asked.request_id: True})
    assert (result.text, ran) == ("ok", [7, 7])


async def test_a_message_instead_of_an_answer_cancels_the_call(make_agent, stores, look, ran):
    """As with any approval."""
    agent = await make_agent(
        [*[tool_call("look")] * 3, text("sorry")],
        tools=[look],
        stores=stores,
        loop_config=asking(),
    )
    await agent.execute_turn("go")
    result = await agent.execute_turn("stop that")
    assert (result.text, len(ran)) == ("sorry", 2)
    assert "Cancelled" in results(result)[0]
    await assert_whole(stores)


async def test_a_loop_of_calls_that_cannot_run_gets_a_warning(make_agent, stores):
    """There is nothing to approve: they are failures, and end the turn as such."""
    provider = ScriptedProvider([tool_call("nope")], repeat=True)
    agent = await make_agent(provider, stores=stores, loop_config=asking(max_tool_failures=4))
    result = await agent.execute_turn("go")
    assert (result.stop_reason, len(results(result))) == ("max_tool_failures", 4)
    await assert_whole(stores)


def test_another_answer_to_a_loop_is_refused():
    """The three are all there are."""
    with pytest.raises(ConfigurationError, match="'warn', 'ask', 'stop'"):
        LoopConfig(on_doom_loop="shout")
