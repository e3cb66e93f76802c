"""
Decisions about calls that wait for approval, as the log has them.

The log is the only place that remembers a decision once its call has run. So a decision that is
repeated finds the first one there, and one that comes too late learns who was first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from looopy.errors import AlreadyAnswered, InputExpired, InputNotFound, LooopyError
from looopy.stores.base import Journal
from looopy.stores.records import ContextRecord
from looopy.types.approval import Approve, Deny, answer_to_json, decision_of
from looopy.types.event import ApprovalDecided, AuthRequired, InputRequired
from looopy.types.state import Outcome, PendingRequest

_PAGE: Final = 32
_LEAVES_OPEN: Final = {Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED, Outcome.INTERRUPTED, None}


async def decision_about(
    journal: Journal, context_id: str, request_id: str
) -> ApprovalDecided | None:
    """The stored decision about a request; `None` if it was not decided, or was cleared."""
    turn = _turn_of(request_id)
    while turn is not None:
        turns = await journal.turns(context_id, after=turn, limit=_PAGE)
        turn = turns[-1].turn if len(turns) == _PAGE else None
        for one in turns:
            found = await _decision_in(journal, context_id, one.start_seq, request_id)
            if found is not None:
                return found
            if one.outcome not in _LEAVES_OPEN:  # nothing that was asked before is open any more
                return None
    return None


async def _decision_in(
    journal: Journal, context_id: str, start_seq: int, request_id: str
) -> ApprovalDecided | None:
    """The decision about a request in the turn that starts at *start_seq*: they come first."""
    while True:
        events = await journal.events(context_id, after=start_seq, limit=_PAGE)
        for event in events:
            if not isinstance(event, ApprovalDecided):
                return None
            if event.request_id == request_id:
                return event
        if len(events) < _PAGE:
            return None
        start_seq += _PAGE


async def request_named(
    journal: Journal, record: ContextRecord, request_id: str
) -> PendingRequest | None:
    """The request of this id in a context, also if it was answered; `None` if it is unknown."""
    for one in (*record.state.pending, *(request for request, _ in record.state.answered)):
        if one.request_id == request_id:
            return one
    asked_in = _turn_of(request_id)
    turns = await journal.turns(record.context_id, after=asked_in - 1, limit=1) if asked_in else []
    for turn in turns:
        if turn.end_seq is None or turn.turn != asked_in:
            continue
        events = await journal.events(record.context_id, after=turn.end_seq - 2, limit=1)
        for event in events:  # the last before its end
            if isinstance(event, (InputRequired, AuthRequired)):
                return next((one for one in event.pending if one.request_id == request_id), None)
    return None


def _turn_of(request_id: str) -> int | None:
    """The turn that asked; see `looopy.loop.pending`."""
    found = re.match(r"\d{1,9}(?=[.-])", request_id)
    return None if found is None else int(found[0])


def repeated(made: ApprovalDecided, answer: Any, actor_id: str | None) -> ApprovalDecided:
    """
    *made*, if *actor_id* has given the same *answer*, in its JSON form, once more.

    Raises:
        AlreadyAnswered: The decision is another one, or another person's.
    """
    match decision_of(answer):  # `Deny` is false in a condition
        case Approve(args=args, note=text):
            said = ("approved", args, text, actor_id)
        case Deny(reason=text):
            said = ("denied", None, text, actor_id)
        case _:
            raise already_answered(made)
    if said == (made.decision, made.args, made.text, made.actor_id):
        return made
    raise already_answered(made)


async def made_before(
    journal: Journal, context_id: str, answers: Mapping[str, Any], actor_id: str | None
) -> list[ApprovalDecided] | None:
    """
    The stored decisions, if *actor_id* has given all these *answers* before; else `None`.

    Raises:
        AlreadyAnswered: A request has another decision, or another person's.
    """
    found: list[ApprovalDecided] = []
    for name, answer in answers.items():
        made = await decision_about(journal, context_id, name)
        if made is None:
            return None
        found.append(repeated(made, answer_to_json(answer), actor_id))
    return found


async def who_was_first(
    journal: Journal, context_id: str, error: LooopyError
) -> AlreadyAnswered | None:
    """The error in place of *error*, if that is about a decided request."""
    if not isinstance(error, InputNotFound) or isinstance(error, InputExpired):
        return None
    made = await decision_about(journal, context_id, str(error.request_id))
    return None if made is None or made.decision == "expired" else already_answered(made)


def already_answered(made: ApprovalDecided) -> AlreadyAnswered:
    """The error for an answer that came after the decision *made*."""
    by = "" if made.actor_id is None else f" by {made.actor_id!r}"
    return AlreadyAnswered(
        f"the request {made.request_id!r} was {made.decision} before{by}: nothing was stored",
        request_id=made.request_id,
        actor_id=made.actor_id,
    )
