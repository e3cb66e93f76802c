"""
A turn survives `kill -9`: a finished tool call does not run again, the others continue.

The first process dies in its second tool; the second process continues. Run it without arguments.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from looopy import Agent, ToolContext, tool
from looopy.testing import ScriptedProvider, text, tool_call

is_first = len(sys.argv) > 1
folder = Path(sys.argv[1] if is_first else tempfile.mkdtemp())
world = folder / "world.txt"  # effects in the world, which no restart undoes


@tool  # effects="external" by default: never run twice
async def charge(amount: int, context: ToolContext) -> str:
    """Charge the card."""
    with world.open("a") as file:
        file.write(f"charging {amount}, key {context.idempotency_key}\n")
    return f"charged {amount}"


@tool(effects="idempotent")  # with the same key, a second call does no harm
async def book(room: int, context: ToolContext) -> str:
    """Book a room."""
    with world.open("a") as file:
        file.write(f"booking room {room}, key {context.idempotency_key}\n")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"booked {room}"


async def main() -> None:
    """Begin the turn, or continue it."""
    calls = [tool_call("charge", amount=90), tool_call("book", room=7)]
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        calls if is_first else [text("All done.")]
    )
    url = f"sqlite:///{folder / 'trip.db'}"
    async with Agent("trip-1", llm_provider=model, tools=[charge, book], stores=url) as agent:
        if is_first:
            await agent.execute_turn("Charge 90 to my card, then book room 7.")
        print(f"turn {agent.state.interrupted_turn} was interrupted")
        print((await agent.execute_turn(None)).text)
    print(world.read_text(), end="")


if not is_first:
    child = subprocess.run([sys.executable, __file__, str(folder)], check=False)  # noqa: S603
    print(f"the first process ended with {child.returncode}")
asyncio.run(main())
