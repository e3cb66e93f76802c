"""Short ways to write turns into stores, for the contracts and the state machines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from looopy.stores.records import Claim, Claimed, Commit, Committed, ContextState
from looopy.stores.stores import Stores
from looopy.types.event import (
    AgentEvent,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.state import outcome_of

CONTEXT = "ada"
LONG_S = 3600.0
WHEN = datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC)


def user(text: str) -> UserMessage:
    """A user's message at a fixed time."""
    return UserMessage(text, timestamp=1_795_264_215_123)


def answer(text: str = "", *calls: ToolCall) -> AssistantMessage:
    """A model's answer: text, tool calls, and what it used."""
    blocks: list[TextContent | ToolCall] = [TextContent(text)] if text else []
    return AssistantMessage(
        [*blocks, *calls],
        api="scripted",
        provider="scripted",
        model="scripted-1",
        usage=Usage(input=7, output=3, total_tokens=10),
        stop_reason=StopReason.TOOL_USE if calls else StopReason.STOP,
        timestamp=1_795_264_215_456,
    )


def result(call: ToolCall, text: str) -> ToolResultMessage:
    """The result of *call*."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text),),
        timestamp=1_795_264_215_789,
    )


def opening(
    text: str | None = "hello", *, context_id: str = CONTEXT, continues: int | None = None
) -> list[AgentEvent]:
    """The first events of a turn; without *text* it has no user message."""
    if text is None:
        return [TurnStart(context_id=context_id, timestamp=WHEN, continues=continues)]
    message = user(text)
    start = TurnStart(
        context_id=context_id, timestamp=WHEN, user_message=message, continues=continues
    )
    return [start, MessageEnd(context_id=context_id, timestamp=WHEN, message=message)]


def a_claim(
    expected_epoch: int = 0,
    *,
    context_id: str = CONTEXT,
    text: str | None = "hello",
    holder: str = "holder-1",
    ttl_s: float = LONG_S,
    **others: Any,
) -> Claim:
    """A claim that begins a turn with *text*."""
    events = () if others.get("recover") else opening(text, context_id=context_id)
    given: dict[str, Any] = {"events": events, **others}
    return Claim(
        context_id=context_id, holder=holder, ttl_s=ttl_s, expected_epoch=expected_epoch, **given
    )


async def begin(stores: Stores, expected_epoch: int = 0, **others: Any) -> Claimed:
    """Claim a context and begin a turn; see `a_claim`."""
    return await stores.state.claim(a_claim(expected_epoch, **others))


def said(message: AssistantMessage, *, context_id: str = CONTEXT, iteration: int = 1) -> MessageEnd:
    """The `message_end` of a model's answer."""
    return MessageEnd(
        context_id=context_id,
        timestamp=WHEN,
        iteration=iteration,
        message=message,
        started=WHEN,
        first_delta_s=0.25,
        attempts=2,
        usage=message.usage,
    )


def starts(call: ToolCall, *, context_id: str = CONTEXT, iteration: int = 1) -> ToolExecutionStart:
    """The `tool_execution_start` of *call*."""
    return ToolExecutionStart(
        context_id=context_id,
        timestamp=WHEN,
        iteration=iteration,
        tool_call_id=call.id,
        tool_name=call.name,
        args=call.arguments,
    )


def finishes(
    call: ToolCall, text: str, *, context_id: str = CONTEXT, iteration: int = 1
) -> list[AgentEvent]:
    """The events after *call* has its result: its `tool_execution_end` and the message."""
    message = result(call, text)
    ended = ToolExecutionEnd(
        context_id=context_id,
        timestamp=WHEN,
        iteration=iteration,
        tool_call_id=call.id,
        tool_name=call.name,
        result=message,
        started=WHEN,
        duration_s=0.125,
    )
    stored = MessageEnd(context_id=context_id, timestamp=WHEN, iteration=iteration, message=message)
    return [ended, stored]


def ends(
    stop_reason: StopReason = StopReason.STOP,
    *,
    context_id: str = CONTEXT,
    usage: Usage | None = None,
) -> TurnEnd:
    """The `turn_end` for *stop_reason*."""
    return TurnEnd(
        context_id=context_id,
        timestamp=WHEN,
        outcome=outcome_of(stop_reason),
        stop_reason=stop_reason,
        usage=usage or Usage(),
    )


async def commit(
    stores: Stores,
    claimed: Claimed,
    events: Sequence[AgentEvent] = (),
    *,
    context_id: str = CONTEXT,
    state: ContextState | None = None,
    release: bool = False,
    **others: Any,
) -> Committed:
    """Commit *events* under the epoch and the turn of *claimed*."""
    return await stores.commit(
        Commit(
            context_id=context_id,
            epoch=claimed.epoch,
            turn=claimed.turn,
            events=events,
            state=state,
            release=release,
            **{"ttl_s": LONG_S, **others},
        )
    )


async def a_turn(
    stores: Stores, expected_epoch: int = 0, *, text: str = "hello", reply: str = "hi"
) -> Claimed:
    """A whole turn in two commits: one user message, one answer."""
    claimed = await begin(stores, expected_epoch, text=text)
    await commit(stores, claimed, [said(answer(reply)), ends()], release=True)
    return claimed
