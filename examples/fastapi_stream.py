"""
Stream turns from FastAPI, each with the credentials of its request; a client may disconnect.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI, Header
from fastapi.responses import StreamingResponse

from looopy import Agent, AuthContext, ToolContext, event_to_json, open_stores
from looopy.testing import ScriptedProvider, text, tool_call


async def whoami(context: ToolContext) -> str:
    """Look up the user; the token belongs to this turn, and looopy does not store it."""
    return f"a token of {len(context.credentials['token'])} characters"


model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(
    lambda r: tool_call("whoami") if r.messages[-1].role == "user" else text(r.messages[-1].text),
    chunk_chars=4,
    delay_s=0.02,
)
ending: set[asyncio.Task[None]] = set()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the stores; at the end, wait for the running turns."""
    async with open_stores("sqlite:///contexts.db") as app.state.stores:
        yield
        await asyncio.gather(*ending)


app = FastAPI(lifespan=lifespan)


@app.post("/contexts/{context_id}/turns")
async def say(
    context_id: str, said: Annotated[str, Body()], authorization: Annotated[str, Header()]
) -> StreamingResponse:
    """Begin a turn; if the client disconnects, the turn continues and stores its answer."""
    agent = Agent(context_id, llm_provider=model, tools=[whoami], stores=app.state.stores)
    await agent.start()
    turn = agent.execute_turn(said, AuthContext("ada", credentials={"token": authorization}))
    ending.add(asyncio.create_task(agent.shutdown()))  # this lets the turn end first
    await turn.accepted()  # a refusal, such as AgentBusy, is raised here
    lines = (f"data: {json.dumps(event_to_json(event))}\n\n" async for event in turn)
    return StreamingResponse(lines, media_type="text/event-stream")


uvicorn.run(app, port=int(sys.argv[1]))
