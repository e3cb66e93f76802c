"""What only a file can promise: its settings, its threads, its neighbours, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest

from looopy import Agent
from looopy.errors import (
    ConfigurationError,
    SchemaOutOfDate,
    StorageFull,
    StoreConflict,
    StoreUnavailable,
)
from looopy.stores import open_stores
from looopy.stores.records import EntryKind
from looopy.stores.sql import migrate
from looopy.stores.sql.driver import Query
from looopy.stores.sql.migrate import bring_to_head
from looopy.stores.sql.sqlite import connection as sqlite
from looopy.stores.sql.sqlite import schema as fresh
from looopy.stores.sql.sqlite.backups import backups_of
from looopy.stores.sql.sqlite.driver import SQLiteDriver
from looopy.stores.sql.sqlite.gaps import clear_some
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, ends, said, user

PROCESSES = 4
PATIENCE_S = 300  # ends what hangs, and nothing that a slow machine does


def _url(path):
    return f"sqlite:///{path}"


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def others():
    """Threads of other tests, such as those of stores that a test left open, are not looked at."""
    _before.clear()
    _before.update(threading.enumerate())


def _ours():
    return [t.name for t in _new_threads()]


def _new_threads():
    return [t for t in set(threading.enumerate()) - _before if t.name.startswith("looopy-")]


_ORPHAN = (
    "INSERT INTO looopy_inbox (tenant_id, context_id, entry, kind, created_at, body)"
    " VALUES ('t', 'nowhere', 1, 'steer', 0, '{}')"
)


def _one(sql, **params):
    """An operation of one statement; it answers with the rows."""

    def work():
        return (yield Query(sql, params))

    return work


@pytest.fixture
async def driver(sqlite_file):
    """An open driver on a file of the test's own, with little patience."""
    opened = SQLiteDriver(sqlite_file, bring_to_head=bring_to_head, patience_s=0.05)
    await opened.open()
    yield opened
    await opened.close()


# --- settings ---


@pytest.mark.parametrize("write", [True, False])
async def test_each_connection_has_the_settings_the_promises_rest_on(driver, write):
    """A write-ahead log, a sync for each commit, foreign keys, and a short wait inside SQLite."""
    for name, wanted in (
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("foreign_keys", 1),
        ("busy_timeout", 200),
        ("secure_delete", 1),
        ("query_only", 0 if write else 1),
    ):
        assert await driver.run(_one(f"PRAGMA {name}"), write=write) == [(wanted,)]


async def test_reads_cannot_write_to_the_file(driver):
    """The connection that reads refuses every change."""
    with pytest.raises(StoreUnavailable):
        await driver.run(_one("DELETE FROM looopy_contexts"), write=False)


async def test_a_read_sees_one_snapshot(driver):
    """Two statements of one read see the same rows, though another commits in between."""
    count = "SELECT COUNT(*) FROM looopy_contexts"
    reached, go_on = threading.Event(), threading.Event()

    def two_reads():
        first = yield Query(count, {})
        reached.set()
        assert go_on.wait(PATIENCE_S)
        second = yield Query(count, {})
        return first, second

    reading = asyncio.create_task(driver.run(two_reads, write=False))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    await driver.run(_one(_INSERT, tenant="t", context="c"), write=True)
    go_on.set()
    assert await reading == ([(0,)], [(0,)])
    assert await driver.run(_one(count), write=False) == [(1,)]


_INSERT = (
    "INSERT INTO looopy_contexts (tenant_id, context_id, epoch, turn_count, last_position,"
    " last_seq,"
    " visible_from, cleared_seq, state, metadata, version, created_at, last_activity)"
    " VALUES (:tenant, :context, 0, 0, 0, 0, 1, 0, '{}', '{}', 0, 0, 0)"
)


async def test_a_row_without_a_tenant_is_refused_by_the_database(driver):
    """The last line of defence, should a caller get past all others."""
    with pytest.raises(StoreUnavailable):
        await driver.run(_one(_INSERT, tenant="", context="c"), write=True)


# --- one transaction for many ---


async def test_operations_that_wait_are_committed_together(driver, sqlite_file):
    """While one is carried out the others gather, and share one commit."""
    reached, go_on = threading.Event(), threading.Event()

    def slow():
        reached.set()
        assert go_on.wait(PATIENCE_S)
        yield Query("SELECT 1", {})

    first = asyncio.create_task(driver.run(slow, write=True))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    version = "PRAGMA data_version"
    with contextlib.closing(sqlite3.connect(sqlite_file)) as other:
        before = other.execute(version).fetchone()[0]
        waiting = [
            asyncio.create_task(driver.run(_one(_INSERT, tenant="t", context=str(n)), write=True))
            for n in range(5)
        ]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *waiting)
        assert other.execute(version).fetchone()[0] == before + 1
        assert other.execute("SELECT COUNT(*) FROM looopy_contexts").fetchone() == (5,)


@pytest.mark.parametrize("kind", ["refusal", "database"])
async def test_a_failing_operation_of_a_group_rolls_back_alone(driver, kind):
    """Of those that are committed together, the others are kept."""
    reached, go_on = threading.Event(), threading.Event()

    def slow():
        reached.set()
        assert go_on.wait(PATIENCE_S)
        yield Query("SELECT 1", {})

    def fails():
        yield Query(_INSERT, {"tenant": "t", "context": "half"})
        if kind == "refusal":
            raise StoreConflict("no", expected=1, actual=2)
        yield Query(_INSERT, {"tenant": "t", "context": "half"})

    first = asyncio.create_task(driver.run(slow, write=True))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    works = [
        _one(_INSERT, tenant="t", context="before"),
        fails,
        _one(_INSERT, tenant="t", context="after"),
    ]
    waiting = [asyncio.create_task(driver.run(work, write=True)) for work in works]
    await asyncio.sleep(0)
    go_on.set()
    await first
    before, failed, after = await asyncio.gather(*waiting, return_exceptions=True)
    assert (before, after) == ([], [])
    assert type(failed) is (StoreConflict if kind == "refusal" else StoreUnavailable)
    names = await driver.run(
        _one("SELECT context_id FROM looopy_contexts ORDER BY context_id"), write=False
    )
    assert names == [("after",), ("before",)]


async def test_a_failing_commit_raises_in_every_operation_of_its_group(driver):
    """Nobody hears of success before the disk has it, whoever was to blame."""
    reached, go_on = threading.Event(), threading.Event()

    def slow():
        reached.set()
        assert go_on.wait(PATIENCE_S)
        yield Query("SELECT 1", {})

    def fails_at_the_end():
        yield Query("PRAGMA defer_foreign_keys = ON", {})
        yield Query(_ORPHAN, {})

    first = asyncio.create_task(driver.run(slow, write=True))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    works = [_one(_INSERT, tenant="t", context="innocent"), fails_at_the_end]
    waiting = [asyncio.create_task(driver.run(work, write=True)) for work in works]
    await asyncio.sleep(0)
    go_on.set()
    await first
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in failed] == [StoreUnavailable] * 2
    assert await driver.run(_one("SELECT context_id FROM looopy_contexts"), write=False) == []


async def test_an_operation_whose_caller_was_cancelled_is_carried_out(driver):
    """Cancelled is not rolled back, and leaves no transaction open."""
    reached, go_on = threading.Event(), threading.Event()

    def slow():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        reached.set()
        assert go_on.wait(PATIENCE_S)

    task = asyncio.create_task(driver.run(slow, write=True))
    await asyncio.to_thread(reached.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await driver.run(_one(_INSERT, tenant="t", context="d"), write=True)
    assert await driver.run(_one("SELECT COUNT(*) FROM looopy_contexts"), write=False) == [(2,)]


async def test_a_defect_in_an_operation_reaches_only_its_caller(driver):
    """An error that is none of ours takes the operation back and leaves the thread working."""

    def broken():
        yield Query(_INSERT, {"tenant": "t", "context": "c"})
        raise ZeroDivisionError

    for write in (True, False):
        with pytest.raises(ZeroDivisionError if write else StoreUnavailable):
            await driver.run(broken, write=write)
    assert await driver.run(_one("SELECT COUNT(*) FROM looopy_contexts"), write=False) == [(0,)]


# --- neighbours ---


async def test_a_file_locked_for_too_long_is_unavailable(driver, sqlite_file):
    """After the deadline the error says so, nothing was written, and the next write works."""
    with contextlib.closing(sqlite3.connect(sqlite_file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked") as refused:
            await driver.run(_one(_INSERT, tenant="t", context="c"), write=True)
        assert refused.value.outcome_known
        assert await driver.run(_one("SELECT COUNT(*) FROM looopy_contexts"), write=False) == [(0,)]
        other.execute("ROLLBACK")
    await driver.run(_one(_INSERT, tenant="t", context="c"), write=True)


async def test_a_write_has_the_file_before_it_reads(driver, sqlite_file):
    """One that only read would be refused at its first write if another process wrote between."""
    refused = []

    def work(name):
        yield Query("SELECT COUNT(*) FROM looopy_contexts", {})
        with contextlib.closing(
            sqlite3.connect(sqlite_file, timeout=0, isolation_level=None)
        ) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        yield Query(_INSERT, {"tenant": "t", "context": name})

    await driver.run(partial(work, "alone"), write=True)
    together = (driver.run(partial(work, f"{n}"), write=True) for n in range(4))
    await asyncio.gather(*together)
    assert refused == ["database is locked"] * 5


_WRITER = """
import asyncio, sys
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

async def main(url, name, count):
    async with open_stores(url) as stores:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(count):
            await stores.messages.append("shared", [user(f"{name}.{n}")])

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def _start(code, *args):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_processes_that_write_to_one_file_at_once_all_succeed(sqlite_file):
    """None of them is told that the database is locked, and nothing is lost or doubled."""
    path, count = sqlite_file, 25
    writers = [_start(_WRITER, _url(path), name, count) for name in range(PROCESSES)]
    for writer in writers:  # each has opened the file: let them write together
        assert await asyncio.to_thread(writer.stdout.readline) == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = await asyncio.to_thread(writer.communicate)
        assert (errors, writer.returncode) == ("", 0)
    async with open_stores(_url(path)) as stores:
        found = await stores.messages.records("shared")
    assert [r.position for r in found] == list(range(1, PROCESSES * count + 1))
    for name in range(PROCESSES):
        mine = [r.message for r in found if r.message.text.startswith(f"{name}.")]
        assert mine == [user(f"{name}.{n}") for n in range(count)]


async def test_tasks_that_write_to_contexts_of_their_own_all_succeed(sqlite_stores):
    """Many at once, each a whole turn: nothing is lost between them."""

    async def turns(n):
        for epoch in range(3):
            await _turn(sqlite_stores, f"context-{n}", epoch)

    await asyncio.gather(*(turns(n) for n in range(32)))
    for n in range(32):
        assert await sqlite_stores.messages.count(f"context-{n}") == 6


async def _turn(stores, context_id, epoch):
    claimed = await begin(stores, epoch, context_id=context_id)
    events = [said(answer("a"), context_id=context_id), ends(context_id=context_id)]
    await commit(stores, claimed, events, context_id=context_id, release=True)


# --- opening and closing ---


async def test_closing_leaves_no_thread_and_no_log(tmp_path):
    """Twice is once; the file alone is left, and opening again finds what was kept."""
    path = tmp_path / "chat.db"
    stores = open_stores(_url(path))
    for _ in range(2):
        async with stores:
            assert sorted(_ours()) == ["looopy-reader", "looopy-writer"]
            await stores.messages.append(CONTEXT, [user("a")])
        await stores.__aexit__(None, None, None)
        assert _ours() == []
        assert [p.name for p in tmp_path.iterdir()] == ["chat.db"]
    async with stores:
        assert await stores.messages.count(CONTEXT) == 2


async def test_closing_carries_out_what_was_accepted(sqlite_file):
    """Writes that wait when the stores are closed are committed first."""
    stores = open_stores(_url(sqlite_file))
    async with stores:
        waiting = [
            asyncio.create_task(stores.messages.append(CONTEXT, [user(str(n))])) for n in range(9)
        ]
        await asyncio.sleep(0)
    assert sorted(await asyncio.gather(*waiting)) == list(range(1, 10))


async def test_unclosed_stores_leave_no_thread(sqlite_file):
    """Once they are forgotten, their threads end by themselves."""
    driver = SQLiteDriver(sqlite_file, bring_to_head=bring_to_head)
    await driver.open()
    threads = _new_threads()
    del driver
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_a_program_that_forgets_to_close_ends_without_complaint(sqlite_file):
    """It neither hangs nor prints anything."""
    code = """
import asyncio, sys
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

async def main():
    stores = await open_stores(sys.argv[1]).__aenter__()
    print(await stores.messages.append("c", [user("kept")]))

asyncio.run(main())
"""
    out, errors = await asyncio.to_thread(_start(code, _url(sqlite_file)).communicate, "")
    assert (out, errors) == ("1\n", "")
    async with open_stores(_url(sqlite_file)) as stores:
        assert await stores.messages.count("c") == 1


async def test_a_forked_child_is_refused_until_it_opens_its_own_stores(sqlite_file):
    """It has neither the threads nor the right to the connection; the parent goes on."""
    code = """
import asyncio, os, sys
from looopy.errors import StoreUnavailable
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

async def main():
    async with open_stores(sys.argv[1]) as stores:
        await stores.messages.append("c", [user("parent")])
        pid = os.fork()
        if pid == 0:
            try:
                stores.messages.append("c", [user("child")]).send(None)
            except StoreUnavailable as error:
                await stores.__aexit__(None, None, None)
                os._exit(7 if "fork" in str(error) else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(await stores.messages.append("c", [user("parent")]))

asyncio.run(main())
"""
    out, errors = await asyncio.to_thread(_start(code, _url(sqlite_file)).communicate, "")
    assert (out, errors) == ("7\n2\n", "")


async def test_opening_a_file_at_the_head_loads_no_database_library(sqlite_file):
    """A restarted process must take a turn within a second: SQLAlchemy would take most of it."""
    code = """
import asyncio, sys
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import a_turn

async def main():
    async with open_stores(sys.argv[1]) as stores:
        await a_turn(stores)

asyncio.run(main())
print(sorted({"sqlalchemy", "alembic", "aiosqlite"} & set(sys.modules)))
"""
    out, errors = await asyncio.to_thread(_start(code, _url(sqlite_file)).communicate, "")
    assert (out, errors) == ("[]\n", "")


async def test_a_first_turn_imports_only_needed_modules(sqlite_file):
    """A process that goes on with a context waits for no client of HTTP and no finder of typos."""
    code = """
import asyncio, sys
from looopy import Agent, open_stores
from looopy.testing import ScriptedProvider, text

async def main():
    async with open_stores(sys.argv[1]) as stores:
        async with Agent("ada", llm_provider=ScriptedProvider([text("hi")]), stores=stores) as ada:
            await ada.execute_turn("hello")

asyncio.run(main())
print(sorted({"http.client", "email.parser", "difflib"} & set(sys.modules)))
"""
    out, errors = await asyncio.to_thread(_start(code, _url(sqlite_file)).communicate, "")
    assert (out, errors) == ("[]\n", "")


# --- a file that is gone ---


def _remove(path):
    path.unlink()


def _remove_all(path):
    for name in _names(path):
        name.unlink()


def _names(path):
    return [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]


def _remove_folder(path):
    shutil.rmtree(path.parent)


def _rename(path):
    path.rename(path.with_name("other.db"))


def _replace(path):
    other = path.with_name("other.db")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    other.replace(path)


def _remove_the_name_of_two(path):
    path.with_name("link.db").hardlink_to(path)
    path.unlink()


def _remove_the_log(path):
    _names(path)[1].unlink()


def _remove_the_shared_memory(path):
    _names(path)[2].unlink()


_LOSSES = [
    _remove,
    _remove_all,
    _remove_folder,
    _rename,
    _replace,
    _remove_the_name_of_two,
    _remove_the_log,
    _remove_the_shared_memory,
]


@pytest.mark.parametrize("lose", _LOSSES)
async def test_a_file_that_is_gone_refuses_writes_and_reads(tmp_path, lose):
    """Writes and reads are refused from then on, and the error names what is gone."""
    path = tmp_path / "kept" / "chat.db"
    path.parent.mkdir()
    async with open_stores(_url(path)) as stores:
        await stores.messages.append(CONTEXT, [user("kept")])
        lose(path)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"removed|replaced") as refused:
                await stores.messages.append(CONTEXT, [user("lost")])
            assert refused.value.outcome_known
            assert str(path) in str(refused.value)
        with pytest.raises(StoreUnavailable, match=r"removed|replaced"):
            await stores.messages.list(CONTEXT)


async def test_every_turn_on_a_file_that_is_gone_fails(sqlite_file):
    """The agent that runs does not answer as if it kept what is said."""
    agent = Agent("ada", llm_provider=ScriptedProvider([text("one")]), stores=_url(sqlite_file))
    await agent.start()
    await agent.execute_turn("first")
    _remove_all(sqlite_file)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="removed"):
            await agent.execute_turn("second")
    await agent.shutdown()
    assert not sqlite_file.exists()


async def test_a_turn_whose_file_goes_meanwhile_does_not_complete(sqlite_file):
    """What the model says then is shown to nobody as stored."""

    def lose(_request):
        _remove_all(sqlite_file)
        return text("one")

    agent = Agent("ada", llm_provider=ScriptedProvider(lose), stores=_url(sqlite_file))
    await agent.start()
    with pytest.raises(StoreUnavailable, match="removed"):
        await agent.execute_turn("first")
    await agent.shutdown()


async def test_a_file_that_goes_during_the_commit_has_no_acknowledged_commit(driver, sqlite_file):
    """The outcome is unknown: the commit is in a file that may be put back."""
    committing = driver._writer._carry_out

    def carry_out(connection, *rest):
        connection.set_trace_callback(
            lambda sql: sqlite_file.unlink(missing_ok=True) if sql == "COMMIT" else None
        )
        committing(connection, *rest)

    driver._writer._carry_out = carry_out
    with pytest.raises(StoreUnavailable, match="removed") as refused:
        await driver.run(_one(_INSERT, tenant="t", context="c"), write=True)
    assert not refused.value.outcome_known


async def test_a_file_that_is_put_back_is_written_to_again(tmp_path):
    """It is the same file, with all that was acknowledged; of the refused there is no trace."""
    path, away = tmp_path / "chat.db", tmp_path / "away.db"
    async with open_stores(_url(path)) as stores:
        await stores.messages.append(CONTEXT, [user("one")])
        path.rename(away)
        with pytest.raises(StoreUnavailable, match="removed"):
            await stores.messages.append(CONTEXT, [user("refused")])
        away.rename(path)
        assert await stores.messages.append(CONTEXT, [user("two")]) == 2
    async with open_stores(_url(path)) as stores:
        assert [m.content for m in await stores.messages.list(CONTEXT)] == ["one", "two"]


async def test_a_log_in_use_with_another_file_is_left_unchanged(tmp_path):
    """Its old user closes and moves nothing out of it: what others have stored since is theirs."""
    path, away = tmp_path / "chat.db", tmp_path / "away.db"
    stores = await open_stores(_url(path)).__aenter__()
    await stores.messages.append(CONTEXT, [user("one")])
    path.rename(away)
    before = away.read_bytes()
    with pytest.raises(StoreUnavailable, match="removed"):
        await stores.messages.append(CONTEXT, [user("refused")])
    await stores.__aexit__(None, None, None)
    assert away.read_bytes() == before
    away.rename(path)
    async with open_stores(_url(path)) as stores:
        assert [m.content for m in await stores.messages.list(CONTEXT)] == ["one"]


_LOSES_ITS_LOG = """
import asyncio, os, signal, sys
from looopy.errors import StoreUnavailable
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

async def main():
    stores = await open_stores("sqlite:///" + sys.argv[1]).__aenter__()
    for n in range(20):
        await stores.messages.append("c", [user(f"{n}")])
    os.unlink(sys.argv[1] + "-wal")
    try:
        await stores.messages.append("c", [user("refused")])
    except StoreUnavailable as error:
        print(error, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_acknowledged_rows_are_saved_from_a_log_that_is_gone(tmp_path):
    """It is moved into the database at the first refusal, before anything else can happen."""
    path = tmp_path / "chat.db"
    out, errors = await asyncio.to_thread(_start(_LOSES_ITS_LOG, path).communicate, "")
    assert "chat.db-wal was removed" in out, errors
    async with open_stores(_url(path)) as stores:
        said = [m.content for m in await stores.messages.list("c")]
    assert said == [str(n) for n in range(20)]


async def test_a_process_that_changes_its_folder_keeps_its_file(tmp_path, monkeypatch):
    """A relative path is looked up once, and links are followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "chat.db").symlink_to(tmp_path / "real" / "kept.db")
    monkeypatch.chdir(tmp_path)
    async with open_stores("sqlite:///chat.db") as stores:
        await stores.messages.append(CONTEXT, [user("one")])
        monkeypatch.chdir(tmp_path / "real")
        assert await stores.messages.append(CONTEXT, [user("two")]) == 2
        assert (tmp_path / "real" / "kept.db-wal").exists()


async def test_a_file_that_is_replaced_while_it_is_opened_is_not_taken_for_the_other(
    sqlite_file, monkeypatch
):
    """The connection is made anew; should it happen again and again, opening is refused."""
    make_settings = sqlite._make_settings
    times = iter(range(1, 100))
    replaced = 1

    def replace(connection, path):
        make_settings(connection, path)
        if next(times) <= replaced:
            copy = shutil.copy(path, path.with_name("copy.db"))
            Path(copy).replace(path)

    monkeypatch.setattr(sqlite, "_make_settings", replace)
    with contextlib.closing(sqlite.connect(sqlite_file)) as connection:
        assert connection.check_files() is None
    replaced = 100
    with pytest.raises(StoreUnavailable, match="replaced"):
        sqlite.connect(sqlite_file)


# --- who may read it, and what is left of what was deleted ---


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
async def test_a_new_file_and_its_log_are_readable_by_their_owner_alone(tmp_path, mask):
    """From the instant they are there, whatever the umask is."""
    path = tmp_path / "chat.db"
    old = os.umask(mask)
    try:
        async with open_stores(_url(path)) as stores:
            await stores.messages.append(CONTEXT, [user("secret")])
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(old)
    assert modes == {"chat.db": 0o600, "chat.db-wal": 0o600, "chat.db-shm": 0o600}


def test_a_file_is_private_before_anything_is_in_it(tmp_path, monkeypatch):
    """SQLite never makes it: whoever opened it in that instant would read on."""
    made = []
    opened = sqlite._open

    def look(path, patience_s):
        made.append((path.stat().st_size, stat.S_IMODE(path.stat().st_mode)))
        return opened(path, patience_s)

    monkeypatch.setattr(sqlite, "_open", look)
    sqlite.connect(tmp_path / "chat.db").close()
    assert made == [(0, 0o600)]


@pytest.mark.parametrize("mode", [0o640, 0o664])
async def test_a_file_that_is_there_keeps_its_mode(sqlite_file, mode):
    """Somebody chose it; the log follows."""
    sqlite_file.chmod(mode)
    async with open_stores(_url(sqlite_file)) as stores:
        await stores.messages.append(CONTEXT, [user("shared")])
        found = {stat.S_IMODE(p.stat().st_mode) for p in _names(sqlite_file)}
    assert found == {mode}


async def _clear(stores):
    await stores.journal.clear(CONTEXT)


async def _delete(stores):
    await stores.state.delete(CONTEXT)


async def _delete_artifact(stores):
    await stores.artifacts.delete(CONTEXT, "doc")


async def _withdraw(stores):
    await stores.journal.withdraw(CONTEXT)


_OPEN = """
import asyncio, sys
from looopy.stores import open_stores

async def main():
    async with open_stores(sys.argv[1]) as stores:
        print(await stores.messages.count("other"), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(await stores.messages.count("other"), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("delete", [_clear, _delete, _delete_artifact, _withdraw])
async def test_deleted_words_are_in_no_file_of_the_database(sqlite_file, delete, alone):
    """Neither in freed pages nor in the log, once the call returns; others may have it open."""
    canary = "canary " * 1000
    async with open_stores(_url(sqlite_file)) as stores:
        await stores.messages.append("other", [user("kept " * 1000)])
        if delete in (_clear, _delete):
            await stores.messages.append(CONTEXT, [user(canary), user("canary")])
        await stores.artifacts.save(CONTEXT, "doc", canary.encode())
        if delete is _withdraw:
            await stores.artifacts.delete(CONTEXT, "doc")
        if delete is not _delete_artifact:
            await stores.journal.post(CONTEXT, EntryKind.STEER, user(canary))
        neighbour = None if alone else _start(_OPEN, _url(sqlite_file))
        if neighbour is not None:
            assert await asyncio.to_thread(neighbour.stdout.readline) == "1\n"
        assert b"canary" in b"".join(file.read_bytes() for file in _names(sqlite_file))
        await delete(stores)
        left = [file.name for file in _names(sqlite_file) if b"canary" in file.read_bytes()]
        assert left == []
        assert await stores.messages.count("other") == 1
        if neighbour is not None:
            out, errors = await asyncio.to_thread(neighbour.communicate, "\n", 20)
            assert (out, errors) == ("1\n", "")


async def test_words_that_a_reader_sees_are_removed_after_it(sqlite_file):
    """A snapshot keeps the log; it is emptied as soon as nobody reads it, without another call."""
    async with open_stores(_url(sqlite_file)) as stores:
        await stores.messages.append(CONTEXT, [user("canary " * 1000)])
        with contextlib.closing(sqlite3.connect(sqlite_file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT COUNT(*) FROM looopy_messages").fetchall() == [(1,)]
            await stores.state.delete(CONTEXT)
            assert b"canary" in _names(sqlite_file)[1].read_bytes()
            assert await stores.messages.append("other", [user("others go on")]) == 1
            reader.execute("COMMIT")
        async with asyncio.timeout(PATIENCE_S):
            # The thread that empties it has nobody to tell.
            while any(b"canary" in f.read_bytes() for f in _names(sqlite_file)):  # noqa: ASYNC110
                await asyncio.sleep(0)


# --- what can be wrong with a file ---


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///folder/",
        "sqlite://chat.db",
        "sqlite:///chat.db?mode=ro",
        "sqlite:///file:chat.db",
    ],
)
def test_a_url_that_names_no_file_is_refused_at_the_call(url):
    """With what to write instead; a database in SQLite's memory is not offered."""
    with pytest.raises(ConfigurationError, match=r"memory:|name"):
        open_stores(url)


async def test_a_relative_path_is_looked_up_from_here(tmp_path, monkeypatch):
    """Three slashes name a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    async with open_stores("sqlite:///chat.db") as stores:
        await stores.messages.append(CONTEXT, [user("a")])
    assert (tmp_path / "chat.db").is_file()


async def _refused_with(url, *words, **options):
    with pytest.raises(StoreUnavailable) as refused:
        async with open_stores(url, **options):
            pass
    for word in words:
        assert word in str(refused.value)
    assert _ours() == []


async def test_a_missing_folder_is_named_in_the_error(tmp_path):
    """It is not made: the path may be a slip."""
    folder = tmp_path / "not" / "there"
    await _refused_with(_url(folder / "chat.db"), str(folder), "create")
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_in_place_of_the_file_is_named_in_the_error(tmp_path):
    """With a path that would do."""
    await _refused_with(_url(tmp_path), str(tmp_path), "folder")


async def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    """The error names it and says what to do."""
    path = tmp_path / "letter.txt"
    path.write_bytes(b"Dear database, " * 400)
    await _refused_with(_url(path), str(path), "not an SQLite database")
    assert path.read_bytes() == b"Dear database, " * 400


async def test_a_damaged_file_is_named_in_the_error(sqlite_file):
    """Whether its beginning is damaged or its middle."""
    async with open_stores(_url(sqlite_file)) as stores:
        for n in range(50):
            await stores.messages.append(f"c{n}", [user("x" * 3000)])
    content = bytearray(sqlite_file.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    sqlite_file.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="damaged") as refused:
        async with open_stores(_url(sqlite_file)) as stores:
            await stores.messages.list("c7")
    assert str(sqlite_file) in str(refused.value)


async def test_a_file_is_not_made_where_the_schema_may_not_be(tmp_path):
    """With `migrate=False`, what is not there stays so."""
    await _refused_with(_url(tmp_path / "chat.db"), "no database", migrate=False)
    assert list(tmp_path.iterdir()) == []


async def test_an_empty_file_is_not_changed_where_the_schema_may_not_be(tmp_path):
    """The error names the command that changes it."""
    (tmp_path / "chat.db").touch()
    with pytest.raises(SchemaOutOfDate, match=r"no schema yet.*looopy db upgrade") as refused:
        async with open_stores(_url(tmp_path / "chat.db"), migrate=False):
            pass
    assert (refused.value.found, refused.value.expected) == (None, migrate.HEAD)


_UNPRIVILEGED = """
import asyncio, os, sys
from looopy.errors import StoreUnavailable
from looopy.stores import open_stores
open_stores(sys.argv[1])  # loads what it needs while it may
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)

async def main():
    try:
        async with open_stores(sys.argv[1]):
            print("opened")
    except StoreUnavailable as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize("locked", ["file", "folder"])
async def test_a_file_without_write_permission_is_named_in_the_error(empty_database, locked):
    """A file without permission to write, or a folder that takes no log beside the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "chat.db"
        path.write_bytes(empty_database.read_bytes())
        path.chmod(0o444 if locked == "file" else 0o666)
        folder.chmod(0o777 if locked == "file" else 0o555)
        child = _start(_UNPRIVILEGED, _url(path))
        out, errors = await asyncio.to_thread(child.communicate, "")
        folder.chmod(0o700)
    assert errors == ""
    assert str(path if locked == "file" else folder) in out
    assert "permissions" in out


_FULL = """
import asyncio, resource, signal, sys
from looopy.errors import StorageFull
from looopy.stores import open_stores
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import user

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    async with open_stores(sys.argv[1]) as stores:
        limit = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        kept = 0
        try:
            for kept in range(10_000):
                await stores.messages.append("c", [user("x" * 2000)])
        except StorageFull as error:
            assert error.outcome_known
        else:
            raise AssertionError("it never filled up")
        assert await stores.messages.count("c") == kept
        print(kept)

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", [150_000, 400_000])
async def test_a_full_disk_raises_storage_full_and_keeps_acknowledged_rows(sqlite_file, limit):
    """Reads still work, closing does, and the next opening finds every acknowledged message."""
    child = _start(_FULL, _url(sqlite_file), limit)
    out, errors = await asyncio.to_thread(child.communicate, "")
    assert errors == ""
    kept = int(out)
    assert kept > 0
    async with open_stores(_url(sqlite_file)) as stores:
        assert await stores.messages.count("c") == kept
        assert await stores.messages.append("c", [user("room again")]) == kept + 1


def test_no_error_shows_the_content_of_a_row(tmp_path):
    """Whatever SQLite says, our sentence holds the path and the kind of trouble alone."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (secret TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES ('hunter2')")
        for statement in ("INSERT INTO t VALUES ('hunter2')", "SELECT hunter2 FROM t", "hunter2"):
            with pytest.raises(sqlite3.Error) as raw:
                connection.execute(statement)
            shown = sqlite.translate(raw.value, tmp_path / "chat.db")
            assert "hunter2" not in str(shown)
            assert "chat.db" in str(shown)


def test_a_full_disk_is_distinguished_from_other_errors(tmp_path):
    """`StorageFull` where freeing space helps, `StoreUnavailable` elsewhere."""
    for code, kind in (
        (sqlite3.SQLITE_FULL, StorageFull),
        (sqlite3.SQLITE_IOERR_WRITE, StorageFull),
        (sqlite3.SQLITE_IOERR_READ, StoreUnavailable),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
    ):
        error = sqlite3.OperationalError("x")
        error.sqlite_errorcode = code
        assert type(sqlite.translate(error, tmp_path / "chat.db")) is kind


_TOO_LONG = ("x" * 201, f"{'y' * 256}/chat.db", "z/" * 2000 + "chat.db", "漢" * 67)


@pytest.mark.parametrize("name", [*_TOO_LONG, "a\0b.db", "\ud800.db"])
def test_a_path_that_no_file_can_have_is_refused_in_our_words(name, tmp_path):
    """Too long a name, NUL or a lone surrogate: by opening and by every command alike."""
    url = f"sqlite:///{tmp_path}/{name}"
    for use in (open_stores, migrate.upgrade, migrate.check):
        with pytest.raises(ConfigurationError, match=r"the path of (a|the) SQLite file"):
            use(url)
    assert list(tmp_path.iterdir()) == []


async def test_the_longest_name_has_room_for_its_side_files(tmp_path):
    """Its log, and the copy that a migration makes."""
    place = tmp_path / ("x" * 197 + ".db")
    async with open_stores(f"sqlite:///{place}") as stores:
        await stores.messages.append("c", [user("a")])
    await asyncio.to_thread(migrate.downgrade, f"sqlite:///{place}", "base")
    (copy,) = backups_of(place)
    with contextlib.closing(sqlite3.connect(copy)) as opened:
        assert opened.execute("SELECT COUNT(*) FROM looopy_messages").fetchall() == [(1,)]


def _content(path):
    return b"".join(part.read_bytes() for part in path.parent.iterdir())


def test_a_page_in_memory_brings_no_erased_words_back(tmp_path):
    """Two connections have read a page with words in its gap: they write to the page without it."""
    path = tmp_path / "a.db"
    assert fresh.make(path, 1.0)
    with contextlib.closing(sqlite.connect(path)) as maker:
        maker.execute("CREATE TABLE mine (x)")
        maker.execute("INSERT INTO mine VALUES ('the-row')")
        assert maker.empty_log(wait=True)
    content = path.read_bytes()
    page = content.index(b"the-row") // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(page + 1000)
        file.write(b"erased-words")
    with (
        contextlib.closing(sqlite.connect(path)) as ours,
        contextlib.closing(sqlite.connect(path)) as other,
    ):
        for connection in (ours, other):
            assert connection.execute("SELECT x FROM mine").fetchall() == [("the-row",)]
        assert b"erased-words" in _content(path)
        assert clear_some(ours, path, 0) is None
        assert b"erased-words" not in _content(path)
        for connection in (ours, other):
            connection.execute("INSERT INTO mine VALUES ('another row')")
        assert ours.empty_log(wait=True)
        assert b"erased-words" not in _content(path)
        assert ours.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert ours.execute("SELECT count(*) FROM mine").fetchall() == [(3,)]


def test_pages_of_pointers_are_no_pages_of_rows(tmp_path):
    """
    The 2nd page of a file and each 820th after it begin with a byte that may also be a page's type.
    """
    path = tmp_path / "a.db"
    assert fresh.make(path, 1.0)
    with contextlib.closing(sqlite.connect(path)) as ours:
        assert ours.execute("PRAGMA auto_vacuum").fetchall() == [(2,)]
        ours.execute("CREATE TABLE mine (x)")
        ours.execute("BEGIN")
        ours.executemany("INSERT INTO mine VALUES (?)", [("row" * 1000,)] * 1700)
        ours.execute("DELETE FROM mine WHERE rowid % 3 = 0")
        ours.execute("COMMIT")
        assert ours.empty_log(wait=True)
        before = path.read_bytes()
        kinds = {before[4096 * page] for page in (1, 821, 1641)}
        assert kinds & {2, 5}, "a pointer to a page of rows or to a free one comes first"
        page = 0
        while page is not None:
            page = clear_some(ours, path, page)
            assert ours.empty_log(wait=True)
        for page in (1, 821, 1641):
            here = slice(4096 * page, 4096 * (page + 1))
            assert path.read_bytes()[here] == before[here]
        assert ours.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_gaps_are_left_while_another_process_writes(tmp_path):
    """A log with a newer version of a page in it is moved into the file first."""
    path = tmp_path / "a.db"
    assert fresh.make(path, 1.0)
    with contextlib.closing(sqlite.connect(path)) as ours:
        ours.execute("CREATE TABLE mine (x)")
        assert clear_some(ours, path, 0) == 0
        assert ours.empty_log(wait=True)
        assert clear_some(ours, path, 0) is None
