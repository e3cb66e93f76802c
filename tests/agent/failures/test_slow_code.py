"""What a tool has returned is stored before a turn waits for code of the application."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import assert_whole
from tests.campaign.slow_code import PLACES, Application

from looopy import LoopConfig, Outcome, agent_loop, tool
from looopy.testing import ScriptedProvider, SpyStores, text, tool_call
from looopy.types.event import ToolExecutionEnd


class Rest:
    """Whether each result was stored when code of the application was reached."""

    def __init__(self, stores):
        self.spy = SpyStores(stores)
        self.paid = 0
        self.seen = []

    def pay(self, _key):
        """Count an effect."""
        self.paid += 1

    def look(self):
        """See how many results are stored."""
        commits = self.spy.of("commit")[: self.spy.done.count("commit")]
        stored = [e for commit in commits for e in commit.events]
        ends = sum(isinstance(e, ToolExecutionEnd) and e.tool_name == "pay" for e in stored)
        self.seen.append((self.paid, ends))

    async def wait(self):
        """The same, where the code can wait."""
        await asyncio.sleep(0)
        self.look()


@pytest.mark.parametrize("where", PLACES)
async def test_a_result_is_stored_before_code_of_the_application_runs(stores, where):
    """In each place where a turn runs such code, asynchronous or not."""
    rest = Rest(stores)
    agent = Application(where, rest.pay, rest.wait, rest.look).agent(rest.spy.stores)
    await agent.start()
    result = await agent.execute_turn("go")
    await agent.shutdown()
    assert result.outcome in (Outcome.COMPLETED, Outcome.INPUT_REQUIRED)
    assert any(paid for paid, _ in rest.seen), "no such code ran behind the tool"
    assert [paid for paid, _ in rest.seen] == [stored for _, stored in rest.seen]
    if result.outcome is Outcome.COMPLETED:
        await assert_whole(stores)


async def test_no_predicate_is_asked_while_a_tool_runs(make_agent, stores):
    """A result that came meanwhile would wait for it; so the call waits for those that run."""
    stored, running, asked = asyncio.Event(), set(), []

    def judge(_arguments, _context):
        asked.append(set(running))
        return False

    @tool(parallel=True, effects="none", needs_approval=judge)
    async def judged() -> str:
        """Be judged."""
        return "ran"

    @tool(parallel=True, effects="none")
    async def quick() -> str:
        """Be done at once."""
        return "quick"

    @tool(parallel=True, effects="none")
    async def slow() -> str:
        """Be done after the other one."""
        running.add("slow")
        await stored.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        running.clear()
        return "slow"

    agent = await make_agent(
        [(tool_call("slow"), tool_call("quick"), tool_call("judged")), text("done")],
        tools=[slow, quick, judged],
        stores=stores,
        loop_config=LoopConfig(max_parallel_tools=2),
    )
    agent.subscribe(lambda e: stored.set() if e.type == "tool_execution_end" else None)
    result = await agent.execute_turn("go")
    assert [c.result.text for c in result.iterations[0].calls] == ["slow", "quick", "ran"]
    assert asked == [set()]
    await assert_whole(stores)


@pytest.mark.parametrize("where", [one for one in PLACES if "doubted" not in one])
async def test_a_result_that_is_stored_first_costs_no_commit(stores, where):
    """Four for a turn with one tool, and one more for a further call, as without such code."""
    rest = Rest(stores)
    agent = Application(where, rest.pay, rest.wait, rest.look).agent(rest.spy.stores)
    await agent.start()
    result = await agent.execute_turn("go")
    await agent.shutdown()
    calls = sum(len(one.calls) for one in result.iterations)
    assert calls in (1, 2)
    assert rest.spy.writes == 3 + calls


async def test_a_bare_loop_shows_results_before_it_asks_for_messages():
    """Who keeps the events keeps the result before `get_steering_messages` may take any time."""
    ran, shown, at_asking = [], [], []

    @tool(effects="none")
    def count() -> str:
        """Count."""
        ran.append(1)
        return str(len(ran))

    async def steering():
        at_asking.append((len(ran), shown.count("tool_execution_end")))

    provider = ScriptedProvider([(tool_call("count"), tool_call("count")), text("two")])
    events = agent_loop("go", llm_provider=provider, tools=[count], get_steering_messages=steering)
    async for event in events:
        shown += [event.type]
    assert {runs for runs, _ in at_asking} == {0, 1, 2}
    assert [runs for runs, _ in at_asking] == [seen for _, seen in at_asking]
