"""
OAuth 2.0 with PKCE (RFC 7636), as far as both sides need it: nothing here opens a connection.

The tool makes a `Pkce`, asks with its challenge and keeps the verifier in `NeedsInput.state`. The
user's side opens the address of `authorization_url`, receives the callback, and answers with the
code. The tool sends `token_request_fields` to the provider.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

_VERIFIER_BYTES = 32


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Pkce:
    """
    A verifier, and the challenge that is shown for it.

    Attributes:
        verifier: 32 random bytes, base64url; stays with the tool.
        challenge: Its SHA-256, base64url; goes into the request.
    """

    verifier: str = field(
        default_factory=lambda: _base64url(secrets.token_bytes(_VERIFIER_BYTES)), repr=False
    )
    method: str = "S256"

    @property
    def challenge(self) -> str:
        """The S256 challenge of the verifier."""
        return _base64url(hashlib.sha256(self.verifier.encode("ascii")).digest())


class SignIn(NamedTuple):
    """Where to send the user, and the state that has to come back."""

    url: str
    state: str


def authorization_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    code_challenge: str,
    scopes: Sequence[str] = (),
    state: str | None = None,
    prompt: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> SignIn:
    """
    The address at which the user signs in.

    Args:
        endpoint: The provider's; its query is kept.
        state: Compared in the callback; a random one by default.
        prompt: Such as `consent` or `login`.
        extra: Further parameters for this provider.
    """
    state = state or str(uuid.uuid4())
    query = {
        **(extra or {}),
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "code_challenge": code_challenge,
        "code_challenge_method": "S256",
        "state": state,
    }
    if scopes:
        query["scope"] = " ".join(scopes)
    if prompt:
        query["prompt"] = prompt
    parts = urlsplit(endpoint)
    joined = "&".join(part for part in (parts.query, urlencode(query)) if part)
    return SignIn(urlunsplit((parts.scheme, parts.netloc, parts.path, joined, "")), state)


class Callback(NamedTuple):
    """The parameters with which a provider sends the user back."""

    code: str
    state: str


def parse_callback(url: str) -> Callback | None:
    """Code and state of the address that the user came back to; `None` if one is missing."""
    try:
        query = parse_qs(urlsplit(url).query)
    except ValueError:
        return None
    code, state = query.get("code", [""])[0], query.get("state", [""])[0]
    return Callback(code, state) if code and state else None


def token_request_fields(
    *,
    code: str,
    verifier: str,
    client_id: str,
    redirect_uri: str,
    client_secret: str | None = None,
) -> dict[str, str]:
    """The form that is posted to the provider's token endpoint for a code."""
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "code_verifier": verifier,
        "client_id": client_id,
        "redirect_uri": redirect_uri,
    }
    return fields | ({"client_secret": client_secret} if client_secret else {})
