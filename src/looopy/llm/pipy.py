"""
A user's own pipy-ai as a provider: its `astream`, or any stream function of that shape.

pipy-ai is on no package index, so nothing here depends on it: it is imported when a `PipyProvider`
is made, and only then. Messages are the same on both sides, field for field, and are built as the
module's own types. The provider corrects its known faults: an error without a message, a stream
that just stops or raises, missing usage.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, get_args

from looopy.errors import ConfigurationError, InvalidLLMResponse, LLMError, MissingExtra
from looopy.llm.dialects import dialect_of
from looopy.llm.documents import without_files
from looopy.llm.failures import failure_of
from looopy.llm.openai.form import with_call_ids
from looopy.llm.options import refused
from looopy.llm.tool_schemas import ToolFitter
from looopy.types.message import (
    DOLLARS,
    AssistantMessage,
    StopReason,
    ToolCall,
    now_ms,
)
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.request import (
    LLMRequest,
    StreamEvent,
    StreamEventType,
    StreamOptions,
    ThinkingLevel,
    ToolSpec,
)

_logger = logging.getLogger("looopy")
_TYPES = frozenset(get_args(StreamEventType))
_FAILED = (StopReason.ERROR, StopReason.ABORTED)
_CLASSES = {
    "user": "UserMessage",
    "assistant": "AssistantMessage",
    "toolResult": "ToolResultMessage",
}
# The shape of a failure: a text that names the kind of exception, or a status.
_STATUS = re.compile(
    r"\b(?:HTTP|status(?: code)?|error(?: code)?)\W{0,3}([45]\d\d)\b", re.IGNORECASE
)
_TRANSIENT = (
    r"overloaded|ServiceUnavailable|service.unavailable|InternalServer|server.error|APIConnection"
    r"|connection (?:error|refused|reset)|fetch failed|upstream connect|terminated|time(?:d )?.?out"
)
_STATUS_OF_KIND = (
    (r"RateLimit|too many requests|rate.?limit", 429),
    (r"AuthenticationError|invalid.api.key", 401),
    (r"PermissionDenied", 403),
    (r"NotFoundError", 404),
    (r"ContextWindowExceeded|BadRequest|UnprocessableEntity", 400),
    (_TRANSIENT, 503),
)


@dataclass(frozen=True, slots=True)
class Context:
    """The context for a stream function without types of its own: pi's, with our types."""

    system_prompt: str | None = None
    messages: list[Any] = field(default_factory=list)
    tools: list[ToolSpec] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleStreamOptions:
    """The options for such a function, under pi's names."""

    temperature: float | None = None
    max_tokens: int | None = None
    session_id: str | None = None
    headers: Mapping[str, str] | None = None
    api_key: str | None = None
    reasoning: Any = None
    thinking_budgets: Any = None


class PipyProvider:
    """
    Calls a model through the pipy-ai that the user has.

    Args:
        model: As pipy-ai names it, such as `"anthropic/claude-sonnet-4-5"`.
        pipy: The module; or an async stream function of `(model, context, options)`, which receives
            messages, tools and options of our types; by default the module `pipy_ai`.
        window_tokens: The size of the model's window, if known.

    Raises:
        ConfigurationError: The module is missing, or *pipy* has no stream function.
    """

    def __init__(self, model: str, pipy: Any = None, *, window_tokens: int | None = None) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigurationError(
                "PipyProvider needs a model, such as 'anthropic/claude-sonnet-4-5'"
            )
        given = _imported() if pipy is None else pipy
        plain = getattr(given, "astream", None)
        self._types: Any = None if plain is None else given
        stream: Any = given if plain is None else getattr(given, "astream_simple", plain)
        if not callable(stream):
            raise ConfigurationError(
                f"{given!r} does not stream: give the module pipy_ai, or an async function of"
                " (model, context, options)"
            )
        self._stream: Callable[..., Any] = stream
        self.model = model
        self.name = model.partition("/")[0]
        self.window_tokens = window_tokens
        self._fitters: dict[str, ToolFitter] = {}  # by model

    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMProvider.stream`."""
        partial: _Partial | None = None
        last: StreamEvent | None = None
        events: Any = None
        model = request.model or self.model
        dialect = dialect_of("", self.name, model.partition("/")[2] or model)
        fitted = self._fitters.setdefault(model, ToolFitter(dialect)).fit(request, options)
        request = replace(fitted.request, messages=with_call_ids(fitted.request.messages, dialect))
        try:
            events = self._call(request, options)
            if inspect.isawaitable(events):
                events = await events
            if not hasattr(events, "__aiter__"):
                raise ConfigurationError(  # noqa: TRY301 - reported like every other failure
                    "the stream function returned no async iterator: give the async one"
                )
            async for theirs in events:
                event = self._event(theirs)
                if event is None:
                    continue
                if event.type in ("done", "error"):
                    last = event
                    break
                partial = event.partial if isinstance(event.partial, _Partial) else partial
                for one in fitted.restored((event,)):
                    yield one
        except Exception as error:  # noqa: BLE001 - a provider never raises for a failed request
            last = self._failed(_reason(error), partial, error, options)
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
        if last is None:
            silent = InvalidLLMResponse(
                "pipy-ai's stream ended without an answer",
                retryable=True,
                provider=self.name,
                model=self.model,
            )
            last = StreamEvent("error", message=_broken(partial, str(silent)), error=silent)
        elif last.type == "error" and last.error is None:
            message = last.message
            reason = message.error_message if message is not None else None
            last = self._failed(reason or "", partial, None, options, message)
        if last.message is not None:  # as a later call for it will expect
            said = replace(last.message, provider=self.name, model=request.model or self.model)
            last = replace(last, message=said)
        for one in fitted.restored((last,)):
            yield one

    def _call(self, request: LLMRequest, options: StreamOptions) -> Any:
        self._refuse(request, options)
        types = self._types
        level = options.thinking_level
        reasoning = None if level in (None, ThinkingLevel.OFF) else level
        asked: dict[str, Any] = {
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "session_id": options.session_id,
            "headers": dict(options.headers) or None,
            "api_key": options.api_key,
            "reasoning": reasoning,
            "thinking_budgets": options.thinking_budgets,
        }
        prompt = request.system_prompt or None
        if types is None:
            context: Any = Context(prompt, list(request.messages), list(request.tools) or None)
            return self._stream(request.model or self.model, context, SimpleStreamOptions(**asked))
        if reasoning is not None:
            asked["reasoning"] = types.ThinkingLevel(reasoning.value)
        if options.thinking_budgets is not None and hasattr(types, "ThinkingBudgets"):
            asked["thinking_budgets"] = types.ThinkingBudgets(**options.thinking_budgets)
        messages = [
            _built(getattr(types, _CLASSES[message.role]), message_to_json(message))
            for message in without_files(
                request.messages, provider=self.name, model=request.model or self.model, images=True
            )
            if message.role in _CLASSES
        ]
        tools = [
            types.Tool(name=t.name, description=t.description, parameters=dict(t.parameters))
            for t in request.tools
        ]
        context = types.Context(system_prompt=prompt, messages=messages, tools=tools or None)
        given = {name: value for name, value in asked.items() if value is not None}
        return self._stream(
            request.model or self.model, context, types.SimpleStreamOptions(**given)
        )

    def _refuse(self, request: LLMRequest, options: StreamOptions) -> None:
        """Refuse the options for which pipy-ai has no place."""
        asked = {
            "tool_choice": options.tool_choice is not None,
            "stop": bool(options.stop),
            "seed": options.seed is not None,
            "logprobs": options.logprobs is not None,
            "strict_tools": any(tool.strict for tool in request.tools),
            "output_schema": options.output_schema is not None,
            "extra_body": bool(options.extra_body),
        }
        option = next((name for name, is_asked in asked.items() if is_asked), None)
        if option is not None:
            why = f"pipy-ai takes no {option}: leave it out, or call the model without PipyProvider"
            raise refused(option, why, provider=self.name, model=request.model or self.model)

    def _event(self, theirs: Any) -> StreamEvent | None:
        """One event of pipy-ai as ours; `None` for an unknown kind."""
        kind: Any = getattr(theirs, "type", None)
        if kind not in _TYPES:
            _logger.warning("pipy-ai sent an event of no known type: %r", kind)
            return None
        if kind in ("done", "error"):
            told = getattr(theirs, "message", None) or getattr(theirs, "error", None)
            if isinstance(told, str) or told is None:
                message = AssistantMessage(stop_reason=StopReason.ERROR, error_message=told or None)
            else:
                message = _message(told)
            if kind == "done" and told is not None and message.stop_reason not in _FAILED:
                return StreamEvent("done", message=message)
            if message.stop_reason not in _FAILED:
                message = replace(message, stop_reason=StopReason.ERROR)
            return StreamEvent("error", message=message)
        partial = getattr(theirs, "partial", None)
        call = getattr(theirs, "tool_call", None)
        delta = getattr(theirs, "delta", None) or getattr(theirs, "content", None)
        return StreamEvent(
            kind,
            int(getattr(theirs, "content_index", 0) or 0),
            delta if isinstance(delta, str) else "",
            None if partial is None else _Partial(partial),
            None if call is None else _call_of(call),
        )

    def _failed(
        self,
        reason: str,
        partial: _Partial | None,
        cause: Exception | None,
        options: StreamOptions,
        message: AssistantMessage | None = None,
    ) -> StreamEvent:
        text = reason or "pipy-ai's stream failed without a reason"
        error = self._error(text, cause, options)
        if message is None or not message.content:
            stopped = StopReason.ERROR if message is None else message.stop_reason
            message = replace(_broken(partial, str(error)), stop_reason=stopped)
        return StreamEvent("error", message=replace(message, error_message=str(error)), error=error)

    def _error(self, text: str, cause: Exception | None, options: StreamOptions) -> LLMError:
        if isinstance(cause, LLMError):
            return cause
        status = _status_of(text)
        secrets = () if options.api_key is None else (options.api_key,)
        if status is not None:
            return failure_of(status, text, provider=self.name, model=self.model, secrets=secrets)
        overflow = failure_of(400, text, provider=self.name, model=self.model, secrets=secrets)
        if type(overflow) is not LLMError:
            return overflow
        return LLMError(str(overflow).replace("(HTTP 400)", "(pipy-ai)"), **overflow.facts)


class _Partial:
    """Their message as it grows; a `PartialMessage`."""

    __slots__ = ("_theirs",)

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    @property
    def text(self) -> str:
        return self.snapshot().text

    def snapshot(self) -> AssistantMessage:
        message = _message(self._theirs)
        return replace(message, content=[b for b in message.content if not isinstance(b, ToolCall)])


def _imported() -> Any:
    try:
        return import_module("pipy_ai")
    except ImportError as error:
        raise MissingExtra(
            "PipyProvider needs pipy-ai, which is on no package index: install it from its"
            " repository, or pass the module or a stream function; OpenAIProvider and"
            " AnthropicProvider reach the same models without it"
        ) from error


def _built(kind: Any, data: dict[str, Any]) -> Any:
    """An object of pipy-ai's type; fields that only we have are left out."""
    usage = data.get("usage")
    if usage is not None and usage["cost"] is None:  # theirs always has one
        usage["cost"] = dict.fromkeys(DOLLARS, 0.0)
    data.pop("logprobs", None)
    if data.get("stop_reason") == StopReason.PAUSED:  # theirs has no such word
        data["stop_reason"] = StopReason.STOP.value
    for block in data["content"] if isinstance(data["content"], list) else ():
        for ours in ("invalid_arguments", "url", "cite"):
            block.pop(ours, None)
    validate = getattr(kind, "model_validate", None)
    return kind(**data) if validate is None else validate(data)


def _message(theirs: Any) -> AssistantMessage:
    """Their assistant message as ours; a missing usage is zero, a missing time is now."""
    if isinstance(theirs, AssistantMessage):
        return theirs
    data = dict(_data(theirs))
    data["role"] = "assistant"
    data["timestamp"] = data.get("timestamp") or now_ms()
    message = message_from_json(data)
    if not isinstance(message, AssistantMessage):  # pragma: no cover - its role says so
        raise InvalidLLMResponse("pipy-ai answered with something that is not an answer")
    cost = message.usage.cost
    if cost is not None and not cost.total:  # of a model whose price it does not know
        message = replace(message, usage=replace(message.usage, cost=None))
    return message


def _call_of(theirs: Any) -> ToolCall:
    if isinstance(theirs, ToolCall):
        return theirs
    data = _data(theirs)
    return ToolCall(
        str(data.get("id") or ""), str(data.get("name") or ""), dict(data.get("arguments") or {})
    )


def _data(theirs: Any) -> Mapping[str, Any]:
    if isinstance(theirs, Mapping):
        return theirs
    dump = getattr(theirs, "model_dump", None)
    data = dump(mode="json") if dump is not None else vars(theirs)
    return {key: _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dict__") and not isinstance(value, (str, int, float)):
        return dict(_data(value))
    return value


def _broken(partial: _Partial | None, reason: str) -> AssistantMessage:
    """The partial content of an answer that broke off."""
    message = AssistantMessage() if partial is None else partial.snapshot()
    return replace(message, stop_reason=StopReason.ERROR, error_message=reason)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _status_of(text: str) -> int | None:
    found = _STATUS.search(text)
    if found is not None:
        return int(found[1])
    for words, status in _STATUS_OF_KIND:
        if re.search(words, text, re.IGNORECASE):
            return status
    return None
