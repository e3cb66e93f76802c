"""
`MCPTools`: the tools of an MCP server, as a source of tools.

It connects when its tools are first requested, which an agent does when it starts. It leaves the
server when the last agent that uses it shuts down. An unreachable server costs its tools and a
warning, never a turn.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self, Unpack

from looopy.auth.redaction import Redactor
from looopy.errors import ConfigurationError, LooopyError, ToolServerError
from looopy.tools.base import NeedsApproval, Tool, refuse_unknown
from looopy.tools.sources.headers import Headers
from looopy.tools.sources.mcp.credentials import Auth, Credentials, is_auth, user_of
from looopy.tools.sources.mcp.listing import read_listing
from looopy.tools.sources.mcp.pool import Link, Pool, RawListing
from looopy.tools.sources.mcp.resources import (
    ListResources,
    MCPPrompt,
    MCPResource,
    ReadResource,
    to_blocks,
    to_messages,
    to_prompt,
    to_resource,
)
from looopy.tools.sources.mcp.target import Limits, Target
from looopy.tools.sources.mcp.tool import MCPTool
from looopy.tools.sources.server import ServerTools, without_tools
from looopy.types.context import AuthContext, TurnContext
from looopy.types.message import AssistantMessage, UserBlock, UserMessage

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
        auth: Signs in over HTTP: an `httpx2.Auth`, as the SDK's `OAuthClientProvider`, or a
            function of the turn's `AuthContext` (or of `None`), sync or async, that returns one for
            its user. Each user (tenant and actor) gets a connection. See `docs/mcp.md`.
        origins: Places where a sign-in may lead, beside the server's own origin, as in
            `["https://login.example"]`. No request of it goes elsewhere.
        name: For messages; the command or host by default.
        prefix: Put before each tool's name, as in `"files_"`, if names would collide.
        only: The server's names of the tools to offer; `None`: all.
        trust_annotations: Believe the server that a tool only reads (`effects="none"`) or may be
            repeated (`"idempotent"`). Otherwise each counts as `"external"`.
        elicitation: The server may ask the user: see `docs/mcp.md`.
        resources: Offer the model the tools `list_resources` and `read_resource`, after *prefix*,
            if the server has resources.
        required: An unreachable server fails `start()`, and a turn, with `ToolServerError`;
            otherwise it costs its tools and a warning.
        protocol: `"legacy"` for servers that fail when asked for the protocol of 2026; `"sse"` for
            servers that speak only the HTTP transport of 2024.
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
        auth: Auth | None = None,
        origins: Collection[str] = (),
        name: str | None = None,
        prefix: str = "",
        only: Collection[str] | None = None,
        trust_annotations: bool = True,
        elicitation: bool = True,
        resources: bool = False,
        required: bool = False,
        protocol: Literal["auto", "legacy", "sse"] = "auto",
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
            origins=origins,
            **limits,
        )
        if headers is not None and url is None:
            raise ConfigurationError("MCPTools: headers go with url=; a command takes env=")
        if auth is not None and (url is None or not (callable(auth) or is_auth(auth))):
            text = "auth takes an httpx2.Auth, or a function that returns one, and goes with url="
            raise ConfigurationError(f"MCPTools: {text}")
        if isinstance(only, str):
            raise ConfigurationError("MCPTools: only takes a list of names")
        super().__init__(headers, required=required)
        self._auth = auth
        self._auth_per_turn = callable(auth) and not is_auth(auth)
        self._per_turn = self._per_turn or self._auth_per_turn
        self.name = self.target.name
        self.where = self.target.where
        self._prefix = prefix
        self._only = only
        self._trust = trust_annotations
        self._resources = resources
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

    # --- resources and prompts -------------------------------------------------------------------

    async def list_resources(
        self, auth_context: AuthContext | None = None
    ) -> Sequence[MCPResource]:
        """
        The resources of the server, then its templates; empty if it has none.

        Args:
            auth_context: For `headers` and `auth`, as in a turn; also for the methods below.

        Raises:
            ToolServerError: The server cannot be reached, or its answer is invalid.
            ConfigurationError: No such command, or the SDK is not installed.
        """
        async with self.link_for(auth_context) as link:
            found = await link.ask(lambda client: _sdk().list_resources(client))
            return [to_resource(one, link.redactor) for one in found]

    async def read_resource(
        self, uri: str, auth_context: AuthContext | None = None
    ) -> tuple[UserBlock, ...]:
        """
        The content of a resource: text and images, other content as a note.

        Raises:
            ToolServerError: Same as `list_resources`, or the server has no such resource.
        """
        async with self.link_for(auth_context) as link:
            contents = await link.ask(lambda client: _sdk().read_resource(client, uri))
            return to_blocks(contents, link.redactor)

    async def list_prompts(self, auth_context: AuthContext | None = None) -> Sequence[MCPPrompt]:
        """
        The prompts of the server; empty if it has none.

        Raises:
            ToolServerError: Same as `list_resources`.
        """
        async with self.link_for(auth_context) as link:
            found = await link.ask(lambda client: _sdk().list_prompts(client))
            return [to_prompt(one, link.redactor) for one in found]

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        auth_context: AuthContext | None = None,
    ) -> tuple[UserMessage | AssistantMessage, ...]:
        """
        The messages of a prompt, filled in with *arguments*.

        Raises:
            ToolServerError: Same as `list_resources`, or the server does not accept the arguments.
        """
        async with self.link_for(auth_context) as link:
            answer = await link.ask(lambda client: _sdk().get_prompt(client, name, arguments or {}))
            return to_messages(answer, link.redactor)

    # --- inside ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def link_for(self, auth_context: AuthContext | None) -> AsyncIterator[Link]:
        """
        The server with the credentials of a turn, in use for as long as the block runs.

        Raises:
            ToolServerError: The function that makes the credentials failed.
        """
        made = Credentials(
            await self.headers_for(auth_context),
            await self._auth_for(auth_context),
            user_of(auth_context) if self._auth_per_turn else None,
        )
        async with self.pool.link(made) as link:
            yield link

    async def _auth_for(self, auth_context: AuthContext | None) -> Any:
        if not self._auth_per_turn:
            return self._auth
        make: Any = self._auth
        try:
            made = make(auth_context)
            made = await made if inspect.isawaitable(made) else made
        except Exception as error:
            text = f"{self.where}: its auth could not be made: {type(error).__name__}"
            raise ToolServerError(text, server=self.name) from error
        if made is not None and not is_auth(made):
            text = f"{self.where}: auth must return an httpx2.Auth, not {type(made).__name__}"
            raise ToolServerError(text, server=self.name)
        return made

    async def _list(
        self, turn: TurnContext | None, warn: Callable[[str], object]
    ) -> Sequence[Tool]:
        found: RawListing | None = None
        redactor = Redactor()
        asker = None if turn is None else (turn.context_id, turn.turn)
        try:
            async with self.link_for(None if turn is None else turn.auth_context) as link:
                try:
                    found = await link.tools(turn=asker)
                except ToolServerError:
                    found = link.last_tools
                    raise
                finally:
                    redactor = link.redactor
        except LooopyError as error:
            if self._fails(error, turn):
                raise
            if found is None:
                warn(without_tools(error, "its tools are not on offer", self._prefix))
            else:
                warn(f"{error}; its tools are those it had")
        if found is None:
            return []
        tools = self._tools(found, redactor)
        there = {one.name for one in found.tools}
        for name in self._only or ():
            if name not in there:
                warn(f"{self.target.where} has no tool {name!r}, which only= asks for")
        return tools

    def _resource_tools(self, taken: Collection[str]) -> list[Tool]:
        """The tools for resources; a tool of the server that has such a name stays."""
        listing, reading = (f"{self._prefix}{name}" for name in ("list_resources", "read_resource"))
        made = [
            ListResources(listing, self.where, self.list_resources, **self._options),
            ReadResource(reading, self.where, self.read_resource, **self._options),
        ]
        return [one for one in made if one.name.casefold() not in taken]

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
                MCPTool(self.link_for, offer, **self._options) for offer in listing.offers
            ]
            if self._resources and found.has_resources:
                found.read += self._resource_tools({one.name.casefold() for one in listing.offers})
            self.problems = listing.problems
            for problem in listing.problems:
                _logger.warning("%s: %s", self.target.where, problem)
        tools: Sequence[Tool] = found.read
        return tools


def _sdk() -> Any:
    """The SDK in looopy's terms, once a connection has loaded it."""
    from looopy.tools.sources.mcp import sdk

    return sdk
