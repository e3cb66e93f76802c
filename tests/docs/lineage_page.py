"""
The paths of `docs/lineage.md`, found again after tests and modules have moved.

`python tests/docs/lineage_page.py` writes them anew; a test compares. A row names a test, and the
path before it is where that test is now. A module that moved is followed through git's renames.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "lineage.md"
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")
MODULE = re.compile(r"`([\w/]+\.py)`")
_DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_WITH_TESTS = ("tests", "src/looopy/testing/contracts")


def places_of_tests(root: Path) -> dict[str, list[str]]:
    """The files that define each test, by its name."""
    found: dict[str, list[str]] = {}
    for folder in _WITH_TESTS:
        for path in sorted((root / folder).rglob("*.py")):
            for name in dict.fromkeys(_DEFINED.findall(path.read_text(encoding="utf-8"))):
                found.setdefault(name, []).append(path.relative_to(root).as_posix())
    return found


def module_now(path: str, root: Path = ROOT) -> str:
    """
    Where the module is that was at *path*, both from `src/looopy`.

    Raises:
        LookupError: It is gone, and git knows of no rename.
    """
    seen = set()
    here = f"src/looopy/{path}"
    while not (root / here).is_file():
        seen.add(here)
        here = _renames(root).get(here, "")
        if not here or here in seen:
            raise LookupError(f"{path} is gone: name the module that does now what it did")
    return here.removeprefix("src/looopy/")


def refreshed(
    page: str, places: Mapping[str, list[str]], module_now: Callable[[str], str] = module_now
) -> str:
    """
    The page with the paths of today.

    Raises:
        LookupError: A module is gone, or a test, or several tests have its name.
    """

    def test_now(match: re.Match[str]) -> str:
        path, name = match.groups()
        found = places.get(name, [])
        if path not in found:
            if len(found) != 1:
                raise LookupError(f"{name} is no longer in {path}, but in {found or 'no file'}")
            path = found[0]
        return f"`{path}::{name}`"

    return MODULE.sub(lambda match: f"`{module_now(match[1])}`", TEST.sub(test_now, page))


def _renames(root: Path) -> dict[str, str]:
    """Where git has last seen each file go, those that are not committed yet included."""
    said = ""
    for command in (("log", "--format=", "--reverse"), ("diff", "HEAD")):
        options = ("--name-status", "-M", "--diff-filter=R", "--", "src/looopy")
        done = subprocess.run(
            ["git", *command, *options], cwd=root, capture_output=True, text=True, check=True
        )
        said += done.stdout
    rows = [line.split("\t") for line in said.splitlines()]
    return {old: new for _, old, new in rows}


if __name__ == "__main__":
    try:
        page = refreshed(PAGE.read_text(encoding="utf-8"), places_of_tests(ROOT))
        PAGE.write_text(page, encoding="utf-8")
    except LookupError as error:
        sys.exit(str(error))
