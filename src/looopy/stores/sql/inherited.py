"""
The artifacts that a fork has from other contexts.

A fork copies no version that is complete: it finds them in its layers, see `past.py`. Its own rows
come first. A version that was being built when the fork was made is copied, so that both sides may
append to it. If one side deletes an artifact, rows of `instead` say so, one for each fork and
layer: a fork that deletes it looks nowhere, and forks of a context that deletes it look in a ghost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.ghosts import bury, hold_forks, lock_forks, new_ghost, read_layers
from looopy.stores.sql.head import Head, peek
from looopy.stores.sql.turns import stored_artifact
from looopy.types.artifact import Artifact, ArtifactStatus

_COLUMNS = 13


class Inherited(NamedTuple):
    """A version in a layer of a fork, and the context that holds its row."""

    artifact: Artifact
    source: str
    depth: int


def versions_of(key: Mapping[str, Any], head: Head, artifact_id: str) -> Steps[list[Inherited]]:
    """The versions of an artifact in the layers of a context, oldest first."""
    found = yield from _all_versions_of(key, head, artifact_id)
    # The row of an upper layer comes first: it was copied while it was being built.
    kept = {one.artifact.version: one for one in found}
    return [kept[version] for version in sorted(kept)]


def newest_of_all(key: Mapping[str, Any], head: Head, *, after: str) -> Steps[list[Artifact]]:
    """The newest version of each artifact that a fork sees, with an id over *after*."""
    params = {**key, "after_artifact": after}
    layers = yield from read_layers(key, head)
    instead = (yield from _instead(key)) if layers else {}
    newest: dict[str, Artifact] = {}
    for depth, layer in enumerate(layers):
        bounds = {"context": layer.source, "turn": layer.turn, "number": layer.number}
        rows = yield Query(s.LAYER_NEWEST, {**params, **bounds})
        rows = [row for row in rows if (row[0], depth) not in instead]
        for (artifact_id, other), source in instead.items():
            if other == depth and source is not None and artifact_id > after:
                place = {**bounds, "context": source, "artifact": artifact_id}
                rows += (yield Query(s.LAYER_VERSIONS, {**key, **place}))[-1:]
        newest |= {row[0]: stored_artifact(row, newest=False) for row in rows}
    own = yield Query(s.OWN_NEWEST, params)
    newest |= {row[0]: stored_artifact(row) for row in own}
    return [newest[name] for name in sorted(newest)]


def all_versions(key: Mapping[str, Any], head: Head) -> Steps[list[Artifact]]:
    """All versions of all artifacts that a context sees, by id and version."""
    found = []
    for name in [one.artifact_id for one in (yield from newest_of_all(key, head, after=""))]:
        own = yield Query(s.LIST_VERSIONS, {**key, "artifact": name})
        kept = {one.artifact.version: one.artifact for one in (
            yield from versions_of(key, head, name)
        )}
        kept |= {row[2]: stored_artifact(row, newest=bool(row[_COLUMNS])) for row in own}
        found += [kept[version] for version in sorted(kept)]
    return found


def find_inherited(
    key: Mapping[str, Any], artifact_id: str, version: int | None, *, complete: bool = False
) -> Steps[tuple[Inherited, Rows] | None]:
    """
    A version in the layers of a context, and its row; `None` if there is none.

    Args:
        version: `None` for the newest.
        complete: Only one that is complete.
    """
    head = yield from peek(key)
    if head is None or head.past is None:
        return None
    own = {row[2] for row in (yield Query(s.LIST_VERSIONS, {**key, "artifact": artifact_id}))}
    for one in reversed((yield from versions_of(key, head, artifact_id))):
        at = one.artifact.version
        if at in own or version not in (None, at):
            continue
        if not complete or one.artifact.status is ArtifactStatus.COMPLETE:
            place = {**key, "context": one.source, "artifact": artifact_id}
            row = yield Query(s.PEEK_ARTIFACT, {**place, "low": at, "high": at})
            return one, row
    return None


def take_along(
    key: Mapping[str, Any], target: str, *, turn: int, layers: int
) -> Steps[None]:
    """Give a new fork what it cannot share: versions that are being built, and deletions."""
    params = {**key, "target": target, "turn": turn, "depth": layers}
    yield Query(s.COPY_BUILDING, params)
    yield Query(s.COPY_BUILDING_PARTS, params)
    yield Query(s.COPY_INSTEAD, params)


def leave_artifact(
    key: Mapping[str, Any], head: Head | None, artifact_id: str
) -> Steps[list[Artifact]]:
    """
    Move the versions of an artifact that forks share to a ghost, and return them.

    The layers of the context are locked as well.
    """
    named = {**key, "artifact": artifact_id}
    is_seen = bool((yield Query(s.IS_SEEN, named)))
    if is_seen:
        yield from hold_forks(key, s.HOLD_CONTEXT)  # a row of `instead` needs it
    yield from read_layers(key, head, lock=True)
    if is_seen:
        yield from lock_forks(key)
        is_seen = bool((yield Query(s.IS_SEEN, named)))
    if not is_seen:
        return []
    moved = {**named, "target": new_ghost(), "position": 0, "seq": 0, "turn": 0}
    yield Query(s.MAKE_GHOST, moved)
    found = yield Query(s.MOVE_ARTIFACT, moved)
    yield Query(s.MOVE_PARTS, moved)
    yield Query(s.LOOK_INSTEAD, moved)
    return [stored_artifact(row) for row in found]


def hide_inherited(
    key: Mapping[str, Any], head: Head, artifact_id: str
) -> Steps[list[Artifact]]:
    """Let a fork no longer see an artifact in its layers; the versions that it saw there."""
    found = yield from _all_versions_of(key, head, artifact_id)
    sources = {one.source for one in found}
    for depth in sorted({one.depth for one in found}):
        params = {**key, "artifact": artifact_id, "depth": depth}
        if not (yield Query(s.HIDE, params)):
            # Its parent may have deleted it a moment ago.
            before = yield Query(s.HIDDEN_SO_FAR, params)
            sources |= {source for (source,) in before if source is not None}
            yield Query(s.HIDE_AGAIN, params)
    yield from bury(key, sources)
    return [one.artifact for one in found]


def _all_versions_of(
    key: Mapping[str, Any], head: Head, artifact_id: str
) -> Steps[list[Inherited]]:
    layers = yield from read_layers(key, head)
    instead = (yield from _instead(key)) if layers else {}
    found: list[Inherited] = []
    for depth, layer in enumerate(layers):
        source = instead.get((artifact_id, depth), layer.source)
        if source is None:
            continue
        bounds = {"turn": layer.turn, "number": layer.number, "artifact": artifact_id}
        rows = yield Query(s.LAYER_VERSIONS, {**key, "context": source, **bounds})
        # A version that is being built in a layer had a successor when the fork was made; otherwise
        # the fork has a copy.
        found += (Inherited(stored_artifact(row, newest=False), source, depth) for row in rows)
    return found


def _instead(key: Mapping[str, Any]) -> Steps[dict[tuple[str, int], str | None]]:
    found = yield Query(s.LIST_INSTEAD, key)
    return {(artifact_id, depth): source for artifact_id, depth, source in found}
