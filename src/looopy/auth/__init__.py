"""
Secrets: keep them out of what a turn stores and shows, and let a tool ask a person for one.

- `redaction` replaces every credential of a turn by `[redacted]` in results, events, errors and
  logs, before they are committed; `secret_forms` lists the encodings to search for.
- `sealing` encrypts a person's answer to a key made for one request; `pkce` helps with an OAuth
  sign-in. A tool asks with `context.ask(..., auth=AuthRequest(...))`, and the user's side answers
  with `encrypt_credential`.

The room opens no connection and stores nothing. It may import `types` and `errors`; encrypting
needs the extra `auth`, the helpers for PKCE do not. Exports: the names in `__all__`, loaded on
first use. Read `redaction`, `secret_forms`, `sealing`, `pkce`.
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
