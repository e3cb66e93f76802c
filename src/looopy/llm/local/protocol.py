"""
The prompt of a small model, and the answers that it may give.

A small model calls tools badly in a large model's way and quite well in this one. The tools are in
the system prompt, a short conversation with other tools shows the form of an answer, and a grammar
allows only `{"tool": ..., "arguments": ...}` for an existing tool or `{"reply": ...}`. The model
sees its own earlier answers in the same form, and results as the user's next message. Without tools
the prompt is plain. All of this is pure: a request in, a `Prompt` out.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from looopy.llm.documents import named
from looopy.llm.local.schema import ANY_OBJECT, for_grammar
from looopy.llm.options import refused
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ToolSpec

DEFAULT_SYSTEM_PROMPT = (
    "You are the assistant of looopy, a small language model that runs on the user's own computer. "
    "Answer helpfully and briefly."
)
_RULES = (
    'Each turn, output exactly one JSON object: {"tool": name, "arguments": {...}} to call a '
    'listed tool, or {"reply": text} to answer the user. Call a tool only when the user asks for '
    "exactly what it does; otherwise reply. After a tool result, reply to the user with it."
)
_SCHEMA_RULE = "Your final answer to the user is JSON that fits this JSON Schema:"
_REPLY_RULE = 'Each turn, output exactly one JSON object: {"reply": text}.'
_NO_IMAGE = "[an image, which this model cannot see]"

Line: TypeAlias = tuple[str, str]
"""The speaker (`"user"` or `"assistant"`), and the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """
    The input of the model.

    Attributes:
        messages: User and assistant in turns, text only.
        schema: The schema of the answer; `None` for plain text.
        speaks_json: The answer is a reply or a call in JSON, for `AnswerReader`.
        loose: The argument of the same name.
    """

    system_prompt: str
    messages: Sequence[Message]
    schema: Mapping[str, Any] | None = None
    speaks_json: bool = False
    loose: bool = False


def build_prompt(request: LLMRequest, options: StreamOptions, *, loose: bool = False) -> Prompt:
    """
    Write *request* in the form that a small model understands.

    Args:
        request: Its messages are valid for a provider: each call has its result.
        options: Its tool choice and output schema.
        loose: Hold no tool's arguments to more than being a JSON object.
    """
    system_prompt = request.system_prompt or DEFAULT_SYSTEM_PROMPT
    wanted = options.output_schema
    if wanted is not None:
        wanted = for_grammar(wanted)
        system_prompt = f"{system_prompt}\n\n{_SCHEMA_RULE}\n{_json(wanted)}"
    called_before = any(
        isinstance(message, AssistantMessage) and message.tool_calls for message in request.messages
    )
    if not request.tools and not called_before:
        return Prompt(
            system_prompt=system_prompt,
            messages=_messages(_history(request.messages, in_json=False)),
            schema=wanted,
        )
    lines = _history(request.messages, in_json=True)
    if request.tools:
        tools = "\n".join(_tool_line(tool) for tool in request.tools)
        system_prompt = f"{system_prompt}\n\n{_RULES}\nTools:\n{tools}"
        lines = [*_examples({tool.name for tool in request.tools}), *lines]
    else:
        system_prompt = f"{system_prompt}\n\n{_REPLY_RULE}"
    return Prompt(
        system_prompt=system_prompt,
        messages=_messages(lines),
        schema=answer_schema(
            request.tools,
            tool_choice=options.tool_choice,
            output_schema=wanted,
            loose=loose,
        ),
        speaks_json=True,
        loose=loose,
    )


def check_strict(request: LLMRequest, *, provider: str, model: str) -> None:
    """Raise `UnsupportedOption` for a strict tool whose schema the grammar would not enforce."""
    for tool in request.tools:
        if tool.strict and for_grammar(tool.parameters) == ANY_OBJECT:
            why = f"no grammar can be made of the schema of {tool.name!r}: leave it out"
            raise refused("strict_tools", why, provider=provider, model=model)


def answer_schema(
    tools: Sequence[ToolSpec],
    *,
    tool_choice: str | None = None,
    output_schema: Mapping[str, Any] | None = None,
    loose: bool = False,
) -> dict[str, Any]:
    """
    The schema of an answer: one of the allowed calls, or a reply.

    Args:
        tools: The tools that may be called.
        tool_choice: `None` or `"auto"`, `"none"`, `"required"`, or a tool's name.
        output_schema: The schema of the reply; without it, text.
        loose: Require only that a tool's arguments are a JSON object.
    """
    calls = [
        _object(
            tool={"const": tool.name},
            arguments=dict(ANY_OBJECT) if loose else for_grammar(tool.parameters),
        )
        for tool in tools
        if tool_choice in (None, "auto", "required", tool.name)
    ]
    reply = _object(reply=dict(output_schema) if output_schema else {"type": "string"})
    if not calls:
        return reply
    if tool_choice in (None, "auto"):
        calls.append(reply)
    return {"anyOf": calls} if len(calls) > 1 else calls[0]


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _tool_line(tool: ToolSpec) -> str:
    shown = for_grammar(tool.parameters)
    parameters = tool.parameters if shown == ANY_OBJECT else shown
    return _json({"name": tool.name, "description": tool.description, "parameters": parameters})


def _examples(taken: set[str]) -> list[Line]:
    """A conversation that shows the form, with a tool that is not on the list."""
    name = next(n for n in ("get_weather", "read_weather", "weather_example") if n not in taken)
    return [
        ("user", "What is the weather in Oslo?"),
        ("assistant", _json({"tool": name, "arguments": {"city": "Oslo"}})),
        ("user", "Tool result: 4 C, cloudy"),
        ("assistant", _json({"reply": "It is 4 C and cloudy in Oslo."})),
        ("user", "Who wrote Hamlet?"),
        ("assistant", _json({"reply": "William Shakespeare wrote Hamlet."})),
        ("user", "Tell me a joke."),
        (
            "assistant",
            _json({"reply": "Why did the chicken cross the road? To get to the other side!"}),
        ),
    ]


def _history(messages: Sequence[Message], *, in_json: bool) -> list[Line]:
    lines: list[Line] = []
    for position, message in enumerate(messages):
        if isinstance(message, UserMessage):
            lines.append(("user", _text_of(message.content)))
        elif isinstance(message, AssistantMessage):
            if message.text:
                text = _json({"reply": message.text}) if in_json else message.text
                lines.append(("assistant", text))
            results = _results_after(messages, position)
            for call in message.tool_calls:  # several calls become one exchange after the other
                said = _json({"tool": call.name, "arguments": call.arguments})
                lines.append(("assistant", said))
                if result := results.get(call.id):
                    failed = "error: " if result.is_error else ""
                    lines.append(("user", f"Tool result: {failed}{_text_of(result.content)}"))
    return lines


def _results_after(messages: Sequence[Message], position: int) -> dict[str, ToolResultMessage]:
    """The results that directly follow the message at *position*, by the id of their call."""
    following = messages[position + 1 :]
    found = itertools.takewhile(lambda m: isinstance(m, ToolResultMessage), following)
    return {m.tool_call_id: m for m in found if isinstance(m, ToolResultMessage)}


def _text_of(content: str | Sequence[UserBlock]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_shown(block) for block in content)


def _shown(block: UserBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    return _NO_IMAGE if isinstance(block, ImageContent) else named(block)


def _messages(lines: Sequence[Line]) -> list[Message]:
    """Merge successive messages of one side: many chat templates insist on taking turns."""
    merged: list[tuple[str, list[str]]] = []
    for speaker, text in lines:
        if merged and merged[-1][0] == speaker:
            merged[-1][1].append(text)
        else:
            merged.append((speaker, [text]))
    return [
        UserMessage("\n\n".join(texts))
        if speaker == "user"
        else AssistantMessage((TextContent("\n".join(texts)),))
        for speaker, texts in merged
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
