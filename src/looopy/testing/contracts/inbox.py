"""The inbox: part of the contract of a `Journal`; see `looopy.testing.stores`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from looopy.errors import AccessDenied, LimitExceeded, StoreConflict, TurnMismatch, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import INBOX_LIMIT, EntryKind, InboxHead
from looopy.testing.contracts.delivery import (
    DeliveryContract,
    head_of,
    leave,
    news_of,
    numbers_of,
    says,
)
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_claim,
    a_turn,
    answer,
    at_once,
    begin,
    commit,
    ends,
    finishes,
    opening,
    record_of,
    refuses,
    said,
    starts,
    user,
)
from looopy.testing.contracts.withdraw import WithdrawContract
from looopy.types.event import AgentEvent
from looopy.types.message import ImageContent, TextContent, ToolCall, UserMessage

_STEER, _FOLLOW_UP = EntryKind.STEER, EntryKind.FOLLOW_UP
_CALL = ToolCall("call-1", "add", {"a": 1})


class InboxContract(DeliveryContract, WithdrawContract):
    """Messages that wait for delivery, and requests to stop a turn."""

    # --- what waits ---

    async def test_posted_messages_wait_in_order_of_arrival(self, stores: Stores) -> None:
        """Each message has its number, kind, sender and time; the first one creates the context."""
        picture = UserMessage(
            (TextContent("see"), ImageContent("aGk=", mime_type="image/png")), timestamp=1
        )
        earliest = datetime.now(UTC) - timedelta(seconds=5)
        assert await stores.journal.post(CONTEXT, _FOLLOW_UP, picture, actor_id="u1") == 1
        assert await stores.journal.post(CONTEXT, _STEER, user("é😀")) == 2
        head, (first, second) = await stores.journal.inbox(CONTEXT)
        assert head == InboxHead(last=2, waiting=2)
        assert [(e.number, e.kind, e.message, e.actor_id) for e in (first, second)] == [
            (1, _FOLLOW_UP, picture, "u1"),
            (2, _STEER, user("é😀"), None),
        ]
        assert earliest < first.created_at <= second.created_at
        assert second.created_at < datetime.now(UTC) + timedelta(seconds=5)
        assert await stores.journal.inbox(CONTEXT, after=1) == (head, [second])
        assert await stores.journal.inbox(CONTEXT, after=2**70) == (head, [])
        assert await stores.journal.inbox(CONTEXT, after=-1) == (head, [first, second])

    async def test_waiting_messages_are_not_part_of_the_log(self, stores: Stores) -> None:
        """It takes no position and no number of the log, and the owner can still commit."""
        claimed = await begin(stores)
        before = await record_of(stores)
        await leave(stores, "soon")
        after = await record_of(stores)
        assert after.last_activity >= before.last_activity
        waiting = InboxHead(last=1, waiting=1)
        assert after == replace(before, inbox=waiting, last_activity=after.last_activity)
        done = await commit(stores, claimed, [said(answer("hi"))])
        assert (done.first_seq, done.first_position, done.inbox) == (3, 2, waiting)
        assert await stores.messages.list(CONTEXT) == [user("hello"), answer("hi")]

    async def test_an_unknown_context_has_an_empty_inbox(self, stores: Stores) -> None:
        """Reading creates nothing, and there is no turn to stop."""
        for context_id in ("nobody", "no id"):
            assert await stores.journal.inbox(context_id) == (InboxHead(), [])
            assert await stores.journal.ask_cancel(context_id) is None
            assert await stores.journal.ask_cancel(context_id, 1) is None
        assert await stores.state.list() == []

    async def test_a_message_that_cannot_be_stored_is_not_posted(self, stores: Stores) -> None:
        """The error names the place of the value; no number is used and no context created."""
        for bad in ("nul \0", "lone \ud800"):
            with pytest.raises(ValueRefused) as refused:
                await stores.journal.post(CONTEXT, _STEER, user(bad))
            assert (refused.value.path or "").startswith("/content")
            with refuses(ValueRefused, path="/actor_id"):
                await stores.journal.post(CONTEXT, _STEER, user("fine"), actor_id=bad)
        with refuses(ValueRefused, path="/context_id"):
            await stores.journal.post("no id", _STEER, user("fine"))
        assert await stores.state.list() == []

    async def test_concurrent_posts_get_a_number_each(self, stores: Stores) -> None:
        """The numbers have no gaps, even if the posts create the context."""
        posts = (stores.journal.post(CONTEXT, _STEER, user(str(n))) for n in range(16))
        numbers = await at_once(*posts)
        assert sorted(numbers) == list(range(1, 17))
        head, entries = await stores.journal.inbox(CONTEXT)
        assert head == InboxHead(last=16, waiting=16)
        assert [e.number for e in entries] == list(range(1, 17))
        said_by = {number: user(str(n)) for n, number in enumerate(numbers)}
        assert {e.number: e.message for e in entries} == said_by

    async def test_an_inbox_is_bounded(self, stores: Stores) -> None:
        """The error names limit and value; each delivered message makes room for another."""
        claimed = await begin(stores)
        await leave(stores, *map(str, range(INBOX_LIMIT)))
        with refuses(LimitExceeded, limit="inbox", value=INBOX_LIMIT):
            await leave(stores, "too much")
        assert await head_of(stores) == InboxHead(last=INBOX_LIMIT, waiting=INBOX_LIMIT)
        await commit(stores, claimed, [says("7")], delivered=[8])
        await leave(stores, "fits")
        assert (await numbers_of(stores))[-1] == INBOX_LIMIT + 1

    async def test_one_actor_does_not_fill_the_inbox_of_another(self, stores: Stores) -> None:
        """Without an owner any actor may leave a message; each has a limit of its own."""
        for n in range(INBOX_LIMIT):
            await stores.journal.post(CONTEXT, EntryKind.STEER, user(f"{n}"), actor_id="mallory")
        with pytest.raises(LimitExceeded):
            await stores.journal.post(CONTEXT, EntryKind.STEER, user("more"), actor_id="mallory")
        await stores.journal.post(CONTEXT, EntryKind.STEER, user("hello"), actor_id="ada")
        await stores.journal.post(CONTEXT, EntryKind.STEER, user("hello"))
        assert (await head_of(stores)).waiting == INBOX_LIMIT + 2

    # --- who may post ---

    async def test_a_turn_hears_its_own_actor_only(self, stores: Stores) -> None:
        """`None` is an identity too; a turn whose process died still has its actor."""
        for actor, others in (("u1", ("u2", None, "")), (None, ("u1", ""))):
            for ttl_s in (3600.0, 0.0):
                context_id = f"{actor}-{ttl_s:.0f}"
                await begin(stores, context_id=context_id, actor_id=actor, ttl_s=ttl_s)
                for other in others:
                    with pytest.raises(AccessDenied):
                        await stores.journal.post(context_id, _STEER, user("x"), actor_id=other)
                assert await numbers_of(stores, context_id) == []
                post = stores.journal.post(context_id, _STEER, user("x"), actor_id=actor)
                assert await post == 1

    async def test_the_actor_of_the_turn_counts_and_not_the_owner(self, stores: Stores) -> None:
        """Its actor counts while a turn is open; between turns the owner, if there is one."""
        for actor in (None, "u1"):
            assert await stores.journal.post(CONTEXT, _FOLLOW_UP, user("x"), actor_id="u9")
            claimed = await begin(stores, actor_id=actor)
            await commit(stores, claimed, [ends()], release=True)
        for actor in ("u9", None):
            with pytest.raises(AccessDenied):
                await stores.journal.post(CONTEXT, _FOLLOW_UP, user("x"), actor_id=actor)
        assert await stores.journal.post(CONTEXT, _FOLLOW_UP, user("x"), actor_id="u1") == 3
        await begin(stores, actor_id="u2")
        with pytest.raises(AccessDenied):
            await stores.journal.post(CONTEXT, _FOLLOW_UP, user("x"), actor_id="u1")
        assert await stores.journal.post(CONTEXT, _FOLLOW_UP, user("x"), actor_id="u2") == 4

    async def test_a_message_may_be_meant_for_one_turn(self, stores: Stores) -> None:
        """If another turn is open, or no turn, it is not posted; the error names the open one."""

        async def post(turn: int) -> int:
            return await stores.journal.post(CONTEXT, _STEER, user("x"), expected_turn=turn)

        with refuses(TurnMismatch, expected=1, actual=None):
            await post(1)
        assert await stores.state.load(CONTEXT) is None
        await a_turn(stores)
        claimed = await begin(stores)
        for turn in (1, 3, 0, 2**70):
            with refuses(TurnMismatch, expected=turn, actual=2):
                await post(turn)
        assert await post(2) == 1
        await commit(stores, claimed, [ends()], release=True)
        with refuses(TurnMismatch, expected=2, actual=None):
            await post(2)
        assert await head_of(stores) == InboxHead(last=1, waiting=1)

    async def test_a_message_with_a_key_is_posted_once(self, stores: Stores) -> None:
        """By many at once too; the key leads to its turn, and turns and messages share the keys."""
        journal = stores.journal
        claimed = await begin(stores, key="turn", input_hash="h0")

        async def post(key: str | None = "k", **others: Any) -> int:
            named = {"key": key, "input_hash": "h1", "expected_turn": 1, **others}
            return await journal.post(CONTEXT, _STEER, user("x"), **named)

        numbers = await asyncio.gather(*(post() for _ in range(5)))
        assert sorted(numbers) == [0, 0, 0, 0, 1]
        assert await post("turn") == 0
        assert await post("other") == 2
        assert await head_of(stores) == InboxHead(last=2, waiting=2)
        assert await journal.turn_of_key(CONTEXT, "k") == (1, "h1")
        assert await journal.turn_of_key(CONTEXT, "turn") == (1, "h0")
        for wrong in ({"expected_turn": None}, {"input_hash": None}, {"key": ""}, {"key": None}):
            with pytest.raises(ValueRefused):
                await post(**wrong)
        with pytest.raises(TurnMismatch):
            await post("new", expected_turn=2)
        assert await journal.turn_of_key(CONTEXT, "new") is None
        taken = [says("x"), says("x")]
        await commit(stores, claimed, [*taken, ends()], delivered=(1, 2), release=True)
        with pytest.raises(StoreConflict):  # as a second turn with a key of a turn
            await begin(stores, key="k", input_hash="h1")

    async def test_a_stranger_learns_nothing_but_that(self, stores: Stores) -> None:
        """The store checks the actor first: another actor gets `AccessDenied` only."""
        await begin(stores, actor_id="u1")
        with pytest.raises(AccessDenied):
            await stores.journal.post(CONTEXT, _STEER, user("x"), expected_turn=7)

    # --- stopping ---

    async def test_the_open_turn_can_be_asked_to_stop(self, stores: Stores) -> None:
        """The next commit and each read of the inbox report the request, and it delays the end."""
        claimed = await begin(stores)
        assert await stores.journal.ask_cancel(CONTEXT) == 1
        asked = InboxHead(last=1, cancel_turn=1)
        assert await head_of(stores) == asked
        done = await commit(stores, claimed, [said(answer("hm", _CALL)), starts(_CALL)])
        assert done.inbox == asked
        assert await news_of(stores, claimed, 0) == asked
        assert await stores.journal.ask_cancel(CONTEXT, 1) == 1
        assert await news_of(stores, claimed, 1) == InboxHead(last=2, cancel_turn=1)
        group: Sequence[AgentEvent] = [*finishes(_CALL, "never mind"), ends()]
        done = await commit(stores, claimed, group, assistant_position=2, heard=2, release=True)
        assert done.inbox == InboxHead(last=2)

    async def test_the_wish_ends_with_its_turn(self, stores: Stores) -> None:
        """The request does not stop the next turn."""
        claimed = await begin(stores)
        await stores.journal.ask_cancel(CONTEXT, 1)
        await commit(stores, claimed, [ends()], release=True)
        assert await head_of(stores) == InboxHead(last=1)
        assert (await begin(stores)).inbox == InboxHead(last=1)

    async def test_a_cancel_request_outlives_the_process_of_the_turn(self, stores: Stores) -> None:
        """The request is for the turn, not for its process."""
        await begin(stores, ttl_s=0)
        await stores.journal.ask_cancel(CONTEXT)
        taken = await begin(stores, holder="h2", recover=True)
        assert taken.inbox == InboxHead(last=1, cancel_turn=1)

    async def test_only_the_turn_that_was_meant_is_asked(self, stores: Stores) -> None:
        """If that turn is not open, nothing is written."""
        claimed = await begin(stores)
        before = await stores.state.load(CONTEXT)
        for turn in (0, 2, -1, 2**70):
            assert await stores.journal.ask_cancel(CONTEXT, turn) is None
        assert await stores.state.load(CONTEXT) == before
        await commit(stores, claimed, [ends()], release=True)
        before = await stores.state.load(CONTEXT)
        for meant in (None, 1):
            assert await stores.journal.ask_cancel(CONTEXT, meant) is None
        assert await stores.state.load(CONTEXT) == before

    # --- clearing and deleting ---

    async def test_clearing_empties_the_inbox(self, stores: Stores) -> None:
        """It deletes the messages and the request to stop; numbers continue."""
        await begin(stores)
        await leave(stores, "a", "b")
        await stores.journal.ask_cancel(CONTEXT)
        await stores.journal.clear(CONTEXT, force=True)
        assert await stores.journal.inbox(CONTEXT) == (InboxHead(last=3), [])
        await leave(stores, "c")
        assert await head_of(stores) == InboxHead(last=4, waiting=1)
        await stores.journal.clear(CONTEXT)
        assert await head_of(stores) == InboxHead(last=4)

    async def test_appending_leaves_the_inbox_alone(self, stores: Stores) -> None:
        """Appended messages are not inbox messages."""
        await leave(stores, "a")
        await stores.messages.append(CONTEXT, [user("b")])
        assert await head_of(stores) == InboxHead(last=1, waiting=1)

    async def test_deleting_leaves_nothing_in_the_inbox(self, stores: Stores) -> None:
        """A new context with the same id begins with an empty inbox and number 1."""
        await begin(stores, ttl_s=0)
        await leave(stores, "a")
        await stores.journal.ask_cancel(CONTEXT)
        await stores.state.delete(CONTEXT)
        assert await stores.journal.inbox(CONTEXT) == (InboxHead(), [])
        await leave(stores, "b")
        assert await head_of(stores) == InboxHead(last=1, waiting=1)

    async def test_another_tenant_neither_sees_nor_fills_the_inbox(self, stores: Stores) -> None:
        """The same id is another context for another tenant."""
        await begin(stores, actor_id="u1")
        await stores.journal.post(CONTEXT, _STEER, user("mine"), actor_id="u1")
        other = stores.for_tenant("other")
        assert await other.journal.inbox(CONTEXT) == (InboxHead(), [])
        assert await other.journal.ask_cancel(CONTEXT, 1) is None
        assert await other.state.list() == []
        assert await other.journal.post(CONTEXT, _STEER, user("theirs")) == 1
        await other.state.claim(a_claim(0, text=None, events=opening("x"), delivered=[1]))
        assert await other.journal.ask_cancel(CONTEXT) == 1
        assert await head_of(stores) == InboxHead(last=1, waiting=1)
        await other.journal.clear(CONTEXT, force=True)
        assert await numbers_of(stores) == [1]

    # --- notifier ---

    async def test_listeners_are_notified_of_changes(self, stores: Stores) -> None:
        """
        A listener is notified once the change can be read; a step within a turn may notify without
        news for the inbox, and a notification may come without a change.
        """
        rung: list[bool] = []

        def since() -> set[bool]:
            heard = set(rung)
            rung.clear()
            return heard

        with stores.journal.notifier.listen(stores.tenant, CONTEXT, rung.append):
            claimed = await begin(stores)
            assert since()
            await leave(stores, "a")
            assert True in since()
            await commit(stores, claimed, [says("a")], delivered=[1])
            assert since()
            await stores.journal.ask_cancel(CONTEXT)
            assert True in since()
            await commit(stores, claimed, [ends()])
            assert True in since()
            await stores.state.release(CONTEXT, claimed.epoch)
            assert True in since()
            await stores.journal.clear(CONTEXT)
            assert True in since()
        await leave(stores, "b")
        assert not since()
