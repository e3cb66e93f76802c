"""Whatever a client sends: a status, a code, the place; nothing stored, nothing hangs."""

import asyncio
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.server.test_api import ADA, serving

from looopy import Agent, open_stores
from looopy.errors import ConfigurationError
from looopy.server import (
    AgentHost,
    StaticTokens,
    a2a_api,
    ag_ui_api,
    ai_sdk_api,
    create_app,
)
from looopy.server.gate import flow
from looopy.server.gate.limits import Limits
from looopy.testing import ScriptedProvider

JSON = {"Content-Type": "application/json"}


def deep(levels):
    """A body with so many levels."""
    return b'{"metadata":' + b'{"a":' * (levels - 2) + b"{}" + b"}" * (levels - 1)


async def refused(client, content, *, path="/contexts/c/turns", headers=JSON):
    """Status, code and path of the error, after seeing that nothing was stored."""
    answer = await client.post(path, content=content, headers=headers)
    error = answer.json()["error"]
    assert error["message"]
    assert (await client.get("/contexts")).json() == {"items": [], "next": None}
    return answer.status_code, error["code"], error.get("path")


BODIES = [
    (b"", (400, "invalid_json", None)),
    (b"{", (400, "invalid_json", None)),
    (b"\xff\xfe{}", (400, "invalid_json", None)),
    (b'{"message": NaN}', (400, "invalid_json", None)),
    (b'{"message": -Infinity}', (400, "invalid_json", None)),
    (b"[]", (400, "invalid_request", "")),
    (b'"text"', (400, "invalid_request", "")),
    (b"[" * 200_000, (400, "too_deep", None)),
    (b"[" * 40_000, (400, "too_deep", None)),
    (b'{"message":[' + b"[]," * 50_000 + b"1]}", (400, "too_deep", None)),
    (deep(65), (400, "too_deep", "/metadata" + "/a" * 63)),
    (b'{"message":"x","metadata":{"a":1e999}}', (400, "value_refused", "/metadata/a")),
    (b'{"message":"x","metadata":{"a":"\\ud800"}}', (400, "value_refused", "/metadata/a")),
    (b'{"message":"\\u0000"}', (400, "value_refused", "/message")),
    (b'{"message":"x","metadata":{"a":%s}}' % (b"9" * 30), (400, "value_refused", "/metadata/a")),
    (b'{"message":"x","metadata":{"a":%s}}' % (b"9" * 5000), (400, "invalid_json", None)),
    (b'{"message":"x","turn":1}', (400, "unknown_field", "/turn")),
    (b'{"message":{"content":"x","a/b":1}}', (400, "unknown_field", "/message/a~1b")),
    (b'{"message":""}', (400, "value_refused", "/message/content")),
    (b'{"message":7}', (400, "invalid_request", "/message")),
    (b'{"message":{"content":[{"type":"no"}]}}', (400, "value_refused", "/message/content/0")),
    (b'{"message":"x","inputs":[]}', (400, "invalid_request", "/inputs")),
    (b'{"message":"x","metadata":"x"}', (400, "invalid_request", "/metadata")),
    (b"{}", (404, "context_not_found", None)),
    (b'{"inputs":{"a":true}}', (404, "context_not_found", None)),
]


async def test_a_body_that_is_no_use_is_refused():
    """With the place in the body, where there is one."""
    async with serving() as (client, host):
        for content, expected in BODIES:
            assert await refused(client, content) == expected, content[:60]
        for path, expected in (
            ("/contexts/a%20b/turns", (400, "value_refused", "/context_id")),
            ("/contexts/" + "a" * 129 + "/turns", (400, "value_refused", "/context_id")),
        ):
            assert await refused(client, b'{"message":"x"}', path=path) == expected
        for key in ("", "k" * 257):
            headers = JSON | {"Idempotency-Key": key}
            found = await refused(client, b'{"message":"x"}', headers=headers)
            assert found == (400, "value_refused", "/idempotency_key")
        assert host.agent_count == 0


async def test_marks_in_a_text_are_no_values():
    """A table with many commas is one value, also behind a text that ends with a backslash."""
    async with serving() as (client, _):
        texts = {"table": '1,"[{",' * 30_000, "path": "C:\\", "more": "," * 60_000}
        table = {"message": "x", "metadata": texts}
        assert (await client.post("/contexts/c/turns", json=table)).status_code == 202


async def test_a_body_has_to_be_json_in_utf8():
    """A browser sends any other type across origins without asking."""
    async with serving() as (client, _):
        for headers in (
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/json; charset=latin-1"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            {"Content-Type": ""},
        ):
            expected = (415, "unsupported_media_type", None)
            assert await refused(client, b'{"message":"x"}', headers=headers) == expected
        good = {"Content-Type": "Application/JSON; charset=UTF-8"}
        answer = await client.post("/contexts/c/turns", content=b'{"message":"x"}', headers=good)
        assert answer.status_code == 202


async def test_each_limit_holds_at_its_value_and_not_beyond():
    """At L-1, L and L+1: body, message, depth, keys."""
    limits = Limits(body_bytes=2000, message_bytes=100, json_keys=5, json_depth=8)
    async with serving(limits=limits) as (client, _):

        async def status(body):
            answer = await client.post("/contexts/c/turns", content=body, headers=JSON)
            return answer.status_code, answer.json().get("error", {}).get("code")

        taken, too_large = (202, None), (413, "too_large")
        for size, expected in ((1999, taken), (2000, taken), (2001, too_large)):
            body = b'{"message":"x"}'
            assert await status(body + b" " * (size - len(body))) == expected
        for size, expected in ((99, taken), (100, taken), (101, (400, "too_large"))):
            assert await status(json.dumps({"message": "x" * size})) == expected
        assert await status(json.dumps({"message": "ä" * 51})) == (400, "too_large")
        for levels, expected in ((7, taken), (8, taken), (9, (400, "too_deep"))):
            body = deep(levels).replace(b'{"meta', b'{"message":"x","meta', 1)
            assert await status(body) == expected
        for keys, expected in ((4, taken), (5, taken), (6, (400, "too_deep"))):
            metadata = dict.fromkeys("abcdefgh"[:keys], 1)
            assert await status(json.dumps({"message": "x", "metadata": metadata})) == expected


async def test_a_body_is_measured_while_it_streams_in(monkeypatch):
    """Without a length, too; after the answer, only so much more of it is read."""
    monkeypatch.setattr(flow, "_DROPPED_BYTES", 5000)
    sent = []

    async def endless():
        while len(sent) < 1000:
            sent.append(1)
            yield b" " * 1000

    async with serving(limits=Limits(body_bytes=5000)) as (client, _):
        assert (await refused(client, endless()))[:2] == (413, "too_large")
        assert len(sent) < 20
        answer = await client.post(
            "/contexts/c/turns", content=b"{}", headers=JSON | {"Content-Length": "9" * 30}
        )
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")


async def test_a_body_that_does_not_come_is_not_waited_for():
    """It is 408 after a while, and the connection is closed."""

    async def stalled():
        yield b"{"
        await asyncio.Event().wait()

    async with serving(limits=Limits(body_s=0.01)) as (client, _):
        assert (await refused(client, stalled()))[:2] == (408, "timeout")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example:80"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "LOCALHOST:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://app.example.org"}, 200),
    ],
)
async def test_hosts_and_origins_have_to_be_known(headers, status):
    """Also on loopback: a page of another site, and a name that resolves to 127.0.0.1."""
    async with serving(origins=["https://app.example.org"]) as (client, _):
        answer = await client.get("/contexts", headers=headers)
        assert answer.status_code == status
        allowed = answer.headers.get("access-control-allow-origin")
        app = headers.get("Origin") == "https://app.example.org"
        assert allowed == (headers["Origin"] if app else None)
        assert (await client.get("/healthz", headers={"Host": "10.0.0.7"})).status_code == 200


@pytest.mark.parametrize(
    "names",
    [
        "a2a-version,a2a-extensions",
        "x-stainless-retry-count,x-stainless-os,x-stainless-timeout,openai-organization",
        "mcp-protocol-version,mcp-session-id,last-event-id",
        "traceparent,tracestate,baggage",
        "idempotency-key,user-agent",
    ],
)
async def test_a_page_of_a_named_origin_may_send_the_headers_of_every_sdk(names):
    """Its preflight passes; that of another origin does not."""
    asks = {"Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = f"authorization,content-type,{names}"
    async with serving(origins=["https://app.example.org"]) as (client, _):
        for origin, status in (("https://app.example.org", 200), ("https://evil.example", 403)):
            answer = await client.options("/contexts", headers=asks | {"Origin": origin})
            assert answer.status_code == status, answer.text
        answer = await client.get("/contexts", headers={"Origin": "https://app.example.org"})
        assert "Retry-After" in answer.headers["access-control-expose-headers"]


def build(context_id, stores):
    """An agent that says nothing."""
    return Agent(context_id, llm_provider=ScriptedProvider([]), stores=stores)


async def test_a_mounted_application_knows_its_prefix():
    """Probes name a machine there too, and its description and its card have the prefix."""
    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        app = create_app(host, authenticate=StaticTokens({ADA: "ada"}), protocols=[a2a_api])
        outer = Starlette(routes=[Mount("/agents", app)])
        transport = httpx.ASGITransport(outer, root_path="/api")
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost:8000/api/agents"
        ) as client:
            for probe in ("/healthz", "/readyz"):
                answer = await client.get(probe, headers={"Host": "10.0.0.7:8000"})
                assert answer.status_code == 200, answer.text
            refused = await client.get("/contexts", headers={"Host": "10.0.0.7:8000"})
            assert refused.status_code == 421
            described = (await client.get("/openapi.json")).json()
            assert described["servers"] == [{"url": "/api/agents"}]
            card = (await client.get("/.well-known/agent-card.json")).json()
            at = "http://localhost:8000/api/agents"
            places = {one["url"] for one in card["supportedInterfaces"]}
            assert places == {f"{at}/a2a/v1/", at}


async def test_paths_and_queries_are_checked():
    """A page has a size, a place is a number, and a stream does not begin beyond its head."""
    async with serving() as (client, _):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        for path, status, code in (
            ("/contexts?limit=0", 400, "invalid_request"),
            ("/contexts?limit=201", 400, "invalid_request"),
            ("/contexts?after=no", 400, "value_refused"),
            ("/contexts?status=odd", 400, "value_refused"),
            ("/contexts/c/messages?after=-1", 400, "invalid_request"),
            ("/contexts/c/messages?include_hidden=yes", 400, "invalid_request"),
            ("/contexts/c/turns?after=%C2%B2", 400, "invalid_request"),
            ("/contexts/c/events?after=99", 400, "invalid_place"),
            ("/contexts/c/events?after=-1", 400, "invalid_request"),
            ("/contexts/c/events?after=x", 400, "invalid_request"),
            ("/contexts/c/artifacts/nothing", 404, "artifact_not_found"),
            ("/contexts/c/artifacts/x?version=no", 400, "invalid_request"),
            ("/contexts/c/nothing", 404, "not_found"),
            ("/contexts/c/", 404, "not_found"),
        ):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        for place in ("99", "x", "1e3", "9" * 40):
            answer = await client.get("/contexts/c/events", headers={"Last-Event-ID": place})
            assert answer.status_code == 400, place
        answer = await client.put("/contexts/c", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_a_caller_may_begin_so_many_turns_in_a_minute():
    """Then 429, with the time to wait; others are not affected, and nothing is stored."""
    async with serving(limits=Limits(turns_per_minute=2)) as (client, host):
        found = [await client.post("/contexts/c/turns", json={"message": "Hi."}) for _ in range(3)]
        assert [answer.status_code for answer in found] == [202, 202, 429]
        assert 1 <= int(found[2].headers["retry-after"]) <= 60
        assert (await host.stores.state.load("c")).turn_count == 2


async def test_refused_and_repeated_requests_are_not_counted():
    """A request that comes again is answered at the limit, too; one that is refused costs none."""
    async with serving(limits=Limits(turns_per_minute=1)) as (client, host):
        path, key = "/contexts/c/turns", {"Idempotency-Key": "k"}
        for _ in range(3):
            assert (await client.post("/contexts/none/turns", json={})).status_code == 404
        for _ in range(3):
            answer = await client.post(path, json={"message": "Hi."}, headers=key)
            assert (answer.status_code, answer.json()["turn"]) == (202, 1)
        answer = await client.post(path, json={"message": "Other."}, headers=key)
        assert answer.status_code == 422
        assert (await client.post(path, json={"message": "Hi."})).status_code == 429
        assert (await host.stores.state.load("c")).turn_count == 1


async def test_a_repeated_message_of_a_page_is_not_counted():
    """It shows the turn that it began; the next message is the second one of the minute."""
    limits = Limits(turns_per_minute=2)
    async with serving(limits=limits, protocols=[ai_sdk_api, ag_ui_api]) as (client, host):
        part = {"type": "text", "text": "Hi."}
        body = {"id": "c", "messages": [{"role": "user", "id": "m", "parts": [part]}]}
        for _ in range(2):
            assert (await client.post("/api/chat", json=body)).status_code == 200
        said = {"role": "user", "id": "n", "content": "Hi."}
        run = {"threadId": "d", "runId": "r", "state": None, "tools": [], "context": []}
        run |= {"messages": [said], "forwardedProps": None}
        assert (await client.post("/ag-ui", json=run)).status_code == 200
        assert (await client.post("/ag-ui", json=run)).status_code == 429
        for name in ("c", "d"):
            assert (await host.stores.state.load(name)).turn_count == 1


def test_limits_are_numbers_above_zero():
    """A limit of 0 would refuse everything, and one that is no number nothing."""
    for wrong in ({"streams": 0}, {"body_s": "1"}, {"page": 1.5}, {"streams": True}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            Limits(**wrong)


FIELDS = [
    ("steer", {}, "/message", "message is missing: text or an object with content"),
    ("steer", {"message": ["x"]}, "/message", "message must be text or an object with content"),
    ("steer", {"message": {}}, "/message/content", "missing: text or a list of objects"),
    ("steer", {"message": {"content": [1]}}, "/message/content", "text or a list of objects"),
    ("steer", {"message": "x", "expected_turn": True}, "/expected_turn", "a whole number"),
    ("rewind", {}, "/to", "to is missing: a whole number"),
    ("rewind", {"to": None}, "/to", "to must be a whole number"),
    ("decisions", {"request_id": 1, "answer": True}, "/request_id", "request_id must be text"),
    ("decisions", {"request_id": "R"}, "/answer", "answer is missing: a value"),
    ("fork", {"new_context_id": 1}, "/new_context_id", "new_context_id must be text"),
    ("compact", {"keep_turns": 1.5}, "/keep_turns", "keep_turns must be a whole number"),
    ("turns/1/replay", {"ignore": "tools"}, "/ignore", "ignore must be a list of texts"),
    ("turns/1/replay", {"ignore": [1]}, "/ignore", "ignore must be a list of texts"),
]


async def test_a_field_of_another_type_is_refused_with_its_place_and_type():
    """In each request with a body, before the context is looked up."""
    async with serving() as (client, _):
        for path, body, place, text in FIELDS:
            answer = await client.post(f"/contexts/c/{path}", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "invalid_request"), (path, error)
            assert error["path"] == place, (path, body)
            assert text in error["message"], error
