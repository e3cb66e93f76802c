"""
One table of what each server takes: a `Dialect` for each family of servers and models.

Servers of one wire format refuse different things, and refuse the whole request each time. A
request is therefore written by the dialect of its server and model, whichever provider sends it.
The server is known by the host of its address, or else by the name of the provider; some rules
belong to the model, wherever it runs. Each rule has its source, and the day on which it was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError
from looopy.types.constructors import suggesting

Reasoning = Literal["none", "calls", "all"]
Sampling = Literal["free", "quiet", "fixed"]
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "reasoning": get_args(Reasoning),
    "sampling": get_args(Sampling),
}
_NUMBERS: Final = ("call_id_chars", "max_tools")


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """
    The rules of one family of servers: what a request must have, and must not have.

    Give one of your own to a provider, as in `OpenAIProvider("m", dialect=Dialect(...))`, or change
    a known one: `replace(dialect_of(url, name, model), max_tools=None)`.

    Attributes:
        name: For people, such as `"mistral"`.
        reasoning: The assistant messages that must come back with `reasoning_content`: none of
            them, those with tool calls, or all.
        no_reasoning: The reasoning of a message that has none, such as one of another model.
        call_id_chars: Ids of tool calls have exactly so many letters and digits; `None`: any id of
            up to 40 characters.
        alternates: User and assistant take turns, from a user's message on: neighbours of one role
            are sent as one message.
        answers_tools: Between a tool's result and a user's message is an assistant's.
        thoughts_apart: The server counts thoughts in `total_tokens`, not in `completion_tokens`.
        cache_marks: The server caches what precedes a `cache_control`, and nothing without one.
        sampling: The model takes temperature, top_p and log-probabilities: always (`free`), only
            with the effort `none` or the default one (`quiet`), or never (`fixed`).
        choices_at_root: A tool's schema may have `anyOf`, `oneOf` and `allOf` at its root.
        lookaround: The patterns of a schema may look ahead and behind.
        any_keys: The properties of a schema may have any name, not only letters, digits and `_.-`.
        max_tools: The most tools of a request; `None`: no limit is known.
        sources: The addresses of the rules' sources.
        checked: The day on which they were read, such as `"2026-11-29"`.

    Raises:
        ConfigurationError: A rule has a value that it does not take.
        TypeError: A rule is unknown; the message names the one that was probably meant.
    """

    name: str = ""
    reasoning: Reasoning = "none"
    no_reasoning: str = ""
    call_id_chars: int | None = None
    alternates: bool = False
    answers_tools: bool = False
    thoughts_apart: bool = False
    cache_marks: bool = False
    sampling: Sampling = "free"
    choices_at_root: bool = False
    lookaround: bool = False
    any_keys: bool = False
    max_tools: int | None = 128
    sources: tuple[str, ...] = ()
    checked: str = ""

    def __post_init__(self) -> None:
        for rule in fields(self):
            value: Any = getattr(self, rule.name)
            if rule.name in _CHOICES:
                known = value in _CHOICES[rule.name]
                what = " or ".join(map(repr, _CHOICES[rule.name]))
            elif rule.name in _NUMBERS:
                known = value is None or (type(value) is int and value >= 1)
                what = "None or a whole number of at least 1"
            elif isinstance(rule.default, bool):
                known, what = isinstance(value, bool), "True or False"
            else:
                known, what = isinstance(value, type(rule.default)), "a text"
            if not known:
                raise ConfigurationError(f"Dialect({rule.name}={value!r}): it must be {what}")


PLAIN: Final = Dialect()
"""No rule but those of every server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """The rules of a server, and how it is known."""

    dialect: Dialect
    hosts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of providers, ours and any-llm's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The rules of a line of models, at the servers *at*; empty: wherever it runs."""

    models: re.Pattern[str]
    rules: Mapping[str, Any]
    source: str
    at: tuple[str, ...] = ()


_READ: Final = "2026-11-29"
OTHER: Final = "other"
"""The name of the dialect of a server that the table does not know."""
_OPENAI: Final = (
    "https://platform.openai.com/docs/guides/function-calling",
    "https://github.com/vercel/ai/pull/21037",
)
_SERVERS: Final = (
    _Server(
        dialect=Dialect(name="openai", sources=_OPENAI, checked=_READ),
        hosts=(
            *("api.openai.com", "openai.azure.com", "openai.azure.us"),
            *("cognitiveservices.azure.com", "services.ai.azure.com"),
        ),
        names=("azure", "azureopenai"),
    ),
    _Server(
        dialect=Dialect(
            name="google",
            thoughts_apart=True,
            sources=("https://github.com/mozilla-ai/any-llm/pull/1291",),
            checked=_READ,
        ),
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        names=("gemini", "google", "vertexai"),
    ),
    _Server(
        dialect=Dialect(
            name="anthropic",
            lookaround=True,
            max_tools=10_000,
            sources=(
                "https://platform.claude.com/docs/en/managed-agents/self-hosted-sandboxes",
                "https://github.com/dearlordylord/huly-mcp/issues/66",
                "https://github.com/ComposioHQ/composio/issues/3500",
            ),
            checked=_READ,
        ),
        hosts=("api.anthropic.com",),
        names=("anthropic", "azureanthropic", "vertexaianthropic"),
    ),
    _Server(
        dialect=Dialect(
            name="openrouter",
            sources=("https://openrouter.ai/docs/api-reference/overview",),
            checked=_READ,
        ),
        hosts=("openrouter.ai",),
        names=("openrouter",),
    ),
    _Server(
        dialect=Dialect(
            name="litellm",
            alternates=True,
            sources=("https://docs.litellm.ai/docs/completion/prompt_caching",),
            checked=_READ,
        ),
        names=("litellm",),
    ),
    _Server(
        dialect=Dialect(
            name="deepseek",
            reasoning="all",
            sources=("https://api-docs.deepseek.com/guides/thinking_mode",),
            checked=_READ,
        ),
        hosts=("api.deepseek.com",),
        names=("deepseek",),
    ),
    _Server(
        dialect=Dialect(
            name="moonshot",
            reasoning="calls",
            no_reasoning=" ",
            sources=(
                "https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
                "https://github.com/theopenco/llmgateway/pull/2093",
            ),
            checked=_READ,
        ),
        hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com"),
        names=("moonshot", "moonshotai", "kimi"),
    ),
    _Server(
        dialect=Dialect(
            name="mistral",
            call_id_chars=9,
            alternates=True,
            answers_tools=True,
            sources=(
                "https://mistralai.github.io/mistral-common/usage/tools",
                "https://github.com/mistralai/mistral-vibe/issues/1075",
            ),
            checked=_READ,
        ),
        hosts=("api.mistral.ai", "codestral.mistral.ai"),
        names=("mistral", "mistralai"),
    ),
    _Server(
        dialect=Dialect(
            name="xai",
            thoughts_apart=True,
            sources=("https://docs.x.ai/docs/key-information/consumption-and-rate-limits",),
            checked=_READ,
        ),
        hosts=("api.x.ai",),
        names=("xai", "x-ai"),
    ),
    _Server(
        dialect=Dialect(
            name="groq",
            sources=("https://console.groq.com/docs/api-reference",),
            checked=_READ,
        ),
        hosts=("api.groq.com",),
        names=("groq",),
    ),
)
_ELSE: Final = Dialect(
    name=OTHER,
    alternates=True,
    sources=("https://github.com/ggml-org/llama.cpp/issues/19851",),
    checked=_READ,
)
_LOCAL: Final = (OTHER, "litellm")
_LINES: Final = (
    _Line(
        models=re.compile(r"(?:^|/)(?:gpt-5(?![.\d])(?!-chat)|o\d)"),
        rules={"sampling": "fixed"},
        source="https://platform.openai.com/docs/guides/latest-model",
    ),
    _Line(
        models=re.compile(r"(?:^|/)gpt-(?:5\.\d|[6-9])(?!.*chat)"),
        rules={"sampling": "quiet"},
        source="https://github.com/vercel/ai/issues/10932",
    ),
    _Line(
        models=re.compile(r"claude"),
        at=("openrouter", "litellm"),
        rules={"cache_marks": True, "lookaround": True},
        source="https://openrouter.ai/docs/features/prompt-caching",
    ),
    _Line(
        models=re.compile(r"mi[sx]tral|ministral|devstral|magistral|codestral|pixtral"),
        rules={"call_id_chars": 9},
        source="https://github.com/ml-explore/mlx-lm/issues/1375",
    ),
    _Line(
        models=re.compile(r"deepseek-(?:v[4-9]|flash|pro)"),
        at=_LOCAL,
        rules={"reasoning": "all"},
        source="https://github.com/Gitlawb/openclaude/issues/878",
    ),
    _Line(
        models=re.compile(r"kimi-(?:k2\.[5-9]|k2-thinking|k[3-9]|for-coding)"),
        at=_LOCAL,
        rules={"reasoning": "calls", "no_reasoning": " "},
        source="https://github.com/theopenco/llmgateway/pull/2093",
    ),
    _Line(
        models=re.compile(r"kimi-(?:k2\.[5-9]|k[3-9]|for-coding)|^k[3-9]"),
        at=("moonshot",),
        rules={"sampling": "fixed"},
        source="https://github.com/NousResearch/hermes-agent/pull/12566",
    ),
    _Line(
        models=re.compile(r"^moonshot-v1"),
        at=("moonshot",),
        rules={"reasoning": "none"},
        source="https://github.com/continuedev/continue/pull/11806",
    ),
)
_REGIONAL: Final = re.compile(r"[a-z0-9-]+-aiplatform\.googleapis\.com")


@lru_cache(maxsize=512)
def dialect_of(url: str, name: str = "", model: str = "") -> Dialect:
    """
    The dialect of *model* at the server at *url*, or else at the one of the provider's *name*.

    The table is read once for each server and model.
    """
    host = urlsplit(url).hostname or ""
    host = "aiplatform.googleapis.com" if _REGIONAL.fullmatch(host) else host
    found = next((one for one in _SERVERS if _is_at(host, one.hosts)), None)
    name = name.lower()
    if name == "openai" and not host:  # OpenAI's own; a provider of this name may be anywhere
        name = "azure"
    found = found or next((one for one in _SERVERS if name in one.names), None)
    dialect = found.dialect if found else _ELSE
    lowered = model.lower()
    for line in _LINES:
        if (not line.at or dialect.name in line.at) and line.models.search(lowered):
            sources = (*dialect.sources, line.source)
            dialect = replace(dialect, **line.rules, sources=sources)
    return dialect


def as_dialect(dialect: object) -> Dialect | None:
    """*dialect* as a user gave it; `ConfigurationError` if it is not one."""
    if dialect is None or isinstance(dialect, Dialect):
        return dialect
    raise ConfigurationError(
        f"dialect is a {type(dialect).__name__}: give a Dialect, as in Dialect(alternates=True)"
    )


def _is_at(host: str, known: tuple[str, ...]) -> bool:
    return any(host == one or host.endswith(f".{one}") for one in known)
