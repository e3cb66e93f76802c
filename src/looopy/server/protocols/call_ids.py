"""
The ids of calls for a viewer who keeps several turns together.

A model's ids are unique within a turn, and some models begin again with `call_1` in the next. A UI
that knows a call by its id alone would take two of them for one. So an id that comes once more gets
the number of its turn. The same log gives the same ids: live, in a replay and in a transcript.
"""

from __future__ import annotations

from collections.abc import Iterable

_AGAIN = "~"  # before the turn
_LONG = 16  # digits: a longer number is not a turn


class CallIds:
    """
    The shown ids of the calls of a message or a thread, in the order in which they are made.

    Args:
        known: The ids that the viewer has already.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._used = set(known)
        self._newest: dict[str, str] = {}  # by the model's id
        self._open: dict[str, str | None] = {}  # calls of no committed answer, and the ones before

    def new(self, call_id: str, turn: int) -> str:
        """The id of a call that the model makes now; the same until `commit` or `take_back`."""
        if call_id in self._open:
            return self._newest[call_id]
        self._open[call_id] = self._newest.get(call_id)
        shown = call_id if call_id not in self._used else f"{call_id}{_AGAIN}{turn}"
        self._used.add(shown)
        self._newest[call_id] = shown
        return shown

    def of(self, call_id: str) -> str:
        """The id of a call that the model has made."""
        return self._newest.get(call_id) or newest_id(call_id, self._used)

    def commit(self) -> None:
        """The answer that made the new calls is committed."""
        self._open.clear()

    def take_back(self) -> list[str]:
        """The answer that made the new calls will not be committed: forget them."""
        gone = []
        for call_id, before in self._open.items():
            shown = self._newest.pop(call_id)
            self._used.discard(shown)
            gone.append(shown)
            if before is not None:
                self._newest[call_id] = before
        self._open.clear()
        return gone


def newest_id(call_id: str, shown: Iterable[str]) -> str:
    """
    The shown id of the newest call to which the model gave *call_id*.

    Args:
        shown: The ids that the viewer has.
    """
    newest, found = 0, call_id
    for one in shown:
        own, _, turn = one.rpartition(_AGAIN)
        is_turn = turn.isascii() and turn.isdigit() and len(turn) < _LONG
        if own == call_id and is_turn and int(turn) > newest:
            newest, found = int(turn), one
    return found
