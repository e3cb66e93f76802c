"""
Start, share and end the child processes that serve local models.

One process serves a model to all users in this process with the same settings, since each takes
gigabytes; it ends when the last of them releases it. A dead one is noticed and replaced at the next
use, which costs only time: the store holds the conversation, and the next call sends it again.

Each child has a thread that starts it, reads its output and waits for its end. The thread must live
as long as the child: Linux counts the death of the thread that started a process as the death of
its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TypeVar

from looopy.errors import (
    ConfigurationError,
    LLMUnavailable,
    LooopyError,
    MissingExtra,
    missing_extra,
)
from looopy.llm.local.processor import explain_missing_instructions

T = TypeVar("T")

_START_TIMEOUT_S = 300
_END_TIMEOUT_S = 5
_READY = b"ready "
_STATUS_ILLEGAL_INSTRUCTION = 0xC000001D  # Windows' word for SIGILL


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """
    The settings of a child; users with equal ones share a process.

    Attributes:
        n_ctx: The window in tokens.
        threads: For writing an answer.
        prompt_threads: For reading a prompt.
    """

    path: Path
    name: str
    n_ctx: int
    threads: int
    prompt_threads: int


class Child:
    """One child process, starting, serving or ended. Its methods may be called from any thread."""

    def __init__(self, config: ChildConfig) -> None:
        self.config = config
        self.key = secrets.token_urlsafe(32)
        self.owner_pid = os.getpid()
        self._address: Future[str] = Future()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._keep, name="looopy-local-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Starting or serving."""
        return self._thread.is_alive() and self._exit_code() is None

    @property
    def pid(self) -> int | None:
        """The process id, once there is a process."""
        return self._process.pid if self._process is not None else None

    async def address(self) -> str:
        """
        Wait until the child serves, and return its address: `http://127.0.0.1:PORT`.

        Raises:
            ConfigurationError: The file, the installation or the computer cannot do it.
            LLMUnavailable: It ended, or took too long.
        """
        if self._address.done():
            return self._address.result()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                return await asyncio.shield(asyncio.wrap_future(self._address))
        except TimeoutError:
            self.stop()
            raise LLMUnavailable(
                f"the local model did not start within {_START_TIMEOUT_S} seconds: the machine has"
                " too much else to do, or its disk is slow. Start again, or name a smaller model"
                " (`looopy models` lists them)",
                provider="local",
                model=self.config.name,
            ) from None

    async def exit_code_within(self, timeout_s: float) -> int | None:
        """The exit code if the child ends within *timeout_s*, `None` if it keeps running."""
        await in_thread(lambda: self._thread.join(timeout_s))
        return self._exit_code()

    def stop(self) -> None:
        """End the child. It has nothing to save, so it is not asked."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self.owner_pid == os.getpid():
                self._process.kill()

    async def ended(self) -> None:
        """Wait until a stopped child is gone."""
        await in_thread(lambda: self._thread.join(_END_TIMEOUT_S))

    def _exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def _keep(self) -> None:
        """Run in the child's own thread: start it, report its address, wait for its end."""
        with tempfile.TemporaryFile() as log:
            try:
                process = self._start(log)
            except OSError as error:
                self._address.set_exception(
                    ConfigurationError(f"the local model's process could not be started: {error}")
                )
                return
            try:
                self._talk(process)
            finally:
                _close(process)
            if not self._address.done():
                log.seek(0)
                words = log.read().decode(errors="replace")
                self._address.set_exception(start_failure(self.config, process.returncode, words))

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "looopy.llm.local.server"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            if self._stopped:
                self._process.kill()
            return self._process

    def _talk(self, process: subprocess.Popen[bytes]) -> None:
        config = {**asdict(self.config), "path": str(self.config.path), "key": self.key}
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both were asked for as pipes")
        with suppress(OSError):  # it may be dead already; the end of its output shows that
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.flush()
        for line in process.stdout:  # until it ends; reading on keeps the pipe from filling up
            if line.startswith(_READY) and not self._address.done():
                self._address.set_result(json.loads(line[len(_READY) :])["address"])


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # unwritten input has no reader any more
                stream.close()
    process.wait()


class SharedChild:
    """One child and the count of its users. Made by `acquire`, given back by `release`."""

    def __init__(self, config: ChildConfig) -> None:
        self.config = config
        self.users = 0
        self.child: Child | None = None

    def living(self) -> Child:
        """The child, started if it does not run yet or has died."""
        with _lock:
            child = self.child
            # After a fork the child belongs to the process that we were copied from.
            if child is None or not child.alive or child.owner_pid != os.getpid():
                child = self.child = Child(self.config)
            return child


_lock = threading.Lock()
_shared: dict[ChildConfig, SharedChild] = {}


def acquire(config: ChildConfig) -> SharedChild:
    """Become a user of the child that serves *config*. Starts nothing yet."""
    with _lock:
        shared = _shared.setdefault(config, SharedChild(config))
        shared.users += 1
        return shared


def release(shared: SharedChild) -> Child | None:
    """Stop being a user of *shared*; the last one ends the child, and returns it."""
    with _lock:
        shared.users -= 1
        if shared.users > 0:
            return None
        _shared.pop(shared.config, None)
        child, shared.child = shared.child, None
    if child is not None:
        child.stop()
    return child


def start_failure(config: ChildConfig, code: int, words: str) -> LooopyError:
    """
    Explain why a child ended before it served.

    Args:
        config: Its settings.
        code: Its exit code; negative for a signal.
        words: Its standard error output.
    """
    if code in (-signal.SIGILL, _STATUS_ILLEGAL_INSTRUCTION):
        return ConfigurationError(explain_missing_instructions())
    if "No module named 'xllamacpp'" in words:
        return missing_runtime()
    if code == -getattr(signal, "SIGKILL", 9):
        return LLMUnavailable(
            "the local model's process was killed while it started: probably too little memory",
            provider="local",
            model=config.name,
            retryable=False,
        )
    lines = [line for line in words.splitlines() if line.strip()]
    reason = f": {lines[-1].strip()[:300]}" if lines else ""
    return ConfigurationError(
        f"the local model {str(config.path)!r} could not be loaded (exit code {code}){reason}"
    )


def missing_runtime() -> MissingExtra:
    """The error of an installation without the local model's runtime."""
    where = "there is none for Alpine Linux, nor for Windows on ARM"
    return missing_extra(f"the local model needs its runtime ({where})", "local")


async def in_thread(function: Callable[[], T]) -> T:
    """
    Call *function* in a thread of its own that does not keep the process from exiting.

    A cancelled caller stops waiting; the function itself runs to its end.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits, whatever it is
            result.set_exception(error)

    threading.Thread(target=run, name="looopy-local", daemon=True).start()
    return await asyncio.wrap_future(result)
