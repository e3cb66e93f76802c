"""
Check the types of README, pages and examples as a strict project of a user would.

    python -m tests.docs.typed_pages

Each block of a page becomes a function inside that of the block before it: it may await, it sees
the names of the blocks before it, and it may use them for something else. Each line keeps its
number, so that an error names the line of the page. Blocks marked `<!-- fragment -->` are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.docs.test_pages import DOCS, blocks

ROOT = DOCS.parent


def as_module(page: str) -> str:
    """The blocks of *page*, each in its lines and a function of its own."""
    lines = [""] * (page.count("\n") + 1)
    for depth, (first, code) in enumerate(blocks(page)):
        lines[first - 1] = "    " * depth + f"async def block_{depth}() -> None:"
        indented = textwrap.indent(code, "    " * (depth + 1)).splitlines()
        lines[first : first + len(indented)] = indented
    return "\n".join(lines)


def main() -> int:
    """Check everything; mypy's exit code, 0 if there is no error."""
    with tempfile.TemporaryDirectory() as folder:
        for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
            module = Path(folder, f"{page.stem.replace('-', '_').lower()}_md.py")
            module.write_text(as_module(page.read_text(encoding="utf-8")), encoding="utf-8")
        checked = sorted(Path(folder).glob("*.py")) + sorted((ROOT / "examples").glob("*.py"))
        command = [sys.executable, "-m", "mypy", "--strict", *map(str, checked)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
