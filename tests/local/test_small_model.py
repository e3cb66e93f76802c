"""The embedded model for real: fetched weights, a child process and its deaths, a grammar."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.ground import trusting
from tests.shares import split

pytest.importorskip("xllamacpp", reason="the extra 'local' is not installed")
pytest.importorskip("openai", reason="the extra 'local' is not installed")

from looopy.errors import ConfigurationError, ContextOverflow, LLMError, LLMUnavailable
from looopy.llm.local import LocalProvider, fetch, is_cached
from looopy.llm.local.child import ChildConfig, acquire, release
from looopy.llm.openai.provider import OpenAIProvider
from looopy.llm.provider import LLMProvider
from looopy.types.message import StopReason, TextContent, ToolResultMessage, UserMessage
from looopy.types.request import LLMRequest, StreamOptions, ToolSpec

SMALL = "smollm2-135m"
N_CTX = 1024
# The first test of a machine fetches 98 MB.
pytestmark = [pytest.mark.local_model, pytest.mark.timeout(300)]
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="looks at processes as Linux has them"
)
ADD = ToolSpec(
    name="add",
    description="Add two integers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


@pytest.fixture(scope="module")
def weights():
    """The small model's weights, fetched once a machine: running these tests is the consent."""
    with trusting():
        return fetch(SMALL, consent=lambda _download: True)


@pytest.fixture(scope="module")
def shared(weights):
    """A user of the child beside every test's own, so that it is started once."""
    shared = acquire(
        ChildConfig(path=weights, name=SMALL, n_ctx=N_CTX, threads=1, prompt_threads=1)
    )
    yield shared
    release(shared)


@pytest.fixture
async def provider(shared):
    provider = LocalProvider(SMALL, n_ctx=N_CTX, threads=1)
    yield provider
    await provider.aclose()


def request_of(*messages, tools=(), system_prompt=""):
    spoken = [UserMessage(one) if isinstance(one, str) else one for one in messages]
    return LLMRequest(messages=spoken, tools=tools, system_prompt=system_prompt)


async def answer(provider, request, **options):
    """Every event of one call; the last one ends it."""
    options = StreamOptions(**{"max_tokens": 40, **options})
    events = [event async for event in provider.stream(request, options)]
    assert events[0].type == "start"
    assert events[-1].type in ("done", "error")
    return events


def gone(descriptor, timeout_s=20):
    """Whether the process behind a pidfd ends within a bound."""
    return bool(select.select([descriptor], [], [], timeout_s)[0])


async def test_a_chat_reply_is_streamed(provider):
    """Letter by letter, with usage, under the provider's and the model's name."""
    assert isinstance(provider, LLMProvider)
    events = await answer(provider, request_of("What is the capital of France?"))
    deltas = [event.delta for event in events if event.type == "text_delta"]
    message = events[-1].message
    assert len(deltas) > 2
    assert "".join(deltas) == message.text != ""
    assert (message.provider, message.model) == ("local", SMALL)
    assert message.usage.output > 0


async def test_a_forced_call_is_valid_whatever_the_model_thinks(provider):
    """The grammar allows nothing but a call of that tool with arguments of its schema."""
    events = await answer(
        provider, request_of("Hello!", tools=[ADD]), tool_choice="required", max_tokens=200
    )
    (call,) = events[-1].message.tool_calls
    assert call.name == "add"
    assert {name: type(value) for name, value in call.arguments.items()} == {"a": int, "b": int}
    assert events[-1].message.stop_reason == StopReason.TOOL_USE


@pytest.mark.long
async def test_a_tool_result_can_be_answered(provider):
    """A whole round: the call, its result, and the reply or one more call."""
    first = await answer(
        provider, request_of("Add 2 and 3.", tools=[ADD]), tool_choice="add", max_tokens=200
    )
    called = first[-1].message
    result = ToolResultMessage(
        tool_call_id=called.tool_calls[0].id, tool_name="add", content=(TextContent("5"),)
    )
    request = request_of("Add 2 and 3.", called, result, tools=[ADD])
    events = await answer(provider, request, tool_choice="none")
    assert events[-1].type == "done"
    assert events[-1].message.text
    assert not events[-1].message.text.startswith("{")


@pytest.mark.long
async def test_a_free_choice_gives_a_reply_or_a_call(provider):
    """The small model is weak, so only the shape is held to."""
    events = await answer(provider, request_of("Add 2 and 3.", tools=[ADD]), max_tokens=60)
    message = events[-1].message
    if events[-1].type == "done":
        assert message.text or message.tool_calls[0].name == "add"


@pytest.mark.long
async def test_schemas_that_no_grammar_can_hold_still_give_a_call(provider):
    """Patterns, recursion and references to nowhere are left to validation."""
    schema = {
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/tree"},
            "nowhere": {"$ref": "https://schemas.example/none.json"},
            "odd": {"type": "string", "pattern": "(?<=x)y", "not": {"const": "z"}},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["kind"],
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}},
    }
    tool = ToolSpec(name="odd-one", description="Odd.", parameters=schema)
    events = await answer(
        provider, request_of("Do it.", tools=[tool]), tool_choice="required", max_tokens=300
    )
    last = events[-1]
    if last.type == "done":  # the model may also ramble on in a string until it is cut
        assert last.message.tool_calls[0].arguments["kind"] in ("a", "b")
    else:
        assert "cut off" in str(last.error)


async def test_an_output_schema_holds_the_text(provider):
    """Structured output comes as JSON text of that schema."""
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    events = await answer(provider, request_of("Is water wet?"), output_schema=schema)
    assert type(json.loads(events[-1].message.text)["yes"]) is bool


async def test_an_answer_cut_at_its_length_is_marked(provider):
    """`max_tokens` reaches the server."""
    events = await answer(provider, request_of("Tell me a long story."), max_tokens=3)
    assert events[-1].message.stop_reason == StopReason.LENGTH
    assert events[-1].message.usage.output == 3


async def test_more_than_the_window_is_an_overflow(provider):
    """With the window's size, so that the loop can compact and try again."""
    events = await answer(provider, request_of("word " * 2 * N_CTX))
    assert isinstance(events[-1].error, ContextOverflow)
    assert not events[-1].error.retryable


async def test_a_killed_child_is_an_error_worth_trying_again_and_the_next_call_works(provider):
    """The call ends as an error event; the child that follows is another process."""
    await provider.prepare()
    child = provider._shared.living()
    events = []
    stream = provider.stream(
        request_of("Count from 1 to 1000 in words."), StreamOptions(max_tokens=900)
    )
    async for event in stream:
        events.append(event)
        if event.type == "text_delta" and len(events) < 5:
            os.kill(child.pid, signal.SIGKILL)
    assert isinstance(events[-1].error, LLMUnavailable)
    assert events[-1].error.retryable
    assert "ended" in str(events[-1].error)
    assert events[-1].message.stop_reason == StopReason.ERROR
    assert events[-1].message.text  # what was said is kept
    again = await answer(provider, request_of("Hello!"))
    assert again[-1].type == "done"
    assert provider._shared.living().pid != child.pid


async def test_a_child_that_died_between_calls_is_replaced_unseen(provider):
    """The next call starts another one."""
    await provider.prepare()
    child = provider._shared.living()
    os.kill(child.pid, signal.SIGKILL)
    await child.ended()
    events = await answer(provider, request_of("Hello!"))
    assert events[-1].type == "done"


async def test_a_reader_that_leaves_does_not_hold_up_the_next(provider):
    """Closing the stream ends the work; the one slot of the server is free again."""
    stream = provider.stream(request_of("Count to 1000."), StreamOptions(max_tokens=900))
    async for event in stream:
        if event.type == "text_delta":
            break
    await stream.aclose()
    events = await answer(provider, request_of("Hello!"))
    assert events[-1].type == "done"


@pytest.mark.long
async def test_many_calls_in_a_row_all_succeed(provider):
    """No call meets a connection that the server is about to close."""
    ends = [(await answer(provider, request_of("Hi"), max_tokens=1))[-1] for _ in range(30)]
    assert [end.error for end in ends] == [None] * 30


async def test_without_the_key_the_server_answers_401(provider):
    """Other users of the computer get nothing from it."""
    await provider.prepare()
    child = provider._shared.living()
    url = f"{await child.address()}/v1/chat/completions"
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).encode()

    def status(**headers):
        headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - http
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return opener.open(request).status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert await asyncio.to_thread(status) == 401
    assert await asyncio.to_thread(status, Authorization="Bearer wrong") == 401
    assert await asyncio.to_thread(status, Authorization=f"Bearer {child.key}") == 200


@linux_only
async def test_only_loopback_listens_and_the_key_shows_nowhere(provider):
    """Every listening socket is of 127.0.0.1; command line and environment are clean."""
    await provider.prepare()
    child = provider._shared.living()
    process = Path(f"/proc/{child.pid}")
    links = {str(link.readlink()) for link in (process / "fd").iterdir()}
    listening = []
    for table in ("tcp", "tcp6"):
        for row in (process / "net" / table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                listening.append(fields[1].partition(":")[0])
    assert listening == ["0100007F"]
    for file in ("cmdline", "environ"):
        assert child.key.encode() not in (process / file).read_bytes()


@linux_only
async def test_providers_of_one_model_share_a_child_until_the_last_lets_go(weights):
    """Each child takes its own memory, so there is one."""
    one, two = (LocalProvider(SMALL, n_ctx=512, threads=1) for _ in range(2))
    await asyncio.gather(one.prepare(), two.prepare())
    child = one._shared.living()
    assert two._shared.living() is child
    descriptor = os.pidfd_open(child.pid)
    try:
        await one.aclose()
        events = await answer(two, request_of("Hello!"), max_tokens=3)
        assert events[-1].type == "done"
        await two.aclose()
        await two.aclose()
        assert gone(descriptor)
    finally:
        os.close(descriptor)


PARENT = """
import asyncio, os, sys
from looopy.llm.local import LocalProvider

async def main():
    provider = LocalProvider("smollm2-135m", n_ctx=512, threads=1)
    await provider.prepare()
    copy = 0
    if sys.argv[1] == "forked":
        copy = os.fork()
        if copy == 0:
            sys.stdin.read()
            os._exit(0)
    print(provider._shared.living().pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@linux_only
@pytest.mark.parametrize("how", split(["alone"], ["forked"]))
def test_the_child_dies_with_its_parent(weights, how):
    """Killed without a chance to clean up; also when a forked copy still holds the child's pipe."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert gone(descriptor)
        finally:
            os.close(descriptor)


def test_the_server_ends_when_its_input_does(weights):
    """That is how a dead parent looks on every system."""
    config = {
        "path": str(weights),
        "name": "x",
        "n_ctx": 256,
        "threads": 1,
        "prompt_threads": 1,
        "key": "k",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "looopy.llm.local.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        server.stdin.write(json.dumps(config).encode() + b"\n")
        server.stdin.flush()
        try:
            assert any(line.startswith(b"ready ") for line in server.stdout)
            server.stdin.close()
            assert server.wait(20) == 0
        finally:
            server.kill()


async def test_a_file_that_is_no_model_is_a_clear_error(tmp_path):
    """Missing, of another kind, or broken: each says so, when it is used and not before."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK..")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    for path, hint in (
        (tmp_path / "none.gguf", "cannot be read"),
        (other, "not a GGUF file"),
        (broken, "could not be loaded"),
    ):
        provider = LocalProvider(path, n_ctx=256, threads=1)
        with pytest.raises(ConfigurationError, match=hint):
            await provider.prepare()
        events = await answer(provider, request_of("Hello!"))
        assert isinstance(events[-1].error, LLMError)
        assert hint in str(events[-1].error)
        await provider.aclose()


@pytest.mark.long
async def test_a_path_serves_any_gguf(weights):
    """Here the small model again, under its file's name."""
    provider = LocalProvider(weights, n_ctx=256, threads=1)
    events = await answer(provider, request_of("Hello!"), max_tokens=2)
    assert events[-1].message.model == weights.stem
    await provider.aclose()


def test_downloaded_weights_are_found(weights):
    """The next process finds it without asking."""
    assert is_cached(SMALL)
    assert weights.stat().st_size == 98_362_432


async def test_the_model_counts_its_own_tokens(provider, monkeypatch):
    """With what `prepare` has loaded: counting has a limit that loading has not."""
    with pytest.raises(LLMUnavailable, match="not been prepared"):
        await provider.count_tokens(["hello"])
    await provider.prepare()
    monkeypatch.setattr(OpenAIProvider, "_new_client", None)
    texts = ["", "hello", "hello world", "hello world " * 50, "\u6771\u4eac\u90fd", "<|im_end|>"]
    counted = await provider.count_tokens(texts)
    assert counted[:2] == [0, 1]
    assert 2 <= counted[2] < counted[4] * 2
    assert 100 <= counted[3] <= 160
    assert await provider.count_tokens(texts[::-1]) == counted[::-1]
