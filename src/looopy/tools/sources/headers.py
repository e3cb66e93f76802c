"""
Headers of requests to servers of tools, made from the credentials of the turn.

They are made for each use and never stored. Their secrets are redacted from the server's texts.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from looopy.auth.redaction import Redactor
from looopy.auth.secret_forms import names_a_secret
from looopy.types.context import AuthContext

HeadersOf: TypeAlias = Callable[
    [AuthContext | None], Mapping[str, str] | Awaitable[Mapping[str, str]]
]
Headers: TypeAlias = Mapping[str, str] | HeadersOf


class HeaderKeys:
    """
    Keys for what a server returned to requests with certain headers.

    A key is a digest under a secret of this object. It reveals nothing about the headers, and is
    worthless elsewhere.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def key_of(self, headers: Mapping[str, str] | None) -> bytes:
        """The key of *headers*; the order, and the case of names, do not count."""
        if headers is None:
            return b""
        text = json.dumps(sorted((name.lower(), value) for name, value in headers.items()))
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=32).digest()


def redactor_of(*named: Mapping[str, str] | None) -> Redactor:
    """A redactor of the values that are secret by their names."""
    redactor = Redactor()
    for pairs in named:
        for name, value in (pairs or {}).items():
            if names_a_secret(name):
                redactor.add(value)
                redactor.add(value.partition(" ")[2])  # `Bearer TOKEN`
    return redactor


def origin_of(url: str) -> tuple[str, str, int | None]:
    """
    Scheme, host and port of *url*, in the form for comparison.

    Raises:
        ValueError: It is not an address, such as a port of 99999 or half an IPv6 address.
    """
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default
