"""
What the vendors behind OpenAI's format refuse, and their clients with the addresses that they have.

Written from the vendors' own documentation, apart from the code that writes requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import openai
import pytest
from tests.wire.fake_openai import FakeOpenAI, check_request

GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai/"
OPENROUTER = "https://openrouter.ai/api/v1"
SKIP = "skip_thought_signature_validator"
USE_INSTEAD = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
    " 'max_completion_tokens' instead."
)
Problems = list[tuple[str, str]]
OPENED: list[Any] = []
"""The clients of the test that runs."""


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    """A client that is passed in stays its owner's to close."""
    yield
    while OPENED:
        await OPENED.pop().close()


class Rerouted(httpx2.AsyncHTTPTransport):
    """Leads every request to a server on loopback; the client believes in its own address."""

    def __init__(self, server: FakeOpenAI) -> None:
        super().__init__()
        self._port = int(server.url.rpartition(":")[2].partition("/")[0])

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it on."""
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._port)
        return await super().handle_async_request(request)


def client_at(url: str, server: FakeOpenAI) -> openai.AsyncOpenAI:
    """The official client of *url*, led to *server*."""
    http = httpx2.AsyncClient(transport=Rerouted(server), trust_env=False)
    return _opened(openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, http_client=http))


def azure_client(server: FakeOpenAI) -> openai.AsyncAzureOpenAI:
    """The official client of Azure, led to *server*."""
    http = httpx2.AsyncClient(transport=Rerouted(server), trust_env=False)
    return _opened(
        openai.AsyncAzureOpenAI(
            api_key="k",
            azure_endpoint="https://mine.openai.azure.com",
            api_version="2025-04-01-preview",
            max_retries=0,
            http_client=http,
        )
    )


def _opened(client: Any) -> Any:
    OPENED.append(client)
    return client


def gemini_3(body: Mapping[str, Any]) -> Problems:
    """Each step since the user's last words has a signature at its first call."""
    problems = check_request(body)
    problems += [(n, f"Unknown name {n!r}") for n in ("prompt_cache_key", "store") if n in body]
    messages = body["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    for i, message in enumerate(messages[last:], last):
        calls = message.get("tool_calls") or ()
        if calls and not signature_of(calls[0]):
            text = "Function call is missing a thought_signature in functionCall parts."
            problems.append((f"messages[{i}]", text))
        known = ("SIG-1", "SIG-2", SKIP)
        if any(signature_of(call) not in (*known, None) for call in calls):
            problems.append((f"messages[{i}]", "Corrupted thought signature."))
    return problems


def signature_of(call: Mapping[str, Any]) -> Any:
    """Google's signature of a call."""
    return call.get("extra_content", {}).get("google", {}).get("thought_signature")


def reasoning_model(body: Mapping[str, Any]) -> Problems:
    """One of OpenAI's own: no `max_tokens`, and efforts of its own."""
    problems = check_request(body)
    if "max_tokens" in body:
        problems.append(("max_tokens", USE_INSTEAD))
    if body.get("reasoning_effort") == "none":
        text = (
            "Unsupported value: 'none' is not supported with the 'gpt-5' model. Supported values"
            " are: 'minimal', 'low', 'medium', and 'high'."
        )
        problems.append(("reasoning_effort", text))
    return problems


def plain_model(body: Mapping[str, Any]) -> Problems:
    """One of OpenAI's that does not reason."""
    problems = check_request(body)
    if "reasoning_effort" in body:
        problems.append(("", "Unrecognized request argument supplied: reasoning_effort"))
    return problems
