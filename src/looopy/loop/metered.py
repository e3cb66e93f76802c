"""
A provider whose calls are paid for from accounts: `MeteredProvider`, and the `Meter` it asks.

It stands between the loop and the provider, so no model call of a turn passes it by, summaries and
retries included. Before a call the meter sets the most aside that the call may use; without room
there is no call. When the call ends, the meter gets its usage. A call that was cut off before the
provider reported its usage counts at its most, and so does one whose provider never reports it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final, Protocol

from looopy.errors import BudgetExceeded, LLMError
from looopy.history.tokens import estimate_tokens, spec_tokens, text_tokens
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.types.message import NO_USAGE, Usage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_SUMMARY_TOKENS: Final = 4096
"""
The longest answer of a call that names no limit: a summary, or a call of an agent that is a tool.
"""
_ESTIMATE_PERCENT: Final = 150
"""The share of the estimated length of a request that it has at most."""


class Meter(Protocol):
    """Reserves for model calls and settles; implemented with the accounts of a store."""

    async def reserve(self, most: Usage) -> str:
        """
        Set *most* aside in all accounts, and return a name for it.

        A caller that is cancelled leaves nothing set aside.

        Raises:
            BudgetExceeded: An account has no room; nothing was set aside.
            StoreError: The accounts cannot be read; the call must not be made.
        """
        ...

    async def settle(self, reservation: str, used: Usage | None) -> None:
        """
        Exchange a reservation for *used*; `None`: unknown, so all of it counts.

        It is carried out even if its caller is cancelled.
        """
        ...

    def charge(self, usage: Usage) -> None:
        """Count model calls of a tool's own, which were made without a reservation."""
        ...


class MeteredProvider:
    """
    Calls *provider* as long as *meter* has room; its other attributes are *provider*'s.

    `stream` raises `BudgetExceeded` or a `StoreError` instead of making a call without room. These
    are not failures of the provider, so no retry follows.

    Args:
        needs_price: True if calls without a known price are refused.
    """

    def __init__(self, provider: LLMProvider, meter: Meter, *, needs_price: bool) -> None:
        self._provider = provider
        self._meter = meter
        self._needs_price = needs_price

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        """Make one call and yield its events; see `LLMProvider.stream`, and above."""
        options = replace(options, max_tokens=options.max_tokens or _SUMMARY_TOKENS)
        most = self._most(request, options)
        reservation = await self._meter.reserve(most)
        open_, used, began = True, None, False
        stream = self._provider.stream(request, options)
        try:
            async for event in stream:
                if event.type in ("done", "error"):
                    used = _used(event, most, began=began)
                    open_ = False
                    await self._meter.settle(reservation, used)
                began = began or event.type != "start"
                yield event
        finally:
            close = getattr(stream, "aclose", None)
            try:
                if close is not None:
                    await close()
            finally:
                if open_:
                    await self._meter.settle(reservation, None)

    def _most(self, request: LLMRequest, options: StreamOptions) -> Usage:
        """
        The most that a call may use, at its highest price.

        Raises:
            BudgetExceeded: An account limits money, and the call has no known price.
        """
        length = sum(map(estimate_tokens, request.messages)) + text_tokens(request.system_prompt)
        length += sum(map(spec_tokens, request.tools))
        asked = length * _ESTIMATE_PERCENT // 100
        answered = options.max_tokens or _SUMMARY_TOKENS
        total = asked + answered
        most = Usage(input=asked, output=answered, total_tokens=total)
        price = abilities_of(self._provider).cost_of
        if price is not None:
            cached = Usage(cache_write=asked, output=answered, total_tokens=total)
            priced = [price(one, request.model).cost for one in (most, cached)]
            known = [cost for cost in priced if cost is not None]
            if len(known) == len(priced):
                most = replace(most, cost=max(known, key=lambda cost: cost.total))
        if self._needs_price and not most.is_priced:
            raise BudgetExceeded(
                "the next model call has no known price, so a budget in dollars cannot be kept:"
                " name its prices (price_as of the provider), or count it as nothing with"
                ' Budget(unknown_cost="ignore")',
                limit="cost_usd",
            )
        return most


def _used(event: StreamEvent, most: Usage, *, began: bool) -> Usage | None:
    """
    The usage in the last event of a call; `None` if it is unknown.

    Args:
        began: True if the model had begun to answer.
    """
    usage = NO_USAGE if event.message is None else event.message.usage
    if event.type == "error":
        if began or not isinstance(event.error, LLMError) or not event.error.unbilled:
            return None
        return NO_USAGE  # what it was asked is no use of it
    if not usage.total_tokens:
        return None
    return usage if usage.is_priced or not most.is_priced else replace(usage, cost=most.cost)
