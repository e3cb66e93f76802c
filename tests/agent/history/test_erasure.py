"""An agent that had a history in memory does not know it any more once it was erased."""

from __future__ import annotations

import pytest

from looopy import Agent, AuthContext
from looopy.errors import AgentBusy, CommitsLost, StoreConflict
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import ArtifactTools
from looopy.types.artifact import ARTIFACT_TOOLS

WORDS = "canary-of-bob"


def _sent(model):
    return [repr(request.messages) for request in model.requests]


@pytest.mark.parametrize("fresh", [True, False])
async def test_an_agent_forgets_what_a_guest_said(stores, fresh):
    """Whether it has made the context or read it: the next request and summary are without it."""
    model = ScriptedProvider([text("hi"), text(f"yes, {WORDS}"), text("fine"), text("again")])
    agent = Agent("ada", llm_provider=model, stores=stores)
    await agent.start()
    await agent.execute_turn("hello", AuthContext("ann"))
    if not fresh:
        await stores.contexts.tag("ada", add=["seen"])
        await agent.refresh()
    await agent.execute_turn(f"remember {WORDS}", AuthContext("bob"))
    await agent.execute_turn("go on", AuthContext("ann"))
    found = await stores.contexts.erase_person("bob")
    assert (found.redacted_ids, found.redacted) == (("ada",), 2)
    await agent.execute_turn("and now?", AuthContext("ann"))
    assert [WORDS in said for said in _sent(model)] == [False, True, True, False]
    assert "[erased]" in _sent(model)[-1]
    assert WORDS not in repr(await agent.get_messages())
    await agent.shutdown()


async def test_artifacts_made_from_the_file_of_a_guest_are_erased(stores):
    """`append_file_chunk` makes the next version of all bytes; an own file begins anew."""

    def writes(name, **args):
        return [tool_call(name, artifact_id="notes", **args), text("done")]

    first = {"content": WORDS * 9000, "description": WORDS}
    steps = [text("hi"), *writes("create_file_artifact", **first)]
    steps += writes("append_file_chunk", chunk="and ann") + writes("get_artifact")
    steps += writes("create_file_artifact", content="ann", override=True)
    steps += writes("append_file_chunk", chunk=" alone")
    model = ScriptedProvider(steps)
    async with Agent("ada", llm_provider=model, stores=stores, tools=[ArtifactTools()]) as agent:
        for actor in ("ann", "bob", "ann", "ann", "ann", "ann"):
            (await agent.execute_turn("go on", AuthContext(actor))).raise_for_outcome()
        found = await stores.contexts.erase_person("bob")
        assert found.redacted == 4 + 4
        versions = await stores.artifacts.versions("ada", "notes")
        held = [await stores.artifacts.load("ada", "notes", one.version) for one in versions]
        assert held == [b"", b"", b"ann", b"ann alone"]
        assert WORDS not in repr([versions, await agent.get_messages()])
    assert {tool.spec.name for tool in ArtifactTools().list_tools()} == ARTIFACT_TOOLS


async def test_an_agent_of_an_erased_context_begins_again(stores):
    """It kept the history in memory, and nothing of that reaches the model or the store."""
    model = ScriptedProvider([text(f"yes, {WORDS}"), text("who?")])
    agent = Agent("ada", llm_provider=model, stores=stores)
    await agent.start()
    await agent.execute_turn(f"remember {WORDS}", AuthContext("bob"))
    assert (await stores.contexts.erase_person("bob")).contexts == 1
    result = await agent.execute_turn("hello", AuthContext("ann"))
    assert (result.turn, WORDS in _sent(model)[-1]) == (1, False)
    assert WORDS not in repr(await stores.messages.list("ada"))
    await agent.shutdown()


async def test_an_unsaved_turn_is_not_stored_after_an_erasure(stores):
    """A deferred agent that had loaded the context loses its place, not the erasure."""
    model = ScriptedProvider([text("hi"), text("later")])
    first = Agent("ada", llm_provider=model, stores=stores)
    async with first:
        await first.execute_turn(f"remember {WORDS}", AuthContext("bob"))
    deferred = Agent("ada", llm_provider=model, stores=stores, auto_save=False)
    await deferred.start()
    await deferred.execute_turn("and this", AuthContext("bob"))
    await stores.contexts.erase_person("bob")
    with pytest.raises(StoreConflict):
        await deferred.save_state()
    assert await stores.state.load("ada") is None
    with pytest.raises(StoreConflict):
        await deferred.shutdown()
    assert await stores.state.load("ada") is None


async def test_a_turn_whose_context_is_erased_by_force_writes_nothing_more(stores):
    """Its agent learns of it at the next commit, and the text is not written."""

    async def erase(_request):
        with pytest.raises(AgentBusy):
            await stores.contexts.erase_person("bob")
        await stores.contexts.erase_person("bob", force=True)
        return text(f"yes, {WORDS}")

    agent = Agent("ada", llm_provider=ScriptedProvider(erase, repeat=True), stores=stores)
    await agent.start()
    with pytest.raises(CommitsLost):
        (await agent.execute_turn(f"remember {WORDS}", AuthContext("bob"))).raise_for_outcome()
    assert await stores.state.load("ada") is None
    await agent.shutdown()
