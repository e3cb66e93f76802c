"""
Stories: told to their end by one process after another, each killed at another point (T9).

A story is a few turns of one context. It is told once for each boundary of a turn and each pass of
it, killed there, and told on by a process of its own; then again, with the recovery killed as well.
A share of a trial leaves passes out, never a boundary.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.databases import new_sqlite
from tests.campaign.trial import Tally, Trial

from looopy._failpoints import NAMES, arm
from looopy.testing.children import fork, run, wait

TURNS = 12
"""A story takes fewer; one that does not end is a violation."""

_TURN_NAMES = tuple(name for name in NAMES if name.startswith("B"))
_RECOVERY_NAMES = tuple(name for name in NAMES if name.startswith("R"))
_PASSES = 40  # of one boundary; fewer in any story
_TAIL = 2000  # characters of what a child said at its end


class Ledger:
    """What happened, a line each, in the order in which it did; it outlives whoever wrote it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def note(self, *words: str) -> None:
        """Write a line."""
        with self.path.open("a") as file:
            file.write(" ".join(words) + "\n")

    def lines(self) -> list[str]:
        """All of it."""
        return self.path.read_text().splitlines()


@dataclass(frozen=True)
class Story:
    """
    One story.

    Attributes:
        name: Of its trial.
        full: How many kills there are when none is left out.
        tell: Tells it to its end, from wherever it stands, each turn with an agent of its own.
        judge: What is wrong with it once it has ended.
        twice: Whether the recovery from each kill is killed as well.
    """

    name: str
    full: int
    tell: Callable[[str, Ledger], Coroutine[Any, Any, None]]
    judge: Callable[[str, Ledger], Coroutine[Any, Any, list[str]]]
    twice: bool = True

    @property
    def trial(self) -> Trial:
        """All of its kills."""
        return Trial(self.name, self.full, self._kill)

    def _kill(self, count: int, seed: int) -> Tally:
        """About *count* kills: every pass, or each time so many later, from one the seed says."""
        asyncio.run(self._tell_once())
        tally = Tally(self.name)
        step = max(1, round(self.full / count))
        kills: Counter[str] = Counter()
        for name in _TURN_NAMES:
            for number in range(1 + seed % step, _PASSES, step):
                if not self._killed(tally, kills, f"{name}:{number}"):
                    break
            if not kills[name]:  # it is passed less often
                self._killed(tally, kills, f"{name}:1")
        wanted = (*_TURN_NAMES, *_RECOVERY_NAMES) if self.twice else _TURN_NAMES
        tally.violations += [f"nobody was killed at {n}" for n in wanted if not kills[n]]
        return tally

    def _killed(self, tally: Tally, kills: Counter[str], first: str) -> bool:
        """Kill there, and again in the recovery from it; whether there was somebody to kill."""
        killed = self._case(tally, [first])
        kills[first.partition(":")[0]] += killed
        if killed and self.twice:
            second = _RECOVERY_NAMES[tally.runs % len(_RECOVERY_NAMES)]
            kills[second] += self._case(tally, [first, second]) - 1
        return bool(killed)

    def _case(self, tally: Tally, ends: list[str]) -> int:
        """How many of the lives were killed; what is wrong afterwards is a violation."""
        folder = Path(tempfile.mkdtemp(prefix="looopy-story-"))
        log, report, kills = folder / "log", folder / "report", 0
        try:
            url, ledger = new_sqlite(folder), Ledger(folder / "ledger")
            for end in ends:
                status = wait(fork(partial(self._live, url, ledger, end), log))
                if status not in (0, -signal.SIGKILL):
                    tally.violations.append(f"{ends}: {log.read_text()[-_TAIL:]}")
                    return kills
                kills += status != 0

            def finish() -> None:
                self._live(url, ledger, None)
                report.write_text(json.dumps(asyncio.run(self.judge(url, ledger))))

            try:
                run(finish, log)
            except RuntimeError as error:
                tally.violations.append(f"{ends}: {str(error)[-_TAIL:]}")
            else:
                wrong = json.loads(report.read_text())
                tally.violations += [f"{ends}: {what}" for what in wrong]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            tally.runs += kills == len(ends)
            tally.missed += kills != len(ends)
        return kills

    def _live(self, url: str, ledger: Ledger, failpoint: str | None) -> None:
        arm(failpoint)
        asyncio.run(self.tell(url, ledger))

    async def _tell_once(self) -> None:
        """Load what every child needs, with no connection left open."""
        folder = Path(tempfile.mkdtemp(prefix="looopy-story-"))
        try:
            url, ledger = new_sqlite(folder), Ledger(folder / "ledger")
            await self.tell(url, ledger)
            assert await self.judge(url, ledger) == []
        finally:
            shutil.rmtree(folder, ignore_errors=True)
