"""
Histories for property tests: valid ones, and what crashes, windows and other writers make of them.

A valid history is what a context holds when nothing went wrong. `damaged` cuts it at any prefix,
then drops, repeats and moves any of its messages, and puts messages in that only a broken stream,
an aborted turn or a careless writer leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

PROVIDER, MODEL = "anthropic", "claude-sonnet-4-5"
# Made once: a strategy that is made while one is drawn is looked through again each time.
_BLANK = st.sampled_from(["", " ", "\n\t "])
_ONE_OF_THREE = st.sampled_from(range(3))
_WHAT = st.sampled_from(["drop", "repeat", "move", "add", "replace", "cut"])
_STRANGE_CALLS = st.sampled_from(["", "nobody's", "call_0_0_0"])
_STRANGE_IDS = st.lists(st.sampled_from(["", "x", "call_0_0_0", "a|b" * 30]), max_size=3)
_STRANGE_NAMES = st.sampled_from(["add", "", "functions.add", "n" * 70])
_CUT = st.sampled_from([StopReason.ERROR, StopReason.ABORTED, StopReason.LENGTH])


@dataclass(frozen=True)
class Maker:
    """
    Whose answers a history holds.

    Attributes:
        sign: Makes the signature of a thought, as this maker's look, from a name of its own.
    """

    provider: str
    model: str
    api: str
    sign: Callable[[str], str]

    @property
    def said(self) -> dict[str, Any]:
        """What each of its messages says of itself."""
        return {
            "api": self.api,
            "provider": self.provider,
            "model": self.model,
            "timestamp": 2,
        }


CLAUDE = Maker(PROVIDER, MODEL, "anthropic-messages", lambda name: f"s{name}")
GPT = Maker(
    "openai",
    "gpt-5-mini",
    "openai-responses",
    lambda name: json.dumps({"id": f"rs_{name}", "encrypted_content": f"gAAA{name}"}),
)


@st.composite
def valid(draw: Any, *, turns: int = 4, thinking: bool = True, by: Maker = CLAUDE) -> list[Message]:
    """
    A history that every provider would take, each text in it different.

    Args:
        by: Who answered.
        turns: The most there are.
        thinking: Whether assistant messages may hold signed thinking.
    """
    messages: list[Message] = []
    for turn in range(draw(st.integers(0, turns))):
        question = f"question {turn}"
        ways = (
            question,
            (TextContent(question), ImageContent("aW1n")),
            (TextContent(question), TextContent("and so on")),
        )
        messages.append(UserMessage(ways[draw(_ONE_OF_THREE)], timestamp=1))
        for iteration in range(draw(st.integers(0, 3))):
            messages += _group(
                f"{turn}_{iteration}",
                calls=draw(st.integers(1, 3)),
                text=draw(st.booleans()),
                thinking=thinking and draw(st.booleans()),
                redacted=draw(st.booleans()),
                by=by,
            )
        if draw(st.integers(0, 3)):
            blocks = (ThinkingContent("hm", thinking_signature=by.sign(f"{turn}")),)
            blocks = blocks if thinking and draw(st.booleans()) else ()
            messages.append(AssistantMessage((*blocks, TextContent(f"answer {turn}")), **by.said))
    return messages


def _group(
    name: str, *, calls: int, text: bool, thinking: bool, redacted: bool, by: Maker
) -> list[Message]:
    blocks: list[AssistantBlock] = []
    if thinking:
        signature = by.sign(f"hidden {name}")
        blocks.append(ThinkingContent("", thinking_signature=signature, redacted=redacted))
    if text:
        blocks.append(TextContent(f"let me see {name}", text_signature=f"t{name}"))
    made = [ToolCall(f"call_{name}_{i}", "add", {"a": i}) for i in range(calls)]
    said = AssistantMessage((*blocks, *made), stop_reason=StopReason.TOOL_USE, **by.said)
    return [said, *(result(call, f"sum {call.id}") for call in made)]


def result(call: ToolCall, text: str) -> ToolResultMessage:
    """A result of *call*; no block at all for an empty *text*."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text),) if text else (),
        timestamp=3,
    )


@st.composite
def _odd(draw: Any, messages: list[Message], by: Maker) -> Message:
    """One message that no healthy turn leaves."""
    kind = draw(st.integers(0, 6))
    blank = draw(_BLANK)
    if kind == 0:
        return UserMessage(draw(st.sampled_from([blank, (), (TextContent(blank),)])), timestamp=4)
    if kind == 1:
        return CustomMessage("note", "for people only", timestamp=4)
    if kind == 2:
        return result(ToolCall(draw(_STRANGE_CALLS), "add"), "7")
    if kind == 3:
        return AssistantMessage((TextContent(blank), TextContent("trailing \n")), **by.said)
    if kind == 4:
        return AssistantMessage(draw(st.sampled_from([(), (TextContent(blank),)])), **by.said)
    if kind == 5:  # another model's, with ids that are blank, repeated or strange
        ids = draw(_STRANGE_IDS)
        calls = [ToolCall(i, draw(_STRANGE_NAMES), thought_signature="opaque") for i in ids]
        thought = ThinkingContent("elsewhere", thinking_signature="theirs")
        theirs = {**by.said, "provider": "elsewhere", "model": "other"}
        return AssistantMessage((thought, TextContent("theirs"), *calls), **theirs)
    said = [m for m in messages if isinstance(m, AssistantMessage)]
    if not said:
        return UserMessage("still here", timestamp=4)
    cut = draw(st.sampled_from(said))
    keep = draw(st.integers(0, len(cut.content)))
    stop = draw(_CUT)
    content = (*cut.content[:keep], ThinkingContent("half a thou"))
    return replace(cut, content=content, stop_reason=stop)


@st.composite
def damaged(draw: Any, *, turns: int = 4, by: Maker = CLAUDE) -> list[Message]:
    """Any log: a valid history, cut anywhere, with messages dropped, repeated, moved and added."""
    messages = draw(valid(turns=turns, by=by))
    messages = messages[: draw(st.integers(0, len(messages)))]
    for _ in range(draw(st.integers(0, 5))):
        action = draw(_WHAT)
        here = draw(st.integers(0, max(0, len(messages) - 1)))
        there = draw(st.integers(0, len(messages)))
        if action == "add":
            messages.insert(there, draw(_odd(messages, by)))
        elif not messages:
            continue
        elif action == "drop":
            del messages[here]
        elif action == "repeat":
            messages.insert(there, messages[here])
        elif action == "move":
            moved = messages.pop(here)
            messages.insert(min(there, len(messages)), moved)
        elif action == "replace":
            messages[here] = draw(_odd(messages, by))
        else:
            messages = messages[here:there]
    return messages
