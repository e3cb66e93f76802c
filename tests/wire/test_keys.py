"""Whose key goes where: the same for every format."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.wire.fake_openai import CUT, Answer
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

from looopy import Agent, LoopConfig, RetryPolicy, StatusChange
from looopy.errors import LLMError, RateLimited

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
AT_ONCE = LoopConfig(retry=RetryPolicy(base_s=0))
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


@contextlib.contextmanager
def gateway(vendor: str, token: str, calls_a_minute: int = 60) -> Iterator[str]:
    """The example of the manual as a process that has the key of *vendor*; gives its address."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOOPY_")}
    env |= {"PORT": "0", "OPENAI_BASE_URL": vendor, "ANTHROPIC_BASE_URL": vendor}
    env |= dict.fromkeys(VARIABLES, KEY)
    env["TOKENS"] = json.dumps({sha256(token.encode()).hexdigest(): calls_a_minute})
    command = [sys.executable, EXAMPLES / "key_gateway.py"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
                said = process.stderr.readline()
                assert said, "the gateway ended before it began"
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()


@APIS
async def test_an_agent_behind_a_gateway_has_a_token_and_no_key(api):
    """The vendor gets the key, the agent's process its answer; a cut answer is asked for again."""
    place = "anthropic" if api == "anthropic" else "openai"
    cut = Answer(pieces=[*half(api), CUT])
    async with server(api, cut, says(api, "well kept"), says(api, "unused")) as served:
        with gateway(served.url, "token-of-billing") as url:
            made = provider(api, base_url=f"{url}/{place}", api_key="token-of-billing")
            async with Agent("billing", llm_provider=made, loop_config=AT_ONCE) as agent:
                turn = agent.execute_turn("hello")
                shown = [event async for event in turn]
                assert (await turn).text == "well kept"
            await made.aclose()
            stranger = provider(api, base_url=f"{url}/{place}", api_key="guessed")
            refused = await last_event(stranger)
            await stranger.aclose()
    assert any(isinstance(event, StatusChange) and event.attempt == 2 for event in shown)
    assert KEY not in repr(shown)
    assert isinstance(refused.error, LLMError)
    assert len(served.received) == 2
    for request in served.received:
        assert KEY in str(request.headers)
        assert "token-of-billing" not in str(request.headers)


@APIS
async def test_a_gateway_limits_the_calls_of_a_token(api):
    """One more is refused, with the time after which it may be made; the vendor sees none."""
    place = "anthropic" if api == "anthropic" else "openai"
    async with server(api, says(api, "one")) as served:
        with gateway(served.url, "token-of-billing", calls_a_minute=1) as url:
            made = provider(api, base_url=f"{url}/{place}", api_key="token-of-billing")
            first, second = await last_event(made), await last_event(made)
            await made.aclose()
    assert first.type == "done", first.error
    assert isinstance(second.error, RateLimited)
    assert 50 < second.error.retry_after_s <= 61
    assert len(served.received) == 1
