"""How old the list of prices is, and one warning if it is old."""

from __future__ import annotations

import os
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from threading import Lock
from types import SimpleNamespace

import pytest
from genai_prices import data, data_snapshot
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    PriceVariant,
    Provider,
    StartDateConstraint,
)

from looopy.llm import OpenAIProvider
from looopy.llm import price_list as module
from looopy.llm.price_list import MAX_AGE_DAYS, PriceList, price_list, warn_if_old
from looopy.llm.prices import Prices
from looopy.types.message import Usage

NAME = "genai-prices"
TODAY = date(2026, 11, 24)


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """As in a process that has warned of no list; the installed list is back afterwards."""
    monkeypatch.setattr(module, "_told", Lock())
    module._installed_until.cache_clear()
    yield
    module._installed_until.cache_clear()
    data_snapshot.set_custom_snapshot(None)


def fetched(days_ago):
    """The installed prices, as if `UpdatePrices` had fetched them."""
    at = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=days_ago)  # naive, as theirs
    made = data_snapshot.DataSnapshot(data.providers, from_auto_update=True, timestamp=at)
    data_snapshot.set_custom_snapshot(made)


def dated(*starts):
    """A vendor with a model whose price is 1 dollar a million, then 2, then 3, from these days."""
    prices = [
        ConditionalPrice(
            None if start is None else StartDateConstraint(date.fromisoformat(start)),
            prices=ModelPrice(input_mtok=Decimal(n), output_mtok=Decimal(n)),
        )
        for n, start in enumerate(starts, 1)
    ]
    model = ModelInfo("house-1", ClauseEquals("house-1"), prices=prices)
    flat = ModelInfo("flat", ClauseEquals("flat"), prices=ModelPrice(input_mtok=Decimal(1)))
    return Provider("house", "House", "https://house", models=[model, flat])


def test_the_installed_list_has_its_date():
    """It is of the time of its release, and its age is a fact of today."""
    found = price_list()
    assert (found.source, found.version) == ("installed", version(NAME))
    assert date(2026, 11, 1) <= found.known_until <= datetime.now(UTC).date()


def test_a_list_is_old_after_ninety_days(monkeypatch):
    """And not on the ninetieth."""
    monkeypatch.setattr(module, "_today", lambda: TODAY)
    for days, is_old in ((1, False), (MAX_AGE_DAYS, False), (MAX_AGE_DAYS + 1, True)):
        known_until = TODAY - timedelta(days=days)
        found = PriceList(source="fetched", version="1", known_until=known_until)
        assert (found.age_days, found.is_old) == (days, is_old)
        assert str(found).endswith(f"{known_until} ({days} {'day' if days == 1 else 'days'} ago)")


@pytest.mark.parametrize("source", ["own", "fetched"])
def test_the_age_of_another_list_loads_no_installed_one(monkeypatch, source):
    """Its module takes a third of a second, which an event loop would wait for."""
    monkeypatch.delitem(sys.modules, "genai_prices.data")
    made = data_snapshot.DataSnapshot([dated(None)], from_auto_update=source == "fetched")
    data_snapshot.set_custom_snapshot(made)
    assert price_list().source == source
    assert "genai_prices.data" not in sys.modules


@pytest.mark.parametrize(
    ("installed", "starts", "expected"),
    [
        ("2026-06-01", [None, "2026-01-01", "2026-05-20"], "2026-05-20"),
        ("2026-06-01", ["2026-05-20", "2026-08-01", "2027-01-01"], "2026-05-20"),
        ("1980-01-01", ["2026-05-20", "2026-09-01", "2027-01-01"], "2026-09-01"),
        ("2026-06-01", [None, "2027-01-01"], None),
    ],
    ids=["plain", "announced ahead", "files without a time", "without a day"],
)
def test_a_price_that_was_announced_ahead_makes_no_list_newer(
    monkeypatch, tmp_path, installed, starts, expected
):
    """The newest price counts that held when the list was installed."""
    file = tmp_path / "data.py"
    file.touch()
    at = datetime.fromisoformat(installed).replace(tzinfo=UTC).timestamp()
    os.utime(file, (at, at))
    monkeypatch.setattr(module, "_today", lambda: TODAY)
    monkeypatch.setattr(data, "__file__", str(file))
    monkeypatch.setattr(data, "providers", [dated(*starts)])
    found = module._installed_until()
    assert found == (expected and date.fromisoformat(expected))
    assert PriceList(source="installed", version="1", known_until=found).is_old is (
        expected == "2026-05-20"
    )


def test_a_variant_of_a_price_has_a_first_day_too():
    """As one for requests in batches; an older package has no variants."""
    vendor = dated(None)
    vendor.models.append(SimpleNamespace(prices=[]))
    vendor.models[0].price_variants = [
        PriceVariant({"tier": "batch"}, ModelPrice(), StartDateConstraint(TODAY)),
        PriceVariant({"tier": "other"}, ModelPrice()),
    ]
    assert list(module._first_days([vendor])) == [TODAY]


async def test_an_old_list_is_reported_once_a_process(caplog):
    """Once a model has a price of it; the text has the day, the age and the way out."""
    fetched(200)
    own = OpenAIProvider("gpt-5", api_key="k", base_url="http://127.0.0.1:9/v1")
    await own.prepare()
    assert caplog.records == []
    for name in ("gpt-5", "gpt-5-mini", "gpt-5"):
        await OpenAIProvider(name, api_key="k").prepare()
    [record] = caplog.records
    day = datetime.now(UTC).date() - timedelta(days=200)
    assert (record.name, record.levelname) == ("looopy", "WARNING")
    assert f"genai-prices {version(NAME)}, fetched on {day}" in record.getMessage()
    assert "days ago)" in record.getMessage()
    assert "Upgrade genai-prices, or let its UpdatePrices" in record.getMessage()


def test_a_long_lived_process_reports_when_its_list_gets_old(monkeypatch, caplog):
    """The list of its start is the one that it has."""
    found = price_list()
    for days, records in ((MAX_AGE_DAYS, 0), (MAX_AGE_DAYS + 1, 1), (MAX_AGE_DAYS + 2, 1)):
        now = found.known_until + timedelta(days=days)
        monkeypatch.setattr(module, "_today", lambda now=now: now)
        assert Prices("gpt-5", "openai").known()
        assert len(caplog.records) == records


def test_an_own_list_has_dated_prices_and_no_age(caplog):
    """Before the first of its days its first price holds, and between them each its own."""
    vendor = dated("2026-03-01", "2026-04-01")
    data_snapshot.set_custom_snapshot(data_snapshot.DataSnapshot([vendor], from_auto_update=False))
    prices = Prices("house-1", "house")
    for day, dollars in (("2020-01-01", 1), ("2026-03-31", 1), ("2026-04-01", 2)):
        at_ms = round(datetime.fromisoformat(f"{day}T00:00Z").timestamp() * 1000)
        assert prices(Usage(input=10**6), at_ms).cost.total == dollars
    assert prices.known()
    found = price_list()
    assert (found.source, found.known_until, found.age_days, found.is_old) == (
        *("own", None, None),
        False,
    )
    assert str(found).startswith("a list of the application")
    assert caplog.records == []


@pytest.mark.parametrize("wrong", ["missing", "other", "days"])
def test_a_list_without_an_age_stops_no_call(monkeypatch, caplog, wrong):
    """As without the package, and after a release of it with other types."""
    if wrong == "missing":
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    elif wrong == "other":
        monkeypatch.setattr(data_snapshot, "get_snapshot", object)
    else:
        monkeypatch.setattr(module, "_first_days", lambda _: [None])
    for _ in range(3):
        warn_if_old()
    assert caplog.text.count("Traceback") == (wrong != "missing")
    found = price_list()
    assert found is None if wrong != "days" else str(found) == f"genai-prices {version(NAME)}"
