"""
What all tests share: the ground of a run, the order of its tests, their examples, Postgres.

Postgres is for the tests that ask for it: one server a process, started when the first one does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import pytest
from tests import ground, measuring
from tests.cutting import Cutter
from tests.postgres import EMPTY, Server, Standing, ask
from tests.preloaded import Preloaded

from looopy.stores.sql import migrate

# No test fails because the machine is slow. CI tries the same examples each time, so that a change
# is not refused for what an earlier one did; whoever asks for more examples wants new ones.
hypothesis.settings.register_profile(
    "looopy",
    deadline=None,
    max_examples=int(os.environ.get("LOOOPY_EXAMPLES", "60")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=ground.in_ci() and "LOOOPY_EXAMPLES" not in os.environ,
)
hypothesis.settings.load_profile("looopy")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the ground before a worker is started; workers inherit the environment."""
    ground.hear_ctrl_c()
    if not hasattr(config, "workerinput"):
        folder, remove = ground.prepare()
        config.add_cleanup(remove)
        ground.keep_bytecode(folder)
        if "not big_model" in config.option.markexpr:  # that one downloads
            ground.trust_nobody(folder)
    if (plugin := measuring.plugin()) is not None:
        config.pluginmanager.register(plugin)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """
    Keep what is collected out of every later collection of garbage.

    It stays until the end: ten thousand tests, and all that they import. To look at it took a
    second, for each `gc.collect()` of a test and each full collection that comes by itself.
    """
    with ground.compiling_once(getattr(session.config, "workerinput", {}).get("workerid")):
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Note the tests, and begin with what takes long of those that are chosen, in every worker."""
    config.stash[ground.COLLECTED] = [item.nodeid for item in items]
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = ground.spread(items, _takes_long, workers)


def _takes_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("campaign") is not None


@pytest.fixture(scope="module")
def set_aside():
    """
    Keep what is there by now out of the collections of garbage of a module's tests.

    Each of them looked at all that other tests had imported and kept since: a second of CPU.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def preloaded():
    """The process whose forks are the program."""
    with contextlib.closing(Preloaded()) as waiting:
        yield waiting


@pytest.fixture(scope="session")
def postgres_server():
    """A function from the name of a database to its URL, on the server of this run."""
    if given := os.environ.get("LOOOPY_TEST_PG"):
        yield lambda database: urlunsplit(urlsplit(given)._replace(path=f"/{database}"))
        return
    server = Server()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@pytest.fixture(scope="session")
def new_database(postgres_server: Callable[[str], str]):
    """A function that makes a database and returns its URL; a server of others is left clean."""
    names: list[str] = []
    admin = postgres_server("postgres")
    ours = "LOOOPY_TEST_PG" not in os.environ  # a database goes with its server, and is not logged
    how = "STRATEGY FILE_COPY" if ours else ""

    def make(template: str = "template0") -> str:
        names.append(f"looopy_{secrets.token_hex(6)}")
        ask(admin, f"CREATE DATABASE {names[-1]} TEMPLATE {template} {how}")
        return postgres_server(names[-1])

    yield make
    for name in () if ours else names:
        ask(admin, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_at_head(new_database):
    """The URL of a database that is at the head; tests take turns in it."""
    url = new_database()
    migrate.upgrade(url)
    return url


@pytest.fixture(scope="session")
def emptied(postgres_at_head: str):
    """A function that deletes the rows of that database, on one connection that stays open."""
    with contextlib.closing(Standing(postgres_at_head)) as connection:
        yield partial(connection.run, EMPTY)


@pytest.fixture
def postgres(postgres_at_head: str, emptied: Callable[[], None]) -> str:
    """The URL of a database at the head, without rows."""
    emptied()
    return postgres_at_head


@pytest.fixture
def fresh_postgres(new_database) -> str:
    """The URL of a database without a schema, of the test's own."""
    return new_database()


@pytest.fixture
async def cutter(postgres: str):
    """A proxy before that database."""
    async with Cutter(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """A SQLite file at the head, to be copied: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("sqlite") / "empty.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_file(empty_database: Path, tmp_path: Path) -> Path:
    """A SQLite file of the test's own, at the head and without rows."""
    return Path(shutil.copy(empty_database, tmp_path / "test.db"))
