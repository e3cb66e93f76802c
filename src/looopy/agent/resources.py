"""
The provider, the stores and the tools of an agent.

`start()` opens a provider that was named by its model, and stores that were named by a URL;
`shutdown()` closes these and nothing else. The caller keeps a provider or `Stores` that it passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from looopy.agent.request import refuse_unpriced
from looopy.errors import ConfigurationError
from looopy.llm.provider import Abilities, LLMProvider, abilities_of
from looopy.stores.bundle import Stores
from looopy.stores.opening import acquire_shared, release_shared
from looopy.stores.shield import settle
from looopy.tools.base import Tool
from looopy.tools.gather import HeldTools, ToolSource, gather_tools, wrap_tools
from looopy.types.config import LoopConfig

if TYPE_CHECKING:
    from looopy.stores.base import PlainArtifactStore, PlainMessageStore, PlainStateStore


def stores_of(
    stores: Stores | str,
    messages: PlainMessageStore | None,
    artifacts: PlainArtifactStore | None,
    state: PlainStateStore | None,
) -> Stores:
    """
    The stores of an agent that was given stores of an application's own.

    Raises:
        ConfigurationError: It was given `stores` as well, or no message store.
    """
    if stores != "memory:":
        raise ConfigurationError(
            "`stores` and `message_store`, `artifact_store` or `state_store` are two ways to say"
            " where a conversation is kept: pass one of them"
        )
    if messages is None:
        raise ConfigurationError(
            "`artifact_store` and `state_store` need a `message_store` beside them"
        )
    return Stores.of(messages, artifacts, state)


class Resources:
    """
    The provider, stores and tools that one agent opens and closes.

    Args:
        model: A provider, or the name of a model.
        where: Open stores, or their URL.
        own: True if *where* are stores that the agent itself opens and closes.

    Attributes:
        provider, stores: `None` while the agent has not opened them.
        abilities: The provider's, read by `open`.
        tools: Functions are tools from the first `open` on.
    """

    def __init__(
        self,
        *,
        model: LLMProvider | str,
        where: Stores | str,
        tools: Sequence[ToolSource],
        own: bool = False,
    ) -> None:
        self.model = model
        self.where = where
        self.tools: tuple[ToolSource, ...] = tuple(tools)
        self.provider: LLMProvider | None = None
        self.abilities = Abilities()
        self.stores: Stores | None = None if own or isinstance(where, str) else where
        self._own = own
        self._held = HeldTools()

    async def open(self, config: LoopConfig) -> tuple[Stores, dict[str, Tool]]:
        """
        Open the provider, the stores and the tools by name, if they are not open.

        Raises:
            ConfigurationError, SchemaOutOfDate, StoreUnavailable: As for `Agent.start`.
        """
        from looopy.llm.resolve import resolve_provider

        if self.provider is None:
            # With a hook that supplies the key of each call, no other key is needed.
            by_call = config.hooks.get_api_key is not None
            named = isinstance(self.model, str) and not self.model.startswith("local")
            options = {"api_key": ""} if by_call and named else {}
            self.provider = resolve_provider(self.model, **options)
        self.abilities = abilities_of(self.provider)
        self.tools = wrap_tools(self.tools)
        self._held.hold(self.tools)
        tools = await gather_tools(self.tools)
        if self.abilities.prepare is not None:
            await self.abilities.prepare()
            self.abilities = abilities_of(self.provider)  # it may know more about itself now
        if self.abilities.knows_cost is False:
            refuse_unpriced(self.provider, config.budget)
        if self.stores is None:
            self.stores = await self._opened()
        if config.budget.has_windows:
            _ = self.stores.spending  # or report now that there is none
        return self.stores, tools

    async def _opened(self) -> Stores:
        if isinstance(self.where, str):
            return await acquire_shared(self.where)
        return await self.where.__aenter__()

    async def gather(self) -> dict[str, Tool]:
        """The tools that are enabled now, by name."""
        return await gather_tools(self.tools)

    async def close(self) -> None:
        """Close everything that `open` has opened, to the end, even if the caller is cancelled."""
        await settle(self._close())

    async def _close(self) -> None:
        await self._held.let_go()
        if self.stores is not None and (self._own or isinstance(self.where, str)):
            stores, self.stores = self.stores, None
            if isinstance(self.where, str):
                await release_shared(self.where)
            else:
                await stores.__aexit__(None, None, None)
        if self.provider is not None and isinstance(self.model, str):
            self.provider = None
            if self.abilities.aclose is not None:
                await self.abilities.aclose()

    def abandon(self) -> None:
        """Forget the stores and the provider of an event loop that has ended."""
        self._held = HeldTools()
        if self._own or isinstance(self.where, str):
            self.stores = None
        if isinstance(self.model, str):
            self.provider = None
