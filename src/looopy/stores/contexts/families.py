"""Contexts that may be erased, and the order in which those go that work for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """
    A context that may be erased.

    Attributes:
        running: The turn that runs on it, or `None`.
        touched: Its last activity, in microseconds.
        rows: About how many rows it has.
        waits: True if a request is pending.
        outer: The context that it works for, or `None`.
    """

    context_id: str
    owner: str | None
    running: int | None
    touched: int
    rows: int
    waits: bool
    outer: str | None = None


class Families:
    """The contexts of a tenant, by the contexts that they work for."""

    def __init__(self, found: Sequence[Candidate]) -> None:
        self._known = {one.context_id: one for one in found}
        self._inner: defaultdict[str, list[Candidate]] = defaultdict(list)
        for one in found:
            if one.outer is not None:
                self._inner[one.outer].append(one)

    def below(self, one: Candidate) -> list[Candidate]:
        """The inner contexts of a context, and theirs."""
        found: dict[str, Candidate] = {}
        left = [one]
        while left:
            inner = self._inner.get(left.pop().context_id, ())
            new = [i for i in inner if i.context_id not in found]
            found.update((i.context_id, i) for i in new)
            left += new
        return list(found.values())

    def above(self, one: Candidate) -> Iterator[Candidate]:
        """The context that it works for, if that is there, and so on."""
        seen = {one.context_id}
        outer = self._known.get(one.outer or "")
        while outer is not None and outer.context_id not in seen:
            seen.add(outer.context_id)
            yield outer
            outer = self._known.get(outer.outer or "")

    def touched(self, one: Candidate) -> int:
        """The last activity in a context and in its inner ones."""
        return max(each.touched for each in (one, *self.below(one)))

    def with_inner(self, found: Sequence[Candidate]) -> list[Candidate]:
        """*found*, and the inner contexts of each."""
        all_of_them = {one.context_id: one for one in found}
        for one in found:
            all_of_them.update((inner.context_id, inner) for inner in self.below(one))
        return list(all_of_them.values())


def by_depth(found: Sequence[Candidate]) -> list[list[Candidate]]:
    """*found* in groups, each of which comes before the contexts that it works for."""
    outer_of: dict[str, str | None] = {one.context_id: one.outer for one in found}
    depths: dict[int, list[Candidate]] = defaultdict(list)
    for one in found:
        depth, outer, seen = 0, one.outer, {one.context_id}
        while outer is not None and outer in outer_of and outer not in seen:
            seen.add(outer)
            depth, outer = depth + 1, outer_of[outer]
        depths[depth].append(one)
    return [depths[depth] for depth in sorted(depths, reverse=True)]
