"""What the tests of remote agents share."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import pytest
from tests.agent.conftest import (
    make_agent,
    memory_stores,
    sqlite_url,
)
from tests.mcp.servers import over_http
from tests.remote.agents import Clerk, make_app

__all__ = ["make_agent", "memory_stores", "sqlite_url"]


@contextmanager
def open_desk(clerk, *, around=lambda app: app, **options):
    """A clerk over HTTP; the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with over_http(around(make_app(clerk, url, **options)), listening):
        yield url


@contextmanager
def open_cards(cards):
    """A server of nothing but cards; the address."""
    with over_http(cards) as url:
        yield url


@pytest.fixture
def clerk():
    """Who does the work."""
    return Clerk()


@pytest.fixture(params=["JSONRPC", "HTTP+JSON", "polled"])
def desk(request, clerk):
    """The address of the clerk, over each binding, and without streaming."""
    binding = "JSONRPC" if request.param == "polled" else request.param
    with open_desk(clerk, binding=binding, streaming=request.param != "polled") as url:
        yield url


@pytest.fixture
def streaming_desk(clerk):
    """The address of the clerk, who streams."""
    with open_desk(clerk) as url:
        yield url
