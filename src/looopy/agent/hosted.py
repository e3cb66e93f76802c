"""
The port of an agent for an `AgentHost`, its protocols and a replay, not for users.

`port_of(agent)` returns it: inspect and cancel the agent's work, restrict it to its owner, record
decisions, follow its log, list its tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from looopy.agent.core import Core
from looopy.agent.dispatch import Dispatcher
from looopy.llm.provider import LLMProvider
from looopy.tools.base import Tool
from looopy.tools.gather import HeldTools, ToolSource, gather_tools, wrap_tools
from looopy.types.config import LoopConfig
from looopy.types.context import AuthContext, SystemPrompt
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.state import PendingRequest

if TYPE_CHECKING:

    class _Hosted(Protocol):
        """An `Agent`, which imports this module."""

        def __host_port__(self) -> HostPort: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """
    The parts that an agent was made of; of its tools, functions are not wrapped before its start.

    Attributes:
        model: A provider, or the name of a model.
    """

    model: LLMProvider | str
    tools: Sequence[ToolSource]
    system_prompt: SystemPrompt
    config: LoopConfig
    auto_compact: bool

    def provider(self) -> LLMProvider:
        """The provider, without a key if it is named; or `ConfigurationError`."""
        from looopy.llm.resolve import resolve_provider

        named = isinstance(self.model, str) and not self.model.startswith("local")
        return resolve_provider(self.model, **({"api_key": ""} if named else {}))


class HostPort:
    """The operations of one agent that a host needs besides the public methods of `Agent`."""

    __slots__ = ("_core", "_dispatcher")

    def __init__(self, core: Core, dispatcher: Dispatcher) -> None:
        self._core = core
        self._dispatcher = dispatcher

    # --- its work ---

    @property
    def at_work(self) -> bool:
        """True while a turn of the agent itself runs or waits, or its history is summarised."""
        return bool(self._core.turns) or self._core.summarising is not None

    def take_no_turns(self, why: str) -> None:
        """Let no further turn begin: `HostClosed` with *why*. Those that began continue."""
        self._core.lifecycle.host_closes = why

    async def break_off(self) -> bool:
        """
        End the turns as if the process had died: `interrupted`, so they can be continued.

        This process gives the turn up and then ends it, like any process that finds a dead turn.
        That fences the turn, so the end of its task writes nothing. Where a process cannot prove
        that a turn is dead, the turn is left to its lease.

        Returns:
            True if there was one.

        Raises:
            StoreUnavailable: The end could not be stored; the next process will end the turn.
        """
        core = self._core
        core.stop_summarising()
        known, turns = core.known, core.turns
        if known is None or not turns:
            return False
        turns.leave()
        await core.end_dead_turn(known)
        record = await known.stores.state.load(core.context_id)
        if record is None or record.open_turn is None:
            await turns.abort()
        return True

    # --- turns as an owner, or beside one ---

    def keep_to_owner(self) -> None:
        """
        Refuse a turn unless the actor owns the context.

        The claim checks it, because another actor may create the context after an earlier check.
        """
        self._core.owner_only = True

    async def decide(
        self,
        answers: Mapping[str, Any],
        auth_context: AuthContext | None,
        judged: Mapping[str, PendingRequest] | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[ApprovalDecided]:
        """
        As `Agent.decide`, of several requests together, for an actor who need not own the context.

        Args:
            answers: By request id. All that were not given before are stored, or none.
            judged: The requests that the actor may decide: no others of these ids are. `None` for
                the owner.
            metadata: Of the turn that stores the decisions.

        Returns:
            The decisions, in the order of *answers*.
        """
        return await self._dispatcher.decide(answers, auth_context, judged, metadata)

    async def give_up(self, auth_context: AuthContext | None, turn: int) -> None:
        """
        Drop what *turn*, the last one, waits for: the turn that continues it ends at once as
        `cancelled`.

        The open calls get results that say so. No model is called.

        Raises:
            CannotContinue: It is not the last turn, or nothing waits any more.
            AgentBusy: A turn runs.
        """
        await self._dispatcher.drop(turn, auth_context)

    # --- its log ---

    def events_besides(self, seen: Callable[[], int]) -> AsyncGenerator[AgentEvent, None]:
        """
        The durable events of the context after those that the caller has *seen*.

        As `Agent.events()`, for a caller that gets the events of this process from
        `Agent.subscribe()`: they need not be read and decoded again, which may take milliseconds
        for each.

        Args:
            seen: Returns the `seq` of the newest one.
        """
        return self._core.follow(self._core.require("events"), seen(), seen)

    # --- its parts ---

    @property
    def window_tokens(self) -> int | None:
        """The size of the model's window in tokens, if known."""
        return self._core.resources.abilities.window_tokens

    @property
    def making(self) -> Making:
        """The parts that the agent was made of; it need not be started."""
        core = self._core
        return Making(
            model=core.resources.model,
            tools=core.resources.tools,
            system_prompt=core.system_prompt,
            config=core.options.loop_config,
            auto_compact=core.options.auto_compact,
        )

    async def listed_tools(self) -> Mapping[str, Tool]:
        """
        The tools of an agent that is not started, by name.

        Raises:
            ConfigurationError: A source of tools failed.
        """
        held, sources = HeldTools(), wrap_tools(self._core.resources.tools)
        held.hold(sources)
        try:
            return await gather_tools(sources)
        finally:
            await held.let_go()

    async def enabled_tools(self) -> Mapping[str, Tool]:
        """
        The tools of an agent that has started, as its next turn will gather them, by name.

        Raises:
            ConfigurationError: A source of tools failed.
        """
        return await self._core.tools()


def port_of(agent: _Hosted) -> HostPort:
    """The port of an `Agent`."""
    return agent.__host_port__()
