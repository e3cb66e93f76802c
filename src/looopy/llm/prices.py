"""
The cost of a model call, and the size of the model's window, from the data package genai-prices.

The package is optional (the extra `prices`), takes half a second to load and calls no
server: it is loaded in a thread when a provider is prepared. Without it, and for a model it does
not know, tokens are counted and the cost is `None`: a wrong price is worse than no price.

Prices change from a day on, and some by the time of day. A call is priced as of one moment, so that
its parts belong together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from typing import Any

from looopy.llm.price_list import warn_if_old
from looopy.types.message import Cost, Usage, now_ms

MOST_DOLLARS = 0.1
"""For one token: more than that is an error of the list. The dearest models take a hundredth."""
MOST_WINDOW = 2**40
_ROUNDING = 1e-9
_TRIAL = Usage(input=1000, output=1000)
_logger = logging.getLogger("looopy")


@dataclass(frozen=True, slots=True)
class Prices:
    """
    The prices of one model at one place.

    Attributes:
        model: Its name there.
        provider: The place as genai-prices names it, such as `"openai"`; `""`: taken from *url*.
        url: The called address. An address without a vendor has no prices.
        long_cache: Cached tokens are kept for an hour, which some vendors charge more for.
    """

    model: str
    provider: str = ""
    url: str = ""
    long_cache: bool = False

    def __call__(self, usage: Usage, at_ms: int | None = None) -> Usage:
        """
        *usage* with its cost, if that is known; unchanged if it has its cost already.

        Args:
            at_ms: The time of the call, in milliseconds since 1970; `None`: now.
        """
        if usage.cost is not None or not (usage.total_tokens or usage.input or usage.output):
            return usage
        calc = _calculator()
        if calc is None:
            return usage
        try:
            cost = _cost(usage, _Priced(calc, usage, self, at_ms))
            return replace(usage, cost=self._sane(cost, usage))
        except LookupError:  # unknown model or place
            return usage
        except Exception:
            _logger.exception("the cost of a call of %s could not be found", self._place)
            return usage

    def known(self) -> bool:
        """
        True if calls have a price. Before `ready` was awaited, this is unknown.

        If they have, and the list is old, the log reports it.
        """
        calc = _calculator() if _is_loaded() else None
        if calc is None:
            return False
        try:
            self._sane(_cost(_TRIAL, _Priced(calc, _TRIAL, self)), _TRIAL)
        except LookupError:
            return False
        except Exception:
            _logger.exception("the price of %s cannot be used", self._place)
            return False
        warn_if_old()
        return True

    def window_tokens(self) -> int | None:
        """The size of the model's window; `None`: unknown. Also before `ready` was awaited."""
        if not _is_loaded():
            return None
        calc = _calculator()
        if calc is None:
            return None
        try:
            found = _Priced(calc, Usage(input=1), self).ask(read=0, written=0).model.context_window
        except LookupError:
            return None
        except Exception:
            _logger.exception("the window of %s cannot be used", self._place)
            return None
        if found is None or (type(found) is int and 0 < found <= MOST_WINDOW):
            return found
        _logger.warning("a price list says that %s has a window of %r", self._place, found)
        return None

    @property
    def _place(self) -> str:
        return f"{self.model} at {self.provider or self.url}"

    def _sane(self, cost: Cost, usage: Usage) -> Cost:
        """*cost*, or `LookupError` if no vendor can mean it: then the price counts as unknown."""
        parts = (cost.input, cost.output, cost.cache_read, cost.cache_write, cost.total)
        tokens = usage.input + usage.cache_read + usage.cache_write + usage.output
        if all(-_ROUNDING <= one <= tokens * MOST_DOLLARS for one in parts):  # false for NaN
            return cost
        said = "a price list says %s dollars for %s tokens of %s: not counted"
        _logger.warning(said, cost.total, tokens, self._place)
        raise LookupError


async def ready() -> None:
    """Load the prices, in a thread; at once where they are loaded or not installed."""
    if not _is_loaded():
        await asyncio.to_thread(_calculator)


@dataclass(slots=True)
class _Priced:
    """One call's price, asked for with more or less of it from the cache."""

    calc: Callable[..., Any]
    usage: Usage
    prices: Prices
    at_ms: int | None = None
    at: datetime = field(init=False)
    all_input: int = field(init=False)

    def __post_init__(self) -> None:
        usage = self.usage
        self.all_input = usage.input + usage.cache_read + usage.cache_write
        at_ms = now_ms() if self.at_ms is None else self.at_ms
        self.at = datetime.fromtimestamp(at_ms / 1000, UTC)

    def ask(self, *, read: int, written: int) -> Any:
        import genai_prices

        prices = self.prices
        where = (
            {"provider_id": prices.provider}
            if prices.provider
            else {"provider_api_url": prices.url}
        )
        return self.calc(
            genai_prices.Usage(
                input_tokens=self.all_input,
                output_tokens=self.usage.output,
                cache_read_tokens=read,
                cache_write_tokens=written,
                **({"cache_write_1h_tokens": written} if prices.long_cache else {}),
            ),
            prices.model,
            genai_request_timestamp=self.at,
            **where,
        )

    def input(self, *, read: int, written: int) -> Decimal:
        price: Decimal = self.ask(read=read, written=written).input_price
        return price


def _cost(usage: Usage, priced: _Priced) -> Cost:
    """
    The cost in its parts. The package gives one sum for all input; what the cache's part of it is
    follows from the sums without, at the same size of request, on which a price may depend.
    """
    read, written = usage.cache_read, usage.cache_write
    whole = priced.ask(read=read, written=written)
    of_read = of_written = Decimal(0)
    if read or written:
        plain = priced.input(read=0, written=0) / priced.all_input
        if read:
            saved = priced.input(read=0, written=written) - whole.input_price
            of_read = read * plain - saved
        if written:
            saved = priced.input(read=read, written=0) - whole.input_price
            of_written = written * plain - saved
    return Cost(
        input=float(whole.input_price - of_read - of_written),
        output=float(whole.output_price),
        cache_read=float(of_read),
        cache_write=float(of_written),
        total=float(whole.total_price),
    )


@cache
def _calculator() -> Callable[..., Any] | None:
    """The price calculator, with its data loaded; `None` if there is none that works."""
    if find_spec("genai_prices") is None:
        return None
    try:
        from genai_prices import Usage as GenAIUsage
        from genai_prices import calc_price

        with suppress(LookupError):  # a list without that model is a list
            calc_price(GenAIUsage(input_tokens=1), "gpt-4o", provider_id="openai")  # loads its data
    except Exception:
        _logger.exception("the prices of genai-prices cannot be used: no price is known")
        return None
    return calc_price


def _is_loaded() -> bool:
    return _calculator.cache_info().currsize > 0
