"""An answer is readable by who asked, for one request of one context, for a while."""

from __future__ import annotations

import base64
import json
import pickle
import sys

import pytest
from joserfc import jwe
from joserfc.jwk import ECKey, OctKey

from looopy.auth import AuthRequest, KeyRing, check_claims, encrypt_credential
from looopy.auth.sealing import KEY_LIFE_S, KeyLost
from looopy.errors import ConfigurationError, MissingExtra, ValueRefused

NOW = 1_800_000_000.0
SECRET = "0123456789abcdef" * 2
CLAIMS = {"request_id": "r", "context_id": "c", "iat": NOW, "exp": NOW + 10}


def asked(ring, request_id="r", context_id="c", now=NOW):
    """A request with a key of *ring*, and the sealed private key."""
    public, sealed = ring.issue(request_id, context_id, now=now)
    request = AuthRequest(type="api-key", key=public, request_id=request_id, context_id=context_id)
    return request, sealed


def opened(ring, value, sealed=None, request_id="r", context_id="c", now=NOW):
    """What *ring* reads."""
    return ring.open(value, request_id=request_id, context_id=context_id, sealed=sealed, now=now)


@pytest.mark.parametrize("secret", [None, SECRET, SECRET.encode()])
@pytest.mark.parametrize("credential", ["t0ken", {"user": "eva", "password": "p"}, "", "ä\u2028"])
def test_an_encrypted_credential_is_decrypted(secret, credential):
    """Text and JSON; another ciphertext each time; a public key without its private part."""
    ring = KeyRing(secret)
    request, sealed = asked(ring)
    assert set(request.key) >= {"kty", "crv", "x", "y", "kid"}
    assert "d" not in request.key
    one = encrypt_credential(credential, request, now=NOW)
    two = encrypt_credential(credential, request, now=NOW)
    assert one != two
    header = json.loads(base64.urlsafe_b64decode(one.split(".")[0] + "=="))
    assert {name: header[name] for name in ("alg", "enc", "request_id", "context_id")} == {
        "alg": "ECDH-ES",
        "enc": "A256GCM",
        "request_id": "r",
        "context_id": "c",
    }
    assert header["exp"] - header["iat"] == 3600
    assert opened(ring, one, sealed) == opened(ring, two, sealed) == credential


def test_another_process_reads_with_the_same_secret_only():
    """The sealed key holds no private part in plain, and is bound to its request and context."""
    ring = KeyRing(SECRET)
    request, sealed = asked(ring)
    value = encrypt_credential("t0ken", request, now=NOW)
    assert opened(KeyRing(SECRET), value, sealed) == "t0ken"
    for other in (KeyRing(SECRET[::-1]), KeyRing()):
        with pytest.raises(KeyLost):
            opened(other, value, sealed)
    for place in ({"request_id": "r2"}, {"context_id": "c2"}):
        with pytest.raises(KeyLost):
            opened(KeyRing(SECRET), value, sealed, **place)


def test_a_key_that_was_kept_here_is_nowhere_else():
    """Without a secret nothing is given out to be stored."""
    ring = KeyRing()
    request, sealed = asked(ring)
    value = encrypt_credential("t0ken", request, now=NOW)
    assert sealed is None
    assert opened(ring, value) == "t0ken"
    with pytest.raises(KeyLost):
        opened(KeyRing(), value)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_key_lives_for_15_minutes(secret):
    """Its last moment is over too."""
    ring = KeyRing(secret)
    request, sealed = asked(ring)
    value = encrypt_credential("t0ken", request, now=NOW)
    assert opened(ring, value, sealed, now=NOW + KEY_LIFE_S - 1) == "t0ken"
    with pytest.raises(KeyLost):
        opened(ring, value, sealed, now=NOW + KEY_LIFE_S)


def test_keys_that_are_over_are_let_go():
    """A ring does not grow."""
    ring = KeyRing()
    for number in range(5):
        asked(ring, f"r{number}", now=NOW + number * KEY_LIFE_S)
    assert len(ring._kept) == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"exp": NOW}, "/exp"),
        ({"exp": NOW - 1}, "/exp"),
        ({"iat": NOW + 120}, "/iat"),
        ({"iat": NOW + 61}, "/iat"),
        ({"exp": None}, "/exp"),
        ({"exp": "soon"}, "/exp"),
        ({"exp": True}, "/exp"),
        ({"exp": float("nan")}, "/exp"),
        ({"iat": None}, "/iat"),
        ({"request_id": "other"}, "/request_id"),
        ({"request_id": None}, "/request_id"),
        ({"context_id": "other"}, "/context_id"),
        ({"context_id": None}, "/context_id"),
    ],
)
def test_claims_that_do_not_hold_are_refused(change, path):
    """Each one is required; nothing of them is shown."""
    with pytest.raises(ValueRefused) as refused:
        check_claims({**CLAIMS, **change}, request_id="r", context_id="c", now=NOW)
    assert refused.value.path == path
    assert "other" not in refused.value.message.replace("another", "")
    without = {name: value for name, value in CLAIMS.items() if f"/{name}" != path}
    with pytest.raises(ValueRefused):
        check_claims(without, request_id="r", context_id="c", now=NOW)


@pytest.mark.parametrize("ahead", [0, 30, 60])
def test_a_clock_may_be_a_little_ahead(ahead):
    """Up to a minute."""
    claims = {**CLAIMS, "iat": NOW + ahead, "exp": NOW + 100}
    assert check_claims(claims, request_id="r", context_id="c", now=NOW) is None


def encrypted(header, key, text='"t0ken"'):
    """A JWE with this header."""
    registry = jwe.JWERegistry(algorithms=[header["alg"], header["enc"]], strict_check_header=False)
    return jwe.encrypt_compact(header, text, key, registry=registry)


@pytest.mark.parametrize("levels", [65, 500, 100_000])
def test_a_credential_nested_too_deep_is_refused(levels):
    """Inside or in the header: one refusal, and no error of a library that shows what it read."""
    ring = KeyRing(SECRET)
    request, sealed = asked(ring)
    key = ECKey.import_key(dict(request.key))
    good = {"alg": "ECDH-ES", "enc": "A256GCM", **CLAIMS}
    deepest = "[" * 64 + "]" * 64
    assert opened(ring, encrypted(good, key, deepest), sealed) == json.loads(deepest)
    deep = "[" * levels + '"t0ken"' + "]" * levels
    _, *rest = encrypted(good, key).split(".")
    header = base64.urlsafe_b64encode(f'{{"alg":"ECDH-ES","x":{deep}}}'.encode()).rstrip(b"=")
    for value in (encrypted(good, key, deep), ".".join([header.decode(), *rest])):
        with pytest.raises(ValueRefused) as refused:
            opened(ring, value, sealed)
        assert "t0ken" not in refused.value.message
        assert refused.value.__context__ is None


def test_a_credential_with_other_encryption_is_refused():
    """Another key, another method, no JWE, no JSON, a claim that was changed afterwards."""
    ring = KeyRing(SECRET)
    request, sealed = asked(ring)
    key = ECKey.import_key(dict(request.key))
    plain = {"request_id": "r", "context_id": "c", "iat": NOW, "exp": NOW + 10}
    good = {"alg": "ECDH-ES", "enc": "A256GCM", **plain}
    ok = encrypted(good, key)
    assert opened(ring, ok, sealed) == "t0ken"
    head, *rest = ok.split(".")
    changed = json.loads(base64.urlsafe_b64decode(head + "=="))
    changed["exp"] += 1000
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
    for value in (
        encrypted(good, ECKey.generate_key("P-256")),
        encrypted({**good, "enc": "A128CBC-HS256"}, key),
        encrypted({**good, "alg": "ECDH-ES+A256KW"}, key),
        encrypted({**good, "alg": "dir"}, OctKey.generate_key(256)),
        encrypted(good, key, "no json"),
        ".".join([forged, *rest]),
        ok[:-4],
        "t0ken",
        "",
        None,
        3,
        {"token": "t0ken"},
    ):
        with pytest.raises(ValueRefused) as refused:
            opened(ring, value, sealed)
        assert "t0ken" not in refused.value.message
        assert refused.value.__context__ is None
    with pytest.raises(ValueRefused):
        opened(ring, encrypted({**good, "exp": NOW}, key), sealed)


@pytest.mark.parametrize("secret", ["", "short", b"x" * 31, 3])
def test_a_weak_secret_is_refused(secret):
    """At least 32 bytes."""
    with pytest.raises(ConfigurationError, match="at least 32"):
        KeyRing(secret)


def test_a_ring_shows_and_gives_away_nothing():
    """Neither repr nor pickle."""
    ring = KeyRing(SECRET)
    asked(ring)
    assert repr(ring) == "<KeyRing>"
    with pytest.raises(TypeError):
        pickle.dumps(ring)


def test_a_request_without_a_key_cannot_be_answered():
    """It was not asked by a turn."""
    with pytest.raises(ValueRefused):
        encrypt_credential("t", AuthRequest(type="pat"))


def test_a_missing_extra_is_named(monkeypatch):
    """By the command that installs it."""
    monkeypatch.setitem(sys.modules, "joserfc.jwe", None)
    with pytest.raises(MissingExtra) as missing:
        KeyRing().issue("r", "c")
    assert missing.value.extras == ("auth",)
