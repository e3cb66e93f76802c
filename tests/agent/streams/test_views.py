"""A turn runs once, whoever looks at it, and every view of it tells the same."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

import pytest
from reactivex import operators as ops
from tests.agent.kit import Gate, add, assert_whole, collect, types

from looopy import AuthContext, ToolContext, tool
from looopy.errors import LLMError, StoreUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.event import MessageUpdate, ToolExecutionUpdate
from looopy.types.message import StopReason
from looopy.types.state import Outcome


def deltas(events):
    """The text that the deltas say."""
    return "".join(e.delta for e in events if isinstance(e, MessageUpdate))


class Observer:
    """What reactivex tells a subscriber."""

    def __init__(self):
        self.events = []
        self.error = None
        self.completed = 0

    def on(self, source):
        """Subscribe."""
        return source.subscribe(self.events.append, self._fail, self._complete)

    def _fail(self, error):
        self.error = error

    def _complete(self):
        self.completed += 1


async def test_a_turn_without_a_view_runs_once(make_agent, stores):
    """The call starts it; the view may be thrown away."""
    provider = ScriptedProvider([tool_call("add", a=1, b=2), text("3")])
    agent = await make_agent(provider, tools=[add], stores=stores)
    agent.execute_turn("1 + 2?")
    await agent.wait_for_idle()
    assert len(provider.requests) == 2
    assert [m.text for m in await agent.get_messages()] == ["1 + 2?", "", "3", "3"]
    await assert_whole(stores)


async def test_two_views_of_a_turn_see_the_same_one_turn(make_agent, stores):
    """One model call, the same events, in each kind of view."""
    provider = ScriptedProvider([text("hello")], chunk_chars=1)
    agent = await make_agent(provider, stores=stores)
    stream = agent.execute_turn("hi")
    observers = [Observer(), Observer()]
    for observer in observers:
        observer.on(stream)
    first, second, result = await asyncio.gather(collect(stream), collect(stream), stream)
    assert len(provider.requests) == 1
    assert first == second == observers[0].events == observers[1].events
    assert [o.completed for o in observers] == [1, 1]
    assert deltas(first) == "hello" == result.text


async def test_a_late_view_begins_at_turn_start(make_agent, stores):
    """What it missed is told at once, deltas aside."""
    agent = await make_agent(
        ScriptedProvider([tool_call("add", a=1, b=2), text("3")], chunk_chars=1),
        tools=[add],
        stores=stores,
    )
    stream = agent.execute_turn("1 + 2?")
    live = await collect(stream)
    late = await collect(stream)
    assert late == [e for e in live if not isinstance(e, MessageUpdate)]
    observer = Observer()
    observer.on(stream)
    assert observer.events == late
    assert observer.completed == 1
    assert (await stream) is (await stream)
    assert await stream.accepted() == 1


async def test_a_view_from_the_middle_gets_deltas_from_then_on(make_agent, memory_stores):
    """It begins at turn_start, and then hears what is said while it listens."""
    said, listen = asyncio.Event(), asyncio.Event()

    class Halting:
        """Says one word, waits, says another."""

        name = model = "halting"

        async def stream(self, request, options=None):
            """Stream with a pause in the middle."""
            events = ScriptedProvider([text("onetwo")], chunk_chars=3).stream(request)
            async for event in events:
                if event.delta == "two" and event.type == "text_delta":
                    said.set()
                    await listen.wait()
                yield event

    agent = await make_agent(Halting(), stores=memory_stores)
    stream = agent.execute_turn("count")
    await said.wait()
    observer = Observer()
    observer.on(stream)
    listen.set()
    await stream
    assert types(observer.events)[:4] == [
        "turn_start",
        "iteration_start",
        "message_start",
        "message_end",
    ]
    assert deltas(observer.events) == "two"


async def test_a_subscriber_that_raises_is_detached_and_the_turn_continues(
    make_agent, stores, caplog
):
    """It is logged and detached; the turn and the other views go on."""
    agent = await make_agent([text("hello")], stores=stores)
    calls = []

    def bad(event):
        calls.append(event)
        raise RuntimeError("bad subscriber")

    agent.subscribe(bad)
    stream = agent.execute_turn("hi")
    raised = []
    stream.subscribe(bad, raised.append)
    good = Observer()
    good.on(stream)
    with caplog.at_level(logging.ERROR, "looopy"):
        result = await stream
    assert result.outcome is Outcome.COMPLETED
    assert good.completed == 1
    assert types(good.events)[-1] == "turn_end"
    assert calls[-1].type == "turn_end", "the agent's own subscriber is asked every time"
    assert "subscriber" in caplog.text
    await assert_whole(stores)


async def test_disposing_a_view_detaches_and_does_not_cancel(make_agent, stores):
    """The turn goes on; the view hears no more."""
    gate = Gate()
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=stores)
    stream = agent.execute_turn("go")
    observer = Observer()
    subscription = observer.on(stream)
    await gate.entered.wait()
    subscription.dispose()
    heard = len(observer.events)
    gate.open.set()
    assert (await stream).text == "ok"
    assert len(observer.events) == heard
    assert observer.completed == 0


async def test_leaving_an_iteration_detaches(make_agent, stores):
    """`break` out of `async for` leaves the turn running to its end."""
    agent = await make_agent([tool_call("add", a=1, b=2), text("3")], tools=[add], stores=stores)
    stream = agent.execute_turn("1 + 2?")
    async for event in stream:
        if event.type == "turn_start":
            break
    assert (await stream).text == "3"
    await assert_whole(stores)


async def test_cancelling_a_waiter_does_not_cancel_the_turn(make_agent, stores):
    """A timeout around `await stream`, `accepted()` or an iteration is the waiter's own."""
    gate, spy, claim = Gate(), SpyStores(stores), asyncio.Event()

    async def hold(name, _argument):
        if name == "claim":
            await claim.wait()

    spy.hook = hold
    agent = await make_agent([tool_call("gate"), text("ok")], tools=[gate.tool], stores=spy.stores)
    stream = agent.execute_turn("go")

    async def result():
        return await stream

    waiters = [
        asyncio.create_task(result()),
        asyncio.create_task(collect(stream)),
        asyncio.create_task(stream.accepted()),
    ]
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    assert all(
        isinstance(e, asyncio.CancelledError)
        for e in await asyncio.gather(*waiters, return_exceptions=True)
    )
    claim.set()
    await gate.entered.wait()
    gate.open.set()
    assert (await stream).text == "ok"


async def test_operators_of_reactivex_work_on_a_turn(make_agent, memory_stores):
    """Filter, map, take and reduce, as on any Observable."""
    agent = await make_agent(ScriptedProvider([text("hello")], chunk_chars=1), stores=memory_stores)
    stream = agent.execute_turn("hi")
    words, firsts = [], []
    stream.pipe(
        ops.filter(lambda e: e.type == "message_update"),
        ops.map(lambda e: e.delta),
        ops.reduce(lambda a, b: a + b, ""),
    ).subscribe(words.append)
    stream.pipe(ops.take(2), ops.map(lambda e: e.type)).subscribe(firsts.append)
    await stream
    assert words == ["hello"]
    assert firsts == ["turn_start", "iteration_start"]


async def test_a_slow_reader_gets_the_whole_text_in_fewer_pieces(make_agent, memory_stores):
    """Deltas that wait are merged; not a character is lost, and the order holds."""
    said = "".join(chr(97 + i % 26) for i in range(20_000))
    agent = await make_agent(ScriptedProvider([text(said)], chunk_chars=1), stores=memory_stores)
    stream = agent.execute_turn("hi")
    reading = aiter(stream)
    events = [await anext(reading)]
    await stream
    events += [e async for e in reading]
    assert deltas(events) == said
    assert len(events) < 2_000
    assert types(events)[-1] == "turn_end"


class Torrent:
    """A model that says everything without ever waiting."""

    name = model = "torrent"
    said = 0

    async def stream(self, request, options=None):
        """See `LLMProvider.stream`."""
        answer = Accumulator(api="t", provider="t", model="t")
        for _ in range(5_000):
            self.said += 1
            for event in answer.text_delta("word "):
                yield event
        for event in answer.done(StopReason.STOP):
            yield event


async def test_readers_keep_up_with_a_model_that_never_waits(make_agent, memory_stores):
    """Whoever iterates, and whoever subscribed, sees each delta as it came."""
    agent = await make_agent(Torrent(), stores=memory_stores)
    stream, told = agent.execute_turn("hi"), []
    stream.subscribe(told.append)
    read = [event async for event in stream]
    for events in (told, read):
        assert len([e for e in events if isinstance(e, MessageUpdate) and e.delta]) == 5_000


async def test_an_iterator_is_attached_before_it_is_first_asked(make_agent, memory_stores):
    """Whoever hands it to a task of its own misses nothing until that task comes to run."""
    agent = await make_agent(Torrent(), stores=memory_stores)
    stream = agent.execute_turn("hi")
    views = [aiter(stream) for _ in range(3)]

    async def count(view):
        return len([e async for e in view if isinstance(e, MessageUpdate) and e.delta])

    assert await asyncio.gather(*map(count, views)) == [5_000] * 3


async def test_a_model_that_never_waits_can_be_stopped(make_agent, memory_stores):
    """Others come to run while it speaks: one who cancels among them."""
    model = Torrent()
    agent = await make_agent(model, stores=memory_stores)
    stream = agent.execute_turn("hi")
    async for event in stream:
        if isinstance(event, MessageUpdate):
            stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    assert 0 < model.said < 1_000


async def test_reports_of_a_tool_reach_subscribers(make_agent, memory_stores):
    """From a coroutine and from a thread; a number is a progress, anything else a result."""

    @tool
    def work(context: ToolContext) -> str:
        """Report from a thread."""
        context.report(0.5)
        context.report({"rows": 3})
        return "done"

    agent = await make_agent([tool_call("work"), text("ok")], tools=[work], stores=memory_stores)
    events = await collect(agent.execute_turn("go"))
    updates = [e for e in events if isinstance(e, ToolExecutionUpdate)]
    assert [(u.progress, u.partial_result) for u in updates] == [(0.5, None), (None, {"rows": 3})]
    order = types(events)
    assert order.index("tool_execution_start") < order.index("tool_execution_update")
    assert order.index("tool_execution_update") < order.index("tool_execution_end")


async def test_an_error_of_the_store_reaches_every_kind_of_view(make_agent, memory_stores):
    """`await`, `async for`, `accepted()` and `on_error` each get the error, early and late."""
    spy = SpyStores(memory_stores)
    agent = await make_agent([text("hi")], stores=spy.stores)

    def refuse(name, _argument):
        if name == "claim":
            raise StoreUnavailable("gone")

    spy.hook = refuse
    stream = agent.execute_turn("hello")
    early = Observer()
    early.on(stream)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await stream
        with pytest.raises(StoreUnavailable):
            await stream.accepted()
        with pytest.raises(StoreUnavailable):
            await collect(stream)
    late = Observer()
    late.on(stream)
    assert isinstance(early.error, StoreUnavailable)
    assert isinstance(late.error, StoreUnavailable)
    assert early.completed == late.completed == 0
    spy.hook = None
    assert (await agent.execute_turn("again")).text == "hi"


@pytest.mark.usefixtures("set_aside")
async def test_a_failed_turn_without_a_reader_logs_no_unraisable_error(
    make_agent, memory_stores, caplog
):
    """No warning about an exception that was never retrieved."""
    import gc

    spy = SpyStores(memory_stores)
    agent = await make_agent([text("hi")], stores=spy.stores)

    def gone(_name, _argument):
        raise StoreUnavailable("gone")

    spy.hook = gone
    agent.execute_turn("hello")
    await agent.wait_for_idle()
    spy.hook = None
    gc.collect()
    assert caplog.text == ""


async def test_unsubscribing_works_twice_and_alone(make_agent, memory_stores):
    """The same callback subscribed twice is told twice, and each leaves for itself."""
    agent = await make_agent([text("1"), text("2"), text("3")], stores=memory_stores)
    heard = []
    first = agent.subscribe(heard.append)
    second = agent.subscribe(heard.append)
    await agent.execute_turn("a")
    assert [e.type for e in heard].count("turn_end") == 2
    first()
    first()
    heard.clear()
    await agent.execute_turn("b")
    assert [e.type for e in heard].count("turn_end") == 1
    second()
    heard.clear()
    await agent.execute_turn("c")
    assert heard == []


async def test_a_subscriber_may_detach_in_its_call(make_agent, memory_stores):
    """The others still hear the event."""
    agent = await make_agent([text("1")], stores=memory_stores)
    heard = []
    leave = agent.subscribe(lambda _: leave())
    agent.subscribe(heard.append)
    await agent.execute_turn("a")
    assert types(heard)[:2] == ["status_change", "turn_start"]


class AskingForKeys(ScriptedProvider):
    """As one that calls several providers: it is given a function that knows the turn."""

    asks_for_keys = True


@pytest.mark.usefixtures("set_aside")
@pytest.mark.parametrize("kind", [ScriptedProvider, AskingForKeys])
async def test_credentials_are_gone_with_the_turn(make_agent, stores, kind):
    """
    Whoever keeps the view or the result of a turn does not keep its credentials; nor does a
    provider that keeps the options of its calls.
    """
    provider = kind([text("hi"), failure(LLMError("no"))])
    agent = await make_agent(provider, stores=stores)
    for outcome in (Outcome.COMPLETED, Outcome.FAILED):
        auth = AuthContext("u1", credentials={"token": "t"})
        gone = weakref.ref(auth)
        stream = agent.execute_turn("go", auth)
        result = await stream
        assert result.outcome is outcome
        await agent.wait_for_idle()
        await asyncio.sleep(0)  # the task's callbacks
        del auth
        gc.collect()
        assert gone() is None


async def test_reports_that_wait_for_a_slow_reader_do_not_pile_up(make_agent, memory_stores):
    """Of many reports of one call that nobody has read yet, the newest is kept."""

    @tool
    def count(context: ToolContext) -> str:
        """Count."""
        for n in range(5000):
            context.report(n)
        return "done"

    replies = [tool_call("count"), text("ok")]
    agent = await make_agent(replies, stores=memory_stores, tools=[count])
    stream = agent.execute_turn("go")
    reading = aiter(stream)
    await anext(reading)
    await stream
    told = [e.progress for e in [e async for e in reading] if isinstance(e, ToolExecutionUpdate)]
    assert len(told) < 2000
    assert told == sorted(told)
    assert told[-1] == 4999
