"""
T11: the disk is full, at every size it can be full at, and has space again.

On SQLite no file of the process may grow beyond a limit; on Postgres the tables lie on a small
memory disk. Turns are run until one cannot be stored. That has to be said by `StorageFull`; nothing
that was acknowledged before may be missing; what there is can still be read; and once there is
space, the same agent goes on by itself, as does the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import random
import resource
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.campaign.databases import DRIVERS, postgres
from tests.campaign.life import FileLedger
from tests.campaign.places import broken, file_of, place, plain, run_together, wrong
from tests.campaign.trial import Tally, Trial
from tests.campaign.verdict import answer, judge
from tests.postgres import EMPTY, ask

from looopy import Agent, AgentStatus, LoopConfig, tool
from looopy.errors import LooopyError, StorageFull
from looopy.stores.sql import migrate
from looopy.stores.sql.sqlite import driver as sqlite
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest

_STEP_BYTES = 4096
_STEPS = 200
_MOST_TURNS = 400
_MEMORY_DISK = "32m"
_FILLER = 7000  # characters of a tool's result: a full disk comes soon


@dataclass(frozen=True)
class Full:
    """
    One run.

    Attributes:
        fill: Makes the disk full, or leaves so much that it soon will be; `free` takes it back.
    """

    url: str
    context_id: str
    seed: int
    ledger: Path
    fill: Callable[[], None]
    free: Callable[[], None]


@tool(effects="external")
async def look_up(what: str) -> str:
    """Look something up."""
    return what * _FILLER


def reply(request: LLMRequest) -> Any:
    """Play the model: a call, then an answer."""
    if isinstance(request.messages[-1], UserMessage):
        return tool_call("look_up", what="x")
    return text(answer(request.messages))


class Life:
    """Turns on one context, until there is no space and after."""

    def __init__(self, full: Full) -> None:
        self._full = full
        self._said = 0
        self._lines: list[dict[str, Any]] = []  # not a file: there is no space for it
        self.agent = Agent(
            full.context_id,
            llm_provider=ScriptedProvider(reply),
            tools=[look_up],
            stores=full.url,
            loop_config=LoopConfig(max_messages=16, max_tool_failures=50),
        )

    def note(self, kind: str, **facts: Any) -> None:
        """Keep a line of the ledger."""
        self._lines.append({"kind": kind, **facts})

    def wrong(self, words: str) -> None:
        """Note a violation."""
        self.note("error", context=self._full.context_id, error="Wrong", words=words)

    async def turn(self) -> LooopyError | None:
        """One turn, with what its caller is told; the error, if there was one."""
        self._said += 1
        told: dict[str, Any] = {
            "said": f"{self._full.context_id}-{self._said}",
            "context": self._full.context_id,
        }
        self.note("asked", **told)
        try:
            view = self.agent.execute_turn(told["said"])
            turn = await view.accepted()
            self.note("ack", turn=turn, **told)
            result = await view
        except LooopyError as error:
            return error
        self.note("done", turn=result.turn, outcome=result.outcome.value, **told)
        return result.error

    async def live(self) -> None:
        """All of it."""
        full = self._full
        if random.Random(full.seed).random() < 0.3:
            full.fill()
            with contextlib.suppress(StorageFull):
                await self.agent.start()
            full.free()
        await self.agent.start()
        full.fill()
        error = None
        for _ in range(_MOST_TURNS):
            if (error := await self.turn()) is not None:
                break
        if not isinstance(error, StorageFull):
            self.wrong(f"the turn without space raised {error!r}")
        if self.agent.state.status is AgentStatus.BUSY:
            self.wrong("the agent is busy with a turn that failed")
        await self._reads_go_on()
        if not isinstance(again := await self.turn(), StorageFull | None):
            self.wrong(f"one more turn without space raised {again!r}")
        full.free()
        for _ in range(2):
            if (error := await self.turn()) is not None:
                self.wrong(f"with space again, a turn raised {error!r}")
        await self.agent.shutdown()

    async def open_again(self) -> None:
        """The next process says one thing more."""
        self._said = _MOST_TURNS * 2
        await self.agent.start()
        if (error := await self.turn()) is not None:
            self.wrong(f"in the next process, a turn raised {error!r}")
        await self.agent.shutdown()

    def write_ledger(self) -> None:
        """Keep what was told, where there is space again."""
        ledger = FileLedger(self._full.ledger)
        for line in self._lines:
            ledger.write(**line)

    async def _reads_go_on(self) -> None:
        try:
            await self.agent.get_messages()
        except LooopyError as error:
            self.wrong(f"without space, reading raised {error!r}")


def one_run(full: Full, folder: Path) -> list[str]:
    """Fill, free, start again, and judge."""
    problems = []
    for part in (Life.live, Life.open_again):
        problems += run_together([partial(_begin, full, part)], folder, 120.0)
    return problems + judge(full.url, full.context_id, [full.ledger], folder, may_lose_turns=True)


def _begin(full: Full, part: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    life = Life(full)
    try:
        asyncio.run(part(life))
    finally:
        full.free()
        life.write_ledger()


def _sqlite(number: int, seed: int) -> Tally:
    """No file may grow beyond a limit."""
    tally = Tally("disk full, sqlite")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for n in range(number):
        size = _size(seed + n)

        def limit(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))

        def lift() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

        with place("sqlite") as url:
            folder = file_of(url).parent
            full = Full(url, f"d{seed + n}", seed + n, folder / "ledger", limit, lift)
            problems = one_run(full, folder)
        tally.runs += 1
        tally.violations += [f"seed {seed + n}, {size} bytes: {problem}" for problem in problems]
    return tally


def _size(seed: int) -> int:
    """Bytes of space, another number for each seed, all sizes about equally often."""
    return seed % _STEPS * _STEP_BYTES + random.Random(seed).randrange(_STEP_BYTES)


def _postgres(driver: str) -> Trial:
    name = f"disk full, {driver}"

    def run_all(number: int, seed: int) -> Tally:
        tally = Tally(name)
        with tempfile.TemporaryDirectory(prefix="looopy-disk-") as kept:
            folder = Path(kept)
            with _small_disk() as disk, _on(disk, postgres(driver)) as url:
                for n in range(number):
                    size = _size(seed + n)
                    filler = disk / "filler"
                    full = Full(
                        url,
                        f"d{seed + n}",
                        seed + n,
                        folder / f"ledger-{n}",
                        partial(_fill, filler, size),
                        partial(filler.unlink, missing_ok=True),
                    )
                    problems = one_run(full, folder)
                    tally.runs += 1
                    tally.violations += [f"seed {seed + n}, {size} bytes: {p}" for p in problems]
                    ask(plain(url), EMPTY)
                    ask(plain(url), "VACUUM FULL")
        return tally

    return Trial(name, 200, run_all)


def _fill(filler: Path, left: int) -> None:
    """Leave so many bytes of the disk that *filler* is on."""
    space = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - left))


@contextlib.contextmanager
def _small_disk() -> Iterator[Path]:
    """A disk in memory that anybody may write to."""
    # Nobody may go down to a folder of root's.
    disk = Path(tempfile.mkdtemp(prefix="looopy-disk-"))
    disk.chmod(0o755)
    options = f"size={_MEMORY_DISK},mode=0777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
        disk.rmdir()


@contextlib.contextmanager
def _on(disk: Path, server: str) -> Iterator[str]:
    """A database at the head, all of it on *disk*, but for the server's log."""
    spot = disk / "tables"
    spot.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(spot, nobody.pw_uid, nobody.pw_gid)
    name = f"looopy_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    ask(plain(server), f"CREATE TABLESPACE {name} LOCATION '{spot}'")
    try:
        ask(plain(server), f"CREATE DATABASE {name} TABLESPACE {name}")
        try:
            migrate.upgrade(plain(url))
            yield url
        finally:
            ask(plain(server), f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        ask(plain(server), f"DROP TABLESPACE {name}")


TRIALS = [Trial("disk full, sqlite", 200, _sqlite)]
if os.geteuid() == 0 and "LOOOPY_TEST_PG" not in os.environ:  # who may mount a disk
    TRIALS += [_postgres(driver) for driver in DRIVERS]
WRONG = [
    wrong(
        TRIALS[0],
        "failed commits pass for done",
        lambda: broken(sqlite, "_commit", lambda commit: lambda *args: commit(*args) and None),
    )
]
