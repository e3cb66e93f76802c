"""
The form that a dialect gives to a body of chat completions: ids, order of roles, cache marks, and
the options that a model takes.

Pure functions of data; `looopy.llm.openai.chat` writes what they change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from looopy.llm.dialects import Dialect
from looopy.llm.options import left_out
from looopy.types.message import AssistantMessage, Message, ToolCall, ToolResultMessage
from looopy.types.request import StreamOptions

REASONING: Final = "reasoning_content"
NO_EFFORT: Final = "none"
SAMPLING: Final = ("temperature", "top_p", "logprobs", "top_logprobs")
"""The options that some models refuse; the dialect names these models."""
_MAX_CALL_ID: Final = 40
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MARK: Final = {"type": "ephemeral"}
_SAID_BEFORE: Final = "(The conversation begins before this point.)"
_GO_ON: Final = "Continue."
_DONE: Final = "OK"
Wire = dict[str, Any]


def call_id_for(call_id: str, dialect: Dialect) -> str:
    """*call_id*, or a stand-in that is the same each time, where the server would refuse it."""
    wanted = dialect.call_id_chars
    if wanted is None:
        return short(call_id, _MAX_CALL_ID)
    if len(call_id) == wanted and call_id.isalnum() and call_id.isascii():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest())
    return "".join(_LETTERS[number // 62**place % 62] for place in range(wanted))


def with_call_ids(messages: Sequence[Message], dialect: Dialect) -> Sequence[Message]:
    """*messages* with the ids of calls and results that *dialect* wants, if it wants any."""
    if dialect.call_id_chars is None:
        return messages
    changed: list[Message] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            new_id = call_id_for(message.tool_call_id, dialect)
            changed.append(replace(message, tool_call_id=new_id))
        elif isinstance(message, AssistantMessage) and message.tool_calls:
            blocks = tuple(
                replace(one, id=call_id_for(one.id, dialect)) if isinstance(one, ToolCall) else one
                for one in message.content
            )
            changed.append(replace(message, content=blocks))
        else:
            changed.append(message)
    return changed


def in_turns(
    sent: list[Wire], sources: list[int], dialect: Dialect
) -> tuple[list[Wire], list[int]]:
    """The messages and their sources, in the order of roles that the server wants."""
    ordered: list[Wire] = []
    places: list[int] = []
    for wire, source in zip(sent, sources, strict=True):
        role = wire["role"]
        before = ordered[-1]["role"] if ordered else "system"
        if dialect.answers_tools and before == "tool" and role == "user":
            ordered.append({"role": "assistant", "content": _DONE})
            places.append(-1)
        elif dialect.alternates and before == "system" and role == "assistant":
            ordered.append({"role": "user", "content": _SAID_BEFORE})
            places.append(-1)
        elif dialect.alternates and before == role and role in ("user", "assistant"):
            ordered[-1] = _as_one(ordered[-1], wire)
            continue
        ordered.append(wire)
        places.append(source)
    if dialect.alternates and (not ordered or ordered[-1]["role"] in ("system", "assistant")):
        ordered.append({"role": "user", "content": _GO_ON})
        places.append(-1)
    return ordered, places


def _as_one(first: Wire, second: Wire) -> Wire:
    """Two neighbours of one role as one message."""
    joined = first | second
    for name in ("tool_calls", "reasoning_details"):
        if name in first and name in second:
            joined[name] = [*first[name], *second[name]]
    texts = [one["content"] for one in (first, second) if one["content"]]
    if all(isinstance(text, str) for text in texts):
        joined["content"] = "\n\n".join(texts) or None
    else:
        joined["content"] = [part for text in texts for part in _as_parts(text)]
    thoughts = [one[REASONING] for one in (first, second) if REASONING in one]
    if thoughts:
        joined[REASONING] = "\n\n".join(filter(str.strip, thoughts)) or thoughts[0]
    return joined


def _as_parts(content: str | list[Wire]) -> list[Wire]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def mark(sent: list[Wire], *, ephemeral: bool) -> None:
    """Mark the ends of the system prompt and of the last two messages for the server's cache."""
    said = [one for one in sent if one["role"] in ("user", "tool")]
    last = said[-1] if said else None
    for one in [*(one for one in sent[:1] if one["role"] == "system"), *said[-2:]]:
        parts = [dict(part) for part in _as_parts(one["content"])]
        lasting = parts[:-1] if ephemeral and one is last else parts
        texts = [part for part in lasting if part["type"] == "text"]
        if texts:  # the server takes a mark at a text alone
            texts[-1]["cache_control"] = _MARK
            one["content"] = parts


def without_sampling(body: Wire, dialect: Dialect, options: StreamOptions) -> Wire:
    """*body* without the options of sampling that the model refuses, each with a warning."""
    effort = body.get("reasoning_effort") or (body.get("reasoning") or {}).get("effort")
    if dialect.sampling == "free" or (dialect.sampling == "quiet" and effort in (None, NO_EFFORT)):
        return body
    for name in SAMPLING:
        if name in body:
            body = warned_without(body, name, options)
    return body


def warned_without(body: Wire, name: str, options: StreamOptions) -> Wire:
    """*body* without the option *name*, and a warning if the model now does something else."""
    rest = {key: value for key, value in body.items() if key != name}
    logprobs = name.endswith("logprobs")
    if logprobs:
        rest = {key: value for key, value in rest.items() if not key.endswith("logprobs")}
        if "include" in body:
            rest["include"] = [one for one in body["include"] if not one.endswith("logprobs")]
    if logprobs or body[name] != 1:
        option = "logprobs" if logprobs else name
        left_out(options, option, f"{body['model']} takes no {option} here")
    return rest


def short(value: str, limit: int) -> str:
    """*value*, or a stand-in that is the same each time, where servers refuse longer ones."""
    if len(value) <= limit:
        return value
    return "h" + hashlib.sha256(value.encode(errors="replace")).hexdigest()[: min(limit, 40) - 1]
