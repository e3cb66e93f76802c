"""
Cancel a turn wherever it waits, in every way in which one can be cancelled (T4).

The suspensions of a turn are counted in a run without harm: those of its own task, of the caller's,
and of every task made for either, down to each answer that a driver waits for. Then the turn is run
again for each of them, and stopped there. Afterwards everything that was shown is stored, the turn
has ended or is ended by whoever opens the context next, and nothing is left over: no task, thread,
file or connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import anyio
from tests.campaign.trial import Tally, Trial
from tests.campaign.worlds import (
    BOUND_S,
    KINDS,
    Place,
    Watch,
    World,
    database,
    examined,
    in_turns,
)

from looopy.errors import LooopyError
from looopy.testing import text, tool_call
from looopy.types.result import TurnResult
from looopy.types.state import AgentStatus, Outcome


@dataclass(frozen=True)
class Scene:
    """A turn: what is said (`None` continues), what the model answers, what was before."""

    name: str
    said: str | None
    replies: Sequence[Any]
    before: Callable[[World], Awaitable[None]] | None = None


SCENES = (
    Scene("text", "go", (text("here is an answer"),)),
    Scene(
        "tools",
        "go",
        ((text("let me see"), tool_call("act"), tool_call("look")), text("all done")),
    ),
    Scene("artifacts", "go", (tool_call("draw"), text("drawn"))),
    Scene("continuing", None, (text("went on"),), lambda world: world.dead_turn("look")),
)


class Life:
    """A turn of one agent, with a caller who awaits it; what can be cancelled about it."""

    def __init__(self, world: World, scene: Scene) -> None:
        self.world = world
        self.scene = scene
        self.agent = world.agent(scene.replies)
        self.result: TurnResult | None = None
        self.error: BaseException | None = None
        self.scope = anyio.CancelScope()
        self._stream: Any = None
        self._turn: asyncio.Task[Any] | None = None
        self._caller: asyncio.Task[Any] | None = None

    def call(self, *, whole: bool) -> asyncio.Task[Any]:
        """Start the turn, awaited in a task of its own; *whole*: with start and shutdown."""
        self._caller = asyncio.create_task(self._in_scope() if whole else self._await_turn())
        return self._caller

    async def _in_scope(self) -> None:
        with self.scope:
            async with self.agent:
                await self._await_turn()

    async def _await_turn(self) -> None:
        self._stream = self.agent.execute_turn(self.scene.said)
        [self._turn] = self.agent._core.turns._tasks
        try:
            self.result = await self._stream
        except LooopyError as error:
            self.error = error

    def by_stream(self) -> None:
        """Ask, as a user does."""
        if self._stream is not None:
            self._stream.cancel()

    def by_task(self) -> None:
        """Cancel the turn's own task, as a loop does that is torn down."""
        if self._turn is not None:
            self._turn.cancel()

    def by_caller(self) -> None:
        """Cancel the one who waits, as a framework does when its client is gone."""
        if self._caller is not None:
            self._caller.cancel()

    def by_level(self) -> None:
        """Cancel the one who waits and opened the agent, at every wait again."""
        self.scope.cancel()

    def by_stream_and_task(self) -> None:
        """Ask, and cancel the task in the next round."""
        self.by_stream()
        asyncio.get_running_loop().call_soon(self.by_task)

    def by_task_twice(self) -> None:
        """Cancel the task in two rounds that follow each other."""
        self.by_task()
        asyncio.get_running_loop().call_soon(self.by_task)

    def by_task_again_and_again(self) -> None:
        """Cancel the task in every round until it is over."""
        if self._turn is not None and not self._turn.done():
            self._turn.cancel()
            asyncio.get_running_loop().call_soon(self.by_task_again_and_again)

    async def is_over(self) -> None:
        """The turn ends by itself within the bound, and the agent knows it."""
        async with asyncio.timeout(BOUND_S):
            await asyncio.wait({self._caller} if self._caller else set())
            await self.agent.wait_for_idle()
        assert self.agent.state.status is not AgentStatus.BUSY


WAYS = {
    "stream.cancel()": Life.by_stream,
    "task.cancel()": Life.by_task,
    "the caller": Life.by_caller,
    "the caller, by level": Life.by_level,
    "stream, then task": Life.by_stream_and_task,
    "task, twice": Life.by_task_twice,
    "task, in every round": Life.by_task_again_and_again,
}
_WHOLE = {"the caller, by level"}  # the agent is opened and closed inside of what is cancelled


async def strike(
    world: World, scene: Scene, way: str, at: int, *, after_s: float | None = None
) -> Watch:
    """
    Run the turn of *scene*, stopped by *way* at its suspension number *at*.

    Args:
        at: 0: at none.
        after_s: At this time instead.
    """
    if scene.before is not None:
        await scene.before(world)
    life = Life(world, scene)
    act = partial(WAYS[way], life)
    whole = way in _WHOLE
    if not whole:
        await life.agent.start()
    timer = None
    with Watch(at, act) as watch:
        caller = life.call(whole=whole)
        if after_s is not None:
            timer = asyncio.get_running_loop().call_later(after_s, act)
        await life.is_over()
    if timer is not None:
        timer.cancel()
    await world.nothing_left_running()
    if not caller.cancelled():
        caller.result()
    await _told_the_truth(world, life)
    await world.nothing_lost()
    if at % 2 or life.agent.state.status is AgentStatus.SHUTDOWN:
        await life.agent.shutdown()
        await world.goes_on()
    else:
        await world.goes_on(life.agent)
    await world.is_whole()
    await world.nothing_left_running()
    return watch


async def _told_the_truth(world: World, life: Life) -> None:
    """A result is that of the stored turn, and no stored answer was reported as a failure."""
    turns = await world.stores.journal.turns("ada")
    if life.result is not None:
        assert turns[-1].outcome is life.result.outcome, (turns[-1], life.result)
    elif isinstance(life.error, LooopyError):
        ended = [turn for turn in turns if turn.outcome is Outcome.COMPLETED]
        assert not ended, f"a stored answer was reported as {life.error!r}"


# A turn of any scene has at most so many suspensions; where it has fewer, a run strikes at none.
PLACES = {"memory": 42, "sqlite": 28, "asyncpg": 64, "psycopg": 64}


def cases(kind: str) -> list[tuple[Scene, str, int]]:
    """Every scene, way and suspension there is."""
    places = range(1, PLACES[kind] + 1)
    return [(scene, way, at) for scene in SCENES for way in WAYS for at in places]


async def play_unharmed(place: Place, kind: str) -> dict[str, float]:
    """Run each scene without harm; how long a turn of it takes, in seconds."""
    loop = asyncio.get_running_loop()
    usual: dict[str, float] = {}
    for scene in SCENES:
        for way in WAYS:
            watch = await strike(World(place.stores()), scene, way, 0)
            assert 0 < watch.count <= PLACES[kind], f"{scene.name}: {watch.count} suspensions"
        began = loop.time()
        await strike(World(place.stores()), scene, "stream.cancel()", 0)
        usual[scene.name] = (loop.time() - began) / 2  # the other half is looking at it
    place.settle()
    return usual


async def cancel_at_suspensions(url: str, kind: str, count: int, seed: int, tally: Tally) -> None:
    """Stop *count* turns, each at another suspension or in another way, until none is left."""
    async with Place(url) as place:
        await play_unharmed(place, kind)
        for n, (scene, way, at) in in_turns(cases(kind), count, seed):
            what = f"seed {n}: {scene.name}, {way}, at {at}"
            await _one(place, tally, what, scene, way, at)


async def cancel_at_random_times(url: str, kind: str, count: int, seed: int, tally: Tally) -> None:
    """Stop *count* turns at any time within what such a turn takes here."""
    async with Place(url) as place:
        usual = await play_unharmed(place, kind)
        for n in range(seed, seed + count):
            rng = random.Random(n)
            scene, way = rng.choice(SCENES), rng.choice(list(WAYS))
            after_s = rng.random() * usual[scene.name]
            what = f"seed {n}: {scene.name}, {way}, after {after_s:.6f} s"
            await _one(place, tally, what, scene, way, 0, after_s=after_s)


async def _one(
    place: Place,
    tally: Tally,
    what: str,
    scene: Scene,
    way: str,
    at: int,
    after_s: float | None = None,
) -> None:
    async def check() -> None:
        watch = await strike(World(place.stores()), scene, way, at, after_s=after_s)
        tally.missed += not (watch.struck or after_s is not None)
        problems = await place.left_over()
        assert not problems, problems

    if not await examined(tally, what, check()):
        place.settle()  # what one run left over is not counted against the next


def _trial(
    name: str,
    full: int,
    kind: str,
    work: Callable[..., Awaitable[None]],
    *,
    giving_up: bool = False,
) -> Trial:
    def run(count: int, seed: int) -> Tally:
        tally = Tally(f"{name}, {kind}")
        wrong = (
            mock.patch("looopy.agent.commit.settle_write", give_up) if giving_up else nullcontext()
        )
        with database(kind) as url, wrong:
            asyncio.run(work(url, kind, count, seed, tally))
        return tally

    return Trial(f"{name}, {kind}", full, run)


async def give_up(work: Awaitable[Any], _cancelled: object, *, outlasts: bool) -> Any:
    """What `settle_write` must not be: a commit in flight is given up with its caller."""
    return await work


TRIALS = [
    *(_trial("cancel at a suspension", len(cases(k)), k, cancel_at_suspensions) for k in KINDS),
    *(_trial("cancel at a random time", 1_250, k, cancel_at_random_times) for k in KINDS),
]
# Few of its suspensions are those of a commit: a small share would find nothing by chance.
WRONG = [
    _trial("cancel a commit in flight", full, k, cancel_at_suspensions, giving_up=True)
    for k, full in (("memory", 1_176), ("sqlite", 784), ("asyncpg", 400), ("psycopg", 400))
]
