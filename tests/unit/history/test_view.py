"""How much of a history is looked at for a model call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from looopy.history.tokens import estimate_tokens
from looopy.history.view import View
from looopy.history.window import Limits, fitting, folded, visible
from looopy.llm.render import render
from looopy.types.config import LoopConfig
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest


class Watched(list[Message]):
    """A history that counts how many of its messages are handed out."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[Message]:
        for message in super().__iter__():
            self.read += 1
            yield message


def turn(n: int, stop: StopReason = StopReason.STOP) -> list[Message]:
    return [
        UserMessage(f"question {n}", timestamp=1),
        AssistantMessage((TextContent(f"answer {n}"),), stop_reason=stop, timestamp=2),
    ]


def look(view: View, config: LoopConfig) -> Any:
    return view.of(config, provider="p", model="m")


@pytest.mark.parametrize("stop", [StopReason.STOP, StopReason.ABORTED])
def test_a_second_view_reads_only_new_messages(stop: StopReason) -> None:
    """However long the history, and also where turns were aborted."""
    history = Watched(message for n in range(2000) for message in turn(n, stop))
    view, config = View(history), LoopConfig(history_tokens=None)
    assert len(look(view, config)) == 4000
    for n in range(50):
        history.read = 0
        history += turn(2000 + n, stop)
        assert len(look(view, config)) == 4002 + 2 * n
        assert history.read <= 5


@pytest.mark.parametrize(
    "config", [LoopConfig(), LoopConfig(history_tokens=None, max_messages=100)]
)
def test_a_window_that_moves_is_looked_at_a_few_times(config: LoopConfig) -> None:
    """The cut moves in steps, so each message is rendered about as often as there are steps."""
    history = Watched()
    view = View(history)
    for n in range(4000):
        history += turn(n)
        look(view, config)
    assert history.read <= 12 * len(history)


def test_a_long_window_is_not_walked_for_a_call_between_two_cuts() -> None:
    """Most calls of a window that is full touch nothing but what is new."""
    history, config = Watched(), LoopConfig(history_tokens=None, max_messages=1000)
    view = View(history)
    reads: list[int] = []
    for n in range(4000):
        history += turn(n)
        history.read = 0
        look(view, config)
        reads.append(history.read)
    assert sorted(reads)[len(reads) * 98 // 100] <= 5


def test_a_repeated_view_reads_no_message() -> None:
    """As when a call is tried again."""
    history = Watched(turn(1))
    view, config = View(history), LoopConfig(history_tokens=None)
    first = look(view, config)
    history.read = 0
    assert look(view, config) == first
    assert history.read <= 2


def test_a_view_that_failed_half_way_starts_over() -> None:
    """A message that cannot be weighed does not leave the view half-fed."""
    history = turn(1)
    view, config = View(history), LoopConfig(history_tokens=30)
    look(view, config)
    history += [*turn(2), "no message"]  # type: ignore[list-item]  # on purpose
    with pytest.raises(AttributeError):
        look(view, config)
    del history[-1]
    assert look(view, config) == history


def test_a_cut_that_was_lost_and_found_again_shows_all_that_came_between() -> None:
    """A late result forbids a cut, and allows it again once its call has left the window."""
    kinds: dict[str, Message] = {
        "U": UserMessage("go on", timestamp=1),
        "A": AssistantMessage((ToolCall("x", "look"),), timestamp=2),
        "R": ToolResultMessage(tool_call_id="x", tool_name="look", timestamp=3),
    }
    history: list[Message] = []
    view, config = View(history), LoopConfig(history_tokens=None, max_messages=4)
    for kind in "AARAURAR":
        history.append(kinds[kind])
        assert look(view, config) == render(visible(history, config), provider="p", model="m")


@pytest.mark.parametrize("limits", [{"max_messages": 12}, {"history_tokens": 200}])
def test_a_view_of_the_end_cuts_where_the_whole_is_cut(limits):
    """An agent that was opened in between has read the end only, and sends what the other sends."""
    config = LoopConfig(**{"max_messages": None, "history_tokens": None, **limits})
    log: list[Message] = []
    for n in range(40):
        log += [UserMessage(f"question {n}"), AssistantMessage((TextContent(f"answer {n}"),))]
    whole = render(folded(log, config), provider="", model="")
    for gone in range(len(log) - fitting(log, Limits.of(config, None))):
        view = View(log[gone:])
        view.offset = gone
        assert view.of(config, provider="", model="") == whole


@pytest.mark.parametrize("wanted", [60, 88, 115, 160])
def test_a_measurement_alone_moves_no_window(wanted):
    """Unless what was shown no longer fits by it; and then forward."""
    limit, moved = 3_000, 0
    config = LoopConfig(history_tokens=limit)
    for turns in range(20, 120):
        log: list[Message] = []
        for n in range(turns):
            log += [UserMessage("a b c d " * 20), AssistantMessage((TextContent(f"e {n} " * 15),))]
        view = View(log)
        shown = view.of(config, provider="p", model="m")
        view.sent.changes(LLMRequest(messages=shown, model="m"), "p", None, view.begin)
        before, weight = view.begin, sum(map(estimate_tokens, shown))
        view.sent.scale.wanted = wanted
        view.of(config, provider="p", model="m")
        assert view.begin >= before
        if weight * wanted // 100 < limit:
            assert view.begin == before
        moved += view.begin > before
    assert (moved > 0) == (wanted > 100)
