"""
Named places where a test may stop or kill this process; no cost when off.

`arm("NAME")`, or the variable `LOOOPY_FAILPOINT` at start-up, sets one: `NAME[:N][=kill|raise]`.
The N-th time (by default the first) that NAME is reached, the process kills itself with SIGKILL, or
`FailpointReached` is raised. The names are the boundaries of a turn, in the order it passes them:

    B1  before the claim                      B8   a call's start is committed, the tool not run
    B2  a write executed, not committed       B9   the tool has run, its result not committed
    B3  the claim committed, not acknowledged B13  before the last commit of the turn
    B4  before the model call                 B14  the last commit committed, not shown
    B5  in the middle of the model's stream   R1   before a dead turn is taken over
    B6  before a commit within the turn       R2   taken over, not closed
    B7  that commit committed, not shown      R3   closed, not read again
    A1  a blob written, not synced            A3   renamed, no row names it
    A2  synced, not renamed                   A4   its row committed, not acknowledged

A compaction between two turns has two more: C1, where its summary is made, before the write, and
C3, where it is committed, before it is read again. The place between them is the write's own B2.

An erasure has four: E1, where some contexts are erased and their blobs are not, E2, where these are
gone and empty contexts name them, E3, where the log of the database is not emptied yet, and on a
full disk E4, after each step that deletes rows of a SQLite file.

A step in stores of an application's own has four: S1, where what is in no message is written and
the head is not, S2, where the head is written and its messages are not, S3, where they are as well,
and S4, where a message that a dead process left was appended by its successor.

A fork has F1, where it is committed, and its caller does not know it yet.

B2 is in the SQL stores, so `B2:1` is within the claim, `B2:2` within the second write, and so on.
"""

from __future__ import annotations

import os
import signal
from typing import Final

NAMES: Final = (
    *("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B13", "B14"),
    *("R1", "R2", "R3"),
    *("A1", "A2", "A3", "A4"),
    *("C1", "C3"),
    *("E1", "E2", "E3", "E4"),
    *("S1", "S2", "S3", "S4"),
    "F1",
)


class FailpointReached(RuntimeError):
    """Raised at a failpoint that was set to `raise`."""


class _Armed:
    def __init__(self, spec: str) -> None:
        place, _, action = spec.partition("=")
        name, _, count = place.partition(":")
        if name not in NAMES or action not in ("", "kill", "raise"):
            raise ValueError(f"{spec!r} is not a failpoint: NAME[:N][=kill|raise]")
        self.name = name
        self.left = int(count or 1)
        self.kills = action != "raise"

    def hit(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise FailpointReached(self.name)


def arm(spec: str | None) -> None:
    """Set the one failpoint, or none."""
    global _armed  # noqa: PLW0603 - one registry for the process, looked at in hot paths
    _armed = None if spec is None else _Armed(spec)


def reach(name: str) -> None:
    """Pass the place called *name*."""
    if _armed is not None and _armed.name == name:
        _armed.hit()


_armed: _Armed | None = None
arm(os.environ.get("LOOOPY_FAILPOINT"))
