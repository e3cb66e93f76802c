"""
Start, pause, resume and shut down an agent.

Each of these changes the agent as a whole: it holds `Lifecycle.alone`, and first lets the present
turns end. The statuses that allow it are in `lifecycle`.
"""

from __future__ import annotations

import contextlib
import logging

from looopy.agent.context import ContextView
from looopy.agent.core import Core
from looopy.agent.lifecycle import TRANSITIONS
from looopy.stores.shield import settle
from looopy.types.state import AgentStatus

_logger = logging.getLogger("looopy")


class Lifetime:
    """The start and the end of one agent; the errors are those of the `Agent`'s methods."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def start(self) -> None:
        """As `Agent.start`."""
        core = self._core
        if core.lifecycle.home_is_gone:
            self._leave_home()
        core.lifecycle.check_home("start")
        if core.turns.running is not None:
            return
        async with core.lifecycle.alone.held():
            core.lifecycle.move_in()
            if core.lifecycle.status is AgentStatus.READY or core.turns.running is not None:
                return
            await self._start("start")

    async def pause(self, *, cancel: bool) -> None:
        """As `Agent.pause`."""
        core = self._core
        core.refuse_inside("pause")
        if cancel:
            core.stop_summarising()  # before the lock, which `compact` holds
        async with core.lifecycle.alone.held():
            core.lifecycle.after("pause")
            if cancel:
                core.turns.cancel()
            with core.lifecycle.last_turns("pause"):
                await core.turns.end()
                before = core.lifecycle.status
                core.lifecycle.take("pause")  # from here on, turns are refused
            try:
                async with core.saving.held():
                    await core.flush()
            except BaseException:
                core.lifecycle.set(before)
                raise
            if core.known is not None:
                await core.known.leave(AgentStatus.PAUSED)

    async def resume(self) -> None:
        """As `Agent.resume`."""
        core = self._core
        core.refuse_inside("resume")
        async with core.lifecycle.alone.held():
            if core.lifecycle.after("resume") is AgentStatus.STARTING:
                await self._start("resume")
            elif core.known is not None:
                await core.known.leave(AgentStatus.READY)

    async def shutdown(self, *, cancel: bool, notes: bool = False) -> None:
        """
        As `Agent.shutdown`.

        Args:
            notes: Note it in the store.
        """
        core = self._core
        if core.lifecycle.home_is_gone:
            self._leave_home()
        core.refuse_inside("shutdown")
        if cancel:
            core.stop_summarising()  # before the lock, which `compact` holds
        async with core.lifecycle.alone.held():
            if cancel:
                core.turns.cancel()
            with core.lifecycle.last_turns("shutdown"):
                await core.turns.end()
                await core.turns.detach()
                await core.turns.end()  # work that views have started in the meantime
                core.lifecycle.take("shutdown")
            try:
                await settle(self._save_last(notes=notes))
            finally:
                await core.resources.close()
                core.lifecycle.home = None

    async def _start(self, action: str) -> None:
        """
        Start; if that fails, restore the previous status.

        An agent that was started before still accepts turns: they wait until it has read the
        context.
        """
        core, life = self._core, self._core.lifecycle
        new, before = core.known is None, life.status
        life.rereading = not new and (before, "execute_turn") in TRANSITIONS
        life.take(action)
        try:
            with core.turns.held() if life.rereading else contextlib.nullcontext():
                await self._open()
            await self._note_start(new=new, before=before)
        except BaseException:
            try:
                if new:
                    core.known = None
                    await core.resources.close()
                    life.home = None
            finally:
                life.take("to created" if new else f"to {before}")
            raise
        finally:
            life.rereading = False
            if core.turns.running is not None:
                life.take("execute_turn")

    async def _note_start(self, *, new: bool, before: AgentStatus) -> None:
        """Report that another agent has paused the context; take this one's own note back."""
        core, known = self._core, self._core.known
        if known is None or known.state.left_as is not AgentStatus.PAUSED:
            return
        if before is AgentStatus.PAUSED:
            await known.leave(AgentStatus.READY)
        elif new:
            core.lifecycle.report(
                "another agent has paused this context: resume() or a turn takes the note back"
            )

    async def _open(self) -> None:
        """Open the agent's resources, and read its context."""
        core = self._core
        stores, tools = await core.resources.open(core.options.loop_config)
        if core.known is None:
            core.known = ContextView(
                stores,
                core.context_id,
                core.options.loop_config,
                window_tokens=core.resources.abilities.window_tokens,
                counted=core.resources.abilities.count_tokens is not None,
            )
        if not core.buffer:
            await core.known.refresh(tools)
        core.known.forgive()
        core.settle()

    async def _save_last(self, *, notes: bool) -> None:
        """Save the buffered turns, after any other save, and forget the context."""
        core = self._core
        async with core.saving.held():
            try:
                await core.flush()
            finally:
                if core.known is not None:
                    await core.known.heads_read()
                    if notes and not (core.owner_only or core.buffer):
                        await core.known.leave(AgentStatus.SHUTDOWN)
                if core.known is not None and core.buffer:
                    from looopy.agent.buffer import abandon  # not what an import pays for

                    await abandon(core.known, core.buffer)
                self._forget()

    def _forget(self) -> None:
        core = self._core
        core.buffer.clear()
        if core.known is not None:
            core.last_record, core.known = core.known.record, None

    def _leave_home(self) -> None:
        """Release what was bound to an event loop that has ended, and return to `created`."""
        core = self._core
        if core.buffer:
            _logger.warning(
                "%d turns of context %s were not saved before their event loop ended",
                len(core.buffer),
                core.context_id,
            )
        self._forget()
        core.resources.abandon()
        core.lifecycle.reset()
        core.settle_in()
        core.lifecycle.set(AgentStatus.CREATED)
