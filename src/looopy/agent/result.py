"""A turn's `TurnResult`, counted from the events of the turn: live, or read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looopy.errors import LooopyError
from looopy.loop.output import OutputType, output_in
from looopy.types.artifact import Artifact
from looopy.types.event import (
    AgentEvent,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnError,
)
from looopy.types.message import NO_USAGE, AssistantMessage, Message, StopReason, Usage
from looopy.types.result import ExecutedCall, IterationResult, TurnResult, has_answer
from looopy.types.state import Outcome, PendingRequest


@dataclass(slots=True)
class _Part:
    """One iteration so far; `arguments` are by call."""

    message: AssistantMessage | None = None
    arguments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    ended: list[ToolExecutionEnd] = field(default_factory=list)


_COUNTED = (MessageEnd, ToolExecutionStart, ToolExecutionEnd, TurnError)


class Tally:
    """
    The counts of one turn so far.

    Attributes:
        messages: The messages that it has added, oldest first.
        artifacts: The versions that it has saved and not deleted, in order.
        failure: The event of its failure, if it failed.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.artifacts: list[Artifact] = []
        self.failure: TurnError | None = None
        self._parts: dict[int, _Part] = {}

    def see(self, events: Iterable[AgentEvent]) -> None:
        """Count *events*, the turn's next own ones."""
        for event in events:
            if not isinstance(event, _COUNTED):
                continue
            if isinstance(event, MessageEnd):
                self.messages.append(event.message)
                if isinstance(event.message, AssistantMessage):
                    self._part(event).message = event.message
            elif isinstance(event, ToolExecutionStart):
                self._part(event).arguments[event.tool_call_id] = event.args
            elif isinstance(event, ToolExecutionEnd):
                self._part(event).ended.append(event)
            else:
                self.failure = event

    def keep(self, artifact: Artifact) -> None:
        """Add a version, in place of its earlier reports while it was being built."""
        same = (artifact.artifact_id, artifact.version)
        kept = [one for one in self.artifacts if (one.artifact_id, one.version) != same]
        self.artifacts = [*kept, artifact]

    def drop(self, artifact_id: str) -> None:
        """Drop the versions of a deleted artifact."""
        self.artifacts = [one for one in self.artifacts if one.artifact_id != artifact_id]

    def result(
        self,
        turn: int,
        outcome: Outcome,
        stop_reason: StopReason,
        *,
        usage: Usage,
        pending: Sequence[PendingRequest],
        error: LooopyError | None,
        output_type: OutputType | None,
    ) -> TurnResult:
        """
        The result of the turn, which is over.

        Args:
            pending: The requests that wait in the context.
            error: The error if the turn failed.
        """
        texts = [m.text for m in self.messages if isinstance(m, AssistantMessage) and m.text]
        waits = outcome in (Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED)
        iterations = (_iteration(part) for _, part in sorted(self._parts.items()))
        output = None
        if output_type is not None and has_answer(stop_reason, self.messages):
            output = output_in(output_type, self.messages)
        return TurnResult(
            turn=turn,
            outcome=outcome,
            stop_reason=stop_reason,
            text=texts[-1] if texts else "",
            messages=tuple(self.messages),
            usage=usage,
            iterations=tuple(one for one in iterations if one is not None),
            pending=tuple(pending) if waits else (),
            artifacts=tuple(self.artifacts),
            error=error if outcome is Outcome.FAILED else None,
            output=output,
        )

    def _part(self, event: AgentEvent) -> _Part:
        part = self._parts.get(event.iteration)
        if part is None:
            part = self._parts[event.iteration] = _Part()
        return part


def _iteration(part: _Part) -> IterationResult | None:
    if part.message is None and not part.ended:
        return None
    asked = part.message.tool_calls if part.message is not None else ()
    arguments = part.arguments | {call.id: call.arguments for call in asked}
    order = {call.id: place for place, call in enumerate(asked)}
    ended = sorted(part.ended, key=lambda end: order.get(end.tool_call_id, 0))
    calls = tuple(_call(end, arguments.get(end.tool_call_id, {})) for end in ended)
    return IterationResult(
        message=part.message,
        tool_results=tuple(call.result for call in calls),
        usage=NO_USAGE if part.message is None else part.message.usage,
        calls=calls,
    )


def _call(end: ToolExecutionEnd, arguments: Mapping[str, Any]) -> ExecutedCall:
    return ExecutedCall(
        call_id=end.tool_call_id,
        name=end.tool_name,
        arguments=arguments,
        result=end.result,
        started=end.started,
        duration_s=end.duration_s,
    )
