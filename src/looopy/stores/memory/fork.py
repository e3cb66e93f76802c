"""
Forks and rewinds in memory: the contract is `Journal`, the idea `looopy.stores.contexts.lineage`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from operator import attrgetter

from looopy.stores import rules as names
from looopy.stores.contexts.lineage import (
    Branch,
    Cut,
    Lineage,
    check_place,
    check_position,
    check_rewind,
    check_undo,
    cut_after,
    exists_already,
    head_cut,
    kept_rewinds,
    state_at,
    summary_is_known,
    summary_of,
    within_turn,
)
from looopy.stores.contexts.log import StoredMessage
from looopy.stores.memory.context import (
    MemoryStore,
    StoredContext,
    append,
    context_record,
)
from looopy.stores.records import ContextRecord, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rules import check_context_id, no_context
from looopy.types.event import HistoryRewound, utc_now
from looopy.types.ranges import Range, merged, shown

_seq = attrgetter("seq")


def shown_messages(
    context: StoredContext, after: int, limit: int | None = None
) -> list[StoredMessage]:
    """The messages after *after* that are not rewound, at most *limit*."""
    first = max(after + 1, context.visible_from)
    found: list[StoredMessage] = []
    for low, high in shown(first, context.last_position, context.hidden):
        most = None if limit is None else limit - len(found)
        start, stop = low - context.visible_from, high - context.visible_from + 1
        found += context.messages[start:stop][:most]
        if limit is not None and len(found) >= limit:
            break
    return found


class InMemoryForks(MemoryStore):
    """The part of a `Journal` that forks and rewinds."""

    async def fork(
        self, context_id: str, new_context_id: str, *, at: int | None = None
    ) -> ContextRecord:
        """Make a context that begins with the past of another one."""
        check_context_id(new_context_id)
        if at is not None:
            check_place(at)
        parent = self._get(context_id)
        if parent is None:
            raise no_context(context_id)
        cut = _cut(parent, at)
        if self._get(new_context_id) is not None:
            raise exists_already(new_context_id)
        made = _fork(context_id, parent, cut, at)
        self.backend.contexts[self.tenant, new_context_id] = made
        self._ring(new_context_id)
        return context_record(new_context_id, made)

    async def rewind(self, context_id: str, to: int) -> tuple[int, HistoryRewound]:
        """Hide a turn and everything after it."""
        check_place(to, "/to")
        context = self._between_turns(context_id)
        first = context.turns[to - 1].first_position if 1 <= to <= context.turn_count else 0
        new = check_rewind(
            to,
            turns=context.turn_count,
            first=first,
            last_position=context.last_position,
            visible_from=context.visible_from,
            hidden=any(low <= first <= high for low, high in context.rewound),
        )
        context.rewound.append(new)
        return self._rewound(context_id, context, new, to - 1, undone=False)

    async def undo_rewind(self, context_id: str) -> tuple[int, HistoryRewound]:
        """Show again what the newest rewind hid."""
        context = self._between_turns(context_id)
        old = check_undo(context.rewound, context.last_position)
        context.rewound.remove(old)
        return self._rewound(context_id, context, old, context.turn_count, undone=True)

    async def lineage(self, context_id: str) -> Lineage:
        """The parent of a context, and its forks."""
        context = self._get(context_id)
        if context is None:
            return Lineage()
        parent = None
        if context.parent is not None:
            name, history, at = context.parent
            there = self._get(name)
            same = there is not None and there.history is history
            parent = Branch(context_id=name if same else None, at=at)
        forks = [
            Branch(context_id=name, at=other.parent[2])
            for (tenant, name), other in self.backend.contexts.items()
            if tenant == self.tenant
            and other.parent is not None
            and other.parent[1] is context.history
        ]
        forks.sort(key=lambda one: one.context_id or "")
        return Lineage(parent=parent, forks=tuple(forks))

    def _rewound(
        self, context_id: str, context: StoredContext, covers: Range, turn: int, *, undone: bool
    ) -> tuple[int, HistoryRewound]:
        last = _turn(context, turn)
        summary = _newest_summary(context, context.last_seq, context.hidden)
        state = state_at(rows.decode_state(context.state), summary, last, fork=False)
        context.state = rows.state_column(state)
        event = HistoryRewound(
            context_id=context_id,
            turn=context.turn_count,
            seq=context.last_seq + 1,
            covers=covers,
            undone=undone,
        )
        append(context, context.turn_count, rows.encode([event]), None)
        context.raise_epoch()
        context.last_activity = utc_now()
        self._ring(context_id)
        return context.epoch, event


def _fork(name: str, parent: StoredContext, cut: Cut, at: int | None) -> StoredContext:
    now = utc_now()
    rewound = kept_rewinds(parent.rewound, cut, whole=at is None)
    state = rows.decode_state(parent.state)
    summary = state.summary
    if not summary_is_known(state, cut.position, parent.rewound):
        summary = _newest_summary(parent, cut.seq, merged(rewound))
    state = state_at(state, summary, _turn(parent, cut.turn), fork=True)
    events = bisect_right(parent.events, cut.seq, key=_seq)
    return StoredContext(
        now,
        now,
        epoch=names.first_epoch(),
        turn_count=cut.turn,
        last_seq=cut.seq,
        visible_from=parent.visible_from,
        cleared_seq=parent.cleared_seq,
        owner_actor=parent.owner_actor,
        state=rows.state_column(state),
        metadata=parent.metadata,
        tags=parent.tags,
        version=parent.version,
        messages=parent.messages[: cut.position - parent.visible_from + 1],
        events=parent.events[:events],
        turns=parent.turns[: cut.turn],
        user_positions=dict(parent.user_positions),
        rewound=rewound,
        parent=(name, parent.history, cut.position),
        artifacts={
            artifact_id: kept
            for artifact_id, versions in parent.artifacts.items()
            if (kept := [one.copy() for one in versions if one.artifact.turn <= cut.turn])
        },
    )


def _cut(context: StoredContext, at: int | None) -> Cut:
    begun = None if context.open_turn is None else context.turns[context.open_turn - 1]
    last = context.last_position
    head = head_cut(
        last_position=last, last_seq=context.last_seq, turns=context.turn_count, begun=begun
    )
    if at is None or at == head.position:
        return head
    check_position(at, visible_from=context.visible_from, last_position=last)
    if begun is not None and at > head.position:
        raise within_turn(at, begun)
    following = context.messages[at + 1 - context.visible_from]
    turn = _turn(context, following.turn)
    return cut_after(at, turn=following.turn, seq=following.seq, begun=turn)


def _turn(context: StoredContext, turn: int) -> TurnRecord | None:
    return context.turns[turn - 1] if turn else None


def _newest_summary(context: StoredContext, seq: int, hidden: tuple[Range, ...]) -> int | None:
    """The position of the newest summary up to *seq* that is not *hidden*."""
    for place in range(bisect_right(context.events, seq, key=_seq) - 1, -1, -1):
        event = context.events[place]
        if event.type == "compaction":
            said = json.loads(event.body)
            if not any(low <= said["position"] <= high for low, high in hidden):
                return summary_of(said)
    return None
