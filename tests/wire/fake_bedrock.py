"""
A server on loopback that speaks as Amazon Bedrock does: Anthropic's events in frames of AWS.

The frames are written from the description of the event stream encoding, and read by the official
client's own decoder.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tests.wire.anthropic_rules import check_body
from tests.wire.fake_openai import Answer, FakeOpenAI

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7


def frame(payload: bytes, **headers: str) -> bytes:
    """One frame: its lengths, their sum, headers, payload, and the sum of all."""
    head = b"".join(
        bytes([len(name) + 1])
        + b":"
        + name.encode()
        + bytes([_STRING])
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in ((n.replace("_", "-"), v) for n, v in headers.items())
    )
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    whole = prelude + head + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


def framed(answer: Answer) -> Answer:
    """An answer of Anthropic's, each event in a frame."""
    return Answer(pieces=[_chunk(piece) for piece in answer.pieces], content_type=_TYPE)


def _chunk(event: bytes) -> bytes:
    data = event.partition(b"data: ")[2].strip()
    payload = json.dumps({"bytes": base64.b64encode(data).decode()}).encode()
    kind = {"event_type": "chunk", "content_type": "application/json", "message_type": "event"}
    return frame(payload, **kind)


def throws(kind: str, message: str) -> bytes:
    """A failure amid the answer."""
    payload = json.dumps({"message": message}).encode()
    return frame(payload, exception_type=kind, message_type="exception")


class FakeBedrock(FakeOpenAI):
    """The server; an async context manager. See `FakeOpenAI` for its attributes."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers, check=self._refuse)

    def _refuse(self, body: Mapping[str, Any]) -> list[tuple[str, str]]:
        received = self.received[-1]
        _, found, rest = received.path.partition("/model/")
        model, _, action = rest.rpartition("/")
        problems = []
        if not found or action != "invoke-with-response-stream":
            problems.append(("", "The requested operation is not recognized by the service."))
        if not received.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256"):
            problems.append(("", "The request is not signed."))
        if body.get("anthropic_version") != "bedrock-2023-05-31":
            problems.append(("", "anthropic_version: Field required"))
        ours = ("model", "stream", "betas")
        problems += [("", f"{n}: Extra inputs are not permitted") for n in ours if n in body]
        rest_of = {k: v for k, v in body.items() if not k.startswith("anthropic_")}
        whole = {**rest_of, "model": unquote(model), "stream": True}
        return problems + [("", problem) for problem in check_body(whole)]
