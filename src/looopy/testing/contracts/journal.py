"""The contract of a `Journal`: claim, commit, log; see `looopy.testing.stores`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from looopy.errors import (
    AgentBusy,
    ArtifactNotFound,
    CommitsLost,
    ContextNotFound,
    Fenced,
    StoreConflict,
    ValueRefused,
)
from looopy.stores.bundle import Stores
from looopy.stores.records import (
    ArtifactChange,
    ArtifactDeletion,
    ArtifactGrowth,
    ArtifactMoved,
    ArtifactWrite,
    Commit,
    Committed,
    ContextState,
    EntryKind,
    NewSummary,
)
from looopy.testing.contracts.state import STATE
from looopy.testing.contracts.turns import (
    AT,
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
    numbers,
    opening,
    record_of,
    refuses,
    result,
    said,
    starts,
    user,
)
from looopy.types.artifact import ArtifactKind, ArtifactStatus
from looopy.types.event import (
    AgentEvent,
    ArtifactUpdate,
    AuthRequired,
    HistoryCleared,
    InputRequired,
    MessageEnd,
    TurnEnd,
    TurnError,
)
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.state import Outcome
from looopy.types.summary import summary_message

_ADD = ToolCall("call-1", "add", {"a": 1, "b": [2.5]})
_SEND = ToolCall("call-2", "send", {"to": "bob"})
_DELETION = ArtifactDeletion(artifact_id="report")
_DELETED = ArtifactUpdate(
    artifact_id="report", kind=ArtifactKind.FILE, version=0, deleted=True, **AT
)


def _as_replayed(
    committed: Sequence[AgentEvent], *, turn: int, messages: Sequence[Message], position: int = 1
) -> list[AgentEvent]:
    """The events of a turn as they must come back: numbered, placed, the end with messages."""
    shown: list[AgentEvent] = []
    for seq, event in enumerate(committed, start=1):
        changed: dict[str, Any] = {"turn": turn, "seq": seq}
        if isinstance(event, MessageEnd):
            changed["position"] = position
            position += 1
        if isinstance(event, TurnEnd):
            changed["messages"] = tuple(messages)
            changed["iteration"] = max(e.iteration for e in committed if isinstance(e, MessageEnd))
        shown.append(replace(event, **changed))
    return shown


async def _epoch(stores: Stores) -> int:
    return (await record_of(stores)).epoch


def _seqs(events: Sequence[AgentEvent]) -> list[int | None]:
    return [event.seq for event in events]


class JournalContract(Contract):
    """Commits, the fence, the log, and clearing."""

    # --- commits ---

    async def test_every_durable_event_is_replayed_as_committed(self, stores: Stores) -> None:
        """Events of every type come back in order, with the numbers of their commits."""
        first = opening("hello")
        claimed = await stores.state.claim(a_claim(0, text=None, events=first))
        groups: list[list[AgentEvent]] = [
            [said(answer("let me see", _ADD, _SEND)), starts(_ADD), starts(_SEND)],
            [
                ArtifactUpdate(
                    iteration=1,
                    artifact_id="doc",
                    kind=ArtifactKind.DATA,
                    version=3,
                    append=True,
                    last_chunk=False,
                    **AT,
                ),
                *finishes(_SEND, "sent"),
            ],
            finishes(_ADD, "3.5"),
            [
                InputRequired(iteration=1, pending=STATE.pending, **AT),
                AuthRequired(iteration=2, pending=STATE.pending, **AT),
                TurnError(iteration=2, code="budget", text="too dear", fatal=True, **AT),
            ],
            [
                said(answer("done"), iteration=2),
                ends(StopReason.BUDGET, usage=Usage(input=14, output=6, total_tokens=20)),
            ],
        ]
        committed = list(first)
        position = 2
        for group in groups:
            assistant = 2 if position > 2 else None
            done = await commit(stores, claimed, group, assistant_position=assistant)
            assert done == Committed(first_seq=len(committed) + 1, first_position=position)
            position += sum(isinstance(e, MessageEnd) for e in group)
            committed += group
        messages = await stores.messages.list(CONTEXT)
        assert messages == [e.message for e in committed if isinstance(e, MessageEnd)]
        expected = _as_replayed(committed, turn=1, messages=messages)
        assert await stores.journal.events(CONTEXT) == expected

    async def test_a_call_started_later_is_shown_with_its_arguments(self, stores: Stores) -> None:
        """Name and arguments come from the assistant's message of an earlier commit."""
        claimed = await begin(stores)
        done = await commit(stores, claimed, [said(answer("", _ADD, _SEND)), starts(_ADD)])
        await commit(stores, claimed, [starts(_SEND)], assistant_position=done.first_position)
        shown = (await stores.journal.events(CONTEXT, after=4))[0]
        assert shown == replace(starts(_SEND), seq=5, turn=1)
        assert await stores.journal.started_calls(CONTEXT, 1) == {"call-1", "call-2"}

    async def test_a_commit_keeps_all_parts_of_a_step(self, stores: Stores) -> None:
        """Messages, events, turn, state and lease change together."""
        claimed = await begin(stores)
        usage = Usage(input=7, output=3, total_tokens=10)
        group: list[AgentEvent] = [said(answer("hi")), ends(usage=usage)]
        done = await commit(stores, claimed, group, state=STATE, release=True)
        assert done == Committed(first_seq=3, first_position=2)
        found = await record_of(stores)
        assert (found.last_seq, found.last_position, found.open_turn) == (4, 2, None)
        assert (found.holder, found.lease_live, found.state) == (None, False, STATE)
        (turn,) = await stores.journal.turns(CONTEXT)
        assert (turn.outcome, turn.stop_reason) == (Outcome.COMPLETED, StopReason.STOP)
        assert (turn.start_seq, turn.end_seq) == (1, 4)
        assert (turn.first_position, turn.last_position) == (1, 2)
        assert (turn.ended_at, turn.usage) == (WHEN, usage)

    async def test_an_empty_commit_renews_the_lease(self, stores: Stores) -> None:
        """It takes no number, and may replace the state alone."""
        claimed = await begin(stores, ttl_s=0)
        done = await commit(stores, claimed, state=STATE)
        assert done == Committed(first_seq=3, first_position=2)
        found = await record_of(stores)
        assert (found.lease_live, found.last_seq, found.state) == (True, 2, STATE)

    async def test_an_owner_that_is_late_but_not_displaced_may_write(self, stores: Stores) -> None:
        """Expiry only permits a takeover: the epoch decides, never a clock."""
        claimed = await begin(stores, ttl_s=0)
        done = await commit(stores, claimed, [said(answer("late"))], ttl_s=0)
        assert done == Committed(first_seq=3, first_position=2)

    async def test_a_fenced_commit_writes_nothing(self, stores: Stores) -> None:
        """An older or newer epoch than the stored one, or an unknown context, is `Fenced`."""
        claimed = await begin(stores, ttl_s=0)
        taken = await begin(stores, claimed.epoch, holder="h2", recover=True)
        before = await stores.state.load(CONTEXT)
        events = await stores.journal.events(CONTEXT)
        group: list[AgentEvent] = [said(answer("x", _ADD)), starts(_ADD), ends()]
        for epoch in (claimed.epoch, taken.epoch + 1, 0, -1):
            with pytest.raises(Fenced):
                await commit(stores, replace(claimed, epoch=epoch), group, state=STATE)
        assert await stores.state.load(CONTEXT) == before
        assert await stores.journal.events(CONTEXT) == events
        for context_id in ("nobody", "no id"):
            lost = Commit(context_id=context_id, epoch=1, turn=1, events=())
            with pytest.raises(Fenced):
                await stores.commit(lost)
        assert await stores.state.load("nobody") is None

    async def test_a_commit_ahead_of_the_store_writes_nothing(self, stores: Stores) -> None:
        """`CommitsLost` if the owner knows of a `seq` that the store has not come to."""
        claimed = await begin(stores)
        done = await commit(stores, claimed, [said(answer("a"))], known_seq=2)
        known = {"known_seq": done.first_seq}
        before = await stores.state.load(CONTEXT)
        events = await stores.journal.events(CONTEXT)
        group: list[AgentEvent] = [said(answer("c")), ends()]
        with pytest.raises(CommitsLost):
            await commit(stores, claimed, group, known_seq=done.first_seq + 1, state=STATE)
        with pytest.raises(CommitsLost):
            await commit(stores, claimed, group, context_id="nobody", **known)
        assert await stores.state.load(CONTEXT) == before
        assert await stores.journal.events(CONTEXT) == events
        await commit(stores, claimed, group, heard=0, release=True, **known)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [ends()], **known)

    async def test_an_artifact_and_its_event_are_one_commit(self, stores: Stores) -> None:
        """The event has the version of the commit; a stale owner stores neither."""
        claimed = await begin(stores, ttl_s=0)
        await stores.artifacts.save(CONTEXT, "report", "first")
        write = ArtifactWrite(
            artifact_id="report",
            kind=ArtifactKind.DATA,
            stored='{"n":2}',
            media_type="application/json",
        )
        update = ArtifactUpdate(
            context_id=CONTEXT, turn=1, artifact_id="report", kind=write.kind, version=0
        )
        done = await commit(stores, claimed, [update], artifact=write, ttl_s=0)
        assert done.artifact == (await stores.artifacts.list(CONTEXT))[0]
        assert await stores.artifacts.load(CONTEXT, "report") == {"n": 2}
        (shown,) = await stores.journal.events(CONTEXT, after=2)
        assert isinstance(shown, ArtifactUpdate)
        assert (shown.seq, shown.version) == (done.first_seq, 2)
        await begin(stores, claimed.epoch, holder="h2", recover=True)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [update], artifact=write)
        assert (await stores.artifacts.list(CONTEXT))[0].version == 2
        assert len(await stores.journal.events(CONTEXT, after=2)) == 1

    async def test_several_artifacts_are_changed_in_one_commit(self, stores: Stores) -> None:
        """In order, each with its event; and none of them if one cannot be changed."""
        claimed = await begin(stores)
        await stores.artifacts.save(CONTEXT, "report", b"first")
        write = ArtifactWrite(
            artifact_id="report", kind=ArtifactKind.FILE, stored=b"2", media_type="text/plain"
        )
        begun = replace(write, artifact_id="log", status=ArtifactStatus.BUILDING, sha256="")
        grown = ArtifactGrowth(artifact_id="log", version=1, size_before=1, tail=b"2more", size=5)
        changes: list[ArtifactChange] = [write, begun, _DELETION, write, grown]
        told = [
            ArtifactUpdate(
                context_id=CONTEXT,
                turn=1,
                artifact_id=change.artifact_id,
                kind=ArtifactKind.DATA,
                version=0,
                deleted=change is _DELETION,
            )
            for change in changes
        ]
        before = await stores.state.load(CONTEXT)
        for wrong in (
            replace(grown, size_before=2),
            replace(grown, artifact_id="report", version=1, size_before=1),
        ):
            with pytest.raises(ArtifactMoved):
                await commit(stores, claimed, told, artifacts=[*changes[:-1], wrong])
        gone = replace(_DELETION, artifact_id="nothing")
        with pytest.raises(ArtifactNotFound):
            await commit(stores, claimed, told, artifacts=[*changes[:-1], gone], state=STATE)
        assert await stores.state.load(CONTEXT) == before
        assert await stores.artifacts.load(CONTEXT, "report") == b"first"
        assert [one.artifact_id for one in await stores.artifacts.list(CONTEXT)] == ["report"]
        done = await commit(stores, claimed, [*told, said(answer("x"))], artifacts=changes)
        newest = await stores.artifacts.list(CONTEXT)
        assert [(one.artifact_id, one.version, one.turn) for one in newest] == [
            ("log", 1, 1),
            ("report", 1, 1),
        ]
        assert await stores.artifacts.read(CONTEXT, "log", version=1) == b"2more"
        shown = [
            (event.seq, event.artifact_id, event.version, event.kind)
            for event in await stores.journal.events(CONTEXT, after=2)
            if isinstance(event, ArtifactUpdate)
        ]
        file, seq = ArtifactKind.FILE, done.first_seq
        assert shown == [
            (seq, "report", 2, file),
            (seq + 1, "log", 1, file),
            (seq + 2, "report", 2, file),
            (seq + 3, "report", 1, file),
            (seq + 4, "log", 1, file),
        ]

    async def test_a_deleted_artifact_and_its_event_are_one_commit(self, stores: Stores) -> None:
        """The commit deletes all versions; the event has the kind and the version of the newest."""
        claimed = await begin(stores)
        await stores.artifacts.save(CONTEXT, "report", {"n": 1})
        saved = await stores.artifacts.save(CONTEXT, "report", {"n": 2})
        await stores.artifacts.save(CONTEXT, "other", "kept")
        done = await commit(stores, claimed, [_DELETED], artifact=_DELETION)
        assert done.artifact == saved
        assert [one.artifact_id for one in await stores.artifacts.list(CONTEXT)] == ["other"]
        for version in (None, 1, 2):
            with pytest.raises(ArtifactNotFound):
                await stores.artifacts.load(CONTEXT, "report", version)
        (shown,) = await stores.journal.events(CONTEXT, after=2)
        assert isinstance(shown, ArtifactUpdate)
        assert (shown.seq, shown.deleted) == (done.first_seq, True)
        assert (shown.kind, shown.version) == (ArtifactKind.DATA, 2)
        assert (await stores.artifacts.save(CONTEXT, "report", "new")).version == 1

    async def test_a_stale_owner_deletes_no_artifact(self, stores: Stores) -> None:
        """The commit is `Fenced`: the artifact stays, and no event is stored."""
        claimed = await begin(stores, ttl_s=0)
        await begin(stores, claimed.epoch, holder="h2", recover=True)
        await stores.artifacts.save(CONTEXT, "report", "of the successor")
        before = await stores.state.load(CONTEXT)
        with pytest.raises(Fenced):
            await commit(stores, claimed, [_DELETED], artifact=_DELETION)
        assert await stores.artifacts.load(CONTEXT, "report") == b"of the successor"
        assert await stores.state.load(CONTEXT) == before

    async def test_deleting_no_artifact_commits_nothing(self, stores: Stores) -> None:
        """The commit raises `ArtifactNotFound`, uses no number, and leaves the state."""
        claimed = await begin(stores)
        await stores.artifacts.save(CONTEXT, "other", "kept")
        before = await stores.state.load(CONTEXT)
        gone = _DELETION
        with pytest.raises(ArtifactNotFound):
            await commit(stores, claimed, [_DELETED], artifact=gone, state=STATE)
        assert await stores.state.load(CONTEXT) == before
        assert await stores.journal.events(CONTEXT, after=2) == []
        assert (await commit(stores, claimed, [said(answer("fine"))])).first_seq == 3

    async def test_one_bad_value_refuses_the_whole_commit(self, stores: Stores) -> None:
        """Nothing of it is written and no number is used up."""
        claimed = await begin(stores)
        bad = result(_ADD, "nul \0")
        group: list[AgentEvent] = [said(answer("fine")), MessageEnd(message=bad, **AT), ends()]
        with pytest.raises(ValueRefused) as refused:
            await commit(stores, claimed, group, state=STATE)
        assert (refused.value.path or "").startswith("/1/content")
        done = await commit(stores, claimed, [said(answer("fine"))])
        assert done == Committed(first_seq=3, first_position=2)

    async def test_the_end_of_a_turn_is_committed_once(self, stores: Stores) -> None:
        """A second end of the same turn raises `ValueError`, and changes nothing."""
        claimed = await begin(stores)
        await commit(stores, claimed, [ends()])
        with pytest.raises(ValueError, match="open"):
            await commit(stores, claimed, [ends(StopReason.ERROR)])
        (turn,) = await stores.journal.turns(CONTEXT)
        assert turn.stop_reason is StopReason.STOP

    async def test_concurrent_commits_get_numbers_without_gaps(self, stores: Stores) -> None:
        """Results of parallel tools: each commit is whole, each number is used once."""
        claimed = await begin(stores)
        calls = [ToolCall(f"c{n}", "t", {"n": n}) for n in range(16)]
        await commit(stores, claimed, [said(answer("", *calls)), *map(starts, calls)])
        done = await at_once(*(commit(stores, claimed, finishes(one, one.id)) for one in calls))
        events = await stores.journal.events(CONTEXT)
        assert _seqs(events) == list(range(1, 2 + 17 + 32 + 1))
        for call, committed in zip(calls, done, strict=True):
            end, message = events[committed.first_seq - 1 :][:2]
            assert getattr(end, "tool_call_id", None) == call.id
            assert isinstance(message, MessageEnd)
            assert message.position == committed.first_position
            assert isinstance(message.message, ToolResultMessage)
            assert message.message.tool_call_id == call.id

    # --- the log ---

    async def test_the_log_is_gapless_over_many_turns(self, stores: Stores) -> None:
        """`seq` counts 1, 2, 3 within the context, for events of turns and of appended messages."""
        for n in range(5):  # each round raises the epoch twice
            await a_turn(stores, text=f"q{n}", reply=f"a{n}")
            await stores.messages.append(CONTEXT, [CustomMessage("note", str(n), timestamp=1)])
        events = await stores.journal.events(CONTEXT)
        assert _seqs(events) == list(range(1, 26))
        kinds = ["turn_start", "message_end", "message_end", "turn_end", "message_end"]
        assert [e.type for e in events] == kinds * 5
        assert [e.turn for e in events] == [n for n in range(1, 6) for _ in range(5)]

    async def test_every_page_of_the_log_is_a_part_of_the_whole(self, stores: Stores) -> None:
        """For each `after` and each limit: the next events, in order, none twice."""
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", _ADD, _SEND)), starts(_ADD)])
        await commit(stores, claimed, finishes(_ADD, "1"))
        await commit(
            stores, claimed, [*finishes(_SEND, "2"), said(answer("ok")), ends()], release=True
        )
        await stores.messages.append(CONTEXT, [user("aside"), user("aside")])
        await a_turn(stores)
        await begin(stores, text="open")
        whole = await stores.journal.events(CONTEXT)
        assert _seqs(whole) == list(range(1, len(whole) + 1))
        for after in range(-1, len(whole) + 2):
            rest = whole[max(after, 0) :]
            assert await stores.journal.events(CONTEXT, after=after) == rest
            for limit in (0, 1, 2, 3, 5, 8):
                page = await stores.journal.events(CONTEXT, after=after, limit=limit)
                assert page == rest[:limit]
        assert await stores.journal.events(CONTEXT, after=2**70, limit=2**70) == []

    async def test_an_unknown_context_has_no_log(self, stores: Stores) -> None:
        """Reading an unknown context is not an error, and creates nothing."""
        for context_id in ("nobody", "no id"):
            assert await stores.journal.events(context_id) == []
            assert await stores.journal.turns(context_id) == []
            assert await stores.journal.started_calls(context_id, 1) == set()
        assert await stores.state.list() == []

    async def test_turns_are_read_in_order_in_pages(self, stores: Stores) -> None:
        """After a number, oldest first, at most a limit; the open one last."""
        for _ in range(4):
            await a_turn(stores)
        await begin(stores, metadata={"k": 1})
        turns = await stores.journal.turns(CONTEXT)
        assert [t.turn for t in turns] == [1, 2, 3, 4, 5]
        assert [t.outcome for t in turns] == [Outcome.COMPLETED] * 4 + [None]
        assert turns[4].metadata == {"k": 1}
        assert await stores.journal.turns(CONTEXT, after=1, limit=2) == turns[1:3]
        assert await stores.journal.turns(CONTEXT, after=-5, limit=1) == turns[:1]
        assert await stores.journal.turns(CONTEXT, after=5) == []
        assert await stores.journal.turns(CONTEXT, limit=0) == []

    @for_each([-1, 1.5, True, "5"])
    async def test_an_invalid_limit_is_refused(self, stores: Stores, limit: Any) -> None:
        """A wrong limit is refused for turns and for events, also of an unknown context."""
        await a_turn(stores)
        for context_id in (CONTEXT, "unknown"):
            for asked in (
                stores.journal.turns(context_id, limit=limit),
                stores.journal.events(context_id, limit=limit),
            ):
                with refuses(ValueRefused, path="/limit"):
                    await asked

    async def test_started_calls_are_those_of_their_turn(self, stores: Stores) -> None:
        """Calls without a stored start, and calls of other turns, are not among them."""
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", _ADD, _SEND)), starts(_ADD)])
        await commit(stores, claimed, [ends(StopReason.INTERRUPTED)], release=True)
        second = await begin(stores)
        await commit(stores, second, [said(answer("", _SEND)), starts(_SEND)])
        assert await stores.journal.started_calls(CONTEXT, 1) == {"call-1"}
        assert await stores.journal.started_calls(CONTEXT, 2) == {"call-2"}
        assert await stores.journal.started_calls(CONTEXT, 3) == set()

    async def test_a_number_out_of_range_reads_no_other_context(self, stores: Stores) -> None:
        """A number out of range never leads into the context beside this one."""
        around = ("ada-1", CONTEXT, "ada-3")
        for name in around:
            claimed = await begin(stores, context_id=name, text=name)
            said_so = said(answer("", _ADD), context_id=name)
            await commit(stores, claimed, [said_so, starts(_ADD, context_id=name)], context_id=name)
        turns = await stores.journal.turns(CONTEXT)
        events_of_it = await stores.journal.events(CONTEXT)
        messages = await stores.messages.list(CONTEXT)
        assert (len(turns), len(messages)) == (1, 2)
        for far in (2**31, 2**32, 2**33, 2**62, 2**63 - 1, 2**70):
            for place in (far, far + 1, far - 1):
                for before in (-place, 0, -1):
                    assert await stores.journal.turns(CONTEXT, after=before) == turns
                    assert await stores.journal.events(CONTEXT, after=before) == events_of_it
                    assert await stores.messages.list(CONTEXT, after=before) == messages
                assert await stores.journal.turns(CONTEXT, after=place) == []
                assert await stores.journal.events(CONTEXT, after=place) == []
                assert await stores.messages.list(CONTEXT, after=place) == []
                for turn in (place, -place):
                    assert await stores.journal.started_calls(CONTEXT, turn) == set()

    # --- clearing ---

    async def test_a_summary_is_appended_with_its_event(self, stores: Stores) -> None:
        """It takes the next numbers and raises the epoch, and the state has its position."""
        await a_turn(stores)
        before = await record_of(stores)
        message = summary_message("hi was said", kept=1)
        new = NewSummary(message=message, epoch=before.epoch, tokens_before=9, tokens_after=4)
        epoch, event = await stores.journal.compact(CONTEXT, new)
        assert epoch > before.epoch
        assert (event.covers, event.position, event.seq) == ((1, 1), 3, before.last_seq + 2)
        found = await record_of(stores)
        assert (found.epoch, found.turn_count, found.last_position) == (epoch, 1, 3)
        assert found.state == replace(before.state, summary=3)
        said, told = await stores.journal.events(CONTEXT, after=before.last_seq)
        assert isinstance(said, MessageEnd)
        assert (said.position, said.message) == (3, message)
        assert told == event
        assert (await stores.messages.list(CONTEXT))[-1] == message
        (turn,) = await stores.journal.turns(CONTEXT)
        assert turn.last_position == 2
        again = await stores.state.claim(a_claim(epoch))
        assert again.first_position == 4

    async def test_an_empty_summary_undoes_one_and_usage_is_added(self, stores: Stores) -> None:
        """The state then has no position of a summary; the usage of both is counted."""
        await a_turn(stores)
        before = await record_of(stores)
        usage = Usage(input=5, output=2, total_tokens=7)
        new = NewSummary(message=summary_message("x", kept=0), epoch=before.epoch, usage=usage)
        epoch, _ = await stores.journal.compact(CONTEXT, new)
        message = summary_message("", kept=3)
        _, event = await stores.journal.compact(
            CONTEXT, NewSummary(message=message, epoch=epoch, undoes=3)
        )
        assert (event.covers, event.position, event.undoes) == ((1, 0), 4, 3)
        assert (await stores.journal.events(CONTEXT))[-1] == event
        found = await record_of(stores)
        assert found.state == replace(before.state, usage=before.state.usage + usage)

    async def test_a_summary_of_another_epoch_is_refused(self, stores: Stores) -> None:
        """Another epoch, an invalid text, no context or an open turn: nothing is written."""
        await a_turn(stores)
        before = await record_of(stores)
        message = summary_message("x", kept=0)
        for epoch in (before.epoch - 1, before.epoch + 1):
            with pytest.raises(StoreConflict):
                await stores.journal.compact(CONTEXT, NewSummary(message=message, epoch=epoch))
        unstorable = summary_message("x\ud800", kept=0)
        with pytest.raises(ValueRefused):
            await stores.journal.compact(
                CONTEXT, NewSummary(message=unstorable, epoch=before.epoch)
            )
        assert await stores.state.load(CONTEXT) == before
        for context_id in ("nobody", "no id"):
            with pytest.raises(ContextNotFound):
                await stores.journal.compact(context_id, NewSummary(message=message, epoch=0))
        claimed = await begin(stores, before.epoch)
        with refuses(AgentBusy, turn=2):
            await stores.journal.compact(CONTEXT, NewSummary(message=message, epoch=claimed.epoch))

    async def test_clearing_hides_everything_and_goes_on(self, stores: Stores) -> None:
        """History, artifacts and requests are deleted; numbers, counts and usage continue."""
        await a_turn(stores)
        await stores.artifacts.save(CONTEXT, "doc", b"x")
        second = await begin(stores, state=STATE)
        await commit(stores, second, [ends(StopReason.INPUT_REQUIRED)], release=True)
        await stores.state.save(CONTEXT, {"title": "kept"}, version=0)
        epoch = await stores.journal.clear(CONTEXT)
        assert epoch > second.epoch
        found = await record_of(stores)
        assert found.epoch == epoch
        assert (found.turn_count, found.last_position, found.last_seq) == (2, 3, 8)
        assert (found.visible_from, found.cleared_seq, found.holder) == (4, 8, None)
        assert found.state == ContextState(**STATE.sums)
        assert found.metadata == {"title": "kept"}
        assert await stores.artifacts.list(CONTEXT) == []
        assert await stores.messages.list(CONTEXT, include_hidden=True) == []

    async def kept(self, stores: Stores) -> str:
        """
        All data of the store, as text.

        A backend overrides this if it keeps more than its methods return.
        """
        return repr(
            (
                await stores.state.load(CONTEXT),
                await stores.messages.list(CONTEXT, include_hidden=True),
                await stores.artifacts.list(CONTEXT),
                await stores.journal.events(CONTEXT),
                await stores.journal.turns(CONTEXT),
                await stores.journal.inbox(CONTEXT),
            )
        )

    @for_each([False, True])
    async def test_clearing_deletes_all_content(self, stores: Stores, force: bool) -> None:
        """Messages, events, metadata of turns, artifacts, requests and the inbox are deleted."""
        canary = ToolCall("call-1", "add", {"word": "canary"})
        await stores.messages.append(CONTEXT, [user("canary appended")])
        first = await begin(stores, metadata={"about": "canary of a turn"})
        await commit(stores, first, [said(answer("canary", canary)), starts(canary)])
        await commit(stores, first, finishes(canary, "canary"))
        await commit(stores, first, [said(answer("a canary")), ends()], release=True)
        await stores.artifacts.save(CONTEXT, "canary.txt", b"canary")
        new = NewSummary(message=summary_message("canary", kept=0), epoch=await _epoch(stores))
        await stores.journal.compact(CONTEXT, new)
        pending = replace(STATE.pending[0], prompt="canary?")
        state = replace(STATE, pending=(pending,), answered=(), held=())
        second = await begin(stores, state=state)
        asked = InputRequired(pending=(pending,), **AT)
        await commit(stores, second, [asked])
        await stores.journal.post(CONTEXT, EntryKind.FOLLOW_UP, user("canary posted"))
        if not force:
            await commit(stores, second, [ends(StopReason.INPUT_REQUIRED)], release=True)
        assert (await self.kept(stores)).count("canary") >= 11
        await stores.journal.clear(CONTEXT, force=force)
        assert "canary" not in await self.kept(stores)
        await a_turn(stores, text="new", reply="newer")
        kept = await stores.messages.list(CONTEXT)
        assert [m.text for m in kept if isinstance(m, UserMessage | AssistantMessage)] == [
            "new",
            "newer",
        ]
        assert [t.turn for t in await stores.journal.turns(CONTEXT)] == [1, 2, 3]

    async def test_the_log_begins_at_the_newest_clearing(self, stores: Stores) -> None:
        """An `after` below it gets that event first; earlier events are not readable."""
        await a_turn(stores, text="secret", reply="secret")
        await stores.journal.clear(CONTEXT)
        for after in (0, 1, 4):
            (cleared,) = await stores.journal.events(CONTEXT, after=after)
            assert isinstance(cleared, HistoryCleared)
            assert (cleared.seq, cleared.covers, cleared.turn) == (5, (1, 2), 1)
        assert await stores.journal.events(CONTEXT, after=5) == []
        await a_turn(stores, text="new", reply="new")
        events = await stores.journal.events(CONTEXT)
        assert _seqs(events) == [5, 6, 7, 8, 9]
        assert "secret" not in repr(events)
        assert isinstance(events[-1], TurnEnd)
        assert list(events[-1].messages) == await stores.messages.list(CONTEXT)
        await stores.journal.clear(CONTEXT)
        events = await stores.journal.events(CONTEXT)
        assert [(e.type, e.seq) for e in events] == [("history_cleared", 10)]

    async def test_clearing_under_an_open_turn_is_refused(self, stores: Stores) -> None:
        """The refusal, under a live or an expired lease, names the turn and changes nothing."""
        for context_id, ttl_s in (("live", LONG_S), ("dead", 0.0)):
            await begin(stores, context_id=context_id, ttl_s=ttl_s)
            before = await stores.state.load(context_id)
            with refuses(AgentBusy, turn=1):
                await stores.journal.clear(context_id)
            assert await stores.state.load(context_id) == before

    async def test_clearing_by_force_ends_and_fences_the_turn(self, stores: Stores) -> None:
        """The turn ends as interrupted, and a late commit cannot bring the history back."""
        claimed = await begin(stores)
        await commit(stores, claimed, [said(answer("", _ADD)), starts(_ADD)])
        assert await stores.journal.clear(CONTEXT, force=True) > claimed.epoch
        with pytest.raises(Fenced):
            await commit(stores, claimed, finishes(_ADD, "late"), assistant_position=2)
        assert not await stores.state.renew(CONTEXT, claimed.epoch, LONG_S)
        found = await record_of(stores)
        assert (found.open_turn, found.holder, found.last_seq) == (None, None, 6)
        (turn,) = await stores.journal.turns(CONTEXT)
        assert (turn.outcome, turn.stop_reason) == (Outcome.INTERRUPTED, StopReason.INTERRUPTED)
        assert (turn.end_seq, turn.last_position) == (5, 2)
        assert await stores.messages.list(CONTEXT) == []
        claimed = await begin(stores, found.epoch, text="afresh")
        assert numbers(claimed) == (2, 7, 3)

    async def test_clearing_an_empty_context_is_recorded_too(self, stores: Stores) -> None:
        """The event covers no message."""
        await stores.state.save(CONTEXT, {}, version=0)
        assert await stores.journal.clear(CONTEXT) == (await record_of(stores)).epoch
        (cleared,) = await stores.journal.events(CONTEXT)
        assert isinstance(cleared, HistoryCleared)
        assert cleared.covers == (1, 0)

    async def test_clearing_an_unknown_context_is_not_found(self, stores: Stores) -> None:
        """It raises `ContextNotFound`, with or without force."""
        for context_id in ("nobody", "no id"):
            for force in (False, True):
                with pytest.raises(ContextNotFound):
                    await stores.journal.clear(context_id, force=force)
