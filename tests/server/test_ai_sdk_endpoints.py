"""The endpoints of the AI SDK over HTTP: headers, statuses, and errors as its client shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.test_api import BEN, serving

from looopy.server import Limits, ai_sdk_api

FACE = {"protocols": [ai_sdk_api]}
USER = {"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "Hi."}]}
TRIP: dict[str, Any] = {"id": "trip", "messages": [USER], "trigger": "submit-message"}
TOOL = {"type": "tool-pay", "toolCallId": "c", "state": "approval-responded"}


async def test_an_answer_is_streamed_as_the_ai_sdk_wants_it():
    """Version 1 of the protocol, `[DONE]` at the end, 204 when no turn runs."""
    async with serving(**FACE) as (client, _):
        assert (await client.get("/api/chat/trip/stream")).status_code == 204
        assert (await client.get("/api/chat/trip")).status_code == 404
        answer = await client.post("/api/chat", json=TRIP)
        assert answer.status_code == 200
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, done = answer.text.strip().split("\n\n")
        assert done == "data: [DONE]"
        parts = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert "".join(p["delta"] for p in parts if p["type"] == "text-delta") == "Hello there."
        loaded = (await client.get("/api/chat/trip")).json()
        assert [message["id"] for message in loaded["messages"]] == ["message-1", "turn-1"]
        assert (await client.get("/api/chat/trip/stream")).status_code == 204
        assert (await client.post("/api/chat/trip/stop")).status_code == 204


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "the body is invalid JSON"),
        (b'{"id": "trip", "messages": [NaN]}', 400, "the body is invalid JSON"),
        (b"[]", 400, "the body must be a JSON object"),
        (b"[" * 5_000, 400, "the body "),
        (b'"' + b"x" * 30_000 + b'"', 413, "the body has more than 20,000 bytes"),
        ({**TRIP, "id": "../etc"}, 400, "/id: context id"),
        ({**TRIP, "messages": [{**USER, "role": "root"}]}, 400, "/messages/0/role: must be user"),
        (
            {**TRIP, "messages": [{**USER, "parts": [{"type": "text", "text": " "}]}]},
            400,
            "/messages/0/parts: the message is empty",
        ),
        (
            {**TRIP, "messages": [{**USER, "parts": [{"type": "text", "text": "x" * 5_000}]}]},
            400,
            "/messages/0/parts: the message has more than 4,000 bytes",
        ),
        (
            {**TRIP, "messages": [{**USER, "parts": [{"type": "text", "text": "\ud800"}]}]},
            400,
            "/messages/0/parts/0/text: ",
        ),
        (
            {
                **TRIP,
                "messages": [
                    {
                        "id": "turn-1",
                        "role": "assistant",
                        "parts": [{**TOOL, "approval": {"id": "7-c", "approved": True}}],
                    }
                ],
            },
            404,
            "/messages/0/parts/0/approval/id: no request for approval has the id '7-c'",
        ),
        (
            {**TRIP, "trigger": "regenerate-message", "messages": [{**USER, "id": "other"}]},
            400,
            "/messages/0/id: the context has no such message",
        ),
    ],
)
async def test_a_refusal_names_place_and_reason_in_plain_text(body, status, text):
    """The AI SDK's error has the body as its message; nothing is stored."""
    limits = Limits(body_bytes=20_000, message_bytes=4_000)
    async with serving(limits=limits, **FACE) as (client, host):
        await client.post("/api/chat", json=TRIP)
        before = await host.stores.journal.events("trip")
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/api/chat", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.text.startswith(text)
        assert answer.headers["content-type"].startswith("text/plain")
        assert await host.stores.journal.events("trip") == before


async def test_the_chat_of_another_actor_is_not_found():
    """Every verb, and without credentials 401."""
    async with serving(**FACE) as (client, host):
        await client.post("/api/chat", json=TRIP)
        before = await host.stores.journal.events("trip")
        verbs = [
            ("POST", "/api/chat", TRIP, 404),
            ("GET", "/api/chat/trip", None, 404),
            ("GET", "/api/chat/trip/stream", None, 204),
            ("POST", "/api/chat/trip/stop", None, 404),
        ]
        for token, refused in ((BEN, None), ("c" * 20, 401)):
            client.headers["Authorization"] = f"Bearer {token}"
            for method, path, body, status in verbs:
                answer = await client.request(method, path, json=body)
                assert answer.status_code == (refused or status), (method, path)
                assert answer.text in ("", "there is no context 'trip'") or refused
        assert await host.stores.journal.events("trip") == before
        plain = {"Content-Type": "text/plain", "Authorization": f"Bearer {BEN}"}
        answer = await client.post("/api/chat", content=b"{}", headers=plain)
        assert answer.status_code == 415
