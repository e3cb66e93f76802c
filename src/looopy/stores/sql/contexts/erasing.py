"""Erasures on SQL; see `looopy.stores.contexts.erasing` for their order."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from looopy.stores import rules as names
from looopy.stores.artifacts.parts import remove_unnamed
from looopy.stores.contexts.erasing import EMPTY, Erasures, Gone, Redacted, Terms, counted
from looopy.stores.contexts.families import Candidate
from looopy.stores.contexts.lineage import decode_rewound
from looopy.stores.contexts.log import read_rows
from looopy.stores.records import EntryKind
from looopy.stores.rows import events as rows
from looopy.stores.rows.redaction import (
    Copies,
    LateCall,
    Messages,
    Summaries,
    TheirTurn,
    calls_at,
    redacted_event,
    redacted_state,
    without_calls,
)
from looopy.stores.rules import MAY_FORCE, busy
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.stores.sql.commit import interrupt_turn
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.head import Head, peek
from looopy.stores.sql.store import SQLStore, bounded, can_exist, one_step

_random = random.SystemRandom()
_TURNS_AT_ONCE = 100
_ROWS_AT_ONCE = 500


class SQLErasures(SQLStore, Erasures):
    """See `ErasureRows`."""

    async def erase_rows(self, context_id: str, terms: Terms) -> Gone | None:
        if not can_exist(context_id):
            return None
        has_blobs = self.backend.blobs is not None
        work = partial(erase_steps, self.params(context_id), terms, blobs=has_blobs)
        gone = await self.write(work, context_id, inbox=True, removes=True)
        if gone is not None and not gone.inner:
            self.backend.notifier.note_removal(self.tenant, context_id)
        return gone

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        key = self.params(context_id, epoch=epoch)

        def work() -> Steps[None]:
            yield from peek(key, lock=True)
            yield Query(s.DELETE_EMPTY, key)
            yield Query(s.DROP_HIDDEN, key)  # if it was used since

        await self.write(work, context_id, inbox=True, removes=True)

    async def remove_blobs(self, names: Collection[str]) -> int:
        artifacts = SQLArtifactRows(self.backend, self.tenant)
        return await remove_unnamed(artifacts, self.tenant, self.backend.blobs, sorted(names))

    async def counts_of(self, context_id: str) -> Counter[str] | None:
        key = self.params(context_id)

        def work() -> Steps[Counter[str] | None]:
            head = yield from peek(key)
            if head is None:
                return None
            counts = yield from _counts(key, head)
            counts["blobs"] = len((yield Query(s.LIST_BLOBS, key)))
            return counts

        return await self.backend.run(work, write=False)

    async def candidate(self, context_id: str) -> Candidate | None:
        found = await self._ask(s.CANDIDATE, context_id)
        return _candidate(found[0]) if found else None

    async def candidates(self, *, after: str, limit: int) -> list[Candidate]:
        params = {"tenant": self.tenant, "after_id": after, "limit": bounded(limit)}
        query = Query(s.CANDIDATES, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        return await read_rows(found, _candidate)

    async def inner_of(self, context_id: str) -> list[Candidate]:
        return [_candidate(row) for row in await self._look(_read_inner, context_id)]

    async def spoke_in(self, actor_id: str, *, after: str, last: str) -> set[str]:
        params = {"tenant": self.tenant, "actor": actor_id, "after_id": after, "last_id": last}
        query = Query(s.SPOKE_IN, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        return {name for (name,) in found}

    async def redact(self, context_id: str, actor_id: str, *, force: bool) -> Redacted | None:
        work = partial(redact_steps, self.params(context_id, actor=actor_id), force=force)
        return await self.write(work, context_id, removes=True)

    async def end_redaction(self, context_id: str, turns: Sequence[int]) -> None:
        key = self.params(context_id)

        def work() -> Steps[None]:
            yield from peek(key, lock=True)
            yield Query(s.DROP_HIDDEN, key)
            for turn in turns:
                yield Query(s.FORGET_ACTOR, {**key, "turn": turn})

        await self.write(work, context_id, removes=True)

    async def backups(self, *, remove: bool) -> Sequence[Path]:
        return await self.backend.backups(remove=remove)

    async def scrub(self) -> None:
        await self.backend.scrub()


def _read_inner(key: Mapping[str, Any]) -> Steps[Rows]:
    found: Rows = []
    for (name,) in (yield Query(s.INNER_OF, key)):
        found += yield Query(s.CANDIDATE, {**key, "context": name})
    return found


def _candidate(row: Sequence[Any]) -> Candidate:
    context_id, owner, turn, live, touched, size, state, outer = row
    waits = bool(rows.decode_state(state, context_id).pending)
    running = turn if live else None
    return Candidate(context_id, owner, running, touched, size, waits, outer)


def erase_steps(key: Mapping[str, Any], terms: Terms, *, blobs: bool) -> Steps[Gone | None]:
    """
    Erase a context.

    Args:
        blobs: True if its artifacts may have parts in a blob store. Then the context stays, empty,
            until these are removed.
    """
    head = yield from peek(key, lock=True)
    if head is None or terms.owner not in (None, head.owner_actor):
        return None
    if terms.touched is not None:
        ((touched,),) = yield Query(s.LAST_ACTIVITY, key)
        if touched != terms.touched:
            return None
    if terms.outer is not None:
        found = yield Query(s.OUTER_OF, key)
        if not found or found[0][0] != terms.outer:
            return None
    if head.open_turn is not None and head.lease_live and not terms.force:
        raise busy(head.open_turn, MAY_FORCE)
    # No process can add one now: a link is made under the lock of this row.
    if inner := (yield Query(s.INNER_OF, key)):
        return Gone(Counter(), inner=[name for (name,) in inner])
    counts = yield from _counts(key, head)
    yield Query(s.UNLINK_FORKS, key)
    named = (yield Query(s.LIST_BLOBS, key)) if blobs else ()
    if not named:
        yield Query(s.DELETE_CONTEXT, key)
        return Gone(counts)
    params = {**key, "offset": _random.randrange(2**32, 2**62), "chance": names.first_epoch()}
    for statement in s.CONTENT.values():
        yield Query(statement, params)
    ((epoch,),) = yield Query(s.EMPTY_CONTEXT, params)
    yield Query(s.UNINDEX, key)
    return Gone(counts, [name for (name,) in named], epoch)


def _counts(key: Mapping[str, Any], head: Head) -> Steps[Counter[str]]:
    ((artifacts, inbox, keys, size),) = yield Query(s.COUNT_CONTENT, key)
    return counted(
        messages=head.last_position - head.visible_from + 1,
        last_seq=head.last_seq,
        cleared_seq=head.cleared_seq,
        turns=head.turn_count,
        artifacts=artifacts,
        inbox=inbox,
        keys=keys,
        bytes=size,
    )


# --- redacting -----------------------------------------------------------------------------------


def redact_steps(key: Mapping[str, Any], *, force: bool) -> Steps[Redacted | None]:
    """Redact some turns of `actor`."""
    head = yield from peek(key, lock=True)
    if head is None or head.owner_actor == key["actor"]:
        return None
    found = yield Query(s.TURNS_OF, {**key, "limit": _TURNS_AT_ONCE})
    turns = [_place(head, *row) for row in found]
    both = {"kind": EntryKind.STEER.value, "other_kind": EntryKind.FOLLOW_UP.value}
    taken = yield Query(s.WITHDRAW, {**key, **both})
    if not (turns or taken):
        return None
    if head.open_turn is not None and head.lease_live and not force:
        raise busy(head.open_turn, MAY_FORCE)
    if taken:
        yield Query(s.WITHDRAWN, {**key, "taken": len(taken)})
    numbers = {one.turn for one in turns}
    seq = head.last_seq
    if closing := head.open_turn in numbers:
        seq += 1
        yield from interrupt_turn(key, head, seq)
    count = keys = 0
    told, calls = set[int](), set[str]()
    if turns:
        told = yield from _empty_summaries(key, head, turns)
        copies = yield from _redact_artifacts(key, head, turns)
        count, late = yield from _redact_messages(key, head, Messages(turns, copies))
        yield from _redact_events(key, head, turns, late)
        calls = {one.call_id for one in late if one.end_seq is None}
    for one in turns:
        keys += (yield Query(s.COUNT_KEYS, {**key, "turn": one.turn}))[0][0]
        yield Query(s.FORGET_KEYS, {**key, "turn": one.turn})
        yield Query(s.REDACT_TURN, {**key, "turn": one.turn})
    state = redacted_state(head.state, numbers, calls, head.turn_count, told)
    written = {**key, "seq": seq, "state": state, "closing": int(closing)}
    yield Query(s.FORGET_WORDS, key)  # the next search adds what is left
    yield Query(s.DELETE_SEARCHED, key)
    yield Query(s.REDACTED, {**written, "chance": names.first_epoch()})
    yield Query(s.UNINDEX, key)
    blobs = sorted(name for (name,) in (yield Query(s.HIDDEN_BLOBS, key)))
    return Redacted(count, len(taken), keys, sorted(numbers), blobs)


def _place(
    head: Head, turn: int, first_position: int, last_position: int, start: int, end: int | None
) -> TheirTurn:
    return TheirTurn(
        turn,
        max(first_position, head.visible_from),
        head.last_position if end is None else last_position,
        start,
        head.last_seq if end is None else end,
    )


def _empty_summaries(
    key: Mapping[str, Any], head: Head, turns: Sequence[TheirTurn]
) -> Steps[set[int]]:
    """Empty the summaries that may contain these turns; returns their positions."""
    summaries = Summaries(turns, decode_rewound(head.rewound))
    for (told,) in (yield Query(s.COMPACTIONS, {**key, "after": turns[0].start_seq})):
        compaction = json.loads(told)
        at = {**key, "position": compaction["position"]}
        ((*_, text),) = yield Query(s.LIST_RANGE, {**at, "after": at["position"] - 1, "limit": 1})
        body = summaries.redacted(compaction, text)
        if body is not None:
            yield Query(s.REDACT_MESSAGE, {**at, "body": body})
    return summaries.told


def _redact_artifacts(
    key: Mapping[str, Any], head: Head, turns: Sequence[TheirTurn]
) -> Steps[Copies]:
    """Redact the versions that may repeat words of these turns."""
    born: Any = yield Query(s.BORN_ARTIFACTS, key)
    copies = Copies({one.turn for one in turns}, dict(born))
    bounds = {"after": turns[0].start_seq, "seq": head.last_seq}
    for seq, turn, body in (yield Query(s.ARTIFACT_UPDATES, {**key, **bounds})):
        copies.read(seq, turn, body)
    offset = _random.randrange(2**32, 2**62)
    for artifact_id, version in sorted(copies.versions):
        one = {**key, "artifact": artifact_id, "version": version}
        yield Query(s.HIDE_VERSION, {**one, "offset": offset})
        yield Query(s.REDACT_VERSION, {**one, "sha256": EMPTY, "bytes": b""})
    return copies


def _redact_messages(
    key: Mapping[str, Any], head: Head, messages: Messages
) -> Steps[tuple[int, list[LateCall]]]:
    """Redact messages, and count them; the calls that had no result at the end of their turn."""
    position = count = 0
    while (wanted := messages.next_range(position, head.last_position)) is not None:
        first, last = wanted
        limit = min(_ROWS_AT_ONCE, last - first + 1)
        for position, _, _, seq, text in (
            yield Query(s.LIST_RANGE, {**key, "after": first - 1, "limit": limit})
        ):
            body = messages.redacted(position, seq, text)
            if body is not None:
                yield Query(s.REDACT_MESSAGE, {**key, "position": position, "body": body})
                count += 1
    return count, messages.late


def _redact_events(
    key: Mapping[str, Any], head: Head, turns: Sequence[TheirTurn], late: Sequence[LateCall]
) -> Steps[None]:
    """Redact the events of these turns, and the arguments of *late* calls in other turns."""
    for one in turns:
        params = {**key, "after": one.start_seq, "seq": one.end_seq, "turn": one.turn}
        for seq, kind, text in (yield Query(s.EVENTS_OF, params)):
            yield from _redact_event(key, seq, text, redacted_event(kind, text))
    after = min((one.start_seq for one in late), default=head.last_seq)
    end = max((one.end_seq or head.last_seq for one in late), default=0)
    while after < end:
        found = yield Query(s.LIST_EVENTS, {**key, "after": after, "limit": _ROWS_AT_ONCE})
        for seq, *_, text in found:
            yield from _redact_event(key, seq, text, without_calls(text, calls_at(late, seq)))
        after = found[-1][0] if found else end


def _redact_event(key: Mapping[str, Any], seq: int, text: str, body: str) -> Steps[None]:
    if body != text:
        yield Query(s.REDACT_EVENT, {**key, "seq": seq, "body": body})
