"""`ArtifactStore` on SQL: versions are rows, their large parts rows that name a blob."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, Unpack

from looopy.errors import StoreError
from looopy.stores.artifacts.parts import HELD_S, drop
from looopy.stores.artifacts.rows import StoredPart, StoredVersion, Wanted
from looopy.stores.artifacts.store import Artifacts
from looopy.stores.contexts.log import read_rows
from looopy.stores.owner import Owner, provably_dead
from looopy.stores.records import ArtifactChange, ArtifactDeletion, ArtifactWrite
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import change_artifact, create
from looopy.stores.sql.driver import Driver, Query, Steps
from looopy.stores.sql.head import peek
from looopy.stores.sql.store import NO_LIMIT, SQLStore, as_us, bounded, one_step
from looopy.stores.sql.turns import stored_artifact
from looopy.types.artifact import Artifact

_COLUMNS = 13


class SQLArtifactStore(Artifacts):
    """See `ArtifactStore` for the contract."""

    def __init__(self, backend: Driver, tenant: str = "default") -> None:
        super().__init__(SQLArtifactRows(backend, tenant), tenant, backend.blobs)
        self.backend = backend
        self.tenant = tenant


class SQLArtifactRows(SQLStore):
    """See `ArtifactRows`."""

    async def peek(
        self, context_id: str, artifact_id: str, version: int | None = None
    ) -> StoredVersion | None:
        low, high = (1, NO_LIMIT) if version is None else (bounded(version), bounded(version))
        found = await self._ask(
            s.PEEK_ARTIFACT, context_id, artifact=artifact_id, low=low, high=high
        )
        return _version(*found[0]) if found else None

    async def complete_one(self, context_id: str, artifact_id: str) -> StoredVersion | None:
        found = await self._ask(s.PEEK_COMPLETE, context_id, artifact=artifact_id)
        return _version(*found[0]) if found else None

    async def parts(
        self, context_id: str, artifact_id: str, version: int, *, after: int, limit: int
    ) -> list[StoredPart]:
        which = {"artifact": artifact_id, "version": version, "after": after, "limit": limit}
        found = await self._ask(s.LIST_PARTS, context_id, **which)
        return [_part(*row) for row in found]

    async def part_at(
        self, context_id: str, artifact_id: str, version: int, *, start: int = 0, row: int = 0
    ) -> int:
        place = {"artifact": artifact_id, "version": version}
        which = {**place, "start": bounded(start or None), "row": bounded(row or None)}
        found = await self._ask(s.PART_AT, context_id, **which)
        return int(found[0][0] or 1) if found else 1

    async def all_versions(self, context_id: str, artifact_id: str) -> list[Artifact]:
        found = await self._ask(s.LIST_VERSIONS, context_id, artifact=artifact_id)
        return [stored_artifact(row, newest=bool(row[_COLUMNS])) for row in found]

    async def newest(self, context_id: str, **wanted: Unpack[Wanted]) -> list[Artifact]:
        found = await self._ask(
            s.LIST_ARTIFACTS,
            context_id,
            turn=None if wanted["turn"] is None else bounded(wanted["turn"]),
            kind=wanted["kind"] and wanted["kind"].value,
            status=wanted["status"] and wanted["status"].value,
            after_artifact=wanted["after"],
            limit=bounded(wanted["limit"]),
        )
        return await read_rows(found, stored_artifact)

    async def apply(self, context_id: str, change: ArtifactChange) -> Artifact:
        key = self.params(context_id)

        def work() -> Steps[Artifact]:
            # Locked first: the change depends on the existing rows.
            while (yield from peek(key, lock=True)) is None:
                if not isinstance(change, ArtifactWrite):
                    break
                yield from create(key)
            return (yield from change_artifact(key, change))

        removes = isinstance(change, ArtifactDeletion)
        return await self.write(work, context_id, removes=removes)

    async def blob_with(self, sha256: str, size: int) -> str | None:
        params = {"tenant": self.tenant, "sha256": sha256, "size": size}
        query = Query(s.FIND_BLOB, params, alone=True)
        found = await self.backend.run(partial(one_step, query), write=False)
        return str(found[0][0]) if found else None

    async def unnamed(self, names: Sequence[str]) -> list[str]:

        def work() -> Steps[list[str]]:
            gone = []
            for params in self._blobs(names):
                found = yield Query(s.NAMED_BLOB, params)
                gone += [] if found else [params["blob"]]
            return gone

        return await self.backend.run(work, write=False) if names else []

    async def hold_uploads(self, names: Sequence[str], ttl_s: float, *, new: bool) -> list[str]:
        statement, holder = s.HOLD_UPLOAD if new else s.RENEW_UPLOAD, _holder()

        def work() -> Steps[list[str]]:
            gone = []
            for params in self._blobs(names, holder=holder, ttl_us=as_us(ttl_s)):
                found = yield Query(statement, params)
                gone += [] if found else [params["blob"]]
            return gone

        return await self.backend.run(work, write=True) if names else []

    async def end_uploads(self, names: Sequence[str], *, held: bool) -> list[str]:

        def work() -> Steps[list[str]]:
            free = []
            if not held:  # also those whose blob was never written
                yield Query(s.DROP_OLD_UPLOADS, {"tenant": self.tenant, "ttl_us": as_us(HELD_S)})
            for params in self._blobs(names):
                # A commit that names it ends before this lock is given, or finds nothing to take.
                found = yield Query(s.UPLOAD_OF, params)
                if found:
                    holder, lasts = found[0]
                    if not held and lasts and not provably_dead(holder):
                        continue
                    yield Query(s.TAKE_UPLOAD, params)
                if not (yield Query(s.NAMED_BLOB, params)):
                    free.append(params["blob"])
            return free

        return await self.backend.run(work, write=True, removes=True) if names else []

    def _blobs(self, names: Sequence[str], **others: Any) -> Iterator[dict[str, Any]]:
        for name in names:
            yield {
                "tenant": self.tenant,
                "sha256": name.partition("-")[0],
                "blob": name,
                **others,
            }


@cache
def _owner_of(pid: int) -> Owner:  # noqa: ARG001 - a fork is another process
    return Owner.new()


def _holder() -> str:
    """This process, as others may prove its end."""
    return _owner_of(os.getpid()).token()


def _version(*row: Any) -> StoredVersion:
    newest, text, tail, parts = row[_COLUMNS:]
    artifact = stored_artifact(row, newest=bool(newest))
    return StoredVersion(artifact, text, bytes(tail or b""), parts)


def _part(*row: Any) -> StoredPart:
    part = StoredPart(*row)
    return part if part.data is None else part._replace(data=bytes(part.data))


async def drop_blobs(backend: Driver, tenant: str, names: list[str]) -> None:
    """Remove blobs that no row names any more; a failure leaves orphans."""
    if backend.blobs is not None:
        with contextlib.suppress(StoreError):
            await drop(SQLArtifactRows(backend, tenant), tenant, backend.blobs, names)
