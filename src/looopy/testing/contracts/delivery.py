"""The delivery of inbox messages to a turn: part of the contract of a `Journal`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from looopy.errors import Fenced, StoreConflict
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed, ContextState, EntryKind, InboxHead, InboxNews
from looopy.testing.contracts.turns import (
    AT,
    CONTEXT,
    Contract,
    answer,
    begin,
    commit,
    ends,
    record_of,
    said,
    user,
)
from looopy.types.event import MessageEnd

STEER = EntryKind.STEER


async def leave(stores: Stores, *texts: str, context_id: str = CONTEXT) -> None:
    """Leave steering messages."""
    for text in texts:
        await stores.journal.post(context_id, STEER, user(text))


async def numbers_of(stores: Stores, context_id: str = CONTEXT) -> list[int]:
    """The numbers of the waiting messages."""
    return [entry.number for entry in (await stores.journal.inbox(context_id))[1]]


async def head_of(stores: Stores, context_id: str = CONTEXT) -> InboxHead:
    """The state of the inbox, as both its readers see it: the inbox and the loaded context."""
    head, entries = await stores.journal.inbox(context_id)
    found = await stores.state.load(context_id)
    assert head == (found.inbox if found else InboxHead())
    assert head.waiting == len(entries)
    return head


def says(text: str) -> MessageEnd:
    """The `message_end` of a user's message, in the first iteration."""
    return MessageEnd(message=user(text), iteration=1, **AT)


async def news_of(stores: Stores, claimed: Claimed, heard: int) -> InboxHead:
    """The head of the inbox that refuses the end of a turn which has read up to *heard*."""
    with pytest.raises(InboxNews) as news:
        await commit(stores, claimed, [said(answer("bye")), ends()], heard=heard, release=True)
    return news.value.inbox


class DeliveryContract(Contract):
    """Messages reach a turn, and a turn ends only when it has read everything."""

    # --- delivery ---

    async def test_a_commit_that_says_messages_takes_them_out(self, stores: Stores) -> None:
        """One step takes messages out of the inbox into the history; numbers are not reused."""
        claimed = await begin(stores)
        await leave(stores, "a", "b", "c")
        done = await commit(stores, claimed, [says("a"), says("c")], delivered=[1, 3])
        assert (done.first_position, done.inbox) == (2, InboxHead(last=3, waiting=1))
        assert await numbers_of(stores) == [2]
        texts = [getattr(m, "content", None) for m in await stores.messages.list(CONTEXT)]
        assert texts == ["hello", "a", "c"]
        await leave(stores, "d")
        assert await numbers_of(stores) == [2, 4]

    async def test_a_turn_may_begin_with_what_waits(self, stores: Stores) -> None:
        """A claim takes messages out as a commit does, and reports how many are left."""
        await leave(stores, "a", "b")
        claimed = await begin(stores, text="a", delivered=[1])
        assert claimed.inbox == InboxHead(last=2, waiting=1)
        assert await numbers_of(stores) == [2]
        await commit(stores, claimed, [ends()], release=True)
        again = await begin(stores, claimed.epoch, text="b", delivered=[2])
        assert again.inbox == InboxHead(last=2)
        assert await head_of(stores) == InboxHead(last=2)

    async def test_a_message_is_delivered_once(self, stores: Stores) -> None:
        """A commit or a claim with a message that is gone is refused, and nothing is written."""
        claimed = await begin(stores)
        await leave(stores, "a", "b")
        await commit(stores, claimed, [says("a")], delivered=[1])
        before = await stores.state.load(CONTEXT)
        for delivered in ([1], [2, 1], [2, 2], [3], [0], [-1], [2**70]):
            with pytest.raises(StoreConflict):
                await commit(
                    stores,
                    claimed,
                    [says("x"), said(answer("y")), ends()],
                    delivered=delivered,
                    state=ContextState(resumable=1),
                )
            assert await stores.state.load(CONTEXT) == before
            assert await numbers_of(stores) == [2]
        await commit(stores, claimed, [ends()], release=True)
        before = await stores.state.load(CONTEXT)
        for delivered in ([1], [2, 2], [3]):
            with pytest.raises(StoreConflict):
                await begin(stores, claimed.epoch, delivered=delivered, key="k", input_hash="h")
            assert await stores.state.load(CONTEXT) == before
            assert await numbers_of(stores) == [2]
        with pytest.raises(StoreConflict):
            await begin(stores, context_id="new", delivered=[1])
        assert await stores.state.load("new") is None

    async def test_a_stale_owner_delivers_nothing(self, stores: Stores) -> None:
        """Its message waits for the new owner of the context."""
        claimed = await begin(stores, ttl_s=0)
        await leave(stores, "a")
        taken = await begin(stores, claimed.epoch, holder="h2", recover=True)
        assert taken.inbox == InboxHead(last=1, waiting=1)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [says("a")], delivered=[1])
        assert await numbers_of(stores) == [1]
        await commit(stores, taken, [says("a")], delivered=[1])
        assert await numbers_of(stores) == []

    async def test_a_recovering_claim_takes_no_messages_and_no_key(self, stores: Stores) -> None:
        """It begins no turn, so it takes neither messages nor a key."""
        await begin(stores, ttl_s=0)
        await leave(stores, "a")
        with pytest.raises(ValueError, match="recover"):
            await begin(stores, recover=True, delivered=[1])
        with pytest.raises(ValueError, match="recover"):
            await begin(stores, recover=True, key="k", input_hash="h")
        assert await numbers_of(stores) == [1]

    # --- the end of a turn ---

    async def test_a_turn_ends_only_when_it_has_heard_everything(self, stores: Stores) -> None:
        """A delayed end writes nothing; a turn that has read the news may end."""
        claimed = await begin(stores)
        await leave(stores, "wait!")
        before = await stores.state.load(CONTEXT)
        events = await stores.journal.events(CONTEXT)
        assert await news_of(stores, claimed, 0) == InboxHead(last=1, waiting=1)
        assert await stores.state.load(CONTEXT) == before
        assert await stores.journal.events(CONTEXT) == events
        done = await commit(stores, claimed, [ends()], heard=1, release=True)
        assert done.inbox == InboxHead(last=1, waiting=1)
        found = await record_of(stores)
        assert (found.open_turn, found.holder) == (None, None)

    async def test_only_the_end_is_held_up(self, stores: Stores) -> None:
        """Another commit reports the news; an end without `heard` is written."""
        claimed = await begin(stores)
        await leave(stores, "wait!")
        done = await commit(stores, claimed, [said(answer("hi"))], heard=0)
        assert done.inbox == InboxHead(last=1, waiting=1)
        done = await commit(stores, claimed, [ends()])
        assert done.inbox == InboxHead(last=1, waiting=1)

    async def test_a_turn_that_says_what_waited_may_end_at_once(self, stores: Stores) -> None:
        """One commit delivers the newest message, names it in `heard`, and ends the turn."""
        claimed = await begin(stores)
        await leave(stores, "a")
        done = await commit(
            stores, claimed, [says("a"), said(answer("b")), ends()], delivered=[1], heard=1
        )
        assert done.inbox == InboxHead(last=1)

    async def test_a_lost_context_is_fenced_whatever_came_in(self, stores: Stores) -> None:
        """With another epoch or a released lease, a commit raises `Fenced`, not `InboxNews`."""
        claimed = await begin(stores, ttl_s=0)
        await leave(stores, "a")
        taken = await begin(stores, claimed.epoch, holder="h2", recover=True)
        for epoch in (claimed.epoch, taken.epoch + 1, 0, -1):
            with pytest.raises(Fenced):
                await commit(stores, replace(claimed, epoch=epoch), [ends()], heard=0)
        await stores.state.release(CONTEXT, taken.epoch)
        with pytest.raises(Fenced):
            await commit(stores, taken, [ends()], heard=0)
        with pytest.raises(Fenced):
            await commit(stores, taken, [ends()], context_id="nobody", heard=0)

    async def test_a_message_is_read_by_the_turn_or_waits(self, stores: Stores) -> None:
        """The turn reads each message that arrives before its end; later ones wait."""
        claimed = await begin(stores)

        async def end() -> InboxHead:
            heard = 0
            while True:
                try:
                    done = await commit(stores, claimed, [ends()], heard=heard, release=True)
                except InboxNews as news:
                    newest = news.inbox.last
                else:
                    assert done.inbox.last == heard
                    return done.inbox
                assert newest > heard
                heard = newest

        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(leave(stores, str(n))) for n in range(6)]
            ended = group.create_task(end())
            posts += [group.create_task(leave(stores, str(n))) for n in range(6)]
        head = ended.result()
        assert head == InboxHead(last=head.last, waiting=head.last)
        assert await head_of(stores) == InboxHead(last=12, waiting=12)
