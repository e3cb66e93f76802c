"""
The log-probabilities of an answer's tokens, as OpenAI's formats and llama.cpp send them.

A message keeps at most a mebibyte of them: the first ones, with a warning if there were more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from looopy.llm.options import left_out
from looopy.types.message import AssistantMessage, TokenLogprob
from looopy.types.request import StreamOptions

MAX_BYTES: Final = 1024 * 1024
"""How much of them a message keeps, as JSON."""
UNLIKELY: Final = -9999.0
"""The number for a token of no probability, as OpenAI writes it."""
_FRAME_BYTES: Final = 48  # of one in JSON, beside its text


class Logprobs:
    """
    The log-probabilities of one answer, as they arrive.

    Args:
        top: How many of the likeliest tokens each one keeps.

    Attributes:
        is_cut: True if some were left out for their size.
    """

    __slots__ = ("_bytes", "_found", "_top", "is_cut")

    def __init__(self, top: int) -> None:
        self._top = top
        self._found: list[TokenLogprob] = []
        self._bytes = 0
        self.is_cut = False

    def add(self, sent: Any) -> None:
        """Add the list that a server sent; what is not a log-probability is left out."""
        for one in sent if isinstance(sent, list) else ():
            if self.is_cut:
                return
            made = _read(one)
            if made is None:
                continue
            others = one.get("top_logprobs")
            kept = map(_read, others[: self._top] if isinstance(others, list) else ())
            top = tuple(other for other in kept if other is not None)
            self.keep([TokenLogprob(made.token, made.logprob, top)])

    def keep(self, found: Iterable[TokenLogprob]) -> None:
        """Add *found*, as far as there is room."""
        for one in found:
            said = [one, *one.top]
            size = sum(_FRAME_BYTES + len(part.token.encode(errors="replace")) for part in said)
            if self._bytes + size > MAX_BYTES:
                self.is_cut = True
                return
            self._bytes += size
            self._found.append(one)

    def all(self) -> Sequence[TokenLogprob]:
        """All that were kept."""
        return tuple(self._found)


def wanted(options: StreamOptions) -> Logprobs | None:
    """The place for the log-probabilities of an answer; `None`: they are not wanted."""
    return None if options.logprobs is None else Logprobs(options.logprobs)


def warn_of_missing(
    options: StreamOptions, kept: Logprobs | None, message: AssistantMessage
) -> None:
    """Warn if a *message* that should have log-probabilities has none, or not all of them."""
    if kept is None:
        return
    if kept.is_cut:
        text = f"the answer has log-probabilities only for its first {len(kept.all())} tokens"
        left_out(options, "logprobs", f"{text}: a message keeps {MAX_BYTES >> 20} MiB of them")
    elif message.text and not message.logprobs:
        who = f"{message.provider}/{message.model}"
        left_out(options, "logprobs", f"{who} sent no log-probabilities, for which it was asked")


def _read(one: Any) -> TokenLogprob | None:
    if not isinstance(one, dict) or not isinstance(token := one.get("token"), str):
        return None
    number = one.get("logprob")
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    try:
        value = float(number)
    except OverflowError:
        value = UNLIKELY
    return TokenLogprob(token, value if math.isfinite(value) else UNLIKELY)
