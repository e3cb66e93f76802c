"""The client of the HTTP API against a real server on loopback, through a proxy that cuts."""

from contextlib import aclosing, asynccontextmanager

import pytest
from tests.server.proxy import Proxy
from tests.server.test_wire import TOKEN, World, serving

from looopy.errors import (
    AgentBusy,
    ConfigurationError,
    ContextNotFound,
    InputNotFound,
    ValueRefused,
)
from looopy.server import Client, RequestRefused, ServerUnavailable
from looopy.testing import text
from looopy.types.event import MessageEnd, MessageStart, MessageUpdate, TurnEnd


@asynccontextmanager
async def reaching(world, **options):
    """A client whose connections go through a proxy; gives both."""
    async with (
        serving(world) as (http, _),
        Proxy(lambda: str(http.base_url)) as proxy,
        Client(proxy.url, token=TOKEN, **options) as client,
    ):
        yield client, proxy


async def test_events_come_once_through_cut_connections_and_lost_answers():
    """A request whose answer is lost begins one turn; a cut reader continues behind its place."""
    world, told = World(), []
    async with reaching(world, on_away=told.append) as (client, proxy):
        proxy.lost = 1
        assert await client.begin_turn("trip", "Hello!") == 1
        assert (type(told[0]), told[1]) == (ServerUnavailable, None)
        await world.entered.wait()
        with pytest.raises(AgentBusy) as busy:
            await client.begin_turn("trip", "Again!")
        assert busy.value.turn == 1
        proxy.lost = 1
        await client.steer("trip", "And hurry.", expected_turn=1)
        proxy.lost = 1
        await client.follow_up("trip", "And then?", expected_turn=1)
        seen, answer = [], ""
        async with aclosing(client.events("trip", after=0)) as events:
            async for event in events:
                if event.seq is not None:
                    seen.append(event.seq)
                    proxy.cut()
                    world.go.set()
                match event:
                    case MessageStart():
                        answer = ""
                    case MessageUpdate():
                        answer += event.delta
                    case MessageEnd(message=message) if message.role == "assistant":
                        assert answer in ("", message.text)
                    case TurnEnd():
                        break
        assert seen == list(range(1, seen[-1] + 1))
        assert proxy.connections >= 3
        assert [turn["outcome"] async for turn in client.turns("trip")] == ["completed"]
        messages = [one async for one in client.messages("trip")]
        assert await client.newest_messages("trip", 2) == messages[-2:]
        assert [one["message"]["role"] for one in messages].count("user") == 3
        await client.fork("trip", "copy", at=len(messages))
        page = await client.contexts(limit=1)
        rest = await client.contexts(after=page["next"])
        assert {one["context_id"] for one in page["items"] + rest["items"]} == {"trip", "copy"}
        await client.delete("copy")
        with pytest.raises(ContextNotFound):
            await client.context("copy")
        with pytest.raises(ContextNotFound):
            await anext(client.events("copy"))


async def test_errors_of_the_server_are_those_of_the_library():
    """With the place of a value, and without the token."""
    async with reaching(World([lambda _: text("Hi.")])) as (client, _):
        with pytest.raises(ValueRefused) as refused:
            await client.begin_turn("c", "\ud800")
        assert refused.value.path is not None
        await client.begin_turn("c", "Hello!")
        with pytest.raises(InputNotFound):
            await client.begin_turn("c", inputs={"nobody": True})
        await client.cancel("c")
        async with Client(client.url, token="wrong" * 5) as other:
            with pytest.raises(RequestRefused) as unknown:
                await other.contexts()
            assert (unknown.value.status, unknown.value.code) == (401, "unauthorised")
            assert "wrong" not in f"{other!r} {unknown.value} {unknown.value!r}"
    with pytest.raises(ServerUnavailable):
        async with Client(client.url, token=TOKEN, patience_s=0) as late:
            await late.context("c")


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("sqlite:///chat.db", None),
        ("http://", None),
        ("http://ada:secret@localhost", None),
        ("http://localhost:99999", None),
        ("http://localhost/?token=a", None),
        ("http://localhost", "a b"),
        ("http://localhost", "a\nb"),
        ("http://localhost", ""),
    ],
)
def test_an_address_or_a_token_that_cannot_be_right_is_refused(url, token):
    """Before anything is sent, and without showing a secret."""
    with pytest.raises(ConfigurationError) as refused:
        Client(url, token=token)
    assert "secret" not in str(refused.value)
