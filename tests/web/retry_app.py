"""
The server of the tests of retries: `python -m tests.web.retry_app PORT DATABASE FOLDER`.

Its tool adds a line to the file `effects`, and then waits while `FOLDER` has a file `hold`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import uvicorn

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.server import (
    AgentHost,
    a2a_api,
    ag_ui_api,
    ai_sdk_api,
    create_app,
    mcp_api,
    responses_api,
)
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage

FACES = [a2a_api, ag_ui_api, ai_sdk_api, mcp_api, responses_api]


def reply(request: Any) -> Any:
    """A call of the tool to a message that says so; to its result, the answer."""
    last = request.messages[-1]
    if isinstance(last, ToolResultMessage):
        return text("It is unknown." if last.is_error else "It is done.")
    return tool_call("act") if "act" in last.text else text(f"You said: {last.text}")


async def main(port: int, url: str, folder: Path) -> None:
    """Serve until the process is killed."""

    @tool(effects="external")
    async def act() -> str:
        """Do something that counts."""
        with (folder / "effects").open("a") as effects:
            effects.write("once\n")
        while (folder / "hold").exists():  # noqa: ASYNC110 - it is a file
            await asyncio.sleep(0.02)
        return "done"

    def build(context_id: str, stores: Stores) -> Agent:
        model = ScriptedProvider(reply, repeat=True)
        return Agent(context_id, llm_provider=model, tools=[act], stores=stores)

    async with open_stores(url) as stores, AgentHost(build, stores) as host:
        app = create_app(host, authenticate=lambda _request: AuthContext("ada"), protocols=FACES)
        config = uvicorn.Config(app, port=port, log_level="warning")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
