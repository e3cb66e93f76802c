"""
The facts that a message's events have beyond the message: the column `meta` of its row, and times.

Every message has a row, so this is short: a list without names. Each moment is a number of
microseconds before the row was created.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from looopy.types.event import MessageEnd, ToolExecutionEnd
from looopy.types.storable import MAX_INT, dump

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_ALL = 6
_OF_A_CALL = 3  # numbers that come before the digests of a request


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 of an aware *moment*: how every backend keeps times."""
    return (moment - _EPOCH) // _US


def from_us(value: int) -> datetime:
    """The aware UTC time of *value* microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=value)


def encode_meta(event: MessageEnd, ended: ToolExecutionEnd | None, created: int) -> str | None:
    """
    The facts of a message's events beyond the message, as short as possible; `None` if it has no
    such fact.

    The list ends with the last known fact. Moments are numbers of microseconds before the row was
    *created*. For a model call: when it began, how much later its first delta came, how often it
    was tried, the digests of its request. For a tool: when it began, how long it ran, when it was
    over.
    """
    is_usual = event.started is None and event.first_delta_s is None and event.attempts == 1
    if is_usual and ended is None and event.request is None:
        return None
    facts: list[int | str | None] = [
        None if event.started is None else created - to_us(event.started),
        None if event.first_delta_s is None else _in_us(event.first_delta_s),
        None if event.attempts == 1 else event.attempts,
    ]
    if ended is not None:
        facts += [
            None if ended.started is None else created - to_us(ended.started),
            _in_us(ended.duration_s),
            created - to_us(ended.timestamp),
        ]
    elif event.request is not None:  # where a tool has its beginning
        facts.append(event.request)
    while facts[-1] is None:
        facts.pop()
    said = []
    for fact in facts:
        if fact is None:
            said.append("null")
        elif isinstance(fact, str):  # words of hexadecimal digits, which JSON does not escape
            plain = fact.isascii() and fact.replace(" ", "").isalnum()
            said.append(f'"{fact}"' if plain else dump(fact))
        elif -MAX_INT <= fact < MAX_INT:
            said.append(f"{fact:d}")
        else:
            return dump(facts)  # which refuses it
    return f"[{','.join(said)}]"


def _in_us(seconds: float) -> int:
    return round(seconds * 1_000_000)


class Facts(NamedTuple):
    """The facts in a row's `meta`."""

    started: datetime | None = None
    first_delta_s: float | None = None
    attempts: int = 1
    ran: tuple[datetime | None, float, datetime] | None = None
    request: str | None = None


def decode_meta(meta: str | None, created: int) -> Facts:
    """The facts in the text of a row that was *created* then."""
    if not meta:
        return Facts()
    found = json.loads(meta)
    request = None
    if len(found) > _OF_A_CALL and isinstance(found[_OF_A_CALL], str):
        request = found.pop(_OF_A_CALL)
    facts: list[int | None] = [*found, *[None] * (_ALL - len(found))]
    before, delta, attempts, began, lasted, ended = facts
    ran = None
    if lasted is not None and ended is not None:
        ran = (
            None if began is None else from_us(created - began),
            lasted / 1_000_000,
            from_us(created - ended),
        )
    return Facts(
        started=None if before is None else from_us(created - before),
        first_delta_s=None if delta is None else delta / 1_000_000,
        attempts=1 if attempts is None else attempts,
        ran=ran,
        request=request,
    )
