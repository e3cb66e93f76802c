"""An agent with pi's names is killed in the middle of a run; another process goes on with it."""

import asyncio
import os
import signal

import pytest
from tests.compat.kit import FAST, heard, names

from looopy.compat import pi
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, wait

EMPTY = {"type": "object", "properties": {}}


def die_in_a_tool(url, effects):
    """Run an agent whose tool queues a message and kills its process."""

    @pi.tool("die", "Die", EMPTY, effects=effects)
    async def die(tool_call_id, params, signal_, on_update):
        await agent.follow_up("and then?")
        os.kill(os.getpid(), signal.SIGKILL)

    model = ScriptedProvider([tool_call("die")])
    agent = pi.Agent(model, tools=[die], stores=url, context_id="ada")
    asyncio.run(agent.prompt("go"))


@pytest.mark.parametrize(
    ("effects", "result"), [("idempotent", "ran again"), ("external", "is unknown")]
)
def test_a_killed_run_continues_in_another_process(tmp_path, sqlite_file, effects, result):
    """What was said and queued is there; a tool that may run again does, any other does not."""
    url = f"sqlite:///{sqlite_file}"
    died = wait(fork(lambda: die_in_a_tool(url, effects), tmp_path / "log"))
    assert died == -signal.SIGKILL, (tmp_path / "log").read_text()

    @pi.tool("die", "Live", EMPTY, effects=effects)
    async def live(tool_call_id, params, signal_, on_update):
        return pi.AgentToolResult([pi.TextContent("ran again")])

    async def go_on():
        model = ScriptedProvider([text("a"), text("b")])
        agent = pi.Agent(model, tools=[live], stores=url, context_id="ada", loop_config=FAST)
        async with agent:
            events = heard(agent)
            assert [m.role for m in agent.state.messages][:2] == ["user", "assistant"]
            await agent.continue_()
            said = [m.text for m in agent.state.messages]
            assert (said[0], said[3:]) == ("go", ["a", "and then?", "b"])
            assert result in said[2]
            assert names(events)[0] == "agent_start"
            assert names(events)[-1] == "agent_end"

    asyncio.run(go_on())
