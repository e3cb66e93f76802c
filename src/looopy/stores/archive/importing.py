"""
Import contexts from an archive: checked in full, then restored at once.

Reading needs a file, because the manifest is at its end. A stream is therefore written to a
temporary file first, which only this user may read. Everything is checked there, in a thread; only
then does `ContextIndex.restore` write, in one transaction for all contexts. A process that is
killed at any moment leaves no context, and the import can be run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from typing import BinaryIO, TypeAlias

from looopy.errors import ConfigurationError, ValueRefused
from looopy.stores.archive.container import BLOCK, refuse
from looopy.stores.archive.format import CONTEXT, MANIFEST, SIGNATURE
from looopy.stores.archive.reading import Archive, Checked, Listed
from looopy.stores.archive.writing import (
    ArchivedContext,
    ArchiveReport,
    Signature,
    checked_path,
)
from looopy.stores.bundle import Stores
from looopy.stores.contexts.sub_contexts import linked_in
from looopy.stores.rules import check_context_id
from looopy.types.storable import check_actor

Source: TypeAlias = str | os.PathLike[str] | BinaryIO | AsyncIterable[bytes]
"""The path of a file, an open file, or a stream of bytes."""

OWN_OR_TRUST = "import it as `owner=...`, or with `keep_owners=True` if you trust the archive"
"""The way out for an archive that names another actor."""


async def import_contexts(
    stores: Stores,
    source: Source,
    *,
    new_ids: bool | Mapping[str, str] = False,
    owner: str | None = None,
    keep_owners: bool = False,
    auth_key: str | bytes | None = None,
    signed_only: bool = False,
) -> ArchiveReport:
    """
    Import all contexts of an archive, or none.

    Args:
        stores: Open stores; their tenant gets the contexts.
        source: An archive that `export_contexts` made. A file stays open; a stream is written to a
            temporary file first.
        new_ids: True: every context gets a new id. Or the new ids by old id; other contexts keep
            theirs, unless their agents work for one with a new id.
        owner: The importer (`AuthContext.actor_id`), who owns the contexts from now on. Without
            *keep_owners*, an archive that names any other actor is refused.
        keep_owners: Keep owners and actors as the archive names them. An archive can name any
            person, so do this only with one of your own.
        auth_key: The application's secret, to see if the archive was signed with it.
        signed_only: Refuse an archive that was not.

    Returns:
        The contexts with their new ids, and the `signature` of the archive.

    Raises:
        ArchiveRefused: The archive is truncated, altered, of a newer version, names another owner,
            or has no valid signature although *signed_only* asks for it. The error names the place.
        ConfigurationError: *auth_key* is too short, or missing beside *signed_only*.
        StoreConflict: A context exists already.
        ValueRefused: A new id is invalid, or names no context of the archive; or *source* has
            another type.
        StoreUnavailable: The store did not answer.
        OSError: The file cannot be read.

    An open call asks again, whether it was answered or not: see `asking_again`.

    If it raises, nothing was imported. Leases and idempotency keys are not in an archive: a
    request that is repeated with its key after an import begins a new turn.
    """
    check_actor(owner)
    _renamed(new_ids)
    if auth_key is None and signed_only:
        raise ConfigurationError("signed_only=True needs the auth_key of the archive")
    async with _opened(source) as file:
        archive = await asyncio.to_thread(Archive, file)
        signed = archive.signature(auth_key)
        if signed_only and signed is not Signature.VALID:
            raise refuse(f"its signature is {signed}, and only signed ones are imported", SIGNATURE)
        ids = _ids(archive.contexts, new_ids)
        await asyncio.to_thread(archive.check_members)
        checked = []
        for number in range(len(archive.contexts)):
            one = await asyncio.to_thread(archive.read, number)
            if not keep_owners:
                _check_actors(one, owner)
            checked.append(one)
        _check_links(checked)
        if new_ids is not True:
            ids = _with_inner(ids, checked, named=_renamed(new_ids))
        restored = [
            await asyncio.to_thread(one.restored, ids, owner, keep_owners=keep_owners)
            for one in checked
        ]
        archive.unchanged()
        await stores.contexts.restore(restored)
        size = await asyncio.to_thread(_size, file)
    return ArchiveReport(
        contexts=[
            ArchivedContext(
                context_id=ids[one.context_id], archived_as=one.context_id, **one.counts
            )
            for one in archive.contexts
        ],
        digest=archive.digest,
        size=size,
        signature=signed,
    )


def _ids(contexts: Sequence[Listed], new_ids: bool | Mapping[str, str]) -> dict[str, str]:
    """The new id of each context, by the old one."""
    named = _renamed(new_ids)
    ids: dict[str, str] = {}
    for place, listed in enumerate(contexts):
        if listed.context_id in ids:
            path = f"/contexts/{place}/context_id"
            raise refuse(f"context {listed.context_id!r} is there twice", MANIFEST, path=path)
        kept = listed.context_id
        ids[kept] = uuid.uuid4().hex if new_ids is True else named.pop(kept, kept)
        check_context_id(ids[kept])
    if named:
        raise ValueRefused(f"there is no context {min(named)!r} in the archive", path="/new_ids")
    if len(set(ids.values())) != len(ids):
        raise ValueRefused("two contexts cannot have one id", path="/new_ids")
    return ids


def _renamed(new_ids: object) -> dict[str, str]:
    """The new ids by old id that the caller has named, or `ValueRefused`."""
    if isinstance(new_ids, bool):
        return {}
    if not isinstance(new_ids, Mapping) or not all(isinstance(old, str) for old in new_ids):
        raise ValueRefused(
            "/new_ids: pass True for new ids, or a mapping of old ids to new ones", path="/new_ids"
        )
    return dict(new_ids)


def _check_links(contexts: Sequence[Checked]) -> None:
    """Raise `ArchiveRefused` for two contexts of one call, and for one inside of itself."""
    links = {c.listed.context_id: c.inner_of for c in contexts if c.inner_of is not None}
    wrong = linked_in(links)
    if wrong is not None:
        member = next(c.listed.folder for c in contexts if c.listed.context_id == wrong) + CONTEXT
        raise refuse("it works for a call that has another context, or for itself", member)


def _with_inner(
    ids: Mapping[str, str], contexts: Sequence[Checked], *, named: Collection[str]
) -> dict[str, str]:
    """
    *ids*, with new ones for the contexts that work for one with a new id, and are not *named*.

    Raises:
        ValueRefused: Two contexts would have one id.
    """
    found = dict(ids)
    inner = defaultdict(list)
    for one in contexts:
        if one.inner_of is not None:
            inner[one.inner_of.context_id].append(one.listed.context_id)
    left = [old for old, new in ids.items() if old != new]
    for outer in left:
        begins = f"{outer[:80]}:"
        for old in inner[outer]:
            if old not in named:
                rest = old.removeprefix(begins) if old.startswith(begins) else uuid.uuid4().hex
                found[old] = f"{found[outer][:80]}:{rest}"
                check_context_id(found[old])
                left.append(old)
    if len(set(found.values())) != len(found):
        raise ValueRefused("two contexts cannot have one id", path="/new_ids")
    return found


def _check_actors(context: Checked, owner: str | None) -> None:
    for actor, (member, line, path) in context.actors.items():
        if actor != owner:
            why = f"it names the actor {actor!r}, who is not the importer: {OWN_OR_TRUST}"
            raise refuse(why, member, line=line, path=path)


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


@contextlib.asynccontextmanager
async def _opened(source: Source) -> AsyncIterator[BinaryIO]:
    """The archive as a file that can be sought in; `ValueRefused` if it gives no bytes."""
    if isinstance(source, (str, os.PathLike)):
        path = checked_path(source, "/source")
        with await asyncio.to_thread(path.open, "rb") as file:
            yield file
        return
    if isinstance(source, AsyncIterable):
        with await asyncio.to_thread(tempfile.TemporaryFile) as file:
            async for piece in source:
                await asyncio.to_thread(file.write, _checked_piece(piece))
            await asyncio.to_thread(file.flush)
            yield file
        return
    if not (hasattr(source, "read") and hasattr(source, "seekable")):
        raise _no_source(source)
    if source.seekable():
        _checked_piece(source.read(0))
        yield source
        return
    with await asyncio.to_thread(tempfile.TemporaryFile) as file:
        while piece := await asyncio.to_thread(source.read, BLOCK):
            await asyncio.to_thread(file.write, _checked_piece(piece))
        await asyncio.to_thread(file.flush)
        yield file


def _checked_piece(piece: object) -> bytes:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise _no_source(piece)
    return piece  # type: ignore[return-value] # a file takes all three


def _no_source(given: object) -> ValueRefused:
    kind = type(given).__name__
    return ValueRefused(
        f"/source: {kind} is not an archive: pass a path, a file that is open in binary mode, such"
        " as io.BytesIO(...), or an async iterator of bytes",
        path="/source",
    )
