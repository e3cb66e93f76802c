"""A provider that fails again and again is left alone for a while."""

from __future__ import annotations

import pytest

from looopy.llm.fallback import Breaker


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(5, 60.0, clock)


def fail(breaker, times=1):
    """So many calls that are let through and fail; whether the last one opened it."""
    opened = False
    for _ in range(times):
        assert breaker.enter()
        opened = breaker.failed()
    return opened


def test_it_opens_at_the_fifth_failure_in_a_row(breaker):
    """Not before; and then nobody is let through."""
    assert not fail(breaker, 4)
    assert breaker.wait_s == 0
    assert fail(breaker)
    assert breaker.wait_s == 60.0
    assert not breaker.enter()


def test_a_success_resets_the_count_of_failures(breaker):
    """Only failures in a row count."""
    fail(breaker, 4)
    breaker.enter()
    breaker.succeeded()
    assert not fail(breaker, 4)


def test_errors_of_the_request_do_not_count_as_failures(breaker):
    """A call that was cancelled is neither."""
    fail(breaker, 4)
    breaker.enter()
    breaker.leave()
    assert fail(breaker)


def test_after_the_cool_down_one_call_tries(breaker, clock):
    """The others wait for what becomes of it."""
    fail(breaker, 5)
    clock.now += 59.9
    assert not breaker.enter()
    clock.now += 0.1
    assert breaker.enter()
    assert not breaker.enter()


def test_a_trial_that_succeeds_closes_it(breaker, clock):
    """As if nothing had been."""
    fail(breaker, 5)
    clock.now += 60
    breaker.enter()
    breaker.succeeded()
    assert not fail(breaker, 4)


def test_a_failed_trial_opens_the_breaker_again(breaker, clock):
    """For the whole time."""
    fail(breaker, 5)
    clock.now += 75
    assert fail(breaker)
    assert breaker.wait_s == 60.0


def test_a_trial_that_is_cancelled_leaves_room_for_another(breaker, clock):
    """Or nobody would ever try again."""
    fail(breaker, 5)
    clock.now += 60
    breaker.enter()
    breaker.leave()
    assert breaker.enter()
