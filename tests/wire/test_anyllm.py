"""The adapter for any-llm: with the package itself where it is installed, else with its shape."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from tests.wire.three import ADD, ASK, last_event

from looopy.errors import LLMUnavailable, MissingExtra, RateLimited, UnknownModel
from looopy.llm import anyllm
from looopy.llm.anyllm import AnyLLMProvider
from looopy.llm.resolve import resolve_provider
from looopy.types.message import StopReason, Usage
from looopy.types.request import LLMRequest

CALL = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}


class Chunk(SimpleNamespace):
    """A chunk as any-llm gives it: a pydantic model."""

    def model_dump(self, **_):
        return self.data


def chunk(delta, finish=None, **more):
    """One piece of an answer."""
    return Chunk(data={"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


@pytest.fixture
def any_llm(monkeypatch):
    """Its one function; what it was called with, and what it says."""
    module = ModuleType("any_llm")
    module.asked, module.says = [], []

    async def acompletion(**asked):
        module.asked.append(asked)
        said = module.says.pop(0)
        if isinstance(said, Exception):
            raise said

        async def chunks():
            for one in said:
                yield one

        return chunks()

    module.acompletion = acompletion
    monkeypatch.setitem(sys.modules, "any_llm", module)
    monkeypatch.setattr(anyllm, "find_spec", lambda _: module)
    return module


async def test_a_call_goes_through_any_llm_and_back(any_llm):
    """Thinking, text, a tool call and usage; the key and the address are its arguments."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    any_llm.says.append(
        [
            chunk({"role": "assistant", "reasoning": {"content": "hm"}}),
            chunk({"content": "so: "}),
            chunk({"tool_calls": [CALL]}, "tool_calls"),
            Chunk(data={"choices": [], "usage": usage}),
        ]
    )
    made = resolve_provider("any-llm/mistral/small", api_key="k" * 9, base_url="http://x")
    asked = LLMRequest(messages=ASK.messages, tools=[ADD], system_prompt="Be brief.")
    message = (await last_event(made, asked, temperature=0.5, seed=3)).message
    assert (message.thinking_text, message.text) == ("hm", "so: ")
    assert message.stop_reason is StopReason.TOOL_USE
    assert message.tool_calls[0].arguments == {"a": 1}
    assert message.usage == Usage(input=5, output=2, total_tokens=7)
    assert (message.provider, message.model) == ("mistral", "small")
    (sent,) = any_llm.asked
    assert {k: sent[k] for k in ("model", "provider", "stream", "api_key", "api_base")} == {
        "model": "small",
        "provider": "mistral",
        "stream": True,
        "api_key": "k" * 9,
        "api_base": "http://x",
    }
    assert (sent["temperature"], sent["seed"]) == (0.5, 3)
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert sent["tools"][0]["function"]["name"] == "add"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (type("RateLimitError", (Exception,), {"status_code": 429})("wait"), RateLimited),
        (type("APIError", (Exception,), {"status_code": 503})("down"), LLMUnavailable),
        (type("APIConnectionError", (Exception,), {})("refused"), LLMUnavailable),
        (TimeoutError(), LLMUnavailable),
    ],
)
async def test_a_failure_has_its_type(any_llm, error, kind):
    """Whatever SDK it comes from; the key is not in it."""
    error.args = (f"{error.args[0] if error.args else ''} with secret-key-1234",)
    any_llm.says.append(error)
    last = await last_event(AnyLLMProvider("x:y", api_key="secret-key-1234"))
    assert isinstance(last.error, kind)
    assert last.error.retryable
    assert "secret-key" not in str(last.error)


async def test_usage_is_asked_for_where_that_is_taken(any_llm):
    """A provider that refuses the wish is asked again without, and from then on at once."""
    no = type("UnsupportedParameterError", (Exception,), {})("'stream_options' is not supported")
    any_llm.says += [no, [chunk({"content": "a"}, "stop")], [chunk({"content": "b"}, "stop")]]
    made = AnyLLMProvider("x:y")
    for _ in range(2):
        assert (await last_event(made)).type == "done"
    assert ["stream_options" in asked for asked in any_llm.asked] == [True, False, False]


async def test_an_answer_that_just_ends_is_an_error(any_llm):
    """What came is kept."""
    any_llm.says.append([chunk({"content": "half"})])
    last = await last_event(AnyLLMProvider("x:y"))
    assert (last.type, last.message.text) == ("error", "half")
    assert last.error.retryable


async def test_headers_of_a_call_are_refused(any_llm):
    """any-llm has no place for them, and nothing is dropped unseen."""
    last = await last_event(AnyLLMProvider("x:y"), headers={"a": "b"})
    assert "any-llm takes no headers" in str(last.error)
    assert any_llm.asked == []


def test_a_model_without_its_provider_is_refused(any_llm):
    """The message shows the form."""
    del any_llm
    with pytest.raises(UnknownModel, match="mistral:mistral-small"):
        AnyLLMProvider("small")


def test_a_missing_package_is_named(monkeypatch):
    """With both installations that it needs."""
    monkeypatch.setattr(anyllm, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r'packages of its extra "mistral"') as missing:
        AnyLLMProvider("mistral:small")
    assert missing.value.extras == ("any-llm",)
