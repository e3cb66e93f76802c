"""
The ZIP file of an archive, written as a stream and read from a file.

Members are stored, not compressed. So the same contexts make the same bytes with every version of
zlib, and a small file cannot hold a large member. A reader trusts nothing: it looks at no member
whose place in the file overlaps another one, or whose name it does not expect, and it never
makes a file of a member.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

from looopy.errors import ArchiveRefused
from looopy.stores.archive.format import MANIFEST, MOST_LINE_BYTES, MOST_MEMBERS

BLOCK = 1024 * 1024
_NO_DATE = (1980, 1, 1, 0, 0, 0)
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_HEADER = struct.Struct("<4s5H3L2H")
_MOST_DIRECTORY_BYTES = 16 * 1024 * 1024
_ENCRYPTED = 0x1


def refuse(why: str, member: str | None = None, **facts: Any) -> ArchiveRefused:
    """The error for an archive; *facts* are attributes of `ArchiveRefused`."""
    line, path = facts.get("line"), facts.get("path")
    where = "the archive" if member is None else member
    if line is not None:
        where += f", line {line}"
    if path:
        where += f", {path}"
    return ArchiveRefused(f"{where}: {why}; nothing was imported", member=member, **facts)


# --- writing -----------------------------------------------------------------------------------


class _Sink(io.RawIOBase):
    """A file without seeking: written bytes wait until they are taken."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.waiting.append(bytes(data))
        self.size += len(data)
        return len(data)


class Writer:
    """Writes members one after the other; `members`: size and SHA-256 of each written, by name."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(self._sink, "w")
        self._open: IO[bytes] | None = None
        self._name = ""
        self._hash = hashlib.sha256()
        self._size = 0
        self.members: dict[str, dict[str, Any]] = {}

    def begin(self, name: str) -> None:
        """Begin a member."""
        info = zipfile.ZipInfo(name, date_time=_NO_DATE)
        info.create_system = 3
        info.external_attr = (stat.S_IFREG | 0o600) << 16
        self._open = self._zip.open(info, "w", force_zip64=True)
        self._name, self._hash, self._size = name, hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Write to the member."""
        assert self._open is not None  # noqa: S101 - for the type checker
        self._hash.update(data)
        self._size += len(data)
        self._open.write(data)

    def end(self) -> tuple[int, str]:
        """End the member; its size and its SHA-256."""
        assert self._open is not None  # noqa: S101 - for the type checker
        self._open.close()
        self._open = None
        digest = self._hash.hexdigest()
        self.members[self._name] = {"size": self._size, "sha256": digest}
        return self._size, digest

    def add(self, name: str, data: bytes) -> None:
        """Write a whole member."""
        self.begin(name)
        self.write(data)
        self.end()

    def close(self) -> None:
        """Write the directory, which ends the file."""
        self._zip.close()

    def abandon(self) -> None:
        """Give the archive up, wherever it is; does nothing when it is closed."""
        if self._open is not None:
            self._open.close()
        self._zip.close()

    @property
    def waiting(self) -> int:
        """How many bytes wait to be taken."""
        return self._sink.size

    def take(self) -> bytes:
        """The bytes since the last call."""
        found = b"".join(self._sink.waiting)
        self._sink.waiting.clear()
        self._sink.size = 0
        return found


# --- reading -----------------------------------------------------------------------------------


class Member:
    """The bytes of one member, read from their place in the file."""

    def __init__(self, source: _Source, name: str, start: int, size: int) -> None:
        self._source = source
        self.name = name
        self._start = start
        self.size = size

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Its bytes from *start*, in blocks of at most 1 MiB."""
        at = min(start, self.size)
        while at < self.size:
            block = self._source.read(self._start + at, min(BLOCK, self.size - at))
            if not block:
                raise refuse("it ends too early", self.name)
            yield block
            at += len(block)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Its lines without their ends, and the number of each, from 1."""
        number, rest = 0, b""
        for block in self.blocks():
            *whole, rest = (rest + block).split(b"\n")
            for one in whole:
                number += 1
                yield number, one
            if len(rest) > MOST_LINE_BYTES:
                raise refuse("a line is too long", self.name, line=number + 1)
        if rest:
            raise refuse("its last line has no end", self.name, line=number + 1)

    def whole(self, most: int) -> bytes:
        """All of it, if that is at most *most* bytes."""
        if self.size > most:
            raise refuse(f"more than {most:,} bytes", self.name)
        return b"".join(self.blocks())

    def check(self, said: Mapping[str, Any]) -> None:
        """Compare it with its size and hash in the manifest; `ArchiveRefused` if it was altered."""
        if type(said.get("size")) is not int or self.size != said["size"]:  # true is equal to 1
            raise refuse(f"{self.size} bytes, not {said.get('size')!r} as in {MANIFEST}", self.name)
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        if digest.hexdigest() != said.get("sha256"):
            raise refuse(
                f"it was altered: its SHA-256 is {digest.hexdigest()}, not {said.get('sha256')!r}",
                self.name,
            )


@dataclass(slots=True)
class _Source:
    """A file that several threads may read."""

    file: BinaryIO
    lock: threading.Lock

    def read(self, at: int, size: int) -> bytes:
        with self.lock:
            self.file.seek(at)
            return self.file.read(size)


class Reader:
    """
    The members of an archive.

    Args:
        file: It can be sought in, and is not closed.

    Attributes:
        members: By name.

    Raises:
        ArchiveRefused: It is not a ZIP file, or one that looopy does not write.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._source = _Source(file, threading.Lock())
        self._file = file
        self._mark = self._marked()
        end = file.seek(0, os.SEEK_END)
        _check_end(self._source, end)
        try:
            with zipfile.ZipFile(file) as directory:
                found = directory.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise refuse(f"it is damaged, or no ZIP file: {error}") from None
        self.members: dict[str, Member] = {}
        taken = 0
        for info in sorted(found, key=lambda one: one.header_offset):
            name = info.orig_filename
            _check_info(info, self.members)
            start = self._content_at(info)
            if info.header_offset < taken or start + info.file_size > end:
                raise refuse("it overlaps another member, or exceeds the file", name)
            taken = start + info.file_size
            self.members[name] = Member(self._source, name, start, info.file_size)

    def unchanged(self) -> None:
        """Raise `ArchiveRefused` if the file has another size or time than when it was opened."""
        if self._marked() != self._mark:
            raise refuse("the file was changed while it was read")

    def _marked(self) -> object:
        try:
            found = os.fstat(self._file.fileno())
        except (OSError, ValueError, AttributeError):  # a file in memory
            return None
        return found.st_size, found.st_mtime_ns

    def _content_at(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a member begin."""
        at = info.header_offset  # below zero if the directory gives a wrong place for itself
        raw = self._source.read(at, _HEADER.size) if at >= 0 else b""
        fields = _HEADER.unpack(raw) if len(raw) == _HEADER.size else None
        if fields is None or fields[0] != b"PK\3\4":
            raise refuse("its place in the file is wrong", info.orig_filename)
        named, extra = fields[9:]
        name = self._source.read(info.header_offset + _HEADER.size, named)
        if name != info.orig_filename.encode() or fields[3] != zipfile.ZIP_STORED:
            raise refuse("the file has another member in its place", info.orig_filename)
        return int(info.header_offset + _HEADER.size + named + extra)


def _check_info(info: zipfile.ZipInfo, members: Mapping[str, Member]) -> None:
    name = info.orig_filename
    if not name.isascii() or not name.isprintable() or len(name) > 200:
        raise refuse("a member has a name that looopy does not write", ascii(name)[:80])
    if name in members:
        raise refuse("it is there twice", name)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise refuse("it is compressed: write members as they are (`zip -0`)", name)
    if info.flag_bits & _ENCRYPTED:
        raise refuse("it is encrypted", name)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.is_dir() or kind not in (0, stat.S_IFREG):
        raise refuse("it is not a regular file", name)


def _check_end(source: _Source, end: int) -> None:
    """Raise `ArchiveRefused` for a missing or huge directory, before it is read."""
    raw = source.read(max(0, end - _END.size), _END.size)
    if len(raw) < _END.size or not raw.startswith(b"PK\5\6"):
        raise refuse("it is truncated, or not a ZIP file: it has not the last bytes of one")
    count, size = _END.unpack(raw)[4:6]
    at = end - _END.size - _LOCATOR.size
    if at >= 0 and (locator := source.read(at, _LOCATOR.size)).startswith(b"PK\6\7"):
        # Where `zipfile` reads it, whatever the locator has: both have to read the same.
        place = at - _END_64.size
        raw = source.read(place, _END_64.size) if place == _LOCATOR.unpack(locator)[2] else b""
        if not raw.startswith(b"PK\6\6"):
            raise refuse("it is truncated, or no ZIP file: its directory is not there")
        count, size = _END_64.unpack(raw)[7:9]
    if count > MOST_MEMBERS or size > _MOST_DIRECTORY_BYTES:
        raise refuse(f"more than {MOST_MEMBERS:,} members")
