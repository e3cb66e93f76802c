"""The tables of `docs/performance.md`, between two marks; the rest is written by hand."""

from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN = "<!-- figures: made by `python -m benchmarks --page`, not by hand -->"
END = "<!-- end of figures -->"


def block() -> str:
    """What stands between the marks."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write(figures: str) -> None:
    """Put *figures* between the marks."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    PAGE.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")
