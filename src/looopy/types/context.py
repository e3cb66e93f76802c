"""The input of one turn: its identity, its credentials, its limits, and the means to stop it."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, SupportsIndex, TypeAlias, cast

from looopy.errors import ConfigurationError, ValueRefused
from looopy.types.artifact import ArtifactWriter
from looopy.types.constructors import quick
from looopy.types.storable import check_actor

_logger = logging.getLogger("looopy")


class AuthContext:
    """
    The person or service that a turn acts for, and its credentials: new for every turn, gone with
    it.

    Tools and hooks receive it. It is never stored, logged or shown: pickling, copying and
    serialising raise `TypeError`, and its `repr` names neither credentials nor scopes.

    Args:
        actor_id: The person or service, in at most 512 bytes; it is stored with the turn.
        tenant_id: The tenant, if the application has several.
        credentials: Secrets by name, such as `{"token": ...}`.
        scopes: The permissions of the credentials.
        expires_at: After this moment no tool call starts; must be timezone-aware.
    """

    __slots__ = ("__weakref__", "actor_id", "credentials", "expires_at", "scopes", "tenant_id")

    def __init__(
        self,
        actor_id: str,
        tenant_id: str | None = None,
        credentials: Mapping[str, Any] | None = None,
        scopes: Sequence[str] = (),
        expires_at: datetime | None = None,
    ) -> None:
        if not isinstance(actor_id, str) or not actor_id:
            raise ConfigurationError("AuthContext needs an actor_id: a non-empty string")
        try:
            check_actor(actor_id)
        except ValueRefused:
            raise ConfigurationError(
                "AuthContext.actor_id takes at most 512 bytes of valid Unicode without NUL: it is"
                " stored with the turn"
            ) from None
        if tenant_id is not None and not isinstance(tenant_id, str):
            raise ConfigurationError("AuthContext.tenant_id takes text, or None")
        if expires_at is not None and not isinstance(expires_at, datetime):
            raise ConfigurationError("AuthContext.expires_at takes a datetime, or None")
        if expires_at is not None and expires_at.tzinfo is None:
            raise ConfigurationError(
                "AuthContext.expires_at must be timezone-aware, such as datetime.now(UTC)"
            )
        if credentials is not None and not isinstance(credentials, Mapping):
            raise ConfigurationError(
                'AuthContext.credentials takes secrets by name, such as {"token": ...}'
            )
        if not _are_texts(scopes):
            raise ConfigurationError('AuthContext.scopes takes a list of texts, such as ["read"]')
        self.actor_id = actor_id
        self.tenant_id = tenant_id
        self.credentials: Mapping[str, Any] = dict(credentials or {})
        self.scopes = tuple(scopes)
        self.expires_at = expires_at

    def expired(self, now: datetime | None = None) -> bool:
        """True once `expires_at` has passed."""
        return self.expires_at is not None and (now or datetime.now(UTC)) >= self.expires_at

    def __repr__(self) -> str:
        return f"AuthContext(actor_id={self.actor_id!r}, credentials=<hidden>)"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("AuthContext holds credentials of one turn: it is never copied or stored")

    __getstate__ = _refuse
    __copy__ = _refuse
    __deepcopy__ = _refuse
    __reduce__ = _refuse

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        self._refuse()


def _are_texts(values: object) -> bool:
    if not isinstance(values, (list, tuple, set, frozenset)):
        return False
    return all(isinstance(value, str) for value in values)


class CancelToken:
    """A request to stop, made once and seen by everyone who holds the token. Not thread-safe."""

    __slots__ = ("_callbacks", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._callbacks: list[Callable[[], object]] = []

    @property
    def cancelled(self) -> bool:
        """True once `cancel()` was called."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask to stop. The first reason stands; callbacks run in order, even after one fails."""
        if self.reason is not None:
            return
        self.reason = reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call *callback* on cancellation, at once if it has happened; returns what removes it."""
        if self.reason is not None:
            _call(callback)
            return lambda: None
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("a cancel callback failed")


SystemPrompt: TypeAlias = "PromptText | Sequence[PromptPart | PromptText]"


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """
    The view of one turn that tools, hooks and prompt parts get.

    Attributes:
        continues: The turn that this one continues, or `None`.
        auth_context: New for this turn; never stored.
        artifacts: Writer for the context's artifacts, or `None` in a bare loop.
        stores: The `Stores` that hold the context, or `None` in a bare loop.
        epoch: Rises with each owner of the context, so it distinguishes earlier owners; `None`
            for a turn that is not stored.
    """

    context_id: str
    turn: int = 1
    continues: int | None = None
    auth_context: AuthContext | None = None
    system_prompt: SystemPrompt = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    artifacts: ArtifactWriter | None = None
    stores: Any = field(default=None, repr=False)
    cancel: CancelToken = field(default_factory=CancelToken)
    epoch: int | None = field(default=None, repr=False)


PromptText: TypeAlias = "str | Callable[[TurnContext], str | Awaitable[str]]"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """
    One part of a system prompt.

    Args:
        text: Text, or a function (sync or async) of the `TurnContext`, asked for each model call.
            Empty: the part is left out.
        position: `"before"` the history, in the system prompt; or `"after"` it, at the end of the
            request: for what changes from call to call, which would cost the prompt cache all that
            comes after it.
        order: Parts with a lower number come earlier; equal ones stay in their order.
        name: For traces; with `version` and `metadata` in `LLMRequest.prompts`.
        version: Which one of that name.
        metadata: For the provider and for traces; the model never sees it.

    Raises:
        ConfigurationError: An option is not one of its values.
    """

    text: PromptText
    position: Literal["before", "after"] = "before"
    order: int = 0
    name: str | None = None
    version: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) and not callable(self.text):
            raise ConfigurationError("PromptPart takes text, or a function that returns it")
        if self.position not in ("before", "after"):
            raise ConfigurationError(
                f"PromptPart.position must be 'before' or 'after', not {self.position!r}"
            )
        if not isinstance(self.order, int) or isinstance(self.order, bool):
            raise ConfigurationError("PromptPart.order must be a whole number")
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigurationError("PromptPart.name takes text, or None")
        if self.version is not None and not isinstance(self.version, str):
            raise ConfigurationError("PromptPart.version takes text, or None")
        if type(self.metadata) is not dict and not isinstance(self.metadata, Mapping):
            raise ConfigurationError("PromptPart.metadata takes values by name")


def as_part(given: object) -> PromptPart:
    """*given* as a part: a part, text, or a function of text; or `ConfigurationError`."""
    if isinstance(given, PromptPart):
        return given
    if isinstance(given, str):
        return PromptPart(given)
    if callable(given):
        return PromptPart(cast("PromptText", given))
    raise ConfigurationError(
        "system_prompt must be text, a function that returns it, or a list of these and of"
        f" PromptParts, not {type(given).__name__}"
    )
