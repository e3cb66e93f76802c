"""Decisions about calls, in the words of each protocol."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.server.test_deciding import TOKENS, ask, hosting, managers

from looopy import server
from looopy.server import StaticTokens, create_app
from looopy.types.event import ApprovalDecided

FACES = [server.ag_ui_api, server.ai_sdk_api, server.a2a_api, server.responses_api]


class Face:
    """A protocol: the body of the request that decides, and of the one that says more besides."""

    def __init__(self, client):
        self.client = client


class AgUi(Face):
    """The interrupts of a run that are resolved."""

    path = "/ag-ui"

    def body(self, context_id, answers):
        resume = [
            {"interruptId": name, "status": "resolved", "payload": {"approved": approved}}
            for name, approved in answers.items()
        ]
        empty = {"state": {}, "messages": [], "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": context_id, "runId": "r", **empty, "resume": resume}


class UseChat(Face):
    """The tool parts of the page's last message."""

    path = "/api/chat"

    def body(self, context_id, answers):
        parts = [
            {
                "type": "tool-pay",
                "toolCallId": name,
                "state": "approval-responded",
                "input": {},
                "approval": {"id": name, "approved": approved},
            }
            for name, approved in answers.items()
        ]
        messages = [{"id": "turn-1", "role": "assistant", "parts": parts}]
        return {"id": context_id, "trigger": "submit-message", "messages": messages}


class Responses(Face):
    """The items of an input."""

    path = "/v1/responses"

    def body(self, context_id, answers):
        items = [
            {"type": "mcp_approval_response", "approval_request_id": name, "approve": approved}
            for name, approved in answers.items()
        ]
        return {"model": "looopy", "conversation": context_id, "input": items}


class Previous(Responses):
    """The same, behind a response."""

    def body(self, context_id, answers):
        body = super().body(context_id, answers) | {"previous_response_id": f"resp_1_{context_id}"}
        del body["conversation"]
        return body


class A2A(Face):
    """A message to the task, with data."""

    path = "/message:send"

    def body(self, context_id, answers):
        self.client.headers["A2A-Version"] = "1.0"
        message = {
            "messageId": f"m-{json.dumps(answers)}",
            "taskId": f"task_1_{context_id}",
            "role": "ROLE_USER",
            "parts": [{"data": answers}],
        }
        return {"message": message}


@asynccontextmanager
async def served(face, url="memory:", *, may_answer=managers, limits=None):
    """The host and its office, and a function that sends a body as somebody."""
    async with hosting(url, may_answer) as (host, office):
        tokens = {token: {"actor_id": name} for name, token in TOKENS.items()}
        tokens[TOKENS["boss"]] = {"actor_id": "boss", "scopes": ["manager"]}
        app = create_app(host, authenticate=StaticTokens(tokens), protocols=FACES, limits=limits)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:

            async def post(name, body):
                signed = {"Authorization": f"Bearer {TOKENS[name]}"}
                return await client.post(face.path, json=body, headers=signed)

            yield host, office, face(client), post


every_face = pytest.mark.parametrize("face", [AgUi, UseChat, Responses, Previous, A2A])


async def decisions(host, context_id="c"):
    """The decisions in the log of a context."""
    events = await host.stores.journal.events(context_id)
    return [event for event in events if isinstance(event, ApprovalDecided)]


@every_face
async def test_an_owners_decision_that_comes_again_is_the_same_and_another_is_refused(
    face, sqlite_file
):
    """Before a restart and after it: the call runs once."""
    url, ran = f"sqlite:///{sqlite_file}", []
    async with served(face, url) as (host, office, said, post):
        name = await ask(host)
        first = await post("ada", said.body("c", {name: True}))
        assert first.status_code == 200, first.text
        ran += office.ran
    for _ in range(2):
        async with served(face, url) as (host, office, said, post):
            again = await post("ada", said.body("c", {name: True}))
            assert again.status_code == 200, again.text
            other = await post("ada", said.body("c", {name: False}))
            assert other.status_code in (400, 409), other.text
            ran += office.ran
            assert len(await decisions(host)) == 1
    assert len(ran) == 1
    async with served(face, url) as (host, *_):
        assert [one.context_id for one in await host.stores.state.list()] == ["c"]  # no fork
