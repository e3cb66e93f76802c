"""OpenAI's tokenizer: loaded once, in a thread, and a failure is an error and no wait."""

from __future__ import annotations

import asyncio
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
    assert tokens.is_missing("unknown")
    assert not tokens.is_missing("gpt")


async def test_a_vocabulary_that_comes_late_is_waited_for_once(tiktoken, monkeypatch):
    """Nobody waits again; once it is there, it counts."""
    came = threading.Event()
    load = tiktoken.encoding_for_model
    tiktoken.encoding_for_model = lambda model: came.wait() and load(model)
    monkeypatch.setattr(tokens, "_PATIENCE_S", 0.0)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="still loading the vocabulary of gpt"):
            await tokens.count("gpt", ["a"])
        assert tokens.is_missing("gpt")
    came.set()
    await asyncio.wrap_future(tokens._encodings["gpt"].loaded)
    assert not tokens.is_missing("gpt")
    assert await tokens.count("gpt", ["a b"]) == [2]


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
    monkeypatch.setattr(tokens, "is_installed", lambda: True)
    with pytest.raises(ConfigurationError):
        await tokens.count("unknown", ["a"])
    lost = OpenAIProvider("unknown", api_key="k")
    assert abilities_of(lost).count_tokens is None


async def test_the_real_package_counts(monkeypatch):
    """With a vocabulary of single bytes and three longer tokens, in the place of OpenAI's own."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([n]): n for n in range(256)}
    ranks |= {b"ab": 256, b"abc": 257, b" ab": 258}
    tiny = tiktoken.Encoding(
        "tiny", pat_str=r" ?[a-z]+|.", mergeable_ranks=ranks, special_tokens={"<|end|>": 259}
    )
    name = tiktoken.encoding_name_for_model("gpt-5-mini")
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, name, tiny)
    monkeypatch.setattr(tokens, "_encodings", {})
    count = abilities_of(OpenAIProvider("gpt-5-mini", api_key="k")).count_tokens
    counted = await count(["", "abc", "abc ab", "xyz", "<|end|>", "\u20ac\ud800", "ab" * 8192])
    assert counted == [0, 1, 2, 3, 7, 6, 8192]
