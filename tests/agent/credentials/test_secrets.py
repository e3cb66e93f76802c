"""Credentials of a turn reach no sink: forty of them, every way to say one, all that is left."""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
from tests.campaign import leaks
from tests.shares import split

from looopy import AuthContext, LoopConfig, ToolResult, tool
from looopy.auth.redaction import Redactor
from looopy.errors import ValueRefused
from looopy.llm.accumulate import Accumulator
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.tools.asking import Ask, NeedsInput
from looopy.types import message as public
from looopy.types.auth import AuthRequest
from looopy.types.config import Hooks
from looopy.types.event import event_to_json
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    CustomMessage,
    DocumentContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.request import StreamEvent
from looopy.types.state import Outcome

SECRET = "s3cret-canary-7b1f"
AUTH = AuthContext("u1", credentials={"token": SECRET})


@pytest.mark.parametrize(
    ("kind", "count", "seed"), split([("sqlite", 20, 0)], [("sqlite", 40, 20), ("psycopg", 20, 40)])
)
def test_no_sink_has_a_secret_at_any_failure(kind, count, seed):
    """A share of the trial: events, results, errors, logs, stderr, the model, every stored byte."""
    tally = leaks.by_store(kind, count, seed)
    assert tally.runs >= count
    assert tally.missed == 0
    assert tally.violations == []


@pytest.mark.parametrize("lives", split([1], [2]))
def test_a_turn_that_was_killed_and_recovered_left_no_secret(lives):
    """Not in the file that the dead left, not in what it wrote on stderr at DEBUG."""
    tally = leaks.killed(lives, 0)
    assert (tally.runs, tally.missed, tally.violations) == (lives, 0, [])


def test_the_trial_finds_secrets_in_every_sink_without_redaction():
    """Where nothing is a secret, every sink has some."""
    tally = leaks.WRONG[0].run(20, 0)
    sinks = {violation.partition("a secret is in ")[2] for violation in tally.violations}
    assert {
        "a cut answer",
        "a cut result",
        "deltas",
        "error of the result",
        "error of the stream",
        "event in JSON",
        "message",
        "result",
        "state",
        "the log",
        "what the model was sent",
    } <= sinks
    assert any("c.db" in sink for sink in sinks)


async def test_the_model_and_the_caller_read_that_something_was_taken_out(make_agent, stores):
    """The rest of a tool's words is what helps to go on."""

    @tool
    async def fetch() -> str:
        """Fail."""
        raise OSError(f"401 for /v1?token={SECRET}: try later")

    agent = await make_agent(
        [tool_call("fetch"), text("later, then")], tools=[fetch], stores=stores
    )
    result = await agent.execute_turn("go", AUTH)
    assert result.messages[2].text == "401 for /v1?token=[redacted]: try later"
    assert agent._core.resources.provider.requests[1].messages[-1].text == result.messages[2].text
    assert await agent.get_messages() == list(result.messages)


class Halting:
    """A model that waits in the middle of a secret, until `go` is set."""

    name = model = "halting"

    def __init__(self):
        self.halfway, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, _request, _options=None):
        """See `LLMProvider.stream`."""
        answer = Accumulator(api="a", provider=self.name, model=self.model)
        for event in answer.text_delta(f"it is {SECRET[:9]}"):
            yield event
        self.halfway.set()
        await self.go.wait()
        for event in answer.text_delta(f"{SECRET[9:]}, they say"):
            yield event
        for event in answer.done(StopReason.STOP, Usage()):
            yield event


async def test_view_that_begins_in_the_middle_of_a_secret_shows_no_part_of_it(make_agent, stores):
    """Nobody saw the first half, so no event was made of it; it is searched all the same."""
    model = Halting()
    agent = await make_agent(model, stores=stores)
    turn = agent.execute_turn("which key?", AUTH)
    await model.halfway.wait()
    view = aiter(turn)
    model.go.set()
    assert "".join([e.delta async for e in view if e.type == "message_update"]) == (
        "[redacted], they say"
    )
    assert (await turn).text == "it is [redacted], they say"


async def test_input_of_the_caller_is_stored_unchanged(make_agent, stores):
    """Message and metadata are the user's own; only what the turn makes of them is searched."""
    agent = await make_agent([text(f"you said {SECRET}")], stores=stores)
    result = await agent.execute_turn(f"it is {SECRET}", AUTH, metadata={"note": SECRET})
    assert result.messages[0].text == f"it is {SECRET}"
    assert result.text == "you said [redacted]"
    (turn,) = await stores.journal.turns("ada")
    assert turn.metadata == {"note": SECRET}


async def test_an_artifact_with_a_credential_is_refused_and_the_turn_continues(make_agent, stores):
    """A changed file would be another file: the tool is told, nothing is written."""
    from looopy import ToolContext

    @tool
    async def save(context: ToolContext) -> str:
        """Save."""
        await context.artifacts.save("config.json", {"key": SECRET})
        return "saved"

    agent = await make_agent([tool_call("save"), text("I cannot")], tools=[save], stores=stores)
    result = await agent.execute_turn("go", AUTH)
    assert "/content: it holds a credential of this turn" in result.messages[2].text
    assert result.text == "I cannot"
    assert await stores.artifacts.list("ada") == []


async def test_the_next_turn_does_not_redact_the_secrets_of_the_last(make_agent, stores):
    """They die with their turn: what was a secret is a word again."""
    words = iter([SECRET, SECRET])

    @tool
    async def read() -> str:
        """Read."""
        return next(words)

    script = [tool_call("read"), text("1"), tool_call("read"), text("2")]
    hooks = Hooks(get_api_key=lambda _, auth: "another-key" if auth is None else SECRET)
    agent = await make_agent(
        script, tools=[read], stores=stores, loop_config=LoopConfig(hooks=hooks)
    )
    first = await agent.execute_turn("go", AuthContext("u1"))
    second = await agent.execute_turn("go")
    assert first.messages[2].text == "[redacted]"
    assert second.messages[2].text == SECRET


def texts_of(kind):
    """The fields of *kind* that may hold text, or anything."""
    hints = get_type_hints(kind)
    said = {one.name: str((hints[one.name], get_args(hints[one.name]))) for one in fields(kind)}
    return [name for name, words in said.items() if "str" in words or "Any" in words]


# Whatever is a message or a part of one; what the caller says is the caller's, a result is ours.
KINDS = [
    kind
    for _, kind in inspect.getmembers(public, inspect.isclass)
    if is_dataclass(kind) and kind.__module__ == public.__name__
]
OF_MODELS = [AssistantMessage, TextContent, ThinkingContent, ToolCall]
OF_MODELS += [ServerToolCall, ServerToolResult, Citation, TokenLogprob]
OF_TOOLS = [ToolResult, TextContent, ImageContent, DocumentContent, AudioContent]
CALLERS_OWN = [UserMessage, CustomMessage, ToolResultMessage]
PLANTED = [(kind, name, "model") for kind in OF_MODELS for name in texts_of(kind)]
PLANTED += [(kind, name, "tool") for kind in OF_TOOLS for name in texts_of(kind)]


def test_every_public_type_with_text_is_planted():
    """A type or a field that is added to the messages is searched here too."""
    with_text = {kind for kind in KINDS if texts_of(kind)}
    assert with_text <= {*OF_MODELS, *OF_TOOLS, *CALLERS_OWN}
    assert (ImageContent, "mime_type", "tool") in PLANTED
    assert (AssistantMessage, "provider", "model") in PLANTED
    assert (ToolCall, "arguments", "model") in PLANTED


_IN_JSON = ("arguments", "details", "item", "raw")


def planted(kind, name):
    """One of *kind* with the secret in this field."""
    value = {"deep": [SECRET]} if name in _IN_JSON else f"a {SECRET} b"
    if name == "url":
        value = f"https://files.test/{SECRET}"
    given = {"id": "c1", "name": "read"} if kind is ToolCall else {}
    if kind is Citation:
        return TextContent("see", citations=(Citation(**{name: value}),))
    if kind is TokenLogprob:
        return AssistantMessage("see", logprobs=(TokenLogprob(**{name: value}, logprob=-1.0),))
    if kind in (DocumentContent, AudioContent) and name != "url":
        given = {"data": "aGk="}
    return kind(**{**given, name: value})


class Says:
    """A model that ends its stream with this message, then says that it is done."""

    name, model = "says", "says-1"

    def __init__(self, message):
        self.messages = [message]
        self.requests = []

    async def stream(self, request, options=None):
        """The next message."""
        self.requests.append(request)
        told = self.messages.pop() if self.messages else AssistantMessage("done")
        yield StreamEvent("done", message=told)


@pytest.mark.parametrize(("kind", "name", "by"), PLANTED)
async def test_no_field_that_a_model_or_a_tool_fills_shows_a_secret(
    make_agent, stores, caplog, kind, name, by, request, backend
):
    """Not in events, results, the log, what the model is sent next, nor in a stored byte."""
    caplog.set_level("DEBUG", logger="looopy")
    one = planted(kind, name)

    @tool(name="read")
    async def read() -> ToolResult:
        """Read."""
        if by == "model":
            return ToolResult("nothing")
        return one if kind is ToolResult else ToolResult([TextContent("see"), one])

    if by == "tool":
        provider = ScriptedProvider([tool_call("read"), text("done"), text("again")])
    else:
        whole = isinstance(one, AssistantMessage)
        provider = Says(one if whole else AssistantMessage([TextContent("see"), one]))
        if kind is AssistantMessage and name == "content":
            provider = Says(AssistantMessage(f"a {SECRET} b"))
    agent = await make_agent(provider, tools=[read], stores=stores)
    stream = agent.execute_turn("go", AUTH)
    shown = [event async for event in stream]
    result = await stream
    await agent.execute_turn("more", AUTH)
    sinks = {
        "events": [repr(shown), *(json.dumps(event_to_json(e), default=repr) for e in shown)],
        "stored events": [repr(e) for e in await stores.journal.events("ada")],
        "stored messages": [repr(m) for m in await stores.messages.list("ada")],
        "result": [repr(result)],
        "log": [caplog.text],
        "requests": [repr(r) for r in provider.requests],
    }
    if backend == "sqlite":
        path = request.getfixturevalue("sqlite_file")
        files = [p for p in path.parent.iterdir() if p.name.startswith(path.name)]
        sinks["file"] = [p.read_bytes().decode("latin-1") for p in files]
    assert [sink for sink, said in sinks.items() if any(SECRET in one for one in said)] == []


def test_log_probabilities_that_spell_a_secret_go():
    """Across several tokens, as models write; or where only an alternative is one."""
    redactor = Redactor()
    redactor.add((SECRET,))
    for found in (
        [TokenLogprob(SECRET[:4], -1.0), TokenLogprob(SECRET[4:], -1.0)],
        [TokenLogprob("a", -1.0, (TokenLogprob(SECRET, -9.0),))],
    ):
        assert redactor.message(AssistantMessage("a", logprobs=tuple(found))).logprobs == ()
    plain = AssistantMessage("a", logprobs=(TokenLogprob("a", -1.0),))
    assert redactor.message(plain) is plain


@pytest.mark.parametrize(
    "change",
    [
        *({"prompt": SECRET}, {"key": SECRET}, {"tool_name": SECRET}),
        {"schema": {"const": SECRET}},
        *({"options": [SECRET]}, {"args": {"x": SECRET}}),
        {"auth": AuthRequest(type="custom", provider=SECRET)},
        {"auth": AuthRequest(type="api-key", provider="p", scopes=[SECRET])},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_no_part_of_a_question_shows_a_secret(make_agent, stores, change):
    """The prompt is redacted; what must be exact is refused, and the model is told so."""

    @tool(name="ask")
    async def asks() -> str:
        """Ask."""
        raise NeedsInput([Ask(**{"key": "k", **change})])

    script = [tool_call("ask"), text("I cannot")]
    agent = await make_agent(script, tools=[asks], stores=stores)
    result = await agent.execute_turn("go", AUTH)
    record = await stores.state.load("ada")
    log = [repr(e) for e in await stores.journal.events("ada")]
    assert not any(SECRET in said for said in (repr(result), repr(record), *log))
    assert bool(result.pending) == ("prompt" in change)


async def test_an_error_of_the_store_that_repeats_a_credential_shows_none(make_agent, stores):
    """Neither in the result, nor in an event, nor in the stored state that explains the failure."""
    spy = SpyStores(stores)
    agent = await make_agent([text("hi"), text("again")], stores=spy.stores)
    asked = []

    def refuse(name, _):
        if name == "commit" and not asked:
            asked.append(name)
            raise ValueRefused(f"/messages/1: {SECRET} will not do", path="/messages/1")

    spy.hook = refuse
    stream = agent.execute_turn("go", AUTH)
    events = [event async for event in stream]
    result = await stream
    assert result.outcome is Outcome.FAILED
    assert "[redacted] will not do" in str(result.error)
    record = await stores.state.load("ada")
    for sink in (repr(result), repr(result.error.facts), repr(events), repr(record)):
        assert SECRET not in sink
    assert "[redacted] will not do" in record.state.error[1]
    assert SECRET not in repr(await stores.journal.events("ada"))
