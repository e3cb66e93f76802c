"""What a turn came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from looopy.errors import LooopyError, TurnIncomplete
from looopy.types.artifact import Artifact
from looopy.types.message import AssistantMessage, Message, StopReason, ToolResultMessage, Usage
from looopy.types.state import Outcome, PendingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """One model call of a turn and the results of its tools, in call order."""

    message: AssistantMessage | None
    tool_results: Sequence[ToolResultMessage] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """
    What a turn came to.

    Attributes:
        turn: Its number in the context.
        text: The text of the last answer; empty when there is none.
        messages: What the turn added, oldest first.
        pending: What it waits for, when the outcome is `input_required` or `auth_required`.
        artifacts: Versions it saved, in order.
        error: Why it failed, or `None`.
    """

    turn: int
    outcome: Outcome
    stop_reason: StopReason
    text: str = ""
    messages: Sequence[Message] = ()
    usage: Usage = field(default_factory=Usage)
    iterations: Sequence[IterationResult] = ()
    pending: Sequence[PendingRequest] = ()
    artifacts: Sequence[Artifact] = ()
    error: LooopyError | None = None

    def raise_for_outcome(self) -> TurnResult:
        """
        Return this result, unless the turn did not stand.

        Raises:
            LooopyError: The turn failed; this is its error.
            TurnIncomplete: The turn was cancelled or interrupted.
        """
        if self.outcome is Outcome.FAILED:
            raise self.error or LooopyError(f"the turn failed: {self.stop_reason}")
        if self.outcome in (Outcome.CANCELLED, Outcome.INTERRUPTED):
            raise TurnIncomplete(f"the turn was {self.outcome}", outcome=self.outcome.value)
        return self
