"""
Zeros in the parts of pages that hold no row: SQLite leaves copies of rows there.

`PRAGMA secure_delete` overwrites a row where it is deleted. But when SQLite splits or joins pages,
it writes the rows to their new places and leaves the old bytes in the gap between the pointers of a
page and its content. No row refers to them, so no later deletion reaches them.

A gap is unused by the file format (sqlite.org/fileformat.html, section 1.6), so zeros change
nothing for a reader. They are written straight into the file, because SQLite has no way to do so.
Three things make that safe: the log is empty, so no newer version of a page exists; the write lock
is held, so none can come; and a commit follows, after which every connection drops the pages that
it has in memory. The file is cleared in pieces, so that no writer waits for the whole of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from looopy.stores.sql.sqlite.connection import Connection, FileId
from looopy.stores.sql.statements import VERSION_TABLE

_PAGES_AT_ONCE = 1024
# By the type of a page: the size of its header. Other pages begin with a page number, whose first
# byte distinguishes them up to this number of pages.
_HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}
_TELLABLE = 2**25
_LOCK_BYTE = 2**30  # the page with it holds no data
# Never closed: closing any descriptor of a file drops all locks that SQLite holds on it in this
# process (fcntl(2)).
_open: dict[FileId, int] = {}


def clear_some(connection: Connection, path: Path, first: int) -> int | None:
    """
    Clear the gaps of some pages from the page *first* on, counted from 0; the log is empty.

    Returns:
        The page to begin with next, *first* if another process has written in between, or `None`:
        there are no more.

    Raises:
        OSError: The file cannot be read or written.
        sqlite3.Error: It is locked.
    """
    ((count,),) = connection.execute("PRAGMA page_count")
    if count >= _TELLABLE or not hasattr(os, "pread"):
        connection.execute("VACUUM")
        return None
    connection.execute("PRAGMA shrink_memory")  # drops pages in memory, with their gaps
    connection.execute("BEGIN IMMEDIATE")
    try:
        if Path(f"{os.path.realpath(path)}-wal").stat().st_size:
            return first
        ((count,),) = connection.execute("PRAGMA page_count")
        ((size,),) = connection.execute("PRAGMA page_size")
        end = min(first + _PAGES_AT_ONCE, count)
        ((maps,),) = connection.execute("PRAGMA auto_vacuum")
        if _clear(_descriptor(path), first, end, size, maps=bool(maps)):
            # A write to any page: the others read all pages again.
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = version_num")  # noqa: S608 - a constant
    finally:
        connection.execute("COMMIT")
    return end if end < count else None


def _descriptor(path: Path) -> int:
    key = path.stat()[1:3]
    if key not in _open:
        _open[key] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return _open[key]


def _clear(file: int, first: int, end: int, size: int, *, maps: bool) -> bool:
    pages = os.pread(file, (end - first) * size, first * size)
    usable = size - os.pread(file, 1, 20)[0]
    changed = False
    for at in range(0, len(pages), size):
        if maps and _is_map(first + at // size + 1, size, usable):
            continue
        begin = at + 100 * (first + at == 0)  # the header of the file
        header = _HEADERS.get(pages[begin])
        if header is None:
            continue
        cells = int.from_bytes(pages[begin + 3 : begin + 5], "big")
        content = int.from_bytes(pages[begin + 5 : begin + 7], "big") or 65536
        gap, upto = begin + header + 2 * cells, at + content
        if gap < upto <= at + usable and pages.count(0, gap, upto) < upto - gap:
            os.pwrite(file, bytes(upto - gap), first * size + gap)
            changed = True
    if changed:
        os.fsync(file)
    return changed


def _is_map(page: int, size: int, usable: int) -> bool:
    """True for a page of pointers, which a file with `auto_vacuum` has (section 1.8)."""
    every = usable // 5 + 1
    at = page - (page - 2) % every
    return page == at + (at == _LOCK_BYTE // size + 1)
