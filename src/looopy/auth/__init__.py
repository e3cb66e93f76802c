"""
Secrets: keep them out of what a turn stores and shows, and let a tool ask a person for one.

- `redaction` replaces every credential of a turn by `[redacted]` in results, events, errors and
  logs, before they are committed, also where two pieces of a stream meet; `secret_forms`
  lists the encodings to search for.
- `sealing` encrypts a person's answer to a key made for one request, and an application's own
  secrets for its database; `pkce` helps with an OAuth sign-in. A tool asks with
  `context.ask(..., auth=AuthRequest(...))`, and the user's side answers with `encrypt_credential`.

The room opens no connection and stores nothing. It may import `types` and `errors`; encrypting
needs the extra `auth`, the helpers for PKCE do not. Exports: the names in `__all__`, loaded on
first use. Read `redaction`, `secret_forms`, `sealing`, `pkce`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.auth.pkce import Pkce as Pkce
    from looopy.auth.pkce import authorization_url as authorization_url
    from looopy.auth.pkce import parse_callback as parse_callback
    from looopy.auth.pkce import token_request_fields as token_request_fields
    from looopy.auth.sealing import KeyRing as KeyRing
    from looopy.auth.sealing import Sealer as Sealer
    from looopy.auth.sealing import check_claims as check_claims
    from looopy.auth.sealing import encrypt_credential as encrypt_credential
    from looopy.types.auth import AuthRequest as AuthRequest
    from looopy.types.auth import AuthType as AuthType

_export(
    globals(),
    {
        ".pkce": ("Pkce", "authorization_url", "parse_callback", "token_request_fields"),
        ".sealing": ("KeyRing", "Sealer", "check_claims", "encrypt_credential"),
        "looopy.types.auth": ("AuthRequest", "AuthType"),
    },
)
