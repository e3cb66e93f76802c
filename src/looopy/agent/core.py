"""
State shared by the parts of one agent, and checks that several of their methods begin with.

`Agent` makes one `Core` and hands it to its parts: `lifetime`, `dispatch`, `queues`, `history` and
the port in `hosted`. No part knows another's insides.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from looopy.agent.broadcast import Subscribers
from looopy.agent.context import ContextView
from looopy.agent.events import end_dead_turn, follow
from looopy.agent.lifecycle import Lifecycle, LoopLock
from looopy.agent.resources import Resources
from looopy.agent.turns import Turns
from looopy.auth.sealing import KeyRing
from looopy.errors import AgentBusy, AgentStateError
from looopy.stores.records import ContextRecord
from looopy.tools.base import Tool
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken, SystemPrompt
from looopy.types.event import AgentEvent
from looopy.types.state import AgentStatus

if TYPE_CHECKING:
    from looopy.agent.buffer import BufferedTurn

    class Options(Protocol):
        """The public attributes of an `Agent` that its parts read."""

        context_id: str
        agent_name: str
        loop_config: LoopConfig
        auto_save: bool
        auto_compact: bool
        on_busy: Literal["reject", "wait"]


class Core:
    """
    The resources, status and turns of one agent, and its context as the agent knows it.

    Args:
        options: The `Agent`, whose public attributes its parts read; they may change between turns.
        keys: Makes and keeps the keys that credentials are encrypted to.

    Attributes:
        known: The context as last read; `None` while the agent is not started.
        last_record: The last record of a context that the agent has released, or `None`.
        buffer: Turns that wait to be saved, oldest first (`auto_save=False`).
        saving: Held while buffered turns or the metadata are being written.
        summarising: Cancels the `compact` that runs; or `None`.
        owner_only: Refuse a turn of an actor who does not own the context.
    """

    def __init__(
        self, options: Options, resources: Resources, *, system_prompt: SystemPrompt, keys: KeyRing
    ) -> None:
        self.context_id = options.context_id
        self.options = options
        self.resources = resources
        self.system_prompt = system_prompt
        self.keys = keys
        self.owner_only = False
        self.subscribers = Subscribers(options.agent_name)
        self.lifecycle = Lifecycle(options.context_id, self.subscribers)
        self.known: ContextView | None = None
        self.last_record: ContextRecord | None = None
        self.buffer: list[BufferedTurn] = []
        self.settle_in()

    def settle_in(self) -> None:
        """Make the objects that belong to one event loop; they are not bound to one yet."""
        self.turns = Turns(self.options.agent_name, idle=self.idle)
        self.saving = LoopLock()
        self.summarising: CancelToken | None = None

    # --- checks ---

    def require(self, action: str, *, saving: bool = False) -> ContextView:
        """
        The known context.

        Args:
            saving: *action* needs `auto_save=True`, too.

        Raises:
            AgentNotStarted, AgentStateError: The agent is not started, or was in another event
                loop.
        """
        self.lifecycle.check_home(action)
        if self.known is None:
            self.lifecycle.after(action)
        if self.known is None:
            raise AgentStateError("the agent is not started")
        if saving:
            self.require_saving(action)
        return self.known

    def require_saving(self, what: str) -> None:
        """Raise `AgentStateError` with `auto_save=False`, which does not allow *what*."""
        if not self.options.auto_save:
            raise self.lifecycle.refusal(
                what,
                f"{what} needs auto_save=True: what is kept in memory alone has no name and no"
                " inbox",
            )

    def refuse_inside(self, action: str) -> None:
        """Refuse a call from another event loop, and one from a tool of a running turn."""
        self.lifecycle.check_home(action)
        turn = self.turns.around()
        if turn is not None:
            raise self.lifecycle.refusal(
                action,
                f"{action}() would wait for turn {turn.turn}, which waits for the tool that calls"
                " it: call it once that turn has ended, from outside of it",
            )

    def refuse_while_busy(self) -> None:
        """Raise `AgentBusy` while a turn of the agent runs."""
        if self.turns.running is not None:
            raise AgentBusy("a turn of this agent is running", turn=self.turns.running.turn or None)

    # --- the status ---

    def settle(self) -> None:
        """Set the status that follows from the known context."""
        if self.known is not None:
            self.lifecycle.settle(self.known.busy_turn, self.known.state)

    def idle(self) -> None:
        """End the status `busy`, unless another turn runs."""
        if self.turns.running is None and self.lifecycle.status is AgentStatus.BUSY:
            self.settle()

    def stop_summarising(self) -> None:
        """Cancel the `compact` that runs, if there is one."""
        if self.summarising is not None:
            self.summarising.cancel()

    # --- the context ---

    async def tools(self) -> dict[str, Tool]:
        """The tools that are enabled now, by name."""
        return await self.resources.gather()

    async def end_dead_turn(self, known: ContextView) -> int:
        """End the turn that a dead process left, if there is one; return the newest `seq`."""
        return await end_dead_turn(known, self.options.loop_config, self.resources.tools)

    async def end_past(self, known: ContextView) -> Mapping[str, Tool]:
        """Before a change of the history: end a dead turn, read what is new; return the tools."""
        tools = await self.tools()
        newest = await self.end_dead_turn(known)
        if newest < known.seq:
            await known.refresh(tools)
        known.tell_losses()
        known.stale = True  # whatever becomes of the change that follows
        await known.heads_read()
        return tools

    def follow(
        self, known: ContextView, after: int | None, seen: Callable[[], int] | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        """The durable events after the `seq` *after*; *seen* is as in `looopy.agent.events`."""
        start: int | Awaitable[int] | None = after
        if after is None:
            with contextlib.suppress(RuntimeError):  # without a loop: at the first iteration
                start = known.head()
        return follow(
            known.stores,
            self.context_id,
            start,
            idle=lambda: not self.turns,
            end_dead_turn=lambda: self.end_dead_turn(known),
            longest_s=self.options.loop_config.lease_ttl_s,
            seen=seen,
        )

    async def flush(self, without: Collection[str] = ()) -> None:
        """
        Append buffered turns, oldest first; each stored turn leaves the buffer at once.

        The caller holds `saving`.
        """
        if self.options.auto_save or not self.buffer or self.known is None:
            return
        from looopy.agent.buffer import save_turns  # not what an import pays for

        await save_turns(self.known, self.buffer, self.options.loop_config.lease_ttl_s, without)
        await self.known.refresh(await self.tools())
