"""
Artifacts whose changes wait for a commit, in turns with `auto_save=False`.

Large parts are stored at once, and rows only by the commit that takes the changes. Until then their
uploads are held, for a day after the last of them or the last try to save. Reads see the waiting
changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from looopy.stores.artifacts.rows import (
    ArtifactRows,
    StoredPart,
    StoredVersion,
    Version,
    Wanted,
    check_growth,
    chosen,
)
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactMoved,
    ArtifactWrite,
)
from looopy.stores.rules import no_artifact
from looopy.types.artifact import Artifact, ArtifactStatus


@dataclass(slots=True)
class _Artifact:
    """An artifact with waiting changes: its stored and its waiting versions, by number."""

    stored: dict[int, Artifact]
    own: dict[int, Version] = field(default_factory=dict)

    def at(self, version: int) -> Artifact:
        """A version without its content."""
        return self.own[version].artifact if version in self.own else self.stored[version]

    @property
    def versions(self) -> list[Artifact]:
        """All of them, oldest first."""
        return [self.at(number) for number in sorted({*self.stored, *self.own})]


class StagedRows:
    """The rows of a backend, with changes that wait above them; see `ArtifactRows`."""

    def __init__(self, rows: ArtifactRows) -> None:
        self._rows = rows
        self._changed: dict[tuple[str, str], _Artifact] = {}

    async def hold(self, context_id: str, change: ArtifactChange, *, turn: int) -> Artifact:
        """Keep a change; `ArtifactMoved` and `ArtifactNotFound` as at a commit."""
        key = (context_id, change.artifact_id)
        if key not in self._changed:
            stored = await self._rows.all_versions(*key)
            self._changed[key] = _Artifact({one.version: one for one in stored})
        one = self._changed[key]
        versions = one.versions
        newest = versions[-1] if versions else None
        if isinstance(change, ArtifactWrite):
            return _write(one, newest, change, turn)
        if isinstance(change, ArtifactDeletion):
            if newest is None:
                raise no_artifact(change.artifact_id)
            one.stored, one.own = {}, {}
            return newest
        check_growth(newest, change)
        version = one.own.get(change.version)
        if version is None:
            row = await self._rows.peek(context_id, change.artifact_id, change.version)
            if row is None:
                raise ArtifactMoved
            version = Version(row.artifact, None, row.tail, before=row.part_count)
            one.own[change.version] = version
        return version.grow(change)

    async def peek(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> StoredVersion | None:
        """The row of a version."""
        one = self._changed.get((context_id, artifact_id))
        if one is None:
            return await self._rows.peek(context_id, artifact_id, version)
        found = [v for v in one.versions if version in (None, v.version)]
        return await self._row(context_id, one, found[-1]) if found else None

    async def complete_one(self, context_id: str, artifact_id: str) -> StoredVersion | None:
        """The row of the newest complete version."""
        one = self._changed.get((context_id, artifact_id))
        if one is None:
            return await self._rows.complete_one(context_id, artifact_id)
        found = [v for v in one.versions if v.status is ArtifactStatus.COMPLETE]
        return await self._row(context_id, one, found[-1]) if found else None

    async def _row(
        self, context_id: str, one: _Artifact, artifact: Artifact
    ) -> StoredVersion | None:
        if artifact.version in one.own:
            return one.own[artifact.version].row
        row = await self._rows.peek(context_id, artifact.artifact_id, artifact.version)
        return None if row is None else row._replace(artifact=artifact)

    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        """Parts, in order."""
        own = self._own(context_id, artifact_id, version)
        if own is None or after < own.before:
            most = limit if own is None else min(limit, own.before - after)
            return await self._rows.parts(context_id, artifact_id, version, after=after, limit=most)
        start = after - own.before
        return own.parts[start : start + limit]

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        """The number of the last part that begins there, or before."""
        own = self._own(context_id, artifact_id, version)
        if own is not None:
            if row:
                place = bisect_right(own.parts, row, key=lambda part: part.first_row)
            else:
                place = bisect_right(own.parts, start, key=lambda part: part.start)
            if place or not own.before:
                return max(1, own.before + place)
        return await self._rows.part_at(context_id, artifact_id, version, start=start, row=row)

    async def all_versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        """The versions, oldest first."""
        one = self._changed.get((context_id, artifact_id))
        if one is None:
            return await self._rows.all_versions(context_id, artifact_id)
        return one.versions

    async def newest(self, context_id: str, **wanted: Unpack[Wanted]) -> list[Artifact]:
        """The newest version of each."""
        changed = {name: one for (where, name), one in self._changed.items() if where == context_id}
        most = None if wanted["limit"] is None else wanted["limit"] + len(changed)
        more: Wanted = {**wanted, "limit": most}
        stored = await self._rows.newest(context_id, **more)
        found = [one for one in stored if one.artifact_id not in changed]
        found += [one.versions[-1] for one in changed.values() if one.versions]
        return chosen(sorted(found, key=lambda one: one.artifact_id), wanted)

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        """Keep a change that was requested outside of turns."""
        return await self.hold(context_id, change, turn=0)

    async def blob_with(self, sha256: str, size: int) -> str | None:  # noqa: ARG002 - as below
        """No name: by the time of the commit its row may be gone."""
        return None

    async def unnamed(self, names: Sequence[str]) -> list[str]:
        """Those of *names* that no row has."""
        return await self._rows.unnamed(names)

    async def hold_uploads(self, names: Sequence[str], ttl_s: float, *, new: bool) -> list[str]:
        """Hold them, and with new ones all that wait."""
        waiting = {
            part.blob
            for one in self._changed.values()
            for version in one.own.values()
            for part in version.parts
            if part.blob is not None
        }
        if new and waiting:
            await self._rows.hold_uploads(sorted(waiting), ttl_s, new=False)
        return await self._rows.hold_uploads(names, ttl_s, new=new)

    async def end_uploads(self, names: Sequence[str], *, held: bool) -> list[str]:
        """Like `ArtifactRows`."""
        return await self._rows.end_uploads(names, held=held)

    async def renew(self, changes: Sequence[ArtifactChange], ttl_s: float) -> str | None:
        """See `StagedArtifactStore.renew`."""
        of: dict[str, str] = {}
        for change in changes:
            if not isinstance(change, ArtifactDeletion):
                of |= {part.blob: change.artifact_id for part in change.parts if part.blob}
        lost = await self._rows.hold_uploads(sorted(of), ttl_s, new=False)
        return of[lost[0]] if lost else None

    def _own(self, context_id: str, artifact_id: str, version: int) -> Version | None:
        one = self._changed.get((context_id, artifact_id))
        return None if one is None else one.own.get(version)


def _write(one: _Artifact, newest: Artifact | None, write: ArtifactWrite, turn: int) -> Artifact:
    if newest is not None and newest.status is ArtifactStatus.BUILDING:
        failed = replace(newest, status=ArtifactStatus.FAILED)
        if newest.version in one.own:
            one.own[newest.version].artifact = failed
        else:
            one.stored[newest.version] = failed
    made = Version.written(write, newest, turn)
    one.own[made.artifact.version] = made
    return made.artifact
