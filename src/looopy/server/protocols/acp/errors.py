"""
Errors in the form of JSON-RPC, with the place of a value that was refused.

`data.code` is the name of the error in snake_case, `data.path` a JSON pointer into the parameters.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from acp import RequestError

from looopy.errors import (
    AgentStateError,
    ContextNotFound,
    FactoryFailed,
    InputNotFound,
    LimitExceeded,
    LooopyError,
    ValueRefused,
)
from looopy.server.codes import code_of
from looopy.types.message import StopReason

INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_FOUND: Final = -32002

MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[Any]])
_logger = logging.getLogger("looopy")


def in_its_form(error: LooopyError) -> RequestError:
    """An error of looopy as one of the protocol."""
    data: dict[str, Any] = {"code": code_of(type(error))}
    for fact in ("path", "turn"):
        value = getattr(error, fact, None)
        if isinstance(value, (str, int)):
            data[fact] = value
    code = INTERNAL_ERROR
    if isinstance(error, ValueRefused):
        code = INVALID_PARAMS
        if "path" in data:
            data["path"] = _in_the_prompt(data["path"])
    elif isinstance(error, (ContextNotFound, InputNotFound)):
        code = NOT_FOUND
    elif isinstance(error, (AgentStateError, LimitExceeded)):
        code = INVALID_REQUEST
    said = str(error)
    if isinstance(error, FactoryFailed) and error.__cause__ is not None:
        said = f"{said}: {error.__cause__}"  # the client is the person who runs the application
    return RequestError(code, said, data)


def _in_the_prompt(path: str) -> str:
    """The place in the prompt; each of its blocks is a block of the message."""
    return re.sub(r"^(/user_message|/message)?/content(?=/|$)", "/prompt", path)


def failed_turn(turn: int, stop_reason: StopReason, error: LooopyError | None) -> RequestError:
    """A turn that failed or was interrupted: its messages are stored, and it can be continued."""
    code = stop_reason.value if error is None else code_of(type(error))
    said = str(error) if error is not None else f"the turn ended: {stop_reason.value}"
    data = {"code": code, "turn": turn, "stop_reason": stop_reason.value}
    return RequestError(INTERNAL_ERROR, said, data)


def answers(method: MethodT) -> MethodT:
    """Let a method of the protocol raise errors of looopy."""

    @functools.wraps(method)
    async def answering(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except LooopyError as error:
            raise in_its_form(error) from error
        except (RequestError, ConnectionError):
            raise
        except Exception as error:
            _logger.exception("%s failed", method.__name__)
            said = f"{type(error).__name__}: see the log of the agent"
            raise RequestError(INTERNAL_ERROR, said, {"code": "internal_error"}) from error

    return cast("MethodT", answering)
