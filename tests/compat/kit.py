"""What the tests of pi's face share."""

import asyncio

from looopy import LoopConfig, RetryPolicy
from looopy.compat import pi

FAST = LoopConfig(retry=RetryPolicy(attempts=0))
NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


@pi.tool(name="greet", description="Greet somebody", parameters=NAME)
async def greet(tool_call_id, params, signal, on_update):
    """Greet."""
    return pi.AgentToolResult([pi.TextContent(f"Hello {params['name']}!")], {"to": params["name"]})


@pi.tool(name="boom", description="Fail", parameters={"type": "object", "properties": {}})
async def boom(tool_call_id, params, signal, on_update):
    """Fail."""
    raise ValueError("it broke")


class Gate(pi.AgentTool):
    """A tool that waits until it is let go, and says when it was entered."""

    description = "Wait"

    def __init__(self, name="gate", **options):
        super().__init__(name, **options)
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.signal = None

    async def execute(self, tool_call_id, params, signal=None, on_update=None):
        self.signal = signal
        self.entered.set()
        await self.open.wait()
        return pi.AgentToolResult([pi.TextContent(f"{self.name} through")])


class Silence:
    """A model that begins, and says no more until it is let go."""

    name = model = "silence"

    def __init__(self, said=""):
        self.said, self.entered = said, asyncio.Event()

    async def stream(self, request, options):
        from looopy.llm.accumulate import Accumulator

        answer = Accumulator(api="test", provider="silence", model="silence")
        for event in (*answer.start(), *answer.text_delta(self.said)):
            yield event
        self.entered.set()
        await asyncio.Event().wait()


def config(model, **options):
    """Options of a run that tries nothing again."""
    return pi.AgentLoopConfig(model=model, **{"loop": FAST, **options})


async def collect(events):
    """All of an async iterator."""
    return [event async for event in events]


def names(events):
    """Their types, a message's with its role, without deltas."""
    return [
        f"{event.type} {event.message.role}"
        if event.type in ("message_start", "message_end")
        else event.type
        for event in events
        if event.type != "message_update"
    ]


def said(messages):
    """Role and text of each."""
    return [(message.role, message.text) for message in messages]


def heard(agent):
    """The list to which every event of *agent* comes."""
    events = []
    agent.subscribe(events.append)
    return events
