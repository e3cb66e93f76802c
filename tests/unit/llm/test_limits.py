"""The limits that headers report, in the forms of the servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from looopy.llm.limits import limits_in
from looopy.types.request import RateQuota

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So long after now."""
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"content-type": "text/event-stream", "retry-after": "7"}, []),
        (  # OpenAI
            {
                "x-ratelimit-limit-requests": "60",
                "X-RateLimit-Limit-Tokens": "150000",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens_usage_based": "1",
            },
            [
                RateQuota(kind="requests", limit=60, left=59, resets_at=at(1)),
                RateQuota(kind="tokens", limit=150_000, left=149_984, resets_at=at(360)),
            ],
        ),
        (  # Anthropic
            {
                "anthropic-ratelimit-input-tokens-limit": "80000",
                "anthropic-ratelimit-input-tokens-remaining": "8000",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-29T12:00:09Z",
                "anthropic-ratelimit-unified-reset": "1795950000",
                "anthropic-organization-id": "36562039",
            },
            [RateQuota(kind="input_tokens", limit=80_000, left=8000, resets_at=at(9))],
        ),
        (  # the draft of the IETF, with its policies
            {
                "ratelimit-limit": "100, 100;w=60",
                "ratelimit-remaining": "0",
                "ratelimit-reset": "50",
            },
            [RateQuota(kind="requests", limit=100, left=0, resets_at=at(50))],
        ),
        (  # Cerebras, and OpenRouter in milliseconds since 1970
            {
                "x-ratelimit-remaining-tokens-minute": "5",
                "x-ratelimit-reset-tokens-minute": "11.25",
                "x-ratelimit-remaining": "3",
                "x-ratelimit-reset": str(int(NOW.timestamp() * 1000) + 2000),
            },
            [
                RateQuota(kind="tokens_minute", left=5, resets_at=at(11.25)),
                RateQuota(kind="requests", left=3, resets_at=at(2)),
            ],
        ),
    ],
)
def test_limits_are_read_in_the_forms_of_the_servers(headers, found):
    """A header that is not known is left out, and so is a limit without the number left."""
    assert list(limits_in(headers, NOW)) == found


@pytest.mark.parametrize(
    "value", ["", "-1", "many", "²", "sk-secret", "nan", "12:30", "x" * 10_000]
)
def test_a_count_without_a_number_is_no_limit(value):
    """Whatever a server writes there."""
    assert limits_in({"x-ratelimit-remaining-requests": value}, NOW) == ()


@pytest.mark.parametrize(
    "value",
    ["", "soon", "9" * 15 + "d", "9" * 40, "1e999", "2026-99-99", "nan", "6m0", "sk-secret", "-5"],
)
def test_a_reset_without_a_time_is_unknown(value):
    """The limit itself is reported."""
    headers = {"x-ratelimit-remaining": "5", "x-ratelimit-reset": value}
    assert limits_in(headers, NOW) == (RateQuota(kind="requests", left=5),)


def test_a_name_of_other_words_is_no_limit():
    """A server's own words reach no event."""
    assert limits_in({"x-ratelimit-remaining-sk-ant-0123": "5"}, NOW) == ()
    assert limits_in({"x-ratelimit-remaining-limit": "5", "x-ratelimit-": "5"}, NOW) == ()
