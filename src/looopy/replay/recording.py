"""
A turn as it was stored: its beginning, the model's answers, the tools' results and its end.

`read_recording` takes it from the log of a context. A recording is also a JSON document, so that a
test can keep it in a file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from looopy.errors import ContextNotFound, ValueRefused
from looopy.llm.render import CANCELLED, NOT_STARTED, OUTCOME_UNKNOWN
from looopy.stores.bundle import Stores
from looopy.stores.rows.events import pending_from_json
from looopy.types.event import (
    AgentEvent,
    AuthRequired,
    HistoryCleared,
    HistoryRewound,
    InputRequired,
    MessageEnd,
    ToolExecutionEnd,
    TurnEnd,
    TurnError,
    TurnStart,
)
from looopy.types.message import (
    NO_USAGE,
    AssistantMessage,
    Message,
    StopReason,
    ToolResultMessage,
    Usage,
)
from looopy.types.message_json import message_from_json, message_to_json
from looopy.types.state import Outcome, PendingRequest, pending_to_json

CUT_OFF: Final = frozenset({CANCELLED, OUTCOME_UNKNOWN, NOT_STARTED})
"""The texts of looopy in place of results that calls did not give."""
_VERSION: Final = 1
_PAGE: Final = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """
    One message that a turn has added.

    Attributes:
        ran: True for the result of a call that the turn announced; false for one that it was given.
        request: Digests of the model's name, the tools and the prompt of the request that an answer
            belongs to; `None`: unknown.
    """

    message: Message
    iteration: int = 1
    ran: bool = False
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """
    One turn.

    Attributes:
        at: The position of the last message before it, hidden or not; 0: it is the first.
        before: The history that it began with, oldest first, without hidden messages.
        spent: The usage of the context's turns before it.
        prompts: The messages that it was given: results for calls that were open, and the user's.
        messages: All other messages that it added, in order.
        asked: The requests that it ended with.
        outcome, stop_reason: `None` while it is open.
        error: The text of the error that ended it, or `None`.
        scrubbed: True if `scrub` has replaced its contents.
    """

    context_id: str
    turn: int
    continues: int | None = None
    at: int = 0
    before: Sequence[Message] = ()
    spent: Usage = NO_USAGE
    prompts: Sequence[Message] = ()
    messages: Sequence[Recorded] = ()
    asked: Sequence[PendingRequest] = ()
    outcome: Outcome | None = None
    stop_reason: StopReason | None = None
    error: str | None = None
    scrubbed: bool = False

    @property
    def was_cut(self) -> bool:
        """True if it was cancelled, ran out of time, or lost its process."""
        by_signal = self.stop_reason in (StopReason.CANCELLED, StopReason.DEADLINE)
        return by_signal or self.outcome is Outcome.INTERRUPTED

    def to_json(self) -> str:
        """Write it as a JSON document of several lines, which `from_json` reads."""
        data = {
            "looopy_recording": _VERSION,
            "context_id": self.context_id,
            "turn": self.turn,
            "continues": self.continues,
            "scrubbed": self.scrubbed,
            "outcome": self.outcome,
            "stop_reason": self.stop_reason,
            "error": self.error,
            "asked": [pending_to_json(one) for one in self.asked],
            "before": [message_to_json(one) for one in self.before],
            "prompts": [message_to_json(one) for one in self.prompts],
            "messages": [
                {
                    "iteration": one.iteration,
                    "ran": one.ran,
                    "request": one.request,
                    "message": message_to_json(one.message),
                }
                for one in self.messages
            ],
        }
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """
        Read what `to_json` has written.

        Raises:
            ValueRefused: It is not such a document; `path` is the place in it.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueRefused(f"a recording is JSON, and this is not: {error}", path="") from None
        if not isinstance(data, dict) or data.get("looopy_recording") != _VERSION:
            raise ValueRefused(
                f'a recording has "looopy_recording": {_VERSION}: write it again with'
                " `looopy replay CONTEXT --turn N --save FILE`",
                path="/looopy_recording",
            )
        return cls(
            context_id=_at("/context_id", lambda: str(data["context_id"])),
            turn=_at("/turn", lambda: int(data["turn"])),
            continues=_at("/continues", lambda: data["continues"]),
            before=_each("/before", data, message_from_json),
            prompts=_each("/prompts", data, message_from_json),
            messages=_each("/messages", data, _recorded),
            asked=_each("/asked", data, pending_from_json),
            outcome=_at("/outcome", lambda: data["outcome"] and Outcome(data["outcome"])),
            stop_reason=_at(
                "/stop_reason", lambda: data["stop_reason"] and StopReason(data["stop_reason"])
            ),
            error=_at("/error", lambda: data["error"]),
            scrubbed=_at("/scrubbed", lambda: bool(data["scrubbed"])),
        )


def _at(place: str, read: Callable[[], T]) -> T:
    """The value that *read* returns; a failure names its *place* in the document."""
    try:
        return read()
    except ValueRefused as error:
        place, text = f"{place}{error.path or ''}", error.message
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        text = f"{type(error).__name__}: {error}"
    raise ValueRefused(f"a recording cannot be read at {place}: {text}", path=place)


def _each(place: str, data: dict[str, Any], read: Callable[[Any], T]) -> list[T]:
    found = _at(place, lambda: list(data[place[1:]]))
    return [_at(f"{place}/{i}", functools.partial(read, one)) for i, one in enumerate(found)]


def _recorded(data: Any) -> Recorded:
    return Recorded(
        message=_at("/message", lambda: message_from_json(data["message"])),
        iteration=_at("/iteration", lambda: int(data["iteration"])),
        ran=_at("/ran", lambda: bool(data["ran"])),
        request=_at("/request", lambda: data["request"]),
    )


async def read_recording(stores: Stores, context_id: str, turn: int) -> Recording:
    """
    Read a stored turn, at the cost of the log up to it.

    Args:
        turn: Its number, from 1.

    Raises:
        ContextNotFound: There is no such context.
        ValueRefused: There is no such turn, or its messages were deleted; `path` is `/turn`.
        StoreError: The store did not answer.
    """
    record = await stores.state.load(context_id)
    if record is None:
        raise ContextNotFound(f"there is no context {context_id!r}", context_id=context_id)
    if isinstance(turn, bool) or not isinstance(turn, int) or not 1 <= turn <= record.turn_count:
        raise ValueRefused(
            f"context {context_id!r} has no turn {turn}: its turns are 1 to {record.turn_count}",
            path="/turn",
        )
    past, after, own = _Past(), 0, list[AgentEvent]()
    while page := await stores.journal.events(context_id, after=after, limit=_PAGE):
        after = page[-1].seq or 0
        for one in page:
            if own and isinstance(own[-1], TurnEnd):
                break
            if one.turn == turn:
                own.append(one)
            elif not own:
                past.take(one)
        if own and (isinstance(own[-1], TurnEnd) or page[-1].turn > turn):
            break
    if not own or not isinstance(own[0], TurnStart):
        raise ValueRefused(
            f"turn {turn} of context {context_id!r} is not in the log any more: its messages were"
            " deleted",
            path="/turn",
        )
    made = recording_of(own, before=past.shown)
    return replace(made, spent=past.spent, at=past.last)


def recording_of(events: Iterable[AgentEvent], before: Sequence[Message] = ()) -> Recording:
    """The recording of a turn's durable *events*, which begin with its `turn_start`."""
    found: dict[str, Any] = {"context_id": "", "turn": 0}
    prompts, messages, ended = list[Message](), list[Recorded](), False
    for event in events:
        if isinstance(event, TurnStart):
            found |= {
                "context_id": event.context_id,
                "turn": event.turn,
                "continues": event.continues,
            }
        elif isinstance(event, ToolExecutionEnd):
            ended = True
        elif isinstance(event, MessageEnd):
            given = not (messages or ended or isinstance(event.message, AssistantMessage))
            if given:
                prompts.append(event.message)
            else:
                one = Recorded(
                    message=event.message,
                    iteration=event.iteration,
                    ran=ended,
                    request=event.request,
                )
                messages.append(one)
            ended = False
        elif isinstance(event, (InputRequired, AuthRequired)):
            found["asked"] = tuple(event.pending)
        elif isinstance(event, TurnError):
            found["error"] = event.text
        elif isinstance(event, TurnEnd):
            found |= {"outcome": event.outcome, "stop_reason": event.stop_reason}
    return Recording(before=tuple(before), prompts=prompts, messages=messages, **found)


class _Past:
    """The history as it grows, shrinks and comes back in a log."""

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}  # by position
        self._hidden: dict[int, Message] = {}
        self.spent = NO_USAGE
        self.last = 0

    @property
    def shown(self) -> list[Message]:
        """The messages that the model may see, oldest first."""
        return [self._messages[position] for position in sorted(self._messages)]

    def take(self, event: AgentEvent) -> None:
        """Note an event of an earlier turn, or of no turn."""
        if isinstance(event, MessageEnd) and event.position is not None:
            self._messages[event.position] = event.message
            self.last = event.position
        elif isinstance(event, (HistoryCleared, HistoryRewound)):
            self._hide(event)
        elif isinstance(event, TurnEnd):
            self.spent += event.usage

    def _hide(self, event: HistoryCleared | HistoryRewound) -> None:
        first, last = event.covers
        if isinstance(event, HistoryRewound) and event.undone:
            source, target = self._hidden, self._messages
        else:
            source, target = self._messages, self._hidden
        for position in [one for one in source if first <= one <= last]:
            target[position] = source.pop(position)
        if isinstance(event, HistoryCleared):
            self._hidden.clear()


def answers_of(recording: Recording) -> Sequence[Recorded]:
    """The model's answers, in order."""
    return [one for one in recording.messages if isinstance(one.message, AssistantMessage)]


def results_of(recording: Recording) -> Mapping[str, ToolResultMessage]:
    """The results of the calls that the turn announced, by call id."""
    return {
        one.message.tool_call_id: one.message
        for one in recording.messages
        if isinstance(one.message, ToolResultMessage)
    }
