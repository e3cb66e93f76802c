"""What waits can be dropped without a word, for a protocol that cancels a question."""

import pytest

from looopy import Agent, AuthContext, open_stores, tool
from looopy.agent.hosted import port_of
from looopy.errors import AgentBusy, CannotContinue
from looopy.testing import ScriptedProvider, text, tool_call

ADA = AuthContext("ada", credentials={"token": "a secret token"})


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


async def test_a_question_is_dropped_once_and_by_the_last_turn_alone():
    """A turn that continues it ends as cancelled; its call has a result, and no model is called."""
    model = ScriptedProvider([(tool_call("send", to="Ada"), tool_call("send", to="Ben")),
                              text("Well.")])  # fmt: skip
    async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
        async with Agent("c", llm_provider=model, tools=[send], stores=stores) as agent:
            assert [*await port_of(agent).listed_tools()] == ["send"]
            assert (await agent.execute_turn("Send it.", ADA)).outcome == "input_required"
            for wrong in (2, 0):
                with pytest.raises(CannotContinue):
                    await port_of(agent).give_up(ADA, wrong)
            await port_of(agent).give_up(ADA, 1)
            assert (agent.state.pending, agent.state.status) == ((), "ready")
            with pytest.raises(CannotContinue):
                await port_of(agent).give_up(ADA, 2)
            said = [(m.role, m.text) for m in await agent.get_messages()]
            assert [role for role, _ in said] == ["user", "assistant", "toolResult", "toolResult"]
            assert all(line.startswith("Cancelled") for _, line in said[2:])
            [_, last] = await stores.journal.turns("c")
            assert (last.outcome, last.continues, last.actor_id) == ("cancelled", 1, "ada")
            turn = agent.execute_turn("Then not.", ADA)
            with pytest.raises(AgentBusy):
                await port_of(agent).give_up(ADA, 2)
            assert (await turn).text == "Well."


async def test_a_turn_that_lacks_credentials_is_dropped():
    """It has no request that could be answered."""
    model = ScriptedProvider([tool_call("send", to="Ada")])
    async with open_stores("memory:") as stores:  # noqa: SIM117 - too long in one
        async with Agent("c", llm_provider=model, tools=[send], stores=stores) as agent:
            await agent.execute_turn("Send it.", ADA)
            inputs = {agent.state.pending[0].request_id: True}
            assert (await agent.execute_turn(None, inputs=inputs)).outcome == "auth_required"
            await port_of(agent).give_up(None, 2)
            assert (await agent.refresh()).interrupted_turn is None
            assert "was not run" in (await agent.get_messages())[-1].text
            assert (await stores.journal.turns("c"))[-1].continues == 1
