"""The contract of contexts that work for others; see `looopy.testing.stores`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from looopy.errors import AgentBusy, Fenced, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.contexts.erasing import Erased
from looopy.stores.records import Claimed
from looopy.testing.contracts.restore import exported, imported
from looopy.testing.contracts.turns import (
    Contract,
    answer,
    at_once,
    begin,
    commit,
    ends,
    needing,
    record_of,
    refuses,
    said,
    waiting_for_approval,
)
from looopy.types.event import AgentEvent
from looopy.types.message import StopReason

OUTER, INNER, INMOST, OTHER = "outer", "outer:a:1", "outer:a:1:b:2", "outer:a:9"
KEYS = [f"{n:032x}" for n in range(9)]
SOON = timedelta(0)


async def turn(
    stores: Stores, name: str, actor: str | None = "ann", *, close: bool = True, **others: Any
) -> Claimed:
    """A turn on a context, which ends only if *close*."""
    given = {"text": f"words of {actor}", "actor_id": actor, "context_id": name, **others}
    claimed = await begin(stores, **given)
    if close:
        end: list[AgentEvent] = [said(answer("so"), context_id=name), ends(context_id=name)]
        await commit(stores, claimed, end, context_id=name, release=True)
    return claimed


async def enclose(stores: Stores, name: str, outer: str, key: int = 0, **others: Any) -> str:
    """Make a context that works for a call of *outer*, in the outer one's present epoch."""
    epoch = (await record_of(stores, outer)).epoch
    given = {"outer": outer, "call": KEYS[key], "epoch": epoch, **others}
    return await stores.contexts.enclose(name, **given)


async def a_family(stores: Stores, actor: str | None = "ann", inner: str | None = "ann") -> None:
    """A context, one that works for it, one that works for that, and one that pretends to."""
    await turn(stores, OUTER, actor)
    assert await enclose(stores, INNER, OUTER) == INNER
    await turn(stores, INNER, inner)
    assert await enclose(stores, INMOST, INNER) == INMOST
    await turn(stores, INMOST, inner)
    await turn(stores, OTHER, "eve", metadata={"works_for": f"{OUTER}/1/c1"})


async def names(stores: Stores) -> list[str]:
    """The contexts of the tenant."""
    return [record.context_id for record in await stores.state.list()]


class InnerContextContract(Contract):
    """A context that works for another one goes with it, and cannot work for a third."""

    needs = ("contexts.enclose",)

    async def test_each_call_has_one(self, stores: Stores) -> None:
        """The one that was made for it first; it begins like any other."""
        await turn(stores, OUTER)
        assert await enclose(stores, INNER, OUTER) == INNER
        assert await enclose(stores, OTHER, OUTER) == INNER
        assert await enclose(stores, INNER, OUTER) == INNER
        assert await enclose(stores, OTHER, OUTER, 1) == OTHER
        assert await stores.contexts.inner(OUTER) == [INNER, OTHER]
        assert await stores.contexts.inner(OUTER, call=KEYS[1]) == [OTHER]
        assert await stores.contexts.inner(OUTER, call=KEYS[2]) == []
        assert await stores.contexts.inner("nobody") == await stores.contexts.inner(INNER) == []
        assert (await turn(stores, INNER)).turn == 1
        assert await stores.contexts.inner(OUTER) == [INNER, OTHER]

    async def test_two_processes_make_one(self, stores: Stores) -> None:
        """Both get the same one."""
        await turn(stores, OUTER)
        made = await at_once(*(enclose(stores, INNER, OUTER) for _ in range(4)))
        assert (set(made), await names(stores)) == ({INNER}, [OUTER, INNER])

    @needing("contexts.erase")
    async def test_only_the_owner_of_a_turn_makes_one(self, stores: Stores) -> None:
        """A process that was displaced, or whose context is gone, writes nothing."""
        await turn(stores, OUTER)
        record = await record_of(stores, OUTER)
        await turn(stores, OUTER)
        with refuses(Fenced):
            await enclose(stores, INNER, OUTER, epoch=record.epoch)
        record = await record_of(stores, OUTER)
        await stores.contexts.erase(OUTER)
        with refuses(Fenced):
            await stores.contexts.enclose(INNER, outer=OUTER, call=KEYS[0], epoch=record.epoch)
        assert await names(stores) == []

    @needing("contexts.erase")
    async def test_a_context_that_exists_is_left_alone(self, stores: Stores) -> None:
        """It may be another actor's: it is returned, and nothing goes with the other one."""
        await turn(stores, OUTER)
        await turn(stores, INNER, "eve", metadata={"works_for": f"{OUTER}/1/c1"})
        assert await enclose(stores, INNER, OUTER) == INNER
        assert await stores.contexts.inner(OUTER) == []
        assert (await stores.contexts.erase(OUTER)).context_ids == (OUTER,)
        assert await names(stores) == [INNER]

    async def test_a_context_cannot_enclose_itself(self, stores: Stores) -> None:
        """Neither at once nor by way of another one."""
        link: dict[str, Any] = {"call": KEYS[0]}
        with refuses(ValueRefused, path="/outer"):
            await stores.contexts.enclose(OUTER, outer=OUTER, **link)
        with refuses(ValueRefused, path="/call"):
            await stores.contexts.enclose(INNER, outer=OUTER, call="c1")
        await stores.contexts.enclose(INNER, outer=OUTER, **link)
        assert await stores.contexts.enclose(OUTER, outer=INNER, **link) == OUTER
        assert await stores.contexts.inner(INNER) == []

    @needing("contexts.erase")
    async def test_they_are_erased_with_the_outer_one(self, stores: Stores) -> None:
        """All of them, from the inside out, whichever person began them; the report counts them."""
        await a_family(stores, inner="bob")
        found = await stores.contexts.erase(OUTER, owner="ann")
        assert found.context_ids == (INMOST, INNER, OUTER)
        assert (found.turns, found.messages) == (3, 6)
        assert await names(stores) == [OTHER]
        assert await stores.contexts.erase(OUTER) == Erased()

    @needing("contexts.erase")
    async def test_an_inner_context_is_erased_alone(self, stores: Stores) -> None:
        """With its inner contexts; the outer one stays, and the call begins again."""
        await a_family(stores)
        assert (await stores.contexts.erase(INNER)).context_ids == (INMOST, INNER)
        assert await names(stores) == [OUTER, OTHER]
        assert await stores.contexts.inner(OUTER) == []
        await turn(stores, INNER, "eve")
        assert (await stores.contexts.erase(OUTER)).context_ids == (OUTER,)

    @needing("contexts.erase")
    async def test_not_for_others(self, stores: Stores) -> None:
        """Neither another owner nor another tenant."""
        await a_family(stores)
        before = await names(stores)
        stranger = stores.for_tenant("stranger").contexts
        assert await stores.contexts.erase(OUTER, owner="eve") == Erased()
        assert await stranger.erase(OUTER) == Erased()
        assert await stranger.inner(OUTER) == []
        with refuses(Fenced):
            epoch = (await record_of(stores, OUTER)).epoch
            await stranger.enclose(OTHER, outer=OUTER, call=KEYS[3], epoch=epoch)
        await stranger.enclose(OTHER, outer=OUTER, call=KEYS[3])
        assert (await stranger.erase(OUTER)).context_ids == (OTHER,)
        assert await names(stores) == before

    @needing("contexts.erase")
    async def test_an_outer_one_that_was_never_saved(self, stores: Stores) -> None:
        """Its turns are in the memory of a process; the words of those inside go all the same."""
        await stores.contexts.enclose(INNER, outer=OUTER, call=KEYS[0])
        await turn(stores, INNER)
        assert await stores.contexts.erase(OUTER, owner="eve") == Erased()
        assert (await stores.contexts.erase(OUTER, owner="ann")).context_ids == (INNER,)

    @needing("contexts.erase", "contexts.erase_person")
    async def test_a_turn_that_runs_inside_refuses_it(self, stores: Stores) -> None:
        """Nothing is gone then; force ends it."""
        await a_family(stores)
        for key, name in enumerate(("outer:x", "outer:y"), start=1):
            await enclose(stores, name, OUTER, key)
        await turn(stores, "outer:y", "bob", close=False)
        before = await names(stores)
        with refuses(AgentBusy):
            await stores.contexts.erase(OUTER)
        with refuses(AgentBusy):
            await stores.contexts.erase_person("ann")
        with refuses(AgentBusy):
            await stores.state.delete(OUTER)
        assert await names(stores) == before
        assert (await stores.contexts.erase(OUTER, force=True)).contexts == 5

    @needing("contexts.erase_person")
    async def test_a_person_takes_them_along(self, stores: Stores) -> None:
        """Inner contexts of the person's contexts, and ones that the person began elsewhere."""
        await a_family(stores, inner=None)
        assert (await stores.contexts.erase_person("ann")).context_ids == (INMOST, INNER, OUTER)
        assert await names(stores) == [OTHER]
        await a_family(stores, actor="bob", inner="ann")
        assert (await stores.contexts.erase_person("ann")).context_ids == (INMOST, INNER)
        assert await names(stores) == [OUTER, OTHER]

    @needing("contexts.erase", "contexts.erase_person")
    async def test_a_guest_inside_is_redacted(self, stores: Stores) -> None:
        """The answers of a guest are turns of the inner context, which is another person's."""
        await a_family(stores)
        await turn(stores, INNER, "guest")
        assert (await stores.contexts.erase_person("guest")).redacted_ids == (INNER,)
        assert [m.text for m in await stores.messages.list(INNER)][2:] == ["[erased]"] * 2
        assert (await stores.contexts.erase(OUTER)).contexts == 3

    async def test_they_are_deleted_with_the_outer_one(self, stores: Stores) -> None:
        """So a context of the same name finds none of them."""
        await a_family(stores)
        await stores.state.delete(OUTER)
        assert await names(stores) == [OTHER]
        await turn(stores, OUTER)
        assert await stores.contexts.inner(OUTER) == []

    @needing("journal.fork", "contexts.erase", "contexts.erase_person")
    async def test_clear_and_redaction_keep_the_link(self, stores: Stores) -> None:
        """They stay until their context is erased. A fork of either has none."""
        await a_family(stores)
        await turn(stores, OUTER, "guest")
        await stores.contexts.erase_person("guest")
        await stores.journal.clear(OUTER)
        await stores.journal.clear(INNER)
        assert await stores.contexts.inner(OUTER) == [INNER]
        await turn(stores, INNER)
        await stores.journal.fork(OUTER, "fork")
        await stores.journal.fork(INNER, "inner-fork")
        assert await stores.contexts.inner("fork") == []
        assert (await stores.contexts.erase(OUTER)).context_ids == (INMOST, INNER, OUTER)
        assert await names(stores) == ["fork", "inner-fork", OTHER]
        assert len(await stores.messages.list("inner-fork")) == 2

    @needing("contexts.retain")
    async def test_retention_takes_all_or_none(self, stores: Stores) -> None:
        """A context is as young as those inside; one inside may go alone, if none works outside."""
        await a_family(stores)
        outer = (await record_of(stores, OUTER)).last_activity
        after = outer + timedelta(microseconds=1)
        told = await stores.contexts.retain(older_than=after, dry_run=True)
        assert (told.context_ids, told.dry_run) == ((), True)
        assert await stores.contexts.retain(older_than=after) == Erased()
        await turn(stores, OUTER, close=False)
        await turn(stores, "plain")
        gone = await stores.contexts.retain(older_than=SOON, larger_than=0)
        assert set(gone.context_ids) == {OTHER, "plain"}

    @needing("contexts.retain")
    async def test_retention_waits_for_the_inside(self, stores: Stores) -> None:
        """A question that waits there keeps all; then they go together, and a dry run says so."""
        await a_family(stores)
        await stores.state.delete(OTHER)
        claimed = await begin(stores, context_id=INMOST)
        end = [ends(StopReason.INPUT_REQUIRED, context_id=INMOST)]
        state = waiting_for_approval(turn=2)
        await commit(stores, claimed, end, context_id=INMOST, state=state, release=True)
        assert await stores.contexts.retain(older_than=SOON) == Erased()
        limits: dict[str, Any] = {"older_than": SOON, "waiting": True}
        told = await stores.contexts.retain(**limits, dry_run=True)
        assert told.context_ids == (INMOST, INNER, OUTER)
        assert (await stores.contexts.retain(**limits)).context_ids == (INMOST, INNER, OUTER)

    @needing("contexts.erase", "contexts.restore")
    async def test_an_archive_takes_them_along(self, stores: Stores) -> None:
        """Under new ids they are new ones, with the same links."""
        await a_family(stores)
        archive = await exported(stores, OUTER)
        found = await imported(stores, archive, new_ids={OUTER: "copy"})
        new = ["copy", "copy:a:1", "copy:a:1:b:2"]
        assert [one.context_id for one in found.contexts] == new
        assert await stores.contexts.inner("copy", call=KEYS[0]) == [new[1]]
        assert await stores.contexts.inner(new[1], call=KEYS[0]) == [new[2]]
        assert await stores.contexts.inner(OUTER) == [INNER]
        assert (await stores.contexts.erase("copy")).contexts == 3
        await stores.contexts.erase(OUTER)
        assert (await imported(stores, archive)).contexts[1].context_id == INNER
        assert await exported(stores, OUTER) == archive

    @needing("contexts.erase", "contexts.restore")
    async def test_an_archive_links_to_nobody_else(self, stores: Stores) -> None:
        """Without the outer context it is an ordinary context, whatever the archive contains."""
        await a_family(stores)
        archive = await exported(stores, INNER)
        with refuses(StoreConflict):
            await imported(stores, archive)
        await stores.contexts.erase(INNER)
        await imported(stores, archive)
        assert await stores.contexts.inner(OUTER) == []
        assert await stores.contexts.inner(INNER) == [INMOST]
        assert (await stores.contexts.erase(OUTER)).context_ids == (OUTER,)
