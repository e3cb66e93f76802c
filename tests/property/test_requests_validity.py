"""
Whatever a log holds and whatever window of it is shown, what goes over the wire is a valid request.

`test_provider_validity` judges what is rendered; here each provider's own format is written from
it, and judged by the rules of its server, which share no code with ours. A format joins by one line
in `READERS`. Set `LOOOPY_EXAMPLES` for a longer search; `many.py` goes through more in less time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.property.histories import CLAUDE, GPT, Maker, damaged
from tests.property.strict import check_openai
from tests.shares import examples
from tests.wire import fake_openai, fake_responses
from tests.wire.anthropic_rules import check_body

from looopy.history.window import visible
from looopy.llm.anthropic import format as anthropic_format
from looopy.llm.anthropic.models import abilities_of
from looopy.llm.openai import chat as chat_format
from looopy.llm.openai import responses_format
from looopy.llm.render import render
from looopy.types.config import LoopConfig
from looopy.types.message import AssistantMessage, Message, ThinkingContent
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel, ToolSpec

search = settings(database=None, max_examples=examples(25))
limits = st.builds(
    LoopConfig,
    max_messages=st.none() | st.integers(1, 12),
    history_tokens=st.none() | st.integers(1, 120),
)
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
options = st.builds(
    StreamOptions,
    thinking_level=st.none() | st.sampled_from(ThinkingLevel),
    temperature=st.none() | st.just(0.5),
    max_tokens=st.none() | st.integers(1, 9000),
    tool_choice=st.none() | st.sampled_from(["auto", "none", "required", "add"]),
)
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Reader:
    """
    A model that is asked, and how its requests are written and judged.

    Attributes:
        write: The body of a request.
        refuse: What the server would refuse in it; given also the thoughts that are really the
            model's own, as pairs of text and signature.
    """

    name: str
    maker: Maker
    write: Callable[[LLMRequest, StreamOptions], Body]
    refuse: Callable[[Body, set[tuple[str, str | None]]], Sequence[Any]]


def _claude(model: str) -> Reader:
    def write(request: LLMRequest, options: StreamOptions) -> Body:
        abilities = abilities_of(model)
        return anthropic_format.to_body(request, options, model=model, abilities=abilities)[0]

    def refuse(body: Body, own: set[tuple[str, str | None]]) -> Sequence[str]:
        return check_body(body, verify=lambda thought, signed: (thought, signed) in own)

    return Reader(model, Maker(CLAUDE.provider, model, CLAUDE.api, CLAUDE.sign), write, refuse)


def _gpt(
    name: str, to_body: Any, refuse: Callable[[Body], Sequence[Any]], *, official: bool
) -> Reader:
    def write(request: LLMRequest, options: StreamOptions) -> Body:
        facts = {"provider": GPT.provider, "model": GPT.model, "official": official}
        return to_body(request, options, **facts)[0]

    return Reader(name, GPT, write, lambda body, _: refuse(body))


def _refused_by_chat(body: Body) -> Sequence[Any]:
    return [*fake_openai.check_request(body), *check_openai(body["messages"])]


READERS = [
    _claude("claude-sonnet-4-5"),
    _claude("claude-opus-4-6"),
    _claude("claude-sonnet-5-5"),
    _gpt("chat", chat_format.to_body, _refused_by_chat, official=False),
    _gpt("responses", responses_format.to_body, fake_responses.check_request, official=True),
]
readers = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


def thoughts_of(log: Sequence[Message], reader: Reader) -> set[tuple[str, str | None]]:
    """Text and signature of each thought in *log* that the reader's own provider made."""
    return {
        (block.thinking, block.thinking_signature)
        for m in log
        if isinstance(m, AssistantMessage) and m.provider == reader.maker.provider
        for block in m.content
        if isinstance(block, ThinkingContent)
    }


@search
@given(st.data(), limits, options, st.booleans(), st.booleans())
@readers
def test_any_log_goes_out_valid(
    reader: Reader,
    data: st.DataObject,
    config: LoopConfig,
    options: StreamOptions,
    strict: bool,
    tools: bool,
) -> None:
    """Cut, with holes, of several models, at any window, with any options, tools or none."""
    log = data.draw(damaged(by=reader.maker))
    shown = render(
        visible(log, config),
        provider=reader.maker.provider,
        model=reader.maker.model,
        strict=strict,
    )
    assume(shown)  # a turn begins with what a user says
    request = LLMRequest(messages=shown, tools=(ADD,) if tools else (), system_prompt="Be brief.")
    body = reader.write(request, options)
    assert reader.refuse(body, thoughts_of(log, reader)) == []


@search
@given(st.data())
@readers
def test_a_request_for_one_provider_is_repaired_for_another(
    reader: Reader, data: st.DataObject
) -> None:
    """A context goes on with another model: nothing of the first is sent that only it may read."""
    other = GPT if reader.maker is not GPT else CLAUDE
    log = data.draw(damaged(by=other))
    shown = render(log, provider=reader.maker.provider, model=reader.maker.model)
    assume(shown)
    request = LLMRequest(messages=shown, tools=(ADD,))
    body = reader.write(request, StreamOptions(thinking_level=ThinkingLevel.HIGH))
    assert reader.refuse(body, set()) == []
    assert "hm" not in [block.get("thinking") for block in _parts(body)]


def _parts(body: Body) -> list[Mapping[str, Any]]:
    contents = [message.get("content") for message in body.get("messages", ())]
    return [part for content in contents if isinstance(content, list) for part in content]
