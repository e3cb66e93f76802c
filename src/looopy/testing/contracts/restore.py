"""The contract of `ContextIndex.snapshot` and `restore`; see `looopy.testing.stores`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from looopy.errors import ContextNotFound, StoreConflict
from looopy.stores.bundle import Stores
from looopy.stores.contexts.log import StoredEvent
from looopy.stores.contexts.snapshot import RestoredContext, RestoredMessage
from looopy.stores.records import ContextState, EntryKind, NewSummary
from looopy.testing.contracts.turns import (
    CONTEXT,
    Contract,
    a_turn,
    answer,
    at_once,
    begin,
    commit,
    ends,
    finishes,
    for_each,
    needing,
    record_of,
    said,
    starts,
    user,
)
from looopy.types.artifact import ArtifactStatus
from looopy.types.event import AgentEvent, MessageEnd, TurnEnd
from looopy.types.message import StopReason, ToolCall
from looopy.types.summary import summary_message

_CALL = ToolCall("c1", "add", {"a": 1, "text": "h\u00e9 \U0001f600"})
_LARGE = bytes(range(256)) * 1200


async def fill(stores: Stores, context_id: str = CONTEXT) -> None:
    """Make a context with something of everything that a context can have."""
    at: dict[str, Any] = {"context_id": context_id}
    claimed = await begin(stores, actor_id="u1", metadata={"k": [1, None]}, **at)
    asked: list[AgentEvent] = [said(answer("I add", _CALL), **at), starts(_CALL, **at)]
    await commit(stores, claimed, asked, **at)
    await commit(stores, claimed, finishes(_CALL, "2", **at), **at)
    state = ContextState(needs_auth=True, run_us=7, resumable=1)
    end: list[AgentEvent] = [said(answer("2"), **at), ends(StopReason.AUTH_REQUIRED, **at)]
    await commit(stores, claimed, end, state=state, release=True, **at)
    await stores.messages.append(context_id, [user("from outside"), answer("yes")])
    record = await record_of(stores, context_id)
    summary = NewSummary(message=summary_message("so far", kept=1), epoch=record.epoch)
    await stores.journal.compact(context_id, summary)
    for text in ("one", "two"):
        await stores.journal.post(context_id, EntryKind.STEER, user(text), actor_id="u1")
    await stores.state.save(context_id, {"title": "A"}, version=0)
    await stores.contexts.tag(context_id, add=["work", "a b"])
    save = stores.artifacts.save
    await save(context_id, "file", b"first", description="d", metadata={"m": 1})
    await save(context_id, "file", _LARGE)
    await save(context_id, "data", {"deep": {"x": [1, 2.5, "\u20ac"]}})
    await save(context_id, "wide", {"text": "y" * 100_000})
    rows = [{"n": n, "s": "x" * 100} for n in range(1500)]
    await save(context_id, "rows", rows, columns={"n": "integer", "s": "string"})
    await stores.artifacts.open(context_id, "given up")
    await stores.artifacts.append(context_id, "given up", b"half")
    await stores.artifacts.fail(context_id, "given up")
    await stores.artifacts.open(context_id, "growing")
    await stores.artifacts.append(context_id, "growing", _LARGE[:70_000])
    await stores.artifacts.open(context_id, "young")
    await stores.artifacts.append(context_id, "young", b"little")


async def told(stores: Stores, context_id: str = CONTEXT) -> dict[str, Any]:
    """Everything that the public methods return of a context, but its epoch."""
    artifacts = {}
    for one in await stores.artifacts.list(context_id):
        for version in await stores.artifacts.versions(context_id, one.artifact_id):
            place = (one.artifact_id, version.version)
            artifacts[place] = (version, await stores.artifacts.load(context_id, *place))
    return {
        "record": replace(await record_of(stores, context_id), epoch=0),
        "messages": await stores.messages.records(context_id, include_hidden=True),
        "events": await stores.journal.events(context_id),
        "turns": await stores.journal.turns(context_id),
        "started": [await stores.journal.started_calls(context_id, turn) for turn in (1, 2)],
        "inbox": await stores.journal.inbox(context_id),
        "artifacts": artifacts,
    }


async def exported(stores: Stores, *context_ids: str) -> bytes:
    """An archive of contexts."""
    from looopy.stores.archive.writing import export_contexts

    return b"".join([piece async for piece in export_contexts(stores, context_ids or CONTEXT)])


async def imported(stores: Stores, archive: bytes, **others: Any) -> Any:
    """Import an archive, owners included."""
    from looopy.stores.archive.importing import import_contexts

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(archive), 100_000):
            yield archive[start : start + 100_000]

    return await import_contexts(stores, stream(), **{"keep_owners": True, **others})


class _ClearingJournal:
    """A journal whose context is cleared when its turns have been read."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.looked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stores.journal, name)

    async def turns(self, context_id: str, **bounds: Any) -> Any:
        found = await self._stores.journal.turns(context_id, **bounds)
        await self._stores.journal.clear(context_id)
        self.looked = True
        return found


async def _filled(stores: Stores) -> bytes:
    """An archive of a context with something of everything, which is in `stores`."""
    await fill(stores)
    return await exported(stores)


class RestoreContract(Contract):
    """A whole context goes out of a store and into another one, and is what it was."""

    needs = ("contexts.snapshot", "contexts.log_page", "contexts.restore", "contexts.tag")

    async def test_a_restored_context_is_what_it_was(self, stores: Stores) -> None:
        """Message for message, byte for byte; and its archive has the same bytes."""
        filled = await _filled(stores)
        other = stores.for_tenant("other")
        await imported(other, filled)
        assert await told(other) == await told(stores)
        assert await exported(other) == filled

    async def test_it_is_found_and_listed(self, stores: Stores) -> None:
        """By owner, tag, metadata, what is due, and the words in it."""
        filled = await _filled(stores)
        other = stores.for_tenant("other")
        await imported(other, filled)
        conditions: list[dict[str, Any]] = [
            {"owner": "u1"},
            {"tags": ["work", "a b"]},
            {"metadata": {"title": "A"}},
            {"due": True},
            {"status": "waiting"},
        ]
        listed = [await other.contexts.list(**condition) for condition in conditions]
        assert [[one.context_id for one in page.items] for page in listed] == [[CONTEXT]] * 5
        found = [(await theirs.contexts.search("outside")).items for theirs in (stores, other)]
        assert found[0] == found[1] != []

    async def test_it_continues(self, stores: Stores) -> None:
        """Turns, messages, inbox, metadata and artifacts continue where they were."""
        filled = await _filled(stores)
        other = stores.for_tenant("other")
        await imported(other, filled)
        before = await record_of(other)
        assert before.holder is None
        assert await other.state.wait_queue(CONTEXT) == []
        assert await other.state.save(CONTEXT, {"title": "B"}, version=1) == 2
        number = await other.journal.post(CONTEXT, EntryKind.STEER, user("3"), actor_id="u1")
        assert number == before.inbox.last + 1
        grown = await other.artifacts.append(CONTEXT, "growing", b"!", last=True)
        assert grown.status is ArtifactStatus.COMPLETE
        assert await other.artifacts.load(CONTEXT, "growing") == _LARGE[:70_000] + b"!"
        assert (await other.artifacts.save(CONTEXT, "file", b"next")).version == 3
        last_row = await other.artifacts.rows(CONTEXT, "rows", after=1499)
        assert last_row == [{"n": 1499, "s": "x" * 100}]
        await a_turn(other)
        after = await record_of(other)
        assert (after.turn_count, after.last_position) == (2, before.last_position + 2)
        events = await other.journal.events(CONTEXT, after=before.last_seq)
        assert [event.seq for event in events] == [*range(before.last_seq + 1, after.last_seq + 1)]

    async def test_an_open_turn_is_one_whose_process_died(self, stores: Stores) -> None:
        """It is restored as far as it was stored, without its lease, and can be recovered."""
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", _CALL)), starts(_CALL)])
        other = stores.for_tenant("other")
        await imported(other, await exported(stores))
        found = await record_of(other)
        assert found.open_turn == (await record_of(stores)).open_turn
        assert (found.holder, found.lease_live) == (None, False)
        assert await other.journal.started_calls(CONTEXT, 1) == {"c1"}
        taken = await begin(other, found.epoch, recover=True, holder="holder-2")
        await commit(other, taken, finishes(_CALL, "lost"), assistant_position=2)
        await commit(other, taken, [ends(StopReason.INTERRUPTED)], release=True)
        assert (await record_of(other)).open_turn is None
        assert len(await other.journal.events(CONTEXT)) == 7

    async def test_a_cleared_context_begins_where_its_log_does(self, stores: Stores) -> None:
        """Nothing that was cleared is in the archive; numbers continue."""
        await a_turn(stores, text="a secret")
        await stores.artifacts.save(CONTEXT, "doc", b"a secret")
        await stores.journal.clear(CONTEXT)
        archive = await exported(stores)
        assert b"a secret" not in archive
        other = stores.for_tenant("other")
        await imported(other, archive)
        assert await told(other) == await told(stores)
        await a_turn(other)
        assert [one.position for one in await other.messages.records(CONTEXT)] == [3, 4]

    async def test_an_empty_context_is_one_too(self, stores: Stores) -> None:
        """Metadata alone makes a context."""
        await stores.state.save(CONTEXT, {"a": 1}, version=0)
        other = stores.for_tenant("other")
        await imported(other, await exported(stores))
        assert await told(other) == await told(stores)

    @needing("journal.fork", "journal.rewind", "journal.undo_rewind")
    async def test_a_fork_becomes_a_context_of_its_own(self, stores: Stores) -> None:
        """With the past that it shared; what a rewind hid stays hidden, and can be shown again."""
        await a_turn(stores)
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "doc", _LARGE)
        await a_turn(stores)
        await stores.journal.fork(CONTEXT, "fork", at=4)
        await stores.journal.rewind(CONTEXT, 3)
        archive = await exported(stores, CONTEXT, "fork")
        before = [await told(stores, name) for name in (CONTEXT, "fork")]
        other = stores.for_tenant("other")
        await imported(other, archive)
        assert [await told(other, name) for name in (CONTEXT, "fork")] == before
        assert (await other.journal.lineage("fork")).parent is None
        assert len(await other.messages.list(CONTEXT)) == 4
        await other.journal.undo_rewind(CONTEXT)
        assert len(await other.messages.list(CONTEXT)) == 6
        await other.state.delete(CONTEXT)
        assert await other.artifacts.load("fork", "doc") == _LARGE

    async def test_contexts_are_restored_all_or_none(self, stores: Stores) -> None:
        """One that exists already keeps all others out."""
        for name in ("a", "b", "c"):
            await begin(stores, context_id=name)
        archive = await exported(stores, "c", "a", "b")
        other = stores.for_tenant("other")
        await other.state.save("b", {}, version=0)
        with pytest.raises(StoreConflict):
            await imported(other, archive)
        assert [one.context_id for one in await other.state.list()] == ["b"]
        await other.state.delete("b")
        await imported(other, archive)
        assert [one.context_id for one in await other.state.list()] == ["a", "b", "c"]

    async def test_of_two_at_once_one_is_kept(self, stores: Stores) -> None:
        """The other one finds that the context exists."""
        filled = await _filled(stores)
        other = stores.for_tenant("other")

        async def one() -> str:
            try:
                await imported(other, filled)
            except StoreConflict:
                return "exists"
            return "made"

        assert sorted(await at_once(one(), one())) == ["exists", "made"]
        assert await told(other) == await told(stores)

    async def test_a_failure_in_the_middle_leaves_nothing(self, stores: Stores) -> None:
        """Rows that were written before it are gone."""
        await a_turn(stores)
        record = replace(await record_of(stores), context_id="new")

        def broken() -> Iterator[RestoredMessage | StoredEvent]:
            yield StoredEvent(1, 1, 0, "error", 0, None, '{"code":"a","text":"b","fatal":false}')
            raise ValueError("the rest is missing")

        given = RestoredContext(record=record, turns=list, log=broken, versions=list)
        with pytest.raises(ValueError, match="missing"):
            await stores.contexts.restore([given])
        assert await stores.state.load("new") is None
        assert await stores.journal.events("new") == []

    async def test_restoring_no_contexts_does_nothing(self, stores: Stores) -> None:
        """No contexts at all."""
        none: Sequence[RestoredContext] = ()
        await stores.contexts.restore(none)
        assert await stores.state.list() == []

    @for_each(["unknown", "no id!", "nul \0"])
    async def test_an_unknown_context_has_no_snapshot(self, stores: Stores, name: str) -> None:
        """Nor has one of another tenant."""
        await a_turn(stores)
        for theirs in (stores, stores.for_tenant("other")):
            with pytest.raises(ContextNotFound):
                await theirs.contexts.snapshot(CONTEXT if theirs is not stores else name)

    @needing("journal.fork")
    async def test_a_page_of_the_log_has_few_bytes(self, stores: Stores) -> None:
        """All of them together are the log, of a fork too; ends of turns name no messages."""
        for size in (10, 3_000, 10, 9_000):
            await a_turn(stores, text="x" * size)
        await stores.journal.fork(CONTEXT, "fork", at=6)
        await stores.messages.append("fork", [user("é" * 2_500), user("é" * 2_500)])
        for name in (CONTEXT, "fork"):
            whole = await stores.journal.events(name)
            for most_bytes, limit in ((1, 100), (4_000, 100), (7_000, 3), (2**30, 2), (2**30, 99)):
                found: list[AgentEvent] = []
                bounds = {"limit": limit, "most_bytes": most_bytes}
                while page := await stores.contexts.log_page(name, after=len(found), **bounds):
                    assert len(page) <= limit
                    ends = [e.message.text for e in page if isinstance(e, MessageEnd)]
                    sizes = [len(text.encode()) for text in ends]
                    assert len(sizes) < 2 or sum(sizes) <= most_bytes
                    found += page
                assert [(e.seq, e.type) for e in found] == [(e.seq, e.type) for e in whole]
                both = zip(found, whole, strict=True)
                assert all(a == b for a, b in both if not isinstance(a, TurnEnd))
                assert not any(e.messages for e in found if isinstance(e, TurnEnd))
        assert await stores.contexts.log_page("unknown") == []
        assert await stores.for_tenant("other").contexts.log_page(CONTEXT) == []

    async def test_a_context_that_is_cleared_meanwhile_is_not_exported(
        self, stores: Stores
    ) -> None:
        """The export says so, rather than giving half of it."""
        await fill(stores)
        from looopy.stores.archive.writing import export_contexts

        with pytest.raises(StoreConflict, match="while it was exported"):  # noqa: PT012 - as it runs
            async for _ in export_contexts(stores, CONTEXT):
                await stores.journal.clear(CONTEXT)

    async def test_a_context_that_is_cleared_at_the_end_is_not_exported(
        self, stores: Stores
    ) -> None:
        """Not even if all of it that is left to read needs no store."""
        from looopy.stores.archive.writing import export_contexts

        await a_turn(stores)
        await a_turn(stores)
        clears: Any = _ClearingJournal(stores)
        parts = (stores.messages, stores.artifacts, stores.state)
        theirs = Stores(*parts, clears, contexts=stores.contexts)
        with pytest.raises(StoreConflict, match="while it was exported"):
            async for _ in export_contexts(theirs, CONTEXT):
                pass
        assert clears.looked

    async def test_turns_that_run_meanwhile_are_not_in_it(self, stores: Stores) -> None:
        """The archive is of the moment at which it was begun."""
        from looopy.stores.archive.writing import export_contexts

        filled = await _filled(stores)
        pieces: list[bytes] = []
        async for piece in export_contexts(stores, CONTEXT):
            if not pieces:
                await a_turn(stores)
                for name in ("growing", "young"):
                    await stores.artifacts.append(CONTEXT, name, b"more")
                await stores.artifacts.save(CONTEXT, "file", b"new")
            pieces.append(piece)
        assert b"".join(pieces) == filled
