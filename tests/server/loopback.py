"""An application of a test as its clients reach it: on loopback, or without a network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn


@asynccontextmanager
async def listening(app: Any, **options: Any) -> AsyncIterator[str]:
    """The address of *app* on a server in this event loop; *options* are those of uvicorn."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **options))
        serving = asyncio.create_task(server.serve([sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def client_of(
    app: Any, token: str, headers: Mapping[str, str] | None = None, **options: Any
) -> httpx.AsyncClient:
    """A client that calls *app* in this process, with a bearer's *token*."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}", **(headers or {})},
        **options,
    )
