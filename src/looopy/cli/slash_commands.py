"""
The commands of a person in a chat, such as `/new`.

A command is a line of `/` and its word. Any other line is a message, such as one that begins with a
path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from looopy.cli.contexts import context_line
from looopy.cli.conversations.base import LiveConversations
from looopy.cli.terminal import Terminal
from looopy.errors import ContextNotFound, LooopyError
from looopy.stores.rules import check_context_id

HELP: Final = (
    "Type a message and press Enter. looopy stores each message before the model reads it.",
    "Alt-Enter, or a \\ at the end, begins another line of it. Pasted lines are one message.",
    "Ctrl-C cancels an answer. Ctrl-D leaves; `looopy chat` continues the conversation later.",
    "A call that waits for approval takes y or n; `y REASON` and `n REASON` tell the model why.",
    '`e {"NAME": VALUE}` allows it with other arguments: all of them, as JSON.',
    "/new [NAME] begins another conversation, /open NAME continues one, /list shows the newest.",
    "/fork [NAME] begins one with the past of this one. /exit leaves.",
    "/help shows this. `looopy --help` lists the other commands.",
)
_COMMAND: Final = re.compile(r"/([A-Za-z]+)(?:[ \t]+(.*))?")
_STAMP: Final = re.compile(r"-[0-9]{8}-[0-9]{6}$")
_LISTED: Final = 10
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class Leave:
    """The person leaves the chat."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The person goes to another conversation."""

    context_id: str


class Others:
    """
    The conversations among which a person moves, and the present one.

    Args:
        context_id: The present one.
        call: Runs a coroutine of *place* and returns its result.
    """

    def __init__(
        self,
        context_id: str,
        place: LiveConversations,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self.context_id = context_id
        self._place = place
        self._call = call

    def newest(self, limit: int) -> list[str]:
        """A line for each of the conversations that were active last."""
        return [context_line(i) for i in self._call(self._place.contexts(limit=limit))["items"]]

    def has(self, name: str) -> bool:
        """True if there is one of this name; `ValueRefused` if there cannot be."""
        check_context_id(name)
        try:
            self._call(self._place.context(name))
        except ContextNotFound:
            return False
        return True

    def fork(self, name: str) -> None:
        """Make one that begins with the messages of the present one."""
        check_context_id(name)
        if not self.has(self.context_id):
            raise ContextNotFound("this conversation has no message yet: send one first")
        self._call(self._place.fork(self.context_id, name))


class Command(NamedTuple):
    """A command and the words after it."""

    name: str
    rest: str


def command_in(line: str, *, by_hand: bool) -> Command | None:
    """
    The command in *line*; `None` for a message.

    Args:
        by_hand: A person types, so an unknown word after `/` is a slip.
    """
    found = _COMMAND.fullmatch(line.strip())
    if found is None:
        return None
    name, rest = found[1].lower(), (found[2] or "").strip()
    slip = by_hand and not rest and line.startswith("/")
    return Command(name, rest) if name in _COMMANDS or slip else None


def run_command(command: Command, others: Others, terminal: Terminal) -> Leave | Switch | None:
    """
    Do what a person wants of the chat itself.

    Returns:
        The next thing for the chat to do; `None`: ask for the next message.
    """
    if command.name not in _COMMANDS:
        terminal.notice(f"There is no command /{command.name}: /help lists them.")
        terminal.notice("A space before the / makes it a message.")
        return None
    try:
        return _COMMANDS[command.name](command.rest, others, terminal)
    except LooopyError as error:
        terminal.error(str(error))
        return None


def _help(_rest: str, _others: Others, terminal: Terminal) -> None:
    for line in HELP:
        terminal.notice(line)


def _exit(_rest: str, _others: Others, _terminal: Terminal) -> Leave:
    return Leave()


def _list(_rest: str, others: Others, terminal: Terminal) -> None:
    for line in others.newest(_LISTED):
        terminal.notice(line)


def _new(rest: str, others: Others, terminal: Terminal) -> Switch | None:
    name = rest or _stamped(others.context_id)
    if others.has(name):
        terminal.error(f"there is a conversation {name!r} already: /open {name} continues it")
        return None
    return Switch(name)


def _open(rest: str, others: Others, terminal: Terminal) -> Switch | None:
    if not rest:
        terminal.error("/open takes the name of a conversation; /list shows the newest")
        return None
    if not others.has(rest):
        terminal.error(f"there is no conversation {rest!r}: /list shows some, /new begins one")
        return None
    return Switch(rest)


def _fork(rest: str, others: Others, _terminal: Terminal) -> Switch | None:
    name = rest or _stamped(others.context_id)
    others.fork(name)
    return Switch(name)


def _stamped(name: str) -> str:
    """A name for a conversation that comes from *name*."""
    base = _STAMP.sub("", name)[:_LONGEST_NAME]
    return f"{base}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


_COMMANDS: Final[dict[str, Callable[[str, Others, Terminal], Leave | Switch | None]]] = {
    "help": _help,
    "new": _new,
    "open": _open,
    "list": _list,
    "fork": _fork,
    "exit": _exit,
    "quit": _exit,
}
