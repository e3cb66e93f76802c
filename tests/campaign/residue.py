"""
Remove data from a SQLite file that holds more, and look for it byte by byte (T25).

Several conversations grow side by side, so their rows move between pages of the file. Then one of
them is erased, deleted or cleared, or a guest's words in all of them are erased, or none is
retained. No word of what went may be in the file, its log or its index of the log. What
stays is whole, and goes on: the words do not come back with later writes.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.campaign.trial import Tally, Trial

from looopy import Agent, AuthContext, open_stores
from looopy.stores.bundle import Stores
from looopy.stores.sql.sqlite import gaps
from looopy.testing import ScriptedProvider, text

_WAYS = ("erase", "erase_person", "delete", "clear", "retain")
_TURNS = 100
_SECRET = re.compile(rb"secretkanari\d+zq")


def _run(count: int, seed: int, *, clears: bool = True) -> Tally:
    tally = Tally("look for erased words in a file")
    for number in range(count):
        chance = random.Random(seed + number)
        way = _WAYS[(seed + number) % len(_WAYS)]
        with mock.patch.object(gaps, "_clear", gaps._clear if clears else _nothing):
            problems = asyncio.run(_one(chance, way))
        tally.runs += 1
        tally.violations += [f"seed {seed + number}: {way}: {problem}" for problem in problems]
    return tally


def _nothing(*_: object) -> bool:
    return False


async def _one(chance: random.Random, way: str) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="looopy-residue-"))
    try:
        url = f"sqlite:///{folder / 'a.db'}"
        async with open_stores(url) as stores:
            await _fill(stores, chance, guest=way == "erase_person")
            await _remove(stores, way)
            # An erasure returns when all is gone; the other two return before.
            problems = [] if way in ("delete", "clear") else _found(folder, "open")
            kept = {n: await stores.messages.list(n) for n in ("c1", "c2", "c3")}
        problems += _found(folder, "closed")
        async with open_stores(url) as stores:
            if {n: await stores.messages.list(n) for n in kept} != kept:
                problems.append("what was not removed has changed")
            await _fill(stores, chance, words="harmless")
        with closing(sqlite3.connect(folder / "a.db")) as connection:
            ((check,),) = connection.execute("PRAGMA integrity_check").fetchall()
        if check != "ok":
            problems.append(f"the file is damaged: {check}")
        return problems + _found(folder, "used again")
    finally:
        shutil.rmtree(folder)


async def _fill(
    stores: Stores, chance: random.Random, *, guest: bool = False, words: str = "secretkanari"
) -> None:
    agents: dict[int, Any] = {}
    for number in range(4):
        model = ScriptedProvider(lambda _: text("fine " * chance.randrange(5, 300)), repeat=True)
        agents[number] = Agent(f"c{number}", llm_provider=model, stores=stores)
        await agents[number].start()
    for number in range(_TURNS):
        who = chance.randrange(4)
        theirs = chance.random() < 0.5 if guest else who == 0
        said = f"{words}{number:04}zq " if theirs else "other words "
        actor = AuthContext("bob" if theirs else "olga") if guest else None
        await agents[who].execute_turn(said * chance.randrange(1, 80), actor)
    for agent in agents.values():
        await agent.shutdown()


async def _remove(stores: Stores, way: str) -> None:
    if way == "erase":
        await stores.contexts.erase("c0")
    elif way == "erase_person":
        await stores.contexts.erase_person("bob")
    elif way == "delete":
        await stores.state.delete("c0")
    elif way == "clear":
        await stores.journal.clear("c0")
    else:
        await stores.contexts.retain(larger_than=0)


def _found(folder: Path, when: str) -> list[str]:
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())
    left = set(_SECRET.findall(content))
    return [f"{len(left)} messages are still in the file ({when})"] if left else []


TRIALS = [Trial("look for erased words in a file", 300, _run)]

# Nothing clears the gaps, so that pages which were split keep what they held.
WRONG = [Trial("leave the gaps of pages as they are", 20, partial(_run, clears=False))]
