"""
Which changes an agent's status may make, as a table.

`docs/lifecycle.md` draws the same table, and a test compares the two. What a caller does comes
first; what follows from loading or from a turn is written with a leading `to`. A caller's action
that is not in the table is refused with an error that says what to do instead.
"""

from __future__ import annotations

from typing import Final

from looopy.errors import AgentNotStarted, AgentStateError
from looopy.types.state import AgentStatus

_S = AgentStatus
TRANSITIONS: Final[dict[tuple[AgentStatus, str], AgentStatus]] = {
    (_S.CREATED, "start"): _S.STARTING,
    (_S.SHUTDOWN, "start"): _S.STARTING,
    (_S.PAUSED, "start"): _S.STARTING,
    (_S.PAUSED, "resume"): _S.STARTING,
    (_S.BUSY, "start"): _S.STARTING,
    (_S.WAITING, "start"): _S.STARTING,
    (_S.FAILED, "start"): _S.STARTING,
    (_S.READY, "start"): _S.READY,
    (_S.READY, "resume"): _S.READY,
    (_S.WAITING, "resume"): _S.WAITING,
    (_S.FAILED, "resume"): _S.FAILED,
    (_S.BUSY, "resume"): _S.BUSY,
    (_S.STARTING, "to created"): _S.CREATED,
    (_S.STARTING, "to ready"): _S.READY,
    (_S.STARTING, "to waiting"): _S.WAITING,
    (_S.STARTING, "to failed"): _S.FAILED,
    (_S.STARTING, "to busy"): _S.BUSY,
    (_S.STARTING, "to paused"): _S.PAUSED,
    (_S.STARTING, "to shutdown"): _S.SHUTDOWN,
    (_S.READY, "execute_turn"): _S.BUSY,
    (_S.WAITING, "execute_turn"): _S.BUSY,
    (_S.FAILED, "execute_turn"): _S.BUSY,
    (_S.BUSY, "execute_turn"): _S.BUSY,
    (_S.BUSY, "to ready"): _S.READY,
    (_S.BUSY, "to waiting"): _S.WAITING,
    (_S.BUSY, "to failed"): _S.FAILED,
    (_S.BUSY, "to busy"): _S.BUSY,
    (_S.READY, "pause"): _S.PAUSED,
    (_S.WAITING, "pause"): _S.PAUSED,
    (_S.FAILED, "pause"): _S.PAUSED,
    (_S.BUSY, "pause"): _S.PAUSED,
    (_S.PAUSED, "pause"): _S.PAUSED,
    (_S.READY, "clear"): _S.READY,
    (_S.WAITING, "clear"): _S.READY,
    (_S.FAILED, "clear"): _S.READY,
    (_S.BUSY, "clear"): _S.READY,
    (_S.PAUSED, "clear"): _S.PAUSED,
    (_S.CREATED, "shutdown"): _S.SHUTDOWN,
    (_S.READY, "shutdown"): _S.SHUTDOWN,
    (_S.WAITING, "shutdown"): _S.SHUTDOWN,
    (_S.FAILED, "shutdown"): _S.SHUTDOWN,
    (_S.BUSY, "shutdown"): _S.SHUTDOWN,
    (_S.PAUSED, "shutdown"): _S.SHUTDOWN,
    (_S.SHUTDOWN, "shutdown"): _S.SHUTDOWN,
}
_NOT_STARTED = frozenset({_S.CREATED, _S.STARTING, _S.SHUTDOWN})


def after(status: AgentStatus, action: str) -> AgentStatus:
    """
    The status that *action* leads to.

    Raises:
        AgentNotStarted: The agent has to be started first.
        AgentStateError: The status does not allow the action.
    """
    found = TRANSITIONS.get((status, action))
    if found is not None:
        return found
    if status in _NOT_STARTED:
        raise AgentNotStarted(
            f"{action}() needs a started agent, this one is {status}: await agent.start() first",
            status=status.value,
            action=action,
        )
    way_out = "await agent.resume() first" if status is _S.PAUSED else "wait for it first"
    raise AgentStateError(
        f"{action}() is not possible while the agent is {status}: {way_out}",
        status=status.value,
        action=action,
    )
