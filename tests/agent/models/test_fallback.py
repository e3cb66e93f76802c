"""Several providers as one: the next is asked when one cannot answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.agent.kit import assert_whole, collect, look
from tests.agent.model_kit import HANGS, TEN, StepByStep, priced
from tests.unit.llm.test_fallback_breaker import Clock

from looopy import AuthContext, LoopConfig, RetryPolicy
from looopy.errors import (
    ConfigurationError,
    ContextOverflow,
    HistoryRejected,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    RateLimited,
    UnknownModel,
)
from looopy.llm import FallbackProvider
from looopy.testing import ScriptedProvider
from looopy.types.config import Hooks
from looopy.types.message import (
    AssistantMessage,
    TextContent,
    ThinkingContent,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions
from looopy.types.state import Outcome

DOWN = LLMUnavailable("no connection")
ONCE = RetryPolicy(attempts=0)


def two(*first, second=(("ok",),), **options):
    """A chain of two, each with its calls."""
    one, other = StepByStep(*first, name="one"), StepByStep(*second, name="two")
    return FallbackProvider([one, other], **options), one, other


async def play(chain, request=None, **options):
    """All events of one call."""
    request = request or LLMRequest(messages=[UserMessage("go")])
    return [e async for e in chain.stream(request, StreamOptions(**options))]


async def test_the_one_that_took_over_is_reported():
    """Before its first piece; also while the first is left out, and not by the first itself."""
    clock = Clock()
    chain, _, _ = two([DOWN], ["back"], failures=1, clock=clock, second=[["a"], ["b"]])
    told = []
    for _ in range(2):
        options = StreamOptions(report=told.append)
        request = LLMRequest(messages=[UserMessage("go")])
        async for event in chain.stream(request, options):
            assert event.type == "start" or told
    assert [(one.asked, one.answered, one.by) for one in told] == [
        ("one/one", "two/two", "fallback")
    ] * 2
    assert told[0].reason == "no connection"
    assert "left out" in told[1].reason
    clock.now += 100
    assert (await play(chain, report=told.append))[-1].message.provider == "one"
    assert len(told) == 2


async def test_the_first_is_asked_and_the_others_are_not():
    """As long as it answers."""
    chain, one, other = two(["hello"])
    events = await play(chain)
    assert [e.type for e in events] == ["start", "text_start", "text_delta", "text_end", "done"]
    assert events[-1].message.provider == "one"
    assert (len(one.requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        RateLimited("slow down"),
        RateLimited("the quota is used up", retryable=False),
        LLMError("no such model", status=404),
        InvalidLLMResponse("a web page"),
    ],
)
async def test_the_next_model_answers_after_an_error_that_is_only_of_the_first(
    make_agent, stores, error
):
    """The turn goes on as if nothing had been; it is told, and the message says who answered."""
    chain, *_ = two([error])
    agent = await make_agent(chain, stores=stores, loop_config=LoopConfig(retry=ONCE))
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert (result.text, result.messages[-1].provider, result.messages[-1].model) == (
        "ok",
        "two",
        "two",
    )
    [told] = [e for e in events if e.type == "warning"]
    assert told.code == "fallback"
    assert told.text == f"one/one did not answer, two/two is asked: {error}"
    assert not [e for e in events if e.type == "status_change"]
    await assert_whole(stores)


@pytest.mark.parametrize(
    "error",
    [
        LLMError("the key was refused"),
        HistoryRejected("not valid"),
        ContextOverflow("too long"),
    ],
)
async def test_an_error_of_request_or_configuration_tries_no_other_model(error):
    """It is the request, or the configuration, that is wrong."""
    chain, _, other = two([error])
    assert (await play(chain))[-1].error is error
    assert other.requests == []


async def test_half_an_answer_is_not_continued_by_another():
    """What was shown stands until the loop tries again."""
    chain, _, other = two(["half", DOWN])
    last = (await play(chain))[-1]
    assert (last.error, last.message.text) == (DOWN, "half")
    assert other.requests == []


@pytest.mark.parametrize("step", [RuntimeError("a defect"), None])
async def test_a_provider_that_breaks_its_contract_is_passed_over(step):
    """It raises, or its stream just ends."""

    class Ends(StepByStep):
        async def stream(self, request, options=None):
            if step is not None:
                raise step
            for event in ():
                yield event

    chain = FallbackProvider([Ends(), StepByStep(["ok"], name="two")])
    assert (await play(chain))[-1].message.text == "ok"


async def test_the_warning_comes_before_the_next_one_thinks(make_agent, memory_stores):
    """Who waits is told why at once."""
    chain, _, other = two([DOWN], second=([HANGS],))
    agent = await make_agent(chain, stores=memory_stores)
    stream = agent.execute_turn("go")
    async for event in stream:
        if event.type == "warning":
            stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED
    assert other.left.is_set() == other.hanging.is_set()


async def test_if_all_models_fail_the_most_transient_error_is_raised():
    """It keeps its kind and facts, and tells of all of them."""
    soon = RateLimited("slow down", retry_after_s=3.0)
    models = [
        StepByStep([RateLimited("slow down", retry_after_s=30.0)], name="a"),
        StepByStep([soon], name="b"),
        StepByStep([LLMError("no such model", status=404)], name="c"),
    ]
    error = (await play(FallbackProvider(models)))[-1].error
    assert (type(error), error.retryable, error.retry_after_s) == (RateLimited, True, 3.0)
    assert str(error) == "a/a: slow down; b/b: slow down; c/c: no such model"


async def test_the_loop_tries_the_whole_chain_again(make_agent, memory_stores):
    """A passing failure of all of them passes."""
    chain, one, _ = two([DOWN], ["back"], second=([DOWN],))
    config = LoopConfig(retry=RetryPolicy(base_s=0))
    agent = await make_agent(chain, stores=memory_stores, loop_config=config)
    assert (await agent.execute_turn("go")).text == "back"
    assert len(one.requests) == 2


async def test_usage_of_failed_models_counts():
    """It was paid for, whoever answered."""
    chain, *_ = two([TEN, DOWN], second=([TEN, "ok"],))
    assert (await play(chain))[-1].message.usage == priced(2)
    chain, *_ = two([TEN, DOWN], second=([TEN, DOWN],))
    assert (await play(chain))[-1].message.usage == priced(2)


# --- left out --------------------------------------------------------------------------------


async def test_a_model_that_fails_repeatedly_is_skipped_for_a_while():
    """Five times; a minute later it is tried once, and is back when it answers."""
    clock = Clock()
    chain, one, _ = two(*[[DOWN]] * 6, ["back"], ["again"], second=[["ok"]] * 9, clock=clock)
    for _ in range(7):
        assert (await play(chain))[-1].message.provider == "two"
    assert len(one.requests) == 5
    clock.now += 60
    await play(chain)  # the trial fails
    await play(chain)
    assert len(one.requests) == 6
    clock.now += 60
    assert [(await play(chain))[-1].message.text for _ in range(2)] == ["back", "again"]


async def test_a_model_that_answers_in_between_is_not_skipped():
    """Only failures in a row count."""
    chain, *_ = two(*[[DOWN]] * 4, ["1"], *[[DOWN]] * 4, ["2"], second=[["ok"]] * 8)
    said = [(await play(chain))[-1].message.text for _ in range(10)]
    assert said == ["ok"] * 4 + ["1"] + ["ok"] * 4 + ["2"]


async def test_a_broken_answer_counts_as_a_failure():
    """Though nobody else could be asked."""
    chain, one, _ = two(*[["half", DOWN]] * 5)
    for _ in range(5):
        await play(chain)
    assert (await play(chain))[-1].message.provider == "two"
    assert len(one.requests) == 5


async def test_a_wrong_request_opens_no_circuit():
    """However often it comes."""
    chain, one, _ = two(*[[ContextOverflow("too long")]] * 6)
    for _ in range(6):
        await play(chain)
    assert len(one.requests) == 6


async def test_the_error_of_skipping_every_model_has_the_delay():
    """It may be tried again then."""
    clock = Clock()
    chain, *_ = two(*[[DOWN]] * 5, second=[[DOWN]] * 5, clock=clock)
    for _ in range(5):
        await play(chain)
    clock.now += 20
    error = (await play(chain))[-1].error
    assert (type(error), error.retryable, error.retry_after_s) == (LLMUnavailable, True, 40.0)
    assert "one/one, two/two" in str(error)


async def test_a_cancelled_trial_leaves_room_for_another():
    """Whoever leaves has learnt nothing."""
    clock = Clock()
    chain, one, _ = two(*[[DOWN]] * 5, ["half", HANGS], ["back"], second=[["ok"]] * 5, clock=clock)
    for _ in range(5):
        await play(chain)
    clock.now += 60
    async with aclosing(chain.stream(LLMRequest(messages=[UserMessage("go")]))) as events:
        async for event in events:
            if event.type == "text_delta":
                break
    assert (await play(chain))[-1].message.text == "back"
    assert len(one.requests) == 7


async def test_cancelling_reaches_the_one_that_is_asked():
    """Its stream is closed, and nobody else is asked."""
    chain, one, other = two([HANGS])
    task = asyncio.create_task(play(chain))
    await one.hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.left.is_set()
    assert other.requests == []


# --- what each of them is given ----------------------------------------------------------------


async def test_the_history_is_rendered_for_the_one_that_is_asked():
    """What one signed, no other can read; each gets its own back."""
    thought = [ThinkingContent("hm", thinking_signature="s"), TextContent("a")]
    history = [
        UserMessage("a"),
        AssistantMessage(thought, provider="one", model="one"),
        UserMessage("b"),
        AssistantMessage(thought, provider="two", model="two"),
        UserMessage("c"),
    ]
    chain, one, other = two([DOWN])
    await play(chain, LLMRequest(messages=history))

    def thinking_in(model):
        return [len(m.content) for m in model.requests[0].messages if m.role == "assistant"]

    assert (thinking_in(one), thinking_in(other)) == ([2, 1], [1, 2])


async def test_the_agent_leaves_the_rendering_to_the_chain(make_agent, stores):
    """So that what the second had signed comes back to it, turns later."""

    class Signs(StepByStep):
        """Signs a thought with each answer."""

        async def stream(self, request, options=None):
            from dataclasses import replace

            async for event in super().stream(request, options):
                if event.type == "done":
                    signed = ThinkingContent("hm", thinking_signature="two's")
                    content = (signed, *event.message.content)
                    message = replace(event.message, content=content)
                    yield replace(event, message=message)
                else:
                    yield event

    other = Signs(["1"], ["2"], name="two")
    chain = FallbackProvider([StepByStep([DOWN], [DOWN], name="one"), other])
    agent = await make_agent(chain, stores=stores)
    await agent.execute_turn("a")
    await agent.execute_turn("b")
    assert len(other.requests[1].messages[1].content) == 2
    assert len(chain.providers[0].requests[1].messages[1].content) == 1


async def test_each_is_called_with_its_own_key(make_agent, memory_stores):
    """Asked for by its name, for each call; a key of nobody's goes to nobody."""
    asked = []

    async def key_of(name, auth):
        asked.append(name)
        return f"key of {name} for {auth.actor_id}"

    chain, one, other = two([DOWN])
    agent = await make_agent(
        chain, stores=memory_stores, loop_config=LoopConfig(hooks=Hooks(get_api_key=key_of))
    )
    await agent.execute_turn("go", auth_context=AuthContext("u1"))
    assert [m.options[0].api_key for m in (one, other)] == [
        "key of one for u1",
        "key of two for u1",
    ]
    assert asked == ["one", "two"]
    chain, one, _ = two(["ok"])
    await play(chain, api_key="whose")
    assert one.options[0].api_key is None


async def test_the_time_of_a_call_is_that_of_the_chain():
    """Who is asked later has what is left; the rest of the options is the same."""
    chain, one, other = two([DOWN])
    await play(chain, timeout_s=50.0, temperature=0.5, session_id="s")
    assert 50.0 >= one.options[0].timeout_s > other.options[0].timeout_s
    assert (other.options[0].temperature, other.options[0].session_id) == (0.5, "s")


async def test_a_chain_may_be_part_of_a_chain():
    """It asks for its keys and renders by itself."""
    inner, one, _ = two(["ok"])
    chain = FallbackProvider([StepByStep([DOWN], name="zero"), inner])

    async def key_of(name):
        return f"key of {name}"

    assert (await play(chain, key_of=key_of))[-1].message.text == "ok"
    assert one.options[0].api_key == "key of one"


async def test_it_is_as_wide_as_its_narrowest_window():
    """Whoever is asked should be able to read it all; what is not known is left out."""
    models = [StepByStep(window_tokens=w) for w in (None, 200_000, 8_000)]
    assert FallbackProvider(models).window_tokens == 8_000
    assert FallbackProvider(models[:1]).window_tokens is None


async def test_all_of_them_are_made_ready_and_closed():
    """Those that want to be; one that fails to close keeps no other open."""
    done = []

    class Careful(StepByStep):
        async def prepare(self):
            done.append("prepared")

        async def aclose(self):
            done.append("closed")
            raise RuntimeError("it broke")

    chain = FallbackProvider([Careful(), StepByStep(), Careful()])
    await chain.prepare()
    with pytest.raises(RuntimeError):
        await chain.aclose()
    assert done == ["prepared", "prepared", "closed", "closed"]


@pytest.mark.parametrize(
    ("providers", "options", "error"),
    [
        ([], {}, ConfigurationError),
        ("openai/gpt-5-mini", {}, ConfigurationError),
        (["nonsense"], {}, UnknownModel),
        ([ScriptedProvider([])], {"failures": 0}, ConfigurationError),
        ([ScriptedProvider([])], {"cooldown_s": -1}, ConfigurationError),
    ],
)
def test_an_invalid_chain_is_refused(providers, options, error):
    """At once."""
    with pytest.raises(error):
        FallbackProvider(providers, **options)


async def test_a_turn_with_tools_may_be_answered_by_two(make_agent, stores):
    """One asks for the tool, the other reads its result."""
    chain, *_ = two([("look",)], [DOWN], second=(["seen"],))
    agent = await make_agent(chain, tools=[look], stores=stores)
    result = await agent.execute_turn("go")
    assert [m.provider for m in result.messages if m.role == "assistant"] == ["one", "two"]
    await assert_whole(stores)
