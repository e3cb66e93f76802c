"""
How long a server asks to wait: in headers, as seconds, dates and reset times, or in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

MARGIN_S = 1.0
"""Added to a delay that a server writes in seconds, as a date or in words: it may be rounded."""

_MAX_DELAY_TEXT = 2_000
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
    except (ValueError, TypeError, IndexError, OverflowError):  # a header may say anything
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
    found = _IN_TEXT.search(_LONG_UNITS.sub(_short_unit, text[:_MAX_DELAY_TEXT]))
    if found is None:
        return None
    return sum(float(n) * _UNITS_S[unit.lower()] for n, unit in _PART.findall(found[1]))


def _short_unit(match: re.Match[str]) -> str:
    word = match[2].lower()
    return match[1] + ("ms" if word.startswith("milli") else word[0])
