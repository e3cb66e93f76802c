"""
The content of an artifact over HTTP: whole, in a range, or not at all if the client has it.

The tag of a version is the SHA-256 of its content. A version that is still being built has none,
and is sent as it is now. RFC 9110, sections 8.8.3, 13 and 14.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from looopy.server.app_context import AppContext
from looopy.server.problems import Problem
from looopy.stores.base import ArtifactStore
from looopy.types.artifact import Artifact, ArtifactStatus
from looopy.types.context import AuthContext

# Types that a browser shows without running anything in them.
_SHOWN: Final = frozenset(
    {"text/plain", "text/csv", "application/json", "image/png", "image/jpeg", "image/gif"}
)
_PART: Final = 8 * 1024 * 1024  # the longest piece of `ArtifactStore.stream`
_RANGE: Final = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)


def download(
    request: Request, app_context: AppContext, auth: AuthContext, context_id: str, found: Artifact
) -> Response:
    """
    The response with the content of *found*.

    Raises:
        Problem: 416; the range is beyond its end.
    """
    name, size, store = found.artifact_id, found.size, app_context.host.stores_for(auth).artifacts
    kind = found.media_type.partition(";")[0].strip().lower()
    kind = kind if kind in _SHOWN else "application/octet-stream"
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    first, end, status = 0, size, 200
    complete = found.status is ArtifactStatus.COMPLETE
    if complete:
        tag = f'"{found.sha256}"'
        headers |= {"ETag": tag, "Accept-Ranges": "bytes"}
        if _has(request, "if-none-match", tag):
            return Response(status_code=304, headers=headers, media_type=kind)
        wanted = _range(request, tag, size)
        if wanted is not None:
            (first, end), status = wanted, 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        headers["Content-Length"] = str(end - first)
    if request.method == "HEAD":
        response = Response(status_code=status, headers=headers, media_type=kind)
        if not complete:
            del response.headers["Content-Length"]
        return response
    content: AsyncIterator[bytes]
    if status == 206:
        content = _pieces(store, context_id, found, first, end)
    else:
        content = store.stream(context_id, name, version=found.version)
    held = _held(app_context, auth, content, min(end - first, _PART))
    return _Closing(held, status, headers=headers, media_type=kind)


class _Closing(StreamingResponse):
    """
    A response that closes its content at its end, also if the client left.

    Otherwise the content would keep its room until Python collects garbage, which an idle server
    may not do for long.
    """

    def __init__(self, content: AsyncGenerator[bytes, None], *args: Any, **kwargs: Any) -> None:
        super().__init__(content, *args, **kwargs)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._content.aclose()


async def newest(store: ArtifactStore, context_id: str, name: str) -> Artifact:
    """
    The newest version that is complete; if there is none, the newest.

    Raises:
        ArtifactNotFound: There is no such artifact.
    """
    found = await store.get(context_id, name)
    if found.status is not ArtifactStatus.COMPLETE:
        for one in await store.versions(context_id, name):
            if one.status is ArtifactStatus.COMPLETE:
                found = one
    return found


async def _held(
    app_context: AppContext, auth: AuthContext, content: AsyncIterator[bytes], most: int
) -> AsyncGenerator[bytes, None]:
    """*content*, once the caller's other responses leave room for a piece of it."""
    async with app_context.unread.room(app_context.caller(auth), most):
        async for piece in content:
            yield piece


async def _pieces(
    store: ArtifactStore, context_id: str, found: Artifact, first: int, end: int
) -> AsyncGenerator[bytes, None]:
    """The bytes from *first* to *end*."""
    while first < end:
        piece = await store.read(
            context_id,
            found.artifact_id,
            start=first,
            size=min(_PART, end - first),
            version=found.version,
        )
        yield piece
        first += len(piece)


def _has(request: Request, header: str, tag: str) -> bool:
    """True if a header lists *tag*, strong or weak."""
    said = ",".join(request.headers.getlist(header))
    listed = {one.strip().removeprefix("W/") for one in said.split(",")}
    return "*" in listed or tag in listed


def _range(request: Request, tag: str, size: int) -> tuple[int, int] | None:
    """
    The first byte that is asked for, and the one after the last; `None` for all of them.

    A range that is malformed, or one of several, does not count, nor does any if the content is
    another one than the client has a part of.
    """
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked is None or request.method != "GET" or asked.groups() == ("", ""):
        return None
    if request.headers.get("if-range", tag) != tag:
        return None
    first, last = asked.groups()
    if first and last and int(last) < int(first):
        return None
    begin = int(first) if first else size - min(int(last), size)
    end = min(int(last) + 1, size) if first and last else size
    if begin >= end:
        text = f"the range begins after the end: there are {size:,} bytes"
        headers = {"Content-Range": f"bytes */{size}"}
        raise Problem(text, status=416, code="range_not_satisfiable", headers=headers)
    return begin, end
