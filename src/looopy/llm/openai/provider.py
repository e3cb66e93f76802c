"""
Any server that speaks OpenAI's chat completions or its Responses API, through the official SDK.

Requests are written in `looopy.llm.openai.chat` and `looopy.llm.openai.responses_format`; answers
are read in the former and in `looopy.llm.openai.responses_events`. The client, the key, the waits
and the errors are the same for every provider over an SDK: see `looopy.llm.sdk`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, UnknownModel
from looopy.llm.accumulate import Accumulator
from looopy.llm.dialects import Dialect
from looopy.llm.documents import warn_of_citations
from looopy.llm.openai import chat as chat_format
from looopy.llm.openai import form, responses_events, responses_format, tokens
from looopy.llm.openai.vendor import Vendor, vendor_of
from looopy.llm.sdk import DRAIN_WAIT_S, ApiKey, Call, SDKProvider
from looopy.types.constructors import suggesting
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_Reader: TypeAlias = chat_format.ChunkReader | responses_events.EventReader
_USAGE_WAIT_S = 5.0
_MOST_READ = 20_000  # characters of a refusal, which may have any length
_MAX_TOKENS = "max_completion_tokens"
_CACHE_KEY: Final = re.compile("prompt_cache_key")
_EFFORT: Final = re.compile(r"reasoning_effort|\.effort\b")
# OpenAI: Supported values are: 'low', and 'high'. Mistral: supported values: [high, none]. OpenAI,
# with tools: use /v1/responses or set reasoning_effort to 'none'.
_EFFORTS_TAKEN: Final = re.compile(
    r"(?s)(?:upported values(?: are)?|set reasoning_effort to)\W(.*?)(?:[.\]]|$)"
)
# OpenAI and Azure: Unsupported value: 'temperature' does not support 0.2 with this model. Only the
# default (1) value is supported. Moonshot: invalid temperature: only 1 is allowed for this model
_NO_SAMPLING: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    name: (re.compile(rf"(?i)unsupported (?:value|parameter): '{name}'|invalid {name}\b"), "")
    for name in form.SAMPLING
}
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class _Format:
    """
    One of the two formats.

    Attributes:
        name: Its name in messages.
        to_body: Writes a request in this format.
        reader: Reads an answer in this format.
        always: Fields of every body, unless the user sets them.
        without: A body without one of the optional parts, or with another in its place.
        optional: Parts that some servers or models refuse, the pattern of such a refusal, and the
            field to send instead.
    """

    name: str
    to_body: Callable[..., tuple[dict[str, Any], list[int]]]
    reader: type[_Reader]
    always: Mapping[str, Any]
    without: Callable[[dict[str, Any], str, str], dict[str, Any]]
    optional: Mapping[str, tuple[re.Pattern[str], str]]


_FORMATS: Final = {
    "completions": _Format(
        chat_format.API,
        chat_format.to_body,
        chat_format.ChunkReader,
        {"stream_options": {"include_usage": True}},
        chat_format.without,
        {
            "stream_options": (re.compile("stream_options"), ""),
            "prompt_cache_key": (_CACHE_KEY, ""),
            # Its reasoning models say: Unsupported parameter: 'max_tokens' is not supported with
            # this model. Use 'max_completion_tokens' instead.
            "max_tokens": (re.compile(r"[Uu]se '?max_completion_tokens"), _MAX_TOKENS),
            _MAX_TOKENS: (re.compile(rf"(?<![Uu]se )(?<![Uu]se '){_MAX_TOKENS}"), "max_tokens"),
            **_NO_SAMPLING,
        },
    ),
    "responses": _Format(
        responses_format.API,
        responses_format.to_body,
        responses_events.EventReader,
        {},
        responses_format.without,
        {
            "encrypted": (
                re.compile(r"encrypted content is not supported|\binclude\b", re.IGNORECASE),
                "",
            ),
            "summary": (re.compile(r"reasoning.summar", re.IGNORECASE), ""),
            "prompt_cache_key": (_CACHE_KEY, ""),
            **_NO_SAMPLING,
        },
    ),
}


@suggesting
class OpenAIProvider(SDKProvider):
    """
    A model of an OpenAI-compatible endpoint. See `LLMProvider` for the contract.

    Args:
        model: The model's name at the server.
        api: `"completions"`, which many servers speak, or OpenAI's newer `"responses"`, where a
            model's reasoning stays with it from one call to the next.
        api_key: A key, or a function (also a coroutine function) called for one before each call.
            `StreamOptions.api_key` wins over it. `None`: the variable *key_variable*, read before
            each call. `""`: every call brings its own.
        base_url: Such as `"http://127.0.0.1:8000/v1"`; needs no key unless *key_variable* is given.
            `None`: `OPENAI_BASE_URL`, or OpenAI itself.
        name: The provider's name in messages and errors.
        client: An `openai.AsyncOpenAI` of yours, used as it is and never closed; give it
            `max_retries=0`.
        extra_body: Fields added to every request's body, over ours; `tools` and `include` come
            after ours.
        key_variable: The environment variable that holds the key. `None`: `OPENAI_API_KEY`, or no
            variable if *base_url* is given: OpenAI's key must not go to another server.
        window_tokens: The size of the model's window; `None`: from genai-prices, if that is
            installed and knows the model.
        structured_output: The server keeps the model to an output schema, beside tools too; vLLM
            and llama.cpp do. `None`: OpenAI's own and Azure's are known to.
        price_as: The vendor whose prices apply, as genai-prices names it, such as `"openai"` behind
            a gateway; `""`: the vendor at the called address, if there is one.
        dialect: The rules of the server; `None`: those that `looopy.llm.dialects` has for its
            address, *name* and model.
        idle_timeout_s: The longest silence within an answer, unless the call sets it. Before its
            first word a model may think three times as long.
        connect_timeout_s: The longest wait for a connection, unless the call sets it.

    Raises:
        ConfigurationError: *api* or *dialect* has another value.
        MissingExtra: The SDK is not installed.
        MissingKey: The key is missing, and so is a base URL that might need no key.
    """

    package = "openai"
    url_hint = "the base URL usually ends in /v1"
    base_url_variable = "OPENAI_BASE_URL"
    official_url = "https://api.openai.com/v1"

    def __init__(
        self,
        model: str,
        *,
        api: Literal["completions", "responses"] = "completions",
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        name: str = "openai",
        client: AsyncOpenAI | None = None,
        extra_body: Mapping[str, Any] | None = None,
        key_variable: str | None = None,
        window_tokens: int | None = None,
        structured_output: bool | None = None,
        price_as: str = "",
        dialect: Dialect | None = None,
        idle_timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        if not model:
            raise UnknownModel("name the model, such as OpenAIProvider('gpt-5-mini')")
        if api not in _FORMATS:
            raise ConfigurationError(f"api must be 'completions' or 'responses', not {api!r}")
        super().__init__(
            model,
            name=name,
            api_key=api_key,
            key_variable=key_variable or ("" if base_url or client else "OPENAI_API_KEY"),
            base_url=base_url,
            client=client,
            window_tokens=window_tokens,
            extra_body=extra_body,
            price_as=price_as,
            dialect=dialect,
            idle_timeout_s=idle_timeout_s,
            connect_timeout_s=connect_timeout_s,
        )
        self.api = api
        self._enforces = structured_output
        self._format = _FORMATS[api]
        # For each model: optional parts that it does not take, and what it takes instead.
        self._refused: dict[str, dict[str, str]] = {}

    @property
    def structured_output(self) -> bool:
        """True if the server keeps to an output schema; others ignore or refuse it beside tools."""
        return self._official if self._enforces is None else self._enforces

    @property
    def _vendor(self) -> Vendor:
        return vendor_of(self._url, self.name)

    @property
    def _official(self) -> bool:
        return self._vendor == "openai"

    @property
    def _names_models(self) -> bool:
        return "azure" not in self.name + (urlsplit(self._url).hostname or "")

    @property
    def count_tokens(self) -> Callable[[Sequence[str]], Awaitable[Sequence[int]]] | None:
        """
        Counts with tiktoken, for models of OpenAI's own server; `None` without the package, or if
        it could not load the model's vocabulary.
        """
        if not (tokens.is_installed() and self._official) or tokens.is_missing(self.model):
            return None
        return partial(tokens.count, self.model)

    async def post(self, url: str, body: Mapping[str, Any]) -> Any:
        """The server's answer to *body* at *url*: a request that is not a model call."""
        sdk: AsyncOpenAI = await self._sdk()
        key = await self._key(StreamOptions())
        headers = {"Authorization": f"Bearer {key}"}
        return await sdk.post(url, cast_to=object, body=body, options={"headers": headers})

    @property
    def _api(self) -> str:
        return self._format.name

    def _module(self) -> ModuleType:
        import openai

        return openai

    def _make_client(self, **common: Any) -> AsyncOpenAI:
        import openai

        client = openai.AsyncOpenAI(**common)
        if self._format.name == responses_format.API:
            client.responses.with_streaming_response  # noqa: B018 - named, it is loaded
        else:
            client.chat.completions.with_streaming_response  # noqa: B018 - as above
        return client

    def _to_body(
        self, request: LLMRequest, options: StreamOptions, model: str
    ) -> tuple[dict[str, Any], Sequence[int]]:
        warn_of_citations(options, request.messages, f"{self.name}/{model}")
        return self._format.to_body(
            request,
            options,
            provider=self.name,
            model=model,
            official=self._official,
            vendor=self._vendor,
            dialect=self._dialect_of(model),
        )

    def _suited(self, body: dict[str, Any], options: StreamOptions, model: str) -> dict[str, Any]:
        return form.without_sampling(body, self._dialect_of(model), options)

    def _reader(self, answer: Accumulator, call: Call) -> _Reader:
        reader = self._format.reader(answer, sources=call.sources, secrets=(call.key,))
        if isinstance(reader, chat_format.ChunkReader):
            reader.apart = self._dialect_of(call.model).thoughts_apart
        return reader

    def _end(self, reader: _Reader, call: Call) -> Sequence[StreamEvent]:
        return reader.end(said_done=call.said_done)

    def _is_last(self, data: str) -> bool:
        return data.startswith("[DONE]")

    def _patience_s(self, call: Call, reader: _Reader) -> float:
        if call.said_done or reader.complete:  # a body read to its end frees the connection
            return min(DRAIN_WAIT_S, call.idle_s)
        if reader.finished:
            return min(_USAGE_WAIT_S, call.idle_s)
        return super()._patience_s(call, reader)

    async def _open(
        self, stack: AsyncExitStack, call: Call, body: dict[str, Any], options: StreamOptions
    ) -> Any:
        """Send the request; again without what a server refuses that we can do without."""
        import openai

        sdk: AsyncOpenAI = await self._sdk()
        whole = {**self._format.always, **body}
        refused = self._refused.setdefault(body["model"], {})
        for part, instead in refused.items():
            if part in form.SAMPLING and part in whole:
                whole = form.warned_without(whole, part, options)
            whole = self._format.without(whole, part, instead)
        # The SDK walks its typed arguments, at 0.15 ms a message; this body it sends as it is, over
        # theirs.
        common: dict[str, Any] = {"model": body["model"], "stream": True, "extra_body": whole}
        common |= {"extra_headers": self._headers(call, options), **self._waits(call, options)}
        try:
            if self._format.name == responses_format.API:
                opening = sdk.responses.with_streaming_response.create(input=[], **common)
            else:
                opening = sdk.chat.completions.with_streaming_response.create(messages=[], **common)
            return await stack.enter_async_context(opening)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            news = self._refusals(str(error.body)[:_MOST_READ], whole, options)
            if not news.keys() - refused.keys():
                raise
            refused |= news
        return await self._open(stack, call, body, options)

    def _refusals(
        self, said: str, whole: Mapping[str, Any], options: StreamOptions
    ) -> dict[str, str]:
        """The optional parts of *whole* that a server refused in its answer, *said*."""
        found = {
            part: instead
            for part, (words, instead) in self._format.optional.items()
            if words.search(said)
        }
        effort = whole.get("reasoning_effort") or (whole.get("reasoning") or {}).get("effort")
        if effort in _EFFORTS and _EFFORT.search(said):
            listed = _EFFORTS_TAKEN.search(said)
            takes = [] if listed is None else re.findall(r"[a-z]+", listed[1])
            takes = [one for one in _EFFORTS if one in takes]
            if takes:  # the next one
                place = _EFFORTS.index(effort)
                takes.sort(key=lambda one: abs(_EFFORTS.index(one) - place))
                found[f"effort:{effort}"] = takes[0]
                if options.warn is not None:
                    text = f"{whole['model']} does not take the effort {effort!r}: {takes[0]!r}"
                    options.warn("thinking_level", text)
            elif effort == form.NO_EFFORT:  # it never thinks
                found[f"effort:{effort}"] = ""
        return found

    def _headers(self, call: Call, options: StreamOptions) -> dict[str, str]:
        headers: dict[str, str] = {}
        if call.key:
            headers["Authorization"] = f"Bearer {call.key}"
        if options.session_id and not self._official:
            headers["x-session-id"] = chat_format.opaque(options.session_id)
        return headers | dict(options.headers)
