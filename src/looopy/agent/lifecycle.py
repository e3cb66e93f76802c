"""
The life of an agent: the table of statuses, and the status of one agent.

`docs/lifecycle.md` draws the same table, and a test compares the two. Actions of a caller come
first; changes by loading or by a turn begin with `to`. An action that is not in the table is
refused with an error that names the way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from looopy.agent.broadcast import Subscribers
from looopy.errors import AgentNotStarted, AgentStateError, HostClosed
from looopy.stores.records import ContextState
from looopy.types.event import StatusChange
from looopy.types.state import AgentStatus

_S = AgentStatus
_STARTED: Final = (_S.READY, _S.BUSY, _S.WAITING, _S.FAILED)
_RULES: Final[Sequence[tuple[str, AgentStatus, Sequence[AgentStatus]]]] = (
    # An action, the status after it, and the statuses that allow it.
    ("start", _S.STARTING, (_S.CREATED, _S.SHUTDOWN, _S.PAUSED, _S.BUSY, _S.WAITING, _S.FAILED)),
    ("start", _S.READY, (_S.READY,)),
    ("resume", _S.STARTING, (_S.PAUSED,)),
    *(("resume", status, (status,)) for status in _STARTED),
    ("to created", _S.CREATED, (_S.STARTING,)),
    ("to paused", _S.PAUSED, (_S.STARTING,)),
    ("to shutdown", _S.SHUTDOWN, (_S.STARTING,)),
    *((f"to {status}", status, (_S.STARTING, _S.BUSY)) for status in _STARTED),
    ("execute_turn", _S.BUSY, _STARTED),
    ("pause", _S.PAUSED, (*_STARTED, _S.PAUSED)),
    ("clear", _S.READY, _STARTED),
    ("clear", _S.PAUSED, (_S.PAUSED,)),
    ("shutdown", _S.SHUTDOWN, (_S.CREATED, *_STARTED, _S.PAUSED, _S.SHUTDOWN)),
)
TRANSITIONS: Final[dict[tuple[AgentStatus, str], AgentStatus]] = {
    (before, action): then for action, then, befores in _RULES for before in befores
}
_NOT_STARTED = frozenset({_S.CREATED, _S.STARTING, _S.SHUTDOWN})


def after(status: AgentStatus, action: str) -> AgentStatus:
    """The status after *action*, or `AgentNotStarted`, or `AgentStateError`."""
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


def _status_of(busy_turn: int | None, state: ContextState) -> AgentStatus:
    """The status that follows from a context: *busy_turn* runs, or *state* is left."""
    if busy_turn is not None:
        return AgentStatus.BUSY
    if state.waits:
        return AgentStatus.WAITING
    return AgentStatus.READY if state.error is None else AgentStatus.FAILED


class LoopLock:
    """A lock for one event loop after another, as an agent may be used in several."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0  # the number of holders and waiters

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the block."""
        self._users += 1
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1
            if not self._users:
                self._lock = asyncio.Lock()  # a lock with waiters belongs to its loop


class Lifecycle:
    """
    The status of one agent, and its home: the event loop and the process it was started in.

    A method that changes the agent as a whole (starts, pauses, clears it) holds `alone`.

    Attributes:
        home: `None` while the next start may be in any event loop.
        host_closes: Why the host lets no further turn begin, or `None`.
        leaving: `pause` or `shutdown`, while it lets turns end and refuses others.
        rereading: The agent was started before, and is being started again.
    """

    def __init__(self, context_id: str, subscribers: Subscribers) -> None:
        self.status = AgentStatus.CREATED
        self.host_closes: str | None = None
        self._context_id = context_id
        self._subscribers = subscribers
        self.reset()

    def reset(self) -> None:
        """Forget the home and everything that may be bound to its event loop; the status stays."""
        self.home: tuple[asyncio.AbstractEventLoop, int] | None = None
        self.alone = LoopLock()
        self.leaving: str | None = None
        self.rereading = False

    # --- the status ---

    def refusal(self, action: str, text: str) -> AgentStateError:
        """The error for an *action* that is not possible now."""
        return AgentStateError(text, status=self.status.value, action=action)

    def after(self, action: str) -> AgentStatus:
        """The status after *action*; raises as the function `after`."""
        return after(self.status, action)

    def take(self, action: str) -> None:
        """Change the status as *action* does; raises as the function `after`."""
        self.set(after(self.status, action))

    def set(self, status: AgentStatus) -> None:
        """Change the status, and call the subscribers."""
        if status is not self.status:
            self.status = status
            if self._subscribers.present:
                self._subscribers.tell(StatusChange(context_id=self._context_id, status=status))

    def report(self, reason: str) -> None:
        """Tell the subscribers a *reason* with the present status."""
        if self._subscribers.present:
            event = StatusChange(context_id=self._context_id, status=self.status, reason=reason)
            self._subscribers.tell(event)

    def settle(self, busy_turn: int | None, state: ContextState) -> None:
        """Set the status that follows from the context: *busy_turn* runs, or *state* is left."""
        self.take(f"to {_status_of(busy_turn, state)}")

    def reread(self, busy_turn: int | None, state: ContextState) -> None:
        """Set the status as `settle` does, on a started agent that has read its context again."""
        if self.status in _STARTED:
            self.set(_status_of(busy_turn, state))

    def with_turn(self) -> AgentStatus:
        """The status with one more turn; `AgentStateError`, or `HostClosed`, if none may start."""
        if self.host_closes is not None:
            raise HostClosed(self.host_closes)
        status = self.status
        if not self.rereading:  # else the turn waits for the reading
            status = self.after("execute_turn")
        if self.leaving is not None:
            text = f"{self.leaving}() waits for the last turn to end: no other may start"
            raise self.refusal("execute_turn", text)
        return status

    @contextlib.contextmanager
    def last_turns(self, action: str) -> Iterator[None]:
        """Within the block, *action* waits for the turns to end, and no other may start."""
        self.leaving = action
        try:
            yield
        finally:
            self.leaving = None

    # --- the home ---

    def move_in(self) -> None:
        """Set the home to the running event loop and this process."""
        self.home = (asyncio.get_running_loop(), os.getpid())

    @property
    def home_is_gone(self) -> bool:
        """True if its event loop has ended, or is another process's."""
        return self.home is not None and (self.home[0].is_closed() or self.home[1] != os.getpid())

    def check_home(self, action: str) -> None:
        """Raise `AgentStateError` for a call from another event loop, or from a forked child."""
        if self.home is None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # a method that needs one raises
            return
        loop, process = self.home
        if here is loop and os.getpid() == process:
            return
        where = "another event loop" if os.getpid() == process else "the process before it forked"
        raise self.refusal(
            action,
            f"{action}() of an agent that was started in {where}: use it there, or make another"
            " Agent with its context_id here",
        )
