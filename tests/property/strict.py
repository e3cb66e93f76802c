"""
What providers refuse in a history, written from their own words and apart from what repairs it.

`check_openai` and `check_anthropic` take the messages of a request, as ours or as the JSON that
goes over the wire, and say in sentences what the provider would answer 400 to. An empty list means
that it would take them. The rules come from the error messages that the two services send; nothing
here shares code with `looopy.llm.render`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
)

Wire = Mapping[str, Any]
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}


def check_openai(messages: Sequence[Message | Wire], *, alternating: bool = False) -> list[str]:
    """
    Say what a chat completions endpoint would refuse.

    Args:
        messages: Ours or wire messages (`{"role", "content", "tool_calls", "tool_call_id"}`).
        alternating: Refuse neighbours of one role too, as strict compatible servers do.
    """
    problems: list[str] = []
    owed: list[str] = []
    answered: set[str] = set()
    before = ""
    for i, message in enumerate(_wire(messages, openai_wire)):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id in owed:
                owed.remove(call_id)
                answered.add(call_id)
            elif call_id in answered:
                problems.append(f"messages[{i}]: a second result for {call_id!r}")
            else:
                problems.append(f"messages[{i}]: role 'tool' without a preceding call {call_id!r}")
            if not isinstance(message.get("content"), (str, list)):
                problems.append(f"messages[{i}]: a result needs content, if only ''")
            before = "tool"
            continue
        problems += [f"messages[{i}]: no result yet for {call_id!r}" for call_id in owed]
        owed, answered = [], set()
        if alternating and role == before:
            problems.append(f"messages[{i}]: two messages of role {role!r} in a row")
        before = str(role)
        if role == "assistant":
            owed = _openai_calls(i, message, problems)
        elif role in ("user", "system", "developer"):
            problems += _openai_content(i, message.get("content"))
        else:
            problems.append(f"messages[{i}]: no such role: {role!r}")
    return problems + [f"end: no result for {call_id!r}" for call_id in owed]


def _openai_calls(i: int, message: Wire, problems: list[str]) -> list[str]:
    calls = message.get("tool_calls") or []
    if not calls and not message.get("content"):
        problems.append(f"messages[{i}]: content or tool_calls must be set")
    if message.get("content"):
        problems += _openai_content(i, message["content"])
    ids: list[str] = []
    for call in calls:
        call_id = call.get("id")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= 40:
            problems.append(f"messages[{i}]: a call id of 1 to 40 characters, not {call_id!r}")
        if call_id in ids:
            problems.append(f"messages[{i}]: two calls are {call_id!r}")
        ids.append(call_id)
        function = call.get("function") or {}
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function.get("name") or ""):
            problems.append(f"messages[{i}]: no function can be named {function.get('name')!r}")
        try:
            arguments = json.loads(function.get("arguments", ""))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            problems.append(f"messages[{i}]: arguments are no JSON object")
    return ids


def _openai_content(i: int, content: Any) -> list[str]:
    if isinstance(content, str):
        return [] if content.strip() else [f"messages[{i}]: empty content"]
    if not isinstance(content, list) or not content:
        return [f"messages[{i}]: no content"]
    return [
        f"messages[{i}].content[{j}]: empty"
        for j, part in enumerate(content)
        if not (part.get("text") or "").strip() and not (part.get("image_url") or {}).get("url")
    ]


def check_anthropic(
    messages: Sequence[Message | Wire],
    *,
    model: str | None = None,
    tools_defined: bool = True,
) -> list[str]:
    """
    Say what the Messages API would refuse.

    Args:
        messages: Ours or wire messages (`{"role", "content"}`).
        model: The model that is asked: thinking that another one signed is refused. Looked at with
            messages of ours only, because the wire does not say who signed.
        tools_defined: Whether the request defines tools; without, no tool block may appear.
    """
    problems: list[str] = []
    if model is not None:
        problems += [
            f"messages[{i}]: Invalid `signature` in `thinking` block"
            for i, message in enumerate(messages)
            if isinstance(message, AssistantMessage)
            and (message.provider, message.model) != ("anthropic", model)
            and any(isinstance(block, ThinkingContent) for block in message.content)
        ]
    wire = _wire(messages, anthropic_wire)
    seen: set[str] = set()
    for i, message in enumerate(wire):
        blocks = _anthropic_blocks(message.get("content"))
        last = i == len(wire) - 1
        if message.get("role") == "assistant":
            problems += _anthropic_assistant(i, blocks, seen, last=last)
        elif message.get("role") == "user":
            asked = _tool_uses(wire[i - 1]) if i else []
            problems += _anthropic_user(i, blocks, asked)
        else:
            problems.append(f"messages.{i}: no such role: {message.get('role')!r}")
        uses = _tool_uses(message)
        if uses and (last or wire[i + 1].get("role") != "user"):
            problems.append(f"messages.{i}: `tool_use` ids without `tool_result` after: {uses}")
        if not tools_defined and any(b["type"] in ("tool_use", "tool_result") for b in blocks):
            problems.append(f"messages.{i}: tool blocks need `tools` in the request")
    return problems


def _anthropic_assistant(i: int, blocks: list[Wire], seen: set[str], *, last: bool) -> list[str]:
    problems = []
    if not blocks and not last:
        problems.append(f"messages.{i}: all messages must have non-empty content")
    for j, block in enumerate(blocks):
        kind = block["type"]
        if kind == "text":
            problems += _anthropic_text(f"messages.{i}.content.{j}", block)
        elif kind in _OPAQUE:
            if not block.get(_OPAQUE[kind]):
                problems.append(f"messages.{i}.content.{j}.{_OPAQUE[kind]}: Field required")
        elif kind == "tool_use":
            if not re.fullmatch(r"[a-zA-Z0-9_-]+", block.get("id") or ""):
                problems.append(f"messages.{i}.content.{j}.id: must match [a-zA-Z0-9_-]+")
            if block.get("id") in seen:
                problems.append(f"messages.{i}.content.{j}: `tool_use` ids must be unique")
            seen.add(block.get("id") or "")
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block.get("name") or ""):
                problems.append(f"messages.{i}.content.{j}.name: no tool can have this name")
            if not isinstance(block.get("input"), Mapping):
                problems.append(f"messages.{i}.content.{j}.input: must be an object")
        else:
            problems += _anthropic_server(f"messages.{i}.content.{j}", block, blocks[:j])
    if blocks and blocks[-1]["type"] in _OPAQUE:
        problems.append(f"messages.{i}: the final block must not be `thinking`")
    if last and blocks and blocks[-1]["type"] == "text":
        text = blocks[-1].get("text") or ""
        if text != text.rstrip():
            problems.append(f"messages.{i}: final assistant content ends with whitespace")
    return problems


_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")


def _anthropic_server(place: str, block: Wire, before: list[Wire]) -> list[str]:
    """A tool of the server: its use, and behind that its result."""
    kind = block["type"]
    if kind in _SERVER_CALLS:
        fits = isinstance(block.get("input"), Mapping)
        return [] if fits else [f"{place}.input: must be an object"]
    if not kind.endswith("_tool_result"):
        return [f"{place}: no {kind!r} in an assistant message"]
    used = [b.get("id") for b in before if b["type"] in _SERVER_CALLS]
    return [] if block.get("tool_use_id") in used else [f"{place}: no `server_tool_use` before it"]


def _anthropic_user(i: int, blocks: list[Wire], asked: list[str]) -> list[str]:
    problems = []
    if not blocks:
        problems.append(f"messages.{i}: all messages must have non-empty content")
    results: list[str] = []
    other = False
    for j, block in enumerate(blocks):
        if block["type"] != "tool_result":
            other = True
            if block["type"] == "text":
                problems += _anthropic_text(f"messages.{i}.content.{j}", block)
            continue
        call_id = block.get("tool_use_id")
        if other:
            problems.append(f"messages.{i}.content.{j}: `tool_result` blocks must come first")
        if call_id in results:
            problems.append(f"messages.{i}: each tool_use must have a single result: {call_id!r}")
        elif call_id not in asked:
            problems.append(f"messages.{i}: unexpected `tool_use_id` {call_id!r}")
        results.append(str(call_id))
        for part in _anthropic_blocks(block.get("content") or []):
            if part["type"] == "text":
                problems += _anthropic_text(f"messages.{i}.content.{j}.content", part)
    missing = [call_id for call_id in asked if call_id not in results]
    if missing:
        problems.append(f"messages.{i}: `tool_use` ids without `tool_result`: {missing}")
    return problems


def _anthropic_text(place: str, block: Wire) -> list[str]:
    if (block.get("text") or "").strip():
        return []
    return [f"{place}: text content blocks must be non-empty and hold more than whitespace"]


def _anthropic_blocks(content: Any) -> list[Wire]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or [])


def _tool_uses(message: Wire) -> list[str]:
    return [b["id"] for b in _anthropic_blocks(message.get("content")) if b["type"] == "tool_use"]


def _wire(messages: Sequence[Message | Wire], convert: Any) -> list[Wire]:
    if all(isinstance(message, Mapping) for message in messages):
        return list(messages)  # type: ignore[arg-type]  # every one is a Mapping
    return convert(messages)


def openai_wire(messages: Sequence[Message]) -> list[Wire]:
    """Chat completions messages, one for each of ours; what is wrong with ours stays wrong."""
    wire: list[Wire] = []
    for message in messages:
        if isinstance(message, UserMessage):
            wire.append({"role": "user", "content": _openai_parts(message.content)})
        elif isinstance(message, AssistantMessage):
            texts = [b.text for b in message.content if isinstance(b, TextContent)]
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in message.tool_calls
            ]
            parts = [{"type": "text", "text": text} for text in texts]
            said = {"role": "assistant", "content": parts or None}
            wire.append({**said, "tool_calls": calls} if calls else said)
        elif isinstance(message, ToolResultMessage):
            wire.append(
                {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
            )
        else:
            wire.append({"role": message.role, "content": message.content})
    return wire


def _openai_parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, TextContent)
        else {
            "type": "image_url",
            "image_url": {"url": block.data and f"data:{block.mime_type};base64,{block.data}"},
        }
        for block in content
    ]


def anthropic_wire(messages: Sequence[Message]) -> list[Wire]:
    """Messages API messages: results and user messages that stand together are one, in order."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            blocks = [_anthropic_block(block) for block in message.content]
            wire.append({"role": "assistant", "content": blocks})
            continue
        if isinstance(message, ToolResultMessage):
            result = {
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": [_anthropic_block(block) for block in message.content],
                "is_error": message.is_error,
            }
            role, blocks = "user", [result]
        elif isinstance(message, UserMessage):
            content = message.content
            parts = [TextContent(content)] if isinstance(content, str) else content
            role, blocks = "user", [_anthropic_block(block) for block in parts]
        else:
            role, blocks = message.role, []
        if wire and wire[-1]["role"] == role == "user" and blocks:
            wire[-1]["content"] += blocks
        else:
            wire.append({"role": role, "content": blocks})
    return wire


def _anthropic_block(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    if isinstance(block, ThinkingContent):
        signature = block.thinking_signature
        if block.redacted:
            return {"type": "redacted_thinking", "data": signature}
        return {"type": "thinking", "thinking": block.thinking, "signature": signature}
    if isinstance(block, ImageContent):
        source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
        return {"type": "image", "source": source}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
