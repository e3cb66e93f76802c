"""The contracts of erasing contexts and of retention; see `looopy.testing.stores`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from looopy.errors import AgentBusy, Fenced, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.contexts.erasing import Erased
from looopy.stores.records import (
    ArtifactWrite,
    Claimed,
    ContextRecord,
    ContextState,
    EntryKind,
    NewSummary,
)
from looopy.testing.contracts.turns import (
    CONTEXT,
    LONG_S,
    Contract,
    a_claim,
    answer,
    at_once,
    begin,
    commit,
    ends,
    finishes,
    for_each,
    needing,
    record_of,
    refuses,
    said,
    skip_what_is_left_out,
    starts,
    user,
    waiting_for_approval,
)
from looopy.types.artifact import ArtifactKind
from looopy.types.event import AgentEvent, ArtifactUpdate, InputRequired, TurnError
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
)
from looopy.types.state import PendingKind, PendingRequest
from looopy.types.summary import is_summary, summary_message

_CALL = ToolCall(id="call-1", name="look", arguments={"at": "a secret place"})
_LARGE = 200_000


async def _turn(
    stores: Stores,
    name: str = CONTEXT,
    *,
    actor: str | None = "ann",
    words: str = "secret",
    close: bool = True,
) -> Claimed:
    """A turn with a call, which ends only if *close*."""
    record = await stores.state.load(name)
    epoch = record.epoch if record else 0
    place: dict[str, Any] = {"context_id": name}
    call = replace(_CALL, arguments={"at": words})
    claimed = await begin(
        stores,
        epoch,
        text=f"tell me of {words}",
        actor_id=actor,
        key=f"{words}-{epoch}",
        input_hash="h",
        metadata={"of": words},
        **place,
    )
    asked: list[AgentEvent] = [said(answer(words, call), **place), starts(call, **place)]
    await commit(stores, claimed, asked, **place)
    if close:
        done = [*finishes(call, f"found {words}", **place), ends(**place)]
        at = claimed.first_position + 1
        await commit(stores, claimed, done, assistant_position=at, release=True, **place)
    return claimed


async def a_whole_context(
    stores: Stores, name: str = CONTEXT, *, actor: str | None = "ann", words: str = "secret"
) -> Claimed:
    """A context with a row of every kind, and *words* in each; the claim of its last turn."""
    await _turn(stores, name, actor=actor, words=words)
    claimed = await _turn(stores, name, actor=actor, words=words)
    await stores.artifacts.save(name, "plan", f"first {words}")
    await stores.artifacts.save(name, f"plan of {words}", {"plan": words})
    await stores.artifacts.save(name, "plan", f"second {words}")
    await stores.artifacts.save(name, "map", words * (_LARGE // len(words)))
    posted = user(f"later: {words}")
    await stores.journal.post(name, EntryKind.FOLLOW_UP, posted, actor_id=actor)
    await stores.state.join_wait_queue(name, "somebody", LONG_S)
    await stores.state.save(name, {"topic": words}, version=0)
    await stores.contexts.tag(name, add=[words])
    await stores.contexts.list()
    await stores.contexts.search(words, context_id=name)
    return claimed


async def _left(stores: Stores, name: str = CONTEXT) -> Sequence[object]:
    """All that the stores still have about a context."""
    return [
        await stores.state.load(name),
        *await stores.messages.list(name, include_hidden=True),
        *await stores.journal.events(name),
        *await stores.journal.turns(name),
        *await stores.artifacts.list(name),
        *(await stores.journal.inbox(name))[1],
        *await stores.state.wait_queue(name),
    ]


async def _names(stores: Stores) -> list[str]:
    return [record.context_id for record in await stores.state.list()]


class ErasureContract(Contract):
    """An erased context is gone, and the report says what was in it."""

    needs = ("contexts.erase", "contexts.erase_person", "contexts.tag")

    async def test_an_erased_context_leaves_no_row(self, stores: Stores) -> None:
        """Nothing of any kind is left, and its key may be used again."""
        await a_whole_context(stores)
        found = await stores.contexts.erase(CONTEXT)
        assert found.context_ids == (CONTEXT,)
        assert await _left(stores) == [None]
        assert await stores.journal.turn_of_key(CONTEXT, "secret-0") is None
        page = await stores.contexts.list()
        assert page.items == []

    async def test_the_report_counts_what_was_there(self, stores: Stores) -> None:
        """As it could be counted before, kind by kind."""
        await a_whole_context(stores)
        events = len(await stores.journal.events(CONTEXT))
        messages = await stores.messages.count(CONTEXT, include_hidden=True)
        found = await stores.contexts.erase(CONTEXT)
        assert (found.contexts, found.turns, found.artifacts) == (1, 2, 3)
        assert (found.messages, found.events) == (messages, events)
        assert (found.inbox, found.keys) == (1, 2)

    async def test_an_erasure_does_not_count_cleared_rows(self, stores: Stores) -> None:
        """Messages and events that are gone already; turns and keys had stayed."""
        await a_whole_context(stores)
        await stores.journal.clear(CONTEXT)
        found = await stores.contexts.erase(CONTEXT)
        assert (found.messages, found.events, found.artifacts) == (0, 1, 0)
        assert (found.turns, found.keys) == (2, 2)

    async def test_an_unknown_context_has_nothing_to_erase(self, stores: Stores) -> None:
        """Not even one whose id no context can have; so erasing twice is not an error."""
        for name in (CONTEXT, "../etc", "", "x" * 300):
            assert await stores.contexts.erase(name) == Erased()
        await a_whole_context(stores)
        assert (await stores.contexts.erase(CONTEXT)).contexts == 1
        assert await stores.contexts.erase(CONTEXT) == Erased()

    async def test_others_are_not_touched(self, stores: Stores) -> None:
        """Neither contexts with nearly the same name nor artifacts of equal content."""
        for name in (CONTEXT, f"{CONTEXT}a", "ad"):
            await a_whole_context(stores, name)
        others = [f"{CONTEXT}a", "ad"]
        before = [await _left(stores, name) for name in others]
        await stores.contexts.erase(CONTEXT)
        assert [await _left(stores, name) for name in others] == before
        for name in others:
            assert await stores.artifacts.load(name, "map") == b"secret" * (_LARGE // 6)

    async def test_only_for_its_owner(self, stores: Stores) -> None:
        """Another's context answers like none, even in the middle of a turn."""
        await a_whole_context(stores)
        before = await _left(stores)
        assert await stores.contexts.erase(CONTEXT, owner="bob") == Erased()
        assert await _left(stores) == before
        await _turn(stores, "running", close=False)
        assert await stores.contexts.erase("running", owner="bob", force=True) == Erased()
        assert (await stores.contexts.erase(CONTEXT, owner="ann")).contexts == 1

    async def test_not_for_another_tenant(self, stores: Stores) -> None:
        """Neither by name nor by person."""
        await a_whole_context(stores)
        before = await _left(stores)
        stranger = stores.for_tenant("stranger")
        assert await stranger.contexts.erase(CONTEXT, force=True) == Erased()
        assert await stranger.contexts.erase_person("ann", force=True) == Erased()
        assert await _left(stores) == before

    async def test_a_running_turn_refuses_it(self, stores: Stores) -> None:
        """With its number; nothing is erased."""
        claimed = await _turn(stores, close=False)
        before = await _left(stores)
        with refuses(AgentBusy, turn=claimed.turn):
            await stores.contexts.erase(CONTEXT)
        with refuses(AgentBusy, turn=claimed.turn):
            await stores.contexts.erase_person("ann")
        assert await _left(stores) == before

    async def test_force_fences_a_running_turn(self, stores: Stores) -> None:
        """Its owner can neither commit nor renew, even if the name is used again."""
        claimed = await _turn(stores, close=False)
        assert (await stores.contexts.erase(CONTEXT, force=True)).contexts == 1
        for made_again in (False, True):
            if made_again:
                await stores.state.save(CONTEXT, {"new": True}, version=0)
            with refuses(Fenced):
                await commit(stores, claimed, finishes(_CALL, "a secret"))
            assert not await stores.state.renew(CONTEXT, claimed.epoch, LONG_S)
        assert await stores.messages.count(CONTEXT) == 0

    async def test_a_turn_whose_lease_is_over_does_not(self, stores: Stores) -> None:
        """It runs no more, or is fenced as with force."""
        claimed = await begin(stores, ttl_s=0)
        assert (await stores.contexts.erase(CONTEXT)).contexts == 1
        with refuses(Fenced):
            await commit(stores, claimed, [ends()])

    async def test_a_claim_of_an_erased_context_is_refused(self, stores: Stores) -> None:
        """The next turn has to read the context again, and finds none."""
        claimed = await a_whole_context(stores)
        await stores.contexts.erase(CONTEXT)
        with refuses(StoreConflict):
            await stores.state.claim(a_claim(claimed.epoch))
        with refuses(StoreConflict):
            await stores.state.save(CONTEXT, {}, version=1)
        assert await _names(stores) == []

    async def test_the_name_begins_anew(self, stores: Stores) -> None:
        """Positions, turns and versions as in any new context."""
        await a_whole_context(stores)
        await stores.contexts.erase(CONTEXT)
        claimed = await begin(stores)
        assert (claimed.turn, claimed.first_position, claimed.first_seq) == (1, 1, 1)
        large = b"secret" * (_LARGE // 6)
        assert (await stores.artifacts.save(CONTEXT, "map", large)).version == 1
        assert await stores.artifacts.load(CONTEXT, "map") == large
        assert (await record_of(stores)).metadata == {}

    async def test_at_once_with_itself(self, stores: Stores) -> None:
        """One of them erases, and both find it gone."""
        await a_whole_context(stores)
        found = await at_once(*(stores.contexts.erase(CONTEXT) for _ in range(4)))
        assert sum(one.messages for one in found) == 6
        assert await _left(stores) == [None]

    # --- by person ---

    async def test_all_contexts_of_a_person(self, stores: Stores) -> None:
        """Those that belong to the actor of their first turn, and no others."""
        for number in range(40):
            await _turn(stores, f"a{number:02}")
        await a_whole_context(stores, "whole")
        await _turn(stores, "bobs", actor="bob")
        await _turn(stores, "nobodys", actor=None)
        found = await stores.contexts.erase_person("ann")
        assert found.contexts == 41
        assert found.context_ids == (*(f"a{number:02}" for number in range(40)), "whole")
        assert (found.turns, found.messages, found.artifacts) == (42, 126, 3)
        assert await _names(stores) == ["bobs", "nobodys"]
        assert await stores.contexts.erase_person("ann") == Erased()

    async def test_a_running_context_refuses_all(self, stores: Stores) -> None:
        """Before anything is erased; force ends that turn."""
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        claimed = await _turn(stores, "b", close=False)
        with refuses(AgentBusy, turn=claimed.turn):
            await stores.contexts.erase_person("ann")
        assert await _names(stores) == ["a", "b", "c"]
        assert (await stores.contexts.erase_person("ann", force=True)).contexts == 3

    async def test_a_person_needs_a_name(self, stores: Stores) -> None:
        """`None` would be everybody without one."""
        for name in (None, "nul \0", 7):
            with refuses(ValueRefused, path="/actor_id"):
                await stores.contexts.erase_person(name)  # type: ignore[arg-type] # the point
        with refuses(ValueRefused, path="/owner"):
            await stores.contexts.erase(CONTEXT, owner="nul \0")


def _asked(turn: int) -> PendingRequest:
    """A request of a guest's turn."""
    return PendingRequest(
        request_id="r1",
        kind=PendingKind.APPROVAL,
        tool_name="pay",
        args={"to": "bobs-words"},
        tool_call_id="c1",
        turn=turn,
        prompt="bobs-words",
    )


async def _guest_turn(stores: Stores, *, close: bool = True) -> Claimed:
    """A turn of Bob in Ann's context, with his words in a row of every kind."""
    claimed = await _turn(stores, actor="bob", words="bobs-words", close=False)
    write = ArtifactWrite(
        artifact_id="report",
        kind=ArtifactKind.FILE,
        stored=b"bobs-words",
        media_type="text/plain",
        description="bobs-words",
        metadata='{"of":"bobs-words"}',
    )
    update = ArtifactUpdate(
        context_id=CONTEXT, turn=claimed.turn, artifact_id="report", kind=write.kind, version=0
    )
    await commit(stores, claimed, [update], artifact=write)
    await stores.journal.post(CONTEXT, EntryKind.STEER, user("bobs-words"), actor_id="bob")
    if close:
        request = _asked(claimed.turn)
        error = TurnError(context_id=CONTEXT, code="c", text="bobs-words", fatal=False)
        asked = InputRequired(context_id=CONTEXT, pending=(request,))
        done = [*finishes(_CALL, "bobs-words"), error, asked, ends(StopReason.INPUT_REQUIRED)]
        at = claimed.first_position + 1
        state = ContextState(pending=(request,), error=("E", "bobs-words"), resumable=2)
        others: dict[str, Any] = {"state": state, "assistant_position": at, "release": True}
        await commit(stores, claimed, done, **others)
    return claimed


async def _saves(
    stores: Stores, claimed: Claimed, content: str, *, name: str = CONTEXT, anew: bool = False
) -> None:
    """A version of the report, as the tool `append_file_chunk` makes it."""
    write = ArtifactWrite(
        artifact_id="report",
        kind=ArtifactKind.FILE,
        stored=content.encode(),
        media_type="text/plain",
        description=content,
    )
    place: dict[str, Any] = {"context_id": name, "turn": claimed.turn}
    update = ArtifactUpdate(**place, artifact_id="report", kind=write.kind, version=0, anew=anew)
    call = ToolCall(id="append", name="append_file_chunk", arguments={"artifact_id": "report"})
    place = {"context_id": name}
    await commit(stores, claimed, [said(answer("", call), **place), starts(call, **place)], **place)
    await commit(stores, claimed, [update], artifact=write, **place)
    done = [*finishes(call, f"saved: {content}", **place), ends(**place)]
    await commit(stores, claimed, done, state=ContextState(), release=True, **place)


class RedactionContract(Contract):
    """The words of an erased person leave their places in the contexts of others."""

    needs = ("contexts.erase_person",)

    async def test_a_redacted_turn_keeps_its_form_without_its_words(self, stores: Stores) -> None:
        """Positions, calls with their results, and numbers stay; so do the turns of the owner."""
        await _turn(stores)
        await _guest_turn(stores)
        await _turn(stores)
        before = await stores.messages.records(CONTEXT)
        logged = await stores.journal.events(CONTEXT)
        found = await stores.contexts.erase_person("bob")
        assert (found.contexts, found.redacted_ids, found.redacted) == (0, (CONTEXT,), 3)
        assert (found.inbox, found.keys) == (1, 1)
        after = await stores.messages.records(CONTEXT)
        assert [(r.position, r.turn, r.message.role) for r in after] == [
            (r.position, r.turn, r.message.role) for r in before
        ]
        assert [*after[:3], *after[6:]] == [*before[:3], *before[6:]]
        asked, called, answered = (r.message for r in after[3:6])
        assert asked == replace(user("[erased]"), timestamp=before[3].message.timestamp)
        assert isinstance(called, AssistantMessage)
        assert called.tool_calls == [replace(_CALL, arguments={})]
        assert isinstance(answered, ToolResultMessage)
        assert (answered.tool_call_id, answered.text) == (_CALL.id, "[erased]")
        again = await stores.journal.events(CONTEXT)
        assert [(e.seq, e.type) for e in again] == [(e.seq, e.type) for e in logged]
        turns = await stores.journal.turns(CONTEXT)
        assert [turn.actor_id for turn in turns] == ["ann", None, "ann"]

    async def test_their_words_are_nowhere(self, stores: Stores) -> None:
        """In messages, events, turns, state, artifacts and inbox."""
        await _turn(stores)
        await _guest_turn(stores)
        assert "bobs-words" in await self._all_of(stores)
        await stores.contexts.erase_person("bob")
        assert "bobs-words" not in await self._all_of(stores)
        (report,) = await stores.artifacts.list(CONTEXT)
        assert (report.version, report.size, report.status) == (1, 0, "failed")
        assert await stores.artifacts.load(CONTEXT, "report", 1) == b""
        state = (await record_of(stores)).state
        assert (state.pending, state.error, state.resumable) == ((), None, None)
        assert await stores.contexts.erase_person("bob") == Erased()

    async def _all_of(self, stores: Stores, name: str = CONTEXT) -> str:
        held = [
            await stores.artifacts.load(name, one.artifact_id, one.version)
            for one in await stores.artifacts.list(name)
        ]
        return repr([await _left(stores, name), held])

    @needing("journal.fork")
    @for_each(["there", "deleted"])
    async def test_versions_that_repeat_theirs_go_as_well(
        self, stores: Stores, parent: str
    ) -> None:
        """Up to one that owes nothing to them; the results of the calls go with them."""

        async def save(content: str, *, name: str = CONTEXT, anew: bool = False) -> None:
            epoch = (await record_of(stores, name)).epoch
            claimed = await begin(stores, epoch, actor_id="ann", text="more", context_id=name)
            await _saves(stores, claimed, content, name=name, anew=anew)

        await _turn(stores)
        await _guest_turn(stores)
        large = "bobs-words" * 10_000
        await save(large)
        await stores.journal.fork(CONTEXT, "fork")
        await save("ann alone", anew=True)
        await save("ann alone, and more")
        await save("the fork adds to bobs-words", name="fork")
        await stores.journal.fork("fork", "second")
        await save("the second adds to bobs-words", name="second")
        names = [CONTEXT, "fork", "second"]
        if parent == "deleted":
            await stores.state.delete(names.pop(1))
        found = await stores.contexts.erase_person("bob")
        assert found.redacted_ids == tuple(sorted(names))
        assert found.redacted == (17 if parent == "there" else 12)
        for name in names:
            said = repr(await _left(stores, name))
            held = [
                await stores.artifacts.load(name, "report", one.version)
                for one in await stores.artifacts.versions(name, "report")
            ]
            assert "bobs-words" not in f"{said} {held}"
            assert "append_file_chunk" in said
            own = [b"ann alone", b"ann alone, and more"] if name == CONTEXT else [b""]
            assert held[:4] == [b"", b"", *own, *([b""] if name == "second" else [])]
        assert await stores.contexts.erase_person("bob") == Erased()

    @needing("journal.fork")
    @for_each(["there", "deleted"])
    async def test_forks_lose_what_their_parent_loses(self, stores: Stores, parent: str) -> None:
        """Summaries of a fork go as well, and an agent that knows the fork reads it again."""
        await _turn(stores)
        await _guest_turn(stores)
        await _turn(stores)
        await stores.journal.fork(CONTEXT, "fork")
        await stores.journal.fork("fork", "second")
        if parent == "deleted":
            await stores.artifacts.delete(CONTEXT, "report")
            await stores.state.delete(CONTEXT)
        known = await record_of(stores, "fork")
        told = NewSummary(message=summary_message("of bobs-words", kept=0), epoch=known.epoch)
        await stores.journal.compact("fork", told)
        before = await record_of(stores, "fork")
        assert "bobs-words" in await self._all_of(stores, "fork")
        await stores.contexts.erase_person("bob")
        for name in ("fork", "second"):
            assert "bobs-words" not in await self._all_of(stores, name)
            assert not (await stores.contexts.search("bobs", context_id=name)).items
            assert len(await stores.messages.list(name)) >= 9
        after = await record_of(stores, "fork")
        assert after.epoch > before.epoch
        assert after.created_at != before.created_at
        assert after.state.summary is None
        page = await stores.contexts.list()
        assert {one.context_id for one in page.items} <= {CONTEXT, "fork", "second"}
        assert await stores.contexts.erase_person("bob") == Erased()

    @needing("journal.fork")
    async def test_a_fork_that_is_made_on_the_way_is_redacted(self, stores: Stores) -> None:
        """It was not there when the contexts of the person were looked for. Their own fork goes."""
        await _turn(stores)
        await _guest_turn(stores)
        await _turn(stores, "bobs", actor="bob")
        redact = stores.contexts.redact  # type: ignore[attr-defined] # of a backend

        async def forks_first(name: str, actor_id: str, *, force: bool) -> Any:
            if await stores.state.load("fork") is None:
                await stores.journal.fork(CONTEXT, "fork")
                await stores.journal.fork("bobs", "bobs-fork")
            return await redact(name, actor_id, force=force)

        stores.contexts.redact = forks_first  # type: ignore[attr-defined] # as above
        report = await stores.contexts.erase_person("bob")
        assert report.redacted_ids == (CONTEXT, "fork")
        assert sorted(report.context_ids) == ["bobs", "bobs-fork"]
        for name in report.redacted_ids:
            assert "bobs-words" not in await self._all_of(stores, name)

    async def test_a_later_summary_is_emptied(self, stores: Stores) -> None:
        """It may contain them; an earlier one stays, and the messages are seen again."""
        await _turn(stores)
        for epoch_words in ("of ann", "of bobs-words"):
            if epoch_words != "of ann":
                await _guest_turn(stores)
            record = await record_of(stores)
            told = NewSummary(message=summary_message(epoch_words, kept=0), epoch=record.epoch)
            await stores.journal.compact(CONTEXT, told)
        before = await record_of(stores)
        await stores.contexts.erase_person("bob")
        record = await record_of(stores)
        assert (before.state.summary, record.state.summary) == (8, None)
        texts = [m.text for m in await stores.messages.list(CONTEXT) if is_summary(m)]
        assert texts == ["of ann", ""]

    @for_each(["cleared", "rewound", "forked"])
    async def test_turns_of_others_with_the_same_numbers_stay(
        self, stores: Stores, gone: str
    ) -> None:
        """Also the results, requests, summaries and artifacts of calls with the same ids."""
        await _turn(stores)
        name = CONTEXT
        if gone == "forked":
            skip_what_is_left_out(stores, ["journal.fork"])
            await stores.journal.fork(CONTEXT, "fork")
            name = "fork"
        await _guest_turn(stores)
        if gone == "cleared":
            await stores.journal.clear(CONTEXT)
        elif gone == "rewound":
            skip_what_is_left_out(stores, ["journal.rewind"])
            claimed = await begin(stores, actor_id="bob", text="bobs-words")
            await commit(stores, claimed, [said(answer("", _CALL)), ends()], release=True)
            await stores.journal.rewind(CONTEXT, 2)
            await stores.artifacts.delete(CONTEXT, "report")
        claimed = await _turn(stores, name)
        epoch = (await record_of(stores, name)).epoch
        told = NewSummary(message=summary_message("of ann", kept=0), epoch=epoch)
        await stores.journal.compact(name, told)
        summary = (await record_of(stores, name)).state.summary
        claimed = await begin(stores, context_id=name, actor_id="ann", text="again")
        await _saves(stores, claimed, "ann's report", name=name, anew=True)
        claimed = await begin(stores, context_id=name, actor_id="ann", text="and again")
        asked = replace(_asked(claimed.turn), tool_call_id=_CALL.id, args={}, prompt="of ann")
        events: list[AgentEvent] = [said(answer("", _CALL), context_id=name)]
        events.append(ends(StopReason.INPUT_REQUIRED, context_id=name))
        state = ContextState(pending=(asked,), summary=summary)
        await commit(stores, claimed, events, context_id=name, state=state, release=True)
        before = [await _left(stores, name), await self._all_of(stores, name)]
        found = await stores.contexts.erase_person("bob")
        assert found.redacted == {"cleared": 0, "rewound": 5, "forked": 3}[gone]
        after = [await _left(stores, name), await self._all_of(stores, name)]
        if gone == "forked":
            assert after == before
        shown = await stores.messages.list(name)
        assert "[erased]" not in repr(shown)
        assert [m.text for m in shown if is_summary(m)] == ["of ann"]
        assert await stores.artifacts.load(name, "report") == b"ann's report"
        record = await record_of(stores, name)
        assert (record.state.pending, record.state.summary) == ((asked,), summary)
        assert "bobs-words" not in str(after)

    async def test_no_part_of_an_answer_repeats_them(self, stores: Stores) -> None:
        """Tokens with their probabilities, thinking, and the provider's name for the answer."""
        await _turn(stores)
        claimed = await begin(stores, actor_id="bob", text="bobs-words")
        told = replace(
            answer("bobs-words"),
            response_id="bobs-words",
            error_message="bobs-words",
            logprobs=(TokenLogprob("bobs-words", -0.1, ()),),
        )
        await commit(stores, claimed, [said(told), ends()], release=True)
        await stores.contexts.erase_person("bob")
        assert "bobs-words" not in await self._all_of(stores)
        message = (await stores.messages.list(CONTEXT))[-1]
        assert isinstance(message, AssistantMessage)
        assert (message.model, message.usage) == (told.model, told.usage)

    async def test_a_redacted_result_keeps_the_turn_of_another_person(self, stores: Stores) -> None:
        """It got its result there. Questions and answers of others there stay."""
        await _turn(stores)
        theirs = replace(_CALL, arguments={"at": "bobs-words"})
        claimed = await begin(stores, actor_id="bob", text="bobs-words")
        asked = replace(_asked(claimed.turn), tool_call_id=_CALL.id)
        waits = InputRequired(context_id=CONTEXT, pending=(asked,))
        events: list[AgentEvent] = [said(answer("", theirs)), waits]
        events.append(ends(StopReason.INPUT_REQUIRED))
        state = ContextState(pending=(asked,))
        await commit(stores, claimed, events, state=state, release=True)
        at = claimed.first_position + 1
        waits = InputRequired(context_id=CONTEXT, pending=(asked,))
        claimed = await begin(stores, actor_id="ann", text=None)
        events = [starts(theirs), waits, *finishes(theirs, "bobs-words"), said(answer("of ann"))]
        events.append(ends())
        others: dict[str, Any] = {"state": ContextState(), "assistant_position": at}
        await commit(stores, claimed, events, release=True, **others)
        await _turn(stores)
        await stores.contexts.erase_person("bob")
        assert "bobs-words" not in await self._all_of(stores)
        texts = [m.text for m in await stores.messages.list(CONTEXT)]
        assert texts[3:7] == ["[erased]", "", "[erased]", "of ann"]
        assert "[erased]" not in texts[7:]

    async def test_an_answer_of_others_stays_and_theirs_is_asked_again(
        self, stores: Stores
    ) -> None:
        """An answer that may be theirs came in a later turn than its question."""
        for turn, actor in enumerate(("ann", "bob", "ann"), 1):
            claimed = await begin(stores, actor_id=actor)
            first, second = (replace(_asked(n), request_id=f"r{n}") for n in (1, 3))
            state = ContextState(answered=[(first, True), (second, True)], resumable=3)
            over = {"state": state} if turn == 3 else {}
            await commit(stores, claimed, [ends(StopReason.INTERRUPTED)], release=True, **over)
        await stores.contexts.erase_person("bob")
        state = (await record_of(stores)).state
        assert [one.request_id for one in state.pending] == ["r1"]
        assert [one.request_id for one, _ in state.answered] == ["r3"]
        assert state.resumable == 3

    async def test_a_summary_that_cannot_tell_of_them_stays(self, stores: Stores) -> None:
        """It covers what came before them; the one that was made of it and of them does not."""
        await _turn(stores)
        await _guest_turn(stores)
        for text, kept in (("of ann", 3), ("of all", 0), ("of all and since", 0)):
            epoch = (await record_of(stores)).epoch
            new = NewSummary(message=summary_message(text, kept=kept), epoch=epoch)
            await stores.journal.compact(CONTEXT, new)
        await stores.contexts.erase_person("bob")
        texts = [m.text for m in await stores.messages.list(CONTEXT) if is_summary(m)]
        assert texts == ["of ann", "", ""]

    async def test_a_claim_of_a_redacted_context_is_refused(self, stores: Stores) -> None:
        """Neither a claim nor a summary of what they knew is taken."""
        await _turn(stores)
        await _guest_turn(stores)
        known = await record_of(stores)
        await stores.contexts.erase_person("bob")
        told = NewSummary(message=summary_message("bobs-words", kept=0), epoch=known.epoch)
        with refuses(StoreConflict):
            await stores.journal.compact(CONTEXT, told)
        with refuses(StoreConflict):
            await stores.state.claim(a_claim(known.epoch))
        record = await record_of(stores)
        assert record.created_at > known.created_at
        assert record.version > known.version
        assert (await begin(stores, record.epoch)).turn == known.turn_count + 1

    async def test_a_running_turn_refuses_it_or_is_fenced(self, stores: Stores) -> None:
        """Whoever runs it: its process has what was said in memory."""
        await _turn(stores)
        await _guest_turn(stores)
        theirs = await _turn(stores, close=False)
        with refuses(AgentBusy, turn=theirs.turn):
            await stores.contexts.erase_person("bob")
        assert "bobs-words" in await self._all_of(stores)
        assert (await stores.contexts.erase_person("bob", force=True)).redacted == 3
        with refuses(Fenced):
            await commit(stores, theirs, [said(answer("bobs-words"))])
        record = await record_of(stores)
        assert record.open_turn is not None  # as of a process that died: whoever comes ends it
        await begin(stores, record.epoch, recover=True)

    async def test_their_own_running_turn_is_ended(self, stores: Stores) -> None:
        """As interrupted, in the same commit."""
        await _turn(stores)
        theirs = await _guest_turn(stores, close=False)
        await stores.contexts.erase_person("bob", force=True)
        with refuses(Fenced):
            await commit(stores, theirs, finishes(_CALL, "bobs-words"))
        turns = await stores.journal.turns(CONTEXT)
        assert (turns[-1].outcome, turns[-1].actor_id) == ("interrupted", None)
        assert (await stores.journal.events(CONTEXT))[-1].type == "turn_end"
        assert "bobs-words" not in await self._all_of(stores)

    async def test_a_cleared_history_has_nothing_of_theirs(self, stores: Stores) -> None:
        """Only their turns are still known, and the key; both are gone afterwards."""
        await _turn(stores)
        await _guest_turn(stores)
        await stores.journal.clear(CONTEXT)
        found = await stores.contexts.erase_person("bob")
        assert (found.redacted, found.keys) == (0, 1)
        assert [t.actor_id for t in await stores.journal.turns(CONTEXT)] == ["ann", None]

    async def test_many_turns_go_some_at_a_time(self, stores: Stores) -> None:
        """More than one commit takes."""
        for number in range(120):
            epoch = (await record_of(stores)).epoch if number else 0
            actor = "ann" if number == 0 else "bob"
            claimed = await begin(stores, epoch, actor_id=actor, text=f"words {number}")
            await commit(stores, claimed, [ends()], release=True)
        assert (await stores.contexts.erase_person("bob")).redacted == 119
        assert [m.text for m in await stores.messages.list(CONTEXT)] == [
            "words 0",
            *["[erased]"] * 119,
        ]


def _sooner(record: ContextRecord) -> datetime:
    return record.last_activity + timedelta(microseconds=1)


class RetentionContract(Contract):
    """Contexts that are too old or too large go, the longest inactive first; none in use."""

    needs = ("contexts.retain",)

    async def test_by_age(self, stores: Stores) -> None:
        """The age counts from the last activity, not from the beginning."""
        for name in ("a", "b", "c"):
            await _turn(stores, name)
        await _turn(stores, "a")
        then = (await record_of(stores, "c")).last_activity
        found = await stores.contexts.retain(older_than=then)
        assert (found.context_ids, found.turns) == (("b",), 1)
        assert await _names(stores) == ["a", "c"]
        assert await stores.contexts.retain(older_than=timedelta(days=1)) == Erased()
        assert await stores.contexts.retain(older_than=timedelta.max) == Erased()
        assert (await stores.contexts.retain(older_than=timedelta(0))).context_ids == ("c", "a")

    async def test_by_size_of_each_owner(self, stores: Stores) -> None:
        """Until what is left is small enough; those without an owner are one."""
        for name, owner in (("a1", "ann"), ("b1", "bob"), ("n1", None), ("a2", "ann")):
            await _turn(stores, name, actor=owner)
        await stores.artifacts.save("a2", "map", b"x" * 100_000)
        await stores.artifacts.save("b1", "map", b"x" * 100_000)
        sizes = await self._sizes(stores)
        found = await stores.contexts.retain(larger_than=sizes["a2"])
        assert (found.context_ids, found.bytes) == (("a1",), sizes["a1"])
        found = await stores.contexts.retain(larger_than=sizes["n1"], owner="bob")
        assert (found.context_ids, found.bytes) == (("b1",), sizes["b1"])
        assert (await stores.contexts.retain(larger_than=0)).context_ids == ("n1", "a2")

    async def test_by_size_of_the_tenant(self, stores: Stores) -> None:
        """All contexts together; what is too old goes first, and counts no more."""
        for name in ("a", "b", "c", "d"):
            await _turn(stores, name, actor=name)
        sizes = await self._sizes(stores)
        most = sizes["c"] + sizes["d"]
        limits: dict[str, Any] = {"larger_than": most, "per": "tenant"}
        found = await stores.contexts.retain(**limits, dry_run=True)
        assert found.context_ids == ("a", "b")
        then = (await record_of(stores, "b")).last_activity
        assert (await stores.contexts.retain(**limits, older_than=then)).context_ids == ("a", "b")
        assert await stores.contexts.retain(**limits) == Erased()

    async def _sizes(self, stores: Stores) -> dict[str, int]:
        """The report counts each context, one by one: all of it would go."""
        found = {}
        for record in await stores.state.list():
            owner = record.owner_actor
            options: dict[str, Any] = {"older_than": _sooner(record), "dry_run": True}
            whole = await stores.contexts.retain(**options, owner=owner)
            options["older_than"] = record.last_activity
            older = await stores.contexts.retain(**options, owner=owner)
            found[record.context_id] = whole.bytes - older.bytes
        return found

    @needing("contexts.tag")
    async def test_a_dry_run_says_what_would_go(self, stores: Stores) -> None:
        """With the same counts, and everything stays."""
        await a_whole_context(stores)
        before = await _left(stores)
        told = await stores.contexts.retain(older_than=timedelta(0), dry_run=True)
        assert await _left(stores) == before
        assert (told.contexts, told.dry_run) == (1, True)
        assert replace(told, dry_run=False) == await stores.contexts.retain(larger_than=0)

    async def test_a_running_turn_is_never_touched(self, stores: Stores) -> None:
        """However old or large its context is; what it has counts all the same."""
        await _turn(stores, "running", close=False)
        await _turn(stores, "idle")
        limits: dict[str, Any] = {"older_than": timedelta(0), "larger_than": 0, "waiting": True}
        assert (await stores.contexts.retain(**limits)).context_ids == ("idle",)
        assert await _names(stores) == ["running"]

    async def test_an_abandoned_turn_does_not_keep_a_context(self, stores: Stores) -> None:
        """Its lease is over: no process has come back to it for all that time."""
        await begin(stores, ttl_s=0)
        assert (await stores.contexts.retain(older_than=timedelta(0))).context_ids == (CONTEXT,)

    async def test_a_pending_request_is_kept_unless_told(self, stores: Stores) -> None:
        """A person may still answer it."""
        claimed = await begin(stores)
        state = waiting_for_approval()
        end = [ends(StopReason.INPUT_REQUIRED)]
        await commit(stores, claimed, end, state=state, release=True)
        limits: dict[str, Any] = {"older_than": timedelta(0), "larger_than": 0}
        assert await stores.contexts.retain(**limits) == Erased()
        assert (await stores.contexts.retain(**limits, waiting=True)).contexts == 1

    async def test_retention_leaves_other_tenants_alone(self, stores: Stores) -> None:
        """It is neither erased nor counted."""
        await _turn(stores)
        stranger = stores.for_tenant("stranger")
        found = await stranger.contexts.retain(larger_than=0, per="tenant", dry_run=True)
        assert replace(found, dry_run=False) == Erased()
        assert await stranger.contexts.retain(older_than=timedelta(0)) == Erased()
        assert await _names(stores) == [CONTEXT]

    async def test_invalid_retention_arguments_are_refused(self, stores: Stores) -> None:
        """Each argument by its name, before anything is looked at."""
        bad: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, "/older_than"),
            ({"older_than": 30}, "/older_than"),
            ({"older_than": timedelta(days=-1)}, "/older_than"),
            ({"older_than": datetime(2026, 1, 1)}, "/older_than"),  # noqa: DTZ001 - on purpose
            ({"larger_than": -1}, "/larger_than"),
            ({"larger_than": True}, "/larger_than"),
            ({"larger_than": 1, "per": "actor"}, "/per"),
            ({"larger_than": 1, "owner": 7}, "/owner"),
        )
        await _turn(stores)
        for options, path in bad:
            with refuses(ValueRefused, path=path):
                await stores.contexts.retain(**options)
        assert await _names(stores) == [CONTEXT]
