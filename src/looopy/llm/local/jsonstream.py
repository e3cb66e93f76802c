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

_PLAIN = re.compile(r'[^"\\]+')
_LONGEST_HEAD = 1_000
_REPLY_HEAD = '{"reply":"'
_REPLY_START = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_SPACE = re.compile(r"\s+")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_HEX = re.compile("[0-9a-fA-F]{4}")
_UNICODE_ESCAPE_LENGTH = 6
_HIGH = range(0xD800, 0xDC00)  # the halves of a surrogate pair
_LOW = range(0xDC00, 0xE000)


class StringDecoder:
    """Decodes one JSON string, from after the opening quote, exactly as `json` would."""

    __slots__ = ("_high", "_pending", "closed")

    def __init__(self) -> None:
        self._pending = ""  # an escape that is not complete
        self._high = ""  # the first half of a surrogate pair
        self.closed = False

    def feed(self, piece: str) -> str:
        """
        Decode the next piece; what follows the closing quote is ignored.

        Raises:
            ValueError: This is no JSON string.
        """
        data = self._pending + piece
        self._pending = ""
        out: list[str] = []
        at = 0
        while at < len(data) and not self.closed:
            if match := _PLAIN.match(data, at):
                out.append(self._take_high() + match.group())
                at = match.end()
            elif data[at] == '"':
                out.append(self._take_high())
                self.closed = True
            else:
                taken = self._escape(data[at : at + _UNICODE_ESCAPE_LENGTH], out)
                if not taken:
                    self._pending = data[at:]
                    break
                at += taken
        return "".join(out)

    def flush(self) -> str:
        """What is left when the string broke off: a lone half of a pair, or nothing."""
        return self._take_high()

    def _take_high(self) -> str:
        high, self._high = self._high, ""
        return high

    def _escape(self, text: str, out: list[str]) -> int:
        """Decode the escape at the beginning of *text*; 0 when more of it has to come first."""
        if len(text) == 1:
            return 0
        if text[1] != "u":
            if text[1] not in _ESCAPES:
                raise ValueError(f"{text[:2]!r} is no JSON escape")
            out.append(self._take_high() + _ESCAPES[text[1]])
            return 2
        if len(text) < _UNICODE_ESCAPE_LENGTH:
            return 0
        if not _HEX.fullmatch(text, 2):
            raise ValueError(f"{text!r} is no JSON escape")
        code = int(f"0x{text[2:]}", base=0)
        if self._high and code in _LOW:
            high = ord(self._take_high())
            out.append(chr(0x10000 + ((high - _HIGH.start) << 10) + (code - _LOW.start)))
        else:
            out.append(self._take_high())
            if code in _HIGH:
                self._high = chr(code)
            else:
                out.append(chr(code))
        return _UNICODE_ESCAPE_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What an answer was, once it ended.

    Attributes:
        kind: `"unknown"` when it broke off too early to tell.
        complete: It was not cut off.
        text: The rest of a reply that `AnswerReader.feed` has not given yet.
        tool_name: Of a complete call.
        arguments: Of a complete call, as JSON.
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
            ValueError: This is no JSON.
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
        """
        Say what the answer was.

        Raises:
            ValueError: It is complete JSON, but neither a reply nor a call.
        """
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
