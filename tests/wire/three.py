"""The three ways to talk to a model over the wire, for what holds of each of them."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_anthropic import FakeAnthropic
from tests.wire.fake_openai import Answer, FakeOpenAI

from looopy.llm.anthropic import AnthropicProvider
from looopy.llm.openai import OpenAIProvider
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest, StreamOptions

APIS = pytest.mark.parametrize("api", ["completions", "responses", "anthropic"])
ASK = LLMRequest(messages=[UserMessage("hello")])
MODELS = {"anthropic": fake_anthropic.MODEL}


def half(api: str) -> list[bytes]:
    """The beginning of an answer: the text `half`."""
    return {
        "completions": [fake_openai.chunk({"content": "half"})],
        "responses": list(fake_responses.speaks(0, "half of it"))[:3],
        "anthropic": [fake_anthropic.started(), *fake_anthropic.text(0, "half of it")[:2]],
    }[api]


def says(api: str, text: str) -> Answer:
    """A whole answer."""
    return {
        "completions": fake_openai.says,
        "responses": fake_responses.replies,
        "anthropic": fake_anthropic.says,
    }[api](text)


def refuses(api: str, status: int, message: str, kind: str = "") -> Answer:
    """A refusal."""
    if api == "anthropic":
        return fake_anthropic.refuses(status, message, kind)
    return fake_openai.refuses(status, message, code=kind)


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


@asynccontextmanager
async def serving(api: str, *answers: Answer, **options):
    """A server with a script, and a provider that talks to it."""
    async with server(api, *answers) as served:
        made = provider(api, base_url=served.url, **options)
        try:
            yield served, made
        finally:
            await made.aclose()


async def last_event(made, request=ASK, **options):
    """The last event of a call."""
    return [e async for e in made.stream(request, StreamOptions(**options))][-1]
