"""
A source of tools on a server: how they are listed, and with which headers.

It is the base of `MCPTools` and `RemoteAgent`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from looopy.errors import ConfigurationError, LooopyError, SignInFailed, ToolServerError
from looopy.tools.asking import LockedOut, NeedsCredentials
from looopy.tools.base import Tool
from looopy.tools.sources.headers import Headers
from looopy.types.context import AuthContext, TurnContext


class ServerTools:
    """
    A source of tools on a server.

    Args:
        headers: As the application gave them.
        required: A server that cannot be reached fails the listing, instead of costing its tools.
    """

    name: str
    where: str  # the server as a message may name it

    def __init__(self, headers: Headers | None, *, required: bool) -> None:
        self._headers = headers
        self._per_turn = callable(headers)
        self._required = required

    async def list_tools(self) -> Sequence[Tool]:
        """
        The tools on offer outside a turn, as when an agent starts.

        The list is empty if *headers* is a function, or *auth* of `MCPTools`, because the tools
        then depend on the turn.

        Raises:
            ConfigurationError: No such command, or the SDK is not installed.
            ToolServerError: A *required* server cannot be reached.
        """
        if self._per_turn:
            return []
        return await self._list(None, lambda _text: None)

    async def list_for(self, turn: TurnContext, warn: Callable[[str], object]) -> Sequence[Tool]:
        """The tools on offer in *turn*; *warn* is called with the reason if some are missing."""
        return await self._list(turn, warn)

    async def headers_for(self, auth_context: AuthContext | None) -> Mapping[str, str] | None:
        """The headers of a turn, made for this moment; `ToolServerError` if that failed."""
        made: Any = self._headers
        if callable(made):
            try:
                made = made(auth_context)
                made = await made if inspect.isawaitable(made) else made
            except Exception as error:
                text = f"{self.where}: its headers could not be made: {type(error).__name__}"
                raise ToolServerError(text, server=self.name) from error
        if made is None:
            return None
        if not isinstance(made, Mapping) or not all(
            isinstance(text, str) for pair in made.items() for text in pair
        ):
            text = f"{self.where}: headers must be texts by name"
            raise ToolServerError(text, server=self.name)
        return made

    async def _list(
        self, turn: TurnContext | None, warn: Callable[[str], object]
    ) -> Sequence[Tool]:
        """The tools on offer in *turn*; `None`: outside of turns, where the caller is patient."""
        raise NotImplementedError

    def _fails(self, error: LooopyError, turn: TurnContext | None) -> bool:
        """True if *error* fails the listing; otherwise it costs the tools and a warning."""
        return self._required or (turn is None and isinstance(error, ConfigurationError))


def without_tools(error: LooopyError, effect: str, prefix: str) -> str:
    """The warning that *error* has this *effect* on tools whose names begin with *prefix*."""
    text = f"{error}; {effect}"
    return LockedOut(text, prefix) if isinstance(error, SignInFailed) else text


@contextmanager
def waiting_for_sign_in() -> Iterator[None]:
    """
    Leave a call open for fresh credentials if its user is not signed in.

    Raises:
        NeedsCredentials: The server wants its user to sign in; it has not run the call.
    """
    try:
        yield
    except SignInFailed as error:
        raise NeedsCredentials(
            f"{error.message}. The call stays open: sign the user in, then call execute_turn(None)"
        ) from None
