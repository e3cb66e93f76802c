"""
`looopy` as a process that starts by a fork, because most of a start is the import of modules.

A start of the program takes 0.8 s of CPU, nearly all of it for modules of others. One process of a
run imports them and waits. For each start it forks; the fork takes the arguments, environment,
folder and streams that it is given, begins a session of its own, and runs `looopy.cli`. Nothing but
the moment of the import differs: signals, `kill -9`, a terminal and Ctrl-C reach it as any process.
Tests of the start itself run `python -m looopy.cli`. Servers that are modules of the tests start in
the same way, and so do files, such as the examples.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
from asyncio.streams import FlowControlMixin
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
PIPE, DEVNULL = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
CLI = "looopy.cli"
_MODULES = (
    *("openai.resources.chat.completions.completions", "openai.pagination", "httpcore2"),
    *("anyio._backends._asyncio", "anyio.streams.memory", "genai_prices.data", "reactivex"),
    *("genai_prices.decompose", "looopy.llm.openai.provider", "looopy.agent.stream"),
    *("looopy.stores.artifacts.store", "looopy.stores.blobs.opening", "looopy.stores.sql.store"),
    *("looopy.stores.sql.engine", "looopy.stores.sql.turns", "looopy.stores.sql.artifacts"),
    *("looopy.stores.sql.sqlite.driver", "concurrent.futures.thread", "looopy.agent.artifacts"),
    *("uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "sse_starlette"),
    *("looopy.server.app", "looopy.server.host", "looopy.testing"),
)
# What a server imports in its first second; it takes as long as all of the above.
_SERVES = ("looopy.server.protocols.a2a.wires", "looopy.server.protocols.mcp.streamable")
_KEPT = (
    *("PATH", "SYSTEMROOT", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"),
    *("PYTHONPATH", "PYTHONPYCACHEPREFIX", "SSL_CERT_DIR"),
)
_REQUEST_BYTES = 1 << 17
_STDERR = 2


def environment() -> dict[str, str]:
    """What the program gets of the environment of the tests."""
    found = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**found, "PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}


class Preloaded:
    """The process that waits, until `close`."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()], start_new_session=True
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
        module: str = CLI,
    ) -> Process:
        """Start the program, or a *module*; a stream that is not given is this process's own."""
        process = Process()
        with contextlib.ExitStack() as theirs:
            fds = []
            for name, given in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                fds.append(await process.connect(name, given, theirs))
            fd = await process.connect("status", PIPE, theirs)
            self._ask([*fds, fd], args=args, env=dict(env), cwd=str(cwd), module=module)
        process.pid = int(await process.status.readline())
        return process

    def popen(
        self, args: Sequence[str], env: Mapping[str, str], cwd: Path, module: str = CLI
    ) -> Child:
        """Start the program, a *module* or a file for a test that has no event loop."""
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        nothing = os.open(os.devnull, os.O_RDONLY)
        self._ask([nothing, *theirs], args=args, env=dict(env), cwd=str(cwd), module=module)
        for fd in (nothing, *theirs):
            os.close(fd)
        return Child(*ours)

    def _ask(self, fds: list[int], **request: Any) -> None:
        socket.send_fds(self._requests, [json.dumps(request).encode()], fds)


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


class Child:
    """What tests use of `subprocess.Popen`; it is killed at the end of a `with`."""

    def __init__(self, out: int, err: int, status: int) -> None:
        self.stdout, self.stderr, self._status = map(os.fdopen, (out, err, status))
        self.pid = int(self._status.readline())

    @functools.cache  # noqa: B019 - there are few
    def wait(self) -> int:
        """Its status, once it has ended."""
        return int(self._status.readline())

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdout, self.stderr, self._status):
            stream.close()


async def _rest(stream: asyncio.StreamReader | None) -> bytes | None:
    return None if stream is None else await stream.read()


def wait_for_requests(requests: socket.socket) -> None:
    """Fork for each request until nobody can send one."""
    import looopy.cli

    rooms = [f"looopy.cli.{one.name}" for one in pkgutil.iter_modules(looopy.cli.__path__)]
    _load(*_MODULES, *(name for name in rooms if not name.endswith("__main__")))
    reporters = 0
    while True:
        request, fds, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not request:
            return
        while reporters and os.waitpid(-1, os.WNOHANG)[0]:
            reporters -= 1
        reporters += 1
        asked = json.loads(request)
        if "serve" in asked["args"] or asked["module"].startswith("tests.web."):
            _load(*_SERVES)
        if os.fork() == 0:
            requests.close()
            _report(fds.pop(), fds, **asked)
        for fd in fds:
            os.close(fd)


def _load(*names: str) -> None:
    """Import modules, unless they are there, and keep them out of every collection of garbage."""
    if not sys.modules.keys() >= set(names):
        for name in names:
            importlib.import_module(name)
        gc.freeze()


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


def _run(streams: list[int], args: list[str], env: dict[str, str], cwd: str, module: str) -> None:
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
    sys.argv = ["looopy" if module == CLI else module, *args]

    from looopy.cli.main import main

    status = 0
    try:
        if module == CLI:
            status = main()
        elif module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
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
