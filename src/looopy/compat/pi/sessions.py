"""
The sessions that pi and pipy's coding agent write: JSON lines that form a tree.

The first line is the header; each other one is an entry with an `id` and the `parentId` that it
follows. The last entry is the current position: the entries from there up to the root are the
active branch, the others are abandoned branches. Each line is kept as it came, unknown types
included, so that a session is written as it was read. Its message can be stored: NUL and half
characters, which a program may have printed, are U+FFFD there, as in results of tools.

    session = read_session("session.jsonl")
    await stores.messages.append("ada", session.messages)
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from looopy.compat.pi.wire import from_pi, to_pi
from looopy.errors import ValueRefused
from looopy.types.message import AssistantMessage, CustomMessage, Message, UserMessage
from looopy.types.storable import is_unicode, repair_json

VERSION = 3
_TEXTS = {  # the required fields of an entry
    "compaction": ("summary", "firstKeptEntryId"),
    "branch_summary": ("summary", "fromId"),
    "model_change": ("provider", "modelId"),
    "thinking_level_change": ("thinkingLevel",),
    "custom": ("customType",),
    "custom_message": ("customType",),
    "label": ("targetId",),
}
_KNOWN = frozenset({"message", "session_info", *_TEXTS})


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One line of a session after its header.

    Attributes:
        raw: The line, as it came.
        message: For a `message` entry, looopy's message. For `custom_message` and the summaries, a
            `CustomMessage` with their type as its role. Else `None`.
        line: Its number in the file, from 1.
    """

    type: str
    id: str
    parent_id: str | None
    raw: Mapping[str, Any]
    message: Message | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """
    The content of a session file.

    Attributes:
        header: The first line, with the newest version.
        entries: All others, in order.
        leaf_id: The current position; `None` at the beginning.
        bad_lines: Lines that were left out, by number, and why.
    """

    header: Mapping[str, Any]
    entries: Sequence[Entry] = ()
    leaf_id: str | None = None
    bad_lines: Mapping[int, str] = field(default_factory=dict)

    @property
    def branch(self) -> list[Entry]:
        """The entries from the root to the leaf."""
        by_id = {entry.id: entry for entry in self.entries}
        path: list[Entry] = []
        at = self.leaf_id
        while at is not None:
            path.append(by_id[at])
            at = by_id[at].parent_id
        return path[::-1]

    @property
    def messages(self) -> list[Message]:
        """All messages of the active branch, also ones that a summary covers."""
        return [entry.message for entry in self.branch if entry.message is not None]

    @property
    def shown(self) -> list[Message]:
        """
        The messages that pi's model would see: the newest summary, what it left, and what came
        since; summaries and messages of extensions as the user's.
        """
        branch = self.branch
        cut = max((i for i, e in enumerate(branch) if e.type == "compaction"), default=None)
        if cut is not None:
            kept_id = branch[cut].raw["firstKeptEntryId"]
            kept = next((i for i, e in enumerate(branch[:cut]) if e.id == kept_id), cut)
            branch = [branch[cut], *branch[kept:cut], *branch[cut + 1 :]]
        return [_as_said(e, e.message) for e in branch if e.message is not None]

    @property
    def name(self) -> str | None:
        """The user's name for it."""
        named = (e.raw.get("name") for e in reversed(self.entries) if e.type == "session_info")
        return next(named, None)

    @property
    def model(self) -> tuple[str, str] | None:
        """Provider and name of the model used last."""
        for entry in reversed(self.branch):
            if entry.type == "model_change":
                return str(entry.raw["provider"]), str(entry.raw["modelId"])
            if isinstance(entry.message, AssistantMessage):
                return entry.message.provider, entry.message.model
        return None

    @property
    def thinking_level(self) -> str:
        """Chosen last; `off` before."""
        changes = (e for e in reversed(self.branch) if e.type == "thinking_level_change")
        return next((str(e.raw["thinkingLevel"]) for e in changes), "off")

    @property
    def labels(self) -> dict[str, str]:
        """Labels by the id of the entry that bears each."""
        found: dict[str, str] = {}
        for entry in self.entries:
            if entry.type == "label":
                label = entry.raw.get("label")
                found.pop(entry.raw["targetId"], None)
                if label:
                    found[entry.raw["targetId"]] = str(label)
        return found

    @property
    def unknown(self) -> list[Entry]:
        """Entries of unknown types; kept, and written again."""
        return [entry for entry in self.entries if entry.type not in _KNOWN]

    def extended(self, messages: Iterable[Message]) -> Session:
        """This session with *messages* after its leaf."""
        entries, ids, leaf = list(self.entries), {e.id for e in self.entries}, self.leaf_id
        for message in messages:
            entry_id = _new_id(ids)
            raw = {
                "type": "message",
                "id": entry_id,
                "parentId": leaf,
                "timestamp": _iso(message.timestamp),
                "message": to_pi(message),
            }
            entries.append(Entry("message", entry_id, leaf, raw, message, len(entries) + 2))
            ids.add(entry_id)
            leaf = entry_id
        return Session(self.header, tuple(entries), leaf, self.bad_lines)

    def lines(self) -> list[str]:
        """The lines of its file."""
        return [_line(self.header, 1), *(_line(e.raw, i) for i, e in enumerate(self.entries, 2))]


def read_session(
    source: str | os.PathLike[str] | Iterable[str],
    *,
    leaf_id: str | None = None,
    skip_bad_lines: bool = False,
) -> Session:
    """
    Read a session of version 1, 2 or 3.

    Args:
        source: A file's path, or its lines.
        leaf_id: The current position; by default the last entry, as in pi.
        skip_bad_lines: Leave out lines of invalid JSON, as pi does; `Session.bad_lines` lists them.

    Raises:
        ValueRefused: The header is missing, or a line is not an entry; the message names the line,
            as does the fact `line`, and `path` the place in it.
        OSError: The file cannot be read.
    """
    given: Iterable[str]
    if isinstance(source, (str, os.PathLike)):
        # Only a newline ends a line: JSON may hold other separators as they are.
        given = Path(source).read_text(encoding="utf-8").split("\n")
    else:
        given = source
    header: Mapping[str, Any] | None = None
    version = VERSION
    entries: list[Entry] = []
    ids: set[str] = set()
    bad: dict[int, str] = {}
    for number, text in enumerate(given, 1):
        if not text.strip():
            continue
        try:
            raw = _object(text, number)
        except ValueRefused as error:
            if header is None or not skip_bad_lines:
                raise
            bad[number] = str(error)
            continue
        if header is None:
            version = raw.get("version") or 1
            header = _header(raw, number)
        else:
            entry = _entry(raw, number, entries, ids, version)
            ids.add(entry.id)
            entries.append(entry)
    if header is None:
        raise ValueRefused("line 1: a session begins with its header", path="", line=1)
    if leaf_id is not None and leaf_id not in ids:
        raise ValueRefused(f"no entry has the id {leaf_id!r}", path="/id")
    last = entries[-1].id if entries else None
    return Session(header, tuple(entries), leaf_id or last, bad)


def write_session(
    path: str | os.PathLike[str] | None,
    source: Session | Iterable[Message],
    *,
    session_id: str | None = None,
    cwd: str = "",
    overwrite: bool = False,
) -> Session:
    """
    Write a session of version 3, which pi reads.

    Args:
        path: The file; it is written whole or not at all. `None`: only return the lines.
        source: A session, which is written as it is; or messages, which become a new one.
        session_id: The id of a new session; a random one by default.
        cwd: The folder of a new session.
        overwrite: True to replace an existing file.

    Returns:
        The written text.

    Raises:
        ValueRefused: A message cannot be written faithfully, or the file exists.
        OSError: The file cannot be written.
    """
    if isinstance(source, Session):
        session = source
    else:
        header = {
            "type": "session",
            "version": VERSION,
            "id": session_id or str(uuid.uuid4()),
            "timestamp": _iso(int(datetime.now(UTC).timestamp() * 1000)),
            "cwd": cwd,
        }
        session = Session(header).extended(source)
    text = "".join(line + "\n" for line in session.lines())
    if path is not None:
        target = Path(path)
        if target.exists() and not overwrite:
            raise ValueRefused(f"{target.name} exists: pass overwrite=True to replace it", path="")
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=target.name, delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(target)
    return session


# --- lines ---------------------------------------------------------------------------------------


def _refused(line: int, path: str, why: str) -> ValueRefused:
    return ValueRefused(f"line {line}: {path or 'the line'}: {why}", path=path, line=line)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(text: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _refused(number, "", f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _refused(number, "", "not a JSON object")
    return value


def _header(raw: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    if raw.get("type") != "session" or not isinstance(raw.get("id"), str):
        raise _refused(number, "", "a session begins with its header, of type session, with an id")
    version = raw.get("version", 1)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise _refused(number, "/version", f"{version!r} is newer than {VERSION}, or no version")
    return raw if version == VERSION else {**raw, "version": VERSION}


def _entry(
    raw: dict[str, Any], number: int, before: Sequence[Entry], ids: set[str], version: int
) -> Entry:
    kind = raw.get("type")
    if not isinstance(kind, str) or not kind or kind == "session":
        raise _refused(number, "/type", "an entry has a type, and there is one header")
    if version == 1:  # a list without ids, each entry after the one before
        raw = _of_version_1(raw, before, ids)
    said = raw.get("message")
    if version < VERSION and isinstance(said, dict) and said.get("role") == "hookMessage":
        raw = {**raw, "message": {**said, "role": "custom"}}
    entry_id, parent_id = raw.get("id"), raw.get("parentId")
    if not isinstance(entry_id, str) or not entry_id:
        raise _refused(number, "/id", "an entry has an id")
    if entry_id in ids:
        raise _refused(number, "/id", f"{entry_id!r} is there already")
    if parent_id is not None and parent_id not in ids:
        raise _refused(number, "/parentId", f"{parent_id!r} is not an entry before this one")
    for name in _TEXTS.get(kind, ()):
        if not isinstance(raw.get(name), str):
            raise _refused(number, f"/{name}", "must be text")
    try:
        message = _message_of(kind, repair_json(raw))
    except ValueRefused as error:
        raise _refused(number, str(error.facts.get("path", "")), str(error)) from None
    return Entry(kind, entry_id, parent_id, raw, message, number)


def _of_version_1(raw: dict[str, Any], before: Sequence[Entry], ids: set[str]) -> dict[str, Any]:
    named = {**raw, "id": raw.get("id") or _new_id(ids)}
    named["parentId"] = before[-1].id if before else None
    index = raw.get("firstKeptEntryIndex")
    if raw.get("type") == "compaction" and "firstKeptEntryId" not in raw:
        # The index counts the header too.
        known = isinstance(index, int) and 1 <= index <= len(before)
        named["firstKeptEntryId"] = before[index - 1].id if known and index is not None else ""
    return named


def _message_of(kind: str, raw: Mapping[str, Any]) -> Message | None:
    if kind == "message":
        return from_pi(raw.get("message"), "/message")
    if kind not in ("custom_message", "compaction", "branch_summary"):
        return None
    said = raw.get("content", "") if kind == "custom_message" else raw["summary"]
    left_out = ("type", "id", "parentId", "timestamp", "content", "summary")
    metadata = {key: value for key, value in raw.items() if key not in left_out}
    return CustomMessage(kind, said, metadata, timestamp=_ms(raw.get("timestamp")))


def _as_said(entry: Entry, message: Message) -> Message:
    """A message as pi's model would see it."""
    if entry.type == "message" or not isinstance(message, CustomMessage):
        return message
    if entry.type == "custom_message":
        content = message.content
        said = from_pi({"role": "user", "content": content, "timestamp": message.timestamp}, "")
        return said if isinstance(said, UserMessage) else message
    what = "before this" if entry.type == "compaction" else "on a branch that was left"
    return UserMessage(
        f"Summary of what was said {what}:\n\n{message.content}", timestamp=message.timestamp
    )


def _line(raw: Mapping[str, Any], number: int) -> str:
    try:
        line = json.dumps(raw, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if is_unicode(line):
            return line
        return json.dumps(raw, allow_nan=False, separators=(",", ":"))  # lone surrogates, escaped
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(number, "", f"cannot be written as JSON ({error})") from None


def _new_id(ids: set[str]) -> str:
    """Eight hexadecimal digits, as pi's, that are not among *ids*."""
    while (found := uuid.uuid4().hex[:8]) in ids:
        pass
    return found


def _iso(ms: int) -> str:
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        when = datetime.fromtimestamp(0, UTC)  # the message has its own, whatever that is
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(text: Any) -> int:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return 0
