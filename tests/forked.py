"""
Python programs in processes of their own that need not load again what others wrote.

A program of looopy spends most of its first second on SQLAlchemy, Alembic and an SDK. Each worker
of a run has one process (`tests/nursery.py`) that has loaded those, and nothing of looopy. It forks
for each program, and the child is given the arguments, environment, folder, warnings and streams
that a new process would have. Then it is a child of the one who asked, as any other: waited for,
stopped and killed by its id.

Tests whose subject is what a process loads, or that it starts at all, start one as usual. So does
everybody where the system is not Linux, where a program's coverage is measured, and for every
command that is not `python [-W OPTION] -m MODULE`, `-c CODE` or a file.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests import nursery

_PR_SET_CHILD_SUBREAPER = 36
_LOADED = (
    *("alembic.command", "alembic.config", "alembic.autogenerate", "openai", "asyncpg", "psycopg"),
    *("sqlalchemy.dialects.postgresql.asyncpg", "sqlalchemy.dialects.postgresql.psycopg"),
    *("sqlalchemy.dialects.sqlite", "sqlalchemy.ext.asyncio"),
)
_SAME = ("PYTHONPATH", "PYTHONPYCACHEPREFIX")  # of Python's own environment: as in this process
_KNOWN = {  # what of it a nursery's child follows
    *_SAME,
    "PYTHONWARNINGS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
    "PYTHONHASHSEED",
}
_lock = threading.Lock()
_usual = getattr(subprocess, "_fork_exec", None)
_blocks = 0


def own_terminal() -> None:
    """Make the terminal the child's own, so that Ctrl-C reaches it: a `preexec_fn`."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def programs() -> Iterator[None]:
    """Within the block, `subprocess` and asyncio fork Python programs instead of starting them."""
    if not _possible():
        yield
        return
    global _blocks  # noqa: PLW0603 - tasks may be in several at once
    _blocks += 1
    subprocess._fork_exec = _fork_exec
    try:
        yield
    finally:
        _blocks -= 1
        if not _blocks:
            subprocess._fork_exec = _usual


def _fork_exec(args: Sequence[Any], *more: Any) -> int:
    return _fork(args, more) or _usual(args, *more)


def _possible() -> bool:
    return sys.platform == "linux" and sys.version_info < (3, 14) and not any(
        name.startswith("COVERAGE_PROCESS") for name in os.environ
    )


def _fork(args: Sequence[Any], more: tuple[Any, ...]) -> int | None:
    """The child's process id; `None` for what only a new process can be."""
    _, _, kept, cwd, env_list, *pipes = more[:13]
    stdin, _, _, stdout, _, stderr, _, errpipe = pipes
    _, new_session, group, gid, gids, uid, umask, preexec = more[13:21]
    env = dict(os.environ)
    if env_list is not None:
        pairs = (os.fsdecode(pair).partition("=") for pair in env_list)
        env = {name: value for name, _, value in pairs}
    words = [os.fsdecode(word) for word in args]
    options = []
    if words[:1] != [sys.executable]:
        return None
    del words[0]
    while words[:1] == ["-W"]:
        options.append(words[1])
        del words[:2]
    if (
        not words
        or (words[0].startswith("-") and words[0] not in ("-m", "-c"))
        or set(kept) != {errpipe}
        or group not in (-1, None)
        or (gid, gids, uid, umask) != (None, None, None, -1)
        or preexec not in (None, own_terminal)
        or {name for name in env if name.startswith("PYTHON")} - _KNOWN
        or any(env.get(name) != os.environ.get(name) for name in _SAME)
    ):
        return None
    streams = (max(stdin, 0), stdout if stdout != -1 else 1, stderr if stderr != -1 else 2)
    folder = Path.cwd() if cwd is None else Path(os.fsdecode(cwd)).absolute()
    program = nursery.Program(
        *(tuple(options), tuple(words), str(folder), env),
        *(bool(new_session), preexec is not None),
    )
    with _lock:
        line = _nursery()
        with _adopting():
            return nursery.send(line, program, streams) or None


@cache
def _nursery() -> socket.socket:
    here, there = socket.socketpair()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-W", "error", nursery.__file__, str(there.fileno()), *_LOADED]
    process = subprocess.Popen(
        command, env=env | {"PYTHONUTF8": "1"}, pass_fds=[there.fileno()], start_new_session=True
    )
    there.close()

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Within the block, a process whose parent ends is this one's child."""
    _prctl(1)
    try:
        yield
    finally:
        _prctl(0)


def _prctl(on: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, on, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
