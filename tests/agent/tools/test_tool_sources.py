"""Sources of tools that talk to servers: asked with the turn, and held by who uses them."""

from __future__ import annotations

import pytest

from looopy import AuthContext, LoopConfig, tool
from looopy.errors import ConfigurationError
from looopy.testing import ScriptedProvider, text, tool_call


class Server:
    """A source whose tools depend on the actor, and that counts its users."""

    def __init__(self, *, problem: str | None = None) -> None:
        self.users = 0
        self.most = 0
        self.problem = problem

    def acquire(self):
        self.users += 1
        self.most = max(self.most, self.users)

    async def release(self):
        self.users -= 1

    def list_tools(self):
        return []

    async def list_for(self, turn, warn):
        if self.problem:
            warn(self.problem)
        actor = turn.auth_context.actor_id if turn.auth_context else "nobody"

        @tool(name=f"greet_{actor}", effects="none")
        def greet() -> str:
            """Greet."""
            return f"hello {actor}"

        return [greet]


async def test_a_source_is_asked_with_the_turn(make_agent, memory_stores):
    """What it offers may depend on the credentials, and changes with them."""
    server = Server()
    script = [tool_call("greet_ada"), text("1"), tool_call("greet_bob"), text("2")]
    agent = await make_agent(script, tools=[server], stores=memory_stores)
    for actor in ("ada", "bob"):
        result = await agent.execute_turn("greet", AuthContext(actor))
        assert result.iterations[0].tool_results[0].text == f"hello {actor}"


@pytest.mark.parametrize("ours_first", [True, False])
async def test_a_name_that_a_server_takes_in_a_turn_stays_ours(
    make_agent, memory_stores, ours_first
):
    """The server's tool gives way, with a warning; the conversation goes on."""

    @tool(effects="none")
    def greet_ada() -> str:
        """Greet."""
        return "ours"

    sources = [greet_ada, Server()] if ours_first else [Server(), greet_ada]
    script = ScriptedProvider([tool_call("greet_ada"), text("ok")])
    agent = await make_agent(script, tools=sources, stores=memory_stores)
    events = [event async for event in agent.execute_turn("greet", AuthContext("ADA"))]
    [warning] = [e.text for e in events if e.type == "warning"]
    assert [one.name for one in script.requests[0].tools] == ["greet_ada"]
    assert "'greet_ADA' of one source is not offered" in warning
    assert [e.result.text for e in events if e.type == "tool_execution_end"] == ["ours"]
    assert events[-1].outcome == "completed"


async def test_a_failing_source_is_reported_once_a_turn(make_agent, memory_stores):
    """As a warning; the turn goes on, and the next one says it again."""
    provider = ScriptedProvider([tool_call("greet_nobody"), text("1"), text("2")])
    server = Server(problem="the server 'x' cannot be reached")
    agent = await make_agent(provider, tools=[server], stores=memory_stores)
    for turn in (1, 2):
        events = [event async for event in agent.execute_turn("go")]
        said = [(e.code, e.text) for e in events if e.type == "warning"]
        assert said == [("tools_unavailable", "the server 'x' cannot be reached")], turn
        assert events[-1].outcome == "completed"


async def test_a_source_is_held_from_start_to_shutdown(make_agent, memory_stores):
    """Once an agent, however often it starts; two agents share it."""
    server = Server()
    one = await make_agent(tools=[server, server.list_tools], context_id="one")
    two = await make_agent(tools=[server], context_id="two", stores=memory_stores)
    await one.start()
    await one.pause()
    await one.start()
    assert server.users == 2
    await one.shutdown()
    await one.shutdown()
    assert server.users == 1
    await two.shutdown()
    assert (server.users, server.most) == (0, 2)
    await two.start()
    assert server.users == 1


async def test_an_agent_that_fails_to_start_releases_its_sources(make_agent):
    """What it began to use before it failed is let go."""
    server = Server()
    twins = [tool(lambda: "1", name="same"), tool(lambda: "2", name="SAME")]
    agent = await make_agent(tools=[server, *twins], start=False, loop_config=LoopConfig())
    with pytest.raises(ConfigurationError, match="two tools are named"):
        await agent.start()
    assert (server.users, server.most) == (0, 1)


async def test_if_a_source_fails_to_close_the_others_are_closed(make_agent, caplog):
    """The others are closed, the agent is shut down, and the failure is logged."""

    class Stuck(Server):
        async def release(self):
            raise OSError("it will not go")

    stuck, server = Stuck(), Server()
    agent = await make_agent(tools=[stuck, server])
    await agent.shutdown()
    assert (agent.state.status, server.users) == ("shutdown", 0)
    assert "failed to close" in caplog.text
