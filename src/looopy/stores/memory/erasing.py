"""Erasures in memory; see `looopy.stores.contexts.erasing`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from looopy.stores.contexts.erasing import EMPTY, Erasures, Gone, Redacted, Terms, counted
from looopy.stores.contexts.families import Candidate
from looopy.stores.memory.context import MemoryStore, StoredContext, interrupt
from looopy.stores.records import TurnRecord
from looopy.stores.rows.events import decode_state
from looopy.stores.rows.meta import to_us
from looopy.stores.rows.redaction import (
    Copies,
    Messages,
    Summaries,
    TheirTurn,
    calls_at,
    redacted_event,
    redacted_state,
    without_calls,
)
from looopy.stores.rules import MAY_FORCE, busy
from looopy.types.artifact import ArtifactKind, ArtifactStatus


class InMemoryErasures(MemoryStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, terms: Terms) -> Gone | None:
        context = self._get(context_id)
        if context is None or terms.owner not in (None, context.owner_actor):
            return None
        if terms.touched not in (None, to_us(context.last_activity)):
            return None
        link = context.inner_of
        if terms.outer is not None and (link is None or link.context_id != terms.outer):
            return None
        if (turn := _running(context)) is not None and not terms.force:
            raise busy(turn, MAY_FORCE)
        if inner := self._inner(context_id):
            return Gone(Counter(), inner=inner)
        del self.backend.contexts[self.tenant, context_id]
        self.backend.notifier.note_removal(self.tenant, context_id)
        self._ring(context_id, inbox=True)
        return Gone(_counts(context))

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        """Nothing: it is gone at once."""

    async def remove_blobs(self, names: Collection[str]) -> int:  # noqa: ARG002 - there are none
        return 0

    async def counts_of(self, context_id: str) -> Counter[str] | None:
        context = self._get(context_id)
        return None if context is None else _counts(context)

    async def candidate(self, context_id: str) -> Candidate | None:
        context = self._get(context_id)
        return None if context is None else _candidate(context_id, context)

    async def candidates(self, *, after: str, limit: int) -> list[Candidate]:
        theirs = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        return [
            _candidate(name, self.backend.contexts[self.tenant, name]) for name in theirs[:limit]
        ]

    async def inner_of(self, context_id: str) -> list[Candidate]:
        contexts = self.backend.contexts
        return [_candidate(name, contexts[self.tenant, name]) for name in self._inner(context_id)]

    async def spoke_in(self, actor_id: str, *, after: str, last: str) -> set[str]:
        return {
            name
            for (tenant, name), context in self.backend.contexts.items()
            if tenant == self.tenant
            and after < name <= last
            and (
                any(one.actor_id == actor_id for one in context.turns)
                or any(one.actor_id == actor_id for one in context.inbox.values())
            )
        }

    async def redact(self, context_id: str, actor_id: str, *, force: bool) -> Redacted | None:
        context = self._get(context_id)
        if context is None or context.owner_actor == actor_id:
            return None
        turns = [one for one in context.turns if one.actor_id == actor_id]
        waiting = [n for n, one in context.inbox.items() if one.actor_id == actor_id]
        if not (turns or waiting):
            return None
        if (turn := _running(context)) is not None and not force:
            raise busy(turn, MAY_FORCE)
        done = _redact(context, turns)
        for number in waiting:
            del context.inbox[number]
        context.inbox_last += bool(waiting)
        self._ring(context_id)
        return done._replace(inbox=len(waiting))

    async def end_redaction(self, context_id: str, turns: Sequence[int]) -> None:
        if (context := self._get(context_id)) is not None:
            context.turns = [
                replace(one, actor_id=None) if one.turn in turns else one for one in context.turns
            ]

    async def backups(self, *, remove: bool) -> Sequence[Path]:  # noqa: ARG002 - as above
        return ()

    async def scrub(self) -> None:
        """Nothing, as above."""


def _running(context: StoredContext) -> int | None:
    return context.open_turn if context.lease_live else None


def _candidate(context_id: str, context: StoredContext) -> Candidate:
    return Candidate(
        context_id,
        context.owner_actor,
        _running(context),
        to_us(context.last_activity),
        context.last_position + context.last_seq,
        bool(decode_state(context.state, context_id).pending),
        None if context.inner_of is None else context.inner_of.context_id,
    )


def _counts(context: StoredContext) -> Counter[str]:
    return counted(
        messages=len(context.messages),
        last_seq=context.last_seq,
        cleared_seq=context.cleared_seq,
        turns=context.turn_count,
        artifacts=len(context.artifacts),
        inbox=len(context.inbox),
        keys=len(context.keys),
        bytes=size_of(context),
    )


def size_of(context: StoredContext) -> int:
    """The bytes of its messages, its events, and all versions of its artifacts."""
    said = [m.body for m in context.messages] + [e.body for e in context.events]
    versions = [one for found in context.artifacts.values() for one in found]
    return sum(len(body.encode()) for body in said) + sum(one.artifact.size for one in versions)


def _redact(context: StoredContext, turns: Sequence[TurnRecord]) -> Redacted:
    numbers = {one.turn for one in turns}
    if context.open_turn in numbers:
        interrupt(context)
    keys = [key for key, (turn, _) in context.keys.items() if turn in numbers]
    for key in keys:
        del context.keys[key]
    places = [_place(context, one) for one in turns]
    first_seq = places[0].start_seq if places else context.last_seq
    compactions = [e.body for e in context.events if e.type == "compaction" and e.seq > first_seq]
    told = _empty_summaries(context, Summaries(places, context.rewound), compactions)
    born = {name: versions[0].artifact.turn for name, versions in context.artifacts.items()}
    copies = Copies(numbers, born)
    for event in context.events:
        if event.type == "artifact_update" and event.seq > first_seq:
            copies.read(event.seq, event.turn, event.body)
    for artifact_id, version in copies.versions:
        _redact_version(context, artifact_id, version)
    messages, position, count = Messages(places, copies), 0, 0
    while (found := messages.next_range(position, context.last_position)) is not None:
        for position in range(found[0], found[1] + 1):
            message = context.messages[position - context.visible_from]
            body = messages.redacted(position, message.seq, message.body)
            if body is not None:
                context.messages[position - context.visible_from] = message._replace(body=body)
                count += 1
    by_turn, late = {one.turn: one for one in places}, messages.late
    for place, event in enumerate(context.events):
        turn = by_turn.get(event.turn)
        if turn is not None and turn.start_seq < event.seq <= turn.end_seq:
            body = redacted_event(event.type, event.body)
        else:
            body = without_calls(event.body, calls_at(late, event.seq))
        context.events[place] = event._replace(body=body)
    context.turns = [
        replace(one, metadata={}) if one.turn in numbers else one for one in context.turns
    ]
    calls = {one.call_id for one in late if one.end_seq is None}
    context.state = redacted_state(context.state, numbers, calls, context.turn_count, told)
    context.raise_epoch()
    context.holder = None
    context.created_at += timedelta(microseconds=1)
    context.version += 1
    return Redacted(count, 0, len(keys), sorted(numbers), ())


def _place(context: StoredContext, turn: TurnRecord) -> TheirTurn:
    return TheirTurn(
        turn.turn,
        max(turn.first_position, context.visible_from),
        context.last_position if turn.end_seq is None else turn.last_position,
        turn.start_seq,
        context.last_seq if turn.end_seq is None else turn.end_seq,
    )


def _empty_summaries(
    context: StoredContext, summaries: Summaries, compactions: Sequence[str]
) -> set[int]:
    for compaction in map(json.loads, compactions):
        place = compaction["position"] - context.visible_from
        message = context.messages[place]
        body = summaries.redacted(compaction, message.body)
        if body is not None:
            context.messages[place] = message._replace(body=body)
    return summaries.told


def _redact_version(context: StoredContext, artifact_id: str, version: int) -> None:
    for one in context.artifacts.get(artifact_id, ()):
        if one.artifact.version == version:
            kind = one.artifact.kind
            one.text, one.tail, one.parts = None, b"", []
            if kind is ArtifactKind.DATA:
                one.text = "{}"
            one.artifact = replace(
                one.artifact,
                status=ArtifactStatus.FAILED,
                size=0,
                sha256=EMPTY,
                rows=0,
                columns={} if kind is ArtifactKind.DATASET else None,
                description=None,
                metadata={},
            )
