"""
Writes `rows.jsonl`: each line is a kind of text, its name, the text, and what is read from it.

    python -m tests.unit.stores.rows.golden.make

The file is the evidence of how rows were written and read before a change of the codec. Write it
again only if that was meant to change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tests.unit.stores.rows.golden import values

from looopy.errors import ValueRefused
from looopy.stores import codec
from looopy.stores.contexts.lines import (
    artifact_from_json,
    artifact_to_json,
    context_from_json,
    context_to_json,
    entry_from_json,
    entry_to_line,
    event_to_line,
    turn_from_json,
    turn_to_json,
)
from looopy.stores.records import ContextRecord, ContextState, Entry, MessageRecord, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rows.reading import DAMAGED, decode_message, read_message
from looopy.stores.rows.writing import message_text, usage_text
from looopy.types.artifact import Artifact
from looopy.types.event import event_to_json
from looopy.types.message import CustomMessage
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.state import HeldCall, held_to_json, pending_to_json
from looopy.types.storable import dump

PATH = Path(__file__).with_name("rows.jsonl")
Read = Callable[[str], Any]


def shown(value: Any) -> str:
    """*value* as Python writes it, without defaults: a field that is added changes no line."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = []
        for one in fields(value):
            default = one.default if one.default_factory is MISSING else one.default_factory()
            part = shown(getattr(value, one.name))
            if one.name == "timestamp" or part != shown(default):
                parts.append(f"{one.name}={part}")
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key!r}: {shown(part)}" for key, part in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(shown(part) for part in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return repr(value)


def _message(text: str) -> str:
    """The message of a row; the reason of a damaged one may be put in other words."""
    found = read_message(text, position=4)
    if isinstance(found, CustomMessage) and found.role == DAMAGED:
        kept = dict(found.metadata)
        return f"damaged: {kept['position']}, {kept['path']!r}, {kept['body'] == text}"
    return shown(found)


def _strictly(text: str) -> str:
    """The message, or the place at which it is refused."""
    try:
        return shown(decode_message(text))
    except ValueRefused as refused:
        return f"refused: {refused.path!r}"
    except ValueError:
        return "no JSON"


def _event(text: str) -> str:
    kind, body = json.loads(text)
    call = values.CALL
    found = rows.decode_event("ada", (7, 2, 1, kind, 5_000_000, None, body), {call.id: call})
    return f"damaged: {found.seq}" if getattr(found, "code", "") == DAMAGED else shown(found)


def _message_events(text: str) -> str:
    created, meta, body = json.loads(text)
    return shown(rows.decode_message_events("ada", (4, 2, 1, 7, created, meta, body)))


def _state(text: str) -> str:
    found = rows.decode_state(text, "ada")
    if found.error is not None and found.error[0] == "StoreError":
        return shown(replace(found, error=("damaged", "")))
    return shown(found)


def _turn_line(text: str) -> str:
    data = json.loads(text)
    return shown(turn_from_json(data, data["turn"], is_open=data["outcome"] is None))


def _context_line(text: str) -> str:
    return shown(context_from_json(json.loads(text)))


READERS: dict[str, Read] = {
    "message": _message,
    "message, strictly": _strictly,
    "message, as pi": lambda text: shown(message_from_json(json.loads(text))),
    "usage": lambda text: shown(rows.decode_usage(text)),
    "request": lambda text: shown(rows.pending_from_json(json.loads(text))),
    "held call": lambda text: shown(HeldCall(**json.loads(text))),
    "state": _state,
    "event": _event,
    "message and events": _message_events,
    "codec, event": lambda text: shown(codec.decode_event(text)),
    "event on the wire": lambda text: shown(codec.event_from_json(json.loads(text))),
    **{
        f"codec, {kind.__name__}": lambda text, kind=kind: shown(codec.decode_record(kind, text))
        for kind in (Artifact, ContextRecord, ContextState, Entry, MessageRecord, TurnRecord)
    },
    "archive, context": _context_line,
    "archive, turn": _turn_line,
    "archive, event": lambda _text: "",
    "archive, entry": lambda text: shown(entry_from_json(json.loads(text), 1, 9)),
    "archive, artifact": lambda text: shown(artifact_from_json(json.loads(text), "m", 2)),
}


def written() -> Iterator[tuple[str, str, str]]:
    """The text of each value of `values`: kind, name, text."""
    for name, message in values.MESSAGES.items():
        yield "message", name, message_text(message)
        yield "message, as pi", name, dump(message_to_json(message))
        if (usage := getattr(message, "usage", None)) is not None:
            yield "usage", name, usage_text(usage)
    for name, request in values.REQUESTS.items():
        yield "request", name, dump(pending_to_json(request))
    for name, held in values.HELD.items():
        yield "held call", name, dump(held_to_json(held))
    for name, state in values.STATES.items():
        yield "state", name, rows.state_column(state)
        yield "codec, ContextState", name, codec.encode_record(state)
    for name, event in values.EVENTS.items():
        yield "event on the wire", name, dump(event_to_json(event))
        try:
            yield "codec, event", name, codec.encode_event(event)
        except ValueRefused:
            continue
        yield "archive, event", name, event_to_line(event, {values.CALL.id: 4})
    yield from _rows()
    yield from _records()


def _rows() -> Iterator[tuple[str, str, str]]:
    for name, events in values.COMMITS.items():
        encoded = rows.encode(events)
        for place, row in enumerate(encoded.messages):
            text = dump([row.created_us, row.meta, row.body])
            yield "message and events", f"{name}, {place}", text
        for place, event in enumerate(encoded.events):
            yield "event", f"{name}, {place}", dump([event.type, event.body])


def _records() -> Iterator[tuple[str, str, str]]:
    for values_of, kind in (
        (values.TURNS, "TurnRecord"),
        (values.ARTIFACTS, "Artifact"),
        (values.ENTRIES, "Entry"),
        (values.CONTEXTS, "ContextRecord"),
        (values.PLACED, "MessageRecord"),
    ):
        for name, record in values_of.items():
            yield f"codec, {kind}", name, codec.encode_record(record)
    for name, turn in values.TURNS.items():
        yield "archive, turn", name, dump(turn_to_json(turn, 3))
    for name, artifact in values.ARTIFACTS.items():
        yield "archive, artifact", name, dump(artifact_to_json(artifact, "m"))
    for name, entry in values.ENTRIES.items():
        yield "archive, entry", name, entry_to_line(entry)
    for name, record in values.CONTEXTS.items():
        yield "archive, context", name, dump(context_to_json(record))


def odd() -> Iterator[tuple[str, str, str]]:
    """Texts that this version would not write: kind, name, text."""
    for name, text in values.ODD_ROWS.items():
        yield "message", name, text
        yield "message, strictly", name, text
    for name, text in values.ODD_STATES.items():
        yield "state", name, text
    for name, text in values.ODD_USAGES.items():
        yield "usage", name, text
    for name, (kind, body) in values.ODD_EVENTS.items():
        yield "event", name, dump([kind, body])


def main() -> None:
    """Write the file."""
    lines = [
        json.dumps([kind, name, text, READERS[kind](text)], ensure_ascii=True)
        for kind, name, text in (*written(), *odd())
    ]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
