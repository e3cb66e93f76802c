"""A turn that is over is freed at once: nothing of it waits for the garbage collector."""

import asyncio
import gc
import logging

import pytest

from looopy import Agent, AuthContext, ToolContext, open_stores, tool
from looopy.testing import ScriptedProvider, text, tool_call

_TURNS = 100


@tool
async def look(key: str) -> str:
    """Look a key up."""
    return key


def answer(request):
    """A tool call, then a text."""
    last = request.messages[-1]
    return tool_call("look", key="a") if last.role == "user" else text("b")


async def left_by(turn):
    """
    How many objects wait for the collector after `_TURNS` of these.

    The whole process is counted, so a cycle of somebody else may be among them; one of each turn
    has two objects at least.
    """
    for _ in range(3):
        await turn()
    gc.collect()
    gc.disable()
    try:
        for _ in range(_TURNS):
            await turn()
        return gc.collect()
    finally:
        gc.enable()


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

            assert await left_by(turn) < _TURNS


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

            assert await left_by(turn) < _TURNS
