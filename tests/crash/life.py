"""
One life of a process that is going to be killed, and the check of what it left behind.

A life runs scripted turns on one context and writes to a ledger, a plain file outside of what is
tested, what it was told: `ack` when a user message was accepted, `event` for every numbered event
it was shown, `effect` for everything a tool did. After the kill, `examine` opens the context
through the public API, as any next process would, and compares.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.property.strict import check_anthropic, check_openai

from looopy import (
    Agent,
    AgentEvent,
    AssistantMessage,
    LoopConfig,
    Message,
    Outcome,
    ToolContext,
    ToolResultMessage,
    UserMessage,
    event_to_json,
    open_stores,
    tool,
)
from looopy._failpoints import arm
from looopy.llm.render import render
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.request import LLMRequest

CONTEXT = "life"
# What a user asks for: groups of calls, one group a model answer. e: external, i: idempotent, n: no
# effects, a: external and asked about, x: fails.
PLANS = ("", "e", "i", "n", "e|i", "ei", "eni|e", "a", "a|e", "xe", "ia|n")


class Ledger:
    """Lines that survive any kill of the process: one write each, appended by the kernel."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, **facts: Any) -> None:
        os.write(self._fd, (json.dumps({"kind": kind, **facts}) + "\n").encode())


@dataclass(frozen=True)
class Life:
    """
    How a process lives.

    Attributes:
        failpoint: Where it kills itself; `None`: it is killed from outside.
        save_at_end: Keep each turn in memory and store it when it is over: the wrong order, which
            the campaign has to find out.
    """

    database: Path
    ledger: Path
    seed: int
    turns: int = 10
    failpoint: str | None = None
    save_at_end: bool = False


def make_agent(life: Life, ledger: Ledger, provider: ScriptedProvider) -> Agent:
    """The agent of a life; the same in each."""
    rng = random.Random(life.seed)

    async def act(context: ToolContext) -> str:
        await asyncio.sleep(rng.random() * 0.004)
        ledger.write("effect", key=context.idempotency_key)
        await asyncio.sleep(rng.random() * 0.004)
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
        await asyncio.sleep(rng.random() * 0.004)
        return "looked"

    @tool(effects="external")
    async def x(context: ToolContext) -> str:
        """Have an effect and fail."""
        await act(context)
        raise ValueError("failed on purpose")

    return Agent(
        CONTEXT,
        llm_provider=provider,
        tools=[e, a, i, n, x],
        stores=f"sqlite:///{life.database}",
        loop_config=LoopConfig(max_tool_failures=50),
        auto_save=not life.save_at_end,
    )


def answer(request: LLMRequest, ledger: Ledger) -> Any:
    """Play the model: follow the plan in the last user message, note an invalid history."""
    for problem in check(request.messages):
        ledger.write("invalid", problem=problem)
    asked = max(i for i, m in enumerate(request.messages) if isinstance(m, UserMessage))
    user = request.messages[asked]
    groups = [g for g in user.text.partition("plan=")[2].split("|") if g]
    done = sum(isinstance(m, AssistantMessage) for m in request.messages[asked + 1 :])
    if done >= len(groups):
        return text(f"answer to {user.text}")
    return (text("let me see"), *(tool_call(name) for name in groups[done]))


def check(messages: Sequence[Message]) -> list[str]:
    """What the strictest providers would say, each to what it would be sent."""
    return [
        *check_openai(render(messages, provider="openai")),
        *check_anthropic(render(messages, provider="anthropic")),
    ]


async def live(life: Life) -> None:
    """Go on from what is there, then say new things until killed or done."""
    ledger = Ledger(life.ledger)
    rng = random.Random(life.seed)
    provider = ScriptedProvider(lambda request: answer(request, ledger), chunk_chars=6)
    agent = make_agent(life, ledger, provider)
    await agent.start()
    ledger.write("started", status=agent.state.status.value)
    for number in range(life.turns):
        state = agent.state
        said: str | None = f"{life.seed}-{number} plan={rng.choice(PLANS)}"
        inputs = None
        if state.pending:
            if rng.random() < 0.8:
                said, inputs = None, {p.request_id: rng.random() < 0.5 for p in state.pending}
        elif state.interrupted_turn is not None and rng.random() < 0.7:
            said = None
        stream = agent.execute_turn(said, inputs=inputs)
        if life.save_at_end:
            await stream.accepted()
            ledger.write("ack", said=said)
        async for event in stream:
            if event.type == "turn_start" and said is not None and not life.save_at_end:
                ledger.write("ack", said=said)
            if event.seq is not None:
                ledger.write("event", seq=event.seq, event=comparable(event))
        if life.save_at_end:
            await agent.save_state()
    await agent.shutdown()
    ledger.write("done")


def comparable(event: AgentEvent) -> dict[str, Any]:
    """An event as it must be read back: all of it, durations to the microsecond."""
    data = json.loads(json.dumps(event_to_json(event)), parse_float=lambda s: round(float(s), 6))
    if event.type == "turn_end":
        del data["iteration"]  # of no meaning there: the turn is over
    return data


def begin(life: Life) -> None:
    """Body of the child process."""
    arm(life.failpoint)
    asyncio.run(live(life))


# --- afterwards ----------------------------------------------------------------------------------


async def examine(life: Life) -> list[str]:
    """Open what a killed life left, as the next process would, and say what is wrong with it."""
    ledger = Ledger(life.ledger)
    lines = [json.loads(line) for line in life.ledger.read_text().splitlines()]
    problems = [f"a request was invalid: {x['problem']}" for x in lines if x["kind"] == "invalid"]
    provider = ScriptedProvider(lambda request: answer(request, ledger))
    agent = make_agent(Life(life.database, life.ledger, life.seed), ledger, provider)
    await agent.start()
    if agent.state.status not in ("ready", "waiting"):
        problems.append(f"the restart left the agent {agent.state.status}")
    messages = await agent.get_messages()
    said = Counter(m.text for m in messages if isinstance(m, UserMessage))
    for line in lines:
        if line["kind"] == "ack" and line["said"] is not None and said[line["said"]] != 1:
            times = said[line["said"]]
            problems.append(f"acknowledged message {line['said']!r} is there {times} times")
    async with open_stores(f"sqlite:///{life.database}") as stores:
        events = await stores.journal.events(CONTEXT)
    problems += _events_agree(lines, events)
    problems += _effects_agree(lines, messages, events)
    problems += [f"history: {p}" for p in check(messages)]
    waits = bool(agent.state.pending or agent.state.interrupted_turn)
    problems += _log_is_whole(messages, pending=waits)
    if agent.state.turn_count != sum(e.type == "turn_start" for e in events):
        problems.append("turn_count differs from the turns of the log")
    result = await agent.execute_turn("afterwards plan=e")
    if result.outcome is not Outcome.COMPLETED:
        problems.append(f"the next turn ended as {result.outcome}")
    messages = await agent.get_messages()
    problems += _log_is_whole(messages, pending=False)
    await agent.shutdown()
    later = [json.loads(line) for line in life.ledger.read_text().splitlines()[len(lines) :]]
    return problems + [f"afterwards: {x['problem']}" for x in later if x["kind"] == "invalid"]


def _events_agree(lines: list[dict[str, Any]], events: list[AgentEvent]) -> list[str]:
    problems = []
    if [e.seq for e in events] != list(range(1, len(events) + 1)):
        problems.append("the log's numbers have gaps or repeat")
    shown = {line["seq"]: line["event"] for line in lines if line["kind"] == "event"}
    for seq, event in shown.items():
        if seq > len(events):
            problems.append(f"event {seq} was shown and is not stored")
        elif comparable(events[seq - 1]) != event:
            now = comparable(events[seq - 1])
            problems.append(f"event {seq} was shown as {event}, is now {now}")
    open_turn = None
    for event in events:
        if event.type == "turn_start":
            if open_turn is not None:
                problems.append(f"turn {open_turn} has no end")
            open_turn = event.turn
        elif event.type == "turn_end":
            if open_turn != event.turn:
                problems.append(f"turn {event.turn} ends twice or out of order")
            open_turn = None
    if open_turn is not None:
        problems.append(f"turn {open_turn} has no end")
    return problems


def _effects_agree(
    lines: list[dict[str, Any]], messages: list[Message], events: list[AgentEvent]
) -> list[str]:
    """No effect after its result was shown, none of an external tool twice without a yes."""
    problems = []
    effects: Counter[str] = Counter()
    names: dict[str, str] = {}
    for message, turn in _with_turns(events):
        if isinstance(message, AssistantMessage):
            names |= {f"{CONTEXT}/{turn}/{c.id}": c.name for c in message.tool_calls}
    finished: set[str] = set()
    for line in lines:
        if line["kind"] == "effect":
            key = line["key"]
            effects[key] += 1
            if key in finished:
                problems.append(f"{key} ran again after its result was shown")
            if names.get(key) in ("e", "x") and effects[key] > 1:
                problems.append(f"external {key} ran {effects[key]} times")
            if key not in names:
                problems.append(f"{key} ran without a stored intent")
        elif line["kind"] == "event" and line["event"]["type"] == "tool_execution_end":
            finished.add(f"{CONTEXT}/{line['event']['turn']}/{line['event']['tool_call_id']}")
    return problems


def _with_turns(events: list[AgentEvent]) -> list[tuple[Message, int]]:
    return [(e.message, e.turn) for e in events if e.type == "message_end"]


def _log_is_whole(messages: list[Message], *, pending: bool) -> list[str]:
    """Each announced call has exactly one result, save those that wait to be continued."""
    problems = []
    announced: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            problems += [f"call {c} has no result" for c in announced]
            announced = [c.id for c in message.tool_calls]
        elif isinstance(message, ToolResultMessage):
            if message.tool_call_id in announced:
                announced.remove(message.tool_call_id)
            else:
                problems.append(f"result of {message.tool_call_id} without its call")
    if announced and not pending:
        problems += [f"call {c} has no result" for c in announced]
    return problems
