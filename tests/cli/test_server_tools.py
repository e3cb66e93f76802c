"""Tools that the provider runs, as `looopy chat` shows them."""

from __future__ import annotations

import io

from looopy import ServerToolEnd, ServerToolStart
from looopy.cli.render import TextRenderer
from looopy.cli.terminal import Terminal


def test_a_tool_of_the_provider_has_a_line():
    """With its arguments, whenever the provider says them, and a failure."""
    out = io.StringIO()
    renderer = TextRenderer(Terminal(out=out, err=out, env={}))
    known, asked = {"context_id": "c", "tool_name": "web_search"}, {"query": "sun\x1b[2J"}
    for event in (
        ServerToolStart(**known, tool_call_id="1", args=asked),
        ServerToolEnd(**known, tool_call_id="1", args=asked),
        ServerToolStart(**known, tool_call_id="2"),
        ServerToolEnd(**known, tool_call_id="2", args={"query": "x"}, is_error=True),
        ServerToolEnd(**known, tool_call_id="3"),
    ):
        renderer.show(event)
    text = out.getvalue()
    assert "\x1b" not in text
    first, second, third = text.splitlines()
    assert first.startswith("[web_search query=")
    assert first.endswith("... done]")
    assert second == '[web_search ... query="x" ... failed]'
    assert third == "[web_search ... done]"
