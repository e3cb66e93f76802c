"""
Archives of conversations: written to a file or standard output, read from a file or standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from looopy.cli.conversations.database import existing
from looopy.cli.data_folder import default_url, shown_place
from looopy.cli.render import counted, json_line
from looopy.cli.terminal import Terminal
from looopy.errors import ArchiveRefused, ConfigurationError, ContextNotFound, ValueRefused
from looopy.stores.archive.importing import OWN_OR_TRUST, Source, import_contexts
from looopy.stores.archive.writing import (
    ArchiveReport,
    Signature,
    export_contexts,
    export_to_file,
)
from looopy.stores.bundle import Stores

AUTH_KEY: Final = "LOOOPY_AUTH_KEY"
_SIGNED: Final = {
    Signature.VALID: f"signed with {AUTH_KEY}",
    Signature.NONE: "not signed: its author is unknown",
    Signature.INVALID: f"not signed with {AUTH_KEY}: its author is unknown",
    Signature.UNCHECKED: f"signed, and not checked: {AUTH_KEY} is not set",
}
_PAGE = 200
_STREAM = "-"


async def write_archive(
    url: str | None,
    context_ids: Sequence[str],
    owner: str | None,
    to: str,
    *,
    force: bool,
    sign: bool = False,
) -> int:
    """
    Export conversations: those with these ids, or all of an owner.

    Raises:
        ConfigurationError: There is nothing to export, no place for it, or no key to sign it with.
        ContextNotFound: One does not exist.
    """
    if bool(context_ids) == (owner is not None):
        raise ConfigurationError("name conversations to export, or --owner ACTOR")
    if to == _STREAM and sys.stdout.isatty():
        raise ConfigurationError("an archive is not text: pass --to FILE, or redirect the output")
    key = _key() if sign else None
    if sign and key is None:
        raise ConfigurationError(f"--sign needs the application's secret, in {AUTH_KEY}")
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    async with existing(place) as stores:
        ids = list(context_ids)
        if owner is not None:
            ids = [name async for name in _owned(stores, owner)]
            if not ids:
                raise ContextNotFound(f"{owner!r} owns no conversation in {shown_place(place)}")
        for name in ids:  # before anything is written
            if await stores.state.load(name) is None:
                raise ContextNotFound(f"there is no conversation {name!r} in {shown_place(place)}")
        if to == _STREAM:
            async for piece in export_contexts(stores, ids, auth_key=key):
                await asyncio.to_thread(sys.stdout.buffer.write, piece)
            await asyncio.to_thread(sys.stdout.buffer.flush)
            return 0
        try:
            report = await export_to_file(stores, ids, to, overwrite=force, auth_key=key)
        except FileExistsError:
            raise ConfigurationError(f"{to} exists: --force replaces it") from None
        except OSError as error:
            raise ConfigurationError(f"{to} cannot be written: {error.strerror}") from None
    _tell(terminal, "exported", report)
    return 0


async def _owned(stores: Stores, owner: str) -> AsyncIterator[str]:
    after: str | None = None
    while True:
        page = await stores.contexts.list(owner=owner, after=after, limit=_PAGE)
        for record in page.items:
            yield record.context_id
        if (after := page.next) is None:
            return


async def read_archive(
    url: str | None,
    archive: str,
    renamed: Sequence[str],
    owner: str | None,
    *,
    new_ids: bool,
    keep_owners: bool,
    signed_only: bool = False,
    as_json: bool,
) -> int:
    """
    Import conversations: all of an archive, or none.

    Raises:
        ArchiveRefused: The archive is damaged, altered, or not to be trusted.
        StoreConflict: A conversation exists already.
        ConfigurationError: There is no such file, or no database.
    """
    if owner is not None and keep_owners:
        raise ConfigurationError("--owner and --keep-owners exclude each other")
    names = dict(map(_renaming, renamed))
    if names and new_ids:
        raise ConfigurationError("--new-ids and --rename exclude each other")
    source = _source(archive)
    async with existing(url or default_url()) as stores:
        try:
            report = await import_contexts(
                stores,
                source,
                new_ids=new_ids or names,
                owner=owner,
                keep_owners=keep_owners,
                auth_key=_key(),
                signed_only=signed_only,
            )
        except ArchiveRefused as error:
            raise _in_words_of_ours(error) from None
    terminal = Terminal(quiet_out=True)
    if as_json:
        items = [
            {"context_id": one.context_id, "archived_as": one.archived_as}
            for one in report.contexts
        ]
        said = {"items": items, "digest": report.digest, "signature": report.signature.value}
        terminal.raw_line(json_line(said))
        return 0
    for one in report.contexts:
        was = "" if one.archived_as == one.context_id else f"  was {one.archived_as}"
        terminal.line(f"{one.context_id}{was}")
    _tell(terminal, "imported", report)
    terminal.notice(_SIGNED[report.signature])
    return 0


def _key() -> str | None:
    """The application's secret, from the environment."""
    return os.environ.get(AUTH_KEY) or None


def _source(archive: str) -> Source:
    if archive == _STREAM:
        stdin: BinaryIO = sys.stdin.buffer
        return stdin
    if not Path(archive).is_file():
        raise ConfigurationError(f"there is no file {archive}")
    return archive


def _in_words_of_ours(error: ArchiveRefused) -> ArchiveRefused:
    """*error* with the options of this program in place of arguments."""
    said = error.message.replace(
        OWN_OR_TRUST, "pass --owner ACTOR to own it, or --keep-owners if you trust the archive"
    )
    return ArchiveRefused(said, member=error.member, line=error.line, path=error.path)


def _renaming(text: str) -> tuple[str, str]:
    old, found, new = text.partition("=")
    if not found:
        raise ValueRefused(f"{text!r} is not OLD=NEW", path="/new_ids")
    return old, new


def _tell(terminal: Terminal, done: str, report: ArchiveReport) -> None:
    contexts = counted(len(report.contexts), "conversation")
    messages = counted(sum(one.messages for one in report.contexts), "message")
    versions = counted(sum(one.versions for one in report.contexts), "version")
    terminal.notice(
        f"{done} {contexts}: {messages}, {versions} of artifacts, {report.size:,} bytes\n"
        f"SHA-256 of the manifest: {report.digest}"
    )
