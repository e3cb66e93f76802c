"""
Anthropic's models, through the official SDK.

The SDK connects, authenticates and reports refusals; its retries are off, because the loop retries
where a user sees it. The answer's bytes are read here rather than through the SDK's typed events:
one can then tell an answer that ended from one that broke off, and notice silence. What goes out is
in `looopy.llm.anthropic_format`, what the bytes mean in `looopy.llm.anthropic_events`.

Every wait has an end: connecting, silence, and the call as a whole. Cancelling the reader, or
closing the iterator, closes the connection.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit
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
from looopy.llm.accumulate import Accumulator
from looopy.llm.anthropic_events import EventReader
from looopy.llm.anthropic_format import API, PROVIDER, CacheTTL, to_body, to_headers
from looopy.llm.anthropic_models import abilities_of
from looopy.llm.failures import failure_of, redact
from looopy.llm.prices import Prices, ready
from looopy.llm.sse import SSEDecoder
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]

KEY_VARIABLE = "ANTHROPIC_API_KEY"
_OFFICIAL_HOST = "api.anthropic.com"
_FIRST_EVENT_FACTOR = 3.0
_DRAIN_WAIT_S = 0.5
_NO_KEY = "none"
_TRANSPORTS = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "ssl", "anyio"})


class AnthropicProvider:
    """
    A model behind Anthropic's Messages API. See `LLMProvider` for the contract.

    Args:
        model: The model's name, such as `"claude-sonnet-5-5"`.
        api_key: A key, or a function (also a coroutine function) asked for one before each call.
            `StreamOptions.api_key` wins over it. `None`: `ANTHROPIC_API_KEY`, read before each
            call. `""`: every call brings its own.
        base_url: Of another server that speaks this API; needs no key. `None`:
            `ANTHROPIC_BASE_URL`, or Anthropic itself.
        client: An `anthropic.AsyncAnthropic` of yours, used as it is and never closed; give it
            `max_retries=0`. The clients for other clouds do as well.
        cache_ttl: How long the API keeps the beginning of a conversation: `"5m"`, `"1h"`, or `None`
            not to ask for it.
        window_tokens: What the model's window holds; `None`: what is known of *model*.
        extra_body: Fields added to every request's body, over ours.
        price_as: Whose prices hold, as genai-prices names the provider, such as `"anthropic"`
            behind a gateway; `""`: those of the address that is called, if anybody sells there.
        idle_timeout_s: The longest silence within an answer, where the call does not say. Before
            its first sign of life a model may think three times as long.
        connect_timeout_s: The longest wait for a connection, where the call does not say.

    Raises:
        UnknownModel: *model* is empty.
        ConfigurationError: *cache_ttl* is none of these.
        MissingExtra: The SDK is not installed.
        MissingKey: There is no key, and no base URL that might do without.
    """

    name = PROVIDER

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: AsyncAnthropic | None = None,
        cache_ttl: CacheTTL | None = "5m",
        window_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        price_as: str = "",
        idle_timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        if not model:
            raise UnknownModel("name the model, such as AnthropicProvider('claude-sonnet-5-5')")
        if find_spec("anthropic") is None:
            raise MissingExtra(
                'this model needs the anthropic package: pip install "looopy[anthropic]"'
            )
        if cache_ttl not in ("5m", "1h", None):
            raise ConfigurationError(f"cache_ttl is '5m', '1h' or None, not {cache_ttl!r}")
        self.model = model
        self.base_url = base_url
        self.window_tokens = window_tokens or abilities_of(model).window_tokens
        self._api_key = api_key
        self._client = client
        self._cache_ttl: CacheTTL | None = cache_ttl
        self._extra_body = dict(extra_body or {})
        self._price_as = price_as
        self._idle_timeout_s = idle_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncAnthropic] = (
            WeakKeyDictionary()
        )
        if api_key is None and self._needs_key and not os.environ.get(KEY_VARIABLE):
            raise MissingKey(self._missing_key())

    def __repr__(self) -> str:
        return f"<AnthropicProvider {self.name}/{self.model}>"

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events. See `LLMProvider.stream`."""
        options = options or StreamOptions()
        model = request.model or self.model
        answer = Accumulator(api=API, provider=self.name, model=model, price=self._prices(model))
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
            body, call.sources = to_body(
                request,
                options,
                model=model,
                abilities=abilities_of(model),
                cache_ttl=self._cache_ttl,
            )
            body.update(self._extra_body)
            if options.timeout_s is not None:
                call.ends_at = asyncio.get_running_loop().time() + options.timeout_s
            reader = EventReader(answer, sources=call.sources, secrets=(call.key,))
            try:
                async with aclosing(self._pieces(call, reader, body, options)) as pieces:
                    async for data in pieces:
                        for event in reader.feed(data):
                            yield event
            except LLMError:
                raise
            except Exception:
                if not reader.finished:
                    raise  # otherwise the answer stands: only its last event went missing
            last = reader.end()
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
        return Prices(model, self._price_as, self._url, long_cache=self._cache_ttl == "1h")

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was passed in stays open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def _pieces(
        self, call: _Call, reader: EventReader, body: dict[str, Any], options: StreamOptions
    ) -> AsyncGenerator[str, None]:
        """The events' JSON texts as they come."""
        now = asyncio.get_running_loop().time
        until = now() + call.idle_s * _FIRST_EVENT_FACTOR
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(min(until, call.ends_at)):
                response = await self._open(stack, call, body, options)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise InvalidLLMResponse(
                    f"{self._where} answered with a web page: the base URL is without /v1",
                    provider=self.name,
                    model=call.model,
                )
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
                    yield data
                if not reader.finished:
                    until = now() + call.idle_s
                else:
                    # A body read to its end frees the connection; what trickles in after the answer
                    # does not prolong the wait.
                    until = min(until, now() + min(_DRAIN_WAIT_S, call.idle_s))
            if whole:
                yield b"".join(whole).decode()
            for data in decoder.close():
                yield data

    async def _open(
        self, stack: AsyncExitStack, call: _Call, body: dict[str, Any], options: StreamOptions
    ) -> Any:
        """Send the request."""
        sdk = await self._sdk()
        if call.key:
            sdk = sdk.with_options(api_key=call.key)  # shares the connections
        timeout: dict[str, Any] = {}
        if options.connect_timeout_s is not None:
            import anthropic

            timeout["timeout"] = anthropic.Timeout(None, connect=call.connect_s)
        headers = to_headers(body, options.headers)
        if call.key and urlsplit(self._url).hostname != _OFFICIAL_HOST:
            headers.setdefault("x-api-key", call.key)  # where others who speak this look for it
        # The SDK walks its typed arguments, message by message; this body it sends as it is, over
        # theirs.
        return await stack.enter_async_context(
            sdk.messages.with_streaming_response.create(
                model="",
                messages=[],
                max_tokens=1,
                stream=True,
                extra_headers=headers,
                extra_body=body,
                **timeout,
            )
        )

    async def _sdk(self) -> AsyncAnthropic:
        """The SDK's client: one for each event loop, as its connections belong to one."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            made = await asyncio.to_thread(self._make_client)
            client = self._clients.setdefault(loop, made)
        return client

    def _make_client(self) -> AsyncAnthropic:
        """Load the SDK, most of which it does on first use, and make a client."""
        import anthropic

        url = self._url
        # A proxy of the environment has no way to this machine's own servers.
        local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
        client = anthropic.AsyncAnthropic(
            api_key=_NO_KEY,  # each request carries its own; and nobody's profile is looked for
            base_url=url,
            max_retries=0,
            timeout=anthropic.Timeout(None, connect=self._connect_timeout_s),
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False) if local else None,
        )
        client.messages.with_streaming_response  # noqa: B018 - named, it is loaded
        return client

    @property
    def _url(self) -> str:
        """Where the server is."""
        if self._client is not None:
            return str(self._client.base_url)
        return self.base_url or os.environ.get("ANTHROPIC_BASE_URL") or f"https://{_OFFICIAL_HOST}"

    @property
    def _needs_key(self) -> bool:
        if self._client is not None or self.base_url:
            return False
        return not os.environ.get("ANTHROPIC_BASE_URL")

    async def _key(self, options: StreamOptions) -> str:
        if options.api_key:
            return options.api_key
        if callable(self._api_key):
            given = self._api_key()
            key = await given if inspect.isawaitable(given) else given
        elif self._api_key is None and not self._client and not self.base_url:
            # Anthropic's key is no business of a server that was named by hand.
            key = os.environ.get(KEY_VARIABLE, "")
        else:
            key = self._api_key or ""
        if not key and self._needs_key:
            raise LLMError(self._missing_key(), provider=self.name, model=self.model)
        return key

    def _missing_key(self) -> str:
        return (
            f"no API key for {self.name}/{self.model}: set {KEY_VARIABLE}, pass api_key=...,"
            " or give the base_url of a server that needs none"
        )

    @property
    def _where(self) -> str:
        """The server, without credentials that its URL may hold."""
        parts = urlsplit(self._url)
        return f"{self.name} at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def _failure(self, error: Exception, call: _Call) -> LLMError:
        """The error that stands for *error*. Nothing is chained: requests hold keys."""
        import anthropic

        facts: dict[str, Any] = {"provider": self.name, "model": call.model}
        if isinstance(error, LLMError):
            return error
        if isinstance(error, anthropic.APIStatusError):
            return failure_of(
                error.status_code,
                error.body,
                headers=error.response.headers,
                secrets=(call.key,),
                sources=call.sources,
                key_hint=f"check {KEY_VARIABLE}",
                **facts,
            )
        if isinstance(error, TimeoutError):
            late = asyncio.get_running_loop().time() >= call.ends_at
            what = "did not finish in the time of one call" if late else "fell silent"
            return LLMUnavailable(f"{self._where} {what}", **facts)
        if isinstance(error, UnicodeDecodeError):
            return InvalidLLMResponse(f"{self._where} sent text that is not UTF-8", **facts)
        if isinstance(error, anthropic.APITimeoutError):
            return LLMUnavailable(
                f"{self._where} took no connection within {call.connect_s:g} s", **facts
            )
        reason = redact(_innermost(error), (call.key,))
        if isinstance(error, anthropic.APIConnectionError):
            return LLMUnavailable(f"{self._where} cannot be reached: {reason}", **facts)
        if type(error).__module__.partition(".")[0] in _TRANSPORTS or isinstance(error, OSError):
            return LLMUnavailable(f"{self._where} broke the answer off: {reason}", **facts)
        return LLMError(f"the request to {self._where} failed: {reason}", **facts)


@dataclass(slots=True)
class _Call:
    """What one call knows of itself."""

    model: str
    idle_s: float
    connect_s: float
    key: str = field(default="", repr=False)
    sources: Sequence[int] = ()
    ends_at: float = math.inf


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
