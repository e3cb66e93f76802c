"""
The open connections of `looopy serve`: how many there are, and how long each may stand still.

uvicorn waits for the header of a request as long as a client likes, and accepts connections until
the process has no file left. A client needs no credentials for that. So a connection that does not
send a whole header in time is closed. At a limit, the connection that has waited longest for a
header makes room for a new one, so a client that sends its request at once is served.

`looopy.server.gate.flow` sets how long a response may wait for its reader. Here a connection is
reset if the last bytes of a response stay, and the kernel is set to notice a peer that is gone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from looopy.server.gate.flow import ABORT, PIECE
from looopy.server.gate.limits import Limits

_MOST_FILES: Final = 65_536
_OTHER_FILES: Final = 64  # of the database, of logs, of calls to models
_BACKLOG: Final = 128
_TICK_S: Final = 1.0
_IDLE_S: Final = 30  # after which the kernel asks if the peer is still there
_PROBES_S: Final = 10  # between two such questions, of which three have no answer


def raise_file_limit() -> int:
    """
    Let this process have as many open files as it may; return how many that are.

    Without such a limit, as on Windows, it returns the most that are ever needed.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return _MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # the system has a lower limit of its own
        return soft
    return wanted


class ServerConfig(uvicorn.Config):
    """
    The configuration of uvicorn for an application of `create_app`.

    Args:
        limits: `connections`, `connections_per_address`, `header_s` and `send_s` count.
        files: How many files this process may open.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, *, files: int = _MOST_FILES, **options: Any
    ) -> None:
        backlog = max(8, min(_BACKLOG, files // 8))  # so many are accepted before one is counted
        super().__init__(
            app,
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,  # it would name contexts
            server_header=False,
            lifespan="on",
            backlog=backlog,
            **options,
        )
        most = max(1, min(limits.connections, files - _OTHER_FILES - backlog))
        self.connections = Connections(limits, most)


class Connections:
    """
    The connections of one server.

    Args:
        most: How many there may be, at most `limits.connections`.
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._open: dict[Connection, _Unsent] = {}
        self._by_address: Counter[str] = Counter()
        # By address, connections without a running request, and since when; the oldest is first.
        self._waiting: dict[str, dict[Connection, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def send_ms(self) -> int:
        """How long a reader may stand still, in milliseconds."""
        return max(1, round(self._limits.send_s * 1000))

    def admit(self, one: Connection) -> str | None:
        """Take a new connection, or return the limit that refuses it."""
        most = self._limits.connections_per_address
        if self._by_address[one.address] >= most and not self._make_room(one.address):
            return f"connections_per_address={most}"
        if len(self._open) >= self._most:
            crowded = max(self._waiting, key=lambda name: len(self._waiting[name]), default="")
            if not self._make_room(crowded):
                return f"connections={self._most}"
        self._open[one] = _Unsent()
        self._by_address[one.address] += 1
        self.waits(one)
        if self._timer is None:
            self._tick()
        return None

    def waits(self, one: Connection) -> None:
        """Note that *one* waits for the header of a request from now on."""
        if one in self._open:
            found = self._waiting.setdefault(one.address, {})
            found.pop(one, None)
            found[one] = asyncio.get_running_loop().time()

    def works(self, one: Connection) -> None:
        """Note that a request is under way on *one*."""
        found = self._waiting.get(one.address)
        if found is not None and found.pop(one, None) is not None and not found:
            del self._waiting[one.address]

    def forget(self, one: Connection) -> None:
        """Note that *one* is closed."""
        if self._open.pop(one, None) is not None:
            self.works(one)
            self._by_address[one.address] -= 1
            if not self._by_address[one.address]:
                del self._by_address[one.address]

    def _make_room(self, address: str) -> bool:
        """Reset the connection of *address* that has waited longest; false if none waits."""
        oldest = next(iter(self._waiting.get(address, ())), None)
        if oldest is None:
            return False
        self.forget(oldest)
        oldest.transport.abort()
        return True

    def _tick(self) -> None:
        """Close the connections that have stood still for too long."""
        loop = asyncio.get_running_loop()
        now, limits = loop.time(), self._limits
        for waiting in list(self._waiting.values()):
            for one, since in list(waiting.items()):
                if now - since < limits.header_s:
                    break
                self.works(one)
                one.expire()
        for one, unsent in self._open.items():
            if unsent.stays(one.transport.get_write_buffer_size(), now, limits.send_s):
                one.transport.abort()
        self._timer = None
        if self._open:
            pause = min(_TICK_S, limits.header_s / 4, limits.send_s / 4)
            self._timer = loop.call_later(pause, self._tick)


class _Unsent:
    """The bytes of a connection that the kernel has not taken yet."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def stays(self, size: int, now: float, within_s: float) -> bool:
        """True if there are *size* bytes now, and have been for so long."""
        if size != self._bytes:
            self._bytes, self._since = size, now
        return size > 0 and now - self._since >= within_s


class Connection(H11Protocol):
    """
    A connection of a client.

    Attributes:
        address: The peer, for counting; of IPv6 the network, because a host has all of it.
    """

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.cycle: RequestResponseCycle | None  # type: ignore[assignment]  # none at first
        self.address = ""
        self._all = config.connections
        self._served = self.app
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {ABORT: self.transport.abort}
        await self._served(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # it is of TCP
        """Take the connection, or refuse it."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = _network(str(peer[0])) if peer else ""
        _tune(transport.get_extra_info("socket"), self._all.send_ms)
        limit = self._all.admit(self)
        if limit is not None:
            transport.write(_refusal(503, f"the server has too many connections: {limit}"))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._all.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data; the deadline ends with the header of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._all.works(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there."""
        self._all.waits(self)
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self._all.works(self)

    def expire(self) -> None:
        """Close a connection on which no request began in time."""
        if self.cycle is None and self.conn.trailing_data[0]:
            self.transport.write(_refusal(408, "the header did not arrive in time"))
        self.transport.close()


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((found, 64), strict=False))


def _tune(sock: Any, user_timeout_ms: int) -> None:
    """Have the kernel notice a peer that is gone, and hold little for a slow one."""
    options = {
        "TCP_KEEPIDLE": _IDLE_S,
        "TCP_KEEPINTVL": _PROBES_S,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": user_timeout_ms,
        "TCP_NOTSENT_LOWAT": 2 * PIECE,
    }
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has each
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _refusal(status: int, text: str) -> bytes:
    phrase = {408: "Request Timeout", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return f"{head}Retry-After: 1\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
