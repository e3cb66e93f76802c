"""
The models that can be fetched, and their place once they are.

The list is data (`catalogue.json`): names, sizes and hashes, so that a new model needs no change of
code. Trust depends on the hashes alone: of each package, of each file in it, and of the joined
weights, which are the publisher's own file byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from looopy.errors import ConfigurationError, UnknownModel

DEFAULT = "default"
_GB = 1000  # in megabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """
    A piece of a model's weights, and the package that carries it.

    Attributes:
        requirement: The package with its exact version, as an installer takes it.
        wheel_sha256: Hex digest of the package.
        path: The piece's file inside the installed package, with `/`.
        sha256: Hex digest of the piece.
        size_bytes: The size of the piece.
    """

    requirement: str
    wheel_sha256: str
    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """
    A model that can be fetched.

    Attributes:
        name: For `LocalProvider`.
        title: For people.
        licence: SPDX identifier of the weights' licence.
        memory_bytes: The most that the child process needs.
        file: Its name in the cache folder.
        size_bytes: The size of the joined file.
        sha256: Hex digest of the joined file.
        note: Its best use, in a few words.
        parts: In the order in which they are joined.
    """

    name: str
    title: str
    licence: str
    publisher: str
    memory_bytes: int
    file: str
    size_bytes: int
    sha256: str
    note: str
    parts: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """Where the weights are in the cache folder, fetched or not."""
        return cache_folder() / self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """
    A download that awaits consent.

    Attributes:
        size_bytes: Still to fetch; less than the model's size if an earlier try got part of the
            way.
        disk_bytes: Free space needed while unpacking.
        folder: Its destination.
    """

    model: LocalModel
    size_bytes: int
    disk_bytes: int
    folder: Path

    @property
    def notice(self) -> str:
        """A summary for the person who decides: a few lines of text."""
        model = self.model
        return (
            f"{model.title} by {model.publisher}, licence {model.licence}: {model.note}.\n"
            f"It is fetched once: {human_size(self.size_bytes)} into {self.folder}, where "
            f"unpacking takes {human_size(self.disk_bytes)} of disk.\n"
            f"Running it takes {human_size(model.memory_bytes)} of memory. "
            "Prompts stay on this computer."
        )


@cache
def catalogue() -> tuple[LocalModel, ...]:
    """Every model that can be fetched, the default first."""
    data = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
    models = [
        LocalModel(**{**entry, "parts": tuple(Part(**part) for part in entry["parts"])})
        for entry in data["models"]
    ]
    models.sort(key=lambda model: model.name != data["default"])
    return tuple(models)


def find_model(name: str | LocalModel) -> LocalModel:
    """
    The model called *name*; `"default"` is the first of the catalogue. A model is itself.

    Raises:
        UnknownModel: The catalogue has no model of this name.
    """
    if isinstance(name, LocalModel):
        return name
    for model in catalogue():
        if name in (model.name, DEFAULT):
            return model
    known = ", ".join(repr(model.name) for model in catalogue())
    raise UnknownModel(
        f"no local model is called {name!r}: use {known}, or the path of a .gguf file"
    )


def is_cached(name: str | LocalModel = DEFAULT) -> bool:
    """True if the model called *name* is complete and checked: no download is needed."""
    model = find_model(name)
    try:
        return model.path.stat().st_size == model.size_bytes
    except OSError:
        return False


def cache_folder() -> Path:
    """
    The folder of fetched weights: `LOOOPY_CACHE`, or the user's cache folder of the system.

    Raises:
        ConfigurationError: The user has no home folder and `LOOOPY_CACHE` is not set.
    """
    if chosen := os.environ.get("LOOOPY_CACHE"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ConfigurationError(
            "there is no home folder to keep the model in: set LOOOPY_CACHE to a folder"
        ) from error
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "looopy" / "cache"
        )
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "looopy"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "looopy"


def human_size(size_bytes: int) -> str:
    """*size_bytes* for people: `1.1 GB`, `98 MB`."""
    megabytes = round(size_bytes / 1_000_000)
    return f"{megabytes} MB" if megabytes < _GB else f"{megabytes / _GB:.1f} GB"
