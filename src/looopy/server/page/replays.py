"""
Stored turns that run again: answered from their log, or for real in a fork beside them.

A replay compares a turn with the agent that the factory makes now. It calls no model and no tool,
and stores nothing. A turn that runs beside is a turn like any other, in a context of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Final

from looopy.errors import StoreConflict, ValueRefused
from looopy.replay import Recording, read_recording, replay
from looopy.replay.beside import fork_name
from looopy.server import models
from looopy.server.host import AgentHost
from looopy.server.items import item, to_json
from looopy.server.problems import Problem
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord
from looopy.stores.shield import settle
from looopy.types.context import AuthContext

_MOST_S: Final = 60.0  # a prompt of the application may wait for anything


async def recorded(
    host: AgentHost, auth: AuthContext, record: ContextRecord, turn: int
) -> Recording:
    """
    The stored turn of a context that the caller owns.

    Raises:
        Problem: 404; the context has no such turn.
        ValueRefused: Its messages were deleted; `path` is `/turn`.
    """
    if not 1 <= turn <= record.turn_count:
        raise Problem(f"there is no turn {turn}", status=404, code="turn_not_found")
    return await read_recording(host.stores_for(auth), record.context_id, turn)


async def replayed(
    host: AgentHost, auth: AuthContext, recording: Recording, ignore: tuple[str, ...]
) -> models.Replay:
    """
    The outcome of a replay with the present agent, as JSON.

    Raises:
        Problem: 503; the replay took too long.
        ValueRefused: The turn is open or cannot be replayed, or *ignore* has an unknown name.
        FactoryFailed: See `AgentHost.agent`.
    """
    agent = await host.sample(recording.context_id, auth)
    try:
        async with asyncio.timeout(_MOST_S):
            found = await replay(recording, agent, ignore=ignore)
    except TimeoutError:
        text = f"the replay took more than {_MOST_S:g} s: does the system prompt wait for something"
        raise Problem(f"{text}?", status=503, code="timeout") from None
    except ValueRefused as error:
        if error.path != "/output_type":
            raise
        text = f"turn {recording.turn} had an output_type, which no log keeps: replay it in Python"
        raise Problem(text, code="value_refused", path="/turn") from None
    return item(
        models.Replay,
        recording,
        after=recording.at,
        messages=len(recording.messages),
        difference=to_json(found.difference),
        gone=list(found.gone),
        left_out=list(found.left_out),
    )


def name_beside(recording: Recording, auth: AuthContext, key: str | None) -> str:
    """The name of a fork; the same for the same *key*, so that a repeated request finds it."""
    if key is None:
        return fork_name(recording, secrets.token_hex(8))
    facts = "\0".join((recording.context_id, str(recording.turn), auth.actor_id, key))
    return fork_name(recording, hashlib.sha256(facts.encode()).hexdigest()[:16])


async def forked(stores: Stores, recording: Recording, name: str, *, again: bool) -> bool:
    """
    Make the fork in which a turn runs again.

    Args:
        stores: Those of the turn's context.
        again: It may be there, from the same request before.

    Returns:
        True if it was made now.

    Raises:
        ValueRefused: The messages before the turn were deleted; `path` is `/turn`.
        StoreConflict: The name is taken.
    """
    try:
        await settle(stores.journal.fork(recording.context_id, name, at=recording.at))
    except ValueRefused as error:
        raise ValueRefused(str(error), path="/turn") from None
    except StoreConflict:
        if not again:
            raise
        return False
    return True
