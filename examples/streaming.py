"""
Watch a turn: text as it arrives, tools as they run, and the result at the end.

The turn runs even if nobody watches. This program has two views of it: one shows the events, the
other waits for the result.
"""

import asyncio
import os

from looopy import (
    Agent,
    MessageUpdate,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    tool,
)
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="none")
async def search(words: str, context: ToolContext) -> str:
    """Search the catalogue."""
    context.report(0.5)
    return f"3 books match {words!r}"


async def main() -> None:
    """Run one turn and show its events."""
    look = (text("Let me look. "), tool_call("search", words="durable"))
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        [look, text("There are three books about it.")], chunk_chars=6
    )
    async with Agent("reader", llm_provider=model, tools=[search]) as agent:
        turn = agent.execute_turn("Which books are about durable things?")
        async for event in turn:
            match event:
                case MessageUpdate(delta=delta) if delta:
                    print(delta, end="|", flush=True)
                case ToolExecutionStart():
                    print(f"\n[{event.tool_name} {dict(event.args)}]")
                case ToolExecutionUpdate(progress=float() as progress):
                    print(f"[{progress:.0%}]")
                case ToolExecutionEnd():
                    print(f"[{event.result.text}]")
                case TurnEnd():
                    print(f"\n{event.outcome}, {event.usage.total_tokens} tokens")
                case _:
                    pass
        result = await turn  # returns at once: the turn is over
        print(len(result.iterations), "model calls")


asyncio.run(main())
