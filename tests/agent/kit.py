"""What the tests of the agent share: scripts, spies, and what must hold of every context."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.property.strict import check_anthropic, check_openai

from looopy import tool
from looopy.llm.render import render
from looopy.stores.bundle import Stores
from looopy.types.event import AgentEvent, MessageEnd, TurnEnd, TurnStart
from looopy.types.message import AssistantMessage, Message, ToolResultMessage


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effects="none")
def look() -> str:
    """Look, and change nothing."""
    return "seen"


@tool
def boom() -> str:
    """Fail."""
    raise ValueError("it broke")


class Gate:
    """A tool that waits until it is let go, and says when it was entered."""

    def __init__(self, **options: Any) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

        @tool(name="gate", **options)
        async def gate() -> str:
            """Wait to be let through."""
            self.runs += 1
            self.entered.set()
            await self.open.wait()
            return "through"

        self.tool = gate


class Sluggish:
    """A source of tools that stops answering when told to."""

    def __init__(self, *tools: Any) -> None:
        self.tools = tools
        self.hangs = False
        self.asked = asyncio.Event()

    async def list_tools(self) -> Sequence[Any]:
        """The tools, or nothing ever."""
        if self.hangs:
            self.asked.set()
            await asyncio.Event().wait()
        return self.tools


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until `await condition()` is true, where no event tells so."""
    while not await condition():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.001)


async def collect(stream: Any) -> list[AgentEvent]:
    """Every event of a stream."""
    return [event async for event in stream]


def types(events: Sequence[AgentEvent], *, deltas: bool = False) -> list[str]:
    """The types of *events*, without deltas unless asked for."""
    return [e.type for e in events if deltas or e.type != "message_update"]


def assert_valid(messages: Sequence[Message]) -> None:
    """The history, as it would be sent, is one that providers take; each call has one result."""
    assert check_openai(render(messages, provider="openai", model="m")) == []
    assert check_anthropic(render(messages, provider="anthropic", model="m")) == []


def assert_answered(messages: Sequence[Message]) -> None:
    """In the log itself each announced call has exactly one result, and no result is an orphan."""
    owed: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, AssistantMessage):
            assert not +owed, f"no result for {owed}"
            owed = Counter(call.id for call in message.tool_calls)
        elif isinstance(message, ToolResultMessage):
            owed[message.tool_call_id] -= 1
            assert owed[message.tool_call_id] >= 0, f"a result too many: {message.tool_call_id}"
        else:
            assert not +owed, f"no result for {owed}"
    assert not +owed, f"no result for {owed}"


async def assert_whole(stores: Stores, context_id: str = "ada") -> None:
    """What holds of every context between turns, however the turns went."""
    record = await stores.state.load(context_id)
    assert record is not None
    assert record.open_turn is None
    assert record.holder is None
    events = await stores.journal.events(context_id)
    assert [e.seq for e in events] == list(range(1, record.last_seq + 1))
    starts = [e.turn for e in events if isinstance(e, TurnStart)]
    ends = [e.turn for e in events if isinstance(e, TurnEnd)]
    assert starts == ends == list(range(1, record.turn_count + 1))
    stored = [e for e in events if isinstance(e, MessageEnd)]
    assert [e.position for e in stored] == list(range(1, record.last_position + 1))
    messages = await stores.messages.list(context_id)
    assert [e.message for e in stored] == messages
    by_turn = [m for e in events if isinstance(e, TurnEnd) for m in e.messages]
    assert by_turn == messages
    assert_answered(messages)
    assert_valid(messages)
