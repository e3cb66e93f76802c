"""What another process, or the store's own face, has left is found before a turn is refused."""

import pytest
from tests.agent.kit import assert_whole
from tests.shares import split

from looopy import UserMessage, tool
from looopy.errors import CannotContinue, InputNotFound
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.stores.owner import Owner
from looopy.testing import text, tool_call
from looopy.testing.contracts.turns import answer, begin, commit, said, starts
from looopy.types.message import ToolCall, ToolResultMessage
from looopy.types.message_json import message_to_json
from looopy.types.state import AgentStatus
from looopy.types.storable import MAX_BODY_BYTES, dump


async def test_a_message_appended_from_outside_can_be_answered(make_agent, stores):
    """The agent knew the context before; now there is something to go on from."""
    agent = await make_agent([text("a"), text("b")], stores=stores)
    await agent.execute_turn("hi")
    await stores.messages.append("ada", [UserMessage("and?")])
    assert (await agent.execute_turn(None)).text == "b"
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)


async def test_a_turn_that_failed_in_another_process_can_be_continued(make_agent, stores):
    """Likewise, and an answer to a request that nobody made is still refused."""
    agent = await make_agent([text("a"), text("c")], stores=stores)
    await agent.execute_turn("hi")
    other = await make_agent([tool_call("nobody")], stores=stores)
    await other.execute_turn("do it")  # its script is over: the turn fails
    assert (await agent.execute_turn(None)).text == "c"
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={"x": True})


@pytest.mark.parametrize("spare", [0, 100_000])
@pytest.mark.parametrize("backend", split(["memory"], ["sqlite", "asyncpg"]), indirect=True)
async def test_a_call_too_large_to_ask_about_is_answered(make_agent, stores, spare):
    """
    Its arguments are stored, and do not fit once more into a question: the context goes on.

    Args:
        spare: Bytes that are left beside the message; with enough of them, it is asked.
    """

    @tool(effects="external", on_resume="ask")
    async def pay(note: str) -> str:
        """Pay."""
        return "paid"

    def call(size):
        return ToolCall("c1", "pay", {"note": "x" * size})

    room = MAX_BODY_BYTES - len(dump(message_to_json(answer("", call(0)))))
    large = call(room - spare)
    owner = Owner.new()
    claimed = await begin(stores, holder=owner.token(60.0))
    await commit(stores, claimed, [said(answer("", large)), starts(large)])
    owner.retire()
    agent = await make_agent([text("on we go")], tools=[pay], stores=stores)
    if spare > 1000:
        assert agent.state.status is AgentStatus.WAITING
        return
    assert agent.state.status is AgentStatus.READY
    assert agent.state.interrupted_turn == 1
    assert (await agent.execute_turn("go on")).text == "on we go"
    results = [m for m in await agent.get_messages() if isinstance(m, ToolResultMessage)]
    assert [(m.text, m.is_error) for m in results] == [(OUTCOME_UNKNOWN, True)]
    await assert_whole(stores)
