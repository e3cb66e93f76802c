"""
Rate limits, as the headers of a server's response report them.

The forms of the headers, as documented on these pages when they were read in November 2026:

- OpenAI (developers.openai.com/api/docs/guides/rate-limits, of June 2026):
  `x-ratelimit-limit-requests: 60`, `x-ratelimit-remaining-tokens: 149984`,
  `x-ratelimit-reset-tokens: 6m0s`. Groq (console.groq.com/docs/rate-limits) and most compatible
  servers have the same; Groq writes fractions (`7.66s`), Cerebras seconds without a unit and a
  period (`-requests-day`), OpenRouter a time in milliseconds and no suffix.
- Anthropic (docs.claude.com/en/api/rate-limits): `anthropic-ratelimit-input-tokens-limit`,
  `-remaining` and `-reset`, the last one a time in RFC 3339; `requests`, `tokens`, `input-tokens`
  and `output-tokens`.
- draft-ietf-httpapi-ratelimit-headers-06 of December 2022: `ratelimit-limit`,
  `ratelimit-remaining`, and `ratelimit-reset` in seconds. The later structured field `RateLimit`
  has names of the server's own, and is not read.

A name is made of known words, and a value is a number or a time. So no text of a server gets into
an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from looopy.errors import LLMError, RateLimited
from looopy.llm.retry import refused_by
from looopy.types.request import RateLimits, RateQuota, Report

_PARTS: Final = {"limit": "limit", "remaining": "left", "reset": "resets"}
_WORDS: Final = frozenset(
    {"requests", "tokens", "input", "output", "prompt", "generated"}
    | {"second", "minute", "hour", "day", "month"}
)
_COUNT: Final = re.compile(r"\s*(\d{1,15})(?![\d:/-])")
_SPAN: Final = re.compile(r"(?:\d{1,15}(?:\.\d{1,9})?(?:ms|[dhms]))+")
_PIECE: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_UNITS_S: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_MOST_CHARS: Final = 100  # of a value, which may have any length
_EPOCH: Final = 1e9  # seconds since 1970, rather than from now
_EPOCH_MS: Final = 1e11


def limits_in(headers: Mapping[str, str], now: datetime) -> tuple[RateQuota, ...]:
    """
    The limits in the *headers* of a response, in their order; () without such headers.

    Args:
        now: Aware; the beginning of durations.
    """
    found: dict[str, dict[str, str]] = {}
    for name, value in headers.items():
        _, mark, rest = name.lower().partition("ratelimit-")
        if not mark:
            continue
        words = rest.split("-")
        parts = [_PARTS[word] for word in words if word in _PARTS]
        kinds = [word for word in words if word not in _PARTS]
        if len(parts) == 1 and _WORDS.issuperset(kinds):
            kind = "_".join(kinds) or "requests"
            found.setdefault(kind, {}).setdefault(parts[0], value[:_MOST_CHARS])
    return tuple(
        RateQuota(
            kind=kind,
            limit=_count(parts.get("limit", "")),
            left=left,
            resets_at=_moment(parts.get("resets", "").strip(), now),
        )
        for kind, parts in found.items()
        if (left := _count(parts.get("left", ""))) is not None
    )


def report_limits(
    report: Callable[[Report], None] | None,
    headers: Mapping[str, str],
    *,
    provider: str,
    model: str,
    refusal: LLMError | None = None,
) -> None:
    """Call *report* if a response has limits, or if it is a *refusal* that asks to wait."""
    if report is None:
        return
    limits = limits_in(headers, datetime.now(UTC))
    if isinstance(refusal, RateLimited):
        report(refused_by(refusal, limits))
    elif limits:
        report(RateLimits(provider=provider, model=model, limits=limits))


def _count(value: str) -> int | None:
    """The number at the beginning: the draft has a list of policies after it."""
    found = _COUNT.match(value)
    return None if found is None else int(found[1])


def _moment(value: str, now: datetime) -> datetime | None:
    """The moment that a value means: a time, a time since 1970, or a duration."""
    try:
        if _SPAN.fullmatch(value):
            pieces = _PIECE.findall(value)
            return now + timedelta(seconds=sum(float(n) * _UNITS_S[u] for n, u in pieces))
        if not value[:1].isdigit():
            return None
        if "-" in value:
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        seconds = float(value)
        if seconds >= _EPOCH:
            return datetime.fromtimestamp(seconds / (1000 if seconds > _EPOCH_MS else 1), UTC)
        return now + timedelta(seconds=seconds)
    except (ValueError, OverflowError, OSError):  # a header may have any value
        return None
