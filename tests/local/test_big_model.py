"""The embedded model that people chat with has to remember, and to call a tool."""

import pytest

from looopy import (
    Agent,
    AssistantMessage,
    LoopConfig,
    TextContent,
    UserMessage,
    open_stores,
    tool,
)

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


async def test_the_model_recalls_a_fact_after_a_compaction(tmp_path):
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


CHAT = (
    ("How do I boil an egg?", "Put it into boiling water for seven minutes, then into cold."),
    ("What is the capital of Portugal?", "Lisbon. It lies on the Tagus."),
    ("Can you recommend a book?", "'The Leopard' by Lampedusa. It is about Sicily around 1860."),
    ("I want to learn Python. Where do I begin?", "With the tutorial, and a program of your own."),
    ("My bicycle makes a noise when I brake.", "Clean the rim and the pads, or replace them."),
    ("What does 'ephemeral' mean?", "Lasting only for a short time."),
    ("Plan a day in Porto for me.", "The Ribeira, the bridge, a port cellar, the gardens."),
    ("How far is the moon?", "About 384,000 kilometres on average."),
    ("Write a haiku about rain.", "Soft rain on the roof / a lamp at the window / cold tea."),
    ("What shall I cook tonight?", "A risotto with mushrooms takes forty minutes."),
    ("How do I remove a red wine stain?", "Salt first, then cold water and soap. Do not rub."),
    ("Is it going to rain tomorrow?", "I cannot see the weather. Look at a forecast."),
)


async def test_the_model_recalls_the_first_of_fifty_messages(tmp_path):
    """Told before the compaction, answered after it by another agent, and found by a search."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    hello = "Hello! My name is Greta, I live in Bergen, and my cat is called Ziggy."
    past = [UserMessage(hello), AssistantMessage([TextContent("Hello Greta! How can I help?")])]
    for lead in ("", "Once more: "):
        for question, reply in CHAT:
            past += [UserMessage(lead + question), AssistantMessage([TextContent(reply)])]
    async with open_stores(url) as stores:
        await stores.messages.append("greta", past)
    config = LoopConfig(history_tokens=2_400)
    async with Agent("greta", llm_provider="local", stores=url, loop_config=config) as agent:
        assert (await agent.compact()).covers == (1, 48)
    async with Agent("greta", llm_provider="local", stores=url, loop_config=config) as agent:
        assert "Ziggy" in (await agent.execute_turn("What is the name of my cat?")).text
        assert 1 in [hit.position for hit in (await agent.search("Ziggy")).items]
