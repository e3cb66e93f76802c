"""The embedded model that people chat with has to remember, and to call a tool."""

import pytest

from looopy import Agent, LoopConfig, tool

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


async def test_it_knows_after_a_compaction_what_it_was_told_before(tmp_path):
    """The older part is summarised by the model itself; another agent is asked for the facts."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    config = LoopConfig(max_tokens=70)
    chat = (
        "Hi! My name is Maria. My cat is called Pixel and my locker has the number 4711.",
        "Name three rivers in Germany.",
        "What is the boiling point of water at sea level?",
        "Which planet is the largest?",
    )
    async with Agent("ada", llm_provider="local", stores=url, loop_config=config) as agent:
        for question in chat:
            await agent.execute_turn(question)
        assert (await agent.compact()).covers == (1, 6)
        assert "Pixel" in (await agent.get_covered())[0].text
    async with Agent("ada", llm_provider="local", stores=url, loop_config=config) as agent:
        assert "Pixel" in (await agent.execute_turn("What is the name of my cat?")).text
        assert "4711" in (await agent.execute_turn("Which number has my locker?")).text
