"""
One turn as spans and metrics, by OpenTelemetry's GenAI conventions.

The turn is an `invoke_agent` span. Each attempt of a model call is a `chat` span in it, and each
tool call an `execute_tool` span. They are current while the work runs, so the spans of HTTP clients
and of inner agents are within them. A turn that continues another one is linked to it: the place of
a turn is stored with its claim, so the link holds across processes.

Telemetry never costs a turn. If a method here fails, the failure is logged, once a turn, and the
turn is watched no longer.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from looopy.telemetry import names
from looopy.telemetry.content import finish_reason
from looopy.telemetry.instruments import NO_SPAN, ModelCall, input_tokens, with_error
from looopy.types.message import NO_USAGE, Cost, StopReason, Usage
from looopy.types.request import Reroute
from looopy.types.state import Outcome

if TYPE_CHECKING:
    from looopy.telemetry.content import Content
    from looopy.telemetry.instruments import Instruments
    from looopy.types.message import ToolCall, ToolResultMessage
    from looopy.types.request import LLMRequest, Report, StreamEvent, StreamOptions
    from looopy.types.result import TurnResult

P = ParamSpec("P")
R = TypeVar("R")
_logger = logging.getLogger("looopy")
_TRACE: Final = re.compile(r"([0-9]+) 00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class _Watch(Protocol):
    """Something that watches a turn, or a part of one."""

    @property
    def context_id(self) -> str:
        """The context of the turn."""
        ...

    @property
    def broken(self) -> bool:
        """True once the watch of the turn has failed."""
        ...

    def give_up(self) -> None:
        """Watch the turn no longer."""
        ...


W = TypeVar("W", bound=_Watch)


def _quietly(method: Callable[Concatenate[W, P], None]) -> Callable[Concatenate[W, P], None]:
    """Let a failure of *method* end the watch of the turn, and nothing else."""

    def guarded(self: W, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            _logger.exception("the telemetry of a turn of context %s failed", self.context_id)
            self.give_up()

    return wraps(method)(guarded)


class TurnWatch:
    """
    Watches one turn, from the call to its end.

    Args:
        content: Writes messages, arguments and results; `None`: spans have none of them.

    Attributes:
        broken: True once it has failed: it then does nothing.
        trace: The place of the turn as a `traceparent`; `None` if it is in no trace.
    """

    def __init__(
        self, instruments: Instruments, context_id: str, agent_name: str, content: Content | None
    ) -> None:
        self.broken = False
        self.trace: str | None = None
        self._instruments = instruments
        self._content = content
        self.context_id = context_id
        self._name = agent_name
        self._agent = {names.AGENT_NAME: agent_name}
        self._number: dict[str, int] = {}
        self._began = time.perf_counter()
        self._owns = self._waits = self._over = False
        self._model: dict[str, Any] = {}
        self._of_model: dict[str, Any] = {}  # without the operation
        self._counted = NO_USAGE
        self._span: Span = INVALID_SPAN
        self._context = NO_SPAN
        self._chat: Span | None = None
        self._chat_began = 0.0
        self._answered = ""  # the model that the server has chosen

    def give_up(self) -> None:
        """Watch the turn no longer, nor count it as one that waits or runs."""
        self.broken = True
        with suppress(Exception):
            self._wait_no_longer()
            if self._owns:
                self._owns = False
                self._instruments.running[self._name] -= 1

    @_quietly
    def begin(self) -> None:
        """Begin the turn's span and make it current, in the task of the turn."""
        self._instruments.waiting[self._name] += 1
        self._waits = True
        name = self._name
        span = self._instruments.tracer.start_span(
            f"{names.INVOKE_AGENT} {name}",
            kind=SpanKind.INTERNAL,
            attributes={
                names.OPERATION: names.INVOKE_AGENT,
                names.AGENT_NAME: name,
                names.CONVERSATION_ID: self.context_id,
            },
        )
        self._span = span
        self._context = set_span_in_context(span)
        attach(self._context)  # for good: the task is the turn's own
        place = span.get_span_context()
        if place.is_valid:
            ids = f"{place.trace_id:032x}-{place.span_id:016x}"
            self.trace = f"00-{ids}-{place.trace_flags:02x}"

    @_quietly
    def claimed(self, turn: int, continues: int | None, before: str | None) -> None:
        """
        Note that the turn owns its context.

        Args:
            before: `ContextState.trace` of before the turn: where the last traced turn is.
        """
        self._wait_no_longer()
        self._owns = True
        self._instruments.running[self._name] += 1
        waited = time.perf_counter() - self._began
        self._instruments.later(self._instruments.lease_s.record, waited, self._agent)
        self._number = {names.TURN: turn}
        if continues is None:
            return
        self._number[names.CONTINUES] = continues
        number, place = _read(before)
        if place is not None and number == continues:
            self._span.add_link(place, {names.LINK: "continues", names.TURN: continues})

    def timed(
        self, commit: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """*commit*, with its duration recorded."""

        async def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            began = time.perf_counter()
            try:
                done = await commit(*args, **kwargs)
            except BaseException as error:
                self._committed(began, type(error).__name__)
                raise
            self._committed(began, None)
            return done

        return timed

    @_quietly
    def _committed(self, began: float, error: str | None) -> None:
        attributes = None if error is None else {names.ERROR_TYPE: error}
        took = time.perf_counter() - began
        self._instruments.later(self._instruments.commit_s.record, took, attributes)

    # --- model calls ---------------------------------------------------------------------------

    @_quietly
    def model_call(
        self, provider: str, request: LLMRequest, options: StreamOptions, attempt: int
    ) -> None:
        """Note that a model is called, in the task of the turn."""
        model = request.model
        self._of_model = {names.PROVIDER_NAME: provider, names.REQUEST_MODEL: model}
        self._model = {names.OPERATION: names.CHAT, **self._of_model}
        attributes: dict[str, Any] = {**self._model, names.CONVERSATION_ID: self.context_id}
        if attempt > 1:
            attributes[names.ATTEMPT] = attempt
        if options.temperature is not None:
            attributes[names.REQUEST_TEMPERATURE] = options.temperature
        if options.max_tokens is not None:
            attributes[names.REQUEST_MAX_TOKENS] = options.max_tokens
        if options.seed is not None:
            attributes[names.REQUEST_SEED] = options.seed
        span = self._instruments.tracer.start_span(
            f"{names.CHAT} {model}", self._context, SpanKind.CLIENT, attributes
        )
        self._chat, self._chat_began, self._answered = span, time.perf_counter(), ""
        attach(set_span_in_context(span, self._context))
        if self._content is not None and span.is_recording():
            if request.system_prompt:
                said = self._content.instructions(request.system_prompt)
                span.set_attribute(names.SYSTEM_INSTRUCTIONS, said)
            span.set_attribute(names.INPUT_MESSAGES, self._content.messages(request.messages))

    @_quietly
    def reported(self, report: Report) -> None:
        """Note what the provider of the running call has reported beside its answer."""
        span = self._chat
        if span is None:
            return
        if isinstance(report, Reroute):
            self._answered = report.answered.partition("/")[2] or report.answered
            span.set_attribute(names.REROUTED, report.by)
            return
        for one in report.limits:
            place = f"{names.RATE_LIMIT}.{one.kind}"
            span.set_attribute(f"{place}.left", one.left)
            if one.limit is not None:
                span.set_attribute(f"{place}.limit", one.limit)

    @_quietly
    def model_answered(self, final: StreamEvent | None, first_chunk_s: float | None) -> None:
        """
        Note how the call has ended.

        Args:
            final: The last event of the provider's stream, if it sent one.
        """
        message = None if final is None else final.message
        usage = None if message is None else message.usage
        span = self._chat
        if message is not None and usage is not None:
            self._counted += usage
            if span is not None and span.is_recording():
                found = _of_usage(usage)
                # A list: the SDK checks a tuple's type for three times as long.
                found[names.FINISH_REASONS] = [finish_reason(message.stop_reason)]
                if model := self._answered or message.model:
                    found[names.RESPONSE_MODEL] = model
                if message.response_id:
                    found[names.RESPONSE_ID] = message.response_id
                if first_chunk_s is not None:
                    found[names.FIRST_CHUNK] = first_chunk_s
                if self._content is not None:
                    found[names.OUTPUT_MESSAGES] = self._content.answer(message)
                span.set_attributes(found)
        error = None
        if final is None or final.type != "done":
            failed = None if final is None else final.error
            error = "InvalidLLMResponse" if failed is None else type(failed).__name__
        self._end_chat(error, usage, first_chunk_s)

    def _end_chat(
        self, error: str | None, usage: Usage | None = None, first_chunk_s: float | None = None
    ) -> None:
        span, self._chat = self._chat, None
        if span is None:
            return
        call = ModelCall(usage, time.perf_counter() - self._chat_began, first_chunk_s, error)
        self._instruments.later(self._instruments.model_call, call, self._model)
        _end(span, error)
        attach(self._context)

    # --- tools ---------------------------------------------------------------------------------

    def tool_call(self, call: ToolCall, name: str | None) -> ToolWatch:
        """
        Note that a tool begins to run, in the task of the call.

        Args:
            name: The name of the tool; `None` if the model named one that does not exist.
        """
        watch = ToolWatch(self, name or names.OTHER)
        watch.begin(call, self._instruments, self._context, self._content)
        return watch

    # --- the end -------------------------------------------------------------------------------

    @_quietly
    def ended(self, result: TurnResult) -> None:
        """End the spans of a turn that has ended in order."""
        error, outcome = result.error, result.outcome.value
        kind = type(error).__name__ if error is not None else None
        failed = result.outcome is Outcome.FAILED
        # The turn ended within a model call, or before one that a budget had no room for.
        no_room = result.stop_reason is StopReason.BUDGET
        self._end_chat("BudgetExceeded" if no_room else "cancelled")
        self._count_rest(result.usage)
        span = self._span
        if span.is_recording():
            used = result.usage
            found: dict[str, Any] = {
                **self._number,
                names.OUTCOME: outcome,
                names.ITERATIONS: len(result.iterations),
                # Not by the names of a chat: a viewer that adds up a trace would count them twice.
                names.TURN_INPUT: input_tokens(used),
                names.TURN_OUTPUT: used.output,
                **self._of_model,
            }
            if used.cost is not None and used.cost.complete:
                found[names.TURN_COST] = used.cost.total
            span.set_attributes(found)
        self._close((kind or names.OTHER) if failed else None, outcome)

    @_quietly
    def failed(self, error: BaseException) -> None:
        """End the spans of a turn that was refused, or that was broken off."""
        if self._over:
            return
        kind = type(error).__name__
        self._end_chat(kind)
        self._span.set_attributes(self._number)
        self._close(kind, "broken off" if self._owns else "refused")

    @_quietly
    def dropped(self) -> None:
        """Forget the turn: it became a view of another one, and its span is never exported."""
        self._wait_no_longer()
        self._over = True

    def _count_rest(self, usage: Usage) -> None:
        """Count the tokens of calls that were cut short, and of summaries."""
        seen, cost = self._counted, None
        if usage is seen or usage == seen:
            return
        if usage.cost is not None and seen.cost is not None:
            known = usage.cost.complete and seen.cost.complete
            cost = Cost(total=max(0.0, usage.cost.total - seen.cost.total), complete=known)
        rest = Usage(
            input=max(0, usage.input - seen.input),
            output=max(0, usage.output - seen.output),
            cache_read=max(0, usage.cache_read - seen.cache_read),
            cache_write=max(0, usage.cache_write - seen.cache_write),
            cost=cost,
        )
        if self._model and (input_tokens(rest) or rest.output):
            self._instruments.later(self._instruments.usage, rest, self._model)

    def _close(self, error: str | None, outcome: str) -> None:
        self._wait_no_longer()
        if self._owns:
            self._instruments.running[self._name] -= 1
        self._over, self._owns = True, False
        took = time.perf_counter() - self._began
        attributes = {**self._of_model, **self._agent, names.OUTCOME: outcome}
        place = with_error(attributes, error)
        self._instruments.later(self._instruments.turn_s.record, took, place)
        _end(self._span, error)

    def _wait_no_longer(self) -> None:
        if self._waits:
            self._waits = False
            self._instruments.waiting[self._name] -= 1


class ToolWatch:
    """
    Watches one call of a tool.

    Args:
        turn: The turn's watch.
        name: The tool's name, or `OTHER`: names that a model invents are without bound.
    """

    def __init__(self, turn: TurnWatch, name: str) -> None:
        self._turn = turn
        self._name = name
        self._began = time.perf_counter()
        self._span: Span | None = None
        self._instruments: Instruments | None = None
        self._content: Content | None = None

    @property
    def broken(self) -> bool:
        """True once the watch of the turn has failed."""
        return self._turn.broken

    @property
    def context_id(self) -> str:
        """The context of the turn."""
        return self._turn.context_id

    def give_up(self) -> None:
        """Watch the turn no longer."""
        self._turn.give_up()

    @_quietly
    def begin(
        self, call: ToolCall, instruments: Instruments, turn: Context, content: Content | None
    ) -> None:
        """Begin the span within the *turn*'s, and make it current in the call's task."""
        span = instruments.tracer.start_span(
            f"{names.EXECUTE_TOOL} {self._name}",
            turn,
            attributes={
                names.OPERATION: names.EXECUTE_TOOL,
                names.TOOL_NAME: call.name,
                names.TOOL_TYPE: "function",
                names.TOOL_CALL_ID: call.id,
            },
        )
        attach(set_span_in_context(span, turn))
        self._span, self._instruments, self._content = span, instruments, content
        if content is not None and span.is_recording():
            span.set_attribute(names.TOOL_ARGUMENTS, content.value(call.arguments))

    @_quietly
    def answered(self, result: ToolResultMessage) -> None:
        """End the span with the result of the call."""
        span, content = self._span, self._content
        if span is not None and content is not None and span.is_recording():
            span.set_attribute(names.TOOL_RESULT, content.result(result))
        self._end("tool_error" if result.is_error else None)

    @_quietly
    def left(self, error: BaseException, *, waits: bool) -> None:
        """End the span of a call without a result; *waits*: it waits for an answer."""
        if waits and self._span is not None:
            self._span.set_attribute(names.WAITS, value=True)
        self._end(None if waits else type(error).__name__)

    def _end(self, error: str | None) -> None:
        if self._span is None or self._instruments is None:
            return
        attributes = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: self._name}
        took = time.perf_counter() - self._began
        place = with_error(attributes, error)
        self._instruments.later(self._instruments.tool_s.record, took, place)
        _end(self._span, error)


def record_recovery(
    instruments: Instruments,
    context_id: str,
    turn: int,
    trace: str | None,
    started_at: datetime,
) -> None:
    """
    Record that this process has ended a turn that another one left.

    A traced turn gets a last span in its own trace, whose beginning died with its process.
    """
    try:
        instruments.recovered.add(1)
        number, place = _read(trace)
        if place is None or number != turn:
            return
        span = instruments.tracer.start_span(
            names.RECOVER,
            set_span_in_context(NonRecordingSpan(place), Context()),
            attributes={
                names.CONVERSATION_ID: context_id,
                names.TURN: turn,
                names.OUTCOME: Outcome.INTERRUPTED.value,
            },
            links=[Link(place, {names.LINK: "recovers", names.TURN: turn})],
            start_time=int(started_at.timestamp() * 1e9),
        )
        span.end()
    except Exception:
        _logger.exception("the telemetry of a recovered turn of context %s failed", context_id)


def _read(trace: str | None) -> tuple[int, SpanContext | None]:
    """The turn and the place in `ContextState.trace`."""
    found = None if trace is None else _TRACE.fullmatch(trace)
    if found is None:
        return 0, None
    place = SpanContext(
        int(found[2], 16),
        int(found[3], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(found[4], 16)),
    )
    return int(found[1]), place if place.is_valid else None


def _of_usage(usage: Usage) -> dict[str, Any]:
    found: dict[str, Any] = {
        names.INPUT_TOKENS: input_tokens(usage),
        names.OUTPUT_TOKENS: usage.output,
    }
    if usage.cache_read:
        found[names.CACHE_READ_TOKENS] = usage.cache_read
    if usage.cache_write:
        found[names.CACHE_WRITE_TOKENS] = usage.cache_write
    if usage.reasoning:
        found[names.REASONING_TOKENS] = usage.reasoning
    if usage.cost is not None and usage.cost.complete:  # an unknown cost is absent, not zero
        found[names.COST] = usage.cost.total
    return found


def _end(span: Span, error: str | None) -> None:
    """End *span*. It gets the kind of an error, but never its text, which may quote anything."""
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
