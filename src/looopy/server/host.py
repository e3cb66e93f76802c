"""
The agents of one process: one for each context that it serves, as long as it is needed.

A request comes and goes; its agent and its turn stay. So the host owns the agents: it makes them in
tasks of its own, and a request that leaves takes nothing with it. `AgentHost.agent` pins an agent
while a caller uses it. An agent without a user and without a turn is idle. The host shuts an
idle agent down after a while, or when another context needs its place.

Tenant and owner come from the `AuthContext` alone. Another actor's context looks like one that
does not exist, whatever the caller requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from typing import Any, Self, TypeAlias

from looopy.agent.agent import Agent
from looopy.agent.claim import may_begin
from looopy.agent.hosted import port_of
from looopy.agent.request import check_at_least_one
from looopy.errors import (
    ConfigurationError,
    ContextNotFound,
    FactoryFailed,
    HostClosed,
    LimitExceeded,
    LooopyError,
)
from looopy.server.deciding import MayAnswer, RequestPage, open_in, requests_for, requests_named
from looopy.server.feed import Feed
from looopy.stores.bundle import Stores
from looopy.stores.contexts.erasing import Erased
from looopy.stores.records import ContextRecord
from looopy.stores.rules import check_context_id, no_context
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.state import AgentStatus, PendingRequest

_logger = logging.getLogger("looopy")
_CUT_S = 5.0
_ENDS = "this process is about to end: send the request to another one"
AgentFactory: TypeAlias = Callable[[str, Stores], Agent | Awaitable[Agent]]
"""Makes an agent that is not started, with a context id and the stores of its tenant."""


class _Kept:
    """
    One agent of a host.

    Attributes:
        key: Its tenant and context.
        opening: Makes and starts it; its result is the agent.
        feed: Shows its events.
        closing: Shuts it down, or `None`. A caller waits for that, and makes another.
        users: How many callers use it now.
        used_at: When the last one left, by the event loop's clock.
    """

    __slots__ = ("agent", "closing", "feed", "key", "opening", "used_at", "users")

    def __init__(self, key: tuple[str, str], opening: asyncio.Task[Agent]) -> None:
        self.key = key
        self.opening = opening
        self.agent: Agent | None = None
        self.feed: Feed | None = None
        self.closing: asyncio.Task[None] | None = None
        self.users = 0
        self.used_at = 0.0

    @property
    def idle(self) -> bool:
        """True if it may be shut down now."""
        unused = not self.users and self.closing is None and self.agent is not None
        return unused and self.agent is not None and not port_of(self.agent).at_work


class AgentHost:
    """
    The agents of one process, by tenant and context: made on demand, and limited in number.

    Use it in one event loop. `async with` closes it in the end.

    Args:
        factory: `factory(context_id, stores)` returns an `Agent` that is not started, for that
            context and on those stores. It may be a coroutine function. It runs once for an agent,
            however many requests wait for that agent.
        stores: Open stores. Each tenant of an `AuthContext` gets its own binding of them.
        max_agents: The host keeps at most so many. If it needs a place, it shuts down the idle
            agent that was used least recently.
        idle_s: It shuts down an agent that was idle for so long.
        drain_s: How long `drain()` lets running turns continue.
        may_answer: `may_answer(request, auth)` returns true if a person may decide a request for
            approval in another person's conversation: see `OpenRequest`. `None`: only owners may.

    Raises:
        ConfigurationError: A limit is not a number above 0.
    """

    def __init__(
        self,
        factory: AgentFactory,
        stores: Stores,
        *,
        max_agents: int = 2000,
        idle_s: float = 300.0,
        drain_s: float = 20.0,
        may_answer: MayAnswer | None = None,
    ) -> None:
        if not isinstance(stores, Stores):
            raise ConfigurationError("stores must be what open_stores() gave")
        check_at_least_one(max_agents, "/max_agents")
        for name, value in (("idle_s", idle_s), ("drain_s", drain_s)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigurationError(f"{name} takes a number of seconds above 0")
        self.stores = stores
        self.max_agents = max_agents
        self.idle_s = idle_s
        self.drain_s = drain_s
        self.factory = factory
        self.may_answer = may_answer
        self._kept: dict[tuple[str, str], _Kept] = {}  # the least recently used is the first
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._draining: asyncio.Task[int] | None = None

    # --- who may -------------------------------------------------------------------------------

    def stores_for(self, auth: AuthContext | None) -> Stores:
        """The stores of the caller's tenant; without a `tenant_id`, the host's stores."""
        if auth is None or auth.tenant_id in (None, self.stores.tenant):
            return self.stores
        return self.stores.for_tenant(str(auth.tenant_id))

    async def authorise(
        self, context_id: str, auth: AuthContext | None, *, create: bool = False
    ) -> ContextRecord | None:
        """
        Check that the caller owns a context. Call it for every verb, reading ones included.

        Args:
            create: The context may also be new: the caller's first turn would make it.

        Returns:
            The context as the store has it; `None` if it is new.

        Raises:
            ContextNotFound: There is no such context in the caller's tenant, or it is another
                actor's: the two are not distinguished.
            ValueRefused: The id is invalid.
            StoreUnavailable: The store did not answer.
        """
        check_context_id(context_id)
        record = await self.stores_for(auth).state.load(context_id)
        actor_id = None if auth is None else auth.actor_id
        if record is None or (record.owner_actor is None and not record.turn_count):
            if create:
                return record
        elif may_begin(record, actor_id):
            return record
        raise no_context(context_id)

    async def current(self, context_id: str, auth: AuthContext | None) -> ContextRecord:
        """
        The context as it is now: a turn that a dead process left open is ended first.

        Raises:
            ContextNotFound, StoreUnavailable: See `authorise`.
            LooopyError: Same as `agent` raises, if a turn is open.
        """
        record = await self.authorise(context_id, auth)
        if record is not None and record.open_turn is not None:
            with contextlib.suppress(HostClosed):  # another process will end it
                async with self.agent(context_id, auth, create=False) as agent:
                    await agent.refresh()
            record = await self.authorise(context_id, auth)
        if record is None:  # `create` would allow it
            raise no_context(context_id)
        return record

    # --- the agents ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def agent(
        self, context_id: str, auth: AuthContext | None = None, *, create: bool = True
    ) -> AsyncIterator[Agent]:
        """
        Use the agent of a context: `async with host.agent(context_id, auth) as agent`.

        The host keeps it while the block runs, and longer while one of its turns runs. Leaving the
        block cancels nothing: a turn that began in it continues.

        Args:
            create: The context may also be new.

        Raises:
            ContextNotFound, ValueRefused, StoreUnavailable: See `authorise`.
            HostClosed: The host drains or is closed, and no turn of this agent runs.
            LimitExceeded: There are `max_agents`, and none of them is idle: try again later.
            FactoryFailed: The factory raised, or did not return a usable agent.
            LooopyError: Whatever `Agent.start()` raises.
        """
        stores = self.stores_for(auth)
        self._refuse_if_closed((stores.tenant, context_id))
        await self.authorise(context_id, auth, create=create)
        async with self._started(context_id, stores) as agent:
            yield agent

    async def events(
        self, context_id: str, auth: AuthContext | None = None, *, after: int | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        """
        The events of a context: the durable ones of every process, and the passing ones from here.

        The host keeps the agent while the generator is open. Close it to leave; the turn that
        runs is not cancelled.

        Args:
            after: Start after this `seq`; 0 for the beginning, `None` for the head.

        Raises:
            ContextNotFound: See `authorise`. While iterating: the context was deleted, or *after*
                is beyond its head.
            SlowReader: Too many events waited for the reader: read on after the last `seq`.
            LooopyError: Same as `agent`.
        """
        stores = self.stores_for(auth)
        self._refuse_if_closed((stores.tenant, context_id))
        await self.authorise(context_id, auth)
        async with self._pinned(context_id, stores) as kept:
            await self._opened(kept)
            if kept.feed is None:
                raise HostClosed(_ENDS)
            async with contextlib.aclosing(kept.feed.follow(after)) as events:
                async for event in events:
                    yield event

    # --- decisions of others -------------------------------------------------------------------

    async def requests(
        self,
        auth: AuthContext | None,
        *,
        context_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> RequestPage:
        """
        A page of the requests for approval, in conversations of others, that *auth* may decide.

        Args:
            context_id: Those of one context, on one page; none of a context that does not exist.
            after: The `next` of the page before.
            limit: About so many; a conversation's requests are not torn apart.

        Raises:
            ValueRefused: *after* or *limit* is invalid.
            FactoryFailed: `may_answer` raised.
            StoreUnavailable: The store did not answer.
        """
        check_at_least_one(limit, "/limit")
        if self.may_answer is None or auth is None:
            return RequestPage(())
        stores = self.stores_for(auth)
        if context_id is not None:
            record = await stores.state.load(context_id)
            return RequestPage((record and await open_in(record, auth, self.may_answer)) or ())
        return await requests_for(auth, stores, self.may_answer, after=after, limit=limit)

    async def decide(
        self,
        context_id: str,
        request_id: str,
        answer: Any,
        auth: AuthContext | None,
    ) -> ApprovalDecided:
        """
        Store a decision about a call that waits for approval, as `Agent.decide` does.

        Args:
            answer: `True`, `False`, `Approve(...)`, `Deny(...)`, or the JSON form of one.

        Raises:
            ContextNotFound: The context is another actor's, and `may_answer` does not let *auth*
                answer a request of this id; or it does not exist: the two are not distinguished.
            FactoryFailed: `may_answer` or the factory raised.
            LooopyError: Same as `Agent.decide` and `agent`.
        """
        [decided] = await self.decide_all(context_id, {request_id: answer}, auth)
        return decided

    async def decide_all(
        self,
        context_id: str,
        answers: Mapping[str, Any],
        auth: AuthContext | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        admission: contextlib.AbstractAsyncContextManager[None] | None = None,
    ) -> list[ApprovalDecided]:
        """
        Like `decide`, for several requests of one context: all of *answers* are stored, or none.

        Args:
            answers: By request id.
            metadata: Of the turn that stores them.
            admission: Entered once it is known that the caller may decide: so no limit shows a
                stranger that the context exists.

        Returns:
            The decisions, in the order of *answers*.
        """
        stores, judged = self.stores_for(auth), None
        self._refuse_if_closed((stores.tenant, context_id))
        try:
            await self.authorise(context_id, auth)
        except ContextNotFound:
            judged = await self._judged(context_id, answers, auth)
            if not judged:
                raise
        admitted = contextlib.nullcontext() if admission is None else admission
        async with admitted, self._started(context_id, stores) as agent:
            return await port_of(agent).decide(answers, auth, judged, metadata)

    async def may_decide(
        self, context_id: str, request_ids: Iterable[str], auth: AuthContext | None
    ) -> bool:
        """
        True if *auth* may decide all these requests in another actor's context, decided or not.

        Raises:
            FactoryFailed: `may_answer` raised.
            StoreUnavailable: The store did not answer.
        """
        return bool(await self._judged(context_id, request_ids, auth))

    async def _judged(
        self, context_id: str, request_ids: Iterable[str], auth: AuthContext | None
    ) -> Mapping[str, PendingRequest] | None:
        """The requests of these ids, if *auth* may decide all of them; else `None`."""
        if self.may_answer is None or auth is None:
            return None
        stores = self.stores_for(auth)
        return await requests_named(auth, stores, self.may_answer, context_id, request_ids)

    @property
    def agent_count(self) -> int:
        """How many agents there are now, those included that start or shut down."""
        return len(self._kept)

    @property
    def closed(self) -> bool:
        """True once `drain()` or `aclose()` was called."""
        return self._closed

    @contextlib.asynccontextmanager
    async def _started(self, context_id: str, stores: Stores) -> AsyncIterator[Agent]:
        """The agent of a context that the caller may use."""
        async with self._pinned(context_id, stores) as kept:
            agent = await self._opened(kept)
            if agent.state.status in (AgentStatus.CREATED, AgentStatus.SHUTDOWN):
                await agent.start()  # it was shut down elsewhere
            yield agent

    @contextlib.asynccontextmanager
    async def _pinned(self, context_id: str, stores: Stores) -> AsyncIterator[_Kept]:
        kept = await self._pin(context_id, stores)
        try:
            yield kept
        finally:
            self._unpin(kept)

    async def _pin(self, context_id: str, stores: Stores) -> _Kept:
        key = (stores.tenant, context_id)
        while True:
            self._refuse_if_closed(key)
            kept = self._kept.get(key)
            if kept is not None and kept.closing is None:
                break
            if kept is not None and kept.closing is not None:
                await asyncio.wait([kept.closing])
            elif len(self._kept) >= self.max_agents:
                await self._make_room()
            else:
                opening = asyncio.create_task(self._open(key, stores), name=f"open {context_id}")
                opening.add_done_callback(_seen)
                kept = self._kept[key] = _Kept(key, opening)
                break
        kept.users += 1
        return kept

    async def _opened(self, kept: _Kept) -> Agent:
        """The agent, once it is started; others may wait for it too."""
        try:
            agent = await asyncio.shield(kept.opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not kept.opening.cancelled() or (task is not None and task.cancelling()):
                raise
            raise HostClosed(_ENDS) from None  # it took too long to start
        if kept.closing is not None:  # in the meantime, by `drain` or `erase`
            self._refuse_if_closed(kept.key)
            raise no_context(kept.key[1])
        return agent

    def _unpin(self, kept: _Kept) -> None:
        kept.users -= 1
        self._touch(kept)
        self._sweep_later()

    def _touch(self, kept: _Kept) -> None:
        """Note that it was used just now."""
        kept.used_at = asyncio.get_running_loop().time()
        if self._kept.get(kept.key) is kept:
            self._kept[kept.key] = self._kept.pop(kept.key)

    async def _open(self, key: tuple[str, str], stores: Stores) -> Agent:
        try:
            agent = await self._start(key[1], stores)
        except BaseException:
            self._kept.pop(key, None)
            raise
        kept = self._kept[key]
        kept.agent, kept.feed = agent, Feed(agent, stores)
        if self._closed:
            port_of(agent).take_no_turns(_ENDS)
        return agent

    async def _start(self, context_id: str, stores: Stores) -> Agent:
        agent = await self._make(context_id, stores)
        await agent.start()
        if agent.__stores__() is not stores:
            await agent.shutdown()
            raise _unusable(context_id, "does not use the stores it was given: pass stores=stores")
        return agent

    async def _make(self, context_id: str, stores: Stores) -> Agent:
        try:
            made = self.factory(context_id, stores)
            agent = await made if inspect.isawaitable(made) else made
        except Exception as error:
            text = f"the factory of agents raised {type(error).__name__}"
            raise FactoryFailed(text, context_id=context_id) from error
        if not isinstance(agent, Agent):
            raise _unusable(context_id, f"is {type(agent).__name__}: return an Agent")
        if agent.context_id != context_id:
            raise _unusable(context_id, "has another context: pass context_id on")
        if agent.state.status is not AgentStatus.CREATED:
            raise _unusable(context_id, "was used before: return a new one that is not started")
        if not agent.auto_save:
            raise _unusable(context_id, "has auto_save=False: a host needs turns that are stored")
        port_of(agent).keep_to_owner()
        return agent

    async def sample(self, context_id: str, auth: AuthContext | None = None) -> Agent:
        """
        Have the factory make an agent to look at. The host neither keeps nor starts it.

        It is made on the stores of the caller's tenant. Call `authorise` first if it is shown.

        Raises:
            FactoryFailed: See `agent`.
        """
        return await self._make(context_id, self.stores_for(auth))

    async def look(self, context_id: str, auth: AuthContext | None = None) -> Agent:
        """
        The agent that the host keeps for a context, or a `sample`: to read its configuration.

        Raises:
            FactoryFailed: See `agent`.
        """
        kept = self._kept.get((self.stores_for(auth).tenant, context_id))
        if kept is not None and kept.agent is not None:
            return kept.agent
        return await self.sample(context_id, auth)

    async def erase(
        self, context_id: str, auth: AuthContext | None = None, *, force: bool = False
    ) -> Erased:
        """
        Erase a context and all that is in it; its readers end.

        Args:
            force: Also while a turn runs, which is then fenced.

        Raises:
            ContextNotFound: See `authorise`.
            AgentBusy: A turn runs, and *force* is false.
            StoreUnavailable: Not all of it was erased: erase again.
        """
        await self.authorise(context_id, auth)
        stores = self.stores_for(auth)
        actor_id = None if auth is None else auth.actor_id
        erased = await stores.contexts.erase(context_id, owner=actor_id, force=force)
        kept = self._kept.get((stores.tenant, context_id))
        if kept is not None and kept.closing is None and kept.agent is not None:
            self._close(kept)
        return erased

    # --- idle ones -----------------------------------------------------------------------------

    async def _make_room(self) -> None:
        """Shut one idle agent down, the least recently used, or wait for one that is closing."""
        closing = [kept.closing for kept in self._kept.values() if kept.closing is not None]
        if not closing:
            found = next((kept for kept in self._kept.values() if kept.idle), None)
            if found is None:
                raise LimitExceeded(
                    f"all {self.max_agents} agents of this process are in use: try again later",
                    limit="max_agents",
                    value=self.max_agents,
                )
            closing = [self._close(found)]
        await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)

    def _close(self, kept: _Kept) -> asyncio.Task[None]:
        """Shut an agent down, in a task that is not cancelled."""
        name = f"close {kept.key[1]}"
        kept.closing = asyncio.create_task(self._shut_down(kept), name=name)
        return kept.closing

    async def _shut_down(self, kept: _Kept) -> None:
        try:
            if kept.feed is not None:
                await kept.feed.close()
            if kept.agent is not None:
                await kept.agent.shutdown()
        except Exception:
            _logger.exception("the agent of context %s was not shut down in order", kept.key[1])
        finally:
            self._kept.pop(kept.key, None)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._kept and not self._closed:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(min(self.idle_s / 2, 60.0), self._sweep)

    def _sweep(self) -> None:
        """Shut down the agents that were idle for long enough."""
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for kept in list(self._kept.values()):
            if kept.agent is not None and port_of(kept.agent).at_work:
                kept.used_at = now
            elif kept.idle and now - kept.used_at >= self.idle_s:
                self._close(kept)
        self._sweep_later()

    # --- the end -------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise `HostClosed` once `drain()` or `aclose()` was called: no turn begins any more."""
        if self._closed:
            raise HostClosed(_ENDS)

    def _refuse_if_closed(self, key: tuple[str, str]) -> None:
        """Raise `HostClosed` if the host drains, unless a turn of this agent runs."""
        kept = self._kept.get(key)
        agent = None if kept is None or kept.closing is not None else kept.agent
        if agent is None or not port_of(agent).at_work:
            self.check_open()

    async def drain(self, within_s: float | None = None, *, cut_s: float = _CUT_S) -> int:
        """
        Take no more turns, let running ones end, then shut down every agent; for SIGTERM.

        Callers may read, steer and cancel a turn until it ends. A turn that takes longer than
        *within_s* (`drain_s`) is cut: it ends as `interrupted`, and `execute_turn(None)` continues
        it, here or in another process.

        Args:
            cut_s: How long an agent may take to let go after that, such as of a tool in a thread.

        Returns:
            How many turns were cut. May be called twice: the second call waits for the same end.
        """
        if self._draining is None:
            self._closed = True
            limit = self.drain_s if within_s is None else within_s
            self._draining = asyncio.create_task(self._drain_all(limit, cut_s), name="drain")
        return await asyncio.shield(self._draining)

    async def _drain_all(self, limit: float, cut_s: float) -> int:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        all_kept = list(self._kept.values())
        for kept in all_kept:
            if kept.agent is not None:
                port_of(kept.agent).take_no_turns(_ENDS)
        return sum(await asyncio.gather(*(self._drain(one, limit, cut_s) for one in all_kept)))

    async def aclose(self) -> None:
        """Close the host: `drain()`."""
        await self.drain()

    async def _drain(self, kept: _Kept, limit: float, cut_s: float) -> bool:
        """Let the turns of one agent end within the limit; true if one was cut."""
        cut, loop = False, asyncio.get_running_loop()
        last: float | None = None
        try:
            async with asyncio.timeout(limit):
                with contextlib.suppress(Exception):
                    agent = await asyncio.shield(kept.opening)
                    await agent.wait_for_idle()
        except TimeoutError:
            kept.opening.cancel()
            last = loop.time() + cut_s
            if kept.agent is not None:
                cut = await self._cut(kept.agent, kept.key[1], last)
        closing = kept.closing or self._close(kept)
        left = cut_s if last is None else max(0.0, last - loop.time())
        await asyncio.wait([closing], timeout=left)
        return cut

    async def _cut(self, agent: Agent, context_id: str, last: float) -> bool:
        try:
            async with asyncio.timeout_at(last):
                return await port_of(agent).break_off()
        except (TimeoutError, LooopyError) as error:
            _logger.warning(
                "a turn of context %s was cut, and its end could not be stored yet: %s",
                context_id,
                type(error).__name__,
            )
            return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AgentHost {len(self._kept)} of {self.max_agents} agents>"


def _unusable(context_id: str, why: str) -> FactoryFailed:
    return FactoryFailed(f"the agent that the factory returned {why}", context_id=context_id)


def _seen(opening: asyncio.Task[Agent]) -> None:
    """Take note of a failure that every caller has left before."""
    if not opening.cancelled():
        opening.exception()
