"""The conversations of a user on a server, through its HTTP API alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import urlsplit

from looopy.cli.conversations.background import show_away
from looopy.cli.conversations.base import Budgets, Conditions
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError, LooopyError
from looopy.server.client import Client
from looopy.stores.contexts.spending import account_of

if TYPE_CHECKING:
    from looopy.server.models import Context, Hit, Page

TOKEN: Final = "LOOOPY_TOKEN"  # noqa: S105 - the name of a variable
LOCAL_TOKEN: Final = "LOOOPY_UI_TOKEN"  # noqa: S105 - as above
FIRST_S: Final = 1.0  # how long a program looks for a server that it has not seen yet
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_PAGE: Final = 50


class ServedConversations(Client):
    """The caller's conversations on a server; see `Conversations`."""

    whose = " of yours"

    @property
    def where(self) -> str:
        """See `Conversations`."""
        return f"on {self.url}"

    async def contexts(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **conditions: Unpack[Conditions],
    ) -> Page[Context, str]:
        """See `Conversations`."""
        _refuse({f"--{name}": conditions.get(name) for name in ("owner", "metadata", "due")})
        status, tags = conditions.get("status"), conditions.get("tags", ())
        most = _PAGE if limit is None else min(_PAGE, limit)
        return await super().contexts(status=status, tags=tags, after=after, limit=most)

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        owner: str | None = None,
    ) -> Page[Hit, str]:
        """See `Conversations`."""
        _refuse({"--owner": owner})
        return await super().search(query, context_id=context_id, after=after, limit=limit)

    async def erase(
        self, context_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Mapping[str, Any]:
        """See `Conversations`."""
        _refuse({"--keep-backups": keep_backups})
        await self.delete(context_id, force=force)
        return {"context_ids": [context_id]}

    async def erase_person(
        self,
        person: str,  # noqa: ARG002 - of the port
        *,
        force: bool = False,  # noqa: ARG002 - as above
        keep_backups: bool = False,  # noqa: ARG002 - as above
    ) -> Mapping[str, Any]:
        """See `Conversations`."""
        raise _refused("--person")

    async def budgets(
        self, *, owner: str | None, tenant: str | None, day: date | None, factory: str | None
    ) -> Budgets:
        """See `Conversations`."""
        _refuse({"--owner": owner, "--tenant": tenant, "--agent": factory})
        found = await self.budget(day=day)
        name = found["owner"]
        who = {"account": "owner", "owner": name, "account_id": account_of(name)}
        return Budgets([{**who, **item} for item in found["items"]], with_limits=True)


def _refuse(given: Mapping[str, Any]) -> None:
    for flag, value in given.items():
        if value:
            raise _refused(flag)


def _refused(flag: str) -> ConfigurationError:
    return ConfigurationError(f"{flag} is for a database: a server knows who you are")


@asynccontextmanager
async def reach(
    url: str, token: str | None, terminal: Terminal
) -> AsyncIterator[ServedConversations]:
    """
    A client that gives up at once without a server, and reports if it goes away later.

    Raises:
        ServerUnavailable: The server does not answer.
    """

    def tell(error: LooopyError | None) -> None:
        if reached:
            show_away(terminal, error)

    reached = False
    async with connect(url, token, terminal, patience_s=FIRST_S, on_away=tell) as client:
        await client.contexts(limit=1)
        reached = True
        client.patience_s = float("inf")
        yield client


def connect(url: str, token: str | None, terminal: Terminal, **options: Any) -> ServedConversations:
    """
    A client of the server at *url*.

    Raises:
        ConfigurationError: The address or the token is unusable, or httpx is missing.
    """
    found = token_for(url, token)
    client = ServedConversations(url, token=found, **options)
    if found and not _is_here(url) and url.startswith("http:"):
        terminal.notice("warning: http:// shows the token to the network between; use https://")
    return client


def token_for(url: str, given: str | None, env: Mapping[str, str] = os.environ) -> str | None:
    """
    The token for the server at *url*: the given one, or the environment's.

    The token that `looopy serve` takes from its environment is for this machine alone.
    """
    found = given or env.get(TOKEN)
    if not found and _is_here(url):
        found = env.get(LOCAL_TOKEN)
    return found or None


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in _LOCAL
