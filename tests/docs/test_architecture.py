"""The page about the architecture names files, names and floors that exist."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "looopy"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w.]+)`,?\s+\(?`([\w/]+\.py)`")


def _layers():
    """The rooms of each floor, from the top, as the linter holds them; those to come left out."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    floors = next(c for c in config["tool"]["importlinter"]["contracts"] if c["name"] == "Floors")
    rooms = [set(layer.replace(" ", "").split("|")) for layer in floors["layers"]]
    return [{room for room in layer if not room.startswith("(")} for layer in rooms]


def test_every_file_that_is_named_exists():
    """Below `src/looopy`."""
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)) - {"src/looopy"}
    assert len(named) > 30
    assert [path for path in sorted(named) if not (SOURCE / path).exists()] == []


def test_every_name_beside_a_file_is_defined_there():
    """As a class or a function at its top, or as a method of one of its classes."""
    named = set(NAMED.findall(PAGE))
    assert len(named) > 10
    for name, path in sorted(named):
        tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assert name.rpartition(".")[2].removesuffix("()") in defined, f"{name} in {path}"


def test_the_floors_are_those_that_the_linter_holds():
    """Room by room, from the top."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert [set(re.findall(r"`(\w+)`", rooms)) for _, rooms in rows] == _layers()


def test_no_arrow_of_the_drawing_runs_up():
    """Each goes from a floor to a lower one, and each room is drawn."""
    floor = {room: number for number, rooms in enumerate(_layers()) for room in rooms}
    drawing = PAGE.partition("flowchart TD\n")[2].partition("```")[0]
    arrows = [
        (above.strip(), below)
        for above, _, targets in (line.partition(" --> ") for line in drawing.splitlines())
        for below in targets.split(" & ")
    ]
    assert all(floor[above] < floor[below] for above, below in arrows)
    assert floor.keys() - {room for arrow in arrows for room in arrow} == {"_failpoints"}
