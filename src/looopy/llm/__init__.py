"""
Call a model: the contract of a provider, its implementations, and pure functions around them.

A provider answers one `LLMRequest` with stream events. It knows no turn, no tool that runs, and no
store. The room may import `auth`, `types` and `errors`, but neither `tools` nor `stores`. Importing
it loads no vendor's SDK; making a provider does. Exports: the names in `__all__`.

- Contract: `provider`. A model's name becomes a provider in `resolve`.
- Providers: `openai/`, `anthropic/`, `local/`, `pipy`, `anyllm`; `fallback`
  asks several in order.
- Request: `render` makes valid messages of any stored log; `dialects` is the table of what each
  server takes; `tool_schemas` mends tools by it; `strict` makes schemas that a server enforces;
  `documents` chooses the documents that an API takes, `options` the options.
- Answer: `sse` reads the bytes, `reader` is the part of a reader that is the same for every format,
  `accumulate` builds the message and its stream events, `calls` its tool calls, `thoughts` finds
  `<think>` tags, `logprobs` reads log-probabilities, `prices` adds the cost by its `price_list`.
- Failure: `failures` turns the status, headers and text of an HTTP error into a typed error;
  `overflow` notices a window that overflowed silently; `retry` decides if the loop calls again,
  and after how many seconds.
- Beside the answer: `limits` reads the rate limits in headers, `served` notices an answer of
  another model.
- `sdk`: the client, key, waits and errors that the providers over an SDK share.

Read `provider`, `render`, `accumulate`, `sdk`, `openai/chat`, `failures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# At once, and not lazily like the rest: importing the module of this name later would put the
# module in the function's place.
from looopy.llm.render import render as render
from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.llm.anthropic.provider import AnthropicProvider as AnthropicProvider
    from looopy.llm.anyllm import AnyLLMProvider as AnyLLMProvider
    from looopy.llm.dialects import Dialect as Dialect
    from looopy.llm.dialects import dialect_of as dialect_of
    from looopy.llm.fallback import FallbackProvider as FallbackProvider
    from looopy.llm.local import LocalProvider as LocalProvider
    from looopy.llm.openai.provider import OpenAIProvider as OpenAIProvider
    from looopy.llm.pipy import PipyProvider as PipyProvider
    from looopy.llm.provider import Abilities as Abilities
    from looopy.llm.provider import LLMProvider as LLMProvider
    from looopy.llm.provider import abilities_of as abilities_of
    from looopy.llm.resolve import resolve_provider as resolve_provider
    from looopy.llm.thoughts import ThoughtTags as ThoughtTags
    from looopy.types.request import LLMRequest as LLMRequest
    from looopy.types.request import RateLimits as RateLimits
    from looopy.types.request import RateQuota as RateQuota
    from looopy.types.request import Reroute as Reroute
    from looopy.types.request import StreamEvent as StreamEvent
    from looopy.types.request import StreamOptions as StreamOptions
    from looopy.types.request import ToolSpec as ToolSpec

_export(
    globals(),
    {
        ".anthropic.provider": ("AnthropicProvider",),
        ".anyllm": ("AnyLLMProvider",),
        ".dialects": ("Dialect", "dialect_of"),
        ".fallback": ("FallbackProvider",),
        ".local": ("LocalProvider",),
        ".openai.provider": ("OpenAIProvider",),
        ".pipy": ("PipyProvider",),
        ".provider": ("Abilities", "LLMProvider", "abilities_of"),
        ".render": ("render",),
        ".resolve": ("resolve_provider",),
        ".thoughts": ("ThoughtTags",),
        "looopy.types.request": (
            "LLMRequest",
            "RateQuota",
            "RateLimits",
            "Reroute",
            "StreamEvent",
            "StreamOptions",
            "ToolSpec",
        ),
    },
)
