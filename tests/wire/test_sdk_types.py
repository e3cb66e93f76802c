"""The judge of requests by the SDKs' types is strict; no wire test sees what it passes over."""

from __future__ import annotations

import pytest
from tests.wire.sdk_types import beyond

USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
GOOD = {
    "completions": {"model": "m", "stream": True, "messages": [USER], "temperature": 1},
    "responses": {"model": "m", "stream": True, "input": [ITEM], "top_logprobs": 2},
    "anthropic": {"model": "m", "stream": True, "messages": [USER], "max_tokens": 9},
}
BAD = {
    "an unknown field": {"nothing": 1},
    "another type": {"model": 5},
    "a boolean for a number": {"max_tokens": True, "max_output_tokens": True},
    "a value of no list": {"tool_choice": "sometimes", "service_tier": "best"},
    "another type within": {"metadata": [1]},
}


@pytest.mark.parametrize("api", GOOD)
def test_a_request_beyond_the_type_of_the_sdk_is_noticed(api):
    """Also within: a field of a message, a value of a union; a good request has no fault."""
    good = GOOD[api]
    assert beyond(good, api) == []
    for fields in BAD.values():
        assert beyond({**good, **fields}, api) != []
    said, kept = ("input", ITEM) if api == "responses" else ("messages", USER)
    for wrong in ({**kept, "extra": 1}, {**kept, "role": "nobody"}, {**kept, "content": [{}]}):
        assert beyond({**good, said: [wrong]}, api) != []
    del good["model" if api != "responses" else "stream"]
    assert beyond(good, api) != []
