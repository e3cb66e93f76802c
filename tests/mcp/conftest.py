"""What the tests of MCP servers share: servers, notes that they leave, and an agent."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest
from tests.agent.conftest import (
    make_agent,
    memory_stores,
    sqlite_url,
)
from tests.agent.kit import assert_whole
from tests.mcp.servers import make_workshop, over_http

from looopy import LoopConfig
from looopy.testing import ScriptedProvider, text
from looopy.tools import MCPTools

__all__ = ["make_agent", "memory_stores", "sqlite_url"]


class Notes:
    """A file in which a server leaves word of what happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {"WORKSHOP_NOTES": str(path)}
        path.touch()

    @property
    def lines(self) -> list[str]:
        """What is in it."""
        return self.path.read_text().splitlines()

    async def come_to(self, many: int) -> list[str]:
        """What is in it, once there are so *many* lines."""
        while len(self.lines) < many:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0)
        return self.lines


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Notes of the servers of this test, in this process or, given `notes.env`, in another."""
    kept = Notes(tmp_path / "notes.txt")
    monkeypatch.setenv("WORKSHOP_NOTES", str(kept.path))
    return kept


@pytest.fixture(scope="session")
def address():
    """A workshop over HTTP."""
    with over_http(make_workshop().streamable_http_app()) as url:
        yield f"{url}/mcp"


@pytest.fixture
def workshop(address):
    """The tools of a workshop that runs already."""
    return functools.partial(MCPTools, url=address, name="workshop")


@pytest.fixture(params=["auto", "legacy"])
def protocol(request):
    """Both generations of the protocol."""
    return request.param


class Desk:
    """An agent with the tools of one server."""

    def __init__(self, make_agent, stores):
        self._make_agent, self._stores = make_agent, stores

    async def ask(self, source, *calls, config=None, auth=None):
        """Run a turn with these calls, one an iteration; its results and events."""
        self.agent = await self._make_agent(
            ScriptedProvider([*calls, text("ok")]),
            tools=source if isinstance(source, list) else [source],
            stores=self._stores,
            loop_config=config or LoopConfig(max_tool_failures=50),
        )
        events = [event async for event in self.agent.execute_turn("go", auth)]
        assert events[-1].outcome == "completed", events[-1]
        await assert_whole(self._stores)
        return [e.result for e in events if e.type == "tool_execution_end"], events


@pytest.fixture
def desk(make_agent, memory_stores):
    """See `Desk`."""
    return Desk(make_agent, memory_stores)
