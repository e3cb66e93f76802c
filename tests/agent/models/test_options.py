"""The options of model calls: of an agent, of a turn, and what is refused."""

from __future__ import annotations

import pytest
from tests.agent.kit import add, collect

from looopy import LoopConfig, ModelOptions, ThinkingLevel
from looopy.errors import ConfigurationError
from looopy.sync import Agent as SyncAgent
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.state import Outcome

SECRET = "Bearer a-very-secret-token-0123456789"
ALL = ModelOptions(
    model="other",
    tool_choice="add",
    stop=["END"],
    temperature=0.5,
    max_tokens=77,
    seed=7,
    thinking_level=ThinkingLevel.LOW,
    headers={"x-team": "red"},
    extra_body={"top_k": 3},
)


async def test_every_option_of_a_turn_reaches_its_model_calls(make_agent, memory_stores):
    """And no other turn's; a forced tool is forced once, so that the model can answer."""
    replies = [tool_call("add", a=1, b=2), text("3"), text("hello")]
    agent = await make_agent(replies, tools=[add], stores=memory_stores)
    provider = agent._core.resources.provider
    assert (await agent.execute_turn("1+2?", options=ALL)).text == "3"
    assert (await agent.execute_turn("hi")).text == "hello"
    first, second, plain = provider.options
    assert [request.model for request in provider.requests[:2]] == ["other"] * 2
    assert provider.requests[2].model != "other"
    names = ("stop", "temperature", "max_tokens", "seed", "thinking_level", "headers", "extra_body")
    for name in names:
        assert getattr(first, name) == getattr(second, name) == getattr(ALL, name)
        assert getattr(plain, name) in (None, (), {})
    assert [one.tool_choice for one in provider.options] == ["add", None, None]


async def test_a_turn_may_change_one_option_of_the_agent(make_agent, memory_stores):
    """The others stay; headers are joined."""
    ours = ModelOptions(temperature=0.1, seed=1, headers={"a": "1"})
    config = LoopConfig(options=ours, temperature=0.9, max_tokens=5)
    agent = await make_agent([text("a"), text("b")], stores=memory_stores, loop_config=config)
    options = agent._core.resources.provider.options
    await agent.execute_turn("hi", options={"temperature": 0.0, "headers": {"b": "2"}})
    await agent.execute_turn("hi")
    found = [(o.temperature, o.seed, o.max_tokens, o.headers) for o in options]
    assert found == [(0.0, 1, 5, {"a": "1", "b": "2"}), (0.1, 1, 5, {"a": "1"})]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"zzz": 1}, "there are model, tool_choice"),
        ({"temperature": "hot"}, "ModelOptions.temperature must be a number"),
        ({"stop": "END"}, r"takes a list of texts, such as \['END'\]"),
        ({"seed": 1.5}, "ModelOptions.seed must be a whole number"),
        ({"stop": 5}, "ModelOptions.stop takes a list of texts"),
        ({"stop": [""]}, "ModelOptions.stop takes a list of texts"),
        ({"headers": {"a\n": "b"}}, "ModelOptions.headers: 'a\\\\n' is not the name of a header"),
        ({"headers": {"x-k": 1}}, "ModelOptions.headers: the value of 'x-k' must be text"),
        ({"headers": {"x-k": "a\r\nb: c"}}, "without line breaks"),
        ({"extra_body": {"a": float("nan")}}, "ModelOptions.extra_body is not JSON"),
        ({"extra_body": {"a": object()}}, "ModelOptions.extra_body is not JSON"),
        ({"model": 3}, "takes the name of a model"),
        ({"tool_choice": 3}, "or the name of a tool"),
        ({"headers": "x"}, "takes a mapping"),
        ({"thinking_level": "much"}, "must be one of"),
        ([], "options takes ModelOptions"),
    ],
)
async def test_a_wrong_option_is_refused_at_the_call(make_agent, memory_stores, options, said):
    """With the name that was probably meant, or what it takes; nothing is stored."""
    agent = await make_agent([], stores=memory_stores)
    with pytest.raises(ConfigurationError, match=said):
        agent.execute_turn("hi", options=options)


async def test_a_tool_that_is_not_there_cannot_be_forced(make_agent, memory_stores):
    """The turn fails before the model is called."""
    agent = await make_agent([], tools=[add], stores=memory_stores)
    result = await agent.execute_turn("hi", options=ModelOptions(tool_choice="sub"))
    assert result.outcome is Outcome.FAILED
    assert "'sub', which is not a tool of this turn: add" in str(result.error)


@pytest.mark.parametrize("name", ["Authorization", "X-Session"])
async def test_a_credential_in_a_header_stays_out(make_agent, memory_stores, name):
    """Of what the model repeats; and of the options as they are shown."""
    options = ModelOptions(headers={name: SECRET})
    agent = await make_agent([text(f"I saw {SECRET}")], stores=memory_stores)
    events = await collect(agent.execute_turn("hi", options=options))
    assert "a-very-secret-token" not in repr([events, options, await agent.get_messages()])


def test_blocking_code_passes_options_as_well():
    """By the same name."""
    provider = ScriptedProvider([text("ok")])
    with SyncAgent("ada", llm_provider=provider, stores="memory://") as agent:
        assert agent.execute_turn("hi", options={"seed": 3}).text == "ok"
    assert provider.options[0].seed == 3
