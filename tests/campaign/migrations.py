"""
Kill a process that migrates a database, start two at once, and see what is left (T18).

A run takes one step of the schema up or down, the made-up second one with rows in every table, and
kills the process before one of its statements, around its commit or the copying of the file, or at
any moment. The database is then as it was before the step or as it is after it, value by value and
constraint by constraint, and running the step again brings it to its end. Two starters on one old
database both go on, and it was migrated once.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiosqlite  # noqa: F401 - loaded once here, not in each child that is forked
import alembic.command
from sqlalchemy import Engine, event
from sqlalchemy.util import await_only
from tests.campaign.databases import DRIVERS, postgres
from tests.campaign.trial import Tally, Trial
from tests.migrations import databases
from tests.migrations.second import SECOND, first_head, second_migration
from tests.postgres import as_driver, ask

from looopy.stores import open_stores
from looopy.stores.sql import migrate, tables  # noqa: F401 - as above
from looopy.stores.sql.postgres import migrate as pg_migrate  # noqa: F401 - as above
from looopy.stores.sql.sqlite import migrate as sqlite_migrate
from looopy.stores.sql.statements import HEAD
from looopy.testing.children import fork, run, wait
from looopy.testing.contracts.erasure import a_whole_context

_ENGINES = ("sqlite", "postgresql")
_ANY_TIME = 0.25  # of the kills, at no particular place
_TAIL = 600  # characters of what a child said at its end


@dataclass
class Step:
    """A migration from one revision to another; `None` is no schema at all."""

    start: str | None
    action: str
    target: str
    points: int = 0
    seconds: float = 0.0
    begun: str = ""  # a database at `start`, with rows, to be copied
    before: object = None  # what is in it, and what is when the step was done
    after: object = None

    def __str__(self) -> str:
        return f"{self.action} from {self.start or 'nothing'} to {self.target}"


_STEPS = (
    (None, "upgrade", HEAD),
    (HEAD, "upgrade", SECOND),
    (SECOND, "downgrade", HEAD),
    (HEAD, "downgrade", "base"),
)


# --- databases to be broken ---


@dataclass
class Place:
    """Where the databases of one trial are."""

    engine: str
    folder: Path
    names: list[str] = field(default_factory=list)

    def new(self, like: str | None = None) -> str:
        """The URL of a database of its own: empty, or a copy."""
        name = f"m_{secrets.token_hex(6)}"
        if self.engine == "sqlite":
            path = self.folder / name / "c.db"
            path.parent.mkdir()
            if like is not None:
                shutil.copyfile(like.removeprefix("sqlite:///"), path)
            return f"sqlite:///{path}"
        template = "template0" if like is None else urlsplit(like).path[1:]
        ask(_server(), f"CREATE DATABASE {name} TEMPLATE {template}")
        self.names.append(name)
        return urlsplit(_server())._replace(path=f"/{name}").geturl()

    def drop(self, url: str) -> None:
        """Forget a database."""
        if self.engine == "sqlite":
            shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)
        else:
            name = urlsplit(url).path[1:]
            ask(_server(), f"DROP DATABASE {name} WITH (FORCE)")
            self.names.remove(name)

    def close(self) -> None:
        """Forget all of them."""
        for name in self.names:
            ask(_server(), f"DROP DATABASE {name} WITH (FORCE)")
        shutil.rmtree(self.folder)


def _server() -> str:
    return urlsplit(postgres("asyncpg"))._replace(scheme="postgresql").geturl()


def _seen(url: str) -> tuple[object, object]:
    return databases.dump(url), databases.described(url)


def _revision(url: str) -> str | None:
    found = databases.dump(url).get("looopy_version")
    return found[0]["version_num"] if found else None


# --- a child that migrates ---


def _migrate(url: str, step: Step, kill_at: int | None, *, careless: bool) -> None:
    """Take *step*, and die at the place with number *kill_at*; else say how many there were."""
    passed = 0

    def place(*_: object) -> None:
        nonlocal passed
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    def copied(copy: Callable[..., None], *args: object) -> None:
        place()
        copy(*args)
        place()

    event.listen(Engine, "before_cursor_execute", place)
    event.listen(Engine, "commit", place)
    sqlite_migrate.back_up = partial(copied, sqlite_migrate.back_up)
    if careless:
        _commit_each_statement()
    getattr(migrate, step.action)(url, step.target)
    place()
    print(f"places {passed}", flush=True)  # noqa: T201 - goes to the parent


def _commit_each_statement() -> None:
    """What the drivers do when they are left alone."""

    @event.listens_for(Engine, "after_cursor_execute")
    def commit(connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().upper().startswith(("CREATE", "DROP", "ALTER", "UPDATE", "INSERT")):
            raw = connection.connection.driver_connection  # type: ignore[attr-defined] # SQLAlchemy's
            await_only(raw.execute("COMMIT"))
            await_only(raw.execute("BEGIN"))


def _take(
    url: str, step: Step, log: Path, *, kill_at: int | None = None, careless: bool = False
) -> int:
    return fork(lambda: _migrate(url, step, kill_at, careless=careless), log)


def _prepare(place: Place, step: Step) -> None:
    """Make the database that a step begins with, and see how it ends undisturbed."""
    log = place.folder / "prepare.log"
    url = place.new()
    if step.start is not None:
        run(partial(migrate.upgrade, url, HEAD), log)
        run(partial(_fill, url), log)
        run(partial(migrate.upgrade, url, step.start), log)
    step.begun, step.before = url, _seen(url)
    done = place.new(url)
    log.unlink(missing_ok=True)
    began = time.monotonic()
    if wait(_take(done, step, log)) != 0:
        raise RuntimeError(log.read_text())
    step.seconds = time.monotonic() - began
    step.points = int(log.read_text().split()[-1])
    step.after = _seen(done)
    place.drop(done)


# --- trials ---


def _kill(engine: str, count: int, seed: int, *, careless: bool = False) -> Tally:
    tally = Tally(f"kill a migration, {engine}")
    place = Place(engine, Path(tempfile.mkdtemp(prefix="looopy-m-")))
    try:
        with second_migration(place.folder):
            steps = [Step(*step) for step in _STEPS]
            for step in steps:
                _prepare(place, step)
            for number in range(count):
                chance = random.Random(seed + number)
                killed, found = _one_kill(place, steps, chance, careless=careless)
                tally.runs += killed
                tally.missed += not killed
                tally.violations += [f"seed {seed + number}: {problem}" for problem in found]
    finally:
        place.close()
    return tally


def _one_kill(
    place: Place, steps: list[Step], chance: random.Random, *, careless: bool
) -> tuple[bool, list[str]]:
    step = chance.choice(steps)
    url = place.new(step.begun)
    own = url if place.engine == "sqlite" else as_driver(url, chance.choice(DRIVERS))
    log = place.folder / f"{secrets.token_hex(4)}.log"
    found = []
    try:
        if chance.random() < _ANY_TIME and not careless:
            where = f"{step}, at any time"
            status = wait(_take(own, step, log), kill_after_s=chance.uniform(0, step.seconds))
        else:
            kill_at = chance.randrange(step.points)
            where = f"{step}, at place {kill_at} of {step.points}"
            status = wait(_take(own, step, log, kill_at=kill_at, careless=careless))
        if status not in (0, -signal.SIGKILL):
            return False, [f"{where}: it failed: {log.read_text()[-_TAIL:]}"]
        left = _seen(url)
        if left not in (step.before, step.after):
            found.append(f"{where}: left at {_revision(url)}, neither as before nor as after it")
        again = wait(_take(url, step, log))
        if again != 0:
            found.append(f"{where}: it could not be run again: {log.read_text()[-_TAIL:]}")
        elif _seen(url) != step.after:
            found.append(f"{where}: run again, it came to another end")
        found += [f"{where}: {problem}" for problem in _copy_is_whole(url, step)]
        return status == -signal.SIGKILL, found
    finally:
        place.drop(url)


def _copy_is_whole(url: str, step: Step) -> list[str]:
    """The copy that SQLite files with rows leave beside themselves."""
    if not url.startswith("sqlite"):
        return []
    path = Path(url.removeprefix("sqlite:///"))
    copies = sorted(path.parent.glob("*.before-leaving-*"))
    problems = [
        f"{copy.name} is not what was there before"
        for copy in copies
        if not copy.name.endswith(".unfinished") and _seen(f"sqlite:///{copy}") != step.before
    ]
    if any(copy.name.endswith(".unfinished") for copy in copies):
        problems.append("an unfinished copy was left behind")
    if step.start is not None and not copies:
        problems.append("no copy was made")
    return problems


def _start_at_once(engine: str, count: int, seed: int) -> Tally:
    tally = Tally(f"start two at once, {engine}")
    place = Place(engine, Path(tempfile.mkdtemp(prefix="looopy-m-")))
    try:
        with second_migration(place.folder):
            ups = [Step(start, "upgrade", SECOND) for start in (None, HEAD)]
            for step in ups:
                _prepare(place, step)
            for number in range(count):
                step = random.Random(seed + number).choice(ups)
                found = _one_start(place, step)
                tally.runs += 1
                tally.violations += [f"seed {seed + number}: {step}: {one}" for one in found]
    finally:
        place.close()
    return tally


def _one_start(place: Place, step: Step) -> list[str]:
    url = place.new(step.begun)
    logs = [place.folder / f"{secrets.token_hex(4)}.log" for _ in range(2)]
    ready, go = os.pipe()
    urls = [url if place.engine == "sqlite" else as_driver(url, name) for name in DRIVERS]
    try:
        starters = [
            fork(partial(_open, own, ready, go), log) for own, log in zip(urls, logs, strict=True)
        ]
        os.close(go)  # both have been waiting for this
        statuses = [wait(starter) for starter in starters]
        said = "".join(log.read_text() for log in logs if log.exists())
        problems = [] if statuses == [0, 0] else [f"{statuses}: {said[-_TAIL:]}"]
        if _seen(url) != step.after:
            problems.append("the database is not as one starter leaves it")
        return problems + _copy_is_whole(url, step)
    finally:
        os.close(ready)
        place.drop(url)


def _fill(url: str) -> None:
    """Rows in every table, by the stores of the first schema: the head may be another by now."""

    async def fill() -> None:
        async with open_stores(url) as stores:
            await a_whole_context(stores)

    with first_head():
        asyncio.run(fill())


def _open(url: str, ready: int, go: int) -> None:
    os.close(go)
    os.read(ready, 1)

    async def start() -> None:
        async with open_stores(url, migrate=True) as stores:
            await stores.state.list()

    asyncio.run(start())


assert alembic.command  # loaded once here, not in each child that is forked

TRIALS = [
    *(Trial(f"kill a migration, {e}", 100, partial(_kill, e)) for e in _ENGINES),
    *(Trial(f"start two at once, {e}", 50, partial(_start_at_once, e)) for e in _ENGINES),
]

# A migration that commits each statement: what a kill leaves is neither before nor after.
WRONG = [
    Trial(f"kill a careless migration, {e}", 20, partial(_kill, e, careless=True)) for e in _ENGINES
]
