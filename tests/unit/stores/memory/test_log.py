"""A page of the log in memory costs what it holds."""

from unittest import mock

import pytest

from looopy import UserMessage, open_stores
from looopy.stores.rows import events as rows
from looopy.testing.contracts.turns import CONTEXT, a_turn


@pytest.mark.parametrize("limit", [0, 1, 3, 10])
@pytest.mark.parametrize("after", [0, 7, 500])
async def test_events_beyond_a_page_are_not_decoded(after, limit):
    """However long the log is; that pages are whole is what the contract of journals says."""
    async with open_stores("memory:") as stores:
        for _ in range(5):
            await a_turn(stores)
            await stores.messages.append(CONTEXT, [UserMessage("aside")] * 100)
        whole = await stores.journal.events(CONTEXT)
        assert len(whole) > 500
        with mock.patch.object(
            rows, "decode_message_events", wraps=rows.decode_message_events
        ) as decode:
            page = await stores.journal.events(CONTEXT, after=after, limit=limit)
        assert page == whole[after : after + limit]
        assert decode.call_count <= limit
