"""What goes wrong inside a turn is an event: the stream completes, and the next turn works."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.agent.kit import add, assert_valid, assert_whole, boom, collect, look, types

from looopy import Budget, LoopConfig, RetryPolicy, ToolContext, ToolResult, tool
from looopy.errors import (
    ConfigurationError,
    HistoryRejected,
    InvalidLLMResponse,
    LimitExceeded,
    LLMError,
    LLMUnavailable,
    RateLimited,
    StorageFull,
    StoreUnavailable,
    ValueRefused,
)
from looopy.llm.render import NOT_STARTED, OUTCOME_UNKNOWN
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.types.config import Hooks
from looopy.types.event import MessageEnd, StatusChange, utc_now
from looopy.types.message import AssistantMessage, StopReason, ToolResultMessage, Usage, UserMessage
from looopy.types.state import AgentStatus, Outcome

FAST = RetryPolicy(base_s=0)


def config(**options):
    """Limits without waits."""
    return LoopConfig(retry=FAST, **options)


async def run(agent, said="go"):
    """A turn's events and its result."""
    stream = agent.execute_turn(said)
    return await collect(stream), await stream


async def assert_failed(agent, stores, events, result, stop, error):
    """Everything that a failed turn promises, and that the next one works."""
    assert (result.outcome, result.stop_reason) == (Outcome.FAILED, stop)
    assert type(result.error) is error
    with pytest.raises(error) as caught:
        result.raise_for_outcome()
    assert caught.value is result.error
    assert types(events)[-2:] == ["error", "turn_end"]
    told = events[-2]
    assert told.code == stop.value
    assert told.text == str(result.error)
    assert told.seq == events[-1].seq - 1
    assert agent.state.status is AgentStatus.FAILED
    assert str(agent.state.error) == str(result.error)
    assert_valid(await agent.get_messages())
    await assert_whole(stores)
    agent._core.resources.provider = ScriptedProvider([text("better")])
    again = await agent.execute_turn("and now?")
    assert (again.outcome, again.text, again.error) == (Outcome.COMPLETED, "better", None)
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_a_provider_that_fails_fails_the_turn(make_agent, stores):
    """What it said is its error; the user message is kept."""
    agent = await make_agent([failure(LLMError("no such model"))], stores=stores)
    events, result = await run(agent)
    assert result.error.message == "no such model"
    assert [m.text for m in await agent.get_messages()] == ["go"]
    await assert_failed(agent, stores, events, result, StopReason.ERROR, LLMError)


async def test_a_transient_failure_is_tried_again(make_agent, stores):
    """Shown as a status change each time; the history knows nothing of the failed attempts."""
    provider = ScriptedProvider(
        [
            failure(RateLimited("slow", retry_after_s=0.0)),
            (text("half"), failure(LLMUnavailable)),
            text("whole"),
        ]
    )
    agent = await make_agent(provider, stores=stores)
    events, result = await run(agent)
    assert result.outcome is Outcome.COMPLETED
    retries = [e for e in events if isinstance(e, StatusChange)]
    assert [(r.status, r.attempt, r.delay_s) for r in retries] == [
        (AgentStatus.BUSY, 2, 0.0),
        (AgentStatus.BUSY, 3, 0.0),
    ]
    assert all(r.reason for r in retries)
    assert [r.rate_limited for r in retries] == [True, False]
    assert [m.text for m in await agent.get_messages()] == ["go", "whole"]
    [_, answer] = [e for e in events if isinstance(e, MessageEnd)]
    assert answer.attempts == 3
    assert provider.requests[0] == provider.requests[1] == provider.requests[2]
    await assert_whole(stores)


async def test_a_retry_names_its_time(make_agent, memory_stores):
    """Also for a wait that no calendar holds; the turn is cancelled within that wait."""
    provider = ScriptedProvider(
        [
            failure(RateLimited("slow", retry_after_s=0.002)),
            failure(RateLimited("slow", retry_after_s=1e300)),
        ]
    )
    patient = LoopConfig(retry=RetryPolicy(max_server_delay_s=0))
    agent = await make_agent(provider, stores=memory_stores, loop_config=patient)
    began, retries = utc_now(), []
    turn = agent.execute_turn("go")
    async for event in turn:
        if isinstance(event, StatusChange):
            retries.append(event)
            if event.attempt == 3:
                turn.cancel()
    first, second = retries
    wait = timedelta(seconds=0.002)
    assert began + wait <= first.next_at <= first.timestamp + wait
    assert second.next_at == datetime.max.replace(tzinfo=UTC)
    assert (await turn).outcome is Outcome.CANCELLED


async def test_retries_come_to_an_end(make_agent, stores):
    """After the configured number the turn fails with the last error."""
    provider = ScriptedProvider([failure(LLMUnavailable)], repeat=True)
    agent = await make_agent(provider, stores=stores)
    events, result = await run(agent)
    assert len(provider.requests) == 4
    await assert_failed(agent, stores, events, result, StopReason.ERROR, LLMUnavailable)


async def test_retries_are_counted_for_each_call(make_agent, memory_stores):
    """A success sets the count back."""
    rate = failure(RateLimited("slow", retry_after_s=0.0))
    provider = ScriptedProvider(
        [rate, rate, rate, tool_call("add", a=1, b=2), rate, rate, rate, text("3")]
    )
    agent = await make_agent(provider, tools=[add], stores=memory_stores)
    assert (await agent.execute_turn("go")).text == "3"


async def test_a_failure_that_is_not_transient_is_not_tried_again(make_agent, memory_stores):
    """Once is enough."""
    provider = ScriptedProvider([failure(LLMError("bad key")), text("never")])
    agent = await make_agent(provider, stores=memory_stores)
    await agent.execute_turn("go")
    assert len(provider.requests) == 1


async def test_a_server_that_asks_for_too_long_a_wait_fails_at_once(make_agent, memory_stores):
    """Nobody sleeps for hours unseen."""
    provider = ScriptedProvider([failure(RateLimited("tomorrow", retry_after_s=7200.0))])
    agent = await make_agent(provider, stores=memory_stores)
    events, result = await run(agent)
    await assert_failed(agent, memory_stores, events, result, StopReason.ERROR, RateLimited)
    assert str(result.error).startswith("tomorrow; it asks to wait 7200 s")
    assert "RetryPolicy.max_server_delay_s" in str(result.error)


async def test_the_partial_answer_of_a_failing_model_is_kept_and_marked(make_agent, stores):
    """The text of the last attempt stands in the log with its error."""
    agent = await make_agent([(text("half"), failure(LLMError("cut")))], stores=stores)
    events, result = await run(agent)
    last = (await agent.get_messages())[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.text, last.stop_reason) == ("half", StopReason.ERROR)
    assert "cut" in last.error_message
    await assert_failed(agent, stores, events, result, StopReason.ERROR, LLMError)


class Broken:
    """A provider that breaks its contract."""

    name = model = "broken"

    def __init__(self, how):
        self.how = how

    async def stream(self, request, options=None):
        """Raise, or end without an end."""
        if self.how == "raises":
            raise RuntimeError("out of my depth")
        async for event in ScriptedProvider([text("half")]).stream(request):
            if event.type == "done":
                return
            yield event


async def test_a_provider_that_raises_fails_the_turn(make_agent, stores):
    """It should not, and then it is reported like any failure."""
    agent = await make_agent(Broken("raises"), stores=stores)
    events, result = await run(agent)
    assert "out of my depth" in str(result.error)
    await assert_failed(agent, stores, events, result, StopReason.ERROR, InvalidLLMResponse)


async def test_a_stream_without_an_end_is_tried_again_and_then_fails(make_agent, stores):
    """No answer is no answer."""
    agent = await make_agent(Broken("stops"), stores=stores)
    events, result = await run(agent)
    assert len([e for e in events if isinstance(e, StatusChange)]) == 3
    await assert_failed(agent, stores, events, result, StopReason.ERROR, InvalidLLMResponse)


async def test_a_tool_that_raises_is_an_error_result(make_agent, stores):
    """The model sees the text and the turn goes on."""
    agent = await make_agent([tool_call("boom"), text("I see")], tools=[boom], stores=stores)
    events, result = await run(agent)
    assert result.outcome is Outcome.COMPLETED
    end = next(e for e in events if e.type == "tool_execution_end")
    assert end.is_error
    assert "it broke" in end.result.text
    await assert_whole(stores)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (tool_call("nosuch"), "no tool named 'nosuch'"),
        (tool_call("add", a="one"), "add"),
        (tool_call("add", a=1, b=2, c=3), "c"),
    ],
    ids=["unknown tool", "wrong type", "unknown argument"],
)
async def test_a_call_that_cannot_run_is_answered(make_agent, stores, call, says):
    """An error result that names the trouble; the model may try again."""
    provider = ScriptedProvider([call, text("sorry")])
    agent = await make_agent(provider, tools=[add], stores=stores)
    _, result = await run(agent)
    assert result.outcome is Outcome.COMPLETED
    [answer] = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert answer.is_error
    assert says in answer.text
    assert answer in provider.requests[1].messages
    await assert_whole(stores)


async def test_a_name_that_differs_in_case_is_repaired(make_agent, memory_stores):
    """`ADD` is `add` when there is only one."""
    agent = await make_agent(
        [tool_call("ADD", a=1, b=2), text("3")], tools=[add], stores=memory_stores
    )
    _, result = await run(agent)
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["3"]


async def test_the_last_iteration_runs_its_tools(make_agent, stores):
    """`max_iterations` completes the turn with a warning, results stored."""
    provider = ScriptedProvider([tool_call("look")], repeat=True)
    agent = await make_agent(
        provider, tools=[look], stores=stores, loop_config=config(max_iterations=2)
    )
    events, result = await run(agent)
    assert (result.outcome, result.stop_reason) == (Outcome.COMPLETED, StopReason.MAX_ITERATIONS)
    assert len(provider.requests) == 2
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["seen"] * 2
    assert [(e.code) for e in events if e.type == "warning"] == ["max_iterations"]
    assert types(events)[-2:] == ["warning", "turn_end"]
    assert result.error is None
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)
    agent._core.resources.provider = ScriptedProvider([text("done")])
    assert (await agent.execute_turn(None)).text == "done"
    await assert_whole(stores)


async def test_a_turn_has_so_many_tool_calls(make_agent, stores):
    """Those beyond `max_tool_calls` are answered and not run; the turn completes."""
    agent = await make_agent(
        [(tool_call("add", a=1, b=1), tool_call("add", a=2, b=2), tool_call("add", a=3, b=3))],
        tools=[add],
        stores=stores,
        loop_config=config(max_tool_calls=2),
    )
    events, result = await run(agent)
    assert (result.outcome, result.stop_reason) == (Outcome.COMPLETED, StopReason.MAX_TOOL_CALLS)
    results = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert [r.text for r in results[:2]] == ["2", "4"]
    assert results[2].is_error
    assert "max_tool_calls" in [e.code for e in events if e.type == "warning"]
    await assert_whole(stores)


async def test_an_answer_with_too_many_calls_runs_none(make_agent, stores):
    """Each call gets an error result."""
    ran = []

    @tool
    def note(n: int) -> str:
        """Note."""
        ran.append(n)
        return "ok"

    agent = await make_agent(
        [tuple(tool_call("note", n=n) for n in range(3))],
        tools=[note],
        stores=stores,
        loop_config=config(max_tool_calls_per_iteration=2),
    )
    _, result = await run(agent)
    assert ran == []
    assert result.stop_reason is StopReason.MAX_TOOL_CALLS
    results = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert [r.is_error for r in results] == [True] * 3
    await assert_whole(stores)


async def test_failures_in_a_row_end_the_turn(make_agent, stores):
    """Counted over iterations; what was not run says so."""
    provider = ScriptedProvider([tool_call("boom"), (tool_call("boom"), tool_call("look"))])
    agent = await make_agent(
        provider, tools=[boom, look], stores=stores, loop_config=config(max_tool_failures=2)
    )
    events, result = await run(agent)
    results = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert [r.is_error for r in results] == [True] * 3
    assert "seen" not in results[2].text
    assert result.error.limit == "max_tool_failures"
    await assert_failed(agent, stores, events, result, StopReason.MAX_TOOL_FAILURES, LimitExceeded)


async def test_a_success_between_failures_sets_the_count_back(make_agent, memory_stores):
    """Only failures in a row count."""
    agent = await make_agent(
        [tool_call("boom"), tool_call("look"), tool_call("boom"), text("ok")],
        tools=[boom, look],
        stores=memory_stores,
        loop_config=config(max_tool_failures=2),
    )
    assert (await agent.execute_turn("go")).text == "ok"


async def test_a_doom_loop_is_warned_of_once(make_agent, stores):
    """By default the third identical call is a warning, and it runs."""
    agent = await make_agent(
        [*[tool_call("add", a=1, b=2)] * 5, text("enough")], tools=[add], stores=stores
    )
    events, result = await run(agent)
    assert result.text == "enough"
    order = types(events)
    assert order.count("warning") == 1
    assert order[: order.index("warning")].count("tool_execution_end") == 2
    assert order.count("tool_execution_end") == 5


async def test_a_doom_loop_may_end_the_turn(make_agent, stores):
    """With `on_doom_loop="stop"` the third identical call is not run."""
    agent = await make_agent(
        [tool_call("add", a=1, b=2)] * 3,
        tools=[add],
        stores=stores,
        loop_config=config(on_doom_loop="stop"),
    )
    events, result = await run(agent)
    results = [m for m in result.messages if isinstance(m, ToolResultMessage)]
    assert [r.is_error for r in results] == [False, False, True]
    await assert_failed(agent, stores, events, result, StopReason.DOOM_LOOP, LimitExceeded)


async def test_a_budget_ends_the_turn_before_the_next_call(make_agent, stores):
    """What was asked for is done, and then no more is spent."""
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("never")],
        tools=[add],
        stores=stores,
        loop_config=config(budget=Budget(tokens=5)),
    )
    events, result = await run(agent)
    assert len(agent._core.resources.provider.requests) == 1
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["3"]
    assert result.error.limit == "budget"
    await assert_failed(agent, stores, events, result, StopReason.BUDGET, LimitExceeded)


async def test_a_budget_of_no_money_calls_no_model(make_agent, memory_stores):
    """The user message is stored, and nothing is spent."""
    provider = ScriptedProvider([])
    agent = await make_agent(
        provider, stores=memory_stores, loop_config=config(budget=Budget(cost_usd=0.0))
    )
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.BUDGET
    assert provider.requests == []


async def test_an_answer_cut_by_length_completes_as_length(make_agent, memory_stores):
    """And an empty call list behind `toolUse` is an answer, not a loop."""

    class Cut:
        """Says that it was cut."""

        name = model = "cut"

        async def stream(self, request, options=None):
            """Change the reason of the last event."""
            from dataclasses import replace

            async for event in ScriptedProvider([text("so far")]).stream(request):
                if event.type == "done":
                    message = replace(event.message, stop_reason=self.reason)
                    yield replace(event, message=message)
                else:
                    yield event

    agent = await make_agent(Cut(), stores=memory_stores)
    for reason, stop, outcome in (
        (StopReason.LENGTH, StopReason.LENGTH, Outcome.COMPLETED),
        (StopReason.TOOL_USE, StopReason.STOP, Outcome.COMPLETED),
        (StopReason.SENSITIVE, StopReason.CONTENT_FILTER, Outcome.FAILED),
    ):
        agent._core.resources.provider.reason = reason
        result = await agent.execute_turn("go")
        assert (result.stop_reason, result.outcome) == (stop, outcome)
        assert (result.error is None) == (outcome is Outcome.COMPLETED)


async def test_a_hook_that_fails_is_a_warning(make_agent, memory_stores):
    """Its default stands, and the turn goes on."""

    def bad(*_):
        raise RuntimeError("bad hook")

    provider = ScriptedProvider([text("fine")])
    agent = await make_agent(
        provider,
        stores=memory_stores,
        loop_config=config(hooks=Hooks(transform_context=bad, convert_to_llm=bad, get_api_key=bad)),
    )
    events, result = await run(agent)
    assert result.text == "fine"
    assert [e.code for e in events if e.type == "warning"] == ["hook_failed"] * 3
    assert [m.text for m in provider.requests[0].messages] == ["go"]


async def test_a_system_prompt_that_fails_fails_the_turn(make_agent, stores):
    """There is no default for what the agent is to be."""

    def bad(_context):
        raise KeyError("no prompt")

    agent = await make_agent([text("never")], stores=stores, system_prompt=bad)
    events, result = await run(agent)
    agent._core.system_prompt = ""
    await assert_failed(agent, stores, events, result, StopReason.ERROR, ConfigurationError)


@pytest.mark.parametrize("error", [StorageFull("full"), ValueRefused("no", path="/x")])
async def test_a_step_that_cannot_be_stored_fails_the_turn_in_order(make_agent, stores, error):
    """If the end can be stored, the turn is closed; what was not stored was never shown."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("never")], tools=[add], stores=spy.stores
    )

    def refuse_second_commit(name, _argument):
        if name == "commit" and len(spy.of("commit")) == 2:
            raise error

    spy.hook = refuse_second_commit
    stream = agent.execute_turn("go")
    if isinstance(error, StorageFull):
        with pytest.raises(StorageFull):
            await stream
        assert agent.state.status is AgentStatus.READY
    else:
        result = await stream
        assert result.outcome is Outcome.FAILED
        assert result.error is error
    spy.hook = None
    agent._core.resources.provider = ScriptedProvider([text("better")])
    assert (await agent.execute_turn("and now?")).text == "better"
    await assert_whole(stores)


async def test_a_store_that_goes_away_ends_the_stream_with_its_error(make_agent, stores):
    """A lost store is no event: the stream fails, and the context can be taken up again."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("never")], tools=[add], stores=spy.stores
    )

    def gone(name, _argument):
        if name == "commit":
            raise StoreUnavailable("gone", outcome_known=False)

    spy.hook = gone
    events = []
    stream = agent.execute_turn("go")
    stream.subscribe(events.append, lambda _: None)
    with pytest.raises(StoreUnavailable):
        await stream
    assert types(events)[-1] != "turn_end"
    spy.hook = None
    agent._core.resources.provider = ScriptedProvider([text("better")])
    result = await agent.execute_turn("and now?")
    assert (result.turn, result.text) == (2, "better")
    [first, _] = await stores.journal.turns("ada")
    assert first.outcome is Outcome.INTERRUPTED
    await assert_whole(stores)


async def test_text_that_cannot_be_stored_is_repaired_with_a_warning(make_agent, stores):
    """A model that writes NUL is no reason to lose its answer."""
    agent = await make_agent([text("a\x00b")], stores=stores)
    events, result = await run(agent)
    assert result.text == "a\ufffdb"
    assert [e.code for e in events if e.type == "warning"] == ["text_repaired"]
    assert (await agent.get_messages())[-1].text == "a\ufffdb"


async def test_the_same_call_id_twice_is_made_unique(make_agent, stores):
    """Two calls of one turn never share an id, whatever the provider says."""

    class Repeating(ScriptedProvider):
        """Numbers every call 1."""

        def _call_id(self):
            return "call_1"

    agent = await make_agent(
        Repeating(
            [
                (tool_call("add", a=1, b=1), tool_call("add", a=2, b=2)),
                tool_call("add", a=3, b=3),
                text("ok"),
            ]
        ),
        tools=[add],
        stores=stores,
    )
    await agent.execute_turn("go")
    results = [m for m in await agent.get_messages() if isinstance(m, ToolResultMessage)]
    assert [r.text for r in results] == ["2", "4", "6"]
    assert len({r.tool_call_id for r in results}) == 3
    await assert_whole(stores)


class _Incomparable:
    """A value that no `==` may be asked of, like an array."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


class _Unreadable(dict):
    """Details that cannot even be looked at."""

    def items(self):
        raise RuntimeError("no")


async def test_a_finished_tool_with_strange_details_is_answered(make_agent, stores):
    """What a tool hands back beside its text never costs the call its result."""

    @tool
    def measure() -> ToolResult:
        """Measure."""
        return ToolResult("done", details=_Incomparable())

    agent = await make_agent([tool_call("measure"), text("ok")], stores=stores, tools=[measure])
    result = await agent.execute_turn("go")
    assert (result.outcome, result.messages[2].text) == (Outcome.COMPLETED, "done")
    await assert_whole(stores)


async def test_a_report_may_be_any_number(make_agent, stores):
    """An integer beyond every float is shown as it is."""

    @tool
    def count(context: ToolContext) -> str:
        """Count."""
        context.report(10**400)
        return "done"

    agent = await make_agent([tool_call("count"), text("ok")], stores=stores, tools=[count])
    events, result = await run(agent)
    assert result.outcome is Outcome.COMPLETED
    assert [e.partial_result for e in events if e.type == "tool_execution_update"] == [10**400]


async def test_a_tool_with_an_unstorable_result_is_not_run_again(make_agent, stores):
    """The call is answered, as of unknown outcome, and so are those behind it."""
    runs = []

    @tool
    def act() -> ToolResult:
        """Act."""
        runs.append(1)
        return ToolResult("done", details=_Unreadable(a=1))

    replies = [(tool_call("act"), tool_call("add", a=1, b=2)), text("ok")]
    agent = await make_agent(replies, stores=stores, tools=[act, add])
    failed = await agent.execute_turn("go")
    assert failed.outcome is Outcome.FAILED
    assert [m.text for m in failed.messages[2:]] == [OUTCOME_UNKNOWN, NOT_STARTED]
    assert (await agent.execute_turn(None)).text == "ok"
    assert runs == [1]
    await assert_whole(stores)


@pytest.mark.parametrize("before", [(), (text("half"),)], ids=["at-once", "in-the-middle"])
async def test_an_error_text_that_no_store_accepts_is_stored_repaired(make_agent, stores, before):
    """An error's own text may hold what no store takes; the error stays what it is."""
    error = LLMError("no \0 and \ud800 here")
    agent = await make_agent([(*before, failure(error))], stores=stores)
    events, result = await run(agent)
    assert result.error is error
    assert events[-2].text == str(agent.state.error) == "no \ufffd and \ufffd here"
    assert type(agent.state.error) is LLMError
    await assert_whole(stores)


async def test_a_second_try_after_a_refused_history_is_counted(make_agent, memory_stores):
    """How many model calls an answer took is told, whatever they were for."""
    replies = [failure(HistoryRejected("no")), text("ok")]
    agent = await make_agent(replies, stores=memory_stores)
    events, _ = await run(agent)
    assert [e.attempt for e in events if isinstance(e, StatusChange)] == [2]
    assert [e.attempts for e in events if isinstance(e, MessageEnd)][-1] == 2


async def test_details_too_large_to_store_cost_no_result(make_agent, stores):
    """The tool has finished: its text is kept, of the details that they were too large."""

    @tool
    async def big() -> ToolResult:
        """Say much beside the answer."""
        return ToolResult("done", details={"rows": "x" * 9_000_000})

    agent = await make_agent([tool_call("big"), text("ok")], tools=[big], stores=stores)
    assert (await agent.execute_turn("go")).text == "ok"
    (result,) = [m for m in await agent.get_messages() if isinstance(m, ToolResultMessage)]
    assert (result.text, list(result.details)) == ("done", ["omitted"])


async def test_a_message_appended_beside_an_agent_is_seen_by_its_next_turn(make_agent, stores):
    """Outside a turn anybody may append; who knew the context before reads it first."""
    provider = ScriptedProvider([text("one"), text("two")])
    agent = await make_agent(provider, stores=stores)
    await agent.execute_turn("first")
    await stores.messages.append("ada", [UserMessage("by the way")])
    await agent.execute_turn("second")
    said = [m.text for m in provider.requests[1].messages]
    assert said == ["first", "one", "by the way", "second"]


async def test_a_turn_ended_by_its_store_reports_its_usage(make_agent, stores):
    """The answers that were stored were paid for: they count for the result and the context."""
    spy = SpyStores(stores)
    agent = await make_agent(
        [tool_call("add", a=1, b=2), tool_call("add", a=3, b=4), text("never")],
        tools=[add],
        stores=spy.stores,
    )

    def refuse(name, given):
        if name == "commit" and any(e.iteration == 2 for e in given.events):
            spy.hook = None
            raise ValueRefused("/messages/4: too long", path="/messages/4")

    spy.hook = refuse
    _, result = await run(agent)
    assert result.outcome is Outcome.FAILED
    answers = [m for m in result.messages if isinstance(m, AssistantMessage)]
    assert answers
    used = sum((m.usage for m in answers), Usage())
    assert used.total_tokens > 0
    assert result.usage == used
    assert agent.state.usage == used
    assert (await stores.state.load("ada")).state.usage == used
    (turn,) = await stores.journal.turns("ada")
    assert turn.usage == used
