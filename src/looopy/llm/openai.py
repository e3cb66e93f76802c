"""
Any server that speaks OpenAI's chat completions or its Responses API, through the official SDK.

The SDK connects, authenticates and reports refusals; its retries are off, because the loop retries
where a user sees it. The answer's bytes are read here rather than through the SDK's typed chunks:
one can then tell an answer that ended from one that broke off, and allow for servers that bend the
format. What the bytes mean is in `looopy.llm.chat_format` and `looopy.llm.responses_events`.

Every wait has an end: connecting, silence, and the call as a whole. Cancelling the reader, or
closing the iterator, closes the connection.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from looopy.errors import (
    ConfigurationError,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingExtra,
    MissingKey,
    UnknownModel,
)
from looopy.llm import chat_format, responses_events, responses_format
from looopy.llm.accumulate import Accumulator
from looopy.llm.failures import failure_of, redact
from looopy.llm.prices import Prices, ready
from looopy.llm.sse import SSEDecoder
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]

_OFFICIAL_URL = "https://api.openai.com/v1"
_FIRST_EVENT_FACTOR = 3.0
_USAGE_WAIT_S = 5.0
_DRAIN_WAIT_S = 0.5
_NO_KEY = "none"
_TRANSPORTS = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "ssl", "anyio"})


@dataclass(frozen=True, slots=True)
class _Format:
    """
    One of the two ways to talk.

    Attributes:
        name: What it is called in messages.
        to_body: A request as this format has it.
        reader: Of an answer.
        always: Fields of every body, where a user's do not say otherwise.
        without: A body without one of the optional parts.
        optional: Parts that not every server or model takes, and how one says so.
    """

    name: str
    to_body: Callable[..., tuple[dict[str, Any], list[int]]]
    reader: type[chat_format.ChunkReader | responses_events.EventReader]
    always: Mapping[str, Any]
    without: Callable[[dict[str, Any], str], dict[str, Any]]
    optional: Mapping[str, re.Pattern[str]]


_FORMATS: Final = {
    "completions": _Format(
        chat_format.API,
        chat_format.to_body,
        chat_format.ChunkReader,
        {"stream_options": {"include_usage": True}},
        lambda body, part: {k: v for k, v in body.items() if k != part},
        {"stream_options": re.compile("stream_options")},
    ),
    "responses": _Format(
        responses_format.API,
        responses_format.to_body,
        responses_events.EventReader,
        {},
        responses_format.without,
        {
            "encrypted": re.compile(
                r"encrypted content is not supported|\binclude\b", re.IGNORECASE
            ),
            "summary": re.compile(r"reasoning.summar", re.IGNORECASE),
        },
    ),
}


class OpenAIProvider:
    """
    A model behind an OpenAI-compatible endpoint. See `LLMProvider` for the contract.

    Args:
        model: The model's name at the server.
        api: `"completions"`, which many servers speak, or OpenAI's newer `"responses"`, where a
            model's reasoning stays with it from one call to the next.
        api_key: A key, or a function (also a coroutine function) asked for one before each call.
            `StreamOptions.api_key` wins over it. `None`: the variable *key_variable*, read before
            each call. `""`: every call brings its own.
        base_url: Such as `"http://127.0.0.1:8000/v1"`; needs no key unless *key_variable* is given.
            `None`: `OPENAI_BASE_URL`, or OpenAI itself.
        name: The provider's name in messages and errors.
        client: An `openai.AsyncOpenAI` of yours, used as it is and never closed; give it
            `max_retries=0`.
        extra_body: Fields added to every request's body, over ours.
        key_variable: The environment variable that holds the key. `None`: `OPENAI_API_KEY`, and
            none at all where *base_url* is given: OpenAI's key is no business of another server.
        window_tokens: What the model's window holds; `None`: as genai-prices says, where that is
            installed and knows the model.
        price_as: Whose prices hold, as genai-prices names the provider, such as `"openai"` behind
            a gateway; `""`: those of the address that is called, if anybody sells there.
        idle_timeout_s: The longest silence within an answer, where the call does not say. Before
            its first sign of life a model may think three times as long.
        connect_timeout_s: The longest wait for a connection, where the call does not say.

    Raises:
        ConfigurationError: There is no such *api*.
        MissingExtra: The SDK is not installed.
        MissingKey: There is no key, and no base URL that might do without.
    """

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
        price_as: str = "",
        idle_timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        if not model:
            raise UnknownModel("name the model, such as OpenAIProvider('gpt-5-mini')")
        if api not in _FORMATS:
            raise ConfigurationError(f"api must be 'completions' or 'responses', not {api!r}")
        if find_spec("openai") is None:
            raise MissingExtra('this model needs the openai package: pip install "looopy[openai]"')
        self.model = model
        self.name = name
        self.api = api
        self.base_url = base_url
        self.window_tokens = window_tokens
        self._api_key = api_key
        self._client = client
        self._extra_body = dict(extra_body or {})
        self._key_variable = key_variable or ("" if base_url else "OPENAI_API_KEY")
        self._price_as = price_as
        self._idle_timeout_s = idle_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._format = _FORMATS[api]
        self._refused: set[str] = set()  # optional parts that the server does not take
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = (
            WeakKeyDictionary()
        )
        if api_key is None and self._needs_key and not os.environ.get(self._key_variable):
            raise MissingKey(self._missing_key())

    def __repr__(self) -> str:
        return f"<OpenAIProvider {self.name}/{self.model}>"

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events. See `LLMProvider.stream`."""
        options = options or StreamOptions()
        model = request.model or self.model
        answer = Accumulator(
            api=self._format.name, provider=self.name, model=model, price=self._prices(model)
        )
        for event in answer.start():
            yield event
        call = _Call(
            model,
            idle_s=options.idle_timeout_s or self._idle_timeout_s,
            connect_s=options.connect_timeout_s or self._connect_timeout_s,
        )
        try:
            await self.prepare()  # before the clock starts
            call.key = await self._key(options)
            body, sources = self._format.to_body(
                request, options, provider=self.name, model=model, official=self._official
            )
            body.update(self._extra_body)
            call.sources = sources
            if options.timeout_s is not None:
                call.ends_at = asyncio.get_running_loop().time() + options.timeout_s
            reader = self._format.reader(answer, sources=sources, secrets=(call.key,))
            try:
                async with aclosing(self._pieces(call, reader, body, options)) as pieces:
                    async for data in pieces:
                        for event in reader.feed(data):
                            yield event
            except LLMError:
                raise
            except Exception:
                if not (reader.finished or call.said_done):
                    raise  # otherwise the answer stands: only its usage, or the tail, went missing
                call.said_done = True
            last = reader.end(said_done=call.said_done)
        except Exception as error:  # noqa: BLE001 - whatever it is, the contract makes it an event
            failed = self._failure(error, call).with_traceback(None)
            failed.__context__ = None  # it and the frames hold what the server said, keys and all
            last = answer.error(failed)
        for event in last:
            yield event

    async def prepare(self) -> None:
        """Load the SDK: a second or two, in a thread, so that others go on meanwhile."""
        await self._sdk()
        await ready()
        if self.window_tokens is None:
            self.window_tokens = self._prices(self.model).window_tokens()

    def _prices(self, model: str) -> Prices:
        return Prices(model, self._price_as, self._url or _OFFICIAL_URL)

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was passed in stays open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def _pieces(
        self, call: _Call, reader: _Reader, body: dict[str, Any], options: StreamOptions
    ) -> AsyncGenerator[str, None]:
        """The chunks' JSON texts as they come; notes `[DONE]` in *call*."""
        now = asyncio.get_running_loop().time
        until = now() + call.idle_s * _FIRST_EVENT_FACTOR
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(min(until, call.ends_at)):
                response = await self._open(stack, call, body, options)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise self._no_model(call)
            received = await stack.enter_async_context(aclosing(response.iter_bytes()))
            decoder = SSEDecoder()
            whole: list[bytes] = []
            while True:
                async with asyncio.timeout_at(min(until, call.ends_at)):
                    piece = await anext(received, None)
                if piece is None:
                    break
                if kind == "application/json":  # a server that does not stream
                    whole.append(piece)
                for data in () if whole else decoder.feed(piece):
                    if data.startswith("[DONE]"):
                        call.said_done = True
                    else:
                        yield data
                patient_until = now() + self._patience_s(call, reader)
                # Once the answer stands, what still trickles in does not prolong the wait.
                stands = reader.finished or call.said_done
                until = min(until, patient_until) if stands else patient_until
            if whole:
                yield b"".join(whole).decode()
            for data in decoder.close():
                if data.startswith("[DONE]"):
                    call.said_done = True
                else:
                    yield data

    def _patience_s(self, call: _Call, reader: _Reader) -> float:
        """How long to wait for the next bytes."""
        if call.said_done or reader.complete:  # a body read to its end frees the connection
            return min(_DRAIN_WAIT_S, call.idle_s)
        if reader.finished:
            return min(_USAGE_WAIT_S, call.idle_s)
        return call.idle_s

    async def _open(
        self, stack: AsyncExitStack, call: _Call, body: dict[str, Any], options: StreamOptions
    ) -> Any:
        """Send the request; again without what a server refuses that we can do without."""
        sdk = await self._sdk()
        import openai

        whole = {**self._format.always, **body}
        for part in self._refused:
            whole = self._format.without(whole, part)
        # The SDK walks its typed arguments, at 0.15 ms a message; this body it sends as it is, over
        # theirs.
        common: dict[str, Any] = {"model": body["model"], "stream": True, "extra_body": whole}
        common["extra_headers"] = self._headers(call, options)
        if options.connect_timeout_s is not None:
            common["timeout"] = openai.Timeout(None, connect=call.connect_s)
        try:
            if self._format.name == responses_format.API:
                opening = sdk.responses.with_streaming_response.create(input=[], **common)
            else:
                opening = sdk.chat.completions.with_streaming_response.create(messages=[], **common)
            return await stack.enter_async_context(opening)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            said = str(error.body)
            optional = self._format.optional.items()
            refused = {part for part, words in optional if words.search(said)}
            if not refused - self._refused:
                raise
            self._refused |= refused
        return await self._open(stack, call, body, options)

    async def _sdk(self) -> AsyncOpenAI:
        """The SDK's client: one for each event loop, as its connections belong to one."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            made = await asyncio.to_thread(self._make_client)
            client = self._clients.setdefault(loop, made)
        return client

    def _make_client(self) -> AsyncOpenAI:
        """Load the SDK, most of which it does on first use, and make a client."""
        import openai

        url = self._url
        # A proxy of the environment has no way to this machine's own servers.
        local = bool(url) and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
        client = openai.AsyncOpenAI(
            api_key=_NO_KEY,  # each request carries its own
            base_url=url or None,
            max_retries=0,
            timeout=openai.Timeout(None, connect=self._connect_timeout_s),
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if local else None,
        )
        if self._format.name == responses_format.API:
            client.responses.with_streaming_response  # noqa: B018 - named, it is loaded
        else:
            client.chat.completions.with_streaming_response  # noqa: B018 - as above
        return client

    @property
    def _url(self) -> str:
        """Where the server is; empty for the SDK's default."""
        if self._client is not None:
            return str(self._client.base_url)
        return self.base_url or os.environ.get("OPENAI_BASE_URL", "")

    @property
    def _official(self) -> bool:
        return not self._url or urlsplit(self._url).hostname == "api.openai.com"

    @property
    def structured_output(self) -> bool:
        """Whether an output schema is kept to; others ignore one, or refuse it beside tools."""
        return self._official

    @property
    def _needs_key(self) -> bool:
        if self._client is not None or not self._key_variable:
            return False
        return bool(self.base_url) or not os.environ.get("OPENAI_BASE_URL")

    async def _key(self, options: StreamOptions) -> str:
        if options.api_key:
            return options.api_key
        if callable(self._api_key):
            given = self._api_key()
            key = await given if inspect.isawaitable(given) else given
        else:
            key = self._api_key or os.environ.get(self._key_variable, "")
        if not key and self._needs_key:
            raise LLMError(self._missing_key(), provider=self.name, model=self.model)
        return key

    def _headers(self, call: _Call, options: StreamOptions) -> dict[str, str]:
        headers: dict[str, str] = {}
        if call.key:
            headers["Authorization"] = f"Bearer {call.key}"
        if options.session_id and not self._official:
            headers["x-session-id"] = quote(options.session_id)
        return headers | dict(options.headers)

    def _missing_key(self) -> str:
        return (
            f"no API key for {self.name}/{self.model}: set {self._key_variable}, pass api_key=...,"
            " or give the base_url of a server that needs none"
        )

    def _no_model(self, call: _Call) -> InvalidLLMResponse:
        return InvalidLLMResponse(
            f"{self._where} answered with a web page: the base URL usually ends in /v1",
            provider=self.name,
            model=call.model,
        )

    @property
    def _where(self) -> str:
        """The server, without credentials that its URL may hold."""
        parts = urlsplit(self._url or "https://api.openai.com")
        return f"{self.name} at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def _failure(self, error: Exception, call: _Call) -> LLMError:
        """The error that stands for *error*. Nothing is chained: requests hold keys."""
        import openai

        facts: dict[str, Any] = {"provider": self.name, "model": call.model}
        if isinstance(error, LLMError):
            return error
        if isinstance(error, openai.APIStatusError):
            return failure_of(
                error.status_code,
                error.body,
                headers=error.response.headers,
                secrets=(call.key,),
                sources=call.sources,
                key_hint=f"check {self._key_variable or 'the key'}",
                **facts,
            )
        if isinstance(error, TimeoutError):
            late = asyncio.get_running_loop().time() >= call.ends_at
            what = "did not finish in the time of one call" if late else "fell silent"
            return LLMUnavailable(f"{self._where} {what}", **facts)
        if isinstance(error, UnicodeDecodeError):
            return InvalidLLMResponse(f"{self._where} sent text that is not UTF-8", **facts)
        if isinstance(error, openai.APITimeoutError):
            return LLMUnavailable(
                f"{self._where} took no connection within {call.connect_s:g} s", **facts
            )
        reason = redact(_innermost(error), (call.key,))
        if isinstance(error, openai.APIConnectionError):
            return LLMUnavailable(f"{self._where} cannot be reached: {reason}", **facts)
        if type(error).__module__.partition(".")[0] in _TRANSPORTS or isinstance(error, OSError):
            return LLMUnavailable(f"{self._where} broke the answer off: {reason}", **facts)
        return LLMError(f"the request to {self._where} failed: {reason}", **facts)


_Reader: TypeAlias = chat_format.ChunkReader | responses_events.EventReader


@dataclass(slots=True)
class _Call:
    """What one call knows of itself."""

    model: str
    idle_s: float
    connect_s: float
    key: str = field(default="", repr=False)
    sources: Sequence[int] = ()
    ends_at: float = math.inf
    said_done: bool = False


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
