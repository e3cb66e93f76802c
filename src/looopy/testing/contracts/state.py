"""The contract of a `StateStore`; see `looopy.testing.stores`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from looopy.errors import AgentBusy, ContextNotFound, Fenced, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed, ContextState
from looopy.testing import hostile
from looopy.testing.contracts.turns import (
    CONTEXT,
    LONG_S,
    WHEN,
    Contract,
    a_claim,
    a_turn,
    answer,
    at_once,
    begin,
    commit,
    ends,
    finishes,
    for_each,
    needing,
    numbers,
    opening,
    record_of,
    refuses,
    said,
    starts,
    user,
)
from looopy.types.auth import AuthRequest
from looopy.types.event import TurnStart
from looopy.types.message import Cost, StopReason, ToolCall, Usage
from looopy.types.state import AgentStatus, HeldCall, PendingKind, PendingRequest

STATE = ContextState(
    pending=(
        PendingRequest(
            request_id="r1",
            kind=PendingKind.INPUT,
            tool_name="ask",
            args={"b": 1, "a": [2.5]},
            tool_call_id="c1",
            turn=1,
            prompt="Which one?",
            schema={"type": "string"},
            options=("x", {"y": 1}),
            expires_at=WHEN,
            auth=AuthRequest(
                type="oauth2",
                scopes=("read",),
                authorization_endpoint="https://id.example/authorize",
                client_id="c1",
                code_challenge="x",
                key={"kty": "EC"},
                request_id="r1",
            ),
        ),
    ),
    answered=(
        (
            PendingRequest(
                request_id="r0",
                kind=PendingKind.APPROVAL,
                tool_name="ask",
                args={},
                tool_call_id="c1",
                turn=1,
            ),
            {"yes": [True, None]},
        ),
    ),
    held=(
        HeldCall(
            tool_call_id="c1",
            origin=1,
            asked_in=2,
            keys={"r1": "Which one?"},
            state={"so far": [1, None]},
            sealed={"r1": "a.b.c"},
            bound="ab12",
            died=True,
        ),
    ),
    error=("RateLimited", "too many"),
    resumable=1,
    usage=Usage(input=5, output=2, total_tokens=7, cost=Cost(input=0.25, total=0.25)),
    output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    charged=Usage(input=2, output=1, total_tokens=3),
    run_us=1_500_000,
)


class StateStoreContract(Contract):
    """Contexts, their metadata, and who may write to them."""

    # --- metadata ---

    async def test_loading_an_unknown_context_returns_none(self, stores: Stores) -> None:
        """`load` returns `None` and creates nothing."""
        for context_id in ("nobody", "", "no id"):
            assert await stores.state.load(context_id) is None
        assert await stores.state.list() == []

    async def test_saving_creates_and_raises_the_version(self, stores: Stores) -> None:
        """Version 0 means no metadata so far, also without a context; each save raises it by 1."""
        assert await stores.state.save(CONTEXT, {"b": 1, "a": [None]}, version=0) == 1
        assert await stores.state.save(CONTEXT, {"b": 2}, version=1) == 2
        found = await record_of(stores)
        assert (found.version, found.metadata, found.epoch, found.turn_count) == (2, {"b": 2}, 0, 0)

    async def test_saving_over_another_writer_is_a_conflict(self, stores: Stores) -> None:
        """Nothing is written; the error has the actual version."""
        with refuses(StoreConflict, expected=3, actual=0):
            await stores.state.save(CONTEXT, {}, version=3)
        assert await stores.state.load(CONTEXT) is None
        await stores.state.save(CONTEXT, {"mine": 1}, version=0)
        for version in (0, 2, -1):
            with refuses(StoreConflict, expected=version, actual=1):
                await stores.state.save(CONTEXT, {"other": 1}, version=version)
        found = await record_of(stores)
        assert found.metadata == {"mine": 1}

    async def test_a_context_with_messages_alone_can_get_metadata(self, stores: Stores) -> None:
        """Its metadata has version 0."""
        await stores.messages.append(CONTEXT, [user("a")])
        assert await stores.state.save(CONTEXT, {"k": "v"}, version=0) == 1
        assert await stores.messages.count(CONTEXT) == 1

    @for_each(hostile.KEPT)
    async def test_odd_metadata_is_kept(self, stores: Stores, name: str) -> None:
        """Numbers, key order and depth survive."""
        value = {"v": hostile.KEPT[name]}
        await stores.state.save(CONTEXT, value, version=0)
        found = await record_of(stores)
        assert json.dumps(found.metadata) == json.dumps(value)

    @for_each(hostile.REFUSED)
    async def test_metadata_that_cannot_be_kept_is_refused(self, stores: Stores, name: str) -> None:
        """The error has the value's path, and nothing is written."""
        with pytest.raises(ValueRefused) as refused:
            await stores.state.save(CONTEXT, {"v": hostile.REFUSED[name]}, version=0)
        assert (refused.value.path or "").startswith("/metadata/v")
        assert await stores.state.load(CONTEXT) is None

    async def test_contexts_are_listed_by_id_in_pages(self, stores: Stores) -> None:
        """After an id, in order of code points, at most a limit."""
        names = ["b", "a", "Z", "a.b", "10", "9", "_", "a-b", "a:b"]
        for name in names:
            await stores.state.save(name, {}, version=0)
        names = sorted(names)
        assert [c.context_id for c in await stores.state.list()] == names
        assert [c.context_id for c in await stores.state.list(limit=2)] == names[:2]
        assert [c.context_id for c in await stores.state.list(after="a", limit=2)] == ["a-b", "a.b"]
        assert await stores.state.list(after="zz") == []
        assert await stores.state.list(limit=0) == []
        for after in ("a\0", "a\ud800", "é", "a%", "a'b"):
            expected = [name for name in names if name > after]
            assert [c.context_id for c in await stores.state.list(after=after)] == expected

    @for_each([-1, 1.5, True, "5"])
    async def test_an_invalid_limit_is_refused(self, stores: Stores, limit: Any) -> None:
        """A negative limit, a fraction, a truth value or text is refused."""
        await stores.state.save("a", {}, version=0)
        with refuses(ValueRefused, path="/limit"):
            await stores.state.list(limit=limit)

    @for_each(["a\0b", "\ud800", "x" * 513, "漢" * 171, 7])
    async def test_an_invalid_actor_claims_nothing(self, stores: Stores, actor_id: Any) -> None:
        """NUL, a lone surrogate, another type, or more than 512 bytes: nothing is written."""
        with refuses(ValueRefused, path="/actor_id"):
            await begin(stores, actor_id=actor_id)
        assert await stores.state.load(CONTEXT) is None
        longest = "漢" * 170 + "ab"
        await begin(stores, actor_id=longest)
        (turn,) = await stores.journal.turns(CONTEXT)
        assert turn.actor_id == longest

    async def test_times_are_aware_and_move_on(self, stores: Stores) -> None:
        """A context has the time of its creation and of its last use."""
        earliest = datetime.now(UTC) - timedelta(seconds=5)
        await stores.messages.append(CONTEXT, [user("a")])
        first = await record_of(stores)
        await stores.messages.append(CONTEXT, [user("b")])
        second = await record_of(stores)
        assert earliest < first.created_at == second.created_at
        assert first.created_at <= first.last_activity <= second.last_activity
        assert second.last_activity < datetime.now(UTC) + timedelta(seconds=5)

    # --- deleting ---

    async def test_deleting_leaves_nothing_behind(self, stores: Stores) -> None:
        """Messages, artifacts, turns and events are deleted; a new context may use the id."""
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "doc", b"x")
        await stores.state.delete(CONTEXT)
        assert await stores.state.load(CONTEXT) is None
        assert await stores.messages.list(CONTEXT) == []
        assert await stores.artifacts.list(CONTEXT) == []
        assert await stores.journal.turns(CONTEXT) == []
        assert await stores.journal.events(CONTEXT) == []
        claimed = await begin(stores)
        assert numbers(claimed) == (1, 1, 1)

    async def test_deleting_an_unknown_context_is_not_found(self, stores: Stores) -> None:
        """An unknown or invalid id raises `ContextNotFound`, which is a `KeyError` too."""
        for context_id in ("nobody", "no id"):
            with pytest.raises(ContextNotFound) as missing:
                await stores.state.delete(context_id)
            assert isinstance(missing.value, KeyError)

    async def test_a_running_turn_keeps_its_context(self, stores: Stores) -> None:
        """Deleting under a live lease is refused and names the turn; a dead turn is deleted too."""
        await begin(stores, context_id="live")
        with refuses(AgentBusy, turn=1):
            await stores.state.delete("live")
        await begin(stores, context_id="dead", ttl_s=0)
        await stores.state.delete("dead")
        assert [c.context_id for c in await stores.state.list()] == ["live"]

    async def test_a_stale_owner_cannot_bring_a_deleted_context_back(self, stores: Stores) -> None:
        """Its commits are fenced."""
        claimed = await begin(stores, ttl_s=0)
        await stores.state.delete(CONTEXT)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [ends()])
        assert await stores.state.load(CONTEXT) is None

    # --- claims ---

    async def test_a_claim_begins_the_turn(self, stores: Stores) -> None:
        """A claim returns epoch, turn and numbers; the user message and the turn are stored."""
        await stores.messages.append(CONTEXT, [user("before")])
        before = await record_of(stores)
        claimed = await begin(
            stores, actor_id="u1", had_auth=True, metadata={"k": [1]}, state=STATE
        )
        assert claimed.epoch > before.epoch
        assert numbers(claimed) == (1, 2, 2)
        found = await record_of(stores)
        assert found.epoch == claimed.epoch
        assert (found.turn_count, found.last_position, found.last_seq) == (1, 2, 3)
        assert (found.holder, found.lease_live, found.owner_actor) == ("holder-1", True, "u1")
        assert found.state == STATE
        turn = found.open_turn
        assert turn is not None
        assert (turn.turn, turn.continues, turn.actor_id, turn.had_auth) == (1, None, "u1", True)
        assert (turn.outcome, turn.stop_reason, turn.end_seq, turn.ended_at) == (None,) * 4
        assert (turn.start_seq, turn.first_position, turn.last_position) == (2, 2, 1)
        assert (turn.started_at, turn.metadata) == (WHEN, {"k": [1]})
        assert await stores.messages.list(CONTEXT, after=1) == [user("hello")]

    async def test_a_claim_without_a_state_leaves_the_stored_one(self, stores: Stores) -> None:
        """`None` is not an empty state."""
        first = await stores.state.claim(a_claim(0, state=STATE))
        await commit(stores, first, [ends()], release=True)
        await begin(stores)
        found = await record_of(stores)
        assert found.state == STATE

    async def test_the_owner_is_the_actor_of_the_first_turn(self, stores: Stores) -> None:
        """Later actors do not change the owner, and anonymous turns do not count."""
        for actor in (None, "u1", "u2"):
            claimed = await begin(stores, actor_id=actor)
            await commit(stores, claimed, [ends()], release=True)
        found = await record_of(stores)
        assert found.owner_actor == "u1"
        turns = await stores.journal.turns(CONTEXT)
        assert [t.actor_id for t in turns] == [None, "u1", "u2"]

    async def test_a_live_lease_is_refused_naming_its_turn(self, stores: Stores) -> None:
        """The claim is refused even with the current epoch, and nothing is written."""
        claimed = await begin(stores)
        before = await stores.state.load(CONTEXT)
        for expected in (0, claimed.epoch):
            for recover in (False, True):
                with refuses(AgentBusy, turn=1):
                    await begin(stores, expected, holder="holder-2", recover=recover)
        assert await stores.state.load(CONTEXT) == before

    async def test_one_of_two_claimers_wins(self, stores: Stores) -> None:
        """At most one turn advances a context, also when all try at once."""

        async def attempt(n: int) -> Claimed | None:
            try:
                return await begin(stores, text=str(n), holder=f"holder-{n}")
            except (AgentBusy, StoreConflict):
                return None

        tried = await at_once(*map(attempt, range(16)))
        (won,) = [n for n, claimed in enumerate(tried) if claimed is not None]
        assert await stores.messages.list(CONTEXT) == [user(str(won))]

    async def test_a_stale_epoch_is_a_conflict(self, stores: Stores) -> None:
        """A claimer must have read the newest state; the error has the actual epoch."""
        claimed = await a_turn(stores)
        for expected in (0, claimed.epoch + 1, -1):
            with refuses(StoreConflict, expected=expected, actual=claimed.epoch):
                await begin(stores, expected, text="stale")
        with refuses(StoreConflict, expected=3, actual=0):
            await begin(stores, 3, context_id="new")
        assert await stores.state.load("new") is None

    async def test_an_open_turn_must_be_recovered_first(self, stores: Stores) -> None:
        """A claim may not skip a dead turn; without an open turn it may not recover."""
        claimed = await begin(stores, ttl_s=0)
        with pytest.raises(StoreConflict):
            await begin(stores, claimed.epoch, text="skip it")
        with pytest.raises(StoreConflict):
            await begin(stores, 0, context_id="new", recover=True)
        taken = await begin(stores, claimed.epoch, holder="holder-2", recover=True)
        assert taken == Claimed(epoch=taken.epoch, turn=1, first_seq=3, first_position=2)
        assert taken.epoch > claimed.epoch
        await commit(stores, taken, [ends(StopReason.INTERRUPTED)], release=True)
        with pytest.raises(StoreConflict):
            await begin(stores, taken.epoch, recover=True)
        found = await record_of(stores)
        assert (found.turn_count, found.open_turn, found.epoch) == (1, None, taken.epoch)

    async def test_a_holder_that_is_proved_dead_is_displaced(self, stores: Stores) -> None:
        """A claim that names the holder takes over its live lease; another name does not."""
        claimed = await begin(stores, holder="dead")
        with pytest.raises(AgentBusy):
            await begin(stores, claimed.epoch, holder="h2", displace="other", recover=True)
        taken = await begin(stores, claimed.epoch, holder="h2", displace="dead", recover=True)
        assert taken.epoch > claimed.epoch
        with pytest.raises(Fenced):
            await commit(stores, claimed, [said(answer("too late")), ends()])
        assert not await stores.state.renew(CONTEXT, claimed.epoch, LONG_S)
        await stores.state.release(CONTEXT, claimed.epoch)
        found = await record_of(stores)
        assert (found.holder, found.lease_live) == ("h2", True)

    async def test_a_turn_keeps_the_names_of_its_processes(self, stores: Stores) -> None:
        """The one that ran it, and the last one that took it over; a turn may have no name."""
        claimed = await begin(stores, ttl_s=0)
        (started, *_) = await stores.journal.events(CONTEXT)
        assert isinstance(started, TurnStart)
        assert started.process == "1-a"
        for name in ("2-b", "3-c"):
            claimed = await begin(stores, claimed.epoch, recover=True, ttl_s=0, process=name)
            turn = (await record_of(stores)).open_turn
            assert turn is not None
            assert (turn.process, turn.recovered_by) == ("1-a", name)
        await commit(stores, claimed, [ends(StopReason.INTERRUPTED)], release=True)
        claimed = await begin(stores, process=None)
        await commit(stores, claimed, [ends()], release=True)
        turns = await stores.journal.turns(CONTEXT)
        assert [(t.process, t.recovered_by) for t in turns] == [("1-a", "3-c"), (None, None)]

    @for_each(["a\0b", "x" * 513])
    async def test_a_process_has_a_name_that_can_be_stored(self, stores: Stores, name: str) -> None:
        """It has at most 512 bytes; a claim with another name writes nothing."""
        with refuses(ValueRefused, path="/process"):
            await begin(stores, process=name)
        assert await stores.state.load(CONTEXT) is None

    async def test_a_refused_claim_writes_nothing(self, stores: Stores) -> None:
        """A value that cannot be stored leaves no context, no turn and no lease."""
        with pytest.raises(ValueRefused):
            await begin(stores, text="a\0b")
        with pytest.raises(ValueRefused):
            await begin(stores, metadata={"k": float("nan")})
        with pytest.raises(ValueRefused):
            await begin(stores, context_id="no id")
        assert await stores.state.list() == []

    async def test_a_turn_may_begin_without_a_message(self, stores: Stores) -> None:
        """A turn that continues another one needs no user message."""
        await a_turn(stores)
        events = opening(None, continues=1)
        epoch = (await record_of(stores)).epoch
        claimed = await stores.state.claim(a_claim(epoch, text=None, events=events))
        assert numbers(claimed) == (2, 5, 3)
        found = await record_of(stores)
        assert found.open_turn is not None
        assert found.open_turn.continues == 1

    async def test_a_turn_may_begin_with_answers_before_its_message(self, stores: Stores) -> None:
        """Results for open calls come first; `turn_start` still shows the user's message."""
        call = ToolCall("c1", "t")
        first = await begin(stores)
        await commit(stores, first, [said(answer("", call)), starts(call)])
        await commit(stores, first, [ends(StopReason.INTERRUPTED)], release=True)
        start, message = opening("and now?")
        events = [start, *finishes(call, "unknown", iteration=0), message]
        epoch = (await record_of(stores)).epoch
        await stores.state.claim(a_claim(epoch, text=None, events=events))
        shown = await stores.journal.events(CONTEXT, after=5)
        assert shown[0].type == "turn_start"
        assert getattr(shown[0], "user_message", None) == user("and now?")
        assert [e.type for e in shown[1:]] == ["tool_execution_end", "message_end", "message_end"]

    async def test_renewing_prolongs_the_lease_of_its_epoch(self, stores: Stores) -> None:
        """It revives an expired lease that was not taken; another epoch is refused."""
        claimed = await begin(stores, ttl_s=0)
        found = await record_of(stores)
        assert not found.lease_live
        assert await stores.state.renew(CONTEXT, claimed.epoch, LONG_S)
        found = await record_of(stores)
        assert found.lease_live
        assert not await stores.state.renew(CONTEXT, claimed.epoch + 1, LONG_S)
        assert not await stores.state.renew(CONTEXT, claimed.epoch - 1, LONG_S)
        assert not await stores.state.renew("nobody", 1, LONG_S)

    async def test_a_lease_takes_an_epoch_and_a_time(self, stores: Stores) -> None:
        """The error names the argument, and nothing has changed."""
        claimed, state = await begin(stores), stores.state
        for bad in ("1", None, True, 1.5, 10**400):
            with refuses(ValueRefused, path="/epoch"):
                await state.renew(CONTEXT, bad, LONG_S)  # type: ignore[arg-type] # on purpose
            with refuses(ValueRefused, path="/epoch"):
                await state.release(CONTEXT, bad)  # type: ignore[arg-type] # as above
        for time in ("60", None, True, -1, float("nan"), -float("inf")):
            with refuses(ValueRefused, path="/ttl_s"):
                await state.renew(CONTEXT, claimed.epoch, time)  # type: ignore[arg-type] # as above
        assert await state.renew(CONTEXT, claimed.epoch, float("inf"))
        assert (await record_of(stores)).lease_live

    async def test_each_renewal_and_commit_moves_the_end_of_the_lease(self, stores: Stores) -> None:
        """Each renewal and commit moves `lease_until`, so a watcher sees that the owner lives."""
        claimed = await begin(stores, ttl_s=0)
        seen = [await stores.state.load(CONTEXT), await stores.state.load(CONTEXT)]
        await stores.state.renew(CONTEXT, claimed.epoch, 0)
        seen.append(await stores.state.load(CONTEXT))
        await commit(stores, claimed, [said(answer("late"))], ttl_s=0)
        seen.append(await stores.state.load(CONTEXT))
        assert [found.lease_live for found in seen if found] == [False] * 4
        until = [found.lease_until for found in seen if found]
        assert until[0] == until[1] < until[2] < until[3]

    @needing("state.leave")
    async def test_note_of_how_an_agent_was_left_ends_with_the_next_turn(
        self, stores: Stores
    ) -> None:
        """It is no activity, and another epoch, an open turn or a wrong status leave none."""
        state = stores.state
        claimed = await begin(stores)
        await commit(stores, claimed, [ends()], state=ContextState(run_us=7), release=True)
        before = await record_of(stores)
        for bad in (AgentStatus.BUSY, "asleep"):
            with pytest.raises(ValueRefused) as refused:
                await state.leave(CONTEXT, claimed.epoch, bad)  # type: ignore[arg-type] # as above
            assert refused.value.path == "/status"
        await state.leave(CONTEXT, claimed.epoch + 1, AgentStatus.PAUSED)
        await state.leave("nobody", 1, AgentStatus.PAUSED)
        assert await record_of(stores) == before
        for status in (AgentStatus.PAUSED, AgentStatus.SHUTDOWN, AgentStatus.READY):
            await state.leave(CONTEXT, claimed.epoch, status)
            noted = None if status is AgentStatus.READY else status
            found = await record_of(stores)
            assert found == replace(before, state=ContextState(run_us=7, left_as=noted))
        await state.leave(CONTEXT, claimed.epoch, AgentStatus.PAUSED)
        claimed = await begin(stores, claimed.epoch, state=ContextState())
        assert (await record_of(stores)).state.left_as is None
        before = await record_of(stores)
        await state.leave(CONTEXT, claimed.epoch, AgentStatus.PAUSED)
        assert await record_of(stores) == before
        assert before.lease_live

    async def test_releasing_frees_the_lease_of_its_epoch(self, stores: Stores) -> None:
        """Another epoch changes nothing; under a released lease, renewal and commit are refused."""
        claimed = await begin(stores)
        await stores.state.release(CONTEXT, claimed.epoch + 1)
        found = await record_of(stores)
        assert found.lease_live
        await stores.state.release(CONTEXT, claimed.epoch)
        await stores.state.release("nobody", 1)
        found = await record_of(stores)
        assert (found.holder, found.lease_live, found.epoch) == (None, False, claimed.epoch)
        assert not await stores.state.renew(CONTEXT, claimed.epoch, LONG_S)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [ends()])
        taken = await begin(stores, claimed.epoch, holder="h2", recover=True)
        assert taken.epoch > claimed.epoch

    async def test_another_tenant_can_neither_see_nor_touch(self, stores: Stores) -> None:
        """For every method, another tenant's context is the same as an unknown one."""
        other = stores.for_tenant("other")
        claimed = await begin(stores)
        await stores.state.save(CONTEXT, {"mine": 1}, version=0)
        before = await stores.state.load(CONTEXT)
        assert await other.state.load(CONTEXT) is None
        assert await other.state.list() == []
        with pytest.raises(ContextNotFound):
            await other.state.delete(CONTEXT)
        with pytest.raises(ContextNotFound):
            await other.journal.clear(CONTEXT, force=True)
        with pytest.raises(Fenced):
            await commit(other, claimed, [ends()])
        assert not await other.state.renew(CONTEXT, claimed.epoch, LONG_S)
        await other.state.release(CONTEXT, claimed.epoch)
        assert await other.journal.events(CONTEXT) == []
        assert await other.journal.turns(CONTEXT) == []
        assert await other.journal.started_calls(CONTEXT, 1) == set()
        with refuses(StoreConflict, actual=0):
            await other.state.save(CONTEXT, {"theirs": 1}, version=1)
        assert await other.state.save(CONTEXT, {"theirs": 1}, version=0) == 1
        assert numbers(await begin(other)) == (1, 1, 1)
        assert await stores.state.load(CONTEXT) == before

    @for_each(["a'b", "a\u2028b", "x" * 300, "*", "%", "default "])
    async def test_odd_tenant_names_are_kept_apart(self, stores: Stores, tenant: str) -> None:
        """Names that a query could read otherwise are just names."""
        other: Any = stores.for_tenant(tenant)
        await other.state.save(CONTEXT, {"t": tenant}, version=0)
        assert await stores.state.list() == []
        assert (await other.state.load(CONTEXT)).metadata == {"t": tenant}
