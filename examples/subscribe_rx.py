"""
A turn as an Observable: every operator of reactivex works on what `execute_turn` returns.

An Observable has no back-pressure and runs on the event loop, so subscribers must be quick. looopy
detaches a subscriber that fails, and the turn continues.
"""

import asyncio
import os

from reactivex import operators as ops

from looopy import Agent, AgentEvent, MessageEnd, MessageUpdate, tool
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def piece(event: AgentEvent) -> str:
    """Return the new text of *event*; empty for most events."""
    return event.delta if isinstance(event, MessageUpdate) else ""


def stored(event: AgentEvent) -> str:
    """Return the position and role of a stored message; empty for other events."""
    return f"{event.position} {event.message.role}" if isinstance(event, MessageEnd) else ""


async def main() -> None:
    """Run one turn with two subscriptions."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        [tool_call("add", a=2, b=3), text("The sum of two and three is five.")], chunk_chars=4
    )
    async with Agent("sums", llm_provider=model, tools=[add]) as agent:
        turn = agent.execute_turn("What is 2 + 3?")
        turn.pipe(ops.map(piece), ops.filter(bool), ops.buffer_with_count(3)).subscribe(
            lambda pieces: print(f"delta  {''.join(map(str, pieces))!r}")
        )
        turn.pipe(ops.map(stored), ops.filter(bool)).subscribe(
            lambda line: print(f"stored {line}"), on_completed=lambda: print("over")
        )
        print((await turn).outcome)


asyncio.run(main())
