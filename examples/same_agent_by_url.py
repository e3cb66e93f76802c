"""
The same agent on different stores: only the URL changes.

Two agents run one after the other, with the same `context_id`. In memory, they share their messages
as long as the event loop runs. A SQLite file also outlives the process, and Postgres serves any
number of processes. Run `looopy db upgrade --db URL` once, and pass the URL as an argument.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from looopy import Agent, UserMessage
from looopy.testing import ScriptedProvider, text


async def say(url: str, words: str) -> None:
    """Run one turn with an agent of its own."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        lambda request: text(f"I was shown {len(request.messages)} messages.")
    )
    async with Agent("ada", llm_provider=model, stores=url) as agent:
        result = await agent.execute_turn(words)
        said = [m.text for m in await agent.get_messages() if isinstance(m, UserMessage)]
        print(f"{url.partition(':')[0]}: turn {result.turn}, {said}: {result.text}")


async def main() -> None:
    """Send the same messages to each kind of store."""
    file = Path(tempfile.mkdtemp()) / "ada.db"
    for url in ("memory:", f"sqlite:///{file}", *sys.argv[1:]):
        await say(url, "I am Ada.")
        await say(url, "Who am I?")


asyncio.run(main())
