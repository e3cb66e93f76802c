"""Answers that a person gives in words, to the one question that waits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from looopy.errors import ValueRefused
from looopy.tools.answering import check_answer
from looopy.types.message import TextContent, UserMessage
from looopy.types.state import PendingKind, PendingRequest

_YES: Final = {"yes": True, "y": True, "no": False, "n": False}


def text_of(message: UserMessage) -> str | None:
    """The text of a message that has nothing else."""
    blocks = message.content
    if isinstance(blocks, str):
        return blocks
    if all(isinstance(block, TextContent) for block in blocks):
        return "".join(block.text for block in blocks if isinstance(block, TextContent))
    return None


def answer_in(message: UserMessage, pending: Iterable[PendingRequest]) -> Mapping[str, Any] | None:
    """
    The answer in a message, if exactly one question waits and the text fits it.

    `None`: it is a message like any other.
    """
    asked = list(pending)
    text = text_of(message)
    if len(asked) != 1 or asked[0].kind is not PendingKind.INPUT or text is None:
        return None
    request = asked[0]
    for value in _readings(text.strip(), request):
        try:
            check_answer(request, value)
        except ValueRefused:
            continue
        return {request.request_id: value}
    return None


def _readings(text: str, request: PendingRequest) -> Iterable[Any]:
    """The values that *text* may stand for, the likeliest first."""
    for option in request.options:
        if isinstance(option, str) and option.casefold() == text.casefold():
            yield option
    if request.schema is not None and text.casefold() in _YES:
        yield _YES[text.casefold()]
    if request.schema is not None or request.options:
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(text)
    yield text
