"""The MCP servers of an editor become tools of an application that wants them."""

import sys

import acp
import pytest
from acp import schema
from tests.server.acp.kit import Editor, connected, said
from tests.server.obedient import build

from looopy import open_stores
from looopy.cli.acp import _with_tools
from looopy.server.protocols.acp.servers import tools_of

STDIO = schema.McpServerStdio(
    name="my time", command=sys.executable, args=["-m", "x"],
    env=[schema.EnvVariable(name="A", value="b")],
)  # fmt: skip
HTTP = schema.HttpMcpServer(
    type="http", name="crm", url="https://crm.example/mcp",
    headers=[schema.HttpHeader(name="X", value="y")],
)  # fmt: skip


def test_each_server_is_a_source_with_its_name():
    """One that cannot be started is left out, and a person approves each call."""
    missing = schema.McpServerStdio(name="gone", command="/no/such/command", args=[], env=[])
    sources = tools_of([STDIO, missing, HTTP, HTTP], "/")
    assert [source._prefix for source in sources] == ["my_time_", "crm_", "crm__"]
    assert all(source._options["needs_approval"] for source in sources)


async def test_the_factory_takes_the_tools_of_its_session():
    """Before it makes the agent; another session has its own."""
    seen = {}

    def with_tools(context_id, stores, tools=()):
        seen[context_id] = [source._prefix for source in tools]
        return build(context_id, stores)

    factory, editor_tools = _with_tools(with_tools)
    async with (
        open_stores("memory:") as stores,
        connected(stores, Editor(), factory=factory, editor_tools=editor_tools) as client,
    ):
        first = await client.new_session(cwd="/", mcp_servers=[STDIO])
        other = await client.new_session(cwd="/", mcp_servers=[])
        await client.prompt(first.session_id, said("hello"))
        assert seen == {first.session_id: ["my_time_"], other.session_id: []}
        await client.close_session(first.session_id)
        assert editor_tools == {other.session_id: []}


async def test_the_error_of_a_failing_factory_is_reported():
    """The client is the person who runs the application."""

    def broken(context_id, stores):
        raise RuntimeError("no key in the environment")

    async with (
        open_stores("memory:") as stores,
        connected(stores, Editor(), factory=broken) as client,
    ):
        with pytest.raises(acp.RequestError, match="no key in the environment") as failed:
            await client.new_session(cwd="/", mcp_servers=[])
        assert (failed.value.code, failed.value.data["code"]) == (-32603, "factory_failed")
