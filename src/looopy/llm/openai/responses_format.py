"""
A request in the form of OpenAI's Responses API.

The server keeps nothing: each call sends the whole conversation, with `store` off. The model's
reasoning comes encrypted, is kept as the signature of its thinking, and is sent back with the rest,
so that the model continues from its own thoughts. Ids of items are not sent back: the server would
look for them in its empty store, while a call and its result find each other by `call_id`. Pure
functions of data: the transport is in `looopy.llm.openai.provider`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.llm.dialects import PLAIN, Dialect
from looopy.llm.documents import (
    Unreadable,
    as_text,
    data_url,
    document_text,
    file_name,
    refuse_unreadable,
)
from looopy.llm.openai.chat import TOOL_CHOICES, effort_of, named_schema, opaque, plain_name
from looopy.llm.openai.form import NO_EFFORT, short
from looopy.llm.openai.vendor import Vendor, unpacked
from looopy.llm.options import refused, strict_parameters
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    AudioContent,
    ImageContent,
    Message,
    ServerToolCall,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ToolSpec

API = "openai-responses"
"""The name of this format in messages; pi's."""
_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_MAX_CALL_ID = 64
# Others wait for something that the client does, or are not known.
SERVER_SIDE = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
    | {"mcp_list_tools", "mcp_call"}
)
"""The types of items about tools that the server runs itself."""


def to_body(
    request: LLMRequest,
    options: StreamOptions,
    *,
    provider: str,
    model: str,
    official: bool,
    vendor: Vendor = "",
    dialect: Dialect = PLAIN,  # noqa: ARG001 - one signature for both formats
) -> tuple[dict[str, Any], list[int]]:
    """
    Write the body of a streamed request; see `looopy.llm.openai.chat.to_body`.

    Args:
        options: A budget of thinking has no field here.

    Returns:
        The body, and for each item of its input the position in `request.messages`.

    Raises:
        UnsupportedOption: The format has no place for an option.
        UnsupportedContent: The user's newest message has a file that the format has no place for.
    """
    for option, given in (("stop", options.stop or None), ("seed", options.seed)):
        if given is not None:
            name = "stop sequences" if option == "stop" else option
            why = (
                f"the Responses API takes no {name}: leave StreamOptions.{option} empty, or call"
                f" the model through chat completions, as openai/{model}"
            )
            raise refused(option, why, provider=provider, model=model)
    items, sources = _input(request.messages, provider, model)
    body: dict[str, Any] = {"model": model, "input": items, "stream": True, "store": False}
    body["include"] = [_ENCRYPTED]
    if options.logprobs is not None:
        body["include"].append(_LOGPROBS)
        body["top_logprobs"] = options.logprobs
    if request.system_prompt:
        body["instructions"] = request.system_prompt
    if request.tools:
        body["tools"] = [_tool(spec, provider, model) for spec in request.tools]
        if options.tool_choice:
            body["tool_choice"] = _tool_choice(options.tool_choice)
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.max_tokens is not None:
        body["max_output_tokens"] = options.max_tokens
    effort = effort_of(options, official=official, vendor=vendor)
    if effort is not None:
        body["reasoning"] = {"effort": effort}
        if effort != NO_EFFORT:
            body["reasoning"]["summary"] = "auto"
    if options.output_schema is not None:
        schema = named_schema(options.output_schema)
        body["text"] = {"format": {"type": "json_schema", **schema}}
    if options.session_id and official:
        body["prompt_cache_key"] = opaque(options.session_id)
    return body, sources


def without(body: dict[str, Any], part: str, instead: str = "") -> dict[str, Any]:
    """
    *body* without a *part* that a server refused.

    Args:
        part: `encrypted` reasoning, the `summary` of it, a field, or `effort:` and the effort.
        instead: The effort that the server takes.
    """
    if part == "encrypted":
        kept = [name for name in body.get("include", ()) if name != _ENCRYPTED]
        rest = {k: v for k, v in body.items() if k != "include"}
        return rest | {"include": kept} if kept else rest
    name, _, value = part.partition(":")
    if name in body:
        return {k: v for k, v in body.items() if k != name}
    reasoning = body.get("reasoning", {})
    if name not in reasoning or (value and reasoning[name] != value):
        return body
    rest = {k: v for k, v in reasoning.items() if k != name}
    if instead:
        rest[name] = instead
    if rest:
        return body | {"reasoning": rest}
    return {k: v for k, v in body.items() if k != "reasoning"}


def _input(
    messages: Sequence[Message], provider: str, model: str
) -> tuple[list[dict[str, Any]], list[int]]:
    def part(block: UserBlock, position: int) -> dict[str, Any]:
        try:
            return _part(block)
        except Unreadable as why:
            text = refuse_unreadable(block, position, messages, why, provider=provider, model=model)
            return {"type": "input_text", "text": text}

    items: list[dict[str, Any]] = []
    sources: list[int] = []
    for position, message in enumerate(messages):
        before = len(items)
        if isinstance(message, UserMessage):
            said: Any = message.content
            if not isinstance(said, str):
                said = [part(block, position) for block in said]
            items.append({"role": "user", "content": said})
        elif isinstance(message, AssistantMessage):
            own = message.provider == provider and message.api == API
            for block in message.content:
                item = _item(block, own=own)
                if item is not None:
                    items.append(item)
        elif isinstance(message, ToolResultMessage):
            items.append(_result(message, [part(b, position) for b in message.content]))
        sources += [position] * (len(items) - before)
    return items, sources


def _part(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, ImageContent):
        url = block.url if block.url is not None and not block.data else data_url(block)
        return {"type": "input_image", "detail": "auto", "image_url": url}
    if isinstance(block, AudioContent):
        raise Unreadable(
            "the Responses API takes no audio; call a model that hears through chat completions,"
            " as openai/..."
        )
    text = document_text(block)
    if text is not None:
        return {"type": "input_text", "text": as_text(block, text)}
    if not block.data:
        return {"type": "input_file", "file_url": block.url}
    return {"type": "input_file", "filename": file_name(block), "file_data": data_url(block)}


def _item(block: AssistantBlock, *, own: bool) -> dict[str, Any] | None:
    if isinstance(block, ThinkingContent):
        return _reasoning(block) if own else None
    if isinstance(block, TextContent):
        sources = [dict(one.raw) for one in block.citations] if own else []
        part = {"type": "output_text", "text": block.text, "annotations": sources}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        phase = unpacked(block.text_signature).get("phase") if own else None
        return item | {"phase": phase} if phase else item
    if not isinstance(block, ToolCall):
        known = isinstance(block, ServerToolCall) and block.item.get("type") in SERVER_SIDE
        return dict(block.item) if own and known and "omitted" not in block.item else None
    return {
        "type": "function_call",
        "call_id": short(block.id, _MAX_CALL_ID),
        "name": plain_name(block.name),
        "arguments": json.dumps(block.arguments, ensure_ascii=False),
    }


def _reasoning(block: ThinkingContent) -> dict[str, Any] | None:
    signed = unpacked(block.thinking_signature)
    encrypted = signed.get("encrypted_content")
    if not encrypted:
        return None
    summary = [{"type": "summary_text", "text": block.thinking}] if block.thinking else []
    item: dict[str, Any] = {"type": "reasoning", "summary": summary}
    if signed.get("id"):
        item["id"] = signed["id"]
    return item | {"encrypted_content": encrypted}


def signature(**parts: Any) -> str:
    """The parts that `unpacked` reads, without the empty ones."""
    return json.dumps({k: v for k, v in parts.items() if v}, separators=(",", ":"))


def _result(message: ToolResultMessage, parts: list[dict[str, Any]]) -> dict[str, Any]:
    output: str | list[dict[str, Any]] = parts
    if all(isinstance(block, TextContent) for block in message.content):
        output = message.text or "(no output)"
    return {
        "type": "function_call_output",
        "call_id": short(message.tool_call_id, _MAX_CALL_ID),
        "output": output,
    }


def _tool(spec: ToolSpec, provider: str, model: str) -> dict[str, Any]:
    parameters: Mapping[str, Any] = spec.parameters
    if spec.strict:
        parameters = strict_parameters(spec, provider=provider, model=model)
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(parameters),
        "strict": spec.strict,  # left out it would be true, and refuse most schemas
    }


def _tool_choice(choice: str) -> Any:
    return choice if choice in TOOL_CHOICES else {"type": "function", "name": choice}
