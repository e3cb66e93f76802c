"""`looopy usage`: the sums are those of the contexts, whichever way they are cut."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from looopy import Agent, AuthContext, open_stores
from looopy.cli.main import main
from looopy.errors import LimitExceeded, RateLimited, ValueRefused
from looopy.stores import usage as sums
from looopy.stores.usage import DIMENSIONS, sum_usage
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.message import NO_USAGE, Cost

ADA, BEN = AuthContext("ada"), AuthContext('ben\x1b[31m, the "second"')

COLUMNS = "owner calls input cache read cache write output cost"


class Priced(ScriptedProvider):
    """A model whose calls cost a quarter dollar."""

    async def stream(self, request, options):
        """The script, with a price."""
        async for event in super().stream(request, options):
            if event.type == "done":
                used = replace(event.message.usage, cost=Cost(total=0.25))
                said = replace(event.message, provider="acme", model="large", usage=used)
                yield replace(event, message=said)
            else:
                yield event


class Hostile(ScriptedProvider):
    """A model with the name of a formula; its provider begins with what a spreadsheet skips."""

    async def stream(self, request, options):
        """The script."""
        async for event in super().stream(request, options):
            if event.type == "done":
                said = replace(event.message, provider='=HYPERLINK("http://x"', model="-1)")
                yield replace(event, message=said)
            else:
                yield event


async def converse(stores):
    """Contexts with all that a sum could count twice, or forget."""
    inner = Agent("i", llm_provider=Priced([text("in")]), agent_name="inner").as_tool(
        "inner", "Do."
    )
    script = [
        text("1"),
        text("2"),
        tool_call("inner", prompt="x"),
        text("3"),
        text("4"),
        text("Sum."),
    ]
    async with Agent("a", llm_provider=Priced(script), tools=[inner], stores=stores) as agent:
        for said in ("one", "two", "three"):
            await agent.execute_turn(said, ADA)
        await agent.fork("fork", at=4)
        await agent.rewind(2)
        await agent.execute_turn("four", ADA)
        assert await agent.compact() is not None  # paid for between two turns
    async with Agent("fork", llm_provider=Priced([text("5")]), stores=stores) as agent:
        await agent.execute_turn("five", ADA)
    broken = failure(RateLimited("no more", retryable=False))
    unpriced = [text("a"), text("b"), (text("half"), broken)]
    async with Agent("b", llm_provider=ScriptedProvider(unpriced), stores=stores) as agent:
        await agent.execute_turn("one", BEN)
        await agent.clear()
        await agent.execute_turn("two", BEN)
        await agent.execute_turn("three", BEN)
    await stores.state.save("never-used", {}, version=0)


async def whole(stores):
    """The usage of all contexts, as they count it themselves."""
    records = await stores.state.list(limit=100)
    return sum((one.state.usage for one in records), NO_USAGE)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_all_sums_add_up_to_what_the_contexts_have_used(tmp_path, kind, monkeypatch):
    """Cleared, rewound, forked, inner, failed: each call counts once."""
    monkeypatch.setattr(sums, "_PAGE", 3)
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/u.db"
    async with open_stores(url) as stores:
        await converse(stores)
        expected = await whole(stores)
        assert (expected.cost.total, expected.cost.complete) == (8 * 0.25, False)
        for by in ((), *((one,) for one in DIMENSIONS), DIMENSIONS):
            found = await sum_usage(stores, by=by)
            total = sum((one.usage for one in found.values()), NO_USAGE)
            assert (by, total) == (by, expected)
        by_model = {key.model: one for key, one in (await sum_usage(stores)).items()}
        assert by_model["acme/large"].calls == 7
        assert by_model["acme/large"].usage.cost == Cost(total=7 * 0.25)
        assert by_model["scripted/scripted"].usage.cost is None
        # The summary, whose price is known, and what was cleared, whose price is not.
        assert by_model[None].usage.cost == Cost(total=0.25, complete=False)
        by_context = {k.context: v for k, v in (await sum_usage(stores, by=["context"])).items()}
        assert by_context["fork"].usage.cost.total == 0.25
        assert "never-used" not in by_context
        today = datetime.now(UTC).date()
        only = {"owner": "ada", "since": today - timedelta(days=1), "until": today}
        days = await sum_usage(stores, **only)
        assert sum(one.calls for one in days.values()) == 7
        assert sum(one.usage.cost.total for one in days.values()) == 7 * 0.25  # it has no day
        assert await sum_usage(stores, until=date(2020, 1, 1)) == {}
        with pytest.raises(ValueRefused):
            await sum_usage(stores, by=["tool"])
        monkeypatch.setattr(sums, "MOST_ROWS", 2)
        with pytest.raises(LimitExceeded):
            await sum_usage(stores, by=["context"])


async def test_the_program_prints_them_in_three_forms(tmp_path, capsys):
    """A table for people, CSV and JSON for programs; an unknown cost is no zero in any of them."""
    url = f"sqlite:///{tmp_path}/u.db"
    async with open_stores(url) as stores:
        await converse(stores)

    async def run(*arguments):
        from asyncio import to_thread

        status = await to_thread(main, ["usage", "--db", url, *arguments])
        return status, *capsys.readouterr()

    status, table, _ = await run("--by", "owner")
    assert status == 0
    head, *lines = table.splitlines()
    assert head.split() == COLUMNS.split()
    assert [line.split("  ")[-1].strip() for line in lines][-2:] == ["unknown", "$2.0000 + unknown"]
    assert lines[0].startswith("ada ")
    assert "\x1b" not in table
    status, out, _ = await run("--by", "owner", "--by", "day", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    ada, ben, undated = rows
    assert (ada["owner"], ben["owner"]) == ("ada", 'ben␛[31m, the "second"')
    assert ada["day"] == ben["day"] == datetime.now(UTC).date().isoformat()
    assert (undated["owner"], undated["day"], undated["cost_usd"]) == ("ada", "", "0.25")
    assert [(row["cost_usd"], row["cost_complete"]) for row in rows] == [
        ("1.75", "true"),
        ("", "false"),
        ("0.25", "true"),
    ]
    status, out, _ = await run("--by", "model", "--format", "json")
    found = json.loads(out)
    assert found["total"]["cost_usd"] == 2
    assert found["total"]["cost_complete"] is False
    assert {one["model"]: one["cost_usd"] for one in found["items"]} == {
        "acme/large": 1.75,
        "scripted/scripted": None,
        None: 0.25,
    }
    status, out, err = await run("--since", "2020-01-01", "--until", "2020-01-02")
    assert (status, out) == (0, "")
    assert "No usage is stored" in err
    assert "for these days" in err
    status, out, err = await run("--since", "2020-01-02", "--until", "2020-01-01")
    assert (status, out) == (2, "")
    assert "until 2020-01-01 is before since 2020-01-02" in err
    with pytest.raises(SystemExit):
        main(["usage", "--since", "yesterday"])
    assert "is not a date such as" in capsys.readouterr().err


async def test_no_cell_of_the_csv_is_a_formula(tmp_path, capsys):
    """Of whichever name; numbers stay numbers, and a name that is harmless stays as it is."""
    from asyncio import to_thread

    url = f"sqlite:///{tmp_path}/u.db"
    owners = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\uff1d1", "a=1", "'=1", "ada"]
    async with open_stores(url) as stores:
        for number, owner in enumerate(owners):
            async with Agent(
                f"c{number}", llm_provider=Hostile([text("1")]), stores=stores
            ) as agent:
                await agent.execute_turn("one", AuthContext(owner))
    chosen = ("--by", "owner", "--by", "model")
    assert await to_thread(main, ["usage", "--db", url, *chosen, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["owner"] for row in rows} == {
        *("'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\uff1d1"),
        *("a=1", "'=1", "ada"),
    }
    assert {row["model"] for row in rows} == {'\'=HYPERLINK("http://x"/-1)'}
    assert {row["calls"] for row in rows} == {"1"}
