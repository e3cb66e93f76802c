"""
News of commits for other processes on Postgres: NOTIFY, rarely and in few words.

A NOTIFY inside the transaction that writes would make all commits of the database wait for each
other, and one for each commit would cost as much as the commit. So the names of changed contexts
are collected and sent together a little later, by a transaction of its own that does not wait for
the disk. No promise depends on it: every waiter also polls, and news that could not be sent go out
with the next.

There is one channel. Every process receives every change and drops the ones without a listener in
it, at the cost of a lookup; more channels would cost a process with many contexts a message for
each. A name is a hash, so nothing readable leaves the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import secrets
from collections.abc import AsyncIterator
from typing import Any

from looopy.stores.notifier import Key, Notifier
from looopy.stores.sql.driver import Ring
from looopy.stores.sql.postgres.errors import Trouble
from looopy.stores.sql.postgres.pool import Pool, connect, no_connection
from looopy.stores.sql.postgres.url import PostgresURL
from looopy.stores.sql.postgres.wire import Wire, wire_of

CHANNEL = "looopy"
_LEAD_S = 0.005  # commits that follow at once go with it
_EAR_LEAD_S = 0.25  # a shorter wait needs no connection for it
_PAUSE_S = 0.02
_MOST_NAMES = 400  # in one payload, which the server limits to 8,000 bytes
_FLUSH_S = 2.0
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_random = random.SystemRandom()


class News:
    """
    Connects the notifiers of all drivers on a database, while it is open.

    Args:
        notifier: Notified of the changes of other drivers.
        pool: Source of a connection for sending, from time to time.
        quiet_s: How long the channel may be silent before the server is asked for a sign of life.
        answer_s: How long that answer may take.

    Behind a pooler that hands out connections transaction by transaction this cannot listen,
    because listening belongs to a connection; it then only sends.
    """

    def __init__(
        self,
        url: PostgresURL,
        notifier: Notifier,
        pool: Pool,
        *,
        quiet_s: float = 30.0,
        answer_s: float = 10.0,
    ) -> None:
        self._url = url
        self._notifier = notifier
        self._pool = pool
        self._quiet_s = quiet_s
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._sender = secrets.token_hex(8)
        self._untold: dict[str, bool] = {}
        self._telling: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._contexts: dict[str, Key] = {}
        self._hearing: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None  # when to begin with it
        if url.pooled:
            return
        for key in notifier.keys:  # left by waiters while this was closed
            self._notice(key, here=True)
        notifier.noticed = lambda key, here: self._notice(key, here=here)

    async def close(self) -> None:
        """Stop listening, and send the remaining news unless that takes long."""
        self._notifier.noticed = None
        if self._soon is not None:
            self._soon.cancel()
        if self._untold and self._telling is None:  # its earlier failure
            self._telling = self._loop.create_task(self._tell())
        self._closing.set()
        try:
            if self._telling is not None:
                await asyncio.wait([self._telling], timeout=_FLUSH_S)
        finally:
            tasks = [task for task in (self._telling, self._hearing) if task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_FLUSH_S)

    # --- sending ---

    def tell(self, ring: Ring) -> None:
        """Let the others know, soon."""
        for context_id in (ring.context_id, *ring.others):
            name = name_of(ring.tenant, context_id)
            self._untold[name] = ring.inbox or self._untold.get(name, False)
        if self._telling is None and not self._closing.is_set():
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Send all waiting news, again and again with pauses, until none is left."""
        try:
            await self._rest(_LEAD_S)
            while self._untold:
                told, self._untold = self._untold, {}
                if not await self._notify(told):
                    # By the time a patient retry came through, every waiter would have polled.
                    self._untold = {**told, **self._untold}
                    return
                await self._rest(_PAUSE_S)
        finally:
            self._telling = None

    async def _rest(self, pause_s: float) -> None:
        """Wait for a moment, unless this is being closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closing.wait()

    async def _notify(self, told: dict[str, bool]) -> bool:
        words = [name + _INBOX * inbox for name, inbox in told.items()]
        notifies = "; ".join(
            f"NOTIFY {CHANNEL}, '{' '.join((self._sender, *words[n : n + _MOST_NAMES]))}'"
            for n in range(0, len(words), _MOST_NAMES)
        )
        # News may be lost in a crash: they do not wait for the disk.
        text = f"BEGIN; SET LOCAL synchronous_commit = off; {notifies}; COMMIT"
        while True:
            try:
                until = self._loop.time() + self._answer_s
                async with self._pool.session(brief=True, until=until) as opened:
                    await opened.command_alone(text)
            except Trouble as trouble:
                if trouble.stale:  # the next one may be fresh
                    continue
                return False
            return True

    # --- receiving -

    def _notice(self, key: Key, *, here: bool) -> None:
        """
        Begin or cease to care for a context; the first one that lasts makes the connection, which
        stays.

        Not at once: a turn that has just opened its context has better things to do, and one that
        asks a model is waiting anyway when the time has come.
        """
        if not here:
            self._contexts.pop(name_of(*key), None)
            return
        self._contexts[name_of(*key)] = key
        if self._hearing is None and self._soon is None:
            self._soon = self._loop.call_later(_EAR_LEAD_S, self._begin_to_receive)

    def _begin_to_receive(self) -> None:
        self._soon = None
        if self._contexts:
            self._hearing = self._loop.create_task(self._receive())

    async def _receive(self) -> None:
        """Notify of received changes; connect again whenever the connection breaks."""
        pause_s = _SHORTEST_PAUSE_S
        while True:
            # Without a connection, waiters poll.
            with contextlib.suppress(Trouble):
                async with _ear(self._url, self._answer_s) as ear:
                    self._notifier.notify_all()  # for changes announced while there was no listener
                    pause_s = _SHORTEST_PAUSE_S
                    while True:
                        heard = await ear.receive(self._quiet_s)
                        for payload in heard:
                            self._ring(payload)
                        if not heard:
                            await ear.ask()
            await asyncio.sleep(_random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _ring(self, payload: str) -> None:
        sender, *words = payload.split(" ")
        if sender == self._sender:
            return
        for word in words:
            key = self._contexts.get(word.removesuffix(_INBOX))
            if key is not None:
                self._notifier.notify(*key, inbox=word.endswith(_INBOX))


_INBOX = "+"


def name_of(tenant: str, context_id: str) -> str:
    """The name of a context on the channel: 16 hexadecimal digits."""
    return hashlib.blake2b(f"{tenant}\0{context_id}".encode(), digest_size=8).hexdigest()


# --- a connection that listens ---


class _Ear:
    def __init__(self, connection: Any, answer_s: float) -> None:
        self._connection = connection
        self._answer_s = answer_s
        self._wire: Wire = wire_of(connection)

    async def listen(self) -> None:
        """Begin; `Trouble` if the connection is lost, or the server does not answer in time."""
        raise NotImplementedError

    async def receive(self, at_most_s: float) -> list[str]:
        """Wait for payloads; [] after a silence of that length, or sooner; `Trouble` if lost."""
        raise NotImplementedError

    async def ask(self) -> None:
        """Have the server answer; `Trouble` if it does not, or not in time."""
        await self._wire.command("SELECT 1", within_s=self._answer_s)

    async def close(self) -> None:
        """Let the connection go, broken or not, without waiting for the server."""
        await self._wire.close(at_once=True)


@contextlib.asynccontextmanager
async def _ear(url: PostgresURL, answer_s: float) -> AsyncIterator[_Ear]:
    """A connection of its own that listens; `Trouble` if it fails, or is lost in the block."""
    connection = await connect(url)
    make = _AsyncpgEar if url.driver == "asyncpg" else _PsycopgEar
    ear = make(connection, answer_s)
    try:
        await ear.listen()
        yield ear
    finally:
        await ear.close()


class _AsyncpgEar(_Ear):
    def __init__(self, connection: Any, answer_s: float) -> None:
        super().__init__(connection, answer_s)
        self._heard: list[str] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        self._connection.add_termination_listener(lambda _: self._news.set())
        listening = self._connection.add_listener(CHANNEL, self._take)
        await self._wire.within(listening, self._answer_s)

    def _take(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heard.append(payload)
        self._news.set()

    async def receive(self, at_most_s: float) -> list[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._news.wait()
        if self._connection.is_closed():
            raise Trouble(None, lost=True)
        self._news.clear()
        heard, self._heard = self._heard, []
        return heard


class _PsycopgEar(_Ear):
    async def listen(self) -> None:
        await self._wire.command(f"LISTEN {CHANNEL}", within_s=self._answer_s)

    async def receive(self, at_most_s: float) -> list[str]:
        try:
            notifies = self._connection.notifies(timeout=at_most_s, stop_after=1)
            return [notify.payload async for notify in notifies]
        except Exception as error:  # noqa: BLE001 - sorted out by the next function
            raise no_connection(error) from None
