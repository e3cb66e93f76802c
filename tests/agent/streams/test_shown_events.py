"""A tool shows what somebody else does for it: seen in the turn's stream, stored nowhere here."""

from __future__ import annotations

import asyncio

from tests.agent.kit import collect

from looopy import AuthContext, ToolContext, TurnContext, tool
from looopy.agent.broadcast import Broadcast
from looopy.testing import text, tool_call
from looopy.types.event import IterationStart, MessageEnd, MessageUpdate, TurnEnd, TurnError
from looopy.types.message import AssistantMessage, StopReason, UserMessage
from looopy.types.state import AgentStatus, Outcome


def elsewhere(kind, **fields):
    """An event of another context."""
    return kind(context_id="other", turn=7, iteration=9, **fields)


@tool(effects="none")
async def borrow(context: ToolContext) -> str:
    """Show what another agent did, to its end."""
    context.show(elsewhere(MessageEnd, message=UserMessage("not ours"), seq=3, position=4))
    context.show(elsewhere(MessageUpdate, delta="hm", path=("agent:b", "agent:c")))
    context.show(elsewhere(TurnError, code="error", text="theirs"))
    end = elsewhere(TurnEnd, outcome=Outcome.FAILED, stop_reason=StopReason.ERROR)
    context.show(end)
    await asyncio.sleep(0)
    return "done"


async def test_shown_events_have_a_path_and_no_number(make_agent, memory_stores):
    """They stay what they were but for that, and the turn is none the wiser."""
    agent = await make_agent([tool_call("borrow"), text("ok")], tools=[borrow])
    statuses = []
    agent.subscribe(lambda e: statuses.append(agent.state.status) if e.path else None)
    stream = agent.execute_turn("go")
    events = await collect(stream)
    shown = [event for event in events if event.path]
    assert [(e.type, e.path, e.seq) for e in shown] == [
        ("message_end", ("tool:borrow",), None),
        ("message_update", ("agent:b", "agent:c"), None),
        ("error", ("tool:borrow",), None),
        ("turn_end", ("tool:borrow",), None),
    ]
    assert {(e.context_id, e.turn, e.iteration) for e in shown} == {("other", 7, 9)}
    assert events[-1].type == "turn_end"
    assert events[-1].path == ()
    assert statuses == [AgentStatus.BUSY] * 4
    result = await stream
    assert (result.outcome, result.error, len(result.iterations)) == (Outcome.COMPLETED, None, 2)
    assert "not ours" not in [m.text for m in await agent.get_messages()]
    stored = await agent._core.resources.stores.journal.events("ada", after=0, limit=100)
    assert not [event for event in stored if event.path]


async def test_a_shown_event_holds_no_credential(make_agent):
    """What a tool shows is searched like all that a turn says."""

    @tool(effects="none")
    async def leak(context: ToolContext) -> str:
        """Show a secret."""
        secret = context.auth_context.credentials["token"]
        context.show(elsewhere(MessageUpdate, delta=f"it is {secret}"))
        context.show(elsewhere(MessageEnd, message=AssistantMessage(f"it is {secret}")))
        return "done"

    agent = await make_agent([tool_call("leak"), text("ok")], tools=[leak])
    user = AuthContext("u1", credentials={"token": "tok-4711-abcdef"})
    shown = [e for e in await collect(agent.execute_turn("go", user)) if e.path]
    assert len(shown) == 2
    assert "tok-4711-abcdef" not in repr(shown)


async def test_waiting_deltas_of_two_agents_are_not_merged():
    """A slow reader of many loses granularity within one alone."""
    broadcast = Broadcast()
    reading = broadcast.read()
    broadcast.push(IterationStart(context_id="a"))
    await anext(reading)
    for number in range(3000):
        owner = number % 2
        path = ("agent:b",) if owner else ()
        broadcast.push(MessageUpdate(context_id="ba"[owner], path=path, delta="ab"[owner]))
    broadcast._done = True
    said = {(): "", ("agent:b",): ""}
    async for event in reading:
        said[event.path] += event.delta
    assert said == {(): "a" * 1500, ("agent:b",): "b" * 1500}


async def test_the_turn_decides_whether_a_tool_is_offered(make_agent):
    """`is_enabled` may look at the turn's context, in each iteration."""
    seen: list[TurnContext] = []

    def for_admins(context: TurnContext) -> bool:
        seen.append(context)
        return context.metadata.get("admin", False)

    @tool(is_enabled=for_admins)
    def reset() -> str:
        """Reset."""
        return "reset"

    agent = await make_agent(
        [tool_call("reset"), text("no"), tool_call("reset"), text("yes")], tools=[reset]
    )
    provider = agent._core.resources.provider
    refused = await agent.execute_turn("reset!")
    assert "There is no tool named 'reset'" in refused.iterations[0].tool_results[0].text
    done = await agent.execute_turn("reset!", metadata={"admin": True})
    assert done.iterations[0].tool_results[0].text == "reset"
    assert [len(request.tools) for request in provider.requests] == [0, 0, 1, 1]
    assert {context.context_id for context in seen} == {"ada"}
