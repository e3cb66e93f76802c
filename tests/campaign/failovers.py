"""
Kill the primary of a Postgres and promote its standby, under processes that run turns.

With synchronous replication nothing that was acknowledged is lost. Without it, the standby is cut
off for a while before the primary is killed, so acknowledged turns are lost. Then each agent that
had one raises `CommitsLost`, once, and continues from what the new primary has. Another agent
takes a turn of each context in between, and its turn is kept.

Clients reach the server by a name that is pointed to the standby, as by a DNS name or a proxy.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from tests.agent.kit import assert_whole
from tests.campaign.databases import DRIVERS
from tests.campaign.trial import Tally, Trial
from tests.postgres import Server, as_driver, ask

from looopy import Agent, open_stores, tool
from looopy.errors import AgentBusy, CommitsLost, Fenced, LooopyError, StoreUnavailable
from looopy.llm.provider import LLMRequest
from looopy.stores.bundle import Stores
from looopy.stores.sql import migrate
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import run
from looopy.types.config import LoopConfig
from looopy.types.message import ToolResultMessage, UserMessage

_CONTEXTS = 6
_AT_WORK_S = 0.6  # with the standby, at most
_BEHIND_S = 0.6  # without it, at most
_TOOL = 0.5  # of the turns: those that call a tool
_PATIENCE_S = 60.0


class Pair:
    """
    A primary, its standby, and a folder by whose socket clients reach one of them.

    Args:
        synchronous: The primary acknowledges nothing that the standby does not have.
    """

    def __init__(self, *, synchronous: bool) -> None:
        self._front = Path(tempfile.mkdtemp(prefix="lpg-"))
        self._primary = Server("synchronous_commit=on")
        self._standby: Server | None = None
        try:
            self._primary.start()
            ask(self._primary.url("postgres"), "CREATE DATABASE app")
            run(partial(migrate.upgrade, self._primary.url("app")), self._front / "log")
            self._standby = Server(primary=self._primary)
            self._standby.start()
            if synchronous:
                self._set(self._primary, "synchronous_standby_names = '*'")
                self._until(
                    self._primary,
                    "EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')",
                )
            self._point_to(self._primary)
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        """Of the database, on whichever of the two is the primary."""
        return f"postgresql://postgres@/app?{urlencode({'host': str(self._front)})}"

    def cut(self) -> None:
        """Let the standby get nothing more."""
        assert self._standby is not None
        self._set(self._standby, "primary_conninfo = ''")
        self._until(self._standby, "NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def fail_over(self) -> None:
        """Kill the primary, and make the standby one."""
        assert self._standby is not None
        self._primary.kill()
        ask(self._standby.url("postgres"), "SELECT pg_promote()")
        self._point_to(self._standby)

    def remove(self) -> None:
        """Stop both, and leave nothing behind."""
        self._primary.remove()
        if self._standby is not None:
            self._standby.remove()
        shutil.rmtree(self._front, ignore_errors=True)

    def _point_to(self, server: Server) -> None:
        new = self._front / "new"
        new.symlink_to(server.socket)
        new.replace(self._front / server.socket.name)

    @staticmethod
    def _set(server: Server, setting: str) -> None:
        ask(server.url("postgres"), f"ALTER SYSTEM SET {setting}")
        ask(server.url("postgres"), "SELECT pg_reload_conf()")

    @staticmethod
    def _until(server: Server, condition: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not ask(server.url("postgres"), f"SELECT {condition}")[0][0]:
            assert time.monotonic() < deadline, server.log()


@dataclass
class Users:
    """
    The users of some contexts, and what each was told.

    Attributes:
        promoted: True once the new primary answers.
        over: Set when they shall stop after their turn.
        before, after: The acknowledged messages of a context, by whom they were acknowledged.
        told: How often a context's agent raised `CommitsLost`.
        ran: Calls of the tool, by message.
    """

    rng: random.Random
    promoted: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    before: dict[str, list[str]] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    sent: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def agent(self, name: str, stores: Stores) -> Agent:
        """An agent that answers by what it was sent, and keeps that."""

        @tool
        async def note(word: str) -> str:
            """Note a word."""
            self.ran.append(word)
            return "noted"

        def reply(request: LLMRequest) -> object:
            said = [m.text for m in request.messages if isinstance(m, UserMessage)]
            self.sent[name] = said
            noted = isinstance(request.messages[-1], ToolResultMessage)
            if said[-1].endswith("note") and not noted:
                return tool_call("note", word=said[-1])
            return text(f"answer to {said[-1]}")

        model = ScriptedProvider(reply, repeat=True)
        config = LoopConfig(history_tokens=None)
        return Agent(name, llm_provider=model, stores=stores, tools=[note], loop_config=config)

    async def say(self, agent: Agent, word: str) -> bool:
        """Run a turn; true if it ended in order."""
        name = agent.context_id
        try:
            turn = agent.execute_turn(word)
            await turn.accepted()
            acknowledged = self.after if self.promoted else self.before
            acknowledged.setdefault(name, []).append(word)
            (await turn).raise_for_outcome()
        except CommitsLost:
            self.told[name] = self.told.get(name, 0) + 1
        except (AgentBusy, Fenced, StoreUnavailable):
            pass
        except LooopyError as error:
            self.problems.append(f"{name}: a user was told: {error!r}")
        else:
            return True
        return False

    async def use(self, agent: Agent) -> None:
        """Run turns until it is over."""
        number = 0
        while not self.over.is_set():
            number += 1
            note = " note" if self.rng.random() < _TOOL else ""
            await self.say(agent, f"{agent.context_id}.{number}{note}")

    async def judge(self, stores: Stores, agent: Agent, *, may_lose: bool) -> int:
        """Look at one context at the end; the number of its lost messages."""
        name = agent.context_id
        try:
            await assert_whole(stores, name)
        except AssertionError as error:
            self.problems.append(f"{name}: it is not whole: {error}")
        messages = await stores.messages.list(name)
        said = [m.text for m in messages if isinstance(m, UserMessage)]
        if self.sent[name] != said:
            self.problems.append(f"{name}: the model was sent {self.sent[name]}, stored are {said}")
        twice = {word for word in said if said.count(word) > 1}
        twice |= {word for word in self.ran if self.ran.count(word) > 1}
        if twice:
            self.problems.append(f"{name}: twice: {twice}")
        lost = [word for word in self.before.get(name, ()) if word not in said]
        gone = [word for word in self.after.get(name, ()) if word not in said]
        if gone or (lost and not may_lose):
            self.problems.append(f"{name}: acknowledged and lost: {lost} {gone}")
        told = self.told.get(name, 0)
        if told > 1 or (lost and not told):
            self.problems.append(f"{name}: {len(lost)} lost, and told {told} times")
        return len(lost)


async def _fail_over(pair: Pair, driver: str, seed: int, *, synchronous: bool) -> tuple[Users, int]:
    rng = random.Random(seed)
    users = Users(rng)
    async with open_stores(as_driver(pair.url, driver)) as stores:
        names = [f"context-{n}" for n in range(_CONTEXTS)]
        agents = [users.agent(name, stores) for name in names]
        for agent in agents:
            await agent.start()
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(users.use(agent))
            await asyncio.sleep(rng.random() * _AT_WORK_S)
            if not synchronous:
                await asyncio.to_thread(pair.cut)
                late = users.agent("context-late", stores)  # the standby never sees it
                await late.start()
                await users.say(late, "late.0")
                agents.append(late)
                await asyncio.sleep(rng.random() * _BEHIND_S)
            await asyncio.to_thread(pair.fail_over)
            users.promoted = True
            users.over.set()
        for agent in agents:  # as of another process
            other = users.agent(agent.context_id, stores)
            await other.start()
            for n in range(rng.randrange(3)):
                await users.say(other, f"{agent.context_id}.other-{n}")
            await other.shutdown()
        lost = 0
        for agent in agents:
            for n in range(3):
                if await users.say(agent, f"{agent.context_id}.last-{n}"):
                    break
            else:
                users.problems.append(f"{agent.context_id}: it does not continue")
            lost += await users.judge(stores, agent, may_lose=not synchronous)
            await agent.shutdown()
    return users, lost


def _trial(name: str, driver: str, *, synchronous: bool, count: int, seed: int) -> Tally:
    tally = Tally(name)
    lost = told = acknowledged = 0
    for each in range(seed, seed + count):
        pair = Pair(synchronous=synchronous)
        try:
            users, gone = asyncio.run(_fail_over(pair, driver, each, synchronous=synchronous))
        finally:
            pair.remove()
        tally.runs += 1
        tally.missed += not (synchronous or gone)
        tally.violations += [f"seed {each}: {problem}" for problem in users.problems]
        lost += gone
        told += sum(users.told.values())
        acknowledged += sum(map(len, (*users.before.values(), *users.after.values())))
    tally.notes.append(f"{acknowledged} acknowledged, {lost} lost, in {told} contexts told")
    return tally


def _row(driver: str, *, synchronous: bool) -> Trial:
    name = f"failover {'with' if synchronous else 'without'} synchronous replication, {driver}"

    def made(count: int, seed: int) -> Tally:
        return _trial(name, driver, synchronous=synchronous, count=count, seed=seed)

    return Trial(name, 100, made)


TRIALS = [
    _row(driver, synchronous=synchronous) for synchronous in (False, True) for driver in DRIVERS
]
