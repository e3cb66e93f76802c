"""What the tests of tools share: the context of a call, and a way to run one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from looopy.auth.redaction import Redactor
from looopy.tools.base import Tool, ToolContext
from looopy.tools.call.run import CallRules, run_call
from looopy.types.context import CancelToken
from looopy.types.message import ToolCall, ToolResultMessage

Run = Callable[..., Awaitable[ToolResultMessage]]


def make_context(**changes: Any) -> ToolContext:
    """The context of call `call-1` in turn 3."""
    given: dict[str, Any] = {
        "context_id": "ada",
        "turn": 3,
        "tool_call_id": "call-1",
        "idempotency_key": "ada/3/call-1",
        "cancel": CancelToken(),
        **changes,
    }
    return ToolContext(**given)


async def run(
    tool: Tool | None,
    arguments: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    invalid_arguments: str | None = None,
    context: ToolContext | None = None,
    timeout_s: float | None = 10,
    max_result_bytes: int = 10_000,
    known: tuple[str, ...] = (),
    redactor: Redactor | None = None,
    grace_s: float = 5.0,
    **others: Any,
) -> ToolResultMessage:
    """Run one call of *tool* as the loop does."""
    call = ToolCall(
        "call-1",
        name or (tool.name if tool else "missing"),
        dict(arguments or {}),
        invalid_arguments=invalid_arguments,
    )
    rules = CallRules(
        default_timeout_s=timeout_s,
        max_result_bytes=max_result_bytes,
        known=known,
        redactor=redactor,
        grace_s=grace_s,
    )
    return await run_call(tool, call, context or make_context(), rules, **others)


@pytest.fixture(name="run")
def run_fixture() -> Run:
    """`run`, for tests."""
    return run


@pytest.fixture(name="make_context")
def make_context_fixture() -> Callable[..., ToolContext]:
    """`make_context`, for tests."""
    return make_context
