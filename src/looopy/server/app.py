"""The application: the HTTP API and the protocols above one host, as one ASGI app of Starlette."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import cache, partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from looopy.errors import LooopyError
from looopy.server import api
from looopy.server.app_context import AppContext, Authenticate, Routes
from looopy.server.deciding import MayAnswer
from looopy.server.gate.auth import LocalToken
from looopy.server.gate.flow import Flow
from looopy.server.gate.guard import LOOPBACK, Guard
from looopy.server.gate.limits import Limits
from looopy.server.host import AgentHost
from looopy.server.metrics import metrics_routes
from looopy.server.openapi import describe
from looopy.server.problems import Problem, problem_response


def create_app(
    host: AgentHost,
    *,
    authenticate: Authenticate | None = None,
    limits: Limits | None = None,
    protocols: Sequence[Routes] = (),
    hosts: Sequence[str] = LOOPBACK,
    origins: Sequence[str] = (),
    metrics: Authenticate | None = None,
    may_answer: MayAnswer | None = None,
    http_api: bool = True,
) -> Starlette:
    """
    Make the ASGI application of *host*; its shutdown closes the host.

    Args:
        authenticate: `authenticate(request)` returns the `AuthContext` of the caller, or `None`. It
            may be a coroutine function. By default a `LocalToken`: one person on this machine;
            `app.state.context.authenticate.token` is the token.
        limits: See `Limits`.
        protocols: Functions `routes(app_context)` that return more routes; see
            `looopy.server.app_context`.
        hosts: The names that `Host` may have, with or without a port; `*` for any.
        origins: The origins of web pages, besides the server's own, that may use it.
        metrics: Identifies the readers of `/metrics`, as *authenticate* does for the rest. By
            default only the person of a `LocalToken` reads them.
        may_answer: In place of the host's: see `AgentHost`.
        http_api: Serve the HTTP API, which the page and `Client` need. Without it, there are the
            probes, the metrics and the *protocols* alone.
    """
    host.may_answer = may_answer or host.may_answer
    app_context = AppContext(host, authenticate or LocalToken(), limits)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            async with contextlib.AsyncExitStack() as running:
                for make in app_context.background:
                    await running.enter_async_context(make())
                yield
        finally:
            await app_context.close()
            await host.aclose()

    async def ready(_request: Request) -> Response:
        is_ready = not host.closed and not app_context.loading
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def alive(_request: Request) -> Response:
        return JSONResponse({"alive": True})

    description = cache(partial(describe, api.OPERATIONS, app_context.limits))

    async def described(request: Request) -> Response:
        servers = [{"url": request.scope.get("root_path") or "/"}]
        return JSONResponse(description() | {"servers": servers})

    own = [Route("/openapi.json", described), *api.routes(app_context)]
    others = [route for protocol in protocols for route in protocol(app_context)]
    if not http_api:  # a protocol may need one path of it
        own = [route for route in own if app_context.links_artifacts and route.path == api.ARTIFACT]
    routes: list[BaseRoute] = [
        Route("/healthz", alive),
        Route("/readyz", ready),
        *metrics_routes(app_context, metrics),
        *own,
        *others,
    ]
    middleware = [
        Middleware(Flow, send_s=app_context.limits.send_s, unread=app_context.unread),
        Middleware(Guard, hosts=hosts, origins=origins),
    ]
    if origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],  # each SDK sends some of its own, and they are named origins
                expose_headers=["Mcp-Session-Id", "Retry-After", "WWW-Authenticate"],
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={LooopyError: _answer, HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    app.state.context = app_context
    return app


def _answer(_request: Request, error: Exception) -> Response:
    return problem_response(error)


def _no_route(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    text = error.detail if isinstance(error, HTTPException) else "the server failed"
    headers = error.headers if isinstance(error, HTTPException) else None
    return problem_response(Problem(text, status=status, code=code, headers=dict(headers or {})))
