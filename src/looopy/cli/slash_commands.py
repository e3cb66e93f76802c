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
from typing import Final, NamedTuple, Protocol

from looopy.cli.contexts import context_line
from looopy.cli.conversations.database import exists, open_database
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError, ContextNotFound, LooopyError
from looopy.stores.opening import open_stores
from looopy.stores.rules import check_context_id
from looopy.sync import Agent

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


class Conversations(Protocol):
    """The conversations among which a person moves, and the present one."""

    @property
    def context_id(self) -> str:
        """The present one."""
        ...

    def newest(self, limit: int) -> list[str]:
        """A line for each of the conversations that were active last."""
        ...

    def has(self, name: str) -> bool:
        """True if there is one of this name; `ValueRefused` if there cannot be."""
        ...

    def fork(self, name: str) -> None:
        """Make one that begins with the past of the present one."""
        ...


class Stored:
    """
    The conversations in a database.

    Args:
        agent: The present one.
        place: The URL of the database.
    """

    def __init__(self, agent: Agent, place: str) -> None:
        self._agent = agent
        self._place = place

    @property
    def context_id(self) -> str:
        """The present one."""
        return self._agent.context_id

    def newest(self, limit: int) -> list[str]:
        """See `Conversations`."""

        async def lines() -> list[str]:
            async with open_database(self._place) as place:
                return [context_line(i) for i in (await place.contexts(limit=limit))["items"]]

        return asyncio.run(lines())

    def has(self, name: str) -> bool:
        """See `Conversations`."""
        check_context_id(name)

        async def has() -> bool:
            async with open_stores(self._place) as stores:
                return await stores.state.load(name) is not None

        return exists(self._place) and asyncio.run(has())

    def fork(self, name: str) -> None:
        """See `Conversations`."""
        check_context_id(name)
        if self._place.startswith("memory:"):
            raise ConfigurationError(
                "a conversation in memory has no forks: --db names a database that is kept"
            )
        if not self._agent.state.turn_count:
            raise ContextNotFound("this conversation has no message yet: say something first")
        self._agent.fork(name)


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
    command: Command, conversations: Conversations, terminal: Terminal
) -> Leave | Switch | None:
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
        return _COMMANDS[command.name](command.rest, conversations, terminal)
    except LooopyError as error:
        terminal.error(str(error))
        return None


def _help(_rest: str, _conversations: Conversations, terminal: Terminal) -> None:
    for line in HELP:
        terminal.notice(line)


def _exit(_rest: str, _conversations: Conversations, _terminal: Terminal) -> Leave:
    return Leave()


def _list(_rest: str, conversations: Conversations, terminal: Terminal) -> None:
    for line in conversations.newest(_LISTED):
        terminal.notice(line)


def _new(rest: str, conversations: Conversations, terminal: Terminal) -> Switch | None:
    name = rest or _stamped(conversations.context_id)
    if conversations.has(name):
        terminal.error(f"there is a conversation {name!r} already: /open {name} continues it")
        return None
    return Switch(name)


def _open(rest: str, conversations: Conversations, terminal: Terminal) -> Switch | None:
    if not rest:
        terminal.error("/open takes the name of a conversation; /list shows the newest")
        return None
    if not conversations.has(rest):
        terminal.error(f"there is no conversation {rest!r}: /list shows some, /new begins one")
        return None
    return Switch(rest)


def _fork(rest: str, conversations: Conversations, _terminal: Terminal) -> Switch | None:
    name = rest or _stamped(conversations.context_id)
    conversations.fork(name)
    return Switch(name)


def _stamped(name: str) -> str:
    """A name for a conversation that comes from *name*."""
    base = _STAMP.sub("", name)[:_LONGEST_NAME]
    return f"{base}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


_COMMANDS: Final[dict[str, Callable[[str, Conversations, Terminal], Leave | Switch | None]]] = {
    "help": _help,
    "new": _new,
    "open": _open,
    "list": _list,
    "fork": _fork,
    "exit": _exit,
    "quit": _exit,
}
