"""What a tool reports last is shown before its end."""

import asyncio

from looopy import ToolContext, tool
from looopy.testing import text, tool_call


async def test_every_report_comes_before_the_end_of_its_call(make_agent, memory_stores):
    """However shortly before: from a coroutine and from a thread, in order."""

    @tool(effects="none")
    async def quick(context: ToolContext) -> str:
        """Report, and be done at once."""
        context.report("one")
        await asyncio.sleep(0)
        context.report("two")
        context.report("three")
        return "done"

    @tool(effects="none")
    def blocking(context: ToolContext) -> str:
        """Likewise, from a thread."""
        for word in ("one", "two", "three"):
            context.report(word)
        return "done"

    for one in (quick, blocking):
        agent = await make_agent(
            [tool_call(one.name), text("ok")],
            tools=[one],
            stores=memory_stores,
            context_id=one.name,
        )
        events = [e async for e in agent.execute_turn("go")]
        told = [getattr(e, "partial_result", "end") for e in events if "execution_" in e.type][1:]
        assert told == ["one", "two", "three", "end"]
