"""
Reads stored messages back, ten thousand of them while a user waits for the first answer.

Nearly all rows have one shape: the compact one that the stores write, with every field of the right
type. Compiled code reads these (`schema`). Any other row goes to `message_from_json`, which
decides: how it is read, how missing fields are filled, and how damage is refused.

A row without a valid message, of an older version or changed by other hands, never stops a read:
`read_message` repairs its fields, or puts a message of the role `damaged` in its place.

Repeated words, such as the name of the model, are kept once for the messages that are read
together, and so is the usage of those without any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Final

from looopy.stores.records import MessageRecord
from looopy.stores.rows.schema import reader
from looopy.types.message import CustomMessage, Message
from looopy.types.message_check import Lost, salvaged_message
from looopy.types.message_json import message_from_json

_logger = logging.getLogger("looopy")


def decode_message(body: str) -> Message:
    """
    The message in a row's *body*.

    Raises:
        ValueRefused: It is not a message; `path` points at the fault.
        ValueError: It is not JSON.
    """
    try:
        return reader()(body)
    except Exception:  # noqa: BLE001 - the general way reports what is wrong
        return message_from_json(json.loads(body))


DAMAGED: Final = "damaged"
"""The role of the message that replaces an unreadable row."""


def read_message(body: str, *, position: int | None) -> Message:
    """
    The message in a row's *body*; of a damaged row, the readable parts.

    Fields of a wrong type are repaired. If that is not enough, a `CustomMessage` of the role
    `damaged` has the reason, and keeps the position and the text of the row in its metadata. No
    model sees it. Each damaged row is logged as a warning.

    Args:
        position: The message's position, for the log; `None`: it waits in an inbox.
    """
    try:
        return decode_message(body)
    except Exception as error:  # noqa: BLE001 - one bad row never stops a read
        return _salvaged(body, position, error)


def _salvaged(body: str, position: int | None, error: Exception) -> Message:
    where = "of an inbox" if position is None else f"at position {position}"
    why = str(error) or type(error).__name__
    lost: Lost = []
    try:
        message = salvaged_message(json.loads(body), lost)
    except Exception:  # noqa: BLE001 - as above
        _logger.warning("the stored message %s cannot be read: %s", where, why)
        text = f"the stored message {where} cannot be read: {why}"
        kept = {"position": position, "path": getattr(error, "path", None), "body": body}
        return CustomMessage(DAMAGED, text, kept, timestamp=0)
    _logger.warning("the stored message %s was repaired as it was read: %s", where, why)
    return message


def decode_records(found: Iterable[tuple[int, int, int, int, str]]) -> list[MessageRecord]:
    """Messages with their places, of rows of position, turn, iteration, seq and body."""
    return [
        MessageRecord(
            position=position,
            turn=turn,
            iteration=iteration,
            seq=seq,
            message=read_message(body, position=position),
        )
        for position, turn, iteration, seq, body in found
    ]
