"""PKCE: verifier, challenge, addresses and forms, as RFC 7636 has them."""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from looopy.auth import (
    AuthRequest,
    AuthType,
    Pkce,
    authorization_url,
    parse_callback,
    token_request_fields,
)
from looopy.errors import ValueRefused
from looopy.types.auth import auth_to_json

OAUTH = {
    "type": "oauth2",
    "authorization_endpoint": "https://id.example/authorize",
    "client_id": "c1",
    "code_challenge": "abc",
}


def test_a_verifier_is_32_bytes_and_its_challenge_their_hash():
    """Each one another; base64url without padding; the verifier is in no repr."""
    one, two = Pkce(), Pkce()
    assert one.verifier != two.verifier
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", one.verifier)
    assert len(base64.urlsafe_b64decode(one.verifier + "=")) == 32
    digest = hashlib.sha256(one.verifier.encode()).digest()
    assert base64.urlsafe_b64decode(one.challenge + "=") == digest
    assert one.verifier not in repr(one)


def test_the_challenge_is_that_of_the_rfc():
    """RFC 7636, appendix B."""
    pkce = Pkce("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert pkce.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_the_address_has_every_requested_parameter():
    """Scopes joined by spaces, a state of its own, what the endpoint had before."""
    url, state = authorization_url(
        "https://id.example/authorize?tenant=a",
        client_id="c 1",
        redirect_uri="https://app.example/back?x=1",
        code_challenge="abc",
        scopes=["read", "write:all"],
        prompt="consent",
        extra={"audience": "api"},
    )
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc, parts.path) == ("https", "id.example", "/authorize")
    assert {name: value for name, [value] in parse_qs(parts.query).items()} == {
        "tenant": "a",
        "response_type": "code",
        "client_id": "c 1",
        "redirect_uri": "https://app.example/back?x=1",
        "code_challenge": "abc",
        "code_challenge_method": "S256",
        "state": state,
        "scope": "read write:all",
        "prompt": "consent",
        "audience": "api",
    }
    assert re.fullmatch(r"[0-9a-f-]{36}", state)


def test_a_given_state_is_kept_unchanged():
    """Neither scope nor prompt."""
    url, state = authorization_url(
        "https://id.example/a", client_id="c", redirect_uri="r", code_challenge="x", state="s"
    )
    assert state == "s"
    assert "scope" not in url
    assert "prompt" not in url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://app.example/back?code=c1&state=s1", ("c1", "s1")),
        ("https://app.example/back?state=s1&code=c%201&x=2", ("c 1", "s1")),
        ("https://app.example/back?code=c1", None),
        ("https://app.example/back?state=s1", None),
        ("https://app.example/back?code=&state=s1", None),
        ("https://app.example/back?error=access_denied&state=s1", None),
        ("https://[no-address/back?code=c1&state=s1", None),
        ("", None),
    ],
)
def test_a_callback_has_code_and_state_or_is_none(url, found):
    """An address that is none counts as one without."""
    assert parse_callback(url) == found


def test_the_form_for_the_token_endpoint_is_complete():
    """With the verifier that the challenge was of."""
    fields = {"code": "c", "verifier": "v", "client_id": "i", "redirect_uri": "r"}
    expected = {
        "grant_type": "authorization_code",
        "code": "c",
        "code_verifier": "v",
        "client_id": "i",
        "redirect_uri": "r",
    }
    assert token_request_fields(**fields) == expected
    with_secret = token_request_fields(**fields, client_secret="s")
    assert with_secret == expected | {"client_secret": "s"}


@pytest.mark.parametrize("missing", ["authorization_endpoint", "client_id", "code_challenge"])
def test_oauth2_without_one_of_its_fields_is_refused(missing):
    """The place is named."""
    with pytest.raises(ValueRefused) as refused:
        AuthRequest(**{**OAUTH, missing: ""})
    assert refused.value.path == f"/{missing}"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"type": "guess"}, "/type"),
        ({"scopes": "read"}, "/scopes"),
        ({"scopes": [1]}, "/scopes"),
        ({"provider": 1}, "/provider"),
        ({"code_challenge_method": "plain"}, "/code_challenge_method"),
        ({"authorization_endpoint": "http://id.example/a"}, "/authorization_endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "/authorization_endpoint"),
    ],
)
def test_an_invalid_request_is_refused(change, path):
    """The place is named."""
    with pytest.raises(ValueRefused) as refused:
        AuthRequest(**{**OAUTH, **change})
    assert refused.value.path == path


@pytest.mark.parametrize("kind", list(AuthType))
def test_a_request_is_json_and_back(kind):
    """Nothing that it does not say; the method is S256."""
    request = AuthRequest(**{**OAUTH, "type": kind}, scopes=["read"], key={"kty": "EC"})
    data = auth_to_json(request)
    assert AuthRequest(**data) == request
    assert "redirect_uri" not in data
    assert (data.get("code_challenge_method") == "S256") == (kind is AuthType.OAUTH2)
