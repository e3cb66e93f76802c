"""OpenAI's tokenizer: loaded once, in a thread, and a failure is an error and no wait."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest

from looopy.errors import ConfigurationError
from looopy.llm import abilities_of
from looopy.llm.openai import tokens
from looopy.llm.openai.provider import OpenAIProvider


class _Encoding:
    longest = 0

    def encode_ordinary(self, text):
        self.longest = max(self.longest, len(text))
        return text.split()


@pytest.fixture
def tiktoken(monkeypatch):
    """A package of this name, whose vocabularies have words; it counts how often it loads one."""
    package = ModuleType("tiktoken")
    package.loaded, package.threads, package.encoding = [], [], _Encoding()

    def encoding_for_model(model):
        package.loaded.append(model)
        package.threads.append(threading.current_thread())
        if model == "unknown":
            raise KeyError(model)
        return package.encoding

    package.encoding_for_model = encoding_for_model
    monkeypatch.setitem(sys.modules, "tiktoken", package)
    monkeypatch.setattr(tokens, "is_installed", lambda: True)
    monkeypatch.setattr(tokens, "_encodings", {})
    return package


async def test_a_vocabulary_is_loaded_once_and_not_by_the_loop(tiktoken):
    """Loading may fetch it from the network."""
    assert await tokens.count("gpt", ["a b c", ""]) == [3, 0]
    assert await tokens.count("gpt", ["a"]) == [1]
    assert tiktoken.loaded == ["gpt"]
    assert tiktoken.threads[0] is not threading.current_thread()


async def test_a_long_text_is_counted_in_pieces(tiktoken):
    """A word of a million letters would take minutes."""
    assert await tokens.count("gpt", ["x" * 1_000_000]) == [-(-1_000_000 // 8192)]
    assert tiktoken.encoding.longest == 8192


async def test_a_vocabulary_that_is_missing_is_looked_for_once(tiktoken):
    """Each turn would wait for it again."""
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no vocabulary for unknown"):
            await tokens.count("unknown", ["a"])
    assert tiktoken.loaded == ["unknown"]


@pytest.mark.usefixtures("tiktoken")
async def test_only_models_of_openai_are_counted(monkeypatch):
    """Another server's model has another vocabulary."""
    own = OpenAIProvider("gpt", api_key="k")
    count = abilities_of(own).count_tokens
    assert await count(["a b"]) == [2]
    other = OpenAIProvider("gpt", api_key="k", base_url="http://127.0.0.1:1/v1")
    assert abilities_of(other).count_tokens is None
    monkeypatch.setattr(tokens, "is_installed", lambda: False)
    assert abilities_of(own).count_tokens is None
