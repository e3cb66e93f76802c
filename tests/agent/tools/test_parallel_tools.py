"""Tools marked `parallel` overlap; all others run alone, one after the other."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import assert_whole, types

from looopy import LoopConfig, ToolContext, tool
from looopy.errors import ConfigurationError
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN
from looopy.loop.tool_calls import SKIPPED
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import ToolResult
from looopy.types.message import ImageContent, StopReason, ToolResultMessage
from looopy.types.state import Outcome


class Stage:
    """Tools that say when they come on, and go off when they are told to."""

    def __init__(self, effects="external"):
        self.on: list[str] = []
        self.most = 0
        self.seen: list[str] = []
        self.cues: dict[str, asyncio.Event] = {}

        @tool(parallel=True, effects=effects)
        async def together(name: str, context: ToolContext) -> str:
            """Run beside others."""
            context.report(name)
            return await self._play(name)

        @tool(effects=effects)
        async def alone(name: str) -> str:
            """Run alone."""
            assert not self.on
            return await self._play(name)

        self.tools = [together, alone]

    async def _play(self, name: str) -> str:
        self.on.append(name)
        self.seen.append(name)
        self.most = max(self.most, len(self.on))
        try:
            await self.cue(name).wait()
        finally:
            self.on.remove(name)
        if name.startswith("bad"):
            raise ValueError(f"{name} went wrong")
        return f"{name} done"

    def cue(self, name: str) -> asyncio.Event:
        """Set, it lets *name* end."""
        return self.cues.setdefault(name, asyncio.Event())

    def cues_for(self, *names: str) -> None:
        """Let all of these end."""
        for name in names:
            self.cue(name).set()

    async def until(self, *names: str) -> None:
        """Wait until exactly these are on."""
        while sorted(self.on) != sorted(names):  # noqa: ASYNC110 - several events
            await asyncio.sleep(0.001)


def asks(*calls: str) -> ScriptedProvider:
    """A model that calls tools, `alone` for names in capitals, and then answers."""
    made = tuple(tool_call("alone" if c.isupper() else "together", name=c) for c in calls)
    return ScriptedProvider([made, text("ok")])


def results(messages) -> list[str]:
    """The texts of the results, in order."""
    return [m.text for m in messages if isinstance(m, ToolResultMessage)]


async def test_parallel_tools_overlap_and_exclusive_ones_are_barriers(make_agent, stores):
    """Two run together, then one alone, then two together again."""
    stage = Stage()
    provider = asks("a", "b", "X", "c", "d")
    agent = await make_agent(provider, tools=stage.tools, stores=stores)
    stream = agent.execute_turn("go")
    await stage.until("a", "b")
    stage.cues_for("b")
    await stage.until("a")
    stage.cues_for("a")
    await stage.until("X")
    stage.cues_for("X")
    await stage.until("c", "d")
    stage.cues_for("c", "d")
    result = await stream
    assert result.outcome is Outcome.COMPLETED
    assert stage.most == 2
    await assert_whole(stores)


async def test_results_are_stored_as_they_finish_and_shown_in_the_order_of_calls(
    make_agent, stores
):
    """Of three, the last ends first: it is in the store while the others still run."""
    stage = Stage()
    provider = asks("a", "b", "c")
    agent = await make_agent(provider, tools=stage.tools, stores=stores)
    stream = agent.execute_turn("go")
    await stage.until("a", "b", "c")
    stage.cues_for("c")
    async for event in stream:
        if event.type == "tool_execution_end":
            break
    assert stage.on == ["a", "b"]
    assert results(await agent.get_messages()) == ["c done"]
    stage.cues_for("b")
    await stage.until("a")
    stage.cues_for("a")
    result = await stream
    assert results(await agent.get_messages()) == ["c done", "b done", "a done"]
    assert results(provider.requests[-1].messages) == ["a done", "b done", "c done"]
    assert [r.text for r in result.iterations[0].tool_results] == ["a done", "b done", "c done"]
    again = await make_agent(ScriptedProvider([text("2")]), tools=stage.tools, stores=stores)
    await again.execute_turn("and now?")
    request = again._core.resources.provider.requests[-1]
    assert results(request.messages) == ["a done", "b done", "c done"]
    await assert_whole(stores)


async def test_no_more_than_so_many_run_at_once(make_agent, memory_stores):
    """`max_parallel_tools`; one that ends makes room for the next."""
    stage = Stage()
    config = LoopConfig(max_parallel_tools=2)
    agent = await make_agent(
        asks("a", "b", "c", "d"), tools=stage.tools, stores=memory_stores, loop_config=config
    )
    stream = agent.execute_turn("go")
    await stage.until("a", "b")
    stage.cues_for("a")
    await stage.until("b", "c")
    stage.cues_for("b", "c", "d")
    assert results((await stream).messages) == ["a done", "b done", "c done", "d done"]
    assert stage.most == 2
    with pytest.raises(ConfigurationError):
        LoopConfig(max_parallel_tools=0)


async def test_each_report_comes_from_its_call(make_agent, memory_stores):
    """Progress of tools that overlap is told apart."""
    stage = Stage()
    agent = await make_agent(asks("a", "b"), tools=stage.tools, stores=memory_stores)
    stream, events = agent.execute_turn("go"), []
    stream.subscribe(events.append)
    await stage.until("a", "b")
    stage.cues_for("a", "b")
    await stream
    starts = {e.tool_call_id: e.args["name"] for e in events if e.type == "tool_execution_start"}
    reports = {
        starts[e.tool_call_id]: e.partial_result
        for e in events
        if e.type == "tool_execution_update"
    }
    assert reports == {"a": "a", "b": "b"}
    assert types(events).count("turn_end") == 1


async def test_a_failing_call_does_not_affect_parallel_calls(make_agent, stores):
    """Each has its own result."""
    stage = Stage()
    agent = await make_agent(asks("a", "bad", "c"), tools=stage.tools, stores=stores)
    stream = agent.execute_turn("go")
    await stage.until("a", "bad", "c")
    stage.cues_for("bad")
    await stage.until("a", "c")
    stage.cues_for("a", "c")
    found = {r.text: r.is_error for r in (await stream).iterations[0].tool_results}
    assert list(found.items()) == [("a done", False), ("bad went wrong", True), ("c done", False)]
    await assert_whole(stores)


async def test_a_turn_that_is_cancelled_answers_those_that_ran_and_those_that_did_not(
    make_agent, stores
):
    """Exactly one result each."""
    stage = Stage()
    agent = await make_agent(asks("a", "b", "X"), tools=stage.tools, stores=stores)
    stream = agent.execute_turn("go")
    await stage.until("a", "b")
    stream.cancel()
    result = await stream
    assert result.outcome is Outcome.CANCELLED
    assert results(result.messages) == [OUTCOME_UNKNOWN, OUTCOME_UNKNOWN, CANCELLED]
    assert stage.on == []
    await assert_whole(stores)


async def test_steering_lets_those_that_run_finish_and_skips_the_rest(make_agent, stores):
    """What has not started gives way to the user."""
    stage = Stage()
    config = LoopConfig(max_parallel_tools=2)
    agent = await make_agent(
        asks("a", "b", "c"), tools=stage.tools, stores=stores, loop_config=config
    )
    stream = agent.execute_turn("go")
    await stage.until("a", "b")
    await agent.steer("wait")
    stage.cues_for("a")
    await stage.until("b")
    stage.cues_for("b")
    result = await stream
    assert [r.text for r in result.iterations[0].tool_results] == ["a done", "b done", SKIPPED]
    assert stage.seen == ["a", "b"]
    await assert_whole(stores)


async def test_too_many_failures_let_those_that_run_finish(make_agent, stores):
    """The rest does not start, and the turn ends."""
    stage = Stage()
    config = LoopConfig(max_parallel_tools=2, max_tool_failures=1)
    agent = await make_agent(
        asks("bad", "b", "c"), tools=stage.tools, stores=stores, loop_config=config
    )
    stream = agent.execute_turn("go")
    await stage.until("bad", "b")
    stage.cues_for("bad")
    await stage.until("b")
    stage.cues_for("b")
    result = await stream
    assert result.stop_reason is StopReason.MAX_TOOL_FAILURES
    assert results(result.messages) == ["bad went wrong", "b done", NOT_STARTED]
    assert stage.seen == ["bad", "b"]
    await assert_whole(stores)


@pytest.mark.parametrize(
    "image",
    [
        ImageContent(data="a\0", mime_type="image/png"),
        ImageContent(data="YQ==", mime_type="image/\ud800"),
        ImageContent(data="a" * 17 * 2**20, mime_type="image/png"),
    ],
    ids=["nul", "surrogate", "large"],
)
async def test_an_unstorable_result_does_not_affect_parallel_calls(make_agent, stores, image):
    """It is an error that says why; the tool beside it has its result, and the turn goes on."""

    @tool(parallel=True)
    async def good() -> str:
        """Return text."""
        return "good"

    @tool(parallel=True, max_result_bytes=2**30)
    async def bad() -> ToolResult:
        """Return what no store takes."""
        return ToolResult([image])

    script = [(tool_call("good"), tool_call("bad")), text("ok")]
    agent = await make_agent(script, tools=[good, bad], stores=stores)
    result = await agent.execute_turn("go")
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "ok")
    one, two = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert (one.text, one.is_error, two.is_error) == ("good", False, True)
    assert two.text.startswith("The tool has run, but its result cannot be stored: ")
    await assert_whole(stores)
