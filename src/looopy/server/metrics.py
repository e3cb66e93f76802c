"""
`/metrics`: the numbers of this process, as Prometheus reads them.

They cover all tenants and owners at once: which models and tools are used, and how much. So they
are not for every caller of the API. By default the one person of a `LocalToken` reads them, and on
a server for many, only callers that the application names.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from looopy.server.app_context import AppContext, Authenticate
from looopy.server.gate.auth import LocalToken
from looopy.server.problems import Problem


def metrics_routes(app_context: AppContext, readers: Authenticate | None) -> Sequence[BaseRoute]:
    """
    The route, if it has a reader.

    Args:
        readers: Identifies readers of the metrics, as `authenticate` of `create_app`. `None`: only
            the person of the application's `LocalToken`.
    """
    if readers is None and isinstance(app_context.authenticate, LocalToken):
        readers = app_context.authenticate
    if readers is None:
        return ()
    admit = readers

    async def metrics(request: Request) -> Response:
        found = admit(request)
        if (await found if inspect.isawaitable(found) else found) is None:
            raise Problem(
                "the request has no valid credentials for the metrics",
                status=401,
                code="unauthorised",
                headers={"WWW-Authenticate": "Bearer"},
            )
        try:
            from prometheus_client import REGISTRY, exposition
        except ModuleNotFoundError:
            raise Problem(
                "the server has no metrics: it was installed without the extra otel",
                status=404,
                code="not_found",
            ) from None
        encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        # In a thread: it collects all instruments, under a lock.
        return Response(await asyncio.to_thread(encode, REGISTRY), media_type=content_type)

    return (Route("/metrics", metrics),)
