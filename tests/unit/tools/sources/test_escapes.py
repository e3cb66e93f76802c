"""Half a character in the JSON of a server becomes U+FFFD, and no other byte changes."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from looopy.tools.sources.escapes import whole_escapes, whole_lines

TEXT = st.text(st.sampled_from('a\\ud83\u00e9\n\r\U0001f600\ud83d\ude00\udce9"'), max_size=20)


def whole(text):
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@given(TEXT, st.booleans())
def test_lone_surrogates_among_escapes_are_replaced(text, upper):
    """Text that only looks like one stays, as after a backslash."""
    said = json.dumps(text)
    if upper:
        said = said.replace("\\ud83d", "\\uD83D")
    assert json.loads(whole_escapes(said.encode())) == whole(text)


@given(st.text())
def test_json_without_lone_surrogates_is_not_touched(text):
    """It is the same object, or has the same bytes."""
    data = json.dumps(text).encode()
    assert whole_escapes(data) == data


async def _chunks(data, cuts):
    for begin, end in pairwise([0, *cuts, len(data)]):
        yield data[begin:end]


@given(st.lists(TEXT, min_size=1, max_size=3), st.data(), st.sampled_from(["\n", "\r\n", "\r"]))
async def test_events_are_repaired_at_any_cut(texts, data, end):
    """Each line whole, as soon as it has ended; a last one without an end, too."""
    stream = end.join(f"data: {json.dumps(text)}" for text in texts).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=5)))
    most = data.draw(st.sampled_from([0, 10_000]))
    read = b"".join([chunk async for chunk in whole_lines(_chunks(stream, cuts), most)])
    if most:
        said = [json.loads(line.removeprefix(b"data: ")) for line in read.splitlines()]
        assert said == [whole(text) for text in texts]
    else:
        assert len(read) == len(stream)


async def test_line_is_passed_on_once_it_has_ended():
    """A reader does not wait for the next line."""
    chunks = _chunks(b"data: 1\n\ndata: 2", [9])
    lines = whole_lines(chunks, 100)
    assert await anext(lines) == b"data: 1\n\n"
    assert await anext(lines) == b"data: 2"
