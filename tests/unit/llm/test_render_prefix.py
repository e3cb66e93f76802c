"""The beginning of a list, beside the list that a copy would be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.llm.render import Prefix

numbers = st.lists(st.integers(0, 3), max_size=6)
ends = st.none() | st.integers(-8, 8)


def both(first: list[int], later: list[int]) -> tuple[Prefix[int], list[int]]:
    """A prefix of a list that has grown since, and the copy that it stands for."""
    items = list(first)
    prefix, copied = Prefix(items), list(first)
    items += later
    return prefix, copied


@given(numbers, numbers)
def test_a_prefix_equals_the_list(first: list[int], later: list[int]) -> None:
    """Whatever was appended since."""
    prefix, copied = both(first, later)
    assert list(prefix) == copied
    assert list(reversed(prefix)) == copied[::-1]
    assert len(prefix) == len(copied)
    assert bool(prefix) == bool(copied)
    assert repr(prefix) == repr(copied)
    for number in range(5):
        assert (number in prefix) == (number in copied)
        assert prefix.count(number) == copied.count(number)


@given(numbers, numbers, st.integers(-9, 9))
def test_an_index_into_a_prefix_works_as_in_a_list(
    first: list[int], later: list[int], index: int
) -> None:
    """From either end, and out of range."""
    prefix, copied = both(first, later)
    if -len(copied) <= index < len(copied):
        assert prefix[index] == copied[index]
    else:
        with pytest.raises(IndexError):
            prefix[index]


@given(numbers, numbers, ends, ends, st.none() | st.integers(-3, 3).filter(bool))
def test_a_slice_is_a_list(
    first: list[int], later: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    """With any ends and step."""
    prefix, copied = both(first, later)
    part = prefix[start:stop:step]
    assert isinstance(part, list)
    assert part == copied[start:stop:step]


@given(numbers, numbers, numbers)
def test_it_equals_whatever_holds_the_same(
    first: list[int], later: list[int], other: list[int]
) -> None:
    """A list, a tuple, another prefix; and nothing else."""
    prefix, copied = both(first, later)
    equals: list[Any] = [copied, tuple(copied), Prefix(copied)]
    for same in equals:
        assert prefix == same
        assert same == prefix
    assert (prefix == other) == (copied == other)
    assert (prefix != other) == (copied != other)
    assert prefix != "x"
    with pytest.raises(TypeError):
        hash(prefix)


def test_copies_are_lists() -> None:
    """Also what was pickled: nobody else needs to know this class."""
    prefix, copied = both([1, 2], [3])
    pickled = pickle.loads(pickle.dumps(prefix))  # noqa: S301 - our own
    for made in (copy.copy(prefix), copy.deepcopy(prefix), pickled):
        assert type(made) is list
        assert made == copied
