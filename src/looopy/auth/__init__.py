"""
Credentials for tools that ask for them: PKCE, and answers that only the asking side can read.

A tool asks with `context.ask(..., auth=AuthRequest(...))`. The request carries a public key made
for it alone; `encrypt_credential` is what the user's side does with it, in Python. Encrypting needs
the extra `auth`; the helpers for PKCE do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.auth.pkce import (
        Pkce,
        authorization_url,
        parse_callback,
        token_request_fields,
    )
    from looopy.auth.sealing import KeyRing, check_claims, encrypt_credential
    from looopy.types.auth import AuthRequest, AuthType

_HOME = {
    "AuthRequest": "looopy.types.auth",
    "AuthType": "looopy.types.auth",
    "authorization_url": "looopy.auth.pkce",
    "check_claims": "looopy.auth.sealing",
    "encrypt_credential": "looopy.auth.sealing",
    "KeyRing": "looopy.auth.sealing",
    "parse_callback": "looopy.auth.pkce",
    "Pkce": "looopy.auth.pkce",
    "token_request_fields": "looopy.auth.pkce",
}

__all__ = [
    "authorization_url",
    "AuthRequest",
    "AuthType",
    "check_claims",
    "encrypt_credential",
    "KeyRing",
    "parse_callback",
    "Pkce",
    "token_request_fields",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
