"""A client of the official SDK that notes what it sees."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import acp
from acp import schema
from acp._transport import memory_transport_pair
from acp.agent.connection import AgentSideConnection
from acp.client.connection import ClientSideConnection
from tests.server.obedient import build

from looopy.server import AgentHost
from looopy.server.protocols.acp.agent import ProtocolAgent

PATIENCE_S = 60


class Editor:
    """
    A client.

    Attributes:
        answers: What the person says to the next questions: "allow", "reject", an outcome, or
            `None`: nothing, the question stays open.
    """

    def __init__(self, *answers):
        self.answers, self.asked, self.updates = list(answers), [], []
        self.news = asyncio.Event()

    async def create_elicitation(self, message, mode, **_):
        self.asked.append((message, mode))
        self.news.set()
        return self.answers.pop(0)

    async def session_update(self, session_id, update, **_):
        self.updates.append(update)
        self.news.set()

    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked.append((tool_call, options))
        self.news.set()
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, str):
            answer = chosen(answer)
        return schema.RequestPermissionResponse(outcome=answer)

    def on_connect(self, conn):
        pass

    async def until(self, condition):
        """Wait for an update, or a question, after which *condition* holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def transcript(self):
        """What the person sees in the end: texts by message, and calls with their last state."""
        seen = {}
        for update in self.updates:
            kind = update.session_update
            if kind in ("tool_call", "tool_call_update"):
                state = seen.setdefault(update.tool_call_id, {})
                fields = update.model_dump(exclude_none=True, by_alias=True)
                state.update({k: v for k, v in fields.items() if k != "sessionUpdate"})
            elif kind.endswith("_chunk") and not update.field_meta:
                key = (kind, update.message_id)
                seen[key] = seen.get(key, "") + update.content.text
        return seen

    def text(self):
        """All text of the agent, notices too."""
        chunks = (u for u in self.updates if u.session_update == "agent_message_chunk")
        return "".join(chunk.content.text for chunk in chunks)


def chosen(option, **more):
    """The outcome of a question; *more* goes into `_meta`."""
    meta = {"looopy": more} if more else None
    return schema.AllowedOutcome(outcome="selected", option_id=option, field_meta=meta)


def said(words):
    """A prompt."""
    return [acp.text_block(words)]


@contextlib.asynccontextmanager
async def connected(stores, editor, *, actor=None, factory=build, forms=False, **options):
    """A client of a server in this process; with *forms*, it shows them."""
    here, there = memory_transport_pair()
    async with AgentHost(factory, stores) as host:
        agent = ProtocolAgent(host, name="test", auth_context=actor, **options)
        server = AgentSideConnection(agent, there, use_unstable_protocol=True)
        client = ClientSideConnection(editor, here, use_unstable_protocol=True)
        shown = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
        can = schema.ClientCapabilities(elicitation=shown if forms else None)
        await client.initialize(1, can)
        try:
            yield client
        finally:
            await client.close()
            await agent.close()
            await server.close()


@contextlib.asynccontextmanager
async def started(folder, editor, *arguments):
    """A client of `looopy acp` as a process."""
    command = [*arguments, "--db", f"sqlite:///{folder}/acp.db"]
    environment = {**os.environ, "LOOOPY_TEST_FOLDER": str(folder)}
    async with acp.spawn_agent_process(
        editor,
        *command,
        env=environment,
        cwd=str(Path(__file__).parent.parent),
        use_unstable_protocol=True,
        transport_kwargs={"stderr": asyncio.subprocess.DEVNULL},
    ) as (client, process):
        await client.initialize(1)
        yield client, process


def line(**message):
    """A line of the wire."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
