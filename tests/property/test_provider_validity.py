"""
Whatever a log holds, what is rendered from it is valid for every provider, and says the same.

The judge is `strict.py`, which knows the providers' rules and nothing of the repair. Set
`LOOOPY_EXAMPLES` for a longer search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.histories import MODEL, PROVIDER, damaged, result, valid
from tests.property.strict import check_anthropic, check_openai
from tests.shares import examples

from looopy.history.tokens import estimate_tokens
from looopy.history.window import visible
from looopy.llm.render import OUTCOME_UNKNOWN, render
from looopy.types.config import LoopConfig
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

search = settings(database=None, max_examples=examples(25))
limits = st.builds(
    LoopConfig,
    max_messages=st.none() | st.integers(1, 12),
    history_tokens=st.none() | st.integers(1, 120),
)

Renderer = Callable[[Sequence[Message]], list[Message]]


def _plainly(messages: Sequence[Message]) -> list[Message]:
    return render(messages)


def _for_claude(messages: Sequence[Message]) -> list[Message]:
    return render(messages, provider=PROVIDER, model=MODEL)


def _for_gpt(messages: Sequence[Message]) -> list[Message]:
    return render(messages, provider="openai", model="gpt")


def _merged(messages: Sequence[Message]) -> list[Message]:
    return render(messages, provider="local", merge_same_role=True)


def _strictly(messages: Sequence[Message]) -> list[Message]:
    return render(messages, strict=True)


ways = pytest.mark.parametrize("way", [_plainly, _for_claude, _for_gpt, _merged, _strictly])


def _assert_valid(messages: list[Message], way: Renderer) -> None:
    alternating = way in (_merged, _strictly)
    if way is not _plainly:  # an unknown reader's rules on ids are its own
        assert check_openai(messages, alternating=alternating) == []
    if way is _for_claude:
        assert check_anthropic(messages, model=MODEL) == []
    elif way is _strictly:
        assert check_anthropic(messages) == []
    for i, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            results = messages[i + 1 : i + 1 + len(message.tool_calls)]
            assert [call.id for call in message.tool_calls] == [
                r.tool_call_id for r in results if isinstance(r, ToolResultMessage)
            ]


def _lines(messages: Sequence[Message]) -> list[str]:
    """What users said, line by line, without what cannot be seen."""
    texts = [m.text for m in messages if isinstance(m, UserMessage)]
    return [line for text in texts for line in text.split("\n") if line.strip()]


@search
@given(damaged(), limits)
@ways
def test_any_log_renders_valid(way: Renderer, log: list[Message], config: LoopConfig) -> None:
    """Cut, dropped, repeated, moved, aborted, empty, foreign, and any window of that."""
    _assert_valid(way(log), way)
    _assert_valid(way(visible(log, config)), way)


@search
@given(damaged())
@ways
def test_rendering_twice_gives_the_same_request(way: Renderer, log: list[Message]) -> None:
    """What was rendered is valid, so it is left alone."""
    once = way(log)
    again = way(once)
    assert again == once
    assert all(a is b for a, b in zip(again, once, strict=True))


@search
@given(valid())
def test_a_valid_history_comes_back_object_for_object(history: list[Message]) -> None:
    """Nothing is copied, changed or added, whoever made it."""
    assert check_openai(history) == []
    assert check_anthropic(history, model=MODEL) == []
    for rendered in (_plainly(history), _for_claude(history)):
        assert len(rendered) == len(history)
        assert all(a is b for a, b in zip(rendered, history, strict=True))


@search
@given(valid(thinking=False))
def test_a_history_without_neighbours_of_one_role_is_not_merged(history: list[Message]) -> None:
    """Merging, too, is the identity where there is nothing to merge."""
    if check_openai(history, alternating=True) == []:
        assert render(history, merge_same_role=True) == history


@search
@given(damaged())
@ways
def test_every_text_of_a_user_is_rendered(way: Renderer, log: list[Message]) -> None:
    """Every visible line is there, in order, also when messages were merged."""
    assert _lines(way(log)) == _lines(log)


@search
@given(damaged())
def test_every_result_is_the_first_one_of_its_call(log: list[Message]) -> None:
    """A result that follows its call is shown, wherever it stands; no other is made up for it."""
    expected: list[str | None] = []
    for i, message in enumerate(log):
        if not isinstance(message, AssistantMessage):
            continue
        aborted = message.stop_reason in (StopReason.ERROR, StopReason.ABORTED)
        later: dict[str, list[ToolResultMessage]] = {}
        newer: set[str] = set()
        for other in log[i + 1 :]:
            if isinstance(other, AssistantMessage):
                newer.update(call.id for call in other.tool_calls)
            elif isinstance(other, ToolResultMessage) and other.tool_call_id not in newer:
                later.setdefault(other.tool_call_id, []).append(other)
        for call in message.tool_calls:
            mine = later.get(call.id)
            if mine:
                expected.append(mine.pop(0).text)
            elif not aborted:
                expected.append(None)
    shown = [m for m in render(log) if isinstance(m, ToolResultMessage)]
    assert [None if m.details == {"synthetic": True} else m.text for m in shown] == expected


@search
@given(damaged())
def test_signed_blocks_are_replayed_as_they_came_or_not_at_all(log: list[Message]) -> None:
    """The very objects, in their order, and only to the model that made them."""
    signed = [
        id(block)
        for m in log
        if isinstance(m, AssistantMessage)
        for block in m.content
        if isinstance(block, ThinkingContent)
    ]
    for message in _for_claude(log):
        if isinstance(message, AssistantMessage):
            thoughts = [b for b in message.content if isinstance(b, ThinkingContent)]
            assert all(id(b) in signed and b.thinking_signature for b in thoughts)
            assert not thoughts or (message.provider, message.model) == (PROVIDER, MODEL)


@search
@given(damaged(), limits)
def test_a_window_holds_the_newest_and_stays_within_its_limits(
    log: list[Message], config: LoopConfig
) -> None:
    """It begins with a user message where there is one; what the user said last is always in it."""
    window = visible(log, config)
    if len(window) == len(log):
        assert window == log
        return
    asked = [m for m in log if isinstance(m, UserMessage)]
    if asked:
        assert window[0] in asked
        assert any(m is asked[-1] for m in window)
    groups = [i for i, m in enumerate(window) if isinstance(m, AssistantMessage)]
    if len(groups) > 1 or len([m for m in window if isinstance(m, UserMessage)]) > 1:
        assert config.max_messages is None or (
            sum(isinstance(m, (UserMessage, AssistantMessage, ToolResultMessage)) for m in window)
            <= config.max_messages
        )
        assert config.history_tokens is None or (
            sum(map(estimate_tokens, window)) <= config.history_tokens
        )


@search
@given(valid(turns=6), limits)
def test_a_window_of_a_valid_history_parts_no_result_from_its_call(
    history: list[Message], config: LoopConfig
) -> None:
    """Rendering finds nothing to mend in it."""
    window = visible(history, config)
    assert render(window) == window


def _orders(results: list[Message]) -> list[list[Message]]:
    """Several orders in which results may have come, one with each of them twice."""
    middle = len(results) // 2
    interrupted = [*results[:middle], UserMessage("hurry", timestamp=9), *results[middle:]]
    return [
        results,
        results[::-1],
        [*results[middle:], *results[:middle]],
        interrupted,
        [*results[::-1], *results],
    ]


def test_every_subset_of_the_results_of_six_parallel_calls_is_completed() -> None:
    """All 64 subsets, in five orders, at the end of the log and before the next question."""
    calls = [ToolCall(f"c{i}", "add", {"a": i}) for i in range(6)]
    said = AssistantMessage(
        tuple(calls), provider=PROVIDER, model=MODEL, stop_reason=StopReason.TOOL_USE, timestamp=2
    )
    beginning = [UserMessage("go", timestamp=1), said]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(6), size) for size in range(7)
    )
    seen = 0
    for subset in subsets:
        results: list[Message] = [result(calls[i], f"sum {i}") for i in subset]
        for order in _orders(results):
            for end in ([], [UserMessage("and now?", timestamp=8)]):
                rendered = _for_claude([*beginning, *order, *end])
                assert check_openai(rendered) == []
                assert check_anthropic(rendered, model=MODEL) == []
                assert rendered[:2] == beginning
                assert [m.text for m in rendered[2:8] if isinstance(m, ToolResultMessage)] == [
                    f"sum {i}" if i in subset else OUTCOME_UNKNOWN for i in range(6)
                ]
                assert all(isinstance(m, UserMessage) for m in rendered[8:])
                seen += 1
    assert seen == 64 * 5 * 2


def test_the_judge_refuses_what_providers_refuse() -> None:
    """A judge that says yes to all would prove nothing: each rule of its own is broken once."""
    ask, call = UserMessage("go", timestamp=1), ToolCall("c1", "add")
    said = AssistantMessage((call,), provider=PROVIDER, model=MODEL, timestamp=2)
    done = result(call, "7")
    answer = AssistantMessage((TextContent("7"),), timestamp=3)
    twice = AssistantMessage((call, call), timestamp=2)
    unsigned = AssistantMessage((ThinkingContent("hm"), TextContent("7")), timestamp=3)
    bad: list[list[Message]] = [
        [ask, said],
        [ask, said, ask],
        [ask, said, answer],
        [ask, done],
        [ask, said, done, done],
        [ask, said, ask, done],
        [ask, twice, done],
        [ask, AssistantMessage((ToolCall("c1", "a.b"),), timestamp=2), done],
        [ask, AssistantMessage((), timestamp=3), ask],
        [UserMessage("", timestamp=1)],
        [UserMessage((TextContent(" "),), timestamp=1)],
    ]
    for messages in bad:
        assert check_openai(messages), messages
        assert check_anthropic(messages), messages
    only_anthropic: list[list[Message]] = [
        [ask, unsigned],
        [ask, AssistantMessage((TextContent("7 "),), timestamp=3)],
        [ask, said, done, said, done],
        [ask, AssistantMessage((ToolCall("a|b", "add"),)), result(ToolCall("a|b", "add"), "7")],
    ]
    for messages in only_anthropic:
        assert check_anthropic(messages), messages
    thought = ThinkingContent("hm", thinking_signature="s")
    theirs = AssistantMessage((thought, TextContent("7")), provider="openai", timestamp=3)
    assert check_anthropic([ask, theirs], model=MODEL)
    assert check_anthropic([ask, said, done], tools_defined=False)
    assert check_openai([ask, ask], alternating=True)
    assert check_openai([ask, said, done, answer]) == []
    assert check_anthropic([ask, said, done, answer]) == []
