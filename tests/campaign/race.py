"""
T5: processes that take turns on one context, and whether it looks as if there had been one.

Each process says its own texts, some in a row without waiting, some with a tool, and notes what it
is told. Afterwards the log has to be one line of whole turns: no number missing, none twice, no
turn of one inside that of another, nobody refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.life import FileLedger, Ledger
from tests.campaign.places import STORES, broken, place, run_together, wrong
from tests.campaign.trial import Tally, Trial
from tests.campaign.verdict import answer, judge
from tests.own_stores import opened

from looopy import Agent, LoopConfig, TurnStream, UserMessage, tool
from looopy.errors import LooopyError
from looopy.stores.bundle import Stores
from looopy.stores.sql import statements
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.request import LLMRequest

_WITH_TOOL = " (count)"


@tool(effects="external")
async def count(upto: int) -> int:
    """Count."""
    await asyncio.sleep(0)
    return upto


def reply(request: LLMRequest) -> Any:
    """Play the model: call a tool where the text asks for it, then answer."""
    last = request.messages[-1]
    said = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
    if isinstance(last, UserMessage) and said.endswith(_WITH_TOOL):
        return (text("one moment"), tool_call("count", upto=3))
    return text(answer(request.messages))


@dataclass(frozen=True)
class Part:
    """
    What one process does.

    Attributes:
        name: Begins each text it says, so that no two are the same.
        turns: How many it takes, over all of *contexts*.
        may_lose_turns: Whether a turn may be taken from it.
    """

    url: str
    contexts: Sequence[str]
    name: str
    turns: int
    seed: int
    ledger: Path
    may_lose_turns: bool = False
    lease_ttl_s: float = 10.0
    busy_timeout_s: float = 900.0
    delay_s: float = 0.0  # of the model, before each chunk


async def take_part(part: Part) -> None:
    """Take turns until all of them are taken."""
    async with contextlib.AsyncExitStack() as stack:
        own = part.url.startswith("own:")
        stores = await stack.enter_async_context(opened(part.url)) if own else part.url
        await _take_turns(part, stores)


async def _take_turns(part: Part, stores: Stores | str) -> None:
    rng = random.Random(part.seed)
    ledger = FileLedger(part.ledger)
    provider = ScriptedProvider(reply, chunk_chars=9, delay_s=part.delay_s)
    config = LoopConfig(
        max_messages=16, busy_timeout_s=part.busy_timeout_s, lease_ttl_s=part.lease_ttl_s
    )
    agents = [
        Agent(
            context_id,
            llm_provider=provider,
            tools=[count],
            stores=stores,
            loop_config=config,
            on_busy="wait",
        )
        for context_id in part.contexts
    ]
    for agent in agents:
        await agent.start()
    taken = 0
    while taken < part.turns:
        row = min(rng.choice((1, 1, 1, 2, 3)), part.turns - taken)
        async with asyncio.TaskGroup() as group:
            for _ in range(row):  # more than one: none waits for the one before
                taken += 1
                said = f"{part.name}-{taken}{_WITH_TOOL if rng.random() < 0.2 else ''}"
                agent = rng.choice(agents)
                ledger.write("asked", said=said, context=agent.context_id)
                view = agent.execute_turn(said)
                group.create_task(_follow(view, said, agent.context_id, ledger, rng.random()))
        provider.requests.clear()
        provider.options.clear()
    for agent in agents:
        await agent.shutdown()


async def _follow(
    view: TurnStream, said: str, context_id: str, ledger: Ledger, chance: float
) -> None:
    """Note what the caller of a turn is told."""
    told: dict[str, Any] = {"said": said, "context": context_id}
    try:
        turn = await view.accepted()
        ledger.write("ack", turn=turn, **told)
        if chance < 0.3:
            shown = [event.seq async for event in view if event.seq is not None]
            ledger.write("ack", turn=turn, shown=shown, **told)
        result = await view
    except LooopyError as error:
        ledger.write("error", error=type(error).__name__, words=str(error), **told)
    else:
        ledger.write("done", turn=result.turn, outcome=result.outcome.value, **told)


def race(
    tally: Tally,
    url: str,
    *,
    processes: int,
    contexts: int,
    turns: int,
    seed: int,
    wrap: Callable[[Callable[[], None]], Callable[[], None]] = lambda body: body,
    beside: Callable[[], None] | None = None,
    **options: Any,
) -> None:
    """
    Let *processes* take *turns* turns between them, and judge what is left.

    Args:
        wrap: Given what a process does, what it does instead.
        beside: What one more process does meanwhile.
        options: Of each `Part`.
    """
    names = [f"c{n}" for n in range(contexts)]
    with tempfile.TemporaryDirectory(prefix="looopy-race-") as kept:
        folder = Path(kept)
        shares = [turns // processes + (n < turns % processes) for n in range(processes)]
        parts = [
            Part(
                url,
                names,
                f"p{n}",
                share,
                seed * 1000 + n,
                folder / f"ledger-{n}",
                **options,
            )
            for n, share in enumerate(shares)
        ]
        bodies = [wrap(partial(_begin, part)) for part in parts]
        if beside is not None:
            bodies.append(beside)
        started = time.monotonic()
        problems = run_together(bodies, folder, patience_s=60 + turns * 0.2)
        took = time.monotonic() - started
        ledgers = [part.ledger for part in parts]
        for context_id in names:
            problems += judge(
                url,
                context_id,
                ledgers,
                folder,
                may_lose_turns=options.get("may_lose_turns", False),
            )
    tally.runs += turns
    tally.notes.append(f"{turns / took:.0f} turns/s")
    tally.violations += [f"seed {seed}, {turns} turns: {problem}" for problem in problems]


def _begin(part: Part) -> None:
    asyncio.run(take_part(part))


def _trial(store: str, processes: int, contexts: int, full: int) -> Trial:
    name = f"{processes} processes, {contexts} context{'s' * (contexts > 1)}, {store}"

    def run(turns: int, seed: int) -> Tally:
        tally = Tally(name)
        with place(store) as url:
            race(tally, url, processes=processes, contexts=contexts, turns=turns, seed=seed)
        return tally

    return Trial(name, full, run)


TRIALS = [
    trial
    for store in STORES
    for trial in (_trial(store, 2, 1, 10_000), _trial(store, 8, 3, 16_000))
] + [_trial("own table", 2, 1, 1_000), _trial("own table", 8, 3, 2_000)]

# Whatever stands between two turns is left out.
WRONG = [
    wrong(
        TRIALS[0],
        "claims that do not look",
        lambda: broken(
            statements,
            "CLAIM",
            lambda claim: re.sub(
                r"WHERE .* RETURNING",
                "WHERE tenant_id = :tenant AND context_id = :context RETURNING",
                claim,
            ),
        ),
    )
]
