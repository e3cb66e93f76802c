"""
Errors as a client over HTTP sees them: a status, a code, a sentence, and the place in its body.

The code of one of looopy's errors is its name in snake_case. A protocol with a form of its own for
errors takes the parts of a `Problem`; `problem_response` is the form of the HTTP API.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse

from looopy import errors
from looopy.errors import LooopyError
from looopy.server.codes import code_of
from looopy.server.feed import SlowReader

_logger = logging.getLogger("looopy")


class Problem(LooopyError):
    """
    A refused request.

    Attributes:
        status: The HTTP status.
        code: A word for programs, such as `context_not_found`.
        path: JSON pointer into the body, or `None`.
        turn: The running turn that is in the way, or `None`.
        headers: For the response.
    """

    status: int = 400
    code: str = "invalid_request"
    path: str | None = None
    turn: int | None = None
    headers: Mapping[str, str] = {}


# The first class that fits counts.
_STATUS: Final[tuple[tuple[type[LooopyError], int], ...]] = (
    (errors.ContextNotFound, 404),
    (errors.ArtifactNotFound, 404),
    (errors.AlreadyAnswered, 409),
    (errors.InputNotFound, 404),
    (errors.IdempotencyConflict, 422),
    (errors.AccessDenied, 403),
    (errors.HostClosed, 503),
    (errors.TurnIncomplete, 503),
    (errors.AgentError, 409),
    (errors.ValueRefused, 400),
    (errors.StoreConflict, 409),
    (errors.CommitsLost, 409),
    (errors.StoreUnavailable, 503),
    (errors.SchemaOutOfDate, 503),
    (errors.LimitExceeded, 429),
    (errors.LLMError, 502),
    (SlowReader, 503),
)
_LATER: Final = {"Retry-After": "1"}


def status_of(error: BaseException) -> int:
    """The HTTP status of an *error*."""
    if isinstance(error, Problem):
        return error.status
    if isinstance(error, errors.LimitExceeded) and error.limit == "max_agents":
        return 503
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def problem_of(error: Exception) -> Problem:
    """
    The problem that a client gets for an *error*.

    An error that is the server's own fault keeps its text for the log: the client gets the word
    `internal_error`.
    """
    if isinstance(error, Problem):
        return error
    status = status_of(error)
    if status == 500:
        _logger.error("a request failed: %s", error, exc_info=error)
        return Problem("the server failed; see its log", status=500, code="internal_error")
    return Problem(
        str(error),
        status=status,
        code=code_of(type(error)),
        path=getattr(error, "path", None),
        turn=getattr(error, "turn", None),
        headers=_LATER if status in (429, 503) else {},
    )


def problem_json(problem: Problem) -> dict[str, Any]:
    """The body of the response: `{"error": {"code", "message", "path"?, "turn"?}}`."""
    said: dict[str, Any] = {"code": problem.code, "message": problem.message}
    if problem.path is not None:
        said["path"] = problem.path
    if problem.turn is not None:
        said["turn"] = problem.turn
    return {"error": said}


def problem_response(error: Exception) -> JSONResponse:
    """The response of the HTTP API to an *error*."""
    problem = problem_of(error)
    return JSONResponse(problem_json(problem), problem.status, headers=dict(problem.headers))
