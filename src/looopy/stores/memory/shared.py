"""A list that begins with a part of other lists, without copying it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Shared(Sequence[T], Generic[T]):
    """
    The first *count* of *rows*, and then rows of its own.

    *rows* may grow at its end. A row of the shared part is replaced in all lists that have it.
    """

    __slots__ = ("_ends", "_lists", "_own")

    def __init__(self, rows: list[T] | Shared[T], count: int) -> None:
        lists = rows.all_lists if isinstance(rows, Shared) else [(rows, len(rows))]
        self._own: list[T] = []
        self._lists: list[tuple[list[T], int]] = []
        self._ends: list[int] = []
        end = 0
        for part, length in lists:
            taken = min(length, count - end)
            if taken > 0:
                end += taken
                self._lists.append((part, taken))
                self._ends.append(end)

    @property
    def all_lists(self) -> list[tuple[list[T], int]]:
        """The lists that it is made of, and how much of each."""
        return [*self._lists, (self._own, len(self._own))]

    def append(self, row: T) -> None:
        """Add a row of its own."""
        self._own.append(row)

    def __len__(self) -> int:
        return self._shared + len(self._own)

    @property
    def _shared(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return list(self._between(first, last))[::step]
        place = index + len(self) if index < 0 else index
        if place >= self._shared:
            return self._own[place - self._shared]
        if place < 0:
            raise IndexError(index)
        number = bisect_right(self._ends, place)
        part, length = self._lists[number]
        return part[place - self._ends[number] + length]

    def __setitem__(self, index: int, row: T) -> None:
        if index >= self._shared:
            self._own[index - self._shared] = row
            return
        # What a person said is redacted for all that share it.
        number = bisect_right(self._ends, index)
        part, length = self._lists[number]
        part[index - self._ends[number] + length] = row

    def __iter__(self) -> Iterator[T]:
        return self._between(0, len(self))

    def _between(self, first: int, last: int) -> Iterator[T]:
        found: list[Iterator[T]] = []
        begin = 0
        for part, length in self.all_lists:
            low, high = max(first - begin, 0), min(last - begin, length)
            if low < high:
                found.append(islice(part, low, high) if low == 0 else iter(part[low:high]))
            begin += length
        return chain.from_iterable(found)
