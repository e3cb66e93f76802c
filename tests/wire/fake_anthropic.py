"""
A server on loopback that speaks Anthropic's Messages API, byte by byte as a test says.

Its requests are judged by `anthropic_rules` before they are answered; and it signs thinking, so
that a thought that comes back changed, or to another model, is refused as the API refuses it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tests.wire.anthropic_rules import check_body, is_bound
from tests.wire.fake_openai import Answer, FakeOpenAI, Received
from tests.wire.sdk_types import beyond

MODEL = "claude-sonnet-4-5"
USAGE = {
    "input_tokens": 12,
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 400,
    "output_tokens": 1,
}


def event(data: Mapping[str, Any]) -> bytes:
    """One event of a stream, under its own name."""
    text = json.dumps(data, ensure_ascii=False)
    return f"event: {data['type']}\ndata: {text}\n\n".encode()


def started(*, usage: Mapping[str, Any] = USAGE, model: str = MODEL) -> bytes:
    """The first event of an answer."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(usage),
    }
    return event({"type": "message_start", "message": message})


def block(index: int, begin: Mapping[str, Any], *deltas: Mapping[str, Any]) -> list[bytes]:
    """A block whole: its start, its pieces, its stop."""
    return [
        event({"type": "content_block_start", "index": index, "content_block": begin}),
        *(event({"type": "content_block_delta", "index": index, "delta": d}) for d in deltas),
        event({"type": "content_block_stop", "index": index}),
    ]


def text(index: int, said: str) -> list[bytes]:
    """A block of text, a word in each piece."""
    words = [w if i == 0 else " " + w for i, w in enumerate(said.split(" "))]
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return block(index, {"type": "text", "text": ""}, *deltas)


def thinks(
    index: int, thought: str, *, model: str = MODEL, asked: Mapping[str, Any] | None = None
) -> list[bytes]:
    """
    A block of thinking in two pieces, its signature in two more.

    Args:
        asked: The body of the request, for a model that binds its thoughts to it.
    """
    half, signature = len(thought) // 2, sign(thought, model)
    if asked is not None:
        signature += "." + _before(asked, len(asked["messages"]))
    deltas = [{"type": "thinking_delta", "thinking": t} for t in (thought[:half], thought[half:])]
    deltas += [{"type": "signature_delta", "signature": s} for s in (signature[:9], signature[9:])]
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def redacted(index: int, *, model: str = MODEL) -> list[bytes]:
    """A block of thinking that nobody may read."""
    return block(index, {"type": "redacted_thinking", "data": sign("", model)})


def calls(index: int, call_id: str, name: str, *pieces: str) -> list[bytes]:
    """A tool call, its arguments cut as given."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, *deltas)


def stopped(reason: str = "end_turn", *, output_tokens: int = 9, **usage: int) -> list[bytes]:
    """The end of an answer."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    counts = {"output_tokens": output_tokens, **usage}
    return [
        event({"type": "message_delta", "delta": delta, "usage": counts}),
        event({"type": "message_stop"}),
    ]


def answers(*blocks: Sequence[bytes], reason: str = "end_turn") -> Answer:
    """A whole answer of *blocks*."""
    ping = event({"type": "ping"})
    pieces = [started(), ping, *(piece for one in blocks for piece in one), *stopped(reason)]
    return Answer(pieces=pieces)


def says(said: str) -> Answer:
    """An answer of one text."""
    return answers(text(0, said))


def refuses(
    status: int, message: str, kind: str, *, headers: Mapping[str, str] | None = None
) -> Answer:
    """A refusal as Anthropic words it."""
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    body = json.dumps(error).encode()
    return Answer(
        pieces=[body], status=status, headers=headers or {}, content_type="application/json"
    )


def sign(thought: str, model: str) -> str:
    """The one signature of *thought* by *model*; with characters that only look alike encoded."""
    return "Eq/+" + hashlib.sha256(f"{model}\n{thought}".encode()).hexdigest() + "=="


class FakeAnthropic(FakeOpenAI):
    """The server; an async context manager. See `FakeOpenAI` for its attributes."""

    def __init__(self, *answers: Answer | Callable[[Received], Answer]) -> None:
        super().__init__(*answers, check=self._refuse)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.url = self.url.removesuffix("/v1")
        return self

    def _refuse(self, body: Mapping[str, Any]) -> list[tuple[str, str]]:
        model = str(body.get("model"))
        problems = check_body(
            body,
            headers=self.received[-1].headers,
            verify=lambda thought, given: given.partition(".")[0] == sign(thought, model),
        )
        if not problems and is_bound(model):
            problems = _unbound(body)
        return [("", problem) for problem in problems or beyond(body, "anthropic")]


def _unbound(body: Mapping[str, Any]) -> list[str]:
    """The thoughts whose past was changed, unless they may be left out."""
    binding = (body.get("thinking") or {}).get("block_binding") or {}
    if binding.get("prefix_mismatch_behavior") == "drop_block":
        return []
    return [
        f"messages.{i}.content.{j}: Invalid `signature` in `thinking` block. The block is bound to"
        " a different conversation. Remove the block, or set `prefix_mismatch_behavior`"
        for i, message in enumerate(body["messages"])
        for j, part in enumerate(message["content"])
        if part["type"] == "thinking" and part["signature"].partition(".")[2] != _before(body, i)
    ]


def _before(body: Mapping[str, Any], count: int) -> str:
    """What stands for all that comes before a message; marks for the cache do not count."""
    past = [body.get("system"), body.get("tools"), body["messages"][:count]]
    plain = json.dumps(past, sort_keys=True).replace(', "cache_control": {"type": "ephemeral"}', "")
    plain = plain.replace('"cache_control": {"type": "ephemeral"}, ', "")
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
