"""The script of CI runs every step, says which one failed, and ends with pytest's own summary."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci" / "run"
QUICK = ["lint", "imports", "heads", "changelog", "budgets", "build", "types"]
BESIDE = ["lowest", "pythons"]
NAMES = [*QUICK, "tests", *BESIDE, "coverage"]
SUMMARY = "=== 3 passed in 1.00s ==="
UV = f"""\
#!/usr/bin/env bash
case "$*" in
  --version) exit 0 ;;
  sync*) name=sync ;;
  *pytest*) name=tests ;;
  *) name="${{*: -1}}" ;;
esac
measured=${{LOOOPY_COVERAGE:+ measured}}
echo "$name: $*${{PYTEST_ADDOPTS:+ with $PYTEST_ADDOPTS}}$measured" >>"$TOLD"
echo "printed by $name"
[[ $name == "$HANGS" ]] && sleep 60
[[ $name == types ]] && sleep 0.3 # the slowest of the quick ones
[[ $name == tests ]] && echo "{SUMMARY}"
[[ " $FAILS " != *" $name "* ]]
"""

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="a copy of the tree without .ci")


@pytest.fixture
def started(tmp_path):
    """A function that starts the script with a `uv` that prints, hangs and fails as it is told."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in (("uv", UV), ("pgbouncer", "#!/bin/sh\n")):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    started = []

    def start(fails="", hangs=""):
        own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        environment = {
            **own,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(tmp_path),
            "TOLD": str(tmp_path / "told"),
            "FAILS": fails,
            "HANGS": hangs,
        }
        started.append(
            subprocess.Popen(
                [tmp_path / ".ci" / "run"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture
def ran(started, tmp_path):
    """A function that runs it to its end: status, lines, and the commands in their order."""

    def run(fails=""):
        process = started(fails)
        said, _ = process.communicate(timeout=150)
        return process.returncode, said.splitlines(), (tmp_path / "told").read_text().splitlines()

    return run


def test_every_step_runs_and_the_last_line_is_pytests(ran):
    """The quick checks are over before the tests begin; these measure what is reported last."""
    status, lines, told = ran()
    assert status == 0, lines
    assert lines[-2:] == ["every step passed", SUMMARY]
    names = [line.partition(":")[0] for line in told]
    assert sorted(names) == sorted(["sync", *NAMES])
    assert names[0] == "sync"
    assert sorted(names[1:8]) == sorted(QUICK)
    assert "tests: run --all-extras --group test pytest measured" in told
    measured = [line.partition(":")[0] for line in told if line.endswith("measured")]
    assert measured == ["tests", "coverage"]
    with_fewer = [line.partition(":")[0] for line in told if line.endswith("with -n2")]
    assert with_fewer == BESIDE
    assert "uv run --all-extras --group test pytest\n" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("fails", ["lint", "types", "tests", "build", "pythons", "coverage"])
def test_a_step_that_fails_is_named_and_shown_and_the_others_run(ran, fails):
    """With its output, which the steps that passed keep to themselves."""
    status, lines, told = ran(fails)
    assert status == 1
    assert len(told) == 1 + len(NAMES)
    assert lines[-2:] == [f"FAILED: {fails}", SUMMARY]
    assert any(line.startswith(f"=== {fails} FAILED after") for line in lines)
    shown = {line.removeprefix("printed by ") for line in lines if line.startswith("printed by")}
    assert shown == {"sync", "tests", fails}


def test_a_quick_failure_is_shown_before_the_tests(ran):
    """So that nobody waits for minutes to read of a line that is too long."""
    _, lines, _ = ran("types lowest")
    place = {name: lines.index(f"printed by {name}") for name in ("types", "tests", "lowest")}
    assert place["types"] < place["tests"] < place["lowest"]
    assert lines[-2] == "FAILED: types lowest"


def test_no_tests_run_without_an_environment(ran):
    """And the status says so."""
    status, lines, told = ran("sync")
    assert status == 1
    assert lines[-1] == "the environment could not be made"
    assert len(told) == 1


def test_a_stopped_script_leaves_no_process(started, tmp_path):
    """Neither the tests nor a step beside them, nor its files."""
    process = started(hangs="pythons")
    for line in process.stdout:
        if line.startswith("=== tests passed"):
            break
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=150)  # ends when nobody holds the pipe any more
    assert process.returncode == 128 + signal.SIGTERM, said
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ci", "bin", "told"]
