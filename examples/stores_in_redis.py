"""Messages and state in Redis, of which a dictionary takes the place here."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from looopy import Agent, Message, Stores, message_to_json
from looopy.testing import ScriptedProvider, text

REDIS: dict[str, Any] = {}


class Messages:
    """A list for each conversation: `RPUSH` and `LRANGE`."""

    async def append(self, context_id: str, messages: Sequence[Message]) -> None:
        """Add messages to the end."""
        texts = [json.dumps(message_to_json(one)) for one in messages]
        REDIS.setdefault(f"chat:{context_id}", []).extend(texts)

    async def list(self, context_id: str) -> list[dict[str, Any]]:
        """Return all messages."""
        return [json.loads(one) for one in REDIS.get(f"chat:{context_id}", ())]


class State:
    """A document for each key: `GET`, `SET`, and a script that compares."""

    async def load(self, key: str) -> dict[str, Any] | None:
        """Return the document."""
        return json.loads(REDIS[f"state:{key}"]) if f"state:{key}" in REDIS else None

    async def save(self, key: str, document: Mapping[str, Any]) -> None:
        """Replace the document."""
        REDIS[f"state:{key}"] = json.dumps(document)

    async def compare_and_set(self, key: str, document: Mapping[str, Any], revision: int) -> bool:
        """Replace the document unless another process has done so."""
        present = await self.load(key)
        if (present["revision"] if present else 0) != revision:
            return False
        await self.save(key, document)
        return True


async def main() -> None:
    """Say two things, each to an agent of its own, as in two processes."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(lambda _: text("Hello!"))
    for said in ("I am Ada.", "Who am I?"):
        stores = Stores.of(Messages(), state=State())
        async with stores, Agent("ada", llm_provider=model, stores=stores) as agent:
            await agent.execute_turn(said)
            print(agent.state.turn_count, "turns,", len(REDIS["chat:ada"]), "messages")


asyncio.run(main())
