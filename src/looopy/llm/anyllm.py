"""
Every provider that any-llm knows, through its own vocabulary: OpenAI's chat completions.

A request is written and an answer is read as for any server that speaks that format, in
`looopy.llm.openai.chat`; any-llm translates both for the provider. Decision 0038 says why it is
any-llm rather than LiteLLM.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from looopy.errors import LLMError, LLMUnavailable, UnknownModel, missing_extra
from looopy.llm.accumulate import Accumulator
from looopy.llm.dialects import Dialect, as_dialect, dialect_of
from looopy.llm.documents import warn_of_citations
from looopy.llm.failures import failure_of, redact
from looopy.llm.limits import report_limits
from looopy.llm.logprobs import wanted, warn_of_missing
from looopy.llm.openai import chat, form
from looopy.llm.options import refused
from looopy.llm.tool_schemas import ToolFitter
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_FIRST_FACTOR = 3.0  # before its first word a model may think
_TAKEN = frozenset(
    {"messages", "tools", "tool_choice", "temperature", "max_tokens", "stop", "seed"}
    | {"response_format", "reasoning_effort", "logprobs", "top_logprobs"}
)


# any-llm makes a text of a parameter with alternatives, unless the schema has definitions: then it
# sends the schema as it is.
_WITH_DEFINITIONS = frozenset({"gemini", "vertexai"})


class AnyLLMProvider:
    """
    A model called through any-llm. See `LLMProvider` for the contract.

    Args:
        model: The provider, as any-llm names it, and the model, such as `"mistral:mistral-small"`.
        api_key: `None`: any-llm looks where that provider's key usually is.
        base_url: Another server of that provider's kind.
        structured_output: The provider keeps the model to an output schema, beside tools too.
        window_tokens: The size of the model's window, if it is known.
        extra: More arguments of `any_llm.acompletion`. Packages of providers retry by themselves,
            unseen; `{"client_args": {"max_retries": 0}}` turns that off where they take it.
        dialect: The rules of the server; `None`: those that `looopy.llm.dialects` has for
            *base_url*, the provider and the model.
        idle_timeout_s: The longest silence within an answer, unless the call sets it; three times
            that before its first word.

    Raises:
        ConfigurationError: *dialect* is not one.
        MissingExtra: any-llm is not installed.
        UnknownModel: *model* does not name a provider.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        structured_output: bool = False,
        window_tokens: int | None = None,
        extra: Mapping[str, Any] | None = None,
        dialect: Dialect | None = None,
        idle_timeout_s: float = 60.0,
    ) -> None:
        self.name, _, self.model = model.partition(":")
        if not self.name or not self.model:
            raise UnknownModel(
                f"which provider has {model!r}? Name both, such as"
                " AnyLLMProvider('mistral:mistral-small')"
            )
        if find_spec("any_llm") is None:
            needed = f'the any-llm package, and the packages of its extra "{self.name}"'
            raise missing_extra(f"this model needs {needed}", "any-llm")
        self.structured_output = structured_output
        self.window_tokens = window_tokens
        self._api_key = api_key
        self._base_url = base_url
        self._extra = dict(extra or {})
        self._dialect = as_dialect(dialect)
        self._fitters: dict[str, ToolFitter] = {}  # by model
        self._idle_timeout_s = idle_timeout_s
        self._without_usage = False  # the provider was seen to refuse the wish for it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}:{self.model}>"

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events. See `LLMProvider.stream`."""
        options = options or StreamOptions()
        model = request.model or self.model
        key = options.api_key or self._api_key or ""
        answer = Accumulator(api=chat.API, provider=self.name, model=model)
        answer.logprobs = wanted(options)
        for event in answer.start():
            yield event
        last: Sequence[StreamEvent]
        try:
            async with asyncio.timeout(options.timeout_s):
                fitted = self._fitter(model).fit(request, options)
                body, sources = self._body(fitted.request, options, model)
                # any-llm makes the ids of some providers' chunks: one each, or one a second.
                apart = self._dialect_of(model).thoughts_apart
                reader = chat.ChunkReader(
                    answer, sources=sources, secrets=(key,), ids=False, apart=apart
                )
                async with aclosing(self._chunks(body, options, key)) as chunks:
                    async for data in chunks:
                        for event in reader.feed(data):
                            yield event
                last = fitted.restored(reader.end(said_done=False))
                warn_of_missing(options, answer.logprobs, answer.snapshot())
        except Exception as error:  # noqa: BLE001 - whatever it is, the contract makes it an event
            failed = self._failure(error, model, key, options).with_traceback(None)
            failed.__context__ = None  # it and the frames may hold the key
            last = answer.error(failed)
        for event in last:
            yield event

    async def prepare(self) -> None:
        """Load any-llm and the provider's own package, in a thread."""
        await asyncio.to_thread(import_module, "any_llm")

    def _body(
        self, request: LLMRequest, options: StreamOptions, model: str
    ) -> tuple[dict[str, Any], list[int]]:
        if options.headers:
            why = (
                "any-llm takes no headers for one call: give AnyLLMProvider"
                " extra={'client_args': ...} with the headers of the provider's own client"
            )
            raise refused("headers", why, provider=self.name, model=model)
        warn_of_citations(options, request.messages, f"{self.name}:{model}")
        dialect = self._dialect_of(model)
        whole, sources = chat.to_body(
            request, options, provider=self.name, model=model, official=False, dialect=dialect
        )
        body = {name: value for name, value in whole.items() if name in _TAKEN}
        for one in body.get("tools", ()) if self.name in _WITH_DEFINITIONS else ():
            one["function"]["parameters"].setdefault("$defs", {})
        body = {"model": model, **body, **self._extra, **options.extra_body}
        return form.without_sampling(body, dialect, options), sources

    def _fitter(self, model: str) -> ToolFitter:
        return self._fitters.setdefault(model, ToolFitter(self._dialect_of(model)))

    def _dialect_of(self, model: str) -> Dialect:
        return self._dialect or dialect_of(self._base_url or "", self.name, model)

    async def _chunks(
        self, body: dict[str, Any], options: StreamOptions, key: str
    ) -> AsyncGenerator[str, None]:
        idle_s = options.idle_timeout_s or self._idle_timeout_s
        await self.prepare()
        any_llm = import_module("any_llm")
        if key:
            body["api_key"] = key
        if self._base_url:
            body["api_base"] = self._base_url
        body = {"stream_options": {"include_usage": True}, **body}
        if self._without_usage:
            del body["stream_options"]
        common = {"provider": self.name, "stream": True}
        async with asyncio.timeout(idle_s * _FIRST_FACTOR):
            try:
                chunks = await any_llm.acompletion(**common, **body)
            except Exception as error:
                if self._without_usage or "stream_options" not in str(error):
                    raise
                self._without_usage = True
                del body["stream_options"]
                chunks = await any_llm.acompletion(**common, **body)
        waits_s = idle_s * _FIRST_FACTOR
        ahead = aiter(chunks)
        try:
            while True:
                async with asyncio.timeout(waits_s):
                    chunk = await anext(ahead, None)
                if chunk is None:
                    return
                data = chunk.model_dump(mode="json", exclude_none=True)
                if any(set(c.get("delta", ())) - {"role"} for c in data.get("choices", ())):
                    waits_s = idle_s
                yield json.dumps(_plain(data))
        finally:
            close = getattr(chunks, "aclose", None) or getattr(chunks, "close", None)
            if close is not None:
                await close()

    def _failure(self, error: Exception, model: str, key: str, options: StreamOptions) -> LLMError:
        facts: dict[str, Any] = {"provider": self.name, "model": model}
        if isinstance(error, LLMError):
            return error
        if isinstance(error, TimeoutError):
            return LLMUnavailable(f"{self.name} fell silent", **facts)
        inner = getattr(error, "original_exception", None) or error
        status = getattr(inner, "status_code", None)
        if isinstance(status, int) and 400 <= status < math.inf:
            said = getattr(inner, "body", None) or str(inner)
            headers = getattr(getattr(inner, "response", None), "headers", None)
            found = failure_of(status, said, headers=headers, secrets=(key,), **facts)
            report_limits(options.report, headers or {}, refusal=found, **facts)
            return found
        text = redact(str(error) or type(error).__name__, (key,))
        if "connect" in type(inner).__name__.lower() or isinstance(inner, OSError):
            return LLMUnavailable(f"{self.name} cannot be reached: {text}", **facts)
        return LLMError(f"the request to {self.name} failed: {text}", **facts)


def _plain(chunk: dict[str, Any]) -> dict[str, Any]:
    """*chunk* with its reasoning as text, where any-llm has an object around it."""
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta", {})
        if isinstance(reasoning := delta.get("reasoning"), dict):
            delta["reasoning"] = reasoning.get("content")
    return chunk
