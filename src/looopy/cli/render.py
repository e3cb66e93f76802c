"""
The look of a conversation: a running turn as its events come, and earlier messages.

A tool call is one line in brackets that grows while the tool runs: name and arguments first, then
its reports, then its duration and result. So a reader, a pipe and a log all see the same, and no
line is ever overwritten.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from looopy.cli.terminal import Terminal, one_line
from looopy.llm.render import CANCELLED, OUTCOME_UNKNOWN
from looopy.types.event import (
    AgentEvent,
    MessageEnd,
    MessageUpdate,
    ServerToolEnd,
    ServerToolStart,
    StatusChange,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnWarning,
    event_to_json,
)
from looopy.types.message import (
    AssistantMessage,
    Message,
    StopReason,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.notices import notice_of
from looopy.types.state import Outcome

PROMPT = "> "
_ARGS_CHARS = 100
_RESULT_CHARS = 160
_REPORT_CHARS = 40
_PAST_CHARS = 300
_LONG_WAIT_S = 10.0

_WHY = {
    StopReason.LENGTH: "The answer was cut off: the model reached its limit of tokens.",
    StopReason.MAX_ITERATIONS: "Stopped: the turn reached its limit of model calls.",
    StopReason.MAX_TOOL_CALLS: "Stopped: the turn reached its limit of tool calls.",
}
# The result text of a call that was cut short, in words for a person.
_STOPPED = {CANCELLED: "", OUTCOME_UNKNOWN: ", outcome unknown"}


class JsonRenderer:
    """One JSON object a line, for programs."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def show(self, event: AgentEvent) -> None:
        """Print *event*, deltas too."""
        self._terminal.raw_line(json_line(event_to_json(event)))


def _clock(retry: StatusChange) -> str:
    """The local time of a retry, if the reader has to wait long enough to look away."""
    if retry.next_at is None or (retry.delay_s or 0) < _LONG_WAIT_S:
        return ""
    with contextlib.suppress(OverflowError, ValueError):  # a year that no clock of a machine has
        return f", at {retry.next_at.astimezone():%H:%M:%S}"
    return ""


def json_line(data: object) -> str:
    """*data* as one line of ASCII without control characters, so that no terminal obeys it."""
    return json.dumps(data, default=str)


def counted(count: int, thing: str) -> str:
    """Such as "1 turn" and "2 turns"."""
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s"


class TextRenderer:
    """Text as it comes, and a line for each tool call, for people."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._streamed = False
        self._calls: dict[str, str] = {}
        self._open = ""  # the call whose line holds the cursor

    def show(self, event: AgentEvent) -> None:
        """Print what a person wants to see of *event*; of most, nothing."""
        if event.path:  # of an agent that works for a call: the call's result reports its outcome
            return
        match event:
            case MessageUpdate():
                self._say(event.delta)
            case MessageEnd(message=AssistantMessage() as message):
                if not self._streamed:
                    self._say(message.text)
                self._streamed = False
                self._terminal.fresh_line()
            case ToolExecutionStart():
                self._begin(event)
            case ToolExecutionUpdate():
                self._report(event)
            case ToolExecutionEnd():
                self._end(event)
            case ServerToolStart():
                self._begin(event)
            case ServerToolEnd():
                self._end_served(event)
            case StatusChange(attempt=int()):
                self._aside(f"[{one_line(event.reason or '', _RESULT_CHARS)}]")
                self._aside(f"[trying again in {event.delay_s or 0:.0f} s{_clock(event)}]")
                self._streamed = False
            case TurnWarning(text=text):
                self._aside(f"[warning: {text}]")
            case TurnError(text=text):
                self._terminal.error(text)
            case TurnEnd():
                self._finish(event)
            case _:
                if said := notice_of(event):
                    self._aside(f"[{one_line(said, _RESULT_CHARS)}]")

    def _say(self, text: str) -> None:
        if text:
            self._leave_call()
            self._streamed = True
            self._terminal.write(text)

    def _aside(self, text: str) -> None:
        self._leave_call()
        self._terminal.notice(text)

    def _leave_call(self) -> None:
        if self._open:
            self._open = ""
            self._terminal.fresh_line()

    def _begin(self, event: ToolExecutionStart | ServerToolStart) -> None:
        self._leave_call()
        self._terminal.fresh_line()
        self._calls[event.tool_call_id] = call = shown_call(event.tool_name, event.args)
        self._terminal.write(f"[{call} ...", dim=True)
        self._open = event.tool_call_id

    def _report(self, event: ToolExecutionUpdate) -> None:
        if self._open != event.tool_call_id:
            return
        if event.progress is not None:
            self._terminal.write(f" {event.progress:.0%}", dim=True)
        else:
            self._terminal.write(f" {one_line(str(event.partial_result), _REPORT_CHARS)}", dim=True)

    def _end(self, event: ToolExecutionEnd) -> None:
        call = self._calls.pop(event.tool_call_id, event.tool_name)
        if self._open != event.tool_call_id:
            self._leave_call()
            self._terminal.fresh_line()
            self._terminal.write(f"[{call} ...", dim=True)
        self._open = ""
        how = "failed after" if event.is_error else "done in"
        said = shown_result(event.result)
        if event.is_error and event.result.text in _STOPPED:
            how, said = "stopped after", _STOPPED[event.result.text]
        self._terminal.write(f" {how} {event.duration_s:.1f} s{said}]\n", dim=True)

    def _end_served(self, event: ServerToolEnd) -> None:
        """A tool of the provider's: some say only at its end what it was asked."""
        begun = self._calls.pop(event.tool_call_id, "")
        call = shown_call(event.tool_name, event.args)
        if self._open != event.tool_call_id:
            self._leave_call()
            self._terminal.fresh_line()
            self._terminal.write(f"[{call} ...", dim=True)
        elif begun != call:
            self._terminal.write(f" {call.removeprefix(begun).strip()} ...", dim=True)
        self._open = ""
        self._terminal.write(f" {'failed' if event.is_error else 'done'}]\n", dim=True)

    def _finish(self, event: TurnEnd) -> None:
        self._leave_call()
        self._terminal.fresh_line()
        if event.outcome is Outcome.CANCELLED:
            self._terminal.notice(f"[turn {event.turn} was cancelled]")
        elif why := _WHY.get(event.stop_reason):
            self._terminal.notice(f"[{why}]")


Renderer: TypeAlias = JsonRenderer | TextRenderer


def shown_call(name: str, args: Mapping[str, Any]) -> str:
    """A tool call in one line: `wait seconds=5`."""
    parts = [f"{key}={json.dumps(args[key], ensure_ascii=False, default=str)}" for key in args]
    return f"{one_line(name, 64)} {one_line(' '.join(parts), _ARGS_CHARS)}".rstrip()


def shown_result(result: ToolResultMessage) -> str:
    """The beginning of a result, after a colon; empty if it has no text."""
    text = one_line(result.text, _RESULT_CHARS)
    return f": {text}" if text else ""


def show_history(terminal: Terminal, messages: Sequence[Message], *, earlier: bool) -> None:
    """
    Print the earlier messages, each shortened.

    Args:
        messages: Oldest first.
        earlier: True if older ones exist.
    """
    if earlier:
        terminal.notice("...")
    for place, message in enumerate(messages):
        match message:
            case UserMessage():
                terminal.line(PROMPT + _shortened(message.text))
            case AssistantMessage():
                if message.text.strip():
                    terminal.line(_shortened(message.text))
                results = _results_after(messages, place)
                for call in message.tool_calls:
                    terminal.notice(_past_call(call.name, call.arguments, results.get(call.id)))
            case _:
                pass


def _results_after(messages: Sequence[Message], place: int) -> dict[str, ToolResultMessage]:
    """The results of the calls at *place*, by call id, which other answers may use again."""
    found: dict[str, ToolResultMessage] = {}
    for message in messages[place + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolResultMessage):
            found[message.tool_call_id] = message
    return found


def _past_call(name: str, args: Mapping[str, Any], result: ToolResultMessage | None) -> str:
    if result is None:
        return f"[{shown_call(name, args)} ... has no result yet]"
    how = "failed" if result.is_error else "done"
    return f"[{shown_call(name, args)} ... {how}{shown_result(result)}]"


def _shortened(text: str) -> str:
    text = text.strip()
    if len(text) <= _PAST_CHARS:
        return text
    return f"{text[:_PAST_CHARS].rstrip()}... ({len(text) - _PAST_CHARS:,} more characters)"
