"""
Several providers as one: if one cannot answer, the next is called.

This happens only before anything was shown: one model does not continue half an answer of another.
And it happens only after failures that another provider can mend: no connection, a limit, an
overload, a spent balance, a missing model. A refused key or a wrong request stays a failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from looopy.errors import (
    ConfigurationError,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    RateLimited,
    UnsupportedContent,
    UnsupportedOption,
)
from looopy.llm.options import refused
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.llm.render import render
from looopy.llm.resolve import resolve_provider
from looopy.types.message import AssistantMessage, Usage
from looopy.types.request import LLMRequest, Reroute, StreamEvent, StreamOptions

_logger = logging.getLogger("looopy")
_NO_PLACE: Final = (UnsupportedContent, UnsupportedOption)  # at this provider, which is well
_MENDABLE: Final = (LLMUnavailable, RateLimited, InvalidLLMResponse, *_NO_PLACE)
_ELSEWHERE: Final = (402, 404)  # a spent balance, a missing model


class FallbackProvider:
    """
    Calls each of *providers* in turn until one answers. See `LLMProvider` for the contract.

    The next one is called if a call failed before anything of it was shown, with a failure that
    another provider can mend. The message names the one that answered (`provider`, `model`); each
    failure before is a `warning` event with the code `fallback`. The history is rendered for the
    called provider, and the call uses that provider's key (`Hooks.get_api_key` by its name).

    A provider that failed *failures* times in a row is left out for *cooldown_s*; then one call
    tries it again. Each process counts for itself.

    Args:
        providers: Names or providers, the best first.
        failures: Failures in a row after which one is left out.
        cooldown_s: For how long.
        clock: In seconds, from anywhere.

    Raises:
        ConfigurationError: *providers* is empty, or one is unknown or not configured.
    """

    name = ""
    """Not one provider's: the messages name the provider that answered."""

    asks_for_keys = True

    def __init__(
        self,
        providers: Sequence[LLMProvider | str],
        *,
        failures: int = 5,
        cooldown_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(providers, str) or not providers:
            raise ConfigurationError(
                "FallbackProvider takes a list, such as ['openai/gpt-5-mini', 'local']"
            )
        if failures < 1 or cooldown_s < 0:
            raise ConfigurationError("failures must be at least 1, and cooldown_s at least 0")
        self.providers = tuple(resolve_provider(provider) for provider in providers)
        self._breakers = [Breaker(failures, cooldown_s, clock) for _ in self.providers]

    def __repr__(self) -> str:
        return f"<FallbackProvider {', '.join(map(_label, self.providers))}>"

    @property
    def window_tokens(self) -> int | None:
        """The smallest known window: every provider should be able to read the whole request."""
        windows = [abilities_of(p).window_tokens for p in self.providers]
        return min((w for w in windows if w is not None), default=None)

    @property
    def structured_output(self) -> bool:
        """True if all of them keep to an output schema."""
        return all(abilities_of(p).structured_output for p in self.providers)

    def enforces(self, schema: Mapping[str, Any]) -> bool:
        """True if all of them keep to *schema*."""
        asked = (abilities_of(p).enforces for p in self.providers)
        return all(enforces is None or enforces(schema) for enforces in asked)

    @property
    def knows_cost(self) -> bool | None:
        """True if the cost of calls is known for all of them; `None`: one does not declare it."""
        known = [abilities_of(p).knows_cost for p in self.providers]
        return False if False in known else None if None in known else True

    def cost_of(self, usage: Usage, model: str = "") -> Usage:  # noqa: ARG002 - its own
        """*usage* at the price of the dearest; without a cost if one of them has no price."""
        priced = []
        for provider in self.providers:
            price = abilities_of(provider).cost_of
            cost = None if price is None else price(usage, "").cost
            if cost is None:
                return usage
            priced.append(cost)
        return replace(usage, cost=max(priced, key=lambda cost: cost.total))

    async def prepare(self) -> None:
        """Make all of them ready."""
        for provider in self.providers:
            prepare = abilities_of(provider).prepare
            if prepare is not None:
                await prepare()

    async def aclose(self) -> None:
        """Close all of them, also where one fails to."""
        async with AsyncExitStack() as stack:
            for provider in self.providers:
                close = abilities_of(provider).aclose
                if close is not None:
                    stack.push_async_callback(close)

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one call, by the first provider that answers. See `LLMProvider.stream`."""
        chain = _Chain(request, options or StreamOptions(), first=_label(self.providers[0]))
        yield StreamEvent("start")
        if request.model:
            why = "a FallbackProvider calls each provider's own model: leave the model out"
            error = refused("model", why, provider="", model=request.model)
            yield StreamEvent("error", message=AssistantMessage(), error=error)
            return
        for place, (provider, breaker) in enumerate(
            zip(self.providers, self._breakers, strict=True)
        ):
            if not breaker.enter():
                chain.left_out.append(breaker.wait_s)
                continue
            try:
                async with aclosing(chain.ask(provider, breaker)) as events:
                    async for event in events:
                        yield event
            finally:
                breaker.leave()
            if chain.ended:
                return
            rest = zip(self.providers[place + 1 :], self._breakers[place + 1 :], strict=True)
            following = next((other for other, its in rest if not its.wait_s), None)
            if following is not None:
                chain.tell(provider, following)
                yield StreamEvent("start")  # the warning is shown before the next one thinks
        yield chain.end(self.providers)


@dataclass(slots=True)
class _Chain:
    """One call on its way from provider to provider."""

    request: LLMRequest
    options: StreamOptions
    ended: bool = False
    errors: list[tuple[str, LLMError]] = field(default_factory=list)
    left_out: list[float] = field(default_factory=list)
    first: str = ""
    used: Usage = field(default_factory=Usage)
    ends_at: float | None = field(init=False)

    def __post_init__(self) -> None:
        limit = self.options.timeout_s
        self.ends_at = None if limit is None else asyncio.get_running_loop().time() + limit

    async def ask(
        self, provider: LLMProvider, breaker: Breaker
    ) -> AsyncGenerator[StreamEvent, None]:
        """The events of *provider*'s answer; empty, `ended` unset, if the next may be called."""
        request, options = self._request_of(provider), await self._options_of(provider)
        shown = False
        async with aclosing(_safely(provider, request, options)) as events:
            async for event in events:
                if event.type == "done":
                    self.ended = True
                    breaker.succeeded()
                    self._begun(provider, shown=shown)
                    yield self._counted(event)
                elif event.type == "error":
                    error = event.error
                    mendable = isinstance(error, LLMError) and _mendable(error)
                    well = isinstance(error, _NO_PLACE)
                    opened = mendable and not well and breaker.failed()
                    if isinstance(error, LLMError) and mendable and not shown:
                        self._failed(provider, error, event.message, opened=opened)
                    else:
                        self.ended = True
                        yield self._counted(event)
                elif event.type != "start":
                    self._begun(provider, shown=shown)
                    shown = True
                    yield event

    def _begun(self, provider: LLMProvider, *, shown: bool) -> None:
        """Report, before the first piece of its answer, that *provider* took over."""
        if shown or self.options.report is None or _label(provider) == self.first:
            return
        why = str(self.errors[0][1]) if self.errors else "it is left out after many failures"
        reroute = Reroute(asked=self.first, answered=_label(provider), by="fallback", reason=why)
        self.options.report(reroute)

    def tell(self, provider: LLMProvider, following: LLMProvider) -> None:
        """Report which provider failed, and which one is called instead."""
        if self.options.warn is not None:
            _, error = self.errors[-1]
            text = f"{_label(provider)} did not answer, {_label(following)} is asked: {error}"
            self.options.warn("fallback", text)

    def end(self, providers: Sequence[LLMProvider]) -> StreamEvent:
        """The error of a call without an answer: the one that is most likely to pass."""
        if not self.errors:
            names = ", ".join(map(_label, providers))
            error: LLMError = LLMUnavailable(
                f"{names}: left out for a while, as they failed again and again",
                retry_after_s=min(self.left_out, default=0.0),
            )
        else:
            hopeful = [e for _, e in self.errors if e.retryable] or [self.errors[-1][1]]
            best = min(hopeful, key=lambda e: getattr(e, "retry_after_s", None) or 0.0)
            told = "; ".join(f"{name}: {e}" for name, e in self.errors)
            error = best if len(self.errors) == 1 else type(best)(told, **best.facts)
        message = AssistantMessage(usage=self.used)
        return StreamEvent("error", message=message, error=error)

    def _failed(
        self, provider: LLMProvider, error: LLMError, message: Any, *, opened: bool
    ) -> None:
        name = _label(provider)
        self.errors.append((name, error))
        if message is not None:
            self.used += message.usage
        if opened:
            _logger.warning("%s failed again and again and is left out for a while", name)

    def _counted(self, event: StreamEvent) -> StreamEvent:
        """The last event, with what those used who did not answer."""
        message = event.message
        if message is None or self.used == Usage():
            return event
        return replace(event, message=replace(message, usage=message.usage + self.used))

    def _request_of(self, provider: LLMProvider) -> LLMRequest:
        request = replace(self.request, model="")
        its = abilities_of(provider)
        if its.asks_for_keys:  # several again
            return request
        shown = render(request.messages, provider=its.name, model=its.model)
        return replace(request, messages=shown)

    async def _options_of(self, provider: LLMProvider) -> StreamOptions:
        options, key_of = self.options, self.options.key_of
        left_s = options.timeout_s
        if self.ends_at is not None:
            left_s = max(0.001, self.ends_at - asyncio.get_running_loop().time())
        its = abilities_of(provider)
        if its.asks_for_keys:
            return replace(options, timeout_s=left_s)
        # A key that was not requested by name could be any provider's: no provider gets it.
        key = None if key_of is None else await key_of(its.name)
        return replace(options, timeout_s=left_s, api_key=key, key_of=None)


async def _safely(
    provider: LLMProvider, request: LLMRequest, options: StreamOptions
) -> AsyncGenerator[StreamEvent, None]:
    """The provider's events, of which the last one is `done` or `error`, whatever it does."""
    stream = provider.stream(request, options)
    who = _label(provider)
    try:
        async for event in stream:
            yield event
            if event.type in ("done", "error"):
                return
        error: LLMError = LLMUnavailable(f"{who} ended its stream without an answer")
    except Exception as exc:
        text = "%s raised instead of ending its stream with an error, in context %s"
        place = {"context_id": options.session_id}
        _logger.exception(text, who, options.session_id, extra=place)
        error = InvalidLLMResponse(f"{who} failed: {exc}")
    finally:
        close = getattr(stream, "aclose", None)
        try:
            if close is not None:
                await close()
        except Exception:
            place = {"context_id": options.session_id}
            text = "the stream of %s could not be closed, in context %s"
            _logger.exception(text, who, options.session_id, extra=place)
    yield StreamEvent("error", error=error)


def _mendable(error: LLMError) -> bool:
    """True if another provider may succeed."""
    return isinstance(error, _MENDABLE) or getattr(error, "status", None) in _ELSEWHERE


def _label(provider: LLMProvider) -> str:
    its = abilities_of(provider)
    return "/".join(part for part in (its.name, its.model) if part) or type(provider).__name__


@dataclass(slots=True, eq=False)
class Breaker:
    """
    Counts one provider's failures.

    Args:
        failures: How many in a row open it.
        cooldown_s: How long it then stays open.
        clock: In seconds, from anywhere.
    """

    failures: int
    cooldown_s: float
    clock: Callable[[], float]
    _failed: int = field(init=False, default=0)
    _opened_at: float | None = field(init=False, default=None)
    _trying: bool = field(init=False, default=False)

    @property
    def wait_s(self) -> float:
        """How long until a call is let through; 0 when it is at once."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self.cooldown_s - self.clock())

    def enter(self) -> bool:
        """
        True if a call may be made now. An admitted caller then reports the outcome, or calls
        `leave`.
        """
        if self._opened_at is None:
            return True
        if self._trying or self.wait_s > 0:
            return False
        self._trying = True
        return True

    def leave(self) -> None:
        """The call ended without a meaningful outcome."""
        self._trying = False

    def succeeded(self) -> None:
        """The call was answered."""
        self._failed, self._opened_at, self._trying = 0, None, False

    def failed(self) -> bool:
        """The call failed; true if that opened it."""
        self._failed += 1
        self._trying = False
        opens = self._failed >= self.failures
        if opens:
            self._opened_at = self.clock()
        return opens
