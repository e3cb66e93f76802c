"""
What the parts of the fault campaign have in common: a trial, and what it found.

A trial does one terrible thing to looopy, *count* times, from a seed that replays it. Its module
lists it in `TRIALS`; `tests/campaign/__main__.py` runs them all and prints one row for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What one trial found."""

    name: str
    runs: int = 0
    missed: int = 0  # runs in which what was to go wrong did not come about
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # figures that were measured on the way


@dataclass(frozen=True)
class Trial:
    """
    One row of the table.

    Attributes:
        name: What is done, and to which store: `kill at B9, postgresql`.
        full: How many runs the whole campaign makes.
        run: Makes *count* runs from *seed*. A violation names the seed of its run, and what was
            expected. It starts what it needs and leaves nothing behind.
    """

    name: str
    full: int
    run: Callable[[int, int], Tally]
