"""
A person approves a call the next day: one process asks and ends, another one gets the answer.

No process waits in between: the database holds the request and the call that it is about.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from looopy import Agent, AuthContext, ToolContext, tool
from looopy.testing import ScriptedProvider, text, tool_call


def is_large(arguments: Mapping[str, Any], _: ToolContext) -> bool:
    """Ask only about large sums."""
    return bool(arguments["cents"] > 10_000)


@tool(needs_approval=is_large, approval_expires_s=7 * 24 * 3600)
async def pay(invoice: str, cents: int) -> str:
    """Pay an invoice."""
    return f"paid {cents / 100:.2f} for {invoice}"


async def today(url: str) -> None:
    """Run the user's turn: it ends with a request, and so does the process."""
    script = [tool_call("pay", invoice="2024-17", cents=90_000)]
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(script)
    async with Agent("books", llm_provider=model, tools=[pay], stores=url) as agent:
        result = await agent.execute_turn("Pay invoice 2024-17.", AuthContext("clerk"))
        print(result.outcome)
        for request in result.pending:
            print(request.prompt, dict(request.args))


async def tomorrow(url: str) -> None:
    """Approve the call in another process: it runs once, with exactly the arguments shown."""
    script = [text("Invoice 2024-17 is paid.")]
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(script)
    async with Agent("books", llm_provider=model, tools=[pay], stores=url) as agent:
        print(agent.state.status)
        answers = {request.request_id: True for request in agent.state.pending}
        result = await agent.execute_turn(None, AuthContext("clerk"), inputs=answers)
        print(result.messages[0].text)
        print(result.text)


with tempfile.TemporaryDirectory() as folder:
    database = f"sqlite:///{Path(folder) / 'books.db'}"
    asyncio.run(today(database))
    asyncio.run(tomorrow(database))
