"""Mount looopy's HTTP API in a Starlette application that knows who is signed in."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from looopy import Agent, AuthContext, Stores, ToolContext, open_stores
from looopy.server import AgentHost, create_app
from looopy.testing import ScriptedProvider, text, tool_call

SESSIONS = {"key-of-ada": ("ada", "acme"), "key-of-bob": ("bob", "acme")}  # yours, from anywhere
model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
    lambda r: tool_call("whoami") if r.messages[-1].role == "user" else text(r.messages[-1].text)
)


async def whoami(context: ToolContext) -> str:
    """Look up the user, with the key of this request."""
    return f"signed in with a key of {len(context.credentials['key'])} characters"


async def authenticate(request: Request) -> AuthContext | None:
    """Tell who sends the request; its credentials live for the turn of this request alone."""
    key = request.headers.get("x-session", "")
    if key not in SESSIONS:
        return None
    actor, tenant = SESSIONS[key]
    return AuthContext(actor, tenant_id=tenant, credentials={"key": key})


async def home(request: Request) -> Response:
    """Answer another request of the application."""
    return JSONResponse({"agents": str(request.url_for("agents", path="/contexts"))})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the stores and mount the agents; at the end, let running turns end."""

    def build(context_id: str, stores: Stores) -> Agent:
        return Agent(context_id, llm_provider=model, tools=[whoami], stores=stores)

    url = os.environ.get("DATABASE_URL", "sqlite:///contexts.db")
    async with open_stores(url) as stores, AgentHost(build, stores) as host:
        app.mount("/agents", agents := create_app(host, authenticate=authenticate), "agents")
        async with agents.router.lifespan_context(agents):  # Starlette starts no mounted one
            yield


app = Starlette(routes=[Route("/", home)], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
