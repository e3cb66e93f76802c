"""
A file without content beside the database: it keeps the space that removals need on a full disk.

Before the log of a database can be emptied it has to fit into the database, which may have to grow
by as much. So the reserve is as large as the log. It is removed when a removal finds the disk full,
or when the database cannot be opened for want of space, and made again once there is space.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MIB = 2**20
_SMALL_LOG = _MIB // 4  # a database whose log was never longer has no reserve


class Reserve:
    """
    The reserve of the database at *path*.

    Attributes:
        serves: The length of a log up to which it is large enough, or cannot be made larger.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(f"{os.path.realpath(path)}-reserve")
        self.serves = _SMALL_LOG

    def keep(self, log_bytes: int) -> None:
        """Make it as large as the log, but of no more than half of the free space."""
        self.serves = wanted = max(-(-log_bytes // _MIB), 1) * _MIB
        with contextlib.suppress(OSError, AttributeError):  # Windows cannot allocate
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self.path, flags, 0o600)
            try:
                size, space = os.fstat(file).st_size, os.fstatvfs(file)
                more = min(wanted - size, space.f_bavail * space.f_frsize // 2)
                if more > 0:
                    os.posix_fallocate(file, size, more)
            finally:
                os.close(file)

    def free(self) -> bool:
        """Give its space back; false if there is none."""
        self.serves = 0  # the next log makes it again, if there is space
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
