"""
Use the tools of an MCP server, and pass a question of the server on to the user.

This program starts the server below as a process of its own. It asks for a name before it books.
"""

import asyncio
import os
import sys
from typing import Annotated

from looopy import Agent
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import MCPTools


async def main() -> None:
    """Look, book, and answer the question."""
    hotel = MCPTools(command=sys.executable, args=[__file__, "serve"], name="hotel")
    scripted = (tool_call("free_rooms"), tool_call("book", room=7), text("Room 7 is yours."))
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(scripted)
    async with Agent("trip", llm_provider=model, tools=[hotel]) as agent:
        result = await agent.execute_turn("Book me a free room.")
        print(result.iterations[0].tool_results[0].text)
        print(result.outcome, "-", *(request.prompt for request in result.pending))
        answers = {request.request_id: {"name": "Ada"} for request in result.pending}
        result = await agent.execute_turn(None, inputs=answers)
        print(result.messages[0].text, "-", result.text)


def serve() -> None:
    """Run the server; it does not use looopy."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.resolve import Elicit, Resolve
    from mcp.types import ToolAnnotations
    from pydantic import BaseModel

    class Guest(BaseModel):
        name: str

    def ask_guest() -> Elicit[Guest]:
        return Elicit("In whose name?", Guest)

    server = MCPServer("hotel")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def free_rooms() -> str:
        """Find rooms that are free."""
        return "rooms 3 and 7"

    @server.tool()
    def book(room: int, guest: Annotated[Guest, Resolve(ask_guest)]) -> str:
        """Book a room."""
        return f"room {room} is booked for {guest.name}"

    server.run()


serve() if len(sys.argv) > 1 else asyncio.run(main())
