"""Every wait for a model has an end that a call can set, through the real SDK."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.wire.fake_openai import HOLD, Answer, FakeOpenAI, chunk
from tests.wire.fake_responses import check_request, speaks

from looopy import Agent, LoopConfig, RetryPolicy
from looopy.errors import LLMUnavailable
from looopy.llm.openai import OpenAIProvider
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest, StreamOptions

ASK = LLMRequest(messages=[UserMessage("hello")])
HALF = {
    "completions": [chunk({"content": "half"})],
    "responses": list(speaks(0, "half of it"))[:3],
}
APIS = pytest.mark.parametrize("api", list(HALF))


@asynccontextmanager
async def serving(api, *answers):
    """A server that stalls, and a provider with patience of its own."""
    check = check_request if api == "responses" else None
    async with FakeOpenAI(*answers, check=check) as server:
        provider = OpenAIProvider("fake", api=api, base_url=server.url)
        try:
            yield server, provider
        finally:
            await provider.aclose()


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
        for writer in held:
            writer.close()


async def ends(provider, **options):
    """The last event of a call."""
    return [e async for e in provider.stream(ASK, StreamOptions(**options))][-1]


@APIS
async def test_silence_within_an_answer_ends_a_call(api):
    """`idle_timeout_s` of the call, not of the provider; what came is kept."""
    async with serving(api, Answer(pieces=[*HALF[api], HOLD])) as (server, provider):
        last = await ends(provider, idle_timeout_s=0.05)
        await server.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert "fell silent" in str(last.error)
    assert last.message.text == "half"


@APIS
async def test_silence_before_an_answer_ends_a_call(api):
    """With more patience, as a model may think."""
    async with serving(api, Answer(gate=asyncio.Event())) as (server, provider):
        last = await ends(provider, idle_timeout_s=0.02)
        await server.left.wait()
    assert "fell silent" in str(last.error)


@APIS
async def test_the_total_time_ends_a_call(api):
    """However patient it is with silence."""
    async with serving(api, Answer(pieces=[*HALF[api], HOLD])) as (server, provider):
        last = await ends(provider, timeout_s=0.2)
        await server.left.wait()
    assert "time of one call" in str(last.error)


@APIS
@pytest.mark.parametrize("own_client", [False, True])
async def test_a_connection_that_does_not_come_about_ends_a_call(api, own_client):
    """The call says how long to wait for it, also of a client that was passed in."""
    import openai

    async with deaf() as url:
        client = openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, timeout=None)
        given = {"client": client} if own_client else {"base_url": url}
        provider = OpenAIProvider("fake", api=api, connect_timeout_s=600, **given)
        last = await ends(provider, connect_timeout_s=0.05)
        await provider.aclose()
        await client.close()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert "took no connection within 0.05 s" in str(last.error)


@APIS
async def test_a_turn_sets_them_all(api):
    """From the `LoopConfig` to the wire; the turn fails as it would for any failed call."""
    config = LoopConfig(retry=RetryPolicy(attempts=0), llm_idle_timeout_s=0.05)
    async with (
        serving(api, Answer(pieces=[*HALF[api], HOLD])) as (server, provider),
        Agent("ada", llm_provider=provider, loop_config=config) as agent,
    ):
        result = await agent.execute_turn("go")
        await server.left.wait()
    assert "fell silent" in str(result.error)
    assert result.messages[-1].text == "half"
