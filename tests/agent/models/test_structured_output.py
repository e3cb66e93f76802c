"""`output_type`: the answer is what was asked for, or the turn says that it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import date

import pytest
from pydantic import BaseModel, Field
from tests.agent.kit import add, assert_whole, collect
from tests.wire import fake_anthropic
from tests.wire.fake_anthropic import FakeAnthropic
from tests.wire.fake_openai import FakeOpenAI, chunk, says
from typing_extensions import TypedDict

from looopy import Agent, Hooks, LoopConfig, RetryPolicy, ToolContext, tool
from looopy.errors import (
    ConfigurationError,
    IdempotencyConflict,
    InvalidTool,
    OutputInvalid,
    TurnIncomplete,
)
from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.llm.openai.provider import OpenAIProvider
from looopy.llm.strict import strict_schema
from looopy.stores.owner import Owner
from looopy.stores.records import ContextState
from looopy.sync import Agent as SyncAgent
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.contracts.turns import a_claim
from looopy.types.message import StopReason, ToolResultMessage, UserMessage
from looopy.types.state import Outcome


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int = Field(gt=0)


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Place:
    x: int
    y: int = 5


class Pair(TypedDict):
    left: str
    right: str


class Node(BaseModel):
    value: int
    next: Node | None = None


OSLO = '{"name": "Oslo", "inhabitants": 700000}'
GIVEN = tool_call("final_answer", name="Oslo", inhabitants=700000)
NOT_ONE = tool_call("final_answer", name="Oslo", inhabitants=0)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}


def native(replies) -> ScriptedProvider:
    """A model that is sent the schema."""
    provider = ScriptedProvider(replies)
    provider.structured_output = True
    return provider


async def test_an_answer_is_given_through_a_tool(make_agent, stores):
    """Other tools come first; the history stays one that every provider takes."""
    replies = [tool_call("add", a=1, b=2), GIVEN, text("Hi.")]
    agent = await make_agent(replies, tools=[add], stores=stores, system_prompt="Be brief.")
    result = await agent.execute_turn("Which city?", output_type=City)
    assert result.output == City(name="Oslo", inhabitants=700000)
    assert (result.outcome, result.stop_reason) == (Outcome.COMPLETED, StopReason.STOP)
    request = agent._core.resources.provider.requests[0]
    assert [tool.name for tool in request.tools] == ["add", "final_answer"]
    assert request.tools[1].parameters["properties"].keys() == {"name", "inhabitants"}
    assert request.system_prompt.startswith("Be brief.\n\n")
    assert "`final_answer`" in request.system_prompt
    assert agent._core.resources.provider.options[0].output_schema is None
    plain = await agent.execute_turn("Hello?")
    assert (plain.text, plain.output) == ("Hi.", None)
    assert [tool.name for tool in agent._core.resources.provider.requests[-1].tools] == ["add"]
    assert agent._core.resources.provider.requests[-1].system_prompt == "Be brief."
    await assert_whole(stores)


async def test_a_provider_that_knows_schemas_is_sent_one(make_agent, memory_stores):
    """Its text is read; there is no extra tool and no instruction."""
    provider = native([tool_call("add", a=1, b=2), text(OSLO)])
    agent = await make_agent(provider, tools=[add], stores=memory_stores)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert result.output == City(name="Oslo", inhabitants=700000)
    assert result.text == OSLO
    assert [tool.name for tool in provider.requests[0].tools] == ["add"]
    assert provider.requests[0].system_prompt == ""
    schemas = [options.output_schema for options in provider.options]
    assert schemas == [City.model_json_schema()] * 2
    await assert_whole(memory_stores)


async def test_the_schema_reaches_the_wire():
    """Through the real SDK: `response_format` beside the tools, in each request of the turn."""
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
    }
    calls = says("")
    calls.pieces[:] = [chunk({"tool_calls": [call]}), chunk({}, finish="tool_calls")]
    async with FakeOpenAI(calls, says(OSLO)) as server:
        provider = OpenAIProvider("fake", base_url=server.url, structured_output=True)
        async with Agent("ada", llm_provider=provider, tools=[add]) as agent:
            result = await agent.execute_turn("Which city?", output_type=City)
        await provider.aclose()
    assert result.output == City(name="Oslo", inhabitants=700000)
    formats = [got.body["response_format"]["json_schema"] for got in server.received]
    assert [one["schema"] for one in formats] == [strict_schema(City.model_json_schema())] * 2
    assert [one["strict"] for one in formats] == [True] * 2
    assert formats[0]["name"] == "City"
    assert OpenAIProvider("fake", base_url="http://127.0.0.1:1/v1").structured_output is False
    assert OpenAIProvider("fake", api_key="k-0123456789").structured_output is True
    ours = OpenAIProvider("fake", api_key="k-0123456789", structured_output=False)
    assert ours.structured_output is False


@pytest.mark.parametrize(
    ("model", "output_type", "by_schema"),
    [
        (fake_anthropic.MODEL, City, True),
        (fake_anthropic.MODEL, dict[str, int], False),
        ("claude-sonnet-4-0", City, False),
    ],
)
async def test_anthropic_is_sent_a_schema_that_it_enforces(model, output_type, by_schema):
    """If the model knows schemas and the type has a closed one; otherwise the tool."""
    given = fake_anthropic.calls(0, "toolu_1", "final_answer", '{"a": 1}')
    if output_type is City:
        given = fake_anthropic.calls(0, "toolu_1", "final_answer", OSLO)
    tool_way = fake_anthropic.answers(given, reason="tool_use")
    answer = fake_anthropic.says(OSLO) if by_schema else tool_way
    async with FakeAnthropic(answer) as server:
        provider = AnthropicProvider(model, base_url=server.url)
        async with Agent("ada", llm_provider=provider) as agent:
            result = await agent.execute_turn("Which city?", output_type=output_type)
        await provider.aclose()
    assert result.raise_for_outcome().output is not None
    body = server.received[0].body
    assert ("format" in body.get("output_config", {})) is by_schema
    assert ("final_answer" in json.dumps(body.get("tools", []))) is not by_schema


async def test_a_null_for_an_optional_field_takes_the_default(make_agent, memory_stores):
    """A strict schema makes the model write one."""
    agent = await make_agent(native([text('{"x": 1, "y": null}')]), stores=memory_stores)
    result = await agent.execute_turn("Where?", output_type=Place)
    assert result.raise_for_outcome().output == Place(x=1)


@pytest.mark.parametrize(
    ("output_type", "said", "output"),
    [
        (City, {"name": "Oslo", "inhabitants": 7}, City(name="Oslo", inhabitants=7)),
        (Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Pair, {"left": "a", "right": "b"}, {"left": "a", "right": "b"}),
        (SCHEMA, {"n": 3}, {"n": 3}),
        ({"type": "array", "items": {"type": "integer"}}, {"answer": [1, 2]}, [1, 2]),
        (list[Point], {"answer": [{"x": 1, "y": 2}]}, [Point(1, 2)]),
        (date, {"answer": "2026-11-22"}, date(2026, 11, 22)),
        (int | None, {"answer": None}, None),
        (bool, {"answer": False}, False),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Node, {"answer": {"value": 1, "next": {"value": 2}}}, Node(value=1, next=Node(value=2))),
    ],
)
@pytest.mark.parametrize("way", ["tool", "schema", "fenced"])
async def test_every_type_that_pydantic_describes_is_accepted(
    make_agent, output_type, said, output, way
):
    """Both ways give the same; what is no object is asked for as the property of one."""
    if way == "tool":
        provider = ScriptedProvider([tool_call("final_answer", **said)])
    else:
        body = json.dumps(said)
        provider = native([text(f"```json\n{body}\n```" if way == "fenced" else body)])
    agent = await make_agent(provider)
    result = await agent.execute_turn("go", output_type=output_type)
    assert result.output == result.require_output() == output
    assert type(result.output) is type(output)
    sent = provider.options[0].output_schema or provider.requests[0].tools[0].parameters
    assert sent["type"] == "object"


async def test_a_wrong_answer_is_shown_to_the_model_and_given_again(make_agent, stores):
    """By the tool, its result says what is wrong; a text is answered by what the user would say."""
    replies = [NOT_ONE, text("It is Oslo."), GIVEN]
    agent = await make_agent(replies, stores=stores)
    stream = agent.execute_turn("Which city?", output_type=City)
    events = await collect(stream)
    result = await stream
    assert result.output == City(name="Oslo", inhabitants=700000)
    warnings = [e.code for e in events if e.type == "warning"]
    assert warnings == ["output_invalid"] * 2
    shown = agent._core.resources.provider.requests[1].messages[-1]
    assert isinstance(shown, ToolResultMessage)
    assert shown.is_error
    assert "inhabitants" in shown.text
    asked = agent._core.resources.provider.requests[2].messages[-1]
    assert isinstance(asked, UserMessage)
    assert "not JSON" in asked.text
    assert "final_answer" in asked.text
    await assert_whole(stores)


async def test_a_schema_that_is_not_kept_to_is_enforced(make_agent, memory_stores):
    """The provider's word is not taken for it."""
    provider = native([text('{"name": "Oslo", "inhabitants": -1}'), text("NaN"), text(OSLO)])
    agent = await make_agent(provider, stores=memory_stores)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert result.output == City(name="Oslo", inhabitants=700000)
    said = [request.messages[-1].text for request in provider.requests[1:]]
    assert "- inhabitants: Input should be greater than 0" in said[0]
    assert "NaN is not a JSON value" in said[1]
    await assert_whole(memory_stores)


@pytest.mark.parametrize("way", [native, ScriptedProvider])
@pytest.mark.parametrize("tries", [1, 3])
async def test_a_turn_without_a_fitting_answer_fails(make_agent, memory_stores, way, tries):
    """After so many tries, with an error that says what was wrong the last time."""
    reply = text("no") if way is native else NOT_ONE
    provider = way([reply] * tries)
    config = LoopConfig(max_output_retries=tries - 1, retry=RetryPolicy(base_s=0))
    agent = await make_agent(provider, stores=memory_stores, loop_config=config)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert (result.outcome, result.stop_reason) == (Outcome.FAILED, StopReason.ERROR)
    assert result.output is None
    assert isinstance(result.error, OutputInvalid)
    assert result.error.tries == tries
    assert ("not JSON" if way is native else "inhabitants") in str(result.error)
    with pytest.raises(OutputInvalid):
        result.raise_for_outcome()
    provider.assert_exhausted()
    await assert_whole(memory_stores)


async def test_an_answer_that_was_cut_off_is_given_again(make_agent):
    """Its beginning is no answer, whatever it could be completed to."""
    provider = native([lambda _: text('{"name": "Os'), text(OSLO)])
    agent = await make_agent(provider)
    stream = provider.stream

    async def cut(request, options):
        async for event in stream(request, options):
            if event.type == "done" and len(provider.requests) == 1:
                message = replace(event.message, stop_reason=StopReason.LENGTH)
                yield replace(event, message=message)
            else:
                yield event

    provider.stream = cut
    result = await agent.execute_turn("Which city?", output_type=City)
    assert (result.stop_reason, result.output.name) == (StopReason.STOP, "Oslo")
    assert "cut off" in provider.requests[1].messages[-1].text


async def test_a_missing_required_output_is_an_error_with_the_reason(make_agent):
    """A turn that waits, or ended at a limit, did not fail, and has no output."""

    @tool(needs_approval=True)
    def pay(cents: int) -> str:
        """Pay."""
        return f"paid {cents}"

    replies = [tool_call("pay", cents=1), tool_call("pay", cents=2), GIVEN]
    agent = await make_agent(replies, tools=[pay], loop_config=LoopConfig(max_iterations=1))
    waits = await agent.execute_turn("Which city?", output_type=City)
    assert waits.raise_for_outcome().output is None
    with pytest.raises(TurnIncomplete, match=r"input_required.* pending") as incomplete:
        waits.require_output()
    assert incomplete.value.outcome == "input_required"
    request = waits.pending[0].request_id
    stopped = await agent.execute_turn(None, inputs={request: True})
    with pytest.raises(TurnIncomplete, match="without an output"):
        stopped.require_output()
    answered = await agent.execute_turn("Go on.", output_type=City)
    assert answered.require_output() == City(name="Oslo", inhabitants=700000)


async def test_an_answer_beside_other_calls_ends_the_turn(make_agent, memory_stores):
    """Each call still gets its one result."""
    replies = [(tool_call("add", a=1, b=2), GIVEN, tool_call("add", a=3, b=4))]
    agent = await make_agent(replies, tools=[add], stores=memory_stores)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert result.output == City(name="Oslo", inhabitants=700000)
    texts = [r.text for r in result.iterations[0].tool_results]
    assert texts == ["3", "The answer was accepted.", "7"]
    await assert_whole(memory_stores)


async def test_a_question_to_a_person_comes_before_the_answer(make_agent, memory_stores):
    """Beside an answer, a call waits: the turn ends, and the answer is given once it was heard."""

    @tool(effects="none")
    async def sure(context: ToolContext) -> str:
        """Ask whether it is right."""
        return await context.ask("Sure?")

    agent = await make_agent(
        [(GIVEN, tool_call("sure")), GIVEN], tools=[sure], stores=memory_stores
    )
    waits = await agent.execute_turn("Which city?", output_type=City)
    assert (waits.outcome, waits.output) == (Outcome.INPUT_REQUIRED, None)
    result = await agent.execute_turn(
        None, inputs={waits.pending[0].request_id: "Yes."}, output_type=City
    )
    assert result.output == City(name="Oslo", inhabitants=700000)
    await assert_whole(memory_stores)


async def test_the_last_answer_counts_when_the_turn_continues(make_agent, memory_stores):
    """A follow-up came in while the first was given."""
    agent: Agent

    async def interrupted(_):
        await agent.follow_up("No, the other one.")
        return GIVEN

    later = tool_call("final_answer", name="Rome", inhabitants=3_000_000)
    agent = await make_agent([interrupted, later], stores=memory_stores)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert result.output.name == "Rome"
    await assert_whole(memory_stores)


async def test_hooks_have_no_say_about_the_answer(make_agent):
    """They guard the application's tools, and this is none of them."""
    seen = []

    def block(call, _context):
        seen.append(call.name)
        return False

    config = LoopConfig(hooks=Hooks(before_tool_call=block))
    agent = await make_agent([tool_call("add", a=1, b=2), GIVEN], tools=[add], loop_config=config)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert (result.output.name, seen) == ("Oslo", ["add"])


async def test_a_tool_of_the_same_name_is_refused(make_agent):
    """Only where it is needed for the answer."""

    def final_answer() -> str:
        """Say it."""
        return "said"

    agent = await make_agent([text("hi")], tools=[final_answer])
    assert (await agent.execute_turn("hello")).text == "hi"
    result = await agent.execute_turn("hello", output_type=City)
    assert isinstance(result.error, InvalidTool)
    assert "rename yours" in str(result.error)


@pytest.mark.parametrize("output_type", [object(), {"type": "nothing"}, lambda: None, {1: 2}])
async def test_a_type_without_a_schema_is_refused_at_the_call(make_agent, output_type):
    """Nothing is stored."""
    agent = await make_agent()
    with pytest.raises(ConfigurationError, match="output_type"):
        agent.execute_turn("hello", output_type=output_type)
    assert agent.state.turn_count == 0


async def test_a_turn_that_is_continued_is_still_asked(make_agent, stores):
    """The schema is in the store: another process needs no type, and may pass one."""
    dying = await make_agent([failure(RuntimeError("gone"))], stores=stores)
    failed = await dying.execute_turn("Which city?", output_type=City)
    assert failed.outcome is Outcome.FAILED
    await dying.shutdown()
    there = await make_agent([failure(RuntimeError("again"))], stores=stores)
    assert (await there.execute_turn(None)).outcome is Outcome.FAILED
    await there.shutdown()
    plain = await make_agent([NOT_ONE, GIVEN], stores=stores)
    result = await plain.execute_turn(None)
    assert result.output == {"name": "Oslo", "inhabitants": 700000}
    assert [m.text for m in plain._core.resources.provider.requests[0].messages] == ["Which city?"]
    await plain.shutdown()
    after = await make_agent([text("Hi.")], stores=stores)
    assert (await after.execute_turn("Hello?")).output is None
    await assert_whole(stores)


async def test_a_killed_turn_is_still_asked(make_agent, stores):
    """Its claim kept the schema, and so does whoever ends it."""
    owner = Owner.new()
    state = ContextState(output=City.model_json_schema())
    await stores.state.claim(a_claim(holder=owner.token(), text="Which city?", state=state))
    owner.retire()
    there = await make_agent([NOT_ONE, GIVEN], stores=stores)
    assert there.state.interrupted_turn == 1
    assert (await there.execute_turn(None)).output == {"name": "Oslo", "inhabitants": 700000}
    await assert_whole(stores)


async def test_a_turn_that_waits_for_a_person_is_still_asked(make_agent, stores):
    """The answer comes in another process, which knows no type."""

    @tool(effects="none")
    async def which(context: ToolContext) -> str:
        """Ask which one is meant."""
        return await context.ask("Which country?")

    here = await make_agent([tool_call("which")], tools=[which], stores=stores)
    waits = await here.execute_turn("The capital?", output_type=City)
    assert (waits.outcome, waits.output) == (Outcome.INPUT_REQUIRED, None)
    await here.shutdown()
    there = await make_agent([NOT_ONE, GIVEN], tools=[which], stores=stores)
    answer = {waits.pending[0].request_id: "Norway"}
    result = await there.execute_turn(None, inputs=answer)
    assert result.output == {"name": "Oslo", "inhabitants": 700000}
    await assert_whole(stores)


async def test_the_claim_stores_the_requested_output(make_agent, stores):
    """From the first commit on, until there is an answer."""
    kept = []

    async def look(_):
        kept.append((await stores.state.load("ada")).state.output)
        return GIVEN

    agent = await make_agent([look], stores=stores)
    await agent.execute_turn("Which city?", output_type=City)
    kept.append((await stores.state.load("ada")).state.output)
    assert kept == [City.model_json_schema(), None]


async def test_a_continued_turn_gives_the_type_that_is_passed(make_agent, memory_stores):
    """And something new that is said asks for nothing that was asked for before."""
    agent = await make_agent(
        [failure(RuntimeError("gone")), GIVEN, failure(RuntimeError("gone")), text("Hi.")],
        stores=memory_stores,
    )
    await agent.execute_turn("Which city?", output_type=City)
    assert (await agent.execute_turn(None, output_type=City)).output.name == "Oslo"
    await agent.execute_turn("Which city?", output_type=City)
    result = await agent.execute_turn("Never mind.")
    assert (result.outcome, result.text, result.output) == (Outcome.COMPLETED, "Hi.", None)


async def test_a_view_of_an_accepted_turn_has_its_output(make_agent, memory_stores):
    """The same key with the same schema; with another, it is another request."""
    agent = await make_agent([GIVEN], stores=memory_stores)
    first = await agent.execute_turn("Which?", output_type=City, idempotency_key="k")
    again = await make_agent([], stores=memory_stores)
    second = await again.execute_turn("Which?", output_type=City, idempotency_key="k")
    assert second.output == first.output == City(name="Oslo", inhabitants=700000)
    for other in (None, SCHEMA):
        with pytest.raises(IdempotencyConflict):
            await again.execute_turn("Which?", output_type=other, idempotency_key="k")


def test_blocking_code_asks_for_an_output_as_well(tmp_path):
    """`looopy.sync` takes the same option."""
    url = f"sqlite:///{tmp_path}/chat.db"
    with SyncAgent("ada", llm_provider=ScriptedProvider([GIVEN]), stores=url) as agent:
        assert agent.execute_turn("Which city?", output_type=City).output.name == "Oslo"


async def test_a_limit_ends_the_turn_without_an_output(make_agent):
    """What ends a turn keeps its name, and there is no output then."""
    config = LoopConfig(max_iterations=1)
    agent = await make_agent([tool_call("add", a=1, b=2)], tools=[add], loop_config=config)
    result = await agent.execute_turn("Which city?", output_type=City)
    assert (result.stop_reason, result.output) == (StopReason.MAX_ITERATIONS, None)
