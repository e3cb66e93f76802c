"""All turns, or all messages, of a context, read page by page: memory stays at one page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from looopy.stores.bundle import Stores
from looopy.stores.records import MessageRecord, TurnRecord

_PAGE: Final = 200


async def turns_of(stores: Stores, context_id: str, after: int = 0) -> AsyncIterator[TurnRecord]:
    """The turns with a number over *after*, oldest first."""
    while page := await stores.journal.turns(context_id, after=after, limit=_PAGE):
        after = page[-1].turn
        for turn in page:
            yield turn


async def messages_of(
    stores: Stores, context_id: str, after: int = 0, *, include_hidden: bool = False
) -> AsyncIterator[MessageRecord]:
    """The messages with a position over *after*, oldest first, as `MessageStore.records`."""
    while page := await stores.messages.records(
        context_id, after=after, limit=_PAGE, include_hidden=include_hidden
    ):
        after = page[-1].position
        for record in page:
            yield record
