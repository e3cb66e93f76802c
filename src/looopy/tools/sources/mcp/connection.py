"""
One life of one connection to a server.

The SDK's client must be entered and left in the same task. So each connection has a task of its own
that does both and waits in between. Requests come from the tasks of the calls, so cancelling a call
cancels its request and nothing else. A connection that has ended is never reopened; the next use of
the server makes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from looopy.errors import (
    ConfigurationError,
    LooopyError,
    SignInFailed,
    ToolServerError,
    missing_extra,
)
from looopy.tools.call.results import error_text
from looopy.tools.sources.mcp.credentials import Credentials, redactor
from looopy.tools.sources.mcp.target import Target

if TYPE_CHECKING:
    from looopy.tools.sources.mcp.transports import Watch
    from mcp import Client

_logger = logging.getLogger("looopy")
_GRACE_S = 10.0  # how long leaving a server may take


class Connection:
    """
    A client from its handshake to its end; makes its task at once.

    Args:
        credentials: Called at each HTTP request.
        secret: Called with the `Authorization` that a sign-in sends.
        changed: Called when the server reports that its tools have changed.
        elicit: Awaited when the server asks something while a call runs.

    Attributes:
        over: True once the connection has ended, or is about to.
        problems: The problems of the server's last list of tools.
        modern: After the handshake: questions come as results of calls.
    """

    def __init__(
        self,
        target: Target,
        *,
        credentials: Callable[[], Credentials],
        secret: Callable[[str], object],
        changed: Callable[[], object],
        elicit: Callable[[Any], Awaitable[Any]] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.target = target
        self.over = False
        self.modern = True
        self.problems: list[str] = []
        self._credentials = credentials
        self._secret = secret
        self._changed = changed
        self._elicit = elicit
        self._ready: asyncio.Future[Client] = loop.create_future()
        self._stop = asyncio.Event()
        self._watch: Watch | None = None
        # Without the context of the turn that comes first: the task lives longer.
        self._owner = loop.create_task(self._own(), name=f"looopy {target.name}", context=Context())
        self._limit: asyncio.TimerHandle | None = None

    async def client(self) -> Client:
        """
        The client, once the handshake is done.

        Raises:
            ToolServerError: The handshake failed, or the server is gone.
            ConfigurationError: No such command, or the SDK is not installed.
        """
        try:
            return await asyncio.shield(self._ready)
        except LooopyError as error:
            # A copy: the stored error would gather the frames, and headers, of all callers.
            raise copy.copy(error) from None

    async def close(self) -> None:
        """Leave the server, and wait until that is done."""
        self._stop.set()
        if not self._ready.done():
            self._owner.cancel()
        _, left = await asyncio.wait([self._owner], timeout=_GRACE_S)
        if left:
            self._owner.cancel()
            await asyncio.wait([self._owner], timeout=_GRACE_S)

    def lost(self) -> None:
        """Leave the server, which sends nothing more, without waiting."""
        self.over = True
        self._stop.set()

    def _give_up(self) -> None:
        limit_s = self.target.connect_timeout_s
        self._fail(f"did not shake hands within {limit_s:g} s", outcome_known=True)
        self._owner.cancel()

    def _relax(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    async def _own(self) -> None:
        try:
            await self._live()
        except asyncio.CancelledError:
            self._fail("was left before it shook hands")
            raise
        except ImportError as error:
            _fail(self._ready, _missing(error))
        except BaseException as error:  # noqa: BLE001 - groups of the SDK's task groups
            await self._end(error)
        finally:
            self.over = True
            self._relax()
            self._fail("ended before it shook hands")

    async def _live(self) -> None:
        # the import takes a second: a thread leaves the loop free
        if "looopy.tools.sources.mcp.sdk" not in sys.modules:
            await asyncio.to_thread(importlib.import_module, "looopy.tools.sources.mcp.sdk")
        from looopy.tools.sources.mcp import sdk
        from looopy.tools.sources.mcp.transports import Watch

        # The clock starts here: loading the SDK is not a delay of the server.
        self._limit = asyncio.get_running_loop().call_later(
            self.target.connect_timeout_s, self._give_up
        )
        watch = Watch(
            lost=self.lost,
            changed=self._changed,
            elicit=self._elicit,
            problems=self.problems,
            secret=self._secret,
        )
        self._watch = watch
        async with sdk.open_client(self.target, watch, self._credentials) as client:
            self._relax()
            self.modern = sdk.is_modern(client)
            if self._ready.done():
                return
            self._ready.set_result(client)
            listening = asyncio.create_task(sdk.listen_for_changes(client, self._changed))
            try:
                await self._stop.wait()
            finally:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening

    async def _end(self, error: BaseException) -> None:
        leaves = _leaves(error)
        if self._ready.done():
            _logger.debug("%s was left with %s", self.target.where, error_text(error))
            return
        if self.target.command is not None and any(isinstance(e, OSError) for e in leaves):
            reason = next(e.strerror or str(e) for e in leaves if isinstance(e, OSError))
            text = (
                f"{self.target.where}: the command {self.target.command!r} cannot be run"
                f" ({reason}): install it, or give its full path in command="
            )
            _fail(self._ready, ConfigurationError(text))
            return
        if self._watch is not None:
            self._relax()
            from looopy.tools.sources.mcp import sdk
            from looopy.tools.sources.mcp.transports import speaks_sse_only

            if sdk.is_sign_in(leaves[0]):
                self._fail(error_text(leaves[0]), kind=SignInFailed)
            elif await speaks_sse_only(self.target, self._watch, self._credentials):
                text = "speaks only the old SSE transport: pass protocol='sse'"
                _fail(self._ready, ConfigurationError(f"{self.target.where} {text}"))
        self._fail(f"did not shake hands: {error_text(leaves[0])}")

    def _fail(
        self,
        text: str,
        *,
        outcome_known: bool = True,
        kind: type[ToolServerError] = ToolServerError,
    ) -> None:
        if self._ready.done():
            return
        words = self._watch.stderr.decode("utf-8", "replace").strip() if self._watch else ""
        if words:
            text = f"{text}. Its last words were: {words}"
        text = redactor(self.target, self._credentials()).text(f"{self.target.where} {text}")
        error = kind(text, server=self.target.name, outcome_known=outcome_known)
        _fail(self._ready, error)


def _fail(future: asyncio.Future[Any], error: LooopyError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # an unread exception would be logged


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


def _missing(error: ImportError) -> LooopyError:
    if (error.name or "").partition(".")[0] in ("mcp", "mcp_types", "httpx2"):
        return missing_extra("MCP servers need the mcp package", "mcp")
    return ConfigurationError(f"the mcp package cannot be loaded: {error}")
