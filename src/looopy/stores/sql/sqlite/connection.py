"""
One connection to a SQLite file: its place, its settings and its errors.

The promises rest on the settings, so they are read back after they were made: write-ahead log with
a sync for each commit (a commit that returned survives a power cut), foreign keys enforced,
transactions begun by us alone. Waiting for another process happens here and not inside SQLite, in
short tries with a random pause between them up to a deadline, so that no thread is stuck in C for
long.

A database file is never opened as a plain file: closing that would drop the locks that SQLite holds
on it in this process.

SQLite keeps using the files that it has opened, even if their names lead elsewhere by now: it
commits to a removed file as to any other. So a connection remembers which files it has, and
`Connection.check_files` checks if another process would open the same ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, StorageFull, StoreUnavailable
from looopy.stores.sql.sqlite.reserve import Reserve

T = TypeVar("T")
FileId: TypeAlias = tuple[int, int]
"""Inode and device: two names of one file have the same."""
PATIENCE_S = 30.0
_BUSY_TIMEOUT_MS = 200
_LONGEST_PAUSE_S = 0.02
_OPENINGS = 3
_OLDEST = (3, 35, 0)  # RETURNING
_random = random.SystemRandom()
_making = threading.Lock()
# The value that each setting must have when it is read back.
SETTINGS = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: one sync for each commit
    "foreign_keys": 1,
    "busy_timeout": _BUSY_TIMEOUT_MS,
    "secure_delete": 1,  # zeros in the place of what was deleted
}


class Connection(sqlite3.Connection):
    """
    A connection that notices when its files are no longer there.

    Attributes:
        checked_at: Its `data_version` when the schema was last found to be ours.
        log_bytes: The length of the log when the files were last checked.
        reserve: The space that is kept for removals on a full disk.
    """

    checked_at: int | None = None
    log_bytes = 0
    reserve: Reserve
    _path: Path
    _names: tuple[str, ...]
    _ids: list[FileId | None]

    def remember_files(self, path: Path) -> FileId | None:
        """
        Remember the files at *path* as open here; the id of the database, `None` if it is gone.
        """
        # Absolute, as the process may change its folder. SQLite follows links, and has its log
        # beside the file that they lead to.
        real = os.path.realpath(path)
        self._path = path
        self._names = (str(path.absolute()), f"{real}-wal", f"{real}-shm")
        self._ids = [_file_id(name) for name in self._names]
        return self._ids[0]

    def check_files(self, *, outcome_known: bool = True) -> StoreUnavailable | None:
        """
        Compare the files that this connection has open with the files at their paths.

        Args:
            outcome_known: True if certainly nothing was written.

        Returns:
            An error that names the missing file, or `None`. An open file keeps its inode, so no
            other file has the same id.
        """
        # Short, as it is on the way of every commit.
        stat, (database, log, shared) = os.stat, self._names
        try:
            there = stat(log)
            if [stat(database)[1:3], there[1:3], stat(shared)[1:3]] == self._ids:
                self.log_bytes = there.st_size
                return None
        except OSError:
            pass
        found = [_file_id(name) for name in self._names]
        if found == self._ids:  # it was away for a moment
            return None
        lost = next(n for n, known in enumerate(self._ids) if found[n] != known)
        name = self._path if lost == 0 else Path(self._names[lost])
        became = "was removed" if found[lost] is None else "was replaced by another file"
        return StoreUnavailable(
            f"{name} {became} while the database was open here: nothing can be stored in it; shut"
            " down all that use it, and open it again",
            outcome_known=outcome_known,
        )

    def save_log(self) -> None:
        """
        Move the content of the log into the database, as far as other processes allow.

        If the log was removed, this saves its content: no other process can read it any more. If
        the database or the shared memory was removed, other processes may use the log in another
        way, and this would destroy what they have stored.
        """
        database, _, shared = map(_file_id, self._names)
        if (database, shared) == (self._ids[0], self._ids[2]):
            # On a full disk the log keeps every commit, and the next opening reads it.
            with contextlib.suppress(sqlite3.Error):
                self.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def empty_log(self, *, wait: bool) -> bool:
        """
        Move the content of the log into the database and empty the log, so that it holds no deleted
        data.

        Args:
            wait: True to wait a moment for present readers and writers.

        Returns:
            True if it is empty; other processes may block it.
        """
        if self.check_files() is not None:
            return False
        try:
            self.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS if wait else 0}")
            ((busy, _, _),) = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return not busy
        except sqlite3.Error:
            return False
        finally:
            self.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _file_id(name: str) -> FileId | None:
    try:
        return os.stat(name)[1:3]  # noqa: PTH116 - on the way of every commit
    except OSError:
        return None


def connect(
    path: Path, *, create: bool = True, query_only: bool = False, patience_s: float = PATIENCE_S
) -> Connection:
    """
    Open the database at *path* with its settings made and read back.

    Args:
        create: True to make the file if it does not exist.
        query_only: Refuse every write on this connection.
        patience_s: How long other processes may keep the file locked.

    Raises:
        StoreUnavailable: The file cannot be used; the message has the reason and the way out.
    """
    _check_place(path)
    if create:
        make_file(path)
    reserve = Reserve(path)
    for _ in range(_OPENINGS):
        before = _file_id(str(path.absolute()))
        try:
            connection = _open(path, patience_s)
        except StorageFull:
            if not reserve.free():
                raise
            connection = _open(path, patience_s)
        # Another one may have taken its place in between. Some file systems give a file another
        # number when it is first opened for writing.
        if connection.remember_files(path) == before:
            break
        connection.close()
    else:
        raise StoreUnavailable(f"{path} was replaced by another file while it was being opened")
    connection.reserve = reserve
    if query_only:
        connection.execute("PRAGMA query_only = ON")
    connection.create_function("now_us", 0, _now_us)
    return connection


def make_file(path: Path) -> None:
    """
    Make an empty file for its owner alone, unless there is one; SQLite gives its log the same mode.

    Raises:
        StoreUnavailable: It cannot be made.
    """
    # It must not be open as a database in this process when it is closed as a plain file.
    with _making:
        try:
            os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"the disk of {path} is full: {_FREE_SPACE}") from None
            raise StoreUnavailable(f"the database {path} {_CANNOT_WRITE}") from None


def _open(path: Path, patience_s: float) -> Connection:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=_BUSY_TIMEOUT_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from None
    try:
        retry(lambda: _make_settings(connection, path), patience_s)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, path) from None
        raise
    return connection


def _now_us() -> int:
    return time.time_ns() // 1000


def _check_place(path: Path) -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(
            f"SQLite {sqlite3.sqlite_version} is too old: looopy needs 3.35; use a newer Python"
        )
    if path.is_dir():
        raise StoreUnavailable(
            f"{path} is a folder: name a file in it, such as {path / 'looopy.db'}"
        )
    if not path.parent.is_dir():
        more = f"; an absolute path has four slashes: sqlite:////{path.as_posix()}"
        raise StoreUnavailable(
            f"the folder {path.parent} does not exist: create it first"
            + ("" if path.is_absolute() else more)
        )
    # SQLite would open it for reading alone, and the first write would be the one to find out.
    for place in (path, path.parent):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreUnavailable(f"{place} may not be written: check its owner and permissions")


def _make_settings(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.execute("PRAGMA page_count").fetchone()[0]:
        # Before there is a page, and a log: free pages can be given back to the disk.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            f"{path} cannot have a write-ahead log here (journal mode {mode!r}):"
            " put it on a local disk that this user may write to"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    for name, wanted in SETTINGS.items():
        found = connection.execute(f"PRAGMA {name}").fetchone()[0]
        if found != wanted:
            raise StoreUnavailable(
                f"SQLite keeps {name} at {found!r} for {path}: it must be {wanted!r}"
            )
    connection.execute("PRAGMA schema_version").fetchall()  # from the first read on there is a log


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has committed, in any process."""
    (row,) = connection.execute("PRAGMA data_version").fetchall()
    version: int = row[0]
    return version


def is_busy(error: sqlite3.Error) -> bool:
    """True if another connection blocks this one, so that trying again may help."""
    return _code(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def retry(action: Callable[[], T], patience_s: float) -> T:
    """Run *action*, again while the database is busy, until *patience_s* seconds have passed."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return action()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_random.uniform(0.0, _LONGEST_PAUSE_S))


def translate(error: sqlite3.Error, path: Path, *, outcome_known: bool = True) -> StoreUnavailable:
    """
    Translate *error* into one of looopy's errors. Its message holds no value of any row.

    Args:
        path: The database, for the message.
        outcome_known: True if certainly nothing was written.
    """
    code = _code(error)
    if code & 0xFF == sqlite3.SQLITE_FULL or code in _NO_SPACE:
        return StorageFull(
            f"the disk of {path} is full: {_FREE_SPACE}",
            outcome_known=outcome_known,
        )
    if code == sqlite3.SQLITE_CONSTRAINT_CHECK:
        _, _, broken = str(error).rpartition(" ck_looopy_contexts_")
        if (way_out := _NO_NUMBER.get(broken)) is not None:
            return StorageFull(f"the database {path} {way_out}", outcome_known=True)
    sentence = _SENTENCES.get(code & 0xFF, "failed with {name}")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreUnavailable(
        f"the database {path} {sentence.format(name=name)}", outcome_known=outcome_known
    )


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)  # absent where Python's own layer refused
    return code


# A write beyond what the disk, the quota or the size limit of the process allows.
_NO_SPACE = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
# A row is under a number of 63 bits: 31 for its context, 32 for its place in it; `statements.py`.
_CONTEXT_IS_FULL = "has no number left in this context, which has 4 billion {}: begin a new one"
_NO_NUMBER = {
    "number": "has no number left for another context: begin a new file",
    "last_position": _CONTEXT_IS_FULL.format("messages"),
    "last_seq": _CONTEXT_IS_FULL.format("events"),
    "turn_count": _CONTEXT_IS_FULL.format("turns"),
}
_FREE_SPACE = "free some space and try again"
_CANNOT_WRITE = "cannot be opened for writing: check the owner and permissions of it and its folder"
_DAMAGED = "is damaged, or is not an SQLite database: move it away, or put a backup in its place"
_LOCKED = "was kept locked by another process for too long: nothing was written, try again"
_SENTENCES = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_WRITE,
    sqlite3.SQLITE_READONLY: _CANNOT_WRITE,
    sqlite3.SQLITE_PERM: _CANNOT_WRITE,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_IOERR: "could not be read or written ({name}): check its disk",
}


def sqlite_path(url: str) -> Path:
    """
    The file that a SQLite URL names: three slashes before a relative path, four before an absolute
    one.

    Raises:
        ConfigurationError: It names no file.
    """
    scheme, _, rest = url.partition(":")
    if scheme not in ("sqlite", "sqlite+aiosqlite"):
        raise ConfigurationError(
            f"a URL with the scheme {scheme!r} names no SQLite file: use sqlite:///path/to/file.db"
        )
    name = rest.removeprefix("///")
    if name == rest or not name or name.endswith("/"):
        raise ConfigurationError(
            f"{url!r} names no file: use sqlite:///chat.db, or sqlite:////var/lib/chat.db for an"
            " absolute path"
        )
    if name.startswith((":memory:", "file:")):
        raise ConfigurationError(
            "SQLite in memory is not offered: use memory: for stores without a file"
        )
    if urlsplit(url).query or urlsplit(url).fragment:
        raise ConfigurationError(
            f"{url!r} has options, which are not supported: name only the file"
        )
    _check_name(name)
    return Path(name)


# The limit of file systems. The log and the copies have longer names than the file.
_LONGEST_FILE, _LONGEST_FOLDER, _LONGEST_PATH = 200, 255, 4000


def _check_name(name: str) -> None:
    """Refuse a path that no file can have, known without looking for it."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = 0
    if not size or "\0" in name:
        raise ConfigurationError(
            "the path of a SQLite file must be valid Unicode, without NUL: it cannot be opened"
        )
    *folders, file = Path(name).parts
    if (
        size > _LONGEST_PATH
        or len(os.fsencode(file)) > _LONGEST_FILE
        or any(len(os.fsencode(folder)) > _LONGEST_FOLDER for folder in folders)
    ):
        raise ConfigurationError(
            f"the path of the SQLite file {name[:40]!r}... is too long: its name may have"
            f" {_LONGEST_FILE} bytes, a folder {_LONGEST_FOLDER}, and all of it {_LONGEST_PATH}"
        )
