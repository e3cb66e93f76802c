"""An agent with pi's names is killed in the middle of a run; another process goes on with it."""

import signal
import subprocess
import sys

from tests.compat.kit import FAST, heard, names

from looopy.compat import pi
from looopy.testing import ScriptedProvider, text

CHILD = """
import asyncio, os, signal, sys
from looopy.compat import pi
from looopy.testing import ScriptedProvider, tool_call

@pi.tool("die", "Die", {"type": "object", "properties": {}}, effects=sys.argv[2])
async def die(tool_call_id, params, signal_, on_update):
    await agent.follow_up("and then?")
    os.kill(os.getpid(), signal.SIGKILL)

agent = pi.Agent(ScriptedProvider([tool_call("die")]), tools=[die], stores=sys.argv[1],
                 context_id="ada")
asyncio.run(agent.prompt("go"))
"""


async def test_a_killed_run_goes_on_in_another_process(tmp_path):
    """What was said and queued is there; a tool that may run again does, any other does not."""
    for effects, result in (("idempotent", "ran again"), ("external", "is unknown")):
        url = f"sqlite:///{tmp_path / effects}.db"
        died = subprocess.run([sys.executable, "-c", CHILD, url, effects], check=False)
        assert died.returncode == -signal.SIGKILL

        @pi.tool("die", "Live", {"type": "object", "properties": {}}, effects=effects)
        async def live(tool_call_id, params, signal_, on_update):
            return pi.AgentToolResult([pi.TextContent("ran again")])

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
