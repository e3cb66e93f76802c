"""
Call a model: the provider contract, its implementations, and the pure functions around them.

Importing this package imports no vendor's SDK; a provider does when it is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once, and not lazily like the rest: importing the module of this name later would put the
# module in the function's place.
from looopy.llm.render import render

if TYPE_CHECKING:
    from looopy.llm.anthropic.provider import AnthropicProvider
    from looopy.llm.fallback import FallbackProvider
    from looopy.llm.local import LocalProvider
    from looopy.llm.openai.provider import OpenAIProvider
    from looopy.llm.pipy import PipyProvider
    from looopy.llm.provider import LLMProvider
    from looopy.llm.resolve import resolve_provider
    from looopy.llm.thoughts import ThoughtTags
    from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ToolSpec

_HOME = {
    "AnthropicProvider": "looopy.llm.anthropic.provider",
    "FallbackProvider": "looopy.llm.fallback",
    "LLMProvider": "looopy.llm.provider",
    "LLMRequest": "looopy.types.request",
    "LocalProvider": "looopy.llm.local",
    "OpenAIProvider": "looopy.llm.openai.provider",
    "PipyProvider": "looopy.llm.pipy",
    "StreamEvent": "looopy.types.request",
    "StreamOptions": "looopy.types.request",
    "ThoughtTags": "looopy.llm.thoughts",
    "ToolSpec": "looopy.types.request",
    "resolve_provider": "looopy.llm.resolve",
}

__all__ = [
    "AnthropicProvider",
    "FallbackProvider",
    "LLMProvider",
    "LLMRequest",
    "LocalProvider",
    "OpenAIProvider",
    "PipyProvider",
    "StreamEvent",
    "StreamOptions",
    "ThoughtTags",
    "ToolSpec",
    "render",
    "resolve_provider",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
