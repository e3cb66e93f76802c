"""
The messages of contexts in a message store of an application's own.

A context knows the places of its messages and the digests of their texts, so what the store returns
is held against them. Messages that are missing are appended if the head has them, or reported; a
message that was appended twice, by a process that was taken for dead, is read once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from looopy._failpoints import reach
from looopy.errors import StoreUnavailable, ValueRefused
from looopy.stores.contexts.log import StoredMessage
from looopy.stores.plain.calls import Calls
from looopy.stores.plain.documents import Placed, digest
from looopy.stores.rows import events as rows
from looopy.stores.rows.reading import read_message
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.message_json import message_from_json

_logger = logging.getLogger("looopy")
_READ: Final = 64
"""Contexts whose items are kept to compare the next ones with them."""

_MESSAGES: Final = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)


class OwnMessages:
    """
    A message store of an application's own.

    Raises:
        ConfigurationError: It lacks a method that it needs.
    """

    def __init__(self, store: object) -> None:
        self.calls = Calls(store, "messages", "append", ("list", "get_all"))
        self._list = "list" if self.calls.has("list") else "get_all"
        self._positions = self.calls.takes("append", "position")
        self._is_proved = False
        self._read: dict[str, list[tuple[object, str]]] = {}

    async def listed(self, key: str) -> list[tuple[Message, str]]:
        """
        All messages of a context, each with its text.

        Raises:
            StoreUnavailable: The store failed, or returned something else.
        """
        return [
            (message := self._message(one, number), self._body(message, number))
            for number, one in enumerate(await self._items(key))
        ]

    async def _items(self, key: str) -> list[object]:
        found = await self.calls(self._list, key)
        if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__"):
            raise self.calls.wrong(
                self._list, f"returned {type(found).__name__}, not a list of messages"
            )
        return list(found)

    def _body(self, message: Message, number: int) -> str:
        try:
            (row,) = rows.message_rows([message]).messages
        except ValueRefused as error:
            raise self.calls.wrong(self._list, f"item {number}: {error}") from error
        return row.body

    def _message(self, one: object, number: int) -> Message:
        if isinstance(one, _MESSAGES):
            return one
        dumped = getattr(one, "model_dump", None)
        data = dumped() if callable(dumped) else one
        if not isinstance(data, Mapping):
            raise self.calls.wrong(
                self._list, f"item {number} is {type(one).__name__}, not a message"
            )
        if "timestamp" not in data:
            raise self.calls.wrong(
                self._list,
                f"item {number} has no `timestamp`, in milliseconds since 1970: it would be another"
                " message at each look",
            )
        try:
            return message_from_json(data)
        except ValueRefused as error:
            raise self.calls.wrong(self._list, f"item {number}: {error}") from error

    async def _bodies(self, key: str) -> list[str]:
        items = await self._items(key)
        before = self._read.pop(key, [])
        bodies = []
        for number, one in enumerate(items):
            # Reading an item takes a hundred times as long as comparing it.
            known = before[number] if number < len(before) else None
            if known is not None and _is_equal(known[0], one):
                bodies.append(known[1])
            else:
                bodies.append(self._body(self._message(one, number), number))
        self._read[key] = list(zip(items, bodies, strict=True))
        if len(self._read) > _READ:
            del self._read[next(iter(self._read))]
        return bodies

    async def placed(
        self, key: str, places: list[Placed], unwritten: list[str], *, is_own: bool
    ) -> list[StoredMessage]:
        """
        The messages of *places*; appends those of *unwritten* that a dead process has left.

        Args:
            is_own: All messages of the context must be of *places*. False if a step that does not
                count may have left others.

        Raises:
            StoreUnavailable: One is missing, changed, in another order, or of somebody else.
        """
        bodies = await self._bodies(key)
        found = _aligned(places, bodies)
        left = places[len(found) :]
        waiting = {digest(body): body for body in unwritten}
        if left and all(hashed in waiting for _, hashed in left):
            await self.append(key, left[0][0].position, [waiting[hashed] for _, hashed in left])
            reach("S4")
            bodies = await self._bodies(key)
            found = _aligned(places, bodies)
        self._check_all(key, places, found, bodies)
        if len(bodies) > len(places):
            self._check_known(key, {hashed for _, hashed in places}, bodies, is_own=is_own)
        return found

    async def has_all(self, key: str, known: list[StoredMessage]) -> bool:
        """True if the store still has the messages that are in memory, and no other ones."""
        return await self._bodies(key) == [one.body for one in known]

    async def append(self, key: str, position: int, bodies: list[str]) -> None:
        """
        Append messages of a step that counts already, so only their being there matters.

        Raises:
            StoreUnavailable: They are not there.
        """
        messages = [read_message(body, position=position + n) for n, body in enumerate(bodies)]
        more = {"position": position} if self._positions else {}
        failed: StoreUnavailable | None = None
        try:
            await self.calls("append", key, messages, **more)
        except StoreUnavailable as error:
            failed = error  # it may have written, or another process was first
        if failed is None and self._is_proved:
            return
        there = await self._bodies(key)
        places = [
            (StoredMessage(position + n, 0, 0, 0, 0, None, ""), digest(body))
            for n, body in enumerate(bodies)
        ]
        found = _aligned(places, there)
        if failed is not None and len(found) < len(bodies):
            raise failed
        # A store that is not what it must be shows it at its first append.
        self._check_all(key, places, found, there)
        self._is_proved = True

    def _check_all(
        self, key: str, places: list[Placed], found: list[StoredMessage], bodies: list[str]
    ) -> None:
        if len(found) == len(places):
            return
        missing = places[len(found)][0].position
        number = f"message {missing} of context {key!r}"
        if len(bodies) >= len(places):
            raise self.calls.wrong(
                self._list,
                f"returned {number} otherwise than it was appended, or in another order: keep the"
                " whole message, as `message_to_json` writes it, and the order",
            )
        raise self.calls.wrong(
            self._list,
            f"did not return {number}, which was appended: {len(bodies)} messages are there,"
            f" {len(places)} must be",
        )

    def _check_known(self, key: str, known: set[str], bodies: list[str], *, is_own: bool) -> None:
        """Report messages that are no copies of known ones, which a late process may append."""
        strange = [number for number, body in enumerate(bodies) if digest(body) not in known]
        if not strange:
            return
        wrong = self.calls.wrong(
            self._list,
            f"item {strange[0]} is not of context {key!r} as looopy knows it: another agent"
            " with another state store wrote it, or the application, which appends messages with"
            " `stores.messages.append`",
        )
        if is_own:
            raise wrong
        _logger.warning("%s; such messages are left out", wrong)


def _is_equal(known: object, one: object) -> bool:
    """True for equal messages or mappings; a mapping may have changed since, if it is the same."""
    if isinstance(one, _MESSAGES):
        return known == one
    return type(one) is dict and known is not one and known == one


def _aligned(places: list[Placed], bodies: list[str]) -> list[StoredMessage]:
    """The places with their texts, up to the first one without. Other texts are left out."""
    found: list[StoredMessage] = []
    rest = iter(bodies)
    for place, hashed in places:
        body = next((one for one in rest if digest(one) == hashed), None)
        if body is None:
            break
        found.append(place._replace(body=body))
    return found
