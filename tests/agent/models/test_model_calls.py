"""What a model call uses, how long it may take, and what becomes of one that does not fit."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import add, assert_whole, collect, look
from tests.agent.model_kit import HANGS, TEN, StepByStep, priced
from tests.loop_time import advance

from looopy import AuthContext, Budget, LoopConfig, RetryPolicy, tool
from looopy.auth.redaction import Redactor
from looopy.errors import ContextOverflow, LimitExceeded, LLMError, LLMUnavailable
from looopy.history.view import View
from looopy.loop.given import Given, TurnPlan
from looopy.loop.outgoing import Group
from looopy.loop.turn import run_turn
from looopy.stores.owner import Owner
from looopy.stores.records import Commit
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import answer, begin, said
from looopy.types.config import Hooks
from looopy.types.context import CancelToken, TurnContext
from looopy.types.event import IterationEnd, UsageReport
from looopy.types.message import StopReason, ToolCall, Usage, UserMessage
from looopy.types.state import Outcome

FAST = RetryPolicy(base_s=0)
CALL = ToolCall("c1", "look")
WEAK = LLMUnavailable("a moment")


def config(**options):
    """Limits without waits."""
    return LoopConfig(retry=FAST, **options)


def of_iterations(events):
    """What each iteration used, as it is told."""
    reported = [e.usage for e in events if isinstance(e, UsageReport)]
    assert reported == [e.usage for e in events if isinstance(e, IterationEnd)]
    return reported


# --- what is used ----------------------------------------------------------------------------


async def test_usage_is_summed_over_iterations_turns_and_the_context(make_agent, stores):
    """Tokens and cost, each call once."""
    agent = await make_agent(
        StepByStep([TEN, ("look",)], [TEN, "seen"], [TEN, "again"]), tools=[look], stores=stores
    )
    events = await collect(agent.execute_turn("a"))
    result = await agent.execute_turn("b")
    reports = [e for e in events if isinstance(e, UsageReport)]
    assert [r.turn_usage for r in reports] == [TEN, priced(2)]
    assert of_iterations(events) == [TEN, TEN]
    assert [i.usage for i in result.iterations] == [TEN]
    assert events[-1].usage == priced(2)
    assert (result.usage, agent.state.usage) == (TEN, priced(3))


async def test_usage_of_a_failed_attempt_counts(make_agent, stores):
    """Nothing of it is in the history, but it was paid for."""
    agent = await make_agent(
        StepByStep([TEN, "half", WEAK], [TEN, "whole"]), stores=stores, loop_config=config()
    )
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.text, result.usage) == ("whole", priced(2))
    assert of_iterations(events) == [priced(2)]
    assert result.messages[-1].usage == TEN
    assert agent.state.usage == priced(2)


@pytest.mark.parametrize("said", [(), ("half",)])
async def test_a_failed_turn_counts_what_it_used(make_agent, stores, said):
    """Whether the model had said anything or not."""
    agent = await make_agent(
        StepByStep([TEN, ("look",)], [TEN, *said, LLMError("no")]), tools=[look], stores=stores
    )
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.outcome, result.usage) == (Outcome.FAILED, priced(2))
    assert of_iterations(events) == [TEN, TEN]
    assert agent.state.usage == priced(2)
    await assert_whole(stores)


@pytest.mark.parametrize("said", [(), ("half",)])
async def test_a_cancelled_turn_counts_what_it_used_so_far(make_agent, stores, said):
    """As far as the provider had told."""
    model = StepByStep([TEN, ("look",)], [*said, TEN, HANGS])
    agent = await make_agent(model, tools=[look], stores=stores)
    stream = agent.execute_turn("go")
    await model.hanging.wait()
    stream.cancel()
    events, result = await collect(stream), await stream
    assert (result.outcome, result.usage) == (Outcome.CANCELLED, priced(2))
    assert of_iterations(events) == [TEN, TEN]
    assert agent.state.usage == priced(2)
    await assert_whole(stores)


async def test_a_killed_turn_counts_what_was_committed(make_agent, stores):
    """Whoever finds it closes it with that, and the context goes on counting from there."""
    owner = Owner.new()
    claimed = await begin(stores, 0, holder=owner.token())
    await stores.commit(
        Commit(context_id="ada", epoch=claimed.epoch, turn=1, events=[said(answer("", CALL))])
    )
    owner.retire()
    agent = await make_agent(StepByStep([TEN, "seen"]), tools=[look], stores=stores)
    used = Usage(input=7, output=3, total_tokens=10)
    assert agent.state.usage == used
    [turn] = await stores.journal.turns("ada")
    assert (turn.stop_reason, turn.usage) == (StopReason.INTERRUPTED, used)
    await agent.execute_turn(None)
    assert agent.state.usage == used + TEN


async def test_a_budget_of_money_counts_failed_attempts(make_agent, memory_stores):
    """Three quarters of a dollar a call: the third is one too many."""
    agent = await make_agent(
        StepByStep([TEN, WEAK], [TEN, ("look",)], [TEN, "never"]),
        tools=[look],
        stores=memory_stores,
        loop_config=config(budget=Budget(cost_usd=1.5)),
    )
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.BUDGET
    assert isinstance(result.error, LimitExceeded)
    assert result.usage.cost.total == 1.5


# --- how long it may take --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"llm_idle_timeout_s": 0.01}, "sent nothing for 0.01 s"),
        ({"llm_timeout_s": 0.02}, "did not answer within 0.02 s"),
    ],
    ids=["idle", "total"],
)
@pytest.mark.parametrize("spoken", [(), ("half",)])
async def test_a_provider_that_never_looks_at_the_time_is_given_up(
    make_agent, stores, limits, said, spoken
):
    """The pending read is cancelled, and the call is made again."""
    model = StepByStep([*spoken, TEN, HANGS], ["whole"])
    agent = await make_agent(model, stores=stores, loop_config=config(**limits))
    events = await collect(agent.execute_turn("go"))
    assert model.left.is_set()
    [retry] = [e for e in events if e.type == "status_change"]
    assert said in retry.reason
    assert events[-1].messages[-1].text == "whole"
    assert events[-1].usage == TEN
    await assert_whole(stores)


async def test_a_provider_that_never_answers_fails_the_turn(make_agent, stores):
    """What it had said is kept, marked as failed."""
    agent = await make_agent(
        StepByStep(["half", HANGS]),
        stores=stores,
        loop_config=LoopConfig(retry=RetryPolicy(attempts=0), llm_idle_timeout_s=0.01),
    )
    result = await agent.execute_turn("go")
    assert isinstance(result.error, LLMUnavailable)
    assert (result.messages[-1].text, result.messages[-1].stop_reason) == ("half", StopReason.ERROR)
    await assert_whole(stores)


async def test_the_timeouts_of_a_call_reach_the_provider(make_agent, memory_stores):
    """Which watches its connection itself."""
    model = StepByStep(["ok"])
    limits = {"llm_timeout_s": 9.0, "llm_idle_timeout_s": 5.0, "llm_connect_timeout_s": 3.0}
    agent = await make_agent(model, stores=memory_stores, loop_config=config(**limits))
    await agent.execute_turn("go")
    [options] = model.options
    found = (options.timeout_s, options.idle_timeout_s, options.connect_timeout_s)
    assert found == (9.0, 5.0, 3.0)


# --- what does not fit -----------------------------------------------------------------------


async def play(model, relief=None, *, history=()):
    """A bare turn: its events, and how often it would have committed."""
    context = TurnContext(context_id="loop", cancel=CancelToken())
    given = Given(
        context=context,
        provider=model,
        sources=(look,),
        config=config(),
        redactor=Redactor(),
        view=View(list(history)),
    )
    plan = TurnPlan(prompts=[UserMessage("go")])
    outs = run_turn(given, plan, relief)
    events, groups = [], []
    async for out in outs:
        if isinstance(out, Group):
            groups.append(out)
            events += out.events
        else:
            events.append(out)
    return events, groups


class Relief:
    """Puts something short in the place of all but the last message, and says so."""

    def __init__(self, *, helps: bool = True) -> None:
        self.helps = helps
        self.asked: list[ContextOverflow] = []

    async def __call__(self, turn, error):
        """Make room."""
        self.asked.append(error)
        history = turn.given.view.history
        history[:-1] = [UserMessage("brief") for _ in history[:-1]]
        turn.out.warn("compacted", "made room")
        return self.helps


async def test_turn_closes_no_group_without_events():
    """Before the first model call nothing is left to commit."""
    _, groups = await play(ScriptedProvider([tool_call("look"), text("ok")]))
    assert all(group.events for group in groups)
    kinds = [[event.type for event in group.events][-1] for group in groups]
    assert kinds == ["message_end", "tool_execution_start", "iteration_start", "turn_end"]


HISTORY = [UserMessage("old"), UserMessage("older")]


async def test_an_overflow_is_relieved_once_and_the_call_made_again():
    """What the relief tells is committed before the model is asked; nothing counts as a retry."""
    full = ContextOverflow("too long", limit_tokens=100)
    model, relief = StepByStep([TEN, full], ["ok"]), Relief()
    events, groups = await play(model, relief, history=HISTORY)
    assert relief.asked == [full]
    assert [m.text for m in model.requests[0].messages] == ["old", "older", "go"]
    assert [m.text for m in model.requests[1].messages] == ["brief", "brief", "go"]
    [retry] = [e for e in events if e.type == "status_change"]
    assert (retry.attempt, retry.delay_s, retry.reason) == (2, 0.0, "too long")
    kinds = [e.type for e in events]
    assert kinds.index("warning") < kinds.index("status_change")
    assert [g for g in groups if [e.type for e in g.events] == ["warning"]]
    assert (events[-1].outcome, events[-1].usage) == (Outcome.COMPLETED, TEN)


async def test_a_second_overflow_of_a_turn_fails_it():
    """Relief that did not help once will not help twice."""
    full = ContextOverflow("too long")
    relief = Relief()
    events, _ = await play(StepByStep([full], [("look",)], [full]), relief, history=HISTORY)
    assert len(relief.asked) == 1
    assert events[-1].outcome is Outcome.FAILED
    assert events[-2].error is full


@pytest.mark.parametrize("helps", [None, False])
async def test_an_overflow_without_relief_fails_the_turn(helps):
    """Nobody makes room, or there is none to be made."""
    full = ContextOverflow("too long")
    relief = None if helps is None else Relief(helps=helps)
    events, _ = await play(StepByStep([full]), relief)
    assert events[-1].outcome is Outcome.FAILED
    assert events[-2].error is full


async def test_a_relief_that_breaks_is_a_warning():
    """The turn fails with the overflow, not with that."""

    async def broken(turn, error):
        raise RuntimeError("no summary")

    full = ContextOverflow("too long")
    events, _ = await play(StepByStep([full]), broken)
    assert events[-2].error is full
    assert [e.code for e in events if e.type == "warning"] == ["context_overflow"]


OVER = Usage(input=60, cache_read=50, output=5, total_tokens=115)
NO_ROOM = Usage(input=99, output=0, total_tokens=99)


@pytest.mark.parametrize("steps", [(OVER, "cut"), (NO_ROOM, StopReason.LENGTH)])
async def test_an_answer_to_more_than_the_window_holds_is_an_overflow(steps):
    """The server cut the request without a word; the call is made again with less."""
    model, relief = StepByStep(steps, ["ok"], window_tokens=100), Relief()
    events, _ = await play(model, relief, history=HISTORY)
    assert [e.limit_tokens for e in relief.asked] == [100]
    assert [m.text for m in events[-1].messages] == ["go", "ok"]
    assert events[-1].usage == steps[0]


@pytest.mark.parametrize("helps", [None, False])
async def test_an_answer_that_cannot_be_had_better_stands_with_a_warning(helps):
    """Said once a turn."""
    model = StepByStep([OVER, ("look",)], [OVER, "cut"], window_tokens=100)
    events, _ = await play(model, None if helps is None else Relief(helps=helps))
    told = [e for e in events if e.type == "warning" and e.code == "context_overflow"]
    assert len(told) == 1
    assert "110 tokens" in told[0].text
    assert (events[-1].outcome, events[-1].messages[-1].text) == (Outcome.COMPLETED, "cut")


@pytest.mark.parametrize(
    ("usage", "window"), [(OVER, None), (OVER, 110), (Usage(input=99, output=1), 100)]
)
async def test_an_answer_that_fits_is_none(usage, window):
    """Also where the window is not known."""
    relief = Relief()
    events, _ = await play(StepByStep([usage, "ok"], window_tokens=window), relief)
    assert relief.asked == []
    assert [e for e in events if e.type == "warning"] == []


# --- what is told, and who is asked ----------------------------------------------------------


async def test_a_warning_of_a_provider_is_an_event_at_once(make_agent, memory_stores):
    """Before the message it concerns begins; also when the call then fails."""
    model = StepByStep(
        [lambda options: options.warn("slow", "one"), "half", WEAK],
        [lambda options: options.warn("slow", "two"), WEAK],
        ["whole", lambda options: options.warn("slow", "three")],
    )
    agent = await make_agent(model, stores=memory_stores, loop_config=config())
    events = await collect(agent.execute_turn("go"))
    told = [
        e.text if e.type == "warning" else e.type
        for e in events
        if e.type in ("warning", "status_change", "message_update", "turn_end")
    ]
    assert [t for t in told if t != "message_update"] == [
        "one", "status_change", "two", "status_change", "three", "turn_end",
    ]  # fmt: skip
    assert told.index("one") < told.index("message_update")


async def test_a_key_is_asked_for_before_each_call(make_agent, memory_stores):
    """Short-lived tokens stay fresh; a hook that has none leaves it to the provider."""
    keys = iter(["first", None, "third"])
    asked = []

    async def key_of(provider, auth):
        asked.append((provider, auth.actor_id))
        return next(keys)

    model = StepByStep([("look",)], [WEAK], ["ok"])
    agent = await make_agent(
        model,
        tools=[look],
        stores=memory_stores,
        loop_config=config(hooks=Hooks(get_api_key=key_of)),
    )
    await agent.execute_turn("go", auth_context=AuthContext("u1"))
    assert [o.api_key for o in model.options] == ["first", None, "third"]
    assert asked == [("steps", "u1")] * 3


async def test_a_provider_of_several_asks_for_their_keys_itself(make_agent, memory_stores):
    """By the name of each; what the hook says is shown nowhere."""
    seen = []

    class Several(StepByStep):
        asks_for_keys = True

        async def stream(self, request, options=None):
            seen.append((options.api_key, await options.key_of("one"), await options.key_of("two")))
            async for event in super().stream(request, options):
                yield event

    agent = await make_agent(
        Several(["the secret is key-of-two-12345"]),
        stores=memory_stores,
        loop_config=config(hooks=Hooks(get_api_key=lambda name, _: f"key-of-{name}-12345")),
    )
    result = await agent.execute_turn("go")
    assert seen == [(None, "key-of-one-12345", "key-of-two-12345")]
    assert "key-of-two" not in result.text


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_history_changed_by_hooks_is_used_for_one_call(make_agent, stores, is_async):
    """Pruned, then converted, at each call anew; the log is untouched."""

    def prune(messages):
        return messages[-2:]

    def convert(messages):
        return [UserMessage(f"<{m.text}>") if m.role == "user" else m for m in messages]

    def maybe_async(function):
        async def later(messages):
            return function(messages)

        return later if is_async else function

    provider = ScriptedProvider([text("1"), text("2")])
    hooks = Hooks(transform_context=maybe_async(prune), convert_to_llm=maybe_async(convert))
    agent = await make_agent(provider, tools=[add], stores=stores, loop_config=config(hooks=hooks))
    await agent.execute_turn("a")
    await agent.execute_turn("b")
    assert [[m.text for m in r.messages] for r in provider.requests] == [["<a>"], ["1", "<b>"]]
    assert [m.text for m in await agent.get_messages()] == ["a", "1", "b", "2"]


@pytest.mark.parametrize("limit", ["llm_idle_timeout_s", "llm_timeout_s"])
async def test_a_tool_may_take_longer_than_a_model(make_agent, memory_stores, limit):
    """The watch over a call of the model ends with that call."""

    @tool
    async def slow() -> str:
        """Take ten minutes."""
        advance(600)
        for _ in range(10):
            await asyncio.sleep(0)
        return "at last"

    agent = await make_agent(
        StepByStep([TEN, "hm", ("slow",)], ["done"]),
        tools=[slow],
        stores=memory_stores,
        loop_config=LoopConfig(retry=RetryPolicy(attempts=0), tool_timeout_s=None, **{limit: 60.0}),
    )
    result = await agent.execute_turn("go")
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "done")
    assert result.iterations[0].tool_results[0].text == "at last"
