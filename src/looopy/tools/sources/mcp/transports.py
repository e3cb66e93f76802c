"""
Filters a server's messages before the SDK reads them.

An entry that is not a tool is removed from a list of tools, so that it does not cost the others. An
answer over HTTP is read up to a limit. A failing connection becomes an answer to one request, and
does not end all of them. With `sdk.py`, the only file that imports the official SDK.

The code of an error does not show its origin: the SDK and the servers use the same numbers. So this
file puts a `Failure` into the error's data where the transport knows more than the code; no server
can send one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO, cast

import httpx2
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from looopy.tools.sources.escapes import whole_escapes, whole_lines
from looopy.tools.sources.mcp.credentials import Credentials
from looopy.tools.sources.mcp.listing import object_schema
from looopy.tools.sources.mcp.sign_in import Fence, SignInError
from looopy.tools.sources.mcp.target import Target
from mcp import StdioServerParameters, types

CONNECTION_CLOSED = types.CONNECTION_CLOSED  # also of servers: JSON-RPC leaves it to them
_TAIL_BYTES = 2000
_PROBE_LINES = 8
_READ_TIMEOUT_S = 24 * 3600.0  # of HTTP: calls have their own timeouts
CredentialsNow = Callable[[], Credentials]
_PROBE_S = 3.0  # for the first event of a server of the old transport


@dataclass(frozen=True, slots=True)
class Failure:
    """
    The outcome of a request, as the transport knows it.

    Attributes:
        text: What the server did, such as "answered with HTTP 500".
        known: The server has not run the call, or has answered it.
        sign_in: The user is not signed in, and cannot be.
        forgotten: The server has forgotten the connection, and has not read the call.
    """

    text: str
    known: bool = False
    sign_in: bool = False
    forgotten: bool = False


@dataclass(slots=True)
class _Exchange:
    """
    One HTTP request of the SDK.

    Attributes:
        failure: Its outcome, if the server's answer lacks it.
        over: True once the answer's events have ended.
    """

    failure: Failure | None = None
    over: bool = False


# Set in the SDK's task of a request; each message that the SDK reads brings its task's context.
_exchange: ContextVar[_Exchange | None] = ContextVar("looopy_mcp_exchange", default=None)


@dataclass(slots=True, kw_only=True)
class Watch:
    """
    Callbacks and notes of a connection for its owner.

    Attributes:
        lost: Called when the server can send nothing more.
        changed: Called when the list of tools has changed.
        elicit: Awaited with the parameters of a question that comes while a call runs; `None`: the
            server may not ask.
        problems: The problems of the last list of tools.
        secret: Called with the `Authorization` that a sign-in sends.
        stderr: The end of the standard error of a server that is a process.
    """

    lost: Callable[[], object]
    changed: Callable[[], object]
    elicit: Callable[[Any], Awaitable[Any]] | None
    problems: list[str]
    secret: Callable[[str], object]
    stderr: bytes = b""


@asynccontextmanager
async def open_streams(
    target: Target, watch: Watch, credentials: CredentialsNow
) -> AsyncIterator[Any]:
    """
    The streams to and from a server, for the SDK's client.

    Args:
        credentials: Called at each HTTP request.
    """
    if target.url is None:
        transport = _as_process(target, watch)
    elif target.protocol == "sse":
        transport = _over_sse(target, watch, credentials)
    else:
        transport = _over_http(target, watch, credentials)
    async with transport as (reading, writing):
        yield _Reading(reading, target, watch), writing


@asynccontextmanager
async def _over_http(
    target: Target, watch: Watch, credentials: CredentialsNow
) -> AsyncIterator[Any]:
    async with (
        _HttpClient(target, watch, credentials) as client,
        streamable_http_client(
            target.url or "", http_client=client, max_sse_event_size=target.max_bytes
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def _over_sse(
    target: Target, watch: Watch, credentials: CredentialsNow
) -> AsyncIterator[Any]:
    def make(
        headers: dict[str, str] | None = None,  # noqa: ARG001 - the client adds the current ones
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001 - as above
        auth: httpx2.Auth | None = None,  # noqa: ARG001 - as above
    ) -> httpx2.AsyncClient:
        return _HttpClient(target, watch, credentials, raises=True)

    async with sse_client(target.url or "", httpx_client_factory=make) as streams:
        yield streams


async def speaks_sse_only(target: Target, watch: Watch, credentials: CredentialsNow) -> bool:
    """True if the address speaks the old SSE transport: its first event is an endpoint."""
    if target.url is None or target.protocol == "sse":
        return False
    begun: list[str] = []
    headers = {"accept": "text/event-stream"}
    try:
        async with (
            asyncio.timeout(_PROBE_S),
            _HttpClient(target, watch, credentials) as client,
            client.stream("GET", target.url, headers=headers) as response,
        ):
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for line in response.aiter_lines():
                    begun.append(line)
                    if not line or len(begun) > _PROBE_LINES:
                        break
    except Exception:  # noqa: BLE001 - then it is not
        return False
    return any(line.replace(" ", "") == "event:endpoint" for line in begun)


@asynccontextmanager
async def _as_process(target: Target, watch: Watch) -> AsyncIterator[Any]:
    parameters = StdioServerParameters(
        command=target.command or "",
        args=list(target.args),
        env=dict(target.env),
        cwd=target.cwd,
    )
    async with _stderr(watch) as errlog, stdio_client(parameters, errlog) as streams:
        if not isinstance(errlog, int):
            errlog.close()  # the process has its own
        yield streams


@asynccontextmanager
async def _stderr(watch: Watch) -> AsyncIterator[TextIO]:
    """The standard error for a server's process; its end is kept."""
    if sys.platform == "win32":
        yield cast("TextIO", subprocess.DEVNULL)
        return
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as writer, os.fdopen(reading, "rb", buffering=0) as reader:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: _Tail(watch), reader)
        try:
            yield writer
        finally:
            transport.close()


class _Tail(asyncio.Protocol):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def data_received(self, data: bytes) -> None:
        """Keep the end."""
        self._watch.stderr = (self._watch.stderr + data)[-_TAIL_BYTES:]


class HttpFailure(Exception):
    """The old SSE transport has no answer to its requests: a failure ends the connection."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _HttpClient(httpx2.AsyncClient):
    """Adds the current credentials, and turns each failure into an answer to its own request."""

    def __init__(
        self, target: Target, watch: Watch, credentials: CredentialsNow, *, raises: bool = False
    ) -> None:
        super().__init__(timeout=httpx2.Timeout(target.connect_timeout_s, read=_READ_TIMEOUT_S))
        self._target = target
        self._watch = watch
        self._now = credentials
        self._max_bytes = target.max_bytes
        self._raises = raises

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        exchange = _Exchange()
        _exchange.set(exchange)
        now = self._now()
        request.headers.update(now.headers or {})
        if now.auth is not None:
            options["auth"] = Fence(now.auth, self._target, self._watch.secret)
        try:
            response = await super().send(request, **options)
            if response.status_code == 401 and (now.auth is not None or now.headers is not None):
                await response.aclose()
                to = "after the sign-in" if now.auth is not None else "to the headers of this turn"
                raise SignInError(f"it answered with HTTP 401 {to}")  # noqa: TRY301 - as from auth
            response = await self._bounded(request, response, exchange)
        except SignInError as error:
            failure = Failure(f"did not let the user sign in: {error}", known=True, sign_in=True)
            response = _refusal(request, 401, exchange, failure)
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
            failure = Failure(f"cannot be reached: {said}", known=unsent)
            response = _refusal(request, 502, exchange, failure)
        if self._raises and response.status_code >= 400:
            self._watch.lost()
            raise HttpFailure(exchange.failure or _said(json.loads(response.content)["error"]))
        return response

    async def _bounded(
        self, request: httpx2.Request, response: httpx2.Response, exchange: _Exchange
    ) -> httpx2.Response:
        """*response*, read unless it is a stream; an error without a text gets one."""
        kind = response.headers.get("content-type", "").lower()
        failed = response.status_code >= 400
        if not failed and not kind.startswith("application/json"):
            if kind.startswith("text/event-stream"):
                plain = "content-encoding" not in response.headers
                lines = self._max_bytes if plain else None
                response.stream = _Followed(response.stream, exchange, lines)
            elif response.is_success:  # a call may have run
                exchange.failure = Failure("answered with something that is not an MCP answer")
            return response
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self._max_bytes:
                await response.aclose()
                failure = Failure(f"answered with more than {self._max_bytes:,} bytes")
                return _refusal(request, 502, exchange, failure)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            exchange.failure = Failure("has forgotten the connection", forgotten=True)
            return httpx2.Response(404, request=request)
        if failed and not (kind.startswith("application/json") and _is_rpc_error(body)):
            status = response.status_code
            reason = f"HTTP {status} {response.reason_phrase}".strip()
            failure = Failure(f"answered with {reason}", known=status < 500)
            return _refusal(request, status, exchange, failure)
        kept = {"content-type": kind}
        if session := response.headers.get("mcp-session-id"):
            kept["mcp-session-id"] = session
        return httpx2.Response(
            response.status_code, headers=kept, content=whole_escapes(body), request=request
        )


class _Followed(httpx2.AsyncByteStream):
    """The events of an answer, by lines of up to *line_bytes* if given; notes their end."""

    def __init__(self, stream: Any, exchange: _Exchange, line_bytes: int | None) -> None:
        self._stream = stream
        self._exchange = exchange
        self._line_bytes = line_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        if self._line_bytes is not None:
            chunks = whole_lines(chunks, self._line_bytes)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self._exchange.over = True

    async def aclose(self) -> None:
        await self._stream.aclose()


def _is_rpc_error(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
        return isinstance(error["code"], int) and isinstance(error["message"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _refusal(
    request: httpx2.Request, status: int, exchange: _Exchange, failure: Failure
) -> httpx2.Response:
    exchange.failure = failure
    error = {"code": types.INTERNAL_ERROR, "message": failure.text}
    return httpx2.Response(
        status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request
    )


def _said(error: Mapping[str, Any]) -> Failure:
    """The outcome of a call that the server answered with *error*."""
    return Failure(f"answered with an error: {error['message']} ({error['code']})", known=True)


def _outcome(error: types.ErrorData, exchange: _Exchange | None) -> Failure | None:
    """The outcome of a request with *error*, if the error's code does not show its origin."""
    if exchange is not None and exchange.failure is not None:
        return exchange.failure
    if error.code != CONNECTION_CLOSED:
        return None
    # The SDK answers a request with this code once its stream is over, or has too large an event.
    if exchange is not None and (exchange.over or error.message.startswith("SSE stream failed: ")):
        return Failure("broke its answer off")
    return _said({"message": error.message, "code": error.code})


class _Reading(ObjectReceiveStream[Any]):
    """The messages of a server, on their way to the SDK; implements its `ReadStream`."""

    def __init__(self, stream: Any, target: Target, watch: Watch) -> None:
        self._stream = stream
        self._target = target
        self._watch = watch

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            return self._read(await self._stream.receive())
        except EndOfStream:
            self._watch.lost()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _read(self, item: Any) -> Any:
        item = _reread(item) if isinstance(item, ValidationError) else item
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse):
            tools = message.result.get("tools")
            if isinstance(tools, list):
                message.result["tools"] = self._tools(tools)
        elif isinstance(message, types.JSONRPCError):
            context = self.last_context
            exchange = None if context is None else context.get(_exchange)
            if (outcome := _outcome(message.error, exchange)) is not None:
                message.error.data = outcome
        return item

    def _tools(self, tools: list[Any]) -> list[Any]:
        """The valid tools; the others are noted as problems."""
        note, limit = self._watch.problems.append, self._target.max_tools
        if len(tools) > limit:
            note(f"it lists {len(tools):,} tools: those after the first {limit:,} were left out")
        kept: list[Any] = []
        for tool in tools[:limit]:
            mended = _mended(tool, note)
            try:
                types.Tool.model_validate(mended)
            except ValidationError:
                name = tool.get("name") if isinstance(tool, dict) else None
                what = f"its tool {name[:64]!r}" if isinstance(name, str) else "something it lists"
                note(f"{what} was left out: it is not an MCP tool")
            else:
                kept.append(mended)
        return kept


def _reread(error: ValidationError) -> Any:
    """The message of a process that the SDK could not read, if half characters were the reason."""
    line = error.errors()[0]["input"]
    if isinstance(line, str) and (whole := whole_escapes(line.encode())) != line.encode():
        with contextlib.suppress(ValidationError):
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(whole, by_name=False))
    return error


def _mended(tool: Any, note: Callable[[str], object]) -> Any:
    """*tool* without invalid optional parts and `outputSchema`: answers are not checked."""
    if not isinstance(tool, dict):
        return tool
    kept = {key: value for key, value in tool.items() if key != "outputSchema"}
    for key in ("title", "description"):
        if not isinstance(kept.get(key, ""), str):
            del kept[key]
    if isinstance(kept.get("inputSchema"), dict):
        kept["inputSchema"], lied = object_schema(kept["inputSchema"])
        if lied:
            name = str(kept.get("name"))[:64]
            note(f"the schema of its tool {name!r} was not an object, and is now")
    try:
        types.ToolAnnotations.model_validate(kept.get("annotations", {}))
    except ValidationError:
        del kept["annotations"]
    return {key: kept[key] for key in kept if key not in ("icons", "execution")}
