"""
`looopy` as a process that starts by a fork, because most of a start is the import of modules.

A start of the program takes 0.8 s of CPU, nearly all of it for modules of others. One process of a
run imports them and waits. For each start it forks; the fork takes the arguments, environment,
folder and streams that it is given, begins a session of its own, and runs `looopy.cli`. Nothing but
the moment of the import differs: signals, `kill -9`, a terminal and Ctrl-C reach it as any process.
Tests of the start itself run `python -m looopy.cli`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from asyncio.streams import FlowControlMixin
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PIPE, DEVNULL = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
_MODULES = ("openai.resources.chat", "looopy.llm.openai.provider", "looopy.stores.sql.sqlite")
_REQUEST_BYTES = 1 << 17
_STDERR = 2


class Preloaded:
    """The process that waits, until `close`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()

    def close(self) -> None:
        """Let it end."""
        self._requests.close()
        self._process.wait()

    async def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Process:
        """Start the program; a stream that is not given is the one of this process."""
        process = Process()
        with contextlib.ExitStack() as theirs:
            fds = []
            for name, given in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                fds.append(await process.connect(name, given, theirs))
            fd = await process.connect("status", PIPE, theirs)
            request = json.dumps({"args": args, "env": dict(env), "cwd": str(cwd)})
            socket.send_fds(self._requests, [request.encode()], [*fds, fd])
        process.pid = int(await process.status.readline())
        return process


class Process:
    """What tests use of `asyncio.subprocess.Process`."""

    pid: int
    returncode: int | None = None

    def __init__(self) -> None:
        self.stdin: Any = None
        self.stdout: Any = None
        self.stderr: Any = None
        self.status: Any = None
        self.transports: dict[str, asyncio.BaseTransport] = {}

    async def connect(self, name: str, given: int | None, theirs: contextlib.ExitStack) -> int:
        """Make one of its streams; the end that the program gets."""
        if given == DEVNULL:
            fd = os.open(os.devnull, os.O_RDWR)
        elif given != PIPE:
            return ("stdin", "stdout", "stderr").index(name) if given is None else given
        else:
            read, write = os.pipe()
            fd, ours = (read, write) if name == "stdin" else (write, read)
            loop = asyncio.get_running_loop()
            pipe = os.fdopen(ours, "wb" if name == "stdin" else "rb")
            if name == "stdin":
                transport, protocol = await loop.connect_write_pipe(FlowControlMixin, pipe)
                stream: Any = asyncio.StreamWriter(transport, protocol, None, loop)
            else:
                stream = asyncio.StreamReader()
                reads = asyncio.StreamReaderProtocol(stream)
                transport, _ = await loop.connect_read_pipe(lambda: reads, pipe)
            self.transports[name] = transport
            setattr(self, name, stream)
        theirs.callback(os.close, fd)
        return fd

    async def wait(self) -> int:
        """Its status, once it has ended."""
        if self.returncode is None:
            self.returncode = int(await self.status.readline())
        return self.returncode

    async def communicate(self, data: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Give it *data*, and read what it says until it ends."""
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.stdin.write(data or b"")
                await self.stdin.drain()
            self.stdin.close()
        said = await asyncio.gather(*map(_rest, (self.stdout, self.stderr)))
        await self.wait()
        return said[0], said[1]

    def close(self) -> None:
        """Read no more of it."""
        for transport in self.transports.values():
            transport.close()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)


async def _rest(stream: asyncio.StreamReader | None) -> bytes | None:
    return None if stream is None else await stream.read()


def wait_for_requests(requests: socket.socket) -> None:
    """Fork for each request until nobody can send one."""
    import looopy.cli

    rooms = [f"looopy.cli.{one.name}" for one in pkgutil.iter_modules(looopy.cli.__path__)]
    for name in (*_MODULES, *rooms):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    gc.freeze()
    reporters = 0
    while True:
        request, fds, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not request:
            return
        while reporters and os.waitpid(-1, os.WNOHANG)[0]:
            reporters -= 1
        reporters += 1
        if os.fork() == 0:
            requests.close()
            _report(fds.pop(), fds, **json.loads(request))
        for fd in fds:
            os.close(fd)


def _report(status: int, streams: list[int], **request: Any) -> None:
    """Run the program in a child, and write its id and status."""
    if (pid := os.fork()) == 0:
        os.close(status)
        _run(streams, **request)
    for fd in streams:
        os.close(fd)
    os.write(status, f"{pid}\n".encode())
    _, code = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(code)}\n".encode())
    os._exit(0)


def _run(streams: list[int], args: list[str], env: dict[str, str], cwd: str) -> None:
    """Be the program, as if it had been started so."""
    os.setsid()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, max(streams) + 1)
    if os.isatty(0):
        own_terminal()
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = (
        _opened(0, "r", "surrogateescape"),
        _opened(1, "w", "surrogateescape"),
        _opened(2, "w", "backslashreplace"),
    )
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["looopy", *args]

    from looopy.cli.main import main

    try:
        status = main()
    except SystemExit as ended:  # of wrong usage
        status = int(ended.code or 0)
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(status)  # to take down the modules would take longer than most commands


def own_terminal() -> None:
    """Make the terminal the child's own, so that Ctrl-C reaches it; its end is told, too."""
    import fcntl
    import termios

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a run of the tests under `nohup` ignores it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _opened(fd: int, mode: str, errors: str) -> io.TextIOWrapper:
    line_by_line = fd == _STDERR or os.isatty(fd)
    buffer = os.fdopen(fd, f"{mode}b", closefd=False)
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=line_by_line)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        wait_for_requests(given)
