"""
A context as documents of a state store.

The *head* has all that a claim or a commit reads and that stays small: numbers, lease, inbox, keys,
state. The log is cut into *chapters* of `CHAPTER` numbers each, so a commit rewrites the last one
alone. The messages are in the message store; a chapter has their places and the digests of their
texts.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from looopy.stores import rules
from looopy.stores.artifacts.rows import Version
from looopy.stores.contexts.lines import (
    artifact_from_json,
    artifact_to_json,
    turn_from_json,
    turn_to_json,
)
from looopy.stores.contexts.log import StoredEvent, StoredMessage
from looopy.stores.memory.context import Place, StoredContext, StoredEntry
from looopy.stores.records import EntryKind, TurnRecord
from looopy.types.ranges import Range

CHAPTER: Final = 64
"""How many numbers of the log a chapter has."""

FORMAT: Final = 1
_seq = attrgetter("seq")


class PlainContext(StoredContext):
    """A context whose epochs rise by random steps: another process may have come as far."""

    __slots__ = ()

    def raise_epoch(self) -> None:
        """Fence every owner of an earlier epoch."""
        self.epoch = rules.next_epoch(self.epoch, rules.first_epoch())


def key_of(tenant: str, context_id: str) -> str:
    """The key of a context in the stores: its id; in the tenant of another name, that before it."""
    return context_id if tenant == "default" else f"{quote(tenant, safe='')}/{context_id}"


def named_by(key: str, tenant: str) -> str | None:
    """The context of a tenant with this key, or `None` if the key is another's or of a part."""
    name, slash, context_id = key.rpartition("/")
    theirs = unquote(name) if slash else "default"
    return context_id if theirs == tenant and "#" not in key else None


# No id of a context and no quoted tenant has a #.
def chapter_key(key: str, number: int, epoch: int) -> str:
    """The key of a chapter that a step with this epoch wrote."""
    return f"{key}#log/{number}-{epoch}"


def content_document(key: str, name: str) -> str:
    """The key of a document with the content of an artifact."""
    return f"{key}#artifact/{quote(name, safe='@')}"


def content_key(artifact_id: str, version: int) -> str:
    """The name of a version's content."""
    return f"{artifact_id}@{version}"


def digest(body: str) -> str:
    """A short digest of a message's text, to find it again."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def chapter_of(seq: int) -> int:
    """The chapter that has this number."""
    return max(seq - 1, 0) // CHAPTER


def head_to_json(context_id: str, context: StoredContext) -> dict[str, Any]:
    """All of a context but its log, its messages and the contents of its artifacts."""
    now, clock = time.monotonic(), time.time()
    return {
        "context_id": context_id,
        "status": "ready" if context.open_turn is None else "busy",
        "created_at": context.created_at.isoformat(),
        "last_activity": context.last_activity.isoformat(),
        "turn_count": context.turn_count,
        "epoch": context.epoch,
        "last_seq": context.last_seq,
        "last_position": context.last_position,
        "visible_from": context.visible_from,
        "cleared_seq": context.cleared_seq,
        "open_turn": context.open_turn,
        "holder": context.holder,
        "lease_until": context.lease_until - now + clock,
        "owner_actor": context.owner_actor,
        "state": context.state,
        "metadata": context.metadata,
        "version": context.version,
        "tags": list(context.tags),
        "rewound": [list(one) for one in context.rewound],
        "inbox_last": context.inbox_last,
        "cancel_turn": context.cancel_turn,
        "inbox": [
            [number, e.kind.value, e.actor_id, e.created_us, e.body]
            for number, e in context.inbox.items()
        ],
        "keys": {key: list(found) for key, found in context.keys.items()},
        "last_ticket": context.last_ticket,
        "places": [
            [ticket, place.holder, place.alive_until - now + clock]
            for ticket, place in context.places.items()
        ],
        "artifacts": [
            artifact_to_json(one.artifact, "")
            for name in sorted(context.artifacts)
            for one in context.artifacts[name]
        ],
    }


def context_from_json(head: Mapping[str, Any]) -> PlainContext:
    """The context of a head, without its log."""
    now, clock = time.monotonic(), time.time()
    rewound: list[Range] = [(low, high) for low, high in head["rewound"]]
    context = PlainContext(
        created_at=datetime.fromisoformat(head["created_at"]),
        last_activity=datetime.fromisoformat(head["last_activity"]),
        epoch=head["epoch"],
        turn_count=head["turn_count"],
        last_seq=head["last_seq"],
        visible_from=head["visible_from"],
        cleared_seq=head["cleared_seq"],
        open_turn=head["open_turn"],
        holder=head["holder"],
        lease_until=head["lease_until"] - clock + now,
        owner_actor=head["owner_actor"],
        state=head["state"],
        metadata=head["metadata"],
        version=head["version"],
        tags=tuple(head["tags"]),
        rewound=rewound,
        inbox_last=head["inbox_last"],
        cancel_turn=head["cancel_turn"],
        last_ticket=head["last_ticket"],
    )
    for number, kind, actor_id, created_us, body in head["inbox"]:
        context.inbox[number] = StoredEntry(EntryKind(kind), actor_id, created_us, body)
    context.keys = {key: (turn, hashed) for key, (turn, hashed) in head["keys"].items()}
    for ticket, holder, until in head["places"]:
        context.places[ticket] = Place(holder, until - clock + now)
    for data in head["artifacts"]:
        artifact = artifact_from_json(data, "", head["turn_count"])
        versions = context.artifacts.setdefault(artifact.artifact_id, [])
        versions.append(Version(artifact, None, b""))
    return context


def chapter_to_json(context: StoredContext, number: int) -> dict[str, Any]:
    """The part of the log with the numbers of a chapter, and the turns that begin in it."""
    low, high = number * CHAPTER, (number + 1) * CHAPTER
    if number == 0:
        low = -1  # a restored or appended message may have the number 0

    def within(rows: Sequence[Any]) -> Sequence[Any]:
        return rows[bisect_right(rows, low, key=_seq) : bisect_right(rows, high, key=_seq)]

    turns = context.turns
    first = bisect_left(turns, low + 1, key=attrgetter("start_seq"))
    last = bisect_right(turns, high, key=attrgetter("start_seq"))
    return {
        "messages": [
            [m.position, m.turn, m.iteration, m.seq, m.created_us, m.meta, digest(m.body)]
            for m in within(context.messages)
        ],
        "events": [list(event) for event in within(context.events)],
        "turns": [turn_to_json(t, context.user_positions.get(t.turn)) for t in turns[first:last]],
    }


Placed: TypeAlias = tuple[StoredMessage, str]
"""The place of a message without its text, and the digest of that."""


class Chapter(NamedTuple):
    """A part of the log, read: places of messages, events, and turns with their user's position."""

    places: list[Placed]
    events: list[StoredEvent]
    turns: list[tuple[TurnRecord, int | None]]


def chapter_from_json(data: Mapping[str, Any], context: StoredContext) -> Chapter:
    """A part of the log of *context*; turns that its head does not have are left out."""
    turns = []
    for turn in data["turns"]:
        number = turn["turn"]
        if number <= context.turn_count:
            is_open = number == context.open_turn
            ended = {} if not is_open else dict.fromkeys(_ENDS)
            found = turn_from_json({**turn, **ended}, number, is_open=is_open)
            turns.append((found.record, found.user_position))
    return Chapter(
        [
            (StoredMessage(position, turn, iteration, seq, created_us, meta, ""), hashed)
            for position, turn, iteration, seq, created_us, meta, hashed in data["messages"]
        ],
        [StoredEvent(*row) for row in data["events"]],
        turns,
    )


def full_chapters(chapters: Chapters, context: StoredContext) -> Chapters:
    """The chapters that no step writes again under the same epoch."""
    full = context.last_seq // CHAPTER
    return {
        (number, epoch): one
        for (number, epoch), one in chapters.items()
        if number < full and all(turn.turn != context.open_turn for turn, _ in one.turns)
    }


Chapters: TypeAlias = Mapping[tuple[int, int], Chapter]
"""Chapters by number and epoch."""


class Log:
    """The chapters of a context together: its events, its turns, and the places of its messages."""

    def __init__(self, chapters: Chapters, context: StoredContext) -> None:
        last = context.last_seq  # a chapter may have been written for a head that was not
        self.places: list[Placed] = []
        for chapter in chapters.values():
            self.places += [
                (place, hashed)
                for place, hashed in chapter.places
                if place.seq <= last and place.position >= context.visible_from
            ]
            context.events += [
                event
                for event in chapter.events
                if max(context.cleared_seq, 1) <= event.seq <= last
            ]
            for turn, user_position in chapter.turns:
                context.turns.append(turn)
                context.user_positions[turn.turn] = user_position


_ENDS: Final = ("outcome", "stop_reason", "end_seq", "ended_at")
