"""
A server on loopback that speaks the chat-completions format, byte by byte as a test says; with
`check`, and the events of `tests.wire.fake_responses`, the Responses API.

Each request takes the next `Answer`; its pieces go out as they are, each in its own write.
Before it answers, a request is checked as a strict server would check it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tests.wire.sdk_types import beyond

HOLD = object()
"""As a piece: say nothing more until the client leaves."""

CUT = object()
"""As a piece: break the connection off, in the middle of the body."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server sends: status, headers, and the body's pieces."""

    pieces: Sequence[Any] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    gate: asyncio.Event | None = None
    """When given: no byte leaves before it is set."""


def chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> bytes:
    """One chunk as a server-sent event; without delta and finish, it has no choices."""
    choices = []
    if delta is not None or finish is not None:
        choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    data: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": choices,
    }
    if usage is not None:
        data["usage"] = usage
    return event(data)


def event(data: Any) -> bytes:
    """Any JSON as a server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


ORPHAN = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'"
UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
    " 'tool_call_id'"
)
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def says(text: str, *, usage: Mapping[str, Any] | None = USAGE) -> Answer:
    """A whole answer of text, a word in each chunk."""
    words = text.split(" ")
    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces += [chunk({"content": w if i == 0 else " " + w}) for i, w in enumerate(words)]
    pieces.append(chunk(finish="stop"))
    if usage is not None:
        pieces.append(chunk(usage=usage))
    return Answer(pieces=[*pieces, DONE])


def refuses(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, **error: Any
) -> Answer:
    """A refusal as OpenAI words it."""
    body = json.dumps({"error": {"message": message, **error}}).encode()
    return Answer(
        pieces=[body], status=status, headers=headers or {}, content_type="application/json"
    )


@dataclass
class Received:
    """One request as it came."""

    headers: dict[str, str]
    body: dict[str, Any]
    path: str
    raw: bytes = b""


class FakeOpenAI:
    """
    The server; an async context manager.

    Attributes:
        answers: What is still to be said, in order; a function makes one of the request.
        received: The requests so far.
        asked: Set when the first request has come.
        held: Set when all is said up to a `HOLD`.
        left: Set when a client goes away before its answer ended.
        connections: How many were opened.
    """

    def __init__(
        self,
        *answers: Answer | Callable[[Received], Answer],
        check: Callable[[Mapping[str, Any]], list[tuple[str, str]]] | None = None,
    ) -> None:
        self.answers = list(answers)
        self._check = check or check_request
        self.received: list[Received] = []
        self.left = asyncio.Event()
        self.held = asyncio.Event()
        self.asked = asyncio.Event()
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # a connection that was just accepted has its task then
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed writers close their sockets in the next round
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:
            pass  # the test is over; Python 3.11 would report a cancelled handler as a failure
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        _, path, _ = line.decode().split(" ")
        headers: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw or b"{}")
        received = Received(headers, body, path, raw)
        self.received.append(received)
        self.asked.set()
        problems = self._check(body)
        if problems:
            where, why = problems[0]
            answer = refuses(400, why, type="invalid_request_error", param=where)
        else:
            given = self.answers.pop(0)
            answer = given(received) if callable(given) else given
        return await self._send(answer, reader, writer)

    async def _send(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        gone = asyncio.ensure_future(reader.read(1))
        try:
            if answer.gate is not None:
                opened = asyncio.ensure_future(answer.gate.wait())
                await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
                opened.cancel()
                if gone.done():
                    self.left.set()
                    return False
            head = f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.content_type}\r\n"
            head += "".join(f"{k}: {v}\r\n" for k, v in answer.headers.items())
            writer.write((head + "transfer-encoding: chunked\r\n\r\n").encode())
            for piece in answer.pieces:
                if piece is HOLD:
                    await writer.drain()
                    self.held.set()
                    await gone
                    self.left.set()
                    return False
                if piece is CUT:
                    await writer.drain()
                    return False
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                    continue
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            if gone.done() and gone.result():
                raise AssertionError("a client sent its next request before the answer ended")
            return not gone.done()
        finally:
            if not gone.done():
                gone.cancel()
                with suppress(asyncio.CancelledError):
                    await gone


def check_request(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a strict server would refuse in *body*: pairs of parameter and reason."""
    problems: list[tuple[str, str]] = []
    if not body.get("stream"):
        problems.append(("stream", "this server streams"))
    messages = body.get("messages") or []
    if not messages:
        problems.append(("messages", "messages must not be empty"))
    open_calls: list[str] = []
    for i, message in enumerate(messages):
        where, role = f"messages[{i}]", message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                problems.append((where, ORPHAN))
            else:
                open_calls.remove(message["tool_call_id"])
            if not isinstance(message.get("content"), str) or not message["content"]:
                problems.append((where, "a tool message needs content"))
            continue
        if open_calls:
            problems.append((where, UNANSWERED))
            open_calls = []
        if role == "assistant":
            open_calls = _check_assistant(message, where, problems)
        elif role not in ("system", "user"):
            problems.append((where, f"unknown role {role!r}"))
        elif not message.get("content"):
            problems.append((where, "content must not be empty"))
        else:
            problems += [(where, why) for why in _check_parts(message["content"])]
    if open_calls:
        problems.append((f"messages[{len(messages) - 1}]", UNANSWERED))
    problems += [
        ("tools", "parameters must be an object schema")
        for tool in body.get("tools") or ()
        if tool["function"]["parameters"].get("type") != "object"
    ]
    problems += [
        ("tools", f"Invalid schema for function '{tool['function']['name']}': it is not strict")
        for tool in body.get("tools") or ()
        if tool["function"].get("strict") and not is_strict(tool["function"]["parameters"])
    ]
    top = body.get("top_logprobs")
    if top is not None and body.get("logprobs") is not True:
        problems.append(("top_logprobs", "'logprobs' must be set to true to use 'top_logprobs'."))
    if top is not None and not 0 <= top <= 20:
        problems.append(("top_logprobs", "Expected a value between 0 and 20."))
    form = (body.get("response_format") or {}).get("json_schema") or {}
    if form.get("strict") and not is_strict(form["schema"]):
        text = "Invalid schema for response_format: 'additionalProperties' is required to be false"
        problems.append(("response_format", text))
    return problems or [("", one) for one in beyond(body, "completions")]


def _check_parts(content: Any) -> list[str]:
    """The parts of a user's content that the API refuses."""
    problems = []
    for part in content if isinstance(content, list) else ():
        kind, body = part.get("type"), part.get(part.get("type"), {})
        if kind == "file" and not (body.get("filename") and body["file_data"].startswith("data:")):
            problems.append("Expected a base64-encoded data URL with an application/pdf MIME type")
        elif kind == "input_audio" and body.get("format") not in ("wav", "mp3"):
            problems.append("Invalid value for 'format'. Supported values are: 'wav' and 'mp3'.")
        elif kind not in ("text", "image_url", "file", "input_audio"):
            problems.append(f"Invalid value: '{kind}'.")
    return problems


def is_strict(schema: Any) -> bool:
    """Every object is closed and requires all of its properties."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" and (
            schema.get("additionalProperties") is not False
            or set(schema.get("required", ())) != set(schema.get("properties", ()))
        ):
            return False
        return all(is_strict(value) for value in schema.values())
    return not isinstance(schema, list) or all(is_strict(item) for item in schema)


def _check_assistant(
    message: Mapping[str, Any], where: str, problems: list[tuple[str, str]]
) -> list[str]:
    ids = []
    for call in message.get("tool_calls") or ():
        ids.append(call["id"])
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            problems.append((where, "tool call arguments must be a JSON object"))
        if not call["function"]["name"]:
            problems.append((where, "a tool call needs a name"))
    if len(set(ids)) != len(ids):
        problems.append((where, "duplicate tool call ids"))
    if not ids and not message.get("content"):
        problems.append((where, "content or tool_calls must be set"))
    return ids
