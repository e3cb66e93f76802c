"""
Read the body of `POST /v1/responses`.

The conversation is kept here, so a request brings only what is new: a message, answers to what the
last response asked, or neither, to continue. A parameter that the agent decides itself is refused
by name, unless it has the value that it would have had anyway. Those that change no answer (hints
for caches, billing and abuse) are ignored by name: nothing else is left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from looopy.errors import ConfigurationError, ValueRefused
from looopy.loop.output import output_type_of
from looopy.server.gate.body import json_or_text
from looopy.server.protocols.responses.items import place_of
from looopy.types.approval import Approve, Deny
from looopy.types.config import ModelOptions
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)
from looopy.types.request import ThinkingLevel

FACE: Final = "responses"
"""The key of what a turn keeps of its request, in the metadata of the turn."""
BRINGS: Final = ("instructions", "tools")
"""Parameters for the agent, which a client may bring if the server's owner allows it."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[^,;]*)*;base64,", re.ASCII)
_IS_DEFAULT: Final[Mapping[str, Sequence[Any]]] = {
    "max_tool_calls": (None,),
    "parallel_tool_calls": (None, True),
    "store": (None, True),
    "tools": (None, []),
    "truncation": (None, "disabled", "auto"),  # the history is always made to fit
    "instructions": (None, ""),
    "top_p": (None, 1),
    "top_logprobs": (None, 0),
    "prompt": (None,),
}
_IGNORED: Final = frozenset(
    {
        "include",  # more of what the agent's model and its tools keep to themselves
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
        "user",
    }
)
_WHY: Final = {
    "store": "every turn is stored, so that it outlives its process",
    "tools": "the agent has tools of its own",
    "instructions": "the agent has a system prompt of its own",
}
_EFFORT: Final = {"none": ThinkingLevel.OFF}
_READ: Final = frozenset(
    {
        "background",
        "conversation",
        "input",
        "max_output_tokens",
        "metadata",
        "model",
        "previous_response_id",
        "reasoning",
        "stream",
        "temperature",
        "text",
        "tool_choice",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    A request that was read.

    Attributes:
        message: The new message, or `None` to continue.
        inputs: Answers by the id of their request.
        context_id: The context of `conversation` or `previous_response_id`; `None`: a new one.
        after_turn: The turn of `previous_response_id`; the new turn comes after it.
        output_type: The JSON Schema of the answer, or `None`.
        brought: Those of `BRINGS` that came and are allowed.
    """

    model: str
    message: UserMessage | None
    inputs: Mapping[str, Any]
    context_id: str | None
    after_turn: int | None
    options: ModelOptions | None
    output_type: Mapping[str, Any] | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    brought: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    background: bool = False

    @property
    def decisions(self) -> Mapping[str, Approve | Deny]:
        """The decisions in the input, by request id; empty if the input has more."""
        only = all(isinstance(one, (Approve, Deny)) for one in self.inputs.values())
        return self.inputs if only and self.message is None else {}


def read(body: Any, *, allowed: Collection[str] = ()) -> Asked:
    """
    Read the body of a request.

    Args:
        allowed: Those of `BRINGS` that a client may bring.

    Raises:
        ValueRefused: A parameter is unknown, is not supported or has a wrong value; `path` is its
            JSON pointer.
    """
    if not isinstance(body, dict):
        raise _refused("", "the body takes a JSON object")
    for name, value in body.items():
        if name in _READ or name in _IGNORED or name in allowed:
            continue
        if name not in _IS_DEFAULT:
            raise _refused(f"/{name}", f"the parameter {name!r} is not supported here")
        if value not in _IS_DEFAULT[name]:
            why = _WHY.get(name, "leave it out")
            raise _refused(f"/{name}", f"{name} is not supported here: {why}")
    message, inputs = _input(body.get("input"))
    context_id, after_turn = _place(body)
    if message is None and not inputs and context_id is None:
        raise _refused("/input", "input is missing: send a message")
    return Asked(
        model=_a(str, body, "model"),
        message=message,
        inputs=inputs,
        context_id=context_id,
        after_turn=after_turn,
        options=_options(body),
        output_type=_schema(body.get("text")),
        metadata=_metadata(body.get("metadata")),
        brought=_brought(body, allowed),
        stream=_flag(body, "stream"),
        background=_flag(body, "background"),
    )


def _refused(path: str, text: str) -> ValueRefused:
    return ValueRefused(text, path=path)


def _a(kind: type[Any], body: Mapping[str, Any], name: str, path: str = "") -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _refused(f"{path}/{name}", f"{name} takes {_CALLED[kind]}")
    return value


_CALLED: Final = {str: "a string", dict: "an object", list: "a list", bool: "true or false"}


def _flag(body: Mapping[str, Any], name: str) -> bool:
    return False if body.get(name) is None else bool(_a(bool, body, name))


def _place(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The context, and the turn that the new one comes after."""
    given, previous = body.get("conversation"), body.get("previous_response_id")
    if given is not None and previous is not None:
        text = "conversation and previous_response_id name a conversation both: send one of them"
        raise _refused("/conversation", text)
    if previous is not None:
        place = place_of(previous) if isinstance(previous, str) else None
        if place is None:
            raise _refused("/previous_response_id", "this is not the id of a response of ours")
        return place
    if isinstance(given, dict):
        return _a(str, given, "id", "/conversation"), None
    return (None if given is None else _a(str, body, "conversation")), None


def _options(body: Mapping[str, Any]) -> ModelOptions | None:
    found: dict[str, Any] = {}
    if body.get("temperature") is not None:
        found["temperature"] = body["temperature"]
    if body.get("max_output_tokens") is not None:
        found["max_tokens"] = body["max_output_tokens"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") not in ("function", "mcp"):
            raise _refused("/tool_choice/type", "tool_choice takes a function by its name")
        found["tool_choice"] = _a(str, choice, "name", "/tool_choice")
    elif choice is not None:
        found["tool_choice"] = _a(str, body, "tool_choice")
    if body.get("reasoning") is not None:
        reasoning = _a(dict, body, "reasoning")
        if reasoning.get("effort") is not None:
            effort = _a(str, reasoning, "effort", "/reasoning")
            found["thinking_level"] = _EFFORT.get(effort, effort)
    try:
        return ModelOptions(**found) if found else None
    except (ConfigurationError, TypeError) as error:
        raise _refused("", f"an option of the request has a wrong value: {error}") from None


def _schema(text: Any) -> Mapping[str, Any] | None:
    """The JSON Schema of `text.format`."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise _refused("/text", "text takes a format")
    if text.get("verbosity") not in (None, "medium"):
        raise _refused("/text/verbosity", "verbosity is not supported here: leave it out")
    chosen = text.get("format")
    if chosen is None:
        return None
    if not isinstance(chosen, dict):
        raise _refused("/text/format", "text takes a format")
    if chosen.get("type") == "text":
        return None
    if chosen.get("type") != "json_schema":
        raise _refused("/text/format/type", "the format is text or json_schema")
    schema = dict(_a(dict, chosen, "schema", "/text/format"))
    try:
        output_type_of(schema)
    except ConfigurationError as error:
        text = error.message.replace("output_type", "the schema", 1)
        raise _refused("/text/format/schema", text) from None
    return schema


def _brought(body: Mapping[str, Any], allowed: Collection[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    if "instructions" in allowed and body.get("instructions"):
        found["instructions"] = _a(str, body, "instructions")
    if "tools" in allowed and body.get("tools"):
        for number, one in enumerate(_a(list, body, "tools")):
            if not isinstance(one, dict) or one.get("type") != "function":
                text = "only functions that the client runs can be brought"
                raise _refused(f"/tools/{number}/type", text)
            _a(str, one, "name", f"/tools/{number}")
        found["tools"] = body["tools"]
    return found


def _metadata(given: Any) -> Mapping[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise _refused("/metadata", "metadata takes strings by name")
    if FACE in given:
        raise _refused(f"/metadata/{FACE}", f"the name {FACE!r} is the server's own: take another")
    return given


# --- the input -----------------------------------------------------------------------------------


def _input(given: Any) -> tuple[UserMessage | None, Mapping[str, Any]]:
    """The new message, and the answers by the id of what they answer."""
    if given is None:
        return None, {}
    if isinstance(given, str):
        return (UserMessage(given), {}) if given else (None, {})
    if not isinstance(given, list):
        raise _refused("/input", "input takes a text or a list of items")
    blocks: list[UserBlock] = []
    inputs: dict[str, Any] = {}
    for number, item in enumerate(given):
        path = f"/input/{number}"
        if not isinstance(item, dict):
            raise _refused(path, "an item of the input is an object")
        kind = item.get("type", "message")
        if kind == "message":
            blocks += _message(item, path)
        elif kind == "mcp_approval_response":
            inputs[_a(str, item, "approval_request_id", path)] = _decision(item, path)
        elif kind == "function_call_output":
            inputs[_a(str, item, "call_id", path)] = _value(item, path)
        else:
            text = f"an item of the type {kind!r} cannot be sent: the conversation is stored here"
            raise _refused(f"{path}/type", text)
    return (UserMessage(tuple(blocks)) if blocks else None), inputs


def _decision(item: Mapping[str, Any], path: str) -> Approve | Deny:
    reason = item.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _refused(f"{path}/reason", "reason takes a string")
    return Approve(note=reason) if _a(bool, item, "approve", path) else Deny(reason=reason)


def _value(item: Mapping[str, Any], path: str) -> Any:
    """The value of an answer: JSON if its text is JSON, else the text."""
    return json_or_text(_a(str, item, "output", path))


def _message(item: Mapping[str, Any], path: str) -> list[UserBlock]:
    if item.get("role") != "user":
        text = "only messages of the role user can be sent: the conversation is stored here"
        raise _refused(f"{path}/role", text)
    content = item.get("content")
    if isinstance(content, str):
        return [TextContent(content)]
    if not isinstance(content, list):
        raise _refused(f"{path}/content", "content takes a text or a list of parts")
    return [_part(part, f"{path}/content/{n}") for n, part in enumerate(content)]


def _part(part: Any, path: str) -> UserBlock:
    match part:
        case {"type": "input_text", "text": str(text)}:
            return TextContent(text)
        case {"type": "input_image", "image_url": str(url)}:
            data, kind = _data(url)
            if data is None:
                return ImageContent(url=url)
            return ImageContent(data, mime_type=kind or "image/png")
        case {"type": "input_file", "file_url": str(url)}:
            return DocumentContent(url=url, name=part.get("filename"))
        case {"type": "input_file", "file_data": str(given)}:
            data, kind = _data(given)
            name = part.get("filename")
            return DocumentContent(
                given if data is None else data, mime_type=kind or "application/pdf", name=name
            )
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return AudioContent(data, mime_type=f"audio/{'mpeg' if kind == 'mp3' else kind}")
        case _:
            pass
    raise _refused(path, "this part is not supported: send text, an image, a file or audio inline")


def _data(url: str) -> tuple[str | None, str | None]:
    """The base64 text and the media type of a data URL."""
    found = _DATA_URL.match(url)
    return (url[found.end() :], found[1]) if found else (None, None)
