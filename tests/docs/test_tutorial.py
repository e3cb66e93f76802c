"""The promise of the tutorial: its program is killed in the middle of a tool, and goes on."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"
MODEL = "from looopy.testing import ScriptedProvider, text, tool_call\n"
FIRST = 'ScriptedProvider([tool_call("charge", amount=90), tool_call("book", room=7)])'
SECOND = 'ScriptedProvider([text("Paid and booked.")])'


def _program(folder, model, pause):
    """`trip.py` as it stands in the tutorial, with a scripted model and a wait that we can bear."""
    (code,) = re.findall(
        r"<!-- file: trip.py -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    for old, new in (('"local"', model), ("time.sleep(30)", f"time.sleep({pause})")):
        assert code.count(old) == 1, f"{old} is not in trip.py once"
        code = code.replace(old, new)
    path = folder / "trip.py"
    path.write_text(f"{MODEL}{code}", encoding="utf-8")
    return [sys.executable, "-W", "error", str(path)]


def test_the_program_of_the_tutorial_survives_its_kill(tmp_path):
    """The second process books again and does not charge again, as the text says."""
    with subprocess.Popen(
        _program(tmp_path, FIRST, 3600), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "charging 90\n"
        booking = first.stdout.readline()
        assert booking == f"booking room 7 in process {first.pid}\n"
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    second = subprocess.run(
        _program(tmp_path, SECOND, 0),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (second.stderr, second.returncode) == ("", 0)
    resumed, again, answer = second.stdout.splitlines()
    assert resumed == "continuing turn 1"
    assert again.startswith("booking room 7 in process ")
    assert answer == "Paid and booked."
    assert all(line in PAGE.read_text("utf-8") for line in (resumed, "booking room 7 in process"))
