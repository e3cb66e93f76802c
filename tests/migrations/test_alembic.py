"""Alembic's own command line, as a developer or an administrator uses it, on both engines."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from tests.migrations import databases
from tests.migrations.commands import ROOT, run_alembic
from tests.postgres import as_driver
from tests.shares import PSYCOPG

from looopy.stores.sql import migrate


@pytest.fixture(params=["sqlite", "asyncpg", PSYCOPG])
def url(request, tmp_path):
    """The URL of a database without a schema, through each driver."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'chat.db'}"
    return as_driver(request.getfixturevalue("fresh_postgres"), request.param)


def _alembic(url, *words):
    """What it printed; it succeeded."""
    code, said = run_alembic("-x", f"url={url}", *words)
    assert code == 0, said
    return said


def test_the_commands_that_move_a_database_move_it(url):
    """Up and down, by steps and by names."""
    for up, down in (("+1", "-1"), ("head", "base")):
        _alembic(url, "upgrade", up)
        assert migrate.check(url) == (migrate.HEAD, migrate.HEAD)
        _alembic(url, "downgrade", down)
        assert migrate.check(url) == (None, migrate.HEAD)


def test_the_commands_that_look_find_no_difference(url):
    """Where the database is, and that its schema is that of `tables.py`."""
    migrate.upgrade(url)
    assert f"{migrate.HEAD} (head)" in _alembic(url, "current")
    assert "No new upgrade operations detected" in _alembic(url, "check")
    assert "(head) (current)" in _alembic(url, "history", "--indicate-current")


def test_a_revision_can_be_stamped(url):
    """The schema stays; what is said of it changes."""
    migrate.upgrade(url)
    _alembic(url, "stamp", "--purge", "base")
    assert migrate.check(url) == (None, migrate.HEAD)
    _alembic(url, "stamp", "head")
    assert migrate.check(url) == (migrate.HEAD, migrate.HEAD)


def test_statements_are_printed_for_both_engines(url):
    """All of them, or the way back; no database is made or asked."""
    whole = _alembic(url, "upgrade", "head", "--sql")
    assert "CREATE TABLE looopy_contexts" in whole
    assert "INSERT INTO looopy_version" in whole
    back = _alembic(url, "downgrade", f"{migrate.HEAD}:base", "--sql")
    assert "DROP TABLE looopy_inbox" in back
    assert "looopy_version" in _alembic(url, "stamp", "head", "--sql")
    assert migrate.check(url) == (None, migrate.HEAD)


def test_the_program_prints_and_fails_as_it_does_in_this_process(tmp_path):
    """As the other tests run it; nothing of Python is shown."""
    place = f"sqlite:///{tmp_path / 'chat.db'}"
    for words in (["-x", f"url={place}", "upgrade", "head"], ["check"]):
        command = [sys.executable, "-m", "alembic", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        status, said = run_alembic(*words)
        assert (done.stdout + done.stderr, done.returncode) == (said, status % 256)
    assert migrate.check(place) == (migrate.HEAD, migrate.HEAD)


def test_commands_about_scripts_need_no_url():
    """The scripts themselves are shown from anywhere in the repository."""
    assert run_alembic("heads") == (0, f"{migrate.HEAD} (head)\n")
    assert run_alembic("branches")[0] == 0
    code, said = run_alembic("history")
    assert (code, f"<base> -> {migrate.HEAD}" in said) == (0, True), said
    code, said = run_alembic("show", "head")
    assert (code, f"Rev: {migrate.HEAD} (head)" in said) == (0, True), said


@pytest.mark.parametrize("command", [["upgrade", "head"], ["current"], ["check"]])
def test_a_command_without_a_database_prints_how_to_name_one(command):
    """One line, and nothing of Python."""
    code, said = run_alembic(*command)
    assert (code != 0, "name the database: alembic -x url=" in said) == (True, True), said


@pytest.mark.parametrize("named", ["mysql://host/database", "postgresql://nobody@127.0.0.1:1/x"])
def test_an_unusable_database_is_one_line_of_error(named):
    """The sentence of our error, and nothing of Python."""
    code, said = run_alembic("-x", f"url={named}", "upgrade", "head")
    assert (code != 0, "FAILED: " in said) == (True, True), said


def test_the_database_can_be_named_in_the_file(tmp_path):
    """`sqlalchemy.url`, where everybody looks for it."""
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    text = (ROOT / "alembic.ini").read_text(encoding="utf-8")
    place = f"sqlite:///{tmp_path / 'chat.db'}"
    (tmp_path / "alembic.ini").write_text(f"{text}sqlalchemy.url = {place}\n", encoding="utf-8")
    assert run_alembic("upgrade", "head", cwd=tmp_path)[0] == 0
    assert migrate.check(place) == (migrate.HEAD, migrate.HEAD)


def test_to_look_makes_no_file(url, tmp_path):
    """Nothing is there yet."""
    assert _alembic(url, "current").count("\n0") == 0
    assert not (tmp_path / "chat.db").exists()


@pytest.mark.parametrize("words", [["current"], ["check"], ["upgrade", "head"], ["stamp", "head"]])
def test_a_database_of_a_clone_is_refused(url, words):
    """With the way out that looopy's own command names."""
    migrate.upgrade(url)
    databases.change(url, "UPDATE looopy_version SET version_num = '0011'")
    code, said = run_alembic("-x", f"url={url}", *words)
    assert (code != 0, "looopy contexts export" in said) == (True, True), said
    assert databases.dump(url)["looopy_version"] == [{"version_num": "0011"}]
