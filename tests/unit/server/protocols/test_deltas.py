"""Pieces of an answer: together they are the committed answer, whenever a viewer came."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from looopy.llm.accumulate import Accumulator
from looopy.server.protocols.deltas import GrowingAnswer, Piece
from looopy.types.event import MessageUpdate
from looopy.types.message import AssistantMessage, StopReason, TextContent, ThinkingContent
from looopy.types.request import StreamEvent

WRITTEN = st.lists(
    st.tuples(st.sampled_from(["text", "thinking"]), st.text("ab🦜", min_size=1, max_size=3)),
    max_size=12,
)


def _update(event: StreamEvent) -> MessageUpdate:
    delta = event.delta if event.type == "text_delta" else ""
    return MessageUpdate(
        context_id="c",
        delta=delta,
        event=event,
        content_index=event.content_index,
        partial=event.partial,
    )


def _joined(pieces: list[Piece]) -> list[Any]:
    blocks: list[Any] = []
    for piece in pieces:
        assert piece.begins == (piece.block == len(blocks))
        if piece.begins:
            blocks.append([piece.kind, "", False])
        kind, text, ended = blocks[piece.block]
        assert kind == piece.kind
        assert not ended
        blocks[piece.block] = [kind, text + piece.text, piece.ends]
    return blocks


def _blocks(message: AssistantMessage) -> list[Any]:
    return [
        ["text", b.text, True] if isinstance(b, TextContent) else ["thinking", b.thinking, True]
        for b in message.content
        if isinstance(b, (TextContent, ThinkingContent))
    ]


@settings(max_examples=150)
@given(written=WRITTEN, data=st.data())
def test_a_late_and_slow_viewer_gets_each_character_once(written, data):
    """The message so far is shared, so it may be ahead of the deltas that wait for the viewer."""
    made = Accumulator(api="t", provider="t", model="t")
    answer, waiting, pieces = GrowingAnswer(), [], []
    attached = data.draw(st.integers(0, 20), label="attached")
    produced = 0

    def take(count: int) -> None:
        for _ in range(count):
            if not waiting:
                break
            event = waiting.pop(0)
            if data.draw(st.booleans(), label="merge"):  # as a slow reader's queue does
                while (
                    waiting
                    and waiting[0].content_index == event.content_index
                    and bool(waiting[0].delta) == bool(event.delta)
                ):
                    newer = waiting.pop(0)
                    event = MessageUpdate(
                        context_id="c",
                        delta=event.delta + newer.delta,
                        content_index=event.content_index,
                        partial=newer.partial,
                    )
            pieces.extend(answer.more(event))

    for kind, text in written:
        events = made.text_delta(text) if kind == "text" else made.thinking_delta(text)
        for event in events:
            produced += 1
            if produced > attached:
                waiting.append(_update(event))
        take(data.draw(st.integers(0, 3), label="read"))
    last = made.done(StopReason.STOP)
    waiting.extend(_update(event) for event in last[:-1] if produced >= attached)
    take(len(waiting))
    final = last[-1].message
    anew, rest = answer.end(final)
    assert not anew
    assert _joined([*pieces, *rest]) == _blocks(final)


def test_deltas_without_the_message_so_far_are_enough():
    """A provider that sends bare deltas, as the examples do, is shown as well."""
    answer = GrowingAnswer()
    pieces = [
        piece
        for delta in ("hello ", "there")
        for piece in answer.more(_update(StreamEvent("text_delta", delta=delta)))
    ]
    anew, rest = answer.end(AssistantMessage("hello there"))
    assert not anew
    assert _joined([*pieces, *rest]) == [["text", "hello there", True]]


def test_merged_thinking_is_read_from_the_message_so_far():
    """A merged delta has no thinking of its own."""
    answer = GrowingAnswer()
    made = Accumulator(api="t", provider="t", model="t")
    first = [_update(event) for event in made.thinking_delta("one ")]
    pieces = [piece for update in first for piece in answer.more(update)]
    made.thinking_delta("two ")
    newest = made.thinking_delta("three ")[0]
    merged = MessageUpdate(context_id="c", partial=newest.partial)
    last = made.thinking_delta("four")[0]
    pieces += [*answer.more(merged), *answer.more(_update(last))]
    assert "".join(piece.text for piece in pieces) == "one two three four"


def test_an_answer_committed_with_other_text_is_sent_again():
    """A cut answer loses its thinking, so a viewer must forget it."""
    answer = GrowingAnswer()
    made = Accumulator(api="t", provider="t", model="t")
    shown = [
        piece
        for events in (made.thinking_delta("hm"), made.text_delta("so"))
        for event in events
        for piece in answer.more(_update(event))
    ]
    assert [(p.kind, p.text) for p in shown if p.text] == [("thinking", "hm"), ("text", "so")]
    anew, pieces = answer.end(AssistantMessage("so"))
    assert anew
    assert _joined(pieces) == [["text", "so", True]]


def test_an_uncommitted_answer_is_dropped_once():
    """After a call of the model that failed, the next answer begins with nothing shown."""
    answer = GrowingAnswer()
    list(answer.more(_update(StreamEvent("text_delta", delta="lost"))))
    assert answer.drop()
    assert not answer.drop()
    anew, pieces = answer.end(AssistantMessage("new"))
    assert not anew
    assert _joined(pieces) == [["text", "new", True]]
