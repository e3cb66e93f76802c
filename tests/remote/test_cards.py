"""Cards of remote agents: one costs no more than its tool, and is for those who fetched it."""

from __future__ import annotations

import gc
import json

import pytest
from tests.remote.agents import Cards, card_of, interface_at
from tests.remote.conftest import open_cards

from looopy import AuthContext, LoopConfig
from looopy.errors import ToolServerError
from looopy.testing import text, tool_call
from looopy.tools import RemoteAgent
from looopy.types.context import TurnContext

ALICE = AuthContext("alice", credentials={"token": "token-of-alice-1"})
BOB = AuthContext("bob", credentials={"token": "token-of-bob-22"})

HOSTILE = {
    "port": card_of(supportedInterfaces=[interface_at("http://127.0.0.1:99999/")]),
    "address": card_of(supportedInterfaces=[interface_at("http://[::1/")]),
    "deep": b'{"name": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep in an unknown field": json.dumps(card_of()).encode()[:-1]
    + b', "x": '
    + b'{"a":' * 40_000
    + b"1"
    + b"}" * 40_001,
    "no object": b"[1, 2]",
    "wrong types": card_of(skills={"a": 1}, supportedInterfaces="x"),
    "scheme without fields": card_of(securitySchemes={"x": 5}),
    "empty": {},
    "half a character": b'{"name": "\\ud800"}',
    "not JSON": b"\xff\xfe<html>",
    "number": b'{"name": ' + b"9" * 10_000 + b"}",
    "long": card_of(description="x" * 300_000),
}


def bearer(auth):
    """The header of a turn's user."""
    return {"Authorization": f"Bearer {auth.credentials['token']}"} if auth else {}


def turn(auth):
    """A turn of *auth*."""
    return TurnContext(context_id="ada", auth_context=auth)


async def offered(source, auth):
    """The tools that *source* offers to *auth*, and its warnings."""
    warnings = []
    return await source.list_for(turn(auth), warnings.append), warnings


@pytest.mark.parametrize("name", HOSTILE)
async def test_an_invalid_card_removes_only_its_tool(make_agent, memory_stores, name):
    """The agent starts, and its turn completes with a warning; a required one says why it fails."""
    with open_cards(Cards(lambda _sender: HOSTILE[name])) as url:
        agent = await make_agent([text("ok")], tools=[RemoteAgent(url)], stores=memory_stores)
        events = [event async for event in agent.execute_turn("go")]
        assert events[-1].outcome == "completed"
        [warning] = [e for e in events if e.type == "warning"]
        assert warning.code == "tools_unavailable"
        assert len(warning.text) < 1500
        with pytest.raises(ToolServerError):
            await RemoteAgent(url, required=True).list_tools()


async def test_an_address_that_is_none_is_passed_over(make_agent, memory_stores):
    """Another one of the same card will do; without another, the warning says what is wrong."""
    here = []
    bad = [interface_at("http://127.0.0.1:99999/"), interface_at("http://[::1/")]
    cards = Cards(lambda _sender: card_of(supportedInterfaces=[*bad, *map(interface_at, here)]))
    with open_cards(cards) as url:
        agent = await make_agent([text("ok")], tools=[RemoteAgent(url)], stores=memory_stores)
        events = [event async for event in agent.execute_turn("go")]
        [warning] = [e for e in events if e.type == "warning"]
        assert "without an address that can be used" in warning.text
        here.append(url)
        assert len(await RemoteAgent(url, required=True).list_tools()) == 1


async def test_any_exception_of_the_sdk_removes_only_its_tool(
    monkeypatch, make_agent, memory_stores
):
    """Also when it is no error of its own."""

    async def fetch(agent, headers):
        raise RecursionError("too deep")

    monkeypatch.setattr("looopy.tools.sources.a2a.sdk.fetch_card", fetch)
    source = RemoteAgent("http://127.0.0.1:1")
    agent = await make_agent([text("ok")], tools=[source], stores=memory_stores)
    events = [event async for event in agent.execute_turn("go")]
    [warning] = [e for e in events if e.type == "warning"]
    assert "did not show a card that can be read: too deep" in warning.text
    assert events[-1].outcome == "completed"


@pytest.mark.parametrize("name", ["日本", ""])
async def test_a_name_that_no_model_may_call_is_replaced_by_the_host(name):
    """The tool is offered all the same."""
    here = []
    cards = Cards(lambda _sender: card_of(name=name, supportedInterfaces=[interface_at(here[0])]))
    with open_cards(cards) as url:
        here.append(url)
        [tool] = await RemoteAgent(url, required=True).list_tools()
        assert tool.name == "agent__127_0_0_1__invoke"


async def test_each_set_of_credentials_has_its_own_card():
    """Each set of credentials has its own card, which is fetched once."""
    here = []
    cards = Cards(
        lambda sender: card_of(
            name=f"for {sender.rpartition('-of-')[2][:3]}",
            supportedInterfaces=[interface_at(here[0])],
        )
    )
    with open_cards(cards) as url:
        here.append(url)
        source = RemoteAgent(url, headers=bearer)
        names = [(await offered(source, who))[0][0].name for who in (ALICE, BOB, ALICE, BOB)]
    assert names == ["agent__for_ali__invoke", "agent__for_bob__invoke"] * 2
    assert cards.asked == ["Bearer token-of-alice-1", "Bearer token-of-bob-22"]


async def test_each_set_of_credentials_has_its_own_failure():
    """Bob is not kept from an agent because Alice was refused; she is not asked again at once."""
    here = []

    def card(sender):
        if "alice" in sender:
            return b"no"
        return card_of(supportedInterfaces=[interface_at(here[0])])

    cards = Cards(card)
    with open_cards(cards) as url:
        here.append(url)
        source = RemoteAgent(url, headers=bearer)
        refused, (warning,) = await offered(source, ALICE)
        again, _ = await offered(source, ALICE)
        assert (list(refused), list(again)) == ([], [])
        assert "not on offer" in warning
        [tool], warnings = await offered(source, BOB)
        assert (tool.name, warnings) == ("agent__Front_desk__invoke", [])
    assert cards.asked == ["Bearer token-of-alice-1", "Bearer token-of-bob-22"]


async def test_a_card_that_repeats_a_token_does_not_show_it():
    """Neither in the tool, nor in what is said of a card that is of no use."""
    here = []
    cards = Cards(
        lambda sender: card_of(
            name=sender,
            description=f"you are {sender}",
            supportedInterfaces=[interface_at(here[0])],
        )
    )
    with open_cards(cards) as url:
        here.append(url)
        [tool], _ = await offered(RemoteAgent(url, headers=bearer), ALICE)
        assert "alice" not in f"{tool.name} {tool.description} {tool.label}"
        assert "[redacted]" in tool.description
        here[0] = "http://token-of-alice-1.invalid"
        _, (warning,) = await offered(RemoteAgent(url, headers=bearer), ALICE)
        assert "origins=" in warning
        assert "alice" not in warning


async def test_a_failure_that_is_kept_holds_no_credentials():
    """Neither do the frames of its traceback."""
    source = RemoteAgent("http://127.0.0.1:1", headers=bearer)
    assert await offered(source, ALICE) != ([], [])
    [known] = source._known.values()
    assert known.failure.__traceback__ is None
    assert known.failure.__context__ is None
    gc.collect()
    assert not [one for one in gc.get_objects() if _is_header(one)]


def _is_header(one):
    return type(one) is dict and one.get("Authorization") == "Bearer token-of-alice-1"


async def test_only_so_many_cards_are_kept(monkeypatch):
    """Those used last; a service with many users does not grow for ever."""
    monkeypatch.setattr("looopy.tools.sources.a2a.agent._MAX_KNOWN", 2)
    here = []
    cards = Cards(lambda _sender: card_of(supportedInterfaces=[interface_at(here[0])]))
    with open_cards(cards) as url:
        here.append(url)
        source = RemoteAgent(url, headers=bearer)
        users = [AuthContext(n, credentials={"token": f"token-of-{n}"}) for n in "abcab"]
        for user in users:
            await offered(source, user)
        assert len(source._known) == 2
    assert [one[-1] for one in cards.asked] == list("abcab")


async def test_an_address_that_went_bad_is_a_result(make_agent, memory_stores):
    """A card whose interface leads nowhere costs the call, and the turn goes on."""
    here = []
    cards = Cards(lambda _sender: card_of(supportedInterfaces=[interface_at(here[0])]))
    with open_cards(cards) as url:
        here.append(url)
        agent = await make_agent(
            [tool_call("agent__Front_desk__invoke", prompt="hi"), text("ok")],
            tools=[RemoteAgent(url)],
            stores=memory_stores,
            loop_config=LoopConfig(max_tool_failures=50),
        )
        result = await agent.execute_turn("go")
    assert result.outcome == "completed"
    assert result.iterations[0].tool_results[0].is_error
