"""
The part of a context that its forks keep when it is cleared or deleted, and its end.

A fork reads rows of other contexts. Before these are deleted, the part that forks share moves to a
context without a name, a ghost, which no method of a store finds. The rest is deleted at once. A
ghost never holds more than its forks need, and goes with the last of them.

Relatives may be written at the same time. So a write that decides by layers locks them first, and
all writes lock in one order:

1. The rows of contexts, a parent before its forks.
2. The layers of the own context, the oldest first, and then those that forks have of it.
3. The rows of ghosts, by their ids.

Two relatives have one layer in common. The one that comes second reads what the first has left.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from typing import Any

from looopy.stores.past import Layer
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.head import Head, peek

_random = random.SystemRandom()


def new_ghost() -> str:
    """The id of a new ghost."""
    return f"{s.GHOST}{os.urandom(12).hex()}"


def read_layers(
    key: Mapping[str, Any], head: Head | None, *, lock: bool = False
) -> Steps[list[Layer]]:
    """
    Which contexts hold the past of this one; none for a context that is no fork.

    Args:
        lock: Until the end of the transaction they stay as they are, with the rows that they name.
    """
    if head is None or head.past is None:
        return []
    found = yield Query(s.LOCK_LAYERS if lock else s.LIST_LAYERS, key)
    return [Layer(*row) for row in found]


def hold_forks(key: Mapping[str, Any], statement: str) -> Steps[None]:
    """Lock the rows of the forks of a context, each by *statement*."""
    held: set[tuple[Any, ...]] = set()
    while new := sorted(set((yield Query(s.AGES_OF_FORKS, key))) - held):
        for _, name in new:
            yield Query(statement, {**key, "context": name})
        # One that was waited for may have been forked.
        held.update(new)


def lock_forks(key: Mapping[str, Any]) -> Steps[Rows]:
    """Lock the layers that forks have of a context; the row of the context is locked."""
    before = None
    while before != (found := sorted((yield Query(s.LOCK_FORKS, key)))):
        # Whoever held one of them may have forked that fork.
        before = found
    return found


def ghosts_of(key: Mapping[str, Any], head: Head | None, *, lock: bool = False) -> Steps[set[str]]:
    """The ghosts that a context reads."""
    found = {layer.source for layer in (yield from read_layers(key, head, lock=lock))}
    if found:
        found |= {row[2] for row in (yield Query(s.LIST_INSTEAD, key))} - {None}
    return {source for source in found if source.startswith(s.GHOST)}


def blobs_named(key: Mapping[str, Any], ghosts: Iterable[str]) -> Steps[list[str]]:
    """The names of the blobs of a context, and of *ghosts*, which may go together with it."""
    found: Rows = []
    for name in (key["context"], *sorted(ghosts)):
        found += yield Query(s.LIST_BLOBS, {**key, "context": name})
    return [str(name) for (name,) in found]


def leave_to_forks(key: Mapping[str, Any]) -> Steps[None]:
    """
    Move what forks of a context share to a ghost; its turns stay as well.

    Its row is locked, and so are its own layers.
    """
    ((position, _, _),) = yield Query(s.SHARED_UP_TO, key)
    if position is None:
        return
    shared = yield from lock_forks(key)
    if not shared:  # they have left meanwhile
        return
    position, seq, turn = (max(row[n] for row in shared) for n in (1, 2, 3))
    moved = {**key, "target": new_ghost(), "position": position, "seq": seq, "turn": turn}
    yield Query(s.MAKE_GHOST, moved)
    yield Query(s.COPY_TURNS, {**moved, "after": 0})
    yield Query(s.MOVE_MESSAGES, moved)
    yield Query(s.MOVE_EVENTS, moved)
    yield Query(s.MOVE_ARTIFACTS, moved)
    yield Query(s.MOVE_PARTS, moved)
    yield Query(s.MOVE_FORKS, moved)


def own_turns(key: Mapping[str, Any], head: Head) -> Steps[None]:
    """
    Make a fork, which is to be cleared, a context of its own: its turns are what stays.

    Its layers are locked.
    """
    ghosts = yield from ghosts_of(key, head)
    after = 0
    for layer in (yield from read_layers(key, head)):
        if layer.turn > after:
            params = {**key, "context": layer.source, "target": key["context"]}
            yield Query(s.COPY_TURNS, {**params, "after": after, "turn": layer.turn})
            after = layer.turn
    if after or head.past is not None:
        yield Query(s.DROP_LAYERS, key)
        yield Query(s.DROP_INSTEAD, key)
    yield from bury(key, ghosts)


def bury(
    key: Mapping[str, Any], sources: Iterable[str], *, adopts: bool = False
) -> Steps[None]:
    """
    Delete the ghosts among *sources* that no fork needs, and of the others what none needs.

    Args:
        adopts: Let the context of *key*, which is erased, keep the names of their blobs.
    """
    for source in sorted({one for one in sources if one.startswith(s.GHOST)}):
        ghost = {**key, "context": source}
        # The last two forks may leave at the same time.
        if (yield from peek(ghost, lock=True)) is None:
            continue
        is_shared = bool((yield Query(s.IS_SHARED, ghost)))
        yield Query(s.TRIM_ARTIFACTS, ghost)
        if adopts:
            offset = _random.randrange(2**32, 2**62)
            yield Query(s.ADOPT_PARTS, {**ghost, "target": key["context"], "offset": offset})
        if not is_shared:
            yield Query(s.DELETE_CONTEXT, ghost)
            continue
        ((position, seq, turn),) = yield Query(s.SHARED_UP_TO, ghost)
        yield Query(s.TRIM_GHOST, {**ghost, "position": position or 0})
        yield Query(s.TRIM_MESSAGES, {**ghost, "position": position or 0})
        # The next search makes its index of words anew.
        yield Query(s.FORGET_WORDS, ghost)
        yield Query(s.DELETE_SEARCHED, ghost)
        yield Query(s.TRIM_EVENTS, {**ghost, "seq": seq or 0})
        yield Query(s.TRIM_TURNS, {**ghost, "turn": turn or 0})
        yield Query(s.TRIM_PARTS, ghost)
