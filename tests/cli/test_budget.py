"""Budgets of owners and tenants at the command line: what waits for them, and what they say."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from looopy import Agent, AuthContext, Budget, LoopConfig, open_stores
from looopy.cli.main import main
from looopy.errors import AgentBusy
from looopy.stores import accounts
from looopy.stores.accounts import held_calls, release_call
from looopy.stores.contexts.spending import (
    NOTHING,
    Amount,
    Place,
    account_of,
    allowances_of,
    digest_of,
)
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import begin
from looopy.types.message import Cost, Usage

ADA, ADAS = AuthContext("ada"), account_of("ada")


def asking(context_id, stores, script=(), **budget):
    """An agent that asks for more of its budget."""
    model = ScriptedProvider([text(one) if isinstance(one, str) else one for one in script])
    config = LoopConfig(budget=Budget(**budget), max_tokens=1_000, on_budget="ask")
    return Agent(context_id, llm_provider=model, stores=stores, loop_config=config)


@pytest.fixture
def run(capsys):
    """Run the program in this process: its status, output and errors."""

    async def run(*arguments):
        status = await asyncio.to_thread(main, list(map(str, arguments)))
        return status, *capsys.readouterr()

    return run


async def test_a_turn_that_waits_for_a_budget_names_it(tmp_path, run):
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


class Priced(ScriptedProvider):
    """A model whose calls cost a quarter dollar, for ten tokens; its last call never ends."""

    async def stream(self, request, options):
        """The script, with a price."""
        async for event in super().stream(request, options):
            if event.type == "done":
                used = Usage(input=4, output=6, total_tokens=10, cost=Cost(total=0.25))
                yield replace(event, message=replace(event.message, usage=used))
            else:
                yield event

    def cost_of(self, usage, model=""):
        """A thousandth of a dollar for each token."""
        del model
        return replace(usage, cost=Cost(total=(usage.input + usage.output) / 1000))


def build(context_id, stores):
    """The application's agent: Ada's limits are not those of others."""
    tokens = 5_000 if context_id == "a" else 50_000
    config = LoopConfig(
        budget=Budget(owner_day_tokens=tokens, tenant_month_cost_usd=500.0), max_tokens=1_000
    )
    return Agent(context_id, llm_provider=Priced([text("Hi.")]), stores=stores, loop_config=config)


async def spend(url):
    """Accounts of two owners, one of them without a price, and one whose contexts are gone."""
    async with open_stores(url) as stores:
        async with build("a", stores) as agent:
            await agent.execute_turn("Hi.", ADA)
        async with asking("b", stores, ["Hi."], owner_day_tokens=50_000) as agent:
            await agent.execute_turn("Hi.", AuthContext("=ben\x1b[31m"))
        limits = allowances_of(Budget(owner_day_tokens=1), "gone")
        await stores.spending.add(Amount(7, 5, 3), limits)
        yesterday = datetime.now(UTC) - timedelta(days=1)
        return yesterday.date(), account_of("gone")


async def test_sums_are_shown_of_each_owner_and_of_the_tenant(tmp_path, run):
    """As a table, CSV and JSON, with the application's limits; no unknown cost is a zero."""
    url = f"sqlite:///{tmp_path}/b.db"
    yesterday, gone = await spend(url)
    named = ("--agent", f"{__file__}:build")
    show = ("budget", "show", "--db", url)
    status, table, _ = await run(*show)
    assert status == 0
    head, *lines = [line.split("  ") for line in table.splitlines()]
    assert " ".join(head).split() == ["account", "period", "tokens", "reserved", "cost", "reserved"]
    assert [line[0].strip() for line in lines] == ["tenant", "=ben␛[31m", "ada", f"{gone[:14]}..."]
    assert [line[-2].strip() for line in lines] == [
        "$0.2500", "unknown", "$0.2500", "$0.0000 + unknown",
    ]  # fmt: skip
    status, table, _ = await run(*show, *named)
    tenant, _, ada, _ = table.splitlines()[1:]
    assert tenant.split()[1] == "month"
    assert tenant.split()[3:] == ["10", "0", "-", "$0.2500", "$0.0000", "$500.00"]
    assert ada.split()[3:] == ["10", "0", "5,000", "$0.2500", "$0.0000", "-"]
    _, out, _ = await run(*show, *named, "--format", "csv")
    rows = {row["owner"] or row["account"]: row for row in csv.DictReader(io.StringIO(out))}
    assert set(rows) == {"tenant", "'=ben␛[31m", "ada", "owner"}
    assert rows["owner"]["account_id"] == gone
    unpriced = rows["'=ben␛[31m"]
    assert (unpriced["cost_usd"], unpriced["cost_complete"]) == ("", "false")
    assert (unpriced["limit_tokens"], unpriced["limit_cost_usd"]) == ("50000", "")
    _, out, _ = await run(*show, *named, "--owner", "ada", "--format", "json")
    (item,) = json.loads(out)["items"]
    day = yesterday + timedelta(days=1)
    assert item == {
        "account": "owner",
        "owner": "ada",
        "account_id": account_of("ada"),
        "period": "day",
        "since": f"{day}T00:00:00+00:00",
        "until": f"{day + timedelta(days=1)}T00:00:00+00:00",
        "tokens": 10,
        "cost_usd": 0.25,
        "cost_complete": True,
        "reserved_tokens": 0,
        "reserved_cost_usd": 0.0,
        "reserved_cost_complete": True,
        "limit_tokens": 5_000,
        "limit_cost_usd": None,
    }
    status, out, err = await run(*show, "--owner", "ada", "--day", yesterday)
    assert (status, out) == (0, "")
    assert f"No budget has counted anything in {tmp_path}/b.db on {yesterday}" in err
    assert (await run(*show, "--tenant", "other"))[1] == ""
    assert (await run("budget", "held", "--db", url))[1] == ""


async def test_a_call_of_a_killed_process_is_shown_and_released(tmp_path, run, monkeypatch):
    """Not while its process lives; what it settles after all counts in full."""
    url, held, release = f"sqlite:///{tmp_path}/b.db", ("budget", "held"), ("budget", "release")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, url), stdout=asyncio.subprocess.PIPE
    )
    await child.stdout.readline()
    status, out, err = await run(*held, "--db", url)
    assert (status, "stuck" in out + err) == (0, False)
    name = out.splitlines()[1].split()[0]
    assert out.splitlines()[1].split()[1:5] == ["runs", "a,", "turn", "1"]
    status, _, err = await run(*release, name, "--db", url)
    assert (status, "turn 1 of 'a' runs: cancel it" in err) == (1, True)
    child.kill()
    await child.communicate()
    _, out, err = await run(*held, "--db", url)
    assert out.splitlines()[1].split()[1:6] == ["dead,", "stuck", "a,", "turn", "1"]
    assert "looopy budget release" in err
    async with open_stores(url) as stores, asking("a", stores) as agent:
        assert agent.state.interrupted_turn == 1  # somebody looked: the turn is closed now
    assert (await run(*held, "--db", url))[1] == out
    _, out, err = await run("budget", "show", "--db", url)
    assert "1 dead call still holds a part of what is reserved" in err
    assert len(out.splitlines()) == 2
    assert (await run(*release, name, "--tenant", "other", "--db", url))[0] == 1
    status, out, _ = await run(*release, name, "--db", url)
    assert (status, out.startswith("released 1,0")) == (0, True)
    assert (await run(*held, "--db", url))[1] == ""
    status, _, err = await run(*release, name, "--db", url)
    assert (status, "it was settled or released" in err) == (1, True)
    async with open_stores(url) as stores:
        assert await stores.spending.settle(name, Amount(70, 7))
        ((used, reserved),) = [(s.used, s.reserved) for s in await stores.spending.spent(ADAS)]
        assert (used, reserved) == (Amount(70, 7), NOTHING)
        await _is_stuck_only_when_old(stores, monkeypatch)


async def _is_stuck_only_when_old(stores, monkeypatch):
    """A call that no turn proves to be dead: a summary between turns, or of a context elsewhere."""
    async with asking("b", stores, ["Hi."]) as agent:
        await agent.execute_turn("Hi.", ADA)
    await begin(stores, context_id="open", holder="on another machine", ttl_s=0.0)
    limits = allowances_of(Budget(owner_day_tokens=1_000), "ada")
    for context in ("a", "b", "elsewhere", "open"):
        place = Place(digest_of(context), 1)
        await stores.spending.reserve(context, Amount(5, 0, 5), limits, place=place)
    found = {call.held.reservation: call for call in await held_calls(stores)}
    assert {name: call.status for name, call in found.items()} == {
        "a": "ended",  # a summary, behind a turn that died
        "b": "ended",
        "elsewhere": "unknown",
        "open": "unclear",
    }
    with pytest.raises(AgentBusy, match="less than 15 minutes ago"):
        await release_call(stores, "b")
    monkeypatch.setattr(accounts, "_YOUNG", timedelta(0))
    with pytest.raises(AgentBusy, match="nothing proves that the process of turn 1 of 'open'"):
        await release_call(stores, "open")
    for name in ("a", "b", "elsewhere"):
        assert (await release_call(stores, name)).is_stuck
    assert [call.status for call in await held_calls(stores)] == ["unclear"]


CHILD = """
import asyncio, sys
from looopy import AuthContext, open_stores
from tests.cli.test_budget import asking

async def forever(_request):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def main():
    async with open_stores(sys.argv[1]) as stores:
        async with asking("a", stores, [forever], owner_day_tokens=5_000) as agent:
            await agent.execute_turn("Hi.", AuthContext("ada"))

asyncio.run(main())
"""
