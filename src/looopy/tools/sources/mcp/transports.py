"""
Filters a server's messages before the SDK reads them.

An entry that is not a tool is removed from a list of tools, so that it does not cost the others. An
answer over HTTP is read up to a limit. A failing connection becomes an answer to one request, and
does not end all of them. With `sdk.py`, the only file that imports the official SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

import httpx2
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from looopy.tools.sources.mcp.listing import object_schema
from looopy.tools.sources.mcp.target import Target
from mcp import StdioServerParameters, types

HTTP_ERROR = -32098
HTTP_REFUSED = -32099  # the server did not process the request
_TAIL_BYTES = 2000
_READ_TIMEOUT_S = 24 * 3600.0  # of HTTP: calls have their own timeouts
HeadersNow = Callable[[], "Mapping[str, str] | None"]


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
        stderr: The end of the standard error of a server that is a process.
    """

    lost: Callable[[], object]
    changed: Callable[[], object]
    elicit: Callable[[Any], Awaitable[Any]] | None
    problems: list[str]
    stderr: bytes = b""


@asynccontextmanager
async def open_streams(target: Target, watch: Watch, headers: HeadersNow) -> AsyncIterator[Any]:
    """
    The streams to and from a server, for the SDK's client.

    Args:
        headers: Called at each HTTP request.
    """
    over_http = target.url is not None
    transport = _over_http(target, headers) if over_http else _as_process(target, watch)
    async with transport as (reading, writing):
        yield _Reading(reading, target, watch), writing


@asynccontextmanager
async def _over_http(target: Target, headers: HeadersNow) -> AsyncIterator[Any]:
    assert target.url is not None  # noqa: S101 - chosen by the caller
    timeout = httpx2.Timeout(target.connect_timeout_s, read=_READ_TIMEOUT_S)
    async with (
        _HttpClient(headers, target.max_bytes, timeout=timeout) as client,
        streamable_http_client(
            target.url, http_client=client, max_sse_event_size=target.max_bytes
        ) as streams,
    ):
        yield streams


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


class _HttpClient(httpx2.AsyncClient):
    """Adds the current headers, and turns each failure into an answer to its own request."""

    def __init__(self, headers: HeadersNow, max_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._headers_now = headers
        self._max_bytes = max_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        request.headers.update(self._headers_now() or {})
        try:
            response = await super().send(request, **options)
            return await self._bounded(request, response)
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
            return _refusal(request, 502, f"cannot be reached: {said}", refused=unsent)

    async def _bounded(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """*response*, read unless it is a stream; an error without a text gets one."""
        kind = response.headers.get("content-type", "").lower()
        failed = response.status_code >= 400
        if not failed and not kind.startswith("application/json"):
            return response
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self._max_bytes:
                await response.aclose()
                return _refusal(request, 502, f"answered with more than {self._max_bytes:,} bytes")
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            return httpx2.Response(404, request=request)  # the SDK reports it
        if failed and not (kind.startswith("application/json") and _is_rpc_error(body)):
            status = response.status_code
            reason = f"HTTP {status} {response.reason_phrase}".strip()
            return _refusal(request, status, f"answered with {reason}", refused=status < 500)
        kept = {"content-type": kind}
        if session := response.headers.get("mcp-session-id"):
            kept["mcp-session-id"] = session
        return httpx2.Response(response.status_code, headers=kept, content=body, request=request)


def _is_rpc_error(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
        return isinstance(error["code"], int) and isinstance(error["message"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _refusal(
    request: httpx2.Request, status: int, text: str, *, refused: bool = False
) -> httpx2.Response:
    error = {"code": HTTP_REFUSED if refused else HTTP_ERROR, "message": text}
    return httpx2.Response(
        status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request
    )


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
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            tools = item.message.result.get("tools")
            if isinstance(tools, list):
                item.message.result["tools"] = self._tools(tools)
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
                note(f"{what} was left out: it is no tool as MCP has it")
            else:
                kept.append(mended)
        return kept


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
            note(f"the schema of its tool {str(kept.get('name'))[:64]!r} was no object, and is now")
    try:
        types.ToolAnnotations.model_validate(kept.get("annotations", {}))
    except ValidationError:
        del kept["annotations"]
    return {key: kept[key] for key in kept if key not in ("icons", "execution")}
