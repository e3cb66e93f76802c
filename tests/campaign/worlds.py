"""
What trials within one process share: stores of each kind, what an agent did in them, what is left.

A `World` is one context in a tenant of its own. It notes all that a caller was told (events with a
number, effects of tools, what a call returned) and afterwards compares that with what the stores
give to somebody who opens them anew. The stores are never compared with themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import random
import re
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.agent.kit import assert_valid, assert_whole
from tests.campaign import databases
from tests.campaign.trial import Tally

from looopy import Agent, RetryPolicy, ToolContext, open_stores, tool
from looopy.errors import LooopyError
from looopy.stores.bundle import Stores
from looopy.stores.owner import Owner
from looopy.stores.records import Commit
from looopy.stores.sql.sqlite import gaps
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import answer, begin, said, starts
from looopy.types.config import LoopConfig
from looopy.types.event import AgentEvent, HistoryCleared, MessageEnd
from looopy.types.message import ToolCall

Case = TypeVar("Case")

KINDS = ("memory", "sqlite", "asyncpg", "psycopg")
BOUND_S = 20.0
"""Within this time a turn that was stopped has ended; far more than it takes, for busy machines."""

_ROUNDS = 50
_CONFIG = LoopConfig(retry=RetryPolicy(base_s=0))


@contextmanager
def database(kind: str) -> Iterator[str]:
    """The URL of a database of *kind*, at the head and without contexts."""
    if kind == "memory":
        yield "memory:"
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="looopy-") as folder:
            yield databases.new_sqlite(Path(folder))
    else:
        yield databases.postgres(kind)


class Place:
    """Open stores; each world in them is a tenant of its own."""

    def __init__(self, url: str) -> None:
        self._opened = open_stores(url)
        self._file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None
        self._in_memory = url == "memory:"
        name = secrets.token_hex(4)  # others may have been here
        self._tenants = (f"{name}-{n}" for n in itertools.count())
        self._threads = 0
        self._files: Counter[str] = Counter()
        self._were_idle = 0

    async def __aenter__(self) -> Self:
        await self._opened.__aenter__()
        await self._opened.state.list(limit=1)
        heard = asyncio.Event()  # the first who listens for a while makes a connection that stays
        notifier = self._opened.journal.notifier
        with notifier.listen(self._opened.tenant, "nobody", lambda _: heard.set()):
            if self._pool() is not None:
                await heard.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.__aexit__(None, None, None)

    def stores(self) -> Stores:
        """Stores without a context."""
        stores = self._opened.for_tenant(next(self._tenants))
        return _unhurried(stores) if self._in_memory else stores

    def settle(self) -> None:
        """Take what is open now for what may be: a first run opens what all others use."""
        gc.collect()
        if self._file is not None:  # the first deletion opens the file once more, for good
            gaps._descriptor(self._file)
        self._threads, self._files = threading.active_count(), self._open_files()
        self._were_idle = self._idle()

    async def left_over(self) -> list[str]:
        """Threads, files and connections that were not there when `settle` was called, and stay."""
        problems = self._too_many()
        deadline = time.monotonic() + BOUND_S
        while problems and time.monotonic() < deadline:  # news of the last commit are told later
            await asyncio.sleep(0.01)
            problems = self._too_many()
        return problems

    def _too_many(self) -> list[str]:
        problems = []
        if threading.active_count() > self._threads:
            problems.append(f"threads: {[t.name for t in threading.enumerate()]}")
        opened = self._open_files()
        if opened.total() - self._idle() > self._files.total() - self._were_idle:
            problems.append(f"{opened.total()} files are open, more are {opened - self._files}")
        pool = self._pool()
        if pool is not None and pool.in_use:
            problems.append(f"{pool.in_use} connections were not given back")
        return problems

    def _pool(self) -> Any:
        return getattr(getattr(self._opened.state, "backend", None), "_pool", None)

    def _idle(self) -> int:
        """Connections that wait in the pool, whose number is its own business."""
        pool = self._pool()
        return 0 if pool is None else pool.idle

    def _open_files(self) -> Counter[str]:
        """What is open, by its name."""
        opened: Counter[str] = Counter()
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed by now
                opened[re.sub(r"\[\d+\]", "", str(path.readlink()))] += 1
        return opened


def _unhurried(stores: Stores) -> Stores:
    """*stores* in memory with a wait before and after all they do, as those have that are not."""
    return Stores(
        _Unhurried(stores.messages),
        _Unhurried(stores.artifacts),
        _Unhurried(stores.state),
        _Unhurried(stores.journal),
        tenant=stores.tenant,
    )


class _Unhurried:
    outlasts = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            answer = await inner(*args, **options)
            await asyncio.sleep(0)
            return answer

        return call if inspect.iscoroutinefunction(inner) else inner


class Watch:
    """
    Counts the suspensions of all tasks that are made while it watches, and strikes at one of them.

    Wherever a task waits is a place where a cancellation can reach it or what it waits for. *act*
    is called in the round of the event loop that follows the suspension numbered *at*.
    """

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.at = at
        self.count = 0
        self.struck = False
        self._act = act

    def __enter__(self) -> Self:
        asyncio.get_running_loop().set_task_factory(self._make)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_task_factory(None)

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        beside = getattr(work, "__qualname__", "").startswith("News.")  # tells other processes
        return asyncio.Task(work if beside else _Watched(work, self), loop=loop, **options)

    def suspended(self) -> None:
        """A task waits."""
        self.count += 1
        if self.count == self.at:
            asyncio.get_running_loop().call_soon(self._strike)

    def _strike(self) -> None:
        self.struck = True
        self._act()


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose suspensions are counted."""

    def __init__(self, work: Any, watch: Watch) -> None:
        self._work, self._watch = work, watch

    def send(self, value: Any) -> Any:
        waited_for = self._work.send(value)
        self._watch.suspended()
        return waited_for

    def throw(self, *error: Any) -> Any:
        waited_for = self._work.throw(*error)
        self._watch.suspended()
        return waited_for

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()


class World:
    """
    One context, and all that was told of it.

    Attributes:
        stores: Where it is, with nothing in between.
        seen: Every event with a number that somebody was shown, in order.
        effects: Keys of the tool calls that had their effect, in order.
    """

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.seen: list[AgentEvent] = []
        self.effects: list[str] = []
        self.tools = self._make_tools()
        self.before = asyncio.all_tasks()

    def agent(self, replies: Sequence[Any] = (), **options: Any) -> Agent:
        """An agent of this context, whose events are noted."""
        options = {"stores": self.stores, "loop_config": _CONFIG, **options}
        provider = ScriptedProvider(replies, chunk_chars=5)
        agent = Agent("ada", llm_provider=provider, tools=self.tools, **options)
        agent.subscribe(self._note)
        return agent

    def _note(self, event: AgentEvent) -> None:
        if event.seq is not None:
            self.seen.append(event)

    def _make_tools(self) -> list[Any]:
        @tool
        async def act(context: ToolContext) -> str:
            """Change the world, in a few rounds of the loop."""
            await asyncio.sleep(0)
            self.effects.append(context.idempotency_key)
            await asyncio.sleep(0)
            return "done"

        @tool(effects="none")
        async def look() -> str:
            """Look, and change nothing."""
            await asyncio.sleep(0)
            return "seen"

        @tool(effects="none")
        async def draw(context: ToolContext) -> str:
            """Save two versions of a picture."""
            await context.artifacts.save("picture", b"\0first")
            await context.artifacts.save("picture", b"\0second")
            return "drawn"

        @tool(on_resume="ask")
        async def pay(context: ToolContext) -> str:
            """Do what nobody wants done twice."""
            self.effects.append(context.idempotency_key)
            return "paid"

        return [act, look, draw, pay]

    async def dead_turn(self, tool_name: str | None = None) -> None:
        """Leave a turn as a process does that dies, in the middle of a tool if one is named."""
        owner = Owner.new()
        claimed = await begin(self.stores, holder=owner.token(), text="go")
        if tool_name is not None:
            call = ToolCall(id="call_before", name=tool_name, arguments={})
            await self.stores.commit(
                Commit(
                    context_id="ada",
                    epoch=claimed.epoch,
                    turn=claimed.turn,
                    events=[said(answer("let me see", call)), starts(call)],
                )
            )
        owner.retire()

    # --- what must hold ---

    async def nothing_left_running(self) -> None:
        """Every task that was made is over, or about to be."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - self.before - {asyncio.current_task()}
            if not left:
                return
        _, pending = await asyncio.wait(left, timeout=BOUND_S)
        assert not pending, f"tasks are left over: {pending}"

    async def nothing_lost(self) -> None:
        """What was shown is stored as it was shown, in order and once; no effect was had twice."""
        seen = list(self.seen)  # before the log is read: a turn may be running
        log = {event.seq: event for event in await self.stores.journal.events("ada")}
        first = min(log, default=1)  # a cleared log begins at the newest clearing
        numbers = [event.seq for event in seen]
        assert len(set(numbers)) == len(numbers), f"shown twice: {numbers}"
        for event in seen:
            assert event.seq is not None
            if event.seq < first:
                continue
            stored = log.get(event.seq)
            assert stored is not None, f"shown and not stored: {event.type} {event.seq}"
            assert (stored.type, stored.turn) == (event.type, event.turn)
            if isinstance(event, MessageEnd) and isinstance(stored, MessageEnd):
                assert (stored.message, stored.position) == (event.message, event.position)
        twice = [key for key, times in Counter(self.effects).items() if times > 1]
        assert not twice, f"ran twice: {twice}"

    async def goes_on(self, agent: Agent | None = None) -> None:
        """The context can be used: by *agent* as it is, or by whoever opens it next, alone."""
        asked = agent or self.agent()
        sent: list[Any] = []

        def reply(request: Any) -> Any:
            sent.extend(request.messages)
            return text("still here")

        asked._core.resources.provider = ScriptedProvider(reply)
        await asked.start()
        result = await asked.execute_turn("and now?")
        assert result.text == "still here", f"{result.outcome}: {result.error}"
        assert_valid(sent)
        await asked.shutdown()

    async def is_whole(self) -> None:
        """Between turns: the log has no gap, each turn one end, each call one result."""
        record = await self.stores.state.load("ada")
        if record is None:
            return
        if record.cleared_seq:
            events = await self.stores.journal.events("ada")
            assert isinstance(events[0], HistoryCleared)
            assert [e.seq for e in events] == list(range(record.cleared_seq, record.last_seq + 1))
            assert record.open_turn is None
        else:
            await assert_whole(self.stores)


async def examined(tally: Tally, what: str, check: Coroutine[Any, Any, None]) -> bool:
    """Run *check*; a failure is a violation of *what*."""
    tally.runs += 1
    try:
        async with asyncio.timeout(4 * BOUND_S):
            await check
    except (AssertionError, LooopyError, TimeoutError) as error:
        tally.violations.append(f"{what}: {type(error).__name__}: {error}")
        return False
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not have come about
        tally.violations.append(f"{what}: untyped {error!r}")
        return False
    return True


def in_turns(cases: Sequence[Case], count: int, seed: int) -> Iterator[tuple[int, Case]]:
    """*count* cases, each with its seed; of as many seeds in a row as there are cases, all."""
    mixed = random.Random(0).sample(list(cases), len(cases))
    for n in range(seed, seed + count):
        yield n, mixed[n % len(mixed)]
