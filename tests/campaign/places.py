"""
What trials with several processes stand on: a database of their own, and children run together.

Every process of a trial is forked from the one that runs it. A child leaves what it was told in a
ledger, a plain file outside of what is tested.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.campaign.databases import DRIVERS, new_sqlite, postgres
from tests.campaign.trial import Tally, Trial
from tests.postgres import ask

from looopy.stores.sql import migrate
from looopy.testing.children import fork, run, wait

STORES = ("sqlite", *DRIVERS)


@contextlib.contextmanager
def place(store: str) -> Iterator[str]:
    """The URL of an empty database, for one of `STORES` or stores of one's own; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="looopy-campaign-") as kept:
        folder = Path(kept)
        if store == "sqlite":
            yield new_sqlite(folder)
            return
        if store == "own table":
            yield f"own:table:{folder}:"
            return
        server = postgres(store)
        name = f"looopy_{secrets.token_hex(6)}"
        url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        ask(plain(server), f"CREATE DATABASE {name}")
        try:
            run(partial(migrate.upgrade, plain(url)), folder / "log")
            yield url
        finally:
            ask(plain(server), f"DROP DATABASE {name} WITH (FORCE)")


def plain(url: str) -> str:
    """The URL of a Postgres database without its driver."""
    return url.replace("+asyncpg", "", 1).replace("+psycopg", "", 1)


def file_of(url: str) -> Path:
    """The file of a SQLite URL."""
    return Path(url.removeprefix("sqlite:///"))


@contextlib.contextmanager
def broken(module: ModuleType | type, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Break looopy on purpose, in this process and those that are forked from it meanwhile."""
    was = getattr(module, name)
    instead = change(was)
    if instead == was:
        raise LookupError(f"{name} is no longer what it was: break something else")
    setattr(module, name, instead)
    try:
        yield
    finally:
        setattr(module, name, was)


def wrong(
    trial: Trial, why: str, breaking: Callable[[], contextlib.AbstractContextManager[None]]
) -> Trial:
    """*trial* on code that is broken on purpose: it has to find that out."""

    def run_broken(count: int, seed: int) -> Tally:
        with breaking():
            tally = trial.run(count, seed)
        tally.name = name
        return tally

    name = f"{trial.name}: {why}"
    return Trial(name, trial.full, run_broken)


def rows_of(url: str, statement: str, *args: object) -> list[tuple[Any, ...]]:
    """Ask one statement, its parameters marked by `?`, beside the stores."""
    if url.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(file_of(url), timeout=60)) as connection:
            return connection.execute(statement, args).fetchall()
    return ask(plain(url), statement.replace("?", "%s"), *args)


def run_together(
    bodies: Sequence[Callable[[], None]], folder: Path, patience_s: float
) -> list[str]:
    """Run each of *bodies* in a process of its own, all at the same time; what went wrong."""
    logs = [folder / f"log-{n}" for n in range(len(bodies))]
    pids = [fork(body, log) for body, log in zip(bodies, logs, strict=True)]
    problems = []
    for n, (pid, log) in enumerate(zip(pids, logs, strict=True)):
        if status := wait(pid, kill_after_s=patience_s):
            problems.append(f"process {n} ended with {status}: {log.read_text()[-1500:]}")
    return problems


def lines_of(ledger: Path) -> list[dict[str, Any]]:
    """What was noted, in order; nothing by a process that did not come so far."""
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text().splitlines() if line]
