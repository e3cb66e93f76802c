"""What the name of a model of Anthropic's says of it."""

from __future__ import annotations

import pytest

from looopy.llm.anthropic.models import Abilities, abilities_of


@pytest.mark.parametrize(
    ("model", "max_output", "window_tokens", "thinking"),
    [
        ("claude-2.1", 4096, 200_000, "none"),
        ("claude-instant-1.2", 4096, 200_000, "none"),
        ("claude-3-haiku-20240307", 4096, 200_000, "none"),
        ("claude-3-5-haiku-latest", 8192, 200_000, "none"),
        ("claude-3-7-sonnet-20250219", 64_000, 200_000, "budget"),
        ("claude-sonnet-4-20250514", 64_000, 200_000, "budget"),
        ("claude-opus-4@20250514", 32_000, 200_000, "budget"),
        ("claude-opus-4-1-20250805", 32_000, 200_000, "budget"),
        ("claude-sonnet-4-5-20250929", 64_000, 200_000, "budget"),
        ("anthropic/claude-haiku-4.5", 64_000, 200_000, "budget"),
        ("us.anthropic.claude-opus-4-6-v1:0", 128_000, 1_000_000, "either"),
        ("claude-opus-4-7", 128_000, 1_000_000, "adaptive"),
        ("claude-sonnet-5", 128_000, 1_000_000, "adaptive"),
        ("claude-haiku-5-5", 128_000, 1_000_000, "adaptive"),
        ("claude-mythos-preview", 128_000, 1_000_000, "adaptive"),
    ],
)
def test_sizes_and_thinking_by_the_version(model, max_output, window_tokens, thinking):
    """However the name is written, with a date, a cloud's prefix or a dot."""
    able = abilities_of(model)
    assert (able.max_output, able.window_tokens, able.thinking) == (
        max_output,
        window_tokens,
        thinking,
    )


@pytest.mark.parametrize(
    ("model", "off", "bound", "forced_tools"),
    [
        ("claude-opus-4-6", None, False, True),
        ("claude-opus-4-8", None, False, True),
        ("claude-opus-5", "disabled", False, True),
        ("claude-fable-5", None, False, True),
        ("claude-fable-5-1", None, True, False),
        ("claude-opus-5-5", None, True, False),
        ("claude-sonnet-5-5", "between_tools", True, False),
        ("claude-haiku-5-5", "disabled", True, False),
    ],
)
def test_options_refused_by_the_latest_models_are_not_sent(model, off, bound, forced_tools):
    """How they are told not to think, whether their thoughts are bound, and their tools free."""
    able = abilities_of(model)
    assert (able.off, able.bound, able.forced_tools) == (off, bound, forced_tools)


def test_temperature_and_schemas_by_the_version():
    """The one went, the other came."""
    names = ["claude-sonnet-4", "claude-sonnet-4-5", "claude-sonnet-4-6", "claude-sonnet-5"]
    able = [abilities_of(name) for name in names]
    assert [a.temperature for a in able] == [True, True, True, False]
    assert [a.schemas for a in able] == [False, True, True, True]
    assert ["xhigh" in a.efforts for a in able] == [False, False, False, True]


@pytest.mark.parametrize("model", ["MiniMax-M2", "glm-4.6", "claude", "my-claude-tune"])
def test_an_unknown_model_gets_the_options_of_most_models(model):
    """No window is made up for it."""
    assert abilities_of(model) == Abilities()
