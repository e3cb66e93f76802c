"""The names of a model that mean the same one, and those that mean another."""

from __future__ import annotations

import pytest

from looopy.llm.served import is_other, report_other


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
        ("gpt-3.5-turbo", "gpt-3.5-turbo-0125"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4-20250514"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4-20250514"),
        ("mistral-large-latest", "mistral-large-2411"),
        ("gemini-1.5-flash", "gemini-1.5-flash-002"),
        ("openai/gpt-4o", "gpt-4o-2024-08-06"),
        ("meta-llama/llama-3.1-8b-instruct:free", "meta-llama/llama-3.1-8b-instruct"),
        ("qwen2.5-7b", "/models/qwen2.5-7b.gguf"),
    ],
)
def test_a_full_name_is_the_same_model(asked, answered):
    """With a date, a revision, a place or a route."""
    assert not is_other(asked, answered)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"),
        ("gpt-4", "gpt-4.1"),
        ("claude-sonnet-4", "claude-sonnet-4-5"),
        ("openrouter/auto", "anthropic/claude-sonnet-4-5"),
        ("llama3.2:1b", "llama3.2:3b"),
        ("default", "qwen2.5-7b"),
        ("o1", "o1-preview"),
    ],
)
def test_another_name_is_another_model(asked, answered):
    """A size, a version, a pinned date: each of them is chosen."""
    assert is_other(asked, answered)


@pytest.mark.parametrize("answered", ["", "a\nb", "<b>x</b>", "x" * 300])
def test_a_text_that_is_not_a_name_is_not_reported(answered):
    """A server may write anything there."""
    told = []
    report_other(told.append, provider="p", asked="m", answered=answered)
    assert told == []
    report_other(
        told.append, provider="p", asked="m", answered="key-0123456", secrets=["key-0123456"]
    )
    [only] = told
    assert "key-0123456" not in only.answered
