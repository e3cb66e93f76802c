"""What a dead owner had sent to a server may reach it while its turn is being taken over."""

from tests.agent.kit import add, assert_whole

from looopy import Agent, Outcome
from looopy.stores.owner import Owner
from looopy.stores.records import Claim
from looopy.testing import ScriptedProvider, SpyStores, text
from looopy.testing.contracts.turns import CONTEXT, answer, begin, commit, finishes, said, starts
from looopy.types.message import ToolCall, ToolResultMessage

_CALL = ToolCall("c1", "add", {"a": 1, "b": 2})


def _late(spy, stores, claimed, events):
    """Let a commit of the dead owner arrive right before it is displaced."""

    async def hook(name, argument):
        if name == "claim" and isinstance(argument, Claim) and argument.recover:
            spy.hook = None
            await commit(stores, claimed, events)

    spy.hook = hook


async def _taken_over(stores, late, before=()):
    """Begin a turn whose owner is gone, and start an agent on it while *late* arrives."""
    owner = Owner.new()
    claimed = await begin(stores, ttl_s=0, holder=owner.token())
    owner.retire()
    if before:
        await commit(stores, claimed, before, ttl_s=0)
    spy = SpyStores(stores)
    _late(spy, stores, claimed, late)
    provider = ScriptedProvider([text("the next answer")])
    agent = Agent(CONTEXT, llm_provider=provider, tools=[add], stores=spy.stores)
    await agent.start()
    assert spy.hook is None
    assert agent.state.interrupted_turn == 1
    result = await agent.execute_turn("go on")
    assert result.outcome is Outcome.COMPLETED
    await agent.shutdown()
    await assert_whole(stores, CONTEXT)
    return await stores.messages.list(CONTEXT)


async def test_a_call_that_is_announced_at_the_last_moment_is_answered(stores):
    """Its owner is gone, so nobody else would answer it."""
    messages = await _taken_over(stores, [said(answer("", _CALL)), starts(_CALL)])
    (result,) = [m for m in messages if isinstance(m, ToolResultMessage)]
    assert result.is_error


async def test_a_result_that_arrives_at_the_last_moment_is_the_only_one(stores):
    """The call is not answered a second time, as one of unknown outcome."""
    before = [said(answer("", _CALL)), starts(_CALL)]
    messages = await _taken_over(stores, finishes(_CALL, "3"), before)
    (result,) = [m for m in messages if isinstance(m, ToolResultMessage)]
    assert not result.is_error
