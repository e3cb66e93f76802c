"""Many calls that wait, answered in any order, in any parts, by any agent: seeded at random."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.agent.kit import add, assert_valid, assert_whole

from looopy import ToolContext, tool
from looopy.agent.plan import DENIED, UNANSWERED
from looopy.errors import InputNotFound
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import client_tool, request_input
from looopy.types.message import ToolResultMessage
from looopy.types.state import Outcome, PendingKind

RAN: Counter[str] = Counter()


@tool(needs_approval=lambda arguments, _: arguments["n"] % 2 == 0)
async def pay(n: int) -> str:
    """Pay; even sums are asked about."""
    RAN[f"pay {n}"] += 1
    return f"pay {n}"


@tool(needs_approval=True, parallel=True)
async def send(n: int, context: ToolContext) -> str:
    """Send, once it is allowed and said to whom and when."""
    whom = await context.ask("To whom?")
    when = await context.ask("When?", options=["now", "later"])
    RAN[f"send {n}"] += 1
    return f"send {n} {whom} {when}"


TOOLS = [pay, send, add, request_input, client_tool("scan", "Scan.")]
KINDS = ("pay", "send", "add", "request_input", "scan")


def a_call(name, n):
    """One of them."""
    if name == "add":
        return tool_call("add", a=n, b=1)
    if name == "request_input":
        return tool_call("request_input", prompt=f"{n}?", schema={"type": "integer"})
    return tool_call(name) if name == "scan" else tool_call(name, n=n)


def an_answer(rng, request):
    """One that fits."""
    if request.kind is PendingKind.APPROVAL:
        return rng.random() < 0.7
    if request.kind is PendingKind.CLIENT_TOOL:
        return {"is_error": rng.random() < 0.3, "content": "scanned"}
    if request.options:
        return rng.choice(request.options)
    return rng.randrange(9) if request.schema else "Eva"


@pytest.mark.parametrize("seed", range(16))
async def test_answers_in_any_order_and_parts(make_agent, stores, seed):
    """Each call runs once or never; each has one result; no answer is asked for twice."""
    rng = random.Random(seed)
    RAN.clear()
    calls = [(rng.choice(KINDS), n) for n in range(rng.randrange(2, 7))]
    script = ScriptedProvider([tuple(a_call(*c) for c in calls), text("done"), text("done")])
    agent = await make_agent(script, tools=TOOLS, stores=stores)
    result = await agent.execute_turn("go")
    denied, cancelled = set(), set()
    while result.pending:
        if rng.random() < 0.5:
            agent = await make_agent(script, tools=TOOLS, stores=stores)
        assert agent.state.pending == result.pending
        assert result.outcome is Outcome.INPUT_REQUIRED
        chosen = rng.sample(result.pending, rng.randrange(1, len(result.pending) + 1))
        answers = {p.request_id: an_answer(rng, p) for p in chosen}
        denied |= {
            p.tool_call_id
            for p in chosen
            if p.kind is PendingKind.APPROVAL and answers[p.request_id] is False
        }
        say = "enough" if rng.random() < 0.1 else None
        if say is not None:
            cancelled |= {p.tool_call_id for p in result.pending if p not in chosen}
        result = await agent.execute_turn(say, inputs=answers)
        assert not {p.request_id for p in result.pending} & set(answers)
        with pytest.raises(InputNotFound):
            await agent.execute_turn(None, inputs=dict(list(answers.items())[:1]))
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "done")
    told = {m.tool_call_id: m for m in await agent.get_messages() if _is_result(m)}
    assert len(told) == len(calls)
    assert {i for i, m in told.items() if m.text == DENIED} == denied - cancelled
    assert {i for i, m in told.items() if m.text == UNANSWERED} == cancelled
    ran = [" ".join(m.text.split()[:2]) for m in told.values()]
    assert Counter(what for what in ran if what.startswith(("pay", "send"))) == RAN
    if cancelled or "enough" in [m.text for m in await agent.get_messages()]:
        assert_valid(await agent.get_messages())  # a text stands between calls and results
    else:
        await assert_whole(stores)


def _is_result(message):
    return isinstance(message, ToolResultMessage)
