"""
The part of a context that its forks keep when it is cleared or deleted, and its end.

A fork reads rows of other contexts. Before these are deleted, the part that forks share moves to a
context without a name, a ghost, which no method of a store finds. The rest is deleted at once. A
ghost never holds more than its forks need, and goes with the last of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from typing import Any

from looopy.stores.past import Layer
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.head import Head, peek

_random = random.SystemRandom()


def new_ghost() -> str:
    """The id of a new ghost."""
    return f"{s.GHOST}{os.urandom(12).hex()}"


def read_layers(key: Mapping[str, Any], head: Head | None) -> Steps[list[Layer]]:
    """Which contexts hold the past of this one; none for a context that is no fork."""
    if head is None or head.past is None:
        return []
    return [Layer(*row) for row in (yield Query(s.LIST_LAYERS, key))]


def ghosts_of(key: Mapping[str, Any], head: Head) -> Steps[set[str]]:
    """The ghosts that a context reads."""
    found = {layer.source for layer in (yield from read_layers(key, head))}
    if found:
        found |= {row[2] for row in (yield Query(s.LIST_INSTEAD, key))} - {None}
    return {source for source in found if source.startswith(s.GHOST)}


def leave_to_forks(key: Mapping[str, Any]) -> Steps[None]:
    """Move what forks of a context share to a ghost; its turns stay as well. The row is locked."""
    ((position, seq, turn),) = yield Query(s.SHARED_UP_TO, key)
    if position is None:
        return
    moved = {**key, "target": new_ghost(), "position": position, "seq": seq, "turn": turn}
    yield Query(s.MAKE_GHOST, moved)
    yield Query(s.COPY_TURNS, {**moved, "after": 0})
    yield Query(s.MOVE_MESSAGES, moved)
    yield Query(s.MOVE_EVENTS, moved)
    yield Query(s.MOVE_ARTIFACTS, moved)
    yield Query(s.MOVE_PARTS, moved)
    yield Query(s.MOVE_FORKS, moved)


def own_turns(key: Mapping[str, Any], head: Head) -> Steps[None]:
    """Make a fork, which is to be cleared, a context of its own: its turns are what stays."""
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
