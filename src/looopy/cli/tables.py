"""Rows as a table for people, and as CSV, which programs read and people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from looopy.cli.terminal import safe_text

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The first characters of a formula, also in full width, and characters that spreadsheets skip."""


def csv_text(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """
    *rows* as CSV, with a line of names above.

    `None` is an empty cell. Numbers stay numbers. A text that a spreadsheet would run as a formula
    has an apostrophe before it: names of models and owners come from elsewhere.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row[name]) for name in names})
    return out.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return "" if value is None else value
    return f"'{safe_text(value)}" if value.startswith(_FORMULAS) else safe_text(value)


def table_lines(cells: Sequence[Sequence[str]], texts: int) -> list[str]:
    """
    *cells* in columns, the first line being their names.

    Args:
        texts: How many columns are texts; the others are numbers, to the right.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_aligned(line, widths, texts)).rstrip() for line in cells]


def _aligned(line: Sequence[str], widths: Sequence[int], texts: int) -> list[str]:
    return [
        cell.ljust(width) if place < texts else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
