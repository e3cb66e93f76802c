"""
What must hold of a context that several processes wrote to, told from what each of them was told.

The ledgers are kept outside of what is tested: `asked` before a message is said, `ack` when it was
accepted, `shown` for the numbers of the events that a caller saw, `done` for a result, `error` for
what was raised. The store is read once more by a process that took no part, through the public
journal and, for the epochs, beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

from tests.campaign.places import lines_of, rows_of
from tests.own_stores import opened

from looopy import (
    AgentEvent,
    AssistantMessage,
    Message,
    MessageEnd,
    Outcome,
    ToolResultMessage,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from looopy.testing.children import run

_EPOCHS = "SELECT turn, epoch FROM looopy_turns WHERE context_id = ? ORDER BY turn"


def answer_to(said: str, before: str) -> str:
    """What the model of the trials ends a turn with: it names what was said in the turn before."""
    return f"answer to {said}, after {before}"


def answer(messages: Sequence[Message]) -> str:
    """The same, from what the model was sent."""
    said = [m.text for m in messages if isinstance(m, UserMessage)]
    return answer_to(said[-1], said[-2] if len(said) > 1 else "")


def judge(
    url: str, context_id: str, ledgers: Sequence[Path], folder: Path, *, may_lose_turns: bool
) -> list[str]:
    """
    What is wrong with a context, looked at in a process of its own.

    Args:
        may_lose_turns: Whether a turn may have been taken from its owner, and ended `interrupted`:
            where clocks jump or processes are stopped.
    """
    report = folder / f"report-{context_id}.json"
    lines = [line for path in ledgers for line in lines_of(path)]
    mine = [line for line in lines if line.get("context") == context_id]

    async def look() -> None:
        found = await _look(url, context_id, mine, may_lose_turns=may_lose_turns)
        report.write_text(json.dumps(found))

    try:
        run(lambda: asyncio.run(look()), folder / "log-judge")
    except RuntimeError as error:
        return [f"{context_id}: it could not be read: {str(error)[-1500:]}"]
    problems: list[str] = json.loads(report.read_text())
    return [f"{context_id}: {problem}" for problem in problems]


async def _look(
    url: str, context_id: str, lines: Sequence[Mapping[str, Any]], *, may_lose_turns: bool
) -> list[str]:
    async with opened(url) as stores:
        record = await stores.state.load(context_id)
        if record is None:
            return ["it is not there"] if lines else []  # few turns may leave a context out
        events = await stores.journal.events(context_id)
        records = await stores.messages.records(context_id)
    problems = []
    if record.open_turn is not None or record.holder is not None:
        problems.append(f"turn {record.open_turn} is open, held by {record.holder}")
    numbers = [event.seq for event in events]
    if numbers != list(range(1, record.last_seq + 1)):
        problems.append(f"events are not 1..{record.last_seq}: {_gap(numbers)}")
    positions = [r.position for r in records]
    if positions != list(range(1, record.last_position + 1)):
        problems.append(f"messages are not 1..{record.last_position}: {_gap(positions)}")
    ended = [(e.message, e.turn, e.seq) for e in events if isinstance(e, MessageEnd)]
    if ended != [(r.message, r.turn, r.seq) for r in records]:
        problems.append("the log and the messages differ")
    turns: defaultdict[int, list[AgentEvent]] = defaultdict(list)
    for event in events:
        turns[event.turn].append(event)
    if [e.turn for e in events] != sorted(e.turn for e in events):
        problems.append("the events of a turn are not together")
    if sorted(turns) != list(range(1, record.turn_count + 1)):
        problems.append(f"turns are not 1..{record.turn_count}")
    said = {number: _said(own) for number, own in turns.items()}
    for number, own in turns.items():
        before = said.get(number - 1, "")
        problems += _turn(number, own, before, may_lose_turns=may_lose_turns)
    if not url.startswith("own:"):
        noted = await asyncio.to_thread(rows_of, url, _EPOCHS, context_id)
        problems += _epochs(noted, record.epoch)
    problems += _told(said, turns, lines, may_lose_turns=may_lose_turns)
    return problems


def _said(events: Sequence[AgentEvent]) -> str:
    """What the user said in a turn; nothing where the turn has no user."""
    messages = (e.message for e in events if isinstance(e, MessageEnd))
    return next((m.text for m in messages if isinstance(m, UserMessage)), "")


def _gap(numbers: Sequence[int | None]) -> str:
    wrong = (f"{n} at {i}" for i, n in enumerate(numbers, 1) if n != i)
    return next(wrong, f"{len(numbers)} of them")


def _epochs(rows: Sequence[tuple[Any, ...]], last: int) -> list[str]:
    """Each turn was claimed under a higher epoch than the one before."""
    epochs = [int(epoch) for _, epoch in rows]
    rising = all(a < b for a, b in zip(epochs, [*epochs[1:], last + 1], strict=True))
    return [] if rising else [f"epochs do not rise: {epochs[:20]} ... {last}"]


def _turn(
    number: int, events: Sequence[AgentEvent], before: str, *, may_lose_turns: bool
) -> list[str]:
    """One turn is whole: a start, what was said, an answer to it that knows the turn before."""
    first, last = events[0], events[-1]
    starts = sum(isinstance(e, TurnStart) for e in events)
    ends = sum(isinstance(e, TurnEnd) for e in events)
    if not isinstance(first, TurnStart) or not isinstance(last, TurnEnd) or starts + ends != 2:
        return [f"turn {number} has {starts} starts and {ends} ends: {[e.type for e in events]}"]
    messages = [e.message for e in events if isinstance(e, MessageEnd)]
    if list(last.messages) != messages:
        return [f"turn {number} does not end with what it said"]
    if may_lose_turns:  # calls that the turn before left open are answered first
        messages = list(dropwhile(lambda m: isinstance(m, ToolResultMessage), messages))
    if not messages or not isinstance(messages[0], UserMessage):
        return [f"turn {number} does not begin with a user"]
    if any(isinstance(message, UserMessage) for message in messages[1:]):
        return [f"turn {number} has two users"]
    if last.outcome is not Outcome.COMPLETED:
        lost = may_lose_turns and last.outcome is Outcome.INTERRUPTED
        return [] if lost else [f"turn {number} ended as {last.outcome.value}"]
    calls = [c.id for m in messages if isinstance(m, AssistantMessage) for c in m.tool_calls]
    results = [m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)]
    final = messages[-1]
    if calls != results or not isinstance(final, AssistantMessage):
        return [f"turn {number} is not whole: {[m.role for m in messages]}"]
    expected = answer_to(messages[0].text, before)
    return [] if final.text == expected else [f"turn {number} says {final.text!r}, not {expected}"]


def _told(
    stored: Mapping[int, str],
    turns: Mapping[int, Sequence[AgentEvent]],
    lines: Sequence[Mapping[str, Any]],
    *,
    may_lose_turns: bool,
) -> list[str]:
    """Everything that was told to a caller is there, once, and nothing that nobody asked for."""
    asked = Counter(line["said"] for line in lines if line["kind"] == "asked")
    problems = [f"{said!r} is there {n} times" for said, n in _more(stored.values(), asked)]
    told: set[str] = set()
    for line in lines:
        kind, said = line["kind"], line.get("said")
        if kind == "error" and not (may_lose_turns and line["error"] == "Fenced"):
            problems.append(f"{said!r} raised {line['error']}: {line['words']}")
        if kind not in ("ack", "done"):
            continue
        told.add(str(said))
        if stored.get(line["turn"]) != said:
            problems.append(f"{said!r}, told to be turn {line['turn']}, is not there")
            continue
        events = turns[line["turn"]]
        last = events[-1]
        if kind == "done" and isinstance(last, TurnEnd) and last.outcome != line["outcome"]:
            problems.append(f"turn {line['turn']} is {last.outcome}, told {line['outcome']}")
        if "shown" in line and line["shown"] != [e.seq for e in events]:
            problems.append(f"turn {line['turn']} showed {line['shown']}")
    silent = set(asked) - told
    if silent and not may_lose_turns:
        problems.append(f"nothing was told of {sorted(silent)[:5]}")
    return problems


def _more(stored: Any, asked: Counter[str]) -> list[tuple[str, int]]:
    """Texts that are stored more often than they were said."""
    found = Counter(stored)
    return [(said, n) for said, n in found.items() if n > asked[said]]
