"""Credentials of a turn reach no sink: forty of them, every way to say one, all that is left."""

from __future__ import annotations

import pytest
from tests.campaign import leaks

from looopy import AuthContext, LoopConfig, tool
from looopy.testing import text, tool_call
from looopy.types.context import Hooks

SECRET = "s3cret-canary-7b1f"
AUTH = AuthContext("u1", credentials={"token": SECRET})


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "count", "seed"), [("sqlite", 40, 0), ("psycopg", 20, 40)])
def test_whatever_fails_no_sink_has_a_secret(kind, count, seed):
    """A share of the trial: events, results, errors, logs, stderr, the model, every stored byte."""
    tally = leaks.by_store(kind, count, seed)
    assert tally.runs >= count
    assert tally.missed == 0
    assert tally.violations == []


@pytest.mark.timeout(120)
def test_a_turn_that_was_killed_and_recovered_left_no_secret():
    """Not in the file that the dead left, not in what it wrote on stderr at DEBUG."""
    tally = leaks.killed(2, 0)
    assert (tally.runs, tally.missed, tally.violations) == (2, 0, [])


@pytest.mark.timeout(120)
def test_the_trial_finds_what_it_looks_for():
    """Where nothing is a secret, every sink has some."""
    tally = leaks.WRONG[0].run(20, 0)
    sinks = {violation.partition("a secret is in ")[2] for violation in tally.violations}
    assert {
        "a cut answer",
        "a cut result",
        "deltas",
        "error of the result",
        "error of the stream",
        "event in JSON",
        "message",
        "result",
        "state",
        "the log",
        "what the model was sent",
    } <= sinks
    assert any("c.db" in sink for sink in sinks)


async def test_the_model_and_the_caller_read_that_something_was_taken_out(make_agent, stores):
    """The rest of a tool's words is what helps to go on."""

    @tool
    async def fetch() -> str:
        """Fail."""
        raise OSError(f"401 for /v1?token={SECRET}: try later")

    agent = await make_agent(
        [tool_call("fetch"), text("later, then")], tools=[fetch], stores=stores
    )
    result = await agent.execute_turn("go", AUTH)
    assert result.messages[2].text == "401 for /v1?token=[redacted]: try later"
    assert agent._provider.requests[1].messages[-1].text == result.messages[2].text
    assert await agent.get_messages() == list(result.messages)


async def test_what_the_caller_gave_is_stored_as_it_was_given(make_agent, stores):
    """Message and metadata are the user's own; only what the turn makes of them is searched."""
    agent = await make_agent([text(f"you said {SECRET}")], stores=stores)
    result = await agent.execute_turn(f"it is {SECRET}", AUTH, metadata={"note": SECRET})
    assert result.messages[0].text == f"it is {SECRET}"
    assert result.text == "you said [redacted]"
    (turn,) = await stores.journal.turns("ada")
    assert turn.metadata == {"note": SECRET}


async def test_an_artifact_with_a_credential_is_refused_and_the_turn_goes_on(make_agent, stores):
    """A changed file would be another file: the tool is told, nothing is written."""
    from looopy import ToolContext

    @tool
    async def save(context: ToolContext) -> str:
        """Save."""
        await context.artifacts.save("config.json", {"key": SECRET})
        return "saved"

    agent = await make_agent([tool_call("save"), text("I cannot")], tools=[save], stores=stores)
    result = await agent.execute_turn("go", AUTH)
    assert "/content: it holds a credential of this turn" in result.messages[2].text
    assert result.text == "I cannot"
    assert await stores.artifacts.list("ada") == []


async def test_the_next_turn_knows_nothing_of_the_secrets_of_the_last(make_agent, stores):
    """They die with their turn: what was a secret is a word again."""
    words = iter([SECRET, SECRET])

    @tool
    async def read() -> str:
        """Read."""
        return next(words)

    script = [tool_call("read"), text("1"), tool_call("read"), text("2")]
    hooks = Hooks(get_api_key=lambda _, auth: "another-key" if auth is None else SECRET)
    agent = await make_agent(
        script, tools=[read], stores=stores, loop_config=LoopConfig(hooks=hooks)
    )
    first = await agent.execute_turn("go", AuthContext("u1"))
    second = await agent.execute_turn("go")
    assert first.messages[2].text == "[redacted]"
    assert second.messages[2].text == SECRET
