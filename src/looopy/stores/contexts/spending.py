"""
The terms of budgets of a day and a month, for owners and tenants, which every store shares.

A model call is paid for in two steps. Before it, the most that it may use is reserved in each
account that limits it: all of them have room, or nothing is written. After it, its reservation is
exchanged for what was used. A process that dies in between leaves its reservation, so the
call counts at its most until it is settled: a crash never makes room.

Money is kept as whole billionths of a dollar, so what is given back is what was taken.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from looopy.errors import BudgetExceeded, ValueRefused
from looopy.stores.rows.meta import from_us
from looopy.types.config import Budget
from looopy.types.message import Usage

Period: TypeAlias = Literal["day", "month"]
"""A calendar day or month, in UTC, by the clock of the store."""

KEPT_DAYS: Final = 62
KEPT_MONTHS_DAYS: Final = 400
"""For how long the sums of a day and of a month are kept, in days."""
_NANOS: Final = 1_000_000_000
_MOST: Final = 2**53
_DIGITS: Final = 32
TENANT: Final = "tenant"
"""The account of all contexts of a tenant."""


class Amount(NamedTuple):
    """
    Tokens, and billionths of a dollar.

    Attributes:
        unpriced: The tokens of calls of which no price, or not the whole price, is known.
    """

    tokens: int = 0
    nanos: int = 0
    unpriced: int = 0

    @property
    def cost_usd(self) -> float:
        """The money in dollars, as far as it is known; see `is_priced`."""
        return self.nanos / _NANOS

    @property
    def is_priced(self) -> bool:
        """True if `cost_usd` is the whole cost."""
        return not self.unpriced

    def plus(self, other: Amount) -> Amount:
        """The sum of both."""
        return Amount(*map(operator.add, self, other))

    def minus(self, other: Amount) -> Amount:
        """*self* without *other*; parts may be negative."""
        return Amount(*map(operator.sub, self, other))


NOTHING: Final = Amount()


def amount_of(usage: Usage) -> Amount:
    """The tokens and the known cost of *usage*."""
    cost = 0.0 if usage.cost is None else usage.cost.total
    tokens = min(usage.total_tokens, _MOST)
    return Amount(tokens, nanos_of(cost), 0 if usage.is_priced else tokens)


def nanos_of(dollars: float) -> int:
    """Dollars as whole billionths."""
    return round(min(max(dollars, 0.0), _MOST / _NANOS) * _NANOS)


@dataclass(frozen=True, slots=True)
class Allowance:
    """
    One account, and how much it may spend in a period.

    Attributes:
        account: See `account_of`.
        tokens, nanos: The limits, or `None`.
        name: The beginning of the names of its limits in `Budget`, such as `owner_day`.
    """

    account: str
    period: Period
    tokens: int | None
    nanos: int | None
    name: str


def account_of(owner: str | None) -> str:
    """
    The account of an actor; `None` names the account of contexts without an owner.

    It is a digest, so no table of sums holds the name of a person, and erasing a person's contexts
    does not give them a new budget.
    """
    name = "anonymous" if owner is None else f"actor:{owner}"
    return f"owner:{digest_of(name)}"


def digest_of(name: str) -> str:
    """A text of fixed length that stands for *name*."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def allowances_of(budget: Budget, owner: str | None) -> list[Allowance]:
    """The accounts that *budget* limits for a turn of a context of *owner*."""
    found = []
    for whose, account in (("owner", account_of(owner)), ("tenant", TENANT)):
        periods: tuple[Period, Period] = ("day", "month")
        for period in periods:
            name = f"{whose}_{period}"
            tokens: int | None = getattr(budget, f"{name}_tokens")
            dollars: float | None = getattr(budget, f"{name}_cost_usd")
            if tokens is not None or dollars is not None:
                nanos = None if dollars is None else nanos_of(dollars)
                found.append(Allowance(account, period, tokens, nanos, name))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """
    The sums of one account in one period.

    Attributes:
        since: When the period began; UTC.
        until: When it ends.
        used: The amount that model calls have used.
        reserved: The most that unsettled calls may use: they run, or their process died.
    """

    period: Period
    since: datetime
    until: datetime
    used: Amount
    reserved: Amount


class Place(NamedTuple):
    """
    The turn that reserves.

    Attributes:
        context: A digest of its context's id.
    """

    context: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    A reservation: the most that an unsettled call may use. The call runs, or its process died.

    Attributes:
        reservation: Its name.
        place: The turn that made it.
        accounts: The accounts in which it is set aside.
        since: When it was made; UTC.
        until: When the last of its periods ends.
    """

    reservation: str
    place: Place
    most: Amount
    accounts: Sequence[str]
    since: datetime
    until: datetime


def held_of(
    reservation: str,
    place: Place,
    most: Amount,
    charges: Sequence[Sequence[str]],
    made_at_us: int,
) -> Held:
    """
    The reservation of a row.

    Args:
        charges: Pairs of an account and a period.
    """
    return Held(
        reservation=reservation,
        place=place,
        most=most,
        accounts=tuple(dict.fromkeys(account for account, _ in charges)),
        since=from_us(made_at_us),
        until=max(bounds_of(period)[2] for _, period in charges),
    )


def new_reservation() -> str:
    """A name that no other reservation has."""
    return os.urandom(16).hex()


def key_of(period: Period, now_us: int) -> str:
    """The period that *now_us* is in, as its rows name it: `d2026-11-23` or `m2026-11`."""
    return keys_on(from_us(now_us))[period]


def keys_on(day: date) -> dict[str, str]:
    """
    The day and the month that *day* is in, as `key_of` names them.

    Raises:
        ValueRefused: Its year has no four digits, or no year comes after it.
    """
    if not 1000 <= day.year < date.max.year:
        raise ValueRefused(f"no budget has a day in the year {day.year}", path="/day")
    return {"day": f"d{day:%Y-%m-%d}", "month": f"m{day:%Y-%m}"}


def oldest_kept(now_us: int) -> dict[str, str]:
    """Where the rows of days and of months begin that are still kept."""
    now = from_us(now_us)
    return {
        "oldest_day": f"d{now - timedelta(days=KEPT_DAYS):%Y-%m-%d}",
        "oldest_month": f"m{now - timedelta(days=KEPT_MONTHS_DAYS):%Y-%m}",
    }


def bounds_of(key: str) -> tuple[Period, datetime, datetime]:
    """A period, and when it begins and ends."""
    if key.startswith("d"):
        since = datetime.strptime(key, "d%Y-%m-%d").replace(tzinfo=UTC)
        return "day", since, since + timedelta(days=1)
    since = datetime.strptime(key, "m%Y-%m").replace(tzinfo=UTC)
    return "month", since, (since + timedelta(days=31)).replace(day=1)


def spent_of(key: str, used: Amount, reserved: Amount) -> Spent:
    """The sums of a row."""
    period, since, until = bounds_of(key)
    return Spent(period=period, since=since, until=until, used=used, reserved=reserved)


def check_room(
    allowance: Allowance, key: str, most: Amount, used: Amount, reserved: Amount
) -> None:
    """
    Refuse a call that does not fit an account.

    Args:
        most: The most that the call may use.
        used, reserved: The sums of the account, both without this call.

    Raises:
        BudgetExceeded: It does not fit; `waits` is true if it would if calls that run used nothing,
            and `resets_at` is `None` if it fits no period.
    """
    limits = (
        ("tokens", allowance.tokens, most.tokens, used.tokens, reserved.tokens),
        ("cost_usd", allowance.nanos, most.nanos, used.nanos, reserved.nanos),
    )
    never = any(limit is not None and asked > limit for _, limit, asked, _, _ in limits)
    for what, limit, asked, settled, held in limits:
        if limit is None or settled + held + asked <= limit:
            continue
        name = f"{allowance.name}_{what}"
        unit = "tokens" if what == "tokens" else "dollars"
        left = max(0, limit - settled - held)
        shown = (_shown(n, what) for n in (settled, limit, held, asked, left))
        is_used, of_limit, is_held, is_asked, is_left = shown
        _, _, until = bounds_of(key)
        whose = "this owner" if allowance.account != TENANT else "this tenant"
        beside = f", calls that run may use {is_held} more" if held else ""
        shorter = "allow shorter answers with LoopConfig.max_tokens"
        ways = f"raise it, {shorter}, or continue after {until:%Y-%m-%d %H:%M} UTC"
        if never:
            ways = f"raise it, or {shorter}"
        raise BudgetExceeded(
            f"{whose} has used {is_used} of {of_limit} {unit} of this {allowance.period}{beside},"
            f" and the next model call may use up to {is_asked}, more than the {is_left} that are"
            f" left (Budget.{name}): {ways}",
            limit=name,
            value=limit if what == "tokens" else limit / _NANOS,
            waits=settled + asked <= limit,
            resets_at=None if never else until,
        )


def _shown(number: int, what: str) -> str:
    if what == "tokens":
        return f"{number:,}"
    dollars = number / _NANOS
    return f"{dollars:.2f}" if dollars == round(dollars, 2) else f"{dollars:.4f}"


def charges_of(allowances: Sequence[Allowance], now_us: int) -> list[tuple[Allowance, str]]:
    """The rows of *allowances* now, in the one order in which all writers lock them."""
    named = [(one, key_of(one.period, now_us)) for one in allowances]
    return sorted(named, key=lambda pair: (pair[0].account, pair[1]))
