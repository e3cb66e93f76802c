"""
The addresses of receivers, which callers name, and the connections to them.

A server can reach what its callers cannot: services of its own network, the metadata of a cloud,
itself. So a host is resolved, all its addresses are checked, and the connection goes to an address
that was checked. A name that resolves to something else a moment later changes nothing. Redirects
are not followed, and the proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, TypeAlias, cast
from urllib.parse import SplitResult, urlsplit

import httpcore

from looopy.errors import ValueRefused
from looopy.server.protocols.a2a.push.options import PushNotifications

_Address: TypeAlias = IPv4Address | IPv6Address
_MOST_CHARS: Final = 2048
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_VISIBLE: Final = re.compile(r"[!-~]+")  # neither blanks, controls nor other alphabets
_RESOLVE_S: Final = 5.0
_PORTS: Final = {"https": 443, "http": 80}
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are IPv4
# Not public, in any version of Python; the last is where Azure serves its machines.
_INSIDE: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "5f00::/16", "168.63.129.16/32"),
    )
)


class UnsafeURL(ValueRefused):
    """A receiver that is not allowed; its message shows nothing but the host."""


class Failure(Exception):
    """
    A notification that was not taken.

    Attributes:
        is_final: True if the receiver is gone for good.
    """

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Receivers:
    """
    Checks addresses, and sends.

    Args:
        options: Which addresses are allowed.
    """

    def __init__(self, options: PushNotifications) -> None:
        self._options = options
        self._networks = [ipaddress.ip_network(text) for text in options.networks]
        self._hosts = None
        if options.receivers is not None:
            self._hosts = frozenset(host.lower().rstrip(".") for host in options.receivers)
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_Backend(self),
            max_connections=None,  # a receiver that hangs must not make the others wait
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
        )

    async def check(self, url: str) -> None:
        """
        See that a receiver is allowed, before it is stored.

        Raises:
            UnsafeURL: It is not.
        """
        split = self.parsed(url)
        await self.addresses(str(split.hostname), split.port or _PORTS[split.scheme])

    def parsed(self, url: str) -> SplitResult:
        """
        The parts of a URL whose text is allowed.

        Raises:
            UnsafeURL: It is not.
        """
        if not _VISIBLE.fullmatch(url) or "\\" in url or len(url) > _MOST_CHARS:
            raise _unsafe(f"a URL is 1 to {_MOST_CHARS:,} visible ASCII characters")
        try:
            split = urlsplit(url)
            host, port = split.hostname, split.port
        except ValueError:
            raise _unsafe("the URL is invalid") from None
        allowed = ("https", "http") if self._options.http else ("https",)
        if split.scheme not in allowed:
            raise _unsafe(f"the URL has to begin with {' or '.join(f'{a}://' for a in allowed)}")
        if "@" in split.netloc:
            raise _unsafe("a URL has no user and no password: use authentication")
        if split.fragment or not host or port == 0:
            raise _unsafe("the URL takes a host, and no fragment")
        if _literal(host) is None and not _NAME.fullmatch(host):
            raise _unsafe("the host of the URL is invalid")
        name = host.rstrip(".")
        place = f"{name}:{port or _PORTS[split.scheme]}"
        if self._hosts is not None and not self._hosts & {name, place}:
            raise _unsafe(f"this server sends no notifications to the host {name}")
        return split

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """
        The addresses of a host, if all of them are allowed.

        Raises:
            UnsafeURL: One is not, or there is none.
        """
        if (literal := _literal(host)) is not None:
            found: list[_Address] = [literal]
        else:
            found = await _resolved(host, port)
        if not found or not all(self._allows(address) for address in found):
            # One text for both: a caller must not learn which names of our network exist.
            raise _unsafe(f"the host {host} has no address that may get notifications")
        return [str(address) for address in found]

    def _allows(self, address: _Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        return all(map(_is_public, _destinations(address)))

    async def send(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """
        Send one notification.

        Raises:
            Failure: It was not taken: no connection, no answer in time, or no 2xx.
        """
        seconds = self._options.timeout_s
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        try:
            split = self.parsed(url)
            async with (
                asyncio.timeout(seconds),
                self._pool.stream(
                    "POST",
                    url,
                    headers=[(b"Host", split.netloc.encode()), *sent],
                    content=body,
                    extensions={"timeout": timeouts},
                ) as response,
            ):
                status = response.status
        except TimeoutError:
            raise Failure("it did not answer in time") from None
        except UnsafeURL as error:
            raise Failure(error.message) from None
        except Exception as error:  # noqa: BLE001 - a stranger's server may answer anything
            raise Failure(type(error).__name__) from None
        if not 200 <= status < 300:
            raise Failure(f"it answered {status}", is_final=status == 410)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to an address that was checked; TLS still checks the name."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect."""
        found = await self._receivers.addresses(host.strip("[]"), port)
        failed: Exception = httpcore.ConnectError()
        for address in found:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await self._network.sleep(seconds)


async def _resolved(host: str, port: int) -> list[_Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return []
    texts = dict.fromkeys(str(one[4][0]) for one in found)
    return [address for text in texts if (address := _literal(text)) is not None]


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_public(address: _Address) -> bool:
    return (
        address.is_global
        and not any(address in network for network in _INSIDE)
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_loopback
        and not address.is_link_local
        and not getattr(address, "is_site_local", False)
    )


def _destinations(address: _Address) -> Sequence[_Address]:
    """An address, or the ones that it stands for or leads to."""
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _TRANSLATED:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    through = [one for one in (address.sixtofour, *(address.teredo or ())) if one is not None]
    return (address, *through)


def _unsafe(text: str) -> UnsafeURL:
    return UnsafeURL(text, path="/url")
