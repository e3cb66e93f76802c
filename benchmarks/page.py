"""Write the tables of `docs/performance.md` between two marks; the rest is written by hand."""

from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN = "<!-- figures: made by `python -m benchmarks --page`, not by hand -->"
END = "<!-- end of figures -->"


PLOTS = PAGE.parent / "plots"
PICTURES = {
    "history": "CPU of a turn, by the messages before it",
    "concurrency": "Turns a second, by contexts at once",
    "storage": "Size of the file, by turns",
}


def write(figures: str) -> None:
    """Put *figures* between the marks, and the pictures that exist."""
    for name, title in PICTURES.items():
        if (PLOTS / f"{name}.png").exists():
            figures += f"\n\n![{title}](plots/{name}.png)"
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    PAGE.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")
