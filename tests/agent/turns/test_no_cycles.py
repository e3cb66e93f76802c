"""A turn that is over is freed at once: nothing of it waits for the garbage collector."""

import gc

import pytest

from looopy import Agent, AuthContext, open_stores, tool
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

            for _ in range(3):
                await turn()
            gc.collect()
            gc.disable()
            try:
                for _ in range(_TURNS):
                    await turn()
                # The whole process is counted, so a cycle of somebody else may be among them; one
                # of each turn has two objects at least.
                assert gc.collect() < _TURNS
            finally:
                gc.enable()
