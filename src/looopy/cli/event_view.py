"""
A conversation on a server as text: all messages, through any number of connections.

A connection that is made again shows the answer that is being written from its beginning. The
terminal prints no part twice: it prints the rest, or all of it if the model answers something else
this time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from looopy.cli.render import PROMPT, JsonRenderer, TextRenderer
from looopy.cli.terminal import Terminal, one_line
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    StatusChange,
    TurnEnd,
    TurnStart,
    TurnWarning,
)
from looopy.types.message import AssistantMessage, TextContent, UserMessage
from looopy.types.state import Outcome

_DECISION_CHARS = 200


class View:
    """
    The events of one conversation on a terminal.

    Args:
        as_json: Print each event as a line of JSON, and nothing else.
        position: The newest message that the terminal shows already.

    Attributes:
        warned: True if the terminal has the warning of the newest turn about its budget.
    """

    def __init__(self, terminal: Terminal, *, as_json: bool = False, position: int = 0) -> None:
        self._terminal = terminal
        self._json = JsonRenderer(terminal) if as_json else None
        self._text = TextRenderer(terminal)
        self._position = position
        self._typed: Counter[str] = Counter()
        self._answer = ""  # as far as the events have shown it
        self._shown = ""  # as far as the terminal has it
        self._newest = MessageUpdate(context_id="")
        self._turn = 0  # the newest that has begun here, and its process
        self._process: str | None = None
        self.warned = False

    def typed(self, text: str) -> None:
        """Take note of a message that the person has typed here: it is on the screen."""
        self._typed[text] += 1

    def not_sent(self, text: str) -> None:
        """Take back the last `typed` message: the server refused it."""
        self._typed[text] -= 1

    def show(self, event: AgentEvent) -> None:
        """Print whatever a person wants to see of *event*."""
        if self._json is not None:
            self._json.show(event)
        elif not event.path:
            self._show(event)

    def _show(self, event: AgentEvent) -> None:
        match event:
            case TurnWarning(code="budget"):
                self.warned = True
            case TurnStart():
                self.warned = False
                self._begin_anew()
                self._say_where(event)
                self._text = TextRenderer(self._terminal)
            case MessageStart(message=AssistantMessage()):
                self._answer = ""
            case MessageUpdate():
                self._answer += event.delta
                self._newest = event
                self._say()
                return
            case MessageEnd(message=AssistantMessage() as message):
                if self._is_old(event):
                    return
                if self._shown:
                    self._answer = "".join(
                        b.text for b in message.content if isinstance(b, TextContent)
                    )
                    self._say()
                self._answer = self._shown = ""
            case MessageEnd(message=UserMessage() as message):
                self._say_of_others(event, message.text)
                return
            case ApprovalDecided():
                who = f" by {event.actor_id}" if event.actor_id else ""
                why = f": {event.text}" if event.text else ""
                said = f"{event.tool_name} was {event.decision}{who}{why}"
                self._terminal.notice(f"[{one_line(said, _DECISION_CHARS)}]")
            case StatusChange(attempt=int()):
                self._begin_anew()
            case TurnEnd(outcome=Outcome.INTERRUPTED):
                self._begin_anew()
                self._terminal.notice(f"[turn {event.turn} was interrupted]")
                if event.turn == self._turn and self._process is not None:
                    self._terminal.notice(f"[process {self._process} is gone]")
            case _:
                pass
        self._text.show(event)

    def _say_where(self, start: TurnStart) -> None:
        """Report that another process continues the turn that was shown before."""
        known = start.continues == self._turn and None not in (start.process, self._process)
        if known and start.process != self._process:
            said = f"turn {start.turn} continues turn {start.continues}"
            self._terminal.notice(f"[{said} in process {start.process}]")
        self._turn, self._process = start.turn, start.process

    def _begin_anew(self) -> None:
        """The answer that was being written is gone."""
        self._answer = self._shown = ""

    def _is_old(self, event: MessageEnd) -> bool:
        return event.position is not None and event.position <= self._position

    def _say(self) -> None:
        """Print the part of the answer that the terminal does not have."""
        answer, shown = self._answer, self._shown
        if shown.startswith(answer):
            return
        more = answer.removeprefix(shown)
        if not answer.startswith(shown):
            self._terminal.notice("[the answer begins again]")
            more = answer
        self._shown = answer
        self._text.show(replace(self._newest, delta=more))

    def _say_of_others(self, event: MessageEnd, text: str) -> None:
        if self._typed[text] > 0:
            self._typed[text] -= 1
        elif not self._is_old(event):
            self._terminal.line(PROMPT + text)
