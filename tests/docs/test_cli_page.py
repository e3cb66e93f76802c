"""The page about the command line is what the program says of itself."""

import re
import sys
from pathlib import Path

from tests.docs.cli_page import PAGE, page

SOURCE = Path(__file__).parent.parent.parent / "src" / "looopy"


def test_the_page_of_the_command_line_is_up_to_date():
    """If not: `python tests/docs/cli_page.py` writes it anew, on the oldest Python we run on."""
    written, made = PAGE.read_text(encoding="utf-8"), page()
    assert written.split() == made.split()  # each Python sets its columns elsewhere
    assert written == made or sys.version_info >= (3, 12)


def test_every_variable_of_ours_is_listed():
    """What is read from the environment, but for the place where tests may kill a process."""
    read = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"LOOOPY_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    listed = set(re.findall(r"^\| `(LOOOPY_\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == read - {"LOOOPY_FAILPOINT"}
