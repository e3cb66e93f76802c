"""Rate limits and other models, from the servers' responses to the events of a turn."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import openai
import pytest
from tests.agent.kit import look
from tests.wire import fake_anthropic, fake_responses
from tests.wire.fake_openai import FakeOpenAI
from tests.wire.three import APIS, ASK, MODELS, play, refuses, says, server, serving
from tests.wire.vendors import azure_client, closed_clients  # noqa: F401 - a fixture here

from looopy import Agent, LoopConfig, RetryPolicy
from looopy.errors import RateLimited
from looopy.llm import FallbackProvider, OpenAIProvider
from looopy.llm.anyllm import AnyLLMProvider
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.request import RateLimits, RateQuota, Reroute, StreamOptions

KEY = "sk-a-very-secret-key-0123456789"
FORMS = {  # of 3 left of 60, whole again on 2 January 2030
    "completions": {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "1893542400",
    },
    "anthropic": {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2030-01-02T00:00:00Z",
    },
}
FORMS["responses"] = FORMS["completions"]
LOW = RateQuota(kind="requests", left=3, limit=60, resets_at=datetime(2030, 1, 2, tzinfo=UTC))


def limited(api, answer, left=3):
    """*answer* with the headers of a limit."""
    headers = {
        name: str(left) if "remaining" in name else value for name, value in FORMS[api].items()
    }
    return replace(answer, headers=headers)


def by(api, model, said="Hello."):
    """An answer that names its model."""
    if api == "responses":
        begin = fake_responses.sse("response.created", response={"id": "r", "model": model})
        answer = fake_responses.replies(said)
        return replace(answer, pieces=[begin, *answer.pieces[1:]])
    named = MODELS.get(api, "fake").encode()
    answer = says(api, said)
    pieces = [
        piece.replace(b'"' + named + b'"', json.dumps(model).encode()) for piece in answer.pieces
    ]
    return replace(answer, pieces=pieces)


async def reported(made):
    """What a call reports, and the types of its events."""
    told = []
    events = await play(made, report=told.append)
    return told, events[-1]


@APIS
async def test_headers_of_an_answer_are_reported(api):
    """Once for each call, before its first piece."""
    async with serving(api, limited(api, says(api, "Hello."))) as (_, made):
        told = []
        async for event in made.stream(ASK, StreamOptions(report=told.append)):
            assert event.type == "start" or told
    [report] = told
    assert report == RateLimits(provider=made.name, model=made.model, limits=(LOW,))


@APIS
async def test_a_refusal_is_reported_with_its_limits_and_its_time(api):
    """And without headers, as one that names no time."""
    busy = limited(api, refuses(api, 429, "slow down", "rate_limit_error"), left=0)
    busy = replace(busy, headers={**busy.headers, "retry-after": "7"})
    before = datetime.now(UTC)
    for answer in (busy, refuses(api, 429, "slow down", "rate_limit_error")):
        async with serving(api, answer) as (_, made):
            [report], last = await reported(made)
        assert isinstance(last.error, RateLimited)
        assert (report.refused, report.provider, report.model) == (True, made.name, made.model)
        if answer is busy:
            assert report.limits == (replace(LOW, left=0),)
            assert (report.retry_at - before).total_seconds() >= 7
        else:
            assert (report.limits, report.retry_at) == ((), None)


@APIS
async def test_an_answer_without_such_headers_reports_nothing(api):
    """Nor does another failure."""
    answers = [says(api, "Hello."), refuses(api, 500, "broken", "api_error")]
    async with serving(api, *answers) as (_, made):
        assert [(await reported(made))[0] for _ in answers] == [[], []]


async def test_a_refusal_through_any_llm_is_reported(monkeypatch):
    """Its exceptions have the response; of an answer it gives no headers."""
    async with server(
        "completions", limited("completions", refuses("completions", 429, "no"))
    ) as one:
        client = openai.AsyncOpenAI(api_key="k", base_url=one.url, max_retries=0)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(
                model="m",
                messages=[],
                stream=True,
                extra_body={"messages": [{"role": "user", "content": "x"}]},
            )
        await client.close()
    made = AnyLLMProvider.__new__(AnyLLMProvider)
    made.name, made.model = "groq", "m"
    told = []
    made._failure(refused.value, "m", "k", StreamOptions(report=told.append))
    assert [(one.limits, one.refused) for one in told] == [((LOW,), True)]


@APIS
async def test_an_answer_of_another_model_is_reported(api):
    """Before its first piece; a full name is not another model."""
    asked = MODELS.get(api, "fake")
    answers = [by(api, "other-model"), by(api, f"{asked}-2025-01-02"), by(api, KEY)]
    async with serving(api, *answers, api_key=KEY) as (_, made):
        told = []
        async for event in made.stream(ASK, StreamOptions(report=told.append)):
            assert event.type == "start" or told
        assert told == [
            Reroute(asked=f"{made.name}/{asked}", answered=f"{made.name}/other-model", by="server")
        ]
        assert (await reported(made))[0] == []
        assert KEY not in repr((await reported(made))[0])


async def test_a_deployment_of_azure_is_no_other_model():
    """Its name is the user's own."""
    async with FakeOpenAI(by("completions", "gpt-4o-2024-08-06")) as one:
        made = OpenAIProvider("my-deployment", client=azure_client(one))
        told, last = await reported(made)
    assert (told, last.type) == ([], "done")


@APIS
async def test_a_turn_shows_each_limit_and_each_other_model_once(api):
    """The first state, each change, each refusal; and the pair of models."""
    limit = [
        limited(api, by(api, "other-model"), left=50),
        limited(api, by(api, "other-model"), left=49),
        limited(api, by(api, "other-model"), left=3),
        limited(api, refuses(api, 429, "slow down", "rate_limit_error"), left=0),
        limited(api, refuses(api, 429, "slow down", "rate_limit_error"), left=0),
        limited(api, by(api, "other-model"), left=60),
    ]
    calm = LoopConfig(retry=RetryPolicy(base_s=0.0))
    async with (
        serving(api, *limit) as (_, made),
        Agent("c", llm_provider=made, loop_config=calm) as agent,
    ):
        turns = [[event async for event in agent.execute_turn("Hi.")] for _ in range(4)]
    kinds = [[e.type for e in events] for events in turns]
    assert [one.count("rate_limit") for one in kinds] == [1, 1, 1, 3]
    assert [one.count("model_rerouted") for one in kinds] == [1, 1, 1, 1]
    refusals = [e for e in turns[3] if e.type == "rate_limit"]
    assert [(e.refused, e.limits[0].left) for e in refusals] == [(True, 0), (True, 0), (False, 60)]
    assert all(e.seq is None for e in refusals)
    for one in kinds[:3]:
        assert one.index("rate_limit") < one.index("message_update")


async def test_a_turn_of_several_calls_shows_only_news():
    """A limit whose state is the same is not shown again, nor is the same pair of models."""
    left = [50, 49, 3]

    class Reporting(ScriptedProvider):
        async def stream(self, request, options=None):
            quota = replace(LOW, left=left.pop(0))
            options.report(RateLimits(provider="p", model="m", limits=[quota]))
            options.report(Reroute(asked="p/m", answered="p/n", by="server"))
            async for event in super().stream(request, options):
                yield event

    model = Reporting([tool_call("look"), tool_call("look"), text("Done.")])
    async with Agent("c", llm_provider=model, tools=[look]) as agent:
        events = [event async for event in agent.execute_turn("Hi.")]
    assert [e.limits[0].left for e in events if e.type == "rate_limit"] == [50, 3]
    assert [e.answered for e in events if e.type == "model_rerouted"] == ["p/n"]


async def test_a_fallback_that_answers_is_reported():
    """With the failure of the first; the second's limits come too."""
    busy = refuses("completions", 429, "slow down", "rate_limit_error")
    async with (
        serving("completions", busy) as (_, one),
        serving("anthropic", says("anthropic", "Hi.")) as (_, two),
    ):
        told, last = await reported(FallbackProvider([one, two]))
    assert last.message.provider == "anthropic"
    refused, reroute = told
    assert refused.refused
    assert (reroute.asked, reroute.answered) == ("openai/fake", f"anthropic/{fake_anthropic.MODEL}")
    assert (reroute.by, "slow down" in reroute.reason) == ("fallback", True)
