"""
Translates a provider's refusal into one of looopy's errors, for every provider.

Servers of one protocol word their errors differently. Status, headers and text of a response become
a typed error: worth retrying or not, a full window, a refused history. The API key is removed from
every text before it goes anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from looopy.auth.redaction import Redactor
from looopy.errors import (
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    RateLimited,
)

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|model_context_window_exceeded"
    r"|maximum context length|context[ _-](?:window|length|size|limit)"
    r"|prompt (?:is )?too long|input (?:is )?too long|maximum prompt length"
    r"|reduce the length of the (?:messages|prompt|input)"
    r"|input token count .*exceeds|token limit exceeded|exceeded model token limit"
    r"|too many (?:input )?tokens|exceeds the (?:model's )?(?:limit|maximum) of [\d,]+"
    r"|(?:prompt|request) exceeds (?:the )?max|range of input length should be"
    r"|`?inputs`? tokens \+ .{0,20}must be <=|too large for model with [\d,]+",
    re.IGNORECASE | re.DOTALL,
)
_HISTORY = re.compile(
    r"tool_call|tool call|role '?\"?tool|tool_use|tool_result|tool message"
    r"|content or tool_calls|roles must alternate|alternate user|conversation roles"
    r"|last message|first message|must be non-?empty|empty content|content (?:is|cannot be) empty"
    r"|invalid (?:value|type|message)[^.]*messages|messages\W{1,2}\d+|thinking.*cannot be modified"
    r"|invalid .?signature|thought.?signature|reasoning_content|image"
    r"|no tool (?:call|output) found|required following item|encrypted.content|input\[\d+",
    re.IGNORECASE | re.DOTALL,
)
_QUOTA = re.compile(r"insufficient_quota|exceeded your current quota|billing|credit", re.IGNORECASE)
_SPENT = re.compile(
    r"insufficient[_ ](?:quota|balance|credits?|funds)|credit balance|exceeded your current quota"
    r"|(?:out of|requires more|not enough) credits|billing_hard_limit|payment required",
    re.IGNORECASE,
)
# A call that the model wrote wrongly: Groq's words, and Gemini's. Another try may help.
_MISWRITTEN = re.compile(
    r"tool_use_failed|failed to call a function|malformed_function_call", re.IGNORECASE
)
_MODERATION = re.compile(r"moderation|flagged|content (?:policy|filter)", re.IGNORECASE)
_SLOW_DOWN = re.compile(r"throttl|rate.?limit|too many requests|please wait", re.IGNORECASE)
_PASSING = re.compile(
    r"overloaded|service unavailable|temporarily unavailable|internal (?:server )?error"
    r"|server error|connection (?:error|refused|reset)|upstream connect|reset before headers"
    r"|fetch failed|terminated|retry delay",
    re.IGNORECASE,
)
_PER_MINUTE = re.compile(r"tokens per (?:min|day)|\bTP[MD]\b", re.IGNORECASE)
_INDEX = re.compile(r"(?:messages\W{1,2}|input\[)(\d+)")
_WINDOW = re.compile(
    r"(?:context (?:length|window|size|limit)|prompt length|limit|maximum)\D{0,30}?([\d,]{3,})",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"[\d,]+(?: \+ [\d,]+)?(?: tokens)? > ([\d,]{3,})")  # Anthropic's words
_KINDS = {
    "invalid_request": 400,
    "context_length": 400,
    "rate_limit": 429,
    "insufficient_quota": 429,
    "authentication": 401,
    "billing": 402,
    "api_key": 401,
    "permission": 403,
    "not_found": 404,
}
_TRANSIENT_STATUS = frozenset({408, 409, 425})
_TAG = re.compile(r"<[^<>]*>")  # one pass over each character, whatever a server sends
_MAX_TEXT = 500
_MAX_CODE = 200
_MAX_READ = 20_000  # of a server's text, which may have any length and content


def failure_of(
    status: int | None,
    body: Any,
    *,
    provider: str,
    model: str,
    headers: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    sources: Sequence[int] = (),
    key_hint: str = "",
) -> LLMError:
    """
    The error in a provider's response.

    Args:
        status: HTTP status; `None` for an error within a stream that had begun well.
        body: The content: an error object, or text, or nothing.
        provider: Its name, for the message.
        model: The requested model.
        headers: The headers of the response.
        secrets: Texts that must not show, such as the API key.
        sources: For each message as it was sent, its position in the request's list, from 0.
        key_hint: How to set the key, for a refused one.
    """
    error = _error_object(body)
    text = redact(_text_of(error, body), secrets, most=_MAX_READ)
    if isinstance(body, (str, bytes)):  # perhaps a page of a proxy
        text = " ".join(_TAG.sub(" ", text).split())
    text = text[:_MAX_TEXT]
    codes = (str(error.get(key) or "")[:_MAX_CODE] for key in ("code", "type", "param"))
    evidence = f"{' '.join(codes)} {text}"
    facts: dict[str, Any] = {"provider": provider, "model": model}
    if status is None:
        status = _status_within(error)
    else:
        facts["unbilled"] = True  # the whole response is the refusal
    said_in = {k.lower(): v for k, v in (headers or {}).items()}
    delay_s = server_delay_s(said_in, text, datetime.now(UTC))
    waiting = {} if delay_s is None else {"retry_margin_s": margin_s(said_in)}
    said = f": {text}" if text else ""

    if status == 403 and _MODERATION.search(evidence):
        return LLMError(f"{provider} refused the content of the request{said}", **facts)
    if _MISWRITTEN.search(evidence) or "failed_generation" in error:
        text = f"the model of {provider} wrote a tool call that cannot be read{said}"
        return InvalidLLMResponse(text, retryable=True, **(facts | {"unbilled": False}))
    if status == 402 or (status != 429 and _SPENT.search(evidence)):
        text = f"{provider} says the balance is spent{_http(status)}{said}"
        return LLMError(text, status=402, **facts)
    if status in (401, 403):
        hint = f"; {key_hint}" if key_hint else ""
        return LLMError(f"{provider} refused the API key (HTTP {status}){hint}{said}", **facts)
    if (
        status == 429
        or (status == 413 and _PER_MINUTE.search(text))
        or (status is None and _SLOW_DOWN.search(evidence))
    ):
        spent = bool(_QUOTA.search(evidence))
        what = "says the quota is used up" if spent else "asks to wait"
        return RateLimited(
            f"{provider} {what}{_http(status)}{said}",
            retry_after_s=delay_s,
            retryable=not spent,
            **waiting,
            **facts,
        )
    if _OVERFLOW.search(evidence) or status == 413 or (status == 400 and not text):
        return ContextOverflow(
            f"the request does not fit the window of {model}{said}",
            limit_tokens=_limit(error, text),
            **facts,
        )
    # llama.cpp answers 500 where the template of a model refuses the messages.
    if (status in (400, 422) or (status == 500 and "Jinja" in text)) and (
        str(error.get("param") or "").startswith(("messages", "input[")) or _HISTORY.search(text)
    ):
        return HistoryRejected(
            f"{provider} refused the messages{said}", position=_position(evidence, sources), **facts
        )
    if status == 404 or "model_not_found" in evidence:
        return LLMError(
            f"{provider} does not know the model {model!r} or the address (HTTP {status}){said}",
            status=404,
            **facts,
        )
    transient = status is None or status >= 500 or status in _TRANSIENT_STATUS
    if transient or _PASSING.search(text):  # gateways hand the words of a failure on as a refusal
        where = "broke off" if status is None else f"failed (HTTP {status})"
        if delay_s is not None:
            facts |= {"retry_after_s": delay_s} | waiting
        return LLMUnavailable(f"the call to {provider} {where}{said}", **facts)
    return LLMError(f"{provider} refused the request (HTTP {status}){said}", **facts)


def _http(status: int | None) -> str:
    return "" if status is None else f" (HTTP {status})"


def redact(text: str, secrets: Sequence[str], *, most: int | None = None) -> str:
    """
    *text* without *secrets*; what is shorter than 8 characters is not a secret worth hiding.

    Args:
        most: Read so many characters, and show no secret that begins at their end.
    """
    redactor = Redactor()
    redactor.add(tuple(secrets))
    if most is None or len(text) <= most:
        return redactor.text(text)
    return redactor.split(text[:most])[0]


def _error_object(body: Any) -> Mapping[str, Any]:
    if isinstance(body, list) and body:  # Gemini's compatible endpoint wraps it in a list
        body = body[0]
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, Mapping) else body


def _text_of(error: Mapping[str, Any], body: Any) -> str:
    for key in ("message", "detail", "error", "msg"):
        value = error.get(key)
        if value:
            return str(value)
    if isinstance(body, (str, bytes)):
        return body.decode(errors="replace") if isinstance(body, bytes) else body
    return str(dict(error)) if error else ""


def _status_within(error: Mapping[str, Any]) -> int | None:
    for key in ("code", "status"):
        try:
            value = int(error.get(key) or 0)
        except (TypeError, ValueError):
            continue
        if 400 <= value < 600:
            return value
    kind = f"{str(error.get('type'))[:_MAX_CODE]} {str(error.get('code'))[:_MAX_CODE]}"
    return next((status for word, status in _KINDS.items() if word in kind), None)


def _position(evidence: str, sources: Sequence[int]) -> int | None:
    found = _INDEX.search(evidence)
    if found is None:
        return None
    index = int(found[1])
    return sources[index] if index < len(sources) and sources[index] >= 0 else None


def _limit(error: Mapping[str, Any], text: str) -> int | None:
    window = error.get("n_ctx")
    if isinstance(window, int):
        return window
    found = _TOO_MANY.search(text) or _WINDOW.search(text)
    return int(found[1].replace(",", "")) if found and found[1].strip(",") else None


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
    How long a server asks the client to wait.

    Args:
        headers: The headers of its response, names in lower case.
        text: The text of its error; read only if no header has a delay.
        now: Aware; compared with dates and reset times.

    Returns:
        Seconds above 0, or `None` if it asks for no delay.
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
    """The addition to `server_delay_s`: 0 if the server wrote milliseconds."""
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
