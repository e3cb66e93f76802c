"""
See how `on_resume` decides about a tool call whose process died while it ran.

For each policy, this program kills a process in the middle of a tool and continues in another one.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from looopy import Agent, tool
from looopy.testing import ScriptedProvider, text, tool_call

dies = len(sys.argv) > 1
folder = Path(sys.argv[1] if dies else tempfile.mkdtemp())


def work() -> str:
    """Kill this process, or finish."""
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ran to its end"


TOOLS = [  # may run twice; a person decides; must not run twice
    tool(work, name="rerun", effects="idempotent", on_resume="rerun"),
    tool(work, name="ask", effects="external", on_resume="ask"),
    tool(work, name="fail", effects="external", on_resume="fail"),
]


async def visit(name: str) -> None:
    """Call the tool *name*, or continue after a process died in it."""
    script = tool_call(name) if dies else lambda request: text(request.messages[-1].text)
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider([script])
    url = f"sqlite:///{folder / 'policies.db'}"
    async with Agent(name, llm_provider=model, tools=TOOLS, stores=url) as agent:
        if dies:
            await agent.execute_turn(f"Call the tool {name}.")
        yes = {request.request_id: True for request in agent.state.pending}
        result = await agent.execute_turn(None, inputs=yes)
        print(f"{name} ({len(yes)} to approve): {result.text}")


for policy in sys.argv[2:] or [one.name for one in TOOLS]:
    if not dies:
        subprocess.run([sys.executable, __file__, str(folder), policy], check=False)  # noqa: S603
    asyncio.run(visit(policy))
