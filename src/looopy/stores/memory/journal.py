"""
`Journal` in memory: the log of a context and its one write path, and the inbox beside it.

See `looopy.stores.memory.stores` for the idea.
"""

from __future__ import annotations

import time
from dataclasses import replace

from looopy.stores.base import Journal
from looopy.stores.contexts.lineage import without_metadata
from looopy.stores.memory.context import (
    StoredEntry,
    append,
    change_artifact,
    change_artifacts,
    check_change,
    close_turn,
    interrupt,
)
from looopy.stores.memory.fork import InMemoryForks
from looopy.stores.memory.log import read_log
from looopy.stores.notifier import Notifier
from looopy.stores.records import (
    Commit,
    Committed,
    Entry,
    EntryKind,
    InboxHead,
    InboxNews,
    NewSummary,
    TurnRecord,
)
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import to_us
from looopy.stores.rules import (
    MAY_FORCE,
    busy,
    can_name,
    check_context_id,
    check_post,
    check_post_key,
    commits_lost,
    entry_kind,
    fenced,
    moved_on,
    no_context,
)
from looopy.types.event import AgentEvent, Compaction, HistoryCleared, utc_now
from looopy.types.message import UserMessage
from looopy.types.storable import (
    check_actor,
    check_after,
    check_limit,
    check_number,
    check_turn,
)


class InMemoryJournal(InMemoryForks, Journal):
    """`Journal` in lists; see there for the contract."""

    @property
    def notifier(self) -> Notifier:
        """Rung when a context has changed."""
        return self.backend.notifier

    async def commit(self, commit: Commit) -> Committed:
        encoded = rows.encode(commit.events)
        state = None if commit.state is None else rows.state_column(commit.state)
        context = self._get(commit.context_id)
        if commit.known_seq > (context.last_seq if context else 0):
            raise commits_lost(commit.context_id)
        if context is None or context.epoch != commit.epoch or context.holder is None:
            raise fenced(commit.context_id)
        closing = encoded.closing is not None
        if closing and commit.heard is not None and context.inbox_last > commit.heard:
            raise InboxNews(context.inbox_head)
        change = commit.artifact
        if change is not None:
            check_change(context, change)
        changed = change_artifacts(context, commit.artifacts) if commit.artifacts else []
        context.take_out(commit.delivered)
        if state is not None:
            context.state = state
        context.lease_until = time.monotonic() + commit.ttl_s
        artifact = None
        if change is not None:
            artifact = change_artifact(context, change)
            encoded = rows.with_artifacts(encoded, [artifact])
        if changed:
            encoded = rows.with_artifacts(encoded, changed)
        seq, position = append(context, commit.turn, encoded, commit.assistant_position)
        if encoded.closing is not None:
            close_turn(context, encoded.closing, seq)
        if commit.release:
            context.holder = None
        context.last_activity = utc_now()
        self._ring(commit.context_id, inbox=closing or commit.release)
        inbox = context.inbox_head
        return Committed(first_seq=seq, first_position=position, inbox=inbox, artifact=artifact)

    async def clear(self, context_id: str, *, force: bool = False) -> int:
        context = self._get(context_id)
        if context is None:
            raise no_context(context_id)
        forced = context.open_turn is not None
        if forced:
            if not force:
                raise busy(context.open_turn, MAY_FORCE)
            interrupt(context)
        covers = (context.visible_from, context.last_position)
        encoded = rows.encode([HistoryCleared(context_id=context_id, covers=covers)])
        append(context, context.turn_count, encoded, None)
        context.raise_epoch()
        context.holder = None
        context.visible_from = context.last_position + 1
        context.cleared_seq = context.last_seq
        # Other lists: a reader may hold these.
        context.messages = []
        context.events = context.events[-1:]
        context.turns = without_metadata(context.turns)
        context.user_positions = {}
        context.rewound = []
        context.history, context.parent = object(), None
        context.artifacts.clear()
        context.inbox.clear()
        context.state = rows.state_after_clear(context.state, forced=forced)
        context.last_activity = utc_now()
        self._ring(context_id, inbox=True)
        return context.epoch

    async def compact(self, context_id: str, compaction: NewSummary) -> tuple[int, Compaction]:
        context = self._between_turns(context_id)
        if context.epoch != compaction.epoch:
            raise moved_on(compaction.epoch, context.epoch)
        made = compaction.events(
            context_id,
            turn=context.turn_count,
            last_position=context.last_position,
            visible_from=context.visible_from,
            hidden=context.hidden,
        )
        encoded = rows.encode(made)
        append(context, context.turn_count, encoded, None)
        context.raise_epoch()
        context.state = rows.state_with_summary(context.state, context.last_position, compaction)
        context.last_activity = utc_now()
        self._ring(context_id)
        return context.epoch, replace(made[1], seq=context.last_seq)

    async def events(
        self, context_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[AgentEvent]:
        check_after(after)
        check_limit(limit)
        context = self._get(context_id)
        if context is None:
            return []
        return await read_log(context_id, context, max(after, context.cleared_seq - 1), limit)

    async def turns(self, context_id: str, *, after: int = 0, limit: int = 100) -> list[TurnRecord]:
        check_after(after)
        check_limit(limit, optional=False)
        context = self._get(context_id)
        return [] if context is None else context.turns[max(after, 0) : max(after, 0) + limit]

    async def started_calls(self, context_id: str, turn: int) -> set[str]:
        check_number(turn, "/turn", "pass the number of a turn")
        context = self._get(context_id)
        if context is None:
            return set()
        return {
            rows.started_call(e.body)
            for e in context.events
            if e.turn == turn and e.type == "tool_execution_start"
        }

    async def turn_of_key(self, context_id: str, key: str) -> tuple[int, str] | None:
        context = self._get(context_id)
        return context.keys.get(key) if context is not None and can_name(key) else None

    # --- the inbox ---

    async def post(
        self,
        context_id: str,
        kind: EntryKind,
        message: UserMessage,
        *,
        actor_id: str | None = None,
        expected_turn: int | None = None,
        key: str | None = None,
        input_hash: str | None = None,
    ) -> int:
        check_context_id(context_id)
        check_turn(expected_turn, "/expected_turn")
        check_post_key(key, input_hash, expected_turn)
        kind = entry_kind(kind)
        body = rows.entry_body(message, actor_id)
        found = self._get(context_id)
        turn = found.open_turn if found else None
        check_post(
            open_turn=turn,
            belongs_to=(found.turns[turn - 1].actor_id if turn else found.owner_actor)
            if found
            else None,
            waiting=sum(e.actor_id == actor_id for e in found.inbox.values()) if found else 0,
            actor_id=actor_id,
            expected_turn=expected_turn,
        )
        context = self.backend.make(self.tenant, context_id)
        if key is not None and input_hash is not None and turn is not None:
            if key in context.keys:
                return 0
            context.keys[key] = (turn, input_hash)
        now = utc_now()
        context.inbox_last += 1
        context.inbox[context.inbox_last] = StoredEntry(kind, actor_id, to_us(now), body)
        context.last_activity = now
        self._ring(context_id, inbox=True)
        return context.inbox_last

    async def inbox(self, context_id: str, *, after: int = 0) -> tuple[InboxHead, list[Entry]]:
        check_after(after)
        context = self._get(context_id)
        if context is None:
            return InboxHead(), []
        return context.inbox_head, [
            rows.decode_entry(number, e.kind, e.actor_id, e.created_us, e.body)
            for number, e in context.inbox.items()
            if number > after
        ]

    async def withdraw(
        self, context_id: str, kind: EntryKind | None = None, *, actor_id: str | None = None
    ) -> int:
        check_actor(actor_id)
        kind = None if kind is None else entry_kind(kind)
        context = self._get(context_id)
        if context is None:
            return 0
        taken = [
            number
            for number, entry in context.inbox.items()
            if entry.actor_id == actor_id and kind in (None, entry.kind)
        ]
        for number in taken:
            del context.inbox[number]
        if taken:
            context.inbox_last += 1
            self._ring(context_id, inbox=True)
        return len(taken)

    async def ask_cancel(self, context_id: str, turn: int | None = None) -> int | None:
        check_turn(turn)
        context = self._get(context_id)
        if context is None or context.open_turn is None or turn not in (None, context.open_turn):
            return None
        context.cancel_turn = context.open_turn
        context.inbox_last += 1
        self._ring(context_id, inbox=True)
        return context.open_turn
