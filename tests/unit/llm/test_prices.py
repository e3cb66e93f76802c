"""What calls cost, by the data package; without it, and for what it does not know, nothing."""

from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest

from looopy.llm import prices as module
from looopy.llm.openai.chat import read_usage
from looopy.llm.prices import Prices, ready
from looopy.types.message import Cost, Usage

USED = Usage(input=500_000, output=100_000, cache_read=400_000, cache_write=100_000)
OPENAI = "https://api.openai.com/v1"
SONNET = "claude-sonnet-4-5-20250929"


def cost(usage=USED, model="gpt-5", provider="openai", **options):
    """The cost of *usage*, part by part."""
    return Prices(model, provider, **options)(usage).cost


@pytest.fixture
def not_installed(monkeypatch):
    """As where the extra is missing."""
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    module._calculator.cache_clear()
    yield
    module._calculator.cache_clear()


def test_each_part_has_its_price():
    """Input, output and what the cache read, in dollars; the parts are the total."""
    found = cost()
    assert found.output == pytest.approx(1.0)
    assert found.cache_read == pytest.approx(0.05)
    assert found.total == pytest.approx(sum(astuple(found)[:4]))
    assert found.input + found.cache_write == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("long_cache", "written"), [(False, 3.75e-6 * 10_000), (True, 6e-6 * 10_000)]
)
def test_cache_writes_have_their_own_price(long_cache, written):
    """Dearer than plain input, and more so where it is kept for an hour."""
    used = Usage(input=50_000, output=10_000, cache_read=40_000, cache_write=10_000)
    found = cost(used, SONNET, "anthropic", long_cache=long_cache)
    assert found.input == pytest.approx(0.15)
    assert found.cache_read == pytest.approx(0.012)
    assert found.cache_write == pytest.approx(written)
    assert found.output == pytest.approx(0.15)
    assert found.total == pytest.approx(0.15 + 0.012 + written + 0.15)


def test_a_price_that_grows_with_the_request_is_that_of_the_whole():
    """The cache's part is priced at the size of the request it was part of."""
    used = Usage(input=100_000, cache_read=200_000, output=0)
    plain = cost(Usage(input=300_000), SONNET, "anthropic")
    found = cost(used, SONNET, "anthropic")
    assert found.input == pytest.approx(plain.total / 3)
    assert 0 < found.cache_read < found.input


def test_a_cache_without_a_price_costs_as_much_as_input():
    """Old models have none."""
    found = cost(Usage(input=600, cache_read=400), "gpt-4")
    assert found.cache_read == pytest.approx(400 * found.input / 600)


MILLIONS = Usage(input=10**6, output=10**6, cache_read=10**6)
PEAK = (1.32, 3.96, 0.044, 0, 5.324)  # of a million tokens each: input, output, read, written
OFF_PEAK = (0.66, 1.98, 0.022, 0, 2.662)


@pytest.mark.parametrize(
    ("model", "provider", "at", "expected"),
    [
        ("o3", "openai", "2025-06-09T23:59:59.999Z", (10, 40, 0.5, 0, 50.5)),
        ("o3", "openai", "2025-06-10T00:00:00Z", (2, 8, 0.5, 0, 10.5)),
        ("o3", "openai", "2025-06-10T01:59:59+02:00", (10, 40, 0.5, 0, 50.5)),
        ("deepseek-v4-pro", "deepseek", "2026-11-24T00:59:59.999Z", OFF_PEAK),
        ("deepseek-v4-pro", "deepseek", "2026-11-24T01:00:00Z", PEAK),
        ("deepseek-v4-pro", "deepseek", "2026-11-24T04:00:00Z", OFF_PEAK),
    ],
)
def test_a_call_has_the_price_of_its_own_time(model, provider, at, expected):
    """From a day on, and by the time of day; both are UTC."""
    at_ms = round(datetime.fromisoformat(at).timestamp() * 1000)
    found = Prices(model, provider)(MILLIONS, at_ms).cost
    assert astuple(found)[:5] == pytest.approx(expected)


def test_all_parts_of_a_call_are_priced_at_one_moment(monkeypatch):
    """Also if the price doubles while the cost is computed."""
    noon = datetime(2026, 11, 24, 12, tzinfo=UTC)
    clock = iter([noon, *[noon.replace(hour=2)] * 9])
    monkeypatch.setattr(module, "now_ms", lambda: round(next(clock).timestamp() * 1000))
    found = Prices("deepseek-v4-pro", "deepseek")(MILLIONS).cost
    assert astuple(found)[:5] == pytest.approx(OFF_PEAK)


def test_the_provider_is_found_by_the_address():
    """Where nobody is named."""
    assert Prices("gpt-5", url=OPENAI)(USED) == Prices("gpt-5", "openai")(USED)
    assert Prices(SONNET, url="https://api.anthropic.com")(USED).cost.total > 0
    assert Prices("openai/gpt-5", url="https://openrouter.ai/api/v1")(USED).cost.total > 0


@pytest.mark.parametrize(
    ("model", "provider", "url"),
    [
        ("a-model-of-mine", "openai", ""),
        ("gpt-5", "nobody", ""),
        ("gpt-5", "", "http://127.0.0.1:8000/v1"),
        ("gpt-5", "", ""),
        ("", "openai", ""),
    ],
)
def test_an_unknown_model_has_tokens_but_no_cost(model, provider, url):
    """A server of one's own sells nothing, whatever its models are called."""
    assert Prices(model, provider, url)(USED) is USED


def test_a_cost_that_is_known_stands():
    """The provider's own word is better than a list's."""
    told = Usage(input=500, cost=Cost(total=1.25))
    assert Prices("gpt-5", "openai")(told) is told


def test_empty_usage_costs_zero():
    """And is not looked up."""
    none = Usage()
    assert Prices("gpt-5", "openai")(none) is none


def test_impossible_token_counts_cost_zero(monkeypatch):
    """A call never fails for its price."""
    odd = Usage(input=-5, output=1)
    assert Prices("gpt-5", "openai")(odd) is odd


async def test_the_window_is_known_once_the_prices_are_loaded():
    """Not before: nothing is loaded on the event loop."""
    module._calculator.cache_clear()
    assert Prices("gpt-5", "openai").window_tokens() is None
    await ready()
    assert Prices("gpt-5", "openai").window_tokens() == 400_000
    assert Prices("a-model-of-mine", "openai").window_tokens() is None
    assert Prices("gpt-5", url="http://127.0.0.1:8000/v1").window_tokens() is None


async def test_without_the_package_tokens_are_counted(not_installed):
    """Nothing fails, nothing is known."""
    await ready()
    assert Prices("gpt-5", "openai")(USED) is USED
    assert Prices("gpt-5", "openai").window_tokens() is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [(0.25, Cost(total=0.25)), (0, Cost()), (True, None), ("1", None), (-1, None), (1e300, None)],
)
def test_the_cost_reported_by_a_server_is_used(said, expected):
    """OpenRouter does; what is no amount says nothing."""
    found = read_usage({"prompt_tokens": 1, "completion_tokens": 1, "cost": said})
    assert found.cost == expected


@pytest.mark.parametrize(
    ("model", "provider", "url", "known"),
    [
        (SONNET, "anthropic", "", True),
        ("gpt-5", "openai", "", True),
        ("gpt-5", "", "https://api.openai.com/v1", True),
        ("mine", "openai", "", False),
        ("gpt-5", "", "http://127.0.0.1:8000/v1", False),
    ],
)
async def test_it_is_known_whether_a_model_has_a_price(model, provider, url, known):
    """By its place and name."""
    await ready()
    assert Prices(model, provider, url).known() is known


async def test_without_the_package_no_price_is_known(not_installed):
    """Of the most usual model neither."""
    await ready()
    assert Prices("gpt-5", "openai").known() is False


@pytest.mark.parametrize(
    "dollars", ["-0.01", "NaN", "Infinity", "1000"], ids=["negative", "nan", "endless", "absurd"]
)
def test_an_impossible_price_is_unknown(monkeypatch, caplog, dollars):
    """The cost is `None`, neither that price nor zero; a budget of money then refuses to start."""

    def calc(usage, *_, **__):
        price = Decimal(dollars)
        return SimpleNamespace(input_price=price, output_price=price, total_price=price)

    monkeypatch.setattr(module, "_calculator", lambda: calc)
    monkeypatch.setattr(module, "_is_loaded", lambda: True)
    prices = Prices("gpt-5", "openai")
    assert prices(Usage(input=10, output=10)).cost is None
    assert not prices.known()
    assert "a price list says" in caplog.text


@pytest.mark.parametrize(
    ("said", "window"),
    [("0.5", "4k"), (None, -1), ({}, 0), ([], True), (b"1", 1e30), ("", float("nan")), ((), 2**70)],
)
def test_a_list_of_other_types_gives_no_price_and_no_window(monkeypatch, caplog, said, window):
    """As after a release of the package with other types; the log names the model and its place."""

    def calc(usage, *_, **__):
        model = SimpleNamespace(context_window=window)
        return SimpleNamespace(input_price=said, output_price=said, total_price=said, model=model)

    monkeypatch.setattr(module, "_calculator", lambda: calc)
    monkeypatch.setattr(module, "_is_loaded", lambda: True)
    prices = Prices("gpt-5", "openai")
    used = Usage(input=10, output=10)
    assert prices(used) is used
    assert not prices.known()
    assert prices.window_tokens() is None
    assert caplog.text.count("gpt-5 at openai") == 3


@pytest.mark.parametrize("wrong", [ImportError("no Usage"), TypeError("new arguments"), KeyError()])
async def test_a_package_that_does_not_load_is_no_reason_to_fail(monkeypatch, caplog, wrong):
    """The provider becomes ready, with nothing known; the log says why."""
    import genai_prices

    def calc(*_, **__):
        raise wrong

    monkeypatch.setattr(genai_prices, "calc_price", calc)
    module._calculator.cache_clear()
    try:
        await ready()
        prices = Prices("gpt-5", "openai")
        assert prices(USED) is USED
        assert not prices.known()
        assert prices.window_tokens() is None
    finally:
        module._calculator.cache_clear()
    assert ("cannot be used" in caplog.text) is not isinstance(wrong, KeyError)
