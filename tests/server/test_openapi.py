"""The description of the HTTP API says what the server does."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack

import httpx
import jsonschema_rs
from starlette.routing import Route

from looopy import Agent, AuthContext, Stores, open_stores, tool
from looopy.server import AgentHost, Limits, create_app
from looopy.server.openapi import description
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
    paths = description(Limits())["paths"]
    described = {(path, m) for path, item in paths.items() for m in item if m != "parameters"}
    assert described == there


async def test_each_answer_fits_its_description() -> None:
    """Contexts, turns, messages and artifacts; accepted requests and refused ones."""
    async with AsyncExitStack() as opened:
        stores = await opened.enter_async_context(open_stores("memory:"))
        host = await opened.enter_async_context(AgentHost(_build, stores))
        app = create_app(host, authenticate=lambda _: AuthContext("ada"))
        client = await opened.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        )
        described = (await client.get("/openapi.json")).json()
        one, asked = "/contexts/{context_id}", {"message": "Send it."}
        seen = 0
        for method, path, body, status in (
            ("get", one, None, 404),
            ("post", f"{one}/turns", asked, 202),
            ("get", one, None, 200),
            ("get", "/contexts", None, 200),
            ("get", f"{one}/turns", None, 200),
            ("get", f"{one}/messages", None, 200),
            ("get", f"{one}/artifacts", None, 200),
            ("post", f"{one}/follow-up", {"message": "And then?"}, 202),
            ("get", f"{one}/inbox", None, 200),
            ("post", f"{one}/cancel", {}, 202),
            ("post", f"{one}/fork", {}, 201),
            ("post", f"{one}/fork", {"colour": "red"}, 400),
            ("post", f"{one}/turns/{{turn}}/replay", {"ignore": ["prompt"]}, 200),
            ("post", f"{one}/turns/{{turn}}/run-beside", {"message": "Send it."}, 202),
            ("post", f"{one}/rewind", {"to": 1}, 200),
        ):
            url = path.replace("{context_id}", "c").replace("{turn}", "1")
            answer = await client.request(method, url, json=body)
            assert answer.status_code == status, (method, path, answer.text)
            wanted = str(status) if status < 400 else "default"
            schema = described["paths"][path][method]["responses"][wanted]
            schema = schema["content"]["application/json"]["schema"]
            whole = {**schema, "components": described["components"]}
            jsonschema_rs.validator_for(whole).validate(answer.json())
            seen += bool(answer.json())
            if (method, path, status) == ("get", one, 200):
                assert answer.json()["pending"]
            if status == 202 and method == "post":
                async with host.agent("c", AuthContext("ada")) as agent:
                    await agent.wait_for_idle()
            if path == f"{one}/turns" and method == "post":
                await stores.artifacts.save("c", "notes.txt", b"Notes.")
        assert seen == 15
        assert described["x-looopy-limits"]["body_bytes"] == Limits().body_bytes
