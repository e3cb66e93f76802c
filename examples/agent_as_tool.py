"""
One agent works for another, is killed in the middle of its work, and continues in a new process.

The inner agent has a conversation of its own in the same database. After the crash, the call runs
again and finds that conversation, so nothing is booked twice.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from looopy import Agent, tool
from looopy.testing import ScriptedProvider, text, tool_call

dies = len(sys.argv) > 1
folder = Path(sys.argv[1] if dies else tempfile.mkdtemp())
model = os.environ.get("LOOOPY_MODEL")


@tool
async def book(train: str) -> str:
    """Book a train."""
    print("booking", train, flush=True)
    return f"booked {train}"


@tool(effects="idempotent")
async def pay() -> str:
    """Pay for the booking; in the first process, this kills the process."""
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


# The answers of the two models: the first process gets no further than the payment.
ASKS = [tool_call("clerk", prompt="Book the night train.")] if dies else [text("Off you go!")]
WORKS = [tool_call("book", train="NJ 295"), tool_call("pay")] if dies else [text("All booked.")]


async def main() -> None:
    """Begin the journey, or continue it."""
    clerk = Agent("any", llm_provider=model or ScriptedProvider(WORKS), tools=[book, pay])
    planner = model or ScriptedProvider(ASKS)
    books = clerk.as_tool("clerk", "Books what you ask for.")
    url = f"sqlite:///{folder / 'trip.db'}"
    async with Agent("trip", llm_provider=planner, tools=[books], stores=url) as agent:
        async for event in agent.execute_turn("Get me to Rome." if dies else None):
            if event.type == "message_end" and event.message.role != "user":
                print(*event.path, event.message.role, event.message.text, flush=True)


if not dies:
    subprocess.run([sys.executable, __file__, str(folder)], check=False)  # noqa: S603
asyncio.run(main())
