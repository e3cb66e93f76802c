"""
Odd answers of a server: an error is its words, whatever its code, and the transport alone says that
it ended; half a character costs no result.
"""

from __future__ import annotations

import json

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from tests.mcp.by_hand import REFUSING
from tests.mcp.kit import started
from tests.mcp.servers import over_http

from looopy.testing import text, tool_call
from looopy.tools import MCPTools

# Those that the SDK, or looopy once, uses for its own: JSON-RPC leaves -32000 to -32099 to servers.
ERRORS = [
    {"code": -32000, "message": "credit limit reached"},
    {"code": -32000, "message": "Connection closed"},
    {"code": -32000, "message": "Connection closed", "data": {"why": "limit"}},
    {"code": -32001, "message": "Request timed out"},
    {"code": -32097, "message": "sign in at the desk"},
    {"code": -32098, "message": "cannot be reached: the desk"},
    {"code": -32099, "message": "refused"},
    {"code": -32600, "message": "Session terminated"},
]
EVENTS = "text/event-stream"


@pytest.fixture(params=ERRORS, ids=lambda one: f"{one['code']} {one['message']}")
def error(request, monkeypatch):
    """An error of a server."""
    monkeypatch.setenv("WORKSHOP_ERROR", json.dumps(request.param))
    return request.param


def is_told(result, error):
    """True if *result* has the words of *error*, and says nothing of an unknown outcome."""
    said = f"answered with an error: {error['message']} ({error['code']})"
    return result.is_error and said in result.text and "unknown" not in result.text


async def test_error_of_a_process_keeps_its_words_and_the_process(desk, notes, error):
    """Two calls, one of which only reads: each runs once, at one server."""
    env = notes.env | {"WORKSHOP_ERROR": json.dumps(error)}
    results, _ = await desk.ask(
        started("refuses", env=env), tool_call("refuse"), tool_call("refuse_reading")
    )
    assert all(is_told(one, error) for one in results), [one.text for one in results]
    assert len(notes.lines) == 2
    assert len({line.split()[1] for line in notes.lines}) == 1  # the same process


async def test_error_of_one_call_leaves_the_calls_of_others(make_agent, notes):
    """A call that waits at the same server gets its own answer."""
    env = notes.env | {"WORKSHOP_ERROR": json.dumps(ERRORS[0])}
    async with started("refuses", env=env, elicitation=False) as source:
        one = await make_agent([tool_call("wait"), text("ok")], tools=[source], context_id="one")
        two = await make_agent([tool_call("refuse"), text("ok")], tools=[source], context_id="two")
        waits = one.execute_turn("go")
        assert await notes.come_to(1)
        refused = await two.execute_turn("go")
        waited = await waits
    assert is_told(refused.iterations[0].tool_results[0], ERRORS[0])
    assert waited.iterations[0].tool_results[0].text == "waited"


class Shop:
    """
    A server of 2025 over HTTP, whose tools answer by *answer*.

    Attributes:
        calls: The names of the tools that were called.
        sessions: How often a client has shaken hands.
    """

    def __init__(self, answer):
        self._answer = answer
        self.calls = []
        self.sessions = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        answer: Response = PlainTextResponse("no", status_code=405)
        if scope["method"] == "POST":
            body = b""
            while (message := await receive())["type"] == "http.request":
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            answer = self._reply(json.loads(body))
        await answer(scope, receive, send)

    def _reply(self, message):
        method, number = message["method"], message.get("id")
        if number is None:
            return Response(status_code=202)
        if method == "initialize":
            self.sessions += 1
            info = {"name": "shop", "version": "1"}
            tools = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            return JSONResponse(_rpc(number, result={**tools, "serverInfo": info}))
        if method == "tools/list":
            return JSONResponse(_rpc(number, result={"tools": REFUSING[:2]}))
        self.calls.append(message["params"]["name"])
        return self._answer(number)


def _rpc(number, **said):
    return {"jsonrpc": "2.0", "id": number, **said}


def _events(*pieces):
    return StreamingResponse(iter(pieces), media_type=EVENTS)


def _event(message):
    return f"event: message\ndata: {json.dumps(message)}\n\n"


@pytest.mark.parametrize("form", ["json", "events", "status 400"])
async def test_error_over_http_keeps_its_words_and_the_connection(desk, error, form):
    """As an answer, as an event of one, and with a status that says the same."""

    def answer(number):
        said = _rpc(number, error=error)
        if form == "events":
            return _events(_event(said))
        return JSONResponse(said, status_code=400 if form == "status 400" else 200)

    shop = Shop(answer)
    with over_http(shop) as url:
        source = MCPTools(url=url, protocol="legacy")
        results, _ = await desk.ask(source, tool_call("refuse"), tool_call("refuse_reading"))
    assert all(is_told(one, error) for one in results), [one.text for one in results]
    assert shop.calls == ["refuse", "refuse_reading"]
    assert shop.sessions == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: _events(": nothing more\n\n"),
        lambda _: _events("event: message\ndata: " + "x" * 100_000),
        lambda _: PlainTextResponse("done"),
    ],
    ids=["events end", "an event is too large", "not MCP"],
)
async def test_answer_that_is_missing_over_http_leaves_the_outcome_unknown(desk, answer):
    """A call with effects says so, one that reads is made again; the connection stays."""
    shop = Shop(answer)
    with over_http(shop) as url:
        source = MCPTools(url=url, protocol="legacy", max_bytes=65_536)
        (paid, read), _ = await desk.ask(source, tool_call("refuse"), tool_call("refuse_reading"))
    assert "The outcome of this call is unknown" in paid.text
    assert read.is_error
    assert shop.calls == ["refuse", "refuse_reading", "refuse_reading"]
    assert shop.sessions == 1


CUT = {"content": [{"type": "text", "text": "cut \ud83d"}], "isError": False}


@pytest.mark.parametrize("form", ["json", "events"])
async def test_half_a_character_over_http_becomes_a_replacement(desk, form):
    """A server that cuts a text in the middle of an emoji costs no result."""

    def answer(number):
        said = _rpc(number, result=CUT)
        if form == "events":
            return _events(_event(said))
        return Response(json.dumps(said), media_type="application/json")

    with over_http(Shop(answer)) as url:
        (result,), _ = await desk.ask(MCPTools(url=url, protocol="legacy"), tool_call("refuse"))
    assert (result.text, result.is_error) == ("cut \ufffd", False)


async def test_half_a_character_of_a_process_becomes_a_replacement(desk):
    """As over HTTP; without a reading of its own, the call would wait for its time-out."""
    (result,), _ = await desk.ask(started("cuts"), tool_call("good"))
    assert (result.text, result.is_error) == ("cut \ufffd", False)
