"""MCP servers that lie, flood, die or are not there: they cost their tools, never a turn."""

from __future__ import annotations

import pytest
from tests.agent.kit import assert_whole
from tests.mcp.kit import started

from looopy.errors import ConfigurationError, MissingExtra, ToolServerError
from looopy.testing import text, tool_call
from looopy.tools import MCPTools


async def test_an_invalid_tool_of_a_list_is_repaired_or_omitted():
    """Each tool for itself, and the problems say what was wrong with which."""
    async with started("liar") as source:
        tools = {one.name: one for one in await source.list_tools()}
        problems = "\n".join(source.problems)
    digest = next(name for name in tools if name.startswith("xxx"))
    assert len(digest) == 64
    assert list(tools) == [
        "good",
        "no_usual_name",
        digest,
        "typeless",
        "array_type",
        "odd_type",
        "wordy",
        "odd",
        "promises",
    ]
    assert tools["no_usual_name"].remote_name == "no.usual/name"
    assert tools["typeless"].parameters["type"] == "object"
    assert tools["array_type"].parameters["type"] == "object"
    assert tools["odd_type"].parameters["properties"] == {"a": {}}
    assert len(tools["wordy"].description) < 9000
    assert tools["odd"].effects == "external"
    for left in ("GOOD", "///", "list_schema", "no_schema", "abroad", "huge"):
        assert f"{left!r} was left out" in problems
    assert problems.count("something it lists was left out") == 2
    assert "'array_type' was not an object" in problems


async def test_a_tool_with_a_repaired_name_is_called_by_its_original_name(
    make_agent, memory_stores
):
    """The model's name is ours, the server's stays the server's; its promises are not ours."""
    script = [tool_call("no_usual_name"), tool_call("promises"), text("ok")]
    agent = await make_agent(script, tools=[started("liar")], stores=memory_stores)
    result = await agent.execute_turn("go")
    said = [r.text for one in result.iterations for r in one.tool_results]
    assert said == ["fine", "fine"]
    await assert_whole(memory_stores)


@pytest.mark.parametrize(
    ("behaviour", "many", "problem"),
    [("many", 256, "lists 5,000 tools"), ("pages", 100, ""), ("list is none", 0, "")],
)
async def test_a_list_without_end_has_one(behaviour, many, problem):
    """So many tools, so many pages, and no more."""
    async with started(behaviour) as source:
        assert len(await source.list_tools()) == many
        assert problem in "".join(source.problems)


async def test_garbage_before_the_answer_is_passed_over(make_agent, memory_stores):
    """A greeting on standard output breaks no connection."""
    agent = await make_agent(
        [tool_call("good"), text("ok")], tools=[started("garbage")], stores=memory_stores
    )
    result = await agent.execute_turn("go")
    assert result.iterations[0].tool_results[0].text == "fine"


async def test_an_answer_that_is_none_is_an_error(make_agent, memory_stores):
    """The call may have had its effect, and its result says so."""
    agent = await make_agent(
        [tool_call("good"), text("ok")], tools=[started("bad answer")], stores=memory_stores
    )
    result = await agent.execute_turn("go")
    [answer] = result.iterations[0].tool_results
    assert answer.is_error
    assert "something that is not an MCP answer" in answer.text
    assert "outcome of this call is unknown" in answer.text
    assert result.outcome == "completed"
    await assert_whole(memory_stores)


async def test_a_server_that_dies_in_the_handshake_has_its_last_words(make_agent, caplog):
    """The agent starts, the turn goes on, and both say what is missing and why."""
    source = started("dies")
    agent = await make_agent([tool_call("good"), text("ok")], tools=[source])
    assert "did not shake hands" in caplog.text
    assert "no licence was found" in caplog.text
    events = [event async for event in agent.execute_turn("go")]
    [warning] = [e for e in events if e.type == "warning"]
    assert (warning.code, events[-1].outcome) == ("tools_unavailable", "completed")
    assert "its tools are not on offer" in warning.text


async def test_last_words_hold_no_secret_of_the_environment(caplog):
    """A server that cannot start likes to say with which key."""
    env = {"SHOP_TOKEN": "token-of-the-shop"}
    async with started("tells", env=env, required=True) as source:
        with pytest.raises(ToolServerError, match=r"it is \[redacted\]") as failed:
            await source.list_tools()
    assert "token-of-the-shop" not in str(failed.value) + caplog.text + repr(source.target)


async def test_a_required_server_that_dies_keeps_the_agent_from_starting(make_agent):
    """With an error of its own, and the agent can be started once it is well."""
    agent = await make_agent(tools=[started("dies", required=True)], start=False)
    with pytest.raises(ToolServerError, match="no licence was found"):
        await agent.start()
    assert agent.state.status == "created"


@pytest.mark.parametrize("behaviour", ["silent", "stuck"])
async def test_a_server_that_does_not_answer_is_given_up(behaviour):
    """In the handshake or at its list of tools."""
    options = {"connect_timeout_s": 0.5} if behaviour == "silent" else {"list_timeout_s": 0.2}
    async with started(behaviour, required=True, protocol="legacy", **options) as source:
        with pytest.raises(ToolServerError, match="did not"):
            await source.list_tools()


async def test_a_server_that_failed_is_not_asked_in_each_iteration(make_agent, memory_stores):
    """It would cost its timeout each time; the warning comes once a turn."""
    source = started("dies")
    script = [tool_call("good"), tool_call("good"), text("ok")]
    agent = await make_agent(script, tools=[source], stores=memory_stores)
    async with source.pool.link(None) as link:
        before = link._connection
        await agent.execute_turn("go")
        assert link._connection is before


async def test_a_command_that_is_none_is_refused_at_start(make_agent):
    """It is a mistake of whoever wrote it, and not of a server."""
    agent = await make_agent(tools=[MCPTools(command="no-such-command")], start=False)
    with pytest.raises(ConfigurationError, match="'no-such-command' cannot be run"):
        await agent.start()


async def test_the_error_of_a_missing_extra_names_it(monkeypatch, make_agent):
    """With the command that does it."""
    import sys

    for name in ("looopy.tools.sources.mcp.sdk", "looopy.tools.sources.mcp.transports"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    agent = await make_agent(tools=[started()], start=False)
    with pytest.raises(MissingExtra) as missing:
        await agent.start()
    assert missing.value.extras == ("mcp",)
