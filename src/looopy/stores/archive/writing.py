"""
Export contexts: a stream of bytes, or a file.

A context is exported as it was at one moment. `ContextIndex.snapshot` reads everything that
changes, in one read transaction. Messages, events and turns up to the numbers of the snapshot do
not change any more, so they are read page by page afterwards, while turns continue. A version of an
artifact that grows meanwhile is cut at its size in the snapshot. If the context is cleared or
deleted meanwhile, the export fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from looopy.auth.sealing import signature
from looopy.errors import (
    ArtifactNotFound,
    ContextNotFound,
    LimitExceeded,
    StoreConflict,
    ValueRefused,
)
from looopy.stores.archive import format as form
from looopy.stores.archive.container import Writer
from looopy.stores.bundle import Stores
from looopy.stores.contexts.lines import (
    artifact_to_json,
    context_to_json,
    entry_to_line,
    event_to_line,
    line,
    turn_to_json,
)
from looopy.stores.contexts.snapshot import ContextSnapshot
from looopy.types.artifact import Artifact, ArtifactStatus
from looopy.types.event import AgentEvent, MessageEnd, TurnStart
from looopy.types.message import AssistantMessage, ToolResultMessage, UserMessage

_CHUNK = 256 * 1024
_EVENTS_AT_ONCE = 1_000
_PAGE_BYTES = 2 * 1024 * 1024  # of messages that are read at once
_TURNS_AT_ONCE = 500


ALGORITHM: Final = "HMAC-SHA-256"


class Signature(StrEnum):
    """
    If an archive is known to be the application's own.

    A valid signature proves the writer of the archive, not its age: an old one stays valid.
    """

    VALID = "valid"
    NONE = "none"
    INVALID = "invalid"  # of another key, or of an archive that was altered
    UNCHECKED = "unchecked"  # it has one, and no key was given


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedContext:
    """
    A context of an archive, and how much it holds.

    Attributes:
        context_id: In the store that it was exported from, or imported into.
        archived_as: Its id in the archive.
        events: Lines of its log, messages included. `versions`: of all artifacts.
    """

    context_id: str
    archived_as: str
    turns: int
    messages: int
    events: int
    entries: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """
    The contexts that were exported or imported.

    Attributes:
        digest: SHA-256 of the manifest, which names the SHA-256 of every member. The same contexts
            have the same digest in every store.
        size: Bytes of the archive.
        signature: If the archive is known to be the application's own.
    """

    contexts: Sequence[ArchivedContext]
    digest: str
    size: int
    signature: Signature = Signature.NONE


async def export_contexts(
    stores: Stores,
    context_ids: str | Iterable[str] | AsyncIterable[str],
    *,
    auth_key: str | bytes | None = None,
) -> AsyncIterator[bytes]:
    """
    Export contexts as the bytes of one archive.

    Args:
        stores: Open stores.
        context_ids: One id, or several; each context is exported once, and the contexts of agents
            that work for it follow it.
        auth_key: The application's secret, as `Agent` takes it: it signs the archive.

    Yields:
        The archive in pieces: at most 8 MiB and a little, most of them smaller.

    Raises:
        ContextNotFound: A context does not exist.
        StoreConflict: A context was cleared or deleted while it was exported; the bytes so far are
            no archive.
        ArtifactDamaged: Bytes of an artifact have vanished or were altered.
        LimitExceeded: More than 100,000 members, of which each context has five and each version of
            an artifact one.
        StoreUnavailable: The store did not answer.
        ConfigurationError: *auth_key* is too short.

    Turns may run meanwhile. An open turn is exported as far as it is stored.
    """
    async with contextlib.aclosing(_Export(stores, auth_key).run(context_ids)) as pieces:
        async for piece in pieces:
            yield piece


async def export_to_file(
    stores: Stores,
    context_ids: str | Iterable[str] | AsyncIterable[str],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    auth_key: str | bytes | None = None,
) -> ArchiveReport:
    """
    Export contexts to a file that only its owner may read (mode 0600).

    The file appears when all of it is written: there is never half an archive.

    Args:
        path: The file, in a folder that exists.
        overwrite: Replace a file that is there.
        auth_key: See `export_contexts`.

    Raises:
        ValueRefused: No file can have this path.
        FileExistsError: The file exists, and *overwrite* is false.
        OSError: It cannot be written.

    And the errors of `export_contexts`.
    """
    target = checked_path(path, "/path")
    if not overwrite and await asyncio.to_thread(target.exists):
        raise FileExistsError(f"{target} exists already")
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    export = _Export(stores, auth_key)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            async with contextlib.aclosing(export.run(context_ids)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(_sync, file.fileno(), file)
        if overwrite:
            await asyncio.to_thread(part.replace, target)
        else:
            await asyncio.to_thread(_appear, part, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return export.report()


def checked_path(value: object, place: str) -> Path:
    """The path of a file, or `ValueRefused` at *place* if no file can have it."""
    try:
        named = os.fsencode(value)  # type: ignore[arg-type] # anything else is a TypeError
    except (TypeError, ValueError):
        named = b"\0"
    if not named or b"\0" in named:
        raise ValueRefused(f"{place}: a path of a file is text or a Path, without NUL", path=place)
    return Path(os.fsdecode(named))


def _appear(part: Path, target: Path) -> None:
    try:
        os.link(part, target)  # unlike a rename, it fails if another process was faster
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(f"{target} exists already") from None
        part.replace(target)


def _sync(descriptor: int, file: Any) -> None:
    file.flush()
    os.fsync(descriptor)


class _Export:
    """One export: its bytes are read from `run`, then its report."""

    def __init__(
        self,
        stores: Stores,
        auth_key: str | bytes | None = None,
        page_bytes: int = _PAGE_BYTES,
    ) -> None:
        if auth_key is not None:
            signature(auth_key, b"", option="auth_key")  # a short one is refused before any byte
        self._stores = stores
        self._auth_key = auth_key
        self._page_bytes = page_bytes
        self._writer = Writer()
        self._contexts: list[dict[str, Any]] = []
        self._digest = ""
        self._size = 0

    async def run(
        self, context_ids: str | Iterable[str] | AsyncIterable[str]
    ) -> AsyncGenerator[bytes]:
        """Yield the archive in pieces; see `export_contexts`."""
        try:
            async for piece in self._pieces(context_ids):
                yield piece
        finally:
            self._writer.abandon()

    async def _pieces(
        self, context_ids: str | Iterable[str] | AsyncIterable[str]
    ) -> AsyncIterator[bytes]:
        writer = self._writer
        seen: set[str] = set()
        async for context_id in _each(context_ids):
            family = [context_id]
            for name in family:
                if name in seen:
                    continue
                seen.add(name)
                async for _ in self._context(name):
                    if writer.waiting >= _CHUNK:
                        yield self._take()
                family += await self._stores.contexts.inner(name)
        manifest = form.pretty(
            {
                "format": form.FORMAT,
                "version": form.VERSION,
                "contexts": self._contexts,
                "members": writer.members.copy(),
            }
        )
        self._digest = hashlib.sha256(manifest).hexdigest()
        writer.add(form.MANIFEST, manifest)
        if self._auth_key is not None:
            mac = signature(self._auth_key, manifest, option="auth_key")
            writer.add(form.SIGNATURE, form.pretty({"algorithm": ALGORITHM, "mac": mac}))
        writer.close()
        yield self._take()

    def report(self) -> ArchiveReport:
        """The report of the export."""
        found = [
            ArchivedContext(
                archived_as=one["context_id"],
                **{name: value for name, value in one.items() if name != "folder"},
            )
            for one in self._contexts
        ]
        signed = Signature.NONE if self._auth_key is None else Signature.VALID
        return ArchiveReport(contexts=found, digest=self._digest, size=self._size, signature=signed)

    def _take(self) -> bytes:
        found = self._writer.take()
        self._size += len(found)
        return found

    async def _context(self, context_id: str) -> AsyncIterator[None]:
        """Write the members of a context; yields often, so that the caller takes the bytes."""
        stores, writer = self._stores, self._writer
        snapshot = await stores.contexts.snapshot(context_id)
        record = snapshot.record
        if len(writer.members) + 6 + len(snapshot.artifacts) > form.MOST_MEMBERS:
            raise LimitExceeded(
                f"an archive has at most {form.MOST_MEMBERS:,} members: export fewer contexts",
                limit="members",
                value=form.MOST_MEMBERS,
            )
        folder = form.folder_of(len(self._contexts) + 1)
        counts = {
            "turns": record.turn_count,
            "messages": record.last_position - record.visible_from + 1,
            "events": 0,
            "entries": len(snapshot.entries),
            "versions": len(snapshot.artifacts),
        }
        context = context_to_json(record, snapshot.inner_of)
        writer.add(folder + form.CONTEXT, form.pretty(context))
        log = _Log()
        writer.begin(folder + form.EVENTS)
        async for lines in self._events(snapshot, log):
            writer.write(lines)
            yield
        writer.end()
        counts["events"] = log.count
        writer.begin(folder + form.TURNS)
        async for lines in self._turns(snapshot, log.user_positions):
            writer.write(lines)
            yield
        writer.end()
        writer.begin(folder + form.INBOX)
        for entry in snapshot.entries:
            writer.write(f"{entry_to_line(entry)}\n".encode())
            yield
        writer.end()
        members = [f"{folder}artifacts/{n}" for n in range(1, len(snapshot.artifacts) + 1)]
        named = list(zip(snapshot.artifacts, members, strict=True))
        versions = [line(artifact_to_json(one, member)) for one, member in named]
        writer.add(folder + form.ARTIFACTS, b"".join(versions))
        yield
        for one, member in named:
            async for _ in self._content(snapshot, one, member):
                yield
        await self._check_still_there(snapshot)
        self._contexts.append({"context_id": context_id, "folder": folder[:-1], **counts})

    async def _events(self, snapshot: ContextSnapshot, log: _Log) -> AsyncIterator[bytes]:
        record = snapshot.record
        after = max(record.cleared_seq - 1, 0)
        while after < record.last_seq:
            page = await self._stores.contexts.log_page(
                record.context_id,
                after=after,
                limit=min(_EVENTS_AT_ONCE, record.last_seq - after),
                most_bytes=self._page_bytes,
            )
            if not page or page[0].seq != after + 1:
                raise _changed(record.context_id)
            after += len(page)
            yield await asyncio.to_thread(log.lines, page)

    async def _turns(
        self, snapshot: ContextSnapshot, user_positions: Mapping[int, int]
    ) -> AsyncIterator[bytes]:
        record, after = snapshot.record, 0
        while after < record.turn_count:
            most = min(_TURNS_AT_ONCE, record.turn_count - after)
            page = await self._stores.journal.turns(record.context_id, after=after, limit=most)
            if not page or page[0].turn != after + 1:
                raise _changed(record.context_id)
            lines = []
            for turn in page:
                is_open = record.open_turn is not None and turn.turn == record.open_turn.turn
                said = record.open_turn if is_open and record.open_turn else turn
                begun = user_positions.get(turn.turn)
                lines.append(line(turn_to_json(said, begun)))
            after += len(page)
            yield b"".join(lines)

    async def _content(
        self, snapshot: ContextSnapshot, one: Artifact, member: str
    ) -> AsyncIterator[None]:
        """Write the bytes of a version, as many as it had."""
        left, writer = one.size, self._writer
        context_id = snapshot.record.context_id
        writer.begin(member)
        pieces = self._stores.artifacts.stream(context_id, one.artifact_id, version=one.version)
        try:
            if left:
                async for piece in pieces:
                    await asyncio.to_thread(writer.write, piece[:left])
                    left -= len(piece)
                    yield
                    if left <= 0:
                        break
        except ArtifactNotFound:
            raise _changed(context_id) from None
        _, digest = writer.end()
        if left > 0 or (one.status is ArtifactStatus.COMPLETE and digest != one.sha256):
            raise _changed(context_id)

    async def _check_still_there(self, snapshot: ContextSnapshot) -> None:
        """Raise `StoreConflict` if some of it was cleared or deleted while it was read."""
        before = snapshot.record
        now = await self._stores.state.load(before.context_id)
        if (
            now is None
            or (now.created_at, now.cleared_seq) != (before.created_at, before.cleared_seq)
            or now.epoch < before.epoch
        ):
            raise _changed(before.context_id)


class _Log:
    """
    The log of a context, as it is written.

    Attributes:
        count: How many events there were.
        user_positions: The positions of the messages that turns began with.
    """

    def __init__(self) -> None:
        self.count = 0
        self.user_positions: dict[int, int] = {}
        self._call_at: dict[str, int] = {}  # of calls without a result so far
        self._begun: tuple[int, UserMessage] | None = None

    def lines(self, page: Sequence[AgentEvent]) -> bytes:
        """The lines of some events."""
        found = []
        for event in page:
            self._notice(event)
            found.append(event_to_line(event, self._call_at))
        self.count += len(page)
        return "\n".join([*found, ""]).encode()

    def _notice(self, event: AgentEvent) -> None:
        if isinstance(event, TurnStart):
            said = event.user_message
            self._begun = None if said is None else (event.turn, said)
        if not isinstance(event, MessageEnd) or event.position is None:
            return
        message = event.message
        if self._begun is not None and self._begun == (event.turn, message):
            self.user_positions[event.turn] = event.position
            self._begun = None
        if isinstance(message, AssistantMessage):
            self._call_at.update(dict.fromkeys((c.id for c in message.tool_calls), event.position))
        elif isinstance(message, ToolResultMessage):
            self._call_at.pop(message.tool_call_id, None)


def _changed(context_id: str) -> StoreConflict:
    return StoreConflict(
        f"context {context_id!r} was cleared or deleted, or lost an artifact, while it was"
        " exported: export it again"
    )


async def _each(context_ids: str | Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    if isinstance(context_ids, str):
        yield context_ids
    elif isinstance(context_ids, AsyncIterable):
        async for context_id in context_ids:
            yield context_id
    elif not isinstance(context_ids, Iterable):
        raise ValueRefused(
            f"/context_ids: {type(context_ids).__name__} names no contexts: pass an id, or several",
            path="/context_ids",
        )
    else:
        for context_id in context_ids:
            if not isinstance(context_id, str):
                raise ContextNotFound(f"there is no context {context_id!r}")
            yield context_id
