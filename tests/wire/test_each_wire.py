"""The three APIs through their real SDKs and real sockets: what holds of each of them."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tests.wire import fake_anthropic, fake_openai, fake_responses
from tests.wire.fake_openai import CUT, DONE, HOLD, Answer, chunk
from tests.wire.three import (
    APIS,
    ASK,
    MODELS,
    client_of,
    drip,
    failing,
    given_up,
    half,
    last_event,
    play,
    provider,
    refuses,
    says,
    server,
    serving,
)

from looopy.errors import (
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingKey,
    RateLimited,
)
from looopy.types.message import StopReason, UserMessage
from looopy.types.request import LLMRequest

KEY = "sk-ant-a-very-secret-key-0123456789"
VENDORS = {"completions": "OPENAI", "responses": "OPENAI", "anthropic": "ANTHROPIC"}
NAMES = {  # of the API and provider in a message, of the model, and of the path
    "completions": ("openai-completions", "openai", "fake", "/v1/chat/completions"),
    "responses": ("openai-responses", "openai", "fake", "/v1/responses"),
    "anthropic": ("anthropic-messages", "anthropic", fake_anthropic.MODEL, "/v1/messages"),
}
RM = '{"path": "/"}'
RM_CALL = {"name": "rm", "arguments": RM}
CUT_CALLS = {  # a call whose arguments look complete
    "completions": [chunk({"tool_calls": [{"index": 0, "id": "c", "function": RM_CALL}]})],
    "responses": list(fake_responses.calls(0, "c", "rm", RM))[:3],
    "anthropic": [fake_anthropic.started(), *fake_anthropic.calls(0, "c", "rm", RM)],
}
BODIES = {  # of an answer that lacks its end
    "completions": [chunk({"content": "all"})],
    "responses": list(fake_responses.speaks(0, "all")),
    "anthropic": [fake_anthropic.started(), *fake_anthropic.text(0, "all")],
}
STOPPED = chunk(finish="stop")
DELTA_ENDS, MESSAGE_ENDS = fake_anthropic.stopped()
ENDS = {  # each enough by itself
    "completions": [[DONE], [STOPPED], [STOPPED, CUT], [DONE.strip()]],
    "responses": [
        *([fake_responses.ends(), *tail] for tail in ([], [CUT], [DONE])),
        [DONE],
    ],
    "anthropic": [[DELTA_ENDS], [DELTA_ENDS, CUT], [DELTA_ENDS, MESSAGE_ENDS, CUT]],
}
GARBAGE = {
    "completions": [fake_openai.event({"choices": [7]})],
    "responses": [b"data: {}\n\n"],
    "anthropic": [
        *map(
            fake_anthropic.event,
            (
                {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta"}},
                {"type": "content_block_delta", "index": 0},
                {"type": "content_block_start", "content_block": {"type": "text"}},
                {"type": "content_block_start", "index": 1, "content_block": "text"},
                {"type": "message_delta"},
            ),
        ),
        fake_anthropic.block(1, {"type": "text", "text": 1})[0],
    ],
}


def each(table):
    """Parameters of a test: each API with each of its entries."""
    return [(api, entry) for api, entries in table.items() for entry in entries]


# --- what comes ------------------------------------------------------------------------------


@APIS
async def test_text_comes_as_the_server_sends_it(api):
    """Deltas arrive one by one; an empty one and a ping are none; the last event has it all."""
    async with serving(api, says(api, "hello big world")) as (served, made):
        events = await play(made)
    assert [e.type for e in events] == [
        "start", "text_start", "text_delta", "text_delta", "text_delta", "text_end", "done",
    ]  # fmt: skip
    assert [e.delta for e in events if e.type == "text_delta"] == ["hello", " big", " world"]
    message = events[-1].message
    assert (message.text, message.stop_reason) == ("hello big world", StopReason.STOP)
    path = served.received[0].path
    assert (message.api, message.provider, message.model, path) == NAMES[api]


@APIS
async def test_a_delta_is_seen_before_the_answer_ends(api):
    """The rest is not sent before the first word was read."""
    go, seen = asyncio.Event(), []
    pieces = list(says(api, "first second").pieces)
    pieces.insert(next(n for n, one in enumerate(pieces) if b"first" in one) + 1, go)
    async with serving(api, Answer(pieces=pieces)) as (_, made):
        async for e in made.stream(ASK):
            if e.type == "text_delta":
                seen.append(e.delta)
                go.set()
    assert seen == ["first", " second"]


@APIS
async def test_a_connection_is_used_again(api):
    """An answer is read to its end, so the next call needs no new connection, whatever its key."""
    async with serving(api, says(api, "one"), says(api, "two")) as (served, made):
        await play(made, api_key="one")
        await play(made, api_key="two")
        assert served.connections == 1


@APIS
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_characters_cut_by_the_network_come_whole(api, line_end):
    """Every byte in its own write, with line separators that JSON need not escape."""
    said = "ß 漢字 🙂 \u2028 end"
    whole = b"".join(says(api, said).pieces).replace(b"\n", line_end)
    async with serving(api, Answer(pieces=[bytes([one]) for one in whole])) as (_, made):
        assert (await last_event(made)).message.text == said


@APIS
async def test_one_provider_serves_many_calls_at_once(api):
    """Answers do not mix."""

    def echo(received):
        body = received.body
        [asked] = body["input" if api == "responses" else "messages"]
        content = asked["content"]
        return says(api, "echo " + (content if isinstance(content, str) else content[0]["text"]))

    async with serving(api, *[echo] * 8) as (_, made):
        asks = [LLMRequest(messages=[UserMessage(f"n{i}")]) for i in range(8)]
        ends = await asyncio.gather(*(last_event(made, ask) for ask in asks))
    assert [end.message.text for end in ends] == [f"echo n{i}" for i in range(8)]


# --- keys --------------------------------------------------------------------------------------


@APIS
async def test_the_key_of_the_call_wins(api):
    """Option, then the provider's own, which may be a function asked each time."""
    keys = iter(["first", "second"])

    async def next_key():
        return next(keys)

    answers = [says(api, "a")] * 3
    async with serving(api, *answers, api_key=next_key) as (served, made):
        await play(made)
        await play(made, api_key="of the call", headers={"X-Trace": "t"})
        await play(made)
    headers = [received.headers for received in served.received]
    wanted = ["first", "of the call", "second"]
    assert [one["authorization"] for one in headers] == [f"Bearer {key}" for key in wanted]
    if api == "anthropic":  # where servers other than Anthropic's look for it
        assert [one["x-api-key"] for one in headers] == wanted
    assert [one.get("x-trace") for one in headers] == [None, "t", None]


@APIS
async def test_the_key_of_the_environment_is_not_sent_to_another_server(api, monkeypatch):
    """A base URL given by hand gets no key that was meant for the vendor."""
    for name in ("API_KEY", "AUTH_TOKEN"):
        monkeypatch.setenv(f"{VENDORS[api]}_{name}", KEY)
    async with serving(api, says(api, "a")) as (served, made):
        await play(made)
    assert KEY not in str(served.received[0].headers)


@APIS
async def test_the_environment_names_server_and_key_together(api, monkeypatch):
    """The key is read anew for each call."""
    async with server(api, says(api, "a"), says(api, "b")) as served:
        monkeypatch.setenv(f"{VENDORS[api]}_BASE_URL", served.url)
        made = provider(api)
        await play(made)
        monkeypatch.setenv(f"{VENDORS[api]}_API_KEY", KEY)
        await play(made)
        await made.aclose()
    sent = [received.headers["authorization"] for received in served.received]
    assert sent == ["Bearer none", f"Bearer {KEY}"]


@APIS
async def test_a_missing_key_names_the_variable(api):
    """At once, unless every call is said to bring its own; then in that call."""
    variable = f"{VENDORS[api]}_API_KEY"
    with pytest.raises(MissingKey, match=variable):
        provider(api)
    last = await last_event(provider(api, api_key=""))
    assert (last.type, last.error.retryable) == ("error", False)
    assert variable in str(last.error)


@APIS
async def test_the_sdk_of_the_user_is_used_as_it_is(api):
    """A client that was passed in keeps its key and stays open."""
    async with server(api, says(api, "a"), says(api, "b")) as served:
        client = client_of(api, served.url)
        made = provider(api, client=client)
        await play(made)
        await made.aclose()
        await play(made)
        await client.close()
    sent = [received.headers["authorization"] for received in served.received]
    assert sent == ["Bearer mine"] * 2


# --- the end of an answer ----------------------------------------------------------------------


@APIS
async def test_a_disconnect_keeps_the_received_text(api):
    """The connection breaks within the answer: worth trying again, the text so far is there."""
    error, message = await failing(api, Answer(pieces=[*half(api), CUT]))
    assert isinstance(error, LLMUnavailable)
    assert error.retryable
    assert (message.text, message.error_message) == ("half", str(error))


@APIS
async def test_a_disconnect_drops_the_call_it_cut(api):
    """A tool call that may lack its end is not announced, though its arguments look complete."""
    _, message = await failing(api, Answer(pieces=[*CUT_CALLS[api], CUT]))
    assert message.content == ()


@APIS
@pytest.mark.parametrize("tail", [[], [CUT]])
async def test_an_answer_without_its_end_is_an_error(api, tail):
    """All of the text may be there: only the end says so."""
    error, message = await failing(api, Answer(pieces=[*BODIES[api], *tail]))
    assert isinstance(error, LLMUnavailable)
    assert message.text == "all"


@pytest.mark.parametrize(("api", "tail"), each(ENDS))
async def test_content_after_the_end_of_an_answer_is_ignored(api, tail):
    """Whatever comes after it, or breaks then."""
    async with serving(api, Answer(pieces=[*BODIES[api], *tail])) as (_, made):
        last = await last_event(made)
    assert (last.type, last.message.text) == ("done", "all")


@APIS
async def test_a_server_that_never_closes_is_not_waited_for(api):
    """After the end only a short while, though the connection stays open."""
    answer = Answer(pieces=[*BODIES[api], ENDS[api][1][0], HOLD])
    async with serving(api, answer) as (served, made):
        last = await last_event(made)
        await served.left.wait()
    assert (last.type, last.message.text) == ("done", "all")


# --- time, and leaving -------------------------------------------------------------------------


@APIS
@pytest.mark.parametrize("by_call", [False, True])
async def test_a_stalled_answer_is_given_up(api, by_call):
    """Silence within an answer: the idle timeout ends it, the provider's or that of the call."""
    answer = Answer(pieces=[*half(api), HOLD])
    own = 600 if by_call else 60
    async with serving(api, answer, idle_timeout_s=own) as (served, made):
        more = {"idle_timeout_s": 60} if by_call else {}
        last = await given_up(made, "text_delta", 61, **more)
        await served.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert last.error.retryable
    assert "silent" in str(last.error)
    assert last.message.text == "half"


@APIS
async def test_a_server_that_never_speaks_is_given_up(api):
    """No byte at all: the same timeout, with more patience."""
    answer = Answer(gate=asyncio.Event())
    async with serving(api, answer) as (served, made):
        last = await given_up(made, served.asked, 181, idle_timeout_s=60)
        await served.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert "silent" in str(last.error)


@APIS
async def test_a_slow_first_byte_is_waited_for(api):
    """The server thinks until it is told to speak; nothing was lost."""
    gate = asyncio.Event()
    slow = Answer(pieces=says(api, "at last").pieces, gate=gate)
    async with serving(api, slow) as (served, made):
        reading = asyncio.create_task(last_event(made))
        await served.asked.wait()
        gate.set()
        assert (await reading).message.text == "at last"


@APIS
async def test_a_call_has_a_total_time(api):
    """A server that keeps talking is cut off at `timeout_s`, however patient a call is."""
    answer = Answer(pieces=[*half(api), *itertools.repeat(drip(api), 400), HOLD])
    async with serving(api, answer) as (served, made):
        last = await given_up(made, served.held, 61, timeout_s=60, idle_timeout_s=600)
        await served.left.wait()
    assert isinstance(last.error, LLMUnavailable)
    assert "time of one call" in str(last.error)


@APIS
@pytest.mark.parametrize("speaks", [True, False])
async def test_cancelling_the_reader_closes_the_connection(api, speaks):
    """The server sees the client leave, though it was silent or has not answered yet."""
    silent = Answer(gate=asyncio.Event())
    answer = Answer(pieces=[*half(api), HOLD]) if speaks else silent
    async with serving(api, answer) as (served, made):
        seen = asyncio.Event() if speaks else served.asked

        async def read():
            async for e in made.stream(ASK):
                if e.type == "text_delta":
                    seen.set()

        reading = asyncio.create_task(read())
        await seen.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await served.left.wait()


@APIS
async def test_closing_the_iterator_closes_the_connection(api):
    """Whoever has read enough may leave."""
    async with serving(api, Answer(pieces=[*half(api), HOLD])) as (served, made):
        async with aclosing(made.stream(ASK)) as events:
            async for e in events:
                if e.type == "text_delta":
                    break
        await served.left.wait()


# --- what fails --------------------------------------------------------------------------------


@APIS
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({}, None),
    ],
)
async def test_a_rate_limit_has_the_delay(api, headers, expected):
    """429 with its header; once only, as the SDK's own retries are off."""
    refusal = refuses(api, 429, "slow down", "rate_limit_error", headers=headers)
    error, _ = await failing(api, refusal)
    assert isinstance(error, RateLimited)
    assert error.retryable
    assert error.retry_after_s == expected


@APIS
async def test_a_rate_limit_may_name_a_date(api):
    """An HTTP date counts from now."""
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    refusal = refuses(api, 429, "slow down", "rate_limit_error", headers={"retry-after": when})
    error, _ = await failing(api, refusal)
    assert 500 < error.retry_after_s <= 600


@APIS
@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_a_server_failure_may_pass(api, status):
    """5xx is worth trying again, whatever the body, 529 (overloaded) too; its header counts."""
    html = Answer(pieces=[b"<h1>Bad day</h1>"], status=status, content_type="text/html")
    told = refuses(api, status, "Bad day", "overloaded_error", headers={"retry-after": "3"})
    for answer, after in ((html, None), (told, 3.0)):
        error, _ = await failing(api, answer)
        assert type(error) is LLMUnavailable
        assert error.retryable
        assert error.facts.get("retry_after_s") == after
        assert "Bad day" in str(error)


@APIS
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_not_shown(api, status):
    """The server quotes the key; the error, its facts and the message do not."""
    refusal = refuses(api, status, f"Incorrect API key: {KEY}", "authentication_error")
    error, message = await failing(api, refusal, api_key=KEY)
    assert type(error) is LLMError
    assert not error.retryable
    assert KEY not in f"{error} {error!r} {error.facts} {message} {error.__cause__}"
    assert "Incorrect API key" in str(error)
    assert ("ANTHROPIC_API_KEY" if api == "anthropic" else "check the key") in str(error)


@APIS
async def test_an_unknown_model_is_named(api):
    """404 says which model, and is not tried again."""
    refusal = refuses(api, 404, "The model does not exist", "not_found_error")
    error, _ = await failing(api, refusal)
    assert type(error) is LLMError
    assert not error.retryable
    assert repr(MODELS.get(api, "fake")) in str(error)


@APIS
async def test_a_refused_connection_is_retryable(api):
    """A refused connection is worth trying again and names the server."""
    async with server(api) as served:
        url = served.url
    made = provider(api, base_url=url)
    last = await last_event(made)
    await made.aclose()
    assert isinstance(last.error, LLMUnavailable)
    assert url.removesuffix("/v1") in str(last.error)


JUNK = [b"data: {not json\n\n", b"data: [1]\n\n", b"data: \xff\xfe\n\n"]


@pytest.mark.parametrize(
    ("api", "piece"), each({api: [*JUNK, *pieces] for api, pieces in GARBAGE.items()})
)
async def test_garbage_is_no_answer(api, piece):
    """What is no event ends the call as an invalid response, the text before it kept."""
    error, message = await failing(api, Answer(pieces=[*half(api), piece]))
    assert isinstance(error, InvalidLLMResponse)
    assert message.text == "half"


@APIS
async def test_a_web_page_is_no_answer(api):
    """A base URL with too much or too little of a path leads to one, and the error says so."""
    page = Answer(pieces=[b"<html>Welcome</html>"], content_type="text/html; charset=utf-8")
    error, _ = await failing(api, page)
    assert isinstance(error, InvalidLLMResponse)
    assert "/v1" in str(error)
