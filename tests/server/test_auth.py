"""Who sends a request: static tokens, the token of this machine, and tokens of a provider."""

import asyncio
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from starlette.requests import Request
from tests.server.test_api import serving

from looopy.errors import ConfigurationError
from looopy.server.gate.auth import LocalToken, StaticTokens
from looopy.server.gate.jwt import JwtBearer
from looopy.server.problems import Problem

ISSUER, AUDIENCE = "https://id.example.org", "looopy"
ONE = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
TWO = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})


def asks(*headers, client=("127.0.0.1", 5000)):
    """A request with these values of `Authorization`."""
    raw = [(b"authorization", value.encode()) for value in headers]
    return Request({"type": "http", "headers": raw, "client": client})


def token(key=ONE, header=None, **claims):
    """A token that is right, but for *claims*."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 300, "iat": now}
    claims = {name: value for name, value in (good | claims).items() if value is not None}
    return jwt.encode({"alg": "ES256", "kid": key.kid} | (header or {}), claims, key)


def unsigned(header, **claims):
    """A token that nobody has signed."""
    from base64 import urlsafe_b64encode

    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 300} | claims
    parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, good)]
    return b".".join([*parts, b""]).decode()


def bearer(**options):
    """An authenticator with the key `one`."""
    keys = {"keys": [ONE.as_dict(private=False)]}
    return JwtBearer(issuer=ISSUER, audience=AUDIENCE, **{"jwks": keys, **options})


async def test_a_good_token_names_the_caller():
    """With the token for tools, its scopes, and the time when tool calls end."""
    ask = bearer(tenant_claim="org", leeway_s=5)
    expires = int(time.time()) + 100
    said = token(org="acme", scope="read write", exp=expires, aud=["other", AUDIENCE])
    auth = await ask(asks(f"Bearer {said}"))
    assert (auth.actor_id, auth.tenant_id, auth.scopes) == ("ada", "acme", ("read", "write"))
    assert auth.credentials == {"token": said}
    assert auth.expires_at.timestamp() == expires + 5
    assert await ask(asks(f"bearer {said}")) is not auth


async def test_a_clock_may_differ_by_the_leeway():
    """Expired, not yet valid, or issued in the future: within it a token counts."""
    now = time.time()
    for claims, counts in (
        ({"exp": now - 50}, True),
        ({"exp": now - 70}, False),
        ({"nbf": now + 50}, True),
        ({"nbf": now + 70}, False),
        ({"iat": now + 70}, False),
    ):
        auth = await bearer()(asks(f"Bearer {token(**claims)}"))
        assert (auth is not None) is counts, claims


RSA = RSAKey.generate_key(2048, {"kid": "one"})
BAD = {
    "no token": (),
    "no scheme": (token(),),
    "another scheme": (f"Basic {token()}",),
    "two headers": (f"Bearer {token()}", f"Bearer {token()}"),
    "two words": (f"Bearer {token()} x",),
    "no JWT": ("Bearer x",),
    "dots": ("Bearer ..",),
    "cut off": (f"Bearer {token()[:-4]}",),
    "long": ("Bearer " + "a" * 20_000,),
    "long and right": (f"Bearer {token(note='a' * 16_000)}",),
    "deep": ("Bearer " + "W1tb" * 3000,),
    "no expiry": (f"Bearer {token(exp=None)}",),
    "expiry in words": (f"Bearer {token(exp='tomorrow')}",),
    "expiry beyond time": (f"Bearer {token(exp=10**30)}",),
    "expiry is true": (f"Bearer {token(exp=True)}",),
    "begins is true": (f"Bearer {token(nbf=True)}",),
    "issued is true": (f"Bearer {token(iat=True)}",),
    "another issuer": (f"Bearer {token(iss='https://evil.example')}",),
    "another audience": (f"Bearer {token(aud='other')}",),
    "no audience": (f"Bearer {token(aud=None)}",),
    "no actor": (f"Bearer {token(sub=None)}",),
    "empty actor": (f"Bearer {token(sub='')}",),
    "an actor that is a list": (f"Bearer {token(sub=['ada'])}",),
    "an actor with NUL": (f"Bearer {token(sub='a' + chr(0))}",),
    "alg none": (f"Bearer {unsigned({'alg': 'none'})}",),
    "alg None": (f"Bearer {unsigned({'alg': 'None', 'kid': 'one'})}",),
    "no alg": (f"Bearer {unsigned({'kid': 'one'})}",),
    "an unknown key": (f"Bearer {token(TWO)}",),
    "the kid of another": (f"Bearer {token(TWO, {'kid': 'one'})}",),
    "another algorithm": (f"Bearer {token(RSA, {'alg': 'RS256'})}",),
}


@pytest.mark.parametrize("headers", BAD.values(), ids=BAD)
async def test_a_token_that_does_not_count_is_refused(headers):
    """Nobody is told why; the algorithm is never the token's choice."""
    assert await bearer()(asks(*headers)) is None


async def test_only_the_algorithms_and_the_uses_that_were_named_count():
    """A good signature by another algorithm, or by a key that is for encryption, does not."""
    good = asks(f"Bearer {token()}")
    keys = [ONE.as_dict(private=False), RSA.as_dict(private=False)]
    for algorithms, counts in ((["ES256"], True), (["RS256"], False), (["RS256", "ES256"], True)):
        found = await bearer(algorithms=algorithms, jwks={"keys": keys})(good)
        assert (found is not None) is counts, algorithms
    other = {**ONE.as_dict(private=False), "use": "enc"}
    assert await bearer(jwks={"keys": [other, TWO.as_dict(private=False)]})(good) is None


async def test_a_public_key_is_no_secret():
    """A token that is signed with the text of the public key as a shared secret."""
    key = OctKey.import_key(json.dumps(ONE.as_dict(private=False)).encode())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 300}
    forged = jwt.encode({"alg": "HS256", "kid": "one"}, claims, key)
    assert await bearer()(asks(f"Bearer {forged}")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"algorithms": []},
        {"algorithms": "ES256"},
        {"issuer": ""},
        {"jwks": "http://id.example.org/keys"},
        {"jwks": "file:///etc/passwd"},
        {"jwks": {"keys": "x"}},
        {"jwks": {"keys": []}},
        {"jwks": {"keys": [ONE.as_dict(private=False) | {"use": "enc"}]}},
        {"jwks": {"keys": [OctKey.generate_key(256, {"kid": "one"}).as_dict()]}},
    ],
)
def test_an_unsafe_configuration_of_tokens_is_refused(wrong):
    """Said at the start, not at the first request."""
    options = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": {"keys": [ONE.as_dict()]}}
    with pytest.raises(ConfigurationError):
        JwtBearer(**(options | wrong))


@pytest.fixture
def provider():
    """A server of keys: the keys that it has, and how often it was asked."""

    class Keys(BaseHTTPRequestHandler):
        keys, asked, status, hold = [ONE], 0, 200, None

        def do_GET(self):
            Keys.asked += 1
            if Keys.hold is not None:
                Keys.hold()
            self.send_response(Keys.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            keys = [key.as_dict(private=False) for key in Keys.keys]
            self.wfile.write(json.dumps({"keys": keys}).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Keys.url = f"http://127.0.0.1:{server.server_port}/keys"
    yield Keys
    server.shutdown()
    server.server_close()


async def test_a_new_key_is_fetched_when_a_token_names_it(provider):
    """Once; tokens with keys that nobody has do not have them fetched again and again."""
    ask = bearer(jwks=provider.url, again_s=1000)
    for _ in range(3):
        assert await ask(asks(f"Bearer {token()}")) is not None
    assert provider.asked == 1
    for _ in range(3):
        assert await ask(asks(f"Bearer {token(TWO)}")) is None
    assert provider.asked == 1  # it was asked just now
    provider.keys = [TWO]
    ask._tried_at -= 2000
    assert await ask(asks(f"Bearer {token(TWO)}")) is not None
    assert await ask(asks(f"Bearer {token()}")) is None  # withdrawn
    assert provider.asked == 2


async def test_known_keys_count_while_the_provider_is_away(provider):
    """Without any, the answer is 503; a redirect is not followed."""
    provider.status = 302
    ask = bearer(jwks=provider.url, again_s=0.0001)
    with pytest.raises(Problem) as refused:
        await ask(asks(f"Bearer {token()}"))
    assert (refused.value.status, provider.asked) == (503, 1)
    provider.status = 200
    assert await ask(asks(f"Bearer {token()}")) is not None
    provider.status, ask._fetched_at = 500, 0.0
    assert await ask(asks(f"Bearer {token()}")) is not None
    assert provider.asked == 3


async def test_requests_wait_for_keys_that_another_request_fetches(provider):
    """At the start and when a key is new: a valid token is never refused because of another one."""
    began, go = Event(), Event()
    provider.hold = lambda: (began.set(), go.wait())
    ask = bearer(jwks=provider.url, again_s=1000)

    async def several(header):
        async def one():
            found = await ask(asks(header))
            return found is not None

        first = asyncio.create_task(one())
        assert await asyncio.to_thread(began.wait, 60)
        others = [asyncio.create_task(one()) for _ in range(5)]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, *others)

    assert await several(f"Bearer {token()}") == [True] * 6
    began.clear()
    go.clear()
    provider.keys = [ONE, TWO]
    ask._tried_at -= 2000
    assert await several(f"Bearer {token(TWO)}") == [True] * 6
    assert provider.asked == 2


async def test_known_keys_do_not_wait_for_a_fetch(provider):
    """A token with a key that nobody has does not hold up the others."""
    began, go = Event(), Event()
    ask = bearer(jwks=provider.url, again_s=0.0001)
    assert await ask(asks(f"Bearer {token()}")) is not None
    provider.hold = lambda: (began.set(), go.wait())
    unknown = asyncio.create_task(ask(asks(f"Bearer {token(TWO)}")))
    assert await asyncio.to_thread(began.wait, 60)
    assert await ask(asks(f"Bearer {token()}")) is not None
    assert not unknown.done()
    go.set()
    assert await unknown is None


async def test_a_request_that_leaves_does_not_end_the_fetch_for_the_others(provider):
    """The fetch belongs to all who wait for it."""
    began, go = Event(), Event()
    provider.hold = lambda: (began.set(), go.wait())
    ask = bearer(jwks=provider.url, again_s=1000)
    first = asyncio.create_task(ask(asks(f"Bearer {token()}")))
    assert await asyncio.to_thread(began.wait, 60)
    other = asyncio.create_task(ask(asks(f"Bearer {token()}")))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await other is not None


async def test_the_first_keys_are_tried_again_soon(provider):
    """A provider that is away when the server starts refuses nobody for long."""
    provider.status = 500
    ask = bearer(jwks=provider.url, again_s=1000)
    for _ in range(2):
        with pytest.raises(Problem):
            await ask(asks(f"Bearer {token()}"))
    assert provider.asked == 1
    provider.status, ask._tried_at = 200, ask._tried_at - 5
    assert await ask(asks(f"Bearer {token()}")) is not None


def test_static_tokens_make_a_context_for_each_request():
    """A token may stand for a tenant too; no token is shown."""
    spaced = "d " + "d" * 16  # no header can bring it
    who = {"a" * 16: "ada", "b" * 16: {"actor_id": "ben", "tenant_id": "acme"}, spaced: "dan"}
    tokens = StaticTokens(who)
    ada = tokens(asks("Bearer " + "a" * 16))
    assert ada is not tokens(asks("Bearer " + "a" * 16))
    assert (ada.actor_id, ada.tenant_id, dict(ada.credentials)) == ("ada", None, {})
    assert tokens(asks("Bearer " + "b" * 16)).tenant_id == "acme"
    for wrong in ((), ("Bearer " + "c" * 16,), ("Bearer ä",), ("Bearer",), (f"Bearer {spaced}",)):
        assert tokens(asks(*wrong)) is None
    assert "aaa" not in repr(tokens) + repr(vars(tokens))
    for bad in ({"short": "ada"}, {"a" * 16: ""}, {"a" * 16: {"name": "ada"}}):
        with pytest.raises(ConfigurationError):
            StaticTokens(bad)


def test_the_token_of_this_machine_counts_on_this_machine(monkeypatch):
    """It is random at each start, unless a variable names it."""
    local = LocalToken()
    said = f"Bearer {local.token}"
    assert local(asks(said)).actor_id == "local"
    assert local(asks(said, client=("10.0.0.7", 5000))) is None
    assert local(asks(said + "x")) is None
    assert local(asks()) is None
    assert local.token not in repr(local)
    assert local.token != LocalToken().token
    monkeypatch.setenv("LOOOPY_UI_TOKEN", "t" * 20)
    assert LocalToken().token == "t" * 20
    monkeypatch.setenv("LOOOPY_UI_TOKEN", "t" * 15)
    with pytest.raises(ConfigurationError, match="LOOOPY_UI_TOKEN has fewer than 16 characters"):
        LocalToken()


async def test_a_function_of_the_application_authenticates_requests():
    """By a coroutine function too; credentials that have expired are 401."""
    from datetime import UTC, datetime, timedelta

    from looopy import AuthContext

    found = [None, AuthContext("ada", expires_at=datetime.now(UTC) - timedelta(1)), "ada"]

    async def authenticate(_request):
        return found[0]

    async with serving() as (client, host):
        app_context = client._transport.app.state.context
        app_context.authenticate = authenticate
        for expected in (401, 401):
            answer = await client.get("/contexts")
            assert answer.status_code == expected
            assert answer.headers["www-authenticate"] == "Bearer"
            found.pop(0)
        answer = await client.get("/contexts")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert host.agent_count == 0
