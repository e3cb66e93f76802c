"""
Reads a docstring for a model: the description, and a line for each parameter.

Three styles are recognised by their section headers alone: Google (`Args:` and an indented list),
numpy (`Parameters` underlined) and reStructuredText (`:param x:`). Sections about parameters,
results and errors leave the description; everything else stays in it, because examples and notes
help a model too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PARAMETERS = frozenset(
    {
        "args",
        "arguments",
        "keyword args",
        "keyword arguments",
        "other parameters",
        "parameters",
        "params",
    }
)
_PARAMETER_FIELDS = frozenset({"param", "parameter", "arg", "argument"})
_DROPPED = frozenset({"raises", "return", "returns", "yield", "yields"})
_DROPPED_FIELDS = _DROPPED | {"raise", "except", "exception", "rtype", "type", "ytype"}
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(.*)")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(\w+)([^:]*):(?:\s+|$)(.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """
    A docstring, taken apart.

    Attributes:
        description: Without the sections about parameters, results and errors; may be empty.
        parameters: Text by parameter name, line breaks folded; only described ones.
    """

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Take *text* apart; a docstring in no known style is all description."""
    lines = _lines(text or "")
    kept: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        title = line.strip().removesuffix(":").lower()
        if _is_underlined(lines, at) and title in _PARAMETERS | _DROPPED:
            body, at = _numpy_body(lines, at + 2)
            if title in _PARAMETERS:
                parameters |= _items(body, _numpy_names)
        elif line.rstrip().endswith(":") and title in _PARAMETERS | _DROPPED:
            body, at = _indented(lines, at + 1)
            if title in _PARAMETERS:
                parameters |= _items(body, _google_names)
        elif (match := _FIELD.fullmatch(line)) and match[1] in _PARAMETER_FIELDS:
            body, at = _indented(lines, at + 1)
            # ":param int count:" may name the type first.
            parameters[match[2].split()[-1] if match[2].split() else ""] = _fold([match[3], *body])
        elif match and match[1] in _DROPPED_FIELDS:
            _, at = _indented(lines, at + 1)
        else:
            kept.append(line)
            at += 1
    return Docstring(
        description="\n".join(kept).strip(),
        parameters={name: words for name, words in parameters.items() if name and words},
    )


def _lines(text: str) -> list[str]:
    """
    The lines of *text*, without its common indentation.

    The first line has no indentation, so it does not show the depth of a section that it begins. If
    all that follows is as deep as the section's first item, all of it is the section.
    """
    first, *rest = inspect.cleandoc(text).splitlines() or [""]
    begins = first.rstrip().endswith(":") and first.strip()[:-1].lower() in _PARAMETERS | _DROPPED
    if begins and rest and rest[0].strip() and not rest[0][0].isspace():
        rest = [f"    {line}" for line in rest]
    return [first, *rest]


def _is_underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) is not None


def _numpy_body(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    end = start
    while end < len(lines) and not _is_underlined(lines, end):
        end += 1
    return list(lines[start:end]), end


def _indented(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
        end += 1
    return list(lines[start:end]), end


_Names = Callable[[str], "tuple[list[str], str] | None"]


def _google_names(line: str) -> tuple[list[str], str] | None:
    match = _GOOGLE_ITEM.fullmatch(line)
    return ([match[1]], match[2]) if match else None


def _numpy_names(line: str) -> tuple[list[str], str] | None:
    match = _NUMPY_ITEM.fullmatch(line)
    return ([name.strip(" *") for name in match[1].split(",")], "") if match else None


def _items(body: Sequence[str], names_of: _Names) -> dict[str, str]:
    """Read a list whose items begin at its smallest indentation and continue deeper."""
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    margin = min((len(line) - len(line.lstrip()) for line in body if line.strip()), default=0)
    for line in body:
        begins = line[margin:] and not line[margin].isspace()
        if begins and (item := names_of(line[margin:].rstrip())):
            names, rest = item
            current = [rest]
            texts |= dict.fromkeys(names, current)
        else:
            current.append(line)
    return {name: _fold(lines) for name, lines in texts.items()}


def _fold(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
