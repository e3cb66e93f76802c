"""
Forks and rewinds on SQL: the contract is `Journal`, the cuts `looopy.stores.contexts.lineage`.

A fork copies rows inside of the database, in a statement a table. It holds the row of its parent
in a way that lets turns continue: they add rows, and change none up to the place of the fork. A
change or deletion of such rows locks that row, and so waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.stores import rules as names
from looopy.stores.contexts.lineage import (
    Branch,
    Cut,
    Lineage,
    check_position,
    check_rewind,
    check_undo,
    cut_after,
    decode_rewound,
    exists_already,
    head_cut,
    kept_rewinds,
    rewound_column,
    state_at,
    summary_is_known,
    summary_of,
    within_turn,
)
from looopy.stores.records import Committed, TurnRecord
from looopy.stores.rows import events as rows
from looopy.stores.rules import no_context
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import between_turns, insert_rows
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.head import Head, peek
from looopy.stores.sql.turns import turn_record
from looopy.types.event import HistoryRewound
from looopy.types.ranges import Range, before, counted, merged, shown

# --- reading -------------------------------------------------------------------------------------


def read_shown(
    key: Mapping[str, Any], statement: str, *, after: int | None, limit: int, hidden: bool = False
) -> Steps[Rows]:
    """
    Messages of a context that hides a part.

    Args:
        statement: Reads a context that hides nothing, as this one may have become.
        after: `None` for the newest *limit*.
        hidden: With rewound messages.
    """
    head = yield from peek(key)
    if head is None or head.rewound is None:
        return (yield Query(statement, {**key, "after": after, "limit": limit}))
    gaps = () if hidden else merged(decode_rewound(head.rewound))
    if after is None:
        after = before(head.last_position, limit, gaps)
    found: Rows = []
    for low, high in shown(max(after + 1, head.visible_from), head.last_position, gaps):
        most = min(limit - len(found), high - low + 1)
        if most <= 0:
            break
        found += yield Query(s.LIST_RANGE, {**key, "after": low - 1, "limit": most})
    return found


def shown_ranges(key: Mapping[str, Any]) -> Steps[list[Range]]:
    """The positions of the messages that a context shows; none if there is no such context."""
    head = yield from peek(key)
    if head is None:
        return []
    gaps = merged(decode_rewound(head.rewound))
    return list(shown(head.visible_from, head.last_position, gaps))


def count_shown(head: Head, *, hidden: bool) -> int:
    """The number of messages; with rewound ones if *hidden*."""
    count = head.last_position - head.visible_from + 1
    return count if hidden else count - counted(merged(decode_rewound(head.rewound)))


def _turn_at(key: Mapping[str, Any], turn: int) -> Steps[TurnRecord | None]:
    if not turn:
        return None
    found = yield Query(s.LIST_TURNS, {**key, "after": turn - 1, "limit": 1})
    return turn_record(found[0]) if found else None


def lineage_steps(key: Mapping[str, Any]) -> Steps[Lineage]:
    """The parent of a context, and its forks; see `Journal.lineage`."""
    link = yield Query(s.PARENT_OF, key)
    forks = yield Query(s.LIST_FORKS, key)
    return Lineage(
        parent=Branch(context_id=link[0][0], at=link[0][1]) if link else None,
        forks=tuple(Branch(context_id=name, at=at) for name, at in forks),
    )


# --- fork ----------------------------------------------------------------------------------------


def fork_steps(key: Mapping[str, Any], new_context_id: str, at: int | None) -> Steps[None]:
    """Make a context that begins with the past of another one; see `Journal.fork`."""
    head = yield from peek(key, hold=True)
    if head is None:
        raise no_context(key["context"])
    cut = yield from _cut(key, head, at)
    before_now = decode_rewound(head.rewound)
    rewound = kept_rewinds(before_now, cut, whole=at is None)
    state = rows.decode_state(head.state)
    summary = state.summary
    if not summary_is_known(state, cut.position, before_now):
        summary = yield from _newest_summary(key, cut.seq, merged(rewound))
    last = yield from _turn_at(key, cut.turn)
    made = {
        **key,
        **cut._asdict(),
        "target": new_context_id,
        "chance": names.first_epoch(),
        "state": rows.state_column(state_at(state, summary, last, fork=True)),
        "rewound": rewound_column(rewound),
    }
    if not (yield Query(s.FORK, made)):
        raise exists_already(new_context_id)
    yield Query(s.LINK, made)
    for copy in (s.COPY_TURNS, s.COPY_MESSAGES, s.COPY_EVENTS, s.COPY_ARTIFACTS, s.COPY_PARTS):
        yield Query(copy, made)
    yield Query(s.UNINDEX, {**key, "context": new_context_id})


def _cut(key: Mapping[str, Any], head: Head, at: int | None) -> Steps[Cut]:
    begun = yield from _turn_at(key, head.open_turn or 0)
    newest = head_cut(
        last_position=head.last_position, last_seq=head.last_seq, turns=head.turn_count, begun=begun
    )
    if at is None or at == newest.position:
        return newest
    check_position(at, visible_from=head.visible_from, last_position=head.last_position)
    if begun is not None and at > newest.position:
        raise within_turn(at, begun)
    ((_, turn, _, seq, _),) = yield Query(s.LIST_RANGE, {**key, "after": at, "limit": 1})
    begun = yield from _turn_at(key, turn)
    return cut_after(at, turn=turn, seq=seq, begun=begun)


def _newest_summary(key: Mapping[str, Any], seq: int, hidden: Sequence[Range]) -> Steps[int | None]:
    """The position of the newest summary up to *seq* that is not *hidden*."""
    while found := (yield Query(s.NEWEST_COMPACTION, {**key, "seq": seq})):
        said = json.loads(found[0][1])
        if not any(low <= said["position"] <= high for low, high in hidden):
            return summary_of(said)
        seq = found[0][0] - 1
    return None


# --- rewind --------------------------------------------------------------------------------------


def rewind_steps(key: Mapping[str, Any], to: int) -> Steps[tuple[int, HistoryRewound]]:
    """Hide a turn and everything after it; see `Journal.rewind`."""
    head = yield from between_turns(key)
    rewound = decode_rewound(head.rewound)
    turn = yield from _turn_at(key, to if to <= head.turn_count else 0)
    first = 0 if turn is None else turn.first_position
    new = check_rewind(
        to,
        turns=head.turn_count,
        first=first,
        last_position=head.last_position,
        visible_from=head.visible_from,
        hidden=any(low <= first <= high for low, high in rewound),
    )
    return (yield from _write(key, head, [*rewound, new], new, to - 1))


def undo_steps(key: Mapping[str, Any]) -> Steps[tuple[int, HistoryRewound]]:
    """Show again what the newest rewind hid; see `Journal.undo_rewind`."""
    head = yield from between_turns(key)
    rewound = decode_rewound(head.rewound)
    old = check_undo(rewound, head.last_position)
    return (yield from _write(key, head, rewound[:-1], old, head.turn_count, undone=True))


def _write(
    key: Mapping[str, Any],
    head: Head,
    rewound: Sequence[Range],
    covers: Range,
    turn: int,
    *,
    undone: bool = False,
) -> Steps[tuple[int, HistoryRewound]]:
    seq = head.last_seq + 1
    summary = yield from _newest_summary(key, head.last_seq, merged(rewound))
    last = yield from _turn_at(key, turn)
    state = state_at(rows.decode_state(head.state), summary, last, fork=False)
    event = HistoryRewound(
        context_id=key["context"], turn=head.turn_count, seq=seq, covers=covers, undone=undone
    )
    numbers = Committed(first_seq=seq, first_position=0)
    yield from insert_rows(key, head.turn_count, rows.encode([event]), numbers, None)
    written = {
        **key,
        "seq": seq,
        "chance": names.first_epoch(),
        "state": rows.state_column(state),
        "rewound": rewound_column(rewound),
    }
    yield Query(s.UNINDEX, key)
    done = yield Query(s.REWIND, written)
    return int(done[0][0]), event
