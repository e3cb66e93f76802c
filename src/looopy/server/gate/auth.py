"""
Ready-made answers to the question who sends a request: functions of a request to an `AuthContext`.

Each request gets an `AuthContext` of its own, because it belongs to one turn. An application that
has sessions writes a function of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from looopy.errors import ConfigurationError
from looopy.types.context import AuthContext

TOKEN_VARIABLE: Final = "LOOOPY_UI_TOKEN"  # noqa: S105 - the name of a variable
_LEAST_CHARS = 16


def bearer_token(request: Request) -> str | None:
    """The token of `Authorization: Bearer TOKEN`; `None` if there is no such header, or several."""
    said = request.headers.getlist("authorization")
    scheme, _, token = said[0].partition(" ") if len(said) == 1 else ("", "", "")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token and " " not in token else None


class StaticTokens:
    """
    Authenticate by tokens that do not change, such as one for each service that calls.

    Args:
        tokens: By token, the actor's id, or the arguments of its `AuthContext`. A token has at
            least 16 characters.

    Raises:
        ConfigurationError: A token is too short, or its actor is unusable.
    """

    def __init__(self, tokens: Mapping[str, str | Mapping[str, Any]]) -> None:
        self._known: dict[bytes, dict[str, Any]] = {}  # no token is kept
        for token, who in tokens.items():
            if not isinstance(token, str) or len(token) < _LEAST_CHARS:
                raise ConfigurationError(f"a token has at least {_LEAST_CHARS} characters")
            facts: dict[str, Any] = {"actor_id": who} if isinstance(who, str) else dict(who)
            try:
                AuthContext(**facts)
            except TypeError as error:
                raise ConfigurationError(f"a token stands for an AuthContext: {error}") from None
            self._known[_digest(token)] = facts

    def __call__(self, request: Request) -> AuthContext | None:
        """The caller, or `None`."""
        token = bearer_token(request)
        facts = None if token is None else self._known.get(_digest(token))
        return None if facts is None else AuthContext(**facts)

    def __repr__(self) -> str:
        return f"<StaticTokens {len(self._known)}>"


class LocalToken:
    """
    Authenticate the one person who uses this machine, by a token that was printed at the start.

    Only for a server that listens on loopback: it refuses any other client.

    Args:
        token: `None`: `LOOOPY_UI_TOKEN`, or a random one. It has at least 16 characters.
        actor_id: Who that is.

    Raises:
        ConfigurationError: The token is too short: other users of this machine could guess it.
    """

    def __init__(self, token: str | None = None, *, actor_id: str = "local") -> None:
        self.token = token or os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if len(self.token) < _LEAST_CHARS:
            where = "the token" if token else TOKEN_VARIABLE
            raise ConfigurationError(
                f"{where} has fewer than {_LEAST_CHARS} characters, so that others could guess it:"
                " leave it out for a random one"
            )
        self.actor_id = actor_id

    def __call__(self, request: Request) -> AuthContext | None:
        """The caller, or `None`."""
        if request.client is not None and not _is_loopback(request.client.host):
            return None
        token = bearer_token(request)
        if token is None or not hmac.compare_digest(_digest(token), _digest(self.token)):
            return None
        return AuthContext(self.actor_id)

    def __repr__(self) -> str:
        return "<LocalToken>"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
