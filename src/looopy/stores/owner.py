"""
The holder of a lease, and proof on the same host that it runs or has ended.

An owner is a process and a turn in it: boot id and process-id namespace of its host, process id,
start time, and a nonce. On the same host and in the same namespace, a missing process id, or one of
a process with another start time, proves death; no clock is needed. For the turns of a living
process there is its register: a page of anonymous memory, reached through `/proc`, that holds the
nonces of its owners until they are retired. On other hosts only the lease decides.
"""

from __future__ import annotations

import itertools
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from looopy.types.constructors import quick

_PARTS = 4
_NONCE_BYTES = 8
_PLACES = 8192  # in a register: 64 KiB, of which only the pages that were used take memory
_live_here: set[str] = set()


@cache
def _host() -> str:
    """Boot and process-id namespace; empty if one is unknown, and then no death can be proved."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """A process's state, a letter, and its start in clock ticks since boot; `None` if not seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # proc(5): the command name is in parentheses and may hold any character; the state is the field
    # after it, the start time the 20th after it.
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _exists(pid: int) -> bool:
    """True if such a process exists: /proc may hide other users' processes (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache
def _own_start(pid: int) -> str | None:
    found = _state_and_start(pid)  # cached by process id: a fork has another
    return found[1] if found else None


class _Register:
    """
    The owners of this process that live, where other processes of this host can read them.

    It is written through a mapping and never through the descriptor. A program that turns itself
    into a daemon may close the descriptor and reuse its number for another file.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.memfd_create(_register_name(pid))
        os.ftruncate(self.fd, _PLACES * _NONCE_BYTES)
        self._page = mmap.mmap(self.fd, _PLACES * _NONCE_BYTES)
        # Several threads may have event loops: each of these is one step that nothing interrupts.
        self._next = itertools.count()
        self._free: list[int] = []

    def add(self, nonce: str) -> str:
        """Where another process finds *nonce*: descriptor and place; empty when it is full."""
        try:
            place = self._free.pop()
        except IndexError:
            place = next(self._next)
            if place >= _PLACES:
                return ""
        self._write(place, bytes.fromhex(nonce))
        return f"{self.fd}.{place}"

    def remove(self, where: str) -> None:
        """Take back what `add` did."""
        place = int(where.partition(".")[2])
        self._write(place, bytes(_NONCE_BYTES))
        self._free.append(place)

    def _write(self, place: int, what: bytes) -> None:
        self._page[place * _NONCE_BYTES : (place + 1) * _NONCE_BYTES] = what

    def close(self) -> None:
        """Release a register inherited by a fork; the parent keeps its own."""
        self._page.close()
        with suppress(OSError):
            os.close(self.fd)


_registers: dict[int, _Register] = {}


def _own_register() -> _Register | None:
    """The register of this process, made at its first owner; `None` where it is impossible."""
    pid = os.getpid()
    found = _registers.get(pid)
    if found is not None:
        return found
    for inherited in list(_registers):  # by a fork
        if inherited != pid:
            _registers.pop(inherited).close()
    try:
        made = _Register(pid)
    except (AttributeError, OSError):  # not Linux, or no descriptor is left
        return None
    found = _registers.setdefault(pid, made)
    if found is not made:  # another thread's
        made.close()
    return found


def _register_name(pid: int) -> str:
    return f"looopy-owners-{pid}"


def _is_registered(pid: int, nonce: str, where: str) -> bool | None:
    """True if the living process *pid* still has an owner; `None` if it cannot be read."""
    fd, _, place = where.partition(".")
    if not (fd.isdecimal() and place.isdecimal() and int(place) < _PLACES):
        return None
    path = Path(f"/proc/{pid}/fd/{fd}")
    try:
        if str(path.readlink()) != f"/memfd:{_register_name(pid)} (deleted)":
            return None
        with path.open("rb", buffering=0) as register:
            register.seek(int(place) * _NONCE_BYTES)
            return register.read(_NONCE_BYTES).hex() == nonce
    except OSError:  # another user's
        return None


@quick
@dataclass(frozen=True, slots=True)
class Owner:
    """
    One holder of a lease within this process. Make it with `Owner.new()`, end it with `retire()`.

    Attributes:
        where: Its place in the register of its process; empty when it has none.
    """

    nonce: str
    pid: int
    where: str = ""

    @classmethod
    def new(cls) -> Owner:
        """A fresh owner that counts as alive until it is retired or the process ends."""
        nonce, register = os.urandom(_NONCE_BYTES).hex(), _own_register()
        owner = cls(nonce, os.getpid(), register.add(nonce) if register else "")
        _live_here.add(owner.nonce)
        return owner

    def token(self, ttl_s: float | None = None) -> str:
        """
        The owner as it is written into the lease.

        Args:
            ttl_s: How long the lease lasts without renewal, for other processes that watch it.
        """
        start = _own_start(self.pid) if _host() else None
        said = "" if ttl_s is None else f";{ttl_s:g}"
        return f"{_host()}/{self.pid}/{start or ''}/{self.nonce};{self.where}{said}"

    def retire(self) -> None:
        """Report that nothing of this owner runs any more."""
        if self.nonce not in _live_here:
            return
        _live_here.discard(self.nonce)
        register = _registers.get(os.getpid())
        if self.where and register is not None and register.pid == self.pid:  # or it came by a fork
            register.remove(self.where)


def provably_dead(token: str) -> bool:
    """True if the holder named by *token* can be proved to have ended."""
    return _proof(token) is False


def provably_alive(token: str) -> bool:
    """
    True if the holder named by *token* can be proved to run: on this host, and not stopped.

    A process that is stopped (SIGSTOP, a debugger) may stay so for ever: its lease decides.
    """
    return _proof(token) is True


def is_here(token: str) -> bool:
    """True if the holder named by *token* runs in this process."""
    _, _, rest = token.partition("/")
    pid, _, name = rest.partition("/")
    return pid == str(os.getpid()) and name.rpartition("/")[2].partition(";")[0] in _live_here


def process_of(token: str) -> int | None:
    """The id of the process that the holder named by *token* is, on its own host."""
    parts = token.split("/")
    return int(parts[1]) if len(parts) == _PARTS and parts[1].isdecimal() else None


def ttl_of(token: str) -> float | None:
    """How long the lease of that holder lasts without being renewed; `None` if unknown."""
    said = token.rpartition("/")[2].split(";")[2:]
    try:
        found = float(said[0]) if said else 0.0
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def _proof(token: str) -> bool | None:
    """True if a holder runs, false if it does not; `None` if neither can be proved."""
    parts = token.split("/")
    if len(parts) != _PARTS or not parts[0] or parts[0] != _host() or not parts[2]:
        return None
    _, number, start, name = parts
    if not number.isdecimal():
        return None
    pid = int(number)
    nonce, _, rest = name.partition(";")
    found = _state_and_start(pid)
    if found is None:
        return None if _exists(pid) else False
    state, began = found
    if state in ("Z", "X") or began != start:
        return False
    if pid == os.getpid():
        return nonce in _live_here
    if state in ("T", "t"):
        return None
    return _is_registered(pid, nonce, rest.partition(";")[0])
