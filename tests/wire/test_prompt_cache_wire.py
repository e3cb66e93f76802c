"""Each request on the wire begins with the bytes of the one before it, so a prompt cache hits."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from contextlib import asynccontextmanager

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.three import APIS, provider, says, server

from looopy import Agent, ImageContent, TextContent, UserMessage

PNG = "iVBORw0KGgo="
MARK = b',"cache_control":{"type":"ephemeral"}'  # it is beside the text, and no part of the prefix
CLOSING = b"]}"  # of the last message, whatever its form


def calls(api: str, *ids: str):
    """An answer with thoughts, where the format has them, a text and calls of `add`."""
    arguments = '{"b": 3, "a": 2}'  # not in the order of the schema
    if api == "anthropic":
        a = fake_anthropic
        made = (a.calls(i, one, "add", arguments) for i, one in enumerate(ids, 2))
        return a.answers(a.thinks(0, "hm 🙂"), a.text(1, "I add."), *made, reason="tool_use")
    if api == "responses":
        r = fake_responses
        made = (r.calls(i, one, "add", arguments) for i, one in enumerate(ids, 2))
        return r.answers(r.reasons(0, "hm 🙂"), r.speaks(1, "I add."), *made)
    chunk = fake_openai.chunk
    made = [
        {"index": i, "id": one, "function": {"name": "add", "arguments": arguments}}
        for i, one in enumerate(ids)
    ]
    pieces = [chunk({"content": "I add."}), chunk({"tool_calls": made}), chunk(finish="tool_calls")]
    return fake_openai.Answer(pieces=[*pieces, fake_openai.DONE])


def add(a: int, b: int) -> int:
    """Add two numbers, with an é."""
    return a + b


def said(api: str, received) -> tuple[bytes, bytes]:
    """The conversation of a request, without its closing brackets; and all the rest."""
    name = b'"input":' if api == "responses" else b'"messages":'
    raw = received.raw.replace(MARK, b"")
    start = raw.index(name) + len(name)
    depth, quoted, escaped = 0, False, False
    for place in range(start, len(raw)):
        byte = raw[place]
        if quoted:
            escaped, quoted = byte == 92 and not escaped, byte != 34 or escaped
            continue
        quoted = byte == 34
        depth += (byte in b"[{") - (byte in b"]}")
        if depth == 0:
            break
    return raw[start:place].rstrip(CLOSING), raw[:start] + raw[place:]


def assert_extends(api: str, requests) -> None:
    """Each request repeats the one before it, byte by byte, and says more."""
    found = [said(api, one) for one in requests]
    for (before, frame), (after, next_frame) in itertools.pairwise(found):
        assert after.startswith(before)
        assert len(after) > len(before)
        assert next_frame == frame  # tools, prompt, model, options


@asynccontextmanager
async def opened(api: str, served, url: str, **options):
    """An agent that shares nothing with others but the database."""
    made = provider(api, base_url=served.url)
    options = {"tools": [add], "system_prompt": "Be brief; say naïve.", **options}
    try:
        async with Agent("ada", llm_provider=made, stores=url, **options) as agent:
            yield agent
    finally:
        await made.aclose()


@pytest.fixture
def url(tmp_path):
    """A database of the test's own."""
    return f"sqlite:///{tmp_path}/chat.db"


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    """The fake servers take any."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")


@APIS
async def test_each_request_extends_the_one_before(api, url):
    """Within a turn, from turn to turn, and when another agent opens the context."""
    script = [
        *(calls(api, "c1"), calls(api, "c2", "c3"), says(api, "five")),
        *(says(api, "a pixel"), says(api, "\u2028 odd \u0000 and \U0001f600 text ")),
        *(calls(api, "c4"), says(api, "five again"), says(api, "bye")),
    ]
    picture = UserMessage([TextContent("What is this?"), ImageContent(PNG)])
    async with server(api, *script) as served:
        async with opened(api, served, url) as agent:
            await agent.execute_turn("2 + 3?")
        async with opened(api, served, url) as agent:
            await agent.execute_turn(picture)
            await agent.execute_turn("and?")
        async with opened(api, served, url) as agent:
            await agent.execute_turn("again", metadata={"n": 1})
            await agent.execute_turn("bye")
        assert len(served.received) == 8
        assert_extends(api, served.received)


@APIS
async def test_a_turn_that_was_cut_off_is_continued_with_the_same_bytes(api, url):
    """The tool had run; the process that continues the turn repeats what was sent."""
    silent = fake_openai.Answer(gate=asyncio.Event())
    script = [says(api, "hi"), calls(api, "c1"), silent]
    async with server(api, *script) as served:
        async with opened(api, served, url) as agent:
            await agent.execute_turn("hello")
            turn = agent.execute_turn("2 + 3?")
            while len(served.received) < 3:
                served.asked.clear()
                await served.asked.wait()
            await agent.shutdown(cancel=True)
            await turn
        served.answers = [says(api, "five"), says(api, "bye")]
        async with opened(api, served, url) as agent:
            await agent.execute_turn(None)
            await agent.execute_turn("bye")
        *sent, repeated, last = served.received
        assert repeated.raw == sent[-1].raw
        assert_extends(api, [*sent, last])


CHILD = """
import asyncio, sys
from looopy import Agent
from looopy._failpoints import arm
from tests.wire.test_prompt_cache_wire import opened, add
from tests.wire.three import provider

class Served:
    url = sys.argv[1]

async def main():
    async with opened("completions", Served, sys.argv[2]) as agent:
        arm(sys.argv[3])
        await agent.execute_turn(None if agent.state.interrupted_turn else "2 + 3?")

asyncio.run(main())
"""


@pytest.mark.long
async def test_the_next_process_extends_the_request_of_a_killed_one(url):
    """Killed after the tool's result was stored, and after the answer was."""
    api = "completions"
    script = [calls(api, "c1"), says(api, "five"), calls(api, "c2"), says(api, "five")]
    async with server(api, *script) as served:
        for place in ("B7:2", "B14"):
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CHILD, served.url, url, place),
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert await child.wait() == -signal.SIGKILL
        async with opened(api, served, url) as agent:
            await agent.execute_turn("again")
        assert len(served.received) == 4
        assert_extends(api, served.received)
