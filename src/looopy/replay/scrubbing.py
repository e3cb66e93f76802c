"""
Replace the contents of a recording, so that it can be beside the tests.

Each text becomes `text-N` and each number N, the same one wherever it occurs. So two calls that
differed still differ. Names of tools and models, ids of calls, usage and the order of everything
stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN
from looopy.loop.model_call import CUT_SHORT
from looopy.loop.output import ACCEPTED, UNFIT, gave_none, how_to_answer, tries_in
from looopy.loop.tool_calls import SKIPPED
from looopy.replay.recording import Recording
from looopy.stores.rows.events import pending_from_json
from looopy.types.message import Message
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.state import PendingRequest, pending_to_json
from looopy.types.summary import SUMMARY_ROLE

_OURS: Final = {SKIPPED, CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN, ACCEPTED, CUT_SHORT, ""}
_KEPT: Final = frozenset(  # members of messages and requests that name parts, and hold no content
    {
        "role",
        "type",
        "kind",
        "id",
        "tool_call_id",
        "tool_name",
        "request_id",
        "api",
        "provider",
        "model",
        "stop_reason",
        "mime_type",
        "timestamp",
        "usage",
        "is_error",
        "turn",
    }
)
_DROPPED: Final = frozenset(
    {
        "text_signature",
        "thinking_signature",
        "thought_signature",
        "response_id",
        "citations",
        "logprobs",
    }
)
_NOTHING: Final = "AA=="  # one byte, in place of an image


def scrub(recording: Recording) -> Recording:
    """
    A copy of *recording* without its contents.

    The names of arguments stay, and so do `true`, `false` and `null`. Signatures, citations and
    log-probabilities are left out. A scrubbed recording is replayed without a check of arguments.
    """
    words = _Words()
    return replace(
        recording,
        context_id="scrubbed",
        before=words.messages(recording.before),
        prompts=words.messages(recording.prompts),
        messages=[replace(one, message=words.message(one.message)) for one in recording.messages],
        asked=[words.request(one) for one in recording.asked],
        error=_error(recording.error, words),
        scrubbed=True,
    )


def _error(error: str | None, words: _Words) -> str | None:
    """*error* without its contents; the number of tries in it is a limit of the turn."""
    tries = tries_in(error)
    if tries is not None:
        return gave_none(tries)
    return None if error is None else words.of(error)


class _Words:
    """The substitutes so far."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}

    def messages(self, messages: Iterable[Message]) -> list[Message]:
        return [self.message(one) for one in messages]

    def message(self, message: Message) -> Message:
        data = self._members(message_to_json(message))
        return message_from_json(data)

    def request(self, request: PendingRequest) -> PendingRequest:
        data = self._members(pending_to_json(request))
        data |= {"schema": None, "options": []}
        data["expires_at"] = request.expires_at and request.expires_at.isoformat()
        data.pop("auth", None)
        return pending_from_json(data)

    def of(self, text: str) -> str:
        """The substitute of a text; within JSON, of each value."""
        if text in _OURS:
            return text
        how = how_to_answer(text)
        if how is not None:
            return f"{UNFIT}{self._substitute(text)}\n{how}"
        if text[:1] in "{[":
            try:
                return json.dumps(self._any(json.loads(text)))
            except (ValueError, RecursionError):
                pass
        return self._substitute(text)

    def _substitute(self, text: str) -> str:
        return f"text-{self._texts.setdefault(text, len(self._texts) + 1)}"

    def _members(self, data: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        is_call = data.get("type") in ("toolCall", "serverToolCall")
        for name, value in data.items():
            if name in _DROPPED:
                continue
            is_place = name == "metadata" and data.get("role") == SUMMARY_ROLE
            if name in _KEPT or is_place or (is_call and name == "name"):
                made[name] = value
            elif name == "data" and isinstance(value, str):
                made[name] = _NOTHING
            elif name in ("arguments", "args", "details") and isinstance(value, Mapping):
                made[name] = self._any(value)
            elif isinstance(value, Mapping):
                made[name] = self._members(value)
            elif isinstance(value, list):
                made[name] = [
                    self._members(one) if isinstance(one, Mapping) else self._any(one)
                    for one in value
                ]
            else:
                made[name] = self._any(value)
        return made

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.of(value)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, (int, float)):
            return self._numbers.setdefault(value, len(self._numbers) + 1)
        if isinstance(value, Mapping):
            return {name: self._any(one) for name, one in value.items()}
        return [self._any(one) for one in value]
