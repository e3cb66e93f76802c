"""
What a run of the tests stands on: a disk in memory, bytecode for its processes, an order.

Some hundred processes are started, most of which load the library, SQLAlchemy and an SDK. Where
Python was told to write no bytecode, and in a fresh environment there is none, each of them would
compile all of that again: it is compiled once, into a folder of the run's own.

Files and databases of tests live as long as the run. What survives a kill is shown as well on a
disk that is memory, and nothing that a test does can cut the power; that each commit asks for a
sync is what tests/contract/sqlite/test_file.py looks at. `TMPDIR` names another place.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

COLLECTED = pytest.StashKey[list[str]]()
"""In the stash of a configuration: the ids of all tests, also of those that are not chosen."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - if it is there
_PREFIX = "looopy-tests-"
_FREE_BYTES = 4 << 30  # a run takes less than half of that
_SPARE_BYTES = 8 << 30  # of memory, so that what else runs keeps its own
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_SET_ASIDE = "LOOOPY_TESTS_"  # before the name of a variable: what it was
_COMPILE_S = 300.0  # until the other workers compile for themselves, whatever the first one does
_BYTECODE, _NO_BYTECODE = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"

_Item = TypeVar("_Item")


def prepare() -> tuple[Path, Callable[[], None]]:
    """Make the folder of a run, where its files are; and a function that removes it."""
    before = os.environ.get("TMPDIR")
    in_memory = before is None and _has_room()
    if in_memory:
        _sweep()
    parent = _MEMORY if in_memory else None
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    folder.chmod(0o711)  # a server that may not be root goes down to its own folder
    if in_memory:
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None  # looked up anew

    def remove() -> None:
        if in_memory:
            del os.environ["TMPDIR"]
            tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)

    return folder, remove


def keep_bytecode(folder: Path) -> None:
    """Let the processes that this one starts keep bytecode in *folder*, unless it may be kept."""
    if sys.dont_write_bytecode and _BYTECODE not in os.environ:
        os.environ.pop(_NO_BYTECODE, None)
        os.environ[_BYTECODE] = str(folder / "bytecode")


@contextlib.contextmanager
def compiling_once(worker: str | None) -> Iterator[None]:
    """
    Let the first worker collect before the others do, in a run that keeps bytecode of its own.

    All import the same modules in the same order. Beside each other, each would compile most of
    them: a worker then takes 25 s of CPU, and 12 s where it finds the bytecode.
    """
    folder = Path(os.environ.get(_BYTECODE, ""))
    collected = folder / "collected"
    if worker is None or not folder.parent.name.startswith(_PREFIX):
        yield
    elif worker == "gw0":
        try:
            yield
        finally:
            folder.mkdir(exist_ok=True)
            collected.touch()
    else:
        last = time.monotonic() + _COMPILE_S
        while not collected.exists() and time.monotonic() < last:
            time.sleep(0.05)
        yield


def trust_nobody(folder: Path) -> None:
    """
    Let clients find no certificates of authorities: hardly a test talks TLS beyond its machine.

    Each client of `httpx`, and so of the SDKs, reads all of them: 27 ms of CPU.
    """
    for name in _CERTIFICATES:
        os.environ[_SET_ASIDE + name] = os.environ.pop(name, "")
    os.environ["SSL_CERT_DIR"] = tempfile.mkdtemp(dir=folder)


@contextlib.contextmanager
def trusting() -> Iterator[None]:
    """The machine's own certificates, for a download from a registry."""
    now = {name: os.environ.pop(name, "") for name in _CERTIFICATES}
    os.environ.update(_given({n: os.environ.get(_SET_ASIDE + n, now[n]) for n in now}))
    try:
        yield
    finally:
        for name in _CERTIFICATES:
            os.environ.pop(name, None)
        os.environ.update(_given(now))


def _given(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if value}


def in_ci() -> bool:
    """Whether a machine runs the tests for everybody; `CI` says so."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def hear_ctrl_c() -> None:
    """
    Let this process and those it starts be interrupted, as Ctrl-C does.

    A shell starts what runs in its background with the signal ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_room() -> bool:
    try:
        free = shutil.disk_usage(_MEMORY).free
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    spare = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return free >= _FREE_BYTES and sum(spare) >= _SPARE_BYTES and os.access(_MEMORY, os.W_OK)


def _sweep() -> None:
    """Remove what a run left that was killed: it would take memory until the next start."""
    for folder in _MEMORY.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def spread(items: Sequence[_Item], is_long: Callable[[_Item], bool], workers: int) -> list[_Item]:
    """
    The *items* in another order: the long ones first, for each of *workers* alike.

    Each worker begins with an equal part of the list and takes from the ends of others' parts when
    it has done its own, so that a long test that comes late is waited for.
    """
    long = [item for item in items if is_long(item)]
    short = [item for item in items if not is_long(item)]
    mixed: list[_Item] = []
    for n in range(workers, 0, -1):
        size = (len(long) + len(short)) // n
        first = min(size, math.ceil(len(long) / n))
        mixed += long[:first] + short[: size - first]
        long, short = long[first:], short[size - first :]
    return mixed
