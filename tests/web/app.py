"""
The server of the browser's tests: `python -m tests.web.app PORT DATABASE FOLDER`.

Its model plays by the user's words, so that a new process continues what an old one began. `FOLDER`
has the bundles of the pages. While it has a file `hold`, a story stops in its middle.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.llm import LLMRequest, StreamEvent, StreamOptions
from looopy.server import AgentHost, ag_ui_api, ai_sdk_api, create_app
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.message import ToolResultMessage, UserMessage

STORY = "Once upon a time a turn ran, and its process died. " * 12 + "The end."


@tool(effects="none")
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


def reply(request: Any) -> Any:
    """What the model says: to a result its text, to `add`, `pay` and `story` a call."""
    last = request.messages[-1]
    said = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
    if isinstance(last, ToolResultMessage):
        return text(STORY) if "story" in said else text(f"The tool said: {last.text}.")
    if "pay" in said:
        return (text("I will pay."), tool_call("pay", eur=5))
    if "add" in said or "story" in said:
        return (text("Let me add."), tool_call("add", a=2, b=3))
    return text(f"You said: {said}")


class Model(ScriptedProvider):
    """Plays `reply`, and stops in the middle of a story while there is a file."""

    def __init__(self, hold: Path) -> None:
        super().__init__(reply, chunk_chars=16)
        self._hold = hold

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Play a reply."""
        said = 0
        async for event in super().stream(request, options):
            yield event
            said += len(event.delta)
            while said > len(STORY) // 2 and self._hold.exists():  # noqa: ASYNC110 - it is a file
                await asyncio.sleep(0.02)


def pages(folder: Path) -> Sequence[BaseRoute]:
    """The pages `/page/NAME`, which is one script, and the scripts."""

    async def page(request: Request) -> Response:
        script = f'<script type="module" src="/script/{request.path_params["name"]}"></script>'
        return HTMLResponse(f"<!doctype html><title>chat</title><main></main>{script}")

    async def script(request: Request) -> Response:
        name = Path(request.path_params["name"]).name
        return FileResponse(folder / f"{name}.mjs", media_type="text/javascript")

    return [Route("/page/{name}", page), Route("/script/{name}", script)]


async def main(port: int, url: str, folder: Path) -> None:
    """Serve until the process is killed."""

    def build(context_id: str, stores: Stores) -> Agent:
        model = Model(folder / "hold")
        return Agent(context_id, llm_provider=model, tools=[add, pay], stores=stores)

    async with open_stores(url) as stores, AgentHost(build, stores) as host:
        faces = [ag_ui_api, ai_sdk_api, lambda _app_context: pages(folder)]
        app = create_app(host, authenticate=lambda _request: AuthContext("ada"), protocols=faces)
        config = uvicorn.Config(app, port=port, log_level="warning")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
