"""The result of a turn, of each of its iterations, and of each tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, cast

from looopy.errors import LooopyError, TurnIncomplete
from looopy.types.artifact import Artifact
from looopy.types.constructors import quick
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    Message,
    StopReason,
    ToolResultMessage,
    Usage,
)
from looopy.types.state import Outcome, PendingRequest

if TYPE_CHECKING:  # with a default, so that a plain `TurnResult` is one of any output
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


FINAL_ANSWER = "final_answer"
"""The name of the tool that takes the answer, if the provider does not support output schemas."""


def is_accepted(message: Message) -> bool:
    """True if *message* is the result of an accepted answer."""
    return (
        isinstance(message, ToolResultMessage)
        and message.tool_name == FINAL_ANSWER
        and not message.is_error
    )


def has_answer(stop_reason: StopReason, messages: Sequence[Message]) -> bool:
    """True if a turn with these *messages* ended with an answer, also at its limit of calls."""
    last = messages[-1] if messages else None
    if stop_reason is not StopReason.MAX_ITERATIONS or last is None:
        return stop_reason is StopReason.STOP
    is_whole = isinstance(last, AssistantMessage) and last.stop_reason is not StopReason.PAUSED
    return is_whole or is_accepted(last)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCall:
    """
    A tool call and what came of it.

    Attributes:
        name: As the model wrote it; `result.tool_name` is the tool's.
        arguments: As the model gave them; empty if they were not a JSON object.
        started: When it began to run; `None` for a call that never did.
        duration_s: How long it ran.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: ToolResultMessage
    started: datetime | None = None
    duration_s: float = 0.0

    @property
    def is_error(self) -> bool:
        """True if it failed, or did not run."""
        return self.result.is_error


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """
    One model call of a turn, and its tools.

    Attributes:
        message: The model's answer; `None` for an iteration that only ran calls which an earlier
            turn had left open, or whose model call failed.
        tool_results: In call order.
        calls: The same with name, arguments and duration.
    """

    message: AssistantMessage | None
    tool_results: Sequence[ToolResultMessage] = ()
    usage: Usage = NO_USAGE
    calls: Sequence[ExecutedCall] = ()

    @property
    def text(self) -> str:
        """The text of the model's answer."""
        return "" if self.message is None else self.message.text

    @property
    def thinking(self) -> str:
        """The thinking of the model's answer."""
        return "" if self.message is None else self.message.thinking_text

    @property
    def finish_reason(self) -> StopReason | None:
        """Why its answer ended: `stop`, `length`, `toolUse`, ..."""
        return None if self.message is None else self.message.stop_reason


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult(Generic[OutputT]):
    """
    The result of a turn; `TurnResult[City]` if the turn had `output_type=City`.

    Attributes:
        turn: Its number in the context.
        text: The text of the last answer; empty if it has no text.
        output: The answer as `output_type`; `None` without one, or if the turn ended before such an
            answer, as one that waits does. See `require_output()`.
        messages: The messages that the turn added, oldest first.
        pending: The requests that it waits for, if the outcome is `input_required` or
            `auth_required`.
        artifacts: Versions it saved and did not delete, in order.
        error: The reason of its failure, or `None`.
    """

    turn: int
    outcome: Outcome
    stop_reason: StopReason
    text: str = ""
    output: OutputT | None = None
    messages: Sequence[Message] = ()
    usage: Usage = NO_USAGE
    iterations: Sequence[IterationResult] = ()
    pending: Sequence[PendingRequest] = ()
    artifacts: Sequence[Artifact] = ()
    error: LooopyError | None = None

    @property
    def answered(self) -> bool:
        """True if the turn ended with an answer, also at its limit of model calls."""
        return has_answer(self.stop_reason, self.messages)

    def raise_for_outcome(self) -> TurnResult[OutputT]:
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

    def require_output(self) -> OutputT:
        """
        Return the output of a turn that had an `output_type`.

        Raises:
            LooopyError: The turn failed; this is its error.
            TurnIncomplete: The turn has no output: it was cancelled or interrupted, waits for an
                answer (`pending`), or ended at a limit.
        """
        if not self.raise_for_outcome().answered:
            waits = "; answer its pending requests, then continue it" if self.pending else ""
            text = f"the turn ended as {self.outcome} ({self.stop_reason}) without an output{waits}"
            raise TurnIncomplete(text, outcome=self.outcome.value)
        return cast("OutputT", self.output)  # which may be None, if the type allows that
