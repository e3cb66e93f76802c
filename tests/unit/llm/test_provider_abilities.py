"""What a provider declares is read at one place, and what it declares wrongly is refused."""

import dataclasses

import pytest

from looopy import Agent, AgentLoop
from looopy.errors import ConfigurationError
from looopy.llm import Abilities, FallbackProvider, ThoughtTags, abilities_of, resolve_provider
from looopy.testing import ScriptedProvider, text


class Plain:
    """Only what the contract asks for."""

    async def stream(self, request, options):
        yield


def _with(**attributes):
    return type("Mine", (Plain,), attributes)()


async def _nothing():
    pass


def _any(_schema):
    return True


ALL = {
    "name": "mine",
    "model": "large",
    "window_tokens": 8000,
    "structured_output": True,
    "enforces": staticmethod(_any),
    "knows_cost": False,
    "cost_of": staticmethod(_any),
    "asks_for_keys": True,
    "count_tokens": staticmethod(_nothing),
    "prepare": staticmethod(_nothing),
    "aclose": staticmethod(_nothing),
}


def test_a_provider_without_abilities_has_the_defaults():
    """`None` is as good as not declared."""
    assert abilities_of(Plain()) == Abilities()
    assert abilities_of(_with(**dict.fromkeys(ALL))) == Abilities()


def test_every_ability_is_read():
    """From a class, an instance or a property; none of them is left out."""
    methods = dict.fromkeys(("count_tokens", "prepare", "aclose"), _nothing)
    methods["enforces"] = methods["cost_of"] = _any
    expected = Abilities(**{**ALL, **methods})
    assert abilities_of(_with(**ALL)) == expected
    assert set(ALL) == {field.name for field in dataclasses.fields(Abilities)}
    own = Plain()
    own.window_tokens = 5
    assert abilities_of(own).window_tokens == 5
    assert abilities_of(_with(window_tokens=property(lambda _self: 6))).window_tokens == 6


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", 1),
        ("model", ["large"]),
        ("window_tokens", "8000"),
        ("window_tokens", True),
        ("window_tokens", 0),
        ("window_tokens", 8e3),
        ("structured_output", "yes"),
        ("knows_cost", 1),
        ("asks_for_keys", 0),
        ("prepare", True),
        ("aclose", "later"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(attribute, value):
    """Each door to a provider says which attribute it is, and whose."""
    wrong = _with(**{attribute: value})
    for door in (abilities_of, resolve_provider, AgentLoop, ThoughtTags):
        with pytest.raises(ConfigurationError, match=f"Mine declares {attribute} as"):
            door(wrong)
    with pytest.raises(ConfigurationError, match=attribute):
        FallbackProvider([Plain(), wrong])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("window_token", "window_tokens"),
        ("windowTokens", "window_tokens"),
        ("structured_outputs", "structured_output"),
        ("structure_output", "structured_output"),
        ("know_cost", "knows_cost"),
        ("knows_costs", "knows_cost"),
        ("asks_for_key", "asks_for_keys"),
    ],
)
def test_a_misspelt_ability_is_refused_with_the_right_name(wrong, right):
    """On the class as on an instance: it would be lost in silence."""
    own = Plain()
    setattr(own, wrong, 8000)
    for provider in (_with(**{wrong: 8000}), own):
        with pytest.raises(ConfigurationError, match=f"'{wrong}'.* did you mean '{right}'"):
            resolve_provider(provider)


def test_attributes_of_ones_own_stay_ones_own():
    """Words that mean something by themselves, private names, and what stands beside the right."""
    names = "close", "models", "names", "prepared", "mode", "window", "tokens", "cost", "key"
    more = "max_tokens", "output_tokens", "max_window_tokens", "context_window", "_window_token"
    provider = _with(**dict.fromkeys([*names, *more, "timeout_s", "output"], 1))
    assert resolve_provider(provider) is provider
    both = _with(window_tokens=9, window_token=8)
    assert resolve_provider(both) is both


async def test_an_agent_refuses_when_it_starts():
    """Before a turn is accepted that would run without the ability."""
    provider = ScriptedProvider([text("hi")])
    provider.window_token = 8000
    agent = Agent("c", llm_provider=provider)
    with pytest.raises(ConfigurationError, match="did you mean 'window_tokens'"):
        await agent.start()
