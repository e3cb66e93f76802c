"""
Other processes on one store: a test opens the store there, runs steps in them, and kills them.

One helper process serves all tests of a run. It imports the modules that a store needs, opens
nothing itself, and forks a child for each process that a test starts. So a process costs some
milliseconds, and never inherits a connection or a thread. It needs `os.fork`: Linux or macOS.

A test hands over functions of modules, not closures, because the other process finds them by name.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache, partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeAlias

from looopy.errors import ConfigurationError
from looopy.stores.bundle import Stores
from looopy.testing.children import Patience, fork, wait

__all__ = ["OtherProcess", "ProcessDied", "Processes", "StoreNotOpened", "opened"]

Step: TypeAlias = Callable[..., Awaitable[Any]]
"""A coroutine function of a module, whose first argument is the open `Stores`."""

_PATIENCE_S = 120.0
_LOOK_S = 0.2
_TAIL = 1_500  # characters of the output of a process that failed
_HELPER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
_HELPER += "from looopy.testing.processes import serve; serve(int(sys.argv[2]))"


class ProcessDied(Exception):
    """The process ended before it acknowledged the step, as the test wanted or by itself."""


class StoreNotOpened(Exception):
    """The store cannot be opened in another process; the message has its error."""


def opened(factory: str, place: str) -> AbstractAsyncContextManager[Stores]:
    """
    The stores that a factory makes, before `async with`.

    Args:
        factory: Module and name of a function, such as `"my_package.stores:open"`. The function
            takes *place* and returns `Stores`, or another async context manager that yields them.
        place: A path, a URL, or whatever the function takes. The same place is the same store.

    Raises:
        ConfigurationError: The factory cannot be imported.
    """
    module, _, name = factory.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"factory={factory!r} is to name a function that other processes can import, such as"
            f" 'my_package.stores:open': {error}"
        ) from error
    made: AbstractAsyncContextManager[Stores] = make(place)
    return made


class Processes:
    """
    Starts processes on one store; leaving the context manager ends the ones that are left.

    Args:
        factory: See `opened`.
        place: The store that all of them open.
        modules: Names of the modules that define the steps. The helper imports them once, so that
            not each process has to.
    """

    def __init__(self, factory: str, place: str, modules: Sequence[str] = ()) -> None:
        self.factory = factory
        self.place = place
        self.modules = modules
        self._started: list[OtherProcess] = []

    def start(self, *, watched: bool = False) -> OtherProcess:
        """
        A new process that has opened the store.

        Args:
            watched: It can be killed in the middle of a step; see `OtherProcess.run_until`.

        Raises:
            StoreNotOpened: It could not.
        """
        found = _helper().start(self, watched=watched)
        self._started.append(found)
        found.result()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._started:
            one.kill()


class OtherProcess:
    """A process that has opened the store, and runs one step after the other."""

    def __init__(self, helper: _Helper, line: Connection, pid: int, log: Path) -> None:
        self._helper = helper
        self._line = line
        self._pid = pid
        self._log = log
        self._ended = False

    def begin(self, step: Step, *args: Any, **options: Any) -> None:
        """Let it begin *step*, and do not wait; `result` does."""
        self._send(step, args, options, None)

    def result(self) -> Any:
        """
        The result of the step that it has begun. Its exception is raised here.

        Raises:
            ProcessDied: It ended before it had one.
        """
        done, value, _ = self._receive()
        if done:
            return value
        raise value

    def run(self, step: Step, *args: Any, **options: Any) -> Any:
        """The acknowledged result of `await step(stores, *args, **options)` in that process."""
        self.begin(step, *args, **options)
        return self.result()

    def places_of(self, step: Step, *args: Any) -> list[str]:
        """
        Run a step, and list the calls by which it reached the operating system or a library.

        These are the places where `run_until` can kill it. The process must be `watched`.
        """
        self._send(step, args, {}, 0)
        done, value, places = self._receive()
        if done:
            return places
        raise value

    def run_until(self, number: int, step: Step, *args: Any) -> Any:
        """
        Run a step, and kill the process right after such a call, the one with this *number*.

        Returns:
            The result, if the step made fewer calls this time.

        Raises:
            ProcessDied: It was killed.
        """
        self._send(step, args, {}, number)
        return self.result()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        if not self._ended:
            self._ended = True
            self._helper.reap(self._pid, kill=True)
            self._line.close()  # not before: a process that sees its end would close the store

    def _send(self, step: Step, args: Any, options: Any, kill_at: int | None) -> None:
        try:
            self._line.send((step, args, options, kill_at))
        except OSError as error:
            raise self._died() from error

    def _receive(self) -> tuple[bool, Any, list[str]]:
        patience = Patience(_PATIENCE_S)
        try:
            while not self._line.poll(_LOOK_S):
                if patience.is_over():
                    self.kill()
                    raise TimeoutError(f"a step did not end within {_PATIENCE_S:.0f} s")
            found: tuple[bool, Any, list[str]] = self._line.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error
        return found

    def _died(self) -> ProcessDied:
        said = self._log.read_text(errors="replace")[-_TAIL:] if self._log.exists() else ""
        self.kill()
        return ProcessDied(f"the process has ended; its output: {said}")


class _Helper:
    """The process that forks the others."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="looopy-processes-"))
        self._numbers = count()
        here, there = socket.socketpair()
        arguments = [json.dumps([*sys.path, str(Path.cwd())]), str(there.fileno())]
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with our own words
            [sys.executable, "-c", _HELPER, *arguments], pass_fds=[there.fileno()]
        )
        there.close()
        self._line = Connection(here.detach())
        atexit.register(self._end)

    def start(self, of: Processes, *, watched: bool) -> OtherProcess:
        here, there = socket.socketpair()
        log = self._folder / f"{next(self._numbers)}.log"
        self._line.send(("start", of.factory, of.place, tuple(of.modules), watched, str(log)))
        send_handle(self._line, there.fileno(), self._process.pid)
        there.close()
        return OtherProcess(self, Connection(here.detach()), self._line.recv(), log)

    def reap(self, pid: int, *, kill: bool) -> None:
        self._line.send(("reap", pid, kill))
        self._line.recv()

    def _end(self) -> None:
        self._line.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _helper() -> _Helper:
    return _Helper()


# --- in the helper ---


def serve(handle: int) -> None:
    """Fork processes for the test at the other end, until it has gone; the helper's `main`."""
    line = Connection(handle)
    known: set[tuple[str, str, tuple[str, ...]]] = set()
    while True:
        try:
            word, *rest = line.recv()
        except EOFError:
            return
        if word == "reap":
            pid, kill = rest
            if kill:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait(pid)
            line.send(None)
            continue
        factory, place, modules, watched, log = rest
        given = recv_handle(line)
        kind = (factory, place.partition(":")[0], modules)
        if kind not in known:
            known.add(kind)
            _preload(factory, place, Path(log))
            _import_all(modules)
        run = partial(_run, line, given, factory, place, watched=watched)
        pid = fork(run, Path(log))
        os.close(given)
        line.send(pid)


def _preload(factory: str, place: str, log: Path) -> None:
    """Import the modules that opening the store imports, so that no child has to."""
    listed = log.with_suffix(".modules")

    async def look() -> None:
        async with opened(factory, place):
            pass

    def body() -> None:
        try:
            asyncio.run(look())
        finally:
            listed.write_text(json.dumps(list(sys.modules)), encoding="utf-8")

    with suppress(TimeoutError):
        wait(fork(body, log.with_suffix(".first")))
    if listed.exists():
        _import_all(json.loads(listed.read_text(encoding="utf-8")))


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        with suppress(Exception):  # the child that needs it will report why
            importlib.import_module(name)


# --- in the forked process ---


def _run(of_helper: Connection, given: int, factory: str, place: str, *, watched: bool) -> None:
    of_helper.close()  # or the helper's end would not be the end of its line
    line = Connection(given)
    watch = _Watch() if watched else None
    if watch is not None:
        threading.setprofile(watch)
        sys.setprofile(watch)
    asyncio.run(_serve_steps(line, factory, place, watch))


async def _serve_steps(line: Connection, factory: str, place: str, watch: _Watch | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        try:
            stores = await stack.enter_async_context(opened(factory, place))
        except Exception as error:  # noqa: BLE001 - the test gets it, whatever it is
            line.send((False, StoreNotOpened(f"{type(error).__name__}: {error}"), []))
            return
        line.send((True, None, []))
        while True:
            try:
                step, args, options, kill_at = line.recv()
            except EOFError:
                return
            if watch is not None and kill_at is not None:
                watch.begin(kill_at)
            try:
                done, value = True, await step(stores, *args, **options)
            except Exception as error:  # noqa: BLE001 - as above
                done, value = False, _sendable(error)
            line.send((done, value, [] if watch is None else watch.end()))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    except Exception:  # noqa: BLE001 - an error of a library's own
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Watch:
    """
    Sees the calls of C functions that may reach the operating system, and kills this process there.

    A store in Python can die between any two of them, and leaves what the first ones have done.
    """

    def __init__(self) -> None:
        self._seen: list[str] | None = None
        self._kill_at = 0

    def begin(self, kill_at: int) -> None:
        """Watch from now on; kill after the call of this number, or nowhere if it is 0."""
        self._seen, self._kill_at = [], kill_at

    def end(self) -> list[str]:
        """The names of the calls since then."""
        seen, self._seen = self._seen, None
        return seen or []

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_return" or self._seen is None or frame.f_code.co_name in _WAKING:
            return
        name = _outside(function)
        if name is None:
            return
        self._seen.append(name)
        if len(self._seen) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


# How asyncio wakes its loop from a thread.
_WAKING = frozenset({"_write_to_self", "_read_from_self"})
_SYSTEM = frozenset(
    {"_dbm", "_gdbm", "_io", "_pickle", "_socket", "_sqlite3", "_ssl", "fcntl", "io", "mmap"}
    | {"nt", "posix", "socket", "sqlite3"}
)


def _outside(function: Any) -> str | None:
    """The name of a C function that may reach the operating system or a library, or `None`."""
    module = getattr(function, "__module__", None)
    kind = type(getattr(function, "__self__", None))
    room = (module or kind.__module__).partition(".")[0]
    if room not in _SYSTEM and room in sys.stdlib_module_names:
        return None
    of = f"{kind.__name__}." if module is None else f"{module}."
    return f"{of}{function.__name__}"
