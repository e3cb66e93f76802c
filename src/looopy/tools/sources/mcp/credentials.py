"""The credentials with which a server is used: headers, and how to sign in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from looopy.auth.redaction import Redactor
from looopy.tools.sources.mcp.target import Target
from looopy.types.context import AuthContext

if TYPE_CHECKING:
    import httpx2

AuthOf: TypeAlias = Callable[
    [AuthContext | None], "httpx2.Auth | Awaitable[httpx2.Auth | None] | None"
]
Auth: TypeAlias = "httpx2.Auth | AuthOf"


@dataclass(frozen=True, slots=True)
class Credentials:
    """
    The credentials of a connection's present users; its `repr` shows none of them.

    Attributes:
        headers: Of each request.
        auth: An `httpx2.Auth` that signs in, as the SDK's `OAuthClientProvider` does.
        user: Names the user for whom *auth* signs in: tenant and actor.
    """

    headers: Mapping[str, str] | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)
    user: tuple[str, str] | None = None


def is_auth(value: object) -> bool:
    """True if *value* is an `httpx2.Auth`, without loading httpx2."""
    return hasattr(value, "async_auth_flow")


def user_of(auth_context: AuthContext | None) -> tuple[str, str] | None:
    """The user of a turn: tenant and actor."""
    return None if auth_context is None else (auth_context.tenant_id or "", auth_context.actor_id)


def redactor(target: Target, credentials: Credentials) -> Redactor:
    """A redactor of the secrets that the server has now, and of its sign-ins."""
    made = target.redactor(credentials.headers)
    for one in _held_by(credentials.auth):
        made.add(one)
    return made


def _held_by(auth: Any) -> list[str]:
    """The tokens and the secret that a provider of the SDK holds now."""
    context = getattr(auth, "context", None)
    tokens, client = (getattr(context, name, None) for name in ("current_tokens", "client_info"))
    held = [getattr(tokens, name, None) for name in ("access_token", "refresh_token")]
    held.append(getattr(client, "client_secret", None))
    return [one for one in held if isinstance(one, str) and one]
