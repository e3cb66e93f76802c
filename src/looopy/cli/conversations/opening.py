"""The place that an address names: a database or a server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from looopy.cli.conversations.base import Conversations
from looopy.cli.data_folder import default_url
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError


def is_server(url: str | None) -> bool:
    """True for the address of a server."""
    return (url or "").startswith(("http://", "https://"))


def check_place(place: str, url: str | None, token: str | None) -> None:
    """
    Check that a command works on the place at *url*.

    Args:
        place: See `options.Command`.

    Raises:
        ConfigurationError: It does not, or a database is given a token.
    """
    if place == "database" and is_server(url):
        raise ConfigurationError("this command takes a database, not a server")
    if place == "server" and not is_server(url):
        raise ConfigurationError("this command takes a server: --server http://HOST:PORT")
    if token is not None and not is_server(url):
        raise ConfigurationError("--token is for a server: --server http://HOST:PORT")


def open_conversations(
    url: str | None, token: str | None, terminal: Terminal
) -> AbstractAsyncContextManager[Conversations]:
    """
    The conversations of the place at *url*, to be opened with `async with`.

    Args:
        url: `None`: the database in the data folder.
        token: For a server; `None`: the one of the environment.
        terminal: Shows that a server went away or came back.

    Raises:
        ConfigurationError: There is no such database, or the address is unusable.
        ServerUnavailable: The server does not answer.
    """
    if is_server(url):
        from looopy.cli.conversations.server import reach

        return reach(str(url), token, terminal)
    from looopy.cli.conversations.database import open_database

    return open_database(url or default_url())
