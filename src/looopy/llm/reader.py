"""
The part of a reader that is the same for every wire format: JSON in, errors out.

A subclass turns the events of one server into calls of an `Accumulator`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from looopy.errors import InvalidLLMResponse, LLMError, LLMUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.llm.failures import failure_of
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    StopReason,
    TextContent,
    ThinkingContent,
)
from looopy.types.request import StreamEvent

_MOST_ID_CHARS = 200


def is_silent(message: AssistantMessage) -> bool:
    """True for an answer that has nothing but thoughts."""
    return not (message.text.strip() or any(_speaks(block) for block in message.content))


def _speaks(block: AssistantBlock) -> bool:
    return not isinstance(block, (TextContent, ThinkingContent))


@dataclass(slots=True, eq=False, repr=False)
class AnswerReader:
    """
    Reads one answer into an `Accumulator`, its first argument.

    Args:
        sources: The positions of the request's messages; for errors that name one.
        secrets: Texts that no error may show.
    """

    _answer: Accumulator
    _: KW_ONLY
    sources: Sequence[int] = ()
    secrets: Sequence[str] = ()

    def _parsed(self, data: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise self._invalid("invalid JSON") from None

    def _tool_call(
        self, index: Any, call_id: Any, name: Any, arguments: Any, signature: str = ""
    ) -> tuple[StreamEvent, ...]:
        """More of a tool call; a value of a wrong type is left out."""
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return self._answer.tool_call(
            index if isinstance(index, int) else None,
            call_id=call_id if isinstance(call_id, str) else None,
            name=name if isinstance(name, str) else None,
            arguments_delta=arguments if isinstance(arguments, str) else "",
            signature=signature,
        )

    def _weigh(self, sent: Any) -> None:
        """Keep the log-probabilities that the server *sent*, if they are wanted."""
        if self._answer.logprobs is not None:
            self._answer.logprobs.add(sent)

    def _named(self, response_id: Any) -> None:
        """Keep the server's id of the answer."""
        if isinstance(response_id, str) and response_id:
            self._answer.response_id = response_id[:_MOST_ID_CHARS]

    def _by(self, model: Any) -> None:
        """Keep the name of the model that answers, as the server writes it."""
        if isinstance(model, str):
            self._answer.served = model[:_MOST_ID_CHARS]

    def _reported(self, body: Any, status: int | None = None) -> LLMError:
        """The error that the server reports in the middle of its answer."""
        return failure_of(
            status,
            body,
            provider=self._answer.provider,
            model=self._answer.model,
            secrets=self.secrets,
            sources=self.sources,
        )

    def _ended(
        self, events: tuple[StreamEvent, ...], reason: str | None
    ) -> tuple[StreamEvent, ...]:
        """
        The last *events*; `InvalidLLMResponse` if the answer has neither text nor a call.

        Args:
            events: Of `Accumulator.done`.
            reason: The server's reason to end, for the error.
        """
        message = self._answer.snapshot()
        if message.stop_reason is StopReason.STOP and is_silent(message):
            raise self._invalid(f"neither text nor a call, and ended with {reason!r},")
        return events

    def _spliced(self) -> InvalidLLMResponse:
        """The error of a stream in which a gateway has begun the answer again."""
        return self._invalid("the beginning of another answer")

    def _invalid(self, what: str) -> InvalidLLMResponse:
        return InvalidLLMResponse(
            f"{self._answer.provider} sent {what} where a piece of its answer belongs",
            provider=self._answer.provider,
            model=self._answer.model,
            retryable=True,  # most likely damaged on its way, as a stream that breaks off
        )

    def _broke_off(self) -> LLMUnavailable:
        return LLMUnavailable(
            f"the answer of {self._answer.provider} broke off before its end",
            provider=self._answer.provider,
            model=self._answer.model,
        )
