"""Which calls are made again, and after how long."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from looopy.errors import ContextOverflow, HistoryRejected, LLMError, LLMUnavailable, RateLimited
from looopy.llm.failures import margin_s, server_delay_s
from looopy.llm.retry import delay_before, explained
from looopy.types.config import RetryPolicy

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
POLICY = RetryPolicy()


class NoChance(random.Random):
    """The least chance there is."""

    def random(self):
        return 0.0


def delays(error, policy=POLICY, tries=6, rng=None):
    return [delay_before(n, policy, error, rng or NoChance()) for n in range(1, tries + 1)]


def test_the_wait_doubles_until_the_attempts_are_used_up():
    """Three retries by default, from two seconds on."""
    assert delays(LLMUnavailable("x"), tries=4) == [2.0, 4.0, 8.0, None]


def test_the_wait_has_a_cap_with_all_its_chance():
    """Never longer than `cap_s` without a word of the server."""
    policy = RetryPolicy(attempts=10_000, cap_s=30)
    rng = random.Random(1)
    waits = delays(LLMUnavailable("x"), policy, tries=3000, rng=rng)
    assert max(waits) == 30.0
    assert waits[0] != 2.0


def test_chance_adds_at_most_a_tenth():
    """Many agents that failed together do not come back together."""
    rng = random.Random(7)
    waits = {delay_before(1, POLICY, LLMUnavailable("x"), rng) for _ in range(200)}
    assert len(waits) > 100
    assert min(waits) >= 2.0
    assert max(waits) <= 2.2


@pytest.mark.parametrize("asked", [0.5, 45.0, 60.0])
def test_the_delay_of_the_server_is_kept_exactly(asked):
    """Shorter or longer than ours, up to the limit."""
    assert delays(RateLimited("x", retry_after_s=asked), tries=2) == [asked, asked]


def test_a_delay_beyond_the_limit_fails_at_once():
    """Nobody sleeps for hours unseen; 0 takes the limit away."""
    error = RateLimited("x", retry_after_s=61.0)
    assert delays(error, tries=1) == [None]
    assert delays(error, RetryPolicy(max_server_delay_s=0), tries=1) == [61.0]


def test_a_rounded_delay_gets_a_second_more():
    """Servers round; whoever comes a moment too early is turned away again."""
    error = RateLimited("x", retry_after_s=60.0, retry_margin_s=1.0)
    assert delays(error, tries=1) == [61.0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "9"}, 1.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 1.0),
        ({"x-ratelimit-reset": "1795262420"}, 1.0),
        ({"x-ratelimit-reset-after": "4"}, 1.0),
        ({}, 1.0),
        ({"retry-after-ms": "1500"}, 0.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 1.0),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 1.0),
    ],
)
def test_only_milliseconds_are_taken_as_they_are(headers, expected):
    """Seconds, dates, reset times and words are rounded."""
    assert margin_s(headers) == expected


def test_a_delay_too_long_to_wait_for_is_explained():
    """The error keeps its facts and says which limit was in the way."""
    error = RateLimited("p asks to wait", retry_after_s=3600.0, provider="p")
    told = explained(error, POLICY)
    assert isinstance(told, RateLimited)
    assert (told.provider, told.retry_after_s) == ("p", 3600.0)
    assert "3600 s" in str(told)
    assert "max_server_delay_s" in str(told)


@pytest.mark.parametrize(
    "error",
    [
        LLMUnavailable("x"),
        RateLimited("x", retry_after_s=60.0),
        RateLimited("x", retry_after_s=3600.0, retryable=False),
    ],
)
def test_another_failure_needs_no_explanation(error):
    """Where the delay was not what ended the call."""
    assert explained(error, POLICY) is error


@pytest.mark.parametrize(
    "error",
    [
        LLMError("x"),
        ContextOverflow("x"),
        HistoryRejected("x"),
        RateLimited("x", retryable=False, retry_after_s=1.0),
        ValueError("x"),
    ],
)
def test_permanent_failures_are_not_retried(error):
    """Only errors that say so are retryable."""
    assert delays(error, tries=1) == [None]


def test_no_attempts_turn_retries_off():
    """`attempts=0`: the first failure stands."""
    assert delays(LLMUnavailable("x"), RetryPolicy(attempts=0), tries=1) == [None]


@pytest.mark.parametrize(
    ("headers", "text", "expected"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, "", 0.25),
        ({"retry-after": "9"}, "try again in 3s", 9.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, "", 30.0),
        ({"retry-after": "soon", "x-ratelimit-reset": "1795262420"}, "", 20.0),
        ({"x-ratelimit-reset": "1795262420000"}, "", 20.0),
        ({"x-ratelimit-reset-after": "4.5"}, "", 4.5),
        ({"retry-after": "0"}, "", None),
        ({"retry-after": "-3"}, "please retry in 7s", 7.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:59:30 GMT"}, "", None),
        ({"retry-after": "inf"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({}, "Please try again in 1.5s. Visit", 1.5),
        ({}, "Please try again in 250ms.", 0.25),
        ({}, "retry after 20 seconds", 20.0),
        ({}, "quota will reset after 18h31m10s.", 66670.0),
        ({}, '"retryDelay": "34.5s"', 34.5),
        ({}, "try again in 2m0.5s", 120.5),
        ({}, "too many requests", None),
        ({}, "try again in a while", None),
    ],
)
def test_the_delay_is_found_wherever_a_server_writes_it(headers, text, expected):
    """Milliseconds, seconds, a date, a reset time, plain words; in that order, never 0 or less."""
    assert server_delay_s(headers, text, NOW) == (
        None if expected is None else pytest.approx(expected)
    )


def test_the_moment_of_the_reset_test_is_as_written():
    """1795262420 is twenty seconds after the test's now."""
    assert datetime.fromtimestamp(1795262420, UTC) == NOW + timedelta(seconds=20)
