"""
The server of the tests of two people: `python -m tests.web.decide_app PORT DATABASE FOLDER`.

Its tool needs approval, and adds the name of its actor to the file `effects`. The boss may decide.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvicorn
from tests.web.retry_app import FACES

from looopy import Agent, AuthContext, Stores, ToolContext, open_stores, tool
from looopy.server import AgentHost, OpenRequest, StaticTokens, create_app
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage
from looopy.types.request import LLMRequest

TOKENS = {name: f"the-token-of-{name}-alone" for name in ("ada", "boss", "eve")}


def may_answer(_request: OpenRequest, auth: AuthContext) -> bool:
    """The boss may decide everything."""
    return auth.actor_id == "boss"


def reply(request: LLMRequest) -> object:
    """A call of the tool; to its result, the answer."""
    told = isinstance(request.messages[-1], ToolResultMessage)
    return text("It is paid.") if told else tool_call("pay", cents=5)


async def main(port: int, url: str, folder: Path) -> None:
    """Serve until the process is killed."""

    @tool(effects="external", needs_approval=True)
    async def pay(cents: int, context: ToolContext) -> str:
        """Pay."""
        actor = context.auth_context.actor_id if context.auth_context else None
        with (folder / "effects").open("a") as effects:
            effects.write(f"{actor} paid {cents}\n")
        return "paid"

    def build(context_id: str, stores: Stores) -> Agent:
        model = ScriptedProvider(reply, repeat=True)
        return Agent(context_id, llm_provider=model, tools=[pay], stores=stores)

    async with (
        open_stores(url) as stores,
        AgentHost(build, stores, may_answer=may_answer) as host,
    ):
        signed = StaticTokens({token: name for name, token in TOKENS.items()})
        app = create_app(host, authenticate=signed, protocols=FACES)
        config = uvicorn.Config(app, port=port, log_level="warning")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
