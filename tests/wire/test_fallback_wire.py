"""A chain of real SDKs: what one server cannot answer, another does."""

from __future__ import annotations

import pytest
from tests.wire.fake_openai import CUT, Answer
from tests.wire.three import APIS, half, last_event, provider, refuses, says, server, serving

from looopy.llm import FallbackProvider

OTHER = {"completions": "responses", "responses": "anthropic", "anthropic": "completions"}


@APIS
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded"),
        (529, "overloaded_error"),
        (404, "not_found_error"),
        (402, "billing_error"),
        (400, "insufficient_quota"),
    ],
)
async def test_a_server_that_cannot_answer_is_passed_over(api, status, kind):
    """By its status; the message names who answered."""
    other = OTHER[api]
    async with (
        serving(api, refuses(api, status, "not now", kind)) as (_, one),
        serving(other, says(other, "here I am")) as (_, two),
    ):
        last = await last_event(FallbackProvider([one, two]))
    assert last.type == "done", last.error
    assert (last.message.text, last.message.provider) == ("here I am", two.name)


@APIS
async def test_a_server_that_is_not_there_is_passed_over(api):
    """Nobody listens."""
    async with server(api) as gone:
        one = provider(api, base_url=gone.url)
    async with serving(OTHER[api], says(OTHER[api], "here I am")) as (_, two):
        last = await last_event(FallbackProvider([one, two]))
    await one.aclose()
    assert last.message.text == "here I am"


@APIS
async def test_a_refused_key_is_not_passed_over(api):
    """It has to be mended where it is; the other is not asked."""
    async with (
        serving(api, refuses(api, 401, "bad key", "authentication_error")) as (_, one),
        serving(OTHER[api]) as (asked, two),
    ):
        last = await last_event(FallbackProvider([one, two]))
    assert last.type == "error"
    assert asked.received == []


@APIS
async def test_an_answer_that_broke_off_is_not_continued(api):
    """Its text was shown."""
    async with (
        serving(api, Answer(pieces=[*half(api), CUT])) as (_, one),
        serving(OTHER[api]) as (asked, two),
    ):
        last = await last_event(FallbackProvider([one, two]))
    assert (last.type, last.message.text) == ("error", "half")
    assert asked.received == []
