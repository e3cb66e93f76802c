"""One feed, many readers: each durable event once, each text once, whenever a reader comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.going_back import GoingBack

from looopy import Agent, Stores, open_stores, tool
from looopy.errors import CommitsLost, ContextNotFound
from looopy.server.feed import Feed, SlowReader
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.event import AgentEvent, MessageEnd, MessageStart, MessageUpdate, TurnEnd
from looopy.types.message import AssistantMessage, TextContent

ANSWER = "It is three, as far as anybody here can tell."


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _model() -> ScriptedProvider:
    return ScriptedProvider(
        lambda r: tool_call("add", a=1, b=2) if r.messages[-1].role == "user" else text(ANSWER),
        chunk_chars=3,
        delay_s=0.001,
    )


@asynccontextmanager
async def _fed(stores: Stores, **options: int) -> AsyncIterator[tuple[Agent, Feed]]:
    async with Agent("c", llm_provider=_model(), tools=[add], stores=stores) as agent:
        feed = Feed(agent, stores, **options)
        try:
            yield agent, feed
        finally:
            await feed.close()


def _texts(events: Sequence[AgentEvent]) -> list[tuple[str, str]]:
    """Of each assistant message: what its deltas say, and what it says in the end."""
    found, said = [], ""
    for event in events:
        if isinstance(event, MessageStart):
            said = ""
        elif isinstance(event, MessageUpdate):
            said += event.delta
        elif isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            found.append((said, event.message.text))
            said = ""
    return found


async def _read(feed: Feed, after: int | None, *, turns: int = 1) -> list[AgentEvent]:
    """Everything behind *after* to the end of so many turns."""
    got: list[AgentEvent] = []
    async with aclosing(feed.follow(after)) as events:
        async for event in events:
            got.append(event)
            turns -= isinstance(event, TurnEnd)
            if turns == 0:
                break
    return got


async def test_a_reader_who_joins_at_any_moment_gets_each_event_once() -> None:
    """Also in the middle of an answer, whose text then comes whole."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        readers = []
        moments = 0

        def come(event: AgentEvent) -> None:
            nonlocal moments
            moments += 1
            readers.append(asyncio.create_task(_read(feed, 0)))

        leave = agent.subscribe(come)
        await agent.execute_turn("1 + 2?")
        leave()
        read = await asyncio.gather(*readers)
        assert moments > 30
        for got in read:
            assert [e.seq for e in got if e.seq] == list(range(1, 8))
            assert [end for _, end in _texts(got)] == ["", ANSWER]
            # All of the text, or none of it if the answer had ended.
            assert _texts(got)[1][0] in (ANSWER, "")
        assert sum(_texts(got)[1][0] == ANSWER for got in read) > 20


async def test_a_reader_who_reconnects_resumes_after_the_last_event() -> None:
    """Cut after every five events."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):

        async def in_bits() -> list[int]:
            got = [0]
            while len(got) < 15:
                left = 5
                async with aclosing(feed.follow(got[-1])) as events:
                    async for event in events:
                        left -= 1
                        if event.seq is not None:
                            got.append(event.seq)
                        if left == 0 or len(got) == 15:
                            break
            return got

        reading = asyncio.create_task(in_bits())
        await agent.execute_turn("1 + 2?")
        await agent.execute_turn("And again?")
        assert await reading == list(range(15))


async def test_events_that_are_shown_here_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may be of a message with thousands of calls, which takes milliseconds to decode."""
    read = 0

    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        events = type(stores.journal).events

        async def counted(self: object, *args: Any, **more: Any) -> Sequence[AgentEvent]:
            nonlocal read
            found = await events(cast("Any", self), *args, **more)
            read += len(found)
            return found

        monkeypatch.setattr(type(stores.journal), "events", counted)
        reading = asyncio.create_task(_read(feed, 0, turns=5))
        for _ in range(5):
            await agent.execute_turn("1 + 2?")
        assert [e.seq for e in await reading if e.seq] == list(range(1, 36))
        assert read < 10


async def test_turns_of_another_process_come_in_their_place() -> None:
    """Without deltas."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        reading = asyncio.create_task(_read(feed, 0, turns=3))
        await agent.execute_turn("Here.")
        async with Agent("c", llm_provider=_model(), tools=[add], stores=stores) as other:
            await other.execute_turn("There.")
        await agent.execute_turn("Here again.")
        got = await reading
        assert [e.seq for e in got if e.seq] == list(range(1, 22))
        assert [said for said, _ in _texts(got)] == ["", ANSWER, "", "", "", ANSWER]


async def test_without_a_position_a_reader_begins_at_the_head() -> None:
    """And leaves no follower behind."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        await agent.execute_turn("1 + 2?")
        reading = asyncio.create_task(_read(feed, None))
        await asyncio.sleep(0)  # it follows
        await agent.execute_turn("And again?")
        assert [e.seq for e in await reading if e.seq] == list(range(8, 15))
        assert feed.readers == 0


async def test_a_position_beyond_the_head_is_refused() -> None:
    """The context was deleted, or the number is another's."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        await agent.execute_turn("1 + 2?")
        with pytest.raises(ContextNotFound, match="no event 8"):
            await _read(feed, 8)


async def test_a_slow_reader_is_disconnected_and_others_are_unaffected() -> None:
    """It gets what waited for it, then the error."""
    async with open_stores("memory:") as stores, _fed(stores, limit=8) as (agent, feed):
        quick = asyncio.create_task(_read(feed, 0))
        slow, got = feed.follow(0), 1

        async def rest() -> None:
            nonlocal got
            async for _ in slow:
                got += 1

        turn = agent.execute_turn("1 + 2?")
        await anext(slow)
        await turn
        assert [e.seq for e in await quick if e.seq] == list(range(1, 8))
        with pytest.raises(SlowReader, match="8 events wait"):
            await rest()
        assert 8 <= got < 20  # those that waited, and what it had before; the turn has over 30
        assert feed.readers == 0


async def test_closing_the_feed_ends_its_readers() -> None:
    """In order, without an error."""
    async with open_stores("memory:") as stores, _fed(stores) as (agent, feed):
        reading = asyncio.create_task(_read(feed, 0, turns=2))
        await agent.execute_turn("1 + 2?")
        await feed.close()
        assert [e.seq for e in await reading if e.seq] == list(range(1, 8))


class _Source:
    """An agent whose log and whose shown events the test puts in an order of its own."""

    context_id = "c"

    def __init__(self) -> None:
        self.log: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self.show: Callable[[AgentEvent], object] = print

    def subscribe(self, callback: Callable[[AgentEvent], object]) -> Callable[[], None]:
        self.show = callback
        return lambda: None

    async def events_besides(self, _seen: Callable[[], int]) -> AsyncIterator[AgentEvent]:
        while True:
            yield await self.log.get()

    def __host_port__(self) -> _Source:
        return self


def _end(seq: int) -> AgentEvent:
    said = AssistantMessage((TextContent("said"),))
    return MessageEnd(context_id="c", turn=1, seq=seq, message=said)


def _delta(delta: str) -> AgentEvent:
    return MessageUpdate(context_id="c", turn=1, delta=delta)


async def test_each_order_of_log_and_agent_gives_one_order() -> None:
    """Whoever is first with an event."""
    async with open_stores("memory:") as stores:
        source = _Source()
        feed = Feed(cast("Agent", source), stores)
        got: list[int | str] = []

        async def read() -> None:
            async for event in feed.follow():
                show = event.delta if isinstance(event, MessageUpdate) else event.seq
                got.append(show or "")

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        await settle()
        source.show(_end(1))
        source.show(_delta("behind 1"))
        await settle()
        assert got == [1, "behind 1"]
        source.log.put_nowait(_end(1))  # the log is late, and the agent was first
        source.log.put_nowait(_end(2))  # the log is first: the agent's deltas before 2 are too late
        await settle()
        source.show(_delta("before 2"))
        source.show(_end(2))
        source.show(_delta("behind 2"))
        await settle()
        assert got == [1, "behind 1", 2, "behind 2"]
        source.show(_end(4))  # another process wrote 3
        source.show(_delta("behind 4"))
        await settle()
        assert got == [1, "behind 1", 2, "behind 2"]
        source.log.put_nowait(_end(3))
        await settle()
        assert got == [1, "behind 1", 2, "behind 2", 3, 4, "behind 4"]
        await feed.close()
        await reading


async def test_an_answer_that_ended_unseen_is_not_shown_again() -> None:
    """The log has all of it."""
    async with open_stores("memory:") as stores:
        async with Agent("c", llm_provider=_model(), tools=[add], stores=stores) as agent:
            await agent.execute_turn("1 + 2?")
        source = _Source()
        feed = Feed(cast("Agent", source), stores)
        source.show(_end(2))
        source.show(MessageStart(context_id="c", turn=1, message=AssistantMessage()))
        source.show(_delta("stale"))
        feed_events = feed.follow(6)
        assert (await anext(feed_events)).seq == 7
        source.log.put_nowait(_end(8))
        assert (await anext(feed_events)).seq == 8
        await feed_events.aclose()
        await feed.close()


async def test_a_position_that_this_process_has_not_reached_is_kept() -> None:
    """Another process is ahead."""
    async with open_stores("memory:") as stores:
        async with Agent("c", llm_provider=_model(), tools=[add], stores=stores) as agent:
            source = _Source()
            feed = Feed(cast("Agent", source), stores)
            first = feed.follow(0)
            waits = asyncio.ensure_future(anext(first))
            await asyncio.sleep(0)
            await agent.execute_turn("1 + 2?")  # seven events, which the log has not brought here
        second = feed.follow(5)
        for seq in range(1, 8):
            source.log.put_nowait(_end(seq))
        assert (await anext(second)).seq == 6
        assert (await waits).seq == 1
        await first.aclose()
        await second.aclose()
        await feed.close()


async def test_a_reader_who_leaves_at_once_costs_the_next_reader_no_event() -> None:
    """It had not been admitted when the answer grew."""
    async with open_stores("memory:") as stores:
        async with Agent("c", llm_provider=_model(), tools=[add], stores=stores) as agent:
            await agent.execute_turn("1 + 2?")
        source, slow = _Source(), asyncio.Event()

        async def load(context_id: str) -> object:
            await slow.wait()
            return await stores.state.load(context_id)

        slowly = SimpleNamespace(state=SimpleNamespace(load=load), journal=stores.journal)
        feed = Feed(cast("Agent", source), cast("Stores", slowly))
        source.show(_end(7))
        source.show(MessageStart(context_id="c", turn=2, message=AssistantMessage()))
        source.show(_delta("One, "))
        first = feed.follow()
        waits = asyncio.ensure_future(anext(first))
        while not feed.readers:  # noqa: ASYNC110 - it says nothing when one comes
            await asyncio.sleep(0)
        source.show(_delta("two, "))
        waits.cancel()
        await asyncio.wait([waits])
        await first.aclose()
        slow.set()
        source.show(_delta("three"))
        second = feed.follow()
        assert isinstance(await anext(second), MessageStart)
        said = [await anext(second) for _ in range(3)]
        assert "".join(cast("MessageUpdate", one).delta for one in said) == "One, two, three"
        await second.aclose()
        await feed.close()


async def test_a_reader_ends_when_the_agent_continues_from_an_earlier_state(tmp_path) -> None:
    """The store lost a turn that the reader has seen; a new reader gets the log as it is now."""
    url = f"sqlite:///{tmp_path / 'feed.db'}"
    async with open_stores(url) as stores, _fed(stores) as (agent, feed):
        past = GoingBack(url)
        await agent.execute_turn("1 + 2?")
        past.keep()
        reading = asyncio.create_task(_read(feed, 0, turns=100))
        await agent.execute_turn("lost")
        past.go_back()
        with pytest.raises(CommitsLost):
            await agent.execute_turn("and?")
        await agent.execute_turn("and?")
        async with asyncio.timeout(10):
            with pytest.raises((CommitsLost, ContextNotFound)):
                await reading
            again = await _read(feed, 0, turns=2)
        assert [e.seq for e in again if e.seq] == list(range(1, 15))
        coming = asyncio.create_task(_read(feed, None))
        while not feed._ready:  # noqa: ASYNC110 - or the head may be behind the turn
            await asyncio.sleep(0)
        await agent.execute_turn("more")
        assert [e.seq for e in await coming if e.seq] == list(range(15, 22))
