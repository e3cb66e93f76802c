"""The tools of real MCP servers, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sysconfig
from pathlib import Path

import pytest
from mcp_server_time.server import create_server
from tests.agent.kit import assert_whole
from tests.mcp.kit import started
from tests.mcp.servers import over_http
from tests.shares import split

from looopy import tool
from looopy.errors import ConfigurationError
from looopy.testing import text, tool_call
from looopy.tools import MCPTools

TIME = str(Path(sysconfig.get_path("scripts")) / "mcp-server-time")


BY_PROCESS = pytest.mark.parametrize("protocol", split(["auto"], ["legacy"]), indirect=True)


@pytest.fixture(params=["stdio", "http"])
def clock(request, protocol):
    """The tools of `mcp-server-time`, over both transports."""
    options = {"prefix": "clock_", "protocol": protocol}
    if request.param == "stdio":
        yield MCPTools(command=TIME, args=["--local-timezone", "Europe/Rome"], **options)
        return
    with over_http(create_server("Europe/Rome").streamable_http_app()) as url:
        yield MCPTools(url=f"{url}/mcp", **options)


@BY_PROCESS
async def test_a_server_of_another_author_is_listed_and_called(desk, clock):
    """`mcp-server-time`: its tools, their schemas and effects, an answer, and an error."""
    noon = {"source_timezone": "Europe/Rome", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    (now, later, wrong, bad), _ = await desk.ask(
        clock,
        tool_call("clock_get_current_time", timezone="Europe/Rome"),
        tool_call("clock_convert_time", **noon),
        tool_call("clock_convert_time", **(noon | {"target_timezone": "Mars"})),
        tool_call("clock_convert_time", time=12),
    )
    assert '"timezone": "Europe/Rome"' in now.text
    assert not later.is_error
    assert "Asia/Tokyo" in later.text
    assert wrong.is_error
    assert "Mars" in wrong.text
    assert "required but missing" in bad.text  # by its schema, before the server is asked


async def test_annotations_of_a_server_set_the_effects_of_its_tools(workshop):
    """Hints become effects, unless the server is not to be believed."""
    async with workshop(only=["add", "count", "boom"]) as source:
        believed = {one.name: one.effects for one in await source.list_tools()}
    assert believed == {"add": "none", "count": "idempotent", "boom": "external"}
    async with workshop(only=["add"], trust_annotations=False) as source:
        [add] = await source.list_tools()
    assert (add.effects, add.on_resume) == ("external", "fail")
    assert add.description == "Add two numbers."
    assert set(add.parameters["properties"]) == {"a", "b"}


async def test_a_name_that_the_server_does_not_have_is_a_warning_of_the_turn(make_agent, workshop):
    """Once, and the others are on offer."""
    says = [tool_call("add", a=2, b=3), text("five")]
    agent = await make_agent(says, tools=[workshop(only=["add", "ad"])])
    events = [event async for event in agent.execute_turn("hi")]
    [warning] = [one for one in events if one.type == "warning"]
    assert warning.code == "tools_unavailable"
    assert "has no tool 'ad'" in warning.text
    assert [one.message.text for one in events if one.type == "message_end"][2] == "5"


async def test_a_call_has_its_result_and_its_failure(desk, protocol, workshop):
    """Text, structured content for programs, and an error that is one."""
    (five, broken), _ = await desk.ask(
        workshop(protocol=protocol), tool_call("add", a=2, b=3), tool_call("boom")
    )
    assert (five.text, five.details) == ("5", {"structured_content": {"result": 5}})
    assert broken.is_error
    assert "boom" in broken.text


async def test_content_of_every_kind_reaches_the_model(desk, workshop):
    """Images as images, resources as text."""
    (result,), _ = await desk.ask(workshop(), tool_call("show"))
    words, image, link, inside = result.content
    assert words.text == "words"
    assert (image.type, image.mime_type, image.data) == ("image", "image/png", "iVBORw==")
    assert "notes" in link.text
    assert "file:///notes" in link.text
    assert inside.text == "[resource file:///a]\ninside"


async def test_a_result_that_is_too_large_is_cut(desk, workshop):
    """By the limit of the loop, or of the source."""
    (result,), _ = await desk.ask(workshop(max_result_bytes=1000), tool_call("big"))
    assert result.text.count("x") == 1000
    assert "were left out" in result.text


async def test_progress_is_shown(desk, protocol, workshop):
    """As a fraction, while the call runs."""
    _, events = await desk.ask(workshop(protocol=protocol), tool_call("steps"))
    shown = [e.progress for e in events if e.type == "tool_execution_update"]
    assert shown == [0.25]


async def test_a_flood_of_progress_is_shown_in_part(desk, workshop):
    """1,000 reports do not become 1,000 events."""
    (result,), events = await desk.ask(workshop(), tool_call("flood"))
    assert result.text == "done"
    shown = [e for e in events if e.type == "tool_execution_update"]
    assert 0 < len(shown) < 500


async def test_the_list_is_asked_for_once(make_agent, memory_stores, workshop):
    """Three iterations of two turns, and two agents at once: one process, one list."""
    source = workshop()
    listed = []
    original = source.pool.link

    script = [tool_call("count"), tool_call("count"), text("1"), text("2")]
    agent = await make_agent(script, tools=[source], stores=memory_stores)
    async with original(None) as link:
        ask = link._ask_list
        link._ask_list = lambda: listed.append(1) or ask()
        results = await agent.execute_turn("go")
        await agent.execute_turn("go")
        counts = [r.text for i in results.iterations for r in i.tool_results]
        assert [one.split(" of ")[0] for one in counts] == ["call 1", "call 2"]
        assert listed == []
        link.forget()
        await asyncio.gather(source.list_tools(), source.list_tools())
        assert listed == [1]


@BY_PROCESS
async def test_a_list_that_has_changed_is_asked_for_again(desk, protocol):
    """The server says so, and the next iteration has the new tool."""
    (learned, new), _ = await desk.ask(
        started(protocol=protocol), tool_call("learn"), tool_call("learned")
    )
    assert (learned.text, new.text) == ("learned", "new")


@BY_PROCESS
async def test_a_cancelled_call_is_cancelled_at_the_server(desk, notes, protocol):
    """And the connection stays: the same process answers the next turn."""
    source = started(env=notes.env, protocol=protocol)
    agent = await desk._make_agent(
        [tool_call("slow"), tool_call("count"), text("ok")], tools=[source], stores=desk._stores
    )
    stream = agent.execute_turn("go")
    assert await notes.come_to(1) == ["began"]
    stream.cancel()
    result = await stream
    assert result.outcome == "cancelled"
    assert await notes.come_to(2) == ["began", "stopped"]
    result = await agent.execute_turn("again")
    assert result.iterations[0].tool_results[0].text.startswith("call 1 of")
    await assert_whole(desk._stores)


async def test_a_call_that_takes_too_long_is_stopped_at_the_server(desk, notes, workshop):
    """Its result says so, and the turn goes on."""
    (result,), _ = await desk.ask(workshop(timeout_s=0.3), tool_call("slow"))
    assert "timed out after 0.3 s and was stopped" in result.text
    assert await notes.come_to(2) == ["began", "stopped"]


async def test_a_server_that_dies_in_a_call_is_started_again(desk, notes):
    """The outcome of an external call is unknown; the next call finds a new process."""
    source = started("mortal", env=notes.env)
    (dead, alive), _ = await desk.ask(source, tool_call("die"), tool_call("count"))
    assert dead.is_error
    assert "the MCP server 'workshop' ended" in dead.text
    assert "outcome of this call is unknown" in dead.text
    assert alive.text.startswith("call 1 of")
    assert notes.lines == ["died"]  # and not twice


async def test_a_call_that_does_no_harm_is_made_again(desk, notes):
    """What only looks is repeated with a new process, and the model hears nothing of it."""
    source = started("mortal", env=notes.env)
    (result,), _ = await desk.ask(source, tool_call("die_once"))
    assert (result.is_error, result.text) == (False, "alive")


async def test_a_server_killed_between_turns_is_started_again(make_agent, memory_stores):
    """Its death is noticed, and nobody else is told."""
    source = started("mortal")
    script = [tool_call("count"), text("1"), tool_call("count"), text("2")]
    agent = await make_agent(script, tools=[source], stores=memory_stores)
    first = (await agent.execute_turn("go")).iterations[0].tool_results[0].text
    async with source.pool.link(None) as link:
        connection = link.connection()
        os.kill(int(first.rpartition(" ")[2]), signal.SIGKILL)
        await asyncio.wait([connection._owner])
    second = (await agent.execute_turn("go")).iterations[0].tool_results[0].text
    assert first.startswith("call 1 of")
    assert second.startswith("call 1 of")
    assert first != second


async def test_names_that_collide_are_refused_at_start(make_agent, workshop):
    """Of two servers, or of a server and a function; a prefix is the way out."""

    @tool
    def add() -> str:
        """Add."""
        return ""

    agent = await make_agent(tools=[add, workshop()], start=False)
    with pytest.raises(ConfigurationError, match="two tools are named 'add'"):
        await agent.start()
    twice = await make_agent(tools=[workshop(), workshop()], start=False, context_id="twice")
    with pytest.raises(ConfigurationError, match="two tools are named"):
        await twice.start()
    fine = await make_agent(tools=[add, workshop(prefix="shop_")], context_id="fine")
    assert fine.state.status == "ready"


async def test_two_agents_share_a_server_and_the_last_one_closes_it(make_agent):
    """One process; it is left when nobody uses it, and not before."""
    source = started("mortal")
    one = await make_agent([tool_call("count"), text("1")], tools=[source], context_id="one")
    two = await make_agent([tool_call("count"), text("2")], tools=[source], context_id="two")
    first = await one.execute_turn("go")
    await one.shutdown()
    second = await two.execute_turn("go")
    counts = [r.iterations[0].tool_results[0].text for r in (first, second)]
    assert counts[0].startswith("call 1 of")
    assert counts[1] == counts[0].replace("call 1", "call 2")
    await two.shutdown()
    with pytest.raises(ProcessLookupError):
        os.kill(int(counts[0].rpartition(" ")[2]), 0)


async def test_a_source_can_be_held_without_an_agent():
    """`async with` keeps the server; leaving it ends the process."""
    async with started("mortal") as source:
        assert "count" in [one.name for one in await source.list_tools()]
        async with source.pool.link(None) as link:
            connection = link.connection()
            assert not connection.over
    assert connection.over
