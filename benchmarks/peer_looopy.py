"""
looopy as one peer of the comparison: the adapter that its harness loads.

The model answers at once with objects made beforehand, as those of the other peers do. An agent
lives as long as the process, as in a server that keeps its conversations open; `forget` makes the
adapter open a context again from the store. Durability and every other setting are the defaults,
except `history_tokens`: the whole history has to reach the model.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from common import REPLY, SCRIPT, SYSTEM, TOOL_ARGS, TOOL_NAME, TOOL_RESULT, USER, Adapter

from looopy import Agent, LoopConfig, open_stores, tool
from looopy.llm.accumulate import Accumulator
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_WHOLE = LoopConfig(history_tokens=None)


class Fake:
    """Answers at once: a reply, a stream of deltas, or a call of the tool and then a reply."""

    name = "fake"
    model = "fake"

    async def stream(
        self,
        request: LLMRequest,
        options: StreamOptions | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMProvider.stream`."""
        SCRIPT.on_call(len(request.messages))
        await SCRIPT.pause()
        answer = Accumulator(api="fake", provider="fake", model="fake")
        if SCRIPT.tool_turn and not isinstance(request.messages[-1], ToolResultMessage):
            pieces = answer.tool_call(
                0, call_id=SCRIPT.call_id(), name=TOOL_NAME, arguments_delta=json.dumps(TOOL_ARGS)
            )
            for event in pieces:
                yield event
        else:
            for chunk in SCRIPT.chunks() or (REPLY,):
                for event in answer.text_delta(chunk):
                    yield event
        for event in answer.done(StopReason.STOP, Usage()):
            yield event


@tool(name=TOOL_NAME)
async def lookup(key: str) -> str:
    """Look a key up."""
    return TOOL_RESULT


class Peer(Adapter):
    """See `common.Adapter`."""

    backends = ("sqlite", "pg", "memory")

    def __init__(self, backend: str, target: str) -> None:
        super().__init__(backend, target)
        # Imports are not part of what S3 times, as with the other peers.
        late = {"sqlite": ("sql.engine", "sql.sqlite"), "pg": ("sql.engine", "sql.postgres")}
        for name in late.get(backend, ()):
            import_module(f"looopy.stores.{name}")
        import_module("looopy.agent.stream")
        if backend == "pg":
            import_module("asyncpg")

    async def open(self) -> None:
        """Open the stores."""
        url = {"sqlite": f"sqlite:///{self.target}", "memory": "memory:"}.get(
            self.backend, self.target
        )
        options: dict[str, Any] = {"migrate": True} if self.backend == "pg" else {}
        self.stores = open_stores(url, **options)
        await self.stores.__aenter__()
        self.agents: dict[str, Agent] = {}

    async def close(self) -> None:
        """Close the stores."""
        for agent in self.agents.values():
            await agent.shutdown()
        await self.stores.__aexit__(None, None, None)

    async def _agent(self, session: str) -> Agent:
        agent = self.agents.get(session)
        if agent is None:
            agent = Agent(
                session,
                llm_provider=Fake(),
                tools=[lookup],
                stores=self.stores,
                system_prompt=SYSTEM,
                loop_config=_WHOLE,
                on_busy="wait",
            )
            await agent.start()
            self.agents[session] = agent
        return agent

    async def turn(self, session: str, text: str) -> str:
        """Take a turn, to its end."""
        agent = await self._agent(session)
        return (await agent.execute_turn(text)).text

    async def stream(self, session: str, text: str) -> int:
        """Take a turn, and count the deltas that reach an `async for`."""
        agent = await self._agent(session)
        count = 0
        async for event in agent.execute_turn(text):
            if event.type == "message_update" and event.delta:
                count += 1
        return count

    async def prefill(self, session: str, n: int) -> None:
        """Store *n* messages."""
        said = [
            UserMessage(USER.format(i=i))
            if i % 2 == 0
            else AssistantMessage((TextContent(REPLY),), api="fake", provider="fake", model="fake")
            for i in range(n)
        ]
        await self.stores.messages.append(session, said)

    def forget(self, session: str) -> None:
        """Open the session from the store at its next turn."""
        self.agents.pop(session, None)

    async def count(self, session: str) -> int:
        """Messages in the store."""
        return await self.stores.messages.count(session)
