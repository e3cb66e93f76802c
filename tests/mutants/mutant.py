"""What a mutant is: a small, plausible mistake in looopy, and the tests that have to notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """In *file* (from the root of the repository), *old*, found exactly once, becomes *new*."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """
    One mistake.

    Attributes:
        name: What is done wrong, in a few words with hyphens.
        why: What a user would lose by it.
        edits: All of them together are the mistake.
        killed_by: pytest node ids; at least one test of each has to fail.
    """

    name: str
    why: str
    edits: tuple[Edit, ...]
    killed_by: tuple[str, ...]


def mutant(name: str, why: str, file: str, old: str, new: str, *killed_by: str) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, why, (Edit(file, old, new),), killed_by)
