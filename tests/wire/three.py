"""The three ways to talk to a model over the wire, for what holds of each of them."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager

import pytest
from tests.loop_time import advance
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_anthropic import FakeAnthropic
from tests.wire.fake_openai import Answer, FakeOpenAI

from looopy.llm.anthropic.provider import AnthropicProvider
from looopy.llm.openai.provider import OpenAIProvider
from looopy.types.message import StopReason, UserMessage
from looopy.types.request import LLMRequest, StreamOptions, ToolSpec

APIS = pytest.mark.parametrize("api", ["completions", "responses", "anthropic"])
ASK = LLMRequest(messages=[UserMessage("hello")])
PNG = base64.b64encode(b"\x89PNG").decode()
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
MODELS = {"anthropic": fake_anthropic.MODEL}


def half(api: str) -> list[bytes]:
    """The beginning of an answer: the text `half`."""
    return {
        "completions": [fake_openai.chunk({"content": "half"})],
        "responses": list(fake_responses.speaks(0, "half of it"))[:3],
        "anthropic": [fake_anthropic.started(), *fake_anthropic.text(0, "half of it")[:2]],
    }[api]


def breaks_off(api: str, message: str) -> bytes:
    """An error within an answer."""
    return {
        "completions": fake_openai.event({"error": {"message": message}}),
        "responses": fake_responses.sse("error", message=message, code="server_error"),
        "anthropic": fake_anthropic.event(
            {"type": "error", "error": {"type": "api_error", "message": message}}
        ),
    }[api]


def says(api: str, text: str) -> Answer:
    """A whole answer."""
    return {
        "completions": fake_openai.says,
        "responses": fake_responses.replies,
        "anthropic": fake_anthropic.says,
    }[api](text)


def drip(api: str) -> bytes:
    """A piece of an answer that says nothing and shows that the server is there."""
    return {
        "completions": fake_openai.chunk({"content": "x"}) + b": still here\n\n",
        "responses": fake_responses.sse("response.in_progress"),
        "anthropic": fake_anthropic.event({"type": "ping"}),
    }[api]


def refuses(api: str, status: int, message: str, kind: str = "", **more) -> Answer:
    """A refusal."""
    if api == "anthropic":
        return fake_anthropic.refuses(status, message, kind, **more)
    return fake_openai.refuses(status, message, code=kind, **more)


def server(api: str, *answers: Answer) -> FakeOpenAI:
    """A server that speaks it."""
    if api == "anthropic":
        return FakeAnthropic(*answers)
    check = fake_responses.check_request if api == "responses" else None
    return FakeOpenAI(*answers, check=check)


def provider(api: str, model: str = "", **options):
    """A provider that speaks it."""
    if api == "anthropic":
        return AnthropicProvider(model or fake_anthropic.MODEL, **options)
    return OpenAIProvider(model or "fake", api=api, **options)


def client_of(api: str, url: str, **options):
    """The SDK of a user, with the key `mine`."""
    import anthropic
    import openai

    kind = anthropic.AsyncAnthropic if api == "anthropic" else openai.AsyncOpenAI
    return kind(api_key="mine", base_url=url, max_retries=0, **options)


@asynccontextmanager
async def serving(api: str, *answers: Answer, **options):
    """A server with a script, and a provider that talks to it."""
    async with server(api, *answers) as served:
        made = provider(api, base_url=served.url, **options)
        try:
            yield served, made
        finally:
            await made.aclose()


async def play(made, request=ASK, **options):
    """All events of one call."""
    return [e async for e in made.stream(request, StreamOptions(**options))]


async def last_event(made, request=ASK, **options):
    """The last event of a call."""
    return (await play(made, request, **options))[-1]


async def given_up(made, event: asyncio.Event | str, seconds: float, **options):
    """
    The last event of a call during which *seconds* pass.

    Args:
        event: When they do: at an event of the server, or a type of event of the call.
    """
    seen = asyncio.Event() if isinstance(event, str) else event

    async def read():
        last = None
        async for last in made.stream(ASK, StreamOptions(**options)):
            if last.type == event:
                seen.set()
        return last

    reading = asyncio.create_task(read())
    await seen.wait()
    advance(seconds)
    return await reading


async def answered(api: str, *answers: Answer, request=ASK, **options):
    """The final message of one call."""
    async with serving(api, *answers) as (_, made):
        last = await last_event(made, request, **options)
    assert last.type == "done", last.error
    return last.message


async def failing(api: str, *answers: Answer, request=ASK, **options):
    """The error that one call ends with, and the message that carries it."""
    async with serving(api, *answers, **options) as (_, made):
        last = await last_event(made, request)
    assert last.type == "error"
    assert last.message.stop_reason == StopReason.ERROR
    return last.error, last.message
