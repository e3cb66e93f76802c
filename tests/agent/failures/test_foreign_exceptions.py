"""Whatever code of the application raises, its turn has an end, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, field_validator
from tests.agent.kit import assert_whole

from looopy import Agent, Hooks, LoopConfig, open_stores, tool
from looopy.errors import LooopyError
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.event import TurnEnd
from looopy.types.state import Outcome

SEAMS = [
    "subscriber",
    "observer",
    "provider",
    "stream",
    "anext",
    "aclose",
    "prompt",
    "async prompt",
    "transform_context",
    "convert_to_llm",
    "get_api_key",
    "before_tool_call",
    "after_tool_call",
    "list_tools",
    "list_for",
    "is_enabled",
    "needs_approval",
    "tool",
]


class Odd(BaseException):
    """No `Exception`, and nothing that Python knows."""


async def cancelled_task():
    """The result of a task that was cancelled: a `CancelledError`, though nobody cancels us."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await asyncio.wait([task])
    return task.result()


def raises(kind):
    """Raise what *kind* says."""
    if kind is asyncio.CancelledError:
        task = asyncio.get_running_loop().create_future()
        task.cancel()
        task.result()
    raise kind("it broke")


class Iterating:
    """A stream that is not a generator, which would change what it raises."""

    def __init__(self, events, broken):
        self.events, self.broken, self.said = events, broken, 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.said += 1
        if self.said > 2:
            self.broken.at("anext")
        return await anext(self.events)

    async def aclose(self):
        await self.events.aclose()
        self.broken.at("aclose")


class Broken:
    """Raises at one seam, once."""

    def __init__(self, seam, kind):
        self.seam, self.kind, self.met = seam, kind, 0

    def at(self, seam):
        if seam == self.seam and not self.met:
            self.met += 1
            raises(self.kind)

    async def pass_on(self, seam, value):
        await asyncio.sleep(0)
        self.at(seam)
        return value

    # --- a source of tools ---

    def list_tools(self):
        return []

    async def list_for(self, turn, warn):
        return await self.pass_on("list_for", [])


def broken_agent(stores, broken):
    """An agent all of whose seams lead to *broken*."""

    @tool(
        effects="none",
        is_enabled=lambda: broken.at("is_enabled") or True,
        needs_approval=lambda _arguments, _context: broken.at("needs_approval") or False,
    )
    async def look() -> str:
        """Look."""
        return await broken.pass_on("tool", "seen")

    class Listing:
        asked = 0

        async def list_tools(self):
            self.asked += 1
            if self.asked == 1:  # the agent starts
                return []
            return await broken.pass_on("list_tools", [look])

    model = ScriptedProvider([tool_call("look"), text("ok")], repeat=True)
    original = model.stream

    def stream(request, options):
        broken.at("provider")

        async def events():
            async for event in original(request, options):
                broken.at("stream")
                yield event

        return Iterating(events(), broken)

    model.stream = stream
    hooks = Hooks(
        transform_context=lambda m: broken.pass_on("transform_context", m),
        convert_to_llm=lambda m: broken.pass_on("convert_to_llm", m),
        get_api_key=lambda _p, _a: broken.pass_on("get_api_key", "key"),
        before_tool_call=lambda *_: broken.pass_on("before_tool_call", None),
        after_tool_call=lambda *_: broken.pass_on("after_tool_call", None),
    )
    return Agent(
        "ada",
        llm_provider=model,
        tools=[Listing(), broken],
        stores=stores,
        loop_config=LoopConfig(hooks=hooks),
        system_prompt=[
            "Be brief.",
            lambda _context: broken.at("prompt") or "",
            lambda _context: broken.pass_on("async prompt", ""),
        ],
    )


async def one_turn(stores, broken):
    """Run a turn in which *broken* raises; what the awaiter, a reader and the accepted one got."""
    agent = broken_agent(stores, broken)
    await agent.start()
    agent.subscribe(lambda _event: broken.at("subscriber"))
    stream = agent.execute_turn("go")

    def observe(_event):
        broken.at("observer")

    stream.subscribe(observe)

    async def read():
        return [event async for event in stream]

    got = await asyncio.gather(stream.accepted(), read(), _awaited(stream), return_exceptions=True)
    assert broken.met == 1
    again = await agent.execute_turn("and now?")  # it is of further use
    assert again.outcome is Outcome.COMPLETED
    await agent.shutdown()
    return got


async def _awaited(stream):
    return await stream


async def ends(stores):
    """How each stored turn ended."""
    await assert_whole(stores)
    events = await stores.journal.events("ada")
    return [event.outcome for event in events if isinstance(event, TurnEnd)]


KINDS = [
    *(asyncio.CancelledError, Odd, RuntimeError),
    *(GeneratorExit, StopIteration, StopAsyncIteration),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", SEAMS)
async def test_any_exception_ends_the_turn_for_its_waiters(stores, seam, kind):
    """Failed, or completed where a default stands in; never as one that somebody cancelled."""
    accepted, events, result = await one_turn(stores, Broken(seam, kind))
    assert accepted == 1
    asked = {Outcome.INPUT_REQUIRED} if seam == "needs_approval" else set()
    assert result.outcome in {Outcome.COMPLETED, Outcome.FAILED, *asked}
    assert events[-1].outcome is result.outcome
    if result.outcome is Outcome.FAILED:
        assert isinstance(result.error, LooopyError)
    assert await ends(stores) == [result.outcome, Outcome.COMPLETED]


# A tool that calls `sys.exit()` has failed, as one that does so in a thread.
ENDING = [
    (seam, kind)
    for seam in SEAMS
    for kind in (SystemExit, KeyboardInterrupt)
    if (seam, kind) != ("tool", SystemExit)
]


@pytest.mark.parametrize(("seam", "kind"), ENDING)
def test_an_exit_of_the_program_ends_the_turn_first(sqlite_url, seam, kind):
    """It is stored as over; then the exception goes on, as out of any task."""
    broken = Broken(seam, kind)

    async def stored():
        async with open_stores(sqlite_url) as stores:
            return await ends(stores)

    with pytest.raises(kind):
        asyncio.run(one_turn(sqlite_url, broken))
    assert broken.met == 1
    (end,) = asyncio.run(stored())
    assert end in (Outcome.FAILED, Outcome.CANCELLED, Outcome.COMPLETED)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_type_of_the_output_that_raises_ends_the_turn(make_agent, stores, kind):
    """A validator is called in the middle of the turn's own code, between its waits."""
    met = []

    class Answer(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def check(cls, n):
            if not met:
                met.append(n)
                raises(kind)
            return n

    agent = await make_agent(ScriptedProvider([text('{"n": 1}')], repeat=True), stores=stores)
    first = await agent.execute_turn("go", output_type=Answer)
    again = await agent.execute_turn("and now?", output_type=Answer)
    assert (first.outcome, again.outcome) == (Outcome.FAILED, Outcome.COMPLETED)
    assert isinstance(first.error, LooopyError)
    assert await ends(stores) == [Outcome.FAILED, Outcome.COMPLETED]


@pytest.mark.parametrize("kind", [*KINDS, SystemExit])
async def test_tool_that_raises_has_failed_and_its_outcome_is_known(kind):
    """The model reads what it raised."""

    @tool
    async def look() -> str:
        """Look."""
        raises(kind)
        return "seen"

    model = ScriptedProvider([tool_call("look"), text("ok")])
    async with Agent("ada", llm_provider=model, tools=[look]) as agent:
        result = await agent.execute_turn("go")
    [answer] = result.iterations[0].tool_results
    assert (result.outcome, answer.is_error) == (Outcome.COMPLETED, True)
    assert "unknown" not in answer.text
