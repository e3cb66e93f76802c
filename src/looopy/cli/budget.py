"""`looopy budget`: what owners and the tenant have used of their budgets, and what is stuck."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

from looopy.cli.contexts import existing
from looopy.cli.factories import load_factory
from looopy.cli.paths import default_url, shown_place
from looopy.cli.render import counted, json_line
from looopy.cli.tables import csv_text, table_lines
from looopy.cli.terminal import Terminal, one_line
from looopy.server.host import AgentHost
from looopy.server.page.budgets import amount_to_json, budget_items, limits_in
from looopy.stores.accounts import HeldCall, held_calls, owners_of, release_call
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import TENANT, Spent, account_of
from looopy.stores.records import ContextRecord
from looopy.types.context import AuthContext

_PAGE: Final = 200
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
    url: str | None,
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
        owner: Only of this one.
        day: Today by default.
        factory: `MODULE:FACTORY` of the application, which has the limits.
        form: `table`, `csv` or `json`.

    Raises:
        ConfigurationError: There is no database, or the factory cannot be used.
        FactoryFailed: The factory raised.
    """
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    made = None if factory is None else load_factory(factory)
    async with existing(place) as opened:
        stores = opened if tenant is None else opened.for_tenant(tenant)
        found = await _accounts(stores, owner, day)
        contexts = await _contexts(stores, list(found), owner)
        host = None if made is None else AgentHost(made, stores)
        rows = []
        for account, sums in found.items():
            limits = {}
            if host is not None and (record := _of(contexts, account)) is not None:
                auth = AuthContext(record.owner_actor) if record.owner_actor else None
                agent = await host.sample(record.context_id, auth)
                limits = limits_in(agent, record.owner_actor, account)
            who = _who(account, contexts.get(account), owner)
            rows += [{**who, **item} for item in budget_items(sums, limits, day)]
        stuck = [call for call in await held_calls(stores) if call.is_stuck]
    rows.sort(key=_order)
    print_budgets(terminal, rows, form, with_limits=made is not None)
    if not rows and form == "table":
        of_day = "" if day is None else f" on {day} or in its month"
        terminal.notice(f"No budget has counted anything in {shown_place(place)}{of_day}.")
    if stuck and form == "table":
        said = f"{counted(len(stuck), 'dead call')} still {'holds' if len(stuck) == 1 else 'hold'}"
        terminal.notice(f"{said} a part of what is reserved: looopy budget held")
    return 0


def own_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of what a server tells its caller."""
    owner = found["owner"]
    who = {"account": "owner", "owner": owner, "account_id": account_of(owner)}
    return [{**who, **item} for item in found["items"]]


def print_budgets(
    terminal: Terminal, rows: Sequence[Mapping[str, Any]], form: str, *, with_limits: bool
) -> None:
    """Print the rows of accounts; nothing for a table without any."""
    if form == "json":
        terminal.raw_line(json_line({"items": rows}))
    elif form == "csv":
        terminal.raw_line(csv_text([*_NAMES, *_SUMS], rows))
    elif rows:
        for line in _table(rows, with_limits=with_limits):
            terminal.line(line)


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


async def _accounts(
    stores: Stores, owner: str | None, day: date | None
) -> dict[str, Sequence[Spent]]:
    if owner is not None:
        account = account_of(owner)
        return {account: await stores.spending.spent(account, day=day)}
    found: dict[str, Sequence[Spent]] = {}
    while page := await stores.spending.accounts(
        day=day, after=max(found, default=""), limit=_PAGE
    ):
        found.update(page)
    return found


async def _contexts(
    stores: Stores, accounts: Sequence[str], owner: str | None
) -> dict[str, ContextRecord]:
    if owner is None:
        return await owners_of(stores, accounts)
    page = await stores.contexts.list(owner=owner, limit=1)
    return {account_of(owner): record for record in page.items}


def _of(contexts: Mapping[str, ContextRecord], account: str) -> ContextRecord | None:
    """The context whose agent has the limits of an account."""
    if account != TENANT:
        return contexts.get(account)
    return max(contexts.values(), key=lambda one: one.last_activity, default=None)


def _who(account: str, record: ContextRecord | None, asked: str | None) -> dict[str, str | None]:
    kind = "tenant" if account == TENANT else "owner"
    if account == account_of(None):
        kind = "no owner"
    owner = asked if record is None else record.owner_actor
    return {"account": kind, "owner": owner, "account_id": account}


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The tenant first, then owners by name; those without a name come last."""
    return row["account"] != "tenant", row["owner"] is None, row["owner"] or row["account_id"]


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
