"""A program that was forked is what a program that was started is."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked

_SAYS = """
import json, os, sys, warnings
import signal
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "folder": os.getcwd(),
    "environment": sorted(os.environ.items()),
    "warnings": sys.warnoptions,
    "filters": [str(one) for one in warnings.filters if one[0] == "error"],
    "name": __name__,
    "streams": [(s.encoding, s.line_buffering, s.isatty(), s.name, s.fileno())
        for s in (sys.stdin, sys.stdout, sys.stderr)],
    "interrupt": str(signal.getsignal(signal.SIGINT)),
    "session": os.getsid(0) == os.getpid(),
    "open": sorted(os.listdir("/proc/self/fd")),
    "ours": [m for m in sys.modules if m.partition(".")[0] in ("looopy", "tests", "nursery")],
    "heard": sys.stdin.read(),
}))
sys.stderr.write("said")
sys.exit(7)
"""
_ENVIRONMENT = {"HOME": "/", "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}

pytestmark = pytest.mark.skipif(not forked._possible(), reason="programs are started as usual")


def _run(*args, **options):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("options", [(), ("-W", "error")])
def test_it_finds_what_a_program_that_is_started_finds(options, tmp_path):
    """Arguments, folder, environment, warnings, streams, session; no module of ours is loaded."""
    script = tmp_path / "script.py"
    script.write_text(_SAYS)
    wanted = {"cwd": tmp_path, "env": _ENVIRONMENT, "input": "hello", "start_new_session": True}
    if options:
        wanted["env"] = {**_ENVIRONMENT, "PYTHONWARNINGS": ""}
    for words in (("-c", _SAYS), (str(script),), ("-m", "script")):
        usual = _run(*options, *words, "a", "b c", **wanted)
        with forked.programs():
            found = _run(*options, *words, "a", "b c", **wanted)
        assert (found.returncode, found.stderr) == (usual.returncode, usual.stderr) == (7, "said")
        assert found.stdout == usual.stdout


def test_it_is_a_child_of_ours_that_is_killed_and_interrupted():
    """By its id or its group, and waited for as any other."""
    code = "import time; print('begun', flush=True); time.sleep(60)"
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with forked.programs():
            child = subprocess.Popen(
                [sys.executable, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        with child:
            assert child.stdout.readline() == b"begun\n"
            said = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
            assert f"PPid:\t{os.getpid()}\n" in said
            os.killpg(child.pid, how)
            assert child.wait() == -how


def test_what_it_did_not_close_or_catch_is_said():
    """At its end, as Python does; and a warning is an error where it is to be one."""
    ends = "import atexit; atexit.register(print, 'the end'); 1 / 0"
    with forked.programs():
        assert "ResourceWarning" in _run("-W", "error", "-c", "open('/dev/null')").stderr
        assert _run("-c", "open('/dev/null')").stderr == ""
        done = _run("-c", ends)
    assert (done.returncode, done.stdout) == (1, "the end\n")
    assert done.stderr == _run("-c", ends).stderr


async def test_asyncio_forks_it_as_well():
    """From a process that has loaded much; a folder that is missing is the error it always is."""
    loaded = "import sys; sys.exit('openai' in sys.modules)"
    assert _run("-c", loaded).returncode == 0
    with forked.programs():
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", loaded)
        assert await child.wait() == 1
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
        assert await child.wait() == 3
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec(sys.executable, "-c", "", cwd="/no/such/folder")
