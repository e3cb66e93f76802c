"""
Serves the page at `/ui`: a few files, read once, under a policy that lets nothing else run.

The files hold no content and need no credentials. The page asks for the token, or finds it after
the `#` of its address, which no browser sends anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from looopy.server.app_context import AppContext

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def ui_page(_app_context: AppContext) -> Sequence[BaseRoute]:
    """The routes of the page: `/ui`, and its files below."""
    folder = files("looopy.server.page") / "static"
    found = {
        one.name: (one.read_bytes(), _TYPES[one.name[one.name.rfind(".") :]])
        for one in folder.iterdir()
    }

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in found:
            return Response(status_code=404, headers=_HEADERS)
        content, kind = found[name]
        return Response(content, media_type=kind, headers=_HEADERS)

    return [Route("/ui", file), Route("/ui/{name}", file)]
