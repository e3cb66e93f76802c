"""
Operations on an agent for an `AgentHost`, its protocols and a replay, not for users: inspect and
cancel its work, restrict it to its owner, record decisions, follow its log, list its tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from looopy.agent.agent import Agent
from looopy.agent.events import end_dead_turn
from looopy.agent.request import TurnRequest
from looopy.llm.provider import LLMProvider
from looopy.tools.base import Tool
from looopy.tools.gather import HeldTools, ToolSource, gather_tools, wrap_tools
from looopy.types.config import LoopConfig
from looopy.types.context import AuthContext, SystemPrompt
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.state import PendingRequest


def is_at_work(agent: Agent) -> bool:
    """True while a turn of *agent* itself runs or waits, or its history is being summarised."""
    return bool(agent._turns) or agent._summarising is not None  # noqa: SLF001 - of this room


def window_of(agent: Agent) -> int | None:
    """The size of its model's window in tokens, if known."""
    return agent._resources.abilities.window_tokens  # noqa: SLF001 - of this room


def keep_to_owner(agent: Agent) -> None:
    """
    Refuse a turn unless the actor owns the context.

    The claim checks it, because another actor may create the context after an earlier check.
    """
    agent._owner_only = True  # noqa: SLF001 - of this room


async def decide_as(
    agent: Agent,
    answers: Mapping[str, Any],
    auth_context: AuthContext | None,
    judged: Mapping[str, PendingRequest] | None,
    metadata: Mapping[str, Any] | None = None,
) -> list[ApprovalDecided]:
    """
    As `Agent.decide`, of several requests together, for an actor who need not own the context.

    Args:
        answers: By request id. All that were not given before are stored, or none.
        judged: The requests that the actor may decide: no others of these ids are. `None` for the
            owner.
        metadata: Of the turn that stores the decisions.

    Returns:
        The decisions, in the order of *answers*.
    """
    return await agent._decide(answers, auth_context, judged, metadata)  # noqa: SLF001 - of this room


def take_no_turns(agent: Agent, why: str) -> None:
    """Let no further turn of *agent* begin: `HostClosed` with *why*. Those that began continue."""
    agent._lifecycle.host_closes = why  # noqa: SLF001 - of this room


async def break_off(agent: Agent) -> bool:
    """
    End the turns of *agent* as if its process had died: `interrupted`, so they can be continued.

    This process gives the turn up and then ends it, like any process that finds a dead turn. That
    fences the turn, so the end of its task writes nothing. Where a process cannot prove that a turn
    is dead, the turn is left to its lease.

    Returns:
        True if there was one.

    Raises:
        StoreUnavailable: The end could not be stored; the next process will end the turn.
    """
    if not is_at_work(agent):
        return False
    agent._stop_summarising()  # noqa: SLF001 - of this room
    known, turns = agent._known, agent._turns  # noqa: SLF001 - of this room
    if known is None or not turns:
        return False
    turns.leave()
    await end_dead_turn(known, agent.loop_config, agent._resources.tools)  # noqa: SLF001 - of this room
    record = await known.stores.state.load(agent.context_id)
    if record is None or record.open_turn is None:
        await turns.abort()
    return True


def events_besides(agent: Agent, seen: Callable[[], int]) -> AsyncGenerator[AgentEvent, None]:
    """
    The durable events of its context behind those that the caller has *seen*.

    As `Agent.events()`, for one who gets the events of this process from `Agent.subscribe()`: they
    need not be read and decoded again, of which each may take milliseconds.

    Args:
        seen: Returns the `seq` of the newest one.
    """
    known = agent._require("events")  # noqa: SLF001 - of this room
    return agent._follow(known, seen(), seen)  # noqa: SLF001 - of this room


async def tools_of(agent: Agent) -> Mapping[str, Tool]:
    """
    The tools of an agent that is not started, by name.

    Raises:
        ConfigurationError: A source of tools failed.
    """
    held, sources = HeldTools(), wrap_tools(agent._resources.tools)  # noqa: SLF001 - of this room
    held.hold(sources)
    try:
        return await gather_tools(sources)
    finally:
        await held.let_go()


async def enabled_tools_of(agent: Agent) -> Mapping[str, Tool]:
    """
    The tools of an agent that has started, as its next turn will gather them, by name.

    Raises:
        ConfigurationError: A source of tools failed.
    """
    return await agent._resources.gather()  # noqa: SLF001 - of this room


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


def making_of(agent: Agent) -> Making:
    """The parts of an agent, which need not be started."""
    return Making(
        model=agent._resources.model,  # noqa: SLF001 - of this room
        tools=agent._resources.tools,  # noqa: SLF001 - of this room
        system_prompt=agent._system_prompt,  # noqa: SLF001 - of this room
        config=agent.loop_config,
        auto_compact=agent.auto_compact,
    )


async def give_up(agent: Agent, auth_context: AuthContext | None, turn: int) -> None:
    """
    Drop what *turn*, the last one, waits for: a turn that continues it ends at once as `cancelled`.

    The open calls get results that say so. No model is called.

    Raises:
        CannotContinue: It is not the last turn, or nothing waits any more.
        AgentBusy: A turn runs.
    """
    known = agent._require("execute_turn")  # noqa: SLF001 - of this room
    request = TurnRequest.checked(
        None,
        inputs=None,
        auth_context=auth_context,
        tenant=known.stores.tenant,
        metadata=None,
        output_type=None,
        on_busy="reject",
        key=None,
    )
    status = agent._lifecycle.with_turn()  # noqa: SLF001 - of this room
    await agent._begin_turn(replace(request, drops=turn), agent.loop_config, status)  # noqa: SLF001 - of this room
