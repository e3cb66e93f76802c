"""
Kill a process at every point of a turn that is steered, and see what the next one says (T9).

One story: while its first tool runs, a turn is steered, is told something to follow, and something
else that is taken back. It is told once for each boundary of a turn and each pass of it, killed
there, and told on by a process of its own; then again, with the recovery killed as well.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from tests.agent.kit import assert_whole
from tests.campaign.answers import Ledger
from tests.campaign.children import fork, run, wait
from tests.campaign.databases import new_sqlite

from looopy import Agent, open_stores, tool
from looopy._failpoints import NAMES, arm
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage, UserMessage
from looopy.types.request import LLMRequest

_STEPS = 12  # turns that a story takes at most


def _reply(request: LLMRequest) -> Any:
    if any(isinstance(message, ToolResultMessage) for message in request.messages):
        return text("done")
    return tool_call("talk"), tool_call("look")


def _agent(url: str, ledger: Ledger) -> Agent:
    @tool
    async def talk() -> str:
        """Hear what the user says meanwhile."""
        for number, speak in enumerate((agent.follow_up, agent.steer, agent.follow_up)):
            said = f"message-{number}"
            ledger.note("meant", said)
            await speak(said)
            ledger.note("acknowledged", said)
            if number == 0:
                ledger.note("cleared", said, str(await agent.clear_follow_up_queue()))
        return "heard"

    @tool(effects="none")
    async def look() -> str:
        """Look around."""
        return "nothing"

    provider = ScriptedProvider(_reply, repeat=True)
    agent = Agent("ada", llm_provider=provider, tools=[talk, look], stores=url)
    return agent


async def _tell(url: str, ledger: Ledger) -> None:
    """Tell the story to its end, from wherever it stands; each turn with an agent of its own."""
    for _ in range(_STEPS):
        async with _agent(url, ledger) as agent:
            first = agent.state.turn_count == 0
            queued = await agent.has_queued_messages()
            if not first and not queued and agent.state.interrupted_turn is None:
                return
            await agent.execute_turn("go" if first else None)
    raise RuntimeError("the story does not end")


def _live(url: str, ledger: Ledger, failpoint: str | None) -> None:
    arm(failpoint)
    asyncio.run(_tell(url, ledger))


async def _judge(url: str, ledger: Ledger) -> list[str]:
    """What is wrong with a story that has ended."""
    async with open_stores(url) as stores:
        await assert_whole(stores)
        messages = await stores.messages.list("ada")
        head, _ = await stores.journal.inbox("ada")
    said = Counter(m.text for m in messages if isinstance(m, UserMessage))
    told = [line.split() for line in ledger.lines()]
    acknowledged = {words[1] for words in told if words[0] == "acknowledged"}
    cleared = {words[1] for words in told if words[0] == "cleared" and words[2] == "1"}
    begun = {words[1] for words in told if words[0] == "meant"}
    found = [f"{head.waiting} still wait"] if head.waiting else []
    for message in begun:
        times = said.pop(message, 0)
        if message in cleared:
            right = times == 0
        elif message == "message-0":
            right = times <= 1  # killed while it was being taken back
        else:
            right = times == 1 or (message not in acknowledged and times == 0)
        if not right:
            found.append(f"{message} was said {times} times: {told}")
    if said != Counter({"go": 1}):
        found.append(f"nobody said {said}")
    if messages[-1].text != "done":
        found.append(f"it ends with {messages[-1].text!r}")
    return found


def _case(ends: list[str]) -> tuple[int, list[str]]:
    """How many of the lives were killed, and what is wrong afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="looopy-queued-"))
    try:
        url, ledger, log = new_sqlite(folder), Ledger(folder / "ledger"), folder / "log"
        kills = 0
        for end in ends:
            status = wait(fork(partial(_live, url, ledger, end), log))
            if status not in (0, -signal.SIGKILL):
                return kills, [f"{ends}: {log.read_text()[-2000:]}"]
            kills += status != 0
        report = folder / "report"

        def finish() -> None:
            _live(url, ledger, None)
            report.write_text(json.dumps(asyncio.run(_judge(url, ledger))))

        try:
            run(finish, log)
        except RuntimeError as error:
            return kills, [f"{ends}: {str(error)[-2000:]}"]
        return kills, [f"{ends}: {wrong}" for wrong in json.loads(report.read_text())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Tell what was killed where, and what was wrong, as JSON."""
    asyncio.run(_tell_once())
    kills: Counter[str] = Counter()
    wrong: list[str] = []
    again = [name for name in NAMES if name.startswith("R")]
    for name in (n for n in NAMES if n.startswith("B")):
        for number in range(1, 40):
            first = f"{name}:{number}"
            killed, problems = _case([first])
            wrong += problems
            kills[name] += killed
            if not killed:
                break
            second = again[number % len(again)]
            killed, problems = _case([first, second])
            wrong += problems
            kills[second] += killed - 1
    json.dump({"kills": kills, "wrong": wrong}, sys.stdout)


async def _tell_once() -> None:
    """Load what every child needs, with no connection left open."""
    folder = Path(tempfile.mkdtemp(prefix="looopy-queued-"))
    try:
        url = new_sqlite(folder)
        ledger = Ledger(folder / "ledger")
        await _tell(url, ledger)
        assert await _judge(url, ledger) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
