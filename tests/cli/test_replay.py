"""`looopy replay`, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.preloaded import environment

from looopy.cli.main import main

APP = '''
from looopy import Agent, tool
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def build(context_id, stores):
    replies = tool_call("add", a=1, b=2), text("It is 3, \\x1b[31mcanary\\x1b[0m.")
    return Agent(context_id, llm_provider=ScriptedProvider(replies), tools=[add], stores=stores)


def fails(context_id, stores):
    raise KeyError("MY_SETTING")


async def terse(context_id, stores):
    provider = ScriptedProvider([text("3")])
    return Agent(context_id, llm_provider=provider, system_prompt="Be terse.", stores=stores)
'''
RECORD = """
import asyncio, app
from looopy import open_stores
async def main():
    async with open_stores("sqlite:///t.db") as stores, app.build("sums", stores) as agent:
        await agent.execute_turn("canary: 1 + 2?")
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an application and a database in which it has run a turn."""
    made = tmp_path_factory.mktemp("replay")
    (made / "app.py").write_text(APP, encoding="utf-8")
    subprocess.run([sys.executable, "-c", RECORD], cwd=made, check=True)
    return made


@pytest.fixture
def looopy(folder, monkeypatch, capsys):
    """Runs `looopy replay ARGS` there: its status, its output and its notices."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("app", None)  # another test's

    def run(*args: str) -> tuple[int, str, str]:
        status = main(["replay", *args, "--db", "sqlite:///t.db"])
        return status, *capsys.readouterr()

    yield run
    sys.modules.pop("app", None)


def test_a_saved_turn_is_a_test_that_passes(folder, looopy):
    """A file with the recording and one with a test; a second run overwrites neither."""
    (folder / "code").mkdir()
    (folder / "code" / "sums_of.py").write_text(APP, encoding="utf-8")
    for app, name in (("app:build", "sum"), ("code/sums_of.py:build", "by_file")):
        status, out, err = looopy("sums", "--agent", app, "--save", f"kept/{name}.json", "--scrub")
        assert (status, out) == (0, "Turn 1 is the same: 3 messages, completed.\n"), err
    assert "canary" not in (folder / "kept" / "sum.json").read_text("utf-8")

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "kept"],
        cwd=folder,
        env=environment() | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in ran.stdout, ran.stdout
    status, _, err = looopy("sums", "--agent", "app:build", "--save", "kept/sum.json")
    assert (status, "exists: name another file" in err) == (2, True), "nothing is overwritten"


def test_a_difference_is_named_and_both_turns_stand_side_by_side(looopy):
    """As JSON, and in two columns that no stored text can break."""
    status, out, _ = looopy("sums", "--agent", "app:terse", "--json")
    assert status == 1
    found = json.loads(out)
    assert (found["difference"]["kind"], found["gone"]) == ("request", ["add"])
    assert looopy("sums", "--agent", "app:terse")[1].endswith("Tools that are gone: add\n")

    status, out, err = looopy("sums", "--agent", "app:terse", "--fork", "again")
    assert status == 0, err
    assert "\x1b" not in out
    assert out.splitlines()[0].split() == ["then", "now"]
    assert "| assistant: 3" in out
    assert "the conversation again" in err


def test_bad_input_is_refused_with_the_way_out(looopy):
    """On standard error, with nothing on standard output."""
    for args, words in (
        (("nobody",), "there is no conversation 'nobody'"),
        (("sums", "--turn", "5"), "its turns are 1 to 1"),
        (("sums", "--fork"), "pass --agent MODULE:FACTORY"),
        (("sums", "--save", "x.txt"), "a file that ends in .json"),
        (("sums", "--agent", "app:fails"), "the factory failed: KeyError: 'MY_SETTING'"),
    ):
        status, out, err = looopy(*args)
        assert status == 2, args  # 1 says that the turn differs
        assert words in err, err
        assert not out
