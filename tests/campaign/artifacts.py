"""
Kills while a large artifact is written: of its parts, and of the rows that name them.

A tool of a turn writes an artifact piece by piece, and saves others whole, until the process is
killed at one of the boundaries A1 to A4. Whoever comes then finds every piece that was acknowledged
and reads every version without a damaged byte. What no row names is an orphan, and `collect`
removes all of it and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

from tests.campaign.databases import new_sqlite, postgres
from tests.campaign.life import FileLedger
from tests.campaign.trial import Tally, Trial

from looopy import Agent, ToolContext, open_stores, tool
from looopy._failpoints import arm
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait

_STORES = ("sqlite", "postgresql")
_NAMES = ("A1", "A2", "A3", "A4")
_PIECES = 6
_TAIL = 800  # characters of what a child said at its end


def _piece(number: int, seed: int) -> bytes:
    """A piece that becomes a part of its own; some are equal, and shared."""
    size = 66_000 + 1_000 * (number % 3)
    return hashlib.sha256(f"{seed} {number % 4}".encode()).digest() * (size // 32)


async def _write(url: str, blobs: str, context_id: str, seed: int, ledger: FileLedger) -> None:
    @tool(effects="external")
    async def write(context: ToolContext) -> str:
        """Write a large artifact, and others."""
        assert context.artifacts is not None
        async with context.artifacts.open("log") as log:
            for number in range(_PIECES):
                grown = await log.append(_piece(number, seed))
                ledger.write("appended", version=grown.version, size=grown.size)
                saved = await context.artifacts.save(f"copy-{number % 2}", _piece(number, seed))
                ledger.write("saved", id=saved.artifact_id, version=saved.version, sha=saved.sha256)
        return "written"

    model = ScriptedProvider([tool_call("write"), text("done")])
    async with open_stores(url, blobs=blobs) as stores:
        agent = Agent(context_id, llm_provider=model, tools=[write], stores=stores)
        await agent.start()
        await agent.execute_turn("write")
        await agent.shutdown()


async def _examine(url: str, blobs: str, context_id: str, seed: int, ledger: Path) -> list[str]:
    lines = [json.loads(line) for line in ledger.read_text().split("\n") if line]
    whole = b"".join(_piece(number, seed) for number in range(_PIECES))
    problems: list[str] = []
    async with open_stores(url, blobs=blobs) as stores:
        agent = Agent(context_id, llm_provider=ScriptedProvider([]), stores=stores)
        await agent.start()  # closes the turn that was cut short
        await agent.shutdown()

        async def read_all(when: str) -> None:
            for one in await stores.artifacts.list(context_id):
                for version in await stores.artifacts.versions(context_id, one.artifact_id):
                    name = f"{one.artifact_id} version {version.version}"
                    try:
                        found = await stores.artifacts.load(
                            context_id, one.artifact_id, version.version
                        )
                    except Exception as error:  # noqa: BLE001 - whatever it is
                        problems.append(f"{when}: {name} cannot be read: {error!r}")
                        continue
                    if len(found) != version.size:
                        problems.append(f"{when}: {name} has {len(found)} of {version.size} bytes")
                    if one.artifact_id == "log" and found != whole[: len(found)]:
                        problems.append(f"{when}: {name} holds what nobody wrote")

        await read_all("after the kill")
        for line in lines:
            name = line.get("id", "log")
            try:
                found = await stores.artifacts.get(context_id, name, line["version"])
            except Exception as error:  # noqa: BLE001 - whatever it is
                problems.append(f"{line} was acknowledged, and is gone: {error!r}")
                continue
            if found.size < line.get("size", 0) or found.sha256 != line.get("sha", found.sha256):
                problems.append(f"{line} was acknowledged, and is {found}")
        await stores.artifacts.collect(-60)
        await read_all("after the orphans were collected")
        await stores.state.delete(context_id)
    left = [str(path) for path in Path(blobs).rglob("*") if path.is_file()]
    if left:
        problems.append(f"{len(left)} files are left of a context that was deleted")
    return problems


def _case(store: str, name: str, seed: int, tally: Tally) -> None:
    folder = Path(tempfile.mkdtemp(prefix="looopy-artifacts-"))
    try:
        url = new_sqlite(folder) if store == "sqlite" else postgres("asyncpg")
        blobs, ledger, log = str(folder / "blobs"), folder / "ledger", folder / "log"
        ledger.touch()
        context_id = f"artifacts-{seed}-{name}"
        number = random.Random(seed).randrange(1, 8)

        def live() -> None:
            arm(f"{name}:{number}")
            asyncio.run(_write(url, blobs, context_id, seed, FileLedger(ledger)))

        status = wait(fork(live, log))
        tally.runs += 1
        if status != -signal.SIGKILL:
            tally.missed += 1
            if status != 0:
                tally.violations.append(f"seed {seed}: {log.read_text()[-_TAIL:]}")
                return
        report = folder / "report"

        def look() -> None:
            found = asyncio.run(_examine(url, blobs, context_id, seed, ledger))
            report.write_text(json.dumps(found))

        try:
            run(look, log)
        except (RuntimeError, TimeoutError) as error:
            tally.violations.append(f"seed {seed}: not opened: {str(error)[-_TAIL:]}")
            return
        tally.violations += [f"seed {seed}: {one}" for one in json.loads(report.read_text())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _at(store: str, name: str, count: int, seed: int) -> Tally:
    tally = Tally(f"kill at {name}, artifacts, {store}")
    for n in range(count):
        _case(store, name, seed + n, tally)
    return tally


TRIALS = [
    Trial(f"kill at {name}, artifacts, {store}", 50, partial(_at, store, name))
    for store in _STORES
    for name in _NAMES
]
