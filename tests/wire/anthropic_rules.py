"""
What the Messages API refuses in a whole request, written from its own words.

Apart from the code that writes requests: `check_body` reads the JSON that goes over the wire. The
rules about one message after the other are in `tests.property.strict`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.property.strict import check_anthropic

Wire = Mapping[str, Any]
Verify = Callable[[str, str], bool]

_FIELDS = {
    "cache_control", "container", "inference_geo", "max_tokens", "messages", "metadata", "model",
    "output_config", "service_tier", "stop_sequences", "stream", "system", "temperature",
    "thinking", "tool_choice", "tools", "top_k", "top_p",
}  # fmt: skip
_BLOCK_FIELDS = {
    "text": {"text", "citations"},
    "server_tool_use": {"id", "name", "input", "caller"},
    "web_search_tool_result": {"tool_use_id", "content", "caller"},
    "mcp_tool_use": {"id", "name", "input", "server_name"},
    "mcp_tool_result": {"tool_use_id", "content", "is_error"},
    "web_search_result": {"url", "title", "encrypted_content", "page_age"},
    "image": {"source"},
    "document": {"source", "title", "context", "citations"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id", "content", "is_error"},
}
_THOUGHTS = ("thinking", "redacted_thinking")
_DECIDES_ITSELF = re.compile(r"opus-4-[78]|(opus|sonnet|haiku|fable|mythos)-5")
_BOUND = re.compile(r"(opus|sonnet|haiku)-5-5|(fable|mythos)-5-[12]")
_ALWAYS_THINKS = re.compile(r"opus-4-[78]|(opus|sonnet)-5-5|fable|mythos")
BINDING_BETA = "thinking-binding-controls-2026-08-01"
OLD_VERSION = "2023-06-01"


def is_bound(model: str) -> bool:
    """Whether *model* looks at what came before its thoughts."""
    return bool(_BOUND.search(model))


def check_body(
    body: Wire, *, headers: Mapping[str, str] | None = None, verify: Verify | None = None
) -> list[str]:
    """
    Say in sentences what the API would answer 400 to; empty when it would take the request.

    Args:
        body: The request's JSON.
        headers: Of the request, names in lower case; without, those that it needs.
        verify: Given the text of a thinking block (`""` for redacted ones) and its signature, says
            whether the asked model signed it.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: at least one message is required"]
    problems = [f"{name}: Extra inputs are not permitted" for name in set(body) - _FIELDS]
    problems += check_anthropic(messages, tools_defined=bool(body.get("tools")))
    problems += _turns(messages)
    for place, block in _blocks(messages):
        problems += _block(place, block, verify)
    problems += _citations(body, messages)
    problems += _numbers(body)
    problems += _tools(body)
    problems += _thinking(body, messages)
    problems += _marks(body)
    return problems + _beside(body, headers)


def _beside(body: Wire, headers: Mapping[str, str] | None) -> list[str]:
    if headers is None:
        return []
    problems = []
    if headers.get("anthropic-version") != OLD_VERSION:
        problems += [
            f"{name}: Extra inputs are not permitted"
            for name in ("temperature", "top_p", "top_k")
            if name in body
        ]
    bound = "block_binding" in (body.get("thinking") or {})
    if bound and BINDING_BETA not in headers.get("anthropic-beta", "").split(","):
        problems.append("thinking.block_binding: Extra inputs are not permitted")
    return problems


def _turns(messages: Sequence[Wire]) -> list[str]:
    roles = [message.get("role") for message in messages]
    problems = []
    if roles[0] != "user":
        problems.append("messages: first message must use the user role")
    last = messages[-1].get("content")
    blocks = last if isinstance(last, list) else []
    if roles[-1] != "user" and not any(b.get("type") == "server_tool_use" for b in blocks):
        problems.append(
            "This model does not support assistant message prefill. The conversation must end with"
            " a user message."
        )
    problems += [
        f"messages.{i}: roles must alternate between user and assistant"
        for i in range(1, len(roles))
        if roles[i] == roles[i - 1]
    ]
    for i, message in enumerate(messages[:-1]):
        content = message["content"] if isinstance(message["content"], list) else []
        done = {block.get("tool_use_id") for block in content}
        after = messages[i + 1]["content"]
        if any(isinstance(b, dict) and b.get("type") == "tool_result" for b in after):
            continue
        problems += [
            f"messages.{i}: `{b['name']}` tool use with id `{b['id']}` was found without a"
            f" corresponding `{b['name']}_tool_result` block"
            for b in content
            if b.get("type") == "server_tool_use" and b["id"] not in done
        ]
    return problems


def _blocks(messages: Sequence[Wire]) -> list[tuple[str, Wire]]:
    found = []
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, block in enumerate(content if isinstance(content, list) else ()):
            found.append((f"messages.{i}.content.{j}", block))
            inner = block.get("content")
            for k, part in enumerate(inner if isinstance(inner, list) else ()):
                found.append((f"messages.{i}.content.{j}.content.{k}", part))
    return found


def _block(place: str, block: Wire, verify: Verify | None) -> list[str]:
    kind = block.get("type")
    if kind not in _BLOCK_FIELDS:
        return [f"{place}: no such block: {kind!r}"]
    allowed = _BLOCK_FIELDS[kind] | {"type", "cache_control"}
    problems = [f"{place}.{n}: Extra inputs are not permitted" for n in set(block) - allowed]
    if kind in _THOUGHTS and block.get("cache_control"):
        problems.append(f"{place}: cache_control cannot be set for thinking blocks")
    if kind == "thinking" and not isinstance(block.get("thinking"), str):
        problems.append(f"{place}.thinking: Field required")
    if verify and kind == "thinking" and not verify(block["thinking"], block["signature"]):
        problems.append(f"{place}: Invalid `signature` in `thinking` block")
    if verify and kind == "redacted_thinking" and not verify("", block["data"]):
        problems.append(f"{place}: Invalid `data` in `redacted_thinking` block")
    if kind == "image":
        source = block.get("source") or {}
        known = ("image/jpeg", "image/png", "image/gif", "image/webp")
        if source.get("type") == "url":
            return problems + _url(place, source)
        if source.get("type") != "base64" or source.get("media_type") not in known:
            problems.append(f"{place}.source.base64.media_type: Input should be one of {known}")
        if not source.get("data"):
            problems.append(f"{place}.source.base64.data: Field required")
    if kind == "document":
        problems += _document(place, block.get("source") or {})
    return problems


def _document(place: str, source: Wire) -> list[str]:
    kinds = {"base64": "application/pdf", "text": "text/plain"}
    kind = str(source.get("type"))
    if kind == "url":
        return _url(place, source)
    if source.get("media_type") != kinds.get(kind, ""):
        return [f"{place}.source: Input tag '{kind}' with another media_type"]
    return [] if source.get("data") else [f"{place}.source.{kind}.data: Field required"]


def _url(place: str, source: Wire) -> list[str]:
    fits = set(source) == {"type", "url"} and str(source["url"]).startswith("https://")
    return [] if fits else [f"{place}.source.url.url: Only HTTPS URLs are supported."]


def _citations(body: Wire, messages: Sequence[Wire]) -> list[str]:
    """Of all documents or of none, of those that are there, and never beside a schema."""
    blocks = [block for _, block in _blocks(messages)]
    documents = [block for block in blocks if block.get("type") == "document"]
    wanted = {(one.get("citations") or {}).get("enabled", False) for one in documents}
    problems = []
    if len(wanted) > 1:
        problems.append("messages: citations must be enabled on all or none of the documents")
    if True in wanted and (body.get("output_config") or {}).get("format"):
        problems.append("output_config.format: citations cannot be used with structured outputs")
    for block in blocks:
        for one in block.get("citations") or () if block.get("type") == "text" else ():
            if one.get("document_index", -1) >= len(documents):
                problems.append("citations: document_index is out of range")
            if "file_id" in one:
                problems.append("citations.file_id: Extra inputs are not permitted")
    return problems


def _numbers(body: Wire) -> list[str]:
    problems = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        problems.append("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        problems.append("max_tokens: Field required")
    if body.get("stream") is not True:
        problems.append("stream: this server streams")
    if any(not stop.strip() for stop in body.get("stop_sequences") or ()):
        problems.append("stop_sequences: each stop sequence must contain non-whitespace")
    user = (body.get("metadata") or {}).get("user_id")
    if user is not None and not 0 < len(user) <= 256:
        problems.append("metadata.user_id: at most 256 characters")
    form = (body.get("output_config") or {}).get("format")
    if form is not None and not _closed(form["schema"]):
        problems.append(
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be"
            " explicitly set to false"
        )
    if form is not None and (unknown := _unknown(form["schema"])):
        problems.append(f"output_config.format.schema: property '{unknown}' is not supported")
    return problems


def _unknown(schema: Any) -> str:
    """A limit that the API does not enforce, and so refuses."""
    names = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "multipleOf")
    if isinstance(schema, Mapping):
        own = next((name for name in names if name in schema), "")
        return own or next(filter(None, map(_unknown, schema.values())), "")
    return next(filter(None, map(_unknown, schema)), "") if isinstance(schema, list) else ""


def _closed(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            return False
        return all(_closed(value) for value in schema.values())
    return not isinstance(schema, list) or all(_closed(item) for item in schema)


def _tools(body: Wire) -> list[str]:
    tools, choice = body.get("tools") or [], body.get("tool_choice") or {}
    names = [tool.get("name") or "" for tool in tools]
    problems = [
        f"tools: {name!r} does not match ^[a-zA-Z0-9_-]{{1,128}}$"
        for name in names
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name)
    ]
    if len(set(names)) < len(names):
        problems.append("tools: Tool names must be unique.")
    problems += [
        f"tools.{i}.input_schema.type: Input should be 'object'"
        for i, tool in enumerate(tools)
        if "type" not in tool and (tool.get("input_schema") or {}).get("type") != "object"
    ]
    for i, tool in enumerate(tools):
        if tool.get("strict") and not _closed(tool["input_schema"]):
            problems.append(f"tools.{i}.input_schema: 'additionalProperties' must be false")
        elif tool.get("strict") and (unknown := _unknown(tool["input_schema"])):
            problems.append(f"tools.{i}.input_schema: property '{unknown}' is not supported")
        elif tool.get("strict") and re.search(r"claude-3|-4-2025|-4-0", str(body.get("model"))):
            problems.append(f"tools.{i}.strict: this model does not take strict tools")
    if choice and not tools:
        problems.append("tool_choice may only be specified while providing tools.")
    if choice and choice.get("type") not in ("auto", "any", "none", "tool"):
        problems.append(f"tool_choice.type: no such choice: {choice.get('type')!r}")
    if choice.get("type") == "tool" and choice.get("name") not in names:
        problems.append(f"Tool '{choice.get('name')}' not found in provided tools")
    return problems


def _thinking(body: Wire, messages: Sequence[Wire]) -> list[str]:
    thinking, model = body.get("thinking") or {}, str(body.get("model"))
    kind = thinking.get("type", "disabled")
    problems = []
    if _DECIDES_ITSELF.search(model):
        if kind == "enabled":
            problems.append('"thinking.type.enabled" is not supported for this model.')
        if "temperature" in body:
            problems.append("`temperature` is deprecated for this model.")
    elif kind == "adaptive" and "4-6" not in model:
        problems.append("adaptive thinking is not supported on this model")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            problems.append("thinking.enabled.budget_tokens: should be at least 1024")
        elif budget >= body.get("max_tokens", 0):
            problems.append("`max_tokens` must be greater than `thinking.budget_tokens`.")
        problems += _begins_with_thought(messages)
    if thinking.get("type") == "disabled" and _ALWAYS_THINKS.search(model):
        problems.append('"thinking.type.disabled" is not supported for this model.')
    if kind == "between_tools" and "sonnet-5-5" not in model:
        problems.append('"thinking.type.between_tools" is not supported for this model.')
    if is_bound(model) and (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        problems.append("tool_choice: forced tool use is not supported for this model")
    if kind in ("enabled", "adaptive"):
        if body.get("temperature", 1) != 1:
            problems.append("`temperature` may only be set to 1 when thinking is enabled.")
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            problems.append("Thinking may not be enabled when tool_choice forces tool use.")
    return problems


def _begins_with_thought(messages: Sequence[Wire]) -> list[str]:
    """The answer that the last results belong to begins after the last thing the user said."""
    begin = 0
    for i, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        if message["role"] == "user" and "tool_result" not in kinds:
            begin = i + 1
    if begin < len(messages) and messages[begin]["role"] == "assistant":
        first = messages[begin]["content"][0]["type"]
        if first not in _THOUGHTS:
            why = (
                f"messages.{begin}.content.0.type: Expected `thinking` or `redacted_thinking`, but"
                f" found `{first}`. When `thinking` is enabled, a final `assistant` message must"
                " start with a thinking block"
            )
            return [why]
    return []


def _marks(body: Wire) -> list[str]:
    system = body.get("system")
    parts = [*(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    parts += [block for _, block in _blocks(body["messages"])]
    count = sum("cache_control" in part for part in parts)
    problems = []
    if count > 4:
        problems.append(f"A maximum of 4 blocks with cache_control may be provided. Found {count}.")
    if any(isinstance(part, dict) and part.get("text") == "" for part in parts):
        problems.append("system: text content blocks must be non-empty")
    return problems
