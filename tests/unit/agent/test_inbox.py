"""The inbox as a turn sees it: it looks when a bell rings, and from time to time when none does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from tests.loop_time import advance

from looopy.agent.inbox import TurnInbox
from looopy.errors import StoreUnavailable
from looopy.stores.notifier import Notifier
from looopy.stores.records import Entry, EntryKind, InboxHead
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken
from looopy.types.message import UserMessage


class Silent:
    """Stores whose bell never rings for what comes in: the entries, and who is asked to stop."""

    tenant = "default"

    def __init__(self):
        self.journal = SimpleNamespace(notifier=Notifier(poll_s=2.0), inbox=self.inbox)
        self.entries = []
        self.cancelled = None
        self.looks = 0
        self.away = False

    async def inbox(self, _context_id, *, after=0):
        """What is in it."""
        self.looks += 1
        if self.away:
            raise StoreUnavailable("away")
        head = InboxHead(last=len(self.entries), cancel_turn=self.cancelled)
        return head, [e for e in self.entries if e.number > after]

    def post(self, text, kind=EntryKind.STEER):
        """Put a message in."""
        self.entries.append(
            Entry(
                number=len(self.entries) + 1,
                kind=kind,
                message=UserMessage(text),
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
        )


@pytest.fixture
async def listening():
    """The stores, an inbox of turn 3 that listens, and the turn's token."""
    stores, token = Silent(), CancelToken()
    inbox = TurnInbox(stores, "ada", 3, None, LoopConfig(), token, head=InboxHead())
    inbox.listen()
    yield stores, inbox, token
    inbox.close()


async def next_look(stores):
    """Let the time until the next look pass, and the look be over."""
    before = stores.looks
    advance(2.1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert stores.looks == before + 1


async def test_it_looks_again_and_again_though_no_bell_rings(listening):
    """A request to stop is heard whenever it comes, not only at the first look."""
    stores, _, token = listening
    for _ in range(4):
        await next_look(stores)
        assert not token.cancelled
    stores.cancelled = 3
    await next_look(stores)
    assert token.cancelled


async def test_a_late_message_arrives_without_a_notification(listening):
    """And is taken in the order of the numbers."""
    stores, inbox, _ = listening
    await next_look(stores)
    await next_look(stores)
    stores.post("one")
    stores.post("two")
    assert not inbox.arrived
    await next_look(stores)
    assert inbox.arrived
    assert [q.message.text for q in await inbox.steering()] == ["one"]
    assert [q.message.text for q in await inbox.steering()] == ["two"]


async def test_one_that_was_read_and_not_used_stays_beside_a_later_one(listening):
    """The read for the later one begins at the oldest that waits, which may have been withdrawn."""
    stores, inbox, _ = listening
    for said in ("one", "two"):
        stores.post(said)
    await next_look(stores)
    assert [q.message.text for q in await inbox.steering()] == ["one"]
    stores.post("three")
    await next_look(stores)
    assert [q.message.text for q in await inbox.steering()] == ["two"]
    stores.entries[2] = replace(stores.entries[2], message=UserMessage("three, changed"))
    stores.post("four")
    await next_look(stores)
    assert [q.message.text for q in await inbox.steering()] == ["three, changed"]


async def test_a_store_that_is_away_is_looked_at_again(listening):
    """An outage costs a delay, and no news."""
    stores, inbox, token = listening
    stores.away = True
    await next_look(stores)
    await next_look(stores)
    stores.away, stores.cancelled = False, 3
    stores.post("one")
    await next_look(stores)
    assert inbox.arrived
    assert token.cancelled


async def test_a_request_to_stop_another_turn_is_not_meant(listening):
    """It names its turn."""
    stores, _, token = listening
    stores.cancelled = 2
    await next_look(stores)
    assert not token.cancelled


async def test_a_closed_inbox_reads_no_more(listening):
    """Its turn is over."""
    stores, inbox, _ = listening
    await next_look(stores)
    inbox.close()
    advance(10)
    for _ in range(10):
        await asyncio.sleep(0)
    assert stores.looks == 1


@pytest.mark.parametrize(
    ("config", "steered", "followed"),
    [
        (LoopConfig(), 1, 1),
        (LoopConfig(queue_mode="all"), 2, 2),
        (LoopConfig(follow_up_mode="all"), 1, 2),
        (LoopConfig(queue_mode="all", follow_up_mode="one-at-a-time"), 2, 1),
    ],
)
async def test_each_kind_is_taken_as_its_mode_says(config, steered, followed):
    """`follow_up_mode` is for what `follow_up()` left, and `queue_mode` where it is not set."""
    stores = Silent()
    for kind in EntryKind:
        stores.post("a", kind)
        stores.post("b", kind)
    head = InboxHead(last=4, waiting=4)
    inbox = TurnInbox(stores, "ada", 3, None, config, CancelToken(), head=head)
    assert len(await inbox.steering()) == steered
    assert len(await inbox.follow_ups()) == followed
