"""
The SDK's endpoints, each with the same checks: the caller first, then the request.

A body is measured and checked before the SDK parses it, and the SDK gets the checked one. It
sees no header but A2A's version. A stream without a reader ends, and closes what it held.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError as InvalidJSON
from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes import (
    ServerCallContextBuilder,
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.types import AgentCard, AgentSkill, GetExtendedAgentCardRequest
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, JSONParseError
from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]  # no stubs
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from looopy.server.app_context import AppContext
from looopy.server.problems import Problem, problem_of
from looopy.server.protocols.a2a.calls import OF_THE_WIRE, Call, a2a_error
from looopy.server.protocols.a2a.card import card, skills_of
from looopy.server.protocols.a2a.handler import Handler
from looopy.server.protocols.a2a.push.delivery import Deliveries
from looopy.server.protocols.a2a.push.verbs import PushVerbs
from looopy.server.protocols.a2a.routes import Endpoint

RPC: Final = "/a2a/v1"
_JSON: Final = (b"content-type", b"application/json")
_A2A_JSON: Final = "application/a2a+json"
_MAY_BE_EMPTY: Final = (":cancel", ":subscribe")
_GRPC: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_CALL: Final = "looopy.a2a"
_PARSE_ERROR: Final = "Parse error: %s"
_WHOLE_BODY: Final = "Request body: %s"
_LOGS_BODIES: Final = (
    "a2a.server.routes.jsonrpc_dispatcher",
    "a2a.compat.v0_3.jsonrpc_adapter",
    "a2a.utils.error_handlers",
)


def wired(
    app_context: AppContext,
    facts: Mapping[str, str],
    url: str | None,
    deliveries: Deliveries | None = None,
) -> Mapping[tuple[str, str], Endpoint]:
    """The endpoints by method and path; see `looopy.server.protocols.a2a.routes`."""
    push = None if deliveries is None else PushVerbs(app_context.host, deliveries)
    for name in _LOGS_BODIES:
        logging.getLogger(name).addFilter(_QUIET)  # as often as one likes
    base = None if url is None else url.rstrip("/")
    cards = _Cards(app_context, base, facts, push=push is not None)
    handler, contexts = Handler(app_context, cards.extended, push), _Contexts()
    rest = create_rest_routes(handler, contexts, enable_v0_3_compat=True)
    made: dict[tuple[str, str], Endpoint] = {("GET", AGENT_CARD_WELL_KNOWN_PATH): cards.show}
    for route in create_jsonrpc_routes(handler, RPC, contexts, enable_v0_3_compat=True):
        door = _Door(app_context, route.endpoint, base, is_rpc=True)
        made |= {("POST", RPC): door.answer, ("POST", f"{RPC}/"): door.answer}
    for one in rest:
        if isinstance(one, Route):
            door = _Door(app_context, one.endpoint, base, is_rpc=False)
            methods = (one.methods or set()) - {"HEAD"}
            made |= {(method, one.path): door.answer for method in methods}
    return made


class _Quiet(logging.Filter):
    """
    Keeps errors of callers, and what they sent, such as the token of a receiver, out of the log.

    The SDK logs each refused request as a warning, each body if it debugs, and one that it cannot
    parse with the error, whose text has values of the body. The caller gets that error as the
    answer; in the log, it is for debugging.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass, without the error and the body."""
        if record.msg == _WHOLE_BODY:
            return False
        error = record.exc_info[1] if record.exc_info else None
        malformed = isinstance(error, (ParseError, ValidationError))
        if malformed or record.levelno == logging.WARNING:
            if not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
                return False
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        if malformed:
            record.exc_info, record.exc_text = None, None
        elif record.msg == _PARSE_ERROR:
            record.args = ("the request is invalid",)
        return True


_QUIET: Final = _Quiet()


_MALFORMED: Final = Problem("the request is malformed: a part of it has a wrong type")
_FAILED: Final = b'"code":-32603,'  # JSON-RPC's internal error


class _Contexts(ServerCallContextBuilder):
    """Hands the call on to the handler, instead of the headers."""

    def build(self, request: Request) -> ServerCallContext:
        """The context of a request."""
        call: Call = request.scope[_CALL]
        return ServerCallContext(state=call.state(request.headers.get("a2a-version")))


class _Door:
    """An endpoint of the SDK, and what comes before it."""

    def __init__(
        self, app_context: AppContext, endpoint: Endpoint, base: str | None, *, is_rpc: bool
    ) -> None:
        self._app_context = app_context
        self._endpoint = endpoint
        self._base = base
        self._is_rpc = is_rpc

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        request_id: Any = None
        try:
            auth = await self._app_context.identify(request)
            body = await self._body(request)
        except Exception as error:  # noqa: BLE001 - each becomes an answer, in A2A's form
            return self._refusal(problem_of(error), request_id)
        if body is not None and isinstance(body.get("id"), (str, int)):
            request_id = body["id"]
        is_old = "/" in str((body or {}).get("method")) if self._is_rpc else _is_old(request)
        call = Call(auth, self._base or _address(request), is_old=is_old)
        try:
            response = await self._endpoint(_replayed(request, body, call))
            if isinstance(response, EventSourceResponse):
                return _Stream(await self._begun(response), call)
        except A2AError as error:  # the SDK's routes for 0.3 raise them
            response = self._error(error, None, request_id)
        except Exception:
            if call.reached:
                raise
            call.problem = _MALFORMED
            response = Response()
        await call.close()
        if not call.reached and _is_failure(response):
            call.problem = _MALFORMED
        return response if call.problem is None else self._refusal(call.problem, request_id)

    async def _body(self, request: Request) -> dict[str, Any] | None:
        """The body, checked; `None` if there is none and none is needed."""
        if request.method != "POST":
            return None
        headers = request.headers
        if request.url.path.endswith(_MAY_BE_EMPTY) and not (
            "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        ):
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == _A2A_JSON:
            others = [pair for pair in request.scope["headers"] if pair[0] != _JSON[0]]
            scope = {**request.scope, "headers": [*others, _JSON]}
            request = Request(scope, request.receive)
        return await self._app_context.read_json(request)

    async def _begun(self, response: EventSourceResponse) -> EventSourceResponse:
        """*response* once it has its first event: an error before that is an answer."""
        frames = aiter(response.body_iterator)
        first = await anext(frames, None)

        async def again() -> AsyncIterator[Any]:
            if first is not None:
                yield first
                async for frame in frames:
                    yield frame

        response.body_iterator = again()
        response.ping_interval = self._app_context.limits.heartbeat_s
        return response

    def _refusal(self, problem: Problem, request_id: Any) -> Response:
        """The answer to what A2A has no error for, or to a body that the SDK does not get."""
        reason = problem.code.upper() if problem.status in OF_THE_WIRE else None
        response = self._error(a2a_error(problem), problem.status, request_id, reason)
        response.headers.update(problem.headers)
        return response

    def _error(
        self,
        error: A2AError,
        status: int | None,
        request_id: Any = None,
        reason: str | None = None,
    ) -> Response:
        if self._is_rpc:
            shown: A2AError | JSONRPCError = error
            if isinstance(error, JSONParseError):  # which the SDK knows by another name here
                shown = InvalidJSON(message=error.message)
            said = build_error_response(request_id, shown)
            details, code = said["error"].get("data"), status or 200
        else:
            said = build_rest_error_payload(error)
            if status is not None:
                said["error"]["code"] = status
                said["error"]["status"] = _GRPC.get(status, said["error"]["status"])
            details, code = said["error"].get("details"), said["error"]["code"]
        if reason is not None and details:
            details[0]["reason"] = reason
        return JSONResponse(said, code)


def _is_failure(response: Response) -> bool:
    """True if the SDK took an error for its own: it could not read the request."""
    if response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
        return True
    return _FAILED in bytes(response.body) if isinstance(response, JSONResponse) else False


class _Stream(Response):
    """A stream of the SDK, which is closed with its call."""

    def __init__(self, response: EventSourceResponse, call: Call) -> None:
        super().__init__()
        self._response = response
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream."""
        try:
            await self._response(scope, receive, send)
        finally:
            await self._call.close()


def _address(request: Request) -> str:
    """The address of the server as the request has it, with the prefix at which it is mounted."""
    prefix = request.scope.get("root_path", "")
    return str(request.url.replace(path=prefix, query="")).rstrip("/")


def _is_old(request: Request) -> bool:
    """True if a path of REST is one of 0.3."""
    return request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/v1/")


def _replayed(request: Request, body: dict[str, Any] | None, call: Call) -> Request:
    """The request as the SDK reads it: with the body that was checked."""
    scope = {**request.scope, _CALL: call}
    left = [json.dumps(body).encode() if body is not None else b""]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await request.receive()

    return Request(scope, receive)


class _Cards:
    """The cards, for the address of the request."""

    def __init__(
        self, app_context: AppContext, base: str | None, facts: Mapping[str, str], *, push: bool
    ) -> None:
        self._app_context = app_context
        self._base = base
        self._facts = facts
        self._push = push
        self._skills: list[AgentSkill] | None = None
        self._listing = asyncio.Lock()

    async def show(self, request: Request) -> Response:
        """`GET /.well-known/agent-card.json`, public."""
        made = card(self._base or _address(request), [], self._facts, push=self._push)
        [route] = create_agent_card_routes(made, cache_control="public, max-age=300")
        response: Response = await route.endpoint(request)
        return response

    async def extended(self, _params: GetExtendedAgentCardRequest, call: Call) -> AgentCard:
        """The card with a skill for each tool, for a caller who signed in."""
        async with self._listing:
            if self._skills is None:
                self._skills = await skills_of(self._app_context.host)
        return card(call.base, self._skills or [], self._facts, push=self._push)
