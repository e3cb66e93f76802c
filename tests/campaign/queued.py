"""
Kill a process at every point of a turn that is steered, and see what the next one says (T9).

One story: while its first tool runs, a turn is steered, is told something to follow, and something
else that is taken back. See `tests.campaign.stories` for how it is told.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.agent.kit import assert_whole
from tests.campaign.stories import TURNS, Ledger, Story

from looopy import Agent, open_stores, tool
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage, UserMessage
from looopy.types.request import LLMRequest


def _reply(request: LLMRequest) -> Any:
    if any(isinstance(message, ToolResultMessage) for message in request.messages):
        return text("done")
    return tool_call("talk"), tool_call("look")


def _agent(url: str, ledger: Ledger) -> Agent:
    @tool
    async def talk() -> str:
        """Hear what the user says meanwhile."""
        for number, speak in enumerate((agent.follow_up, agent.steer, agent.follow_up)):
            said = f"message-{number}"
            ledger.note("meant", said)
            await speak(said)
            ledger.note("acknowledged", said)
            if number == 0:
                ledger.note("cleared", said, str(await agent.clear_queue("follow_up")))
        return "heard"

    @tool(effects="none")
    async def look() -> str:
        """Look around."""
        return "nothing"

    provider = ScriptedProvider(_reply, repeat=True)
    agent = Agent("ada", llm_provider=provider, tools=[talk, look], stores=url)
    return agent


async def _tell(url: str, ledger: Ledger) -> None:
    """Tell the story to its end, from wherever it stands; each turn with an agent of its own."""
    for _ in range(TURNS):
        async with _agent(url, ledger) as agent:
            first = agent.state.turn_count == 0
            queued = await agent.has_queued_messages()
            if not first and not queued and agent.state.interrupted_turn is None:
                return
            await agent.execute_turn("go" if first else None)
    raise RuntimeError("the story does not end")


async def _judge(url: str, ledger: Ledger) -> list[str]:
    """What is wrong with a story that has ended."""
    async with open_stores(url) as stores:
        await assert_whole(stores)
        messages = await stores.messages.list("ada")
        head, _ = await stores.journal.inbox("ada")
    said = Counter(m.text for m in messages if isinstance(m, UserMessage))
    told = [line.split() for line in ledger.lines()]
    acknowledged = {words[1] for words in told if words[0] == "acknowledged"}
    cleared = {words[1] for words in told if words[0] == "cleared" and words[2] == "1"}
    begun = {words[1] for words in told if words[0] == "meant"}
    found = [f"{head.waiting} still wait"] if head.waiting else []
    for message in begun:
        times = said.pop(message, 0)
        if message in cleared:
            right = times == 0
        elif message == "message-0":
            right = times <= 1  # killed while it was being taken back
        else:
            right = times == 1 or (message not in acknowledged and times == 0)
        if not right:
            found.append(f"{message} was said {times} times: {told}")
    if said != Counter({"go": 1}):
        found.append(f"nobody said {said}")
    if messages[-1].text != "done":
        found.append(f"it ends with {messages[-1].text!r}")
    return found


TRIALS = [Story("steered, and told to go on", 69, _tell, _judge).trial]
