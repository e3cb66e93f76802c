"""A tool of an MCP server, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from looopy.errors import ToolServerError
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.sources.mcp.conversation import Conversation
from looopy.tools.sources.mcp.listing import Offer
from looopy.tools.sources.mcp.pool import Link
from looopy.tools.sources.mcp.results import to_tool_result
from looopy.tools.sources.server import waiting_for_sign_in
from looopy.types.context import AuthContext

LinkFor = Callable[[AuthContext | None], AbstractAsyncContextManager[Link]]


class MCPTool(Tool):
    """
    One tool of a server.

    If the server dies during a call, looopy makes the call again if that does no harm. Otherwise
    the call fails with an unknown outcome. The next call connects to a new server.

    Args:
        link_for: The server with the credentials of a turn; may raise `ToolServerError`.
        offer: The tool as the server lists it.
        **options: See `Tool`.

    Attributes:
        remote_name: The server's name for it.
    """

    def __init__(self, link_for: LinkFor, offer: Offer, **options: Any) -> None:
        super().__init__(
            name=offer.name,
            description=offer.description,
            parameters=offer.parameters,
            label=offer.label,
            effects=offer.effects,
            **options,
        )
        self.remote_name = offer.remote_name
        self._link_for = link_for

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Call the tool on the server.

        Raises:
            ToolServerError: The server cannot be reached, died, or broke its protocol.
            NeedsInput: The server asks the user.
            NeedsCredentials: The user is not signed in; the server has not run the call.
        """
        with waiting_for_sign_in():
            return await self._call(arguments, context)

    async def _call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        async with self._link_for(context.auth_context) as link:
            try:
                return await self._run(link, arguments, context)
            except ToolServerError as error:
                if error.outcome_known:
                    raise
                if self.effects != "external":
                    return await self._run(link, arguments, context)
                raise ToolServerError(
                    f"{error}. The outcome of this call is unknown: check before calling it again.",
                    server=error.server,
                    outcome_known=False,
                ) from None

    async def _run(
        self, link: Link, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        answer = await Conversation(link, self.remote_name, arguments, context).hold()
        result, redactor = to_tool_result(answer), link.redactor
        if redactor.free or isinstance(result.content, str):
            return result
        return ToolResult(
            redactor.blocks(tuple(result.content)),
            details=redactor.value(result.details),
            is_error=result.is_error,
        )
