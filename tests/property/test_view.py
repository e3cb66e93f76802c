"""
What is kept from call to call equals what is chosen and rendered from scratch, whatever happened.

The slow path is the judge: `render(folded(history))`. Set `LOOOPY_EXAMPLES` for a longer search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.histories import MODEL, PROVIDER, damaged, valid
from tests.property.test_provider_validity import search
from tests.shares import examples

from looopy.agent.context import ContextView
from looopy.history.view import View
from looopy.history.window import Limits, Window, fitting, folded, visible
from looopy.llm.render import Rendering, render
from looopy.stores.memory_backend import MemoryBackend
from looopy.types.config import LoopConfig
from looopy.types.message import Message, UserMessage
from looopy.types.summary import find_fold, summary_message

STORES = MemoryBackend().stores()  # nothing is read from it
READERS = [("", ""), (PROVIDER, MODEL), (PROVIDER, f"{MODEL}-latest"), ("openai", "gpt")]
rarer = settings(search, max_examples=examples(120))  # what these find takes several accidents
summaries = st.builds(summary_message, st.text(max_size=40), kept=st.integers(0, 12))
logs = st.lists(damaged(turns=5) | summaries.map(lambda s: [s]), min_size=1, max_size=5).map(
    lambda parts: [message for part in parts for message in part]
)
limits = st.builds(
    LoopConfig,
    max_messages=st.none() | st.integers(1, 12),
    history_tokens=st.none() | st.integers(1, 120) | st.integers(1000, 4000),
)


def scratch(history: Sequence[Message], config: LoopConfig, reader: tuple[str, str]) -> Any:
    """The slow path."""
    return render(folded(history, config), provider=reader[0], model=reader[1])


def seen(view: View, config: LoopConfig, reader: tuple[str, str]) -> Any:
    """The fast one."""
    return view.of(config, provider=reader[0], model=reader[1])


@search
@given(logs, limits, st.sampled_from(READERS), st.data())
def test_a_log_that_grows_is_shown_as_from_scratch(
    log: list[Message], config: LoopConfig, reader: tuple[str, str], data: Any
) -> None:
    """Asked at any moments; and what was handed out stays what it was."""
    history: list[Message] = []
    view = View(history)
    handed: list[tuple[Sequence[Message], list[Message]]] = []
    rest = list(log)
    while True:
        expected = scratch(history, config, reader)
        shown = seen(view, config, reader)
        assert shown == expected
        assert len(shown) == len(expected)
        handed.append((shown, expected))
        if not rest:
            break
        step = data.draw(st.integers(1, 4))
        history += rest[:step]
        del rest[:step]
    for shown, expected in handed:
        assert list(shown) == expected


@search
@given(valid(turns=8), limits)
def test_a_valid_history_is_shown_object_for_object(log: list[Message], config: LoopConfig) -> None:
    """What there is nothing to mend in is not copied."""
    history: list[Message] = []
    view = View(history)
    for message in log:
        history.append(message)
        seen(view, config, READERS[0])
    if visible(log, config) == log:
        shown = seen(view, config, READERS[0])
        assert all(a is b for a, b in zip(shown, log, strict=True))


@search
@given(logs, st.lists(st.tuples(limits, st.sampled_from(READERS)), min_size=1), st.data())
def test_another_reader_or_other_limits_get_a_new_view(
    log: list[Message], ways: list[tuple[LoopConfig, tuple[str, str]]], data: Any
) -> None:
    """A model may be changed between any two calls, and back."""
    history: list[Message] = []
    view = View(history)
    for message in log:
        history.append(message)
        config, reader = data.draw(st.sampled_from(ways))
        assert seen(view, config, reader) == scratch(history, config, reader)


@search
@given(logs, limits, st.data())
def test_a_history_that_was_shortened_or_replaced_is_noticed(
    log: list[Message], config: LoopConfig, data: Any
) -> None:
    """Dropped where it was said so; and a tail that was taken back is seen without being told."""
    history = list(log)
    view = View(history)
    for _ in range(4):
        assert seen(view, config, READERS[1]) == scratch(history, config, READERS[1])
        if data.draw(st.booleans()):
            history[:] = data.draw(damaged())
            view.drop()
        else:
            del history[data.draw(st.integers(0, len(history))) :]
            assert seen(view, config, READERS[1]) == scratch(history, config, READERS[1])
            history += data.draw(damaged(turns=1))


@rarer
@given(logs, limits, st.data())
def test_an_incremental_view_equals_one_from_scratch(
    log: list[Message], config: LoopConfig, data: Any
) -> None:
    """Turns that were stored, in part, or as something else."""
    known = ContextView(STORES, "c", config)
    position = 0
    rest = list(log)
    while rest:
        said = rest[: data.draw(st.integers(1, 5))]
        del rest[: len(said)]
        for message in said:
            known.history.append(message)
            if data.draw(st.booleans()):
                seen(known.view, config, READERS[1])
        stored = data.draw(
            st.sampled_from([said, said, said[:-1], [*said[1::-1], *said[2:]], said[::-1]])
        )
        position += len(stored)
        known.advance(stored, 1, position)
        shown = seen(known.view, config, READERS[1])
        assert shown == scratch(known.history, config, READERS[1])
        assert list(known.committed) == known.history


@rarer
@given(logs, limits)
def test_a_window_cuts_where_the_whole_would_be_cut(log: list[Message], config: LoopConfig) -> None:
    """At each message, unless it says that the whole has to be asked."""
    window = Window(Limits.of(config, None))
    for end in range(len(log) + 1):
        cut = window.cut()
        if cut is not None:
            assert log[cut:end] == visible(log[:end], config)
        window.extend(log[end : end + 1])


narrow = st.builds(
    LoopConfig,
    max_messages=st.integers(8, 16) | st.none(),
    history_tokens=st.integers(60, 200),
)


@search
@given(
    st.lists(logs, min_size=2, max_size=4).map(lambda parts: [m for part in parts for m in part]),
    limits | narrow,
    st.integers(0, 500),
    st.data(),
)
def test_a_view_of_the_end_alone_cuts_at_the_same_place(
    log: list[Message], config: LoopConfig, before: int, data: Any
) -> None:
    """From one message more than fits on, however many messages came before."""
    fits = fitting(log, Limits.of(config, None))
    shown = folded(log, config, offset=before)
    gone = data.draw(st.integers(0, max(0, len(log) - fits - 1)))
    asked = [i for i, m in enumerate(log) if isinstance(m, UserMessage)]
    fold = find_fold(log)
    if (fold and fold.place < gone) or (asked and asked[-1] < gone):
        return  # an agent keeps both
    assert folded(log[gone:], config, offset=before + gone) == shown
    view = View(log[gone:])
    view.offset = before + gone
    assert seen(view, config, READERS[1]) == render(
        shown, provider=READERS[1][0], model=READERS[1][1]
    )


@search
@given(logs, st.sampled_from(READERS))
def test_a_rendering_is_the_same_however_it_was_fed(
    log: list[Message], reader: tuple[str, str]
) -> None:
    """One by one with a look after each, or all at once."""
    rendering = Rendering(provider=reader[0], model=reader[1])
    for end, message in enumerate(log, 1):
        rendering.extend([message])
        assert rendering.shown() == render(log[:end], provider=reader[0], model=reader[1])
