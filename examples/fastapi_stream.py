"""Stream turns from FastAPI, each with the credentials of its request; a client may disconnect."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse

from looopy import Agent, AuthContext, ToolContext, event_to_json, open_stores
from looopy.errors import AgentBusy, ValueRefused
from looopy.server import AgentHost
from looopy.testing import ScriptedProvider, text, tool_call


async def whoami(context: ToolContext) -> str:
    """Look up the user; the token belongs to this turn, and looopy does not store it."""
    return f"a token of {len(context.credentials['token'])} characters"


model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
    lambda r: tool_call("whoami") if r.messages[-1].role == "user" else text(r.messages[-1].text)
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the stores; at the end, let running turns end."""
    agent = partial(Agent, llm_provider=model, tools=[whoami])
    url = os.environ.get("DATABASE_URL", "sqlite:///contexts.db")
    async with open_stores(url) as db, AgentHost(lambda c, s: agent(c, stores=s), db) as host:
        app.state.host = host
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/contexts/{context_id}/turns")
async def say(
    context_id: str, said: Annotated[str, Body()], authorization: Annotated[str, Header()]
) -> StreamingResponse:
    """Begin a turn; if the client disconnects, the turn continues and stores its answer."""
    auth = AuthContext("ada", credentials={"token": authorization})
    try:
        async with app.state.host.agent(context_id, auth) as agent:
            await (turn := agent.execute_turn(said, auth)).accepted()  # the message is stored
    except (AgentBusy, ValueRefused) as error:
        raise HTTPException(409 if isinstance(error, AgentBusy) else 422, str(error)) from error
    lines = (f"data: {json.dumps(event_to_json(event))}\n\n" async for event in turn)
    return StreamingResponse(lines, media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
