"""The last events of a turn whose own loop could not make them, and what a turn came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looopy.errors import LooopyError
from looopy.llm.render import OUTCOME_UNKNOWN, synthetic_result
from looopy.loop import unanswered
from looopy.stores.gate import repair
from looopy.types.event import AgentEvent, MessageEnd, ToolExecutionEnd, TurnEnd, TurnError
from looopy.types.message import AssistantMessage, Message, StopReason, Usage, now_ms
from looopy.types.state import Outcome


def failed_end(
    context_id: str,
    turn: int,
    *,
    before: Sequence[Message],
    added: Sequence[Message],
    error: LooopyError,
) -> list[AgentEvent]:
    """
    A result for each call that is open, why the turn failed, and its end.

    Args:
        before: What was stored before the turn, oldest first.
        added: What the turn has stored.
    """
    common: dict[str, Any] = {"context_id": context_id, "turn": turn}
    events: list[AgentEvent] = []
    results: list[Message] = []
    for call in unanswered([*before, *added]):
        result = synthetic_result(call, OUTCOME_UNKNOWN, timestamp=now_ms())
        results.append(result)
        events += [
            ToolExecutionEnd(
                **common,
                tool_call_id=call.id,
                tool_name=call.name,
                result=result,
                is_error=True,
            ),
            MessageEnd(**common, message=result),
        ]
    code = StopReason.ERROR
    return [
        *events,
        TurnError(**common, code=code.value, text=repair(error.message), error=error),
        TurnEnd(
            **common,
            outcome=Outcome.FAILED,
            stop_reason=code,
            messages=(*added, *results),
            usage=usage_of(added),
        ),
    ]


def usage_of(messages: Sequence[Message]) -> Usage:
    """What the model calls behind *messages* used."""
    usage = Usage()
    for message in messages:
        if isinstance(message, AssistantMessage):
            usage += message.usage
    return usage
