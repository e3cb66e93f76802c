"""The embedded model that people chat with has to remember, and to call a tool."""

import pytest

from looopy import Agent, tool

pytestmark = pytest.mark.big_model


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


async def test_it_remembers_a_name_and_calls_a_tool_across_a_restart(tmp_path):
    """A name told, a tool called with the right numbers, another agent: the name still known."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    async with Agent("ada", llm_provider="local", tools=[add], stores=url) as agent:
        await agent.execute_turn("Hi! My name is Maria.")
        result = await agent.execute_turn("What is 48231 + 5977? Use the tool.")
        assert "54208" in result.text.replace(",", "")
        assert [m.text for m in result.messages if m.role == "toolResult"] == ["54208"]
    async with Agent("ada", llm_provider="local", tools=[add], stores=url) as agent:
        assert "Maria" in (await agent.execute_turn("What is my name?")).text
