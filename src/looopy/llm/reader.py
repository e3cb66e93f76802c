"""
The part of a reader that is the same for every wire format: JSON in, errors out.

A subclass turns the events of one server into calls of an `Accumulator`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from looopy.errors import InvalidLLMResponse, LLMError, LLMUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.llm.failures import failure_of


class AnswerReader:
    """
    Reads one answer into an `Accumulator`.

    Args:
        answer: Receives what the server says.
        sources: The positions of the request's messages; for errors that name one.
        secrets: Texts that no error may show.
    """

    __slots__ = ("_answer", "_secrets", "_sources")

    def __init__(
        self, answer: Accumulator, *, sources: Sequence[int] = (), secrets: Sequence[str] = ()
    ) -> None:
        self._answer = answer
        self._sources = sources
        self._secrets = secrets

    def _parsed(self, data: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise self._invalid("what is no JSON") from None

    def _reported(self, body: Any, status: int | None = None) -> LLMError:
        """The error that the server reports in the middle of its answer."""
        return failure_of(
            status,
            body,
            provider=self._answer.provider,
            model=self._answer.model,
            secrets=self._secrets,
            sources=self._sources,
        )

    def _invalid(self, what: str) -> InvalidLLMResponse:
        return InvalidLLMResponse(
            f"{self._answer.provider} sent {what} where a piece of its answer belongs",
            provider=self._answer.provider,
            model=self._answer.model,
        )

    def _broke_off(self) -> LLMUnavailable:
        return LLMUnavailable(
            f"the answer of {self._answer.provider} broke off before its end",
            provider=self._answer.provider,
            model=self._answer.model,
        )
