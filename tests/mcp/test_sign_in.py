"""MCP servers behind OAuth: the SDK's provider signs the user of a turn in, within limits."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from mcp.shared.auth import OAuthToken
from tests.agent.kit import assert_whole
from tests.mcp.servers import make_workshop, over_http
from tests.mcp.sign_in import Office, OldServer, Tokens, provider_of

from looopy import AuthContext
from looopy.errors import ConfigurationError, SignInFailed, ToolServerError
from looopy.testing import text, tool_call
from looopy.tools import MCPTools
from looopy.types.context import TurnContext
from looopy.types.state import Outcome


@pytest.fixture(scope="module")
def building():
    """A workshop in an office: it, and the address."""
    office = Office(make_workshop().streamable_http_app())
    with over_http(office) as url:
        yield office, f"{url}/mcp"


@pytest.fixture
def office(building):
    """The office, which has seen nobody yet."""
    office, url = building
    office.url, office.says = "", {}
    for one in (office.seen, office.bodies, office.tokens):
        one.clear()
    return office, url


def a_turn(auth=None):
    """A turn, as a source is asked with."""
    return TurnContext(context_id="ada", auth_context=auth)


async def test_each_user_signs_in_and_no_store_holds_a_token(office, make_agent, memory_stores):
    """Once, whatever the number of turns; a provider is made for each use, tokens are kept."""
    office, url = office
    kept = {"ada": Tokens(), "bob": Tokens()}
    source = MCPTools(url=url, auth=lambda who: provider_of(url, who.actor_id, kept[who.actor_id]))
    assert await source.list_tools() == []  # nobody has come yet
    for name in ("ada", "bob", "ada"):
        agent = await make_agent(
            [tool_call("whoami"), text("ok")],
            tools=[source],
            stores=memory_stores,
            context_id=name,
        )
        result = await agent.execute_turn("go", AuthContext(name))
        # The server says it back, and it is not shown: it is a secret.
        assert result.iterations[0].tool_results[0].text == "Bearer [redacted]"
        assert kept[name].tokens.access_token == f"token-for-{name}-code"
        await agent.shutdown()
    paths = [path for path, _ in office.seen]
    assert paths.count("/token") == 2
    stored = [await memory_stores.journal.events(name) for name in kept]
    assert "token-for" not in repr(stored)
    assert "refresh-me" not in repr(stored)
    await assert_whole(memory_stores, "ada")


async def test_turns_of_two_users_at_a_time_do_not_mix(office):
    """Each has a connection, whose requests bear the tokens of one."""
    office, url = office
    source = MCPTools(url=url, auth=lambda who: provider_of(url, who.actor_id))
    async with source:
        turns = [a_turn(AuthContext(name)) for name in ("ada", "bob")]
        lists = await asyncio.gather(*(source.list_for(turn, pytest.fail) for turn in turns))
        assert all(lists)
        assert len(source.pool._links) == 2
        for link in source.pool._links.values():
            assert "token-for" not in repr(vars(link)) + repr(vars(link.connection()))


HOSTILE = {
    "huge": ({"/token": b'{"x": "' + b"x" * 300_000 + b'"}'}, "an answer is longer than"),
    "deep": ({"/token": b"[" * 100_000}, "OAuthToken"),
    "wrong types": ({"/token": {"access_token": ["sesame-1"], "token_type": 5}}, "OAuthToken"),
    "no JSON": ({"/token": b"\xff<html>"}, "OAuthToken"),
    "moved": ({"/token": (307, "http://127.0.0.1:1/token")}, r"\(307\)"),
    "huge metadata": ({"/prm": b'"' + b"x" * 300_000 + b'"'}, "an answer is longer than"),
    "huge client": ({"/register": b'"' + b"x" * 300_000 + b'"'}, "an answer is longer than"),
    "deep client": ({"/register": b"[" * 100_000}, "sign in"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_any_bad_answer_of_an_authorization_server_is_a_typed_error(office, name):
    """Which says that the user is not signed in, in a line, without a token."""
    office, url = office
    office.says, said = HOSTILE[name]
    async with MCPTools(url=url, name="crm", auth=provider_of(url), required=True) as source:
        with pytest.raises(SignInFailed, match=said) as failed:
            await source.list_tools()
    assert str(failed.value).startswith("the MCP server 'crm' did not let the user sign in: ")
    assert len(str(failed.value)) < 500
    assert "sesame-1" not in str(failed.value)
    assert failed.value.outcome_known


@pytest.mark.parametrize(
    "says",
    [{"/prm": b'{"a":' * 50_000}, {"/.well-known/oauth-authorization-server": [1]}],
)
async def test_metadata_that_is_none_leads_nowhere(office, says):
    """The sign-in stays with the server itself, as MCP of 2025 began."""
    office, url = office
    office.says = says
    async with MCPTools(url=url, auth=provider_of(url), required=True) as source:
        assert await source.list_tools()


async def test_a_sign_in_goes_where_it_was_allowed_to_go(office):
    """A server that names another place gets neither code nor token there; a list allows it."""
    office, url = office
    elsewhere = Office(None)
    with over_http(elsewhere) as there:
        office.url = there
        async with MCPTools(url=url, auth=provider_of(url), required=True) as source:
            with pytest.raises(SignInFailed, match=rf"leads to {there}: allow it by origins="):
                await source.list_tools()
        assert elsewhere.seen == []
        elsewhere.tokens = office.tokens
        async with MCPTools(url=url, auth=provider_of(url), origins=[there]) as source:
            assert await source.list_tools()
        assert ("/token", None) in elsewhere.seen


async def test_a_turn_without_a_person_to_sign_in_has_no_tools_of_the_server(
    office, make_agent, memory_stores
):
    """With a warning; a function of the application that fails does no more."""
    _office, url = office
    sources = [
        MCPTools(url=url, name="a", auth=lambda _who: provider_of(url, signs_in=False)),
        MCPTools(url=url, name="b", auth=lambda who: who.credentials["other"]),
        MCPTools(url=url, name="c", auth=lambda _who: "Bearer me"),
    ]
    agent = await make_agent([text("ok")], tools=sources, stores=memory_stores)
    events = [event async for event in agent.execute_turn("go", AuthContext("ada"))]
    said = [e.text for e in events if e.type == "warning"]
    assert "did not let the user sign in: No redirect handler" in said[0]
    assert "its auth could not be made: KeyError" in said[1]
    assert "auth must return an httpx2.Auth, not str" in said[2]
    assert events[-1].outcome == "completed"


LOST = {
    "no token": (None, None, False),
    "refresh refused": ("stale", "refresh-9", False),
    "refused after the sign-in": ("stale", None, True),
}


@pytest.mark.parametrize("name", LOST)
async def test_a_lost_sign_in_leaves_the_call_open(office, make_agent, memory_stores, name):
    """The turn ends as `auth_required`, and says why; a new sign-in continues with the call."""
    office, url = office
    token, refresh, signs_in = LOST[name]
    kept = Tokens()

    def sign_in(access, refresh_token=None):
        kept.tokens = access and OAuthToken(access_token=access, refresh_token=refresh_token)

    def ask(_request):
        office.tokens.clear()  # between the list of tools and the call
        office.says["/token"] = {"access_token": "of-no-use", "token_type": "Bearer"}
        if not signs_in:
            office.says["/token"] = (400, "")
        sign_in(token, refresh)
        return tool_call("whoami")

    def source():
        auth = partial(provider_of, url, tokens=kept, signs_in=signs_in)
        return MCPTools(url=url, name="crm", auth=lambda _who: auth())

    office.tokens.add("good")
    sign_in("good")
    ada = AuthContext("ada")
    agent = await make_agent([ask], tools=[source()], stores=memory_stores)
    turn = agent.execute_turn("go", ada)
    warned = [e.text async for e in turn if e.type == "warning"]
    ended = await turn
    assert (ended.outcome, ended.pending, ended.error) == (Outcome.AUTH_REQUIRED, (), None)
    assert "'crm' did not let the user sign in" in warned[0]
    assert warned[0].endswith("sign the user in, then call execute_turn(None)")
    assert "good" not in warned[0]
    again = await agent.execute_turn(None, ada)  # it is no use yet
    assert again.outcome is Outcome.AUTH_REQUIRED
    await agent.shutdown()
    office.tokens.add("better")
    sign_in("better")
    agent = await make_agent([text("ok")], tools=[source()], stores=memory_stores)
    result = await agent.execute_turn(None, ada)
    [said] = result.iterations[0].tool_results
    assert (result.text, said.text, said.is_error) == ("ok", "[redacted]", False)
    await assert_whole(memory_stores, agent.context_id)


@pytest.mark.parametrize(
    "options",
    [
        {"command": "x", "auth": lambda _who: None},
        {"url": "http://x", "auth": "Bearer me"},
        {"url": "http://x", "origins": "http://y"},
        {"url": "http://x", "origins": ["y"]},
        {"command": "x", "protocol": "sse"},
    ],
)
async def test_options_that_make_no_sense_are_refused(options):
    """At once, with the way out."""
    with pytest.raises(ConfigurationError, match="MCPTools"):
        MCPTools(**options)


# --- the transport of 2024 ----------------------------------------------------------------------


async def test_a_server_of_the_old_transport_is_named_and_can_be_used(desk):
    """The error says the option; with it, calls, failures and the end of the server are as ever."""
    with over_http(OldServer()) as url:
        async with MCPTools(url=f"{url}/sse", name="old", required=True) as source:
            with pytest.raises(ConfigurationError, match="'old' speaks only the old SSE transport"):
                await source.list_tools()
        source = MCPTools(url=f"{url}/sse", name="old", protocol="sse")
        (said, lost), _ = await desk.ask(source, tool_call("say"), tool_call("fall"))
        assert (said.text, said.is_error) == ("fine", False)
        assert "outcome of this call is unknown" in lost.text


async def test_an_old_server_that_refuses_is_a_typed_error(office):
    """As over the newer transport."""
    _office, url = office
    async with MCPTools(url=url, protocol="sse", required=True) as source:
        with pytest.raises(ToolServerError, match="HTTP 401"):
            await source.list_tools()
