"""The name of the process that runs a turn: what a subscriber sees, and what is stored."""

import pytest
from tests.agent.kit import collect

from looopy.telemetry import process_name
from looopy.testing import ScriptedProvider, text


@pytest.mark.parametrize("auto_save", [True, False])
async def test_a_turn_names_its_process_live_and_in_the_log(make_agent, stores, auto_save):
    """Also a turn that is saved later."""
    agent = await make_agent(ScriptedProvider([text("hi")]), stores=stores, auto_save=auto_save)
    seen = await collect(agent.execute_turn("go"))
    if not auto_save:
        await agent.save_state()
    stored = await stores.journal.events("ada", limit=1)
    assert [e.process for e in (seen[0], *stored)] == [process_name()] * 2
