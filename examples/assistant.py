"""
An assistant to serve: `looopy serve examples/assistant.py:build`.

Its scripted model obeys a few words: "wait" takes its time in a tool, "pay" asks for an approval.
"""

import asyncio
import os

from looopy import Agent, Stores, ToolContext, open_stores, tool
from looopy.llm import LLMRequest
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="idempotent")
async def wait(seconds: float, context: ToolContext) -> str:
    """Wait for some seconds."""
    await asyncio.sleep(seconds / 2)
    context.report("half of it is over")
    await asyncio.sleep(seconds / 2)
    return f"waited {seconds:g} s"


@tool(needs_approval=True)
def pay(cents: int) -> str:
    """Pay a sum."""
    return f"paid {cents / 100:.2f}"


def obey(request: LLMRequest) -> object:
    """Play the model."""
    last = request.messages[-1]
    if last.role == "toolResult":
        return text(f"Done: {last.text}.")
    if "wait" in last.text:
        return tool_call("wait", seconds=10)
    return tool_call("pay", cents=1250) if "pay" in last.text else text(f"You said: {last.text}")


def build(context_id: str, stores: Stores) -> Agent:
    """Make the agent of one conversation."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(obey, chunk_chars=4, delay_s=0.02)
    return Agent(context_id, llm_provider=model, tools=[wait, pay], stores=stores)


async def main() -> None:
    """Try it without a server."""
    async with open_stores("memory:") as stores, build("trial", stores) as agent:
        print((await agent.execute_turn("Hello!")).text)
        print((await agent.execute_turn("Please pay.")).outcome)


if __name__ == "__main__":
    asyncio.run(main())
