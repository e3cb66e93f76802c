"""
The model call of an iteration: repeated until the model answers or the retries are used up.

Retry repeats the call, never the turn: nothing of a failed attempt enters the history, and tools do
not run again. The model's answer is made storable here, before any subscriber sees it as final.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from looopy._failpoints import reach
from looopy.auth.redaction import Deltas
from looopy.auth.secret_forms import names_a_secret
from looopy.errors import (
    BudgetExceeded,
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    InvalidTool,
    LLMError,
    RateLimited,
    StoreError,
    ValueRefused,
)
from looopy.history.sent import digests_of
from looopy.history.window import folded
from looopy.llm.provider import abilities_of
from looopy.llm.render import render
from looopy.llm.retry import delay_before, explained, refused_by
from looopy.loop.compaction import before_call
from looopy.loop.given import Given
from looopy.loop.interrupt import Patience, TurnInterrupted, within
from looopy.loop.outgoing import Out
from looopy.loop.output import INSTRUCTION
from looopy.loop.parts import Turn
from looopy.loop.prompts import BuiltPrompt, build_prompt
from looopy.loop.reports import Said, event_of, is_refusal
from looopy.loop.server_tools import ServerTools
from looopy.loop.storable import Pieces, _clean
from looopy.loop.strict_tools import strict_specs, without_strict_nulls
from looopy.tools.base import Tool
from looopy.tools.gather import prompts_of
from looopy.types.config import LoopConfig
from looopy.types.event import (
    AgentEvent,
    MessageStart,
    StatusChange,
    moment_in,
    utc_now,
)
from looopy.types.message import AssistantMessage, Message, StopReason, TextContent
from looopy.types.message_check import Lost, mended_answer
from looopy.types.request import (
    LLMRequest,
    PartialMessage,
    StreamEvent,
    StreamOptions,
    ToolSpec,
)
from looopy.types.state import AgentStatus
from looopy.types.storable import repair

_chance = random.Random()  # noqa: S311 - spreads retries, keeps no secret
_GRACE_S = 5.0  # how long the turn waits for a stream to close
_AT_A_TIME = 64  # deltas after which other tasks, such as readers, run, whatever the provider
CUT_SHORT = "cancelled"
"""The `error_message` of an answer whose turn was cut short."""
_WHOLE = LoopConfig(max_messages=None, history_tokens=None)


class _Attempt:
    """
    One request, and its outcome.

    Attributes:
        number: From 1; counts the attempts of the same call.
        first_delta_s: Seconds from the start to the first delta.
        shown: True if the message was announced.
        said: Warnings (codes and sentences) and reports of the provider, not emitted yet.
        held: The turn, during the call. A provider may keep its options for ever, and must not keep
            the turn's credentials with them.
        left_out: True if the limits kept a part of the history from the model.
        specs: The tools as the model saw them, if any of them is strict.
        digests: Those of the request, if no later request continues it.
        final: The stream's last event, `done` or `error`.
    """

    __slots__ = (
        *("digests", "final", "first_delta_s", "held", "left_out", "number", "said", "shown"),
        *("specs", "started"),
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = utc_now()
        self.first_delta_s: float | None = None
        self.shown = self.left_out = False
        self.said: list[Said] = []
        self.held: list[Turn] = []
        self.specs: Sequence[ToolSpec] = ()
        self.digests: str | None = None
        self.final: StreamEvent | None = None

    @property
    def answer(self) -> AssistantMessage | None:
        """The model's answer, if there is one."""
        final = self.final
        return final.message if final is not None and final.type == "done" else None

    def told(self, turn: Turn) -> list[AgentEvent]:
        """Take the waiting warnings and reports, as events."""
        waiting = [event for one in self.said if (event := event_of(turn, one)) is not None]
        self.said.clear()
        return waiting


async def call_model(turn: Turn, tools: dict[str, Tool]) -> AsyncGenerator[Out, None]:
    """Call the model until it answers or the retries are used up, and add its message."""
    out, retry = turn.out, turn.given.config.retry
    attempts, failures, strict = 0, 0, False
    while True:
        attempts += 1
        attempt = _Attempt(attempts)
        request = await _request(turn, tools, attempt, strict=strict)
        options = await _options(turn, tools, attempt)
        if attempt.left_out and not turn.progress.compacted:
            with turn.scope:
                summed_up = await before_call(turn)
            if summed_up:
                yield out.close_group()
                request = await _request(turn, tools, attempt, strict=strict)
                options = await _options(turn, tools, attempt)
        _begin(turn, request, options, attempt)
        outs = _listen(turn, request, options, attempt)
        try:
            async for one in outs:
                yield one
        finally:
            await outs.aclose()
        for warning in _end(turn, attempt):
            yield warning
        message = attempt.answer
        if message is None:
            error: LLMError = _failure(attempt.final)
            relieved = isinstance(error, ContextOverflow) and await _relieved(turn, attempt, error)
        else:
            overflow = _cut_in_silence(turn, message)
            if overflow is None or not await _relieved(turn, attempt, overflow):
                if overflow is not None:
                    out.warn("context_overflow", str(overflow), once="context_overflow")
                if not attempt.shown:
                    yield out.make(MessageStart, message=AssistantMessage())
                _take(turn, message, attempt)
                return
            error, relieved = overflow, True
        if attempt.final is not None and attempt.final.message is not None:
            turn.progress.use(attempt.final.message.usage)
        delay: float | None
        if relieved:
            yield out.close_group()
            delay = 0.0
        elif isinstance(error, HistoryRejected) and not strict:
            strict = True
            delay = 0.0  # once, with everything optional left out (rule 11)
        else:
            failures += 1
            delay = delay_before(failures, retry, error, _chance)
        if delay is None:
            _fail(turn, explained(error, retry), attempt)
            return
        yield out.make(
            StatusChange,
            status=AgentStatus.BUSY,
            attempt=attempts + 1,
            delay_s=delay,
            next_at=moment_in(delay),
            rate_limited=isinstance(error, RateLimited),
            reason=str(error),
        )
        with turn.scope:
            await asyncio.sleep(delay)


def _begin(turn: Turn, request: LLMRequest, options: StreamOptions, attempt: _Attempt) -> None:
    """Report the start of a model call to telemetry and hooks."""
    if turn.progress.guards.concluding:  # the next turn's requests have the tools again
        attempt.digests = digests_of(request, turn.progress.abilities.name)
    else:
        _warn_of_cache(turn, request)
    if (watch := turn.given.watch) is not None:
        watch.model_call(turn.progress.abilities.name, request, options, attempt.number)


def _end(turn: Turn, attempt: _Attempt) -> list[AgentEvent]:
    """Report the end of a model call to telemetry; returns the warnings and reports that wait."""
    error = None if attempt.final is None else attempt.final.error
    if isinstance(error, RateLimited) and not any(map(is_refusal, attempt.said)):
        attempt.said.append(refused_by(error))  # of a provider that reads no headers
    waiting = attempt.told(turn)
    if (watch := turn.given.watch) is not None:
        watch.model_answered(attempt.final, attempt.first_delta_s)
    return waiting


async def _listen(
    turn: Turn, request: LLMRequest, options: StreamOptions, attempt: _Attempt
) -> AsyncGenerator[Out, None]:
    """Show the model's output as it arrives, until the stream's last event."""
    given = turn.given
    deltas = None if given.redactor.free else given.redactor.deltas()
    partial: PartialMessage | None = None
    pieces = Pieces()
    served = ServerTools(turn)
    arrived = 0
    patience = Patience(
        turn.scope,
        lambda: arrived,
        idle_s=options.idle_timeout_s,
        total_s=options.timeout_s,
    )
    reach("B4")
    stream = events = None
    try:
        while True:
            with turn.scope:
                if events is None:
                    stream = given.provider.stream(request, options)
                    events = aiter(stream)
                event = await anext(events)
            partial = event.partial
            if event.type in ("done", "error"):
                attempt.final = _final(turn, event)
                break
            if not attempt.shown:
                attempt.shown = True
                yield turn.out.make(MessageStart, message=AssistantMessage())
            if attempt.first_delta_s is None or event.type == "start":
                for warning in attempt.told(turn):
                    yield warning
                if event.type == "start":  # also of a provider that begins again
                    continue
                attempt.first_delta_s = (utc_now() - attempt.started).total_seconds()
            reach("B5")
            if event.server_tool is not None:
                yield served.group(event.type, event.server_tool)
            else:
                for piece in _shown(given, pieces.of(event), deltas):
                    yield turn.out.delta(piece)
            arrived += 1
            if arrived % _AT_A_TIME == 0:
                with turn.scope:
                    await asyncio.sleep(0)
    except StopAsyncIteration:
        pass  # without a last event, which `_failure` reports
    except (TurnInterrupted, asyncio.CancelledError) as stop:
        said = _said_so_far(turn, partial)
        late = patience.error(stop, turn.progress.abilities.name)
        if late is None:
            turn.progress.partial = said
            raise
        attempt.final = StreamEvent("error", message=said, error=late)
    except Exception as exc:  # noqa: BLE001 - a provider that breaks its contract and raises
        attempt.final = _raised(turn, exc, attempt, begun=stream is not None)
    finally:
        patience.close()
        await _close(turn, stream)
        attempt.held.clear()


def _shown(
    given: Given, pieces: Sequence[StreamEvent], deltas: Deltas | None
) -> Sequence[StreamEvent]:
    """*pieces* without secrets; empty without a subscriber of deltas."""
    seen = given.watched is None or given.watched()
    if deltas is None:
        return pieces if seen else ()
    if seen:
        return list(chain.from_iterable(map(deltas, pieces)))
    for piece in pieces:
        deltas.skip(piece)
    return ()


def _raised(turn: Turn, exc: Exception, attempt: _Attempt, *, begun: bool) -> StreamEvent:
    """The last event of a call whose provider raised; raises *exc* if no call was made."""
    if not begun or isinstance(exc, (BudgetExceeded, StoreError)):
        raise exc
    what = "the provider raised instead of ending its stream with an error"
    turn.log_failure(what, exc, attempt=attempt.number)
    return StreamEvent("error", error=InvalidLLMResponse(f"the provider failed: {exc}"))


def _final(turn: Turn, event: StreamEvent) -> StreamEvent:
    """The last event of a stream, with a message whose fields have the right types."""
    if event.message is None:
        return event
    lost: Lost = []
    try:
        message = mended_answer(event.message, lost)
    except ValueRefused as refused:
        error = InvalidLLMResponse(f"the provider ended its stream with a message: {refused}")
        return StreamEvent("error", error=event.error or error)
    if message is event.message:
        return event
    _warn_of_lost(turn, lost)
    return replace(event, message=message)


def _said_so_far(turn: Turn, partial: PartialMessage | None) -> AssistantMessage | None:
    veiled = turn.given.redactor.partial(partial)
    if veiled is None:
        return None
    lost: Lost = []
    try:
        message = mended_answer(veiled.snapshot(), lost)
    except Exception as exc:  # noqa: BLE001 - what cannot be read is left out
        turn.log_failure("the provider's message could not be read when it was cut short", exc)
        return None
    _warn_of_lost(turn, lost)
    return message


def _warn_of_lost(turn: Turn, lost: Lost) -> None:
    if lost:
        text = f"the model's answer had values of a wrong type, left out: {', '.join(lost)}"
        turn.out.warn("answer_repaired", text)


def _cut_in_silence(turn: Turn, message: AssistantMessage) -> ContextOverflow | None:
    """The overflow that the provider did not report, if the model saw only a part."""
    from looopy.llm.overflow import silent_overflow  # not what an import pays for

    known = turn.progress.abilities
    if known.window_tokens is None and known.prepare is not None:  # the call may have prepared it
        known = turn.progress.abilities = abilities_of(turn.given.provider)
    return silent_overflow(message, known.window_tokens)


async def _close(turn: Turn, stream: object) -> None:
    """Close the provider's stream; a failure to close costs neither answer nor turn."""
    close = getattr(stream, "aclose", None)
    if close is None:
        return
    try:
        await within(_GRACE_S, close())
    except Exception as exc:  # noqa: BLE001 - the answer stands
        turn.log_failure("the provider's stream could not be closed", exc)


async def _request(
    turn: Turn, tools: dict[str, Tool], attempt: _Attempt, *, strict: bool
) -> LLMRequest:
    """Make the request: the prompt, the tools on offer, and what the model sees of the history."""
    asked, view, abilities = turn.given.config.options, turn.given.view, turn.progress.abilities
    if asked.headers:
        _hide(turn.given, asked.headers)
    model = asked.model or abilities.model
    prompt = await _prompt(turn)
    few = turn.progress.guards.concluding
    specs = strict_specs(tools, asked.strict_tools, few=few)
    if asked.strict_tools:
        attempt.specs = specs
    view.goes_with(prompt.before, specs)
    if abilities.count_tokens is not None:
        await _count(turn, abilities.count_tokens, abilities.prepare)
    hooks = turn.given.config.hooks
    shown: Sequence[Message]
    if strict or hooks.transform_context is not None or hooks.convert_to_llm is not None:
        chosen = await _chosen(turn, attempt)
        shown = render(chosen, provider=abilities.name, model=model, strict=strict)
    else:
        shown = view.of(
            turn.given.config,
            provider=abilities.name,
            model=model,
            window_tokens=abilities.window_tokens,
        )
        attempt.left_out = view.leaves_out
    sent = prompt.behind(shown)
    return LLMRequest(
        messages=sent,
        tools=specs,
        system_prompt=prompt.before,
        model=model,
        prompts=prompt.parts,
        ephemeral=sent is not shown,
    )


async def _chosen(turn: Turn, attempt: _Attempt) -> Sequence[Message]:
    """The messages within the limits, as the application's hooks change them."""
    config, view = turn.given.config, turn.given.view
    view.estimated = 0
    chosen: Sequence[Message] = view.chosen(config, turn.progress.abilities.window_tokens)
    attempt.left_out = len(chosen) < len(folded(view.history, _WHOLE))
    for name in ("transform_context", "convert_to_llm"):
        chosen = await turn.ask(name, getattr(config.hooks, name), chosen, default=chosen)
    return chosen


async def _options(turn: Turn, tools: dict[str, Tool], attempt: _Attempt) -> StreamOptions:
    """Make the options of the call, with the key that the application's hook returns for it."""
    given, config, abilities = turn.given, turn.given.config, turn.progress.abilities
    asked, held, said = config.options, attempt.held, attempt.said
    held[:] = [turn]

    async def key_of(provider: str) -> str | None:
        """The key from the application's hook; it must not appear in a text, log or store."""
        return await _key_of(held[0], provider) if held else None

    several, asks = abilities.asks_for_keys, config.hooks.get_api_key is not None
    temperature, max_tokens, thinking_level = config.sampling
    options = turn.progress.options = StreamOptions(
        temperature=temperature,
        max_tokens=max_tokens,
        thinking_level=thinking_level,
        stop=asked.stop,
        seed=asked.seed,
        logprobs=asked.logprobs,
        tool_choice=_tool_choice(turn, tools),
        headers=asked.headers,
        extra_body=asked.extra_body,
        thinking_budgets=config.thinking_budgets,
        session_id=given.context.context_id,
        api_key=await key_of(abilities.name) if asks and not several else None,
        key_of=key_of if several else None,
        timeout_s=config.llm_timeout_s,
        output_schema=None if turn.wanted is None else turn.wanted.option,
        connect_timeout_s=config.llm_connect_timeout_s,
        idle_timeout_s=config.llm_idle_timeout_s,
        warn=lambda code, text: said.append((code, text)),
        report=said.append,
    )
    return options


async def _count(
    turn: Turn,
    counter: Callable[[Sequence[str]], Awaitable[object]],
    prepare: Callable[[], Awaitable[object]] | None,
) -> None:
    """Let the model's tokenizer count the new messages; without it they are estimated."""
    try:
        with turn.scope:
            await turn.given.view.count(counter, prepare)
    except TurnInterrupted:
        raise
    except Exception as exc:  # noqa: BLE001 - estimates serve as well
        turn.log_failure("the provider's count_tokens failed: tokens are estimated instead", exc)
        text = f"the provider's count_tokens failed: tokens are estimated: {type(exc).__name__}"
        turn.out.warn("tokens_not_counted", text)


def _tool_choice(turn: Turn, tools: dict[str, Tool]) -> str | None:
    """
    The choice for this call; one that forces a tool is for the first call of a turn.

    Raises:
        InvalidTool: No tool has this name.
    """
    choice = turn.given.config.options.tool_choice
    if turn.progress.guards.concluding:
        return None
    if choice in (None, "auto", "none"):
        return choice
    if choice not in ("required", "any") and choice not in tools:
        known = ", ".join(tools) or "there are none"
        text = f"tool_choice names {choice!r}, which is not a tool of this turn: {known}"
        raise InvalidTool(text)
    return choice if turn.progress.iteration <= 1 else None


def _hide(given: Given, headers: Mapping[str, str]) -> None:
    """Keep the values of headers that look like credentials out of all that the turn leaves."""
    for name, value in headers.items():
        if names_a_secret(name):
            given.redactor.add((value, *value.split(" ")[1:]))


def _warn_of_cache(turn: Turn, request: LLMRequest) -> None:
    """Warn if *request* does not extend the last one, which costs the provider's prompt cache."""
    view = turn.given.view
    provider = turn.progress.abilities.name
    causes = view.sent.changes(request, provider, view.summary, view.begin)
    if causes:
        text = f"the prompt cache does not hold, because it changed: {', '.join(causes)}"
        turn.out.warn("cache_broken", text)


async def _key_of(turn: Turn, provider: str) -> str | None:
    given = turn.given
    hook, auth = given.config.hooks.get_api_key, given.context.auth_context
    key: str | None = await turn.ask("get_api_key", hook, provider, auth, default=None)
    given.redactor.add(key)
    return key


async def _prompt(turn: Turn) -> BuiltPrompt:
    given, own = turn.given, turn.given.context.system_prompt
    if isinstance(own, str) and not any(hasattr(one, "system_prompts") for one in given.sources):
        prompt = BuiltPrompt(own)  # no wait to cut short
    else:
        with turn.scope:
            brought = await prompts_of(given.sources, given.context)
            prompt = await build_prompt(own, brought, given.context)
    tool = None if turn.wanted is None else turn.wanted.tool
    if turn.progress.guards.concluding:
        limit = None if turn.plan.concluding else given.config.max_iterations  # it was another's
        prompt = prompt.concluding(limit, None if tool is None else tool.name)
    if tool is None:
        return prompt
    return replace(prompt, before=f"{prompt.before}\n\n{INSTRUCTION}".lstrip())


def _take(turn: Turn, message: AssistantMessage, attempt: _Attempt) -> None:
    turn.given.view.measure(message.usage)
    if attempt.specs:
        message = without_strict_nulls(message, attempt.specs)
    answer = turn.progress.answer = _clean(turn, message)
    turn.append(
        answer,
        started=attempt.started,
        first_delta_s=attempt.first_delta_s,
        attempts=attempt.number,
        usage=message.usage,
        request=attempt.digests or turn.given.view.sent.digest(turn.given.context.turn),
    )


async def _relieved(turn: Turn, attempt: _Attempt, error: ContextOverflow) -> bool:
    """Request room, at most once a turn; return true if room was made."""
    relief, asked = turn.relief, turn.progress.relieved
    if relief is None or asked:
        return False
    turn.progress.relieved = True
    attempt.held[:] = [turn]  # it may call the model with the same options
    try:
        with turn.scope:
            helped = await relief(turn, error)
    except (TurnInterrupted, BudgetExceeded, StoreError):
        raise
    except Exception as exc:  # noqa: BLE001 - the turn ends with the first error
        turn.log_failure("no room could be made in the model's window", exc)
        text = f"no room could be made in the model's window: {type(exc).__name__}"
        turn.out.warn("context_overflow", text)
        return False
    finally:
        attempt.held.clear()
    turn.given.view.drop()
    return helped


def _failure(final: StreamEvent | None) -> LLMError:
    if final is None:
        return InvalidLLMResponse("the provider's stream ended without an answer", retryable=True)
    if isinstance(final.error, LLMError):
        return final.error
    message = final.message.error_message if final.message is not None else None
    return InvalidLLMResponse(message or str(final.error) or "the model call failed")


def _fail(turn: Turn, error: LLMError, attempt: _Attempt) -> None:
    """End the turn; keep the model's text so far, marked as failed."""
    message = None if attempt.final is None else attempt.final.message
    turn.progress.end(StopReason.ERROR, error)
    if message is not None and message.text.strip():
        _take(turn, _cut(message, StopReason.ERROR, repair(str(error))), attempt)


def keep_partial(turn: Turn) -> None:
    """Keep the model's text so far when the turn was cut short, marked as aborted."""
    partial, turn.progress.partial = turn.progress.partial, None
    if partial is not None:
        turn.progress.use(partial.usage)
    if partial is not None and partial.text.strip():
        kept = _cut(partial, StopReason.ABORTED, CUT_SHORT)
        turn.append(_clean(turn, kept), usage=kept.usage)


def _cut(message: AssistantMessage, reason: StopReason, error: str) -> AssistantMessage:
    """The texts of a cut answer: its calls never ran, and its thinking may be incomplete."""
    texts = tuple(block for block in message.content if isinstance(block, TextContent))
    return replace(message, content=texts, stop_reason=reason, error_message=error, logprobs=())
