"""The description of the HTTP API says what the server does."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from typing import Any

import httpx
import jsonschema_rs
from starlette.routing import Route

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.server import AgentHost, Limits, create_app
from looopy.server.api import OPERATIONS
from looopy.server.openapi import describe
from looopy.testing import ScriptedProvider, text, tool_call

UNDESCRIBED = {"/healthz", "/readyz", "/metrics", "/openapi.json"}


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def _build(context_id: str, stores: Stores) -> Agent:
    model = ScriptedProvider([tool_call("send", to="Ada"), *[text("Hello.")] * 9])
    return Agent(context_id, llm_provider=model, tools=[send], stores=stores)


async def test_every_route_is_described_and_no_other() -> None:
    """Path by path, method by method."""
    async with open_stores("memory:") as stores, AgentHost(_build, stores) as host:
        app = create_app(host)
        there = {
            (re.sub(r":\w+}", "}", route.path), method.lower())
            for route in app.routes
            if isinstance(route, Route)
            for method in (route.methods or set()) - {"HEAD"}
            if route.path not in UNDESCRIBED
        }
    paths = describe(OPERATIONS, Limits())["paths"]
    described = {(path, m) for path, item in paths.items() for m in item if m != "parameters"}
    assert described == there


def strict(described: dict[str, Any]) -> dict[str, Any]:
    """The schemas of the description, which take no field that they do not name."""
    schemas = described["components"]["schemas"]
    closed = {
        name: schema if "anyOf" in schema else {**schema, "additionalProperties": False}
        for name, schema in schemas.items()
    }
    return {"schemas": closed}


async def test_each_operation_answers_each_status_as_described() -> None:
    """Every field of an answer is described, every described field that is required is there."""
    one = "/contexts/{context_id}"
    asked = {"message": "Send it."}
    steps: list[tuple[str, str, dict[str, Any], int]] = [
        ("get", one, {}, 404),
        ("post", f"{one}/turns", {"json": {"message": 7}}, 400),
        ("post", f"{one}/turns", {"json": asked}, 202),
        ("get", one, {}, 200),
        ("get", "/contexts", {"params": {"title": "true", "tag": ["a", "b"]}}, 200),
        ("get", "/contexts", {"params": {"title": "true", "status": "waiting"}}, 200),
        ("get", "/requests", {"as": "eve"}, 200),
        ("post", f"{one}/steer", {"json": asked}, 202),
        ("post", f"{one}/follow-up", {"json": {"message": {"content": "Then?"}}}, 202),
        ("get", f"{one}/inbox", {}, 200),
        (
            "post",
            f"{one}/decisions",
            {"json": {"request_id": "R", "answer": True}, "as": "eve"},
            200,
        ),
        ("post", f"{one}/turns", {"json": {}, "headers": {"Accept": "text/event-stream"}}, 200),
        ("get", f"{one}/turns", {"params": {"limit": 1}}, 200),
        ("get", f"{one}/messages", {"params": {"clip": 100}}, 200),
        ("get", f"{one}/messages/{{position}}", {}, 200),
        ("get", "/search", {"params": {"query": "send"}}, 200),
        ("get", "/budget", {"params": {"day": "2026-11-23"}}, 200),
        ("get", "/budget", {}, 200),
        ("get", f"{one}/turns/{{turn}}/timeline", {}, 200),
        ("post", f"{one}/turns/{{turn}}/replay", {"json": {"ignore": ["prompt"]}}, 200),
        ("post", f"{one}/turns/{{turn}}/run-beside", {"json": {"message": "Send it."}}, 202),
        ("get", f"{one}/artifacts", {}, 200),
        ("get", f"{one}/artifacts/{{artifact_id}}", {}, 200),
        ("get", f"{one}/artifacts/{{artifact_id}}", {"params": {"describe": "true"}}, 200),
        ("get", f"{one}/artifacts/{{artifact_id}}", {"headers": {"Range": "bytes=1-"}}, 206),
        ("get", f"{one}/artifacts/{{artifact_id}}", {"headers": {"Range": "bytes=99-"}}, 416),
        ("get", f"{one}/artifacts/{{artifact_id}}", {"headers": {"If-None-Match": "*"}}, 304),
        ("post", f"{one}/fork", {"json": {}}, 201),
        ("post", f"{one}/fork", {"json": {"colour": "red"}}, 400),
        ("post", f"{one}/compact", {"json": {"keep_turns": 9}}, 200),
        ("post", f"{one}/rewind", {"json": {"to": 2}}, 200),
        ("post", f"{one}/undo-rewind", {"json": {}}, 200),
        ("post", f"{one}/cancel", {"json": {}}, 202),
        ("get", f"{one}/events", {"params": {"after": 99}}, 400),
        ("delete", one, {}, 204),
    ]
    async with AsyncExitStack() as opened:
        stores = await opened.enter_async_context(open_stores("memory:"))
        host = await opened.enter_async_context(AgentHost(_build, stores))
        app = create_app(
            host,
            authenticate=lambda request: AuthContext(request.headers["x-actor"]),
            may_answer=lambda _request, auth: auth.actor_id == "eve",
        )
        client = await opened.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        )
        described = (await client.get("/openapi.json")).json()
        components, seen, request_id = strict(described), set(), ""
        for method, path, options, status in steps:
            places = {"context_id": "c", "turn": "1", "position": "1", "artifact_id": "notes.txt"}
            body = options.get("json")
            if body and "request_id" in body:
                body = {**body, "request_id": request_id}
            answer = await client.request(
                method,
                path.format(**places),
                json=body,
                params=options.get("params"),
                headers={"x-actor": options.get("as", "ada"), **options.get("headers", {})},
            )
            assert answer.status_code == status, (method, path, answer.text)
            responses = described["paths"][path][method]["responses"]
            name = str(status) if str(status) in responses else "default"
            seen.add((method, path, name))
            contents = responses[name].get("content", {})
            kind = answer.headers.get("content-type", "").partition(";")[0]
            if status not in (206, 416):
                assert (kind in contents) or not (contents or answer.content), (path, kind)
            if kind == "application/json" and status != 416:
                schema = {**contents[kind]["schema"], "components": components}
                jsonschema_rs.validator_for(schema).validate(answer.json())
            if (method, path, status) == ("get", one, 200):
                request_id = answer.json()["pending"][0]["request_id"]
            if path == "/requests":
                assert [item["owner"] for item in answer.json()["items"]] == ["ada"]
            if method == "post" and status in (200, 202):
                async with host.agent("c", AuthContext("ada")) as agent:
                    await agent.wait_for_idle()
                await stores.artifacts.save("c", "notes.txt", b"Notes.")
    wanted = {
        (method, path, status)
        for path, item in described["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
        for status in operation["responses"]
    }
    unseen = {one for one in wanted - seen if one[2] != "default"}
    # An endless stream: `tests/server/test_api.py` follows it.
    assert unseen == {("get", f"{one}/events", "200")}
    assert described["x-looopy-limits"]["body_bytes"] == Limits().body_bytes
