"""
One iteration: a model call, and the tools it asked for.

Written top to bottom as an async generator. What it yields is either one event that may be shown at
once (a delta, a report), or a `Group`: events that belong together, of which the durable ones are
committed before any is shown and before the generator goes on. A group closes before each model
call, before a tool runs, and at the end of the turn; so an effect in the world is always preceded
by its durable intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from looopy._failpoints import reach
from looopy.cancellation import CancelScope, TurnInterrupted
from looopy.errors import (
    HistoryRejected,
    InvalidLLMResponse,
    LimitExceeded,
    LLMError,
    LooopyError,
)
from looopy.guards import Guards, Verdict
from looopy.history import visible
from looopy.llm.provider import LLMProvider
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN, render, synthetic_result
from looopy.llm.retry import delay_before
from looopy.stores.gate import repair, repair_json
from looopy.tools.executor import resolve_name, run_call
from looopy.tools.provider import Tool, ToolContext, ToolSource, gather_tools
from looopy.types.context import LoopConfig, TurnContext
from looopy.types.event import (
    AgentEvent,
    IterationEnd,
    IterationStart,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    StatusChange,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnWarning,
    UsageReport,
    utc_now,
)
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    now_ms,
)
from looopy.types.request import LLMRequest, PartialMessage, StreamEvent, StreamOptions
from looopy.types.state import AgentStatus, Outcome, PendingRequest, outcome_of

_logger = logging.getLogger("looopy")
_chance = random.Random()  # noqa: S311 - spreads retries, keeps no secret
_GRACE_S = 5.0  # how long a tool or stream may take to stop before it is left behind


@dataclass(frozen=True, slots=True)
class Group:
    """Events to commit together and then show, in this order."""

    events: Sequence[AgentEvent]


Out: TypeAlias = AgentEvent | Group


@dataclass(slots=True)
class Turn:
    """
    One turn as it runs: what it was given, and what it has done so far.

    Attributes:
        history: What was said before and in this turn, oldest first.
        open_calls: Calls of the last assistant message that an earlier turn left open and that run
            now.
        call_turn: The turn that announced the open calls; their idempotency keys name it.
        added: Messages of this turn.
        stop: Set when the turn is over.
        error: Why, when it failed.
    """

    context: TurnContext
    provider: LLMProvider
    sources: Sequence[ToolSource]
    config: LoopConfig
    history: list[Message]
    scope: CancelScope
    guards: Guards
    open_calls: Sequence[ToolCall] = ()
    call_turn: int | None = None
    pending: Sequence[PendingRequest] = ()
    iteration: int = 0
    in_iteration: bool = False
    added: list[Message] = field(default_factory=list)
    results: list[ToolResultMessage] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stop: StopReason | None = None
    error: LooopyError | None = None
    partial: AssistantMessage | None = None
    answer_of_model: AssistantMessage | None = None
    call_ids: set[str] = field(default_factory=set)
    _waiting: list[AgentEvent] = field(default_factory=list)

    def emit(self, event: AgentEvent) -> None:
        """Add an event to the group that is open."""
        self._waiting.append(event)

    def close_group(self) -> Group:
        """Close the group that is open."""
        group = Group(tuple(self._waiting))
        self._waiting.clear()
        return group

    def make(self, kind: Callable[..., AgentEvent], **fields: Any) -> AgentEvent:
        """An event of this turn and iteration."""
        return kind(
            context_id=self.context.context_id,
            turn=self.context.turn,
            iteration=self.iteration,
            **fields,
        )

    def begin_iteration(self) -> None:
        """Count and announce the next iteration."""
        self.iteration += 1
        self.in_iteration = True
        self.results = []
        self.emit(self.make(IterationStart))

    def append(self, message: Message, **facts: Any) -> None:
        """Add a message to the history, with its `message_end`."""
        self.history.append(message)
        self.added.append(message)
        self.emit(self.make(MessageEnd, message=message, **facts))

    def answer(
        self,
        call: ToolCall,
        result: ToolResultMessage,
        *,
        started: datetime | None = None,
        announce: bool = False,
    ) -> None:
        """Add the one result of *call*; with *announce*, also the start it never had."""
        if announce:
            self.emit(self._start_of(call, has_effects=False))
        ended = utc_now()
        self.emit(
            self.make(
                ToolExecutionEnd,
                tool_call_id=call.id,
                tool_name=call.name,
                result=result,
                is_error=result.is_error,
                started=started,
                duration_s=0.0 if started is None else (ended - started).total_seconds(),
                timestamp=ended,
            )
        )
        self.emit(self.make(MessageStart, message=result))
        self.append(result)
        self.results.append(result)

    def _start_of(self, call: ToolCall, *, has_effects: bool) -> AgentEvent:
        return self.make(
            ToolExecutionStart,
            tool_call_id=call.id,
            tool_name=call.name,
            args=call.arguments,
            has_effects=has_effects,
        )

    def begin(self, call: ToolCall, tool: Tool | None) -> None:
        """Announce that *call* runs now; durable when it may have effects."""
        self.emit(self._start_of(call, has_effects=tool is not None and tool.effects != "none"))

    def give_up(self, verdict: Verdict) -> None:
        """End the turn as a guard says."""
        self.stop = verdict.stop
        self.emit(self.make(TurnWarning, code=verdict.code, text=verdict.text))
        if verdict.stop is not None and outcome_of(verdict.stop) is Outcome.FAILED:
            self.error = LimitExceeded(verdict.text, limit=verdict.code)


async def run_iteration(turn: Turn) -> AsyncGenerator[Out, None]:
    """Call the model once and run what it asks for; sets `turn.stop` when the turn is over."""
    with turn.scope:
        tools = await gather_tools(turn.sources)
    assistant: AssistantMessage | None = None
    if turn.open_calls:
        calls, turn.open_calls = turn.open_calls, ()
    else:
        turn.call_turn = None  # what is called from now on is this turn's own
        async for out in _call_model(turn, tools):
            yield out
        assistant = turn.answer_of_model
        if turn.stop is not None or assistant is None:
            return
        turn.usage += assistant.usage
        turn.guards.usage = turn.usage
        calls = assistant.tool_calls
        turn.stop = _stop_of(assistant)
    if calls:
        turn.stop = None
        async for out in _run_tools(turn, calls, tools):
            yield out
    end_iteration(turn, assistant)


def end_iteration(turn: Turn, assistant: AssistantMessage | None) -> None:
    """Report what the iteration used and close it."""
    turn.in_iteration = False
    usage = assistant.usage if assistant else Usage()
    turn.emit(turn.make(UsageReport, usage=usage, turn_usage=turn.usage))
    turn.emit(
        turn.make(IterationEnd, message=assistant, tool_results=tuple(turn.results), usage=usage)
    )


def _stop_of(assistant: AssistantMessage) -> StopReason:
    """
    Why a turn ends whose last answer asks for no tool. A `toolUse` without a call is an answer.
    """
    if assistant.stop_reason is StopReason.LENGTH:
        return StopReason.LENGTH
    if assistant.stop_reason is StopReason.SENSITIVE:
        return StopReason.CONTENT_FILTER
    return StopReason.STOP


# --- the model call ----------------------------------------------------------------------------


async def _call_model(turn: Turn, tools: dict[str, Tool]) -> AsyncGenerator[Out, None]:
    """Call the model until it answers or there is no more hope; append its message to the turn."""
    yield turn.close_group()
    attempts, failures, strict = 0, 0, False
    while True:
        attempts += 1
        request, options = await _request(turn, tools, strict=strict)
        started, first_delta_s, shown = utc_now(), None, False
        final: StreamEvent | None = None
        partial: PartialMessage | None = None
        reach("B4")
        stream = turn.provider.stream(request, options)
        try:
            events = aiter(stream)
            while final is None:
                with turn.scope:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        break
                partial = event.partial
                if event.type in ("done", "error"):
                    final = event
                    continue
                if not shown:
                    shown = True
                    yield turn.make(MessageStart, message=AssistantMessage())
                if event.type != "start":
                    if first_delta_s is None:
                        first_delta_s = (utc_now() - started).total_seconds()
                    reach("B5")
                    yield _update(turn, event)
        except (TurnInterrupted, asyncio.CancelledError):
            turn.partial = None if partial is None else partial.snapshot()
            raise
        except Exception as exc:  # a provider that breaks its contract and raises
            _logger.exception("the provider raised instead of ending its stream with an error")
            final = StreamEvent("error", error=InvalidLLMResponse(f"the provider failed: {exc}"))
        finally:
            await _close(stream)
        message = final.message if final is not None else None
        if final is not None and final.type == "done" and message is not None:
            if not shown:
                yield turn.make(MessageStart, message=AssistantMessage())
            _take(turn, message, started, first_delta_s, attempts)
            return
        error = _failure(final)
        if isinstance(error, HistoryRejected) and not strict:
            strict = True
            delay: float | None = 0.0  # once, with everything optional left out (rule 11)
        else:
            failures += 1
            delay = delay_before(failures, turn.config.retry, error, _chance)
        if delay is None:
            _fail(turn, error, message, started, first_delta_s, attempts)
            return
        yield turn.make(
            StatusChange,
            status=AgentStatus.BUSY,
            attempt=attempts + 1,
            delay_s=delay,
            reason=str(error),
        )
        with turn.scope:
            await asyncio.sleep(delay)


def _update(turn: Turn, event: StreamEvent) -> MessageUpdate:
    return MessageUpdate(
        context_id=turn.context.context_id,
        turn=turn.context.turn,
        iteration=turn.iteration,
        delta=event.delta if event.type == "text_delta" else "",
        event=event,
        content_index=event.content_index,
        partial=event.partial,
    )


async def _close(stream: object) -> None:
    """Close the provider's stream; one that cannot be closed costs neither answer nor turn."""
    close = getattr(stream, "aclose", None)
    if close is None:
        return
    try:
        async with asyncio.timeout(_GRACE_S):
            await close()
    except Exception:
        _logger.exception("the provider's stream could not be closed")


async def _request(
    turn: Turn, tools: dict[str, Tool], *, strict: bool
) -> tuple[LLMRequest, StreamOptions]:
    hooks, config = turn.config.hooks, turn.config
    provider, model = getattr(turn.provider, "name", ""), getattr(turn.provider, "model", "")
    window_tokens = getattr(turn.provider, "window_tokens", None)
    messages = visible(turn.history, config, window_tokens=window_tokens)
    messages = await _hooked(turn, "transform_context", hooks.transform_context, messages, messages)
    messages = await _hooked(turn, "convert_to_llm", hooks.convert_to_llm, messages, messages)
    request = LLMRequest(
        messages=render(messages, provider=provider, model=model, strict=strict),
        tools=tuple(tool.spec for tool in tools.values()),
        system_prompt=await _system_prompt(turn),
        model=model,
    )
    api_key = await _hooked(
        turn, "get_api_key", hooks.get_api_key, None, provider, turn.context.auth_context
    )
    options = StreamOptions(
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        thinking_level=config.thinking_level,
        session_id=turn.context.context_id,
        api_key=api_key,
        timeout_s=config.llm_timeout_s,
    )
    return request, options


async def _hooked(
    turn: Turn, name: str, hook: Callable[..., Any] | None, default: Any, *args: Any
) -> Any:
    """What the application's hook says; its failure is a warning and *default* stands."""
    if hook is None:
        return default
    try:
        with turn.scope:
            value = hook(*args)
            return await value if inspect.isawaitable(value) else value
    except TurnInterrupted:
        raise
    except Exception as exc:
        _logger.exception("hook %s failed", name)
        turn.emit(turn.make(TurnWarning, code="hook_failed", text=f"{name}: {type(exc).__name__}"))
        return default


async def _system_prompt(turn: Turn) -> str:
    prompt = turn.context.system_prompt
    if isinstance(prompt, str):
        return prompt
    with turn.scope:
        value = prompt(turn.context)
        return await value if inspect.isawaitable(value) else value


def _take(
    turn: Turn,
    message: AssistantMessage,
    started: datetime,
    first_delta_s: float | None,
    attempts: int,
) -> None:
    turn.answer_of_model = _clean(turn, message)
    turn.append(
        turn.answer_of_model,
        started=started,
        first_delta_s=first_delta_s,
        attempts=attempts,
        usage=message.usage,
    )


def _failure(final: StreamEvent | None) -> LLMError:
    if final is None:
        return InvalidLLMResponse("the provider's stream ended without an answer", retryable=True)
    if isinstance(final.error, LLMError):
        return final.error
    message = final.message.error_message if final.message is not None else None
    return InvalidLLMResponse(message or str(final.error) or "the model call failed")


def _fail(
    turn: Turn,
    error: LLMError,
    message: AssistantMessage | None,
    started: datetime,
    first_delta_s: float | None,
    attempts: int,
) -> None:
    """End the turn; what the model did say is kept, marked as failed."""
    turn.stop, turn.error = StopReason.ERROR, error
    if message is not None:
        turn.usage += message.usage
        if message.text.strip():
            reason = repair(str(error))
            kept = replace(message, stop_reason=StopReason.ERROR, error_message=reason)
            _take(turn, kept, started, first_delta_s, attempts)


def keep_partial(turn: Turn) -> None:
    """Keep what the model had said when the turn was cut short, marked as aborted."""
    partial, turn.partial = turn.partial, None
    if partial is not None and partial.text.strip():
        texts = tuple(b for b in partial.content if isinstance(b, TextContent))
        kept = replace(
            partial, content=texts, stop_reason=StopReason.ABORTED, error_message="cancelled"
        )
        turn.append(_clean(turn, kept), usage=kept.usage)


def _clean(turn: Turn, message: AssistantMessage) -> AssistantMessage:
    """
    The message as it can be stored and replayed: storable text, call ids unique within the turn.
    """
    blocks: list[AssistantBlock] = [_clean_block(turn, block) for block in message.content]
    if all(new is old for new, old in zip(blocks, message.content, strict=True)):
        return message
    return replace(message, content=tuple(blocks))


def _clean_block(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    if isinstance(block, TextContent):
        text = repair(block.text)
        return block if text is block.text else _repaired(turn, replace(block, text=text))
    if isinstance(block, ThinkingContent):
        thinking = repair(block.thinking)
        if thinking is block.thinking:
            return block
        # A signature over other bytes would be refused: the block becomes an unsigned one.
        return _repaired(turn, ThinkingContent(thinking))
    call_id, n = block.id, 1
    while call_id in turn.call_ids:
        n += 1
        call_id = f"{block.id}_{n}"
    turn.call_ids.add(call_id)
    arguments = repair_json(block.arguments)
    raw = block.invalid_arguments
    fixed = replace(
        block,
        id=repair(call_id),
        name=repair(block.name),
        arguments=arguments,
        invalid_arguments=None if raw is None else repair(raw),
    )
    return block if fixed == block else fixed


def _repaired(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    text = "characters that cannot be stored (NUL or lone surrogates) were replaced by U+FFFD"
    turn.emit(turn.make(TurnWarning, code="text_repaired", text=text))
    return block


# --- the tools ---------------------------------------------------------------------------------


async def _run_tools(
    turn: Turn, calls: Sequence[ToolCall], tools: dict[str, Tool]
) -> AsyncGenerator[Out, None]:
    """Run the calls in order; each gets exactly one result, whatever happens."""
    verdict = turn.guards.on_batch(len(calls))
    if verdict is not None:
        skip_calls(turn, calls, verdict.text)
        turn.give_up(verdict)
        return
    for i, call in enumerate(calls):
        verdict = turn.guards.before_tool_call(call)
        if verdict is not None and verdict.stop is not None:
            skip_calls(turn, calls[i:], verdict.text)
            turn.give_up(verdict)
            return
        if verdict is not None:
            turn.emit(turn.make(TurnWarning, code=verdict.code, text=verdict.text))
        name = resolve_name(call.name, tools)
        tool = tools.get(name) if name is not None else None
        try:
            async for out in _run_tool(turn, call, tool, tools):
                yield out
        except (TurnInterrupted, asyncio.CancelledError):
            skip_calls(turn, calls[i + 1 :], CANCELLED)
            raise
        except Exception:  # of ours, not of the tool: it may have had its effect all the same
            turn.answer(call, synthetic_result(call, OUTCOME_UNKNOWN, timestamp=now_ms()))
            skip_calls(turn, calls[i + 1 :], NOT_STARTED)
            raise
        verdict = turn.guards.after_tool_call(is_error=turn.results[-1].is_error)
        if verdict is not None:
            skip_calls(turn, calls[i + 1 :], NOT_STARTED)
            turn.give_up(verdict)
            return


def skip_calls(turn: Turn, calls: Sequence[ToolCall], text: str) -> None:
    """Answer calls that do not run."""
    for call in calls:
        result = synthetic_result(call, text, timestamp=now_ms())
        turn.answer(call, result, announce=True)


async def _run_tool(
    turn: Turn, call: ToolCall, tool: Tool | None, tools: dict[str, Tool]
) -> AsyncGenerator[Out, None]:
    turn.begin(call, tool)
    yield turn.close_group()  # from here on the call is known to have started
    reach("B8")
    started = utc_now()
    reports: list[Any] = []
    reported = asyncio.Event()
    loop = asyncio.get_running_loop()

    def push(progress: Any) -> None:
        reports.append(progress)
        reported.set()

    def report(progress: Any) -> None:
        loop.call_soon_threadsafe(push, progress)

    origin = turn.call_turn if turn.call_turn is not None else turn.context.turn
    context = ToolContext(
        context_id=turn.context.context_id,
        turn=turn.context.turn,
        tool_call_id=call.id,
        idempotency_key=f"{turn.context.context_id}/{origin}/{call.id}",
        auth_context=turn.context.auth_context,
        artifacts=turn.context.artifacts,
        report=report,
        cancel=turn.context.cancel,
    )
    running = asyncio.create_task(
        run_call(
            tool,
            call,
            context,
            default_timeout_s=turn.config.tool_timeout_s,
            max_result_bytes=turn.config.max_result_bytes,
            known=tuple(tools),
        ),
        name=f"looopy tool {call.name}",
    )
    running.add_done_callback(lambda _: reported.set())
    try:
        while not running.done():
            with turn.scope:
                await reported.wait()
            reported.clear()
            while reports:
                yield _progress(turn, call, reports.pop(0))
    except (TurnInterrupted, asyncio.CancelledError):
        result = await _stop_tool(running, call, tool)
        turn.answer(call, _storable(result), started=started)
        raise
    finally:
        running.cancel()  # when nobody pulls any more; does nothing to one that is done
    reach("B9")
    turn.answer(call, _storable(_result_of(running, call, tool)), started=started)


async def _stop_tool(
    running: asyncio.Task[ToolResultMessage], call: ToolCall, tool: Tool | None
) -> ToolResultMessage:
    """
    Cancel a running tool; what it still returns within the grace period counts, else what is known.
    """
    if not running.done():
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # asked again: wait no longer
            await asyncio.wait({running}, timeout=_GRACE_S)
    return _result_of(running, call, tool)


def _result_of(
    running: asyncio.Task[ToolResultMessage], call: ToolCall, tool: Tool | None
) -> ToolResultMessage:
    """The call's result, or what is known of one that has none."""
    if running.done() and not running.cancelled() and running.exception() is None:
        return running.result()
    harmless = tool is None or tool.effects == "none"
    return synthetic_result(call, CANCELLED if harmless else OUTCOME_UNKNOWN, timestamp=now_ms())


def _progress(turn: Turn, call: ToolCall, value: Any) -> AgentEvent:
    progress = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may be larger than any float
            progress = float(value)
    return turn.make(
        ToolExecutionUpdate,
        tool_call_id=call.id,
        tool_name=call.name,
        progress=progress,
        partial_result=value if progress is None else None,
    )


def _storable(result: ToolResultMessage) -> ToolResultMessage:
    """The result with text and details that every store keeps."""
    content = tuple(
        block if isinstance(block, ImageContent) else replace(block, text=repair(block.text))
        for block in result.content
    )
    # Not compared with what it was: the tool's own values may not be comparable.
    return replace(result, content=content, details=repair_json(result.details))
