"""
What a mutant is: a small, plausible mistake in looopy, and the tests that have to notice it.

An edit names its place, such as `looopy.agent.running:RunningTurn._commit`: a module, and a
function, class or constant in it. The text in that place matches whatever its line breaks and
indentation are. So code may move within its place, and be wrapped anew. If a word of it changes,
`test_list.py` fails, and somebody writes the mutant again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PARTS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Edit:
    """
    In *place*, *old*, found exactly once, becomes *new*.

    Attributes:
        place: A dotted module; or a dotted module, `:`, and the dotted name of a function, a class,
            or a variable of a module or a class.
        old: A part of the source. Its white space matches any white space. Between two of its words
            or signs the source may have more, and before a closing bracket a comma.
        new: Its lines after the first are indented like the line in which *old* begins.
    """

    place: str
    old: str
    new: str

    def file(self, root: Path) -> Path:
        """
        The file of the module, in the repository at *root*.

        Raises:
            LookupError: There is no such module.
        """
        name = self.place.partition(":")[0].replace(".", "/")
        for path in (f"src/{name}.py", f"src/{name}/__init__.py", f"{name}.py"):
            if (root / path).is_file():
                return root / path
        raise LookupError(f"no module {self.place}")

    def made_in(self, text: str) -> str:
        """
        The source *text* of the module with this edit made.

        Raises:
            LookupError: The place is not there, or *old* is not there exactly once.
        """
        pattern = _pattern(self.old)
        spans = _spans(text, self.place.partition(":")[2])
        found = [match for span in spans for match in pattern.finditer(text, *span)]
        if len(found) != 1:
            raise LookupError(f"found {len(found)} times in {self.place}: {self.old}")
        begin, end = found[0].span()
        line = text[text.rfind("\n", 0, begin) + 1 : begin]
        indent = line[: len(line) - len(line.lstrip())]
        return text[:begin] + self.new.replace("\n", f"\n{indent}") + text[end:]


@dataclass(frozen=True)
class Mutant:
    """
    One mistake.

    Attributes:
        name: What is done wrong, in a few words with hyphens.
        why: What a user would lose by it.
        edits: All of them together are the mistake.
        killed_by: pytest node ids; at least one test of each has to fail.
    """

    name: str
    why: str
    edits: tuple[Edit, ...]
    killed_by: tuple[str, ...]


def mutant(name: str, why: str, place: str, old: str, new: str, *killed_by: str) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, why, (Edit(place, old, new),), killed_by)


def _pattern(old: str) -> re.Pattern[str]:
    """An expression for *old* however it is broken into lines."""
    parts = _PARTS.findall(old)
    pattern = ""
    for i, part in enumerate(parts):
        before, after = "".join(parts[i - 1 : i])[-1:], "".join(parts[i + 1 : i + 2])[:1]
        if part.isspace():
            is_needed = not before or not after or (_is_word(before) and _is_word(after))
            pattern += r"\s+" if is_needed else r"\s*"
        elif part == "," and "".join(parts[i + 1 :]).lstrip()[:1] in {")", "]", "}"}:
            continue  # the bracket allows for it
        else:
            pattern += r"\s*" if before and not before.isspace() else ""
            pattern += r",?\s*" if before and part in ")]}" else ""
            pattern += re.escape(part)
    return re.compile(pattern)


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _spans(text: str, name: str) -> list[tuple[int, int]]:
    """Where the lines of *name* are in *text*: more than one if it is defined more than once."""
    if not name:
        return [(0, len(text))]
    first, *rest = name.split(".")
    nodes = list(_defined(_parsed(text), first))
    for part in rest:
        nodes = [found for node in nodes for found in _defined(node, part)]
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [(starts[_first_line(node) - 1], starts[node.end_lineno or -1]) for node in nodes]


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    """Many mutants are made of the same file."""
    return ast.parse(text)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _defined(scope: ast.AST, name: str) -> Iterator[ast.stmt]:
    """What is called *name* in *scope* itself, also below its `if`, `with` and `try`."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name:
                yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                yield node
        else:
            yield from _defined(node, name)
