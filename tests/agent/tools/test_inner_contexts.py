"""The context of an agent that is a tool, while others change the context that it works for."""

from __future__ import annotations

from tests.agent.kit import add

from looopy import Agent, AuthContext, tool
from looopy.stores import export_contexts, import_contexts
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.state import Outcome

ADA, BOB = AuthContext("ada"), AuthContext("bob")
ASKS = tool_call("helper", prompt="Pay 7.")


class Till:
    """A tool that a person has to approve, and what was paid with it."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(needs_approval=True, effects="external")
        def pay(n: int) -> str:
            """Pay."""
            self.paid.append(n)
            return f"paid {n}"

        self.tool = pay


def helping(replies, till: Till):
    """A tool behind which agents pay."""
    agent = Agent(
        "template", llm_provider=ScriptedProvider(replies), tools=[till.tool], agent_name="helper"
    )
    return agent.as_tool()


async def inner(stores, outer: str) -> list[str]:
    """The contexts of the agents that worked for *outer*."""
    return [
        one.context_id
        for one in await stores.state.list()
        if one.context_id.startswith(f"{outer}:")
    ]


async def waiting(make_agent, stores, till: Till, *replies) -> Agent:
    """An agent in whose third turn an inner call waits for an approval; the second was Bob's."""
    first = [text("hello, Ada"), text("hello, Bob"), ASKS, *replies]
    asks = helping([tool_call("pay", n=7), text("It is paid.")], till)
    agent = await make_agent(first, tools=[asks, add], stores=stores)
    for said, who in (("I am Ada", ADA), ("I am Bob", BOB), ("pay 7", ADA)):
        result = await agent.execute_turn(said, who)
    assert (result.outcome, till.paid) == (Outcome.INPUT_REQUIRED, [])
    return agent


async def test_an_approval_outlasts_the_redaction_of_another_actor(make_agent, stores):
    """The outer context counts as another one after it, and the call is still the same."""
    till = Till()
    await waiting(make_agent, stores, till)
    (context_id,) = await inner(stores, "ada")
    assert (await stores.contexts.erase_person("bob")).redacted_ids == ("ada",)
    asks = helping([text("It is paid.")], till)
    agent = await make_agent([text("done")], tools=[asks, add], stores=stores)
    (request,) = agent.state.pending
    result = await agent.execute_turn(None, ADA, inputs={request.request_id: True})
    assert (result.text, till.paid) == ("done", [7])
    assert await inner(stores, "ada") == [context_id]
    await stores.state.save("ada:helper:forged", {"works_for": "ada/3/call_1"}, version=0)
    gone = await stores.contexts.erase("ada")
    assert gone.context_ids == (context_id, "ada")
    assert await inner(stores, "ada") == ["ada:helper:forged"]


async def test_a_fork_asks_an_agent_of_its_own(make_agent, memory_stores):
    """It asks again. The context itself, rewound to the question, gets what it was told before."""
    till = Till()
    agent = await waiting(make_agent, memory_stores, till, text("done"), text("again"))
    (context_id,) = await inner(memory_stores, "ada")
    await agent.fork("eve")
    asks = helping([tool_call("pay", n=8)], till)
    fork = await make_agent([text("ok")], tools=[asks, add], stores=memory_stores, context_id="eve")
    assert (await fork.execute_turn(None, ADA)).outcome is Outcome.INPUT_REQUIRED
    assert [one.args for one in fork.state.pending] == [{"n": 8}]
    assert len(await inner(memory_stores, "eve")) == 1
    (request,) = agent.state.pending
    answered = await agent.execute_turn(None, ADA, inputs={request.request_id: True})
    assert (answered.text, till.paid) == ("done", [7])
    await agent.rewind(answered.turn)
    again = await make_agent(
        [text("still done")], tools=[helping([], till), add], stores=memory_stores
    )
    assert (await again.execute_turn(None, ADA)).text == "still done"
    assert [m.text for m in await again.get_messages()][-2:] == ["It is paid.", "still done"]
    assert (till.paid, await inner(memory_stores, "ada")) == ([7], [context_id])


async def test_an_approval_is_asked_again_after_an_import_under_a_new_id(make_agent, memory_stores):
    """The copy is answered, and pays once; the original waits as before."""
    till = Till()
    await waiting(make_agent, memory_stores, till)
    archive = export_contexts(memory_stores, "ada")
    await import_contexts(memory_stores, archive, new_ids={"ada": "eve"}, keep_owners=True)
    asks = helping([text("It is paid.")], till)
    agent = await make_agent(
        [text("done")], tools=[asks, add], stores=memory_stores, context_id="eve"
    )
    (request,) = (await agent.execute_turn(None, ADA)).pending
    result = await agent.execute_turn(None, ADA, inputs={request.request_id: True})
    assert (result.text, till.paid) == ("done", [7])
    for outer, turns in (("ada", 1), ("eve", 3)):
        (context_id,) = await memory_stores.contexts.inner(outer)
        assert [context_id] == await inner(memory_stores, outer)
        assert len(await memory_stores.journal.turns(context_id)) == turns


async def test_a_turn_that_is_saved_later_finds_its_agent(make_agent, memory_stores):
    """The outer context is not stored yet when the call begins, and is when it is answered."""
    till = Till()
    asks = helping([tool_call("pay", n=7), text("It is paid.")], till)
    agent = await make_agent(
        [ASKS, text("done")], tools=[asks], stores=memory_stores, auto_save=False
    )
    await agent.execute_turn("pay 7", ADA)
    await agent.save_state()
    (request,) = agent.state.pending
    result = await agent.execute_turn(None, ADA, inputs={request.request_id: True})
    assert (result.text, till.paid) == ("done", [7])
    assert len(await memory_stores.contexts.inner("ada")) == 1
