"""
The accounts of one turn: what its owner and its tenant may spend in a day or month.

`Ledger` is the `Meter` of the turn's provider. It reserves in the store, and waits if there would
be room but for calls that run now. An agent that works as a tool also pays into the accounts of the
turn that it works for, whatever its own budget allows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from looopy.errors import BudgetExceeded, StoreError
from looopy.llm.provider import LLMProvider
from looopy.loop.metered import MeteredProvider
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import (
    NOTHING,
    Allowance,
    Amount,
    Place,
    allowances_of,
    amount_of,
    digest_of,
    new_reservation,
)
from looopy.stores.shield import settle
from looopy.types.config import LoopConfig
from looopy.types.message import NO_USAGE, Usage

_logger = logging.getLogger("looopy")
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_chance = random.Random()  # noqa: S311 - spreads looks, keeps no secret
_outer: ContextVar[Ledger | None] = ContextVar("looopy_ledger", default=None)
_lines: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()
_left: WeakKeyDictionary[object, dict[str, dict[str, Amount]]] = WeakKeyDictionary()
"""
The use of calls that are not settled, because the store did not answer: by the backend, which all
bindings of a database share, by tenant, and by reservation.
"""


class Ledger:
    """
    Reserves in the accounts of a turn, and settles; see `Meter`.

    Args:
        allowances: Empty if the turn works for one that has some.
        patience_s: How long to wait for room while other calls run.
        needs_price: Refuses calls without a known price, for the sake of its own allowances.
        outer: The accounts of the turn that this one works for.

    Attributes:
        allowances: The accounts, with the accounts of outer turns in the same stores.
        beyond: The outer turn's accounts in other stores.
        needs_price: True if it or an outer turn refuses calls without a known price: each budget
            decides for its own limits.
    """

    def __init__(
        self,
        stores: Stores,
        allowances: Sequence[Allowance],
        place: Place,
        *,
        patience_s: float,
        needs_price: bool = False,
        outer: Ledger | None = None,
    ) -> None:
        self._stores = stores
        self._place = place
        self._patience_s = patience_s
        self._outer = outer
        self.beyond = outer
        self.needs_price: bool = needs_price or (outer is not None and outer.needs_price)
        self.allowances = list(allowances)
        if outer is not None and outer.is_in(stores):
            self.beyond = outer.beyond
            self.allowances = _tightest([*allowances, *outer.allowances])
        self._most: dict[str, tuple[Amount, str | None]] = {}
        self._charged = NO_USAGE  # by tools
        self._inside = NO_USAGE
        self._added = NOTHING

    def is_in(self, stores: Stores) -> bool:
        """True if the accounts belong to *stores*."""
        return _backend(self._stores) is _backend(stores) and self._stores.tenant == stores.tenant

    async def reserve(self, most: Usage) -> str:
        """See `Meter.reserve`."""
        beyond = None if self.beyond is None else await self.beyond.reserve(most)
        name, amount, owed = new_reservation(), amount_of(most), self._owed()
        try:
            if self.allowances:
                await self._reserve(name, amount, owed)
        except BaseException as error:
            if self.beyond is not None and beyond is not None:
                await self.beyond.settle(beyond, NO_USAGE)
            if not isinstance(error, BudgetExceeded):  # it may have been stored
                await self._exchange(name, NOTHING)
            raise
        self._added = self._added.plus(owed)
        self._most[name] = amount, beyond
        return name

    async def _reserve(self, name: str, most: Amount, owed: Amount) -> None:
        spending, loop = self._stores.spending, asyncio.get_running_loop()
        await self._settle_left()
        until, pause_s = loop.time() + self._patience_s, _SHORTEST_PAUSE_S

        async def tried(*, lastly: bool) -> bool:
            try:
                await settle(
                    spending.reserve(name, most, self.allowances, place=self._place, owed=owed)
                )
            except BudgetExceeded as error:
                if lastly or not error.waits:
                    raise
                return False
            return True

        if await tried(lastly=self._patience_s <= 0):
            return
        accounts = (one.account for one in self.allowances)
        # One turn of this process asks again, for all that wait after it for the same accounts:
        # otherwise the store would be busy with their questions.
        place = (id(loop), id(_backend(self._stores)), self._stores.tenant)
        line = _lines.setdefault((*place, *accounts), asyncio.Lock())
        async with line:
            while not await tried(lastly=loop.time() >= until):
                await asyncio.sleep(pause_s * _chance.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def settle(self, reservation: str, used: Usage | None) -> None:
        """See `Meter.settle`; a call that the store does not settle now is settled later."""
        most, beyond = self._most.pop(reservation)
        if self._outer is not None and used is not None:
            self._outer.paid_inside(used)
        if self.beyond is not None and beyond is not None:
            await self.beyond.settle(beyond, used)
        if not self.allowances:
            return
        await self._exchange(reservation, most if used is None else amount_of(used))

    async def _exchange(self, reservation: str, used: Amount) -> None:
        spending = self._stores.spending
        try:
            await settle(spending.settle(reservation, used))
        except StoreError as error:
            tenants = _left.setdefault(_home(self._stores), {})
            tenants.setdefault(self._stores.tenant, {})[reservation] = used
            text = "a model call counts at its most until the store answers again: %s"
            _logger.warning(text, error)

    async def _settle_left(self) -> None:
        """Settle what the store did not settle before, whichever turn of this process it is of."""
        spending = self._stores.spending
        left = _left.get(_home(self._stores), {}).get(self._stores.tenant)
        while left:
            name, used = next(iter(left.items()))
            try:
                await settle(spending.settle(name, used))
            except StoreError:
                return
            left.pop(name, None)

    def paid_inside(self, used: Usage) -> None:
        """Note the use of an agent that works for this turn, which is reserved and charged."""
        self._inside += used

    def charge(self, usage: Usage) -> None:
        """See `Meter.charge`: it is added with the next reservation, or when the turn ends."""
        self._charged += usage

    def _owed(self) -> Amount:
        """The use of tools that no account has yet."""
        known = amount_of(self._inside).plus(self._added)
        owed = amount_of(self._charged).minus(known)
        return Amount(*(max(part, 0) for part in owed))

    def open(self) -> None:
        """Make turns that this task begins, such as of agents used as tools, pay here too."""
        _outer.set(self)

    async def close(self) -> None:
        """Add what is left to add, at the end of the turn."""
        if not self.allowances:
            return
        await self._settle_left()
        if (owed := self._owed()) == NOTHING:
            return
        self._added = self._added.plus(owed)
        try:
            await settle(self._stores.spending.add(owed, self.allowances))
        except StoreError as error:
            _logger.warning("what tools have used was not added to a budget: %s", error)


def _backend(stores: Stores) -> object:
    """The object that all bindings of the same stores have in common."""
    return getattr(stores.state, "backend", stores.state)


def _home(stores: Stores) -> object:
    """An object to keep what concerns *stores*, as long as they are there."""
    backend = _backend(stores)
    try:
        hash(ref(backend))
    except TypeError:  # another author's backend, with slots or without a hash
        return stores
    return backend


def ledger_of(
    stores: Stores, config: LoopConfig, context_id: str, turn: int, owner: str | None
) -> Ledger | None:
    """
    The accounts of a turn; `None` if its budget has none, and it works for no turn that has any.

    Args:
        owner: The owner of the context.
    """
    outer = _outer.get()
    if outer is None and not config.budget.has_windows:
        return None
    budget = config.budget
    allowances = allowances_of(budget, owner)
    limits_money = any(one.nanos is not None for one in allowances)
    return Ledger(
        stores,
        allowances,
        Place(digest_of(context_id), turn),
        patience_s=config.busy_timeout_s,
        needs_price=limits_money and budget.unknown_cost == "refuse",
        outer=outer,
    )


def metered(provider: LLMProvider, ledger: Ledger | None) -> LLMProvider:
    """*provider*, with its calls paid for from the accounts of *ledger*, if there are any."""
    if ledger is None:
        return provider
    return MeteredProvider(provider, ledger, needs_price=ledger.needs_price)


def _tightest(allowances: Sequence[Allowance]) -> list[Allowance]:
    """One allowance for each account and period, with the smallest of its limits."""
    found: dict[tuple[str, str], Allowance] = {}
    for one in allowances:
        other = found.setdefault((one.account, one.period), one)
        limits = {
            name: min(values)
            for name in ("tokens", "nanos")
            if (values := [v for a in (one, other) if (v := getattr(a, name)) is not None])
        }
        found[one.account, one.period] = replace(one, **limits)
    return list(found.values())
