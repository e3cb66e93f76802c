"""
OpenAI's Responses API for `FakeOpenAI`: its events, and what a strict server refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.wire.fake_openai import Answer, is_strict
from tests.wire.sdk_types import beyond

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 14,
}
ITEMS = {"message", "reasoning", "function_call", "function_call_output"}
SERVER_SIDE = {"web_search_call", "file_search_call", "code_interpreter_call"}
FIELDS = {
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "model",
    "prompt_cache_key",
    "reasoning",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
}
INCLUDED = {"reasoning.encrypted_content", "message.output_text.logprobs"}


def sse(kind: str, **fields: Any) -> bytes:
    """One event."""
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def reasons(place: int, *summaries: str, encrypted: str | None = "gAAA", item_id: str = "rs_1"):
    """A reasoning item: its summary in parts, then the whole."""
    head = {"type": "reasoning", "id": item_id, "summary": []}
    yield sse("response.output_item.added", output_index=place, item=head)
    at = {"item_id": item_id, "output_index": place}
    for index, summary in enumerate(summaries):
        part = {"type": "summary_text", "text": ""}
        here = {**at, "summary_index": index}
        yield sse("response.reasoning_summary_part.added", **here, part=part)
        for word in summary.split(" "):
            yield sse("response.reasoning_summary_text.delta", **here, delta=word + " ")
        yield sse("response.reasoning_summary_part.done", **here, part={**part, "text": summary})
    whole = {**head, "summary": [{"type": "summary_text", "text": s} for s in summaries]}
    if encrypted:
        whole["encrypted_content"] = encrypted
    yield sse("response.output_item.done", output_index=place, item=whole)


def speaks(place: int, text: str, **more: Any):
    """A message: its text a word at a time, then the whole."""
    head = {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": [], **more}
    at = {"item_id": head["id"], "output_index": place, "content_index": 0}
    yield sse("response.output_item.added", output_index=place, item=head)
    yield sse("response.content_part.added", **at, part={"type": "output_text", "text": ""})
    for index, word in enumerate(text.split(" ")):
        yield sse("response.output_text.delta", **at, delta=" " * bool(index) + word, logprobs=[])
    yield sse("response.output_text.done", **at, text=text)
    part = {"type": "output_text", "text": text, "annotations": []}
    done = {**head, "status": "completed", "content": [part]}
    yield sse("response.output_item.done", output_index=place, item=done)


def calls(place: int, call_id: str, name: str, arguments: str, *, pieces: int = 2):
    """A function call: its arguments in pieces, then the whole."""
    head = {"type": "function_call", "id": f"fc_{place}", "call_id": call_id, "name": name}
    at = {"item_id": head["id"], "output_index": place}
    yield sse("response.output_item.added", output_index=place, item={**head, "arguments": ""})
    size = -(-len(arguments) // pieces) if pieces else len(arguments)
    for start in range(0, len(arguments) if pieces else 0, size or 1):
        piece = arguments[start : start + size]
        yield sse("response.function_call_arguments.delta", **at, delta=piece)
    yield sse("response.function_call_arguments.done", **at, arguments=arguments)
    whole = {**head, "arguments": arguments, "status": "completed"}
    yield sse("response.output_item.done", output_index=place, item=whole)


def ends(status: str = "completed", **fields: Any) -> bytes:
    """The last event."""
    response = {"id": "resp_1", "object": "response", "status": status, "usage": USAGE, **fields}
    return sse(f"response.{status}", response=response)


def answers(*parts: Any, status: str = "completed", **fields: Any) -> Answer:
    """A whole answer of items."""
    pieces = [sse("response.created", response={"id": "resp_1", "status": "in_progress"})]
    for part in parts:
        pieces += [part] if isinstance(part, bytes) else list(part)
    return Answer(pieces=[*pieces, ends(status, **fields)])


def replies(text: str) -> Answer:
    """A whole answer of text."""
    return answers(speaks(0, text))


def check_request(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a strict server would refuse in *body*: pairs of parameter and reason."""
    problems = [(name, f"Unknown parameter: '{name}'.") for name in body.keys() - FIELDS]
    if not body.get("stream"):
        problems.append(("stream", "this server streams"))
    if body.get("store") is not False:
        problems.append(("store", "this server keeps nothing"))
    problems += [
        ("include", f"Invalid value: '{one}'.")
        for one in body.get("include", ())
        if one not in INCLUDED
    ]
    if not 0 <= body.get("top_logprobs", 0) <= 20:
        problems.append(("top_logprobs", "Expected a value between 0 and 20."))
    items = body.get("input")
    if not isinstance(items, list) or not items:
        return [*problems, ("input", "input must not be empty")]
    problems += _check_pairs(items)
    for i, item in enumerate(items):
        problems += [(f"input[{i}]", why) for why in _check_item(item, items[i + 1 : i + 2])]
    for tool in body.get("tools") or ():
        if tool.get("type") == "web_search":
            continue
        if set(tool) != {"type", "name", "description", "parameters", "strict"}:
            problems.append(("tools[0]", "a function has a name, parameters and strict"))
        elif tool["parameters"].get("type") != "object":
            problems.append(("tools[0].parameters", "must be an object schema"))
        elif tool["strict"] and not is_strict(tool["parameters"]):
            problems.append(("tools[0].parameters", "Invalid schema: it is not strict"))
    return problems or [("", one) for one in beyond(body, "responses")]


def _check_pairs(items: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    problems = []
    called: list[str] = []
    for i, item in enumerate(items):
        if item.get("type") == "function_call":
            if item["call_id"] in called:
                problems.append((f"input[{i}]", "Duplicate call_id."))
            called.append(item["call_id"])
    given = [item.get("call_id") for item in items if item.get("type") == "function_call_output"]
    problems += [
        ("input", f"No tool output found for function call {call_id}.")
        for call_id in called
        if call_id not in given
    ]
    problems += [
        ("input", f"No tool call found for function call output with call_id {call_id}.")
        for call_id in given
        if call_id not in called
    ]
    return problems


def _check_item(item: Mapping[str, Any], following: Sequence[Mapping[str, Any]]) -> list[str]:
    kind = item.get("type", "message")
    if kind in SERVER_SIDE:
        return [] if item.get("id") and item.get("status") else ["an item has an id and a status"]
    if kind not in ITEMS:
        return [f"Invalid value: '{kind}'."]
    if kind == "message":
        return _check_message(item)
    if kind == "function_call":
        good = isinstance(json.loads(item["arguments"]), dict) and item["name"]
        ids = "id" in item  # it would be looked up in a store that keeps nothing
        return [] if good and not ids else ["not a function call"]
    if kind == "function_call_output":
        return [] if item["output"] else ["output must not be empty"]
    problems = []
    if not str(item.get("encrypted_content") or "").startswith("gAAA"):
        problems.append("The encrypted content could not be verified.")
    if not isinstance(item.get("summary"), list) or not item.get("id"):
        problems.append("a reasoning item has an id and a summary")
    after = following[0] if following else {}
    kinds = ("reasoning", "function_call", *SERVER_SIDE)
    own = after.get("type") in kinds or after.get("role") == "assistant"
    if not own:
        problems.append(
            f"Item '{item.get('id')}' of type 'reasoning' was provided without its required"
            " following item."
        )
    return problems


def _is_file(part: Mapping[str, Any]) -> bool:
    data = str(part.get("file_data", ""))
    return bool(part.get("file_url")) != (bool(part.get("filename")) and data.startswith("data:"))


def _check_message(item: Mapping[str, Any]) -> list[str]:
    content, role = item.get("content"), item.get("role")
    if isinstance(content, str):
        return [] if content and role == "user" else ["content must not be empty"]
    kinds = {"input_text", "input_image", "input_file"} if role == "user" else {"output_text"}
    if not content or any(part.get("type") not in kinds for part in content):
        return [f"content of a message of the {role}"]
    if any(part["type"] == "input_file" and not _is_file(part) for part in content):
        return ["a file needs file_url, or filename and file_data"]
    if any(part.get("text") == "" for part in content):
        return ["text must not be empty"]
    return []
