"""
Decides which failed model calls are repeated, and after how long; reports a refusal's wait.

Only the call is repeated, never the turn: nothing of a failed attempt is in the history, so trying
again costs time and nothing else. A delay that the server asks for counts. Otherwise the wait
doubles, with a little randomness so that many agents do not return in the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from looopy.errors import LLMError, RateLimited
from looopy.types.config import RetryPolicy
from looopy.types.event import moment_in
from looopy.types.request import RateLimits, RateQuota

_JITTER = 0.1


def delay_before(
    attempt: int, policy: RetryPolicy, error: BaseException, rng: random.Random
) -> float | None:
    """
    How long to wait before a failed call is made again.

    Args:
        attempt: The coming retry, counted from 1.
        policy: How often, and how long at most.
        error: Why the call failed; its `retryable` decides, its `retry_after_s` is kept, with
            `retry_margin_s` on top where it has that.
        rng: The source of chance.

    Returns:
        Seconds, or `None` to give up.
    """
    if attempt > policy.attempts or not getattr(error, "retryable", False):
        return None
    asked: float | None = getattr(error, "retry_after_s", None)
    if asked is not None:
        if _too_long(asked, policy):
            return None
        margin: float = getattr(error, "retry_margin_s", 0.0)
        return max(0.0, asked + margin)
    own = min(policy.cap_s, policy.base_s * 2.0 ** min(attempt - 1, 64))
    return min(policy.cap_s, own * (1 + _JITTER * rng.random()))


def _too_long(asked: float, policy: RetryPolicy) -> bool:
    return bool(policy.max_server_delay_s) and asked > policy.max_server_delay_s


def explained(error: LLMError, policy: RetryPolicy) -> LLMError:
    """*error*, or one that also names the server's delay, which was too long to wait for."""
    asked: float | None = getattr(error, "retry_after_s", None)
    if asked is None or not error.retryable or not _too_long(asked, policy):
        return error
    return type(error)(
        f"{error}; it asks to wait {asked:g} s, longer than the {policy.max_server_delay_s:g} s"
        " that a turn waits at most (RetryPolicy.max_server_delay_s; 0 for no limit)",
        **error.facts,
    )


def refused_by(error: RateLimited, limits: Sequence[RateQuota] = ()) -> RateLimits:
    """The report of a refusal, with the *limits* of its headers."""
    asked = error.retry_after_s
    return RateLimits(
        provider=error.provider or "",
        model=error.model or "",
        limits=limits,
        refused=True,
        retry_at=None if asked is None else moment_in(asked),
    )
