"""
Many contexts that run turns in one process, while something happens to their database.

Each user goes on whatever happens, as a person would who is told that it did not work. A witness
stands between the agents and the stores and keeps what each commit was and what was said of it: a
commit that was acknowledged has to be there once, one that was refused for certain must not be
there at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tests.campaign.life import (
    Interject,
    answer,
    interjecting,
    make_tools,
    take_turn,
    what_next,
)
from tests.campaign.oracle import Line, compare, posts_are_said, saves_agree

from looopy import Agent, LoopConfig, Outcome
from looopy.errors import CannotContinue, InputNotFound, LooopyError, StoreUnavailable
from looopy.stores.bundle import Stores
from looopy.stores.records import Claim, Commit
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres.driver import PATIENCE_S, PostgresDriver
from looopy.stores.sql.postgres.url import parse
from looopy.testing import ScriptedProvider, SpyStores
from looopy.types.event import MessageEnd
from looopy.types.message import Message

_T = TypeVar("_T")
_LAST_PATIENCE_S = 60.0
_NAMED = 0.5  # of the messages: those that are sent with an idempotency key


class MemoryLedger:
    """Lines of a process that is not killed."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        self.lines.append({"kind": kind, **facts})


@dataclass
class Told:
    """What was said of a write: `done`, `refused` (for certain) or `unknown`."""

    context_id: str
    messages: list[Message]
    what: str


class Witness:
    """Stands before stores: `witness.stores` is what agents are given."""

    def __init__(self, stores: Stores) -> None:
        self.told: list[Told] = []
        self._inner = stores
        spy = SpyStores(stores)
        spy.hook = self._hook
        self.stores = spy.stores

    def _hook(self, _name: str, argument: object) -> Any:
        return self._write(argument) if isinstance(argument, Claim | Commit) else None

    async def _write(self, write: Claim | Commit) -> Any:
        messages = [e.message for e in write.events if isinstance(e, MessageEnd)]
        told = Told(write.context_id, messages, "unknown")
        self.told.append(told)
        try:
            if isinstance(write, Claim):
                done: Any = await self._inner.state.claim(write)
            else:
                done = await self._inner.commit(write)
        except StoreUnavailable as error:
            told.what = "refused" if error.outcome_known else "unknown"
            raise
        except LooopyError:
            told.what = "refused"
            raise
        told.what = "done"
        return done

    def problems(self, context_id: str, stored: list[Message]) -> list[str]:
        """What of *context_id* is not as it was said."""
        times = Counter(map(repr, stored))
        said: dict[str, Counter[str]] = {}
        for told in self.told:
            if told.context_id == context_id:
                for message in told.messages:
                    said.setdefault(repr(message), Counter())[told.what] += 1
        # One that was refused may have been tried again, and told otherwise.
        return [
            f"a message is there {times[shown]} times, of which was said {dict(what)}: {shown}"
            for shown, what in said.items()
            if not what["done"] <= times[shown] <= min(1, what["done"] + what["unknown"])
        ]


@dataclass
class Traffic:
    """
    Users at work.

    Attributes:
        may_fail: Whether a user may be told `StoreUnavailable`.
        over: Set when they shall stop after their turn.
        unavailable: How often they were told so, by `outcome_known`.
        turns: How many turns came to an end.
        at_work: The number of the turn that each user waits for.
    """

    witness: Witness
    rng: random.Random
    think_s: float
    may_fail: bool
    over: asyncio.Event = field(default_factory=asyncio.Event)
    unavailable: Counter[bool] = field(default_factory=Counter)
    turns: int = 0
    at_work: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _ledgers: dict[str, MemoryLedger] = field(default_factory=dict)
    _agents: list[Agent] = field(default_factory=list)

    async def start(self, users: int) -> None:
        """Open a context for each user."""
        for n in range(users):
            context_id = f"user-{n}-{secrets.token_hex(6)}"
            ledger = self._ledgers[context_id] = MemoryLedger()
            agent = Agent(
                context_id,
                llm_provider=ScriptedProvider(lambda r, to=ledger: answer(r, to), chunk_chars=20),
                tools=make_tools(ledger, random.Random(self.rng.random())),
                stores=self.witness.stores,
                loop_config=LoopConfig(max_tool_failures=50),
            )
            await self._served(agent.start)
            self._agents.append(agent)

    async def work(self) -> None:
        """Be all of the users until it is over."""
        async with asyncio.TaskGroup() as group:
            for agent in self._agents:
                group.create_task(self._use(agent, random.Random(self.rng.random())))

    async def _use(self, agent: Agent, rng: random.Random) -> None:
        ledger = self._ledgers[agent.context_id]
        failed = False
        key: str | None = None
        number = 0
        while not self.over.is_set():
            number += 1
            if failed and key is not None:  # as a client does that does not know what became of it
                said, inputs = key, {}
            elif failed:  # what the agent knows of the context may be old: say something else
                said, inputs = f"{number} plan=ei", {}
            else:
                said, inputs = what_next(agent, str(number), rng)
                key = said if rng.random() < _NAMED else None
            self.at_work[agent.context_id] = number
            try:
                interject = self._interjecting(agent, str(number), rng)
                await take_turn(agent, ledger, said, inputs, key=key, interject=interject)
                failed = False
                self.turns += 1
            except StoreUnavailable as error:
                failed = True
                self.unavailable[error.outcome_known] += 1
                if not self.may_fail:
                    self.problems.append(f"a user was told: {error}")
            except (CannotContinue, InputNotFound) as error:
                if not failed:
                    self.problems.append(f"a user was told, out of nothing: {error!r}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
                self.problems.append(f"a user was told: {error!r}")
            del self.at_work[agent.context_id]
            await asyncio.sleep(rng.random() * self.think_s)

    def _interjecting(self, agent: Agent, name: str, rng: random.Random) -> Interject:
        """Now and then, say something to the turn that runs; it may not arrive."""
        say = interjecting(agent, self._ledgers[agent.context_id], name, rng)

        async def interject() -> None:
            try:
                await say()
            except StoreUnavailable:
                if not self.may_fail:
                    raise

        return interject

    async def _served(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """
        The reply to *ask*, which nothing has disturbed.

        Where statements may run for 0.3 s, a busy machine is too slow for some: asked again.
        """
        async with asyncio.timeout(_LAST_PATIENCE_S):
            while True:
                try:
                    return await ask()
                except StoreUnavailable:
                    if not self.may_fail:
                        raise

    async def examine(self) -> list[str]:
        """Run one more turn on each context, with the same agents, and look at all of it."""
        found = list(self.problems)
        for agent in self._agents:
            try:
                async with asyncio.timeout(_LAST_PATIENCE_S):
                    ledger = self._ledgers[agent.context_id]
                    outcome = await take_turn(agent, ledger, "afterwards plan=e", {})
                if outcome is not Outcome.COMPLETED:
                    found.append(f"the last turn ended as {outcome}")
            except (LooopyError, TimeoutError) as error:
                found.append(f"serving did not go on: {error!r}")
                continue
            context_id = agent.context_id
            messages = await self._served(agent.get_messages)
            events = await self._served(partial(self.witness.stores.journal.events, context_id))
            found += compare(context_id, ledger.lines, messages, events, pending=False)
            found += posts_are_said(ledger.lines, messages)
            found += await saves_agree(context_id, ledger.lines, self.witness.stores)
            found += self.witness.problems(context_id, messages)
            if agent.state.turn_count != sum(e.type == "turn_start" for e in events):
                found.append("turn_count differs from the turns of the log")
            await agent.shutdown()
        return found


@contextlib.asynccontextmanager
async def traffic(
    url: str,
    seed: int,
    *,
    users: int,
    think_s: float = 0.0,
    patience_s: float = PATIENCE_S,
    may_fail: bool = False,
) -> AsyncIterator[Traffic]:
    """
    Users at work on *url*, until the block is left; then `problems` says what went wrong.

    Args:
        think_s: The longest pause between two turns of a user.
        patience_s: Of the stores, see `PostgresDriver`.
    """
    driver = PostgresDriver(parse(url), patience_s=patience_s)
    await driver.open()
    try:
        made = Traffic(
            Witness(bind(driver, "default")), random.Random(seed), think_s, may_fail=may_fail
        )
        await made.start(users)
        working = asyncio.create_task(made.work())
        try:
            yield made
        finally:
            made.over.set()
            await working
        made.problems = await made.examine()
    finally:
        await driver.close()
