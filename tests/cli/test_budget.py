"""Budgets of owners and tenants at the command line: what waits for them, and what they say."""

from __future__ import annotations

from asyncio import to_thread

import pytest

from looopy import Agent, AuthContext, Budget, LoopConfig, open_stores
from looopy.cli.main import main
from looopy.testing import ScriptedProvider, text

ADA = AuthContext("ada")


def asking(context_id, stores, script=(), **budget):
    """An agent that asks for more of its budget."""
    model = ScriptedProvider([text(one) for one in script])
    config = LoopConfig(budget=Budget(**budget), max_tokens=1_000, on_budget="ask")
    return Agent(context_id, llm_provider=model, stores=stores, loop_config=config)


@pytest.fixture
def run(capsys):
    """Run the program in this process: its status, output and errors."""

    async def run(*arguments):
        status = await to_thread(main, list(map(str, arguments)))
        return status, *capsys.readouterr()

    return run


async def test_a_turn_that_waits_for_a_budget_says_for_which(tmp_path, run):
    """The list and the conversation itself; once it was continued, neither."""
    url = f"sqlite:///{tmp_path}/b.db"
    async with open_stores(url) as stores:
        for name, budget in (
            ("day", {"owner_day_tokens": 5}),
            ("month", {"tenant_month_tokens": 5}),
            ("turn", {"tokens": 0}),
        ):
            async with asking(name, stores, **budget) as agent:
                await agent.execute_turn("Hi.", ADA)
        _, listed, _ = await run("contexts", "list", "--db", url)
        said = dict(line.split("  ")[:2] for line in listed.splitlines())
        assert said == {
            "day": "turn 1 waits for the budget of the day of ada",
            "month": "turn 1 waits for the tenant's budget of the month",
            "turn": "turn 1 waits for its budget",
        }
        _, shown, _ = await run("contexts", "show", "day", "--db", url)
        assert "\nturn 1 waits: this owner has used 0 of 5 tokens" in shown
        assert "\nturn 1  input_required (budget)" in shown
        async with asking("day", stores, ["Hello."], owner_day_tokens=5_000) as agent:
            await agent.execute_turn(None, ADA)
    _, shown, _ = await run("contexts", "show", "day", "--db", url)
    assert shown.startswith("day  ready  2 turns")
    assert "\nturn 1  input_required (budget)" in shown
    assert "\nturn 2  completed (stop)  continues turn 1" in shown
    assert "waits" not in shown
