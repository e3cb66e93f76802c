"""`looopy budget show` on a server: what its caller has used, and the limits of the caller."""

from __future__ import annotations

from datetime import date
from typing import Any

from looopy.cli.budget import own_rows, print_budgets
from looopy.cli.remote.connection import connect
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError


async def show_budgets(
    url: str, *, token: str | None, day: date | None, form: str, **others: Any
) -> int:
    """
    Print the caller's sums of a day and of its month, with the limits.

    Raises:
        ConfigurationError: An option is for databases only.
        ServerUnavailable: The server does not answer.
    """
    for name, flag in (("owner", "--owner"), ("tenant", "--tenant"), ("factory", "--agent")):
        if others.get(name):
            raise ConfigurationError(f"{flag} is for a database: a server knows who you are")
    terminal = Terminal(quiet_out=True)
    async with connect(url, token, terminal) as client:
        found = await client.budget(day=day)
    rows = own_rows(found)
    print_budgets(terminal, rows, form, with_limits=True)
    if not rows and form == "table":
        terminal.notice(f"No budget of a day or a month limits you on {client.url}.")
    return 0
