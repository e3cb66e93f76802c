"""
Plugins: tools and their prompts as one unit, switched on and off together.

A plugin is a source of tools like any other: pass it in `tools`. A collision of tool names is
treated as with any other source. Each model call asks the plugin again whether it is on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from looopy.errors import ConfigurationError
from looopy.tools.base import Enabled, Tool
from looopy.tools.gather import (
    ToolSource,
    UsesSources,
    gather_tools,
    is_enabled,
    prompts_of,
    wrap_tools,
)
from looopy.types.context import PromptPart, PromptText, TurnContext, as_part


class Plugin(UsesSources):
    """
    Tools and parts of the system prompt that are switched on and off together.

    Args:
        name: For people and traces.
        tools: Functions, `Tool`s or `ToolProvider`s, other plugins among them.
        prompts: Texts, functions of the `TurnContext`, or `PromptPart`s.
        is_enabled: A function of the `TurnContext`, or without arguments, called for each model
            call; `None`: always on.

    Raises:
        ConfigurationError: The name is empty, or a prompt is not a valid part.
        InvalidTool: A tool that no model would accept.
    """

    def __init__(
        self,
        name: str,
        *,
        tools: Sequence[ToolSource] = (),
        prompts: Sequence[PromptPart | PromptText] = (),
        is_enabled: Enabled | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError("a Plugin needs a name")
        if isinstance(prompts, str):
            raise ConfigurationError(f"plugin {name!r}: prompts takes a list of parts")
        self.name = name
        self.is_enabled = is_enabled
        self._sources = wrap_tools(tools)
        self._prompts = [as_part(one) for one in prompts]

    @property
    def is_local(self) -> bool:
        """True if it is always on, and all of its sources are local."""
        return self.is_enabled is None and all(
            isinstance(one, Tool) or getattr(one, "is_local", False) is True
            for one in self._sources
        )

    async def list_tools(self) -> Sequence[Tool]:
        """All of its tools; the caller asks `is_enabled` of each."""
        return list((await gather_tools(self._sources, disabled=True)).values())

    async def list_for(self, turn: TurnContext, warn: Callable[[str], object]) -> Sequence[Tool]:
        """Its tools in *turn*, if it is on."""
        if not is_enabled(self.is_enabled, turn):
            return ()
        return list((await gather_tools(self._sources, turn, warn)).values())

    async def system_prompts(self, turn: TurnContext) -> Sequence[PromptPart]:
        """Its parts in *turn*, if it is on; then its sources' parts."""
        if not is_enabled(self.is_enabled, turn):
            return ()
        return [*self._prompts, *await prompts_of(self._sources, turn)]

    def __repr__(self) -> str:
        return f"<Plugin {self.name}>"
