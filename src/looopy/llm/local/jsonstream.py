"""
Read a model's JSON answer while it is still being written.

An answer is `{"reply": "..."}` or `{"tool": "...", "arguments": {...}}`. A reply is worth showing
letter by letter, so as soon as an answer turns out to be one, its string is decoded piece by piece;
pieces may end anywhere, in the middle of an escape or between the halves of a surrogate pair. A
call means nothing before it is whole and is kept until the end. Every character is looked at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

_LONGEST_HEAD = 1_000
_REPLY_HEAD = '{"reply":"'
_REPLY_START = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_SPACE = re.compile(r"\s+")
_WHOLE = re.compile(r'(?:[^"\\]+|\\[^u]|\\u.{4})*', re.DOTALL)
_JSON = json.JSONDecoder(strict=False)
_HIGH = range(0xD800, 0xDC00)  # the first halves of surrogate pairs
_UNICODE_ESCAPE_LENGTH = 6


class StringDecoder:
    """
    Decodes one JSON string, from after the opening quote, exactly as `json` would.

    `json` itself decodes each piece, up to the last escape that is complete. Half of a surrogate
    pair waits for the other half.
    """

    __slots__ = ("_pending", "closed")

    def __init__(self) -> None:
        self._pending = ""  # an escape that is not complete, or half of a pair
        self.closed = False

    def feed(self, piece: str) -> str:
        """
        Decode the next piece; text after the closing quote is ignored.

        Raises:
            ValueError: This is not JSON string.
        """
        if self.closed:
            return ""
        raw = self._pending + piece
        match = _WHOLE.match(raw)
        end = match.end() if match else 0
        self.closed = raw.startswith('"', end)
        text = _decoded(raw[:end])
        if not self.closed and text and ord(text[-1]) in _HIGH and text[-1] != raw[end - 1]:
            end, text = end - _UNICODE_ESCAPE_LENGTH, text[:-1]
        self._pending = raw[end:]
        return text

    def flush(self) -> str:
        """The rest of a string that broke off: a lone half of a pair, or nothing."""
        match = _WHOLE.match(self._pending)
        return "" if self.closed or match is None else _decoded(match.group())


def _decoded(inside: str) -> str:
    try:
        text: str = _JSON.decode(f'"{inside}"')
    except ValueError as error:
        raise ValueError(f"{inside!r} has a part that is not a JSON escape") from error
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The content of an answer that has ended.

    Attributes:
        kind: `"unknown"` if it broke off too early.
        complete: It was not cut off.
        text: The rest of a reply that `AnswerReader.feed` has not given yet.
        tool_name: The tool of a complete call.
        arguments: The arguments of a complete call, as JSON.
    """

    kind: Literal["reply", "call", "unknown"]
    complete: bool
    text: str = ""
    tool_name: str = ""
    arguments: str = ""


class AnswerReader:
    """Reads one answer."""

    __slots__ = ("_decoder", "_parts", "_undecided")

    def __init__(self) -> None:
        self._undecided = True  # so far it may become a reply of text
        self._parts: list[str] = []  # what came, until it turns out to be a reply of text
        self._decoder: StringDecoder | None = None

    def feed(self, piece: str) -> str:
        """
        Read the next piece and return what it adds to the reply.

        Raises:
            ValueError: This is not JSON.
        """
        if self._decoder is not None:
            return self._decoder.feed(piece)
        self._parts.append(piece)
        if not self._undecided:
            return ""
        so_far = "".join(self._parts)
        self._undecided = len(so_far) <= _LONGEST_HEAD  # spaces without end are no reply
        if match := _REPLY_START.match(so_far):
            self._decoder = StringDecoder()
            self._parts.clear()
            return self._decoder.feed(so_far[match.end() :])
        self._undecided &= _REPLY_HEAD.startswith(_SPACE.sub("", so_far))
        return ""

    def finish(self) -> Answer:
        """Return the kind of the answer; `ValueError` if it is neither a reply nor a call."""
        if self._decoder is not None:
            left = self._decoder.flush()
            return Answer(kind="reply", complete=self._decoder.closed, text=left)
        raw = "".join(self._parts)
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            is_call = _SPACE.sub("", raw).startswith('{"tool"')
            return Answer(kind="call" if is_call else "unknown", complete=False)
        return _answer_of(value)


def _answer_of(value: Any) -> Answer:
    if isinstance(value, dict) and isinstance(value.get("tool"), str):
        arguments = json.dumps(value.get("arguments", {}), ensure_ascii=False)
        return Answer(kind="call", complete=True, tool_name=value["tool"], arguments=arguments)
    if isinstance(value, dict) and "reply" in value:
        return Answer(
            kind="reply", complete=True, text=json.dumps(value["reply"], ensure_ascii=False)
        )
    raise ValueError("the answer is neither a reply nor a tool call")
