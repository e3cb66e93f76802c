"""A share of the turns that are replayed, by the command that replays all; and its judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.campaign.replays import MEANT, Meant, judged

_ROOT = Path(__file__).parents[2]
_MEANT = "tests/agent/history/test_prompts.py::test_a_prompt_is_built_for_each_model_call"
_OTHERS = "tests/agent/questions/test_decisions.py::test_an_edit_waits_for_the_other_answers"
AGENT, PROMPT = "with the agent", "the system prompt of the request differs from what was recorded"


@pytest.mark.campaign
def test_turns_of_tests_are_replayed_and_a_falsified_one_is_named():
    """A turn that is meant to differ does; tests do not notice that they are read."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign.replays", "-n0", _MEANT, _OTHERS],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for words in ("agent: the same", "as it is meant", "prompt: named", "falsified", "contents"):
        assert words in said


def verdict(who: str = AGENT, said: str = "", *, test: str = "t.py::one[a]") -> dict[str, Any]:
    """As `_note` writes it; a plain replay is right if nothing is said."""
    plain = who in (AGENT, "without an agent")
    return {"test": test, "who": who, "said": said, "named": plain and not said}


@pytest.mark.parametrize(
    ("found", "meant", "status"),
    [
        ([verdict()], (), 0),
        ([verdict(), verdict(said="end, it ends otherwise")], (), 1),
        ([verdict("without an agent", PROMPT)], (Meant("t.py::one", PROMPT, ""),), 1),
        ([verdict("with another prompt")], (), 1),
        ([verdict(), verdict(said=PROMPT)], (Meant("t.py::one", PROMPT, ""),), 0),
        ([verdict(said="the model")], (Meant("t.py::one", PROMPT, ""),), 1),
        ([verdict()], (Meant("t.py::one", PROMPT, ""),), 1),
        ([verdict()], (Meant("t.py::other", PROMPT, ""),), 0),
    ],
)
def test_only_intended_differences_are_accepted(found, meant, status):
    """One that no longer occurs is wrong, too, so that the list stays true."""
    assert judged(found, meant, whole=False)[1] == status


def test_all_tests_replay_a_thousand_turns_and_each_that_is_meant():
    """Fewer would prove little."""
    many = [verdict()] * 1_000
    assert judged(many, (), whole=True)[1] == 0
    assert judged(many[1:], (), whole=True)[1] == 1
    assert judged(many, MEANT, whole=True)[1] == 1
