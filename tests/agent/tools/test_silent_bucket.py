"""A blob store that takes bytes and never answers keeps no turn, tool or shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from looopy import Agent, ToolContext, open_stores, tool
from looopy.stores.blobs.folder import FolderBlobs
from looopy.testing import ScriptedProvider, text, tool_call

LARGE = b"0123456789abcdef" * 10_000


class _Silent(FolderBlobs):
    """Answers nothing until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def put(self, path, content):
        """Keep the writer waiting."""
        self.asked.set()
        await self.answers.wait()
        await super().put(path, content)


@tool(effects="external")
async def report(context: ToolContext) -> str:
    """Save bytes that lie outside of the database."""
    await context.artifacts.save("report", LARGE)
    return "saved"


@pytest.mark.parametrize("auto_save", [True, False])
async def test_a_turn_is_cancelled_while_its_bucket_is_silent(tmp_path: Path, auto_save):
    """The upload is given up, and holds nothing that the next save needs."""
    blobs = _Silent(tmp_path / "blobs")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    model = ScriptedProvider([tool_call("report"), tool_call("report"), text("ok")])
    async with open_stores(url, blobs=blobs) as stores:
        agent = Agent("ada", llm_provider=model, tools=[report], stores=stores, auto_save=auto_save)
        async with agent:
            turn = agent.execute_turn("a")
            await blobs.asked.wait()
            turn.cancel()
            assert (await turn).outcome == "cancelled"
            blobs.answers.set()
            assert (await agent.execute_turn("b")).outcome == "completed"
        if auto_save:
            assert await stores.artifacts.load("ada", "report") == LARGE
