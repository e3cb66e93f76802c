"""
Forks and rewinds on SQL; see `Journal` for the contract, and `looopy.stores.past` for the idea.

A fork is a row of `contexts` and one of `lineage` for each context that holds a part of its past. A
read of such a context takes a statement for each part that it touches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.stores import rules as names
from looopy.stores.past import (
    Branch,
    Cut,
    Layer,
    Lineage,
    check_position,
    check_rewind,
    check_undo,
    cut_after,
    decode_past,
    exists_already,
    head_cut,
    kept_rewinds,
    layers_up_to,
    parts,
    past_column,
    source_of,
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
from looopy.stores.sql.ghosts import read_layers
from looopy.stores.sql.head import Head, peek
from looopy.stores.sql.inherited import take_along
from looopy.stores.sql.store import NO_LIMIT
from looopy.stores.sql.turns import turn_record
from looopy.types.event import HistoryRewound
from looopy.types.ranges import Range, before, counted, merged, shown

# --- reading -------------------------------------------------------------------------------------


def read_past(
    key: Mapping[str, Any], statement: str, *, after: int | None, limit: int, hidden: bool = False
) -> Steps[Rows]:
    """
    Messages of a context that has layers, or hides a part.

    Args:
        statement: Reads a context that has neither, as this one may have become.
        after: `None` for the newest *limit*.
        hidden: With those that were rewound.
    """
    head = yield from peek(key)
    if head is None or head.past is None:
        return (yield Query(statement, {**key, "after": after, "limit": limit}))
    layers = yield from read_layers(key, head)
    gaps = () if hidden else merged(decode_past(head.past)[0])
    if after is None:
        after = before(head.last_position, limit, gaps)
    ranges = shown(max(after + 1, head.visible_from), head.last_position, gaps)
    found: Rows = []
    for source, low, high in parts(layers, key["context"], ranges):
        most = min(limit - len(found), high - low + 1)
        if most <= 0:
            break
        params = {**key, "context": source, "after": low - 1, "limit": most}
        found += yield Query(s.LIST_RANGE, params)
    return found


def ranges_of(key: Mapping[str, Any], *, hidden: bool = False) -> Steps[list[tuple[str, int, int]]]:
    """
    Which contexts hold the messages of a context: an id, the first and the last position of each.

    This is the one place that knows it. A context that was never forked or rewound is one range of
    its own, and one that does not exist has none. A statement that looks for messages by other
    means than these ranges, as an index of their words, asks here first: what it finds in a range
    belongs to the context of *key*. Ids that begin with `statements.GHOST` stand for contexts that
    were deleted or cleared, and are shown to nobody.

    Args:
        hidden: With the positions that were rewound.
    """
    head = yield from peek(key)
    if head is None:
        return []
    layers = yield from read_layers(key, head)
    gaps = () if hidden else merged(decode_past(head.past)[0])
    ranges = shown(head.visible_from, head.last_position, gaps)
    return list(parts(layers, key["context"], ranges))


def count_shown(head: Head, *, hidden: bool) -> int:
    """The number of messages; with those that were rewound if *hidden*."""
    count = head.last_position - head.visible_from + 1
    if hidden or head.past is None:
        return count
    return count - counted(merged(decode_past(head.past)[0]))


def read_turns(key: Mapping[str, Any], *, after: int, limit: int) -> Steps[Rows]:
    """Rows of the turns of a fork, of `statements.LIST_TURNS`."""
    head = yield from peek(key)
    if head is None:
        return []
    after = max(after, 0)
    found: Rows = []
    layers = yield from read_layers(key, head)
    for source, turn in [*((one.source, one.turn) for one in layers), (key["context"], NO_LIMIT)]:
        most = min(limit - len(found), turn - after)
        if most > 0:
            params = {**key, "context": source, "after": after, "limit": most}
            found += yield Query(s.LIST_TURNS, params)
            after = turn
    return found


def read_started(key: Mapping[str, Any], turn: int) -> Steps[Rows]:
    """Rows of `statements.STARTED_CALLS` for a turn that a fork shares."""
    head = yield from peek(key)
    layers = yield from read_layers(key, head)
    source = source_of(layers, key["context"], turn=turn)
    return (yield Query(s.STARTED_CALLS, {**key, "context": source, "turn": turn}))


def _turn_at(
    key: Mapping[str, Any], layers: Sequence[Layer], turn: int
) -> Steps[TurnRecord | None]:
    if not turn:
        return None
    source = source_of(layers, key["context"], turn=turn)
    found = yield Query(s.LIST_TURNS, {**key, "context": source, "after": turn - 1, "limit": 1})
    return turn_record(found[0]) if found else None


def lineage_steps(key: Mapping[str, Any]) -> Steps[Lineage]:
    """The parent of a context, and its forks; see `Journal.lineage`."""
    head = yield from peek(key)
    if head is None:
        return Lineage()
    layers = yield from read_layers(key, head)
    parent = None
    if layers:
        last = layers[-1]
        name = None if last.source.startswith(s.GHOST) else last.source
        parent = Branch(context_id=name, at=last.position)
    forks = yield Query(s.LIST_FORKS, key)
    made = tuple(Branch(context_id=name, at=at) for name, at in forks)
    return Lineage(parent=parent, forks=made)


# --- fork ----------------------------------------------------------------------------------------


def fork_steps(key: Mapping[str, Any], new_context_id: str, at: int | None) -> Steps[None]:
    """Make a context that shares the past of another one; see `Journal.fork`."""
    head = yield from peek(key, lock=True)  # it may be about to be deleted
    if head is None:
        raise no_context(key["context"])
    layers = yield from read_layers(key, head, lock=True)
    cut = yield from _cut(key, head, layers, at)
    before_now, _ = decode_past(head.past)
    rewound = kept_rewinds(before_now, cut, whole=at is None)
    state = rows.decode_state(head.state)
    summary = state.summary
    if not summary_is_known(state, cut.position, before_now):
        summary = yield from _newest_summary(key, layers, cut.seq, merged(rewound))
    last = yield from _turn_at(key, layers, cut.turn)
    kept = {
        "position": cut.position,
        "seq": cut.seq,
        "turn": cut.turn,
        "state": rows.state_column(state_at(state, summary, last, fork=True)),
        "past": past_column(rewound, is_fork=True),
    }
    made = {**key, "target": new_context_id, "birth": names.first_epoch(), **kept}
    if not (yield Query(s.FORK, made)):
        raise exists_already(new_context_id)
    ((number,),) = yield Query(s.NEXT_FORK, key)
    of = {"tenant": key["tenant"], "context": new_context_id}
    above = layers_up_to(layers, key["context"], cut, number)
    for depth, layer in enumerate(above):
        yield Query(s.ADD_LAYER, {**of, "depth": depth, **layer._asdict()})
    yield from take_along(key, new_context_id, turn=cut.turn, layers=len(above) - 1)
    yield Query(s.UNINDEX, of)


def _cut(
    key: Mapping[str, Any], head: Head, layers: Sequence[Layer], at: int | None
) -> Steps[Cut]:
    begun = yield from _turn_at(key, layers, head.open_turn or 0)
    newest = head_cut(
        last_position=head.last_position, last_seq=head.last_seq, turns=head.turn_count, begun=begun
    )
    if at is None or at == newest.position:
        return newest
    check_position(at, visible_from=head.visible_from, last_position=head.last_position)
    if begun is not None and at > newest.position:
        raise within_turn(at, begun)
    source = source_of(layers, key["context"], position=at + 1)
    params = {**key, "context": source, "after": at, "limit": 1}
    ((_, turn, _, seq, _),) = yield Query(s.LIST_RANGE, params)
    begun = yield from _turn_at(key, layers, turn)
    return cut_after(at, turn=turn, seq=seq, begun=begun)


def _newest_summary(
    key: Mapping[str, Any], layers: Sequence[Layer], seq: int, hidden: Sequence[Range]
) -> Steps[int | None]:
    """The position of the newest summary up to *seq* that is not *hidden*."""
    starts = [0, *(layer.seq for layer in layers)]
    sources = [*(layer.source for layer in layers), key["context"]]
    for source, after in zip(reversed(sources), reversed(starts), strict=True):
        params = {**key, "context": source, "after": after}
        while seq > after:
            found = yield Query(s.NEWEST_COMPACTION, {**params, "seq": seq})
            if not found:
                break
            said = json.loads(found[0][1])
            if not any(low <= said["position"] <= high for low, high in hidden):
                return summary_of(said)
            seq = found[0][0] - 1
        seq = min(seq, after)
    return None


# --- rewind --------------------------------------------------------------------------------------


def rewind_steps(key: Mapping[str, Any], to: int) -> Steps[tuple[int, HistoryRewound]]:
    """Hide a turn and everything after it; see `Journal.rewind`."""
    head = yield from between_turns(key)
    layers = yield from read_layers(key, head, lock=True)
    rewound, _ = decode_past(head.past)
    turn = yield from _turn_at(key, layers, to if to <= head.turn_count else 0)
    first = 0 if turn is None else turn.first_position
    new = check_rewind(
        to,
        turns=head.turn_count,
        first=first,
        last_position=head.last_position,
        visible_from=head.visible_from,
        hidden=any(low <= first <= high for low, high in rewound),
    )
    return (yield from _write(key, head, layers, [*rewound, new], new, to - 1))


def undo_steps(key: Mapping[str, Any]) -> Steps[tuple[int, HistoryRewound]]:
    """Show again what the newest rewind hid; see `Journal.undo_rewind`."""
    head = yield from between_turns(key)
    layers = yield from read_layers(key, head, lock=True)
    rewound, _ = decode_past(head.past)
    old = check_undo(rewound, head.last_position)
    return (yield from _write(key, head, layers, rewound[:-1], old, head.turn_count, undone=True))


def _write(
    key: Mapping[str, Any],
    head: Head,
    layers: Sequence[Layer],
    rewound: Sequence[Range],
    covers: Range,
    turn: int,
    *,
    undone: bool = False,
) -> Steps[tuple[int, HistoryRewound]]:
    seq = head.last_seq + 1
    summary = yield from _newest_summary(key, layers, head.last_seq, merged(rewound))
    last = yield from _turn_at(key, layers, turn)
    state = state_at(rows.decode_state(head.state), summary, last, fork=False)
    event = HistoryRewound(
        context_id=key["context"], turn=head.turn_count, seq=seq, covers=covers, undone=undone
    )
    numbers = Committed(first_seq=seq, first_position=0)
    yield from insert_rows(key, head.turn_count, rows.encode([event]), numbers, None)
    written = {
        **key,
        "seq": seq,
        "birth": names.first_epoch(),
        "state": rows.state_column(state),
        "past": past_column(rewound, is_fork=bool(layers)),
    }
    yield Query(s.UNINDEX, key)
    done = yield Query(s.REWIND, written)
    return int(done[0][0]), event
