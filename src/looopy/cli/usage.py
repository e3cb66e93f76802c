"""`looopy usage`: what the conversations in a database have used, by context, owner, model, day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from looopy.cli.conversations.database import existing
from looopy.cli.data_folder import default_url, shown_place
from looopy.cli.render import json_line
from looopy.cli.tables import csv_text, table_lines
from looopy.cli.terminal import Terminal
from looopy.stores.usage import DIMENSIONS, Dimension, Key, Sum, sum_usage
from looopy.types.message import Usage

_TOKENS: Final = ("input", "cache_read", "cache_write", "output")
_UNKNOWN: Final = "unknown"


async def show_usage(
    url: str | None,
    *,
    by: Sequence[Dimension],
    owner: str | None,
    since: date | None,
    until: date | None,
    form: str,
) -> int:
    """
    Print the sums, and below them the sum of all.

    Args:
        form: `table`, `csv` or `json`.

    Raises:
        ConfigurationError: There is no database.
        ValueRefused: The last day is before the first.
        LimitExceeded: There are too many sums.
    """
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    chosen = list(dict.fromkeys(by)) or ["model"]
    async with existing(place) as stores:
        sums = await sum_usage(stores, by=chosen, owner=owner, since=since, until=until)
    rows = [_row(chosen, key, one) for key, one in sorted(sums.items(), key=_order)]
    total = Sum()
    for one in sums.values():
        total.calls += one.calls
        total.usage += one.usage
    if form == "json":
        whole = {"by": chosen, "items": rows, "total": _numbers(total)}
        terminal.raw_line(json_line(whole))
    elif form == "csv":
        names = [*chosen, "calls", *_TOKENS, "cost_usd", "cost_complete"]
        terminal.raw_line(csv_text(names, rows))
    elif not rows:
        chosen_part = " for these days or this owner" if owner or since or until else ""
        terminal.notice(f"No usage is stored in {shown_place(place)}{chosen_part}.")
    else:
        for line in _table(chosen, [*rows, {chosen[0]: "total", **_numbers(total)}]):
            terminal.line(line)
    return 0


def _order(item: tuple[Key, Sum]) -> tuple[tuple[bool, str], ...]:
    """By day, then by the names; places that are not known come last."""
    key = item[0]
    found = (key.day, key.owner, key.context, key.model)
    return tuple((one is None, str(one)) for one in found)


def _row(by: Sequence[Dimension], key: Key, one: Sum) -> dict[str, Any]:
    found = {name: getattr(key, name) for name in by}
    return {name: v.isoformat() if isinstance(v, date) else v for name, v in found.items()} | (
        _numbers(one)
    )


def _numbers(one: Sum) -> dict[str, Any]:
    usage = one.usage
    return {
        "calls": one.calls,
        **{name: getattr(usage, name) for name in _TOKENS},
        "cost_usd": _dollars(usage),
        "cost_complete": usage.is_priced,
    }


def _dollars(usage: Usage) -> float | None:
    """The known part of a cost; `None` if no part is known."""
    if usage.cost is None or (not usage.cost.complete and not usage.cost.total):
        return None
    return round(usage.cost.total, 9)


def _table(by: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [*by, "calls", *_TOKENS, "cost"]
    cells = [[_cell(row, name) for name in names] for row in rows]
    return table_lines([[name.replace("_", " ") for name in names], *cells], len(by))


def _cell(row: Mapping[str, Any], name: str) -> str:
    if name == "cost":
        dollars = row["cost_usd"]
        if dollars is None:
            return _UNKNOWN
        return f"${dollars:,.4f}" + ("" if row["cost_complete"] else f" + {_UNKNOWN}")
    value = row.get(name)
    if name in DIMENSIONS:
        return "-" if value is None and name in row else str(value or "")
    return f"{value:,}"
