"""A person decides a call of somebody else with each protocol's client; the server is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import SendMessageRequest
from google.protobuf.json_format import MessageToDict, ParseDict
from openai import APIStatusError, AsyncOpenAI
from tests.preloaded import Preloaded
from tests.shares import split
from tests.web.decide_app import TOKENS
from tests.web.served import Served


@pytest.fixture
async def office(tmp_path: Path, preloaded: Preloaded) -> AsyncIterator[Served]:
    """A running server."""
    server = Served(tmp_path, preloaded, "tests.web.decide_app")
    await server.start()
    yield server
    await server.kill()


class Deciding:
    """One of the clients, which returns the decision or the text of the error."""

    def __init__(self, kind: str, url: str, in_node: Any) -> None:
        self._kind = kind
        self._url = url
        self._in_node = in_node

    async def decide(self, name: str, context: str, request: str, *, approved: bool) -> str:
        """Decide as *name*."""
        token = TOKENS[name]
        if self._kind == "openai":
            return await self._by_openai(token, context, request, approved)
        if self._kind.startswith("a2a"):
            return await self._by_a2a(token, context, request, approved)
        about = {"client": self._kind, "url": self._url, "token": token}
        about |= {"context": context, "request": request, "approved": approved}
        said = await asyncio.to_thread(self._in_node, "decide.mjs", about)
        assert (said["sent"], said.get("rest", [])) == (1, [])
        return said.get("said") or said["error"]

    async def _by_openai(self, token: str, context: str, request: str, approved: bool) -> str:
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": request,
            "approve": approved,
        }
        url = f"{self._url}/v1"
        async with AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as client:
            try:
                made = await client.responses.create(
                    model="looopy", conversation=context, input=[answer]
                )
            except APIStatusError as error:
                return str(error.body["message"])
        assert made.output == []
        return f"{made.id} {made.status}"

    async def _by_a2a(self, token: str, context: str, request: str, approved: bool) -> str:
        signed = {"Authorization": f"Bearer {token}"}
        message = {
            "messageId": f"m-{approved}",
            "taskId": f"task_1_{context}",
            "role": "ROLE_USER",
            "parts": [{"data": {request: approved}}],
        }
        async with httpx.AsyncClient(timeout=60, headers=signed) as http:
            card = await A2ACardResolver(http, self._url).get_agent_card()
            binding = self._kind.removeprefix("a2a ")
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
            asked = ParseDict({"message": message}, SendMessageRequest())
            try:
                sent = ClientFactory(config).create(card).send_message(asked)
                [made] = [one async for one in sent]
            except Exception as error:  # noqa: BLE001 - each binding has errors of its own
                return str(error) or type(error).__name__
        [decided] = MessageToDict(made.message)["parts"][1]["data"]["decisions"]
        return f"{decided['actor_id']} {decided['decision']}"


@pytest.mark.parametrize(
    ("kind", "said"),
    split(
        [("openai", "resp_2_c completed")],
        [
            ("ag-ui", "looopy.decision approved"),
            ("ai-sdk", "approval-responded auth_required"),
            ("a2a JSONRPC", "boss approved"),
            ("a2a HTTP+JSON", "boss approved"),
        ],
    ),
)
async def test_a_boss_decides_once_and_the_call_runs_as_its_owner(
    kind: str, said: str, in_node: Any, office: Served, tmp_path: Path
) -> None:
    """Before the server is killed and after; whoever may not decide finds nothing."""
    person = Deciding(kind, office.url, in_node)

    def client(name: str) -> httpx.AsyncClient:
        signed = {"Authorization": f"Bearer {TOKENS[name]}", "Accept": "text/event-stream"}
        return httpx.AsyncClient(base_url=office.url, headers=signed, timeout=60)

    async with client("ada") as ada, client("boss") as boss:
        await ada.post("/contexts/c/turns", json={"message": "pay the secret invoice"})
        [asked] = (await boss.get("/requests")).json()["items"]
        name = asked["request_id"]
        unknown = await person.decide("eve", "none", name, approved=True)
        refused = await person.decide("eve", "c", name, approved=True)
        assert refused.replace("'c'", "'none'") == unknown
        assert await person.decide("boss", "c", name, approved=True) == said
        await office.kill()
        await office.start()
        for _ in range(2):
            assert await person.decide("boss", "c", name, approved=True) == said
            other = await person.decide("boss", "c", name, approved=False)
            assert "approved before by 'boss'" in other
            item = (await ada.get("/contexts/c")).json()
            if item["needs_auth"]:
                ended = await ada.post("/contexts/c/turns", json={})
                assert "It is paid." in ended.text
    assert (tmp_path / "effects").read_text() == "ada paid 5\n"
    assert item["pending"] == []
