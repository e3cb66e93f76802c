"""Messages in a store of your own with two methods: a file of JSON lines for each conversation."""

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looopy import Agent, Message, Stores, message_to_json
from looopy.testing import ScriptedProvider, text


class JsonLines:
    """A file for each conversation, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, context_id: str, messages: Sequence[Message]) -> None:
        """Add lines after the last whole one, because a killed process may leave half a line."""
        with (self.folder / context_id).open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            lines = (json.dumps(message_to_json(one)) + "\n" for one in messages)
            file.write("".join(lines).encode())

    def list(self, context_id: str) -> list[dict[str, Any]]:
        """Read the whole lines."""
        path = self.folder / context_id
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole]


async def main() -> None:
    """Say two things, each to an agent of its own, as after a restart."""
    folder = Path(tempfile.mkdtemp())
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
        lambda request: text(f"I see {len(request.messages)} messages.")
    )
    for said in ("I am Ada.", "Who am I?"):
        stores = Stores.of(JsonLines(folder))
        async with stores, Agent("ada", llm_provider=model, stores=stores) as agent:
            print((await agent.execute_turn(said)).text)
    print((folder / "ada").read_text().count("\n"), "lines")


asyncio.run(main())
