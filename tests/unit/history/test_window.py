"""Which part of a history is shown: what fits, cut at safe places and in steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looopy.history.tokens import estimate_tokens
from looopy.history.window import (
    UNKNOWN_WINDOW_TOKENS,
    Limits,
    Window,
    visible,
)
from looopy.llm.render import render
from looopy.types.config import LoopConfig
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)


def ask(text: str) -> UserMessage:
    return UserMessage(text, timestamp=1)


def say(text: str) -> AssistantMessage:
    return AssistantMessage((TextContent(text),), timestamp=2)


def group(name: str, *texts: str) -> list[Message]:
    """A message with one call for each of *texts*, and their results."""
    calls = tuple(ToolCall(f"{name}{i}", "read") for i in range(len(texts)))
    results = [
        ToolResultMessage(
            tool_call_id=c.id, tool_name="read", content=(TextContent(text),), timestamp=3
        )
        for c, text in zip(calls, texts, strict=True)
    ]
    return [AssistantMessage(calls, timestamp=2), *results]


def chat(turns: int) -> list[Message]:
    """Turns of two messages."""
    return [m for i in range(turns) for m in (ask(f"q{i}"), say(f"a{i}"))]


def newest(most: int) -> LoopConfig:
    return LoopConfig(max_messages=most, history_tokens=None)


def within(tokens: int | None) -> LoopConfig:
    return LoopConfig(history_tokens=tokens)


def tokens_of(messages: Sequence[Message]) -> int:
    return sum(map(estimate_tokens, messages))


class Watched(Sequence[Message]):
    """A log that counts how much of it is read."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.read = 0

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: Any) -> Any:
        found = self._messages[index]
        self.read += len(found) if isinstance(index, slice) else 1
        return found


def test_a_history_that_fits_is_shown_whole() -> None:
    """The same messages, in a list of its own."""
    history = chat(3)
    shown = visible(history, newest(6))
    assert shown == history
    assert shown is not history
    assert visible([], newest(1)) == []


def test_no_limit_shows_everything() -> None:
    """`None` is no limit."""
    history = chat(2000)
    assert len(visible(history, within(None))) == 4000


def test_a_window_begins_with_a_user_message() -> None:
    """An answer is not shown without its question, even where one more message would fit."""
    assert visible(chat(3), newest(3)) == chat(3)[4:]


def test_a_window_is_never_longer_than_asked_for() -> None:
    """For every length of history and window."""
    for length in range(30):
        for most in range(2, 12):
            shown = visible(chat(20)[:length], newest(most))
            assert len(shown) <= most
            assert len(shown) >= min(length, most) * 3 // 4 - 1


def test_messages_of_other_roles_do_not_count() -> None:
    """They are not shown to the model."""
    notes: list[Message] = [CustomMessage("note", "x" * 1000)] * 50
    history = [*chat(2), *notes]
    assert visible(history, newest(4)) == history
    assert visible(history, within(30)) == history


def test_the_first_message_stays_for_many_requests() -> None:
    """The cut moves in steps, so a prompt cache is lost at most once in a quarter window."""
    history = chat(200)
    for config in (newest(40), within(400)):
        first = [visible(history[: n + 1], config)[0] for n in range(100, 400, 2)]
        moves = sum(a is not b for a, b in itertools.pairwise(first))
        assert moves <= 150 // 4


def requests_of(history: Sequence[Message], limits: Limits) -> list[tuple[int, int]]:
    """For each answer of a log, where its request begins in the log and where it ends."""
    window, found = Window(limits), []
    for place, message in enumerate(history):
        if isinstance(message, AssistantMessage):
            cut = window.cut()
            assert cut is not None
            found.append((cut, place))
        window.extend([message])
    return found


def test_nearly_all_bytes_repeat_beyond_the_window() -> None:
    """Over 400 turns, of which the first already does not fit whole into 32,000 tokens."""
    history = [m for _ in range(700) for m in (ask("q" * 200), say("a" * 600))]
    limits = Limits(None, UNKNOWN_WINDOW_TOKENS)
    beyond = [r for r in requests_of(history, limits) if r[0] > 0][:401]
    assert len(beyond) == 401
    sizes = [len(getattr(m, "text", "")) for m in history]
    sent = repeated = 0
    for (cut, end), (cut_before, end_before) in zip(beyond[1:], beyond, strict=False):
        assert cut >= cut_before  # what was left out once does not come back
        sent += sum(sizes[cut:end])
        repeated += sum(sizes[cut:end_before]) if cut == cut_before else 0
    assert repeated / sent >= 0.97


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=120), st.integers(8, 600))
def test_a_cut_only_advances_and_keeps_half_the_limit(sizes: list[int], most: int) -> None:
    """Whatever the lengths of the messages: a place that was given up is not sent again."""
    history = [ask("x" * n) if i % 2 == 0 else say("x" * n) for i, n in enumerate(sizes)]
    window, last = Window(Limits(None, most)), 0
    for place, message in enumerate(history):
        window.extend([message])
        cut = window.cut()
        shown = visible(history[: place + 1], within(most))
        if cut is None:
            continue
        assert shown == history[cut : place + 1]
        assert cut >= last
        last = cut
        turn = max(tokens_of(history[i : i + 2]) for i in range(place + 1))
        assert tokens_of(shown) <= most
        assert cut == 0 or tokens_of(shown) >= most // 2 - 2 * turn


def test_the_cut_does_not_depend_on_earlier_messages() -> None:
    """Two calls on the same log agree: nothing is remembered between them."""
    history = chat(50)
    assert visible(history, newest(9)) == visible(list(history), newest(9))


def test_a_long_history_costs_as_much_as_its_visible_part() -> None:
    """The walk begins at the end and stops at the limit."""
    short, long = Watched(chat(50)), Watched(chat(50_000))
    for watched in (short, long):
        visible(watched, newest(20))
        visible(watched, within(200))
    assert long.read <= 2 * short.read


def test_a_turn_longer_than_the_window_keeps_its_question_and_its_newest_groups() -> None:
    """Groups go from the oldest; no result is parted from its call."""
    groups = [group(f"g{i}", "one", "two") for i in range(10)]
    history = [*chat(3), ask("do it"), *(m for g in groups for m in g)]
    for most, groups_shown in ((4, 1), (6, 1), (7, 2), (8, 2), (11, 3)):
        shown = visible(history, newest(most))
        assert shown == [ask("do it"), *(m for g in groups[-groups_shown:] for m in g)]
        assert render(shown) == shown


def test_the_newest_group_is_shown_even_where_it_alone_is_too_long() -> None:
    """A pair is never torn to fit."""
    history = [ask("do it"), *group("a", *["x"] * 8), *group("b", *["y"] * 8)]
    assert visible(history, newest(4)) == [ask("do it"), *group("b", *["y"] * 8)]


def test_the_newest_question_is_shown_however_long() -> None:
    """What the user says now is never cut."""
    history = [*chat(3), ask("long " * 1000)]
    assert visible(history, within(10)) == history[-1:]
    assert visible([*history, *group("a", "x")], within(10)) == [*history[-1:], *group("a", "x")]


def test_a_result_after_a_later_question_stays_with_its_call() -> None:
    """A cut at that question would leave a result without a call."""
    called, result = group("a", "found")
    history = [*chat(5), ask("look"), called, ask("hurry"), result, say("ok")]
    assert visible(history, newest(5)) == history[-5:]
    assert visible(history, newest(4)) == [ask("hurry"), say("ok")]
    assert visible([*history, *chat(1)], newest(6)) == chat(1)


def test_a_result_without_a_call_does_not_limit_the_window() -> None:
    """It is left out of the request anyway; the window is as long as ever."""
    stray = group("nobody", "x")[1]
    assert len(visible([*chat(20), stray, *chat(1)], newest(12))) >= 9


def test_a_log_without_a_user_message_shows_its_newest_groups() -> None:
    """There is no question to keep."""
    history = [m for i in range(5) for m in group(f"g{i}", "x")]
    assert visible(history, newest(4)) == history[-4:]
    assert visible([group("a", "x")[1]] * 5, newest(1)) == []


def test_auto_is_three_quarters_of_the_window_or_a_safe_figure() -> None:
    """The rest of the window is for prompt, tools and answer."""
    history = [ask("word " * 400) for _ in range(400)]
    each = estimate_tokens(history[0])
    config = LoopConfig()
    for shown, most in (
        (visible(history, config), UNKNOWN_WINDOW_TOKENS),
        (visible(history, config, window_tokens=64_000), 48_000),
    ):
        assert most // 2 - each <= tokens_of(shown) <= most


def test_long_results_are_shortened_only_when_their_turn_alone_is_too_long() -> None:
    """Older turns go first; the newest turn is shown as it is while it fits."""
    fits = [ask("read"), *group("a", "x" * 2000)]
    assert visible([*chat(300), *fits], within(600))[-3:] == fits
    shown = visible([ask("read"), *group("a", "x" * 8000)], within(600))
    assert tokens_of(shown) <= 600
    assert "characters left out" in getattr(shown[-1], "text", "")


def test_a_shortened_result_keeps_its_beginning_its_end_and_its_pictures() -> None:
    """The marker says how much is missing."""
    text = "begin" + "x" * 50_000 + "end"
    result = ToolResultMessage(
        tool_call_id="c",
        tool_name="read",
        content=(TextContent(text), ImageContent("aW1n")),
        details={"n": 1},
        timestamp=3,
    )
    call = AssistantMessage((ToolCall("c", "read"),), timestamp=2)
    shown = visible([ask("read"), call, result], within(2000))
    cut = shown[-1]
    assert isinstance(cut, ToolResultMessage)
    assert cut.text.startswith("begin")
    assert cut.text.endswith("end")
    assert cut.content[-1] == ImageContent("aW1n")
    assert (cut.tool_call_id, cut.details) == ("c", {"n": 1})
    left_out = 50_008 - cut.text.count("x") - len("beginend")
    assert f"{left_out:,} characters left out" in cut.text


def test_short_results_are_left_alone_beside_a_long_one() -> None:
    """Only what is long is shortened, and what is read before the last call is remembered."""
    history = [ask("read"), *group("a", "y" * 40_000), *group("b", "short", "z" * 40_000)]
    shown = visible(history, within(8000))
    assert tokens_of(shown) <= 8000
    assert [m.role for m in shown] == [m.role for m in history]
    assert getattr(shown[4], "text", "") == "short"


def test_the_newest_group_is_squeezed_until_it_fits() -> None:
    """Several long results share what there is."""
    history = [ask("read"), *group("a", *["x" * 30_000] * 6, "short")]
    shown = visible(history, within(4000))
    assert 3000 <= tokens_of(shown) <= 4000
    assert getattr(shown[-1], "text", "") == "short"
    assert render(shown) == shown
    history = [ask("read"), *group("a", *["x" * 50_000] * 4, "y" * 2000)]
    shown = visible(history, within(6000))
    assert 5900 <= tokens_of(shown) <= 6000
    assert shown[-1] == history[-1]


def test_a_long_question_leaves_less_for_its_groups() -> None:
    """It is counted with them."""
    groups = [m for i in range(10) for m in group(f"g{i}", "x" * 400)]
    shown = visible([ask("long " * 400), *groups], within(1000))
    assert 700 <= tokens_of(shown) <= 1000
    assert shown[1:] == groups[-len(shown) + 1 :]


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (ask(""), 4),
        (ask("12345"), 6),
        (UserMessage((TextContent("1234"), ImageContent("aW1n")), timestamp=1), 1205),
        (AssistantMessage((ThinkingContent("1234"), TextContent("1234")), timestamp=2), 6),
        (AssistantMessage((ToolCall("c", "read", {"a": 1}),), timestamp=2), 7),
        (CustomMessage("note", "x" * 100), 0),
    ],
)
def test_tokens_are_a_quarter_of_the_characters(message: Message, tokens: int) -> None:
    """And a little for the message itself, and a flat figure for a picture."""
    assert estimate_tokens(message) == tokens
