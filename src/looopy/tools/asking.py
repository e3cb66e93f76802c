"""
A tool that needs a person: it asks, its call stays open, and the turn ends until the answer.

No process waits. The question is in the store; the answer may come days later and in another
process, and then the tool runs again from its first line, now with the answer. So a tool must ask
before it does anything that must not happen twice.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from looopy.errors import InvalidTool, ValueRefused
from looopy.types.auth import AuthRequest
from looopy.types.state import PendingKind

MAX_STATE_CHARS = 64 * 1024
MAX_KEY_CHARS = 10_000

answered_for: ContextVar[Mapping[str, str]] = ContextVar("looopy_answered_for", default={})  # noqa: B039 - never changed
"""By request id, the actors who answered an inner agent's questions, while its turn is begun."""


@dataclass(frozen=True, slots=True)
class Ask:
    """
    One question of a tool.

    Args:
        key: The key of the answer in `ToolContext.answers`; its own within the call.
        kind: The kind of answer.
        prompt: One sentence for the person who answers.
        schema: JSON Schema of the value; for a pydantic model, the model's schema. For an approval,
            it is the schema of the arguments: without one, `Approve(args=...)` is refused.
        options: The choices.
        tool_name: The tool that the question is about; `None`: the asking tool.
        args: The arguments of that call; `None`: the asking call's arguments.
        expires_s: After so many seconds it can no longer be answered; `None`: never.
        auth: The requested credentials; `kind` is then `auth`. They come encrypted, which needs the
            extra `auth`, and within 15 minutes.

    Raises:
        ValueRefused: One of these is invalid; `path` names it.
    """

    key: str
    kind: PendingKind = PendingKind.INPUT
    prompt: str = ""
    schema: Mapping[str, Any] | None = None
    options: Sequence[Any] = ()
    expires_s: float | None = None
    tool_name: str | None = None
    args: Mapping[str, Any] | None = None
    auth: AuthRequest | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not 0 < len(self.key) <= MAX_KEY_CHARS:
            raise ValueRefused("Ask.key takes text that is not empty", path="/key")
        if self.kind not in tuple(PendingKind):
            kinds = ", ".join(repr(kind.value) for kind in PendingKind)
            raise ValueRefused(f"Ask.kind must be one of {kinds}", path="/kind")
        kind = self.kind if self.auth is None else PendingKind.AUTH
        object.__setattr__(self, "kind", PendingKind(kind))
        if not isinstance(self.prompt, str):
            raise ValueRefused("Ask.prompt takes text", path="/prompt")
        if self.tool_name is not None and not isinstance(self.tool_name, str):
            raise ValueRefused("Ask.tool_name takes text, or None", path="/tool_name")
        if self.args is not None and not isinstance(self.args, Mapping):
            raise ValueRefused("Ask.args takes arguments by name, or None", path="/args")
        if self.auth is not None and not isinstance(self.auth, AuthRequest):
            raise ValueRefused("Ask.auth takes an AuthRequest(...), or None", path="/auth")
        if isinstance(self.options, (str, bytes)) or not isinstance(self.options, Sequence):
            raise ValueRefused("Ask.options takes a list of values", path="/options")
        schema: Any = self.schema
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
            object.__setattr__(self, "schema", schema)
        if schema is not None and not isinstance(schema, Mapping):
            raise ValueRefused(
                "Ask.schema takes a JSON Schema, as {'type': 'string'}, or a pydantic model",
                path="/schema",
            )
        if self.schema is not None:
            from looopy.tools.schema import check_schema  # jsonschema: most tools never ask

            try:
                check_schema(self.schema)
            except InvalidTool as error:
                why = error.message.partition(": ")[2]
                raise ValueRefused(
                    f"Ask.schema is not a valid JSON Schema: {why}", path="/schema"
                ) from None
        if self.expires_s is not None and (
            not isinstance(self.expires_s, (int, float))
            or isinstance(self.expires_s, bool)
            or not 0 < self.expires_s < 1e9
        ):
            raise ValueRefused(
                "Ask.expires_s must be more than 0 seconds, or None", path="/expires_s"
            )


class NeedsInput(BaseException):
    """
    Raised by a tool to ask: the call stays open until a person has answered.

    It is not an `Exception`, so that a tool which catches all of its own failures does not catch
    this.

    Args:
        requests: At least one question; their keys differ.
        state: JSON that comes back as `ToolContext.state` when the tool runs again; no subscriber
            sees it, and it is stored with the context.

    Raises:
        ValueRefused: The list is empty, two questions share a key, or the state is not JSON or too
            large.
    """

    def __init__(self, requests: Sequence[Ask], state: Any = None) -> None:
        self.requests = tuple(requests)
        self.state = state
        keys = [ask.key for ask in self.requests]
        if not keys or len(set(keys)) < len(keys):
            raise ValueRefused(
                "NeedsInput takes at least one Ask, and each has a key of its own", path="/requests"
            )
        try:
            size = len(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueRefused(f"NeedsInput.state is not JSON: {error}", path="/state") from None
        if size > MAX_STATE_CHARS:
            raise ValueRefused(
                f"NeedsInput.state takes at most {MAX_STATE_CHARS} characters of JSON, not {size}:"
                " keep the rest as an artifact",
                path="/state",
            )
        super().__init__(
            f"needs input: {', '.join(ask.prompt or ask.key for ask in self.requests)}"
        )


class LockedOut(str):
    """
    A warning that a source lists no tools in a turn, because its user is not signed in.

    The turn leaves open calls of such tools open, although it does not know them.

    Args:
        text: The warning.
        prefix: The beginning of the names of its tools.
    """

    __slots__ = ("prefix",)
    prefix: str

    def __new__(cls, text: str, prefix: str = "") -> Self:
        """Make the warning."""
        made = super().__new__(cls, text)
        made.prefix = prefix
        return made


class NeedsCredentials(NeedsInput):
    """
    Raised instead of running a call: the credentials of the turn have expired or were refused.

    The call stays open, the turn ends as `auth_required`, and a turn with fresh credentials
    continues with that call.

    Args:
        reason: One sentence for a `warning` of the turn; empty: the turn warns of nothing.
    """

    def __init__(self, reason: str = "") -> None:
        self.requests = ()
        self.state = None
        self.reason = reason
        BaseException.__init__(self, "needs fresh credentials")
