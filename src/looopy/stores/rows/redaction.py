"""
A message, an event or a state without the words of a person who was erased.

The place of everything stays, and so does the form: calls keep their ids and their results, so the
rest of the conversation is valid for every provider.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from looopy.stores.rows.events import decode_state, state_column
from looopy.stores.rows.reading import read_message
from looopy.stores.rows.writing import message_text
from looopy.types.artifact import ARTIFACT_TOOLS
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.state import PendingRequest
from looopy.types.storable import dump
from looopy.types.summary import SUMMARY_ROLE, is_summary

ERASED: Final = "[erased]"
"""The text in the place of what was erased."""


def redacted_body(body: str, position: int) -> tuple[str, list[str]]:
    """The body of a message's row without what was said, and the ids of the calls in it."""
    message = read_message(body, position=position)
    calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
    return message_text(_redacted(message)), [call.id for call in calls]


def redacted_summary(body: str, position: int) -> str | None:
    """
    The body of a summary's row as one that covers nothing; `None` if it is no summary.

    The model sees the messages again that it had replaced.
    """
    message = read_message(body, position=position)
    if not is_summary(message):
        return None
    empty = {"kept": position - 1}
    return message_text(CustomMessage(SUMMARY_ROLE, "", empty, timestamp=message.timestamp))


def _redacted(message: Message) -> Message:
    if isinstance(message, UserMessage):
        return UserMessage(ERASED, timestamp=message.timestamp)
    if isinstance(message, ToolResultMessage):
        return replace(message, content=(TextContent(ERASED),), details=None)
    if isinstance(message, AssistantMessage):
        calls = [ToolCall(call.id, call.name, {}) for call in message.tool_calls]
        said = [] if calls else [TextContent(ERASED)]
        failed = None if message.error_message is None else ERASED
        return replace(message, content=(*said, *calls), error_message=failed)
    return CustomMessage(message.role, ERASED, {}, timestamp=message.timestamp)


class Copies:
    """
    The versions of artifacts that may repeat what was said in some turns, as the log tells.

    These are the versions that the turns wrote, and later ones, because a tool makes the next
    version of what it reads. The first one that no longer counts is one that a turn completed
    without having read the artifact, or one that the application saved outside of turns.

    Attributes:
        versions: Artifact id and version of each.
    """

    def __init__(self, turns: Collection[int]) -> None:
        self._turns = turns
        self._last: dict[str, int] = {}
        self._repeats: set[str] = set()
        self.versions: set[tuple[str, int]] = set()

    @property
    def names(self) -> frozenset[str]:
        """The artifacts that have such versions, or had."""
        return frozenset(self._last)

    def read(self, turn: int, body: str) -> None:
        """Read the next `artifact_update`."""
        told: dict[str, Any] = json.loads(body)
        name: str = told["artifact_id"]
        version: int = told["version"]
        is_theirs = turn in self._turns
        if not is_theirs and name not in self._last:
            return
        if told.get("deleted"):
            self._repeats.discard(name)
            self.versions = {one for one in self.versions if one[0] != name}
            self._last[name] = 0
            return
        if version > self._last.get(name, version) + 1:
            self._repeats.discard(name)
        self._last[name] = version
        known = (name, version) in self.versions
        if is_theirs or known or (name in self._repeats and not told.get("anew", False)):
            self._repeats.add(name)
            self.versions.add((name, version))
        elif told["last_chunk"] and not told["failed"]:
            self._repeats.discard(name)


class Repeats:
    """
    The results in which looopy's tools repeat what is in some artifacts.

    Attributes:
        names: The artifacts.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self._about: dict[str, object] = {}

    def redacted(self, body: str, position: int) -> str | None:
        """The body of the next message's row without that; `None` to leave it."""
        if not self.names or not any(name in body for name in ARTIFACT_TOOLS):
            return None
        message = read_message(body, position=position)
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                self._about[call.id] = call.arguments.get("artifact_id")
        if not isinstance(message, ToolResultMessage) or message.tool_name not in ARTIFACT_TOOLS:
            return None
        about = self._about.get(message.tool_call_id)
        if about is not None and not any(name == about or name in body for name in self.names):
            return None
        return message_text(_redacted(message))


def redacted_event(kind: str, body: str) -> str:
    """The body of an event's row without what was said."""
    data: dict[str, Any] = json.loads(body)
    for request in data.get("pending", ()):
        request |= {"args": {}, "prompt": ERASED, "schema": None, "options": []}
        request.pop("auth", None)
    if "args" in data and data["args"] is not None:  # those that a person gave a call
        data["args"] = {}
    if kind == "approval_decided":
        data |= {"actor_id": None, "text": None if data["text"] is None else ERASED}
    if kind in ("error", "warning"):
        data["text"] = ERASED
    return dump(data)


def redacted_state(
    text: str, turns: Collection[int], calls: Collection[str], last_turn: int, *, folds: bool
) -> str:
    """
    The state column without what these *turns* have left in it.

    Args:
        calls: The calls that these turns announced.
        last_turn: The newest turn of the context.
        folds: True if its newest summary is still one.
    """
    state = decode_state(text)

    def is_theirs(one: PendingRequest) -> bool:
        return one.turn in turns or one.tool_call_id in calls

    # An answer may be theirs; the question, if another turn asked it, is open again.
    asked = [*state.pending, *(one for one, _ in state.answered)]
    ended = last_turn in turns
    return state_column(
        replace(
            state,
            pending=[one for one in asked if not is_theirs(one)],
            answered=(),
            held=[one for one in state.held if one.tool_call_id not in calls],
            error=None if ended else state.error,
            resumable=None if ended else state.resumable,
            waits_for=None if ended else state.waits_for,
            needs_auth=state.needs_auth and not ended,
            output=None if ended else state.output,
            summary=state.summary if folds else None,
            sent=None,
            trace=None,
        )
    )
