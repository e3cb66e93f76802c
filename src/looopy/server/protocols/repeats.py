"""
The rule for a request that comes again, for all protocols.

A request that is repeated shows the turn that it began: its stored answer, or the answer that is
being written. If the turn's process died, the turn is continued, unless the protocol has a word for
that: the HTTP API and A2A report it, and another request continues. A repetition never runs a turn
twice: clients and proxies repeat requests by themselves.

Doing a request again is asked for by a word of the protocol. It is refused once the turn ran a tool
that has effects, unless it is forced. A turn that failed after such a tool is continued instead.

A request is known by its key, or by the id of its message together with the content: an id that
comes with another content edits the message. Each protocol describes its key in its `request` or
`verbs`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from looopy.agent.request import input_hash, secret_inputs
from looopy.server.problems import Problem
from looopy.server.protocols.chains import begun_by, last_of, message_of, record_of
from looopy.stores.bundle import Stores
from looopy.stores.pages import events_of
from looopy.stores.records import TurnRecord
from looopy.types.approval import answer_to_json, decision_of
from looopy.types.event import ToolExecutionStart
from looopy.types.message import UserMessage


@dataclass(frozen=True, slots=True)
class Begun:
    """
    A turn that began with a message.

    Attributes:
        message: As it is stored: without secrets, and `None` if it was cleared.
        input_hash: Of the request that began it; `None` if that had no key.
    """

    turn: TurnRecord
    message: UserMessage | None
    input_hash: str | None

    def says(self, told: UserMessage, inputs: Mapping[str, Any] | None = None) -> bool:
        """
        True if the turn began with the content of *told*, and with the same *inputs*.

        Also if it was cleared: nothing takes its place. The hash finds a message with a secret.
        """
        if self.message is None or self.message.content == told.content:
            return True
        if self.input_hash is None:
            return False
        secret = secret_inputs(self.input_hash)
        asked = input_hash(told, inputs or {}, self.turn.metadata, secret=secret)
        return asked == self.input_hash


async def begun_with(stores: Stores, context_id: str, key: str, message_id: str) -> list[Begun]:
    """
    The turns that began with a message, oldest first: the first one, then those in its place.

    Args:
        key: Of the first turn; `replacing` has the others'.
        message_id: As the page has it. It may have the id from a transcript, `message-POSITION`.
    """
    found: list[Begun] = []
    known = await stores.journal.turn_of_key(context_id, key)
    number, asked = known if known is not None else (None, None)
    place = message_id.removeprefix("message-")
    if number is None and place != message_id and place.isdecimal() and len(place) < 16:
        begun = await begun_by(stores, context_id, int(place))
        number = None if begun is None else begun.turn
    while number is not None:
        record = await record_of(stores, context_id, number)
        if record is None:
            break
        said = await message_of(stores, context_id, record)
        found.append(Begun(record, said, asked))
        later = await stores.journal.turn_of_key(context_id, replacing(key, number))
        number, asked = later if later is not None else (None, None)
    return found


def replacing(key: str, turn: int) -> str:
    """The key of the turn that takes the place of *turn*."""
    return f"{key}@{turn}"


def digest(*parts: Any) -> str:
    """A key made of JSON values; 32 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def decided(answers: Mapping[str, Any]) -> dict[str, Any]:
    """
    The part of *answers* that a key may hold: the ids of requests, and decisions about approvals.

    Other answers may be credentials, which could be guessed from a stored digest. The first answer
    to a request counts, so its id is enough.
    """
    decisions = {name: decision_of(value) for name, value in answers.items()}
    return {
        name: None if decision is None else answer_to_json(decision)
        for name, decision in decisions.items()
    }


async def is_rewound(stores: Stores, context_id: str, turn: TurnRecord) -> bool:
    """True if the history was rewound to *turn*, without a message since: a process died."""
    record = await stores.state.load(context_id)
    if record is None or not record.hidden:
        return False
    return tuple(record.hidden[-1]) == (turn.first_position, record.last_position)


async def effect_of(stores: Stores, context_id: str, turns: Iterable[TurnRecord]) -> str | None:
    """The first tool with effects that began in one of *turns*, or in one that continued it."""
    for turn in turns:
        end = (await last_of(stores, context_id, turn)).end_seq
        async for event in events_of(stores, context_id, turn.start_seq - 1, end):
            if isinstance(event, ToolExecutionStart):  # stored only of tools with effects
                return event.tool_name
    return None


async def check_again(
    stores: Stores, context_id: str, begun: Iterable[Begun], *, path: str, force: str
) -> None:
    """
    Refuse to do again a request that ran a tool with effects.

    Args:
        begun: The turns of the request.
        path: Where the body asks for it. *force*: how it forces it.

    Raises:
        Problem: 409 `effects_repeated`; nothing was changed.
    """
    tool = await effect_of(stores, context_id, [one.turn for one in begun])
    if tool is not None:
        text = f"the tool {tool} ran for this request already, and would run again: {force}"
        raise Problem(text, status=409, code="effects_repeated", path=path)
