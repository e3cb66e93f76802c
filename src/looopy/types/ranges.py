"""
Ranges of positions: what a rewound history shows, and how to walk it backwards.

A range is a pair of its first and its last position. Hidden ranges are merged and in order, so that
the rest of a history can be counted without reading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def merged(ranges: Iterable[Sequence[int]]) -> tuple[Range, ...]:
    """*ranges* as few as possible, in order."""
    found: list[Range] = []
    for first, last in sorted((one[0], one[1]) for one in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        elif first <= last:
            found.append((first, last))
    return tuple(found)


def shown(first: int, last: int, hidden: Sequence[Range]) -> list[Range]:
    """The parts of the range from *first* to *last* that are not *hidden*."""
    found: list[Range] = []
    for low, high in hidden:
        if high < first or low > last:
            continue
        if first < low:
            found.append((first, low - 1))
        first = high + 1
    if first <= last:
        found.append((first, last))
    return found


def holds(ranges: Iterable[Range], position: int) -> bool:
    """True if *position* is in one of *ranges*."""
    return any(first <= position <= last for first, last in ranges)


def counted(ranges: Iterable[Range]) -> int:
    """The number of positions in *ranges*."""
    return sum(last - first + 1 for first, last in ranges)


def before(position: int, count: int, hidden: Sequence[Range] = ()) -> int:
    """The position before the *count* shown messages that end at *position*."""
    for low, high in reversed(hidden):
        if low > position:
            continue
        if high < position - count:
            break
        if high < position:
            count -= position - high
        position = low - 1
    return position - count
