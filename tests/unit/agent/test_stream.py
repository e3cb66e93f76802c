"""A view of a turn's broadcast: who subscribes, reads or waits gets all of it."""

from __future__ import annotations

import asyncio

import pytest

from looopy.agent.broadcast import Broadcast
from looopy.agent.stream import TurnStream
from looopy.types.event import MessageUpdate, ToolExecutionUpdate, TurnEnd, TurnStart
from looopy.types.message import StopReason
from looopy.types.result import TurnResult
from looopy.types.state import Outcome

START = TurnStart(context_id="ada", turn=1)
END = TurnEnd(context_id="ada", turn=1, outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP)
RESULT = TurnResult(turn=1, outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP)


def delta(words, index=0):
    """A piece of text."""
    return MessageUpdate(context_id="ada", delta=words, content_index=index)


async def test_a_view_gets_earlier_and_later_events():
    """In order, whenever it was attached; deltas only from then on."""
    broadcast = Broadcast()
    early, late = [], []
    reading = asyncio.create_task(drain(broadcast, early))
    await asyncio.sleep(0)
    broadcast.push(START)
    broadcast.push(delta("a"))
    await asyncio.sleep(0)
    also = asyncio.create_task(drain(broadcast, late))
    await asyncio.sleep(0)
    broadcast.push(delta("b"))
    broadcast.push(END)
    broadcast.finish(RESULT)
    await asyncio.gather(reading, also)
    assert early == [START, delta_like(early[1], "a"), delta_like(early[2], "b"), END]
    assert [e.type for e in late] == ["turn_start", "message_update", "turn_end"]
    assert late[1].delta == "b"


def delta_like(event, words):
    """*event*, if it says *words*."""
    assert event.delta == words
    return event


async def drain(broadcast, into):
    """Read a view to its end."""
    async for event in broadcast.read():
        into.append(event)


class Counted(str):
    """Text that counts the characters that are copied as it grows."""

    __slots__ = ()
    copied = 0

    def __add__(self, other):
        """Both, counted."""
        Counted.copied += len(self) + len(other)
        return Counted(super().__add__(other))


async def test_a_reader_that_is_stuck_costs_little_for_each_delta():
    """Each character is copied at most once for each doubling of what waits."""
    Counted.copied = 0
    broadcast, words = Broadcast(), 20_000
    events = broadcast.read()
    reader = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    for _ in range(words):
        broadcast.push(delta(Counted("word ")))
    broadcast.push(END)
    broadcast.finish(RESULT)
    seen = [await reader, *[event async for event in events]]
    text = "".join(event.delta for event in seen[:-1])
    assert (text, seen[-1]) == ("word " * words, END)
    assert Counted.copied <= len(text) * len(text).bit_length()


async def test_waiting_deltas_are_merged_block_by_block():
    """Only neighbours, only text of the same block; nothing else is touched."""
    broadcast = Broadcast()
    seen = []
    view = broadcast.read()
    broadcast.push(START)
    assert await anext(view) is START
    for n in range(1024):
        broadcast.push(delta(f"{n % 10}"))
    for words, index in (("a", 0), ("b", 0), ("c", 1), ("d", 1)):
        broadcast.push(delta(words, index))
    report = ToolExecutionUpdate(context_id="ada", tool_call_id="c", tool_name="t", progress=0.5)
    broadcast.push(report)
    broadcast.push(END)
    broadcast.finish(RESULT)
    seen = [e async for e in view]
    assert len(seen) == 1024 + 1 + 2
    assert seen[1023].delta == "3ab"
    assert seen[1024].delta == "cd"
    assert seen[-2] is report
    assert seen[-1] is END


async def test_an_observer_that_detaches_in_its_call_gets_no_more_events():
    """Also while the backlog is being told."""
    broadcast = Broadcast()
    broadcast.push(START)
    stream = TurnStream(broadcast, lambda: None)
    heard = []

    class Once:
        """Leaves at the first event."""

        def on_next(self, event):
            """Leave."""
            heard.append(event)
            raise RuntimeError("enough")

        def on_error(self, error):
            """Never."""

        def on_completed(self):
            """Never."""
            heard.append("completed")

    broadcast.observe(Once())
    broadcast.push(END)
    broadcast.finish(RESULT)
    assert heard == [START]
    assert await stream is RESULT


async def test_waiters_get_the_end_and_the_error():
    """Those that wait, and those that come later."""
    for fail in (False, True):
        broadcast = Broadcast()
        stream = TurnStream(broadcast, lambda: None)

        async def both(stream=stream):
            return await asyncio.gather(stream.accepted(), asyncio.ensure_future(result(stream)))

        waiting = asyncio.create_task(both())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if fail:
            broadcast.fail(KeyError("gone"))
            with pytest.raises(KeyError):
                await waiting
            with pytest.raises(KeyError):
                await stream.accepted()
        else:
            broadcast.accept(7)
            broadcast.finish(RESULT)
            assert await waiting == [7, RESULT]
            assert await stream.accepted() == 7


async def result(stream):
    """Await a stream as a coroutine."""
    return await stream


async def test_cancel_is_handed_on():
    """The stream only asks."""
    asked = []
    TurnStream(Broadcast(), lambda: asked.append(True)).cancel()
    assert asked == [True]
