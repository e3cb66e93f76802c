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
from looopy.testing.llm import ScriptedCall
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


class Forgetful(ScriptedProvider):
    """Begins each of its answers with the same call id."""

    def _take(self) -> Any:
        self._calls = 0
        return super()._take()


class Hasty:
    """Breaks off in the middle of a call, and then does without it."""

    def __init__(self) -> None:
        self.calls = 0

    async def stream(self, request: Any, options: Any) -> AsyncIterator[Any]:
        self.calls += 1
        made = Accumulator(api="t", provider="t", model="t")
        pieces = [made.start(), made.text_delta("Let me see.")]
        if self.calls == 1:
            pieces.append(made.tool_call(0, call_id="c1", name="add", arguments_delta='{"a'))
            pieces.append(made.tool_call(0, arguments_delta='": 2'))
            pieces.append(made.error(LLMUnavailable("again")))
        else:
            pieces += [made.text_delta(" No."), made.done(StopReason.STOP)]
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
        "call ids that come again": (
            Forgetful(
                [
                    (text("Let me see. "), tool_call("add", a=2, b=3)),
                    (tool_call("pay", eur=5), tool_call("add", a=4, b=4)),
                    (text("Once more."), tool_call("add", a=5, b=1)),
                    (tool_call("ask_page"), tool_call("add", a=6, b=1)),
                    (text("And again."), tool_call("add", a=7, b=1)),
                    text("So that is it."),
                ],
                chunk_chars=3,
            ),
            ["Add.", {"answer": True}, {"answer": {"n": 7}}],
        ),
        "a call that breaks off and is not made": (Hasty(), ["Hi."]),
        "arguments that are not JSON, and none": (
            provider((ScriptedCall("add", '{"a": 2, "b'), ScriptedCall("boom", " ")), text("Oh.")),
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
