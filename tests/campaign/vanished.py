"""
Files that vanish: the database, its folder or its log goes away under processes that take turns.

Two processes take turns on contexts of their own in one SQLite file. At some instant the file is
removed, renamed or replaced, or what lies beside it is. A turn that is asked for later is not
acknowledged, and fails by `StoreUnavailable`, whoever asks. What was acknowledged before is there
for the next process, where the file can still be reached: put back, or never gone itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.databases import new_sqlite
from tests.campaign.life import FileLedger
from tests.campaign.places import broken, file_of, lines_of, place, wrong
from tests.campaign.trial import Tally, Trial

from looopy import Agent, LoopConfig, UserMessage, open_stores, tool
from looopy.errors import LooopyError
from looopy.stores.sql.sqlite.connection import Connection
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait
from looopy.types.request import LLMRequest

_PROCESSES = 2
_LATEST_S = 0.15  # after the first turn was acknowledged
_AFTERWARDS = 3  # turns that are asked for when the file is gone, at least
_PATIENCE_S = 60.0
_POLL_S = 0.001


@dataclass(frozen=True)
class Loss:
    """
    A way to lose files.

    Attributes:
        lose: Does it to a database.
        put_back: Undoes it, once nobody has the database open; `None` where that cannot be done.
        keeps: Whether what was acknowledged can be reached then.
    """

    lose: Callable[[Path], None]
    put_back: Callable[[Path], None] | None = None
    keeps: bool = False


def _beside(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]


def _remove_all(path: Path) -> None:
    for name in (path, *_beside(path)):
        name.unlink(missing_ok=True)


def _remove_folder(path: Path) -> None:
    # Somebody may make a file in it meanwhile.
    path.parent.rename(path.parent.with_name("going"))
    shutil.rmtree(path.parent.with_name("going"))
    path.parent.mkdir()


def _restore(path: Path) -> None:
    """Put a backup in its place, as one does with a database that nobody has open."""
    for name in _beside(path):
        name.unlink()
    path.with_name("backup.db").replace(path)


LOSSES: dict[str, Loss] = {
    "rm": Loss(lambda path: path.unlink()),
    "rm all": Loss(_remove_all),
    "rmdir": Loss(_remove_folder),
    "restore": Loss(_restore),
    "mv": Loss(
        lambda path: path.rename(path.with_name("away.db")),
        lambda path: path.with_name("away.db").replace(path) and None,
        keeps=True,
    ),
    "mv folder": Loss(
        lambda path: path.parent.rename(path.parent.with_name("away")) and None,
        lambda path: path.parent.with_name("away").rename(path.parent) and None,
        keeps=True,
    ),
    "rm log": Loss(lambda path: _beside(path)[0].unlink(), keeps=True),
    "rm shared memory": Loss(lambda path: _beside(path)[1].unlink(), keeps=True),
}


@tool(effects="external")
async def act() -> str:
    """Do something."""
    return "done"


def reply(request: LLMRequest) -> Any:
    """Play the model: a call, then an answer."""
    if isinstance(request.messages[-1], UserMessage):
        return tool_call("act")
    return text("answer")


async def take_turns(url: str, context_id: str, ledger: FileLedger, gone: Path) -> None:
    """Take turns until the file is gone, and some more; note what is told."""
    agent = Agent(
        context_id,
        llm_provider=ScriptedProvider(reply),
        tools=[act],
        stores=url,
        loop_config=LoopConfig(max_messages=16),
    )
    await agent.start()
    number = afterwards = 0
    while afterwards < _AFTERWARDS:
        afterwards += gone.exists()
        number += 1
        said = f"{context_id}-{number}"
        ledger.write("asked", said=said, at=time.monotonic_ns())
        try:
            view = agent.execute_turn(said)
            await view.accepted()
            ledger.write("ack", said=said)
            result = await view
            ledger.write("done", said=said, outcome=result.outcome.value)
        except LooopyError as error:
            ledger.write("error", said=said, error=type(error).__name__, words=str(error))
    await agent.shutdown()


def _one_run(name: str, seed: int) -> list[str]:
    loss, rng = LOSSES[name], random.Random(seed)
    with place("sqlite") as outer:
        folder = file_of(outer).parent
        (folder / "kept").mkdir()
        url = new_sqlite(folder / "kept")
        path = file_of(url)
        if name == "restore":
            _back_up(path)
        ledgers = [folder / f"ledger-{n}" for n in range(_PROCESSES)]
        gone = folder / "gone"
        logs = [folder / f"log-{n}" for n in range(_PROCESSES)]
        pids = [
            fork(partial(_begin, url, f"c{n}", ledgers[n], gone), logs[n])
            for n in range(_PROCESSES)
        ]
        while not all(any(x["kind"] == "done" for x in lines_of(p)) for p in ledgers):
            time.sleep(_POLL_S)
        time.sleep(rng.random() * _LATEST_S)
        loss.lose(path)
        lost_at = time.monotonic_ns()
        gone.touch()
        problems = [
            f"process {n} ended with {status}: {logs[n].read_text()[-1500:]}"
            for n, pid in enumerate(pids)
            if (status := wait(pid, kill_after_s=_PATIENCE_S))
        ]
        for n, ledger in enumerate(ledgers):
            problems += [f"c{n}: {problem}" for problem in _after(lines_of(ledger), lost_at)]
        if loss.put_back is not None:
            loss.put_back(path)
        for n, ledger in enumerate(ledgers):
            told = {x["said"] for x in lines_of(ledger) if x["kind"] == "ack"}
            found = _found(url, f"c{n}", folder)
            if isinstance(found, str):
                problems.append(f"c{n}: the next process failed: {found}")
            elif loss.keeps and (missing := told - set(found)):
                problems.append(f"c{n}: {sorted(missing)} were acknowledged and are not there")
        if name == "restore" and _found(url, "other", folder) != ["kept", "afterwards"]:
            problems.append("the backup is not what it was")
    return problems


def _begin(url: str, context_id: str, ledger: Path, gone: Path) -> None:
    asyncio.run(take_turns(url, context_id, FileLedger(ledger), gone))


def _back_up(path: Path) -> None:
    """Put a database of somebody else beside the one at *path*."""
    other = path.with_name("backup.db")
    shutil.copyfile(path, other)

    async def fill() -> None:
        async with open_stores(f"sqlite:///{other}") as stores:
            await stores.messages.append("other", [UserMessage("kept")])

    run(lambda: asyncio.run(fill()), path.parent.parent / "log-backup")


def _after(lines: list[dict[str, Any]], lost_at: int) -> list[str]:
    """What is wrong with the turns that were asked for when the file was gone."""
    problems = []
    late = [x["said"] for x in lines if x["kind"] == "asked" and x["at"] > lost_at]
    if len(late) < _AFTERWARDS:
        problems.append(f"{late} were asked for afterwards: too few")
    for answer in lines:
        if answer["said"] not in late or answer["kind"] == "asked":
            continue
        if answer["kind"] != "error":
            problems.append(f"{answer['said']} was acknowledged though the file was gone")
        elif answer["error"] != "StoreUnavailable":
            problems.append(f"{answer['said']} raised {answer['error']}: {answer['words']}")
    return problems


def _found(url: str, context_id: str, folder: Path) -> list[str] | str:
    """What users said in a context, when the next process has said one thing more."""
    report = FileLedger(folder / f"found-{context_id}")

    async def look() -> None:
        agent = Agent(context_id, llm_provider=ScriptedProvider(reply), tools=[act], stores=url)
        await agent.start()
        await agent.execute_turn("afterwards")
        said = [m.text for m in await agent.get_messages() if isinstance(m, UserMessage)]
        report.write("found", said=said)
        await agent.shutdown()

    try:
        run(lambda: asyncio.run(look()), folder / f"log-found-{context_id}")
    except RuntimeError as error:
        return str(error)[-1500:]
    [line] = lines_of(folder / f"found-{context_id}")
    said: list[str] = line["said"]
    return said


def _trial(name: str) -> Trial:
    def run_all(number: int, seed: int) -> Tally:
        tally = Tally(f"vanished files, {name}")
        for n in range(number):
            problems = _one_run(name, seed + n)
            tally.runs += 1
            tally.violations += [f"seed {seed + n}: {problem}" for problem in problems]
        return tally

    return Trial(f"vanished files, {name}", 50, run_all)


TRIALS = [_trial(name) for name in LOSSES]


@contextlib.contextmanager
def _careless() -> Iterator[None]:
    """Commit to whatever SQLite has open."""
    with broken(Connection, "check_files", lambda _: lambda _self, **_options: None):
        yield


WRONG = [wrong(trial, "nobody looks", _careless) for trial in TRIALS]
