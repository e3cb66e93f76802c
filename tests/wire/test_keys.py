"""Whose key goes where: the same for every format."""

from __future__ import annotations

from tests.wire.fake_openai import Answer
from tests.wire.three import (
    APIS,
    breaks_off,
    client_of,
    half,
    last_event,
    provider,
    says,
    server,
    serving,
)

VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
KEY = "a-very-secret-key-0123456789"


@APIS
async def test_a_client_of_ones_own_gets_no_key_of_the_environment(api, monkeypatch):
    """Its own key is sent, to a server that it alone knows."""
    for name in VARIABLES:
        monkeypatch.setenv(name, KEY)
    async with server(api, says(api, "ok")) as served:
        client = client_of(api, served.url)
        last = await last_event(provider(api, client=client))
        await client.close()
    assert last.type == "done", last.error
    assert KEY not in str(served.received[0].headers)
    assert "mine" in str(served.received[0].headers)


@APIS
async def test_where_every_call_brings_its_key_none_is_taken_from_the_environment(api, monkeypatch):
    """`api_key=""`: a call that brings none fails, and nothing is sent."""
    async with server(api) as served:
        for name in VARIABLES:
            monkeypatch.setenv(name, KEY)
        last = await last_event(provider(api, api_key=""))
    assert last.type == "error"
    assert "no API key" in str(last.error)
    assert served.received == []


@APIS
async def test_an_error_of_the_connection_that_repeats_the_key_shows_none(api):
    """A key with a line break cannot be a header, and the transport says which it was."""
    async with server(api) as served:
        made = provider(api, base_url=served.url, api_key=f"{KEY}\nx")
        last = await last_event(made)
        await made.aclose()
    assert last.type == "error"
    assert served.received == []
    assert KEY not in f"{last.error} {last.error!r} {last.error.facts} {last.message}"


@APIS
async def test_an_error_within_an_answer_that_repeats_the_key_shows_none(api):
    """As servers do that say which key is out of credit."""
    broken = Answer(pieces=[*half(api), breaks_off(api, f"the key {KEY} is out of credit")])
    async with serving(api, broken, api_key=KEY) as (_, made):
        last = await last_event(made)
    assert last.type == "error"
    assert "out of credit" in str(last.error)
    assert KEY not in f"{last.error} {last.error!r} {last.error.facts} {last.message}"
