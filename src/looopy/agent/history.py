"""
The stored conversation of an agent: read it again, save it, and change what counts of it.

A change holds `Lifecycle.alone`, and `Turns.held`, because a turn that began in the middle of it
would see half a history.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from looopy.agent.context import ContextView
from looopy.agent.core import Core
from looopy.agent.request import check_at_least_one, check_storable
from looopy.agent.state import snapshot
from looopy.errors import AgentStateError, ContextNotFound, StoreConflict
from looopy.stores.base import Journal
from looopy.stores.shield import settle
from looopy.types.context import CancelToken
from looopy.types.event import Compaction, HistoryRewound
from looopy.types.message import Message
from looopy.types.state import AgentState, AgentStatus


class History:
    """The conversation of one agent; the errors are those of the `Agent`'s methods."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # --- read ---

    async def refresh(self) -> None:
        """As `Agent.refresh`."""
        core = self._core
        core.require("refresh")
        if core.turns.running is not None:
            return
        async with core.lifecycle.alone.held():
            known = core.require("refresh")
            if core.turns.running is None and not core.buffer:
                tools = await core.tools()
                with core.turns.held():  # a turn that began now would read at the same time
                    await known.refresh(tools)
                if core.turns.running is None:
                    core.lifecycle.reread(known.busy_turn, known.state)

    async def messages(
        self, *, after: int, limit: int | None, include_hidden: bool
    ) -> list[Message]:
        """As `Agent.get_messages`."""
        core = self._core
        known = core.require("get_messages")
        found = await known.stores.messages.list(
            core.context_id, after=after, limit=limit, include_hidden=include_hidden
        )
        if core.options.auto_save:
            return found
        from looopy.agent.buffer import buffered_messages

        found += buffered_messages(core.buffer, after=after - known.saved_position)
        return found if limit is None else found[:limit]

    async def covered(
        self, position: int | None, *, after: int, limit: int | None
    ) -> list[Message]:
        """As `Agent.get_covered`."""
        from looopy.agent.compact import covered

        known = self._core.require("get_covered")
        return await covered(known, position, after=after, limit=limit)

    # --- save ---

    async def save(self, metadata: Mapping[str, Any] | None, without: Collection[str]) -> None:
        """As `Agent.save_state`."""
        core = self._core
        core.require("save_state")
        kept = check_storable(metadata, "/metadata")
        async with core.saving.held():
            known = core.require("save_state")  # the last holder may have shut the agent down
            await core.flush(without)
            if metadata is not None or known.record is None:
                await known.save_metadata(kept, idle=not core.turns)

    async def tag(self, add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
        """As `Agent.tag`."""
        core = self._core
        known = core.require("tag")
        tagging = functools.partial(known.stores.contexts.tag, core.context_id)
        try:
            tags = await settle(tagging(add=add, remove=remove))
        except ContextNotFound:
            with contextlib.suppress(StoreConflict):  # another process was first
                await known.stores.state.save(core.context_id, {}, version=0)
            tags = await settle(tagging(add=add, remove=remove))
        if known.record is not None:
            known.remember(now=known.record.last_activity, tags=tags)
        elif core.turns.running is None:
            known.record = await known.stores.state.load(core.context_id)
        return tags

    # --- change ---

    async def clear(self, *, force: bool) -> None:
        """As `Agent.clear`."""
        core = self._core
        core.require("clear")
        if not force:
            core.refuse_while_busy()
        core.refuse_inside("clear")
        core.turns.cancel()  # before the lock, whose holder may wait for them
        core.stop_summarising()
        async with core.lifecycle.alone.held():
            known = core.require("clear")
            if not force:
                core.refuse_while_busy()
            with core.turns.held():
                core.turns.cancel()
                await core.turns.end_present()
                await self._clear(known, force=force)
                if not core.turns:
                    core.lifecycle.take("clear")

    async def _clear(self, known: ContextView, *, force: bool) -> None:
        core = self._core
        tools = await core.end_past(known)
        async with core.saving.held():
            with contextlib.suppress(ContextNotFound):  # then there is nothing to clear
                await settle(known.stores.journal.clear(core.context_id, force=force))
            core.buffer.clear()  # only now: a refused clear must lose nothing
            known.staged = None
        known.forget()
        await known.refresh(tools)

    async def compact(self, keep_turns: int) -> Compaction | None:
        """As `Agent.compact`."""
        from looopy.agent.compact import condense  # not what an import pays for

        core = self._core
        core.require("compact")
        check_at_least_one(keep_turns, "/keep_turns")
        async with self._alone("compact") as known:
            provider = core.resources.provider
            if provider is None:
                raise AgentStateError("the agent is not started")
            tools = await core.tools()
            token = core.summarising = CancelToken()
            try:
                with core.turns.held():
                    return await condense(
                        known,
                        provider,
                        core.options.loop_config,
                        tools,
                        token,
                        keep_turns=keep_turns,
                    )
            finally:
                core.summarising = None

    async def undo_compact(self) -> Compaction | None:
        """As `Agent.undo_compact`."""
        from looopy.agent.compact import undo

        core = self._core
        async with self._alone("undo_compact") as known:
            tools = await core.tools()
            with core.turns.held():
                return await undo(known, tools)

    async def fork(self, new_context_id: str, at: int | None) -> AgentState:
        """As `Agent.fork`."""
        core = self._core
        journal = core.require("fork", saving=True).stores.journal
        made = await settle(journal.fork(core.context_id, new_context_id, at=at))
        return snapshot(AgentStatus.READY, made)

    async def rewind(self, to: int) -> HistoryRewound:
        """As `Agent.rewind`."""
        context_id = self._core.context_id
        return await self._move("rewind", lambda journal: journal.rewind(context_id, to))

    async def undo_rewind(self) -> HistoryRewound:
        """As `Agent.undo_rewind`."""
        context_id = self._core.context_id
        return await self._move("undo_rewind", lambda journal: journal.undo_rewind(context_id))

    async def _move(
        self, action: str, write: Callable[[Journal], Awaitable[tuple[int, HistoryRewound]]]
    ) -> HistoryRewound:
        core = self._core
        async with self._alone(action, outside=True) as known:
            with core.turns.held():
                tools = await core.end_past(known)
                _, event = await settle(write(known.stores.journal))
                await known.refresh(tools)
                core.lifecycle.reread(known.busy_turn, known.state)
        return event

    @contextlib.asynccontextmanager
    async def _alone(self, action: str, *, outside: bool = False) -> AsyncIterator[ContextView]:
        """Hold the context while no turn runs; *outside*: refuse a tool of a turn as well."""
        core = self._core
        core.require(action, saving=True)
        core.refuse_while_busy()
        if outside:
            core.refuse_inside(action)
        async with core.lifecycle.alone.held():
            known = core.require(action)
            core.refuse_while_busy()
            yield known
