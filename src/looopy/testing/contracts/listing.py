"""The contract of a `ContextIndex`; see `looopy.testing.stores`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from looopy.errors import AgentBusy, ContextNotFound, LimitExceeded, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed, ContextState, EntryKind, NewSummary
from looopy.testing.contracts.turns import (
    WHEN,
    Contract,
    at_once,
    begin,
    commit,
    ends,
    needing,
    record_of,
    refuses,
    user,
    waiting_for_approval,
)
from looopy.types.message import StopReason
from looopy.types.state import AgentStatus
from looopy.types.summary import summary_message

_LATER = datetime(2999, 1, 1, tzinfo=UTC)
_BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"owner": 7}, "/owner"),
    ({"owner": "nul \0"}, "/owner"),
    ({"status": "asleep"}, "/status"),
    ({"status": "created"}, "/status"),
    ({"tags": "x"}, "/tags"),
    ({"tags": ["x", ""]}, "/tags/1"),
    ({"tags": ["x" * 65]}, "/tags/0"),
    ({"tags": ["a\nb"]}, "/tags/0"),
    ({"metadata": {"k": 1.5}}, "/metadata/k"),
    ({"metadata": {"k": None}}, "/metadata/k"),
    ({"metadata": {"k": "x" * 200}}, "/metadata/k"),
    ({"metadata": {"k": "lone \ud800"}}, "/metadata/k"),
    ({"metadata": ["k"]}, "/metadata"),
    ({"active_since": datetime(2026, 1, 1)}, "/active_since"),  # noqa: DTZ001 - on purpose
    ({"active_before": "now"}, "/active_before"),
    ({"after": "1"}, "/after"),
    ({"after": "x-ada"}, "/after"),
    ({"after": "9" * 19 + "-ada"}, "/after"),
    ({"after": "1-" + "a" * 129}, "/after"),
    ({"limit": -1}, "/limit"),
    ({"limit": True}, "/limit"),
)


_OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"status": "ready"},
    {"tags": ["t"]},
    {"owner": "ann"},
    {"due": True},
    {"metadata": {"k": 1}},
)
"""Each of them is another listing; the first two find two contexts without an owner or a tag."""


async def _begin(stores: Stores, name: str, **others: Any) -> Claimed:
    return await begin(stores, context_id=name, **others)


async def _end(
    stores: Stores,
    name: str,
    claimed: Claimed,
    reason: StopReason = StopReason.STOP,
    state: ContextState | None = None,
) -> None:
    end = ends(reason, context_id=name)
    await commit(stores, claimed, [end], context_id=name, state=state, release=True)


async def _turn(stores: Stores, name: str, **others: Any) -> Claimed:
    """A whole turn in the context *name*."""
    claimed = await _begin(stores, name, **others)
    await _end(stores, name, claimed)
    return claimed


async def _names(stores: Stores, **conditions: Any) -> list[str]:
    page = await stores.contexts.list(**conditions)
    assert page.next is None
    return [record.context_id for record in page.items]


async def _label(stores: Stores, name: str, tags: Sequence[str] = (), **metadata: Any) -> None:
    await stores.state.save(name, metadata, version=(await record_of(stores, name)).version)
    if tags:
        await stores.contexts.tag(name, add=tags)


async def _pages_make_the_whole(stores: Stores, *every: dict[str, Any]) -> None:
    for conditions in every:
        whole = await _names(stores, **conditions)
        assert whole == sorted(whole, reverse=True)
        for limit in (1, 2, 4, 9, 10):
            found: list[str] = []
            after: str | None = None
            while True:
                page = await stores.contexts.list(after=after, limit=limit, **conditions)
                assert len(page.items) <= limit
                found += [record.context_id for record in page.items]
                if (after := page.next) is None:
                    break
            assert found == whole


async def _other_conditions_are_refused(stores: Stores, *every: dict[str, Any]) -> None:
    for conditions in every:
        after = (await stores.contexts.list(limit=1, **conditions)).next
        assert await _names(stores, after=after, **conditions) == ["a"]
        for others in _OTHERS:
            if others != conditions:
                with refuses(ValueRefused, path="/after"):
                    await stores.contexts.list(after=after, **others)


class ContextIndexContract(Contract):
    """Contexts are listed as they are, the last active first, by whatever they are known for."""

    async def test_the_last_active_comes_first(self, stores: Stores) -> None:
        """A turn's beginning and end, an append, a summary, a clear and a message move it there."""
        assert await _names(stores) == []
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        assert await _names(stores) == ["c", "b", "a"]
        claimed = await _begin(stores, "a")
        assert await _names(stores) == ["a", "c", "b"]
        await _turn(stores, "b")
        assert await _names(stores) == ["b", "a", "c"]
        await _end(stores, "a", claimed)
        assert await _names(stores) == ["a", "b", "c"]
        await stores.messages.append("c", [user("more")])
        assert await _names(stores) == ["c", "a", "b"]
        said = summary_message("all of it", kept=0)
        epoch = (await record_of(stores, "b")).epoch
        await stores.journal.compact("b", NewSummary(message=said, epoch=epoch))
        assert await _names(stores) == ["b", "c", "a"]
        await stores.journal.clear("a")
        assert await _names(stores) == ["a", "b", "c"]
        await stores.journal.post("c", EntryKind.FOLLOW_UP, user("hey"))
        assert await _names(stores) == ["c", "a", "b"]

    async def test_a_record_is_that_of_load(self, stores: Stores) -> None:
        """Listing gives the whole context, its open turn and its metadata included."""
        await _turn(stores, "a", actor_id="ann")
        await _label(stores, "a", title="sums")
        await _begin(stores, "b", actor_id="bob")
        page = await stores.contexts.list()
        assert list(page.items) == [await record_of(stores, name) for name in ("b", "a")]
        assert page.items[1].metadata == {"title": "sums"}
        assert page.items[0].open_turn is not None

    @needing("contexts.tag")
    async def test_a_record_has_its_tags(self, stores: Stores) -> None:
        """In a list as in `load`."""
        await _turn(stores, "a")
        await _label(stores, "a", ["x"])
        (found,) = (await stores.contexts.list()).items
        assert found == await record_of(stores, "a")
        assert found.tags == ("x",)

    async def test_by_owner(self, stores: Stores) -> None:
        """The actor of the first turn, not a later one; a context without one has no owner."""
        await _turn(stores, "a", actor_id="ann")
        await _turn(stores, "b", actor_id="bob")
        await _turn(stores, "a", actor_id="bob")
        await _turn(stores, "c")
        assert await _names(stores, owner="ann") == ["a"]
        assert await _names(stores, owner="bob") == ["b"]
        assert await _names(stores, owner="c") == []
        await _turn(stores, "c", actor_id="ann")
        assert await _names(stores, owner="ann") == ["c", "a"]

    async def test_by_status(self, stores: Stores) -> None:
        """As an agent would show it; a turn whose lease is over does not count."""
        await _turn(stores, "ready")
        busy = await _begin(stores, "busy")
        await _begin(stores, "dead", ttl_s=0.0)
        await _begin(stores, "asked", ttl_s=0.0, state=waiting_for_approval())
        waiting = await _begin(stores, "waiting")
        await _end(stores, "waiting", waiting, StopReason.INPUT_REQUIRED, waiting_for_approval())
        failed = await _begin(stores, "failed")
        state = ContextState(error=("LLMError", "no"), resumable=1)
        await _end(stores, "failed", failed, StopReason.ERROR, state)
        expected = {"ready": ["dead", "ready"], "busy": ["busy"]}
        expected["waiting"] = ["waiting", "asked"]
        for status, names in {**expected, "failed": ["failed"]}.items():
            assert await _names(stores, status=status) == names
            assert await _names(stores, status=AgentStatus(status)) == names
        await _end(stores, "busy", busy)
        assert await _names(stores, status="busy") == []
        assert await _names(stores, status="ready") == ["busy", "dead", "ready"]
        await stores.journal.clear("waiting")
        assert await _names(stores, status="waiting") == ["asked"]

    async def test_the_turns_that_run_are_known(self, stores: Stores) -> None:
        """In every context whose lease lives; by owner, by id, and with each acknowledged end."""
        running = stores.contexts.running
        assert await running() == []
        await _turn(stores, "over", actor_id="ann")
        claims = {
            name: await _begin(stores, name, actor_id=owner)
            for name, owner in (("c", "ann"), ("a", "ann"), ("b", "bob"))
        }
        await _begin(stores, "dead", ttl_s=0.0, actor_id="ann")
        for _ in range(2):  # also once a listing has seen them
            assert await running() == ["a", "b", "c"]
            assert await running(limit=2) == ["a", "b"]
            assert await running(owner="ann") == ["a", "c"]
            assert await stores.for_tenant("other").contexts.running() == []
            assert await _names(stores, status="busy") == ["b", "a", "c"]
        await _end(stores, "a", claims["a"])
        assert await running() == ["b", "c"]

    @needing("contexts.sizes", "contexts.erase")
    async def test_the_size_of_each_context_is_known(self, stores: Stores) -> None:
        """Page by page, with its owner: what an erasure would free."""
        assert await stores.contexts.sizes() == []
        for name, owner in (("b", "bob"), ("a", "ann")):
            await _turn(stores, name, actor_id=owner)
        await stores.messages.append("c", [user("hey")])
        before = await stores.contexts.sizes()
        await stores.messages.append("a", [user("x" * 1000 + "\u00e4")])
        await stores.artifacts.save("b", "art", b"y" * 5000)
        found = await stores.contexts.sizes()
        assert [(one.context_id, one.owner) for one in found] == [
            ("a", "ann"),
            ("b", "bob"),
            ("c", None),
        ]
        grown = [now.bytes - then.bytes for now, then in zip(found, before, strict=True)]
        assert grown[1:] == [5000, 0]
        assert 1002 <= grown[0] < 1500
        assert await stores.contexts.sizes(limit=2) == found[:2]
        assert await stores.contexts.sizes(after="a", limit=1) == found[1:2]
        assert await stores.for_tenant("other").contexts.sizes() == []
        for one in found:
            assert (await stores.contexts.erase(one.context_id)).bytes == one.bytes

    async def test_by_metadata(self, stores: Stores) -> None:
        """All entries that are asked for; texts, whole numbers and booleans differ."""
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        await _label(stores, "a", k="1", deep={"k": 2}, n=1)
        await _label(stores, "b", k=1, n=1)
        await _label(stores, "c", k=True, odd="é😀'; --")
        assert await _names(stores, metadata={"k": "1"}) == ["a"]
        assert await _names(stores, metadata={"k": 1}) == ["b"]
        assert await _names(stores, metadata={"k": True}) == ["c"]
        assert await _names(stores, metadata={"k": False}) == []
        assert await _names(stores, metadata={"n": 1}) == ["b", "a"]
        assert await _names(stores, metadata={"odd": "é😀'; --"}) == ["c"]
        await _label(stores, "a", n=2)
        assert await _names(stores, metadata={"n": 1}) == ["b"]

    @needing("contexts.tag")
    async def test_by_tags(self, stores: Stores) -> None:
        """All tags that are asked for, and all entries beside them."""
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        await _label(stores, "a", ["x", "y"], k="1", n=1)
        await _label(stores, "b", ["y"], k=1, n=1)
        assert await _names(stores, tags=["y"]) == ["b", "a"]
        assert await _names(stores, tags=["y", "x", "y"]) == ["a"]
        assert await _names(stores, tags=["y"], metadata={"n": 1, "k": 1}) == ["b"]
        assert await _names(stores, tags=["n"], metadata={}) == []
        await _label(stores, "a", n=2)
        assert await _names(stores, metadata={"n": 2}, tags=["x"]) == ["a"]

    async def test_by_last_activity(self, stores: Stores) -> None:
        """From a moment on, and up to before one."""
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        at = (await record_of(stores, "b")).last_activity
        assert await _names(stores, active_since=at) == ["c", "b"]
        assert await _names(stores, active_before=at) == ["a"]
        assert await _names(stores, active_since=at, active_before=at) == []
        page = await stores.contexts.list(active_before=_LATER, limit=1)
        assert await _names(stores, active_before=at, after=page.next) == ["a"]
        assert await _names(stores, active_since=_LATER) == []

    async def test_contexts_with_work_are_due(self, stores: Stores) -> None:
        """A dead or interrupted turn, messages and expired requests; not while a turn runs."""
        await _turn(stores, "fine")
        await _begin(stores, "dead", ttl_s=0.0)
        runs = await _begin(stores, "runs")
        await stores.journal.post("runs", EntryKind.FOLLOW_UP, user("more"))
        left = await _begin(stores, "left")
        await _end(stores, "left", left, StopReason.INTERRUPTED, ContextState(resumable=1))
        failed = await _begin(stores, "failed")
        state = ContextState(error=("LLMError", "no"), resumable=1)
        await _end(stores, "failed", failed, StopReason.ERROR, state)
        for name, until in (("over", WHEN - timedelta(days=999)), ("open", _LATER), ("ever", None)):
            asked = await _begin(stores, name)
            state = waiting_for_approval(expires_at=until)
            await _end(stores, name, asked, StopReason.INPUT_REQUIRED, state)
        assert await _names(stores, due=True) == ["over", "left", "dead"]
        await _end(stores, "runs", runs)
        assert await _names(stores, due=True) == ["runs", "over", "left", "dead"]
        await stores.journal.post("fine", EntryKind.STEER, user("hey"))
        assert await _names(stores, due=True, status="ready") == ["fine", "runs", "left", "dead"]
        await stores.journal.withdraw("fine")
        await stores.journal.withdraw("runs")
        assert await _names(stores, due=True) == ["over", "left", "dead"]
        await _end(stores, "left", await _begin(stores, "left"), state=ContextState())
        await stores.journal.clear("dead", force=True)
        await stores.journal.clear("over")
        assert await _names(stores, due=True) == []

    async def test_pages_leave_nothing_out_and_repeat_nothing(self, stores: Stores) -> None:
        """The pages together are the listing, whatever their size."""
        names = [f"c{n:02}" for n in range(9)]
        for name in names:
            await _turn(stores, name, actor_id="ann" if int(name[1:]) % 2 else "bob")
        await _pages_make_the_whole(stores, {}, {"owner": "ann"}, {"status": "ready"})
        assert (await stores.contexts.list(limit=0)).items == []

    @needing("contexts.tag")
    async def test_pages_of_a_tag(self, stores: Stores) -> None:
        """As above, of some of the contexts."""
        for name in [f"c{n:02}" for n in range(9)]:
            await _turn(stores, name)
            await _label(stores, name, ["odd"] if int(name[1:]) % 2 else [])
        assert len(await _names(stores, tags=["odd"])) == 4
        await _pages_make_the_whole(stores, {"tags": ["odd"]})

    async def test_a_context_that_becomes_active_moves_out_of_the_next_pages(
        self, stores: Stores
    ) -> None:
        """Between two pages; every other one is listed once."""
        for name in ("a", "b", "c", "d"):
            await _turn(stores, name)
        first = await stores.contexts.list(limit=2)
        assert [record.context_id for record in first.items] == ["d", "c"]
        await _turn(stores, "b")
        await _turn(stores, "d")
        assert await _names(stores, after=first.next) == ["a"]

    async def test_bad_conditions_are_refused_by_their_place(self, stores: Stores) -> None:
        """A typed error names the condition."""
        await _turn(stores, "a")
        for conditions, path in _BAD:
            with refuses(ValueRefused, path=path):
                await stores.contexts.list(**conditions)
        with refuses(LimitExceeded, limit="conditions", value=8):
            await stores.contexts.list(tags=[f"t{n}" for n in range(9)])
        assert await _names(stores, tags=[f"t{n}" for n in range(8)]) == []

    async def test_the_next_page_is_of_the_same_conditions(self, stores: Stores) -> None:
        """Others are refused: their pages would leave contexts out."""
        for name in ("a", "b"):
            await _turn(stores, name)
        await _other_conditions_are_refused(stores, *_OTHERS[:2])

    @needing("contexts.tag")
    async def test_the_next_page_is_of_the_same_tags(self, stores: Stores) -> None:
        """As above."""
        for name in ("a", "b"):
            await _turn(stores, name)
            await _label(stores, name, ["t"])
        await _other_conditions_are_refused(stores, {"tags": ["t"]})

    @needing("contexts.tag")
    async def test_tags_are_added_and_removed(self, stores: Stores) -> None:
        """Sorted, each once; the record has them, and a listing knows them at once."""
        await _turn(stores, "a")
        tag = stores.contexts.tag
        assert await tag("a", add=["y", "x", "y"]) == ("x", "y")
        assert (await record_of(stores, "a")).tags == ("x", "y")
        assert await tag("a", add=["é😀'; --"], remove=["y", "none"]) == ("x", "é😀'; --")
        assert await _names(stores, tags=["é😀'; --"]) == ["a"]
        assert await _names(stores, tags=["y"]) == []
        assert await tag("a", add=["z"], remove=["z"]) == ("x", "é😀'; --")
        assert await tag("a", remove=["x", "é😀'; --"]) == ()
        assert await _names(stores, tags=["x"]) == []

    @needing("contexts.tag")
    async def test_tagging_disturbs_no_turn(self, stores: Stores) -> None:
        """Neither epoch nor activity nor metadata changes, and the turn continues."""
        claimed = await _begin(stores, "a")
        await _turn(stores, "b")
        before = await record_of(stores, "a")
        await stores.contexts.tag("a", add=["x"])
        assert await record_of(stores, "a") == replace(before, tags=("x",))
        assert await _names(stores, tags=["x"], status="busy") == ["a"]
        assert await _names(stores) == ["b", "a"]
        await _end(stores, "a", claimed)
        assert await _names(stores, tags=["x"], status="busy") == []
        assert await _names(stores, tags=["x"], status="ready") == ["a"]

    @needing("contexts.tag")
    async def test_bad_tags_are_refused_whole(self, stores: Stores) -> None:
        """A typed error names the tag, and no other tag was changed."""
        await _turn(stores, "a")
        tag: Any = stores.contexts.tag
        bad: tuple[Any, ...] = ("", "x" * 65, "a\tb", "nul \0", "lone \ud800", 7, None)
        for one in bad:
            with refuses(ValueRefused, path="/add/1"):
                await tag("a", add=["fine", one])
            with refuses(ValueRefused, path="/remove/0"):
                await tag("a", add=["fine"], remove=[one])
        with refuses(ValueRefused, path="/add"):
            await tag("a", add="fine")
        many = [f"t{n}" for n in range(32)]
        assert len(await tag("a", add=many)) == 32
        with refuses(LimitExceeded, limit="tags", value=32):
            await tag("a", add=["one more"])
        assert len((await record_of(stores, "a")).tags) == 32
        for unknown in ("nobody", "no id"):
            with pytest.raises(ContextNotFound):
                await tag(unknown, add=["x"])
        assert await _names(stores) == ["a"]

    @needing("contexts.tag")
    async def test_clearing_keeps_tags_and_deleting_takes_them(self, stores: Stores) -> None:
        """A context of the same name made later has none."""
        await _turn(stores, "a", actor_id="ann")
        await _label(stores, "a", ["x"], k=1)
        await stores.journal.clear("a")
        assert await _names(stores, tags=["x"], metadata={"k": 1}) == ["a"]
        await stores.state.delete("a")
        assert await _names(stores) == []
        await _turn(stores, "a")
        assert await _names(stores, tags=["x"]) == []
        assert await _names(stores, owner="ann") == []
        assert (await record_of(stores, "a")).tags == ()

    async def test_a_context_is_listed_once_it_is_made(self, stores: Stores) -> None:
        """By whichever write: an append, metadata, a message, a place in the queue."""
        await stores.messages.append("a", [user("hi")])
        await stores.state.save("b", {"k": 1}, version=0)
        await stores.journal.post("c", EntryKind.STEER, user("hi"))
        await stores.state.join_wait_queue("d", "holder", 1.0)
        await stores.artifacts.save("e", "art", b"x")
        assert set(await _names(stores)) == {"a", "b", "c", "d", "e"}
        assert await _names(stores, metadata={"k": 1}) == ["b"]

    async def test_another_tenant_is_not_listed(self, stores: Stores) -> None:
        """Not even to the same owner."""
        other = stores.for_tenant("other")
        await _turn(stores, "a", actor_id="ann")
        await _turn(other, "b", actor_id="ann")
        assert await _names(stores) == ["a"]
        assert await _names(stores, owner="ann") == ["a"]
        assert await _names(other, owner="ann") == ["b"]

    @needing("contexts.tag")
    async def test_another_tenant_has_tags_of_its_own(self, stores: Stores) -> None:
        """They are neither listed nor changed."""
        other = stores.for_tenant("other")
        await _turn(other, "b", actor_id="ann")
        await other.contexts.tag("b", add=["x"])
        assert await _names(stores, tags=["x"]) == []
        assert await _names(other, owner="ann", tags=["x"]) == ["b"]
        with pytest.raises(ContextNotFound):
            await stores.contexts.tag("b", add=["y"])

    @needing("contexts.tag")
    async def test_listing_beside_turns_misses_no_acknowledged_change(self, stores: Stores) -> None:
        """Turns, tags and listings at the same time: each sees what was acknowledged before it."""
        acknowledged: dict[str, int] = {}

        async def work(name: str) -> None:
            for n in range(4):
                try:
                    claimed = await _begin(stores, name, actor_id=name)
                except (AgentBusy, StoreConflict):
                    raise AssertionError(name) from None
                await stores.contexts.tag(name, add=[f"t{n}"], remove=[f"t{n - 1}"])
                await _end(stores, name, claimed)
                acknowledged[name] = n

        async def look() -> None:
            for _ in range(8):
                known = dict(acknowledged)
                page = await stores.contexts.list()
                found = {r.context_id: r.turn_count for r in page.items}
                assert all(found[name] > n for name, n in known.items())
                for name, n in known.items():
                    tagged = await stores.contexts.list(tags=[f"t{n}"], owner=name)
                    assert tagged.items or acknowledged[name] != n or n < 3
                await asyncio.sleep(0)

        names = [f"c{n}" for n in range(4)]
        await at_once(*(work(name) for name in names), look(), look())
        assert sorted(await _names(stores, status="ready", tags=["t3"])) == names
        assert await _names(stores, status="busy") == []
        for n in range(3):
            assert await _names(stores, tags=[f"t{n}"]) == []
        for name in names:
            assert await _names(stores, owner=name) == [name]
