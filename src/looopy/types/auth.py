"""A tool's request for credentials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from looopy.errors import ValueRefused


class AuthType(StrEnum):
    """The kind of credentials."""

    OAUTH2 = "oauth2"
    API_KEY = "api-key"
    PAT = "pat"
    PASSWORD = "password"  # noqa: S105 - the name of a kind
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRequest:
    """
    Credentials that a tool asks for. The answering side encrypts them to `key`.

    Attributes:
        type: Their kind.
        provider: The service that issues them, such as `github`.
        scopes: The permissions they should have.
        authorization_endpoint, client_id, code_challenge: For `oauth2` (authorization code with
            PKCE), all three: the address for signing in, the client, and the S256 challenge.
        code_challenge_method: `S256`.
        redirect_uri: Where the provider sends the user back to, if the tool decides that.
        key: The public key (JWK, P-256) of this request, made when the tool asks.
        request_id, context_id: The request to which the encrypted answer is bound.

    Raises:
        ValueRefused: `oauth2` without its three fields, or a field of another type; `path` names
            it.
    """

    type: AuthType | Literal["oauth2", "api-key", "pat", "password", "custom"]
    provider: str = ""
    scopes: Sequence[str] = ()
    authorization_endpoint: str | None = None
    client_id: str | None = None
    code_challenge: str | None = None
    code_challenge_method: str | None = None
    redirect_uri: str | None = None
    key: Mapping[str, Any] | None = None
    request_id: str | None = None
    context_id: str | None = None

    def __post_init__(self) -> None:
        if self.type not in tuple(AuthType):
            kinds = ", ".join(repr(kind.value) for kind in AuthType)
            raise ValueRefused(f"AuthRequest.type must be one of {kinds}", path="/type")
        object.__setattr__(self, "type", AuthType(self.type))
        several = isinstance(self.scopes, (list, tuple, set, frozenset))
        if not several or not all(isinstance(scope, str) for scope in self.scopes):
            raise ValueRefused("AuthRequest.scopes takes a list of texts", path="/scopes")
        object.__setattr__(self, "scopes", tuple(self.scopes))
        for name in ("provider", *_TEXTS):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueRefused(f"AuthRequest.{name} takes text", path=f"/{name}")
        if self.key is not None and not isinstance(self.key, Mapping):
            raise ValueRefused("AuthRequest.key takes a public key as a JWK object", path="/key")
        if self.type is AuthType.OAUTH2:
            self._check_oauth2()

    def _check_oauth2(self) -> None:
        for name in ("authorization_endpoint", "client_id", "code_challenge"):
            if not getattr(self, name):
                raise ValueRefused(
                    f"AuthRequest.{name} is missing: oauth2 needs authorization_endpoint, client_id"
                    " and code_challenge (looopy.auth.Pkce makes one)",
                    path=f"/{name}",
                )
        if self.code_challenge_method is None:
            object.__setattr__(self, "code_challenge_method", "S256")
        if self.code_challenge_method != "S256":
            raise ValueRefused(
                "AuthRequest.code_challenge_method must be 'S256'", path="/code_challenge_method"
            )
        if not str(self.authorization_endpoint).startswith(("https://", *_LOOPBACK)):
            raise ValueRefused(
                "AuthRequest.authorization_endpoint must begin with https://",
                path="/authorization_endpoint",
            )


_TEXTS = (
    *("authorization_endpoint", "client_id", "code_challenge", "code_challenge_method"),
    *("redirect_uri", "request_id", "context_id"),
)
_LOOPBACK = ("http://127.0.0.1", "http://localhost")


def auth_to_json(request: AuthRequest) -> dict[str, Any]:
    """The request as a JSON object, without unset fields."""
    found = {field.name: getattr(request, field.name) for field in fields(request)}
    found["type"] = AuthType(request.type).value
    found["scopes"] = list(request.scopes)
    return {name: value for name, value in found.items() if value not in (None, "", [])}
