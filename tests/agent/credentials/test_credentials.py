"""A tool asks for credentials: they reach its call, encrypted on the way, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.kit import assert_whole, collect

from looopy import Agent, AuthContext, ToolContext, tool
from looopy.auth import AuthRequest, Pkce, encrypt_credential
from looopy.errors import (
    ConfigurationError,
    IdempotencyConflict,
    InputNotFound,
    ValueRefused,
    how_to_install,
)
from looopy.testing import text, tool_call
from looopy.tools import Ask, NeedsInput
from looopy.types.event import event_to_json
from looopy.types.message import ToolResultMessage
from looopy.types.state import AgentStatus, Outcome, PendingKind

SECRET = "a secret of the application, 32 bytes"
TOKEN = "tok-Zm9vYmFyYmF6cXV4-0123456789"
PAT = AuthRequest(type="pat", provider="github", scopes=["repo"])
USED: list[object] = []


@pytest.fixture(autouse=True)
def nothing_used():
    """What was used is counted anew."""
    USED.clear()


@tool
async def push(context: ToolContext) -> str:
    """Push with the user's token."""
    token = await context.ask("A token for GitHub, please.", auth=PAT)
    USED.append(token)
    context.report({"using": token})
    return f"pushed with {token}"


@tool
async def deploy(context: ToolContext) -> str:
    """Ask for a token, then for a place."""
    token = await context.ask("Token?", auth=PAT)
    where = await context.ask("Where to?")
    USED.append((token, where))
    return f"deployed to {where}"


@tool
async def both(context: ToolContext) -> str:
    """Ask for a token and a place at once."""
    if {"token", "where"} - context.answers.keys():
        raise NeedsInput([Ask("token", auth=PAT), Ask("where", prompt="Where to?")])
    USED.append(dict(context.answers))
    return "done"


@tool
async def plain(context: ToolContext) -> str:
    """Ask for a password in plain, where nobody is in between, and for a place."""
    if {"pw", "where"} - context.answers.keys():
        raise NeedsInput([Ask("pw", PendingKind.AUTH, "Password?"), Ask("where")])
    USED.append(context.answers["pw"])
    return "done"


TOOLS = [push, deploy, both, plain]


def told(messages):
    """What each call was answered."""
    return [m.text for m in messages if isinstance(m, ToolResultMessage)]


async def asked(make_agent, stores, name, **options):
    """An agent that waits for credentials, and its requests."""
    agent = await make_agent([tool_call(name), text("ok")], tools=TOOLS, stores=stores, **options)
    result = await agent.execute_turn("go")
    assert result.outcome is Outcome.AUTH_REQUIRED
    return agent, result.pending


@pytest.mark.parametrize("auth_key", [None, SECRET])
async def test_a_credential_reaches_the_call_and_nothing_else(
    make_agent, stores, store_url, auth_key, caplog
):
    """Not the database, no event, no log, no result: `[redacted]` stands for it."""
    caplog.set_level(logging.DEBUG)
    agent, [request] = await asked(make_agent, stores, "push", auth_key=auth_key)
    assert (request.kind, request.prompt) == (PendingKind.AUTH, "A token for GitHub, please.")
    assert (request.auth.type, request.auth.provider, request.auth.scopes) == (
        "pat",
        "github",
        ("repo",),
    )
    assert request.auth.key["kty"] == "EC"
    assert 0 < (request.expires_at - agent.state.last_activity).total_seconds() <= 15 * 60
    value = encrypt_credential(TOKEN, request.auth)
    stream = agent.execute_turn(None, inputs={request.request_id: value})
    events = await collect(stream)
    result = await stream
    assert (result.text, USED) == ("ok", [TOKEN])
    assert told(result.messages) == ["pushed with [redacted]"]
    record = await stores.state.load("ada")
    stored = [event_to_json(e) for e in await stores.journal.events("ada")]
    everything = repr([stored, events, result, record, agent.state, caplog.text, request])
    assert TOKEN not in everything
    assert '"d"' not in everything
    for path in [*Path(store_url.removeprefix("sqlite:///")).parent.glob("*db*")]:
        assert TOKEN.encode() not in path.read_bytes()
    with pytest.raises(InputNotFound):
        await agent.execute_turn(None, inputs={request.request_id: value})
    await assert_whole(stores)


async def test_the_private_key_is_stored_encrypted_alone(make_agent, sqlite_url):
    """While it waits, and with the application's secret: no private part, no secret."""
    agent, [request] = await asked(make_agent, sqlite_url, "push", auth_key=SECRET)
    path = sqlite_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as database:
        [(state,)] = database.execute("SELECT state FROM looopy_contexts").fetchall()
    assert '"sealed"' in state
    assert '"d"' not in state.replace("\\", "")
    assert SECRET not in state
    assert "sealed" not in repr([agent.state, request])
    await agent.shutdown()


async def test_another_process_reads_it_with_the_same_secret(make_agent, stores):
    """After a restart; the answer is encrypted, so that it may be recorded in part."""
    _, requests = await asked(make_agent, stores, "both", auth_key=SECRET)
    token, where = requests
    there = await make_agent([text("ok")], tools=TOOLS, stores=stores, auth_key=SECRET)
    assert there.state.status is AgentStatus.WAITING
    value = encrypt_credential({"user": "eva", "password": TOKEN}, token.auth)
    part = await there.execute_turn(None, inputs={token.request_id: value})
    assert (part.outcome, part.pending) == (Outcome.INPUT_REQUIRED, (where,))
    last = await make_agent([text("ok")], tools=TOOLS, stores=stores, auth_key=SECRET)
    result = await last.execute_turn(None, inputs={where.request_id: "Rome"})
    assert (result.text, USED) == (
        "ok",
        [{"token": {"user": "eva", "password": TOKEN}, "where": "Rome"}],
    )
    await assert_whole(stores)


@pytest.mark.parametrize("auth_key", [None, "another secret, of 32 bytes or more"])
async def test_a_process_that_cannot_read_it_asks_again(make_agent, stores, auth_key):
    """The key was in the process that died, or is of another secret."""
    first = None if auth_key is None else SECRET
    agent, [request] = await asked(make_agent, stores, "push", auth_key=first)
    value = encrypt_credential(TOKEN, request.auth)
    await agent.shutdown()
    there = await make_agent([text("ok")], tools=TOOLS, stores=stores, auth_key=auth_key)
    second = await there.execute_turn(None, inputs={request.request_id: value})
    assert (second.outcome, USED) == (Outcome.AUTH_REQUIRED, [])
    [anew] = second.pending
    assert anew.request_id != request.request_id
    assert anew.auth.key != request.auth.key
    value = encrypt_credential(TOKEN, anew.auth)
    result = await there.execute_turn(None, inputs={anew.request_id: value})
    assert (result.text, USED) == ("ok", [TOKEN])
    await assert_whole(stores)


@pytest.mark.parametrize("where", ["here", "of another agent"])
async def test_a_plain_credential_is_refused_without_the_key(make_agent, stores, where):
    """After a restart, or for the key of an agent that is a tool: nothing is stored of it."""
    theirs = replace(PAT, key={"kty": "EC"}, request_id="1-c", context_id="another")

    @tool
    async def nested(context: ToolContext) -> str:
        """Ask for what another agent asks for."""
        return await context.ask("Token?", auth=theirs)

    tools = [push, nested]
    name = "push" if where == "here" else "nested"
    agent = await make_agent([tool_call(name)], tools=tools, stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    await agent.shutdown()
    there = await make_agent([text("ok")], tools=tools, stores=stores)
    record = await stores.state.load("ada")
    for wrong in (TOKEN, f"a.b.c.d.{TOKEN}", f"eyJhIjoxfQ.b.c.d.{TOKEN}", {"token": TOKEN}, None):
        with pytest.raises(ValueRefused, match="not encrypted") as refused:
            await there.execute_turn(None, inputs={request.request_id: wrong})
        assert TOKEN not in refused.value.message
    assert await stores.state.load("ada") == record
    assert there.state.pending == (request,)


async def test_a_credential_that_cannot_be_decrypted_is_not_stored(make_agent, stores):
    """Recorded in part by a process without the key: its tool asks again anyway."""
    agent, [token, where] = await asked(make_agent, stores, "both")
    value = encrypt_credential(TOKEN, token.auth)
    await agent.shutdown()
    there = await make_agent([text("ok")], tools=TOOLS, stores=stores)
    part = await there.execute_turn(None, inputs={token.request_id: value})
    assert part.pending == (where,)
    assert value not in repr((await stores.state.load("ada")).state.answered)
    again = await there.execute_turn(None, inputs={where.request_id: "Rome"})
    assert {one.prompt for one in again.pending} == {"", "Where to?"}


async def test_a_key_names_a_turn_without_its_credentials(make_agent, stores):
    """What is stored beside it is the same whatever they are, or they could be guessed from it."""
    agent, [pw, where] = await asked(make_agent, stores, "plain")
    inputs = {pw.request_id: "123456", where.request_id: "Rome"}
    other = {**inputs, pw.request_id: "654321"}
    stream = agent.execute_turn(None, inputs=inputs, idempotency_key="k")
    await stream.accepted()
    beside = await agent.execute_turn(None, inputs=other, idempotency_key="k")
    first = await stream
    assert (first.outcome, beside.turn) == (Outcome.COMPLETED, first.turn)
    there = await make_agent([], tools=TOOLS, stores=stores)
    again = await there.execute_turn(None, inputs=other, idempotency_key="k")
    assert (again.turn, again.text, USED) == (2, "ok", ["123456"])
    for wrong in ({**inputs, where.request_id: "Oslo"}, {where.request_id: "Rome"}):
        with pytest.raises(IdempotencyConflict):
            await there.execute_turn(None, inputs=wrong, idempotency_key="k")


async def test_a_tool_may_ask_on_after_credentials(make_agent, stores):
    """They are still there for the next run, within their time."""
    agent, [request] = await asked(make_agent, stores, "deploy", auth_key=SECRET)
    value = encrypt_credential(TOKEN, request.auth)
    second = await agent.execute_turn(None, inputs={request.request_id: value})
    [where] = second.pending
    there = await make_agent([text("ok")], tools=TOOLS, stores=stores, auth_key=SECRET)
    result = await there.execute_turn(None, inputs={where.request_id: "Rome"})
    assert (told(result.messages), USED) == (["deployed to Rome"], [(TOKEN, "Rome")])
    await assert_whole(stores)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda _: TOKEN,
        lambda _: {"token": TOKEN},
        lambda request: encrypt_credential(TOKEN, request.auth, now=0),
        lambda request: encrypt_credential(TOKEN, request.auth, life_s=0),
        lambda request: encrypt_credential(TOKEN, replace(request.auth, request_id="other")),
        lambda request: encrypt_credential(TOKEN, replace(request.auth, context_id="other")),
        lambda request: encrypt_credential("x" * 70_000, request.auth),
    ],
)
async def test_a_credential_encrypted_for_another_request_is_refused(make_agent, stores, wrong):
    """Before anything is stored, without showing it; the request goes on waiting."""
    agent, [request] = await asked(make_agent, stores, "push", auth_key=SECRET)
    before = await stores.journal.events("ada")
    with pytest.raises(ValueRefused) as refused:
        await agent.execute_turn(None, inputs={request.request_id: wrong(request)})
    assert refused.value.path == f"/inputs/{request.request_id}"
    assert TOKEN not in refused.value.message
    assert await stores.journal.events("ada") == before
    assert agent.state.pending == (request,)


async def test_an_answer_to_one_request_is_refused_by_another(make_agent, stores):
    """Each is bound to its request, though both ask for the same."""
    agent = await make_agent(
        [(tool_call("push"), tool_call("push"))], tools=TOOLS, stores=stores, auth_key=SECRET
    )
    one, two = (await agent.execute_turn("go")).pending
    value = encrypt_credential(TOKEN, one.auth)
    with pytest.raises(ValueRefused):
        await agent.execute_turn(None, inputs={two.request_id: value})
    assert USED == []


async def test_a_credential_is_compared_with_its_request(make_agent, stores):
    """Once it is opened, by the schema; the refusal shows nothing of it."""

    @tool
    async def login(context: ToolContext) -> str:
        """Log in."""
        schema = {"type": "object", "required": ["user", "password"]}
        auth = AuthRequest(type="password")
        found = await context.ask("Password?", auth=auth, schema=schema)
        return f"logged in as {found['user']}"

    agent = await make_agent([tool_call("login"), text("ok")], tools=[login], stores=stores)
    [request] = (await agent.execute_turn("go")).pending
    value = encrypt_credential({"user": TOKEN}, request.auth)
    with pytest.raises(ValueRefused) as refused:
        await agent.execute_turn(None, inputs={request.request_id: value})
    assert TOKEN not in refused.value.message
    value = encrypt_credential({"user": "eva", "password": TOKEN}, request.auth)
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert told(result.messages) == ["logged in as eva"]


async def test_credentials_in_plain_are_used_and_never_stored(make_agent, stores, store_url):
    """Without a key: given to the call, and recorded by nobody."""
    agent, [pw, where] = await asked(make_agent, stores, "plain")
    assert pw.auth is None
    with pytest.raises(ValueRefused, match="are not kept") as refused:
        await agent.execute_turn(None, inputs={pw.request_id: TOKEN})
    assert TOKEN not in refused.value.message
    part = await agent.execute_turn(None, inputs={where.request_id: "Rome"})
    assert part.outcome is Outcome.AUTH_REQUIRED
    result = await agent.execute_turn(None, inputs={pw.request_id: TOKEN})
    assert (result.text, USED) == ("ok", [TOKEN])
    stored = [event_to_json(e) for e in await stores.journal.events("ada")]
    assert TOKEN not in repr([stored, await stores.state.load("ada")])
    for path in [*Path(store_url.removeprefix("sqlite:///")).parent.glob("*db*")]:
        assert TOKEN.encode() not in path.read_bytes()
    await assert_whole(stores)


async def test_credentials_without_the_turns_own_end_it_first(make_agent, stores):
    """A turn that acted for somebody goes on only for somebody; what was sent is kept encrypted."""
    agent = await make_agent(
        [tool_call("push"), text("ok")], tools=TOOLS, stores=stores, auth_key=SECRET
    )
    eva = AuthContext("eva", credentials={"session": "s-1234567890"})
    [request] = (await agent.execute_turn("go", eva)).pending
    value = encrypt_credential(TOKEN, request.auth)
    second = await agent.execute_turn(None, inputs={request.request_id: value})
    assert (second.outcome, USED) == (Outcome.AUTH_REQUIRED, [])
    result = await agent.execute_turn(None, eva)
    assert (result.text, USED) == ("ok", [TOKEN])
    await assert_whole(stores)


async def test_signing_in_with_oauth2(make_agent, stores):
    """The verifier comes back to the tool; the request shows the challenge."""

    @tool
    async def calendar(context: ToolContext) -> str:
        """Read the calendar."""
        if "code" not in context.answers:
            pkce = Pkce()
            auth = AuthRequest(
                type="oauth2",
                provider="cal",
                authorization_endpoint="https://id.example/authorize",
                client_id="c1",
                code_challenge=pkce.challenge,
            )
            raise NeedsInput([Ask("code", auth=auth)], state={"verifier": pkce.verifier})
        pkce = Pkce(context.state["verifier"])
        USED.append((context.answers["code"], pkce.challenge))
        return "free all day"

    agent = await make_agent(
        [tool_call("calendar"), text("ok")], tools=[calendar], stores=stores, auth_key=SECRET
    )
    [request] = (await agent.execute_turn("go")).pending
    assert request.auth.code_challenge_method == "S256"
    value = encrypt_credential({"code": TOKEN}, request.auth)
    result = await agent.execute_turn(None, inputs={request.request_id: value})
    assert told(result.messages) == ["free all day"]
    assert [({"code": TOKEN}, request.auth.code_challenge)] == USED


def test_a_short_auth_key_is_refused():
    """In the constructor."""
    with pytest.raises(ConfigurationError, match="auth_key"):
        Agent("ada", llm_provider="local", auth_key="short")


async def test_the_result_without_the_extra_names_the_extra(make_agent, stores, monkeypatch):
    """No request that nobody could answer; the turn goes on."""
    monkeypatch.setitem(sys.modules, "joserfc.jwe", None)
    agent = await make_agent([tool_call("push"), text("ok")], tools=TOOLS, stores=stores)
    result = await agent.execute_turn("go")
    assert (result.text, result.pending) == ("ok", ())
    assert how_to_install("auth") in told(result.messages)[0]
    await assert_whole(stores)
