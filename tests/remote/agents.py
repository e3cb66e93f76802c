"""An agent that speaks A2A, made with the official SDK, which does what it is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette


class Clerk(AgentExecutor):
    """
    Does what the message says.

    Attributes:
        heard: Each message: text, context and task, and the `Authorization` it came with.
    """

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.cancelled: list[str] = []

    async def execute(self, context, queue):
        text = context.get_user_input()
        sender = context.call_context.state.get("headers", {}).get("authorization")
        self.heard.append(
            {
                "text": text,
                "context": context.context_id,
                "task": context.task_id,
                "from": sender,
                "message": context.message.message_id,
                "known": context.current_task is not None,
            }
        )
        if text == "greet":
            await queue.enqueue_event(new_text_message("hello", context_id=context.context_id))
            return
        if context.current_task is None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        up = TaskUpdater(queue, context.task_id, context.context_id)
        await up.start_work(up.new_agent_message([new_text_part("let me see")]))
        await self._work(text, up, known=context.current_task is not None)

    async def _work(self, text, up, *, known):
        if known:
            await up.add_artifact([new_text_part(f"so: {text}")], artifact_id="reply")
            await up.complete()
        elif text == "ask":
            await up.requires_input(up.new_agent_message([new_text_part("Which city?")]))
        elif text == "auth":
            await up.requires_auth(up.new_agent_message([new_text_part("Who are you?")]))
        elif text == "fail":
            await up.failed(up.new_agent_message([new_text_part("no idea")]))
        elif text == "reject":
            await up.reject(up.new_agent_message([new_text_part("not I")]))
        elif text == "boom":
            raise ValueError("it broke")
        elif text == "wait":
            await asyncio.Event().wait()
        elif text == "everything":
            number = Value()
            number.struct_value.update({"n": 3, "half": 0.5, "all": [1, {"big": 1e300}]})
            parts = [
                new_text_part("words"),
                Part(data=number),
                Part(raw=b"\x89PNG", media_type="image/png"),
                Part(url="https://x.invalid/f", filename="f"),
                Part(raw="caf\u00e9".encode("latin-1"), media_type="text/plain; charset=latin-1"),
                Part(raw=b"\xff", media_type="text/plain", filename="g"),
            ]
            await up.add_artifact(parts, artifact_id="reply")
            await up.complete()
        elif text == "both":
            await up.start_work(up.new_agent_message([new_text_part("Looking.")]))
            await up.add_artifact([new_text_part("n,m\n1,2")], artifact_id="table")
            await up.complete(up.new_agent_message([new_text_part("The table is ready.")]))
        elif text == "quiet":
            await up.start_work(up.new_agent_message([new_text_part("Looking.")]))
            await up.add_artifact([new_text_part("It is 5.")], artifact_id="reply")
            await up.complete()
        elif text == "twice":
            await up.add_artifact([new_text_part("It is 5.")], artifact_id="reply")
            await up.complete(up.new_agent_message([new_text_part("It is 5.")]))
        elif text == "much":
            await up.add_artifact([new_text_part("x" * 300_000)], artifact_id="reply")
            await up.complete()
        else:
            for i, piece in enumerate(("you ", "said ", text)):
                await up.add_artifact(
                    [new_text_part(piece)], artifact_id="reply", append=i > 0, last_chunk=i == 2
                )
            await up.complete()

    async def cancel(self, context, queue):
        self.cancelled.append(context.task_id)
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


class Cutter:
    """Cuts each stream after its first event, as a bad line does."""

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send):
        streams = False
        sent = 0

        async def cut(message):
            nonlocal streams, sent
            if message["type"] == "http.response.start":
                streams = any(b"event-stream" in value for _, value in message["headers"])
            elif streams:
                sent += 1
                if sent > 1:
                    raise ConnectionError("cut")
            await send(message)

        await self._app(scope, receive, cut)


class Deaf:
    """Takes the wish to return at once out of each message."""

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send):
        async def heard():
            message = await receive()
            if message["type"] == "http.request":
                body = message["body"]
                message["body"] = body.replace(b"returnImmediately", b"noSuchWish0000000")
            return message

        await self._app(scope, heard, send)


def make_app(clerk, url, *, streaming=True, binding="JSONRPC", at=None):
    """The clerk behind HTTP, as its card at *url* says."""
    path = "/rest" if binding == "HTTP+JSON" else "/"
    interface = AgentInterface(
        url=(at or url) + path, protocol_binding=binding, protocol_version="1.0"
    )
    skill = AgentSkill(id="echo", name="echo", description="Repeats what it hears.", tags=["x"])
    card = AgentCard(
        name="Front desk",
        description="Knows the house.",
        version="1",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )
    handler = DefaultRequestHandler(
        agent_executor=clerk, task_store=InMemoryTaskStore(), agent_card=card
    )
    return Starlette(
        routes=create_agent_card_routes(card)
        + create_jsonrpc_routes(handler, "/")
        + create_rest_routes(handler, path_prefix="/rest")
    )


class Cards:
    """
    Shows a card of its own to each `Authorization`, and nothing else.

    Attributes:
        asked: The `Authorization` of each request for the card.
    """

    def __init__(self, card) -> None:
        self._card = card  # a function of the `Authorization`; bytes, or JSON
        self.asked: list[str | None] = []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        sender = dict(scope["headers"]).get(b"authorization", b"").decode() or None
        self.asked.append(sender)
        body = self._card(sender)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def card_of(**changes):
    """A card as JSON; *changes* replace its parts."""
    one = {"url": "http://127.0.0.1:1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return {
        "name": "Front desk",
        "description": "Knows the house.",
        "version": "1",
        "supportedInterfaces": [one],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
        **changes,
    }


def interface_at(url):
    """One interface of a card, at *url*."""
    return {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}


class Cutting:
    """Cuts a text in the middle of an emoji."""

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send):
        async def cut(message):
            if message["type"] == "http.response.body":
                body = message["body"].replace(b"see", b"\\ud83d")
                message["body"] = body.replace(b"hi", b"\\ude00")
            headers = [one for one in message.get("headers", ()) if one[0] != b"content-length"]
            await send(message | ({"headers": headers} if headers else {}))

        await self._app(scope, receive, cut)
