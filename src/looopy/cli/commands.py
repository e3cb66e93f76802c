"""
The commands of a person in a chat, such as `/new`.

A command is a line of `/` and its word. Any other line is a message, such as one that begins with a
path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from looopy.cli.contexts import has_context, newest_contexts
from looopy.cli.terminal import Terminal
from looopy.errors import LooopyError
from looopy.stores.rules import check_context_id
from looopy.sync import Agent

HELP: Final = (
    "Type a message and press Enter. looopy stores each message before the model reads it.",
    "Ctrl-C cancels an answer. Ctrl-D leaves; `looopy chat` continues the conversation later.",
    "A call that waits for approval takes y or n; `y REASON` and `n REASON` tell the model why.",
    '`e {"NAME": VALUE}` allows it with other arguments: all of them, as JSON.',
    "/new [NAME] begins another conversation, /open NAME continues one, /list shows the newest.",
    "/fork [NAME] begins one with the past of this one. /exit leaves.",
    "/help shows this. `looopy --help` lists the other commands.",
)
_COMMAND: Final = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?")
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


class Command(NamedTuple):
    """A command and the words behind it."""

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


def run_command(
    command: Command, agent: Agent, place: str, terminal: Terminal
) -> Leave | Switch | None:
    """
    Do what a person wants of the chat itself.

    Args:
        place: The URL of the database.

    Returns:
        The next thing for the chat to do; `None`: ask for the next message.
    """
    if command.name not in _COMMANDS:
        terminal.notice(f"There is no command /{command.name}: /help lists them.")
        terminal.notice("A space before the / makes it a message.")
        return None
    try:
        return _COMMANDS[command.name](command.rest, agent, place, terminal)
    except LooopyError as error:
        terminal.error(str(error))
        return None


def _help(_rest: str, _agent: Agent, _place: str, terminal: Terminal) -> None:
    for line in HELP:
        terminal.notice(line)


def _exit(_rest: str, _agent: Agent, _place: str, _terminal: Terminal) -> Leave:
    return Leave()


def _list(_rest: str, _agent: Agent, place: str, terminal: Terminal) -> None:
    for line in asyncio.run(newest_contexts(place, _LISTED)):
        terminal.notice(line)


def _new(rest: str, agent: Agent, place: str, terminal: Terminal) -> Switch | None:
    name = rest or _stamped(agent.context_id)
    if asyncio.run(has_context(place, name)):
        terminal.error(f"there is a conversation {name!r} already: /open {name} continues it")
        return None
    return Switch(name)


def _open(rest: str, _agent: Agent, place: str, terminal: Terminal) -> Switch | None:
    if not rest:
        terminal.error("/open takes the name of a conversation; /list shows the newest")
        return None
    if not asyncio.run(has_context(place, rest)):
        terminal.error(f"there is no conversation {rest!r}: /list shows some, /new begins one")
        return None
    return Switch(rest)


def _fork(rest: str, agent: Agent, place: str, terminal: Terminal) -> Switch | None:
    name = rest or _stamped(agent.context_id)
    check_context_id(name)
    if place.startswith("memory:"):
        terminal.error("a conversation in memory has no forks: --db names a database that is kept")
        return None
    if not agent.state.turn_count:
        terminal.error("this conversation has no message yet: say something first")
        return None
    agent.fork(name)
    return Switch(name)


def _stamped(name: str) -> str:
    """A name for a conversation that comes from *name*."""
    base = _STAMP.sub("", name)[:_LONGEST_NAME]
    return f"{base}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


_COMMANDS: Final[dict[str, Callable[[str, Agent, str, Terminal], Leave | Switch | None]]] = {
    "help": _help,
    "new": _new,
    "open": _open,
    "list": _list,
    "fork": _fork,
    "exit": _exit,
    "quit": _exit,
}
