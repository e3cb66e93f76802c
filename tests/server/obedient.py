"""An application for the protocols of this folder: its model does as the last message says."""

import asyncio
import os
import subprocess
from pathlib import Path

from looopy import Agent, ToolContext, ToolResult, tool
from looopy.errors import RateLimited
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import request_input
from looopy.types.message import ToolResultMessage


@tool(effects="none")
async def read_file(path: str, line: int = 1) -> str:
    """Read a file, and write to standard output in each way."""
    print("printed")  # noqa: T201 - that is what is tested
    subprocess.run(["echo", "of a child"], check=True)
    os.write(1, b"raw\n")
    return f"{path}:{line}"


@tool
async def write_file(path: str, content: str) -> ToolResult:
    """Write a file."""
    diff = {"path": path, "old_text": "old", "new_text": content}
    shown = {"diffs": [diff, "no diff"], "locations": [{"path": path, "line": 3}], "kind": "move"}
    return ToolResult("written", details={"acp": shown})


@tool(effects="idempotent")
async def wait(context: ToolContext) -> str:
    """Wait for a file."""
    folder = Path(os.environ["LOOOPY_TEST_FOLDER"])
    (folder / "process").write_text(str(os.getpid()), encoding="utf-8")
    context.report(0.5)
    while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    return "waited"


@tool(needs_approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def obeys(request):
    """A model that does as the last message says."""
    last = request.messages[-1]
    if isinstance(last, ToolResultMessage):
        return text(f"Result: {last.text.splitlines()[0]}")
    calls = {
        "read": tool_call("read_file", path="src/a.py", line=7),
        "write": tool_call("write_file", path="/w/a.txt", content="new"),
        "wait": (text("I wait."), tool_call("wait")),
        "pay": tool_call("pay", cents=500),
        "choose": tool_call(
            "request_input", prompt="Which?", input_type="selection", options=["left", "right"]
        ),
    }
    if last.text in calls:
        return calls[last.text]
    if last.text == "busy":
        return failure(RateLimited("slow", retry_after_s=0.001))
    if last.text == "fail":
        raise RuntimeError("no model today")
    return text(f"You said: {last.text}")


def build(context_id, stores):
    """Make the agent of a context."""
    return Agent(
        context_id,
        llm_provider=ScriptedProvider(obeys, chunk_chars=5),
        tools=[read_file, write_file, wait, pay, request_input],
        stores=stores,
    )
