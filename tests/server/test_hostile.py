"""Each hostile value through every face: its status, its place, in the face's own form."""

import asyncio
import contextlib
import json
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.test_api import ADA, serving
from tests.server.test_auth import bearer, token, unsigned
from tests.server.test_limits import everything
from tests.server.test_quotas import FACES, RUN
from tests.server.test_strangers import ALIKE, LISTS, TABLE, got

from looopy.server import Limits, mcp_api
from looopy.server.gate import flow

HERE = "@@"  # where the hostile value comes
PART = {"type": "text", "text": HERE}
TOLD = {"messageId": "m", "role": "ROLE_USER", "contextId": "c", "parts": [{"text": HERE}]}
OLD = {"messageId": "m", "role": "user", "contextId": "c", "kind": "message"} | {
    "parts": [{"kind": "text", "text": HERE}]
}


def rpc(method, **params):
    """A call over JSON-RPC."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class Face:
    """
    A face: where a message goes, where its text and its context are, and the form of an error.

    `error(answer)` gives the code and the place, either of them `None` where the form has none.
    """

    def __init__(self, path, body, text, context, error, version="1.0"):
        self.path, self.body, self.text, self.context = path, body, text, context
        self.error = error
        self.headers = {"A2A-Version": version} if version else {}


def of_looopy(answer):
    """The form of the HTTP API."""
    error = answer.json()["error"]
    assert error.keys() <= {"code", "message", "path", "turn"}
    return error["code"], error.get("path")


def of_text(answer):
    """The AI SDK shows the body as the message of its error."""
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    path, found, _ = answer.text.partition(": ")
    return None, path if found and path.startswith("/") else None


def of_openai(answer):
    """The form of OpenAI's API, with the place as `param`."""
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    place = error["param"]
    if place == "conversation":
        return error["code"], "/conversation"
    path = None if place is None else "/" + place.replace("[", "/").replace("]", "")
    return error["code"], None if path is None else path.replace(".", "/")


def of_rest(answer):
    """The form of Google's APIs, which A2A has."""
    error = answer.json()["error"]
    facts = error["details"][0]["metadata"] if error["details"] else {}
    return facts.get("code"), facts.get("path")


def of_rpc(answer):
    """The form of JSON-RPC."""
    said = answer.json()
    assert said["jsonrpc"] == "2.0"
    data = said["error"].get("data") or [{}]
    facts = data[0].get("metadata", {}) if isinstance(data, list) else data
    code = "invalid_json" if said["error"]["code"] == -32700 else facts.get("code")
    return code, facts.get("path")


TURN = {"id": "c", "messages": [{"role": "user", "id": "m", "parts": [PART]}]}
MESSAGES = [{"role": "user", "id": "m", "content": HERE}]
EVERY = {
    "api": Face("/contexts/c/turns", {"message": HERE}, "/message", None, of_looopy),
    "ai_sdk": Face("/api/chat", TURN, "/messages/0/parts/0/text", "/id", of_text),
    "ag_ui": Face(
        "/ag-ui",
        {**RUN, "threadId": "c", "messages": MESSAGES, "forwardedProps": None},
        *("/messages/0/content", "/threadId", of_looopy),
    ),
    "responses": Face(
        "/v1/responses",
        {"model": "looopy", "conversation": "c", "input": HERE},
        *("/input", "/conversation", of_openai),
    ),
    "a2a": Face(
        "/message:send", {"message": TOLD}, "/message/parts/0/text", "/message/contextId", of_rest
    ),
    "a2a rpc": Face(
        "/a2a/v1",
        rpc("SendMessage", message=TOLD),
        *("/params/message/parts/0/text", "/message/contextId", of_rpc),
    ),
    "a2a 0.3": Face(
        "/v1/message:send",
        {"message": {**TOLD, "content": [{"text": HERE}]} | {"parts": None}},
        *("/message/content/0/text", "/message/contextId", of_rest),
        version=None,
    ),
    "a2a 0.3 rpc": Face(
        "/a2a/v1",
        rpc("message/send", message=OLD),
        *("/params/message/parts/0/text", "/message/contextId", of_rpc),
        version=None,
    ),
}
EVERY["mcp"] = Face(
    "/mcp",
    rpc("tools/call", name="ask", arguments={"prompt": HERE}),
    *("/params/arguments/prompt", None, of_looopy),
)
del EVERY["a2a 0.3"].body["message"]["parts"]
# With a body that holds no text.
BODIES = {**EVERY, "conversations": Face("/v1/conversations", {}, None, None, of_openai)}
# What stands at the place of the text, as JSON; the status, the code, and what follows the place.
VALUES = {
    "NaN": (b"NaN", 400, "invalid_json", None),
    "infinity": (b"-Infinity", 400, "invalid_json", None),
    "a float beyond all": (b"1e999", 400, "value_refused", ""),
    "a lone surrogate": (b'"\\ud800"', 400, "value_refused", ""),
    "NUL": (b'"a\\u0000b"', 400, "value_refused", ""),
    "a long number": (b"9" * 5000, 400, "invalid_json", None),
    "a number beyond 64 bits": (b"9" * 30, 400, "value_refused", ""),
    "deep": (b"[" * 100 + b"]" * 100, 400, "too_deep", "/0"),
    "deeper than a parser": (b"[" * 40_000, 400, "too_deep", None),
    "many values": (b"[" + b"1," * 60_000 + b"1]", 400, "too_deep", None),
    "a key that cannot be stored": (b'{"\\ud800":1}', 400, "value_refused", ""),
    "bytes that are no UTF-8": (b'"\xff"', 400, "invalid_json", None),
    "too long a text": (b'"' + b"x" * 300_000 + b'"', 400, "too_large", None),
    "too long a body": (b'"' + b"x" * 1_100_000 + b'"', 413, "too_large", None),
}
IDS = {"up": "../../etc", "long": "a" * 129, "blank": "a b", "newline": "a\n", "NUL-like": "a%00"}


@asynccontextmanager
async def world_of(**options):
    """A server with all faces, and a way to ask it that sees whether anything was stored."""
    async with serving(protocols=[*FACES, mcp_api], **options) as (client, host):
        client._transport.raise_app_exceptions = False
        world = SimpleNamespace(client=client, host=host, stores=host.stores)

        async def ask(method, path, content=None, headers=(), *, changes=False):
            before = everything(world)
            async with asyncio.timeout(60):
                found = {"Content-Type": "application/json", **dict(headers)}
                answer = await client.request(method, path, content=content, headers=found)
            assert answer.status_code < 500, (path, answer.text)
            assert '"code":-32603' not in answer.text, (path, answer.text)
            assert changes or everything(world) == before, path
            return answer

        world.ask = ask
        yield world


def within(path, place):
    """True if *path* is *place* or below it; the AI SDK and JSON errors may have none."""
    return path is None if place is None else (path or "").startswith(place)


async def test_hostile_values_are_refused_by_their_place_in_every_face():
    """Nothing is stored, and nothing is the server's fault."""
    wrong = {}
    async with world_of() as world:
        for name, face in EVERY.items():
            body = json.dumps(face.body).encode()
            for what, (value, status, code, more) in VALUES.items():
                if name == "mcp" and what == "too long a text":
                    continue  # it needs a session: see `mcp/test_streamable.py`
                sent = body.replace(b'"@@"', value)
                answer = await world.ask("POST", face.path, sent, face.headers)
                found, path = face.error(answer)
                expected = {status, 200} if face.error is of_rpc and status == 400 else {status}
                fits = found in (code, None if face.error is of_text else code)
                place = None if more is None else face.text + more
                if (
                    answer.status_code not in expected
                    or not fits
                    or (more is not None and not within(path, place))
                ):
                    wrong[name, what] = answer.status_code, found, path
    assert wrong == {}


async def test_a_context_id_is_checked_in_every_face():
    """Its place is that in the body of the face; an id is no path."""
    async with world_of() as world:
        for name, face in EVERY.items():
            if face.context is None:
                continue
            for what, name_ in IDS.items():
                said = json.dumps(face.body).replace('"c"', json.dumps(name_))
                answer = await world.ask("POST", face.path, said, face.headers)
                assert answer.status_code in (400, 200 if face.error is of_rpc else 400)
                assert face.error(answer)[1] == face.context, (name, what, answer.text)
        for name_ in ("..%2F..%2Fetc", "a" * 129, "a%20b", "a%0A", "a%00", "%C3%A4", "%ED%A0%80"):
            for path in (f"/contexts/{name_}", f"/contexts/{name_}/events", f"/api/chat/{name_}"):
                answer = await world.ask("GET", path)
                assert answer.status_code in (400, 404), (path, answer.text)


class Chunk(bytes):
    """A part of a body that counts how many of its kind there are."""

    sent, there, most = 0, 0, 0

    def __init__(self, _):
        Chunk.sent, Chunk.there = Chunk.sent + 1, Chunk.there + 1
        Chunk.most = max(Chunk.most, Chunk.there)

    def __del__(self):
        Chunk.there -= 1


@pytest.mark.parametrize(("chunks", "taken"), [(15, 15), (1000, 26)])
async def test_a_body_is_measured_while_it_comes_in_at_every_face(monkeypatch, chunks, taken):
    """The answer comes at once; after it a bounded part of the body is read, and none is kept."""
    monkeypatch.setattr(flow, "_DROPPED_BYTES", 20_000)
    answers = []

    async def long():
        while Chunk.sent < chunks:
            yield Chunk(b" " * 1000)

    async with world_of(limits=Limits(body_bytes=5000)) as world:
        app = world.client._transport.app

        async def watched(scope, receive, send):
            async def seen(message):
                if message.get("body"):
                    answers.append((Chunk.sent, message["body"]))
                await send(message)

            await app(scope, receive, seen)

        world.client._transport.app = watched
        for name, face in BODIES.items():
            Chunk.sent = Chunk.there = Chunk.most = 0
            answers.clear()
            answer = await world.ask("POST", face.path, long(), face.headers)
            assert answer.status_code == 413, name
            assert face.error(answer)[0] in ("too_large", None)
            [(before, body)] = answers
            assert (before, body) == (6, answer.content), name
            assert Chunk.sent == taken, name
            assert Chunk.most < 10, name


async def test_every_protocol_requires_a_json_content_type():
    """In UTF-8 and as it is."""
    async with world_of() as world:
        for name, face in BODIES.items():
            body = json.dumps(face.body)
            for headers in (
                {"Content-Type": "text/plain"},
                {"Content-Type": "application/json; charset=utf-16"},
                {"Content-Encoding": "gzip"},
            ):
                answer = await world.ask("POST", face.path, body, face.headers | headers)
                assert answer.status_code == 415, (name, headers)
                assert face.error(answer)[0] in ("unsupported_media_type", None)


async def test_every_route_checks_credentials_and_origin():
    """401 in the form of the face, 421 and 403 before any face."""
    now = time.time()
    tokens = {
        "none at all": "",
        "malformed": "Bearer a.b.c",
        "expired": f"Bearer {token(exp=int(now) - 3600)}",
        "not yet valid": f"Bearer {token(nbf=int(now) + 3600)}",
        "without an algorithm": f"Bearer {unsigned({'alg': 'none', 'kid': 'one'})}",
        "of another audience": f"Bearer {token(aud='other')}",
        "another scheme": f"Basic {token()}",
    }
    async with world_of() as world:
        world.client._transport.app.state.context.authenticate = bearer()
        requests = {route: named("c")[0] for route, named in TABLE.items()}
        requests |= {route: got(path)[0] for route, path in {**ALIKE, **LISTS}.items()}
        for route, (path, body, headers) in requests.items():
            method = route.partition(" ")[0]
            content = None if body is None else json.dumps(body)
            every = (
                tokens.items()
                if route in ("GET /contexts/{context_id}", "GET /tasks")
                else (("none at all", ""), ("without an algorithm", tokens["without an algorithm"]))
            )
            for what, said in every:
                more = {**headers, "Authorization": said}
                answer = await world.ask(method, path, content, more)
                assert answer.status_code == 401, (route, what, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer", route
            for more, status, code in (
                ({"Host": "evil.example"}, 421, "unknown_host"),
                ({"Origin": "https://evil.example"}, 403, "unknown_origin"),
            ):
                answer = await world.ask(method, path, content, {**headers, **more})
                assert of_looopy(answer) == (code, None)
                assert answer.status_code == status
        for face in EVERY.values():
            more = {"Authorization": tokens["expired"]}
            answer = await world.ask("POST", face.path, json.dumps(face.body), more)
            assert answer.status_code == 401
            assert face.error(answer)[0] in ("unauthorised", None)


JUNK = [None, True, -1, 1.5, 2**53, "", "..", [], {}, [[]], {"a": None}, "x" * 300]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
    {"type": "function_call_output", "call_id": "x", "output": "[" * 100_000},
    {"type": "function_call_output", "call_id": "y", "output": "NaN"},
    {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
]
MORE = {
    "responses": {
        **EVERY["responses"].body,
        "input": ITEMS,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        "tool_choice": {"type": "function", "name": "f"},
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "max_output_tokens": 10,
    },
    "ai_sdk": {
        "id": "c",
        "messages": [
            {
                "role": "assistant",
                "id": "m",
                "parts": [
                    {
                        "type": "tool-x",
                        "toolCallId": "t",
                        "state": "approval-responded",
                        "approval": {"id": "r", "approved": True, "reason": "b"},
                    },
                    {"type": "dynamic-tool", "toolCallId": "u", "state": "output-available"},
                ],
            }
        ],
        "inputs": {"a": 1},
    },
    "ag_ui": {
        **EVERY["ag_ui"].body,
        "messages": [{"role": "tool", "id": "t", "toolCallId": "x", "content": "y"}],
        "resume": [{"interruptId": "r", "status": "resolved", "payload": 1}],
        "tools": [{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        "context": [{"description": "d", "value": "v"}],
    },
}


def places(value, path=()):
    """The path of each value inside of a JSON value."""
    yield path
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def with_junk(value, path, junk):
    """A copy with *junk* at *path*."""
    if not path:
        return junk
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = with_junk(made[path[0]], path[1:], junk)
    return made


@pytest.mark.parametrize("name", [name for name in EVERY if name != "mcp"])
async def test_junk_at_any_place_never_causes_a_server_error(name):
    """Each value of a request in turn is one of another type: accepted or refused, never 5xx."""
    face = EVERY[name]
    async with world_of() as world:
        for body in filter(None, (face.body, MORE.get(name))):
            for place, path in enumerate(places(body)):
                for number, junk in enumerate(JUNK):
                    if (place + number) % 2:
                        continue  # the other half of the junk comes at the next place
                    sent = json.dumps(with_junk(body, path, junk))
                    await world.ask("POST", face.path, sent, face.headers, changes=True)


async def test_an_artifact_with_a_hostile_name_is_only_a_download():
    """Nothing of it runs in a browser, and its name reaches no path."""
    names = ["../../etc/passwd", "con", 'a"; x=', "a\u202egnp.exe", "...", "x" * 256, "ä/ö", "a\\b"]
    types = [
        *("text/html", "image/svg+xml", "text/html; charset=utf-8", "application/javascript"),
        *("TEXT/HTML", "text/xml", "text/x-unknown", "multipart/form-data"),
    ]
    async with world_of() as world:
        store, content = world.stores.artifacts, b"<script>alert(1)</script>"
        for name, kind in zip(names, types, strict=True):
            await store.save("c", name, content, media_type=kind)
        record = await world.stores.state.load("c")
        world.stores.state.backend.contexts["default", "c"].owner_actor = "ada"
        assert record is not None
        for name in names:
            answer = await world.ask("GET", f"/contexts/c/artifacts/{quote(name, safe='')}")
            assert (answer.status_code, answer.content) == (200, content), name
            headers = answer.headers
            assert headers["content-type"] == "application/octet-stream", name
            assert headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
            assert headers["content-disposition"].isascii()
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        for name in ("x" * 257, "a%0Ab", "a%00", "%ED%A0%80"):
            answer = await world.ask("GET", f"/contexts/c/artifacts/{name}")
            assert answer.status_code in (400, 404), name


TEXTS = st.text(st.characters(blacklist_categories=()), max_size=12)
PLACES = st.one_of(
    st.integers(-3, 10).map(str), TEXTS, st.sampled_from(["1e3", "９", "²", "9" * 40, " 1", "+1"])
)
QUERIES = st.dictionaries(
    st.sampled_from(["after", "format", "limit", "x"]), PLACES | st.just("compact"), max_size=3
)


async def opened(world, query, headers):
    """The status of a stream of events, which is left as soon as it has begun."""
    began, left, body = asyncio.Event(), asyncio.Event(), []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/contexts/c/events",
        "query_string": urlencode(query, errors="surrogatepass").encode(),
        "headers": [
            *((b"host", b"localhost"), (b"authorization", f"Bearer {ADA}".encode())),
            *headers,
        ],
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "http_version": "1.1",
    }
    found = []

    async def receive():
        if not body:
            body.append(1)
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            found.append(message["status"])
            began.set()

    async with asyncio.timeout(60):
        running = asyncio.create_task(world.client._transport.app(scope, receive, send))
        await asyncio.wait(
            [running, asyncio.create_task(began.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        left.set()
        await running
    return found[0]


def test_a_stream_begins_at_a_place_or_is_refused():
    """Whatever stands in the query and the headers: no 5xx, and no answer that does not come."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        entered = world_of()
        world = runner.run(entered.__aenter__())
        stack.callback(lambda: runner.run(entered.__aexit__(None, None, None)))
        begun = world.client.post("/contexts/c/turns", json={"message": "Hi."})
        assert runner.run(begun).status_code == 202
        seen = set()

        @settings(max_examples=80, deadline=None, database=None, derandomize=True)
        @example({"after": "\u00b2"}, None, "")
        @example({}, "\u00b2", "")
        @given(QUERIES, st.none() | PLACES, st.sampled_from(["", "*/*", "text/event-stream"]))
        def ask(query, place, accept):
            headers = [(b"accept", accept.encode())]
            if place is not None:
                said = place.encode("latin-1", "replace")
                headers.append((b"last-event-id", said.replace(b"\n", b"").replace(b"\r", b"")))
            status = runner.run(opened(world, query, headers))
            assert status in (200, 400)
            seen.add(status)

        ask()
        assert seen == {200, 400}
        assert world.client._transport.app.state.context.open_streams == 0
