"""
Wherever a log is summarised, what the model is shown is valid for every provider and leaves out
nothing that the summary does not speak for.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.property.histories import MODEL, PROVIDER, damaged, valid
from tests.property.strict import check_anthropic, check_openai
from tests.property.test_provider_validity import limits, search

from looopy.history.summarise import part_to_cover, transcript
from looopy.history.window import Limits, folded
from looopy.llm.render import render
from looopy.types.config import LoopConfig
from looopy.types.message import Message
from looopy.types.summary import is_summary, summary_message

rooms = st.none() | st.builds(
    Limits, messages=st.none() | st.integers(0, 12), tokens=st.none() | st.integers(0, 200)
)
WHOLE = LoopConfig(max_messages=None, history_tokens=None)


@search
@given(
    st.lists(damaged(turns=3) | valid(turns=3), min_size=1, max_size=3),
    st.integers(1, 3),
    rooms,
    st.booleans(),
    limits,
)
def test_a_log_that_is_summarised_again_and_again_stays_valid(
    pieces: list[list[Message]],
    keep_turns: int,
    room: Limits | None,
    split: bool,
    config: LoopConfig,
) -> None:
    """After each piece of the log a summary is made, if there is something to summarise."""
    log: list[Message] = []
    for number, piece in enumerate(pieces):
        log += piece
        before = folded(log, WHOLE)
        part = part_to_cover(log, keep_turns=keep_turns, room=room, split=split)
        if part is None:
            continue
        assert part.covered
        assert transcript(part, 1000)[0]
        log.append(summary_message(f"summary {number}", kept=part.kept))
        after = folded(log, WHOLE)
        said = [message for message in before if not is_summary(message)]
        kept = [message for message in after[1:] if not is_summary(message)]
        assert after[0].text.endswith(f"summary {number}")
        assert kept == said[len(said) - len(kept) :]
        for shown in (after, folded(log, config)):
            assert check_openai(render(shown, provider="openai", model="gpt")) == []
            assert check_anthropic(render(shown, provider=PROVIDER, model=MODEL)) == []


@search
@given(valid(turns=6), st.integers(1, 4))
def test_a_valid_log_is_parted_where_a_user_speaks(log: list[Message], keep_turns: int) -> None:
    """Nothing has to be repaired on either side."""
    part = part_to_cover(log, keep_turns=keep_turns)
    users = [i for i, message in enumerate(log) if message.role == "user"]
    if part is None:
        return
    cut = len(log) - part.kept
    assert cut == users[-keep_turns]
    assert list(part.covered) == log[:cut]
    assert render(log[cut:]) == log[cut:]


@search
@given(valid(turns=1))
def test_a_turn_that_is_parted_keeps_each_result_beside_its_call(log: list[Message]) -> None:
    """In front of its last answer, and the question is remembered."""
    part = part_to_cover(log, split=True)
    if part is None:
        return
    cut = len(log) - part.kept
    assert part.question is log[0]
    assert log[cut].role == "assistant"
    assert render(log[:cut]) == log[:cut]
    assert render(log[cut:]) == log[cut:]
