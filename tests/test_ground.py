"""The ground of a run: what is there for its processes, and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import ground
from tests.postgres import Standing, ask


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk in memory, as far as the ground knows, with room on it; nothing is set."""
    monkeypatch.setattr(ground, "_MEMORY", tmp_path)
    monkeypatch.setattr(ground, "_has_room", lambda: True)
    for name in ("TMPDIR", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    tempfile.tempdir = None  # another test of this process may have looked it up
    yield tmp_path
    tempfile.tempdir = None


def test_files_of_a_run_go_into_memory_and_away_again(disk):
    """In this process and those it starts; nothing is left, and all is as it was."""
    folder, remove = ground.prepare()
    assert list(disk.iterdir()) == [folder]
    said = "import tempfile; print(tempfile.gettempdir())"
    child = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == tempfile.gettempdir() == str(folder)
    (folder / "left").touch()
    remove()
    assert list(disk.iterdir()) == []
    assert "TMPDIR" not in os.environ


def test_a_place_that_was_named_is_kept(disk, tmp_path_factory, monkeypatch):
    """Whoever sets TMPDIR knows why."""
    named = tmp_path_factory.mktemp("named")
    monkeypatch.setenv("TMPDIR", str(named))
    _, remove = ground.prepare()
    assert tempfile.gettempdir() == str(named)
    assert list(disk.iterdir()) == []
    remove()
    assert os.environ["TMPDIR"] == str(named)
    assert list(named.iterdir()) == []


@pytest.mark.parametrize(("free", "spare_kb", "has"), [(5 << 30, 9 << 20, True),
    (5 << 30, 7 << 20, False), (1 << 26, 9 << 20, False)])  # fmt: skip
def test_memory_is_taken_where_there_is_plenty(free, spare_kb, has, monkeypatch):
    """A container has a small disk in memory; a small machine needs what it has."""
    monkeypatch.setattr(ground.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(ground.os, "access", lambda *_: True)
    told = f"MemTotal: 99 kB\nMemAvailable: {spare_kb} kB\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: told)
    assert ground._has_room() is has


def test_only_folders_of_killed_runs_are_removed(disk):
    """It would hold memory for ever; a run that goes on keeps its own."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for owner in (ended.pid, os.getpid()):
        (disk / f"looopy-tests-{owner}-x").mkdir()
    _, remove = ground.prepare()
    assert not (disk / f"looopy-tests-{ended.pid}-x").exists()
    assert (disk / f"looopy-tests-{os.getpid()}-x").exists()
    remove()


@pytest.mark.parametrize("named", [False, True])
def test_where_no_bytecode_may_be_written_a_run_keeps_its_own(tmp_path, named, monkeypatch):
    """In its folder, by the processes it starts; another place that was named is kept."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "named"))
    if not named:
        monkeypatch.delenv("PYTHONPYCACHEPREFIX")
    ground.keep_bytecode(tmp_path)
    subprocess.run([sys.executable, "-c", "import looopy.errors"], check=True)
    found = [path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")]
    assert ("errors" in found) != named
    assert os.environ["PYTHONPYCACHEPREFIX"] == str(tmp_path / ("named" if named else "bytecode"))


def test_bytecode_that_may_be_written_is_left_alone(tmp_path, disk):
    """It is where it always is."""
    ground.keep_bytecode(tmp_path)
    assert "PYTHONPYCACHEPREFIX" not in os.environ


def test_workers_wait_while_the_first_one_collects(tmp_path, monkeypatch):
    """Where the run has bytecode of its own; elsewhere, and later, each begins at once."""
    order, waits = [], threading.Event()
    folder = tmp_path / "looopy-tests-1-x" / "bytecode"
    folder.mkdir(parents=True)
    monkeypatch.setattr(ground.time, "sleep", lambda _: waits.set())

    def collect(worker):
        with ground.compiling_once(worker):
            order.append(worker)

    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    collect("gw2")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(folder))
    late = threading.Thread(target=collect, args=("gw1",))
    with ground.compiling_once("gw0"):
        late.start()
        assert waits.wait(60)
        order.append("gw0")
    late.join()
    collect("gw3")
    assert order == ["gw2", "gw0", "gw1", "gw3"]


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="not in a worker")
def test_a_worker_keeps_its_bytecode():
    """Somewhere, whatever the process was told that started it: assertions are rewritten once."""
    assert not sys.dont_write_bytecode


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_each_worker_begins_with_long_tests(workers):
    """No test is lost or doubled, and no worker's part ends with a long one."""
    items = list(range(100))
    order = ground.spread(items, lambda n: n % 9 == 5, workers)
    assert sorted(order) == items
    begin = 0
    for worker in range(workers):  # as xdist divides them
        end = begin + (len(order) - begin) // (workers - worker)
        mine, begin = order[begin:end], end
        long = [n % 9 == 5 for n in mine]
        assert long == sorted(long, reverse=True)
        assert any(long)


@pytest.mark.parametrize("long", [0, 1, 3, 6, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
def test_no_test_is_lost_however_few_there_are(long, workers):
    """Also where all of them take long, and where some workers have nothing to do."""
    items = list(range(7))
    assert sorted(ground.spread(items, lambda n: n < long, workers)) == items


def test_ctrl_c_works_where_it_was_inherited_ignored():
    """As in the background of a shell; a child that is started then can be interrupted."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    code = (
        "import subprocess, sys\n"
        "from tests import ground\n"
        f"ask = [sys.executable, '-c', {child!r}]\n"
        "subprocess.run(ask, check=True)\n"
        "ground.hear_ctrl_c()\n"
        "subprocess.run(ask, check=True)\n"
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shell = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert shell.stdout.split() == ["True", "False"]


def test_a_run_ends_at_ctrl_c():
    """Whatever this run was started from."""
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@pytest.mark.parametrize(
    ("ci", "is_ci"), [("true", True), ("1", True), ("false", False), ("0", False), ("", False)]
)
def test_a_run_knows_whether_it_is_cis(monkeypatch, ci, is_ci):
    """By the variable that every service sets."""
    monkeypatch.setenv("CI", ci)
    assert ground.in_ci() is is_ci


@pytest.mark.parametrize(
    ("set_to", "same_each_time"),
    [({"CI": "true"}, True), ({}, False), ({"CI": "true", "LOOOPY_EXAMPLES": "9"}, False)],
)
def test_examples_are_the_same_each_time_in_ci_alone(set_to, same_each_time):
    """Elsewhere, and in the long run, they are new; a slow machine fails neither."""
    code = (
        "import tests.conftest, hypothesis\n"
        "chosen = hypothesis.settings()\n"
        "print(chosen.derandomize, chosen.deadline)"
    )
    kept = {k: v for k, v in os.environ.items() if k not in {"CI", "LOOOPY_EXAMPLES"}}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        env=kept | set_to,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(same_each_time), "None"]


def test_a_standing_connection_that_was_cut_is_opened_again(postgres_server):
    """A test that cuts every connection cuts that one as well."""
    url = postgres_server("postgres")
    with contextlib.closing(Standing(url)) as connection:
        connection.run("SET application_name = 'standing'")
        named = "SELECT pid FROM pg_stat_activity WHERE application_name = 'standing'"
        ((pid,),) = ask(url, named)
        connection.run("SELECT 1")
        assert ask(url, named) == [(pid,)]
        assert ask(url, "SELECT pg_terminate_backend(%s, 5000)", pid) == [(True,)]
        connection.run("SET application_name = 'standing'")
        assert ask(url, named) not in ([(pid,)], [])
