"""The tools that a client brings with its run, for the tools of an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from looopy.errors import InvalidTool
from looopy.tools.base import Tool
from looopy.tools.sources.client import client_tool
from looopy.types.context import TurnContext


class PageTools:
    """
    A source of the tools that an AG-UI page brings with each run: `Agent(tools=[PageTools()])`.

    A client of the Responses API brings tools likewise, if `responses_api(allow=...)` lets it.
    Their calls wait for the client, as calls of a `client_tool` do. Without it in an agent's tools,
    looopy does not offer them to the model.
    """

    def list_tools(self) -> Sequence[Tool]:
        """None: outside of a turn there is no page."""
        return ()

    async def list_for(self, turn: TurnContext, warn: Callable[[str], object]) -> Sequence[Tool]:
        """The tools that came with the run of *turn*."""
        found: dict[str, Tool] = {}
        for spec in _specs(turn):
            name = spec.get("name")
            try:
                if name not in found:
                    parameters = spec.get("parameters") or None
                    found[str(name)] = client_tool(
                        str(name), str(spec.get("description") or ""), parameters
                    )
            except InvalidTool as error:
                warn(f"the page's tool {str(name)[:40]!r} is not offered: {error}")
        return list(found.values())


def _specs(turn: TurnContext) -> list[dict[str, Any]]:
    brought = turn.metadata.get("ag_ui") or turn.metadata.get("responses")
    tools = brought.get("tools") if isinstance(brought, dict) else None
    return [one for one in tools if isinstance(one, dict)] if isinstance(tools, list) else []
