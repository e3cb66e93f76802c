"""
Fail the Nth call that an agent makes to its stores, for every N (T6).

A scene is something that a user does with an agent. Its store calls are counted in a run without
harm; then it is run again for each of them, and that call fails: before anything was written, for
want of space, after all of it was written (a lost reply), or never returns at all. What the user
was told before is in the stores then, what failed was reported by an error of our tree, the agent
knows nothing that the stores do not, and both it and a new one go on by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from tests.campaign.trial import Tally, Trial
from tests.campaign.worlds import (
    BOUND_S,
    KINDS,
    Place,
    World,
    database,
    examined,
    in_turns,
)

from looopy import Agent
from looopy.errors import LooopyError, StorageFull, StoreUnavailable
from looopy.stores.records import Committed
from looopy.testing import text, tool_call
from looopy.testing.faults import Afterwards, SpyStores
from looopy.types.event import AgentEvent, TurnEnd
from looopy.types.message import ToolResultMessage
from looopy.types.result import TurnResult

HOWS = ("before", "full", "after", "never")
QUIET = ("inbox", "leave", "leave_wait_queue", "renew")
"""
Calls that may fail unheard: they are made again, or the next commit tells. `leave` writes a note
for people, and its failure is logged.
"""


class Fault:
    """Lets call number *at* fail, in one of the ways of `HOWS`."""

    def __init__(self, spy: SpyStores, how: str, at: int) -> None:
        self.how, self.at = how, at
        self.count = 0
        self.name = ""  # of the call that failed
        self.hanging = asyncio.Event()
        self._spy = spy
        spy.hook = self._before

    def heal(self) -> None:
        """Let every call pass from here on."""
        self._spy.hook = None

    def _before(self, name: str, _argument: object) -> Any:
        self.count += 1
        if self.count != self.at:
            return None
        self.name = name
        if self.how == "before":
            raise StoreUnavailable("gone, as told", outcome_known=True)
        if self.how == "full":
            raise StorageFull("full, as told")
        if self.how == "lie":  # no store does this: it shows that the trial can see
            return Committed(first_seq=99, first_position=99) if name == "commit" else None
        if self.how == "after":
            raise Afterwards(StoreUnavailable("lost, as told", outcome_known=False))
        return self._hang()

    async def _hang(self) -> None:
        self.hanging.set()
        await asyncio.Event().wait()


class Play:
    """
    One scene as it is played.

    Attributes:
        promised: What must be true of the stores, given what the user was told so far.
        reported: What the user was told of failures.
    """

    def __init__(self, world: World, spy: SpyStores) -> None:
        self.world = world
        self.spy = spy
        self.agent: Agent | None = None
        self.promised: list[Callable[[], Awaitable[None]]] = []
        self.reported: list[object] = []
        self.metadata: list[dict[str, Any]] = []  # the last that was saved, and later tries

    async def start(self, replies: Sequence[Any], **options: Any) -> Agent:
        """Make and start the agent of the scene."""
        self.agent = self.world.agent(replies, stores=self.spy.stores, **options)
        await self.agent.start()
        return self.agent

    async def turn(self, said: str | None, **options: Any) -> TurnResult:
        """Run a turn to its end; what failed in it is said by its error or by a tool's result."""
        assert self.agent is not None
        result = await self.agent.execute_turn(said, **options)
        told = [m for m in result.messages if isinstance(m, ToolResultMessage) and m.is_error]
        self.reported += [result.error] if result.error is not None else told
        return result

    async def saved(self, metadata: dict[str, Any]) -> None:
        """Save metadata, and expect it in the stores from then on, or what is saved later."""
        assert self.agent is not None
        self.metadata.append(metadata)
        await self.agent.save_state(metadata)
        possible = self.metadata = [metadata]

        async def is_there() -> None:
            record = await self.world.stores.state.load("ada")
            assert record is not None
            assert any(record.metadata == one for one in (*possible, *self.metadata))

        self.promised.append(is_there)

    async def run(self, scene: Callable[[Play], Awaitable[None]]) -> None:
        """Play the scene up to its end or its first error, which must be one of ours."""
        try:
            await scene(self)
        except LooopyError as error:
            self.reported.append(error)


# --- the scenes ---


async def text_turn(play: Play) -> None:
    """Ask, and get an answer; twice."""
    agent = await play.start([text("one"), text("two")])
    await play.turn("first")
    await play.turn("second")
    await agent.shutdown()


async def tool_turn(play: Play) -> None:
    """A tool with an effect."""
    await play.start([tool_call("act"), text("done")])
    await play.turn("go")


async def two_tools(play: Play) -> None:
    """Two tools of one answer, and one of the next."""
    await play.start([(tool_call("act"), tool_call("look")), tool_call("act"), text("done")])
    await play.turn("go")


async def artifacts(play: Play) -> None:
    """Versions saved by a tool; what was shown can be loaded."""
    agent = await play.start([tool_call("draw"), text("drawn")])
    result = await play.turn("go")
    for artifact in result.artifacts:

        async def is_there(version: int = artifact.version) -> None:
            wanted = b"\0first" if version == 1 else b"\0second"
            assert await play.world.stores.artifacts.load("ada", "picture", version) == wanted

        play.promised.append(is_there)
    await agent.get_artifacts()


async def continuing(play: Play) -> None:
    """Go on from a turn that died in a tool that may run again."""
    await play.world.dead_turn("look")
    await play.start([text("went on")])
    await play.turn(None)


async def approving(play: Play) -> None:
    """Answer the question that a dead turn left; the tool runs once."""
    await play.world.dead_turn("pay")
    agent = await play.start([text("paid")])
    [pending] = agent.state.pending
    await play.turn(None, inputs={pending.request_id: True})


async def recovering(play: Play) -> None:
    """End a turn whose process died in a tool that may not run again."""
    await play.world.dead_turn("act")
    await play.start([text("sorry")])
    await play.turn("what happened?")


async def pausing(play: Play) -> None:
    """Pause; another process takes a turn; resume, and see it."""
    agent = await play.start([text("one"), text("three")])
    await play.turn("first")
    await agent.pause()
    play.spy.hook, hook = None, play.spy.hook
    other = play.world.agent([text("two")])
    async with other:
        await other.execute_turn("second")
    play.spy.hook = hook
    await agent.resume()
    await play.turn("third")


async def clearing(play: Play) -> None:
    """Hide the history; nothing of it comes back."""
    agent = await play.start([text("one"), text("two")])
    await play.turn("forget me")
    await agent.clear()

    async def is_hidden() -> None:
        said = [m.text for m in await play.world.stores.messages.list("ada")]
        assert "forget me" not in said

    play.promised.append(is_hidden)
    await play.turn("second")


async def saving_state(play: Play) -> None:
    """Save metadata before there is a context, and again beside a turn."""
    await play.start([text("one")])
    await play.saved({"n": 1})
    await play.turn("go")
    await play.saved({"n": 2})


async def saving_later(play: Play) -> None:
    """Keep turns in memory, and save them together; a saving that failed is made again."""
    agent = await play.start(
        [text("one"), tool_call("look"), text("two"), text("three")], auto_save=False
    )
    await play.turn("first")
    await play.turn("second")
    await _saved_at_last(play, agent.save_state, ["first", "second"])
    await play.turn("third")
    await _saved_at_last(play, agent.pause, ["first", "second", "third"])


async def _saved_at_last(
    play: Play, save: Callable[[], Awaitable[None]], said: Sequence[str]
) -> None:
    try:
        await save()
    except StoreUnavailable as error:
        play.reported.append(error)
        await save()  # after a lost reply it may say that somebody was there before

    async def are_there() -> None:
        found = [m.text for m in await play.world.stores.messages.list("ada")]
        assert [found.count(words) for words in said] == [1] * len(said), found

    play.promised.append(are_there)


async def following(play: Play) -> None:
    """Follow the events while turns run; after a failure, from where it stopped."""
    agent = await play.start([tool_call("act"), text("one"), text("two")])
    got: list[AgentEvent] = []
    follower = asyncio.create_task(_follow(agent, got, 2))
    try:
        await play.turn("first")
        await play.turn("second")
        try:
            await follower
        except LooopyError as error:
            play.reported.append(error)
            await _follow(agent, got, 2)
    finally:
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError, LooopyError):
            await follower
    assert [e.seq for e in got] == list(range(1, len(got) + 1))
    assert [(e.seq, e.type) for e in got] == [(e.seq, e.type) for e in play.world.seen]


async def _follow(agent: Agent, got: list[AgentEvent], turns: int) -> None:
    events: AsyncIterator[Any] = agent.events(after=got[-1].seq if got else 0)
    async with aclosing(events) as opened:  # type: ignore[type-var]  # it is a generator
        async for event in opened:
            got.append(event)
            if isinstance(event, TurnEnd) and event.turn == turns:
                return


SCENES: dict[str, Callable[[Play], Awaitable[None]]] = {
    scene.__name__: scene
    for scene in (
        text_turn,
        tool_turn,
        two_tools,
        artifacts,
        continuing,
        approving,
        recovering,
        pausing,
        clearing,
        saving_state,
        saving_later,
        following,
    )
}


# --- what must hold ---


async def fail(world: World, scene: str, how: str, at: int) -> Fault:
    """Play *scene* with its store call number *at* failing (0: none); then look."""
    spy = SpyStores(world.stores)
    fault = Fault(spy, how, at)
    play = Play(world, spy)
    playing = asyncio.create_task(play.run(SCENES[scene]))
    hanging = asyncio.create_task(fault.hanging.wait())
    await asyncio.wait({playing, hanging}, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
    fault.heal()
    try:
        await world.nothing_lost()
        if not fault.hanging.is_set():
            assert playing.done(), "it did not end"
            playing.result()
            told = bool(play.reported)
            assert told == bool(fault.name) or fault.name in QUIET, f"{fault.name} failed unheard"
            assert play.agent is not None
            await play.agent.wait_for_idle()
    finally:
        await _tear_down(world)
        await asyncio.gather(playing, return_exceptions=True)
    await world.nothing_left_running()
    await world.nothing_lost()
    await _not_ahead(world, play.agent)
    for promise in play.promised:
        await promise()
    if play.agent is not None and play.agent.auto_save and at % 2:
        await world.goes_on(play.agent)
    await world.goes_on()
    await world.nothing_lost()
    await world.is_whole()
    return fault


async def _tear_down(world: World) -> None:
    """Cancel everything that was begun, as a loop does that is closed."""
    left = asyncio.all_tasks() - world.before - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _not_ahead(world: World, agent: Agent | None) -> None:
    """What the agent knows of its context is in the stores."""
    if agent is None or agent._core.known is None or agent._core.known.record is None:
        return
    known, record = agent._core.known, agent._core.known.record
    found = await world.stores.state.load("ada")
    if not agent.auto_save:  # what it keeps in memory is ahead on purpose
        assert known.saved_epoch <= (found.epoch if found else 0)
        return
    assert found is not None
    for name in ("epoch", "turn_count", "last_seq", "last_position"):
        assert getattr(record, name) <= getattr(found, name), name
    messages = await world.stores.messages.list("ada")
    ours = list(known.committed)
    if record.visible_from == found.visible_from:
        assert ours == messages[: len(ours)], "it knows of messages that are not stored"


# How many calls there are depends on how often a follower looks before it finds something.
_FOLLOWING = 24


async def cases(place: Place, hows: Sequence[str] = HOWS) -> list[tuple[str, str, int]]:
    """Every scene, way to fail and call there is; each scene is played without harm."""
    found = []
    for scene in SCENES:
        fault = await fail(World(place.stores()), scene, "before", 0)
        calls = _FOLLOWING if scene == "following" else fault.count
        found += [(scene, how, at) for how in hows for at in range(1, calls + 1)]
    place.settle()
    return found


async def fail_calls(
    url: str, count: int, seed: int, tally: Tally, hows: Sequence[str] = HOWS
) -> None:
    """Let *count* calls fail, each another one or in another way, until none is left."""
    async with Place(url) as place:
        for n, (scene, how, at) in in_turns(await cases(place, hows), count, seed):

            async def check(scene: str = scene, how: str = how, at: int = at) -> None:
                fault = await fail(World(place.stores()), scene, how, at)
                tally.missed += not fault.name
                problems = await place.left_over()
                assert not problems, problems

            if not await examined(tally, f"seed {n}: {scene}, {how}, call {at}", check()):
                place.settle()


def _trial(name: str, full: int, kind: str, **options: Any) -> Trial:
    def run(count: int, seed: int) -> Tally:
        tally = Tally(f"{name}, {kind}")
        with database(kind) as url:
            asyncio.run(fail_calls(url, count, seed, tally, **options))
        return tally

    return Trial(f"{name}, {kind}", full, run)


TRIALS = [_trial("fail the Nth store call", 500, kind) for kind in KINDS]
WRONG = [_trial("a store that says done and did nothing", 20, "memory", hows=("lie",))]
