"""Each limit that a request can reach, over HTTP: one less, as many, and one more."""

import asyncio
import importlib
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.server.loopback import client_of
from tests.server.test_api import ADA, BEN
from tests.server.test_bad_requests import deep
from tests.server.test_quotas import FACES, RUN

import looopy.server
from looopy import Agent, AuthContext, open_stores, tool
from looopy.server import AgentHost, Limits
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.stores import records, rules
from looopy.stores.contexts import listing, search
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types import storable

AUTH = AuthContext("ada")


@asynccontextmanager
async def serving(limits):
    """A server with all faces; a turn that is told to wait does so until the end."""
    go = asyncio.Event()

    @tool(effects="idempotent")
    async def wait() -> str:
        await go.wait()
        return "done"

    def reply(request):
        return tool_call("wait") if request.messages[-1].text == "Wait." else text("Hello.")

    def build(context_id, stores):
        model = ScriptedProvider(reply)
        return Agent(context_id, llm_provider=model, stores=stores, tools=[wait], on_busy="wait")

    tokens = StaticTokens({ADA: "ada", BEN: "ben"})
    async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
        app = create_app(host, authenticate=tokens, limits=limits, protocols=FACES)
        async with client_of(app, ADA, {"A2A-Version": "1.0"}) as client:
            try:
                yield SimpleNamespace(client=client, host=host, stores=stores, app=app)
            finally:
                go.set()


async def ended(world, *names):
    """The turns of these contexts are over."""
    for name in names:
        async with world.host.agent(name, AUTH) as agent:
            await agent.wait_for_idle()


async def say(world, name, message="Hi.", token=ADA, **more):
    """Begin a turn."""
    return await world.client.post(
        f"/contexts/{name}/turns",
        headers={"Authorization": f"Bearer {token}"},
        json={"message": message, **more},
    )


async def sent(world, body, path="/contexts/c/turns"):
    """Send a body as it is."""
    headers = {"Content-Type": "application/json"}
    return await world.client.post(path, content=body, headers=headers)


@asynccontextmanager
async def watching(world, name, token=ADA):
    """A stream of events, in this process: its status, while it is open."""
    began, left = asyncio.get_running_loop().create_future(), asyncio.Event()
    headers = ((b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode()))
    path = f"/contexts/{name}/events"
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    body = []

    async def receive():
        if not body:
            body.append(b"")
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start" and not began.done():
            found = [(name.decode(), value.decode()) for name, value in message["headers"]]
            began.set_result((message["status"], found))
        elif message["type"] == "http.response.body":
            body.append(message["body"])

    running = asyncio.create_task(world.app(scope, receive, send))
    try:
        status, headers = await began
        if status >= 400:
            await running
        content = b"".join(body) if status >= 400 else b"{}"
        yield httpx.Response(status, headers=headers, content=content)
    finally:
        left.set()
        await running


async def streams_of(world, number, token_of):
    """The last of *number* streams that are open at once."""
    await say(world, "c")
    await say(world, "b", token=BEN)
    names = {ADA: "c", BEN: "b"}
    opened = []
    async with asyncio.timeout(60):
        for place in range(number):
            token = token_of(place)
            one = watching(world, names[token], token)
            opened.append((one, await one.__aenter__()))
        for one, _ in opened:
            await one.__aexit__(None, None, None)
    return opened[-1][1]


async def turns_of(world, number, message="Hi.", token_of=lambda _: ADA):
    """The last of *number* turns that begin one after the other."""
    found = [await say(world, f"c{n}", message, token_of(n)) for n in range(number)]
    assert {one.status_code for one in found[:-1]} <= {202}
    return found[-1]


async def storing(world, number, owner):
    """A turn in a tenant whose *owner* has one byte less than *number*."""
    if owner is not None:
        await say(world, "c")
        await ended(world, "c")
    filled = sum(one.bytes for one in await world.stores.contexts.sizes())
    await world.stores.artifacts.save("c", "art", b"x" * (number - 1 - filled))
    world.app.state.context._quotas.freed("default")
    world.before = everything(world)
    return await say(world, "d")


async def in_metadata(world, value):
    """A turn with *value* in its metadata."""
    return await say(world, "c", metadata={"a": value})


async def waiting_messages(world, number):
    """The last of *number* messages that wait for a turn."""
    await say(world, "c", "Wait.")
    found = [
        await world.client.post("/contexts/c/follow-up", json={"message": "Hi."})
        for _ in range(number)
    ]
    return found[-1]


def everything(world):
    """All that is stored, as text."""
    return repr(sorted(world.stores.state.backend.contexts.items()))


def of_ids(chars, path):
    """The body of the AI SDK or AG-UI with an id of so many characters."""
    if path == "/ag-ui":
        said = {"role": "user", "id": "m", "content": "Hi."}
        return {**RUN, "threadId": "c", "runId": "r" * chars, "messages": [said]} | {
            "forwardedProps": None
        }
    part = {"type": "text", "text": "Hi."}
    return {"id": "c", "messages": [{"role": "user", "id": "m" * chars, "parts": [part]}]}


@dataclass
class Row:
    """A limit: `send(world, n)`, the answer beyond it, and the settings under which it counts."""

    limit: int
    send: object
    beyond: tuple
    more: dict
    good: tuple


def row(limit, send, status, code, path=None, good=(200, 202), **more):
    """See `Row`."""
    return Row(limit, send, (status, code, path), more, good)


def body_of(size):
    """A body of so many bytes."""
    return b'{"message":"x"}'.ljust(size)


def many(count):
    """A body with so many values, the object and the message included."""
    return json.dumps({"message": "Hi.", "metadata": {"a": [1] * (count - 4)}})


# By the name of the field of `Limits`.
OF_THE_SERVER = {
    "body_bytes": row(2000, lambda w, n: sent(w, body_of(n)), 413, "too_large"),
    "message_bytes": row(100, lambda w, n: say(w, "c", "x" * n), 400, "too_large", "/message"),
    "json_depth": row(
        20,
        lambda w, n: sent(w, deep(n).replace(b'{"meta', b'{"message":"x","meta', 1)),
        *(400, "too_deep", "/metadata" + "/a" * 19),
    ),
    "json_keys": row(
        9,
        lambda w, n: say(w, "c", metadata={str(k): 1 for k in range(n)}),
        *(400, "too_deep", "/metadata"),
    ),
    "json_values": row(300, lambda w, n: sent(w, many(n)), 400, "too_deep"),
    "streams_per_actor": row(
        3, lambda w, n: streams_of(w, n, lambda _: ADA), 429, "limit_exceeded"
    ),
    "streams": row(
        3, lambda w, n: streams_of(w, n, lambda p: (ADA, BEN)[p % 2]), 503, "limit_exceeded"
    ),
    "turns_per_minute": row(3, turns_of, 429, "limit_exceeded"),
    "running_turns_per_actor": row(3, lambda w, n: turns_of(w, n, "Wait."), 429, "limit_exceeded"),
    "running_turns_per_tenant": row(
        3,
        lambda w, n: turns_of(w, n, "Wait.", lambda place: (ADA, BEN)[place % 2]),
        *(429, "limit_exceeded"),
    ),
    "stored_bytes_per_tenant": row(3000, lambda w, n: storing(w, n, None), 429, "limit_exceeded"),
    "stored_bytes_per_actor": row(9000, lambda w, n: storing(w, n, "ada"), 429, "limit_exceeded"),
    "page": row(
        7, lambda w, n: w.client.get(f"/contexts?limit={n}"), 400, "invalid_request", "/limit"
    ),
}
# Times, and limits that need real connections: the test that shows them.
TIMES = {
    "page_bytes": "test_limits:test_a_page_of_messages_ends_before_it_is_too_long",
    "body_s": "test_bad_requests:test_a_body_that_does_not_come_is_not_waited_for",
    "send_s": "test_connections:test_a_reader_that_does_not_read_is_disconnected",
    "unread_bytes_per_actor": "test_flow:test_unread_responses_of_one_actor_are_limited",
    "header_s": "test_connections:test_a_header_that_does_not_arrive_in_time_closes_the_connection",
    "connections": "test_connections:test_a_connection_is_refused_if_all_others_are_at_work",
    "connections_per_address": "test_connections:test_a_connection_that_waits_makes_room",
    "heartbeat_s": "test_wire:test_streams_are_counted_and_closed_streams_are_not",
    "count_bytes_s": "test_quotas:test_bytes_are_counted_again_after_a_while",
}

# By the module and the name of the constant.
OF_THE_LIBRARY = {
    "looopy.stores.rules:_MAX_KEY": row(
        rules._MAX_KEY,
        lambda w, n: w.client.post(
            "/contexts/c/turns", json={"message": "Hi."}, headers={"Idempotency-Key": "k" * n}
        ),
        *(400, "value_refused", "/idempotency_key"),
    ),
    "looopy.stores.records:INBOX_LIMIT": row(
        records.INBOX_LIMIT, waiting_messages, 429, "limit_exceeded"
    ),
    "looopy.stores.rules:_CONTEXT_ID": row(
        128, lambda w, n: say(w, "c" * n), 400, "value_refused", "/context_id"
    ),
    "looopy.stores.contexts.listing:MOST_CONDITIONS": row(
        listing.MOST_CONDITIONS,
        lambda w, n: w.client.get("/contexts?" + "&".join(f"tag=t{k}" for k in range(n))),
        *(400, "limit_exceeded", "/tag"),
    ),
    "looopy.stores.contexts.listing:_LONGEST_TAG": row(
        listing._LONGEST_TAG,
        lambda w, n: w.client.get(f"/contexts?tag={'t' * n}"),
        *(400, "value_refused", "/tags/0"),
    ),
    "looopy.stores.contexts.search:LONGEST_QUERY": row(
        search.LONGEST_QUERY,
        lambda w, n: w.client.get(f"/search?query={'x' * n}"),
        *(400, "value_refused", "/query"),
    ),
    "looopy.stores.contexts.search:MOST_TERMS": row(
        search.MOST_TERMS,
        lambda w, n: w.client.get("/search?query=" + "+".join(f"w{k}" for k in range(n))),
        *(400, "value_refused", "/query"),
    ),
    "looopy.types.storable:MAX_DEPTH": row(
        storable.MAX_DEPTH,
        lambda w, n: sent(w, deep(n).replace(b'{"meta', b'{"message":"x","meta', 1)),
        *(400, "value_refused", "/metadata" + "/a" * 63),
        json_depth=100,
    ),
    "looopy.types.storable:MAX_INT": row(
        storable.MAX_INT - 1, in_metadata, 400, "value_refused", "/metadata/a"
    ),
    "looopy.types.storable:MAX_BODY_BYTES": row(
        storable.MAX_BODY_BYTES,
        lambda w, n: in_metadata(w, "x" * (n - len('{"message":"Hi.","metadata":{"a":""}}'))),
        *(400, "value_refused", "/metadata/a"),
        body_bytes=10**8,
    ),
    "looopy.server.protocols.ai_sdk.request:_MOST_ID_CHARS": row(
        200,
        lambda w, n: w.client.post("/api/chat", json=of_ids(n, "/api/chat")),
        *(400, None, "/messages/0/id"),
    ),
    "looopy.server.protocols.ag_ui.request:_MOST_ID_CHARS": row(
        200,
        lambda w, n: w.client.post("/ag-ui", json=of_ids(n, "/ag-ui")),
        *(400, "value_refused", "/runId"),
    ),
}
# Constants of the same names that no request over HTTP reaches, or that refuse nothing.
OTHERS = {
    "looopy.stores.rules:_MAX_ARTIFACT_ID": "no request names a new artifact",
    "looopy.stores.contexts.listing:MOST_TAGS": "no request sets tags",
    "looopy.stores.contexts.listing:_MOST_METADATA": "more entries are stored, and not listed by",
    "looopy.stores.contexts.listing:_LONGEST_ENTRY": "no request lists by metadata",
    "looopy.types.storable:MAX_NAME_BYTES": "actor and tenant come from `authenticate`",
    "looopy.types.storable:MAX_MEDIA_TYPE": "no request names the type of an artifact",
    "looopy.types.storable:_LONGEST_NUMBER": "how a number is shown in an error",
    "looopy.server.protocols.a2a.listing:_MOST_READ": "a longer listing has a next page",
    "looopy.server.protocols.a2a.push.receivers:_MOST_CHARS": "of an address, which is looked up",
    "looopy.server.protocols.a2a.push.delivery:_MOST_DOUBLINGS": "how long a delivery waits",
    "looopy.server.protocols.a2a.push.verbs:_MOST_CHARS": "of values for a receiver, not a store",
    "looopy.server.protocols.mcp.streamable:_MOST_CALLERS": "how many are remembered",
    "looopy.server.protocols.acp.agent:_LONGEST_INDEXED": "another way to look, over stdio",
    "looopy.server.protocols.acp.wire:MAX_DEPTH": "over stdio",
    "looopy.stores.contexts.search:_MOST_UNITS": "what a query of so many words may become",
    "looopy.stores.contexts.search:_MOST_AT_ONCE": "how many contexts are looked at together",
    "looopy.stores.contexts.search:_LONGEST_SNIPPET": "how much of a message is shown",
    "looopy.server.client:_LONGEST_PAUSE_S": "of the client",
    "looopy.server.page.timeline:_MOST_EVENTS": "a longer timeline is cut",
    "looopy.server.page.timeline:_MOST_SPANS": "a longer timeline is cut",
    "looopy.server.page.timeline:_MOST_RUNS": "a longer timeline is cut",
    "looopy.server.page.timeline:_LONGEST_TEXT": "a longer text is cut",
    "looopy.server.gate.jwt:_LONGEST_TOKEN": "test_auth: a long token",
    "looopy.server.gate.connections:_MOST_FILES": "of the process, not of a request",
    "looopy.server.gate.quotas:_MOST_TENANTS": "how many are remembered",
    "looopy.server.page.replays:_MOST_S": "test_replay_api: a prompt that waits",
    "looopy.server.app_context:_MOST_CALLERS": "how many are remembered",
    "looopy.server.sse:_MOST_FRAMES": "how many are remembered",
    "looopy.server.sse:_MOST_BYTES": "how many are remembered",
    "looopy.server.protocols.stdio:MAX_LINE_BYTES": "over stdio",
}
NAMED = re.compile(r"_?(MAX|MOST|LONGEST)_[A-Z_]+|INBOX_LIMIT|_CONTEXT_ID")
ASSIGNED = r"^(\w+)(?:: [^=\n]*)? = "
LOOKED_AT = (rules, records, listing, search, storable)
ROWS = {**OF_THE_SERVER, **OF_THE_LIBRARY}


def error_of(answer):
    """Status, code and path of an error; the AI SDK has its as text."""
    if answer.headers["content-type"].startswith("text/plain"):
        path, found, _ = answer.text.partition(": ")
        return answer.status_code, None, path if found else None
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("path")


@pytest.mark.parametrize("name", ROWS)
async def test_a_limit_holds_at_its_value_and_not_beyond(name):
    """One less and as many are accepted; one more is refused with its place, and not stored."""
    wanted = ROWS[name]
    more = wanted.more | ({name: wanted.limit} if name in OF_THE_SERVER else {})
    for number in (wanted.limit - 1, wanted.limit):
        async with serving(Limits(**more)) as world:
            answer = await wanted.send(world, number)
            assert answer.status_code in wanted.good, (number, answer.text)
    async with serving(Limits(**more)) as world:
        world.before = everything(world)
        answer = await wanted.send(world, wanted.limit + 1)
        assert error_of(answer) == wanted.beyond
        assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
        if name not in COUNTED:
            assert everything(world) == world.before


async def test_a_page_of_messages_ends_before_it_is_too_long():
    """One message at least; the pages together have each message once, in order."""
    async with serving(Limits(page_bytes=3000)) as world:
        for size in (10, 2000, 500, 4000, 100):
            await say(world, "c", "x" * size)
            await ended(world, "c")
        for query, sizes in (("", [4, 2, 1, 3]), ("&limit=2", [2, 2, 2, 1, 2, 1])):
            after, pages = 0, []
            while after is not None:
                page = await world.client.get(f"/contexts/c/messages?after={after}{query}")
                assert len(page.content) < 3100 or len(page.json()["items"]) == 1
                pages.append([one["position"] for one in page.json()["items"]])
                after = page.json()["next"]
            assert [place for page in pages for place in page] == list(range(1, 11))
            assert [len(page) for page in pages] == sizes
        for query, sizes in (("", [3, 1, 3, 3]), ("&limit=2", [2, 1, 1, 2, 2, 2])):
            before, pages = 11, []
            while before is not None:
                page = await world.client.get(f"/contexts/c/messages?before={before}{query}")
                assert len(page.content) < 3100 or len(page.json()["items"]) == 1
                pages.insert(0, [one["position"] for one in page.json()["items"]])
                before = page.json()["next"]
            assert [place for page in pages for place in page] == list(range(1, 11))
            assert [len(page) for page in pages][::-1] == sizes


# Requests up to the last one are stored; the last one is not.
COUNTED = {
    *("streams", "streams_per_actor", "turns_per_minute"),
    *("running_turns_per_actor", "running_turns_per_tenant"),
    "looopy.stores.records:INBOX_LIMIT",
}


def test_every_limit_has_a_row():
    """A new field of `Limits`, and a new constant of the library that limits what may be sent."""
    assert {field.name for field in fields(Limits)} == {*OF_THE_SERVER, *TIMES}
    for place in TIMES.values():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(f"tests.server.{module}"), name)
    room = Path(looopy.server.__file__).parent
    files = [*room.rglob("*.py"), *(Path(one.__file__) for one in LOOKED_AT)]
    named = {
        ".".join(path.relative_to(room.parent.parent).with_suffix("").parts) + f":{name}"
        for path in files
        for name in re.findall(ASSIGNED, path.read_text(encoding="utf-8"), re.MULTILINE)
        if NAMED.fullmatch(name)
    }
    others = named ^ {*OF_THE_LIBRARY, *OTHERS}
    assert not others, "each needs a row in OF_THE_LIBRARY, or a reason in OTHERS"
