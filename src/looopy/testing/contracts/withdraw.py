"""Messages taken back out of an inbox: part of the contract of a `Journal`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looopy.errors import StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import EntryKind, InboxHead, InboxNews
from looopy.testing.contracts.turns import (
    AT,
    CONTEXT,
    Contract,
    answer,
    begin,
    commit,
    ends,
    refuses,
    said,
    user,
)
from looopy.types.event import MessageEnd

_STEER, _FOLLOW_UP = EntryKind.STEER, EntryKind.FOLLOW_UP


async def _waiting(stores: Stores) -> list[tuple[str, str | None]]:
    head, entries = await stores.journal.inbox(CONTEXT)
    assert head.waiting == len(entries)
    return [(str(entry.message.content), entry.actor_id) for entry in entries]


class WithdrawContract(Contract):
    """Messages that their sender takes back."""

    async def test_messages_are_withdrawn_by_kind_and_by_actor(self, stores: Stores) -> None:
        """Messages of other actors stay; each withdrawal that removes any takes a number."""
        for number, (kind, actor) in enumerate(
            [(_STEER, None), (_FOLLOW_UP, None), (_STEER, "u1"), (_STEER, None)]
        ):
            await stores.journal.post(CONTEXT, kind, user(str(number)), actor_id=actor)
        assert await stores.journal.withdraw(CONTEXT, _STEER) == 2
        assert await _waiting(stores) == [("1", None), ("2", "u1")]
        assert (await stores.journal.inbox(CONTEXT))[0] == InboxHead(last=5, waiting=2)
        assert await stores.journal.withdraw(CONTEXT, _FOLLOW_UP, actor_id="u1") == 0
        assert await stores.journal.withdraw(CONTEXT) == 1
        assert await stores.journal.withdraw(CONTEXT, actor_id="u1") == 1
        assert (await stores.journal.inbox(CONTEXT)) == (InboxHead(last=7), [])
        assert await stores.journal.post(CONTEXT, _STEER, user("new")) == 8

    async def test_an_invalid_actor_withdraws_no_message(self, stores: Stores) -> None:
        """Every store refuses an actor with NUL, a lone surrogate or more than 512 bytes."""
        await stores.journal.post(CONTEXT, EntryKind.STEER, user("mine"))
        for bad in ("a\0", "\ud800", "x" * 513):
            with refuses(ValueRefused, path="/actor_id"):
                await stores.journal.withdraw(CONTEXT, actor_id=bad)
        assert len((await stores.journal.inbox(CONTEXT))[1]) == 1

    async def test_only_a_kind_of_message_can_be_posted_and_withdrawn(self, stores: Stores) -> None:
        """By its name as well; every store refuses another one, and `None` for a new message."""
        steer: Any = "steer"
        await stores.journal.post(CONTEXT, steer, user("mine"))
        for bad in ("shout", 1, ["steer"], ""):
            with refuses(ValueRefused, path="/kind"):
                await stores.journal.withdraw(CONTEXT, bad)  # type: ignore[arg-type] # on purpose
            with refuses(ValueRefused, path="/kind"):
                await stores.journal.post(CONTEXT, bad, user("no"))  # type: ignore[arg-type] # as above
        with refuses(ValueRefused, path="/kind"):
            await stores.journal.post(CONTEXT, None, user("no"))  # type: ignore[arg-type] # as above
        assert len((await stores.journal.inbox(CONTEXT))[1]) == 1
        assert await stores.journal.withdraw(CONTEXT, steer) == 1

    async def test_withdrawing_nothing_writes_nothing(self, stores: Stores) -> None:
        """The count is 0, for an unknown context too."""
        for context_id in ("nobody", "not/an\x00id"):
            assert await stores.journal.withdraw(context_id) == 0
        assert await stores.state.load("nobody") is None
        await stores.journal.post(CONTEXT, _STEER, user("a"), actor_id="u1")
        before = await stores.state.load(CONTEXT)
        assert await stores.journal.withdraw(CONTEXT) == 0
        assert await stores.state.load(CONTEXT) == before

    async def test_a_withdrawn_message_cannot_be_delivered(self, stores: Stores) -> None:
        """The commit of a turn that has read the message is refused and writes nothing."""
        claimed = await begin(stores)
        number = await stores.journal.post(CONTEXT, _STEER, user("a"))
        await stores.journal.withdraw(CONTEXT)
        group = [MessageEnd(message=user("a"), iteration=1, **AT)]
        before = await stores.state.load(CONTEXT)
        with pytest.raises(StoreConflict):
            await commit(stores, claimed, group, delivered=[number])
        assert await stores.state.load(CONTEXT) == before
        with refuses(InboxNews, inbox=InboxHead(last=2)):
            await commit(stores, claimed, [said(answer("x")), ends()], heard=number, release=True)
        await commit(stores, claimed, [said(answer("x")), ends()], heard=2, release=True)

    async def test_each_message_is_withdrawn_once(self, stores: Stores) -> None:
        """Concurrent withdrawals share the messages; their counts add up."""
        for number in range(5):
            await stores.journal.post(CONTEXT, _STEER, user(str(number)))
        counts = await asyncio.gather(*(stores.journal.withdraw(CONTEXT) for _ in range(4)))
        assert sum(counts) == 5
        assert (await stores.journal.inbox(CONTEXT))[1] == []
