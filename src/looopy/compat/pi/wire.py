"""
Messages as pi writes them: our fields, in camel case.

Keys of ours are read as well, since pipy writes them so. Only keys that belong to a message are
renamed, never fields of a tool's arguments or details. An application's own role has its fields
beside its name; here they are the metadata of a `CustomMessage`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from looopy.errors import ValueRefused
from looopy.types.message import (
    DOLLARS,
    NO_COST,
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
)
from looopy.types.message_json import message_from_json, message_to_json, usage_to_json

_ROLES = ("user", "assistant", "toolResult")
_OWN = ("role", "content", "timestamp", "metadata")
_UPPER = re.compile(r"(?<!^)(?=[A-Z])")


def to_pi(message: Message) -> dict[str, Any]:
    """
    *message* as pi's JSON object.

    Raises:
        ValueRefused: It holds what cannot be read back.
    """
    if isinstance(message, CustomMessage):
        data: dict[str, Any] = {"role": message.role, "timestamp": message.timestamp}
        if message.content != "":
            data["content"] = message.content
        if any(key in _OWN for key in message.metadata):
            return {**data, "metadata": dict(message.metadata)}
        return {**data, **message.metadata}
    data = message_to_json(message, compact=True)
    if isinstance(message, AssistantMessage):  # required by pi
        data = {
            "api": "",
            "provider": "",
            "model": "",
            **data,
            "usage": usage_to_json(message.usage),
        }
        if message.usage.cost is None:  # pi reads it without asking, and has no word for unknown
            data["usage"]["cost"] = dict.fromkeys(DOLLARS, 0.0)
    elif isinstance(message, ToolResultMessage):
        data["is_error"] = message.is_error
    return _renamed(data, _camel)


def from_pi(data: Any, path: str = "") -> Message:
    """
    The message in pi's JSON object *data*.

    Raises:
        ValueRefused: It is not a message; `path` points at the place.
    """
    if not isinstance(data, Mapping):
        raise ValueRefused(f"{path}: a message is a JSON object", path=path)
    role = data.get("role")
    try:
        if role in _ROLES:
            message = message_from_json(_renamed(data, _snake))
            if isinstance(message, AssistantMessage) and message.usage.cost == NO_COST:
                return replace(message, usage=replace(message.usage, cost=None))
            return message
        inner = data.get("metadata")
        rest = {key: value for key, value in data.items() if key not in _OWN}
        metadata = {**rest, **inner} if isinstance(inner, Mapping) else rest
        plain = {"role": role, "content": data.get("content", ""), "metadata": metadata}
        if data.get("timestamp") is not None:
            plain["timestamp"] = data["timestamp"]
        return message_from_json(plain)
    except ValueRefused as error:
        place = f"{path}{error.facts.get('path', '')}"
        raise ValueRefused(str(error), path=place) from None


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.title() for word in rest)


def _snake(key: str) -> str:
    return _UPPER.sub("_", key).lower()


def _renamed(data: Mapping[str, Any], rename: Any) -> dict[str, Any]:
    """*data* with the keys of the message itself renamed, and of its blocks and its usage."""
    named: dict[str, Any] = _with_keys(data, rename)
    content, usage = named.get("content"), named.get("usage")
    if isinstance(content, list):
        named["content"] = [_with_keys(block, rename) for block in content]
    if isinstance(usage, Mapping):  # the cost is in it
        named["usage"] = {rename(key): _with_keys(part, rename) for key, part in usage.items()}
    return named


def _with_keys(part: Any, rename: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {rename(key): value for key, value in part.items()}
