"""The endpoints that `useChat` expects, as a protocol of the server: `protocols=[ai_sdk_api]`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import wraps
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from looopy.errors import ContextNotFound, LooopyError, ValueRefused
from looopy.server.app_context import AppContext
from looopy.server.gate.expiry import while_valid
from looopy.server.problems import problem_of
from looopy.server.protocols.ai_sdk.chat import Chat
from looopy.server.protocols.ai_sdk.parts import DONE, HEADERS, Part, line
from looopy.server.protocols.ai_sdk.request import read_request
from looopy.server.sse import EventStream, json_bytes, json_items

_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class _Endpoints:
    """The handlers, of one server."""

    def __init__(self, app_context: AppContext) -> None:
        self._app_context = app_context
        self._chat = Chat(app_context.host, app_context.limits.page_bytes)

    async def post(self, request: Request) -> Response:
        """Begin or continue a turn, and stream its answer: `POST /api/chat`."""
        auth = await self._app_context.identify(request)
        asked = read_request(await self._app_context.read_json(request))
        self._app_context.check_size(asked.message, f"{asked.path}/parts")
        async with self._app_context.turn(auth, asked.context_id):
            parts = await self._chat.post(asked, auth)
        return EventStream(self._app_context, auth, _lines(while_valid(parts, auth)), **HEADERS)

    async def resume(self, request: Request) -> Response:
        """Stream the answer that is being written: `GET /api/chat/{id}/stream`; 204 without one."""
        auth = await self._app_context.identify(request)
        try:
            parts = await self._chat.resume(request.path_params["context_id"], auth)
        except ContextNotFound:  # a chat without a message; the page asks for every chat
            parts = None
        if parts is None:
            return Response(status_code=204)
        return EventStream(self._app_context, auth, _lines(while_valid(parts, auth)), **HEADERS)

    async def messages(self, request: Request) -> Response:
        """The newest messages, for a page that loads: `GET /api/chat/{id}`."""
        auth = await self._app_context.identify(request)
        context_id = request.path_params["context_id"]
        async with self._app_context.reading(auth):
            shown, more = await self._chat.messages(context_id, auth, before=_before(request))
            head = json_bytes({"id": context_id, "before": more})[:-1] + b',"messages":['
            content = b"".join([head, b",".join(await json_items(shown)), b"]}"])
            return Response(content, media_type="application/json")

    async def stop(self, request: Request) -> Response:
        """Cancel the turn that runs: `POST /api/chat/{id}/stop`."""
        auth = await self._app_context.identify(request)
        await self._chat.stop(request.path_params["context_id"], auth)
        return Response(status_code=204)


def _before(request: Request) -> int | None:
    """The turn whose earlier messages the page wants, or `None`."""
    asked = request.query_params.get("before")
    if asked is None:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) < 16):
        raise ValueRefused("/before: must be the number of a turn", path="/before")
    return int(asked)


async def _lines(parts: AsyncGenerator[Part, None]) -> AsyncGenerator[bytes, None]:
    """The lines of a stream; an error that ends it is its last part."""
    try:
        async with aclosing(parts):
            async for part in parts:
                yield line(part)
    except LooopyError as error:
        yield line({"type": "error", "errorText": problem_of(error).message})
    yield DONE


def _told(handler: _Handler) -> _Handler:
    """*handler*, with errors as text: the AI SDK makes the body the message of its error."""

    @wraps(handler)
    async def telling(request: Request) -> Response:
        try:
            return await handler(request)
        except LooopyError as error:
            problem = problem_of(error)
            text = problem.message
            if problem.path and not text.startswith(problem.path):
                text = f"{problem.path}: {text}"
            return PlainTextResponse(text, problem.status, headers=dict(problem.headers))

    return telling


def ai_sdk_api(app_context: AppContext) -> Sequence[BaseRoute]:
    """The routes of the AI SDK; `id` of a chat is the context."""
    chat = _Endpoints(app_context)
    one = "/api/chat/{context_id}"
    return [
        Route("/api/chat", _told(chat.post), methods=["POST"]),
        Route(one, _told(chat.messages), methods=["GET"]),
        Route(f"{one}/stream", _told(chat.resume), methods=["GET"]),
        Route(f"{one}/stop", _told(chat.stop), methods=["POST"]),
    ]
