"""
The agent behind the tests of the page: `looopy serve tests/web/page_app.py:build`.

Its model obeys a few words, so that a new process continues what an old one began. While the file
that `HOLD` names is there, a story stops in its middle. While `other` lies beside it, the agent has
another prompt, and books another hotel.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from looopy import Agent, LoopConfig, RetryPolicy, Stores, ToolContext, tool
from looopy.errors import LLMUnavailable
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import ToolResultMessage, UserMessage


@tool(needs_approval=True)
async def book(
    hotel: str, nights: int, context: ToolContext, breakfast: bool = True, wish: str | None = None
) -> str:
    """Book a hotel."""
    booking = {"hotel": hotel, "nights": nights, "breakfast": breakfast, "wish": wish}
    await context.artifacts.save("booking.json", booking)
    return f"booked {nights} nights"


@tool(effects="idempotent", on_resume="rerun")
async def read(context: ToolContext) -> str:
    """Read a long story."""
    context.report("half of the story")
    while Path(os.environ["HOLD"]).exists():  # noqa: ASYNC110 - it is a file
        await asyncio.sleep(0.02)
    return "read all of it"


def reply(request: Any) -> Any:
    """Play the model."""
    last = request.messages[-1]
    said = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
    results = [m for m in request.messages if isinstance(m, ToolResultMessage)]
    if isinstance(last, ToolResultMessage) or said == "Hurry.":
        return text(f"**Done**: {results[-1].text}.")
    if "Book" in said:
        hotel = "Lina" if _is_another() else "Amora"
        return (text("Let me book."), tool_call("book", hotel=hotel, nights=4))
    if "story" in said and not (again := Path(os.environ["HOLD"]).with_name("again")).exists():
        again.touch()
        return failure(LLMUnavailable)
    return (text("Let me read."), tool_call("read")) if "story" in said else text(f"Said: {said}")


def _is_another() -> bool:
    return Path(os.environ["HOLD"]).with_name("other").exists()


def build(context_id: str, stores: Stores) -> Agent:
    """Make the agent of one conversation."""
    return Agent(
        context_id,
        llm_provider=ScriptedProvider(reply, chunk_chars=8),
        tools=[book, read],
        system_prompt="You help cheaply." if _is_another() else "You help.",
        stores=stores,
        loop_config=LoopConfig(retry=RetryPolicy(base_s=0.01)),
    )
