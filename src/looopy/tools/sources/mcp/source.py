"""
`MCPTools`: the tools of an MCP server, as a source of tools.

It connects when its tools are first requested, which an agent does when it starts. It leaves the
server when the last agent that uses it shuts down. An unreachable server costs its tools and a
warning, never a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, Unpack

from looopy.auth.redaction import Redactor
from looopy.errors import ConfigurationError, LooopyError, ToolServerError
from looopy.tools.base import NeedsApproval, Tool, refuse_unknown
from looopy.tools.sources.headers import Headers
from looopy.tools.sources.mcp.listing import read_listing
from looopy.tools.sources.mcp.pool import Pool, RawListing
from looopy.tools.sources.mcp.target import Limits, Target
from looopy.tools.sources.mcp.tool import MCPTool
from looopy.tools.sources.server import ServerTools
from looopy.types.context import AuthContext

_logger = logging.getLogger("looopy")


class MCPOptions(Limits, total=False):
    """Options of `MCPTools`: limits of the server, and options of each of its tools."""

    needs_approval: NeedsApproval
    parallel: bool
    timeout_s: float | None
    max_result_bytes: int | None


class MCPTools(ServerTools):
    """
    The tools of one MCP server.

    Args:
        command: Starts a server that communicates over its standard input and output.
        args: Its arguments.
        env: Variables for it, beside the few that are safe to pass on.
        cwd: Its working directory.
        url: The address of a server over streamable HTTP, instead of *command*.
        headers: For each HTTP request: a mapping, or a function of the turn's `AuthContext` (or of
            `None`), sync or async, that returns one. Turns with other headers get another
            connection.
        name: For messages; the command or host by default.
        prefix: Put before each tool's name, as in `"files_"`, if names would collide.
        only: The server's names of the tools to offer; `None`: all.
        trust_annotations: Believe the server that a tool only reads (`effects="none"`) or may be
            repeated (`"idempotent"`). Otherwise each counts as `"external"`.
        elicitation: The server may ask the user: see `docs/mcp.md`.
        required: An unreachable server fails `start()`, and a turn, with `ToolServerError`;
            otherwise it costs its tools and a warning.
        protocol: `"legacy"` for servers that fail when asked for the protocol of 2026.
        **options: For each of its tools, and limits of the server:

            - `needs_approval`: See `Tool`; for all of its tools.
            - `parallel`: Its tools may run beside other parallel tools.
            - `timeout_s`: For a call; `None`: the loop's `tool_timeout_s`.
            - `max_result_bytes`: The largest part of a result that the model sees; `None`: the
              loop's.
            - `connect_timeout_s`: For the handshake, a process's start included and the loading
              of the SDK not. 30 by default.
            - `list_timeout_s`: For the list of tools. 30 by default.
            - `cache_s`: How long that list is valid, unless the server reports a change. 300 by
              default.
            - `max_tools`: Tools beyond this number are left out. 256 by default.
            - `max_bytes`: The longest message that is read over HTTP. 16 MiB by default.
            - `max_sessions`: Connections with different headers at a time. 8 by default.

    Attributes:
        pool: The connections of this source.
        problems: The tools of the last list that were left out or repaired, and why.

    Raises:
        ConfigurationError: An option is missing or has an invalid value.
        TypeError: There is no such option.
    """

    def __init__(
        self,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str | None = None,
        headers: Headers | None = None,
        name: str | None = None,
        prefix: str = "",
        only: Collection[str] | None = None,
        trust_annotations: bool = True,
        elicitation: bool = True,
        required: bool = False,
        protocol: Literal["auto", "legacy"] = "auto",
        **options: Unpack[MCPOptions],
    ) -> None:
        refuse_unknown("MCPTools", options, MCPOptions.__annotations__)
        of_calls: dict[str, Any] = dict(options)
        limits = {name: of_calls.pop(name) for name in Limits.__annotations__ if name in options}
        self.target = Target(
            name=name or "",
            command=command,
            args=args,
            env=env or {},
            cwd=cwd,
            url=url,
            protocol=protocol,
            elicitation=elicitation,
            **limits,
        )
        if headers is not None and url is None:
            raise ConfigurationError("MCPTools: headers go with url=; a command takes env=")
        if isinstance(only, str):
            raise ConfigurationError("MCPTools: only takes a list of names")
        super().__init__(headers, required=required)
        self.name = self.target.name
        self.where = self.target.where
        self._prefix = prefix
        self._only = only
        self._trust = trust_annotations
        self._options = of_calls
        self.pool = Pool(self.target)
        self._users = 0
        self.problems: Sequence[str] = ()

    # --- a source of tools -----------------------------------------------------------------------

    def acquire(self) -> None:
        """Count a user of the server; call `release()` once for each call of this."""
        self._users += 1

    async def release(self) -> None:
        """Count a user less; after the last one, leave the server."""
        self._users -= 1
        if self._users <= 0:
            self._users = 0
            await self.aclose()

    async def aclose(self) -> None:
        """Leave the server, even if it is in use; the next use connects again."""
        await self.pool.close()

    async def __aenter__(self) -> Self:
        self.acquire()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.release()

    def __repr__(self) -> str:
        return f"<MCPTools {self.target.name}>"

    # --- inside ----------------------------------------------------------------------------------

    async def _list(
        self, auth_context: AuthContext | None, warn: Callable[[str], object], *, patient: bool
    ) -> Sequence[Tool]:
        found: RawListing | None = None
        redactor = Redactor()
        try:
            headers = await self.headers_for(auth_context)
            async with self.pool.link(headers) as link:
                redactor = link.redactor
                try:
                    found = await link.tools(patient=patient)
                except ToolServerError:
                    found = link.last_tools
                    raise
        except LooopyError as error:
            if self._fails(error, patient=patient):
                raise
            warn(f"{error}; its tools are {'those it had' if found else 'not on offer'}")
        if found is None:
            return []
        tools = self._tools(found, redactor)
        there = {one.name for one in found.tools}
        for name in self._only or ():
            if name not in there:
                warn(f"{self.target.where} has no tool {name!r}, which only= asks for")
        return tools

    def _tools(self, found: RawListing, redactor: Redactor) -> Sequence[Tool]:
        if found.read is None:
            listing = read_listing(
                found.tools,
                prefix=self._prefix,
                only=self._only,
                trust_annotations=self._trust,
                problems=found.problems,
                redactor=redactor,
            )
            found.read = [
                MCPTool(self.pool, self.headers_for, offer, **self._options)
                for offer in listing.offers
            ]
            self.problems = listing.problems
            for problem in listing.problems:
                _logger.warning("%s: %s", self.target.where, problem)
        tools: Sequence[Tool] = found.read
        return tools
