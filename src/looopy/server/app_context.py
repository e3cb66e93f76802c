"""
One server as its routes see it: the host, the limits, and who is asking.

A protocol is a function `routes(app_context)` that returns Starlette routes; `create_app` mounts
them. A route first calls `app_context.identify(request)`, then reads its body with
`app_context.read_json(request)`, and then asks the host, which checks the owner. None
of them reads a header of credentials itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.routing import BaseRoute

from looopy.errors import ConfigurationError, LooopyError
from looopy.server.gate.body import read_json
from looopy.server.gate.flow import CALLER, Unread
from looopy.server.gate.limits import Limits
from looopy.server.gate.quotas import Quotas, limited
from looopy.server.host import AgentHost
from looopy.server.problems import Problem, status_of
from looopy.stores.bundle import Stores
from looopy.types.context import AuthContext
from looopy.types.message import UserMessage

Authenticate: TypeAlias = Callable[[Request], AuthContext | Awaitable[AuthContext | None] | None]
"""Identifies the sender of a request; `None` refuses it with 401. May be a coroutine function."""

Routes: TypeAlias = Callable[["AppContext"], Sequence[BaseRoute]]
"""The routes of a protocol for an application."""

_READS_AT_ONCE = 2  # of one caller, each of which may take the memory of a long conversation
_MOST_CALLERS = 10_000  # whose turns are counted; the others have not come for long


class AppContext:
    """
    The host, the limits and the authentication that the routes of a server share.

    Args:
        authenticate: Identifies the sender of a request.

    Attributes:
        host: The agents.
        limits: The limits.
        unread: The bytes of responses that wait for their readers.
        loading: The modules that are being imported; see `preload`.
        links_artifacts: A protocol gives out the addresses of artifacts that the HTTP API has.
        background: Work of protocols that lasts as long as the application: functions that return
            async context managers, entered in order.
    """

    def __init__(
        self, host: AgentHost, authenticate: Authenticate, limits: Limits | None = None
    ) -> None:
        self.host = host
        self.authenticate = authenticate
        self.limits = limits or Limits()
        self.unread = Unread(self.limits.unread_bytes_per_actor)
        self.links_artifacts = False
        self.background: list[Callable[[], contextlib.AbstractAsyncContextManager[None]]] = []
        self.loading: set[str] = set()
        self._quotas = Quotas(self.limits)
        self._streams: Counter[tuple[str, str]] = Counter()
        self._turns: dict[tuple[str, str], deque[float]] = {}
        self._replaying: set[tuple[str, str]] = set()
        self._reads: dict[tuple[str, str], _Reads] = {}

    def preload(self, module: str) -> None:
        """
        Import *module* in a thread when the application starts: its import takes seconds.

        A request that needs it waits for it, and the application is ready once it is there.
        """

        def load() -> None:
            with contextlib.suppress(Exception):  # the first request raises it
                importlib.import_module(module)
            self.loading.discard(module)

        @contextlib.asynccontextmanager
        async def loading() -> AsyncIterator[None]:
            self.loading.add(module)
            threading.Thread(target=load, name=f"import {module}", daemon=True).start()
            yield

        self.background.append(loading)

    async def identify(self, request: Request) -> AuthContext:
        """
        The caller, with credentials for this request alone.

        Raises:
            Problem: 401; the request has no credentials that count.
        """
        found = self.authenticate(request)
        auth = await found if inspect.isawaitable(found) else found
        if auth is None or (isinstance(auth, AuthContext) and auth.expired()):
            raise Problem(
                "the request has no valid credentials",
                status=401,
                code="unauthorised",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not isinstance(auth, AuthContext):
            raise ConfigurationError("authenticate(request) must return an AuthContext or None")
        request.scope[CALLER] = self.caller(auth)
        return auth

    async def read_json(self, request: Request, *, may_miss: bool = False) -> dict[str, Any]:
        """The JSON object that is the body; see `looopy.server.gate.body.read_json`."""
        return await read_json(request, self.limits, may_miss=may_miss)

    def check_size(self, message: UserMessage | None, path: str) -> None:
        """
        Check the text of a message; *path* is its place in the body.

        Raises:
            Problem: 400; it has more than `message_bytes`.
        """
        most = self.limits.message_bytes
        if message is not None and len(message.text.encode()) > most:
            text = f"the message has more than {most:,} bytes"
            raise Problem(text, code="too_large", path=path)

    @contextlib.asynccontextmanager
    async def turn(
        self, auth: AuthContext, context_id: str, key: str | None = None
    ) -> AsyncIterator[None]:
        """
        Admit a turn that begins within the block: leave it once the turn is accepted.

        A request that is refused does not count, nor does one that shows a turn of before.

        Args:
            key: The idempotency key; a turn that has it already is shown whatever the limits.

        Raises:
            HostClosed: The host drains.
            Problem: 429; too many turns run or have begun, or too many bytes are stored.
        """
        stores = self.host.stores_for(auth)
        looked_up = key if self.limits.counts_turns else None
        if looked_up and await stores.journal.turn_of_key(context_id, looked_up) is not None:
            yield
            return
        self.host.check_open()
        await self.space(auth)
        async with self._quotas.turn(stores, auth.actor_id, context_id):
            with self._counted(auth) as uncount:
                before = 0 if uncount is None else await _turns_in(stores, context_id)
                yield
                if uncount is not None and await _turns_in(stores, context_id) == before:
                    uncount()

    @contextlib.contextmanager
    def replay(self, auth: AuthContext) -> Iterator[None]:
        """
        Admit a replay, which reads a log and stores nothing: one at a time, counted as a turn.

        Raises:
            Problem: 429; one of the caller is under way, or too many turns have begun.
        """
        caller = self.caller(auth)
        if caller in self._replaying:
            raise limited(429, "one replay of an actor at a time is the limit")
        self._replaying.add(caller)
        try:
            with self._counted(auth):
                yield
        finally:
            self._replaying.discard(caller)

    @contextlib.asynccontextmanager
    async def reading(self, auth: AuthContext) -> AsyncIterator[None]:
        """
        Make a response of many messages within the block: two of a caller at once, others wait.

        Its bytes count as unread once the block is left; see `looopy.server.gate.flow`.
        """
        caller = self.caller(auth)
        reads = self._reads.setdefault(caller, _Reads())
        reads.users += 1
        try:
            async with reads.places:
                yield
        finally:
            reads.users -= 1
            if not reads.users:
                del self._reads[caller]

    async def space(self, auth: AuthContext) -> None:
        """
        See if the caller may store more.

        Raises:
            Problem: 429; the tenant or the actor has stored too much.
        """
        await self._quotas.space(self.host.stores_for(auth), auth.actor_id)

    async def erase(self, context_id: str, auth: AuthContext, *, force: bool = False) -> None:
        """Erase a context; see `AgentHost.erase`. There is room again."""
        await self.host.erase(context_id, auth, force=force)
        self._quotas.freed(self.host.stores_for(auth).tenant)

    async def close(self) -> None:
        """End the application's background work."""
        await self._quotas.close()

    @contextlib.contextmanager
    def _counted(self, auth: AuthContext) -> Iterator[Callable[[], None] | None]:
        """
        Count a turn, unless the request is refused; `None` if turns are not counted.

        Yields what takes the turn from the count.

        Raises:
            Problem: 429; too many turns have begun.
        """
        most = self.limits.turns_per_minute
        if most is None:
            yield None
            return
        now, caller = monotonic(), self.caller(auth)
        began = self._turns.pop(caller, None) or deque()
        while began and began[0] <= now - 60:
            began.popleft()
        self._turns[caller] = began  # the last that came is the last
        if len(began) >= most:
            raise limited(
                429, f"{most} turns in a minute are the limit", after_s=began[0] + 60 - now
            )
        began.append(now)
        while len(self._turns) > _MOST_CALLERS:
            del self._turns[next(iter(self._turns))]

        def uncount() -> None:
            with contextlib.suppress(ValueError):  # more than a minute ago
                began.remove(now)

        try:
            yield uncount
        except LooopyError as error:
            if status_of(error) < 500:
                uncount()
            raise

    @property
    def open_streams(self) -> int:
        """How many streams are open now."""
        return self._streams.total()

    @contextlib.contextmanager
    def stream(self, auth: AuthContext) -> Iterator[None]:
        """
        Count an open stream of the caller within the block.

        Raises:
            Problem: 429 or 503; the caller, or this process, has too many.
        """
        caller, limits = self.caller(auth), self.limits
        if self._streams[caller] >= limits.streams_per_actor:
            raise limited(429, f"{limits.streams_per_actor} streams of one actor are the limit")
        if self.open_streams >= limits.streams:
            raise limited(503, f"{limits.streams} streams of this process are the limit")
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    def caller(self, auth: AuthContext) -> tuple[str, str]:
        """The tenant and the actor, for counting."""
        return (auth.tenant_id or self.host.stores.tenant, auth.actor_id)


async def _turns_in(stores: Stores, context_id: str) -> int:
    record = await stores.state.load(context_id)
    return 0 if record is None else record.turn_count


class _Reads:
    """The reads of one caller: places for running ones, and a count with the waiting ones."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(_READS_AT_ONCE)
        self.users = 0
