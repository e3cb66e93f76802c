"""Server-sent events, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.llm.sse import SSEDecoder

DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(
    st.lists(st.lists(DATA, min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 5)),
)
def test_events_survive_any_cut_and_any_line_ending(events, ending, cuts):
    """Lines of one event are joined by newlines; odd separators within a line stay."""
    lines = [line for event in events for line in [*(f"data: {d}" for d in event), ""]]
    whole = "".join(line + ending for line in lines).encode()
    decoder = SSEDecoder()
    found = []
    at = 0
    for size in cuts:
        found += decoder.feed(whole[at : at + size])
        at += size
    found += decoder.feed(whole[at:])
    found += decoder.close()
    assert found == ["\n".join(event) for event in events]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b": note\n\nevent: x\nid: 3\nretry: 5\ndata: a\n\n", ["a"]),
        (b"\n\n\n", []),
        (b"data: a\r\n\r\ndata: b\n\n", ["a", "b"]),
        (b"database: a\n\n", []),
        (b"data: last", ["last"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"\xef\xbb\xbf", []),
        (b'data: {"a":1}\ndata: {"b":2}\ndata: [DONE]\n', ['{"a":1}', '{"b":2}', "[DONE]"]),
        (b'data: {"a":\ndata: {"b":2}}\n\n', ['{"a":\n{"b":2}}']),
        (b'{"a":1}\n{"b":2}\n[DONE]\n', ['{"a":1}', '{"b":2}', "[DONE]"]),
        (b' {\n"a":\n1}\n', [' {\n"a":\n1}']),
        (b'[{"a":1},\n{"b":2}]', ['[{"a":1},\n{"b":2}]']),
    ],
)
def test_only_data_counts(sent, expected):
    """Comments and other fields are skipped; a last event needs no blank line."""
    for size in (1, len(sent)):
        decoder = SSEDecoder()
        found = [d for at in range(0, len(sent), size) for d in decoder.feed(sent[at : at + size])]
        assert found + decoder.close() == expected
