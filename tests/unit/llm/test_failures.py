"""What the words of many servers mean."""

from __future__ import annotations

import re

import pytest

from looopy.errors import ContextOverflow, HistoryRejected, LLMError, LLMUnavailable, RateLimited
from looopy.llm import failures
from looopy.llm.failures import failure_of

KEY = "key-0123456789abcdef"


def failed(status, body, **options):
    return failure_of(status, body, provider="p", model="m", **options)


OVERFLOWS = [
    (400, "This model's maximum context length is 4097 tokens. However, you requested 5000", 4097),
    (400, "the request exceeds the available context size (4096 tokens), try increasing it", 4096),
    (400, "prompt is too long: 213462 tokens > 200000 maximum", None),
    (400, "Input is too long for requested model.", None),
    (400, "Please reduce the length of the messages or completion.", None),
    (400, "The input token count (1196265) exceeds the maximum number of tokens allowed", None),
    (400, "This model's maximum prompt length is 131072 but it contains 537812", 131072),
    (400, "Your input exceeds the context window of this model.", None),
    (400, "tokens to keep is greater than the context length", None),
    (400, "Prompt has 300 tokens: too large for model with 128 maximum context length", None),
    (500, "context window is full", None),
    (400, "prompt token count of 150000 exceeds the limit of 128000", 128000),
    (400, "Invalid request: Your request exceeded model token limit: 262144", 262144),
    (400, "invalid params, context window exceeds limit (2013)", 2013),
    (400, "Range of input length should be [1, 98304]", None),
    (422, "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 9000", None),
    (400, "prompt too long; exceeded max context length by 4 tokens", None),
    (400, "model_context_window_exceeded", None),
    (400, "the request exceeds the maximum of 32,768 input tokens", 32768),
    (None, "token limit exceeded", None),
    (413, "", None),
    (400, "", None),
]


@pytest.mark.parametrize(("status", "text", "limit"), OVERFLOWS)
def test_a_full_window_is_recognised_in_many_words(status, text, limit):
    """Also a bare 400 or 413, which some servers send."""
    error = failed(status, {"message": text} if text else "")
    assert isinstance(error, ContextOverflow)
    assert not error.retryable
    if limit:
        assert error.limit_tokens == limit


@pytest.mark.parametrize(
    "text", ["maximum context length reached, slow down", "rate limit", "too many tokens"]
)
def test_a_rate_limit_is_never_an_overflow(text):
    """429 is 429, whatever it says."""
    assert isinstance(failed(429, {"message": text}), RateLimited)


@pytest.mark.parametrize(
    "text", ["Throttling error: Too many tokens, please wait", "Rate limit reached", "rate_limited"]
)
def test_a_server_that_slows_us_down_within_a_stream_is_no_overflow(text):
    """There is no status then; the words tell."""
    assert isinstance(failed(None, {"message": text}), RateLimited)


@pytest.mark.parametrize(
    "text",
    [
        "Overloaded",
        "Service Unavailable",
        "Internal server error",
        "Connection error.",
        "connection refused",
        "upstream connect error or disconnect/reset before headers",
        "fetch failed",
        "terminated",
        "retry delay exceeded",
    ],
)
@pytest.mark.parametrize("status", [None, 400, 500])
def test_words_that_mean_a_passing_failure(text, status):
    """Gateways hand them on under any status."""
    error = failed(status, {"message": text})
    assert isinstance(error, LLMUnavailable)
    assert error.retryable


@pytest.mark.parametrize(
    ("headers", "margin"), [({"retry-after": "4"}, 1.0), ({"retry-after-ms": "1500"}, 0.0)]
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_delay_of_the_server_is_reported(status, headers, margin):
    """A second where the server wrote seconds, nothing where it wrote milliseconds."""
    error = failed(status, "", headers=headers)
    assert error.retry_margin_s == margin
    assert error.retry_after_s in (4.0, 1.5)


def test_a_413_about_tokens_per_minute_is_a_rate_limit():
    """Groq's way to say it."""
    text = "Request too large for model on tokens per minute (TPM): Limit 6000. Try again in 3s"
    error = failed(413, {"message": text})
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 3.0


@pytest.mark.parametrize(
    "text",
    [
        "An assistant message with 'tool_calls' must be followed by tool messages",
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
        "Invalid assistant message: content or tool_calls must be set",
        "Conversation roles must alternate user/assistant/user/assistant",
        "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1",
        "messages.4: all messages must have non-empty content",
        "`thinking` or `redacted_thinking` blocks in the latest message cannot be modified",
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_refused_messages_are_recognised(status, text):
    """The words of the rejections that brick a context elsewhere."""
    error = failed(status, {"error": {"message": text}})
    assert isinstance(error, HistoryRejected)
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "position"),
    [
        ({"message": "bad", "param": "messages[3].content"}, 2),
        ({"message": "messages.1: must have non-empty content"}, 0),
        ({"message": "Invalid value in messages.[2].role: empty content"}, 1),
        ({"message": "Invalid 'input[3].encrypted_content'", "param": "input[3]"}, 2),
        ({"message": "No tool output found for function call call_1."}, None),
        ({"message": "bad", "param": "messages[0]"}, None),
        ({"message": "bad", "param": "messages[99]"}, None),
        ({"message": "bad", "param": "messages"}, None),
    ],
)
def test_the_place_is_that_in_the_request(body, position):
    """The server counts what was sent; the system prompt is nobody's message."""
    error = failed(400, body, sources=[-1, 0, 1, 2])
    assert isinstance(error, HistoryRejected)
    assert error.position == position


def test_a_bad_request_of_another_kind_is_neither():
    """A wrong schema or option is no fault of the history and no overflow."""
    error = failed(400, {"message": "Invalid schema for function 'x'", "param": "tools[0]"})
    assert type(error) is LLMError
    assert not error.retryable


@pytest.mark.parametrize("status", [408, 409, 425, 500, 503, 529])
def test_temporary_failures_are_retryable(status):
    """With the delay the server asks for."""
    error = failed(status, "", headers={"Retry-After": "4"})
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert error.retry_after_s == 4.0


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "busy", "code": 503}}, LLMUnavailable),
        ({"error": {"message": "busy", "code": "429"}}, RateLimited),
        ({"error": {"message": "busy", "type": "rate_limit_error"}}, RateLimited),
        ({"error": {"message": "odd", "type": "invalid_request_error"}}, LLMError),
        ({"error": "something went wrong"}, LLMUnavailable),
        ([{"error": {"message": "no", "status": "401"}}], LLMError),
    ],
)
def test_an_error_within_a_stream_is_read_by_its_code(body, kind):
    """It has no HTTP status; without any code it may pass."""
    assert type(failed(None, body)) is kind


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, None])
def test_the_key_never_shows(status):
    """Wherever a server quotes it."""
    body = {"error": {"message": f"key {KEY}!", "param": KEY}}
    error = failed(status, body, secrets=(KEY,))
    assert KEY not in f"{error}{error!r}{error.facts}"


def test_a_page_of_html_is_shortened():
    """Tags are left out and the text is cut."""
    error = failed(502, "<html><h1>Bad   gateway</h1>" + "x" * 9000)
    assert "Bad gateway" in str(error)
    assert "<h1>" not in str(error)
    assert len(str(error)) < 700


_MUCH = 400_000  # characters: the old pattern took minutes for the first of these
HOSTILE = {
    "angles": "<" * _MUCH,
    "open tags": "<a " * (_MUCH // 3),
    "digits": "1" * _MUCH,
    "digits and commas": "1,2" * (_MUCH // 3),
    "spaces": " " * _MUCH,
    "invalid": "invalid value " * (_MUCH // 14),
    "input token count": "input token count " * (_MUCH // 18),
    "thinking": "thinking" * (_MUCH // 8),
    "maximum": "maximum " * (_MUCH // 8),
    "retry": "retry in 1s1s" * (_MUCH // 13),
    "waits": "retry in " + "1.1s " * (_MUCH // 5),
    "messages": "messages[" * (_MUCH // 9),
}


@pytest.mark.parametrize("status", [None, 400, 413, 429, 500])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_error_body_takes_long(status, text):
    """Whatever a server sends, the time is that of reading a page; the suite's limit holds it."""
    codes = {"code": text, "type": text, "param": text}
    for body in (text, text.encode(), {"error": {"message": text, **codes}}, {"error": text}):
        error = failed(status, body, headers={"Retry-After": text})
        assert isinstance(error, LLMError)
        assert len(str(error)) < 1_000


def test_only_the_beginning_of_a_body_is_matched(monkeypatch):
    """Counted, not timed: no pattern is given more than the page that is read."""
    given = []

    class Counting:
        def __init__(self, pattern):
            self.pattern = pattern

        def __getattr__(self, name):
            method = getattr(self.pattern, name)

            def call(*args):
                given.append(len(args[-1]))
                return method(*args)

            return call

    for name, pattern in vars(failures).items():
        if isinstance(pattern, re.Pattern):
            monkeypatch.setattr(failures, name, Counting(pattern))
    for text in HOSTILE.values():
        failed(400, text)
        failed(400, {"error": {"message": text, "code": text, "type": text, "param": text}})
    assert given
    assert max(given) <= 20_000


def test_a_key_cut_at_the_end_of_the_body_is_not_shown():
    """Where a body is cut, the beginning of a secret goes with the rest."""
    for before in range(20_000 - len(KEY), 20_000):
        text = str(failed(500, "<b>" + " " * (before - 3) + KEY + " and more", secrets=[KEY]))
        assert KEY[:4] not in text


def test_refusal_by_moderation_is_not_a_refused_key():
    """OpenRouter sends 403 for both."""
    body = {"error": {"code": 403, "message": "Your input was flagged for violence"}}
    error = failed(403, body, key_hint="check KEY")
    assert type(error) is LLMError
    assert not error.retryable
    assert "refused the content of the request: Your input was flagged" in str(error)
    assert "refused the API key (HTTP 403); check KEY" in str(
        failed(403, "no", key_hint="check KEY")
    )
