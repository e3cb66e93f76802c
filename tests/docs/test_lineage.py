"""The lineage names modules that exist, and has a reason for each point that looopy lacks."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [A-Z]\d+ \|", line)
]


def test_each_row_of_the_lineage_has_a_module_or_a_reason():
    """Its number is its own; a row of three words or more may say "not here"."""
    assert len({number for number, _, _ in ROWS}) == len(ROWS) > 300
    wrong = []
    for number, point, where in ROWS:
        modules = re.findall(r"`([\w/]+\.py)`", where)
        wrong += [(number, one) for one in modules if not (ROOT / "src/looopy" / one).is_file()]
        if not modules and (where not in {"not here", "not yet"} or len(point.split()) < 3):
            wrong.append((number, where))
    assert wrong == []
