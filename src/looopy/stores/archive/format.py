"""
The format of an archive: the names of its members, and what a member is made of.

    manifest.json               format, version, contexts with counts, size and SHA-256 of members
    signature.json              optional: an HMAC of the manifest, under a key of the application
    contexts/1/context.json     the context: owner, numbers, state, metadata, tags
    contexts/1/turns.jsonl      a turn a line
    contexts/1/events.jsonl     a durable event a line, by `seq`, without a gap
    contexts/1/inbox.jsonl      a message that waits a line
    contexts/1/artifacts.jsonl  a version of an artifact a line, with the name of its member
    contexts/1/artifacts/1      the bytes of a version: a file's, JSON of data, JSON lines of rows

Each text is there once: a message is in its `message_end`, and an end of a turn names no
messages. `looopy.stores.contexts.lines` has the JSON of each line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from looopy.errors import ValueRefused
from looopy.types.storable import MAX_BODY_BYTES

FORMAT: Final = "looopy-archive"
VERSION: Final = 1
"""Raised by each change that an older looopy cannot read."""

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "signature.json"
CONTEXT, TURNS, EVENTS, INBOX, ARTIFACTS = (
    *("context.json", "turns.jsonl", "events.jsonl"),
    *("inbox.jsonl", "artifacts.jsonl"),
)
MOST_MEMBERS: Final = 100_000
MOST_MANIFEST_BYTES: Final = 32 * 1024 * 1024
MOST_SIGNATURE_BYTES: Final = 4096
MOST_LINE_BYTES: Final = MAX_BODY_BYTES + 1024 * 1024
"""A body has at most 16 MiB."""


def folder_of(number: int) -> str:
    """The folder of a context, counted from 1."""
    return f"contexts/{number}/"


def parse(raw: bytes) -> Any:
    """The JSON value of a line or member; `ValueRefused` if not UTF-8, with NaN, or too deep."""
    try:
        return json.loads(raw.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueRefused("nested too deep", path="") from None
    except ValueError as error:
        raise ValueRefused(f"invalid JSON: {error}", path="") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def pretty(value: Mapping[str, Any]) -> bytes:
    """A JSON object that people read as well: a line for each of its members."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False, separators=(',', ':'))}"
        for name, one in value.items()
    ]
    return "{{\n{}\n}}\n".format(",\n".join(lines)).encode()
