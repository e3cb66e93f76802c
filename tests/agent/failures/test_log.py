"""The logger `looopy` tells a developer what failed, and where; it tells no secret."""

from __future__ import annotations

import io
import json
import logging

import pytest

from looopy import Agent, AuthContext, tool
from looopy.errors import RateLimited
from looopy.telemetry import JsonLines
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


class Raising:
    """A provider that breaks its contract: it raises, and closing it raises too."""

    name = model = "raising"

    def stream(self, request, options):
        """Return an iterator that fails."""
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise ZeroDivisionError(f"divided by {CANARY}")

    async def aclose(self):
        """Fail."""
        raise OSError("no socket")


async def test_an_exception_in_a_provider_is_logged_with_its_place(caplog):
    """Context, turn, iteration and attempt are in the text and in fields; no credential is."""
    async with Agent("ada", llm_provider=Raising(), stores="memory://") as agent:
        await agent.execute_turn("hi", AuthContext("ada", credentials={"token": CANARY}))
    raised, closed = records(caplog, "ERROR")
    assert "context ada, turn 1, iteration 1, attempt 1" in raised.getMessage()
    assert (raised.context_id, raised.turn, raised.iteration, raised.attempt) == ("ada", 1, 1, 1)
    assert closed.context_id == "ada"
    assert "ZeroDivisionError: divided by [redacted]" in caplog.text
    assert "in __anext__" in caplog.text
    assert CANARY not in caplog.text


async def test_a_failure_is_one_line_of_json(caplog):
    """Ids are fields, the traceback is one, and a credential in a field is redacted too."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("looopy")
    logger.addHandler(handler)

    @tool
    def spill() -> str:
        """Log as an application does that is careless, then fail."""
        odd = {("a", "pair"): 1}
        logger.warning("a\nb %s", CANARY, extra={"key": CANARY, "odd": odd})
        raise KeyError(CANARY)

    try:
        model = ScriptedProvider([tool_call("spill"), text("Sorry.")])
        async with Agent("ada", llm_provider=model, tools=[spill], stores="memory://") as agent:
            auth = AuthContext("ada", credentials={"token": CANARY})
            result = await agent.execute_turn("hi", auth)
    finally:
        logger.removeHandler(handler)
    careless, failed = map(json.loads, out.getvalue().splitlines())
    assert (careless["message"], careless["key"]) == ("a\nb [redacted]", "[redacted]")
    assert careless["odd"] == "{('a', 'pair'): 1}"
    assert failed["tool_call_id"] == result.iterations[0].tool_results[0].tool_call_id
    assert (failed["context_id"], failed["turn"], failed["level"]) == ("ada", 1, "WARNING")
    assert failed["exception"].endswith("KeyError: '[redacted]'")
    assert failed["time"].endswith("+00:00")
    assert CANARY not in out.getvalue()
