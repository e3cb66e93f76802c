"""A gateway that begins an answer again in the same stream: no tool runs for both answers."""

from __future__ import annotations

import json

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses, three
from tests.wire.fake_openai import DONE, Answer
from tests.wire.three import APIS

from looopy import Agent, LoopConfig, RetryPolicy

AT_ONCE = LoopConfig(retry=RetryPolicy(attempts=3, base_s=0))
CENTS = '{"cents": 900}'


def paying(api, call_id):
    """A whole answer that asks for one payment, under an id of its own."""
    if api == "anthropic":
        made = fake_anthropic.answers(
            fake_anthropic.text(0, "I pay"),
            fake_anthropic.calls(1, call_id, "pay", CENTS),
            reason="tool_use",
        )
    elif api == "responses":
        made = fake_responses.answers(fake_responses.calls(0, call_id, "pay", CENTS))
    else:
        function = {"name": "pay", "arguments": CENTS}
        call = {"index": 0, "id": call_id, "type": "function", "function": function}
        begins = fake_openai.chunk({"role": "assistant", "content": None})
        calls = fake_openai.chunk({"tool_calls": [call]})
        made = Answer(pieces=[begins, calls, fake_openai.chunk(finish="tool_calls"), DONE])
    names = (b"msg_1", b"resp_1", b"chatcmpl-1")
    pieces = list(made.pieces)
    for name in names:
        pieces = [piece.replace(b'"' + name, b'"' + call_id.encode()) for piece in pieces]
    return pieces


@APIS
@pytest.mark.parametrize("whole", [False, True], ids=["cut", "whole"])
async def test_spliced_answer_is_asked_for_again_and_its_tool_runs_once(api, whole):
    """The first answer breaks off after its call, or is whole; the third is alone."""
    paid = []

    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    first = paying(api, "call_a")
    cut = len(first) if whole else -2
    spliced = Answer(pieces=[*first[:cut], *paying(api, "call_b")])
    again = Answer(pieces=paying(api, "call_c"))
    async with (
        three.serving(api, spliced, again, three.says(api, "Paid.")) as (server, provider),
        Agent("ada", llm_provider=provider, tools=[pay], loop_config=AT_ONCE) as agent,
    ):
        result = await agent.execute_turn("Pay 9 euros.")
    assert (result.outcome, result.text) == ("completed", "Paid.")
    assert paid == [900]
    assert len(server.received) == 3
    assert "call_a" not in json.dumps(server.received[-1].body)
