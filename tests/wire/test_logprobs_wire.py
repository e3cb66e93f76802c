"""Log-probabilities on the wire: wanted, kept, bounded, missed and refused by name."""

from __future__ import annotations

import pytest
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from openai.types.responses.response_output_text import ResponseOutputText
from tests.wire import fake_openai, fake_responses
from tests.wire.fake_openai import DONE, Answer, chunk
from tests.wire.fake_responses import sse
from tests.wire.three import last_event, says, serving

from looopy import Agent, ModelOptions
from looopy.errors import ConfigurationError, UnsupportedOption
from looopy.llm import FallbackProvider
from looopy.llm.accumulate import Accumulator
from looopy.llm.logprobs import MAX_BYTES, UNLIKELY, Logprobs, warn_of_missing
from looopy.stores import open_stores
from looopy.types.event import TurnWarning
from looopy.types.message import TokenLogprob
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.request import StreamOptions

SENT = [
    {
        "token": "Ye",
        "bytes": [89, 101],
        "logprob": -0.25,
        "top_logprobs": [
            {"token": "Ye", "bytes": [89, 101], "logprob": -0.25},
            {"token": "No", "bytes": [78, 111], "logprob": -1.5},
            {"token": "So", "bytes": [83, 111], "logprob": -9.0},
        ],
    },
    {"token": "s.", "bytes": [115, 46], "logprob": -1, "top_logprobs": []},
]
KEPT = (
    TokenLogprob("Ye", -0.25, (TokenLogprob("Ye", -0.25), TokenLogprob("No", -1.5))),
    TokenLogprob("s.", -1.0),
)


def weighed(api):
    """The answer "Yes." with the log-probabilities of its tokens, as the SDK types them."""
    if api == "completions":
        typed = ChoiceLogprobs(content=[ChatCompletionTokenLogprob(**one) for one in SENT])
        first, second = typed.model_dump()["content"]
        pieces = []
        for word, one in (("Ye", first), ("s.", second)):
            choice = {"index": 0, "delta": {"content": word}, "logprobs": {"content": [one]}}
            pieces.append(fake_openai.event({"id": "chatcmpl-1", "choices": [choice]}))
        return Answer(pieces=[*pieces, chunk(finish="stop"), chunk(usage=fake_openai.USAGE), DONE])
    part = {"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": SENT}
    said = ResponseOutputText.model_validate(part).model_dump()
    item = {"type": "message", "id": "m1", "role": "assistant", "content": [said]}
    done = sse("response.output_item.done", output_index=0, item=item)
    return fake_responses.answers([done])


@pytest.mark.parametrize("api", ["completions", "responses"])
async def test_log_probabilities_are_stored_with_the_answer(api):
    """As many as were asked for, on the wire as the API names them, and read back equal."""
    async with (
        serving(api, weighed(api), says(api, "Well.")) as (server, made),
        open_stores("memory:") as stores,
        Agent("w", llm_provider=made, stores=stores) as agent,
    ):
        result = await agent.execute_turn("Yes or no?", options=ModelOptions(logprobs=2))
        assert result.outcome == "completed", result.error
        plain = await agent.execute_turn("Sure?")
        _, stored, *_ = await agent.get_messages()
    assert result.messages[-1].logprobs == stored.logprobs == KEPT
    assert plain.messages[-1].logprobs == ()
    assert message_from_json(message_to_json(stored)) == stored
    asked, after = (received.body for received in server.received)  # neither was refused
    assert asked["top_logprobs"] == 2
    if api == "completions":
        assert asked["logprobs"] is True
    else:
        assert "message.output_text.logprobs" in asked["include"]
    assert "top_logprobs" not in after
    assert "logprob" not in str(after["input" if api == "responses" else "messages"])


async def test_zero_alternatives_give_only_the_chosen_token():
    """OpenAI takes 0; llama.cpp would then send none, so a compatible server is asked for one."""
    async with serving("completions", weighed("completions")) as (server, made):
        found = (await last_event(made, logprobs=0)).message.logprobs
    assert [one.top for one in found] == [(), ()]
    assert (server.received[0].body["logprobs"], server.received[0].body["top_logprobs"]) == (
        True,
        1,
    )


async def test_an_answer_without_logprobs_is_reported():
    """A server that ignores the option: a warning names it, and the answer stands."""
    async with (
        serving("completions", says("completions", "Yes.")) as (_, made),
        Agent("w", llm_provider=made) as agent,
    ):
        turn = agent.execute_turn("Yes?", options={"logprobs": 1})
        warnings = [e async for e in turn if isinstance(e, TurnWarning)]
    assert [one.code for one in warnings] == ["logprobs"]
    assert "openai/fake sent no log-probabilities" in warnings[0].text


async def test_anthropic_refuses_logprobs_by_name_and_a_chain_continues():
    """Before a request is sent; the next provider of a chain may take them."""
    async with serving("anthropic") as (server, made):
        error = (await last_event(made, logprobs=1)).error
        assert isinstance(error, UnsupportedOption)
        assert error.option == "logprobs"
        async with serving("completions", weighed("completions")) as (_, other):
            last = await last_event(FallbackProvider([made, other]), logprobs=2)
        assert last.message.logprobs == KEPT
        assert server.received == []


def test_they_are_bounded():
    """A mebibyte of them, with a warning; numbers that no store keeps become a small one."""
    warned = []
    answer = Accumulator(api="a", provider="p", model="m")
    answer.logprobs = Logprobs(20)
    odd = [float("-inf"), float("nan"), True, "x", 10**400]
    answer.logprobs.add([{"token": "a", "logprob": one} for one in odd])
    assert [one.logprob for one in answer.logprobs.all()] == [UNLIKELY, UNLIKELY, UNLIKELY]
    answer.logprobs.add([None, {"token": 3}, {"token": "b" * (MAX_BYTES + 1), "logprob": -1.0}])
    answer.logprobs.add([{"token": "c", "logprob": -1.0}])
    answer.text_delta("aaab")
    answer.done("stop")
    options = StreamOptions(warn=lambda *said: warned.append(said))
    warn_of_missing(options, answer.logprobs, answer.snapshot())
    assert warned[0][0] == "logprobs"
    assert "its first 3 tokens: a message keeps 1 MiB" in warned[0][1]


@pytest.mark.parametrize("value", [-1, 21, True, 1.5])
def test_a_number_that_no_model_takes_is_refused_at_once(value):
    """OpenAI's limit is 20."""
    with pytest.raises(ConfigurationError, match=r"ModelOptions\.logprobs"):
        ModelOptions(logprobs=value)
