"""A turn as a response: the same with deltas and from the log, in the official SDK's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from looopy import Agent, Approve, LoopConfig, RetryPolicy, open_stores, tool
from looopy.errors import LLMError, LLMUnavailable
from looopy.server.protocols.responses.items import (
    ResponseBuilder,
    built,
    place_of,
    response_id,
    rest_of,
    usage_of,
)
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import client_tool
from looopy.types.event import AgentEvent, TurnEnd
from looopy.types.message import StopReason, Usage
from looopy.types.state import Outcome

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def _known(value: Any, path: str = "") -> None:
    """Fail where the SDK's types do not know a field."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{path}: {value.model_extra}"
        for name in type(value).model_fields:
            _known(getattr(value, name), f"{path}/{name}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            _known(one, f"{path}/{number}")


def _streamed(events: Sequence[AgentEvent], turn: int) -> tuple[list[Any], ResponseBuilder]:
    builder = ResponseBuilder("c", turn, model="m")
    sent = [one for event in events for one in builder.take(event)]
    read = [EVENT.validate_python(one) for one in sent]
    for one in read:
        _known(one)
    numbers = [one.sequence_number for one in read]
    assert numbers == sorted(set(numbers))
    return read, builder


async def _turns(agent: Agent, *said: Any) -> list[list[AgentEvent]]:
    found = []
    for one in said:
        given = {"inputs": one} if isinstance(one, dict) else {"user_message": one}
        found.append([event async for event in agent.execute_turn(**given)])
    return found


async def test_a_turn_with_a_tool_is_the_same_live_and_from_the_log() -> None:
    """Each event of the stream fits the SDK's types."""
    model = ScriptedProvider([tool_call("add", a=1, b=2), text("It is three.")], chunk_chars=4)
    async with (
        open_stores("memory:") as stores,
        Agent("c", llm_provider=model, tools=[add], stores=stores) as agent,
    ):
        [events] = await _turns(agent, "1 + 2?")
        read, builder = _streamed(events, 1)
        log = await stores.journal.events("c", after=0, limit=100)
        assert built("c", 1, log, model="m").response() == builder.response()
        _, of_log = _streamed(log, 1)
        assert of_log.response() == builder.response()
    response = Response.model_validate(builder.response())
    _known(response)
    assert response.status == "completed"
    assert response.output_text == "It is three."
    call, message = response.output
    assert (call.type, call.status, call.output) == ("mcp_call", "completed", "3")  # type: ignore[union-attr] # a union of all items
    assert call.arguments == '{"a": 1, "b": 2}'  # type: ignore[union-attr] # a union of all items
    deltas = [one.delta for one in read if one.type == "response.output_text.delta"]
    assert "".join(deltas) == "It is three."
    assert len(deltas) == 3
    assert [one.type for one in read][:2] == ["response.created", "response.in_progress"]
    assert read[-1].type == "response.completed"
    assert read[-1].response == response
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert message.id != call.id


async def test_an_approval_is_asked_for_and_its_call_comes_in_the_next_response() -> None:
    """The response that asks is complete."""
    model = ScriptedProvider([tool_call("send", to="Ada"), text("Done.")])
    async with Agent("c", llm_provider=model, tools=[send]) as agent:
        [asked] = await _turns(agent, "Send it.")
        first = Response.model_validate(_streamed(asked, 1)[1].response())
        [question] = first.output
        assert first.status == "completed"
        assert question.type == "mcp_approval_request"
        assert (question.name, question.arguments) == ("send", '{"to": "Ada"}')
        [answered] = await _turns(agent, {question.id: Approve()})
        second = Response.model_validate(_streamed(answered, 2)[1].response())
        assert [item.type for item in second.output] == ["mcp_call", "message"]
        assert second.previous_response_id == first.id


async def test_a_tool_of_the_client_is_a_function_call() -> None:
    """Not an `mcp_call`, although it had begun."""
    model = ScriptedProvider([tool_call("where", precise=True), text("In Turin.")])
    where = client_tool("where", "Say where you are.", {"type": "object"})
    async with Agent("c", llm_provider=model, tools=[where]) as agent:
        [asked] = await _turns(agent, "Where am I?")
        [call] = Response.model_validate(_streamed(asked, 1)[1].response()).output
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("where", '{"precise": true}')
        [answered] = await _turns(agent, {call.call_id: "Turin"})
        assert Response.model_validate(_streamed(answered, 2)[1].response()).output_text


async def test_a_failed_call_of_the_model_is_not_part_of_the_response() -> None:
    """The stream has its item, as incomplete."""
    model = ScriptedProvider(
        [(text("I was about to"), failure(LLMUnavailable("down"))), text("Hello.")]
    )
    config = LoopConfig(retry=RetryPolicy(base_s=0.0))
    async with Agent("c", llm_provider=model, loop_config=config) as agent:
        [events] = await _turns(agent, "Hi.")
        read, builder = _streamed(events, 1)
    ended = [one.item.status for one in read if one.type == "response.output_item.done"]
    assert ended == ["incomplete", "completed"]
    assert Response.model_validate(builder.response()).output_text == "Hello."
    assert len(builder.response()["output"]) == 1


async def test_a_failed_turn_has_the_reason_as_its_error() -> None:
    """In `error`, and the stream ends by `response.failed`."""
    model = ScriptedProvider([failure(LLMError("no"))])
    config = LoopConfig(retry=RetryPolicy(attempts=0))
    async with Agent("c", llm_provider=model, loop_config=config) as agent:
        [events] = await _turns(agent, "Hi.")
        read, builder = _streamed(events, 1)
    response = Response.model_validate(builder.response())
    assert response.status == "failed"
    assert response.error is not None
    assert "no" in response.error.message
    assert read[-1].type == "response.failed"


async def test_a_response_has_its_own_turn_alone() -> None:
    """Events of other turns change nothing."""
    model = ScriptedProvider([text("One."), text("Two.")])
    async with open_stores("memory:") as stores:
        async with Agent("c", llm_provider=model, stores=stores) as agent:
            await _turns(agent, "1", "2")
        log = await stores.journal.events("c", after=0, limit=100)
    assert Response.model_validate(built("c", 2, log, model="m").response()).output_text == "Two."
    first = built("c", 1, log, model="m")
    assert Response.model_validate(first.response()).output_text == "One."
    assert first.done


def test_an_answer_that_was_cut_is_incomplete() -> None:
    """`max_output_tokens` is the reason."""
    builder = ResponseBuilder("c", 1, model="m")
    end = TurnEnd(context_id="c", turn=1, outcome=Outcome.COMPLETED, stop_reason=StopReason.LENGTH)
    [last] = builder.take(end)
    assert last["type"] == "response.incomplete"
    response = Response.model_validate(builder.response())
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_the_usage_includes_tokens_read_from_the_cache() -> None:
    """`input_tokens` has it, as in the API."""
    usage = usage_of(Usage(input=5, cache_read=30, cache_write=7, output=4, reasoning=1))
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (42, 4, 46)
    assert usage["input_tokens_details"] == {"cached_tokens": 30, "cache_write_tokens": 7}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize("name", ["ada", "resp_1_x", "a:b_c.d", "_"])
def test_an_id_names_its_place(name: str) -> None:
    """Whatever the context is called."""
    assert place_of(response_id(name, 17)) == (name, 17)


@pytest.mark.parametrize(
    "given", ["", "resp_", "resp_1", "resp_1_", "resp_0_a", "resp_01_a", "resp_-1_a", "resp_²_a",
              "msg_1_a", "resp_1" + "0" * 40 + "_a"],
)  # fmt: skip
def test_other_texts_are_no_ids(given: str) -> None:
    """Each place has one id."""
    assert place_of(given) is None


@pytest.mark.parametrize("of_log", [False, True])
async def test_a_stream_resumes_after_each_number_without_loss_or_repetition(
    of_log: bool,
) -> None:
    """Whichever stream the client had before, and whichever it gets then."""
    replies = [(text("Let me see."), tool_call("add", a=1, b=2)), text("It is three, 😀.")]
    model = ScriptedProvider(replies, chunk_chars=3)
    async with (
        open_stores("memory:") as stores,
        Agent("c", llm_provider=model, tools=[add], stores=stores) as agent,
    ):
        [live] = await _turns(agent, "1 + 2?")
        log = await stores.journal.events("c", after=0, limit=100)
    streams = [_sent(live), _sent(log)]
    first, again = reversed(streams) if of_log else streams
    assert len(first) != len(again)
    for had in range(len(first) + 1):
        after = first[had - 1]["sequence_number"] if had else -1
        rest = [one for event in again if (one := rest_of(event, after)) is not None]
        assert _merged([*first[:had], *rest]) == _merged(again)


def _sent(events: Sequence[AgentEvent]) -> list[dict[str, Any]]:
    builder = ResponseBuilder("c", 1, model="m")
    return [one for event in events for one in builder.take(event)]


def _merged(sent: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, each run of deltas as one."""
    found: list[dict[str, Any]] = []
    for one in sent:
        if found and "delta" in one and one["type"] == found[-1]["type"]:
            one = {**one, "delta": found[-1]["delta"] + one["delta"]}  # noqa: PLW2901 - joined
            found.pop()
        found.append(one)
    return found
