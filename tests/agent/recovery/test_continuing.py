"""A turn whose process died: how it is closed, and every way to go on from it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from tests.agent.kit import Sluggish, assert_valid, assert_whole, collect, types

from looopy import AuthContext, tool
from looopy.agent.plan import NOT_AGAIN, SUPERSEDED
from looopy.errors import CannotContinue, InputNotFound, StoreUnavailable, ValueRefused
from looopy.llm.render import NOT_STARTED, OUTCOME_UNKNOWN
from looopy.stores.owner import Owner
from looopy.stores.records import Commit, ContextState
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import a_claim, answer, begin, finishes, said, starts
from looopy.testing.faults import SpyStores
from looopy.types.event import MessageEnd, TurnStart
from looopy.types.message import StopReason, ToolCall, ToolResultMessage, UserMessage
from looopy.types.state import AgentStatus, HeldCall, Outcome, PendingKind, PendingRequest

AUTH = AuthContext("u1", credentials={"token": "s3cret-canary-7b1f"})


class Bench:
    """Tools of every kind that note what they did."""

    def __init__(self):
        self.ran = []

        def note(kind):
            async def run(context, n: int = 0) -> str:
                self.ran.append((kind, n, context.idempotency_key, context.auth_context))
                return f"{kind} {n}"

            return run

        from looopy import ToolContext

        self.tools = []
        for kind, options in (
            ("rerun", {"effects": "idempotent"}),
            ("ask", {"effects": "external", "on_resume": "ask"}),
            ("fail", {"effects": "external"}),
        ):
            function = note(kind)
            function.__annotations__["context"] = ToolContext
            function.__annotations__["n"] = int
            self.tools.append(tool(name=kind, description=kind, **options)(function))

    @property
    def names(self):
        """What ran, in order."""
        return [kind for kind, *_ in self.ran]


def call(name, n=0):
    """A call whose id says what it is."""
    return ToolCall(id=f"id-{name}-{n}", name=name, arguments={"n": n})


async def die(stores, *calls, started=(), done=(), auth=False, text="go"):
    """Leave a turn as a process leaves it that dies in the middle of its tools."""
    owner = Owner.new()
    record = await stores.state.load("ada")
    claimed = await begin(
        stores,
        record.epoch if record else 0,
        holder=owner.token(),
        text=text,
        had_auth=auth,
        actor_id="u1" if auth else None,
    )
    if calls:
        events = [said(answer("let me see", *calls))]
        events += [starts(c) for c in calls if c in started]
        for c in done:
            events += finishes(c, "done before")
        await stores.commit(
            Commit(
                context_id="ada",
                epoch=claimed.epoch,
                turn=claimed.turn,
                events=events,
                assistant_position=claimed.first_position + 1,
            )
        )
    owner.retire()


def results(messages):
    """Call id to text, of tool results."""
    return {m.tool_call_id: m.text for m in messages if isinstance(m, ToolResultMessage)}


@pytest.fixture
def bench():
    """The tools."""
    return Bench()


async def test_start_closes_the_turn_of_a_dead_owner(make_agent, stores, bench):
    """One `turn_end(interrupted)`; the agent is ready and says which turn it was."""
    await die(stores)
    agent = await make_agent([text("late but here")], tools=bench.tools, stores=stores)
    assert agent.state.status is AgentStatus.READY
    assert agent.state.interrupted_turn == 1
    assert agent.state.turn_count == 1
    await assert_whole(stores)
    [turn] = await stores.journal.turns("ada")
    assert (turn.outcome, turn.stop_reason) == (Outcome.INTERRUPTED, StopReason.INTERRUPTED)
    result = await agent.execute_turn(None)
    assert (result.turn, result.text) == (2, "late but here")
    assert agent.state.interrupted_turn is None
    events = await stores.journal.events("ada")
    assert [e.continues for e in events if e.type == "turn_start"] == [None, 1]
    assert [m.text for m in await agent.get_messages()] == ["go", "late but here"]
    await assert_whole(stores)


async def test_two_that_find_a_dead_turn_close_it_once(make_agent, stores, bench):
    """There is one end, however many look."""
    import asyncio

    await die(stores, call("fail"), started=[call("fail")])
    agents = [await make_agent([], tools=bench.tools, stores=stores, start=False) for _ in range(5)]
    await asyncio.gather(*(a.start() for a in agents))
    await assert_whole(stores)
    for agent in agents:
        if agent.state.status is AgentStatus.BUSY:  # it looked while another was closing the turn
            await agent.start()
    assert {a.state.interrupted_turn for a in agents} == {1}


async def test_a_claim_closes_the_turn_of_a_dead_owner(make_agent, stores, bench):
    """An agent that was ready all along finds it when it speaks."""
    agent = await make_agent([text("hello")], tools=bench.tools, stores=stores)
    await die(stores, call("fail"), started=[call("fail")])
    result = await agent.execute_turn("are you there?")
    assert result.turn == 2
    assert results(await agent.get_messages()) == {"id-fail-0": OUTCOME_UNKNOWN}
    await assert_whole(stores)


async def test_continuing_runs_only_calls_that_may_run_again(make_agent, stores, bench):
    """Started: rerun runs, fail is answered. Not started: runs. Done: stays done."""
    c = {name: call(name, 1) for name in ("rerun", "fail")}
    fresh = {name: call(name, 2) for name in ("rerun", "fail", "ask")}
    done = call("fail", 3)
    await die(
        stores,
        done,
        *c.values(),
        *fresh.values(),
        started=[done, *c.values()],
        done=[done],
    )
    provider = ScriptedProvider([text("all done")])
    agent = await make_agent(provider, tools=bench.tools, stores=stores)
    assert agent.state.status is AgentStatus.READY
    assert results(await agent.get_messages()) == {
        "id-fail-3": "done before",
        "id-fail-1": OUTCOME_UNKNOWN,
    }
    result = await agent.execute_turn(None)
    assert bench.names == ["rerun", "rerun", "fail", "ask"]
    assert result.text == "all done"
    assert results(provider.requests[0].messages) == {
        "id-fail-3": "done before",
        "id-fail-1": OUTCOME_UNKNOWN,
        "id-rerun-1": "rerun 1",
        "id-rerun-2": "rerun 2",
        "id-fail-2": "fail 2",
        "id-ask-2": "ask 2",
    }
    order = [m.tool_call_id for m in provider.requests[0].messages if hasattr(m, "tool_call_id")]
    assert order == [c.id for c in (done, *c.values(), *fresh.values())]


async def test_a_rerun_has_the_key_of_the_first_run(make_agent, stores, bench):
    """It names context, the turn that announced the call, and the call; also the second time."""
    c = call("rerun")
    await die(stores, c, started=[c])
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    await agent.execute_turn(None)
    assert [key for _, _, key, _ in bench.ran] == [f"ada/1/{c.id}"]


async def test_a_new_call_of_a_continuing_turn_has_a_key_of_its_own(make_agent, stores, bench):
    """The dead turn may have used the same id for a call that is done: their keys must differ."""
    done, left = call("fail"), call("rerun")
    await die(stores, done, left, started=[done, left], done=[done])
    again = tool_call("fail", n=1)
    agent = await make_agent([again, text("ok")], tools=bench.tools, stores=stores)
    await agent.execute_turn(None)
    keys = [key for _, _, key, _ in bench.ran]
    assert keys[0] == f"ada/1/{left.id}"
    assert keys[1].startswith("ada/2/")


async def test_a_call_after_a_denial_has_a_key_of_its_own(make_agent, stores, bench):
    """The denied call belongs to the dead turn, what the model asks for next does not."""
    c = call("ask")
    await die(stores, c, started=[c])
    agent = await make_agent([tool_call("fail"), text("ok")], tools=bench.tools, stores=stores)
    (pending,) = agent.state.pending
    await agent.execute_turn(None, inputs={pending.request_id: False})
    assert [key.rpartition("/")[0] for _, _, key, _ in bench.ran] == ["ada/2"]


async def test_a_start_is_replayed_with_name_and_arguments_in_a_later_turn(
    make_agent, stores, bench
):
    """The call was announced by the dead turn; its second start belongs to the next one."""
    c = call("rerun", 7)
    await die(stores, c, started=[c])
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    await agent.execute_turn(None)
    began = [e for e in await stores.journal.events("ada") if e.type == "tool_execution_start"]
    assert [(e.turn, e.tool_name, e.args) for e in began] == [
        (1, "rerun", {"n": 7}),
        (2, "rerun", {"n": 7}),
    ]


async def test_a_rerun_that_dies_again_keeps_its_key(make_agent, stores, bench):
    """Two deaths, one key: the third try still is the same call to the outside."""
    c = call("rerun")
    await die(stores, c, started=[c])
    first = await make_agent([], tools=bench.tools, stores=stores)
    record = await stores.state.load("ada")
    owner = Owner.new()
    claimed = await stores.state.claim(a_claim(record.epoch, text=None, holder=owner.token()))
    await stores.commit(
        Commit(
            context_id="ada",
            epoch=claimed.epoch,
            turn=claimed.turn,
            events=[starts(c)],
            assistant_position=2,
        )
    )
    owner.retire()
    again = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    assert again.state.interrupted_turn == 2
    await again.execute_turn(None)
    assert [key for _, _, key, _ in bench.ran] == [f"ada/1/{c.id}"]
    await assert_whole_answers(first)


async def assert_whole_answers(agent):
    """Every call has its answer."""
    from tests.agent.kit import assert_answered

    assert_answered(await agent.get_messages())


async def test_a_tool_that_is_gone_counts_as_fail(make_agent, stores):
    """What nobody can run any more is answered when the turn is closed."""
    c, d = call("rerun", 1), call("rerun", 2)
    await die(stores, c, d, started=[c])
    agent = await make_agent([text("ok")], stores=stores)
    assert results(await agent.get_messages()) == {c.id: OUTCOME_UNKNOWN, d.id: NOT_STARTED}
    assert (await agent.execute_turn(None)).text == "ok"
    await assert_whole(stores)


async def test_text_answers_the_open_calls_first(make_agent, stores, bench):
    """As not run, or of unknown outcome; nothing of them runs."""
    c, d = call("rerun", 1), call("rerun", 2)
    await die(stores, c, d, started=[c])
    provider = ScriptedProvider([text("fine")])
    agent = await make_agent(provider, tools=bench.tools, stores=stores)
    result = await agent.execute_turn("never mind")
    assert bench.ran == []
    assert results(result.messages) == {c.id: OUTCOME_UNKNOWN, d.id: NOT_STARTED}
    assert [m.text for m in provider.requests[0].messages][-1] == "never mind"
    events = await stores.journal.events("ada")
    assert [e.user_message.text for e in events if e.type == "turn_start"] == [
        "go",
        "never mind",
    ]
    await assert_whole(stores)


async def test_a_call_to_ask_about_waits_for_a_person(make_agent, stores, bench):
    """`waiting`, one approval that names tool, arguments and call; `None` alone cannot go on."""
    c = call("ask", 5)
    await die(stores, c, started=[c])
    agent = await make_agent([], tools=bench.tools, stores=stores)
    assert agent.state.status is AgentStatus.WAITING
    [pending] = agent.state.pending
    assert (pending.kind, pending.tool_name, pending.args, pending.tool_call_id, pending.turn) == (
        PendingKind.APPROVAL,
        "ask",
        {"n": 5},
        c.id,
        1,
    )
    assert pending.prompt
    events = await stores.journal.events("ada")
    assert types(events)[-2:] == ["input_required", "turn_end"]
    assert events[-2].pending == (pending,)
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)
    assert agent.state.status is AgentStatus.WAITING
    again = await make_agent([], tools=bench.tools, stores=stores)
    assert again.state.pending == (pending,)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_carried_out(make_agent, stores, bench, approved):
    """Yes runs the call, with its first key; no answers it as denied."""
    c = call("ask")
    await die(stores, c, started=[c])
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    [pending] = agent.state.pending
    result = await agent.execute_turn(None, inputs={pending.request_id: approved})
    assert result.text == "ok"
    assert [key for _, _, key, _ in bench.ran] == ([f"ada/1/{c.id}"] if approved else [])
    assert results(result.messages) == {c.id: "ask 0" if approved else NOT_AGAIN}
    assert agent.state.pending == ()
    assert agent.state.status is AgentStatus.READY
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={pending.request_id: True})
    assert len(bench.ran) == approved
    await assert_whole(stores)


async def test_answers_for_a_part_are_kept(make_agent, stores, bench):
    """A turn that records them and ends at once; the rest goes on with all of them."""
    c, d = call("ask", 1), call("ask", 2)
    await die(stores, c, d, started=[c, d])
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    first, second = agent.state.pending
    stream = agent.execute_turn(None, inputs={first.request_id: True})
    result = await stream
    assert result.outcome is Outcome.INPUT_REQUIRED
    assert result.pending == (second,)
    assert types(await collect(stream))[-2:] == ["input_required", "turn_end"]
    assert bench.ran == []
    assert agent.state.status is AgentStatus.WAITING
    other = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    assert other.state.pending == (second,)
    result = await other.execute_turn(None, inputs={second.request_id: False})
    assert result.text == "ok"
    assert [n for _, n, _, _ in bench.ran] == [1]
    assert results(result.messages) == {c.id: "ask 1", d.id: NOT_AGAIN}
    await assert_whole(stores)


async def test_text_instead_of_an_answer_cancels_pending_requests(make_agent, stores, bench):
    """The call is answered as superseded, and the text is said."""
    c = call("ask")
    await die(stores, c, started=[c])
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    result = await agent.execute_turn("forget it")
    assert results(result.messages) == {c.id: SUPERSEDED}
    assert bench.ran == []
    assert agent.state.pending == ()
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_text_with_an_answer_does_both(make_agent, stores, bench):
    """Approved calls run; then the model is asked, with the text said."""
    c, d = call("ask", 1), call("ask", 2)
    await die(stores, c, d, started=[c, d])
    provider = ScriptedProvider([text("ok")])
    agent = await make_agent(provider, tools=bench.tools, stores=stores)
    first, _ = agent.state.pending
    await agent.execute_turn("and be quick", inputs={first.request_id: True})
    assert [n for _, n, _, _ in bench.ran] == [1]
    sent = provider.requests[0].messages
    assert results(sent) == {c.id: "ask 1", d.id: SUPERSEDED}
    assert sent[-1].text == "and be quick"
    assert_valid(await agent.get_messages())


async def test_a_call_approved_beside_a_text_is_not_lost_with_its_process(
    make_agent, stores, bench
):
    """The text stands between call and result then: the call is asked about again all the same."""
    c = call("ask", 1)
    await die(stores, c, started=[c])
    first = await make_agent([], tools=bench.tools, stores=stores)
    record = await stores.state.load("ada")
    owner = Owner.new()
    spoken = UserMessage("and be quick")
    start = TurnStart(context_id="ada", user_message=spoken, continues=1)
    events = [start, MessageEnd(context_id="ada", message=spoken)]
    token = owner.token()
    claim = a_claim(record.epoch, holder=token, events=events, state=ContextState())
    claimed = await stores.state.claim(claim)
    began = Commit(
        context_id="ada",
        epoch=claimed.epoch,
        turn=2,
        events=[starts(c)],
        assistant_position=2,
    )
    await stores.commit(began)
    owner.retire()
    assert first.state.pending
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    (pending,) = agent.state.pending
    result = await agent.execute_turn(None, inputs={pending.request_id: True})
    assert result.text == "ok"
    assert [n for _, n, _, _ in bench.ran] == [1]
    assert results(await agent.get_messages()) == {c.id: "ask 1"}
    assert_valid(await agent.get_messages())


async def test_a_wrong_answer_is_refused_and_nothing_stored(make_agent, stores, bench):
    """An unknown id, or something else than yes or no."""
    c = call("ask")
    await die(stores, c, started=[c])
    agent = await make_agent([], tools=bench.tools, stores=stores)
    [pending] = agent.state.pending
    before = await stores.journal.events("ada")
    with pytest.raises(InputNotFound) as caught:
        await agent.execute_turn(None, inputs={pending.request_id: True, "other": True})
    assert caught.value.request_id == "other"
    for value in ("yes", 1, None, {}):
        with pytest.raises(ValueRefused) as refused:
            await agent.execute_turn(None, inputs={pending.request_id: value})
        assert refused.value.path == f"/inputs/{pending.request_id}"
    assert await stores.journal.events("ada") == before
    assert agent.state.status is AgentStatus.WAITING
    assert agent.state.turn_count == 1


async def test_a_turn_with_credentials_continues_only_with_fresh_ones(make_agent, stores, bench):
    """Without them it ends as `auth_required`; with them it goes on from the same place."""
    c = call("rerun")
    await die(stores, c, started=[c], auth=True)
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    for _ in range(2):
        stream = agent.execute_turn(None)
        result = await stream
        assert (result.outcome, result.stop_reason) == (
            Outcome.AUTH_REQUIRED,
            StopReason.AUTH_REQUIRED,
        )
        assert types(await collect(stream))[-2:] == ["auth_required", "turn_end"]
    assert bench.ran == []
    result = await agent.execute_turn(None, AUTH)
    assert result.text == "ok"
    assert [auth for *_, auth in bench.ran] == [AUTH]
    starts_ = [e for e in await stores.journal.events("ada") if e.type == "turn_start"]
    assert [e.continues for e in starts_] == [None, 1, 1, 1]


async def test_an_approval_of_a_turn_with_credentials_needs_fresh_ones(make_agent, stores, bench):
    """The answer is kept, and carried out when the credentials come."""
    c = call("ask")
    await die(stores, c, started=[c], auth=True)
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    [pending] = agent.state.pending
    result = await agent.execute_turn(None, inputs={pending.request_id: True})
    assert result.outcome is Outcome.AUTH_REQUIRED
    assert bench.ran == []
    result = await agent.execute_turn(None, AUTH)
    assert result.text == "ok"
    assert [(kind, auth) for kind, _, _, auth in bench.ran] == [("ask", AUTH)]
    await assert_whole(stores)


async def test_expired_credentials_are_none(make_agent, stores, bench):
    """They do not let an old turn go on."""
    from datetime import UTC, datetime, timedelta

    c = call("rerun")
    await die(stores, c, started=[c], auth=True)
    agent = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    old = AuthContext("u1", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert (await agent.execute_turn(None, old)).outcome is Outcome.AUTH_REQUIRED
    assert bench.ran == []


async def test_a_failed_turn_is_continued_by_none(make_agent, stores):
    """The model is asked again, nothing is said twice."""
    from looopy.errors import LLMError
    from looopy.testing import failure

    agent = await make_agent([failure(LLMError("no")), text("yes")], stores=stores)
    await agent.execute_turn("go")
    result = await agent.execute_turn(None)
    assert result.text == "yes"
    assert [m.text for m in await agent.get_messages()] == ["go", "yes"]
    [_, second] = await stores.journal.turns("ada")
    assert second.continues == 1
    await assert_whole(stores)


async def test_a_cancelled_turn_is_continued_by_none(make_agent, stores):
    """Its history ends in something unanswered."""
    from looopy import UserMessage

    await stores.messages.append("ada", [UserMessage("imported, not answered")])
    agent = await make_agent([text("answered")], stores=stores)
    assert (await agent.execute_turn(None)).text == "answered"


async def test_new_calls_never_take_the_id_of_a_continued_one(make_agent, stores, bench):
    """A provider that counts from one again is corrected."""
    c = ToolCall(id="call_1", name="rerun", arguments={"n": 0})
    await die(stores, c, started=[c])
    agent = await make_agent(
        [tool_call("rerun", n=7), text("ok")], tools=bench.tools, stores=stores
    )
    await agent.execute_turn(None)
    ids = [m.tool_call_id for m in await agent.get_messages() if hasattr(m, "tool_call_id")]
    assert len(ids) == len(set(ids)) == 2
    await assert_whole(stores)


CHILD = """
import asyncio, sys
from looopy import Agent, AuthContext, tool
from looopy.testing import ScriptedProvider, text, tool_call

@tool(effects={effects!r})
async def work(n: int) -> str:
    "Work for ever."
    print("running", flush=True)
    await asyncio.Event().wait()

async def main():
    provider = ScriptedProvider([(text("let me work"), tool_call("work", n=1))])
    agent = Agent("ada", llm_provider=provider, tools=[work], stores=sys.argv[1])
    await agent.start()
    auth = AuthContext("u1", credentials={{"token": "s3cret-canary-7b1f"}})
    await agent.execute_turn("go", auth if {auth!r} else None)

asyncio.run(main())
"""


def killed_in_a_tool(url, *, effects="external", auth=False):
    """Run a process that is killed in the middle of a tool."""
    code = textwrap.dedent(CHILD).format(effects=effects, auth=auth)
    child = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "running\n"
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("effects", ["external", "idempotent"])
async def test_after_kill_the_next_start_does_not_wait(make_agent, sqlite_file, effects):
    """A real process, a real SIGKILL: the turn is closed at once and can go on."""
    url = f"sqlite:///{sqlite_file}"
    killed_in_a_tool(url, effects=effects)
    database = sqlite3.connect(sqlite_file)
    assert database.execute("SELECT open_turn FROM looopy_contexts").fetchall() == [(1,)]
    database.close()
    ran = []

    @tool(effects=effects)
    def work(n: int) -> str:
        """Work."""
        ran.append(n)
        return "worked"

    agent = await make_agent([text("done")], tools=[work], stores=url)
    assert agent.state.status is AgentStatus.READY
    assert agent.state.interrupted_turn == 1
    result = await agent.execute_turn(None)
    assert result.text == "done"
    assert ran == ([1] if effects == "idempotent" else [])
    assert [m.text for m in await agent.get_messages()] == [
        "go",
        "let me work",
        "worked" if ran else OUTCOME_UNKNOWN,
        "done",
    ]
    await assert_whole(agent._core.resources.stores)


async def test_credentials_are_nowhere_in_the_database(make_agent, sqlite_file):
    """Not after a turn, not after a crash: not a byte of them, in no file."""
    url = f"sqlite:///{sqlite_file}"
    killed_in_a_tool(url, effects="idempotent", auth=True)
    seen = []

    @tool(effects="idempotent")
    async def work(n: int) -> str:
        """Work."""
        return "worked"

    agent = await make_agent([text("done"), text("more")], tools=[work], stores=url)
    agent.subscribe(lambda e: seen.append(repr(e)))
    await agent.execute_turn(None, AUTH)
    stream = agent.execute_turn("again", AUTH)
    result = await stream
    files = b"".join(p.read_bytes() for p in sqlite_file.parent.iterdir())
    assert b"u1" in files
    assert b"canary" not in files
    for shown in (*seen, repr(result), repr(stream), repr(agent), repr(agent.state), repr(AUTH)):
        assert "canary" not in shown


async def test_cancelling_before_an_open_call_ran_answers_it(make_agent, stores, bench):
    """No call stays open behind a cancelled turn, though none of its own tools had begun."""
    source = Sluggish(*bench.tools)
    await die(stores, call("rerun"), started=[call("rerun")])
    agent = await make_agent([text("ok")], stores=stores, tools=[source])
    source.hangs = True
    stream = agent.execute_turn(None)
    await source.asked.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    source.hangs = False
    assert results(await agent.get_messages()) == {"id-rerun-0": OUTCOME_UNKNOWN}
    assert bench.names == []
    await assert_whole(stores)


async def test_a_reading_that_fails_half_way_is_made_again(make_agent, stores, bench):
    """What a turn needs to know is read as a whole or again: open calls are not overlooked."""
    owner = Owner.new()
    claimed = await begin(stores, 0, holder=owner.token())
    spy = SpyStores(stores)
    agent = await make_agent([text("ok")], stores=spy.stores, tools=bench.tools)
    assert agent.state.status is AgentStatus.BUSY
    await stores.commit(
        Commit(
            context_id="ada",
            epoch=claimed.epoch,
            turn=claimed.turn,
            events=[said(answer("let me see", call("rerun"))), starts(call("rerun"))],
        )
    )
    owner.retire()
    left = [2]  # the second reading is the one after the dead turn was closed

    def gone(name, _):
        left[0] -= name == "started_calls"
        if name == "started_calls" and left[0] == 0:
            raise StoreUnavailable("gone")

    spy.hook = gone
    with pytest.raises(StoreUnavailable):
        await agent.execute_turn(None)
    await agent.execute_turn(None)
    assert bench.names == ["rerun"]
    await assert_whole(stores)


async def test_a_call_of_another_case_is_gone_on_with_like_any(make_agent, stores, bench):
    """A name that was repaired when the call ran is repaired when its process died, too."""
    await die(stores, call("RERUN"), started=[call("RERUN")])
    agent = await make_agent([text("ok")], stores=stores, tools=bench.tools)
    await agent.execute_turn(None)
    assert bench.names == ["rerun"]
    await assert_whole(stores)


async def test_an_interrupted_call_runs_again_with_the_approved_arguments(
    make_agent, stores, bench
):
    """The tool was changed since: the person is asked about what would run now."""
    c = call("ask", 5)
    await die(stores, c, started=[c])
    agent = await make_agent([], tools=bench.tools, stores=stores)
    [pending] = agent.state.pending
    ran = []

    @tool(name="ask", on_resume="ask")
    async def ask(n: int, loudly: bool = True) -> str:
        """Ask, in another way."""
        ran.append((n, loudly))
        return "asked"

    there = await make_agent([text("ok")], tools=[ask], stores=stores)
    second = await there.execute_turn(None, inputs={pending.request_id: True})
    [anew] = second.pending
    assert (ran, anew.args, anew.request_id != pending.request_id) == ([], {"n": 5}, True)
    result = await there.execute_turn(None, inputs={anew.request_id: True})
    assert (result.text, ran) == ("ok", [(5, True)])
    await assert_whole(stores)


async def test_a_call_that_may_have_run_is_never_reported_as_not_run(make_agent, stores, bench):
    """Denied, talked over, or of a tool that is gone: its first run is of unknown outcome."""
    assert "may have had its effect" in NOT_AGAIN
    assert "may have had its effect" in SUPERSEDED
    c = call("ask")
    await die(stores, c, started=[c])
    agent = await make_agent([], tools=bench.tools, stores=stores)
    [pending] = agent.state.pending
    there = await make_agent([text("ok")], stores=stores)
    result = await there.execute_turn(None, inputs={pending.request_id: True})
    assert (result.text, results(result.messages)) == ("ok", {c.id: OUTCOME_UNKNOWN})
    await assert_whole(stores)


async def test_a_call_that_may_have_run_is_unknown_if_its_tool_is_gone_at_the_next_death(
    make_agent, stores, bench
):
    """It was allowed to run again, and the process died before it started."""
    c = call("ask")
    await die(stores, c, started=[c])
    spy = SpyStores(stores)
    agent = await make_agent([], tools=bench.tools, stores=spy.stores)
    [pending] = agent.state.pending
    spy.hook = _cut_commits
    with pytest.raises(StoreUnavailable):
        await agent.execute_turn(None, inputs={pending.request_id: True})
    assert bench.ran == []
    there = await make_agent([], stores=stores)
    assert results(await there.get_messages()) == {c.id: OUTCOME_UNKNOWN}
    await assert_whole(stores)


def _cut_commits(name, _):
    if name == "commit":
        raise StoreUnavailable("killed")


async def test_that_credentials_were_there_outlives_a_crash_of_the_turn_that_goes_on(
    make_agent, stores, bench
):
    """It had none itself, and died before it could say that it needs them."""
    c = call("rerun")
    await die(stores, c, started=[c], auth=True)
    spy = SpyStores(stores)
    agent = await make_agent([], tools=bench.tools, stores=spy.stores)
    spy.hook = _cut_commits
    with pytest.raises(StoreUnavailable):
        await agent.execute_turn(None)
    there = await make_agent([text("ok")], tools=bench.tools, stores=stores)
    assert (await there.execute_turn(None)).outcome is Outcome.AUTH_REQUIRED
    assert bench.ran == []
    assert (await there.execute_turn(None, AUTH)).text == "ok"
    assert [auth for *_, auth in bench.ran] == [AUTH]


async def test_the_last_commit_of_a_dead_owner_is_kept(make_agent, stores, bench):
    """Its commit came in after the record was read, and before the turn was taken over."""
    c = call("ask")
    await die(stores, c, started=[c])
    record = await stores.state.load("ada")
    asks = PendingRequest(
        request_id="1-q",
        kind=PendingKind.INPUT,
        tool_name="ask",
        args={},
        tool_call_id=c.id,
        turn=1,
        prompt="How much?",
    )
    held = HeldCall(tool_call_id=c.id, origin=1, asked_in=1, keys={"1-q": "much"}, state={"k": 1})
    last = Commit(
        context_id="ada",
        epoch=record.epoch,
        turn=1,
        events=[],
        state=ContextState(pending=(asks,), held=(held,)),
    )
    spy = SpyStores(stores)

    async def arrive(name, argument):
        if name == "claim" and argument.recover:
            await stores.commit(last)

    spy.hook = arrive
    agent = await make_agent([], tools=bench.tools, stores=spy.stores)
    assert agent.state.pending == (asks,)
    after = await stores.state.load("ada")
    assert after.state.held == (held,)
