"""
Where a history may be cut: a fork copies the part before the cut, a rewind hides the part after it.

A fork has rows of its own from the beginning, under the numbers that they have in its parent. It
remembers where it was made, and shares nothing but blobs, which are found by their hash.

A rewind hides the positions from a turn on and deletes nothing. Each remembers its range; one that
ended before some position had been made when that position was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from looopy.errors import StoreConflict, ValueRefused
from looopy.stores.records import ContextState, TurnRecord
from looopy.types.ranges import Range
from looopy.types.state import Outcome
from looopy.types.storable import check_number

_LEFT_OPEN = frozenset(
    {Outcome.INTERRUPTED, Outcome.FAILED, Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """
    A fork as its parent sees it, or a parent as its fork does.

    Attributes:
        context_id: The other context; `None` for a parent that was deleted or cleared since.
        at: The position of the last message that the fork began with.
    """

    context_id: str | None
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """
    The relatives of a context.

    Attributes:
        parent: The context that it was forked from; `None` if it is not a fork.
        forks: The contexts that were forked from it and still exist, by id.
    """

    parent: Branch | None = None
    forks: Sequence[Branch] = ()


class Cut(NamedTuple):
    """A place between two turns: the last position, `seq` and turn before it."""

    position: int
    seq: int
    turn: int


# --- where a history may be cut ------------------------------------------------------------------


def check_place(at: object, path: str = "/at") -> None:
    """Raise `ValueRefused` unless it is a whole number from 0: a position or a turn."""
    wanted = "the number of a turn" if path == "/to" else "the last position of a turn, or 0"
    check_number(at, path, f"pass {wanted}", least=0)


def check_position(at: int, *, visible_from: int, last_position: int) -> None:
    """Raise `ValueRefused` for a position that was cleared, or comes after the last message."""
    if at > last_position:
        raise ValueRefused(
            f"this context has no position {at}: the last one is {last_position}", path="/at"
        )
    if at < visible_from - 1:
        raise ValueRefused(
            f"position {at} was cleared: the history begins at {visible_from}", path="/at"
        )


def head_cut(*, last_position: int, last_seq: int, turns: int, begun: TurnRecord | None) -> Cut:
    """The newest place: the end, or the place before the open turn, which is *begun*."""
    if begun is None:
        return Cut(last_position, last_seq, turns)
    return Cut(begun.first_position - 1, begun.start_seq - 1, begun.turn - 1)


def cut_after(at: int, *, turn: int, seq: int, begun: TurnRecord | None) -> Cut:
    """
    The place after position *at*.

    Args:
        turn, seq: Of the next message.
        begun: That turn; `None` if the message was appended before the first one.

    Raises:
        ValueRefused: It is within that turn; the message names the nearest ends of turns.
    """
    if begun is None:
        return Cut(at, seq - 1, turn)
    if begun.end_seq is not None and at >= begun.last_position:
        return Cut(at, seq - 1, turn)  # appended between two turns
    if begun.first_position == at + 1:
        return Cut(at, begun.start_seq - 1, turn - 1)
    raise within_turn(at, begun)


def within_turn(at: int, turn: TurnRecord) -> ValueRefused:
    """The error for a position that is not the end of a turn."""
    begins = turn.first_position - 1
    other = f" or {turn.last_position}" if turn.end_seq is not None else ""
    return ValueRefused(
        f"position {at} is within turn {turn.turn}: a history is cut where a turn ends, next at"
        f" {begins}{other}",
        path="/at",
    )


def check_rewind(
    to: int, *, turns: int, first: int, last_position: int, visible_from: int, hidden: bool
) -> Range:
    """
    The range that a rewind to before the turn *to* hides; errors as `Journal.rewind`.

    Args:
        turns: How many turns there are.
        first: The first position of that turn; 0 if there is no such turn.
        hidden: True if that position is hidden already.
    """
    if not 1 <= to <= turns:
        raise ValueRefused(f"this context has no turn {to}: it has {turns}", path="/to")
    if first < visible_from:
        raise ValueRefused(f"turn {to} was cleared", path="/to")
    if hidden:
        raise ValueRefused(f"turn {to} is rewound already", path="/to")
    if first > last_position:
        raise ValueRefused(f"nothing was said in turn {to} or after it", path="/to")
    return first, last_position


def check_undo(rewound: Sequence[Range], last_position: int) -> Range:
    """The range that is shown again; errors as `Journal.undo_rewind`."""
    if not rewound:
        raise ValueRefused("nothing of this context is rewound", path="/context_id")
    if rewound[-1][1] != last_position:
        raise StoreConflict(
            "the conversation has gone on since it was rewound: fork it at"
            f" {rewound[-1][1]} to continue from there"
        )
    return rewound[-1]


def exists_already(context_id: str) -> StoreConflict:
    """The error of every backend for a fork under the name of another context."""
    return StoreConflict(
        f"there is a context {context_id!r} already: continue it, or choose another name"
    )


# --- what goes along -----------------------------------------------------------------------------


def kept_rewinds(rewound: Sequence[Range], cut: Cut, *, whole: bool) -> list[Range]:
    """
    The rewinds that hold for a fork: all that came before its last message was written.

    Args:
        whole: True for a fork of the present: a rewind after the last message holds as well.
    """
    return [one for one in rewound if one[1] < cut.position + whole]


def state_at(
    state: ContextState, summary: int | None, last: TurnRecord | None, *, fork: bool
) -> ContextState:
    """
    The state of a context that ends with the turn *last*, after which nothing is pending.

    Args:
        state: The state of the whole.
        summary: Position of the newest summary of that part.
        fork: True for a new context, which has used nothing yet.
    """
    resumable = last.turn if last is not None and last.outcome in _LEFT_OPEN else None
    sums: dict[str, Any] = {"run_us": 0} if fork else state.sums
    # The next request begins as the last one did, or warns of what has changed.
    sums["sent"] = None if state.sent is None else _cut_by(state.sent, fork=fork)
    lacks = last is not None and last.outcome is Outcome.AUTH_REQUIRED
    return ContextState(**sums, summary=summary, resumable=resumable, needs_auth=lacks)


def _cut_by(sent: str, *, fork: bool) -> str:
    """A stored `sent`, and before it the word for why the next request may begin earlier."""
    first, _, rest = sent.partition(" ")
    return f"{'fork' if fork else 'rewind'} {rest if first in {'fork', 'rewind'} else sent}"


def summary_is_known(state: ContextState, at: int, rewound: Sequence[Range]) -> bool:
    """True if `state.summary` is the newest summary up to position *at*; else it is looked for."""
    return not rewound and (state.summary is None or state.summary <= at)


def summary_of(compaction: Mapping[str, Any]) -> int | None:
    """The position of the summary that counts after a compaction; `None` if it undid the first."""
    first, last = compaction["covers"]
    return int(compaction["position"]) if first <= last else None


def without_metadata(turns: Sequence[TurnRecord]) -> list[TurnRecord]:
    """*turns* as they are kept once their history was cleared."""
    return [replace(turn, metadata={}) for turn in turns]


# --- the column ----------------------------------------------------------------------------------


def rewound_column(rewound: Sequence[Range]) -> str | None:
    """The text of the column `rewound`: `None` for a context of which nothing is hidden."""
    return json.dumps(rewound, separators=(",", ":")) if rewound else None


def decode_rewound(text: str | None) -> list[Range]:
    """The ranges that were rewound, in order of time."""
    return [] if text is None else [(first, last) for first, last in json.loads(text)]
