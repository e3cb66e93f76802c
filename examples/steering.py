"""
Send messages to a turn while it runs: the model reads steering at its next call, a follow-up last.

The user changes their mind while a tool reads the first page. The turn skips the other pages and
tells the model why. It answers the last question before it ends.
"""

import asyncio
import os

from looopy import Agent, MessageEnd, ToolExecutionEnd, ToolExecutionStart, UserMessage, tool
from looopy.testing import ScriptedProvider, text, tool_call

changed_my_mind = asyncio.Event()


@tool(effects="none")
async def read(page: int) -> str:
    """Read a page, slowly."""
    await changed_my_mind.wait()
    return f"what page {page} says"


async def main() -> None:
    """Run one turn, and send it two messages."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        [
            (tool_call("read", page=1), tool_call("read", page=2), tool_call("read", page=3)),
            text("Page 1 says what it says."),
            text("Nobody knows."),
        ]
    )
    async with Agent("reader", llm_provider=model, tools=[read]) as agent:
        turn = agent.execute_turn("Read the first three pages to me.")
        async for event in turn:
            match event:
                case ToolExecutionStart() if not changed_my_mind.is_set():
                    await agent.follow_up("And who wrote it?")
                    await agent.steer("The first page is enough.")
                    changed_my_mind.set()
                case ToolExecutionEnd():
                    print(f"page {event.tool_call_id[-1]}: {event.result.text}")
                case MessageEnd(message=UserMessage(text=said)):
                    print(f"user: {said}")
                case MessageEnd(message=message) if message.role == "assistant" and message.text:
                    print(f"model: {message.text}")
                case _:
                    pass
        print(f"{len((await turn).iterations)} model calls, one turn")


asyncio.run(main())
