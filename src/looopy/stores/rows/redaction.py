"""
A message, an event or a state without the words of a person who was erased.

The place of everything stays, and so does the form: calls keep their ids and their results, so the
rest of the conversation is valid for every provider.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

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
from looopy.types.ranges import Range
from looopy.types.state import PendingRequest
from looopy.types.storable import dump
from looopy.types.summary import SUMMARY_ROLE, is_summary, repeated_by

ERASED: Final = "[erased]"
"""The text in the place of what was erased."""


class TheirTurn(NamedTuple):
    """
    The place of a turn of a person who is erased.

    Attributes:
        first_position, last_position: Of its messages; the last is before the first if none is
            left, as after a clear.
        start_seq, end_seq: Of its events. An open one ends where the log does.
    """

    turn: int
    first_position: int
    last_position: int
    start_seq: int
    end_seq: int

    @property
    def messages(self) -> range:
        """The positions of its messages."""
        return range(self.first_position, self.last_position + 1)


class LateCall(NamedTuple):
    """
    A call of one of these turns, as long as it had no result.

    Attributes:
        end_seq: Of its result, or of the answer that uses its id again; `None` if it is open.
    """

    call_id: str
    start_seq: int
    end_seq: int | None = None


def calls_at(late: Sequence[LateCall], seq: int) -> list[str]:
    """The calls of *late* that an event with this `seq` may be about."""
    return [
        one.call_id
        for one in late
        if one.start_seq < seq and (one.end_seq is None or seq <= one.end_seq)
    ]


def _redacted(message: Message, position: int) -> Message:
    if is_summary(message):
        return _empty_summary(message, position)
    if isinstance(message, UserMessage):
        return UserMessage(ERASED, timestamp=message.timestamp)
    if isinstance(message, ToolResultMessage):
        return replace(message, content=(TextContent(ERASED),), details=None)
    if isinstance(message, AssistantMessage):
        calls = [ToolCall(call.id, call.name, {}) for call in message.tool_calls]
        said = [] if calls else [TextContent(ERASED)]
        # The answer keeps its usage and its model.
        return AssistantMessage(
            (*said, *calls),
            api=message.api,
            provider=message.provider,
            model=message.model,
            usage=message.usage,
            stop_reason=message.stop_reason,
            error_message=None if message.error_message is None else ERASED,
            timestamp=message.timestamp,
        )
    return CustomMessage(message.role, ERASED, {}, timestamp=message.timestamp)


def _empty_summary(summary: CustomMessage, position: int) -> CustomMessage:
    """One that covers nothing: the model sees the messages again that it had replaced."""
    kept = {"kept": position - 1}
    return CustomMessage(SUMMARY_ROLE, "", kept, timestamp=summary.timestamp)


class Copies:
    """
    The versions of artifacts that may repeat words of some turns, by the log.

    These are the versions that the turns wrote, and later ones, because a tool makes the next
    version of what it reads. The first one that no longer counts is one that a turn completed
    without having read the artifact, or one that the application saved outside of turns.

    Args:
        turns: The numbers of these turns.
        born: The turn in which each artifact that there is began. One of the same name that was
            deleted before is another one.

    Attributes:
        versions: Artifact id and version of each.
    """

    def __init__(self, turns: Collection[int], born: Mapping[str, int]) -> None:
        self._turns = turns
        self._born = born
        self._last: dict[str, tuple[int, int]] = {}  # version and turn
        self._repeats: set[str] = set()
        # From which `seq` on an artifact had such versions, and up to where.
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self.versions: set[tuple[str, int]] = set()

    def read(self, seq: int, turn: int, body: str) -> None:
        """Read the next `artifact_update`."""
        told: dict[str, Any] = json.loads(body)
        name: str = told["artifact_id"]
        version: int = told["version"]
        is_theirs = turn in self._turns
        born = self._born.get(name)
        if name in self._last:
            last, last_turn = self._last[name]
            is_another = born is not None and last_turn < born <= turn
            begins = not told.get("append", False) and version <= last
            if told.get("deleted") or is_another or begins:
                self._forget(name, seq)
        if told.get("deleted") or not (is_theirs or name in self._last):
            return
        if name not in self._last:
            self._spans.setdefault(name, []).append((seq, sys.maxsize))
        elif version > self._last[name][0] + 1:
            self._repeats.discard(name)
        self._last[name] = version, turn
        known = (name, version) in self.versions
        if is_theirs or known or (name in self._repeats and not told.get("anew", False)):
            self._repeats.add(name)
            if born is not None and turn >= born:
                self.versions.add((name, version))
        elif told["last_chunk"] and not told["failed"]:
            self._repeats.discard(name)

    def _forget(self, name: str, seq: int) -> None:
        self._repeats.discard(name)
        self.versions = {one for one in self.versions if one[0] != name}
        del self._last[name]
        self._spans[name][-1] = self._spans[name][-1][0], seq

    def at(self, seq: int) -> list[str]:
        """The artifacts that had such versions then."""
        return [
            name
            for name, spans in self._spans.items()
            if any(first <= seq < last for first, last in spans)
        ]

    def __bool__(self) -> bool:
        return bool(self._spans)


class Messages:
    """
    The messages of a context from the first of some turns on, and what is taken out of them.

    These are the messages of the turns. From other turns they include results of the person's
    calls, and results of looopy's tools about artifacts that repeat those messages.

    Args:
        turns: In order.
    """

    def __init__(self, turns: Sequence[TheirTurn], copies: Copies) -> None:
        self._turns = [one for one in turns if one.messages]
        self._first = self._turns[0].first_position if self._turns else 1
        self._next = 0  # the first of them that does not end before the present position
        self._copies = copies
        self._open: dict[str, int] = {}  # the `seq` of the message that announced it
        self._about: dict[str, object] = {}
        self._late: list[LateCall] = []

    @property
    def late(self) -> list[LateCall]:
        """The calls of these turns that had no result at their end."""
        return [*self._late, *(LateCall(*one) for one in self._open.items())]

    def next_range(self, position: int, last: int) -> Range | None:
        """The next messages to read after *position*, up to *last* at most; `None` for none."""
        if self._copies or self._open:
            first = max(position + 1, self._first)
            return (first, last) if first <= last else None
        if (turn := self._turn_at(position + 1)) is None:
            return None
        return max(position + 1, turn.first_position), turn.last_position

    def _turn_at(self, position: int) -> TheirTurn | None:
        """The turn with *position* in it, or the next one; positions rise from call to call."""
        while self._next < len(self._turns):
            if self._turns[self._next].last_position >= position:
                return self._turns[self._next]
            self._next += 1
        return None

    def redacted(self, position: int, seq: int, body: str) -> str | None:
        """The body of the next message's row without that; `None` to leave it."""
        turn = self._turn_at(position)
        if turn is not None and position in turn.messages:
            return self._said_by_them(position, seq, body)
        names = self._copies.at(seq)
        is_wanted = names and any(tool in body for tool in ARTIFACT_TOOLS)
        if not is_wanted and not any(dump(call) in body for call in self._open):
            return None
        message = read_message(body, position=position)
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                self._end(call.id, seq)
                self._about[call.id] = call.arguments.get("artifact_id")
        if not isinstance(message, ToolResultMessage):
            return None
        answers_them = self._end(message.tool_call_id, seq)
        if not answers_them and not (names and self._repeats(message, body, names)):
            return None
        return message_text(_redacted(message, position))

    def _said_by_them(self, position: int, seq: int, body: str) -> str:
        message = read_message(body, position=position)
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                self._open[call.id] = seq
                self._about.pop(call.id, None)
        if isinstance(message, ToolResultMessage):
            self._open.pop(message.tool_call_id, None)
        return message_text(_redacted(message, position))

    def _end(self, call_id: str, seq: int) -> bool:
        """End the person's open call of this id, if there is one."""
        since = self._open.pop(call_id, None)
        if since is not None:
            self._late.append(LateCall(call_id, since, seq))
        return since is not None

    def _repeats(self, result: ToolResultMessage, body: str, names: Sequence[str]) -> bool:
        if result.tool_name not in ARTIFACT_TOOLS:
            return False
        about = self._about.get(result.tool_call_id)
        return about is None or any(name == about or name in body for name in names)


class Summaries:
    """
    The summaries that may contain some turns, read in order.

    Args:
        rewound: The ranges that are hidden, in order of time.

    Attributes:
        told: The positions of the summaries that do.
    """

    def __init__(self, turns: Sequence[TheirTurn], rewound: Sequence[Range]) -> None:
        self._turns = [one for one in turns if one.messages]
        self._rewound = rewound
        self._places: list[int] = []
        self.told: set[int] = set()

    def redacted(self, compaction: Mapping[str, Any], body: str) -> str | None:
        """The body of the summary of the next compaction, if it contains them; else `None`."""
        position: int = compaction["position"]
        summary = read_message(body, position=position)
        if not is_summary(summary):
            return None
        # One that ended before this summary had been made when it was written.
        hidden = [(low, high) for low, high in self._rewound if high < position]
        places = [one.first_position for one in self._turns]
        if (repeated := repeated_by(summary, position)) != position:
            tells = repeated in self.told
        else:
            # It was made of the summary before it and of the messages since.
            earlier = [one for one in self._places if _is_shown(one, hidden)][-1:]
            covered = [one for one in places if one <= compaction["covers"][1]]
            tells = any(one in self.told for one in earlier)
            tells = tells or any(_is_shown(one, hidden) for one in covered)
        self._places.append(position)
        if not tells:
            return None
        self.told.add(position)
        return message_text(_empty_summary(summary, position))


def _is_shown(position: int, hidden: Sequence[Range]) -> bool:
    return not any(low <= position <= high for low, high in hidden)


def redacted_event(kind: str, body: str) -> str:
    """The body of an event's row without the person's words."""
    data: dict[str, Any] = json.loads(body)
    for request in data.get("pending", ()):
        _redact_request(request)
    if "args" in data and data["args"] is not None:  # a person gave them to a call
        data["args"] = {}
    if kind == "approval_decided":
        data |= {"actor_id": None, "text": None if data["text"] is None else ERASED}
    if kind in ("error", "warning"):
        data["text"] = ERASED
    return dump(data)


def without_calls(body: str, calls: Collection[str]) -> str:
    """The body of an event of another person's turn without the arguments of *calls*."""
    if not any(call in body for call in map(dump, calls)):
        return body
    data: dict[str, Any] = json.loads(body)
    for request in data.get("pending", ()):
        if request["tool_call_id"] in calls:
            _redact_request(request)
    if data.get("tool_call_id") in calls and data.get("args") is not None:
        data["args"] = {}
    return dump(data)


def _redact_request(request: dict[str, Any]) -> None:
    request |= {"args": {}, "prompt": ERASED, "schema": None, "options": []}
    request.pop("auth", None)


def redacted_state(
    text: str, turns: Collection[int], calls: Collection[str], last_turn: int, told: Collection[int]
) -> str:
    """
    The state column without what these *turns* have left in it.

    Args:
        calls: The open calls that these turns announced.
        last_turn: The newest turn of the context.
        told: The positions of summaries that are empty now.
    """
    state = decode_state(text)

    def is_theirs(one: PendingRequest) -> bool:
        return one.turn in turns or one.tool_call_id in calls

    def may_be_answered_by_them(one: PendingRequest) -> bool:
        return any(turn > one.turn for turn in turns)

    # An answer may be theirs; the question, if another turn asked it, is open again.
    kept = [(one, value) for one, value in state.answered if not may_be_answered_by_them(one)]
    again = [
        replace(one, answered_by=None) for one, _ in state.answered if may_be_answered_by_them(one)
    ]
    continues_theirs = state.resumable in turns
    return state_column(
        replace(
            state,
            pending=[one for one in (*state.pending, *again) if not is_theirs(one)],
            answered=[(one, value) for one, value in kept if not is_theirs(one)],
            held=[one for one in state.held if one.tool_call_id not in calls],
            error=None if last_turn in turns else state.error,
            resumable=None if continues_theirs else state.resumable,
            waits_for=None if continues_theirs else state.waits_for,
            needs_auth=state.needs_auth and not (continues_theirs or again),
            concluding=state.concluding and not continues_theirs,
            output=None if continues_theirs else state.output,
            summary=None if state.summary in told else state.summary,
            sent=None,
            trace=None,
        )
    )
