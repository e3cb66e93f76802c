"""Show how a download goes: a bar on a terminal, a plain line a step anywhere else."""

from __future__ import annotations

import sys
from typing import Protocol

from looopy.llm.local.catalogue import human_size

_WIDTH = 30


class Progress(Protocol):
    """A receiver for the progress of a fetch. Called from the thread that fetches."""

    def say(self, text: str) -> None:
        """Show *text*, one or more lines."""
        ...

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the whole is there."""
        ...


class StderrProgress:
    """Shows progress on the standard error stream."""

    def __init__(self) -> None:
        self._bar_is_open = False

    def say(self, text: str) -> None:
        """Show *text*, below the bar if there is one."""
        self._close_bar()
        _write(f"{text}\n")

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """Redraw the bar; without a terminal, write one line."""
        text = f"{human_size(done_bytes)} of {human_size(total_bytes)}"
        if not sys.stderr.isatty():
            _write(f"fetched {text}\n")
            return
        filled = _WIDTH * done_bytes // total_bytes
        bar = "#" * filled + "-" * (_WIDTH - filled)
        _write(f"\r[{bar}] {text} ")
        self._bar_is_open = True
        if done_bytes >= total_bytes:
            self._close_bar()

    def _close_bar(self) -> None:
        if self._bar_is_open:
            _write("\n")
            self._bar_is_open = False


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
