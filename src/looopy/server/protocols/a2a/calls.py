"""
One request on its way through the SDK, and looopy's errors as A2A's.

The SDK's handlers raise errors of A2A, which have no limit, no outage and no wrong credentials
among them. So a call remembers the problem, and the wires answer with its HTTP status.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from looopy.server.problems import Problem, problem_of
from looopy.types.context import AuthContext

_logger = logging.getLogger("looopy")
_KEY: Final = "looopy"
_BUSY: Final = (
    "a task of this context is working: send the message to that task, or wait until it is over"
)
OF_THE_WIRE: Final = frozenset({401, 403, 408, 413, 415, 429, 500, 502, 503})
"""The statuses that A2A has no error for."""


class Call:
    """
    One request.

    Args:
        auth: The caller, with credentials for this request alone.
        base: The server's address, without a slash at its end.
        is_old: The caller speaks 0.3.

    Attributes:
        problem: What A2A has no error for, or `None`.
        reached: The SDK has read the request, and called a verb.
    """

    def __init__(self, auth: AuthContext, base: str, *, is_old: bool = False) -> None:
        self.auth = auth
        self.base = base
        self.is_old = is_old
        self.problem: Problem | None = None
        self.reached = False
        self._streams: list[AsyncGenerator[Any, None]] = []

    @classmethod
    def of(cls, context: ServerCallContext) -> Call:
        """The call that the SDK hands on."""
        call = context.state[_KEY]
        if not isinstance(call, Call):
            raise TypeError("the context was not made by the wires of looopy")
        return call

    def state(self, version: str | None) -> dict[str, Any]:
        """The state that the SDK hands on; of the headers, only A2A's version is in it."""
        return {_KEY: self, "headers": {} if version is None else {"A2A-Version": version}}

    def closes(self, stream: AsyncGenerator[Any, None]) -> None:
        """Close *stream* with the call: the SDK leaves that to the garbage collector."""
        self._streams.append(stream)

    async def close(self) -> None:
        """Close the streams of the call."""
        while self._streams:
            await self._streams.pop().aclose()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of looopy into errors of A2A."""
        self.reached = True
        try:
            yield
        except A2AError:
            raise
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                _logger.exception("a request over A2A failed")
            if problem.status in OF_THE_WIRE:
                self.problem = problem
            raise a2a_error(problem) from None


def a2a_error(problem: Problem) -> A2AError:
    """The error of A2A for *problem*."""
    facts = {"code": problem.code}
    if problem.path is not None:
        facts["path"] = problem.path
    if problem.turn is not None:
        facts["turn"] = str(problem.turn)
    if problem.code == "context_not_found":
        return TaskNotFoundError()
    if problem.code == "invalid_json":
        return JSONParseError(problem.message, data=facts)
    if problem.code == "agent_busy":
        return UnsupportedOperationError(_BUSY, data=facts)
    kind: type[A2AError] = InternalError
    if problem.status == 415:
        kind = ContentTypeNotSupportedError
    elif problem.status == 409:
        kind = UnsupportedOperationError
    elif problem.status in (400, 404, 422):
        kind = InvalidParamsError
    elif problem.status < 500:
        kind = InvalidRequestError
    return kind(problem.message, data=facts)
