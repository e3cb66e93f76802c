"""Each example runs as a user would run it: in a process of its own, without a key or a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def _run(name, *args, cwd, typed=""):
    """What the example printed, as lines; its standard error has to be empty."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOOOPY_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *args],
        cwd=cwd,
        env=env | {"TMPDIR": str(cwd)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def test_a_killed_turn_goes_on_and_charges_once(tmp_path):
    """What had finished is not run again; what may run again does, with the same key."""
    died, interrupted, answer, *world = _run("resume_after_restart.py", cwd=tmp_path)
    assert died == "the first process ended with -9"
    assert interrupted == "turn 1 was interrupted"
    assert answer == "All done."
    assert world == [
        "charging 90, key trip-1/1/call_1",
        "booking room 7, key trip-1/1/call_2",
        "booking room 7, key trip-1/1/call_2",
    ]


def test_a_stream_shows_pieces_and_tools_in_order(tmp_path):
    """Text, tool, progress, result, text, end."""
    lines = _run("streaming.py", cwd=tmp_path)
    assert lines == [
        "Let me| look.| |",
        "[search {'words': 'durable'}]",
        "[50%]",
        "[3 books match 'durable']",
        "There |are th|ree bo|oks ab|out it|.|",
        lines[5],
        "2 model calls",
    ]
    assert lines[5].startswith("completed, ")


def test_each_policy_does_what_it_says(tmp_path):
    """One runs again, one waits for a person, one tells that the outcome is unknown."""
    rerun, ask, fail = _run("tools_and_resume.py", cwd=tmp_path)
    assert rerun == "rerun (0 to approve): ran to its end"
    assert ask == "ask (1 to approve): ran to its end"
    assert fail.startswith("fail (0 to approve): No result of this call was recorded.")


def test_a_chat_without_async_remembers_after_a_restart(tmp_path):
    """The second process counts what was said in the first."""
    first = _run("blocking_chat.py", "chat.db", cwd=tmp_path, typed="one\ntwo\n\n")
    assert first == ["0 turns so far", "> You said 1 things.", "> You said 2 things.", "> "]
    second = _run("blocking_chat.py", "chat.db", cwd=tmp_path, typed="three\n")
    assert second == ["2 turns so far", "> You said 3 things.", "> "]


def test_an_agent_that_was_killed_at_work_books_once(tmp_path):
    """The second process finds what the inner agent had done, and goes on from there."""
    lines = _run("agent_as_tool.py", cwd=tmp_path)
    assert lines.count("booking NJ 295") == 1
    assert lines[-4:] == [
        "agent:clerk toolResult paid",
        "agent:clerk assistant All booked.",
        "toolResult All booked.",
        "assistant Off you go!",
    ]


def test_an_answer_that_breaks_a_rule_is_given_again(tmp_path):
    """The type's rule is told to the model, and the second answer is the output."""
    warning, plan = _run("structured_output.py", cwd=tmp_path)
    assert warning.startswith("answer 1 of 3 does not fit output_type: ")
    assert plan == "3 nights in Rome, with ['Pantheon']"


def test_only_the_url_differs_between_stores(tmp_path):
    """Memory and SQLite answer alike."""
    lines = [line.partition(": ") for line in _run("same_agent_by_url.py", cwd=tmp_path)]
    assert [scheme for scheme, _, _ in lines] == ["memory", "memory", "sqlite", "sqlite"]
    said = [rest for _, _, rest in lines]
    assert said[:2] == said[2:]
    assert said[1] == "turn 2, ['I am Ada.', 'Who am I?']: I was shown 3 messages."


def test_a_provider_needs_nothing_but_stream(tmp_path):
    """Its failure is tried again, visibly, and its text is the answer."""
    assert _run("own_provider.py", cwd=tmp_path) == ["attempt 2: waking up", "hello out there"]


def test_operators_of_reactivex_work_on_a_turn(tmp_path):
    """Two subscriptions and a waiter see one turn."""
    lines = _run("subscribe_rx.py", cwd=tmp_path)
    assert [line for line in lines if line.startswith("stored")] == [
        "stored 1 user",
        "stored 2 assistant",
        "stored 3 toolResult",
        "stored 4 assistant",
    ]
    assert lines[3:6] == ["delta  'The sum of t'", "delta  'wo and three'", "delta  ' is five.'"]
    assert lines[-2:] == ["over", "completed"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_is_run_here(path):
    """It fits on a screen, takes any model, and some test above runs it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    assert f'_run("{path.name}"' in Path(__file__).read_text(encoding="utf-8")
    own = path.name == "own_provider.py"  # it is a model itself
    assert own or any('os.environ.get("LOOOPY_MODEL")' in line for line in lines)
