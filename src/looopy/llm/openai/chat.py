"""
The chat-completions format, both ways: a request becomes a body, chunks become stream events.

OpenAI's format is spoken by many servers, each with deviations: usage late, never, or in every
chunk; thinking under three names; every tool call as number 0; a reason to finish that does not fit
the content. Requests keep to the fields that all of them take; the reader allows for all
deviations. Pure functions of data: the transport is in `looopy.llm.openai.provider`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.errors import LLMUnavailable
from looopy.llm.reader import AnswerReader
from looopy.types.message import (
    AssistantMessage,
    Cost,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ThinkingLevel, ToolSpec

API = "openai-completions"
"""The name of this format in messages; pi's."""
_THINKING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
_STOP_REASONS = {
    "stop": StopReason.STOP,
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.SENSITIVE,
    "sensitive": StopReason.SENSITIVE,
}
_BROKEN_OFF = frozenset({"error", "network_error"})
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
MAX_CALL_ID = 40
MAX_CACHE_KEY = 64
TOOL_CHOICES = frozenset({"auto", "none", "required"})


def to_body(
    request: LLMRequest, options: StreamOptions, *, provider: str, model: str, official: bool
) -> tuple[dict[str, Any], list[int]]:
    """
    Write the body of a streamed request.

    Args:
        request: Its messages are valid for a provider; custom roles are left out.
        options: Those that are `None` or empty are not sent.
        provider: Thinking is sent back only to the provider it came from.
        model: Its name at the server.
        official: The server is OpenAI's own, which knows fields that others refuse.

    Returns:
        The body, and for each of its messages the position in `request.messages`; -1 for the system
        prompt.
    """
    messages, sources = _messages(request, provider)
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        if options.tool_choice:
            body["tool_choice"] = _tool_choice(options.tool_choice)
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.max_tokens is not None:
        body["max_completion_tokens" if official else "max_tokens"] = options.max_tokens
    if options.stop:
        body["stop"] = list(options.stop)
    body.update(_thinking(options, provider, official=official))
    if options.output_schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": named_schema(options.output_schema),
        }
    if options.session_id and official:
        body["prompt_cache_key"] = short(options.session_id, MAX_CACHE_KEY)
    return body, sources


def _messages(request: LLMRequest, provider: str) -> tuple[list[dict[str, Any]], list[int]]:
    sent: list[dict[str, Any]] = []
    sources: list[int] = []
    if request.system_prompt:
        sent.append({"role": "system", "content": request.system_prompt})
        sources.append(-1)
    loop_begins = _last_user(request.messages)
    images: list[UserBlock] = []
    images_of = 0
    for position, message in enumerate(request.messages):
        if images and not isinstance(message, ToolResultMessage):
            sent.append(_attached(images))
            sources.append(images_of)
            images = []
        wire: dict[str, Any] | None = None
        if isinstance(message, UserMessage):
            wire = _user(message)
        elif isinstance(message, AssistantMessage):
            wire = _assistant(message, provider if position > loop_begins else None)
        elif isinstance(message, ToolResultMessage):
            wire = _tool_result(message)
            images += [b for b in message.content if isinstance(b, ImageContent)]
            images_of = position
        if wire is not None:
            sent.append(wire)
            sources.append(position)
    if images:
        sent.append(_attached(images))
        sources.append(images_of)
    return sent, sources


def _last_user(messages: Sequence[Message]) -> int:
    return next(
        (i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], UserMessage)), -1
    )


def _user(message: UserMessage) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "user", "content": message.content}
    if all(isinstance(b, TextContent) for b in message.content):
        return {"role": "user", "content": message.text}
    return {"role": "user", "content": [_part(b) for b in message.content]}


def _part(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"},
    }


def _attached(images: Sequence[UserBlock]) -> dict[str, Any]:
    """Images of tool results: the format has no place for them but a message of the user."""
    note = {"type": "text", "text": "Attached image(s) from tool result:"}
    return {"role": "user", "content": [note, *(_part(b) for b in images)]}


def _assistant(message: AssistantMessage, thinking_for: str | None) -> dict[str, Any] | None:
    wire: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    calls = message.tool_calls
    if calls:
        wire["tool_calls"] = [
            {
                "id": short(call.id, MAX_CALL_ID),
                "type": "function",
                "function": {
                    "name": plain_name(call.name),
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for call in calls
        ]
        if thinking_for is not None and message.provider == thinking_for:
            for block in message.content:
                # The signature is the name of the field that the thinking came in.
                if isinstance(block, ThinkingContent) and (
                    block.thinking_signature in _THINKING_FIELDS
                ):
                    key = str(block.thinking_signature)
                    wire[key] = wire.get(key, "") + block.thinking
    return wire if calls or wire["content"] else None


def _tool_result(message: ToolResultMessage) -> dict[str, Any]:
    has_images = any(isinstance(b, ImageContent) for b in message.content)
    return {
        "role": "tool",
        "tool_call_id": short(message.tool_call_id, MAX_CALL_ID),
        "content": message.text or ("(see attached image)" if has_images else "(no output)"),
    }


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": dict(spec.parameters),
        },
    }


def _tool_choice(choice: str) -> Any:
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _thinking(options: StreamOptions, provider: str, *, official: bool) -> dict[str, Any]:
    level = effort_of(options, official=official)
    if level is None:
        return {}
    budget = (options.thinking_budgets or {}).get(level)
    if budget is not None and provider == "openrouter":  # the one server that takes a number
        return {"reasoning": {"max_tokens": budget}}
    return {"reasoning_effort": level}


def effort_of(options: StreamOptions, *, official: bool) -> str | None:
    """The effort of thinking; `None`: the model's own choice."""
    level = options.thinking_level
    if level is None or level == ThinkingLevel.OFF:
        return None
    if level == ThinkingLevel.XHIGH and not official:
        level = ThinkingLevel.HIGH
    return level.value


def named_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """*schema* as both formats take it: with a name, and strict if it allows for that."""
    name = plain_name(str(schema.get("title") or "output"))
    return {"name": name, "schema": dict(schema), "strict": is_strict(schema)}


def is_strict(schema: Any) -> bool:
    """True if every object is closed and requires all its properties, as strict mode demands."""
    if isinstance(schema, Mapping):
        if "properties" in schema and (
            schema.get("additionalProperties") is not False
            or set(schema.get("required", ())) != set(schema["properties"])
        ):
            return False
        if schema.get("type") == "object" and "properties" not in schema:
            return False
        return all(is_strict(v) for v in schema.values())
    return not isinstance(schema, (list, tuple)) or all(is_strict(v) for v in schema)


def plain_name(name: str) -> str:
    """A name that servers take: a model may have called a tool by one that they would refuse."""
    return _NO_NAME.sub("_", name)[:_MAX_NAME] or "unknown"


def short(value: str, limit: int) -> str:
    """*value*, or a stand-in that is the same each time, where servers refuse longer ones."""
    if len(value) <= limit:
        return value
    return "h" + hashlib.sha256(value.encode(errors="replace")).hexdigest()[: min(limit, 40) - 1]


@dataclass(slots=True, eq=False, repr=False)
class ChunkReader(AnswerReader):
    """Reads one answer's chunks; `sources` as `to_body` returns it."""

    _finish: str | None = field(init=False, default=None)
    _usage: Usage | None = field(init=False, default=None)

    @property
    def finished(self) -> bool:
        """True once the server gave a reason to finish: only usage may still come."""
        return self._finish is not None

    @property
    def complete(self) -> bool:
        """True if nothing more is expected."""
        return self.finished and self._usage is not None

    def feed(self, data: str) -> list[StreamEvent]:
        """
        Read one chunk, or a whole answer from a server that does not stream.

        Raises:
            LLMError: The server reports an error, or what came is no chunk.
        """
        chunk = self._parsed(data)
        if isinstance(chunk, dict) and chunk.get("error"):
            raise self._reported(chunk)
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        usage = chunk.get("usage") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            if not isinstance(usage, dict) and not isinstance(chunk, dict):
                raise self._invalid("what is no chunk")
            choices = []
        events: list[StreamEvent] = []
        for choice in choices:
            if not isinstance(choice, dict):
                raise self._invalid("a choice that is no object")
            if choice.get("index", 0) in (0, None):
                usage = usage or choice.get("usage")
                self._read_choice(choice, events)
        if isinstance(usage, dict):
            self._usage = read_usage(usage)
            self._answer.usage = self._usage
        return events

    def end(self, *, said_done: bool) -> tuple[StreamEvent, ...]:
        """
        The stream is over.

        Args:
            said_done: It ended with `[DONE]`.

        Raises:
            LLMUnavailable: The answer has no sign of being complete.
        """
        if not self.finished and not said_done:
            raise self._broke_off()
        if self._finish in _BROKEN_OFF:
            raise LLMUnavailable(
                f"{self._answer.provider} ended the answer with finish_reason {self._finish!r}",
                provider=self._answer.provider,
                model=self._answer.model,
            )
        return self._answer.done(_STOP_REASONS.get(self._finish or "stop", StopReason.STOP))

    def _read_choice(self, choice: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise self._invalid("a delta that is no object")
        for name in _THINKING_FIELDS:
            thinking = delta.get(name)
            if thinking and isinstance(thinking, str):
                events += self._answer.thinking_delta(thinking, signature=name)
                break
        self._read_content(delta.get("content"), events)
        if isinstance(refusal := delta.get("refusal"), str):
            events += self._answer.text_delta(refusal)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                events += self._read_call(call)
        if finish := choice.get("finish_reason"):
            self._finish = str(finish)

    def _read_content(self, content: Any, events: list[StreamEvent]) -> None:
        if isinstance(content, str):
            events += self._answer.text_delta(content)
        elif isinstance(content, list):  # Mistral: a list of parts, thinking among them
            for part in content:
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    events += self._answer.text_delta(part["text"])
                elif isinstance(part, dict) and isinstance(part.get("thinking"), list):
                    for inner in part["thinking"]:
                        if isinstance(inner, dict) and isinstance(inner.get("text"), str):
                            events += self._answer.thinking_delta(inner["text"])

    def _read_call(self, call: dict[str, Any]) -> tuple[StreamEvent, ...]:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return self._tool_call(call.get("index"), call.get("id"), function.get("name"), arguments)


def read_usage(data: Mapping[str, Any]) -> Usage:
    """Read a usage object. Its `prompt_tokens` include what the cache served; `input` does not."""
    details = data.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    prompt = count(data, "prompt_tokens")
    output = count(data, "completion_tokens")
    cached = count(details, "cached_tokens") or count(data, "prompt_cache_hit_tokens")
    written = count(details, "cache_write_tokens")
    return Usage(
        input=max(0, prompt - cached - written),
        output=output,
        cache_read=cached,
        cache_write=written,
        total_tokens=count(data, "total_tokens") or prompt + output,
        cost=_told_cost(data.get("cost")),
    )


def _told_cost(dollars: Any) -> Cost | None:
    """The cost that the server reports, as OpenRouter does."""
    known = isinstance(dollars, (int, float)) and not isinstance(dollars, bool) and dollars >= 0
    return Cost(total=float(dollars)) if known and dollars < 2**53 else None


def count(data: Mapping[str, Any], name: str) -> int:
    """A number of tokens; 0 for any other value."""
    value = data.get(name)
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**53 else 0
