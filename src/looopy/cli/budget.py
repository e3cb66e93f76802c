"""`looopy budget`: the use of budgets by owners and the tenant, and calls that are stuck."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

from looopy.cli.conversations.base import Conversations
from looopy.cli.conversations.database import existing
from looopy.cli.data_folder import default_url, shown_place
from looopy.cli.render import counted, json_line
from looopy.cli.tables import csv_text, table_lines
from looopy.cli.terminal import Terminal, one_line
from looopy.server.page.budgets import amount_to_json
from looopy.stores.accounts import HeldCall, held_calls, release_call

_UNKNOWN: Final = "unknown"
_AMOUNT: Final = ("tokens", "cost_usd", "cost_complete")
_NAMES: Final = ("account", "owner", "account_id")
_SUMS: Final = (
    *("period", "since", "until"),
    *_AMOUNT,
    *(f"reserved_{name}" for name in _AMOUNT),
    *("limit_tokens", "limit_cost_usd"),
)
_CALL: Final = ("reservation", "status", "stuck", "context_id", "turn", "owner", "since", "until")


async def show_budgets(
    place: Conversations,
    terminal: Terminal,
    *,
    tenant: str | None,
    owner: str | None,
    day: date | None,
    factory: str | None,
    form: str,
) -> int:
    """
    Print the sums of a day and of its month, of the tenant and of each owner.

    Args:
        form: `table`, `csv` or `json`. Otherwise see `Conversations.budgets`.

    Raises:
        LooopyError: See `Conversations.budgets`.
    """
    found = await place.budgets(owner=owner, tenant=tenant, day=day, factory=factory)
    rows = found.rows
    if form == "json":
        terminal.raw_line(json_line({"items": rows}))
        return 0
    if form == "csv":
        terminal.raw_line(csv_text([*_NAMES, *_SUMS], rows))
        return 0
    for line in _table(rows, with_limits=found.with_limits) if rows else ():
        terminal.line(line)
    if not rows and place.whose:
        terminal.notice(f"No budget of a day or a month limits you {place.where}.")
    elif not rows:
        of_day = "" if day is None else f" on {day} or in its month"
        terminal.notice(f"No budget has counted anything {place.where}{of_day}.")
    if dead := found.dead_calls:
        said = f"{counted(dead, 'dead call')} still {'holds' if dead == 1 else 'hold'}"
        terminal.notice(f"{said} a part of what is reserved: looopy budget held")
    return 0


async def show_held(url: str | None, *, tenant: str | None, form: str) -> int:
    """
    Print the calls that hold something in an account, and how each stands.

    Raises:
        ConfigurationError: There is no database.
    """
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    async with existing(place) as opened:
        calls = await held_calls(opened if tenant is None else opened.for_tenant(tenant))
    rows = [_call_row(call) for call in calls]
    if form == "json":
        terminal.raw_line(json_line({"items": rows}))
    elif form == "csv":
        terminal.raw_line(csv_text([*_CALL, *_AMOUNT], rows))
    elif rows:
        head = ["reservation", "call", "conversation", "since (UTC)", "tokens", "cost"]
        for line in table_lines([head, *map(_call_cells, rows)], 4):
            terminal.line(line)
        if any(row["stuck"] for row in rows):
            terminal.notice("A call that is stuck can be released: looopy budget release NAME")
    else:
        terminal.notice(f"No call holds anything in {shown_place(place)}.")
    return 0


async def release_held(url: str | None, reservation: str, *, tenant: str | None) -> int:
    """
    Give back what a dead call holds.

    Raises:
        AgentBusy: The call may still run.
        StoreConflict: It holds nothing.
    """
    async with existing(url or default_url()) as opened:
        stores = opened if tenant is None else opened.for_tenant(tenant)
        call = await release_call(stores, reservation)
    row = _call_row(call)
    Terminal(quiet_out=True).line(f"released {row['tokens']:,} tokens, {_cost(row)}")
    return 0


def _call_row(call: HeldCall) -> dict[str, Any]:
    held = call.held
    return {
        "reservation": held.reservation,
        "status": call.status,
        "stuck": call.is_stuck,
        "context_id": call.context_id,
        "turn": held.place.turn,
        "owner": call.owner,
        "since": held.since.isoformat(),
        "until": held.until.isoformat(),
        **amount_to_json(held.most),
    }


# --- for people --------------------------------------------------------------------------------


def _table(rows: Sequence[Mapping[str, Any]], *, with_limits: bool) -> list[str]:
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("account", _account),
        ("period", _period),
        ("tokens", lambda row: f"{row['tokens']:,}"),
        ("reserved", lambda row: f"{row['reserved_tokens']:,}"),
        ("limit", lambda row: _limit(row["limit_tokens"], "{:,}")),
        ("cost", _cost),
        ("reserved", lambda row: _cost(row, "reserved_")),
        ("limit", lambda row: _limit(row["limit_cost_usd"], "${:,.2f}")),
    ]
    if not with_limits:
        columns = [one for one in columns if one[0] != "limit"]
    cells = [[show(row) for _, show in columns] for row in rows]
    return table_lines([[name for name, _ in columns], *cells], 2)


def _account(row: Mapping[str, Any]) -> str:
    if row["account"] != "owner":
        return str(row["account"])
    return one_line(row["owner"], 60) if row["owner"] else f"{row['account_id'][:14]}..."


def _period(row: Mapping[str, Any]) -> str:
    return f"{row['period']} {row['since'][: 10 if row['period'] == 'day' else 7]}"


def _limit(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _cost(row: Mapping[str, Any], prefix: str = "") -> str:
    dollars = row[f"{prefix}cost_usd"]
    if dollars is None:
        return _UNKNOWN
    return f"${dollars:,.4f}" + ("" if row[f"{prefix}cost_complete"] else f" + {_UNKNOWN}")


def _call_cells(row: Mapping[str, Any]) -> list[str]:
    name = "-" if row["context_id"] is None else one_line(row["context_id"], 60)
    status = f"{row['status']}, stuck" if row["stuck"] else row["status"]
    since = f"{row['since'][:16].replace('T', ' ')}"
    where = f"{name}, turn {row['turn']}"
    return [row["reservation"], status, where, since, f"{row['tokens']:,}", _cost(row)]
