"""
Which failed model calls are made again, and after how long.

Only the call is repeated, never the turn: nothing of a failed attempt is in the history, so trying
again costs time and nothing else. What the server asks for counts; without its word the wait
doubles, with a little chance in it so that many agents do not come back in the same moment.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from looopy.errors import LLMError
from looopy.types.context import RetryPolicy

MARGIN_S = 1.0
"""Added to a delay that a server writes in seconds, as a date or in words: it may be rounded."""

_JITTER = 0.1
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SPAN = r"(?:\d+(?:\.\d+)?\s?(?:ms|[dhms])(?![a-z])\s?)+"
_IN_TEXT = re.compile(
    rf"(?:(?:try|retry) (?:again )?(?:in|after)|resets? (?:after|in)|retrydelay\W+)\s*({_SPAN})",
    re.IGNORECASE,
)
_LONG_UNITS = re.compile(
    r"(\d)\s?(milliseconds?|seconds?|secs?|minutes?|mins?|hours?)\b", re.IGNORECASE
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|[dhms])", re.IGNORECASE)


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
    """*error*, or one that also says that the server's delay was too long to wait for."""
    asked: float | None = getattr(error, "retry_after_s", None)
    if asked is None or not error.retryable or not _too_long(asked, policy):
        return error
    return type(error)(
        f"{error}; it asks to wait {asked:g} s, longer than the {policy.max_server_delay_s:g} s"
        " that a turn waits at most (RetryPolicy.max_server_delay_s; 0 for no limit)",
        **error.facts,
    )


def server_delay_s(headers: Mapping[str, str], text: str, now: datetime) -> float | None:
    """
    How long a server asks to wait.

    Args:
        headers: Of its answer, names in lower case.
        text: The error it wrote; read only when no header says it.
        now: Aware; what dates and reset times are compared with.

    Returns:
        Seconds above 0, or `None` when it does not say.
    """
    candidates = (
        _number(headers.get("retry-after-ms"), 0.001),
        _number(headers.get("retry-after"), 1.0),
        _until(headers.get("retry-after"), now),
        _reset(headers.get("x-ratelimit-reset"), now),
        _number(headers.get("x-ratelimit-reset-after"), 1.0),
        _in_text(text),
    )
    return next((s for s in candidates if s is not None and _waits(s)), None)


def margin_s(headers: Mapping[str, str]) -> float:
    """What to add to `server_delay_s`: nothing where it was told in milliseconds."""
    exact = _number(headers.get("retry-after-ms"), 0.001)
    return 0.0 if exact is not None and _waits(exact) else MARGIN_S


def _waits(seconds: float) -> bool:
    return 0 < seconds < float("inf")


def _number(value: str | None, unit_s: float) -> float | None:
    try:
        return None if value is None else float(value) * unit_s
    except ValueError:
        return None


def _until(value: str | None, now: datetime) -> float | None:
    if value is None:
        return None
    from email.utils import parsedate_to_datetime  # takes longer to load than a turn

    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:  # RFC 9110, section 5.6.7: always GMT
        moment = moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def _reset(value: str | None, now: datetime) -> float | None:
    """Seconds since 1970, at some servers milliseconds."""
    epoch = _number(value, 1.0)
    if epoch is None or epoch < 1e9:
        return None
    return (epoch / 1000 if epoch > 1e11 else epoch) - now.timestamp()


def _in_text(text: str) -> float | None:
    found = _IN_TEXT.search(_LONG_UNITS.sub(_short_unit, text))
    if found is None:
        return None
    return sum(float(n) * _UNITS_S[unit.lower()] for n, unit in _PART.findall(found[1]))


def _short_unit(match: re.Match[str]) -> str:
    word = match[2].lower()
    return match[1] + ("ms" if word.startswith("milli") else word[0])
