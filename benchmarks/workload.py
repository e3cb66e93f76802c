"""
The content of every measured turn, and the model that answers it at once.

The sizes are those of a chat: a question of 64 characters, an answer of 200, a tool result of 60.
Every subject gets the same sizes, so that bytes and turns are comparable.
"""

import asyncio
import base64
import json
import os
import random
import time
from collections.abc import AsyncIterator

from looopy import tool
from looopy.llm.accumulate import Accumulator
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    TextContent,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

ANSWER = ("A turn that is stored once is a turn that is never lost again. " * 4)[:200]
ARGUMENTS = {"key": "alpha"}
FOUND = "alpha is beta. " * 4
SYSTEM = "You answer questions about letters."


def question(number: int) -> str:
    """What the user says in turn *number*: 64 characters."""
    return f"This is question {number:06d}, to be answered in about two lines only."


def jwt(number: int, length: int = 1500) -> str:
    """Token *number*: a header, claims and a signature of 256 bytes, as an issuer makes them."""
    drawn = random.Random(number).randbytes(length)  # noqa: S311 - the same in each run
    body = base64.urlsafe_b64encode(drawn).decode()
    header = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9"
    claims = body[: length - len(header) - 342 - 2]
    return f"{header}.{claims}.{body[-342:]}"


class Model:
    """
    A provider that answers without thinking.

    Attributes:
        calls_tool: Each turn asks for the tool once before it answers.
        deltas: Above 0, the answer comes as that many deltas.
        latency_s: How long each call takes.
        seen: How many messages the latest call was shown.
        first_call_at: `time.perf_counter()` of the first call since `forget()`.
    """

    name = "instant"
    model = "instant"

    def __init__(self) -> None:
        self.calls_tool = False
        self.deltas = 0
        self.latency_s = 0.0
        self.seen = 0
        self.first_call_at: float | None = None
        self._calls = 0

    def forget(self) -> None:
        """Wait for a first call again."""
        self.first_call_at = None

    def called(self, messages: int) -> None:
        """Note a call that was shown so many messages."""
        self.seen = messages
        if self.first_call_at is None:
            self.first_call_at = time.perf_counter()

    def call_id(self) -> str:
        """An id that no other call of any process has."""
        self._calls += 1
        return f"call_{os.getpid()}_{self._calls}"

    def pieces(self) -> list[str]:
        """The answer, in deltas."""
        return ["word "] * self.deltas if self.deltas else [ANSWER]

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMProvider.stream`."""
        self.called(len(request.messages))
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        answer = Accumulator(api=self.name, provider=self.name, model=self.model)
        if self.calls_tool and not isinstance(request.messages[-1], ToolResultMessage):
            asked = answer.tool_call(
                0, call_id=self.call_id(), name="lookup", arguments_delta=json.dumps(ARGUMENTS)
            )
            for event in asked:
                yield event
        else:
            for piece in self.pieces():
                for event in answer.text_delta(piece):
                    yield event
        for event in answer.done(StopReason.STOP, Usage()):
            yield event


@tool
async def lookup(key: str) -> str:
    """
    Look a key up.

    Args:
        key: What to find.
    """
    return FOUND


def conversation(count: int) -> list[Message]:
    """*count* messages as so many text turns leave them."""
    return [
        AssistantMessage(
            (TextContent(ANSWER),), api=Model.name, provider=Model.name, model=Model.model
        )
        if number % 2
        else UserMessage(question(number))
        for number in range(count)
    ]
