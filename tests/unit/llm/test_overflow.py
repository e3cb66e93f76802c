"""A window that overflowed without a word is seen by the count of tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from looopy.llm.overflow import silent_overflow
from looopy.testing.contracts.turns import answer
from looopy.types.message import StopReason, Usage


@pytest.mark.parametrize("part", ["input", "cache_read", "cache_write"])
def test_each_part_of_a_prompt_takes_room(part):
    """What came from the cache and what was written to it, as much as what was read anew."""
    usage = Usage(input=40, cache_read=30, cache_write=30, output=1)
    fits = replace(answer("ok"), usage=usage)
    assert silent_overflow(fits, 100) is None
    over = replace(fits, usage=replace(usage, **{part: getattr(usage, part) + 1}))
    found = silent_overflow(over, 100)
    assert found is not None
    assert found.limit_tokens == 100
    assert "101 tokens" in str(found)


@pytest.mark.parametrize(
    ("sent", "output", "overflows"), [(99, 0, True), (98, 0, False), (99, 1, False)]
)
def test_an_answer_without_room_is_an_overflow(sent, output, overflows):
    """A full window and not one token of an answer; less full, or with a word, it is just long."""
    cut = replace(
        answer(""),
        usage=Usage(input=sent, output=output),
        stop_reason=StopReason.LENGTH,
    )
    assert (silent_overflow(cut, 100) is not None) == overflows
    assert silent_overflow(cut, None) is None
