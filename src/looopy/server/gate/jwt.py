"""
Identifies the sender of a request by an identity provider's bearer JWT, as of OpenID Connect.

The configuration chooses the algorithms, never the token, and all of them are asymmetric: no
public key can serve as a secret, and `none` is refused. The provider's keys are fetched when they
are needed, and again when a token names an unknown key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request

from looopy.errors import ConfigurationError, missing_extra
from looopy.server.gate.auth import bearer_token
from looopy.server.problems import Problem
from looopy.types.context import AuthContext

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

_logger = logging.getLogger("looopy")
ASYMMETRIC: Final = frozenset(
    {
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
    }
)
_LONGEST_TOKEN = 16 * 1024
_LARGEST_KEYS = 1024 * 1024
_FETCH_S = 5.0
_RETRY_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class JwtBearer:
    """
    Authenticate by `Authorization: Bearer JWT`.

    The caller's credentials are `{"token": ...}`, its scopes come from the claim `scope` or `scp`,
    and its tool calls end with the token's time.

    Args:
        issuer: The `iss` that a token must have.
        audience: The `aud` that it must have, or have among others: this service.
        jwks: The address of the provider's keys, or the keys themselves, as a JWK set.
        algorithms: Those that a signature may have.
        leeway_s: How far the provider's clock may differ.
        actor_claim: The claim that names the actor.
        tenant_claim: The claim that names the tenant; a token without it is refused. `None`: all
            callers belong to the host's tenant.
        refresh_s: The keys are fetched again after so many seconds.
        again_s: An unknown key has them fetched again, at most once in so many seconds.
        clock: Seconds since 1970.

    Raises:
        ConfigurationError: An argument is unusable: an algorithm that is `none` or symmetric, an
            address that is not https.
        MissingExtra: `joserfc` is not installed.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        jwks: str | Mapping[str, Any],
        algorithms: Sequence[str] = ("RS256", "ES256"),
        leeway_s: float = 60.0,
        actor_claim: str = "sub",
        tenant_claim: str | None = None,
        refresh_s: float = 600.0,
        again_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not issuer or not audience:
            raise ConfigurationError("JwtBearer needs an issuer and an audience")
        if isinstance(algorithms, str) or not algorithms or not set(algorithms) <= ASYMMETRIC:
            raise ConfigurationError(
                f"JwtBearer.algorithms takes some of {', '.join(sorted(ASYMMETRIC))}"
            )
        _need_joserfc()
        self._issuer, self._audience = issuer, audience
        self._algorithms = tuple(algorithms)
        self._leeway_s = leeway_s
        self._actor_claim, self._tenant_claim = actor_claim, tenant_claim
        self._refresh_s, self._again_s = refresh_s, again_s
        self._clock = clock
        self._keys: KeySet | None = None
        self._url: str | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_at = self._tried_at = -math.inf
        if isinstance(jwks, str):
            self._url = _checked(jwks)
        else:
            self._keys = _key_set(jwks)

    async def __call__(self, request: Request) -> AuthContext | None:
        """The caller; `None` if the token is missing, malformed, expired or not for this server."""
        token = bearer_token(request)
        if token is None or len(token) > _LONGEST_TOKEN:
            return None
        kid = _kid_of(token)
        keys = await self._keys_for(kid)
        claims = self._claims(token, keys)
        return None if claims is None else self._caller(token, claims)

    # --- the keys ---

    async def _keys_for(self, kid: object) -> KeySet:
        """The keys, fetched again if they are old or *kid* is not among them."""
        if self._url is not None:
            known, fetching = self._has(kid), self._fetching
            old = time.monotonic() - self._fetched_at >= self._refresh_s
            if fetching is None and (old or not known) and self._may_fetch():
                fetching = self._fetching = asyncio.create_task(self._fetch(self._url))
                await asyncio.shield(fetching)
            elif fetching is not None and not known:
                await asyncio.shield(fetching)  # it may bring the key
        if self._keys is None:
            raise Problem(
                "the keys of the identity provider cannot be fetched now",
                status=503,
                code="keys_unavailable",
                headers={"Retry-After": f"{_RETRY_S:g}"},
            )
        return self._keys

    def _has(self, kid: object) -> bool:
        return self._keys is not None and (kid is None or any(k.kid == kid for k in self._keys))

    def _may_fetch(self) -> bool:
        """True if the last fetch is long enough ago; without any key, sooner."""
        pause = self._again_s if self._keys is not None else min(self._again_s, _RETRY_S)
        return time.monotonic() - self._tried_at >= pause

    async def _fetch(self, url: str) -> None:
        self._tried_at = time.monotonic()
        try:
            self._keys = _key_set(json.loads(await asyncio.to_thread(_download, url)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the keys of before still count
            _logger.warning("the keys at %s cannot be fetched: %s", url, type(error).__name__)
        else:
            self._fetched_at = self._tried_at
        finally:
            self._fetching = None

    # --- the token ---

    def _claims(self, token: str, keys: KeySet) -> Mapping[str, Any] | None:
        """The claims of a token whose signature, issuer, audience and times are right."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            decoded = jwt.decode(token, keys, algorithms=self._algorithms)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            _logger.debug("a token was refused: %s", type(error).__name__)
            return None
        claims, now, leeway = decoded.claims, self._clock(), self._leeway_s
        audience = claims.get("aud")
        wanted = audience if isinstance(audience, list) else [audience]
        expires = _moment(claims.get("exp"))
        begins = _moment(claims.get("nbf", 0))
        issued = _moment(claims.get("iat", 0))
        if expires is None or begins is None or issued is None:
            return None
        in_time = max(begins, issued) <= now + leeway and expires + leeway > now
        meant = claims.get("iss") == self._issuer and self._audience in wanted
        return claims if in_time and meant else None

    def _caller(self, token: str, claims: Mapping[str, Any]) -> AuthContext | None:
        actor = claims.get(self._actor_claim)
        tenant = None if self._tenant_claim is None else claims.get(self._tenant_claim)
        if not isinstance(actor, str) or not actor:
            return None
        if self._tenant_claim is not None and (not isinstance(tenant, str) or not tenant):
            return None
        try:
            return AuthContext(
                actor,
                tenant_id=tenant,
                credentials={"token": token},
                scopes=_scopes(claims),
                expires_at=datetime.fromtimestamp(claims["exp"] + self._leeway_s, UTC),
            )
        except (ConfigurationError, OverflowError, ValueError, OSError):
            return None  # a name or a time that cannot be stored

    def __repr__(self) -> str:
        return f"<JwtBearer {self._issuer}>"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: the operator of this server chose the address."""


def _download(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - checked
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=_FETCH_S) as answer:
        found: bytes = answer.read(_LARGEST_KEYS + 1)
    if len(found) > _LARGEST_KEYS:
        raise ValueError("the key set is too large")
    return found


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return url
    raise ConfigurationError("JwtBearer.jwks takes an https address, or a JWK set")


def _key_set(found: Any) -> KeySet:
    """The public keys for signatures; a key for something else does not count."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    keys = found.get("keys") if isinstance(found, Mapping) else None
    if not isinstance(keys, (list, tuple)):
        raise ConfigurationError('JwtBearer.jwks takes a JWK set: {"keys": [...]}')
    usable = [
        key
        for key in keys
        if isinstance(key, Mapping)
        and key.get("use", "sig") == "sig"
        and key.get("kty") in ("RSA", "EC", "OKP")
    ]
    try:
        return KeySet.import_key_set({"keys": [dict(key) for key in usable]})
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the JWK set is unusable: {type(error).__name__}") from error


def _kid_of(token: str) -> object:
    """The key that a token names, before anything of it is believed."""
    from base64 import urlsafe_b64decode

    try:
        part = token.partition(".")[0]
        header = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return None
    return header.get("kid") if isinstance(header, dict) else None


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        moment = float(value)
    except OverflowError:
        return None
    return moment if math.isfinite(moment) else None


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    found = claims.get("scope", claims.get("scp"))
    if isinstance(found, str):
        return found.split()
    several = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return list(found) if several and found else []


def _need_joserfc() -> None:
    try:
        import joserfc  # noqa: F401 - to see that it is there
    except ImportError as error:
        raise missing_extra("JwtBearer needs joserfc", "auth") from error
