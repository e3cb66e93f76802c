"""What another process, or the store's own face, has left is found before a turn is refused."""

import pytest

from looopy import UserMessage
from looopy.errors import CannotContinue, InputNotFound
from looopy.testing import text, tool_call


async def test_a_message_that_somebody_appended_can_be_answered(make_agent, stores):
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
