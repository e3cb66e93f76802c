"""
A process is killed at every point of a call behind which an agent works; the next one goes on.

Both turns are in the same process, so a failpoint is reached by one and the other in turn: killing
at its first, second, third passing and so on goes through all of them. What must never happen, at
any point: a tool of the inner agent that may not run twice does, a finished one runs again, the
inner conversation begins anew, or the outer call has no result, or two.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.agent.kit import assert_whole
from tests.shares import split

from looopy import Agent, ToolContext, open_stores, tool
from looopy._failpoints import NAMES, arm
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, wait
from looopy.types.message import ToolResultMessage, UserMessage
from looopy.types.state import Outcome


def outer_model(request):
    """Asks the agent, and says what it said."""
    last = request.messages[-1]
    if isinstance(last, UserMessage):
        return tool_call("helper", prompt="Do it!")
    return text(f"It said: {last.text}")


def inner_model(request):
    """Notes something, pays, and says what came of it."""
    results = [m.text for m in request.messages if isinstance(m, ToolResultMessage)]
    if not results:
        return tool_call("note")
    return tool_call("pay") if len(results) == 1 else text(" and ".join(results))


async def visit(url: str, folder: Path, *, asks: bool) -> None:
    """Bring the turn to its end, as whoever serves a request would that is sent again."""

    @tool(effects="idempotent")
    def note(context: ToolContext) -> str:
        """Note something; again does no harm."""
        write(folder / "ledger", f"note {context.idempotency_key}")
        return "noted"

    @tool(effects="external")
    async def pay(context: ToolContext) -> str:
        """Pay, once; with a question first if one is to be asked."""
        by = await context.ask("By what?") if asks else "cash"
        write(folder / "ledger", f"pay {context.idempotency_key}")
        return f"paid by {by}"

    helper = Agent(
        "template",
        llm_provider=ScriptedProvider(inner_model),
        tools=[note, pay],
        agent_name="helper",
    )
    model = ScriptedProvider(outer_model)
    async with Agent("ada", llm_provider=model, tools=[helper.as_tool()], stores=url) as agent:
        result = await agent.execute_turn("go", idempotency_key="k")
        if agent.state.pending:
            request = agent.state.pending[0]
            result = await agent.execute_turn(None, inputs={request.request_id: "card"})
        elif agent.state.interrupted_turn or result.outcome is Outcome.INTERRUPTED:
            result = await agent.execute_turn(None)
        elif result.outcome is not Outcome.COMPLETED:
            messages = await agent.get_messages()
            write(folder / "result", messages[-1].text)
            return
        if result.outcome is Outcome.INPUT_REQUIRED:
            request = result.pending[0]
            result = await agent.execute_turn(None, inputs={request.request_id: "card"})
        write(folder / "result", f"{result.outcome} {result.text}")


def write(path: Path, line: str) -> None:
    """Add a line to a plain file, outside of what is tested."""
    with path.open("a") as file:
        file.write(f"{line}\n")


def live(url: str, folder: Path, failpoint: str | None, *, asks: bool) -> bool:
    """One life of a process; whether it was killed."""

    def body() -> None:
        arm(failpoint)
        asyncio.run(visit(url, folder, asks=asks))

    code = wait(fork(body, folder / "log"))
    if code not in (0, -signal.SIGKILL):
        raise AssertionError((folder / "log").read_text())
    return code != 0


async def judge(url: str, folder: Path, *, asks: bool) -> None:
    """What has to be true, wherever a process was killed."""
    ledger = (folder / "ledger").read_text().splitlines()
    assert len({line for line in ledger if line.startswith("note")}) == 1
    paid = [line for line in ledger if line.startswith("pay")]
    async with open_stores(url) as stores:
        found = [record.context_id for record in await stores.state.list()]
        (inner,) = [one for one in found if one != "ada"]
        for context_id in found:
            await assert_whole(stores, context_id)
        said = await stores.messages.list(inner)
        assert [m.text for m in said if isinstance(m, UserMessage)] == ["Do it!"]
        results = {m.tool_name: m.text for m in said if isinstance(m, ToolResultMessage)}
        assert results["note"] == "noted"
        known = results["pay"] == f"paid by {'card' if asks else 'cash'}"
        assert known or "The outcome of this call is unknown" in results["pay"]
        assert len(paid) == 1 if known else len(paid) <= 1
        outer = await stores.messages.list("ada")
        (answered,) = [m for m in outer if isinstance(m, ToolResultMessage)]
        assert answered.text == said[-1].text == f"noted and {results['pay']}"
        assert outer[-1].text == f"It said: {answered.text}"
        assert [m.text for m in outer if isinstance(m, UserMessage)] == ["go"]


@pytest.fixture
def place(tmp_path, empty_database):
    """A folder and a database of its own, for each trial."""

    def make(name: str) -> tuple[str, Path]:
        folder = tmp_path / name.replace(":", "-")
        folder.mkdir()
        (folder / "db").write_bytes(empty_database.read_bytes())
        return f"sqlite:///{folder / 'db'}", folder

    return make


ALL = [(name, asks) for name in NAMES if name.startswith("B") for asks in (False, True)]
FAST = [("B6", True)]  # as a call runs
REACHED = [name for name in NAMES if name[0] in "BR"]  # no life here saves an artifact or compacts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "asks"),
    split(FAST, [each for each in ALL if each not in FAST]),
    ids=lambda value: value if isinstance(value, str) else "asking" if value else "plain",
)
def test_a_call_that_is_killed_anywhere_is_gone_on_with(place, name, asks):
    """Every passing of the point, until the process gets to the end."""
    number, killed = 0, True
    while killed:
        number += 1
        url, folder = place(f"{name}:{number}")
        killed = live(url, folder, f"{name}:{number}", asks=asks)
        if killed:
            assert not live(url, folder, None, asks=asks)
        asyncio.run(judge(url, folder, asks=asks))
    assert number > 2, "the point was passed by one of the two turns at most"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", split([0], range(1, 8)))
def test_a_call_that_is_killed_again_and_again_is_gone_on_with(place, seed):
    """Three lives in a row end somewhere; the last one does not."""
    chance = random.Random(seed)
    asks = bool(seed % 2)
    url, folder = place("again")
    for _ in range(3):
        live(url, folder, f"{chance.choice(REACHED)}:{chance.randint(1, 6)}", asks=asks)
    assert not live(url, folder, None, asks=asks)
    asyncio.run(judge(url, folder, asks=asks))
