"""The table of options in docs/models.md, tried: each option at each provider."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.wire import fake_openai
from tests.wire.three import play, provider, says, server

from looopy import ModelOptions
from looopy.errors import UnsupportedOption
from looopy.llm import FallbackProvider, LocalProvider, PipyProvider, anyllm
from looopy.llm.anyllm import AnyLLMProvider
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.request import LLMRequest, StreamEvent, ThinkingLevel, ToolSpec

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
PROVIDERS = ["completions", "responses", "anthropic", "local", "any-llm", "pipy"]
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED |= {"additionalProperties": False}
VALUES = {
    "model": "another",
    "tool_choice": "required",
    "stop": ["END"],
    "temperature": 0.25,
    "max_tokens": 77,
    "seed": 7,
    "logprobs": 2,
    "strict_tools": True,
    "thinking_level": ThinkingLevel.LOW,
    "headers": {"x-team": "red"},
    "extra_body": {"temperature": 1},
}


def table():
    """Option to the cells of its row."""
    lines = DOCS.read_text().partition("| option | chat completions |")[2].splitlines()[2:]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows[: lines.index("")]}


@asynccontextmanager
async def wired(kind):
    """A provider over a server, and the requests that came to it."""
    api = kind if kind in ("completions", "responses", "anthropic") else "completions"
    said = '{"reply": "ok"}' if kind == "local" else "ok"
    async with server(api, *[says(api, said)] * (len(VALUES) + 1)) as served:
        if kind == "local":
            made = LocalProvider()
            child = SimpleNamespace(key="k" * 20)

            async def serving():
                return child, served.url.removesuffix("/v1")

            made._serving = serving
        else:
            made = provider(api, base_url=served.url)
        try:
            yield made, served.received
        finally:
            if kind == "local":
                made._let_go = None
            await made.aclose()


@asynccontextmanager
async def in_process(kind, monkeypatch):
    """A provider over a function, and what it was called with."""
    received = []
    if kind == "pipy":

        async def astream(model, context, options):
            received.append((model, context, options))
            yield StreamEvent("done", message=AssistantMessage("ok"))

        yield PipyProvider("vendor/model", astream), received
        return
    module = ModuleType("any_llm")

    async def acompletion(**asked):
        received.append(asked)

        async def chunks():
            for piece in (fake_openai.chunk({"content": "ok"}), fake_openai.chunk(finish="stop")):
                data = json.loads(piece.removeprefix(b"data: "))
                yield SimpleNamespace(model_dump=lambda data=data, **_: data)

        return chunks()

    module.acompletion = acompletion
    monkeypatch.setitem(sys.modules, "any_llm", module)
    monkeypatch.setattr(anyllm, "find_spec", lambda _: module)
    yield AnyLLMProvider("mistral:small"), received


def shown(received):
    """All that a provider sent, as text."""
    if hasattr(received, "body"):
        headers = {k: v for k, v in received.headers.items() if k != "content-length"}
        return f"{sorted(headers.items())} {received.path} {received.body}"
    return repr(received)


async def outcome(made, received, option):
    """What became of *option*, and the request that went out."""
    warned = []
    options = {} if option is None else {option: VALUES[option]}
    strict = options.pop("strict_tools", False)
    tool = ToolSpec(name="add", description="Add.", parameters=CLOSED, strict=strict)
    model = options.pop("model", "")
    ask = LLMRequest(messages=[UserMessage("hello")], tools=[tool], model=model)
    before = len(received)
    last = (await play(made, ask, warn=lambda code, _: warned.append(code), **options))[-1]
    sent = [shown(one) for one in received[before:]]
    if last.type == "error":
        assert isinstance(last.error, UnsupportedOption), last.error
        assert (last.error.option, sent) == (option, [])
        assert option in str(last.error)
        return "refused", None
    said = [code for code in warned if code != "logprobs"]  # these servers send none
    assert said in ([], [option])
    return "warned" if said else "sent", sent[0]


@pytest.mark.parametrize("kind", PROVIDERS)
async def test_the_table_equals_the_requests_of_each_provider(kind, monkeypatch):
    """Sent: the request is another one. Refused: before a request. Never dropped unseen."""
    column = PROVIDERS.index(kind)
    found, baseline = {}, None
    opened = in_process(kind, monkeypatch) if kind in ("any-llm", "pipy") else wired(kind)
    async with opened as (made, received):
        for option in (None, *VALUES):
            became, request = await outcome(made, received, option)
            if option is None:
                baseline = request
            elif became == "sent" and request == baseline:
                found[option] = "always" if option == "strict_tools" else "dropped"
            else:
                found[option] = became
    assert found == {option: cells[column] for option, cells in table().items()}


def test_the_table_has_a_row_for_each_option():
    """One that is added to `ModelOptions` is tried here."""
    names = [one.name for one in fields(ModelOptions)]
    assert sorted(table()) == sorted(names) == sorted(VALUES)


async def test_a_chain_does_not_drop_a_model():
    """Each of its providers has a model of its own."""
    async with wired("completions") as (made, received):
        chain = FallbackProvider([made])
        assert await outcome(chain, received, "model") == ("refused", None)
