"""
A list of messages that mirrors a context, and may be changed by hand.

What a run says comes to both. What is done to the list between runs is brought to the context
before the next one: more messages at its end are appended, any other list takes the place of what
was said.
"""

from __future__ import annotations

from collections.abc import Sequence

from looopy.agent.agent import Agent
from looopy.errors import AgentStateError
from looopy.types.message import Message


class Mirror:
    """
    What the context of *agent* holds, as far as this process has said or read it.

    Attributes:
        replaced: The list was replaced: what there is in the context is not to be read into it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._held: list[Message] = []
        self.replaced = False

    def said(self, message: Message) -> None:
        """Take note of what a run has said; the list has it."""
        self._held.append(message)

    async def read(self, messages: list[Message]) -> None:
        """Put what the context holds at the beginning of *messages*."""
        before, self._held = self._held, list(await self._agent.get_messages())
        if not self.replaced and messages[: len(before)] == before:
            messages[: len(before)] = self._held

    async def write(self, messages: Sequence[Message]) -> bool:
        """
        Make the context hold *messages*; whether something else had to be hidden for it.

        Raises:
            AgentBusy: Somebody uses the context.
            ValueRefused: A message cannot be stored.
        """
        held = self._held
        new = messages[len(held) :]
        other = len(messages) < len(held) or any(
            a is not b and a != b for a, b in zip(messages, held, strict=False)
        )
        if other:
            await self._agent.clear()
            self._held, new = [], messages
        self.replaced = False
        if new:
            await self.append(new)
            self._held += new
        return other

    async def append(self, messages: Sequence[Message]) -> None:
        """Store *messages* behind what there is."""
        stores = self._agent._stores  # noqa: SLF001 - opened by it, from a URL
        if stores is None:
            raise AgentStateError("the agent was closed meanwhile")
        await stores.messages.append(self._agent.context_id, messages)
