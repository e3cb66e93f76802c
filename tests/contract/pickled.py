"""A store in dictionaries that are pickled to a file: the contracts of one process let it pass."""

from __future__ import annotations

import pickle
from pathlib import Path

from looopy.stores.memory.context import Contexts
from looopy.stores.memory_backend import MemoryBackend


class PickledBackend(MemoryBackend):
    """The stores in memory, read from a file when they open, and written after each change."""

    def __init__(self, path: Path, *, when: str) -> None:
        super().__init__()
        self._path = path
        self._when = when
        self.notifier.notify = self._rung

    def _rung(self, *_args: object, **_options: object) -> None:
        """Write: the backend rings after each change."""
        if self._when == "each":
            self._dump()

    def _dump(self) -> None:
        with self._path.open("wb") as file:
            pickle.dump(self._contexts, file)

    async def open(self) -> None:
        """Read the file, if there is one."""
        await Contexts.open(self)
        if self._path.exists():
            with self._path.open("rb") as file:
                self._contexts = pickle.load(file)  # noqa: S301 - a file of its own

    async def close(self) -> None:
        """Write the last time."""
        self._dump()
        await Contexts.close(self)


def open_pickled(place: str):
    """Stores in a file; a place that begins with `late:` is written when it closes."""
    path = place.removeprefix("late:")
    return PickledBackend(Path(path), when="close" if path != place else "each").stores()
