"""
The two subjects of the measurements, with one interface: looopy, and the floor below it.

The floor is no agent at all: the messages of a turn as JSON, inserted by the bare driver, with as
many transactions as the turn of an agent has commits, and the history kept in memory. No library
that keeps each message safe can be faster. The ratio to the floor is the cost of the library.
"""

import asyncio
import contextlib
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from benchmarks.workload import ANSWER, ARGUMENTS, FOUND, SYSTEM, Model, conversation, lookup

from looopy import Agent, AgentEvent, AuthContext, LoopConfig, open_stores

_SQLITE = (
    "CREATE TABLE IF NOT EXISTS said (context TEXT NOT NULL, position INTEGER NOT NULL,"
    " body TEXT NOT NULL, PRIMARY KEY (context, position)) WITHOUT ROWID"
)
_POSTGRES = _SQLITE.removesuffix(" WITHOUT ROWID")


_LOADED = {
    "sqlite": ("aiosqlite", "looopy.stores.sql.engine", "looopy.stores.sql.sqlite.driver"),
    "postgresql": ("asyncpg", "looopy.stores.sql.engine", "looopy.stores.sql.postgres.driver"),
}


def _load(url: str, *others: str) -> None:
    """Import what is imported late: no subject pays for it where opening a context is timed."""
    for name in (*_LOADED.get(url.partition(":")[0], ()), *others):
        importlib.import_module(name)


class Subject(Protocol):
    """
    Something that takes turns on contexts and keeps them.

    Attributes:
        model: What answers.
    """

    model: Model

    async def open(self) -> None:
        """Open the store."""

    async def close(self) -> None:
        """Close it."""

    async def turn(self, context: str, text: str) -> str:
        """Take a turn to its end; what was answered."""

    async def stream(self, context: str, text: str, readers: int = 1) -> int:
        """Take a turn; how many deltas each of *readers* got at least."""

    async def fill(self, context: str, count: int) -> None:
        """Store so many messages."""

    async def count(self, context: str) -> int:
        """How many messages the store has."""

    def forget(self, context: str) -> None:
        """Read the context from the store at its next turn."""


class Looopy:
    """
    looopy with its defaults, but for `history_tokens`: the whole history reaches the model.

    Args:
        url: Where the stores are.
        window: Show the model no more than so many messages.

    Attributes:
        credentials: Those of each turn from now on, which acts for somebody then.
    """

    def __init__(self, url: str, *, window: int | None = None) -> None:
        _load(url, "looopy.agent.stream", "looopy.llm.resolve")
        self.url = url
        self.credentials: dict[str, str] | None = None
        self.model = Model()
        self.config = LoopConfig(history_tokens=None, max_messages=window)
        self.agents: dict[str, Agent] = {}
        self._opened = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """See `Subject`."""
        options: dict[str, Any] = {"migrate": True} if self.url.startswith("postgres") else {}
        self.stores = await self._opened.enter_async_context(open_stores(self.url, **options))

    async def close(self) -> None:
        """See `Subject`."""
        for agent in self.agents.values():
            await agent.shutdown()
        await self._opened.aclose()

    async def agent(self, context: str) -> Agent:
        """The live agent of a context."""
        agent = self.agents.get(context)
        if agent is None:
            agent = self._build(context, self.stores)
            await agent.start()
            self.agents[context] = agent
        return agent

    def _build(self, context: str, stores: Any) -> Agent:
        return Agent(
            context,
            llm_provider=self.model,
            tools=[lookup],
            stores=stores,
            system_prompt=SYSTEM,
            loop_config=self.config,
            on_busy="wait",
        )

    async def turn(self, context: str, text: str) -> str:
        """See `Subject`."""
        agent = await self.agent(context)
        return (await agent.execute_turn(text, self._auth_context())).text

    def _auth_context(self) -> AuthContext | None:
        given = self.credentials
        return None if given is None else AuthContext("u1", credentials=given)

    async def stream(self, context: str, text: str, readers: int = 1) -> int:
        """See `Subject`."""
        agent = await self.agent(context)
        turn = agent.execute_turn(text)

        async def read(view: AsyncIterator[AgentEvent]) -> int:
            count = 0
            async for event in view:
                if event.type == "message_update" and event.delta:
                    count += 1
            return count

        if readers == 1:
            return await read(aiter(turn))
        views = [aiter(turn) for _ in range(readers)]  # before their tasks come to run
        return min(await asyncio.gather(*map(read, views)))

    async def fill(self, context: str, count: int) -> None:
        """See `Subject`."""
        await self.stores.messages.append(context, conversation(count))

    async def count(self, context: str) -> int:
        """See `Subject`."""
        return await self.stores.messages.count(context)

    def forget(self, context: str) -> None:
        """See `Subject`."""
        self.agents.pop(context, None)


class OverHTTP(Looopy):
    """The same behind a server in this process: a turn is a POST whose answer is its events."""

    async def open(self) -> None:
        """See `Subject`."""
        import httpx

        from looopy.server import AgentHost, create_app

        await super().open()
        self.credentials = {}
        host = AgentHost(self._build, self.stores)
        await self._opened.enter_async_context(host)
        app = create_app(host, authenticate=lambda _: self._auth_context())
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://localhost",
            headers={"Accept": "text/event-stream"},
        )
        await self._opened.enter_async_context(self._client)

    async def turn(self, context: str, text: str) -> str:
        """See `Subject`."""
        path = f"/contexts/{context}/turns"
        body = (await self._client.post(path, json={"message": text})).text
        data = (line[6:] for line in body.splitlines() if line.startswith("data: "))
        events = [json.loads(one) for one in data]
        return "".join(one["delta"] for one in events if one["type"] == "message_update")


class Floor:
    """
    The bare driver; its children say how it inserts.

    Args:
        url: Where the messages go.
        window: Read no more than so many messages.
    """

    def __init__(self, url: str, *, window: int | None = None) -> None:
        _load(url)
        self.url = url
        self.model = Model()
        self.window = window
        self.known: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    async def insert(self, context: str, rows: list[tuple[str, int, str]]) -> None:
        """Store rows in one transaction."""
        raise NotImplementedError

    async def select(self, context: str, limit: int | None) -> list[tuple[int, str]]:
        """The positions and bodies of a context, newest first."""
        raise NotImplementedError

    async def _history(self, context: str) -> tuple[int, list[dict[str, Any]]]:
        found = self.known.get(context)
        if found is None:
            rows = await self.select(context, self.window)
            last = rows[0][0] if rows else 0
            found = last, [json.loads(body) for _, body in reversed(rows)]
        return found

    async def turn(self, context: str, text: str) -> str:
        """One transaction a message: as many as the commits of an agent's turn."""
        model = self.model
        last, history = await self._history(context)
        said: list[dict[str, Any]] = [{"role": "user", "content": text}]

        async def save() -> None:
            nonlocal last
            last += 1
            history.append(said[-1])
            await self.insert(context, [(context, last, json.dumps(said[-1]))])

        await save()
        model.called(len(history))
        if model.latency_s:
            await asyncio.sleep(model.latency_s)
        if model.calls_tool:
            call = {"id": model.call_id(), "name": "lookup", "arguments": ARGUMENTS}
            said.append({"role": "assistant", "calls": [call]})
            await save()
            said.append({"role": "tool", "id": call["id"], "content": FOUND})
            await save()
            model.called(len(history))
        said.append({"role": "assistant", "content": ANSWER})
        await save()
        self.known[context] = last, history
        return ANSWER

    async def stream(self, context: str, text: str, readers: int = 1) -> int:
        """A generator and nothing around it."""

        async def deltas() -> Any:
            for piece in self.model.pieces():
                yield {"type": "delta", "text": piece}

        async def read() -> list[str]:
            return [event["text"] async for event in deltas()]

        got = await asyncio.gather(*(read() for _ in range(readers)))
        body = json.dumps({"role": "assistant", "content": "".join(got[0])})
        await self.insert(context, [(context, 1, body)])
        return min(map(len, got))

    async def fill(self, context: str, count: int) -> None:
        """See `Subject`."""
        rows = []
        for position, message in enumerate(conversation(count), 1):
            said = {"role": message.role, "content": message.text}
            rows.append((context, position, json.dumps(said)))
        await self.insert(context, rows)

    async def count(self, context: str) -> int:
        """See `Subject`."""
        return len(await self.select(context, None))

    def forget(self, context: str) -> None:
        """See `Subject`."""
        self.known.pop(context, None)


class MemoryFloor(Floor):
    """JSON in a dict."""

    async def open(self) -> None:
        """See `Subject`."""
        self.kept: dict[str, list[tuple[int, str]]] = {}

    async def close(self) -> None:
        """See `Subject`."""

    async def insert(self, context: str, rows: list[tuple[str, int, str]]) -> None:
        """See `Floor`."""
        self.kept.setdefault(context, []).extend((position, body) for _, position, body in rows)

    async def select(self, context: str, limit: int | None) -> list[tuple[int, str]]:
        """See `Floor`."""
        rows = self.kept.get(context, [])
        return rows[: -(limit or len(rows)) - 1 : -1]


class SqliteFloor(Floor):
    """aiosqlite with WAL and `synchronous=FULL`."""

    async def open(self) -> None:
        """See `Subject`."""
        import aiosqlite

        path = self.url.removeprefix("sqlite:///")
        self.database = await aiosqlite.connect(path, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
            await self.database.execute(f"PRAGMA {pragma}")
        await self.database.execute(_SQLITE)
        self.alone = asyncio.Lock()

    async def close(self) -> None:
        """See `Subject`."""
        await self.database.close()

    async def insert(self, context: str, rows: list[tuple[str, int, str]]) -> None:
        """See `Floor`."""
        async with self.alone:
            if len(rows) == 1:
                await self.database.execute("INSERT INTO said VALUES (?, ?, ?)", rows[0])
                return
            await self.database.execute("BEGIN IMMEDIATE")
            await self.database.executemany("INSERT INTO said VALUES (?, ?, ?)", rows)
            await self.database.execute("COMMIT")

    async def select(self, context: str, limit: int | None) -> list[tuple[int, str]]:
        """See `Floor`."""
        sql = "SELECT position, body FROM said WHERE context = ? ORDER BY position DESC LIMIT ?"
        rows = await self.database.execute_fetchall(sql, (context, -1 if limit is None else limit))
        return [(row[0], row[1]) for row in rows]


class PostgresFloor(Floor):
    """asyncpg with its pool."""

    async def open(self) -> None:
        """See `Subject`."""
        import asyncpg

        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=10)
        await self.pool.execute(_POSTGRES)

    async def close(self) -> None:
        """See `Subject`."""
        await self.pool.close()

    async def insert(self, context: str, rows: list[tuple[str, int, str]]) -> None:
        """See `Floor`."""
        if len(rows) == 1:
            await self.pool.execute("INSERT INTO said VALUES ($1, $2, $3)", *rows[0])
        else:
            await self.pool.executemany("INSERT INTO said VALUES ($1, $2, $3)", rows)

    async def select(self, context: str, limit: int | None) -> list[tuple[int, str]]:
        """See `Floor`."""
        sql = "SELECT position, body FROM said WHERE context = $1 ORDER BY position DESC LIMIT $2"
        return [(row[0], row[1]) for row in await self.pool.fetch(sql, context, limit)]


_FLOORS: dict[str, type[Floor]] = {
    "memory": MemoryFloor,
    "sqlite": SqliteFloor,
    "postgres": PostgresFloor,
}
BACKENDS = tuple(_FLOORS)


def subject(name: str, backend: str, url: str, *, window: int | None = None) -> Subject:
    """*name* is `looopy` or `floor`, *backend* one of `BACKENDS`."""
    if name == "looopy":
        return Looopy(url, window=window)
    return _FLOORS[backend](url, window=window)  # type: ignore[return-value]  # its children open
