"""The contract of `Journal.fork`, `rewind`, `undo_rewind` and `lineage`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looopy.errors import (
    AgentBusy,
    ArtifactNotFound,
    ContextNotFound,
    StoreConflict,
    ValueRefused,
)
from looopy.stores.bundle import Stores
from looopy.stores.contexts.lineage import Branch, Lineage
from looopy.stores.records import NewSummary
from looopy.testing.contracts.turns import (
    CONTEXT,
    Contract,
    a_turn,
    answer,
    begin,
    commit,
    ends,
    finishes,
    for_each,
    needing,
    record_of,
    refuses,
    said,
    starts,
    user,
)
from looopy.types.event import AgentEvent, HistoryRewound, ToolExecutionStart
from looopy.types.message import Message, StopReason, ToolCall
from looopy.types.summary import summary_message

_LARGE = bytes(range(250)) * 280  # more than is in the row of a version
_ADD = ToolCall("call-1", "add", {"a": 2})
FORK = "ada-2"


async def turns(stores: Stores, *texts: str, context_id: str = CONTEXT) -> None:
    """A turn for each of *texts*: two messages, four events."""
    for text in texts:
        claimed = await begin(stores, context_id=context_id, text=text)
        events: list[AgentEvent] = [said(answer(f"{text}!"), context_id=context_id)]
        events.append(ends(context_id=context_id))
        await commit(stores, claimed, events, context_id=context_id, release=True)


async def texts(stores: Stores, context_id: str = CONTEXT, *, hidden: bool = False) -> list[str]:
    """The texts of a context."""
    found = await stores.messages.list(context_id, include_hidden=hidden)
    return [_text(m) for m in found]


def _text(message: Message) -> str:
    content = getattr(message, "text", None)
    return content if isinstance(content, str) else str(message.content)


class ForkContract(Contract):
    """Forks begin with their parent's past and have their own future; a rewind hides turns."""

    needs = ("journal.fork",)

    # --- what is copied ---

    async def test_a_fork_reads_the_past_and_goes_on_alone(self, stores: Stores) -> None:
        """Positions, turns and `seq` continue; neither context sees what the other does later."""
        await turns(stores, "one", "two")
        made = await stores.journal.fork(CONTEXT, FORK)
        assert (made.context_id, made.turn_count, made.last_position) == (FORK, 2, 4)
        assert (made.last_seq, made.open_turn, made.holder) == (8, None, None)
        await turns(stores, "three")
        await turns(stores, "other", context_id=FORK)
        assert await texts(stores) == ["one", "one!", "two", "two!", "three", "three!"]
        assert await texts(stores, FORK) == ["one", "one!", "two", "two!", "other", "other!"]
        found = await stores.messages.records(FORK)
        assert [m.position for m in found] == [1, 2, 3, 4, 5, 6]
        assert [m.turn for m in found] == [1, 1, 2, 2, 3, 3]
        events = await stores.journal.events(FORK)
        assert [e.seq for e in events] == list(range(1, 13))
        assert {e.context_id for e in events} == {FORK}
        assert [t.turn for t in await stores.journal.turns(FORK)] == [1, 2, 3]
        assert await stores.journal.turns(FORK, after=1, limit=1) == (
            await stores.journal.turns(CONTEXT, after=1, limit=1)
        )

    @for_each([0, 1, 2, 3, 4, 5, 6])
    async def test_each_page_of_a_fork_is_that_part_of_the_whole(
        self, stores: Stores, after: int
    ) -> None:
        """Ranges of messages, turns and events across the border, from both ends."""
        await turns(stores, "one", "two")
        await stores.journal.fork(CONTEXT, FORK)
        await turns(stores, "other", context_id=FORK)
        records = await stores.messages.records(FORK)
        events = await stores.journal.events(FORK)
        numbered = await stores.journal.turns(FORK)
        assert (len(records), len(events), len(numbered)) == (6, 12, 3)
        for limit in (0, 1, 3, 100):
            found = await stores.messages.records(FORK, after=after, limit=limit)
            assert found == records[after:][:limit]
            page = await stores.journal.events(FORK, after=2 * after, limit=limit)
            assert page == events[2 * after :][:limit]
            some = await stores.journal.turns(FORK, after=after, limit=limit)
            assert some == numbered[after:][:limit]
        assert await stores.messages.recent(FORK, limit=after) == records[6 - after :]
        assert await stores.messages.count(FORK) == 6

    async def test_a_fork_of_a_fork_reads_all_of_its_past(self, stores: Stores) -> None:
        """Also one that ends within the part that its parent was copied from itself."""
        await turns(stores, "one", "two")
        await stores.journal.fork(CONTEXT, "b")
        await turns(stores, "three", "four", context_id="b")
        await stores.journal.fork("b", "c", at=6)
        await stores.journal.fork("b", "d", at=2)
        await turns(stores, "end", context_id="c")
        await turns(stores, "end", context_id="d")
        assert await texts(stores, "c") == [
            *("one", "one!", "two", "two!", "three", "three!", "end", "end!")
        ]
        assert await texts(stores, "d") == ["one", "one!", "end", "end!"]
        for context_id, count in (("c", 16), ("d", 8)):
            events = await stores.journal.events(context_id)
            assert [e.seq for e in events] == list(range(1, count + 1))

    async def test_a_fork_has_owner_and_metadata_but_nothing_that_waits(
        self, stores: Stores
    ) -> None:
        """No requests, usage, keys, lease or inbox."""
        await stores.state.save(CONTEXT, {"title": "sums"}, version=0)
        claimed = await begin(stores, actor_id="u1", key="k", input_hash="h")
        await commit(stores, claimed, [said(answer("hi")), ends()], release=True)
        made = await stores.journal.fork(CONTEXT, FORK)
        assert (made.owner_actor, made.metadata, made.version) == ("u1", {"title": "sums"}, 1)
        assert (made.state.pending, made.state.usage.total_tokens) == ((), 0)
        assert await stores.journal.turn_of_key(FORK, "k") is None
        assert (made.holder, made.inbox.waiting) == (None, 0)
        assert made.epoch != 0

    async def test_artifacts_are_those_of_the_place(self, stores: Stores) -> None:
        """Versions of later turns are not in it, and both sides save and delete alone."""
        await turns(stores, "one")
        await stores.artifacts.save(CONTEXT, "a.txt", b"1")
        await turns(stores, "two")
        await stores.artifacts.save(CONTEXT, "a.txt", b"2")
        await stores.artifacts.save(CONTEXT, "b.txt", b"b")
        await stores.journal.fork(CONTEXT, FORK, at=2)
        assert [(a.artifact_id, a.version) for a in await stores.artifacts.list(FORK)] == [
            ("a.txt", 1)
        ]
        await stores.artifacts.delete(CONTEXT, "a.txt")
        assert await stores.artifacts.load(FORK, "a.txt") == b"1"
        assert (await stores.artifacts.save(FORK, "a.txt", b"other")).version == 2
        await stores.artifacts.delete(FORK, "a.txt")
        assert [a.artifact_id for a in await stores.artifacts.list(CONTEXT)] == ["b.txt"]

    async def test_large_artifacts_are_read_through_a_fork(self, stores: Stores) -> None:
        """Whole, in ranges and in pieces, rows of datasets as well, also of a fork's fork."""
        await turns(stores, "one")
        await stores.artifacts.save(CONTEXT, "a.bin", _LARGE)
        rows = [{"n": n} for n in range(9_000)]
        await stores.artifacts.save(CONTEXT, "rows", rows, kind="dataset", columns={"n": "integer"})
        await stores.artifacts.save(CONTEXT, "a.bin", _LARGE[::-1])
        await stores.journal.fork(CONTEXT, FORK)
        await turns(stores, "two", context_id=FORK)
        await stores.journal.fork(FORK, "c")
        await stores.artifacts.save("c", "a.bin", b"third")
        for name in (FORK, "c"):
            read = stores.artifacts.read
            assert await stores.artifacts.load(name, "a.bin", 1) == _LARGE
            assert await read(name, "a.bin", version=2) == _LARGE[::-1]
            assert await read(name, "a.bin", start=69_000, size=9, version=1) == _LARGE[69_000:][:9]
            pieces = [piece async for piece in stores.artifacts.stream(name, "a.bin", version=2)]
            assert b"".join(pieces) == _LARGE[::-1]
            assert (
                await stores.artifacts.rows(name, "rows", after=8_900, limit=2)
                == (rows[8_900:8_902])
            )
            assert [a.version for a in await stores.artifacts.versions(name, "a.bin")][:2] == [1, 2]
        found = await stores.artifacts.get("c", "a.bin")
        assert (found.version, found.turn) == (3, 2)
        assert (await stores.artifacts.get(FORK, "a.bin")).version == 2
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.get(FORK, "a.bin", 3)

    async def test_an_artifact_saved_after_a_fork_belongs_to_one_side(self, stores: Stores) -> None:
        """Also in the same pause between two turns; the numbers of versions continue in both."""
        await turns(stores, "one")
        await stores.artifacts.save(CONTEXT, "a", b"1")
        await stores.journal.fork(CONTEXT, FORK)
        await stores.artifacts.save(CONTEXT, "a", b"parent")
        await stores.artifacts.save(CONTEXT, "b", b"parent")
        await stores.journal.fork(CONTEXT, "c")
        assert (await stores.artifacts.save(FORK, "a", b"fork")).version == 2
        await stores.artifacts.save(FORK, "d", b"fork")
        kept = {one: await _newest(stores, one) for one in (CONTEXT, FORK, "c")}
        assert kept == {
            CONTEXT: {"a": b"parent", "b": b"parent"},
            FORK: {"a": b"fork", "d": b"fork"},
            "c": {"a": b"parent", "b": b"parent"},
        }
        assert await stores.artifacts.load(FORK, "a", 1) == b"1"

    async def test_a_fork_of_a_fork_has_what_was_saved_before_any_turn(
        self, stores: Stores
    ) -> None:
        """Also once those in between are gone."""
        await turns(stores, "one")
        await stores.journal.fork(CONTEXT, FORK)
        await stores.artifacts.save(FORK, "upload", _LARGE)
        await stores.journal.fork(FORK, "c")
        await stores.journal.fork("c", "d")
        for name in (FORK, "c"):
            await stores.state.delete(name)
        assert await _newest(stores, "d") == {"upload": _LARGE}
        assert await stores.artifacts.list(CONTEXT) == []

    async def test_a_copied_version_ends_as_the_parent_saw_it(self, stores: Stores) -> None:
        """One that had a next version has failed, also in a fork of the place before that."""
        await turns(stores, "one")
        await stores.artifacts.open(CONTEXT, "a")
        await turns(stores, "two")
        await stores.artifacts.open(CONTEXT, "a")
        await stores.journal.fork(CONTEXT, FORK, at=2)
        found = await stores.artifacts.versions(FORK, "a")
        assert [(one.version, one.status) for one in found] == [(1, "failed")]

    async def test_a_call_that_a_fork_continues_keeps_its_name_and_arguments(
        self, stores: Stores
    ) -> None:
        """The log finds them in the message that announced it, which the fork has."""
        claimed = await begin(stores)
        events: list[AgentEvent] = [said(answer("", _ADD)), ends(StopReason.INPUT_REQUIRED)]
        await commit(stores, claimed, events, release=True)
        await stores.journal.fork(CONTEXT, FORK)
        claimed = await begin(stores, context_id=FORK, text=None)
        place: dict[str, Any] = {"context_id": FORK, "turn": 2}
        events = [starts(_ADD, **place), *finishes(_ADD, "3", **place), ends(**place)]
        await commit(stores, claimed, events, context_id=FORK, assistant_position=2, release=True)
        (start,) = [
            e for e in await stores.journal.events(FORK) if isinstance(e, ToolExecutionStart)
        ]
        assert (start.tool_name, start.args) == (_ADD.name, _ADD.arguments)

    async def test_artifacts_of_a_fork_are_listed_by_page_and_filter(self, stores: Stores) -> None:
        """The newest version of each decides, whichever context holds it."""
        await turns(stores, "one")
        for name in ("a", "b", "c"):
            await stores.artifacts.save(CONTEXT, name, {"of": name})
        await stores.journal.fork(CONTEXT, FORK)
        await turns(stores, "two", context_id=FORK)
        await stores.artifacts.save(FORK, "b", b"file")
        await stores.artifacts.save(FORK, "bb", b"file")

        async def names(**conditions: Any) -> list[str]:
            found = await stores.artifacts.list(FORK, **conditions)
            return [one.artifact_id for one in found]

        assert await names() == ["a", "b", "bb", "c"]
        assert await names(limit=2) == ["a", "b"]
        assert await names(after="b", limit=1) == ["bb"]
        assert await names(kind="data") == ["a", "c"]
        assert await names(kind="file", after="b") == ["bb"]
        assert await names(turn=1) == ["a", "c"]
        assert await names(turn=2, limit=1) == ["b"]
        assert await names(status="building") == []
        assert await names(limit=0) == []

    async def test_an_incomplete_artifact_grows_on_both_sides(self, stores: Stores) -> None:
        """From where it was; a version that was given up by then stays given up."""
        await turns(stores, "one")
        await stores.artifacts.open(CONTEXT, "a")
        await stores.artifacts.open(CONTEXT, "a")
        await stores.artifacts.append(CONTEXT, "a", _LARGE)
        await stores.journal.fork(CONTEXT, FORK)
        await stores.artifacts.append(CONTEXT, "a", b"parent", last=True)
        await stores.artifacts.append(FORK, "a", b"f")
        await stores.journal.fork(FORK, "c")
        await stores.artifacts.append(FORK, "a", b"ork", last=True)
        await stores.artifacts.complete("c", "a")
        for name, end in ((CONTEXT, b"parent"), (FORK, b"fork"), ("c", b"f")):
            assert await stores.artifacts.load(name, "a") == _LARGE + end
            found = await stores.artifacts.versions(name, "a")
            assert [one.status for one in found] == ["failed", "complete"]
            assert (await stores.artifacts.get(name, "a", 1)).status == "failed"

    @for_each(["parent", "fork"])
    async def test_a_deleted_artifact_stays_on_the_other_side(
        self, stores: Stores, first: str
    ) -> None:
        """In all forks that were made before; later ones do not have it. It begins again at 1."""
        await turns(stores, "one")
        for content in (_LARGE, b"2"):
            await stores.artifacts.save(CONTEXT, "a", content)
        await stores.journal.fork(CONTEXT, FORK)
        await stores.journal.fork(FORK, "c")
        deleting, keeping = (CONTEXT, FORK) if first == "parent" else (FORK, CONTEXT)
        await stores.artifacts.delete(deleting, "a")
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.delete(deleting, "a")
        await stores.journal.fork(deleting, "later")
        for name in (deleting, "later"):
            assert await stores.artifacts.list(name) == []
            with pytest.raises(ArtifactNotFound):
                await stores.artifacts.load(name, "a", 1)
        for name in (keeping, "c"):
            assert await stores.artifacts.load(name, "a", 1) == _LARGE
            assert await stores.artifacts.load(name, "a") == b"2"
        assert (await stores.artifacts.save(deleting, "a", b"anew")).version == 1
        assert (await stores.artifacts.save(keeping, "a", b"3")).version == 3
        assert await _newest(stores, "later") == {}
        await stores.artifacts.delete(keeping, "a")
        assert await stores.artifacts.load("c", "a", 1) == _LARGE
        await stores.state.delete(CONTEXT)
        assert await stores.artifacts.load("c", "a", 1) == _LARGE
        await stores.artifacts.delete("c", "a")
        assert await _newest(stores, "c") == {}

    @needing("journal.rewind", "contexts.tag")
    async def test_a_fork_is_listed_with_tags_and_activity_of_its_own(self, stores: Stores) -> None:
        """As its parent was tagged; a deleted parent is listed nowhere."""
        await turns(stores, "one")
        await stores.contexts.tag(CONTEXT, add=["red"])
        await stores.journal.fork(CONTEXT, FORK)
        await stores.contexts.tag(FORK, add=["blue"])
        found = await stores.contexts.list(tags=["red"])
        assert {one.context_id: one.tags for one in found.items} == {
            CONTEXT: ("red",),
            FORK: ("blue", "red"),
        }
        assert found.items[0].context_id == FORK
        await stores.state.delete(CONTEXT)
        for page in (await stores.contexts.list(), await stores.contexts.list(tags=["red"])):
            assert [one.context_id for one in page.items] == [FORK]
        await stores.journal.rewind(FORK, 1)
        page = await stores.contexts.list(status="ready")
        assert [one.context_id for one in page.items] == [FORK]

    @needing("journal.rewind", "journal.undo_rewind")
    async def test_a_search_finds_what_a_context_shows(self, stores: Stores) -> None:
        """The past under the name of each, and nothing that is rewound or another's."""
        await turns(stores, "apple one", "apple two", "apple three")
        await stores.journal.fork(CONTEXT, FORK, at=4)
        await turns(stores, "apple fork", context_id=FORK)
        await stores.journal.fork(FORK, "c")
        await turns(stores, "apple end", context_id="c")

        async def found(**which: Any) -> list[tuple[str, int]]:
            hits: list[tuple[str, int]] = []
            after = None
            while True:
                page = await stores.contexts.search("apple", limit=3, after=after, **which)
                hits += [(hit.context_id, hit.position) for hit in page.items]
                if (after := page.next) is None:
                    return hits

        def places(context_id: str, last: int) -> list[tuple[str, int]]:
            return [(context_id, position) for position in range(last, 0, -1)]

        every = [*places("c", 8), *places(FORK, 6), *places(CONTEXT, 6)]
        assert await found() == every
        for name, last in (("c", 8), (FORK, 6), (CONTEXT, 6)):
            assert await found(context_id=name) == places(name, last)
        await stores.journal.rewind(FORK, 2)
        assert await found(context_id=FORK) == places(FORK, 2)
        await stores.journal.undo_rewind(FORK)
        await stores.state.delete(CONTEXT)
        assert await found(context_id=FORK) == places(FORK, 6)
        await stores.journal.clear(FORK)
        assert await found() == places("c", 8)
        for position, word in ((1, "one"), (5, "fork"), (7, "end")):
            page = await stores.contexts.search(f'"apple {word}"')
            assert [hit.position for hit in page.items] == [position + 1, position]

    async def test_started_calls_of_the_past_are_known(self, stores: Stores) -> None:
        """A fork knows what had begun when it was made."""
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", _ADD)), starts(_ADD)])
        await commit(stores, claimed, finishes(_ADD, "3"))
        await commit(stores, claimed, [said(answer("3")), ends()], release=True)
        await stores.journal.fork(CONTEXT, FORK)
        assert await stores.journal.started_calls(FORK, 1) == {"call-1"}

    async def test_the_newest_summary_of_the_place_is_known(self, stores: Stores) -> None:
        """Not one that was written later."""
        await turns(stores, "one")
        for kept in (0, 1):
            new = NewSummary(
                message=summary_message(f"so far {kept}", kept=kept),
                epoch=(await record_of(stores)).epoch,
            )
            await stores.journal.compact(CONTEXT, new)
        places = {at: await stores.journal.fork(CONTEXT, f"f{at}", at=at) for at in (2, 3, 4)}
        assert {at: made.state.summary for at, made in places.items()} == {2: None, 3: 3, 4: 4}
        assert [e.type for e in await stores.journal.events("f3")][-1] == "compaction"

    # --- where it may be cut ---

    async def test_within_a_turn_nothing_is_cut(self, stores: Stores) -> None:
        """The refusal names the nearest ends, and makes nothing."""
        await turns(stores, "one", "two")
        with pytest.raises(ValueRefused, match=r"within turn 2.* at 2 or 4") as refused:
            await stores.journal.fork(CONTEXT, FORK, at=3)
        assert refused.value.path == "/at"
        for at in (5, -1, True, "2"):
            with pytest.raises(ValueRefused):
                await stores.journal.fork(CONTEXT, FORK, at=at)  # type: ignore[arg-type] # odd
        assert await stores.state.load(FORK) is None

    async def test_every_end_of_a_turn_is_a_place(self, stores: Stores) -> None:
        """So is the beginning, and what was appended between two turns."""
        await turns(stores, "one")
        await stores.messages.append(CONTEXT, [user("between")])
        await turns(stores, "two")
        for at, turn, seq in ((0, 0, 0), (2, 1, 4), (3, 1, 5), (5, 2, 9)):
            made = await stores.journal.fork(CONTEXT, f"f{at}", at=at)
            assert (made.last_position, made.turn_count, made.last_seq) == (at, turn, seq)
            assert len(await stores.messages.list(f"f{at}")) == at

    async def test_while_a_turn_runs_the_place_before_it_is_forked(self, stores: Stores) -> None:
        """The turn continues, and is not in the fork."""
        await turns(stores, "one")
        claimed = await begin(stores, text="two")
        made = await stores.journal.fork(CONTEXT, FORK)
        assert (made.last_position, made.turn_count, made.last_seq) == (2, 1, 4)
        with pytest.raises(ValueRefused, match="within turn 2"):
            await stores.journal.fork(CONTEXT, "f3", at=3)
        await commit(stores, claimed, [said(answer("two!")), ends()], release=True)
        assert await texts(stores, FORK) == ["one", "one!"]

    async def test_a_name_is_taken_once_and_the_parent_must_exist(self, stores: Stores) -> None:
        """`StoreConflict`, `ContextNotFound`, and `ValueRefused` for a bad name."""
        await turns(stores, "one")
        await turns(stores, "one", context_id=FORK)
        with pytest.raises(StoreConflict):
            await stores.journal.fork(CONTEXT, FORK)
        with pytest.raises(StoreConflict):
            await stores.journal.fork(CONTEXT, CONTEXT)
        for unknown in ("nobody", "no id"):
            with pytest.raises(ContextNotFound):
                await stores.journal.fork(unknown, "new")
        with pytest.raises(ValueRefused):
            await stores.journal.fork(CONTEXT, "no id")

    async def test_a_turn_that_was_left_open_can_be_continued_in_a_fork(
        self, stores: Stores
    ) -> None:
        """As far as its messages say: what was pending is asked for again."""
        claimed = await begin(stores)
        events: list[AgentEvent] = [said(answer("", _ADD)), ends(StopReason.INPUT_REQUIRED)]
        await commit(stores, claimed, events, release=True)
        made = await stores.journal.fork(CONTEXT, FORK)
        assert (made.state.resumable, made.state.pending) == (1, ())

    # --- independence ---

    @for_each(["delete", "clear"])
    async def test_a_parent_that_goes_leaves_its_forks_whole(
        self, stores: Stores, how: str
    ) -> None:
        """The parent is gone for every method, and its name may be used again."""
        await turns(stores, "one", "two", "three")
        await stores.artifacts.save(CONTEXT, "a.txt", b"a")
        await stores.journal.fork(CONTEXT, FORK, at=4)
        await stores.journal.fork(FORK, "c")
        before = [await _whole(stores, one) for one in (FORK, "c")]
        if how == "delete":
            await stores.state.delete(CONTEXT)
            assert await stores.state.load(CONTEXT) is None
            assert await stores.journal.events(CONTEXT) == []
        else:
            await stores.journal.clear(CONTEXT)
        assert await texts(stores) == []
        assert [await _whole(stores, one) for one in (FORK, "c")] == before
        assert [c.context_id for c in await stores.state.list() if c.context_id != CONTEXT] == [
            *(FORK, "c")
        ]
        assert (await stores.journal.lineage(FORK)).parent == Branch(context_id=None, at=4)
        await turns(stores, "anew")
        assert await texts(stores) == ["anew", "anew!"]
        assert [await _whole(stores, one) for one in (FORK, "c")] == before
        await stores.state.delete(FORK)
        assert await _whole(stores, "c") == before[1]
        await turns(stores, "on", context_id="c")
        await stores.state.delete("c")
        assert await texts(stores, "c") == []

    async def test_a_cleared_fork_is_empty_and_its_parent_is_not(self, stores: Stores) -> None:
        """Its numbers continue, its turns stay listed, and it is no longer a fork."""
        await turns(stores, "one", "two")
        await stores.journal.fork(CONTEXT, FORK)
        await turns(stores, "three", context_id=FORK)
        await stores.journal.clear(FORK)
        assert await texts(stores, FORK) == []
        assert [e.type for e in await stores.journal.events(FORK)] == ["history_cleared"]
        assert [t.turn for t in await stores.journal.turns(FORK)] == [1, 2, 3]
        assert await stores.journal.lineage(FORK) == Lineage()
        assert await stores.journal.lineage(CONTEXT) == Lineage()
        assert await texts(stores) == ["one", "one!", "two", "two!"]
        await turns(stores, "anew", context_id=FORK)
        assert [m.position for m in await stores.messages.records(FORK)] == [7, 8]

    async def test_lineage_is_listed_both_ways(self, stores: Stores) -> None:
        """Direct relatives only; an unknown context has none."""
        await turns(stores, "one", "two")
        await stores.journal.fork(CONTEXT, "b", at=2)
        await stores.journal.fork(CONTEXT, "c")
        await stores.journal.fork("b", "d", at=0)
        assert await stores.journal.lineage(CONTEXT) == Lineage(
            forks=(Branch(context_id="b", at=2), Branch(context_id="c", at=4))
        )
        assert await stores.journal.lineage("b") == Lineage(
            parent=Branch(context_id=CONTEXT, at=2), forks=(Branch(context_id="d", at=0),)
        )
        await stores.state.delete("b")
        assert await stores.journal.lineage(CONTEXT) == Lineage(
            forks=(Branch(context_id="c", at=4),)
        )
        assert (await stores.journal.lineage("d")).parent == Branch(context_id=None, at=0)
        for unknown in ("nobody", "no id"):
            assert await stores.journal.lineage(unknown) == Lineage()

    async def test_forks_made_at_once_are_all_whole(self, stores: Stores) -> None:
        """While the parent continues, and of one name exactly one is made."""
        await turns(stores, "one", "two")
        names = [f"f{n % 8}" for n in range(16)]
        found = await asyncio.gather(
            *(stores.journal.fork(CONTEXT, name, at=4) for name in names),
            turns(stores, "three", "four"),
            return_exceptions=True,
        )
        assert sum(isinstance(one, StoreConflict) for one in found) == 8
        for name in set(names):
            assert await texts(stores, name) == ["one", "one!", "two", "two!"]

    async def test_a_parent_deleted_at_once_is_forked_whole_or_not(self, stores: Stores) -> None:
        """Whoever is first."""
        await turns(stores, "one")
        made, _ = await asyncio.gather(
            stores.journal.fork(CONTEXT, FORK),
            stores.state.delete(CONTEXT),
            return_exceptions=True,
        )
        if isinstance(made, ContextNotFound):
            assert await stores.state.load(FORK) is None
        else:
            assert not isinstance(made, BaseException)
            assert await texts(stores, FORK) == ["one", "one!"]
        assert await stores.state.load(CONTEXT) is None

    # --- rewind ---

    @needing("journal.rewind")
    async def test_a_rewound_tail_is_hidden_and_kept(self, stores: Stores) -> None:
        """Positions and turns continue after it, and the log has an event of it."""
        await turns(stores, "one", "two", "three")
        epoch, event = await stores.journal.rewind(CONTEXT, 2)
        assert (event.covers, event.undone, event.seq) == ((3, 6), False, 13)
        found = await record_of(stores)
        assert (found.epoch, found.hidden, found.last_position) == (epoch, ((3, 6),), 6)
        assert await texts(stores) == ["one", "one!"]
        await turns(stores, "other")
        assert await texts(stores) == ["one", "one!", "other", "other!"]
        assert len(await texts(stores, hidden=True)) == 8
        assert [m.position for m in await stores.messages.records(CONTEXT)] == [1, 2, 7, 8]
        assert await stores.messages.count(CONTEXT) == 4
        assert await stores.messages.count(CONTEXT, include_hidden=True) == 8
        recent = await stores.messages.recent(CONTEXT, limit=3)
        assert [m.position for m in recent] == [2, 7, 8]
        events = await stores.journal.events(CONTEXT)
        assert [e.seq for e in events] == list(range(1, 18))
        assert events[12] == event
        assert isinstance(event, HistoryRewound)
        assert [t.turn for t in await stores.journal.turns(CONTEXT)] == [1, 2, 3, 4]

    @needing("journal.rewind", "journal.undo_rewind")
    async def test_a_rewind_is_undone_until_the_conversation_goes_on(self, stores: Stores) -> None:
        """Then the tail can still be forked from."""
        await turns(stores, "one", "two")
        await stores.journal.rewind(CONTEXT, 2)
        _, event = await stores.journal.undo_rewind(CONTEXT)
        assert (event.covers, event.undone) == ((3, 4), True)
        assert await texts(stores) == ["one", "one!", "two", "two!"]
        await stores.journal.rewind(CONTEXT, 2)
        await turns(stores, "other")
        with pytest.raises(StoreConflict, match="fork it at 4"):
            await stores.journal.undo_rewind(CONTEXT)
        await stores.journal.fork(CONTEXT, "tail", at=4)
        await stores.journal.fork(CONTEXT, "head")
        assert await texts(stores, "tail") == ["one", "one!", "two", "two!"]
        assert await texts(stores, "head") == ["one", "one!", "other", "other!"]

    @needing("journal.rewind", "journal.undo_rewind")
    async def test_rewinds_nest_and_reach_into_the_past_of_a_fork(self, stores: Stores) -> None:
        """To the very beginning as well; the parent is not changed."""
        await turns(stores, "one", "two")
        await stores.journal.fork(CONTEXT, FORK)
        await turns(stores, "three", context_id=FORK)
        await stores.journal.rewind(FORK, 3)
        await stores.journal.rewind(FORK, 2)
        assert await texts(stores, FORK) == ["one", "one!"]
        await stores.journal.undo_rewind(FORK)
        assert await texts(stores, FORK) == ["one", "one!", "two", "two!"]
        await stores.journal.rewind(FORK, 1)
        assert await texts(stores, FORK) == []
        await turns(stores, "anew", context_id=FORK)
        assert await texts(stores, FORK) == ["anew", "anew!"]
        assert await texts(stores) == ["one", "one!", "two", "two!"]

    @needing("journal.rewind", "journal.undo_rewind")
    async def test_a_rewind_to_an_invalid_turn_is_refused(self, stores: Stores) -> None:
        """No such turn, a hidden one, a cleared one, an open one; nothing is written."""
        await turns(stores, "one", "two", "three")
        await stores.journal.rewind(CONTEXT, 2)
        before = await stores.state.load(CONTEXT)
        for to in (0, 2, 3, 4, -1, True):
            with refuses(ValueRefused, path="/to"):
                await stores.journal.rewind(CONTEXT, to)
        assert await stores.state.load(CONTEXT) == before
        await begin(stores)
        with pytest.raises(AgentBusy):
            await stores.journal.rewind(CONTEXT, 1)
        with pytest.raises(AgentBusy):
            await stores.journal.undo_rewind(CONTEXT)
        await stores.journal.clear(CONTEXT, force=True)
        with pytest.raises(ValueRefused, match="cleared"):
            await stores.journal.rewind(CONTEXT, 1)
        with pytest.raises(ValueRefused, match="nothing"):
            await stores.journal.undo_rewind(CONTEXT)
        for unknown in ("nobody", "no id"):
            with pytest.raises(ContextNotFound):
                await stores.journal.rewind(unknown, 1)
            with pytest.raises(ContextNotFound):
                await stores.journal.undo_rewind(unknown)

    @needing("journal.rewind")
    async def test_a_rewind_fences_what_was_read_before(self, stores: Stores) -> None:
        """A claim with the old epoch is refused."""
        await a_turn(stores)
        old = (await record_of(stores)).epoch
        await stores.journal.rewind(CONTEXT, 1)
        with pytest.raises(StoreConflict):
            await begin(stores, old)

    @needing("journal.rewind", "journal.undo_rewind")
    async def test_a_summary_in_the_hidden_part_no_longer_counts(self, stores: Stores) -> None:
        """The one before it does, and it counts again when the rewind is undone."""
        await turns(stores, "one")
        for text in ("two", "three"):
            new = NewSummary(
                message=summary_message(f"before {text}", kept=0),
                epoch=(await record_of(stores)).epoch,
            )
            await stores.journal.compact(CONTEXT, new)
            await turns(stores, text)
        known = []
        for change in (
            stores.journal.rewind(CONTEXT, 2),
            stores.journal.undo_rewind(CONTEXT),
            stores.journal.rewind(CONTEXT, 3),
        ):
            await change
            known.append((await record_of(stores)).state.summary)
        assert known == [3, 6, 6]


async def _newest(stores: Stores, context_id: str) -> dict[str, object]:
    found = await stores.artifacts.list(context_id)
    return {a.artifact_id: await stores.artifacts.load(context_id, a.artifact_id) for a in found}


async def _whole(stores: Stores, context_id: str) -> object:
    return (
        await stores.messages.records(context_id),
        await stores.journal.events(context_id),
        await stores.journal.turns(context_id),
        await stores.artifacts.list(context_id),
    )
