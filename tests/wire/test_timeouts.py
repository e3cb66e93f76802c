"""Every wait for a model has an end: the rest of what `test_each_wire.py` tests, with the SDKs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.loop_time import advance
from tests.wire.fake_openai import CUT, HOLD, Answer
from tests.wire.three import APIS, client_of, drip, half, last_event, provider, says, serving

from looopy import Agent, LoopConfig, RetryPolicy
from looopy.errors import LLMUnavailable
from looopy.llm.sse import SSEDecoder


@asynccontextmanager
async def deaf():
    """A server that takes connections and never says a word, so that no TLS comes about."""
    held = []

    async def hold(_, writer):
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await asyncio.sleep(0)  # a connection that was just taken is held then
        for writer in held:
            writer.close()
        await asyncio.gather(*(one.wait_closed() for one in held), return_exceptions=True)


@APIS
async def test_a_first_byte_is_no_first_word(api, monkeypatch):
    """After a server's comment the model may still think for as long as before it."""
    advance(0)
    heard, go = asyncio.Event(), asyncio.Event()
    feed = SSEDecoder.feed

    def read(decoder, piece):
        asyncio.get_running_loop().call_soon(heard.set)
        return feed(decoder, piece)

    monkeypatch.setattr(SSEDecoder, "feed", read)
    pieces = [b": thinking\n\n", go, *says(api, "all").pieces]
    async with serving(api, Answer(pieces=pieces)) as (_, made):
        reading = asyncio.create_task(last_event(made, idle_timeout_s=60))
        await heard.wait()
        for _ in range(2):
            advance(60)
            await asyncio.sleep(0)
        go.set()
        last = await reading
    assert (last.type, last.message.text) == ("done", "all"), last.error


@APIS
@pytest.mark.parametrize("own_client", [False, True])
async def test_a_connection_that_does_not_come_about_ends_a_call(api, own_client):
    """The call says how long to wait for it, also of a client that was passed in."""
    async with deaf() as url:
        client = client_of(api, url, timeout=None)
        given = {"client": client} if own_client else {"base_url": url}
        made = provider(api, connect_timeout_s=600, **given)
        last = await last_event(made, connect_timeout_s=0.05)
        await made.aclose()
        await client.close()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert last.error.unbilled
    assert "took no connection within 0.05 s" in str(last.error)


@APIS
async def test_a_turn_sets_them_all(api):
    """From the `LoopConfig` to the wire; the turn fails as it would for any failed call."""
    config = LoopConfig(retry=RetryPolicy(attempts=0), llm_idle_timeout_s=60)
    async with (
        serving(api, Answer(pieces=[*half(api), HOLD])) as (server, made),
        Agent("ada", llm_provider=made, loop_config=config) as agent,
    ):
        stream = agent.execute_turn("go")
        async for event in stream:
            if event.type == "message_update":
                advance(61)
        result = await stream
        await server.left.wait()
    assert "fell silent" in str(result.error)
    assert result.messages[-1].text == "half"


@APIS
async def test_bytes_after_an_answer_do_not_prolong_it(api, monkeypatch):
    """Comments that keep a connection open, after the reason to stop: a short while in all."""
    advance(0)
    feed, fed = SSEDecoder.feed, asyncio.Event()

    def read(decoder, piece):
        fed.set()
        return feed(decoder, piece)

    monkeypatch.setattr(SSEDecoder, "feed", read)
    for module in ("sdk", "openai.provider"):
        monkeypatch.setattr(f"looopy.llm.{module}.DRAIN_WAIT_S", 60.0)
    cues = [asyncio.Event() for _ in range(20)]
    trickle = [piece for cue in cues for piece in (cue, b": still here\n\n")]
    whole = [piece for piece in says(api, "all").pieces if b"[DONE]" not in piece]
    async with serving(api, Answer(pieces=[*whole, *trickle, HOLD])) as (server, made):
        reading = asyncio.create_task(last_event(made, idle_timeout_s=600))
        await server.asked.wait()
        for cue in cues:
            fed.clear()
            cue.set()
            comment = asyncio.create_task(fed.wait())
            await asyncio.wait({reading, comment}, return_when=asyncio.FIRST_COMPLETED)
            comment.cancel()
            if reading.done():
                break
            advance(40)
        assert not cues[-1].is_set()
        last = await reading
    assert (last.type, last.message.text) == ("done", "all")


@APIS
@pytest.mark.parametrize("begun", [False, True])
async def test_pings_alone_do_not_keep_an_answer_open(api, begun, monkeypatch):
    """Comments and pings without end, before the first word and after it."""
    advance(0)
    feed, fed = SSEDecoder.feed, asyncio.Event()

    def read(decoder, piece):
        fed.set()
        return feed(decoder, piece)

    monkeypatch.setattr(SSEDecoder, "feed", read)
    ping = b": still here\n\n" if api == "completions" else drip(api)
    cues = [asyncio.Event() for _ in range(8)]
    pings = [piece for cue in cues for piece in (cue, ping)]
    pieces = [*half(api), *pings, CUT] if begun else [*pings, *says(api, "all").pieces]
    async with serving(api, Answer(pieces=pieces)) as (server, made):
        reading = asyncio.create_task(last_event(made, idle_timeout_s=60))
        await server.asked.wait()
        for cue in cues:
            fed.clear()
            cue.set()
            heard = asyncio.create_task(fed.wait())
            await asyncio.wait({reading, heard}, return_when=asyncio.FIRST_COMPLETED)
            heard.cancel()
            await asyncio.sleep(0)
            advance(50)
        last = await reading
    assert isinstance(last.error, LLMUnavailable)
    assert "fell silent" in str(last.error)
