"""
Credentials that travel encrypted: to a key made for one request, which lives for 15 minutes.

The answer is a compact JWE (RFC 7516), ECDH-ES with A256GCM. Its protected header names the request
and the context it is for, the time it was made and the time it expires. The private key is never
stored in plain. If the application has a secret, the key is stored encrypted beside the request,
and any process with the secret can read the answer. Without a secret the key stays in this process,
and after a restart the tool asks again.

A `Sealer` encrypts what the application itself keeps in its database and reads again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from looopy.errors import ConfigurationError, ValueRefused, missing_extra
from looopy.types.storable import MAX_DEPTH, is_within_levels

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OctKey

    from looopy.types.auth import AuthRequest

KEY_LIFE_S = 15 * 60
CREDENTIAL_LIFE_S = 60 * 60
_SKEW_S = 60  # how far a clock of the user's side may be ahead
_LEAST_SECRET = 32
_ALGORITHMS = ["ECDH-ES", "A256GCM", "dir"]


class KeyLost(Exception):
    """The private key of a request is lost. Never for a user: the tool asks again."""


def check_claims(
    claims: Mapping[str, Any], *, request_id: str, context_id: str, now: float | None = None
) -> None:
    """
    See that an encrypted answer is for this request of this context, now.

    Raises:
        ValueRefused: It is for another, has expired (at exactly `exp` too), was made more than 60 s
            in the future, or does not say all of that. The message shows nothing of it.
    """
    now = time.time() if now is None else now
    for name in ("iat", "exp"):
        value = claims.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
            raise ValueRefused(f"the encrypted credential has no {name}", path=f"/{name}")
    if claims.get("request_id") != request_id:
        raise ValueRefused(
            "the encrypted credential is for another request: encrypt it to the key of this one",
            path="/request_id",
        )
    if claims.get("context_id") != context_id:
        raise ValueRefused("the encrypted credential is for another context", path="/context_id")
    if claims["exp"] <= now:
        raise ValueRefused("the encrypted credential has expired: encrypt it again", path="/exp")
    if claims["iat"] > now + _SKEW_S:
        raise ValueRefused(
            "the encrypted credential was made in the future: set the clock right", path="/iat"
        )


def encrypt_credential(
    credential: Any,
    request: AuthRequest,
    *,
    life_s: float = CREDENTIAL_LIFE_S,
    now: float | None = None,
) -> str:
    """
    The answer to *request*: the credential, readable only by the side that asked.

    Args:
        credential: Text, or any JSON value.
        request: `PendingRequest.auth`.
        life_s: Seconds after which it is refused.

    Raises:
        ValueRefused: The request has no key.
        MissingExtra: The extra `auth` is not installed.
    """
    if request.key is None:
        raise ValueRefused("this request has no key: take PendingRequest.auth", path="/key")
    made = int(time.time() if now is None else now)
    header = {
        "alg": "ECDH-ES",
        "enc": "A256GCM",
        "request_id": request.request_id,
        "context_id": request.context_id,
        "iat": made,
        "exp": made + int(life_s),
    }
    jose = _jose()
    key = jose.ECKey.import_key(dict(request.key))
    return jose.encrypt(header, json.dumps(credential), key)


class KeyRing:
    """
    The private keys of the requests that wait.

    Args:
        secret: At least 32 bytes or characters that every process of the application has, and the
            database has not. `None`: keys stay in this process.

    Raises:
        ConfigurationError: The secret is too short.
    """

    def __init__(self, secret: str | bytes | None = None) -> None:
        self._wrapping: bytes | None = None
        self._kept: dict[tuple[str, str], tuple[Mapping[str, Any], float]] = {}
        if secret is not None:
            self._wrapping = _derived(secret, b"looopy.auth.KeyRing", "auth_key")

    def __repr__(self) -> str:
        return "<KeyRing>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyRing holds private keys: it is never copied or stored")

    def issue(
        self, request_id: str, context_id: str, *, now: float | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """
        Make a key for one request.

        Returns:
            The public key as a JWK, and the private one encrypted, to be stored with the request;
            `None` if it stays here.

        Raises:
            MissingExtra: The extra `auth` is not installed.
        """
        now = time.time() if now is None else now
        jose = _jose()
        key = jose.ECKey.generate_key("P-256", {"kid": request_id, "alg": "ECDH-ES", "use": "enc"})
        public: dict[str, Any] = dict(key.as_dict(private=False))
        private: dict[str, Any] = dict(key.as_dict(private=True))
        self._kept = {place: kept for place, kept in self._kept.items() if kept[1] > now}
        if self._wrapping is None:
            self._kept[context_id, request_id] = private, now + KEY_LIFE_S
            return public, None
        header = {
            "alg": "dir",
            "enc": "A256GCM",
            "request_id": request_id,
            "context_id": context_id,
            "iat": int(now),
            "exp": now + KEY_LIFE_S,
        }
        return public, jose.encrypt(header, json.dumps(private), self._wrapping_key(jose))

    def open(
        self,
        value: Any,
        *,
        request_id: str,
        context_id: str,
        sealed: str | None = None,
        now: float | None = None,
    ) -> Any:
        """
        The credential that *value* holds.

        Args:
            sealed: The private key as `issue` has returned it.

        Raises:
            KeyLost: The key is in another process, or over.
            ValueRefused: It is not encrypted to this request's key, or its claims do not hold.
        """
        now = time.time() if now is None else now
        jose = _jose()
        private = self._private(jose, request_id, context_id, sealed, now)
        if not isinstance(value, str):
            raise _unreadable()
        found = jose.read(value, jose.ECKey.import_key(dict(private)))
        if found is None or found[1].get("alg") != "ECDH-ES":
            raise _unreadable()
        credential, claims = found
        check_claims(claims, request_id=request_id, context_id=context_id, now=now)
        return credential

    def _private(
        self, jose: _Jose, request_id: str, context_id: str, sealed: str | None, now: float
    ) -> Mapping[str, Any]:
        if sealed is None:
            private, ends = self._kept.get((context_id, request_id), ({}, 0.0))
            if ends <= now:
                raise KeyLost
            return private
        if self._wrapping is None:
            raise KeyLost
        found = jose.read(sealed, self._wrapping_key(jose))
        if found is None:  # the secret has changed since
            raise KeyLost
        try:
            check_claims(found[1], request_id=request_id, context_id=context_id, now=now)
        except ValueRefused:
            raise KeyLost from None
        kept: dict[str, Any] = found[0]
        return kept

    def _wrapping_key(self, jose: _Jose) -> OctKey:
        return jose.OctKey.import_key(self._wrapping or b"")


class Sealer:
    """
    Encrypts values of this application's own for its database, such as the token of a receiver.

    Args:
        secret: Same as for a `KeyRing`.
        option: The name of the option that takes it, for errors.

    Raises:
        ConfigurationError: The secret is too short.
        MissingExtra: The extra `auth` is not installed.
    """

    def __init__(self, secret: str | bytes, *, option: str) -> None:
        self._jose = _jose()
        raw = _derived(secret, b"looopy.auth.Sealer", option)
        self._key = self._jose.OctKey.import_key(raw)

    def __repr__(self) -> str:
        return "<Sealer>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sealer holds a key: it is never copied or stored")

    def seal(self, value: Any, *, place: str) -> str:
        """A JSON value as a compact JWE, which opens at *place* alone."""
        header = {"alg": "dir", "enc": "A256GCM", "place": place}
        return self._jose.encrypt(header, json.dumps(value), self._key)

    def open(self, sealed: str, *, place: str) -> Any:
        """
        The value that was sealed for *place*.

        Raises:
            KeyLost: The secret has changed since, or the text belongs to another place.
        """
        found = self._jose.read(sealed, self._key)
        if found is None or found[1].get("place") != place:
            raise KeyLost
        return found[0]


def signature(secret: str | bytes, data: bytes, *, option: str) -> str:
    """
    HMAC-SHA-256 of *data* as hex digits, under a key derived from *secret* for signatures alone.

    Raises:
        ConfigurationError: The secret is too short; the text names *option*.
    """
    import hmac  # as below

    return hmac.digest(_derived(secret, b"looopy.auth.signature", option), data, "sha256").hex()


def _derived(secret: str | bytes, purpose: bytes, option: str) -> bytes:
    """A key of 32 bytes for one purpose."""
    raw = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(raw, bytes) or len(raw) < _LEAST_SECRET:
        raise ConfigurationError(
            f"{option} takes a secret of at least {_LEAST_SECRET} bytes, such as"
            " secrets.token_urlsafe(32), the same in every process"
        )
    import hmac  # here: who gives no secret does not load it

    return hmac.digest(purpose, raw, "sha256")


def _unreadable() -> ValueRefused:
    return ValueRefused(
        "this is not a credential that was encrypted to the key of this request (a compact JWE,"
        " ECDH-ES with A256GCM; looopy.auth.encrypt_credential makes one)",
        path="",
    )


class _Jose:
    """The parts of joserfc that are used here."""

    def __init__(self) -> None:
        from joserfc.errors import JoseError
        from joserfc.jwe import JWERegistry, decrypt_compact, encrypt_compact
        from joserfc.jwk import ECKey, OctKey

        self.ECKey: type[ECKey] = ECKey
        self.OctKey: type[OctKey] = OctKey
        self.errors: tuple[type[Exception], ...] = (
            *(JoseError, ValueError, TypeError, KeyError),
            RecursionError,  # JSON that is nested without end, in the header or inside
        )
        self._registry: Callable[[], JWERegistry] = lambda: JWERegistry(
            algorithms=_ALGORITHMS, strict_check_header=False
        )
        self._encrypt, self._decrypt = encrypt_compact, decrypt_compact

    def encrypt(self, header: dict[str, Any], text: str, key: Any) -> str:
        return self._encrypt(header, text, key, registry=self._registry())

    def read(self, value: str, key: Any) -> tuple[Any, Mapping[str, Any]] | None:
        """The JSON and header of *value*; `None` if it is invalid: an error would show it."""
        try:
            found = self._decrypt(value, key, registry=self._registry())
            read = json.loads(found.plaintext or b""), found.protected
        except self.errors:
            return None
        return read if all(is_within_levels(part, MAX_DEPTH) for part in read) else None


def _jose() -> _Jose:
    try:
        return _Jose()
    except ImportError:
        raise missing_extra("encrypted credentials need the joserfc package", "auth") from None
