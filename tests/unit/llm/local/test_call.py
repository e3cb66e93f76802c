"""The answer of a model that a grammar holds becomes what any provider would give."""

import signal
from pathlib import Path

import pytest

from looopy.errors import (
    ConfigurationError,
    InvalidLLMResponse,
    LLMError,
    LLMUnavailable,
    MissingExtra,
    UnknownModel,
)
from looopy.llm.accumulate import Accumulator
from looopy.llm.local import LocalProvider
from looopy.llm.local.call import Call
from looopy.llm.local.child import ChildConfig, start_failure
from looopy.llm.local.protocol import build_prompt
from looopy.testing import ScriptedProvider, failure, text
from looopy.types.message import AssistantMessage, StopReason, TextContent, UserMessage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ToolSpec

ADD = ToolSpec(name="add", description="", parameters={"type": "object", "properties": {}})
CONFIG = ChildConfig(path=Path("m.gguf"), name="m", n_ctx=512, threads=1, prompt_threads=1)


class CutAt:
    """A provider whose answer is cut at its length."""

    def __init__(self, said):
        self._said = said

    async def stream(self, request, options):
        yield StreamEvent("text_delta", delta=self._said)
        message = AssistantMessage((TextContent(self._said),), stop_reason=StopReason.LENGTH)
        yield StreamEvent("done", message=message)


async def events_of(caller, *, tools=(ADD,), loose=False, options=None):
    answer = Accumulator(api="", provider="local", model="m")
    options = options or StreamOptions()
    request = LLMRequest(messages=[UserMessage("hi")], tools=tools)
    call = Call(answer, build_prompt(request, options, loose=loose), options)
    return [event async for event in call.events(caller)]


async def test_a_reply_streams_as_text():
    """Its deltas add up to the value of the reply alone."""
    said = text('{"reply": "Hello \\"you\\"!"}')
    events = await events_of(ScriptedProvider([said], chunk_chars=3))
    deltas = [event.delta for event in events if event.type == "text_delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == events[-1].message.text == 'Hello "you"!'
    assert events[-1].message.stop_reason == StopReason.STOP
    assert events[-1].message.usage.output > 0


async def test_a_call_becomes_a_tool_call():
    """With an id of its own, once it is whole."""
    said = text('{"tool": "add", "arguments": {"a": 1}}')
    events = await events_of(ScriptedProvider([said, said], chunk_chars=4, repeat=True))
    kinds = [event.type for event in events]
    assert kinds == ["start", "toolcall_start", "toolcall_delta", "toolcall_end", "done"]
    call = events[-1].message.tool_calls[0]
    assert (call.name, call.arguments) == ("add", {"a": 1})
    assert call.id
    assert events[-1].message.stop_reason == StopReason.TOOL_USE


async def test_a_reply_that_was_cut_is_kept_as_cut():
    """It ends with `length`, like any other answer."""
    events = await events_of(CutAt('{"reply": "Once upon'))
    assert (events[-1].type, events[-1].message.text) == ("done", "Once upon")
    assert events[-1].message.stop_reason == StopReason.LENGTH


async def test_a_call_that_was_cut_is_an_error():
    """Half a call must not run."""
    events = await events_of(CutAt('{"tool": "add", "argum'))
    assert isinstance(events[-1].error, InvalidLLMResponse)
    assert events[-1].message.stop_reason == StopReason.ERROR
    assert not events[-1].message.tool_calls


@pytest.mark.parametrize("said", ["{}", "nonsense", '{"reply": "\\x"'])
async def test_an_answer_of_another_form_is_an_error(said):
    """A grammar should make it impossible; a model may still do it."""
    events = await events_of(ScriptedProvider([text(said)]))
    assert isinstance(events[-1].error, InvalidLLMResponse)


async def test_without_tools_text_passes_as_it_is():
    """Even when it looks like an answer in JSON."""
    events = await events_of(ScriptedProvider([text('{"reply": 1}')]), tools=())
    assert events[-1].message.text == '{"reply": 1}'


async def test_text_of_the_prompt_is_not_repeated():
    """Tools, tool choice and thinking never reach the wire; small models are not left to chance."""
    caller = ScriptedProvider([text('{"reply": "x"}')])
    await events_of(caller, options=StreamOptions(tool_choice="auto", api_key="mine"))
    (request,), (options,) = caller.requests, caller.options
    assert not request.tools
    assert (options.tool_choice, options.api_key, options.temperature) == (None, None, 0.0)
    assert options.output_schema is not None
    assert options.max_tokens == 1024


async def test_a_grammar_that_cannot_be_made_ends_without_an_answer():
    """The same call can then be made loosely; if that fails too, it is an error."""
    refused = LLMError("local refused the request: JSON schema error at #/anyOf/0")
    events = await events_of(ScriptedProvider([failure(refused)]))
    assert [event.type for event in events] == ["start"]
    events = await events_of(ScriptedProvider([failure(refused)]), loose=True)
    assert events[-1].error is refused


@pytest.mark.parametrize(
    ("code", "words", "kind", "hint"),
    [
        (-signal.SIGILL, "", ConfigurationError, "AVX2"),
        (0xC000001D, "", ConfigurationError, "AVX2"),
        (-signal.SIGKILL, "", LLMUnavailable, "memory"),
        (1, "ModuleNotFoundError: No module named 'xllamacpp'", MissingExtra, "needs its runtime"),
        (1, "x\nRuntimeError: Failed to init\n\n", ConfigurationError, "Failed to init"),
    ],
)
def test_a_child_that_does_not_start_reports_the_reason(code, words, kind, hint):
    """The exit code and the last words tell."""
    error = start_failure(CONFIG, code, words)
    assert type(error) is kind
    with pytest.raises(kind, match=hint):
        raise error


def test_a_model_that_is_neither_known_nor_a_path_is_refused_at_once():
    """Without touching the disk."""
    with pytest.raises(UnknownModel, match="no local model is called"):
        LocalProvider("gpt-5")


def test_a_path_names_the_model(tmp_path):
    """Any GGUF will do; its name is the file's."""
    provider = LocalProvider(tmp_path / "mistral-7b.gguf")
    assert (provider.name, provider.model) == ("local", "mistral-7b")
