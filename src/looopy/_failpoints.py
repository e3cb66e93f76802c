"""
Named places where a test may stop or kill this process; free when off.

A test sets `LOOOPY_FAILPOINT=NAME[:N][=kill|raise]`: the N-th time (by default the first) that NAME
is reached, the process kills itself with SIGKILL, or `FailpointReached` is raised. The names are
the boundaries of a turn, in the order it passes them:

    B1  before the claim                         B8   a tool call's start is committed
    B2  claim executed, not committed            B9   effect done, result not committed
    B3  claim committed, not acknowledged        B10  result executed, not committed
    B4  before the model call                    B11  result committed, not shown
    B5  in the middle of the model's stream      B13  last commit executed, not committed
    B6  model done, answer not committed         B14  last commit committed, not shown
    B7  intent committed                         R1-R3 the same three moments of a recovery
"""

from __future__ import annotations

import os
import signal
from typing import Final

NAMES: Final = frozenset(
    {f"B{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14)} | {"R1", "R2", "R3"}
)


class FailpointReached(RuntimeError):
    """Raised at a failpoint that was set to `raise`."""


class _Armed:
    def __init__(self, spec: str) -> None:
        place, _, action = spec.partition("=")
        name, _, count = place.partition(":")
        if name not in NAMES:
            raise ValueError(f"LOOOPY_FAILPOINT: {name!r} is no failpoint")
        self.name = name
        self.left = int(count or 1)
        self.action = action or "kill"

    def hit(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.action == "raise":
                raise FailpointReached(self.name)
            os.kill(os.getpid(), signal.SIGKILL)


_armed: Final = _Armed(os.environ["LOOOPY_FAILPOINT"]) if "LOOOPY_FAILPOINT" in os.environ else None


def reach(name: str) -> None:
    """Pass the place called *name*."""
    if _armed is not None and _armed.name == name:
        _armed.hit()
