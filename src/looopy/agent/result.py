"""What each iteration of a turn came to, counted from the turn's events: live, or read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from looopy.types.event import AgentEvent, MessageEnd, ToolExecutionEnd, ToolExecutionStart
from looopy.types.message import AssistantMessage
from looopy.types.result import ExecutedCall, IterationResult

COUNTED = frozenset({MessageEnd, ToolExecutionStart, ToolExecutionEnd})
"""Kinds of events that say something of an iteration."""


@dataclass(slots=True)
class _Part:
    """One iteration so far; `arguments` are by call."""

    message: AssistantMessage | None = None
    arguments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    ended: list[ToolExecutionEnd] = field(default_factory=list)


class Tally:
    """The iterations of one turn; `see` is told its events in order."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}

    def see(self, event: AgentEvent) -> None:
        """Take notice of *event*, if it says something of an iteration."""
        if isinstance(event, MessageEnd):
            if isinstance(event.message, AssistantMessage):
                self._part(event).message = event.message
        elif isinstance(event, ToolExecutionStart):
            self._part(event).arguments[event.tool_call_id] = event.args
        elif isinstance(event, ToolExecutionEnd):
            self._part(event).ended.append(event)

    def results(self) -> tuple[IterationResult, ...]:
        """Those that called a model or ran tools, in order."""
        made = (_result(part) for _, part in sorted(self._parts.items()))
        return tuple(one for one in made if one is not None)

    def _part(self, event: AgentEvent) -> _Part:
        part = self._parts.get(event.iteration)
        if part is None:
            part = self._parts[event.iteration] = _Part()
        return part


def _result(part: _Part) -> IterationResult | None:
    if part.message is None and not part.ended:
        return None
    asked = part.message.tool_calls if part.message is not None else ()
    arguments = part.arguments | {call.id: call.arguments for call in asked}
    order = {call.id: place for place, call in enumerate(asked)}
    ended = sorted(part.ended, key=lambda end: order.get(end.tool_call_id, 0))
    calls = tuple(_call(end, arguments.get(end.tool_call_id, {})) for end in ended)
    results = tuple(call.result for call in calls)
    if part.message is None:
        return IterationResult(message=None, tool_results=results, calls=calls)
    usage = part.message.usage
    return IterationResult(message=part.message, tool_results=results, usage=usage, calls=calls)


def _call(end: ToolExecutionEnd, arguments: Mapping[str, Any]) -> ExecutedCall:
    return ExecutedCall(
        call_id=end.tool_call_id,
        name=end.tool_name,
        arguments=arguments,
        result=end.result,
        started=end.started,
        duration_s=end.duration_s,
    )
