"""Resources and prompts of MCP servers: methods for the application, tools for the model."""

from __future__ import annotations

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from tests.mcp.kit import started
from tests.mcp.servers import over_http

from looopy.errors import ToolServerError
from looopy.testing import tool_call
from looopy.tools import MCPTools
from looopy.tools.sources.mcp import MCPPrompt, MCPResource


def make_library():
    """A server with a resource, a template and a prompt."""
    server = MCPServer("library")

    @server.resource("notes://today", mime_type="text/plain", description="Of today.")
    def today() -> str:
        return "It rains."

    @server.resource("notes://{day}")
    def some_day(day: str) -> str:
        return f"On {day} it rained."

    @server.resource("notes://sun", mime_type="image/png")
    def sun() -> bytes:
        return b"\x89PNG"

    @server.prompt(description="Ask for the weather.")
    def weather(city: str, unit: str = "C") -> list[UserMessage | AssistantMessage]:
        return [UserMessage(f"How is it in {city}?"), AssistantMessage(f"In {unit}?")]

    @server.tool()
    def read_resource() -> str:
        """Be in the way."""
        return "the server's own"

    return server


@pytest.fixture(scope="module")
def library():
    """The address of a library."""
    with over_http(make_library().streamable_http_app()) as url:
        yield f"{url}/mcp"


async def test_an_application_reads_resources_and_prompts(library, protocol):
    """In looopy's own types; an unknown one is a typed error."""
    async with MCPTools(url=library, protocol=protocol) as source:
        *found, template = sorted(await source.list_resources(), key=lambda one: one.is_template)
        assert {one.uri for one in found} == {"notes://today", "notes://sun"}
        assert found[0] == MCPResource(
            uri="notes://today", name="today", description="Of today.", mime_type="text/plain"
        )
        assert (template.uri, template.is_template) == ("notes://{day}", True)
        [text] = await source.read_resource("notes://monday")
        [image] = await source.read_resource("notes://sun")
        assert text.text == "[resource notes://monday]\nOn monday it rained."
        assert (image.type, image.data) == ("image", "iVBORw==")
        assert await source.list_prompts() == [
            MCPPrompt(
                name="weather",
                description="Ask for the weather.",
                arguments={"city": "", "unit": ""},
                required=frozenset({"city"}),
            )
        ]
        question, answer = await source.get_prompt("weather", {"city": "Rome"})
        assert [one.role for one in (question, answer)] == ["user", "assistant"]
        assert (question.text, answer.text) == ("How is it in Rome?", "In C?")
        for asked in (
            source.read_resource("other://x"),
            source.get_prompt("weather"),
            source.get_prompt("nothing"),
        ):
            with pytest.raises(ToolServerError, match="answered with an error"):
                await asked


async def test_a_model_reads_resources_by_two_tools(library, desk):
    """If they are wanted; a tool of the server that has such a name stays."""
    async with MCPTools(url=library) as source:
        assert [one.name for one in await source.list_tools()] == ["read_resource"]
    async with MCPTools(url=library, resources=True) as source:
        assert [one.name for one in await source.list_tools()] == [
            "read_resource",
            "list_resources",
        ]
    source = MCPTools(url=library, resources=True, prefix="lib_", only=[])
    (listed, read, failed), _ = await desk.ask(
        source,
        tool_call("lib_list_resources"),
        tool_call("lib_read_resource", uri="notes://today"),
        tool_call("lib_read_resource", uri="other://x"),
    )
    assert "- notes://today (today, text/plain) Of today." in listed.text.splitlines()
    assert any("a template: fill in the braces" in one for one in listed.text.splitlines())
    assert read.text == "[resource notes://today]\nIt rains."
    assert failed.is_error


async def test_a_server_without_them_has_none():
    """No resources or prompts, no tools for them, and no error."""
    async with started("liar", resources=True) as source:
        assert (await source.list_resources(), await source.list_prompts()) == ([], [])
        names = {one.name for one in await source.list_tools()}
        assert "good" in names
        assert "list_resources" not in names
