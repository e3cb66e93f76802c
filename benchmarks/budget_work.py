"""
One piece of work that has a budget, measured in this process, its figures printed as JSON.

`benchmarks.budgets` runs it with a fixed hash seed, so that sets have one order.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType

from benchmarks.counting import Steps, loops

Work = Callable[[int], Awaitable[None]]
TURNS = 20
STORED = 2000
DELTAS = 500


def import_steps() -> int:
    """The steps of `from looopy import Agent, open_stores`, compiled already."""
    steps = Steps()
    steps.start()
    from looopy import Agent, open_stores  # noqa: F401

    return steps.stop()


async def measure(name: str, url: str, steps: Steps | None = None) -> float:
    """
    Steps or loops of one unit of *name*: a turn, a delta, a context that is opened.

    Args:
        name: A key of `budgets.WORK`, with its backend left out.
        url: The stores.
        steps: Counted with this, rather than loops.
    """
    from benchmarks.subjects import Looopy, OverHTTP
    from benchmarks.workload import jwt, question

    subject = (OverHTTP if name == "http turn" else Looopy)(url)
    await subject.open()
    model = subject.model
    model.calls_tool = name == "tool turn"
    if name in ("resume", "late turn"):
        await subject.fill("old", STORED)
        await subject.agent("old")

    async def turns(number: int) -> None:
        for turn in range(TURNS):
            await subject.turn(f"{name} {number}".replace(" ", "-"), question(turn))

    async def with_jwt(number: int) -> None:
        for turn in range(TURNS):
            subject.credentials = {"token": tokens.pop()}
            await subject.turn(f"jwt-{number}", question(turn))

    async def late(number: int) -> None:
        for turn in range(TURNS):
            await subject.turn("old", question(turn))

    async def deltas(number: int) -> None:
        model.deltas = DELTAS
        await subject.stream(f"deltas-{number}", question(0))

    async def resume(number: int) -> None:
        subject.forget("old")
        await subject.agent("old")
        await subject.turn("old", question(number))

    works: dict[str, tuple[Work, int, int]] = {
        "text turn": (turns, TURNS, 20),
        "tool turn": (turns, TURNS, 12),
        "jwt turn": (with_jwt, TURNS, 20),
        "http turn": (with_jwt, TURNS, 12),
        "late turn": (late, TURNS, 12),
        "delta": (deltas, DELTAS, 20),
        "resume": (resume, 1, 10),
    }
    work, units, rounds = works[name]
    tokens = [jwt(number) for number in range((rounds + 2) * TURNS)] if work is with_jwt else []
    if steps is None:
        found = await loops(work, rounds=rounds)
    else:
        for number in range(2):
            await work(number)
        steps.start()
        await work(2)
        found = steps.stop()
        steps.end()
    await subject.close()
    return found / units


def by_area(places: Counter[CodeType]) -> dict[str, int]:
    """Steps by module of looopy, and by what else took them."""
    areas: Counter[str] = Counter()
    for code, count in places.items():
        path = Path(code.co_filename).as_posix()
        if "/looopy/" in path:
            area = "looopy/" + path.rpartition("/looopy/")[2]
        elif "/benchmarks/" in path:
            area = "the model and the tool of the benchmark"
        elif "/asyncio/" in path or path.endswith("/selectors.py"):
            area = "the event loop"
        elif path == "<string>":
            area = "making objects"
        else:
            area = "the rest of the standard library, and packages"
        areas[area] += count
    return dict(areas.most_common())


def main() -> None:
    """`python -m benchmarks.budget_work NAME BACKEND steps|loops|shares`."""
    name, backend, kind = sys.argv[1:]
    if name == "import":
        print(json.dumps(import_steps()))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = "memory:" if backend == "memory" else f"sqlite:///{Path(folder) / 'budget.db'}"
        steps = None if kind == "loops" else Steps()
        found = asyncio.run(measure(name, url, steps))
        print(json.dumps(found if kind != "shares" or steps is None else by_area(steps.places)))


if __name__ == "__main__":
    main()
