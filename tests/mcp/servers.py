"""
An MCP server to talk to, a workshop, made with the official SDK.

Run as a script, over standard input and output (`servers.py workshop`), or over HTTP on a port
(`servers.py 8000`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import (
    ElicitRequestURLParams,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel


def note(line: str) -> None:
    """Leave word of what happened here, for who has started this process."""
    if notes := os.environ.get("WORKSHOP_NOTES"):
        with Path(notes).open("a") as file:
            file.write(line + "\n")


class City(BaseModel):
    """A form to fill in."""

    city: str


async def ask_city(ctx: Context) -> Elicit[City]:
    """Ask for a city."""
    note("asked")
    return Elicit("Which city?", City)


async def ask_again(city: Annotated[City, Resolve(ask_city)], ctx: Context) -> Elicit[City]:
    """Ask for another one."""
    return Elicit(f"And after {city.city}?", City)


def make_workshop() -> MCPServer:
    """A server with a tool for each thing that may happen."""
    server = MCPServer("workshop")
    _add_plain(server)
    _add_asking(server)
    return server


def _add_plain(server: MCPServer) -> None:
    state: dict[str, Any] = {"calls": 0}

    @server.tool(annotations={"readOnlyHint": True})
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations={"idempotentHint": True})
    def count() -> str:
        """Count the calls of this process."""
        state["calls"] += 1
        return f"call {state['calls']} of {os.getpid()}"

    @server.tool()
    async def slow(ctx: Context) -> str:
        """Say that it began, then wait for ever."""
        note("began")
        await ctx.report_progress(1, 4)
        try:
            await anyio.sleep_forever()
        finally:
            note("stopped")
        return "never"

    @server.tool()
    async def steps(ctx: Context) -> str:
        """Tell its progress."""
        await ctx.report_progress(1, 4)
        return "done"

    @server.tool()
    async def flood(ctx: Context) -> str:
        """Tell far too much progress."""
        for i in range(1000):
            await ctx.report_progress(i, 1000)
        return "done"

    @server.tool()
    def boom() -> str:
        """Fail."""
        raise ValueError("it broke")

    @server.tool()
    def whoami(ctx: Context) -> str:
        """Say with which credentials it was called."""
        request = ctx.request_context.request
        return request.headers.get("authorization", "nobody") if request else "no request"

    @server.tool(structured_output=False)
    def show() -> list[Any]:
        """Return something of everything."""
        return [
            TextContent(type="text", text="words"),
            Image(data=b"\x89PNG", format="png").to_image_content(),
            ResourceLink(type="resource_link", name="notes", uri="file:///notes", size=3),
            EmbeddedResource(
                type="resource", resource=TextResourceContents(uri="file:///a", text="inside")
            ),
        ]

    @server.tool()
    def big() -> str:
        """Return a lot."""
        return "x" * 3_000_000


def _add_asking(server: MCPServer) -> None:
    @server.tool()
    async def travel(city: Annotated[City, Resolve(ask_city)]) -> str:
        """Go where the user says."""
        note(f"travelled to {city.city}")
        if os.environ.get("WORKSHOP_KILLS"):
            os.kill(os.getppid(), signal.SIGKILL)
            await anyio.sleep_forever()
        return f"went to {city.city}"

    @server.tool()
    async def tour(
        first: Annotated[City, Resolve(ask_city)], then: Annotated[City, Resolve(ask_again)]
    ) -> str:
        """Go to two cities."""
        note(f"toured {first.city} and {then.city}")
        return f"went to {first.city} and {then.city}"

    @server.tool()
    def enter() -> str:
        """Be let in once the user has been somewhere."""
        note("knocked")
        if not os.environ.get("WORKSHOP_OPEN"):
            visit = ElicitRequestURLParams(
                message="Please sign in", url="https://door.invalid", elicitation_id="1"
            )
            raise UrlElicitationRequiredError([visit])
        return "inside"

    @server.tool()
    async def call_the_user(ctx: Context, question: str = "Which city?") -> str:
        """Ask in the middle, as servers of 2025 do."""
        note("rang")
        answer = await ctx.elicit(question, City)
        data = getattr(answer, "data", None)
        note(f"heard {answer.action}")
        return f"{answer.action}: {data.city if data else '-'}"

    @server.tool()
    async def learn(ctx: Context) -> str:
        """Offer one tool more."""

        def learned() -> str:
            """Be new."""
            return "new"

        server.add_tool(learned)
        await ctx.session.send_tool_list_changed()  # of 2025
        await ctx.notify_tools_changed()  # of 2026
        return "learned"


# --- over HTTP ----------------------------------------------------------------------------------


@contextmanager
def over_http(app: Any, listening: socket.socket | None = None):
    """An ASGI application in a thread of its own; the address."""
    listening = listening or socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


if __name__ == "__main__":
    if sys.argv[1] == "workshop":
        asyncio.run(make_workshop().run_stdio_async())
    else:
        uvicorn.run(make_workshop().streamable_http_app(), port=int(sys.argv[1]), log_level="error")
