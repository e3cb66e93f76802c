"""
A request that silently did not fit into the window.

Most servers refuse such a request, see `looopy.llm.failures`. Some cut it instead and answer the
rest, or have no room left for an answer. Only the count of tokens shows that.

It is separate from `failures` because every turn calls it, and the patterns there take long to
compile.
"""

from __future__ import annotations

from looopy.errors import ContextOverflow
from looopy.types.message import AssistantMessage, StopReason

_FULL = 0.99  # of the window; the rest is too small for an answer


def silent_overflow(message: AssistantMessage, window_tokens: int | None) -> ContextOverflow | None:
    """
    The error for *message* if its request did not fit, or left no room for an answer.

    Args:
        message: A whole answer, with its usage.
        window_tokens: The size of the model's window; `None`: unknown, so there is no error.
    """
    if window_tokens is None:
        return None
    usage = message.usage
    sent = usage.input + usage.cache_read + usage.cache_write
    cut_short = message.stop_reason is StopReason.LENGTH and not usage.output
    if sent <= window_tokens and not (cut_short and sent >= window_tokens * _FULL):
        return None
    return ContextOverflow(
        f"the request took {sent} tokens, and the window of {message.model} holds {window_tokens}:"
        " the model may not have seen all of it",
        provider=message.provider,
        model=message.model,
        limit_tokens=window_tokens,
    )
