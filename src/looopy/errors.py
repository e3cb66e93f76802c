"""
Every exception looopy raises, in one tree: catch wide or narrow.

    LooopyError
      AgentError
        AgentStateError         .status .action   not allowed in this status
          AgentNotStarted
          AgentBusy             .turn   a turn is running, here or in another process
          CannotContinue
        TurnIncomplete          .outcome   from TurnResult.raise_for_outcome()
        TurnMismatch            .expected .actual
        IdempotencyConflict
        InputNotFound           .request_id
          AlreadyAnswered       .actor_id
          InputExpired          .expired_at
        Fenced                  another owner has advanced this context; final
        AccessDenied
        HostClosed              it drains, or is closed
      LLMError                  .provider .model .retryable .unbilled
        LLMUnavailable          connection, timeout, 5xx
        RateLimited             .retry_after_s
        ContextOverflow         .limit_tokens
        HistoryRejected         .position
        InvalidLLMResponse
        UnsupportedContent      .mime_type   the model cannot read a file of the message
        UnsupportedOption       .option      the model or its API does not take it
        OutputInvalid           .tries   no answer fitted output_type
      ToolError                 .tool_name .call_id
        ToolNotFound  InvalidToolArguments  ToolTimeout  ToolDenied
        ToolServerError         .server .outcome_known
          SignInFailed
      StoreError
        ContextNotFound         also a KeyError
        ArtifactNotFound        also a KeyError
        ArchiveRefused          .member .line .path   nothing was imported
        ArtifactDamaged         .artifact_id .version .expected .actual
        ValueRefused            .path   cannot be stored faithfully; nothing was written
        StoreConflict           .expected .actual .artifact_id
        CommitsLost             the store lacks what it had acknowledged
        StoreUnavailable        .outcome_known
          StorageFull
        SchemaOutOfDate         .found .expected
      LimitExceeded             .limit .value
        BudgetExceeded          .resets_at .waits   of an owner or tenant, for a day or month
      ConfigurationError        says what to install, set or change
        MissingExtra            .extras .command
        MissingKey  UnknownModel  InvalidTool
        InvalidSkill            .file .field
        FactoryFailed           .context_id   of an AgentHost

The message is one sentence for a human; the facts are keyword arguments and become attributes.
Every error survives pickling, facts included. No message ever holds a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any


class LooopyError(Exception):
    """
    Base of every error in looopy.

    Args:
        message: One sentence for a human, with a way to solve it if possible.
        **facts: Values for programs; each becomes an attribute. A fact that a class declares (see
            the tree above) has its declared default unless it is given.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)

    def __str__(self) -> str:
        return self.message


def _rebuild(cls: type[LooopyError], message: str, facts: dict[str, Any]) -> LooopyError:
    return cls(message, **facts)


class AgentError(LooopyError):
    """An error of an agent or one of its turns."""


class AgentStateError(AgentError):
    """The agent's status does not allow this action."""

    status: str | None = None
    action: str | None = None


class AgentNotStarted(AgentStateError):
    """`start()` has not been called, or the agent was shut down."""


class AgentBusy(AgentStateError):
    """A turn is running on this context, here or in another process."""

    turn: int | None = None


class CannotContinue(AgentStateError):
    """There is nothing to continue: pass a user message instead."""


class TurnIncomplete(AgentError):
    """The turn was cancelled or interrupted before its answer was complete."""

    outcome: str | None = None


class TurnMismatch(AgentError):
    """The expected turn is not the running one."""

    expected: int | None = None
    actual: int | None = None


class IdempotencyConflict(AgentError):
    """The idempotency key was used before, with another input."""


class InputNotFound(AgentError):
    """No pending request has this id; nothing was stored."""

    request_id: str | None = None


class AlreadyAnswered(InputNotFound):
    """The request was answered before, by `actor_id`; nothing was stored."""

    actor_id: str | None = None


class InputExpired(InputNotFound):
    """The request expired at `expired_at`, before it was answered; nothing was stored."""

    expired_at: datetime | None = None


class Fenced(AgentError):
    """Another owner has advanced this context: this one may write nothing more. Never retried."""


class AccessDenied(AgentError):
    """The actor or its tenant may not use this context."""


class HostClosed(AgentError):
    """The `AgentHost` shuts down, or was shut down: another process serves the context."""


class LLMError(LooopyError):
    """
    A model call failed.

    `unbilled` is true if the call certainly used nothing, because it was refused or never arrived.
    """

    provider: str | None = None
    model: str | None = None
    retryable: bool = False
    unbilled: bool = False


class LLMUnavailable(LLMError):
    """No connection, a timeout, or a server-side failure (5xx)."""

    retryable = True


class RateLimited(LLMError):
    """The provider asks to wait (429)."""

    unbilled = True
    retryable = True
    retry_after_s: float | None = None


class ContextOverflow(LLMError):
    """The request does not fit the model's window."""

    unbilled = True
    limit_tokens: int | None = None


class HistoryRejected(LLMError):
    """The provider refused the messages themselves."""

    unbilled = True
    position: int | None = None


class InvalidLLMResponse(LLMError):
    """The provider returned an invalid answer."""


class UnsupportedContent(LLMError):
    """The API has no place for an image, a document or a recording; nothing was sent."""

    unbilled = True
    mime_type: str | None = None


class UnsupportedOption(LLMError):
    """The model or its API has no place for an option of the call; nothing was sent."""

    unbilled = True
    option: str | None = None


class OutputInvalid(LLMError):
    """No answer of the model was a valid value of `output_type`."""

    tries: int = 0


class ToolError(LooopyError):
    """A tool call failed; the model sees the message as an error result."""

    tool_name: str | None = None
    call_id: str | None = None


class ToolNotFound(ToolError):
    """No tool has this name."""


class InvalidToolArguments(ToolError):
    """The arguments do not fit the tool's schema."""


class ToolTimeout(ToolError):
    """The tool did not answer in time."""


class ToolDenied(ToolError):
    """Policy or a person refused the call."""


class ToolServerError(ToolError):
    """
    A server of tools failed: it cannot be reached, died, or breaks its protocol.

    `server`: its name; `outcome_known`: false if a call may have had its effect.
    """

    server: str | None = None
    outcome_known: bool = True


class SignInFailed(ToolServerError):
    """The server wants its user to sign in: the user is not signed in, or is refused (HTTP 401)."""


class StoreError(LooopyError):
    """A store operation failed."""


class ContextNotFound(StoreError, KeyError):
    """No such context, or the context of another tenant."""


class ArtifactNotFound(StoreError, KeyError):
    """No such artifact in this context."""


class ArchiveRefused(StoreError):
    """
    An archive is truncated, altered, of a newer version or not one of ours; nothing was imported.

    `member` is the file in the archive, `line` its line from 1, `path` a JSON pointer into that
    line. Each is `None` where it does not apply.
    """

    member: str | None = None
    line: int | None = None
    path: str | None = None


class ArtifactDamaged(StoreError):
    """
    Bytes of an artifact have vanished or were altered outside of looopy; none of them are returned.

    `expected` and `actual` are SHA-256 digests of the damaged part; `actual` is `None` if the part
    is gone.
    """

    artifact_id: str | None = None
    version: int | None = None
    expected: str | None = None
    actual: str | None = None


class ValueRefused(StoreError):
    """A value cannot be stored faithfully; nothing was written. `path` is a JSON pointer to it."""

    path: str | None = None


class StoreConflict(StoreError):
    """
    Another writer was first; nothing was written.

    `artifact_id` is the artifact that was changed, if it is about one.
    """

    expected: int | None = None
    actual: int | None = None
    artifact_id: str | None = None


class CommitsLost(StoreError):
    """
    The store lacks commits that it had acknowledged; nothing was written.

    It went back: a failover to a standby without them, or the restore of a backup. Or another
    process has deleted the context. The agent continues from what the store has.
    """


class StoreUnavailable(StoreError):
    """The store did not answer. `outcome_known`: false if a write may have been applied."""

    outcome_known: bool = True


class StorageFull(StoreUnavailable):
    """The disk or quota is full; nothing of the write was kept."""


class SchemaOutOfDate(StoreError):
    """
    The database lacks the schema of this version; the message names the command to run.

    Opening raises it, and so does a write after another process has migrated the database.
    """

    found: str | None = None
    expected: str | None = None


class LimitExceeded(LooopyError):
    """A configured limit was reached."""

    limit: str | None = None
    value: Any = None


class BudgetExceeded(LimitExceeded):
    """
    A model call does not fit what its owner or tenant may spend in a day or month.

    `limit` is the field of `Budget`, `value` its value. The period ends at `resets_at`, which is
    `None` if the call may use more than the whole limit. `waits` is true if there is room once
    calls that run now have used less than they may.
    """

    resets_at: datetime | None = None
    waits: bool = False


class ConfigurationError(LooopyError):
    """Something must be installed, set or changed first; the message says what."""


class MissingExtra(ConfigurationError):
    """
    An optional dependency is not installed.

    `extras`: the extras of looopy that are missing; `command`: installs their packages into this
    environment. It is the last part of the message.
    """

    extras: tuple[str, ...] = ()
    command: str = ""


def missing_extra(reason: str, *extras: str) -> MissingExtra:
    """The error of a part that needs *extras* for *reason*, with the command for them."""
    command = how_to_install(*extras)
    return MissingExtra(f"{reason}: {command}", extras=extras, command=command)


def how_to_install(*extras: str) -> str:
    """
    The command that installs the packages of *extras* into the environment of this process.

    It names these packages and never `looopy`: no index has that name, so a stranger could register
    it and get its users. In a clone that uv runs, it names the extras.
    """
    import json
    import os
    import shutil
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        looopy = distribution("looopy")
    except PackageNotFoundError:  # its folder is on the path, and tells no versions
        return f"install what pyproject.toml lists under {', '.join(extras)}"
    environment = Path(sys.prefix)
    home = environment.parent
    uv = "uv" if shutil.which("uv") else os.environ.get("UV")  # which `uv run` sets
    # PEP 610: where it was installed from, unless that was an index
    origin = json.loads(looopy.read_text("direct_url.json") or "{}")
    source = urlsplit(origin.get("url", ""))
    if "dir_info" in origin and Path(url2pathname(source.path)) == home:
        program = uv or ".uv/bin/uv"  # where the README puts it
        return " ".join([program, "sync", "--inexact", *(f"--extra {name}" for name in extras)])
    packages = " ".join(f'"{one}"' for one in _packages_of(looopy.requires or [], extras))
    if uv and (home / "uv.lock").exists():
        return f"{uv} add {packages}"
    if find_spec("pip") is not None:
        return f'"{sys.executable}" -m pip install {packages}'
    if uv:
        return f'{uv} pip install --python "{environment}" {packages}'
    pip = f'"{sys.executable}" -m'
    return f"{pip} ensurepip && {pip} pip install {packages}"


def _packages_of(requirements: Sequence[str], extras: Iterable[str]) -> list[str]:
    """The requirements of *extras*, such as `asyncpg>=0.31`, each of them once."""
    found: dict[str, None] = {}
    for extra in extras:
        for requirement in requirements:
            package, _, marker = requirement.partition(";")
            if f"extra == '{extra}'" in marker.replace('"', "'"):
                found[package.strip()] = None
    return list(found)


class MissingKey(ConfigurationError):
    """An API key is not set."""


class UnknownModel(ConfigurationError):
    """No provider knows this model name."""


class InvalidTool(ConfigurationError):
    """The tool's declaration is invalid: no model could be offered it."""


class InvalidSkill(ConfigurationError):
    """
    A folder is not a skill in the Agent Skills format.

    `file`: the file or folder; `field`: the field of its front matter, if it is one's fault.
    """

    file: str | None = None
    field: str | None = None


class FactoryFailed(ConfigurationError):
    """
    The factory of an `AgentHost` raised, or returned no agent that can serve `context_id`.

    Its own exception is the `__cause__`.
    """

    context_id: str | None = None


def foreign(error: BaseException, *, cancelling: int = 0) -> LooopyError | None:
    """
    The `LooopyError` for an *error* of the application's code that is not an `Exception`.

    Args:
        cancelling: The running task's `cancelling()` before that code was called.

    Returns:
        `None` for an `Exception`, for a cancellation of the running task, for a coroutine that is
        closed outside of any task, and for `KeyboardInterrupt` and `SystemExit`. The caller lets
        these pass.
    """
    if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
        return None
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        task = _running_task()
        if task is None:
            return None
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancelling:
            return None
    text = f"code of the application raised {type(error).__name__}"
    return LooopyError(f"{text}: {error}" if str(error) else text)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None
