"""
All turns, events or messages of a context, read page by page: memory stays at one page.

A message may have megabytes, and no store knows how long a page is before it is read. So a page
begins small, and a `Portion` has the number of rows of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Final

from looopy.stores.bundle import Stores
from looopy.stores.records import MessageRecord, TurnRecord
from looopy.types.event import AgentEvent, MessageEnd
from looopy.types.message import Message

_PAGE: Final = 200
_FIRST: Final = 16
_GROWTH: Final = 4
_CHARACTERS: Final = 4_000_000  # of the messages of a page, about


class Portion:
    """
    How many rows to read next, so that a page of large messages does not fill the memory.

    Args:
        most: The most rows of a page.

    Attributes:
        rows: The rows of the next page, at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = min(_FIRST, most)

    def took(self, rows: int, messages: Iterable[Message]) -> None:
        """A page had so many *rows*, and these messages."""
        size = sum(map(_characters, messages))
        likely = rows * _CHARACTERS // size if size else self._most
        self.rows = max(1, min(self._most, self.rows * _GROWTH, likely))


def messages_in(events: Iterable[AgentEvent]) -> list[Message]:
    """The messages of a page of a log."""
    return [event.message for event in events if isinstance(event, MessageEnd)]


def _characters(message: Message) -> int:
    """About how long *message* is; the arguments of calls do not count."""
    content = message.content
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, (list, tuple)):  # an application's own
        return 0
    return sum(
        len(getattr(block, name, "")) for block in content for name in ("text", "thinking", "data")
    )


async def turns_of(stores: Stores, context_id: str, after: int = 0) -> AsyncIterator[TurnRecord]:
    """The turns with a number over *after*, oldest first."""
    while page := await stores.journal.turns(context_id, after=after, limit=_PAGE):
        after = page[-1].turn
        for turn in page:
            yield turn


async def events_of(
    stores: Stores, context_id: str, after: int = 0, upto: int | None = None
) -> AsyncGenerator[AgentEvent, None]:
    """The stored events with a `seq` over *after*, to the head or up to *upto*, in order."""
    portion = Portion(_PAGE)
    while upto is None or after < upto:
        most = portion.rows if upto is None else min(portion.rows, upto - after)
        found = await stores.journal.events(context_id, after=after, limit=most)
        portion.took(len(found), messages_in(found))
        for event in found:
            after = event.seq or after
            if upto is not None and after > upto:
                return
            yield event
        if not found:
            return
        await asyncio.sleep(0)  # a store in memory never waits


async def messages_of(
    stores: Stores, context_id: str, after: int = 0, *, include_hidden: bool = False
) -> AsyncIterator[MessageRecord]:
    """The messages with a position over *after*, oldest first, as `MessageStore.records`."""
    portion = Portion(_PAGE)
    while page := await stores.messages.records(
        context_id, after=after, limit=portion.rows, include_hidden=include_hidden
    ):
        after = page[-1].position
        portion.took(len(page), (record.message for record in page))
        for record in page:
            yield record
