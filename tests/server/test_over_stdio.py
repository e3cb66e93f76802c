"""`looopy acp` and `looopy mcp` as programs start them, with the official clients."""

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import acp
import pytest
from tests.server.acp.kit import PATIENCE_S, Editor, line, said, started
from tests.server.obedient import build

from looopy import open_stores
from looopy.server import AgentHost
from looopy.server.protocols.acp.agent import serve as serve_acp
from looopy.server.protocols.mcp.serving import Offer
from looopy.server.protocols.mcp.serving import serve as serve_mcp
from mcp import Client, MCPError, StdioServerParameters

LOOOPY = (sys.executable, "-m", "looopy.cli")
APP = "obedient.py:build"


async def until(condition):
    """Wait until *condition* holds."""
    while not condition():  # noqa: ASYNC110 - a file and a flag have no events
        await asyncio.sleep(0.005)


async def test_a_conversation_survives_its_processes(folder, caplog):
    """
    Killed in a tool of an editor, and in one of an MCP client, and continued by the other; only the
    protocol is on standard output, whatever the application writes; SIGTERM ends it in order.
    """
    caplog.set_level(logging.WARNING)
    live = Editor()
    async with started(folder, live, *LOOOPY, "acp", APP) as (client, process):
        name = (await client.new_session(cwd="/w", mcp_servers=[])).session_id
        await client.prompt(name, said("read"))  # writes to standard output
        running = asyncio.create_task(client.prompt(name, said("wait")))
        await live.until(lambda: "50%" in str(live.updates))
        process.kill()
        with pytest.raises((ConnectionError, acp.RequestError)):
            await running

    steps = asyncio.Queue()

    async def note(_progress, _total, message):
        await steps.put(message)

    arguments = [*LOOOPY[1:], "mcp", APP, "--db", f"sqlite:///{folder}/acp.db", "--name", "obey"]
    environment = {**os.environ, "LOOOPY_TEST_FOLDER": str(folder)}
    server = StdioServerParameters(
        command=LOOOPY[0], args=arguments, cwd=Path(__file__).parent, env=environment
    )
    (folder / "go").touch()
    async with Client(server, read_timeout_seconds=PATIENCE_S) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.description) == ("obey", "Make the agent of a context.")
        continued = await client.call_tool("obey", {"context_id": name})
        assert continued.structured_content["text"] == "Result: waited"
        await client.call_tool("obey", {"prompt": "read", "context_id": name})
        (folder / "go").unlink()
        waits = {"prompt": "wait", "context_id": name}
        running = asyncio.create_task(client.call_tool("obey", waits, progress_callback=note))
        while await steps.get() != "wait 50%":
            pass
        os.kill(int((folder / "process").read_text()), signal.SIGKILL)
        with pytest.raises(MCPError):
            await running

    (folder / "go").touch()
    editor = Editor(None)
    async with started(folder, editor, *LOOOPY, "acp", APP) as (client, process):
        [listed] = (await client.list_sessions(cwd="/w")).sessions
        assert listed.session_id == name
        loaded = await client.load_session(cwd="/w", session_id=name, mcp_servers=[])
        assert loaded.field_meta["looopy"]["interrupted_turn"] == 5
        assert "Turn 5 was interrupted. `/continue` continues it." in editor.text()
        seen = editor.transcript()
        spoken = [seen[key] for key in seen if key[0] == "user_message_chunk"]
        assert spoken == ["read", "wait", "read", "wait"]
        assert seen["1-call_1"] == live.transcript()["1-call_1"]
        assert seen["agent_message_chunk", "2.1"] == "I wait."

        ended = await client.prompt(name, said("/continue"))
        assert ended.stop_reason == "end_turn"
        assert editor.text().endswith("Result: waited")
        asked = asyncio.create_task(client.prompt(name, said("pay")))
        await editor.until(lambda: editor.asked)
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
        with suppress(ConnectionError, acp.RequestError):
            await asked
    assert caplog.text == ""  # each line was one of the protocol


OPENED = {
    "acp": [
        line(id=1, method="session/new", params={"cwd": "/w", "mcpServers": []}),
        {"sessionId": ..., "prompt": [{"type": "text", "text": "wait"}]},
    ],
    "mcp": [
        line(
            id=1,
            method="initialize",
            params={
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        ),
        {"name": "ask", "arguments": {"prompt": "wait", "context_id": "c"}},
    ],
}


@pytest.mark.parametrize("how", ["end of input", "cancelled"])
@pytest.mark.parametrize("kind", ["acp", "mcp"])
async def test_the_end_of_a_connection_cancels_no_turn(folder, monkeypatch, kind, how):
    """It may end in some seconds, and does; so another process need not continue it."""
    monkeypatch.setenv("LOOOPY_TEST_FOLDER", str(folder))
    theirs, to_us = os.pipe()
    from_us, ours = os.pipe()
    async with open_stores("memory:") as stores:
        host = AgentHost(build, stores)
        if kind == "acp":
            coming = serve_acp(host, theirs, ours, name="t")
        else:
            coming = serve_mcp({"ask": Offer(host, "")}, theirs, ours, name="t")
        serving = asyncio.create_task(coming)
        first, params = OPENED[kind]
        with os.fdopen(to_us, "wb", buffering=0) as out, os.fdopen(from_us, "rb") as back:
            out.write(first)
            name = "c"
            if kind == "acp":
                name = json.loads(await asyncio.to_thread(back.readline))["result"]["sessionId"]
                params = {**params, "sessionId": name}
            method = "session/prompt" if kind == "acp" else "tools/call"
            if kind == "mcp":
                out.write(line(method="notifications/initialized"))
            out.write(line(id=2, method=method, params=params))
            await until((folder / "process").exists)
            if how == "cancelled":
                serving.cancel()
            else:
                out.close()
            await until(lambda: host.closed)
            (folder / "go").touch()
            await asyncio.gather(serving, return_exceptions=True)
        [turn] = await stores.journal.turns(name)
        assert turn.outcome == "completed"
    os.close(theirs)
    os.close(ours)


@pytest.fixture
def folder(tmp_path):
    """A folder for the database, and for the tool that waits."""
    return tmp_path
