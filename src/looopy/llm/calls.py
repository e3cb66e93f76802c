"""
Puts the pieces of tool calls together, for every wire format, also those of a distorted stream.

Gateways move the index of a call, change or omit its id, and repeat its head or its arguments. A
piece belongs to the call with its id, or else with its name, or else to the open one; a piece
without a name hardly ever begins a call. A head that may repeat another one begins a call, and
`Calls.asked` leaves that call out if it adds nothing: no tool runs twice for a repetition. Two
heads with ids of their own are two calls, also if they are equal.

`arguments_of` reads the text of the arguments: encoded twice, repeated, after `{}`, before closing
tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from looopy.types.arguments import read_first, read_json

_EMPTY: Final = ("", "{}")
# Compiled when they are first needed, and kept by `re`.
_MARK: Final = r'(?s:\\.?)|["{}\[\]]'
# Closing tags of templates, such as </tool_call>, <|im_end|> and [/TOOL_CALLS], and odd brackets.
_CLOSING: Final = r"(?:[\s}\]]|```|</[^<>\s]{0,64}>?|<[|\uff5c][^<>]{0,64}>?|\[/\w{0,64}\]?)*"
_MOST_ENCODINGS: Final = 3
_MOST_REPETITIONS: Final = 16


class _Text(Protocol):
    """The pieces of a call's arguments so far."""

    parts: list[str]


class Call:
    """
    One call as it grows.

    Attributes:
        position: Its block's, in the message.
        call_id: The server's first id for it, or empty.
        name: The tool's, or empty.
        again: The call that this one may repeat.
        own_id: It and `again` have different ids.
        moved: It began at an index that no other call had.
    """

    __slots__ = (
        *("_depth", "_quoted", "_read", "_skip", "_text", "_whole"),
        *("again", "call_id", "moved", "name", "own_id", "position"),
    )

    def __init__(self, position: int, call_id: str, name: str, text: _Text) -> None:
        self.position = position
        self.call_id = call_id
        self.name = name
        self.again: Call | None = None
        self.own_id = False
        self.moved = False
        self._text = text
        self._read = 0  # parts that were searched for the end of the first value
        self._skip = 0  # characters that a backslash at the end of the part before them covers
        self._depth = 0
        self._quoted = False
        self._whole = False

    @property
    def blank(self) -> bool:
        """True without arguments, or with the `{}` alone that some servers send first."""
        parts = self._text.parts
        return len(parts) <= 2 and "".join(parts).strip() in _EMPTY

    @property
    def empty(self) -> bool:
        """True before the first piece of the arguments."""
        return not self._text.parts

    @property
    def whole(self) -> bool:
        """True once the arguments have a whole value, perhaps with more after it."""
        for part in self._text.parts[self._read :] if not self._whole else ():  # each part once
            self._search(part)
            self._read += 1
            if self._read <= 2 and "".join(self._text.parts[: self._read]).strip() == "{}":
                self._whole = False
        return self._whole

    @property
    def key(self) -> str:
        """The arguments, in a form that is the same for equal ones."""
        pieces = self._text.parts
        read = arguments_of("".join(pieces), pieces)
        return "" if self.blank else json.dumps(read, sort_keys=True)

    def _search(self, part: str) -> None:
        begin, self._skip = self._skip, 0
        for found in re.compile(_MARK).finditer(part, begin):
            mark = found[0]
            if mark[0] == "\\":
                self._skip = 2 - len(mark)
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
            self._whole = self._whole or not (self._depth > 0 or self._quoted)


class Calls:
    """The calls of one message."""

    __slots__ = ("_at", "_by_id", "_by_name", "_fickle", "all")

    def __init__(self) -> None:
        self.all: list[Call] = []
        self._at: dict[int, Call] = {}  # the newest at each index of the provider
        self._by_id: dict[str, Call] = {}
        self._by_name: dict[str, Call] = {}
        self._fickle = False  # ids changed within a call

    def find(self, index: int | None, call_id: str, name: str, piece: str) -> Call | None:
        """The call that a piece belongs to; `None` if it begins one: see `begin`."""
        at = None if index is None else self._at.get(index)
        if at is not None and not name and call_id in ("", at.call_id):
            return at  # as nearly all pieces
        if not self.all:
            return None
        same = self._by_id.get(call_id) if call_id else None
        if same is not None:
            found = None if name and self._reuses_id(same, at, index, name, piece) else same
        elif name:
            found = self._named(at, index, call_id, name, piece)
        else:
            found = self._nameless(at, index, call_id, piece)
        if found is not None:
            if index is not None:
                self._at.setdefault(index, found)
            if name and not found.name:
                self._by_name[name] = found
                found.again = None
            if call_id and not found.call_id:
                found.own_id = bool(self._by_id)
                self._by_id[call_id] = found
            found.call_id, found.name = found.call_id or call_id, found.name or name
        return found

    def begin(self, index: int | None, call_id: str, name: str, position: int, text: _Text) -> Call:
        """Begin a call whose block is at *position*, and whose arguments are in *text*."""
        call = Call(position, call_id, name, text)
        before = self._by_id.get(call_id) if call_id else None
        call.moved = index is not None and index not in self._at
        last = self.all[-1] if self.all else None
        if before is None and index is None:
            before = self._by_name.get(name) if name else last
        elif before is None and index is not None and not (call.moved and call_id and name):
            before = self._at.get(index) or (last if last and (last.call_id or not name) else None)
        while before is not None and not before.name and before.again is not None:
            before = before.again
        if before is not None and (before.name in ("", name) or not name):
            call.again = before
            call.own_id = bool(name and call_id and self._by_id) and call_id not in self._by_id
        self._at[len(self.all) if index is None else index] = call
        if call_id:
            self._by_id[call_id] = call
        if name:
            self._by_name[name] = call
        self.all.append(call)
        return call

    def asked(self) -> list[Call]:
        """The calls that the model asked for: without repetitions, and pieces of no call."""
        calls = [call for call in self.all if call.name or not call.blank]
        if not any(call.again for call in calls):
            return calls
        kept: dict[Call, None] = {}
        firsts: dict[Call, Call] = {}
        said: dict[Call, dict[str, Call]] = {}  # by the arguments, for each that is repeated
        for call in calls:
            again = None if call.own_id and not self._fickle else call.again
            first = firsts[call] = call if again is None else firsts.get(again, again)
            others, key = said.setdefault(first, {}), call.key
            if key in others and (key or not call.moved):
                continue
            if others and not key and "" not in others:
                continue
            if key and (empty := others.pop("", None)) is not None:
                del kept[empty]
            others[key] = call
            kept[call] = None
        return list(kept)

    def _reuses_id(
        self, same: Call, at: Call | None, index: int | None, name: str, piece: str
    ) -> bool:
        """True if another call bears the id of *same*: one for all, or the tool's name."""
        if same.whole and _opens(piece):
            return True
        if index is None or at is same:
            return False
        return name != same.name or (not piece and (same.whole or at is None))

    def _named(
        self, at: Call | None, index: int | None, call_id: str, name: str, piece: str
    ) -> Call | None:
        """The call for a piece with a *name*, and with no known id."""
        said = piece.strip()
        if index is not None and at is None:
            last = self.all[-1]  # perhaps this is its tail, after a head at another index
            if not piece or last.name != name:
                return None
            tail = not _opens(said)
            if last.call_id and not call_id:
                tail = tail or not last.whole or said == "{}"
            return last if tail else None
        call = at
        if call is None:
            call = self._by_name.get(name) if self.all[-1].name else self.all[-1]
        if call is None or call.name not in ("", name):
            return None
        if call_id and call.call_id:  # another id: a second call, or ids that change
            if call.whole:
                more = bool(piece) and not _opens(said)
            elif call.blank:
                more = call.empty and said not in _EMPTY
            else:
                more = bool(piece)
            if not more and (call.whole or not self._fickle):
                return None
            self._fickle = True
            return call
        begins = not piece or (_opens(said) and (said != "{}" or not call.call_id))
        return None if call.whole and begins else call

    def _nameless(
        self, at: Call | None, index: int | None, call_id: str, piece: str
    ) -> Call | None:
        """The call for a piece without a name, and with no known id."""
        call = self.all[-1] if at is None else at
        other = bool(call_id and call.call_id) or (index is not None and at is None)
        if other and call.whole and _opens(piece) and piece.strip() != "{}":
            return None
        self._fickle = self._fickle or bool(call_id and call.call_id and piece.strip())
        return call


def _opens(piece: str) -> bool:
    """True if a value of its own may begin with *piece*."""
    return piece.lstrip()[:1] in ("{", '"')


def arguments_of(raw: str, pieces: Sequence[str] = ()) -> tuple[dict[str, Any], str | None]:
    """
    Read a call's arguments.

    Args:
        raw: The model's text. Blank means no arguments.
        pieces: The pieces that *raw* came in.

    Returns:
        The arguments and `None`; or, for anything but a JSON object that a store can keep, an empty
        object and *raw* as it came.
    """
    try:
        value = _decoded(read_json(raw)) if raw.strip() else {}
    except ValueError:
        value = _first(raw, pieces)
    return (value, None) if isinstance(value, dict) else ({}, raw)


def _decoded(value: Any) -> Any:
    """*value*, or the object in a text that was encoded more than once."""
    for _ in range(_MOST_ENCODINGS):
        if not isinstance(value, str):
            break
        value = read_json(value) if value.strip() else {}
    return value


def _first(raw: str, pieces: Sequence[str]) -> Any:
    """The object that *raw* begins with, if the rest repeats it or closes it; otherwise `None`."""
    try:
        value, end = read_first(raw)
        value, text, rest = _decoded(value), raw[:end].strip(), raw[end:]
        for _ in range(_MOST_REPETITIONS):
            rest = re.sub(_CLOSING, "", rest, count=1)
            if text.startswith(rest):  # the end, or a repetition that was cut
                return value
            found, end = read_first(rest)
            found, rest = _decoded(found), rest[end:]
            if value and found and found != value:
                return None
            value = value or found
    except ValueError:
        return _last(pieces)
    return None


def _last(pieces: Sequence[str]) -> Any:
    """The last piece's value, if that piece has all of the others again; otherwise `None`."""
    *before, last = pieces or ("",)
    grown = all(last.startswith(piece) for piece in before)  # each piece had all so far
    if not before or not (grown or last.startswith("".join(before))):
        return None
    try:
        return _decoded(read_json(last))
    except ValueError:
        return None
