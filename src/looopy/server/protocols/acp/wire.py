"""
JSON-RPC over two byte streams, one message a line, for the connection of the SDK.

The SDK's own transport skips a line that is not JSON, ends at one that is JSON but not a request,
and lets `_meta` of a client replace the parameters beside it. This one answers such lines in the
protocol's own form, and names the place of a value that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from looopy.server.protocols.stdio import MAX_LINE_BYTES, TOO_LONG, Lines

MAX_DEPTH: Final = 64
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_INVALID_PARAMS: Final = -32602


class Refused(Exception):
    """A line that is not a message; *reply* is the answer to it."""

    def __init__(self, code: int, message: str, request_id: str | int | None = None) -> None:
        super().__init__(message)
        self.reply = {
            "jsonrpc": "2.0",
            "id": request_id,
            "error": {"code": code, "message": message},
        }


class Wire:
    """A `Transport` of the SDK over two file descriptors, which it does not close."""

    def __init__(self, reader: int, writer: int) -> None:
        self._lines = Lines(reader, writer)
        self._params: dict[str | int | None, Any] = {}  # of requests that have no answer yet

    async def receive(self) -> dict[str, Any] | None:
        """The next message; `None` at the end of the stream."""
        while (line := await self._lines.read()) is not None:
            if not line.strip() and line != TOO_LONG:
                continue
            try:
                message = message_in(line)
            except Refused as refused:
                await self.send(refused.reply)
                continue
            if "method" in message and "id" in message:
                self._params[message["id"]] = message.get("params")
            return message
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """
        Write a message.

        Raises:
            ConnectionError: The client has closed its end.
        """
        if "error" in message and "method" not in message:
            message = {**message, "error": _with_place(message, self._params)}
        if "method" not in message:
            self._params.pop(message.get("id"), None)
        await self._lines.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def close(self) -> None:
        """Write no more."""
        self._lines.close()


def message_in(line: bytes) -> dict[str, Any]:
    """
    The message in a line.

    `_meta` of its parameters is moved to a key that the SDK passes on as one argument, `meta`.

    Raises:
        Refused: It is not one.
    """
    if line == TOO_LONG:
        raise Refused(_PARSE_ERROR, f"the message has more than {MAX_LINE_BYTES:,} bytes")
    try:
        message = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise Refused(_PARSE_ERROR, "the message is nested too deeply") from None
    except ValueError as error:
        raise Refused(_PARSE_ERROR, f"invalid JSON: {error}") from None
    if not isinstance(message, dict):
        raise Refused(_INVALID_REQUEST, "a message is a JSON object; batches are not supported")
    known = message.get("id")
    if isinstance(known, bool) or not isinstance(known, (str, int, type(None))):
        raise Refused(_INVALID_REQUEST, "id takes text or a whole number")
    if not _is_shallow(message, MAX_DEPTH):
        raise Refused(_INVALID_REQUEST, f"the message has more than {MAX_DEPTH} levels", known)
    if "method" not in message:
        if "id" in message:
            return message
        raise Refused(_INVALID_REQUEST, "a message has a method, or an id and a result")
    if not isinstance(message["method"], str):
        raise Refused(_INVALID_REQUEST, "method takes text", known)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise Refused(_INVALID_REQUEST, "params takes an object", known)
    if params and "_meta" in params:
        message["params"] = {**params, "_meta": {"meta": params["_meta"]}}
    return message


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _is_shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return True
    if not levels:
        return False
    inner = value.values() if isinstance(value, dict) else value
    return all(_is_shallow(one, levels - 1) for one in inner)


def _with_place(message: Mapping[str, Any], params: Mapping[Any, Any]) -> dict[str, Any]:
    """The error of *message*; the SDK's list of misfits becomes a place and a sentence."""
    error = dict(message["error"])
    data = error.get("data")
    misfits = data.get("errors") if isinstance(data, Mapping) else None
    if error.get("code") != _INVALID_PARAMS or not isinstance(misfits, list) or not misfits:
        if error.get("data") is None:
            error.pop("data", None)
        return error
    given = params.get(message.get("id"))
    first = misfits[0]
    path = pointer(first.get("loc", ()), given)
    said = f"{path or '/'}: {first.get('msg', 'does not fit')}"
    return {**error, "message": said, "data": {"code": "value_refused", "path": path}}


def pointer(place: Sequence[str | int], given: Any) -> str:
    """
    A place of pydantic's as a JSON pointer into *given*.

    pydantic also names the kinds of a union that it tried; they are not part of the value.
    """
    parts: list[str] = []
    node = given
    for index, part in enumerate(place):
        listed: Any = dict(enumerate(node)) if isinstance(node, list) else node
        if isinstance(listed, dict) and part in listed:
            node = listed[part]
        elif index < len(place) - 1 or not isinstance(node, dict):
            continue
        parts.append(str(part).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{part}" for part in parts)
