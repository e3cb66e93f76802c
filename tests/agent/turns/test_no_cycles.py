"""A turn that is over is freed at once: nothing of it waits for the garbage collector."""

import asyncio
import gc
import logging
from contextlib import contextmanager

import pytest
from starlette.requests import Request

from looopy import Agent, AuthContext, LoopConfig, ToolContext, open_stores, sync, tool
from looopy.errors import LooopyError, StorageFull, ValueRefused
from looopy.server.gate.body import read_json
from looopy.server.gate.limits import Limits
from looopy.server.problems import Problem
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import user
from looopy.tools.gather import gather_tools

_TURNS = 40


@tool
async def look(key: str) -> str:
    """Look a key up."""
    return key


def answer(request):
    """A tool call, then a text."""
    last = request.messages[-1]
    return tool_call("look", key="a") if last.role == "user" else text("b")


@contextmanager
def few_left():
    """
    Check that fewer than `_TURNS` objects of the block wait for the collector.

    Nothing is promoted while it is disabled, so the youngest generation holds all that the block
    made. The whole process is counted: a cycle of other code may be among them, and one of each
    turn has two objects at least.
    """
    gc.collect(0)
    gc.disable()
    try:
        yield
        assert gc.collect(0) < _TURNS
    finally:
        gc.enable()


async def check_freed(turn):
    """Run *turn* some times, and check what is left of it."""
    for _ in range(3):
        await turn()
    with few_left():
        for _ in range(_TURNS):
            await turn()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_turn_leaves_no_reference_cycle(tmp_path, url, streamed):
    """
    Its credentials go with it, and a process of many turns is not slowed down by collections.
    """
    where = url if url == "memory:" else f"sqlite:///{tmp_path / 'x.db'}"
    async with open_stores(where) as stores:
        agent = Agent("ada", llm_provider=ScriptedProvider(answer), tools=[look], stores=stores)
        async with agent:

            async def turn():
                stream = agent.execute_turn(
                    "hi", AuthContext("ada", credentials={"key": "s3cret-key"})
                )
                if streamed:
                    assert [event async for event in stream]
                assert (await stream).text == "b"

            await check_freed(turn)


def breaks(request):
    """Raise what is no `Exception`."""
    raise asyncio.CancelledError


@tool
def fail(key: str) -> str:
    """Fail in a thread."""
    raise ValueError(key)


@tool
async def ask(key: str, context: ToolContext) -> str:
    """Ask the user."""
    return await context.ask(key)


def calls(request):
    """A call of the only tool, then a text."""
    last = request.messages[-1]
    return tool_call(request.tools[0].name, key="a") if last.role == "user" else text("b")


@pytest.mark.parametrize(
    ("script", "used", "outcome"),
    [(breaks, look, "failed"), (calls, fail, "completed"), (calls, ask, "input_required")],
)
async def test_an_error_of_a_turn_leaves_no_reference_cycle(caplog, script, used, outcome):
    """No frame that raises an error still holds it: its traceback holds the frame."""
    caplog.set_level(logging.CRITICAL, "looopy")  # a record would keep the error
    async with open_stores("memory:") as stores:
        agent = Agent("ada", llm_provider=ScriptedProvider(script), tools=[used], stores=stores)
        async with agent:

            async def turn():
                auth = AuthContext("ada", credentials={"key": "s3cret-key"})
                assert (await agent.execute_turn("hi", auth)).outcome == outcome

            await check_freed(turn)


@tool
async def wait(key: str) -> str:
    """Wait for the end of the turn."""
    await asyncio.Event().wait()
    return key


class Prompting:
    """A source whose prompts fail."""

    async def list_tools(self):
        return []

    async def call_tool(self, name, arguments, context):
        raise NotImplementedError

    async def system_prompts(self, context):
        raise ValueError(context.context_id)


def once(request):
    """A call of the tool that waits."""
    return tool_call("wait", key="a")


@pytest.mark.parametrize("end", ["cancelled", "deadline", "prompts"])
async def test_a_turn_that_is_broken_off_leaves_no_reference_cycle(caplog, end):
    """By its caller or its time while a tool runs, or by prompts that fail."""
    caplog.set_level(logging.CRITICAL, "looopy")
    config = LoopConfig(turn_timeout_s=0.001 if end == "deadline" else 60)
    tools = [Prompting()] if end == "prompts" else [wait]
    async with open_stores("memory:") as stores:
        agent = Agent(
            "ada",
            llm_provider=ScriptedProvider(once),
            tools=tools,
            stores=stores,
            loop_config=config,
        )
        async with agent:

            async def turn():
                auth = AuthContext("ada", credentials={"key": "s3cret-key"})
                stream = agent.execute_turn("hi", auth)
                async for event in stream:
                    if event.type == "tool_execution_start" and end == "cancelled":
                        stream.cancel()
                assert (await stream).outcome == ("cancelled" if end == "cancelled" else "failed")

            await check_freed(turn)


async def test_a_source_that_fails_leaves_no_reference_cycle():
    """Its error passes through the frames that gather the tools."""

    class Failing(Prompting):
        async def list_tools(self):
            raise GeneratorExit("no tools")

    async def gather():
        with pytest.raises(LooopyError, match="no tools"):
            await gather_tools([Failing()])

    await check_freed(gather)


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_an_erasure_that_fails_leaves_no_reference_cycle(tmp_path, monkeypatch, url):
    """Several contexts are erased at once; the error of one is raised after the others."""
    where = url if url == "memory:" else f"sqlite:///{tmp_path / 'x.db'}"
    async with open_stores(where) as stores:
        await stores.messages.append("c", [user("hi")])

        async def full(context_id, terms):
            raise StorageFull("full")

        monkeypatch.setattr(stores.contexts, "erase_rows", full)

        async def erase():
            with pytest.raises(StorageFull):
                await stores.contexts.erase("c")

        await check_freed(erase)


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"a": "\\u0000"}', b'{"a":' * 200, None])
async def test_a_refused_body_leaves_no_reference_cycle(body):
    """Invalid JSON, bytes or values, too many levels, or a client that left."""
    headers = [(b"content-type", b"application/json")]

    async def receive():
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body}

    async def read():
        with pytest.raises(Problem):
            await read_json(Request({"type": "http", "headers": headers}, receive), Limits())

    await check_freed(read)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refused_turn_of_the_blocking_api_leaves_no_reference_cycle(streamed):
    """The error passes from the thread of the event loop to the caller's."""
    model = ScriptedProvider(lambda _: text("b"), repeat=True)
    with sync.Agent("ada", llm_provider=model, stores="memory:") as agent:

        def turn():
            begin = agent.stream_turn if streamed else agent.execute_turn
            with pytest.raises(ValueRefused):
                list(begin("hi", metadata={1: 2}))

        for _ in range(3):
            turn()
        with few_left():
            for _ in range(_TURNS):
                turn()
