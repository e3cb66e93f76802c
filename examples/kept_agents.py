"""
Keep the agents of a service: one a context, and only those that were used last.

An agent that is ready begins a turn without reading its context again. An idle one costs memory.
"""

import asyncio
import os
from typing import Any, Self

from looopy import Agent, Stores, open_stores
from looopy.testing import ScriptedProvider, text


class KeptAgents:
    """Started agents by their context; the longest unused gives way, once its turn is over."""

    def __init__(self, stores: Stores, keep: int = 100, **options: Any) -> None:
        self.keep, self.options = keep, {"stores": stores, **options}
        self.agents: dict[str, Agent] = {}  # the last used is the last
        self.ending: set[asyncio.Task[None]] = set()

    async def get(self, context_id: str) -> Agent:
        """The agent of *context_id*, started; let no other task run before you use it."""
        agent = self.agents.pop(context_id, None) or Agent(context_id, **self.options)
        self.agents[context_id] = agent
        for name, other in list(self.agents.items())[: -self.keep]:
            if other.state.status != "starting":
                self.end(self.agents.pop(name))
        await agent.start()  # does nothing when it is ready
        return agent

    def end(self, agent: Agent) -> None:
        """Shut *agent* down beside other work."""
        task = asyncio.create_task(agent.shutdown())  # lets a running turn end
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self.ending, *(a.shutdown() for a in self.agents.values()))


async def main() -> None:
    """Serve three contexts with two agents."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(lambda _: text("Hello!"))
    async with open_stores("memory:") as db, KeptAgents(db, keep=2, llm_provider=model) as kept:
        for name in ("ada", "ben", "ada", "eve"):
            agent = await kept.get(name)
            result = await agent.execute_turn("Hello!")
            print(f"{name}: turn {result.turn}, kept: {', '.join(kept.agents)}")


if __name__ == "__main__":
    asyncio.run(main())
