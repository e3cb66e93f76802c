"""
Our events as pi's.

Its agent run is our turn, its turn our iteration. Events that pi does not have (usage, status,
warnings, artifacts, requests to a person, sub-agents) are left out; our own agent has them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from looopy.compat.pi.types import (
    AgentEndEvent,
    AgentEvent,
    AgentLoopConfig,
    AgentMessage,
    AgentStartEvent,
    AgentToolResult,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    ToolExecutionUpdateEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from looopy.types import event as ours
from looopy.types.message import (
    AssistantMessage,
    ImageContent,
    StopReason,
    TextContent,
    ToolResultMessage,
)
from looopy.types.request import StreamEvent
from looopy.types.state import Outcome


class Translator:
    """
    One turn of ours as one agent run of pi's.

    Args:
        before: Prompts that were stored ahead of the turn, announced as part of it.
        holds: Results are announced once all calls of a turn have ended, in the order of the calls.

    Attributes:
        error: Why the run failed or was aborted, once that is known.
        over: True once `agent_end` was sent.
        held: The end of a turn, held back because the run may continue with another turn.
    """

    def __init__(self, before: Sequence[AgentMessage] = (), *, holds: bool = False) -> None:
        self.error: str | None = None
        self.over = False
        self.held: ours.TurnEnd | None = None
        self._before = tuple(before)
        self._holds = holds
        self._results: list[ToolResultMessage] = []
        self._added: list[AgentMessage] = []  # by the run, as they were announced
        self._begun = False
        self._open = False  # an assistant message has started, and not ended
        self._assistant: AssistantMessage | None = None  # of this iteration
        self._unanswered: ours.IterationEnd | None = None

    @classmethod
    def of_run(cls, config: AgentLoopConfig, before: Sequence[AgentMessage] = ()) -> Translator:
        """A translator with the order that *config* asks for."""
        return cls(before, holds=config.order == "1.6" and config.overlaps)

    def of(self, event: ours.AgentEvent) -> Iterator[AgentEvent]:
        """The counterpart of *event* in pi: no event, one, or several."""
        say = _WORDS.get(type(event))
        if say is None or event.path:
            return
        if self._unanswered is not None and isinstance(event, ours.IterationStart):
            yield from self._end_of_iteration(None)
        for said in say(self, event):
            if isinstance(said, MessageEndEvent):
                self._added.append(said.message)
            yield said

    def go_on(self) -> None:
        """Continue the run with another turn; the earlier messages are part of it."""
        self.held = None

    def fail(self, error: str, *, aborted: bool = False) -> Iterator[AgentEvent]:
        """End a run whose last event never came."""
        if not self.over:
            self.error = error
            last = yield from self._synthetic(error, aborted=aborted)
            self.over = True
            yield AgentEndEvent((last,))

    # --- one for each kind of ours ---------------------------------------------------------------

    def _turn_start(self, _event: ours.TurnStart) -> Iterator[AgentEvent]:
        if not self._begun:
            yield AgentStartEvent()
        self._begun = True

    def _iteration_start(self, _event: ours.IterationStart) -> Iterator[AgentEvent]:
        self._assistant = None
        yield TurnStartEvent()
        before, self._before = self._before, ()
        for message in before:
            yield MessageStartEvent(message)
            yield MessageEndEvent(message)

    def _message_start(self, event: ours.MessageStart) -> Iterator[AgentEvent]:
        if self._holds and isinstance(event.message, ToolResultMessage):
            return
        if isinstance(event.message, AssistantMessage):
            if self._open:  # the call is being made again
                return
            self._open = True
        yield MessageStartEvent(event.message)

    def _message_update(self, event: ours.MessageUpdate) -> Iterator[AgentEvent]:
        if event.partial is not None:
            told = event.event
            if told is None:  # several that were merged
                told = StreamEvent(
                    "text_delta", event.content_index, event.delta, partial=event.partial
                )
            yield MessageUpdateEvent(event.partial, told)

    def _message_end(self, event: ours.MessageEnd) -> Iterator[AgentEvent]:
        if self._holds and isinstance(event.message, ToolResultMessage):
            self._results.append(event.message)
            return
        if isinstance(event.message, AssistantMessage):
            if not self._open:
                yield MessageStartEvent(event.message)
            self._open, self._assistant = False, event.message
        yield MessageEndEvent(event.message)

    def _tool_start(self, event: ours.ToolExecutionStart) -> Iterator[AgentEvent]:
        yield ToolExecutionStartEvent(event.tool_call_id, event.tool_name, event.args)

    def _tool_update(self, event: ours.ToolExecutionUpdate) -> Iterator[AgentEvent]:
        partial = partial_result(
            event.progress if event.partial_result is None else event.partial_result
        )
        yield ToolExecutionUpdateEvent(event.tool_call_id, event.tool_name, partial)

    def _tool_end(self, event: ours.ToolExecutionEnd) -> Iterator[AgentEvent]:
        result = AgentToolResult(list(event.result.content), event.result.details)
        yield ToolExecutionEndEvent(event.tool_call_id, event.tool_name, result, event.is_error)

    def _iteration_end(self, event: ours.IterationEnd) -> Iterator[AgentEvent]:
        self._unanswered = event
        yield from self._held_results()
        if event.message is not None or self._assistant is not None:
            yield from self._end_of_iteration(event.message or self._assistant)

    def _error(self, event: ours.TurnError) -> Iterator[AgentEvent]:
        self.error = event.text
        yield from ()

    def _turn_end(self, event: ours.TurnEnd) -> Iterator[AgentEvent]:
        aborted = event.outcome is Outcome.CANCELLED
        if aborted:
            self.error = (self._assistant and self._assistant.error_message) or "cancelled"
        if self._unanswered is not None:
            if self.error is None:  # it waits for a person; our own events carry the question
                yield from self._end_of_iteration(None)
            else:
                yield from self._synthetic(self.error, aborted=aborted)
        self.over = True
        yield AgentEndEvent(tuple(self._added))

    def _held_results(self) -> Iterator[AgentEvent]:
        results, self._results = self._results, []
        calls = () if self._assistant is None else self._assistant.tool_calls
        order = {call.id: i for i, call in enumerate(calls)}
        for result in sorted(results, key=lambda one: order.get(one.tool_call_id, 0)):
            yield MessageStartEvent(result)
            yield MessageEndEvent(result)

    # --- parts -----------------------------------------------------------------------------------

    def _end_of_iteration(self, message: AssistantMessage | None) -> Iterator[AgentEvent]:
        ended, self._unanswered = self._unanswered, None
        if message is not None and message.error_message is not None:
            self.error = message.error_message
        yield TurnEndEvent(message, () if ended is None else tuple(ended.tool_results))

    def _synthetic(
        self, error: str, *, aborted: bool
    ) -> Generator[AgentEvent, None, AssistantMessage]:
        """Send an empty answer with the error; it is the value."""
        reason = StopReason.ABORTED if aborted else StopReason.ERROR
        message = AssistantMessage(stop_reason=reason, error_message=error)
        if not self._begun:
            yield AgentStartEvent()
            yield TurnStartEvent()
        if not self._open:
            yield MessageStartEvent(message)
        self._open = False
        yield MessageEndEvent(message)
        yield from self._end_of_iteration(message)
        return message


_WORDS: Mapping[type[Any], Callable[[Translator, Any], Iterator[AgentEvent]]] = {
    ours.TurnStart: Translator._turn_start,  # noqa: SLF001 - the table of this class
    ours.IterationStart: Translator._iteration_start,  # noqa: SLF001
    ours.MessageStart: Translator._message_start,  # noqa: SLF001
    ours.MessageUpdate: Translator._message_update,  # noqa: SLF001
    ours.MessageEnd: Translator._message_end,  # noqa: SLF001
    ours.ToolExecutionStart: Translator._tool_start,  # noqa: SLF001
    ours.ToolExecutionUpdate: Translator._tool_update,  # noqa: SLF001
    ours.ToolExecutionEnd: Translator._tool_end,  # noqa: SLF001
    ours.IterationEnd: Translator._iteration_end,  # noqa: SLF001
    ours.TurnError: Translator._error,  # noqa: SLF001
    ours.TurnEnd: Translator._turn_end,  # noqa: SLF001
}


def progress_of(result: Any) -> Any:
    """A partial result as the JSON that progress is."""
    if not isinstance(result, AgentToolResult):
        return result
    blocks = [
        {"type": "text", "text": block.text}
        if isinstance(block, TextContent)
        else {"type": "image", "data": block.data, "mime_type": block.mime_type}
        for block in result.content
        if isinstance(block, (TextContent, ImageContent))
    ]
    return {"content": blocks, "details": result.details}


def partial_result(progress: Any) -> AgentToolResult:
    """Progress that `progress_of` translated; any other becomes the details of a result."""
    blocks = progress.get("content") if isinstance(progress, Mapping) else None
    if not isinstance(blocks, list) or progress.keys() != {"content", "details"}:
        return AgentToolResult([], progress)
    return AgentToolResult(
        [
            TextContent(str(block.get("text", "")))
            if block.get("type") == "text"
            else ImageContent(block.get("data", ""), mime_type=block.get("mime_type", "image/png"))
            for block in blocks
        ],
        progress["details"],
    )
