"""Stream turns from FastAPI, each with the credentials of its request; a client may disconnect."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from kept_agents import KeptAgents

from looopy import AuthContext, ToolContext, event_to_json, open_stores
from looopy.errors import AgentBusy, ValueRefused
from looopy.testing import ScriptedProvider, text, tool_call


async def whoami(context: ToolContext) -> str:
    """Look up the user; the token belongs to this turn, and looopy does not store it."""
    return f"a token of {len(context.credentials['token'])} characters"


model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
    lambda r: tool_call("whoami") if r.messages[-1].role == "user" else text(r.messages[-1].text),
    chunk_chars=4, delay_s=0.02,
)
URL = os.environ.get("DATABASE_URL", "sqlite:///contexts.db")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the stores; at the end, let the running turns end."""
    async with open_stores(URL) as db, KeptAgents(db, llm_provider=model, tools=[whoami]) as kept:
        app.state.kept = kept
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/contexts/{context_id}/turns")
async def say(
    context_id: str, said: Annotated[str, Body()], authorization: Annotated[str, Header()]
) -> StreamingResponse:
    """Begin a turn; if the client disconnects, the turn continues and stores its answer."""
    auth = AuthContext("ada", credentials={"token": authorization})
    try:
        turn = (await app.state.kept.get(context_id)).execute_turn(said, auth)
        await turn.accepted()  # the message is stored
    except (AgentBusy, ValueRefused) as error:
        raise HTTPException(409 if isinstance(error, AgentBusy) else 422, str(error)) from error
    lines = (f"data: {json.dumps(event_to_json(event))}\n\n" async for event in turn)
    return StreamingResponse(lines, media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]))
