"""
The list that costs come from, and how old it is.

genai-prices carries no date, neither in the package nor in its data. Many of its
prices have a first day, though, and every release has some from the days before it. So the newest
first day shows how far a list goes. Vendors announce prices in advance, and a day that had not come
when the list was installed means nothing: that is why the time of the file counts, too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

MAX_AGE_DAYS: Final = 90
"""The log warns of a list that is older. Releases of genai-prices are some days apart."""
_logger = logging.getLogger("looopy")
_told = Lock()  # held once the log has a warning, or the reason why there is no list


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """
    A list of prices.

    Attributes:
        source: `"installed"`, with the package; `"fetched"`, by its `UpdatePrices`; `"own"`, set by
            the application with its `set_custom_snapshot`.
        version: The version of the package.
        known_until: The first day of the newest price in it; of a fetched list the day it was
            fetched. The list knows no change of a price after it. `None`: unknown, as of an own
            list.
    """

    source: Literal["installed", "fetched", "own"]
    version: str
    known_until: date | None = None

    @property
    def age_days(self) -> int | None:
        """The days since `known_until`; `None`: unknown."""
        return None if self.known_until is None else max(0, (_today() - self.known_until).days)

    @property
    def is_old(self) -> bool:
        """True if prices have probably changed since."""
        return self.age_days is not None and self.age_days > MAX_AGE_DAYS

    def __str__(self) -> str:
        named = f"genai-prices {self.version}"
        if self.known_until is None:
            return f"a list of the application, with {named}" if self.source == "own" else named
        days = self.age_days
        ago = f"{self.known_until} ({days} {'day' if days == 1 else 'days'} ago)"
        if self.source == "fetched":
            return f"{named}, fetched on {ago}"
        return f"{named}, which knows no change after {ago}"


def price_list() -> PriceList | None:
    """
    The list in use; `None` if the extra `prices` is not installed, or cannot be used.

    The first call of a process takes half a second, if no provider is ready yet: call it in a
    thread.
    """
    if find_spec("genai_prices") is None:
        return None
    try:
        import genai_prices
        from genai_prices import data_snapshot

        version, used = genai_prices.__version__, data_snapshot.get_snapshot()
        if used.from_auto_update:
            return PriceList(source="fetched", version=version, known_until=used.timestamp.date())
        # Imported if it is in use; to import it takes long.
        data = sys.modules.get("genai_prices.data")
        if data is None or used.providers is not data.providers:
            return PriceList(source="own", version=version)
    except Exception:
        _logger.exception("the prices of genai-prices cannot be used")
        return None
    return PriceList(source="installed", version=version, known_until=_installed_until())


def warn_if_old() -> None:
    """Log a warning if the list in use is old, once a process."""
    if _told.locked():
        return
    used = price_list()
    if used is None:
        _told.acquire(blocking=False)
    elif used.is_old and _told.acquire(blocking=False):
        _logger.warning(
            "costs and budgets may be wrong, as the prices are old: %s. Upgrade genai-prices, or"
            " let its UpdatePrices fetch newer ones",
            used,
        )


@cache
def _installed_until() -> date | None:
    """The newest day in the installed list that had come when it was installed."""
    from genai_prices import data

    try:
        days = sorted(day for day in _first_days(data.providers) if day <= _today())
    except Exception:
        _logger.exception("the age of the prices of genai-prices is unknown")
        return None
    try:
        installed = datetime.fromtimestamp(Path(data.__file__).stat().st_mtime, UTC).date()
    except (OSError, TypeError, ValueError):
        installed = _today()
    # A builder of images may set all files to one time: before the first day, it means nothing.
    return max((day for day in days if day <= installed), default=max(days, default=None))


def _first_days(providers: Any) -> Iterator[date]:
    """The days from which prices of the list hold."""
    for provider in providers:
        for model in provider.models:
            prices = model.prices if isinstance(model.prices, list) else []
            for one in (*prices, *(getattr(model, "price_variants", None) or ())):
                day = getattr(one.constraint, "start_date", None)
                if day is not None:
                    yield day


def _today() -> date:
    return datetime.now(UTC).date()
