"""A summary speaks for the older part of a history, which stays readable, in every process."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from tests.agent.kit import Gate, assert_answered, assert_valid, assert_whole, collect, look, types

from looopy import Agent, Compaction, Hooks, LoopConfig, RetryPolicy
from looopy.errors import (
    AgentBusy,
    AgentStateError,
    CannotContinue,
    ContextOverflow,
    LLMError,
    LLMUnavailable,
    StoreConflict,
    ValueRefused,
)
from looopy.stores.records import NewSummary
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.contracts.turns import answer
from looopy.testing.faults import SpyStores
from looopy.types.event import MessageEnd, TurnWarning
from looopy.types.message import AssistantMessage, CustomMessage, UserMessage
from looopy.types.state import Outcome
from looopy.types.summary import is_summary

FAST = RetryPolicy(base_s=0)


def too_long():
    """What a provider says of a request that its model's window does not hold."""
    return failure(ContextOverflow("too long", limit_tokens=10))


async def talk(agent, *questions):
    """Turns, one after the other."""
    for question in questions:
        await agent.execute_turn(question)


def shown(request):
    """What a request says, message by message."""
    return [message.text for message in request.messages]


async def summaries(agent):
    """The summaries of a history, oldest first."""
    return [m for m in await agent.get_messages() if is_summary(m)]


# --- between two turns ----------------------------------------------------------------------------


async def test_the_model_gets_the_summary_and_the_newest_turn(stores, make_agent):
    """In this process and in the next one; the history keeps all, and so does the log."""
    model = ScriptedProvider([text("A"), text("B"), text("A was said."), text("C"), text("D")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    event = await agent.compact()
    assert (event.covers, event.position, event.turn) == ((1, 2), 5, 2)
    assert event.tokens_before > 0 < event.tokens_after
    assert "a?" in shown(model.requests[2])[0]
    assert "b?" not in shown(model.requests[2])[0]
    assert list(model.requests[2].tools) == []
    await talk(agent, "c?")
    head, *rest = shown(model.requests[3])
    assert "A was said." in head
    assert rest == ["b?", "B", "c?"]
    again = await make_agent(model, stores=stores)
    await talk(again, "d?")
    assert shown(model.requests[4])[0] == head
    assert shown(model.requests[4])[1:] == ["b?", "B", "c?", "C", "d?"]
    assert [m.text for m in await again.get_messages() if not is_summary(m)] == [
        *("a?", "A", "b?", "B"),
        *("c?", "C", "d?", "D"),
    ]
    log = await stores.journal.events("ada")
    assert [e for e in log if isinstance(e, Compaction)] == [event]
    assert [e.seq for e in log] == list(range(1, len(log) + 1))
    placed = [e.position for e in log if isinstance(e, MessageEnd)]
    assert placed == list(range(1, 10))


async def test_a_summary_speaks_for_the_one_before_it(stores, make_agent):
    """Who writes the second is shown the first."""
    model = ScriptedProvider(
        [text("A"), text("B"), text("first"), text("C"), text("second"), text("D")]
    )
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await talk(agent, "c?")
    event = await agent.compact()
    assert event.covers == (1, 5)
    assert "first" in shown(model.requests[4])[0]
    assert "b?" in shown(model.requests[4])[0]
    await talk(agent, "d?")
    head, *rest = shown(model.requests[5])
    assert "second" in head
    assert "first" not in head
    assert rest == ["c?", "C", "d?"]


async def test_more_turns_are_kept_if_asked(memory_stores, make_agent):
    """And where there are no more than those, there is nothing to do."""
    model = ScriptedProvider([text("A"), text("B"), text("C"), text("sum"), text("D")])
    agent = await make_agent(model, stores=memory_stores)
    await talk(agent, "a?", "b?", "c?")
    assert await agent.compact(keep_turns=3) is None
    assert len(model.requests) == 3
    assert (await agent.compact(keep_turns=2)).covers == (1, 2)
    await talk(agent, "d?")
    assert shown(model.requests[4])[1:] == ["b?", "B", "c?", "C", "d?"]


async def test_an_empty_context_has_nothing_to_summarise(memory_stores, make_agent):
    """No model is asked."""
    agent = await make_agent([], stores=memory_stores)
    assert await agent.compact() is None


async def test_calls_and_results_stay_together(stores, make_agent):
    """A turn with tools is covered whole, or shown whole."""
    model = ScriptedProvider(
        [(text("I look"), tool_call("look")), text("A"), text("B"), text("sum"), text("C")]
    )
    agent = await make_agent(model, stores=stores, tools=[look])
    await talk(agent, "a?", "b?")
    await agent.compact()
    told = shown(model.requests[3])[0]
    assert "look" in told
    assert "seen" in told
    await talk(agent, "c?")
    assert shown(model.requests[4])[1:] == ["b?", "B", "c?"]
    assert_valid(await agent.get_messages())
    assert_answered([m for m in await agent.get_messages() if not is_summary(m)])


async def test_a_model_that_writes_no_summary_leaves_everything_as_it_was(stores, make_agent):
    """The error is the caller's."""
    model = ScriptedProvider([text("A"), text("B"), failure(LLMUnavailable), text("C")])
    config = LoopConfig(retry=RetryPolicy(attempts=0))
    agent = await make_agent(model, stores=stores, loop_config=config)
    await talk(agent, "a?", "b?")
    with pytest.raises(LLMUnavailable):
        await agent.compact()
    await assert_whole(stores)
    await talk(agent, "c?")
    assert shown(model.requests[3]) == ["a?", "A", "b?", "B", "c?"]


async def test_turns_that_came_meanwhile_are_still_shown(stores, make_agent):
    """Another agent speaks while the model writes."""
    other = await make_agent([text("C")], stores=stores)

    async def slow(_request):
        await talk(other, "c?")
        return text("sum")

    model = ScriptedProvider([text("A"), text("B"), slow, text("D")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    event = await agent.compact()
    assert (event.covers, event.position) == ((1, 2), 7)
    await talk(agent, "d?")
    assert shown(model.requests[3])[1:] == ["b?", "B", "c?", "C", "d?"]


async def test_a_context_cleared_meanwhile_gets_no_summary(stores, make_agent):
    """The summary of it is thrown away."""
    other = await make_agent([], stores=stores)

    async def slow(_request):
        await other.clear()
        return text("the secret is swordfish")

    agent = await make_agent([text("A"), text("B"), slow], stores=stores)
    await talk(agent, "a?", "b?")
    with pytest.raises(StoreConflict):
        await agent.compact()
    assert await agent.get_messages() == []
    assert "swordfish" not in repr(await stores.journal.events("ada"))


async def test_a_context_deleted_meanwhile_gets_no_summary(stores, make_agent):
    """Though a context of the same name has been made since."""

    async def slow(_request):
        await stores.state.delete("ada")
        other = await make_agent([text("N")], stores=stores)
        await talk(other, "new?")
        return text("the secret is swordfish")

    agent = await make_agent([text("A"), text("B"), slow], stores=stores)
    await talk(agent, "a?", "b?")
    with pytest.raises(StoreConflict):
        await agent.compact()
    assert [m.text for m in await agent.get_messages()] == ["new?", "N"]


async def test_a_summary_is_asked_for_again_like_any_answer(memory_stores, make_agent):
    """A passing failure of the model costs nothing of the history."""
    model = ScriptedProvider([text("A"), text("B"), failure(LLMUnavailable), text("sum")])
    agent = await make_agent(model, stores=memory_stores)
    await talk(agent, "a?", "b?")
    assert (await agent.compact()).covers == (1, 2)


async def test_the_key_of_a_call_is_in_no_error(memory_stores, make_agent):
    """A server repeats it, and the caller may log what it says."""
    key = "sk-1234567890abcdef"
    denied = failure(LLMError(f"wrong key {key}", retryable=False))
    hooks = Hooks(get_api_key=lambda _provider, _auth: key)
    agent = await make_agent(
        [text("A"), text("B"), denied],
        stores=memory_stores,
        loop_config=LoopConfig(retry=FAST, hooks=hooks),
    )
    await talk(agent, "a?", "b?")
    with pytest.raises(LLMError) as told:
        await agent.compact()
    assert key not in str(told.value)


async def test_messages_beyond_the_window_are_named_as_omitted(memory_stores, make_agent):
    """The model can read no more than half its window."""
    model = ScriptedProvider(lambda _request: text("x" * 4000))
    agent = await make_agent(
        model, stores=memory_stores, loop_config=LoopConfig(retry=FAST, history_tokens=None)
    )
    await talk(agent, *("q" * 4000 for _ in range(30)))
    await agent.compact()
    (summary,) = await summaries(agent)
    assert "oldest messages nothing is said" in summary.text


async def test_messages_of_an_own_role_are_summarised_too(memory_stores, make_agent):
    """A converter may have shown them."""
    model = ScriptedProvider([text("A"), text("sum")])
    await memory_stores.messages.append(
        "ada",
        [UserMessage("a?"), CustomMessage("note", "the door is green"), AssistantMessage("A")],
    )
    agent = await make_agent(model, stores=memory_stores)
    await talk(agent, "b?")
    await agent.compact()
    assert "the door is green" in shown(model.requests[1])[0]


@pytest.mark.parametrize("how", ["shutdown", "pause", "clear", "deadline"])
async def test_a_summary_that_never_comes_is_not_waited_for(memory_stores, make_agent, how):
    """Who shuts down, pauses or clears does not wait for a summary."""
    asked = asyncio.Event()

    async def silent(_request):
        asked.set()
        await asyncio.Event().wait()

    timeout_s = 0.05 if how == "deadline" else None
    agent = await make_agent(
        [text("A"), text("B"), silent],
        stores=memory_stores,
        loop_config=LoopConfig(retry=FAST, llm_timeout_s=timeout_s),
    )
    await talk(agent, "a?", "b?")
    compacting = asyncio.create_task(agent.compact())
    await asked.wait()
    if how == "clear":
        await agent.clear()
    elif how != "deadline":
        await getattr(agent, how)(cancel=True)
    error = LLMUnavailable if how == "deadline" else AgentStateError
    with pytest.raises(error):
        await compacting


async def test_clearing_removes_the_summary(stores, make_agent):
    """A new conversation begins without it."""
    model = ScriptedProvider([text("A"), text("B"), text("sum"), text("C")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await agent.clear()
    await talk(agent, "c?")
    assert shown(model.requests[3]) == ["c?"]


async def test_a_turn_that_runs_is_not_disturbed(stores, make_agent):
    """Neither one of this agent nor one of another."""
    gate = Gate()
    agent = await make_agent(
        [text("A"), text("B"), tool_call("gate"), text("C")], stores=stores, tools=[gate.tool]
    )
    other = await make_agent([], stores=stores)
    await talk(agent, "a?", "b?")
    turn = agent.execute_turn("c?")
    await gate.entered.wait()
    for one in (agent, other):
        with pytest.raises(AgentBusy):
            await one.compact()
    gate.open.set()
    await turn
    await assert_whole(stores)


async def test_a_turn_that_comes_meanwhile_waits_for_the_summary(memory_stores, make_agent):
    """It is shown it."""
    turns = []

    async def slow(_request):
        turns.append(agent.execute_turn("c?"))
        return text("sum")

    model = ScriptedProvider([text("A"), text("B"), slow, text("C")])
    agent = await make_agent(model, stores=memory_stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await turns[0]
    assert "sum" in shown(model.requests[3])[0]


async def test_a_summary_cannot_be_continued(stores, make_agent):
    """After it there is as little to continue as before it."""
    agent = await make_agent([text("A"), text("B"), text("sum")], stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    for one in (agent, await make_agent([], stores=stores)):
        with pytest.raises(CannotContinue):
            await one.execute_turn(None)


async def test_a_summary_far_before_the_window_is_found(stores, make_agent):
    """A context is opened by its newest messages, and the summary lies before them."""
    model = ScriptedProvider([text("A"), text("B"), text("sum"), text("Z")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await stores.messages.append("ada", [UserMessage(f"q{i}") for i in range(600)])
    config = LoopConfig(retry=FAST, max_messages=12)
    late = await make_agent(model, stores=stores, loop_config=config)
    await talk(late, "z?")
    head, *rest = shown(model.requests[3])
    assert "sum" in head
    assert rest[-1] == "z?"
    assert len(rest) <= 12
    assert len(late._core.known.history) < 300


async def test_a_summary_outlives_the_messages_dropped_from_memory(memory_stores, make_agent):
    """An agent that lives long forgets old messages, and not what speaks for them."""
    model = ScriptedProvider(lambda _request: text("x"))
    config = LoopConfig(retry=FAST, max_messages=12)
    agent = await make_agent(model, stores=memory_stores, loop_config=config)
    await talk(agent, "a?", "b?")
    await agent.compact()
    await talk(agent, *(f"q{i}" for i in range(560)))
    assert len(agent._core.known.history) < 1100
    assert "summary" in shown(model.requests[-1])[0]


@pytest.mark.parametrize("turns", [0, -1, 1.5, True, "2"])
async def test_how_many_turns_stay_is_a_number_of_at_least_one(memory_stores, make_agent, turns):
    """Anything else is refused by its name."""
    agent = await make_agent([], stores=memory_stores)
    with pytest.raises(ValueRefused) as refused:
        await agent.compact(keep_turns=turns)
    assert refused.value.path == "/keep_turns"


async def test_what_is_kept_in_memory_alone_has_no_summary(make_agent):
    """It would be of turns that nobody has stored."""
    agent = await make_agent([], auto_save=False)
    with pytest.raises(AgentStateError, match="auto_save"):
        await agent.compact()


# --- beyond what is in memory ---------------------------------------------------------------------


NARROW = LoopConfig(retry=FAST, max_messages=6, history_tokens=None)


async def long_talk(stores, turns, *, chars=40):
    """So many exchanges, stored."""
    said = []
    for n in range(turns):
        said += [UserMessage(f"question {n}. " + "x" * chars), answer(f"answer {n}.")]
    for begin in range(0, len(said), 400):
        await stores.messages.append("ada", said[begin : begin + 400])


def asked_in(request):
    """Which questions the model was shown in the transcript."""
    return [int(n) for n in re.findall(r"question (\d+)\.", shown(request)[0])]


@pytest.mark.parametrize("turns", [119, 600])
async def test_a_new_agent_summarises_the_whole_history(stores, make_agent, turns):
    """It has read no more than the model is shown; for a summary it reads what came before."""
    await long_talk(stores, turns)
    model = ScriptedProvider([text("in short"), text("Z")])
    agent = await make_agent(model, stores=stores, loop_config=NARROW)
    assert len(agent._core.known.history) < turns
    event = await agent.compact()
    assert asked_in(model.requests[0]) == list(range(turns - 1))
    assert (event.covers, event.unread) == ((1, 2 * turns - 2), 0)
    assert len(agent._core.known.history) < turns  # nothing more is kept for it
    await talk(agent, "z?")
    assert shown(model.requests[1])[1:] == [
        f"question {turns - 1}. " + "x" * 40,
        f"answer {turns - 1}.",
        "z?",
    ]


@pytest.mark.parametrize("late", [False, True])
async def test_messages_that_no_summary_speaks_for_are_counted(stores, make_agent, late):
    """As far as the model's window goes they are read; the event and the summary tell the rest."""
    await long_talk(stores, 900, chars=400)
    model = ScriptedProvider([text("in short"), text("Z")])
    config = NARROW if late else replace(NARROW, max_messages=None)
    spy = SpyStores(stores)
    agent = await make_agent(model, stores=spy.stores, loop_config=config)
    event = await agent.compact()
    read = asked_in(model.requests[0])
    assert 100 < len(read) < 200  # of 64,000 characters
    assert read == list(range(899 - len(read), 899))
    assert event.covers == (1, 1798)
    answers = len(re.findall(r"answer \d+\.", shown(model.requests[0])[0]))
    assert event.unread == 1798 - len(read) - answers
    (summary,) = await summaries(agent)
    assert f"Of the {event.unread} oldest messages nothing is said here" in summary.text
    assert event in await stores.journal.events("ada")
    if late:  # one page was enough
        assert sum(options.get("limit", 0) for _, options in spy.of("records")) == 256


async def test_auto_compact_that_is_switched_on_late_reads_what_came_before(stores, make_agent):
    """The turn that first summarises speaks for all, not for what an agent happens to hold."""
    await long_talk(stores, 111)
    model = ScriptedProvider([text("in short"), text("Z")])
    agent = await make_agent(model, stores=stores, loop_config=NARROW, auto_compact=True)
    events = await collect(agent.execute_turn("z?"))
    (event,) = [e for e in events if isinstance(e, Compaction)]
    kept = [int(n) for n in re.findall(r"question (\d+)\.", " ".join(shown(model.requests[1])[1:]))]
    assert asked_in(model.requests[0]) + kept == list(range(111))
    assert (event.covers[0], event.unread) == (1, 0)


async def test_a_second_summary_reads_back_to_the_first(stores, make_agent):
    """Which is far behind what is in memory, with messages before it that it left to be shown."""
    await long_talk(stores, 3)
    model = ScriptedProvider([text("first"), text("second"), text("Z")])
    agent = await make_agent(model, stores=stores, loop_config=NARROW)
    assert (await agent.compact()).covers == (1, 4)
    await long_talk(stores, 300)
    spy = SpyStores(stores)
    again = await make_agent(model, stores=spy.stores, loop_config=NARROW)
    assert len(again._core.known.history) < 150
    event = await again.compact()
    assert min(o["after"] for _, o in spy.of("records") if o.get("limit", 0) > 1) == 4
    told = shown(model.requests[1])[0]
    assert "first" in told
    # Question 2 stayed beside the first summary; 0 and 1 are spoken for by it.
    assert asked_in(model.requests[1]) == [2, *range(299)]
    assert (event.covers, event.unread) == ((1, 7 + 598), 0)


async def test_a_history_that_was_cleared_is_not_read_back(stores, make_agent):
    """A summary would bring it back."""
    await long_talk(stores, 200)
    model = ScriptedProvider([text("A"), text("B"), text("in short")])
    agent = await make_agent(model, stores=stores, loop_config=NARROW)
    await agent.clear()
    await talk(agent, "a?", "b?")
    event = await agent.compact()
    assert asked_in(model.requests[2]) == []
    assert (event.covers, event.unread) == ((401, 402), 0)


async def test_a_sentence_that_stands_in_speaks_for_no_message(stores, make_agent):
    """All that it stands for counts as unread, also what nobody has loaded."""
    await long_talk(stores, 200)
    model = ScriptedProvider([too_long(), failure(LLMError), text("Z")])
    config = replace(NARROW, retry=RetryPolicy(attempts=0))
    agent = await make_agent(model, stores=stores, loop_config=config)
    events = await collect(agent.execute_turn("z?"))
    (event,) = [e for e in events if isinstance(e, Compaction)]
    assert (event.covers, event.unread) == ((1, 400), 400)
    assert "400 earlier messages are no longer shown" in shown(model.requests[2])[0]


# --- inside a turn --------------------------------------------------------------------------------


async def test_a_request_that_is_too_long_is_made_again_with_a_summary(stores, make_agent):
    """Once, in the same turn; the summary is stored before the model is asked again."""
    model = ScriptedProvider([text("A"), text("B"), too_long(), text("sum"), text("C")])
    agent = await make_agent(model, stores=stores)
    await talk(agent, "a?", "b?")
    events = await collect(stream := agent.execute_turn("c?"))
    result = await stream
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "C")
    head, *rest = shown(model.requests[4])
    assert "sum" in head
    assert rest == ["c?"]
    (event,) = [e for e in events if isinstance(e, Compaction)]
    assert (event.covers, event.position) == ((1, 4), 6)
    told = types(events)
    place = told.index("compaction")
    assert told[place - 2 : place] == ["message_start", "message_end"]
    assert told[place + 1 :].count("message_end") == 1
    assert event in await stores.journal.events("ada")
    assert result.usage.total_tokens >= sum(i.usage.total_tokens for i in result.iterations)
    await assert_whole(stores)
    again = await make_agent(model, stores=stores)
    assert again._core.known.state.summary == 6


async def test_a_turn_too_long_by_itself_is_parted(stores, make_agent):
    """The question is quoted in the summary; the newest answer and its results stay."""
    model = ScriptedProvider(
        [tool_call("look"), tool_call("look"), too_long(), text("looked once"), text("done")]
    )
    agent = await make_agent(model, stores=stores, tools=[look])
    assert (await agent.execute_turn("find the needle")).text == "done"
    head, *rest = model.requests[4].messages
    assert "looked once" in head.text
    assert "find the needle" in head.text
    assert [m.role for m in rest] == ["assistant", "toolResult"]
    assert_valid(await agent.get_messages())


async def test_a_request_that_stays_too_long_fails_after_one_summary(stores, make_agent):
    """There is no endless summarising."""
    replies = [text("A"), text("B"), too_long(), text("sum"), too_long(), text("D")]
    agent = await make_agent(ScriptedProvider(replies), stores=stores)
    await talk(agent, "a?", "b?")
    result = await agent.execute_turn("c?")
    assert result.outcome is Outcome.FAILED
    assert isinstance(result.error, ContextOverflow)
    assert len(await summaries(agent)) == 1
    await assert_whole(stores)
    assert (await agent.execute_turn("d?")).text == "D"


async def test_a_turn_makes_room_once(stores, make_agent):
    """Though there would be more to summarise by then."""
    calls = [tool_call("look")] * 2
    replies = [*calls, too_long(), text("sum"), *calls, too_long(), text("not asked for")]
    model = ScriptedProvider(replies)
    agent = await make_agent(model, stores=stores, tools=[look])
    result = await agent.execute_turn("a?")
    assert isinstance(result.error, ContextOverflow)
    assert len(model.requests) == 7
    assert len(await summaries(agent)) == 1
    await assert_whole(stores)


async def test_where_there_is_nothing_to_summarise_the_turn_fails_as_before(stores, make_agent):
    """One question too long for the window."""
    agent = await make_agent([too_long()], stores=stores)
    result = await agent.execute_turn("a?")
    assert isinstance(result.error, ContextOverflow)
    assert await summaries(agent) == []
    await assert_whole(stores)


async def test_when_no_summary_can_be_written_a_sentence_stands_in(stores, make_agent):
    """The conversation goes on, and a warning says why it knows less."""
    model = ScriptedProvider([text("A"), text("B"), too_long(), failure(LLMUnavailable), text("C")])
    config = LoopConfig(retry=RetryPolicy(attempts=0))
    agent = await make_agent(model, stores=stores, loop_config=config)
    await talk(agent, "a?", "b?")
    events = await collect(stream := agent.execute_turn("c?"))
    assert (await stream).text == "C"
    assert "summary_failed" in [e.code for e in events if isinstance(e, TurnWarning)]
    assert "4 earlier messages" in shown(model.requests[4])[0]


@pytest.mark.parametrize("auto_save", [True, False])
async def test_a_history_that_outgrows_its_limit_is_summarised(make_agent, auto_save):
    """Before the model is asked; about half of the limit stays."""
    model = ScriptedProvider([*(text(f"A{i}") for i in range(4)), text("sum"), text("end")])
    agent = await make_agent(
        model,
        auto_compact=True,
        auto_save=auto_save,
        loop_config=LoopConfig(retry=FAST, max_messages=8),
    )
    await talk(agent, "q0", "q1", "q2", "q3", "q4")
    head, *rest = shown(model.requests[5])
    assert "sum" in head
    assert rest == ["q3", "A3", "q4"]
    assert len(await summaries(agent)) == 1


async def test_an_optional_summary_that_fails_is_skipped_until_the_next_turn(
    memory_stores, make_agent
):
    """When the model cannot write it, the history is cut as without it; the next turn tries."""
    replies = [*(text(f"A{i}") for i in range(4)), failure(LLMUnavailable), text("A4"), text("sum")]
    model = ScriptedProvider([*replies, text("A5")])
    config = LoopConfig(retry=RetryPolicy(attempts=0), max_messages=8)
    agent = await make_agent(model, stores=memory_stores, auto_compact=True, loop_config=config)
    await talk(agent, "q0", "q1", "q2", "q3", "q4")
    assert await summaries(agent) == []
    assert "q2" in shown(model.requests[5])
    await talk(agent, "q5")
    assert len(await summaries(agent)) == 1


async def test_with_hooks_a_history_is_summarised_all_the_same(memory_stores, make_agent):
    """What the model is shown goes another way then."""
    model = ScriptedProvider([*(text(f"A{i}") for i in range(4)), text("sum"), text("end")])
    hooks = Hooks(transform_context=lambda messages: messages)
    config = LoopConfig(retry=FAST, max_messages=8, hooks=hooks)
    agent = await make_agent(model, stores=memory_stores, auto_compact=True, loop_config=config)
    await talk(agent, "q0", "q1", "q2", "q3", "q4")
    assert len(await summaries(agent)) == 1


async def test_a_summary_made_in_need_has_the_key_of_the_call(memory_stores, make_agent):
    """Of a chain of providers, each asks for its own."""
    keys = []

    class Asking(ScriptedProvider):
        asks_for_keys = True

        async def stream(self, request, options):
            keys.append(await options.key_of("scripted"))
            async for event in super().stream(request, options):
                yield event

    hooks = Hooks(get_api_key=lambda _provider, _auth: "sk-1234567890abcdef")
    agent = await make_agent(
        Asking([text("A"), text("B"), too_long(), text("sum"), text("C")]),
        stores=memory_stores,
        loop_config=LoopConfig(retry=FAST, hooks=hooks),
    )
    await talk(agent, "a?", "b?", "c?")
    assert keys == ["sk-1234567890abcdef"] * 5


async def test_without_being_asked_to_an_agent_warns_once(memory_stores, make_agent):
    """The model is no longer shown all, and somebody should know."""
    model = ScriptedProvider(lambda _request: text("x"))
    config = LoopConfig(retry=FAST, max_messages=4)
    agent = await make_agent(model, stores=memory_stores, loop_config=config)
    seen: list[str] = []
    agent.subscribe(lambda e: seen.append(e.code) if isinstance(e, TurnWarning) else None)
    await talk(agent, *(f"q{i}" for i in range(8)))
    assert [code for code in seen if code != "cache_broken"] == ["history_cut"]
    assert await summaries(agent) == []


async def test_an_own_message_with_the_same_role_is_no_summary(memory_stores, make_agent):
    """What an application stores is its own."""
    model = ScriptedProvider([text("B")])
    strange = [
        CustomMessage("compactionSummary", {"x": 1}),
        CustomMessage("compactionSummary", "y"),
    ]
    await memory_stores.messages.append("ada", [UserMessage("a?"), *strange])
    agent = await make_agent(model, stores=memory_stores)
    await talk(agent, "b?")
    assert shown(model.requests[0]) == ["a?", "b?"]


async def test_summaries_are_read_through_the_public_face(stores):
    """`NewSummary` is what a store is handed; an agent reads what anybody has appended."""
    model = ScriptedProvider([text("A"), text("B")])
    async with Agent("ada", llm_provider=model, stores=stores) as agent:
        await talk(agent, "a?")
        record = await stores.state.load("ada")
        message = CustomMessage("compactionSummary", "by hand", {"kept": 0})
        await stores.journal.compact("ada", NewSummary(message=message, epoch=record.epoch))
        await talk(agent, "b?")
        assert "by hand" in shown(model.requests[1])[0]
        assert shown(model.requests[1])[1:] == ["b?"]


async def test_a_summary_counts_no_turn_that_still_adds(stores, monkeypatch):
    """Between the reading of its place and the write, a turn adds messages under the same epoch."""
    release, answering = asyncio.Event(), asyncio.Event()

    async def slow(_request):
        answering.set()
        await release.wait()
        return text("late")

    other = Agent("ada", stores=stores, llm_provider=ScriptedProvider([text("ok"), slow]))
    agent = Agent("ada", stores=stores, llm_provider=ScriptedProvider([text("ok")], repeat=True))
    real, running = type(stores.journal).compact, []

    async def compact(journal, context_id, new):
        if not running:
            await other.execute_turn("c")
            running.append(asyncio.ensure_future(other.execute_turn("d")))
            await answering.wait()
            raise StoreConflict("a turn was added in the meantime")
        release.set()
        await running[0]
        return await real(journal, context_id, new)

    async with agent, other:
        await talk(agent, "a", "b")
        monkeypatch.setattr(type(stores.journal), "compact", compact)
        with pytest.raises(AgentBusy):
            await agent.compact()
        release.set()
        await running[0]
        assert not any(map(is_summary, await stores.messages.list("ada")))
