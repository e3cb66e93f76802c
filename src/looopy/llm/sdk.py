"""
The common base of the providers over an official SDK: client, key, waits and errors.

The SDK connects, authenticates and reports refusals; its retries are off, because the loop retries
where a user sees it. The answer's bytes are read here rather than through the SDK's typed events.
So the provider can distinguish a complete answer from one that broke off, notice silence, and allow
for servers that bend the format. Each provider defines its own requests and the meaning of the
bytes.

Every wait has an end: connecting, silence, and the call as a whole. Cancelling the reader, or
closing the iterator, closes the connection.

The SDKs are made by one generator, so their errors and options have the same names; none is
imported here.
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
from typing import Any, ClassVar, Protocol, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from looopy.errors import InvalidLLMResponse, LLMError, LLMUnavailable, MissingKey, missing_extra
from looopy.llm.accumulate import Accumulator
from looopy.llm.dialects import Dialect, as_dialect, dialect_of
from looopy.llm.failures import failure_of, redact
from looopy.llm.limits import report_limits
from looopy.llm.logprobs import wanted, warn_of_missing
from looopy.llm.prices import Prices, ready
from looopy.llm.reader import is_silent
from looopy.llm.served import report_other
from looopy.llm.sse import SSEDecoder
from looopy.llm.tool_schemas import ToolFitter
from looopy.types.message import StopReason, Usage
from looopy.types.request import LLMRequest, Report, StreamEvent, StreamOptions

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]

_FIRST_EVENT_FACTOR = 3.0
DRAIN_WAIT_S = 0.5
_NO_KEY = "none"
_LISTS = frozenset({"tools", "include"})
_TRANSPORTS = frozenset({"httpx2", "httpcore2", "httpx", "httpcore", "h11", "ssl", "anyio"})
_PING = re.compile(r'\{\s*"type"\s*:\s*"(?:ping|keepalive|response\.in_progress)"')


class Reader(Protocol):
    """Reads the bytes of one answer."""

    @property
    def finished(self) -> bool:
        """True once the model gave its reason to stop."""
        ...

    def feed(self, data: str) -> Sequence[StreamEvent]:
        """The events that one text of the server makes."""
        ...


@dataclass(slots=True)
class Call:
    """The state of one call."""

    model: str
    idle_s: float
    connect_s: float
    key: str = field(default="", repr=False)
    sources: Sequence[int] = ()
    ends_at: float = math.inf
    said_done: bool = False
    begun: bool = False  # the model has sent a first word
    heard_at: float = 0.0  # when the server last sent anything but comments and pings
    report: Callable[[Report], None] | None = None


class SDKProvider:
    """
    A model called through an official SDK. See `LLMProvider` for the contract.

    A subclass defines how a request is written, sent and read; see the methods that raise here.

    Attributes:
        package: The SDK's, and the extra's that installs it.
        url_hint: The usual form of a base URL, for users whose URL returns a web page.
        base_url_variable: The environment variable for another server.
        official_url: The address of the vendor's own server.
        name: The provider's name in messages and errors.
        model: The model's name at the server.
        base_url: As it was given; `None`: from the environment, or the vendor's.
        window_tokens: The size of the model's window; `None` while it is unknown.
        knows_cost: True if calls have a price; `None` while that is unknown.

    Raises:
        MissingExtra: The SDK is not installed.
        MissingKey: The key is missing, and so is a base URL that might need no key.
    """

    package: ClassVar[str]
    url_hint: ClassVar[str]
    base_url_variable: ClassVar[str]
    official_url: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        name: str,
        api_key: ApiKey | None,
        key_variable: str,
        base_url: str | None,
        client: Any,
        window_tokens: int | None,
        extra_body: Mapping[str, Any] | None,
        price_as: str,
        dialect: Dialect | None,
        idle_timeout_s: float,
        connect_timeout_s: float,
    ) -> None:
        if find_spec(self.package) is None:
            raise missing_extra(f"this model needs the {self.package} package", self.package)
        self.model = model
        self.name = name
        self.base_url = base_url
        self.window_tokens = window_tokens
        self.knows_cost: bool | None = None  # not before it is ready
        self._api_key = api_key
        self._key_variable = key_variable
        self._client = client
        self._extra_body = dict(extra_body or {})
        self._price_as = price_as
        self._dialect = as_dialect(dialect)
        self._fitters: dict[str, ToolFitter] = {}  # by model
        self._idle_timeout_s = idle_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        if api_key is None and self._needs_key and not os.environ.get(key_variable):
            raise MissingKey(self._missing_key())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}/{self.model}>"

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events. See `LLMProvider.stream`."""
        options = options or StreamOptions()
        model = request.model or self.model
        answer = Accumulator(
            api=self._api, provider=self.name, model=model, price=self._prices(model)
        )
        answer.logprobs = wanted(options)
        for event in answer.start():
            yield event
        call = Call(
            model,
            idle_s=options.idle_timeout_s or self._idle_timeout_s,
            connect_s=options.connect_timeout_s or self._connect_timeout_s,
            report=options.report,
        )
        try:
            await self.prepare()  # before the clock starts
            call.key = await self._key(options)
            fitted = self._fitter(model).fit(request, options)
            body, call.sources = self._to_body(fitted.request, options, model)
            for extra in (self._extra_body, options.extra_body):
                body.update(_joined(body, extra))
            body = self._suited(body, options, model)
            if options.timeout_s is not None:
                call.ends_at = asyncio.get_running_loop().time() + options.timeout_s
            reader = self._reader(answer, call)
            try:
                async with aclosing(self._pieces(call, reader, body, options)) as pieces:
                    async for data in pieces:
                        for event in reader.feed(data):
                            if not call.begun:
                                call.begun = True
                                self._check_model(call, answer)
                            yield event
                        if not _PING.match(data):
                            call.heard_at = asyncio.get_running_loop().time()
            except LLMError:
                raise
            except Exception:
                if not (reader.finished or call.said_done):
                    raise  # otherwise the answer stands: only its usage, or the tail, went missing
                call.said_done = True
            last = fitted.restored(self._end(reader, call))
            message = answer.snapshot()
            warn_of_missing(options, answer.logprobs, message)
            if is_silent(message) and message.stop_reason is StopReason.STOP and options.warn:
                options.warn("empty_answer", f"{self.name}/{model} answered without a word")
        except Exception as error:  # noqa: BLE001 - whatever it is, the contract makes it an event
            failed = self._failure(error, call).with_traceback(None)
            failed.__context__ = None  # it and the frames hold the server's text, keys included
            last = answer.error(failed)
        for event in last:
            yield event

    def _check_model(self, call: Call, answer: Accumulator) -> None:
        """Report, before the first piece of an answer, that another model gives it."""
        if answer.served and self._names_models:
            report_other(
                call.report,
                provider=self.name,
                asked=call.model,
                answered=answer.served,
                secrets=(call.key,),
            )

    async def prepare(self) -> None:
        """Load the SDK: a second or two, in a thread, so that the event loop stays free."""
        await self._sdk()
        await ready()
        if self.window_tokens is None:
            self.window_tokens = self._prices(self.model).window_tokens()
        self.knows_cost = self._prices(self.model).known()

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was passed in stays open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    # --- defined by each provider ---

    @property
    def _names_models(self) -> bool:
        """True if a request names a model, and not a deployment with a name of its own."""
        return True

    @property
    def _api(self) -> str:
        """The format's name in messages."""
        raise NotImplementedError

    def _module(self) -> Any:
        """The SDK, loaded by a statement in the file that is named after it."""
        raise NotImplementedError

    def _make_client(self, **common: Any) -> Any:
        """A client of the SDK with *common*; all that it loads on first use is loaded by now."""
        raise NotImplementedError

    def _to_body(
        self, request: LLMRequest, options: StreamOptions, model: str
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """A request as it goes out, and where each of its messages comes from."""
        raise NotImplementedError

    def _dialect_of(self, model: str) -> Dialect:
        """The rules of the server and *model*."""
        return self._dialect or dialect_of(self._url, self.name, model)

    def _fitter(self, model: str) -> ToolFitter:
        dialect = self._dialect_of(model)
        known = self._fitters.get(model)
        if known is None or known.dialect is not dialect:
            known = self._fitters[model] = ToolFitter(dialect)
        return known

    def _suited(
        self,
        body: dict[str, Any],
        options: StreamOptions,  # noqa: ARG002 - for subclasses
        model: str,  # noqa: ARG002 - for subclasses
    ) -> dict[str, Any]:
        """*body*, with what the caller has added, without options that the model refuses."""
        return body

    def _reader(self, answer: Accumulator, call: Call) -> Any:
        """A `Reader` of one answer."""
        raise NotImplementedError

    def _end(self, reader: Any, call: Call) -> Sequence[StreamEvent]:
        """The last events of an answer, after its last byte."""
        raise NotImplementedError

    async def _open(
        self, stack: AsyncExitStack, call: Call, body: dict[str, Any], options: StreamOptions
    ) -> Any:
        """Send the request; the SDK's response, which *stack* closes."""
        raise NotImplementedError

    def cost_of(self, usage: Usage, model: str = "") -> Usage:
        """*usage* of a call to *model* with its cost, if that is known."""
        return self._prices(model or self.model)(usage)

    def _prices(self, model: str) -> Prices:
        return Prices(model, self._price_as, self._url)

    def _is_last(self, data: str) -> bool:  # noqa: ARG002 - for subclasses
        """True if a text is not an event but the mark of the end."""
        return False

    def _patience_s(self, call: Call, reader: Any) -> float:
        """How long to wait for the next bytes."""
        if reader.finished:
            return min(DRAIN_WAIT_S, call.idle_s)  # a body read to its end frees the connection
        # Until its first word a model may think, and servers send comments meanwhile.
        return call.idle_s if call.begun else call.idle_s * _FIRST_EVENT_FACTOR

    # --- reading ---

    async def _pieces(
        self, call: Call, reader: Reader, body: dict[str, Any], options: StreamOptions
    ) -> AsyncGenerator[str, None]:
        """The JSON texts of events as they come; sets a flag in *call* at the server's end mark."""
        now = asyncio.get_running_loop().time
        until = now() + call.idle_s * _FIRST_EVENT_FACTOR
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(min(until, call.ends_at)):
                response = await self._open(stack, call, body, options)
            report_limits(call.report, response.headers, provider=self.name, model=call.model)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise InvalidLLMResponse(
                    f"{self._where} answered with a web page: {self.url_hint}",
                    provider=self.name,
                    model=call.model,
                )
            received = await stack.enter_async_context(aclosing(response.iter_bytes()))
            arriving = await stack.enter_async_context(aclosing(self._texts(kind, received)))
            call.heard_at = now()
            while True:
                # Comments and pings show that the server lives, not that its model does.
                silent_until = call.heard_at + call.idle_s * _FIRST_EVENT_FACTOR
                async with asyncio.timeout_at(min(until, silent_until, call.ends_at)):
                    texts = await anext(arriving, None)
                if texts is None:
                    break
                for data in texts:
                    if self._is_last(data):
                        call.said_done = True
                    else:
                        yield data
                patient_until = now() + self._patience_s(call, reader)
                # Once the answer stands, what still trickles in does not prolong the wait.
                stands = reader.finished or call.said_done
                until = min(until, patient_until) if stands else patient_until

    async def _texts(
        self,
        kind: str,  # noqa: ARG002 - for subclasses
        received: AsyncGenerator[bytes, None],
    ) -> AsyncGenerator[Sequence[str], None]:
        """The texts of the events in a body of the content type *kind*, one list for each piece."""
        decoder = SSEDecoder()
        async for piece in received:
            yield decoder.feed(piece)
        yield decoder.close()

    # --- the client ---

    async def _sdk(self) -> Any:
        """The SDK's client: one for each event loop, as its connections belong to one."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            made = await asyncio.to_thread(self._new_client)
            client = self._clients.setdefault(loop, made)
        return client

    def _new_client(self) -> Any:
        """Load the SDK, most of which it does on first use, and make a client."""
        sdk = self._module()
        # A proxy of the environment has no way to this machine's own servers.
        local = urlsplit(self._url).hostname in ("127.0.0.1", "localhost", "::1")
        return self._make_client(
            api_key=_NO_KEY,  # each request carries its own, and no profile is searched for
            base_url=self._url,
            max_retries=0,
            timeout=sdk.Timeout(None, connect=self._connect_timeout_s),
            http_client=sdk.DefaultAsyncHttpxClient(trust_env=False) if local else None,
        )

    def _waits(self, call: Call, options: StreamOptions) -> dict[str, Any]:
        """The SDK's argument for the wait that a call sets for its connection."""
        if options.connect_timeout_s is None:
            return {}
        return {"timeout": self._module().Timeout(None, connect=call.connect_s)}

    @property
    def _url(self) -> str:
        """Where the server is."""
        if self._client is not None:
            return str(self._client.base_url)
        return self.base_url or os.environ.get(self.base_url_variable) or self.official_url

    @property
    def _official(self) -> bool:
        return urlsplit(self._url).hostname == urlsplit(self.official_url).hostname

    @property
    def _where(self) -> str:
        """The server, without credentials that its URL may hold."""
        parts = urlsplit(self._url)
        return f"{self.name} at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    # --- the key ---

    @property
    def _needs_key(self) -> bool:
        if self._client is not None or not self._key_variable:
            return False
        return bool(self.base_url) or not os.environ.get(self.base_url_variable)

    async def _key(self, options: StreamOptions) -> str:
        if options.api_key:
            return options.api_key
        if callable(self._api_key):
            given = self._api_key()
            key = await given if inspect.isawaitable(given) else given
        elif self._api_key is None:
            key = os.environ.get(self._key_variable, "")
        else:
            key = self._api_key
        if not key and self._needs_key:
            raise LLMError(self._missing_key(), provider=self.name, model=self.model)
        return key

    @property
    def _key_hint(self) -> str:
        """Advice for an error in which the server refuses the key."""
        return f"check {self._key_variable or 'the key'}"

    def _missing_key(self) -> str:
        return (
            f"no API key for {self.name}/{self.model}: set {self._key_variable}, pass api_key=...,"
            " or give the base_url of a server that needs none"
        )

    # --- what goes wrong ---

    def _failure(self, error: Exception, call: Call) -> LLMError:
        """Translate *error*. Nothing is chained: requests hold keys."""
        sdk = self._module()
        facts: dict[str, Any] = {"provider": self.name, "model": call.model}
        if isinstance(error, LLMError):
            return error
        if isinstance(error, sdk.APIStatusError):
            refusal: Any = error
            found = failure_of(
                refusal.status_code,
                refusal.body,
                headers=refusal.response.headers,
                secrets=(call.key,),
                sources=call.sources,
                key_hint=self._key_hint,
                **facts,
            )
            report_limits(call.report, refusal.response.headers, refusal=found, **facts)
            return found
        if isinstance(error, TimeoutError):
            late = asyncio.get_running_loop().time() >= call.ends_at
            what = "did not finish in the time of one call" if late else "fell silent"
            return LLMUnavailable(f"{self._where} {what}", **facts)
        if isinstance(error, UnicodeDecodeError):
            text = f"{self._where} sent text that is not UTF-8"
            return InvalidLLMResponse(text, retryable=True, **facts)
        if isinstance(error, sdk.APITimeoutError):
            return LLMUnavailable(
                f"{self._where} took no connection within {call.connect_s:g} s",
                unbilled=True,
                **facts,
            )
        reason = redact(_innermost(error), (call.key,))
        if isinstance(error, sdk.APIConnectionError):
            # Any other failure may have come after the request.
            facts["unbilled"] = "Connect" in type(error.__cause__).__name__
            return LLMUnavailable(f"{self._where} cannot be reached: {reason}", **facts)
        if type(error).__module__.partition(".")[0] in _TRANSPORTS or isinstance(error, OSError):
            return LLMUnavailable(f"{self._where} broke the answer off: {reason}", **facts)
        return LLMError(f"the request to {self._where} failed: {reason}", **facts)


def _joined(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """*extra*, its lists of tools and the like after *body*'s rather than over them."""
    return {
        name: [*body[name], *value] if name in _LISTS and name in body else value
        for name, value in extra.items()
    }


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
