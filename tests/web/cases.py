"""Conversations that every face of the web shows: what the model says, and what the user does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from looopy import (
    Citation,
    Deny,
    ImageContent,
    LoopConfig,
    RetryPolicy,
    StopReason,
    TextContent,
    tool,
)
from looopy.errors import LLMUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import client_tool

QUICK = LoopConfig(retry=RetryPolicy(attempts=2, base_s=0.001))
PIXEL = "iVBORw0KGgo="


@tool(effects="none")
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


@tool
def boom() -> str:
    """Fail."""
    raise ValueError("it broke")


@tool(effects="none")
def draw() -> list[Any]:
    """Draw."""
    return [TextContent("a picture"), ImageContent(PIXEL)]


ask_page = client_tool("ask_page", "Ask the page.")


class Thinker:
    """Thinks, answers in small pieces and cites; fails first, in the middle of an answer."""

    def __init__(self) -> None:
        self.calls = 0

    async def stream(self, request: Any, options: Any) -> AsyncIterator[Any]:
        self.calls += 1
        made = Accumulator(api="t", provider="t", model="t")
        pieces = [made.start(), made.thinking_delta("hm "), made.thinking_delta("hm.")]
        pieces.append(made.text_delta("He"))
        if self.calls == 1:
            pieces.append(made.error(LLMUnavailable("again")))
        else:
            pieces += [made.text_delta("llo "), made.text_delta("there 🦜.")]
            pieces.append(made.cite(Citation(url="https://example.com/a", title="A")))
            pieces.append(made.done(StopReason.STOP))
        for events in pieces:
            for event in events:
                await asyncio.sleep(0)
                yield event


TOOLS = [add, pay, boom, draw, ask_page]


def cases() -> dict[str, tuple[Any, list[Any]]]:
    """By name, a provider and the steps of its conversation."""

    def provider(*replies: Any) -> ScriptedProvider:
        return ScriptedProvider(replies, chunk_chars=3)

    return {
        "a tool, then an approval": (
            provider(
                (text("Let me see. "), tool_call("add", a=2, b=3)),
                (text("It is 5."), tool_call("pay", eur=5)),
                text("Paid."),
            ),
            ["What is 2 + 3?", {"answer": True}],
        ),
        "a denial with a reason": (
            provider(tool_call("pay", eur=5), text("Then not.")),
            ["Pay.", {"answer": Deny(reason="too much")}],
        ),
        "several calls, one that fails": (
            provider((tool_call("boom"), tool_call("draw"), tool_call("add", a=1)), text("So so.")),
            ["Go."],
        ),
        "a tool of the page": (
            provider(tool_call("ask_page"), text("It said 7.")),
            ["Ask.", {"answer": {"n": 7}}],
        ),
        "a call that breaks off, thinking, sources": (Thinker(), ["Hi.", "Again."]),
        "a turn that fails": (
            provider(*[(text("I will"), failure(LLMUnavailable))] * 3),
            ["Hi."],
        ),
        "an unanswered approval, then another question": (
            provider((text("May I?"), tool_call("pay", eur=1)), text("All right.")),
            ["Pay.", "No, stop."],
        ),
    }
