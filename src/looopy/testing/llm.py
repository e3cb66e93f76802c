"""
A model that plays a script, for tests without keys, network or chance.

`ScriptedProvider` goes through the same `Accumulator` as the real providers, so what a test sees
has the order and the shape of what a user will see. Each model call takes the next reply:

    ScriptedProvider([
        text("hi"),
        (text("let me see"), tool_call("add", a=1, b=2)),
        failure(RateLimited),
    ])
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from looopy.errors import LLMError
from looopy.llm.accumulate import Accumulator
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_CHARS_PER_TOKEN = 4
_IMAGE_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class ScriptedText:
    """The model answers `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """The model calls tool `name`; `arguments` is the JSON text it sends."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """The call fails with `error`."""

    error: LLMError


Line: TypeAlias = ScriptedText | ScriptedCall | ScriptedFailure
Reply: TypeAlias = Line | tuple[Line, ...] | Callable[[LLMRequest], Any]


def text(s: str) -> ScriptedText:
    """A reply, or part of one, that is text."""
    return ScriptedText(s)


def tool_call(name: str, /, **args: Any) -> ScriptedCall:
    """A reply, or part of one, that calls tool *name* with *args*; they must be JSON."""
    return ScriptedCall(name, json.dumps(args))


def failure(exc: Exception | type[Exception]) -> ScriptedFailure:
    """
    A model call that fails; within a tuple, after what stands before it.

    Args:
        exc: An `LLMError` or its class, retried when it is retryable; anything else is wrapped in
            an `LLMError` that is not.
    """
    error = exc(f"{exc.__name__}, as scripted") if isinstance(exc, type) else exc
    if isinstance(error, LLMError):
        return ScriptedFailure(error)
    wrapped = LLMError(f"{type(error).__name__}: {error}", provider="scripted", retryable=False)
    wrapped.__cause__ = error
    return ScriptedFailure(wrapped)


class ScriptedProvider:
    """
    A model that answers from a script.

    As a context manager, sync or async, it fails on leaving if replies were not used.

    Args:
        replies: One for each model call, in order: `text(...)`, `tool_call(...)`, `failure(...)`, a
            tuple of them for one response, or a function (also a coroutine function) that takes the
            `LLMRequest` and returns any of these. A bare function answers every call.
        repeat: Start over at the end of the script. Otherwise a call beyond its end fails.
        chunk_chars: Characters of text or argument JSON in a delta; `None`: all in one.
        delay_s: Seconds to wait before each chunk.

    Attributes:
        requests: The `LLMRequest` of each call; its message list is a copy.
        options: The `StreamOptions` of each call.
    """

    name = "scripted"
    model = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[LLMRequest], Any],
        *,
        repeat: bool = False,
        chunk_chars: int | None = None,
        delay_s: float = 0,
    ) -> None:
        self._always = replies if callable(replies) else None
        self._replies: list[Reply] = [] if callable(replies) else list(replies)
        for reply in self._replies:
            if not callable(reply):
                _lines(reply)
        if chunk_chars is not None and chunk_chars < 1:
            raise ValueError("chunk_chars must be at least 1, or None")
        self._repeat = repeat
        self._chunk_chars = chunk_chars
        self._delay_s = delay_s
        self._next = 0
        self._calls = 0
        self.requests: list[LLMRequest] = []
        self.options: list[StreamOptions] = []

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Play the next reply. See `LLMProvider.stream`."""
        self.requests.append(
            replace(request, messages=list(request.messages), tools=list(request.tools))
        )
        self.options.append(options or StreamOptions())
        reply = self._take()
        answer = Accumulator(api="scripted", provider=self.name, model=request.model or self.model)
        answer.usage = Usage(input=_tokens(_request_chars(request)))
        for event in answer.start():
            yield event
        try:
            if callable(reply):
                reply = reply(request)
                if inspect.isawaitable(reply):
                    reply = await reply
            lines = _lines(reply)
        except Exception as error:  # noqa: BLE001 - a provider reports what its script does
            lines = (failure(error),)
        written = 0
        for index, line in enumerate(lines):
            if isinstance(line, ScriptedFailure):
                await asyncio.sleep(self._delay_s)
                for event in answer.error(line.error):
                    yield event
                return
            written += len(line.text if isinstance(line, ScriptedText) else line.arguments)
            call_id = None if isinstance(line, ScriptedText) else self._call_id()
            for chunk in self._chunks(line):
                await asyncio.sleep(self._delay_s)
                for event in (
                    answer.text_delta(chunk)
                    if isinstance(line, ScriptedText)
                    else answer.tool_call(
                        index, call_id=call_id, name=line.name, arguments_delta=chunk
                    )
                ):
                    yield event
        spent = Usage(input=answer.usage.input, output=_tokens(written))
        usage = replace(spent, total_tokens=spent.input + spent.output)
        for event in answer.done(StopReason.STOP, usage):
            yield event

    @property
    def remaining(self) -> int:
        """How many replies were not used yet; 0 for a bare function."""
        return max(0, len(self._replies) - self._next)

    def assert_exhausted(self) -> None:
        """
        Check that every reply was used.

        Raises:
            AssertionError: The script has replies left over.
        """
        if self.remaining:
            raise AssertionError(
                f"{self.remaining} of {len(self._replies)} scripted replies were not used;"
                f" the next is {self._replies[self._next]!r}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_exhausted()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)

    def _take(self) -> Reply:
        if self._always is not None:
            return self._always
        if self._replies and (self._repeat or self._next < len(self._replies)):
            reply = self._replies[self._next % len(self._replies)]
            self._next += 1
            return reply
        return failure(
            LLMError(
                f"the script is over: model call {len(self.requests)} was made, but"
                f" {len(self._replies)} replies are scripted",
                provider=self.name,
            )
        )

    def _call_id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"

    def _chunks(self, line: ScriptedText | ScriptedCall) -> Sequence[str]:
        whole = line.text if isinstance(line, ScriptedText) else line.arguments
        size = self._chunk_chars or len(whole) or 1
        return [whole[i : i + size] for i in range(0, len(whole), size)]


def _lines(reply: Any) -> tuple[Line, ...]:
    lines = reply if isinstance(reply, tuple) else (reply,)
    for line in lines:
        if not isinstance(line, (ScriptedText, ScriptedCall, ScriptedFailure)):
            raise TypeError(
                f"{line!r} is not a reply: use text(...), tool_call(...), failure(...), a tuple of"
                " them or a function of the request"
            )
    return lines


def _tokens(chars: int) -> int:
    return -(-chars // _CHARS_PER_TOKEN)


def _request_chars(request: LLMRequest) -> int:
    return len(request.system_prompt) + sum(_message_chars(m) for m in request.messages)


def _message_chars(message: Message) -> int:
    if isinstance(message.content, str):
        return len(message.content)
    total = 0
    for block in message.content if isinstance(message.content, (tuple, list)) else ():
        if isinstance(block, TextContent):
            total += len(block.text)
        elif isinstance(block, ThinkingContent):
            total += len(block.thinking)
        elif isinstance(block, ToolCall):
            total += len(block.name) + len(json.dumps(block.arguments))
        elif isinstance(block, (ImageContent, DocumentContent, AudioContent)):
            total += _IMAGE_TOKENS * _CHARS_PER_TOKEN
    return total
