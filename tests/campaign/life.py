"""
One life of a process that is going to be killed, and the check of what it left behind.

A life runs scripted turns on one context and writes down what it was told, see `oracle`. After the
kill, `examine` opens the context through the public interface, as any next process would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.campaign.oracle import (
    ARTIFACT,
    Line,
    comparable,
    compare,
    invalid_history,
    log_is_whole,
    posts_are_said,
    saves_agree,
)
from tests.own_stores import opened

from looopy import (
    Agent,
    AssistantMessage,
    LoopConfig,
    Outcome,
    ToolContext,
    UserMessage,
    tool,
)
from looopy._failpoints import arm
from looopy.stores.bundle import Stores
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.request import LLMRequest

# What a user asks for: groups of calls, one group a model answer. e: external, i: idempotent, n: no
# effects, a: external and asked about, x: fails, s: saves an artifact.
PLANS = ("", "e", "i", "n", "e|i", "ei", "eni|e", "a", "a|e", "xe", "ia|n", "s", "se|s")
_ADDED = ("", "e", "i|s")  # what a message of the inbox asks for

_RESTARTS = 3
_INTERJECTED = 0.01  # of the events of a turn, deltas too
_NAMED = 0.5  # of the messages: those that are sent with an idempotency key
_LONGEST_STEP_S = 0.004


class Ledger(Protocol):
    """Where it is written down what was told and done."""

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        ...


class FileLedger:
    """
    Lines that survive any kill of the process: one write each, appended by the kernel.

    A kill may cut a long write short. What was cut is no line, and nobody was told of it; it ends
    where the next line begins.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        os.write(self._fd, ("\n" + json.dumps({"kind": kind, **facts}) + "\n").encode())


@dataclass(frozen=True)
class Life:
    """
    How a process lives.

    Attributes:
        url: Of a database at the head.
        failpoint: Where it kills itself; `None`: it is killed from outside.
        save_at_end: Keep each turn in memory and store it when it is over: the wrong order, which
            the campaign has to find out.
    """

    url: str
    context_id: str
    ledger: Path
    seed: int
    turns: int = 10
    failpoint: str | None = None
    save_at_end: bool = False


def make_tools(ledger: Ledger, rng: random.Random) -> Sequence[Any]:
    """One tool for each way to have an effect; all of them write it down."""

    async def act(context: ToolContext) -> str:
        await asyncio.sleep(rng.random() * _LONGEST_STEP_S)
        ledger.write("effect", key=context.idempotency_key)
        await asyncio.sleep(rng.random() * _LONGEST_STEP_S)
        return f"did {context.tool_call_id}"

    @tool(effects="external")
    async def e(context: ToolContext) -> str:
        """Have an effect that must not be repeated."""
        return await act(context)

    @tool(effects="external", on_resume="ask")
    async def a(context: ToolContext) -> str:
        """Have an effect that is repeated only when somebody says so."""
        return await act(context)

    @tool(effects="idempotent")
    async def i(context: ToolContext) -> str:
        """Have an effect that may be repeated."""
        return await act(context)

    @tool(effects="none")
    async def n() -> str:
        """Look."""
        await asyncio.sleep(rng.random() * _LONGEST_STEP_S)
        return "looked"

    @tool(effects="external")
    async def x(context: ToolContext) -> str:
        """Have an effect and fail."""
        await act(context)
        raise ValueError("failed on purpose")

    @tool(effects="external")
    async def s(context: ToolContext) -> str:
        """Save an artifact."""
        await act(context)
        saved = await context.artifacts.save(ARTIFACT, context.idempotency_key)
        ledger.write("saved", version=saved.version, content=context.idempotency_key)
        return f"saved version {saved.version}"

    return [e, a, i, n, x, s]


def answer(request: LLMRequest, ledger: Ledger) -> Any:
    """Play the model: follow the plan in the last user message, note an invalid history."""
    for problem in invalid_history(request.messages):
        ledger.write("invalid", problem=problem)
    asked = max(i for i, m in enumerate(request.messages) if isinstance(m, UserMessage))
    user = request.messages[asked]
    groups = [g for g in user.text.partition("plan=")[2].split("|") if g]
    done = sum(isinstance(m, AssistantMessage) for m in request.messages[asked + 1 :])
    if done >= len(groups):
        return text(f"answer to {user.text}")
    return (text("let me see"), *(tool_call(name) for name in groups[done]))


def what_next(agent: Agent, name: str, rng: random.Random) -> tuple[str | None, dict[str, bool]]:
    """What a user does now: a new message that begins with *name*, or answers, or goes on."""
    state = agent.state
    said = f"{name} plan={rng.choice(PLANS)}"
    if state.pending:
        if rng.random() < 0.8:
            return None, {p.request_id: rng.random() < 0.5 for p in state.pending}
    elif state.interrupted_turn is not None and rng.random() < 0.7:
        return None, {}
    return said, {}


def _agent(life: Life, ledger: Ledger, stores: Stores | str) -> Agent:
    """The agent of a life; the same in each."""
    return Agent(
        life.context_id,
        llm_provider=ScriptedProvider(lambda request: answer(request, ledger), chunk_chars=6),
        tools=make_tools(ledger, random.Random(life.seed)),
        stores=stores,
        loop_config=LoopConfig(max_tool_failures=50),
        auto_save=not life.save_at_end,
    )


Interject = Callable[[], Awaitable[None]]
"""Says something to the turn that runs."""


async def take_turn(
    agent: Agent,
    ledger: Ledger,
    said: str | None,
    inputs: dict[str, bool],
    *,
    key: str | None = None,
    interject: Interject | None = None,
) -> Outcome:
    """Run a turn and write down what was seen of it; *interject* is called at every event."""
    stream = agent.execute_turn(said, inputs=inputs, idempotency_key=key)
    async for event in stream:
        if event.type == "turn_start" and said is not None:
            ledger.write("ack", said=said)
        if event.seq is not None:
            ledger.write("event", seq=event.seq, event=comparable(event))
        if interject is not None:
            await interject()
    return (await stream).outcome


def interjecting(agent: Agent, ledger: Ledger, name: str, rng: random.Random) -> Interject:
    """Now and then, steer the turn or queue a follow-up."""
    numbers = itertools.count()

    async def interject() -> None:
        if rng.random() >= _INTERJECTED:
            return
        said = f"{name}+{next(numbers)} plan={rng.choice(_ADDED)}"
        await rng.choice((agent.steer, agent.follow_up))(said)
        ledger.write("posted", said=said)

    return interject


async def live(life: Life) -> None:
    """Go on from what is there, then say new things until killed or done."""
    async with contextlib.AsyncExitStack() as stack:
        own = life.url.startswith("own:")
        await _live(life, await stack.enter_async_context(opened(life.url)) if own else life.url)


async def _live(life: Life, stores: Stores | str) -> None:
    ledger = FileLedger(life.ledger)
    rng = random.Random(life.seed)
    again = _unanswered(_read(life.ledger))
    agent = _agent(life, ledger, stores)
    await agent.start()
    ledger.write("started", status=agent.state.status.value)
    if again is not None:  # as a client does that was not told what became of its request
        await take_turn(agent, ledger, again, {}, key=again)
        ledger.write("answered", said=again)
    for number in range(life.turns):
        name = f"{life.seed}-{number}"
        said, inputs = what_next(agent, name, rng)
        if life.save_at_end:
            await agent.execute_turn(said, inputs=inputs).accepted()
            ledger.write("ack", said=said)
            await agent.wait_for_idle()
            await agent.save_state()
            continue
        key = said if said is not None and rng.random() < _NAMED else None
        if key is not None:
            ledger.write("asked", said=said)
        interject = interjecting(agent, ledger, name, rng)
        await take_turn(agent, ledger, said, inputs, key=key, interject=interject)
        ledger.write("answered", said=said)
    await agent.shutdown()
    ledger.write("done")


def _unanswered(lines: Sequence[Line]) -> str | None:
    """The request with a key that a life died over, if it did."""
    last: Line = next((x for x in reversed(lines) if x["kind"] in ("asked", "answered")), {})
    return last["said"] if last.get("kind") == "asked" else None


@cache
def warm_up() -> None:
    """Live once in memory, here: what is loaded and built at first use, no child has to."""
    asyncio.run(live(Life("memory:", "warm", Path(os.devnull), 7)))


def begin(life: Life) -> None:
    """Body of the child process."""
    arm(life.failpoint)
    asyncio.run(live(life))


# --- afterwards ----------------------------------------------------------------------------------


async def examine(life: Life) -> list[str]:
    """Open what a killed life left, as the next process would, and say what is wrong with it."""
    lines = _read(life.ledger)
    problems = []
    async with opened(life.url) as stores, opened(life.url) as theirs:
        own = life.url.startswith("own:")
        agent = _agent(life, FileLedger(life.ledger), theirs if own else life.url)
        for _ in range(_RESTARTS):
            await agent.start()
            record = await stores.state.load(life.context_id)
            if record is None or record.open_turn is None:
                break
            # What the dead had sent may reach a server after the start: it is ended by the next.
            await agent.shutdown()
        else:
            problems.append("a turn stays open, however often somebody starts")
            await agent.start()
        if agent.state.status not in ("ready", "waiting"):
            problems.append(f"the restart left the agent {agent.state.status}")
        messages = await agent.get_messages()
        events = await stores.journal.events(life.context_id)
        waits = bool(agent.state.pending or agent.state.interrupted_turn)
        problems += compare(life.context_id, lines, messages, events, pending=waits)
        if agent.state.turn_count != sum(e.type == "turn_start" for e in events):
            problems.append("turn_count differs from the turns of the log")
        result = await agent.execute_turn("afterwards plan=e")
        if result.outcome is not Outcome.COMPLETED:
            problems.append(f"the next turn ended as {result.outcome}")
        messages = await agent.get_messages()
        problems += log_is_whole(messages, pending=False)
        problems += posts_are_said(lines, messages)
        problems += await saves_agree(life.context_id, lines, stores)
        await agent.shutdown()
    later = _read(life.ledger)[len(lines) :]
    return problems + [f"afterwards: {x['problem']}" for x in later if x["kind"] == "invalid"]


def _read(ledger: Path) -> list[Line]:
    lines = []
    for line in ledger.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # empty, or cut
            lines.append(json.loads(line))
    return lines
