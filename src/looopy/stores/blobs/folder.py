"""
A blob store in a folder: plain files, synced and renamed into place.

No library does this for us: libraries that write local files sync them only on request, or never.
The folder is private (0700, files 0600). Every step goes through the descriptor of the folder above
it and follows no symbolic link, so nothing planted in the folder leads out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from looopy._failpoints import reach
from looopy.errors import StorageFull, StoreUnavailable
from looopy.stores.blobs.base import UNFINISHED, name_of

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class FolderBlobs:
    """Objects as files in *root*, made with the first; only *root* may be a symbolic link."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object."""
        await asyncio.to_thread(self._put, path, content)

    async def get(self, path: str) -> bytes | None:
        """The content of an object."""
        return await asyncio.to_thread(self._get, path)

    async def remove(self, path: str) -> None:
        """Remove an object."""
        await asyncio.to_thread(self._remove, path)

    async def older(self, prefix: str, age_s: float) -> AsyncIterator[str]:
        """Paths of old objects."""
        for path in await asyncio.to_thread(self._older, prefix, age_s):
            yield path

    def __repr__(self) -> str:
        return f"FolderBlobs({str(self._root)!r})"

    # --- on a thread ---

    def _put(self, path: str, content: bytes | memoryview) -> None:
        name = path.rpartition("/")[2]
        with self._trouble(writes=True), self._folder_of(path, make=True) as folder:
            unfinished = f"{name}{UNFINISHED}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
            file = os.open(unfinished, flags, 0o600, dir_fd=folder)
            try:
                try:
                    left = memoryview(content).cast("B")
                    while left:
                        left = left[os.write(file, left) :]
                    reach("A1")
                    os.fsync(file)
                finally:
                    os.close(file)
                reach("A2")
                os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(unfinished, dir_fd=folder)
                raise
            os.fsync(folder)
            reach("A3")

    def _get(self, path: str) -> bytes | None:
        try:
            with self._trouble(), self._folder_of(path) as folder:
                flags = os.O_RDONLY | os.O_NONBLOCK | _NO_LINK  # a pipe would not answer
                file = os.open(path.rpartition("/")[2], flags, dir_fd=folder)
                try:
                    told = os.fstat(file)
                    return _whole(file, told.st_size) if stat.S_ISREG(told.st_mode) else None
                finally:
                    os.close(file)
        except FileNotFoundError:
            return None

    def _remove(self, path: str) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            self._trouble(),
            self._folder_of(path) as folder,
        ):
            os.unlink(path.rpartition("/")[2], dir_fd=folder)

    def _older(self, prefix: str, age_s: float) -> list[str]:
        until = time.time() - age_s
        found: list[str] = []
        with contextlib.suppress(FileNotFoundError), self._trouble():
            is_shard = "/" in prefix
            room = self._root / prefix
            shards = [prefix] if is_shard else [f"{prefix}/{one.name}" for one in room.iterdir()]
            for shard in sorted(shards):
                path = f"{shard}/"
                with contextlib.suppress(NotADirectoryError), self._folder_of(path) as folder:
                    found += (path + name for name in sorted(_old_files(folder, until)))
        return found

    @contextlib.contextmanager
    def _folder_of(self, path: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder that *path* is in."""
        if make:
            _make(self._root)
        here = os.open(self._root, _FOLDER)
        try:
            for step in path.split("/")[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, 0o700, dir_fd=here)
                        os.fsync(here)
                above, here = here, os.open(step, _FOLDER | _NO_LINK, dir_fd=here)
                os.close(above)
            yield here
        finally:
            os.close(here)

    @contextlib.contextmanager
    def _trouble(self, *, writes: bool = False) -> Iterator[None]:
        """
        Raise the errors of the file system as ours.

        For a read, a file that is missing, or a link in its place, raises `FileNotFoundError`.
        """
        try:
            yield
        except OSError as error:
            if not writes and error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise FileNotFoundError from error
            if error.errno in _FULL:
                raise StorageFull(
                    f"there is no room for an artifact in {self._root}: nothing was written"
                ) from error
            raise StoreUnavailable(
                f"the folder of artifacts {self._root} cannot be used: {error.strerror}"
            ) from error


def _whole(file: int, size: int) -> bytes:
    content = os.read(file, size + 1)
    while more := os.read(file, size + 1):
        content += more
    return content


def _old_files(folder: int, until: float) -> Iterator[str]:
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            told = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name_of(name) and told.st_mtime <= until:
                yield name


def _make(root: Path) -> None:
    """Make the folder for its owner alone, and sync the one above."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
        above = os.open(root.parent, _FOLDER)
        try:
            os.fsync(above)
        finally:
            os.close(above)
