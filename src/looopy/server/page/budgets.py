"""The accounts of owners and tenants as JSON: items over HTTP, and rows of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any

from looopy.agent.agent import Agent
from looopy.errors import ConfigurationError
from looopy.server import models
from looopy.server.host import AgentHost
from looopy.server.items import item
from looopy.stores.contexts.spending import (
    NOTHING,
    Allowance,
    Amount,
    Period,
    Spent,
    account_of,
    allowances_of,
    keys_on,
    spent_of,
)
from looopy.stores.records import ContextRecord
from looopy.types.context import AuthContext


def limits_in(agent: Agent, owner: str | None, account: str) -> dict[Period, Allowance]:
    """The limits of an account, by period, as *agent* has them for contexts of *owner*."""
    allowances = allowances_of(agent.loop_config.budget, owner)
    return {one.period: one for one in allowances if one.account == account}


async def owner_budget(
    host: AgentHost, auth: AuthContext, record: ContextRecord | None, day: date | None
) -> models.BudgetOfOwner:
    """
    The caller's own accounts of a day and of its month, with the limits of the present agent.

    Args:
        record: The context whose agent has the limits; `None`: the last active one of the caller.

    Raises:
        FactoryFailed: See `AgentHost.agent`.
    """
    stores, owner = host.stores_for(auth), auth.actor_id
    account = account_of(owner)
    try:
        sums = await stores.spending.spent(account, day=day)
    except ConfigurationError:  # these stores keep no accounts
        return {"owner": owner, "items": []}
    if record is None:
        page = await stores.contexts.list(owner=owner, limit=1)
        record = next(iter(page.items), None)
    limits = {}
    if record is not None:
        limits = limits_in(await host.look(record.context_id, auth), owner, account)
    return {"owner": owner, "items": list(budget_items(sums, limits, day))}


def budget_items(
    sums: Sequence[Spent], limits: dict[Period, Allowance], day: date | None = None
) -> Iterator[models.BudgetItem]:
    """
    An item for each period that has a sum or a limit.

    Args:
        limits: See `limits_in`.
        day: The day of *sums*; `None`: today.
    """
    found = {one.period: one for one in sums}
    periods: tuple[Period, Period] = ("day", "month")
    for period in periods:
        if period in found or period in limits:
            key = keys_on(day or datetime.now(UTC))[period]
            spent = found.get(period) or spent_of(key, NOTHING, NOTHING)
            yield _item(spent, limits.get(period))


def _item(spent: Spent, limit: Allowance | None) -> models.BudgetItem:
    dollars = None if limit is None or limit.nanos is None else Amount(0, limit.nanos).cost_usd
    return item(
        models.BudgetItem,
        spent,
        **amount_to_json(spent.used),
        **{f"reserved_{name}": value for name, value in amount_to_json(spent.reserved).items()},
        limit_tokens=limit and limit.tokens,
        limit_cost_usd=dollars,
    )


def amount_to_json(amount: Amount) -> dict[str, Any]:
    """Tokens, and the known part of the cost; `None` if no part of it is known."""
    known = amount.is_priced or amount.nanos != 0
    return {
        "tokens": amount.tokens,
        "cost_usd": round(amount.cost_usd, 9) if known else None,
        "cost_complete": amount.is_priced,
    }
