"""An agent whose process is killed in its only tool: `python -m tests.killed DATABASE ASKED`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from tests.preloaded import ROOT, Preloaded, environment

from looopy import Agent, AuthContext, Tool
from looopy.testing import ScriptedProvider, tool_call


class Kills(Tool):
    """Ends its process."""

    async def execute(self, *_: Any, **__: Any) -> None:
        """`kill -9`."""
        os.kill(os.getpid(), signal.SIGKILL)


async def killed_in_a_tool(
    preloaded: Preloaded,
    url: str,
    context_id: str = "c",
    *,
    actor: str | None = "ada",
    arguments: dict[str, Any] | None = None,
    **tool: Any,
) -> None:
    """
    Leave a turn in whose call the process was killed.

    Args:
        preloaded: What the process is a fork of.
        url: Of the database.
        context_id: The context; it must be new, or have no open turn.
        actor: Who begins the turn.
        arguments: Of the call.
        **tool: Options of the tool, with its name.
    """
    asked = json.dumps([context_id, actor, arguments or {}, tool])
    process = await preloaded.start([url, asked], environment(), ROOT, module="tests.killed")
    assert await process.wait() == -signal.SIGKILL
    process.close()


async def _main(url: str, asked: str) -> None:
    context_id, actor, arguments, options = json.loads(asked)
    model = ScriptedProvider([tool_call(options["name"], **arguments)])
    made = Agent(context_id, llm_provider=model, tools=[Kills(**options)], stores=url)
    async with made as agent:
        await agent.execute_turn(options["name"], actor and AuthContext(actor))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
