"""The logger `looopy` tells a developer what failed, and where; it tells no secret."""

from __future__ import annotations

import logging

import pytest

from looopy import Agent, AuthContext, tool
from looopy.errors import RateLimited
from looopy.testing import ScriptedProvider, failure, text, tool_call

CANARY = "sk-canary-53f1a9d07be24c6688"


@tool
def broken(city: str) -> str:
    """Fail as code fails that has a bug."""
    raise KeyError(f"no {city}, and the token was {CANARY}")


@tool
async def broken_async(city: str) -> str:
    """The same in the event loop."""
    raise KeyError(f"no {city}, and the token was {CANARY}")


def records(caplog, level):
    return [one for one in caplog.records if one.name == "looopy" and one.levelname == level]


@pytest.mark.parametrize("which", [broken, broken_async], ids=["thread", "loop"])
async def test_an_exception_in_a_tool_is_logged_with_its_traceback(caplog, which):
    """The text and the fields of the record name the place; no credential is in either."""
    model = ScriptedProvider([tool_call(which.name, city="Rome"), text("Sorry.")])
    async with Agent("ada", llm_provider=model, tools=[which], stores="memory://") as agent:
        auth = AuthContext("ada", credentials={"token": CANARY})
        result = await agent.execute_turn("hi", auth)
    assert result.text == "Sorry."
    [record] = records(caplog, "WARNING")
    call = result.iterations[0].tool_results[0].tool_call_id
    assert (record.context_id, record.turn, record.tool_call_id) == ("ada", 1, call)
    assert f"context ada, turn 1, call {call}" in record.getMessage()
    assert "Traceback" in caplog.text
    assert "in broken" in caplog.text
    assert "no Rome, and the token was" in caplog.text
    assert CANARY not in caplog.text


async def test_mistakes_of_the_model_are_no_bugs_of_a_tool(caplog):
    """A wrong name and wrong arguments are for the model, and leave no traceback."""
    wrong = [tool_call("brokn", city="Rome"), tool_call("broken"), text("Sorry.")]
    async with Agent("ada", llm_provider=ScriptedProvider(wrong), tools=[broken]) as agent:
        await agent.execute_turn("hi")
    assert records(caplog, "WARNING") == []


async def test_a_failed_turn_logs_a_line(caplog):
    """It names context, turn, reason and error."""
    model = ScriptedProvider([failure(RateLimited("the quota is used up", retryable=False))])
    async with Agent("ada", llm_provider=model, stores="memory://") as agent:
        await agent.execute_turn("hi")
    [record] = records(caplog, "WARNING")
    assert record.getMessage() == "context ada, turn 1 failed (error): the quota is used up"
    assert (record.context_id, record.turn) == ("ada", 1)


async def test_a_turn_that_does_not_fail_logs_nothing(caplog):
    """Neither a warning nor an error."""
    caplog.set_level(logging.DEBUG, logger="looopy")
    async with Agent("ada", llm_provider=ScriptedProvider([text("hi")])) as agent:
        await agent.execute_turn("hi")
    assert records(caplog, "WARNING") + records(caplog, "ERROR") == []
