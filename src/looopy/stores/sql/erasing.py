"""Erasures on SQL; see `looopy.stores.erasing` for their order."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from looopy.stores import rules as names
from looopy.stores.artifacts.parts import remove_unnamed
from looopy.stores.erasing import EMPTY, Erasures, Gone, Redacted, Terms, counted
from looopy.stores.families import Candidate
from looopy.stores.log import read_rows
from looopy.stores.past import Layer
from looopy.stores.records import EntryKind
from looopy.stores.rows import events as rows
from looopy.stores.rows.redaction import (
    Copies,
    Repeats,
    redacted_body,
    redacted_event,
    redacted_state,
    redacted_summary,
)
from looopy.stores.rules import MAY_FORCE, busy
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import SQLArtifactRows
from looopy.stores.sql.commit import interrupt_turn
from looopy.stores.sql.driver import Query, Ring, Rows, Steps
from looopy.stores.sql.ghosts import bury, ghosts_of, hold_forks, leave_to_forks, read_layers
from looopy.stores.sql.head import Head, peek
from looopy.stores.sql.inherited import newest_of_all
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
        return await self.write(work, context_id, inbox=True)

    async def end_erasure(self, context_id: str, epoch: int) -> None:
        key = self.params(context_id, epoch=epoch)

        def work() -> Steps[None]:
            yield from peek(key, lock=True)
            yield Query(s.DELETE_EMPTY, key)
            yield Query(s.DROP_HIDDEN, key)  # if it was used since

        await self.write(work, context_id, inbox=True)

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
        key, forks = self.params(context_id, actor=actor_id), list[str]()

        def work() -> Steps[Redacted | None]:
            done = yield from redact_steps(key, force=force)
            forks[:] = () if done is None else done.forks  # of this try alone
            return done

        ring = Ring(self.tenant, context_id, inbox=False, others=forks)
        return await self.backend.run(work, write=True, ring=ring)

    async def end_redaction(self, context_id: str, turns: Sequence[int]) -> None:
        key = self.params(context_id)

        def work() -> Steps[None]:
            yield from peek(key, lock=True)
            yield Query(s.DROP_HIDDEN, key)
            for turn in turns:
                yield Query(s.FORGET_ACTOR, {**key, "turn": turn})

        await self.write(work, context_id)

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
    context_id, owner, turn, live, touched, size, has_kin, state, outer = row
    waits = bool(rows.decode_state(state, context_id).pending)
    running = turn if live else None
    return Candidate(context_id, owner, running, touched, size, waits, bool(has_kin), outer)


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
    # Nobody can add one now: a link is made under the lock of this row.
    if inner := (yield Query(s.INNER_OF, key)):
        return Gone(Counter(), inner=[name for (name,) in inner])
    ghosts = yield from ghosts_of(key, head, lock=True)
    counts = yield from _counts(key, head)
    yield from leave_to_forks(key)
    yield Query(s.DROP_LAYERS, key)
    yield Query(s.DROP_INSTEAD, key)
    yield from bury(key, ghosts, adopts=blobs)
    named = (yield Query(s.LIST_BLOBS, key)) if blobs else ()
    if not named:
        yield Query(s.DELETE_CONTEXT, key)
        return Gone(counts)
    params = {**key, "offset": _random.randrange(2**32, 2**62), "birth": names.first_epoch()}
    for statement in s.CONTENT.values():
        yield Query(statement, params)
    ((epoch,),) = yield Query(s.EMPTY_CONTEXT, params)
    yield Query(s.UNINDEX, key)
    return Gone(counts, [name for (name,) in named], epoch)


def _counts(key: Mapping[str, Any], head: Head) -> Steps[Counter[str]]:
    ((artifacts, inbox, keys, size),) = yield Query(s.COUNT_CONTENT, key)
    if head.past is not None:
        artifacts = len((yield from newest_of_all(key, head, after="")))
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


class _Turn(NamedTuple):
    """The place of a turn."""

    turn: int
    first_position: int
    last_position: int
    start_seq: int
    end_seq: int | None


def redact_steps(key: Mapping[str, Any], *, force: bool) -> Steps[Redacted | None]:
    """Take what `actor` said out of some of their turns."""
    is_ghost = key["context"].startswith(s.GHOST)
    if is_ghost:  # whoever leaves it locks it last
        yield from hold_forks(key, s.PEEK_LOCKED)
    head = yield from peek(key, lock=True)
    if head is None or head.owner_actor == key["actor"]:
        return None
    found = yield Query(s.TURNS_OF, {**key, "limit": _TURNS_AT_ONCE})
    turns = [_Turn(*row) for row in found]
    both = {"kind": EntryKind.STEER.value, "other_kind": EntryKind.FOLLOW_UP.value}
    taken = yield Query(s.WITHDRAW, {**key, **both})
    if not (turns or taken):
        return None
    if turns and not is_ghost:
        yield from hold_forks(key, s.PEEK_LOCKED)
    if head.open_turn is not None and head.lease_live and not force:
        raise busy(head.open_turn, MAY_FORCE)
    if taken:
        yield Query(s.WITHDRAWN, {**key, "taken": len(taken)})
    places, calls = yield from _redact_messages(key, head, turns)
    folds = yield from _empty_summaries(key, turns)
    keys = 0
    for one in turns:
        yield from _redact_events(key, head, one)
        keys += ((yield Query(s.COUNT_KEYS, {**key, "turn": one.turn})))[0][0]
        yield Query(s.FORGET_KEYS, {**key, "turn": one.turn})
        yield Query(s.REDACT_TURN, {**key, "turn": one.turn})
    numbers = {one.turn for one in turns}
    places |= yield from _redact_artifacts(key, head, turns)
    seq = head.last_seq
    if closing := head.open_turn in numbers:
        seq += 1
        yield from interrupt_turn(key, head, seq)
    state = redacted_state(head.state, numbers, calls, head.turn_count, folds=folds)
    written = {**key, "seq": seq, "state": state, "closing": int(closing)}
    yield Query(s.FORGET_WORDS, key)  # the next search adds what is left
    yield Query(s.DELETE_SEARCHED, key)
    yield Query(s.REDACTED, {**written, "birth": names.first_epoch()})
    if not key["context"].startswith(s.GHOST):
        yield Query(s.UNINDEX, key)
    blobs = {name for (name,) in (yield Query(s.HIDDEN_BLOBS, key))}
    forks: Counter[str] = Counter()
    if turns:
        blobs |= yield from _redact_forks(key, turns, places, forks, calls, force=force)
    messages = forks.total() + (0 if key["context"].startswith(s.GHOST) else len(places))
    numbers_of = sorted(numbers)
    return Redacted(messages, len(taken), keys, numbers_of, sorted(blobs), list(forks))


def _redact_forks(
    key: Mapping[str, Any],
    turns: Sequence[_Turn],
    places: Collection[int],
    counts: Counter[str],
    calls: Collection[str],
    *,
    force: bool,
) -> Steps[set[str]]:
    """
    Take what the forks of a context made of these turns, and let them read the context again.

    Args:
        places: The positions of the context that are redacted.
        counts: Takes how many messages each fork sees redacted.

    Returns:
        The names of blobs that may be free now.
    """
    blobs: set[str] = set()
    seen: dict[str, Sequence[Layer]] = {}
    results: dict[str, set[int]] = {}
    for name, depth in (yield Query(s.FORKS_OF_TURN, {**key, "turn": turns[0].turn})):
        fork = {**key, "context": name}
        head = yield from peek(fork, lock=True)
        if head is None:
            continue
        if head.open_turn is not None and head.lease_live and not force:
            raise busy(head.open_turn, MAY_FORCE)
        folds = yield from _empty_summaries(fork, turns)
        layers = yield from read_layers(fork, head)
        counts[name] += sum(one <= layers[depth].position for one in places)
        own = [*layers, Layer(name, head.last_position, head.last_seq, head.turn_count, 0)]
        seen[name] = own[depth + 1 :]
        blobs |= yield from _redact_copies(fork, own, depth, turns, results)
        numbers = {one.turn for one in turns}
        state = redacted_state(head.state, numbers, calls, head.turn_count, folds=folds)
        written = {**fork, "seq": head.last_seq, "state": state, "closing": 0}
        yield Query(s.FORGET_WORDS, fork)
        yield Query(s.DELETE_SEARCHED, fork)
        yield Query(s.REDACTED, {**written, "birth": names.first_epoch()})
        yield Query(s.UNINDEX, fork)
    for name, behind in seen.items():
        for layer in behind:
            counts[name] += sum(one <= layer.position for one in results.get(layer.source, ()))
    return blobs


def _redact_artifacts(
    key: Mapping[str, Any], head: Head, turns: Sequence[_Turn]
) -> Steps[set[int]]:
    """Redact what these turns saved, and what repeats it; the positions of results that did."""
    if not turns:
        return set()
    offset = _random.randrange(2**32, 2**62)
    copies = Copies({one.turn for one in turns})
    bounds = {"after": turns[0].start_seq, "seq": head.last_seq}
    for turn, body in (yield Query(s.ARTIFACT_UPDATES, {**key, **bounds})):
        copies.read(turn, body)
    for artifact_id, version in copies.versions:
        one = {**key, "artifact": artifact_id, "version": version}
        yield Query(s.HIDE_VERSION, {**one, "offset": offset})
        yield Query(s.REDACT_VERSION, {**one, "sha256": EMPTY, "bytes": b""})
    repeats = Repeats(copies.names)
    first = turns[0].first_position - 1
    return (yield from _redact_results(key, repeats, first, head.last_position))


def _redact_copies(
    fork: Mapping[str, Any],
    layers: Sequence[Layer],
    depth: int,
    turns: Sequence[_Turn],
    results: dict[str, set[int]],
) -> Steps[set[str]]:
    """
    Redact what a fork made of artifacts that these turns of layer *depth* saved.

    Args:
        layers: Those of the fork, and its own rows as the last one.
        results: Takes the positions of redacted results, by the context that holds them.

    Returns:
        The names of blobs that may be free now.
    """
    copies = Copies({one.turn for one in turns})
    after = turns[0].start_seq
    shared, own = layers[depth:], layers[-1]
    for at, layer in enumerate(shared, depth):
        bounds = {"context": layer.source, "after": after, "seq": layer.seq}
        for turn, body in (yield Query(s.ARTIFACT_UPDATES, {**fork, **bounds})):
            copies.read(turn, body, at)
        after = layer.seq
    instead = {(name, at): source for name, at, source in (yield Query(s.LIST_INSTEAD, fork))}
    blobs: set[str] = set()
    for (artifact_id, version), told in copies.versions.items():
        # Others that live are redacted where their own rows are; a fork may have a copy.
        found = {instead.get((artifact_id, at), shared[at - depth].source) for at in told}
        for place in {own.source, *(one for one in found if one and one.startswith(s.GHOST))}:
            one = {**fork, "context": place, "artifact": artifact_id, "version": version}
            gone = yield Query(s.DROP_PARTS, one)
            blobs |= {blob for (blob,) in gone if blob is not None}
            yield Query(s.REDACT_VERSION, {**one, "sha256": EMPTY, "bytes": b""})
    repeats = Repeats(copies.names)
    last = shared[0].position
    for layer in shared[1:]:
        if layer is own or layer.source.startswith(s.GHOST):
            place = {**fork, "context": layer.source}
            found_there = yield from _redact_results(place, repeats, last, layer.position)
            results.setdefault(layer.source, set()).update(found_there)
        last = layer.position
    return blobs


def _redact_results(
    key: Mapping[str, Any], repeats: Repeats, after: int, last: int
) -> Steps[set[int]]:
    """Redact results after a position that repeat what is in an artifact; their positions."""
    redacted: set[int] = set()
    while repeats.names and after < last:
        params = {**key, "after": after, "limit": min(_ROWS_AT_ONCE, last - after)}
        found = yield Query(s.LIST_RANGE, params)
        for position, *_, text in found:
            body = repeats.redacted(text, position) if position <= last else None
            if body not in (None, text):
                yield Query(s.REDACT_MESSAGE, {**key, "position": position, "body": body})
                redacted.add(position)
        after = found[-1][0] if found else last
    return redacted


def _redact_messages(
    key: Mapping[str, Any], head: Head, turns: Sequence[_Turn]
) -> Steps[tuple[set[int], set[str]]]:
    """Redact the messages of these turns; where they are, and the calls in them."""
    calls: set[str] = set()
    places: set[int] = set()
    for one in turns:
        last = head.last_position if one.end_seq is None else one.last_position
        after = one.first_position - 1
        while after < last:
            params = {**key, "after": after, "limit": min(_ROWS_AT_ONCE, last - after)}
            found = yield Query(s.LIST_MESSAGES, params)
            for position, *_, text in found:
                body, of_it = redacted_body(text, position)
                calls.update(of_it)
                yield Query(s.REDACT_MESSAGE, {**key, "position": position, "body": body})
                places.add(position)
            after = found[-1][0] if found else last
    return places, calls


def _empty_summaries(key: Mapping[str, Any], turns: Sequence[_Turn]) -> Steps[bool]:
    """Empty the summaries made since the first of these turns; false if there was one."""
    if not turns:
        return True
    found = yield Query(s.COMPACTIONS, {**key, "after": turns[0].start_seq})
    for (told,) in found:
        position = json.loads(told)["position"]
        ((*_, text),) = yield Query(s.LIST_MESSAGES, {**key, "after": position - 1, "limit": 1})
        empty = redacted_summary(text, position)
        if empty is not None:
            yield Query(s.REDACT_MESSAGE, {**key, "position": position, "body": empty})
    return not found


def _redact_events(key: Mapping[str, Any], head: Head, one: _Turn) -> Steps[None]:
    """Redact the events of a turn."""
    last = head.last_seq if one.end_seq is None else one.end_seq
    params = {**key, "after": one.start_seq, "seq": last, "turn": one.turn}
    for seq, kind, text in (yield Query(s.EVENTS_OF, params)):
        body = redacted_event(kind, text)
        if body != text:
            yield Query(s.REDACT_EVENT, {**key, "seq": seq, "body": body})
