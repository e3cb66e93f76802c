"""MCP servers over HTTP: credentials of the turn, and what a server may answer instead of MCP."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
import sys

import pytest
from starlette.responses import PlainTextResponse
from tests.agent.kit import assert_whole
from tests.mcp.servers import make_workshop, over_http

from looopy import AuthContext
from looopy.errors import ConfigurationError, ToolServerError
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import MCPTools
from looopy.tools.sources.mcp.credentials import Credentials
from looopy.types.context import TurnContext


class Doorman:
    """Lets only those in who bring a token; remembers who came, and what for."""

    def __init__(self, app):
        self._app = app
        self.seen = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            headers = {key.decode(): value.decode() for key, value in scope["headers"]}
            self.seen.append((headers.get("authorization"), headers.get("mcp-method")))
            if not headers.get("authorization", "").startswith("Bearer "):
                await PlainTextResponse("who are you?", status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def door():
    """A workshop behind a doorman: he, and the address."""
    doorman = Doorman(make_workshop().streamable_http_app())
    with over_http(doorman) as url:
        yield doorman, f"{url}/mcp"


def bearer(auth):
    """The headers of a turn."""
    return {"Authorization": f"Bearer {auth.credentials['token']}"} if auth is not None else {}


def user(name):
    """Somebody with a token of their own."""
    return AuthContext(name, credentials={"token": f"token-of-{name}"})


async def no_warning(text):
    """Nothing may be amiss."""
    raise AssertionError(text)


def a_turn(auth=None):
    """A turn, as a source is asked with."""
    return TurnContext(context_id="ada", auth_context=auth)


async def test_each_turn_brings_its_own_credentials(door, make_agent, memory_stores, protocol):
    """To the list of tools as well as to the calls; none is there when an agent starts."""
    doorman, url = door
    doorman.seen.clear()
    source = MCPTools(url=url, headers=bearer, protocol=protocol)
    script = [tool_call("whoami"), text("1"), tool_call("whoami"), text("2")]
    agent = await make_agent(script, tools=[source], stores=memory_stores)
    assert doorman.seen == []
    said = []
    for name in ("ada", "ada"):
        result = await agent.execute_turn("who am I?", user(name))
        said.append(result.iterations[0].tool_results[0].text)
    # The server says it back, and it is not shown: it is a secret of the turn.
    assert said == ["Bearer [redacted]", "Bearer [redacted]"]
    assert {who for who, _ in doorman.seen} == {"Bearer token-of-ada"}
    await assert_whole(memory_stores)
    assert "token-of-ada" not in repr(await memory_stores.journal.events("ada"))


async def test_turns_at_the_same_time_do_not_mix(door, make_agent, memory_stores):
    """Each call is made with the credentials of its turn, on a connection of its own."""
    doorman, url = door
    doorman.seen.clear()
    source = MCPTools(url=url, headers=bearer)
    names = [f"user{i}" for i in range(6)]
    agents = [
        await make_agent(
            [tool_call("add", a=i, b=1), text("ok")],
            tools=[source],
            stores=memory_stores,
            context_id=name,
        )
        for i, name in enumerate(names)
    ]
    results = await asyncio.gather(
        *(agent.execute_turn("go", user(name)) for agent, name in zip(agents, names, strict=True))
    )
    sums = [result.iterations[0].tool_results[0].text for result in results]
    assert sums == [str(i + 1) for i in range(6)]
    calls = [who for who, what in doorman.seen if what == "tools/call"]
    assert sorted(calls) == sorted(f"Bearer token-of-{name}" for name in names)
    lists = [who for who, what in doorman.seen if what == "tools/list"]
    assert sorted(set(lists)) == sorted(set(calls))


async def test_connections_with_different_credentials_are_bounded(door):
    """The one that was used longest ago gives way; more users than connections wait."""
    _, url = door
    async with MCPTools(url=url, headers=bearer, max_sessions=2) as source:
        turns = [a_turn(user(f"user{i}")) for i in range(5)]
        lists = await asyncio.gather(*(source.list_for(turn, no_warning) for turn in turns))
        assert all(len(one) > 5 for one in lists)
        assert len(source.pool._links) == 2


async def test_no_credentials_are_held_between_calls(door):
    """What a source keeps knows a connection by a digest only."""
    _, url = door
    async with MCPTools(url=url, headers=bearer) as source:
        await source.list_for(a_turn(user("ada")), no_warning)
        [link] = source.pool._links.values()
        assert link._credentials == Credentials()
        connection = link.connection()
        assert not connection.over
        assert "token-of-ada" not in repr(vars(link)) + repr(vars(source)) + repr(vars(connection))


async def test_headers_may_be_constant_or_made_by_a_coroutine(door):
    """A mapping, or a function that has to ask somebody first."""
    _, url = door

    async def exchanged(auth):
        await asyncio.sleep(0)
        return bearer(auth)

    for headers in ({"Authorization": "Bearer constant"}, exchanged):
        async with MCPTools(url=url, headers=headers) as source:
            assert len(await source.list_for(a_turn(user("ada")), no_warning)) > 5


async def test_a_turn_continues_without_tools_if_the_server_refuses(
    door, make_agent, memory_stores
):
    """401 costs the tools and a warning; no secret is in its words."""
    _, url = door
    source = MCPTools(
        url=url, name="door", headers=lambda _auth: {"Authorization": "Basic qwertz1"}
    )
    agent = await make_agent(
        [tool_call("whoami"), text("ok")], tools=[source], stores=memory_stores
    )
    events = [event async for event in agent.execute_turn("go", user("ada"))]
    [warning] = [e for e in events if e.type == "warning"]
    assert warning.code == "tools_unavailable"
    assert "the MCP server 'door'" in warning.text
    assert "HTTP 401" in warning.text
    assert "qwertz1" not in warning.text
    assert events[-1].outcome == "completed"


async def test_headers_that_cannot_be_made_cost_the_tools(door, make_agent, memory_stores):
    """A function of the application that fails is no reason to end the turn."""
    _, url = door
    source = MCPTools(url=url, name="door", headers=lambda auth: auth.credentials["other"])
    agent = await make_agent([text("ok")], tools=[source], stores=memory_stores)
    events = [event async for event in agent.execute_turn("go", user("ada"))]
    [warning] = [e for e in events if e.type == "warning"]
    assert "headers could not be made: KeyError" in warning.text
    assert events[-1].outcome == "completed"


# --- servers that are none ----------------------------------------------------------------------


def answering(status, body="", content_type="text/plain"):
    """An application that answers everything alike."""

    async def app(scope, receive, send):
        if scope["type"] == "http":
            answer = PlainTextResponse(body, status_code=status, media_type=content_type)
            await answer(scope, receive, send)

    return app


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (answering(500, "Traceback"), "answered with HTTP 500"),
        (answering(200, "<html>hello</html>", "text/html"), "Unexpected content type"),
        (answering(200, "{not json", "application/json"), "did not shake hands"),
        (answering(200, "x" * 70_000, "application/json"), "answered with more than 65,536 bytes"),
        (answering(302), "did not shake hands"),
    ],
)
async def test_an_address_without_an_mcp_server_is_reported(app, said):
    """A required one fails with clear words; the agent does not start without it."""
    with over_http(app) as url:
        async with MCPTools(url=url, required=True, max_bytes=65_536) as source:
            with pytest.raises(ToolServerError, match=said) as failed:
                await source.list_tools()
    assert failed.value.server == "127.0.0.1"


async def test_a_closed_port_is_reported(make_agent, caplog):
    """The agent starts all the same, and says what it lacks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    source = MCPTools(url=f"http://127.0.0.1:{port}/mcp", name="gone")
    agent = await make_agent(ScriptedProvider([text("ok")]), tools=[source])
    assert "the MCP server 'gone' did not shake hands" in caplog.text
    result = await agent.execute_turn("go")
    assert result.outcome == "completed"


async def test_a_server_that_never_answers_is_given_up():
    """After the time that was set, and not before the user's patience ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        async with MCPTools(url=url, name="mute", required=True, connect_timeout_s=0.3) as source:
            with pytest.raises(ToolServerError, match="did not shake hands within"):
                await source.list_tools()


async def test_loading_the_sdk_is_no_delay_of_the_server(address, monkeypatch):
    """However long it takes: the clock starts when looopy first speaks to the server."""
    began = []
    sdk = sys.modules.get("looopy.tools.sources.mcp.sdk") or importlib.import_module(
        "looopy.tools.sources.mcp.sdk"
    )

    real = importlib.import_module

    def load(name):
        if name != "looopy.tools.sources.mcp.sdk":  # the server's thread imports, too
            return real(name)
        connection = next(iter(source.pool._links.values()))._connection
        began.append(connection._limit)  # no clock runs yet
        sys.modules[name] = sdk
        return sdk

    monkeypatch.delitem(sys.modules, "looopy.tools.sources.mcp.sdk")
    monkeypatch.setattr("looopy.tools.sources.mcp.connection.importlib.import_module", load)
    async with MCPTools(url=address, required=True) as source:
        assert await source.list_tools()
    assert began == [None]


async def test_a_server_that_was_restarted_is_found_again(make_agent, memory_stores, protocol):
    """It has forgotten the connection; the call is made on a new one, once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        source = MCPTools(url=url, protocol=protocol)
        script = [tool_call("count"), text("1"), tool_call("whoami"), text("2")]
        agent = await make_agent(script, tools=[source], stores=memory_stores, start=False)
        for said in ("call 1 of", "nobody"):
            with over_http(make_workshop().streamable_http_app(), listening.dup()):
                await agent.start()
                result = await agent.execute_turn("go")
            assert result.iterations[0].tool_results[0].text.startswith(said)


async def test_a_failure_that_is_kept_holds_no_credentials():
    """Neither the link's nor the connection's: a traceback's frames would hold the headers."""
    source = MCPTools(url="http://127.0.0.1:1/mcp", headers=bearer)
    warnings = []
    for _ in range(2):  # the second is answered with what is kept
        assert not await source.list_for(a_turn(user("ada")), warnings.append)
    assert ["cannot be reached" in one or "not on offer" in one for one in warnings] == [True] * 2
    [link] = source.pool._links.values()
    assert link._failed.error.__traceback__ is None
    gc.collect()
    held = [one for one in gc.get_objects() if type(one) is dict and "Authorization" in one]
    assert "Bearer token-of-ada" not in [one["Authorization"] for one in held]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"command": "x", "url": "http://x"},
        {"url": "ftp://x"},
        {"url": "http://user:secret@x"},
        {"url": "http://x:99999/mcp"},
        {"url": "http://[::1/mcp"},
        {"url": "http://x", "args": ["a"]},
        {"command": "x", "headers": {}},
        {"command": "x", "args": "a b"},
        {"command": "x", "env": {"A": 1}},
        {"command": "x", "connect_timeout_s": 0},
        {"command": "x", "protocol": "old"},
        {"command": "x", "only": "add"},
        {"command": "x", "max_sessions": 0},
    ],
)
async def test_options_that_make_no_sense_are_refused(options):
    """At once, with the way out."""
    with pytest.raises(ConfigurationError, match="MCPTools") as refused:
        MCPTools(**options)
    assert "secret" not in str(refused.value)
