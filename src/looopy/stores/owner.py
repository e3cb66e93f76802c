"""
Who holds a lease, and how to prove that nobody does any more.

An owner is a process: boot id and process-id namespace of its host, process id, start time, and a
nonce for each turn. On the same host and in the same namespace, a process id that is gone, or that
belongs to a process with another start time, is proof of death; no clock is asked. Elsewhere only
the lease's expiry tells.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from looopy.types.maker import quick

_PARTS = 4
_live_here: set[str] = set()


@cache
def _host() -> str:
    """
    Boot and process-id namespace; empty where neither can be known, and then nobody proves a death.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Start of a process in clock ticks since boot; empty for a zombie, `None` if not seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # proc(5): the command name is in parentheses and may hold any character; the state is the field
    # after it, the start time the 20th after it.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _exists(pid: int) -> bool:
    """Whether there is such a process: /proc may hide those of other users (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache
def _own_start(pid: int) -> str | None:
    return _start_time(pid)  # cached by process id: a fork has another


@quick
@dataclass(frozen=True, slots=True)
class Owner:
    """
    One holder of a lease within this process. Make it with `Owner.new()`, end it with `retire()`.
    """

    nonce: str
    pid: int

    @classmethod
    def new(cls) -> Owner:
        """A fresh owner that counts as alive until it is retired or the process ends."""
        owner = cls(secrets.token_hex(6), os.getpid())
        _live_here.add(owner.nonce)
        return owner

    def token(self) -> str:
        """What is written into the lease."""
        start = _own_start(self.pid) if _host() else None
        return f"{_host()}/{self.pid}/{start or ''}/{self.nonce}"

    def retire(self) -> None:
        """Say that nothing of this owner runs any more."""
        _live_here.discard(self.nonce)


def provably_dead(token: str) -> bool:
    """Whether the holder named by *token* can be proved to run no more."""
    parts = token.split("/")
    if len(parts) != _PARTS or not parts[0] or parts[0] != _host() or not parts[2]:
        return False
    _, pid, start, nonce = parts
    if not pid.isdecimal():
        return False
    if int(pid) == os.getpid() and start == _start_time(os.getpid()):
        return nonce not in _live_here
    found = _start_time(int(pid))
    return not _exists(int(pid)) if found is None else found != start
