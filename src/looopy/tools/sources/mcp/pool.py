"""
Connections to one server, separate for each set of credentials.

A `Link` is shared by all callers with the same headers. It has one connection at a time, made when
it is needed and again after the last one died, and the list of tools that these credentials see. It
holds the headers themselves only while a caller uses it; in between its key is a digest that is
worthless elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from looopy.auth.redaction import Redactor
from looopy.errors import ConfigurationError, LooopyError, SignInFailed
from looopy.tools.sources.headers import HeaderKeys
from looopy.tools.sources.mcp.connection import Connection
from looopy.tools.sources.mcp.credentials import Credentials, redactor
from looopy.tools.sources.mcp.target import Target

if TYPE_CHECKING:
    from mcp import Client

_logger = logging.getLogger("looopy")
_RETRY_S = 10.0  # after a failed connection, the next attempt to list the tools waits so long


@dataclass(slots=True)
class RawListing:
    """
    A server's list: the SDK's tools, the problems, and how long it is valid.

    Attributes:
        has_resources: The server offers resources beside its tools.
        read: The looopy tools made from it, set by the reader.
    """

    tools: list[Any]
    problems: Sequence[str]
    until: float
    has_resources: bool = False
    read: Any = None


@dataclass(slots=True)
class _Failed:
    """The last request for the list has failed: how, until when that counts, and in which turn."""

    error: LooopyError
    until: float
    turn: tuple[str, int] | None

    def counts_for(self, turn: tuple[str, int]) -> bool:
        """True if *turn* need not ask again."""
        may_be_mended = isinstance(self.error, SignInFailed) and turn != self.turn
        return time.monotonic() < self.until and not may_be_mended


class Link:
    """
    The server, for all callers with the same credentials.

    Attributes:
        users: The number of current users.
        alone: Held by a call that the server may interrupt with a question. So it is clear which
            call asks.
        asking: Awaited with such a question.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.users = 0
        self.alone = asyncio.Lock()
        self.asking: Callable[[Any], Awaitable[Any]] | None = None
        self._credentials = Credentials()
        self._sent: set[str] = set()  # values of `Authorization`, for redaction alone
        self._connection: Connection | None = None
        self._listing: RawListing | None = None
        self._listed_by: Connection | None = None
        self._asking_list: asyncio.Task[RawListing] | None = None
        self._failed: _Failed | None = None
        self._turn: tuple[str, int] | None = None

    def use(self, credentials: Credentials) -> None:
        """Begin to use it; call `leave()` once for each call of this."""
        self.users += 1
        self._credentials = credentials

    def leave(self) -> None:
        """Stop using it."""
        self.users -= 1
        if not self.users:
            self._credentials = Credentials()
            self._sent.clear()

    @property
    def redactor(self) -> Redactor:
        """A redactor of the secrets that the server has now."""
        made = redactor(self.target, self._credentials)
        for value in self._sent:
            made.add(value)
            made.add(value.partition(" ")[2])  # `Bearer TOKEN`
        return made

    def connection(self) -> Connection:
        """The live connection, or a new one."""
        if self._connection is None or self._connection.over:
            self._connection = Connection(
                self.target,
                credentials=lambda: self._credentials,
                secret=self._sent.add,
                changed=self.forget,
                elicit=self._elicit if self.target.elicitation else None,
            )
        return self._connection

    async def client(self) -> tuple[Connection, Client]:
        """
        The connection and its client, after the server has listed its tools. The SDK needs the list
        before a call.

        Raises:
            ToolServerError: The server cannot be reached.
            ConfigurationError: No such command, or the SDK is not installed.
        """
        connection = self.connection()
        client = await connection.client()
        if self._listed_by is not connection:
            await self.tools(anew=True)
        return connection, client

    async def tools(self, *, anew: bool = False, turn: tuple[str, int] | None = None) -> RawListing:
        """
        The list of tools, requested once and then cached for a while. Concurrent callers share one
        request.

        Args:
            anew: Request it even if a valid list is cached.
            turn: The turn that asks: soon after a failed request there is no other, unless the
                user may have signed in since an earlier turn. `None`: request it in any case.

        Raises:
            ToolServerError: The server cannot be reached, or its answer is invalid.
            ConfigurationError: No such command, or the SDK is not installed.
        """
        if self._asking_list is None:
            if self._listing is not None and not anew and time.monotonic() < self._listing.until:
                return self._listing
            if self._failed is not None and turn is not None and self._failed.counts_for(turn):
                raise copy.copy(self._failed.error)
            self._turn = turn
            self._asking_list = asyncio.create_task(self._ask_list(), name="looopy mcp list")
            self._asking_list.add_done_callback(self._asked)
        return await asyncio.shield(self._asking_list)

    async def ask(self, request: Callable[[Client], Awaitable[Any]]) -> Any:
        """
        The answer to *request*, which changes nothing on the server.

        Raises:
            ToolServerError: The server cannot be reached, or its answer is an error or invalid.
            ConfigurationError: No such command, or the SDK is not installed.
        """
        connection, client = await self.client()
        from looopy.tools.sources.mcp import sdk

        try:
            async with asyncio.timeout(self.target.list_timeout_s):
                return await request(client)
        except Exception as error:  # noqa: BLE001 - any error that the SDK raises
            if sdk.is_gone(error):
                connection.lost()
            raise sdk.failure_of(error, self.target, self.redactor) from None

    @property
    def last_tools(self) -> RawListing | None:
        """The last list, even if it has expired."""
        return self._listing

    def forget(self) -> None:
        """Let the cached list expire: the tools have changed."""
        if self._listing is not None:
            self._listing.until = 0.0

    def _asked(self, task: asyncio.Task[RawListing]) -> None:
        self._asking_list = None
        if not task.cancelled():
            task.exception()  # an unread exception would be logged

    async def _ask_list(self) -> RawListing:
        self.use(self._credentials)
        connection = self.connection()
        try:
            client = await connection.client()
            from looopy.tools.sources.mcp import sdk

            connection.problems.clear()
            async with asyncio.timeout(self.target.list_timeout_s):
                tools = await sdk.list_all(client, self.target)
        except LooopyError as error:
            self._note(error)
            raise
        except Exception as error:  # noqa: BLE001 - any error that the SDK raises
            from looopy.tools.sources.mcp import sdk

            failure = sdk.failure_of(error, self.target, self.redactor)
            self._note(failure)
            raise failure from None
        finally:
            self.leave()
        self._failed, self._listed_by = None, connection
        until = time.monotonic() + self.target.cache_s
        self._listing = RawListing(
            tools, tuple(connection.problems), until, has_resources=sdk.has_resources(client)
        )
        return self._listing

    def _note(self, error: LooopyError) -> None:
        _logger.warning("%s", error)
        # A copy without its traceback, whose frames hold the headers.
        self._failed = _Failed(copy.copy(error), time.monotonic() + _RETRY_S, self._turn)

    async def _elicit(self, params: Any) -> Any:
        from looopy.tools.sources.mcp import sdk

        asking = self.asking
        return await asking(params) if asking is not None else sdk.no_answer()

    async def close(self) -> None:
        """Leave the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        if self._asking_list is not None:  # it fails, now that the connection is closed
            with contextlib.suppress(LooopyError):
                await self._asking_list


class Pool:
    """The links of one source of tools; at the limit, the oldest idle one is closed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._keys = HeaderKeys()
        self._links: OrderedDict[bytes, Link] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = asyncio.Event()

    @asynccontextmanager
    async def link(self, credentials: Credentials | None) -> AsyncIterator[Link]:
        """
        The link of these credentials, in use for as long as the block runs.

        Raises:
            ConfigurationError: Another event loop, which still runs, uses the source.
        """
        self._check_loop()
        credentials = credentials or Credentials()
        key = self._key_of(credentials)
        while key not in self._links and len(self._links) >= self._target.max_sessions:
            await self._make_room()
        link = self._links.setdefault(key, Link(self._target))
        self._links.move_to_end(key)
        link.use(credentials)
        try:
            yield link
        finally:
            link.leave()
            self._left.set()

    async def close(self) -> None:
        """Leave the server on all links; the next use connects again."""
        links, self._links = list(self._links.values()), OrderedDict()
        await asyncio.gather(*(link.close() for link in links))

    async def _make_room(self) -> None:
        for key, link in self._links.items():
            if not link.users:
                del self._links[key]
                await link.close()
                return
        self._left.clear()
        await self._left.wait()

    def _key_of(self, credentials: Credentials) -> bytes:
        # A signed-in user is known by tenant and actor: the tokens are the provider's, and change.
        named = dict(credentials.headers or {})
        if credentials.auth is not None and credentials.user is not None:
            named |= {"\0tenant": credentials.user[0], "\0actor": credentials.user[1]}
        return self._keys.key_of(named or None)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        other = self._loop is not None and self._loop is not loop and not self._loop.is_closed()
        if other and self._links:
            raise ConfigurationError(
                f"{self._target.where} is used by another event loop: make an MCPTools for each"
            )
        if self._loop is not loop:
            self._links.clear()  # their connections ended with their loop
            self._loop, self._left = loop, asyncio.Event()
