"""Run a turn again, with a real model and real tools, in a fork beside the stored one."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from looopy.agent.agent import Agent
from looopy.errors import ConfigurationError, LooopyError, ValueRefused
from looopy.replay.recording import Recording, read_recording
from looopy.stores.bundle import Stores
from looopy.stores.shield import settle
from looopy.types.context import AuthContext
from looopy.types.message import UserMessage

AgentFactory: TypeAlias = "Callable[[str, Stores], Agent | Awaitable[Agent]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """
    A turn, and the same input answered again.

    Attributes:
        context_id: The fork, which keeps the new turn.
    """

    context_id: str
    then: Recording
    now: Recording


async def built(factory: AgentFactory, context_id: str, stores: Stores) -> Agent:
    """
    The agent that an application makes for a context, not started.

    Raises:
        ConfigurationError: *factory* has failed, or returned another thing.
    """
    try:
        made = factory(context_id, stores)
        agent = await made if inspect.isawaitable(made) else made
    except LooopyError:
        raise
    except Exception as error:
        said = f"the factory failed: {type(error).__name__}: {error}"
        raise ConfigurationError(said) from error
    if not isinstance(agent, Agent):
        raise ConfigurationError(
            f"the factory returned {type(agent).__name__}, not an Agent: a factory takes"
            " (context_id, stores) and returns an Agent that is not started"
        )
    return agent


def message_of(recording: Recording) -> UserMessage:
    """
    The message with which a turn runs again.

    Raises:
        ValueRefused: The turn began without a message of a user, or was scrubbed; `path` is
            `/turn`.
    """
    message = next((m for m in recording.prompts if isinstance(m, UserMessage)), None)
    if message is None or recording.scrubbed:
        why = "its contents were scrubbed" if recording.scrubbed else "it has no message of a user"
        raise ValueRefused(
            f"turn {recording.turn} cannot be run again: {why}; name the turn that asked",
            path="/turn",
        )
    return message


def fork_name(recording: Recording, ending: str) -> str:
    """A name for the fork in which a turn runs again."""
    return f"{recording.context_id[:80]}-replay-{ending}"


async def run_beside(
    stores: Stores,
    recording: Recording,
    factory: AgentFactory,
    *,
    context_id: str | None = None,
    auth_context: AuthContext | None = None,
) -> Beside:
    """
    Answer the message of a stored turn again, in a fork that begins where the turn began.

    The model is called and the tools run: the agent of *factory* may have another model, prompt or
    tool. The context itself stays as it is.

    Args:
        recording: The result of `read_recording`; not scrubbed.
        context_id: The name of the fork; `None`: one is made.
        auth_context: For the new turn.

    Raises:
        ValueRefused: The turn began without a message of a user; `path` is `/turn`.
        StoreConflict: The name of the fork is taken.
        LooopyError: The agent could not be started, or the turn could not run.
    """
    message = message_of(recording)
    made = context_id or fork_name(recording, uuid.uuid4().hex[:8])
    await settle(stores.journal.fork(recording.context_id, made, at=recording.at))
    async with await built(factory, made, stores) as agent:
        result = await agent.execute_turn(message, auth_context=auth_context)
        now = await read_recording(stores, made, result.turn)
    return Beside(context_id=made, then=recording, now=now)
