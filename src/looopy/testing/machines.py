"""
State machines that compare a store with the stores in memory, which are the specification.

Hypothesis chooses each next step; after it both stores must have answered the same, or refused with
the same error and the same facts. Values that depend on the moment (times of rows that a store
makes itself) are left out of the comparison.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from looopy.errors import LooopyError
from looopy.stores.archive.importing import import_contexts
from looopy.stores.archive.writing import export_contexts
from looopy.stores.bundle import Stores
from looopy.stores.contexts.listing import ContextPage
from looopy.stores.contexts.search import SearchPage
from looopy.stores.memory_backend import MemoryBackend
from looopy.stores.records import (
    ArtifactWrite,
    Claimed,
    ContextRecord,
    ContextState,
    EntryKind,
    InboxNews,
    NewSummary,
)
from looopy.testing.contracts.state import STATE
from looopy.testing.contracts.turns import (
    LONG_S,
    a_claim,
    answer,
    commit,
    ends,
    finishes,
    opening,
    plain,
    said,
    starts,
    user,
)
from looopy.testing.hostile import nested
from looopy.types.artifact import ArtifactKind
from looopy.types.event import AgentEvent, ArtifactUpdate, InputRequired, TurnError
from looopy.types.message import CustomMessage, Message, StopReason, ToolCall
from looopy.types.state import PendingKind, PendingRequest
from looopy.types.summary import summary_message

_CONTEXTS = st.sampled_from(["a", "a", "a", "b", "f", "no id"])
_NEW_CONTEXTS = st.sampled_from(["b", "f", "f", "g", "g", "no id"])
_TEXTS = st.text(max_size=6) | st.sampled_from(["\0", "\ud800", "é😀\u2028", "'; --"])
_QUERIES = _TEXTS | st.sampled_from(["hello", "t", "h*", '"c t"', "null tr*"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS | st.just(nested(70)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(_TEXTS, _VALUES, max_size=3)
_MESSAGES: st.SearchStrategy[Message] = st.one_of(
    _TEXTS.map(user),
    st.builds(lambda text, args: answer(text, ToolCall("c", "t", args)), _TEXTS, _OBJECTS),
    _VALUES.map(lambda value: CustomMessage("note", value, timestamp=1)),
)
_EPOCHS = st.integers(-1, 1)
_TTLS = st.sampled_from([0.0, LONG_S])
_AFTER = st.integers(-2, 40)
_LIMIT = st.none() | st.integers(0, 20)
_STATES = st.sampled_from([None, STATE, ContextState()])
# Values that are not compared here may be odd, but mostly are not: otherwise they would hide the
# others.
_METADATA: st.SearchStrategy[dict[str, Any]] = st.just({}) | _OBJECTS
_ACTORS = st.sampled_from([None, None, None, "u1", "u2"])
_DELIVERED = st.sampled_from([0, 0, 0, 1, 2, -1])
_KEYS = st.sampled_from(["k1", "k1", "k2", "k2", "", "\0"])
_TICKETS = st.integers(0, 4)
_SUMMARIES = [replace(summary_message("so far", kept=n), timestamp=1) for n in range(3)]
_NAMES = st.sampled_from(["r", "r", "r", "d"]) | _TEXTS
_CHUNKS = st.sampled_from([b"some", b"", b"large" * 20_000])
_CHANGES = st.sampled_from(["clear", "rewind", "undo", "compact", "fork", "archive"])
_ASKS = StopReason.INPUT_REQUIRED
_PEOPLE = st.sampled_from(["u1", "u2", "nobody"])
_TENANTS = itertools.count()


class StoresAgree(RuleBasedStateMachine):
    """
    Drive `stores` beside a fresh memory; subclass it and set both class variables.

    Attributes:
        stores: Open stores of the backend; each run uses a new tenant in them.
        run: Runs a coroutine to its end on the event loop of `stores`.
    """

    stores: ClassVar[Stores]
    run: ClassVar[Callable[[Any], Any]]

    def __init__(self) -> None:
        super().__init__()
        self.tested = self.stores.for_tenant(f"tenant-{next(_TENANTS)}")
        self._memory = MemoryBackend()
        self.memory = self._memory.stores()
        # The newest result of a claim on each context, as the memory returned it.
        self.claims: dict[str, Claimed] = {}

    def both(self, ask: Callable[[Stores], Awaitable[Any]]) -> Any:
        """Ask both; return the answer, or `None` for a refusal, after comparing them."""
        tested, memory = type(self).run(_outcomes(ask, self.tested, self.memory))
        assert plain(tested) == plain(memory)
        return None if isinstance(memory, BaseException) else memory

    @initialize(
        forked=st.booleans(), change=st.none() | _CHANGES, person=st.sampled_from(["u1", "u2"])
    )
    def begin_with_kin(self, forked: bool, change: str | None, person: str) -> None:
        """Begin with turns and artifacts of two people in a context that was forked, or without."""
        if forked:
            for actor in ("u1", "u2"):
                self.save_in_turn("a", actor, actor)
            self.build_artifact("a", "r", b"large" * 20_000, "open")
            self.fork("a", "f", None)
        if change is not None:
            self.erase_after("f" if forked else "a", change, person, ends_it=True)

    # --- messages ---

    @rule(context=_CONTEXTS, messages=st.lists(_MESSAGES, max_size=3))
    def append(self, context: str, messages: list[Message]) -> None:
        """Append outside a turn."""
        self.both(lambda s: s.messages.append(context, messages))

    @rule(context=_CONTEXTS, after=_AFTER, limit=_LIMIT)
    def read_messages(self, context: str, after: int, limit: int | None) -> None:
        """Read a range."""
        self.both(lambda s: s.messages.records(context, after=after, limit=limit))
        self.both(lambda s: s.messages.list(context, after=after, limit=limit))
        self.both(lambda s: s.messages.recent(context, limit=limit or 0))
        self.both(
            lambda s: s.messages.records(context, after=after, limit=limit, include_hidden=True)
        )

    # --- artifacts ---

    @rule(context=_CONTEXTS, query=_QUERIES, limit=st.integers(0, 5))
    def search(self, context: str, query: str, limit: int) -> None:
        """The newest messages with some words."""
        self.both(lambda s: s.contexts.search(query, context_id=context, limit=limit))

    @rule(
        context=_CONTEXTS,
        name=_NAMES,
        content=_TEXTS | st.binary(max_size=5) | _CHUNKS | _OBJECTS,
        kind=st.sampled_from([None, "file", "data"]),
    )
    def save_artifact(self, context: str, name: str, content: Any, kind: str | None) -> None:
        """Save the next version."""
        self.both(lambda s: s.artifacts.save(context, name, content, kind=kind))

    @rule(
        context=_CONTEXTS,
        name=_NAMES,
        chunk=_CHUNKS,
        how=st.sampled_from(["open", "open", "append", "append", "last", "fail"]),
    )
    def build_artifact(self, context: str, name: str, chunk: bytes, how: str) -> None:
        """Begin a version, add to it, complete it or give it up."""
        if how == "open":
            self.both(lambda s: s.artifacts.open(context, name))
        elif how == "fail":
            self.both(lambda s: s.artifacts.fail(context, name))
        else:
            self.both(lambda s: s.artifacts.append(context, name, chunk, last=how == "last"))

    @rule(context=_CONTEXTS, name=_NAMES, version=st.none() | st.integers(-1, 3))
    def read_artifacts(self, context: str, name: str, version: int | None) -> None:
        """Load one that may not be there, and every one that is."""
        self._load_artifact(context, name, version)
        for artifact in self.both(lambda s: s.artifacts.list(context)):
            self._load_artifact(context, artifact.artifact_id, version)

    def _load_artifact(self, context: str, name: str, version: int | None) -> None:
        self.both(lambda s: s.artifacts.load(context, name, version))

    @rule(context=_CONTEXTS, name=_NAMES, newest=st.booleans())
    def delete_artifact(self, context: str, name: str, newest: bool) -> None:
        """Delete one that is there, or not."""
        known = self.both(lambda s: s.artifacts.list(context))
        chosen = known[-1].artifact_id if newest and known else name
        self.both(lambda s: s.artifacts.delete(context, chosen))
        self._artifacts_agree()

    def _artifacts_agree(self) -> None:
        """Every version of every artifact is the same, of forks too."""
        for found in self.both(lambda s: s.state.list()):
            context = found.context_id
            for one in self._artifacts_of(context):
                self._versions_agree(context, one.artifact_id)

    def _artifacts_of(self, context: str) -> Any:
        return self.both(lambda s: s.artifacts.list(context))

    def _versions_agree(self, context: str, name: str) -> None:
        for one in self.both(lambda s: s.artifacts.versions(context, name)):
            self._load_artifact(context, name, one.version)

    # --- contexts ---

    @rule(context=_CONTEXTS, metadata=_OBJECTS, off_by=_EPOCHS)
    def save_metadata(self, context: str, metadata: dict[str, Any], off_by: int) -> None:
        """Save at the version that is there, or beside it."""
        found = self.both(lambda s: s.state.load(context))
        version = (found.version if found else 0) + off_by
        self.both(lambda s: s.state.save(context, metadata, version=version))

    @rule(after=_TEXTS, limit=st.integers(0, 3), owner=st.none() | _PEOPLE, query=_QUERIES)
    def list_contexts(self, after: str, limit: int, owner: str | None, query: str) -> None:
        """Read a page of contexts, by id and by activity, and search in all of them."""
        self.both(lambda s: s.state.list(after=after, limit=limit))
        self.both(lambda s: _items(s.contexts.list(owner=owner, limit=limit)))
        self.both(lambda s: _items(s.contexts.search(query, owner=owner, limit=limit)))
        self.both(lambda s: s.contexts.sizes())

    @rule(context=_CONTEXTS, tag=_NAMES, add=st.booleans())
    def tag(self, context: str, tag: str, add: bool) -> None:
        """Add a tag, or remove one, and list by it."""
        tags = [tag]
        if add:
            self.both(lambda s: s.contexts.tag(context, add=tags))
        else:
            self.both(lambda s: s.contexts.tag(context, remove=tags))
        self.both(lambda s: _items(s.contexts.list(tags=tags)))

    @rule(context=_CONTEXTS, new=_NEW_CONTEXTS)
    def archive(self, context: str, new: str) -> None:
        """Export a context, and import it under another id."""

        async def copied(stores: Stores) -> Any:
            archive = b"".join([piece async for piece in export_contexts(stores, [context])])
            given: dict[str, Any] = {"new_ids": {context: new}, "keep_owners": True}
            return (await import_contexts(stores, io.BytesIO(archive), **given)).contexts

        if self.both(copied) is not None:
            self.claims.pop(new, None)
            self._artifacts_agree()

    @rule(
        context=_CONTEXTS,
        text=st.none() | _TEXTS,
        off_by=st.sampled_from([0, 0, 0, 1, -1]),
        recover=st.booleans() | st.none(),
        ttl_s=_TTLS,
        displace=st.sampled_from([None, "holder-1"]),
        state=_STATES,
        metadata=_METADATA,
        actor_id=_ACTORS,
        delivered=_DELIVERED,
        key=st.none() | _KEYS,
        ticket=st.none() | _TICKETS,
    )
    def claim(
        self,
        context: str,
        text: str | None,
        off_by: int,
        recover: bool | None,
        state: ContextState | None,
        delivered: int,
        key: str | None,
        **others: Any,
    ) -> None:
        """
        Claim, as the context would have it (`recover` is `None`) or not; what begins a turn may
        take the first messages out of the inbox, and have a name.
        """
        found = self.both(lambda s: s.state.load(context))
        is_open = found is not None and found.open_turn is not None
        expected = (found.epoch if found else 0) + off_by
        take_over = is_open if recover is None else recover
        events = [] if take_over else opening(text, context_id=context)
        if not take_over:
            others["delivered"] = self._first_entries(context, delivered)
            others["key"], others["input_hash"] = key, text or "nothing"
        claim = a_claim(
            expected,
            context_id=context,
            text=None,
            recover=take_over,
            state=state,
            **{**others, "events": events},
        )
        claimed = self.both(lambda s: s.state.claim(claim))
        if claimed is not None:
            self.claims[context] = claimed

    @rule(context=_CONTEXTS, off_by=_EPOCHS, ttl_s=_TTLS, release=st.booleans())
    def lease(self, context: str, off_by: int, ttl_s: float, release: bool) -> None:
        """Renew or release under a known epoch, or beside it."""
        epoch = (self.claims[context].epoch if context in self.claims else 0) + off_by
        if release:
            self.both(lambda s: s.state.release(context, epoch))
        else:
            self.both(lambda s: s.state.renew(context, epoch, ttl_s))

    # --- turns ---

    @rule(
        context=_CONTEXTS,
        text=_TEXTS,
        args=_OBJECTS,
        state=_STATES,
        ttl_s=_TTLS,
        delivered=_DELIVERED,
    )
    def commit_call(
        self,
        context: str,
        text: str,
        args: dict[str, Any],
        state: ContextState | None,
        ttl_s: float,
        delivered: int,
    ) -> None:
        """Commit a tool's call, its start and its result under the last claim."""
        call = ToolCall("c", "t", args)
        events = [
            said(answer(text, call), context_id=context),
            starts(call, context_id=context),
            *finishes(call, text, context_id=context),
        ]
        taken = self._first_entries(context, delivered)
        self._commit(context, events, state=state, ttl_s=ttl_s, delivered=taken)

    @rule(
        context=_CONTEXTS,
        text=_TEXTS,
        stop_reason=st.sampled_from([StopReason.STOP, StopReason.ERROR, StopReason.INTERRUPTED]),
        release=st.booleans(),
        missed=st.none() | st.sampled_from([0, 0, 1]),
    )
    def commit_end(
        self,
        context: str,
        text: str,
        stop_reason: StopReason,
        release: bool,
        missed: int | None,
    ) -> None:
        """End the open turn under the last claim, with all but so many news read."""
        found = self.both(lambda s: s.state.load(context))
        if found is None or found.open_turn is None:
            return
        error = TurnError(context_id=context, code=stop_reason.value, text=text)
        events: list[AgentEvent] = [
            *([error] if stop_reason is StopReason.ERROR else []),
            ends(stop_reason, context_id=context),
        ]
        heard = None if missed is None else found.inbox.last - missed
        self._commit(context, events, release=release, heard=heard)

    def _commit(self, context: str, events: list[AgentEvent], **others: Any) -> None:
        claimed = self.claims.get(context)
        if claimed is not None:
            self.both(lambda s: commit(s, claimed, events, context_id=context, **others))

    @rule(context=_CONTEXTS, how=st.sampled_from(["clear", "clear", "force", "delete"]))
    def forget(self, context: str, how: str) -> None:
        """Hide the history, by force or not, or delete the context with all it holds."""
        if how == "delete":
            self.both(lambda s: s.state.delete(context))
        else:
            self.both(lambda s: s.journal.clear(context, force=how == "force"))
        self._artifacts_agree()

    @rule(context=_CONTEXTS, owner=st.none() | _PEOPLE, force=st.booleans())
    def erase(self, context: str, owner: str | None, force: bool) -> None:
        """Erase a context with all it holds, by force or not, or only if it has this owner."""
        self._erased(lambda s: s.contexts.erase(context, owner=owner, force=force))

    @rule(person=_PEOPLE, force=st.booleans())
    def erase_person(self, person: str, force: bool) -> None:
        """Erase a person's contexts, and that person's messages elsewhere."""
        self._erased(lambda s: s.contexts.erase_person(person, force=force))

    @rule(
        context=st.sampled_from(["a", "f", "g"]),
        change=_CHANGES,
        person=st.sampled_from(["u1", "u2", "u2"]),
        ends_it=st.booleans(),
    )
    def erase_after(self, context: str, change: str, person: str, ends_it: bool) -> None:
        """Erase one of two people who spoke before a change, and after it."""
        for actor in ("u1", "u2"):
            self.save_in_turn(context, actor, "r")
        if change == "clear":
            self.forget(context, "force")
        elif change in ("rewind", "undo"):
            self.rewind(context, 0)
            if change == "undo":
                self.undo_rewind(context)
        elif change == "compact":
            self.compact(context, 0, 0)
        else:
            self.both(lambda s: s.contexts.erase("b", force=True))
            if change == "fork":
                self.fork(context, "b", None)
            else:
                self.archive(context, "b")
            context = "b"
        self.save_in_turn(context, "u1", "r", anew=True)
        self.ask_in_turn(context, "u1", "u1", ends_it)
        self.erase_person(person, force=True)

    @rule(
        most=st.sampled_from([0, 500, 5_000]),
        per=st.sampled_from(["owner", "tenant"]),
        waiting=st.booleans(),
        dry_run=st.sampled_from([True, True, False]),
    )
    def retain(self, most: int, per: str, waiting: bool, dry_run: bool) -> None:
        """Erase what is too much, or only count it."""
        limits: dict[str, Any] = {"larger_than": most, "per": per}
        self._erased(lambda s: s.contexts.retain(**limits, waiting=waiting, dry_run=dry_run))

    def _erased(self, ask: Callable[[Stores], Awaitable[Any]]) -> None:
        self.both(ask)
        self._artifacts_agree()

    # --- forks ---

    @rule(context=_CONTEXTS, new=_NEW_CONTEXTS, at=st.none() | st.integers(-1, 12))
    def fork(self, context: str, new: str, at: int | None) -> None:
        """Fork the present, or a place that may be within a turn."""
        found = self.both(lambda s: s.journal.fork(context, new, at=at))
        if found is not None:
            self.claims.pop(new, None)
            assert found.last_position == (at if at is not None else found.last_position)
            self._artifacts_agree()

    @rule(context=st.sampled_from(["a", "f", "g"]), back=st.integers(-1, 3))
    def rewind(self, context: str, back: int) -> None:
        """Rewind some turns, or none that is there."""
        found = self.both(lambda s: s.state.load(context))
        to = (found.turn_count if found else 0) - back
        self.both(lambda s: s.journal.rewind(context, to))

    @rule(context=st.sampled_from(["a", "f", "g"]))
    def undo_rewind(self, context: str) -> None:
        """Show again what was hidden, if anything was."""
        self.both(lambda s: s.journal.undo_rewind(context))

    @rule(context=_CONTEXTS, kept=st.integers(0, 2), off_by=st.sampled_from([0, 0, 0, 1]))
    def compact(self, context: str, kept: int, off_by: int) -> None:
        """Append a summary."""
        found = self.both(lambda s: s.state.load(context))
        epoch = (found.epoch if found else 0) + off_by
        new = NewSummary(message=_SUMMARIES[kept], epoch=epoch)
        self.both(lambda s: s.journal.compact(context, new))

    @rule(context=_CONTEXTS, after=_AFTER, limit=_LIMIT, turn=st.integers(0, 5))
    def read_log(self, context: str, after: int, limit: int | None, turn: int) -> None:
        """Read a part of the log, of the turns, and the calls of a turn."""
        self.both(lambda s: s.journal.events(context, after=after, limit=limit))
        self.both(lambda s: s.journal.turns(context, after=after, limit=limit or 0))
        self.both(lambda s: s.journal.started_calls(context, turn))

    @rule(
        context=st.sampled_from(["a", "a", "b"]),
        actor=_ACTORS,
        delivered=_DELIVERED,
        key=st.sampled_from([None, "k1", "k2"]),
        ticket=st.none() | _TICKETS,
        ttl_s=_TTLS,
        meanwhile=st.sampled_from(["", "said", "asked to stop"]),
        missed=st.none() | st.integers(0, 1),
    )
    def take_turn(
        self,
        context: str,
        actor: str | None,
        meanwhile: str,
        missed: int | None,
        **others: Any,
    ) -> None:
        """A turn as most of them go, which steps that know nothing of each other rarely make."""
        self.claim(
            context, "x", 0, None, None, displace=None, metadata={}, actor_id=actor, **others
        )
        if meanwhile == "said":
            self.post(context, EntryKind.STEER, "wait", actor, None)
        elif meanwhile:
            self.ask_cancel(context, None)
        self.commit_call(context, "y", {}, None, LONG_S, 1)
        self.commit_end(context, "z", StopReason.STOP, release=True, missed=missed)

    @rule(
        context=st.sampled_from(["a", "a", "f"]),
        actor=_PEOPLE,
        name=st.sampled_from(["r", "u1", "u2"]),
        anew=st.booleans(),
    )
    def save_in_turn(self, context: str, actor: str, name: str, anew: bool = False) -> None:
        """A turn of an actor that saves a version of an artifact."""
        claimed = self._begin(context, "x", actor)
        if claimed is not None:
            kind = ArtifactKind.FILE
            place: dict[str, Any] = {"context_id": context, "turn": claimed.turn}
            told = ArtifactUpdate(**place, artifact_id=name, kind=kind, version=0, anew=anew)
            write = ArtifactWrite(
                artifact_id=name, kind=kind, stored=actor.encode(), media_type="text/plain"
            )
            self._commit(context, [told], artifact=write)
        self.commit_end(context, "z", StopReason.STOP, release=True, missed=None)

    def _begin(self, context: str, text: str | None, actor: str) -> Claimed | None:
        """A new turn; `None` if the claim was refused, whatever claim there was before."""
        before = self.claims.get(context)
        self.claim(
            context,
            text,
            0,
            None,
            None,
            0,
            None,
            actor_id=actor,
            ttl_s=LONG_S,
            displace=None,
            metadata={},
            ticket=None,
        )
        claimed = self.claims.get(context)
        return None if claimed is before else claimed

    @rule(
        context=st.sampled_from(["a", "a", "f", "g"]),
        actor=_PEOPLE,
        other=_PEOPLE,
        ends_it=st.booleans(),
    )
    def ask_in_turn(self, context: str, actor: str, other: str, ends_it: bool) -> None:
        """A turn that ends with a question, and perhaps another one in which the call ends."""
        call = ToolCall("c", "t", {"by": actor})
        if (claimed := self._begin(context, "x", actor)) is None:
            return
        request = PendingRequest(
            request_id=f"{claimed.turn}.1",
            kind=PendingKind.APPROVAL,
            tool_name=call.name,
            args=call.arguments,
            tool_call_id=call.id,
            turn=claimed.turn,
        )
        place: dict[str, Any] = {"context_id": context}
        events: list[AgentEvent] = [said(answer("", call), **place)]
        events += [InputRequired(pending=(request,), **place), ends(_ASKS, **place)]
        state = ContextState(pending=(request,), resumable=claimed.turn)
        self._commit(context, events, state=state, release=True)
        if ends_it and self._begin(context, None, other) is not None:
            at = claimed.first_position + 1
            events = [starts(call, **place), *finishes(call, actor, **place), ends(**place)]
            state = ContextState(answered=[(request, True)])
            self._commit(context, events, state=state, release=True, assistant_position=at)

    # --- the inbox ---

    @rule(
        context=_CONTEXTS,
        kind=st.sampled_from(EntryKind),
        text=_TEXTS,
        actor=_ACTORS,
        turn=st.sampled_from([None, None, None, 0, 1, 2]),
    )
    def post(
        self, context: str, kind: EntryKind, text: str, actor: str | None, turn: int | None
    ) -> None:
        """Put a message into the inbox, for any turn or for one."""
        self.both(
            lambda s: s.journal.post(context, kind, user(text), actor_id=actor, expected_turn=turn)
        )

    @rule(context=_CONTEXTS, after=st.integers(-1, 5))
    def read_inbox(self, context: str, after: int) -> None:
        """Read what waits, or a part of it."""
        self.both(lambda s: s.journal.inbox(context, after=after))

    @rule(context=_CONTEXTS, kind=st.sampled_from([None, *EntryKind]), actor=_ACTORS)
    def withdraw(self, context: str, kind: EntryKind | None, actor: str | None) -> None:
        """Take messages of an actor out of the inbox."""
        self.both(lambda s: s.journal.withdraw(context, kind, actor_id=actor))

    @rule(context=_CONTEXTS, turn=st.sampled_from([None, None, 0, 1, 2]))
    def ask_cancel(self, context: str, turn: int | None) -> None:
        """Ask the open turn to stop, or one that may not be open."""
        self.both(lambda s: s.journal.ask_cancel(context, turn))

    @rule(context=_CONTEXTS, key=_KEYS)
    def look_key_up(self, context: str, key: str) -> None:
        """Ask which turn has a name."""
        self.both(lambda s: s.journal.turn_of_key(context, key))

    def _first_entries(self, context: str, count: int) -> list[int]:
        """Numbers of the first messages that wait, and for -1 of one that does not."""
        head, entries = self.both(lambda s: s.journal.inbox(context))
        return [head.last + 1] if count < 0 else [entry.number for entry in entries[:count]]

    # --- the queue ---

    @rule(context=_CONTEXTS, ttl_s=_TTLS)
    def join_wait_queue(self, context: str, ttl_s: float) -> None:
        """Take a place at the end."""
        self.both(lambda s: s.state.join_wait_queue(context, "waiting", ttl_s))

    @rule(context=_CONTEXTS, ticket=_TICKETS, ttl_s=_TTLS, leave=st.booleans())
    def keep_or_leave(self, context: str, ticket: int, ttl_s: float, leave: bool) -> None:
        """Keep a place that may be there, or give it up."""
        if leave:
            self.both(lambda s: s.state.leave_wait_queue(context, ticket))
        else:
            self.both(lambda s: s.state.keep_place(context, ticket, ttl_s))

    # --- what holds after every step ---

    @invariant()
    def contexts_agree(self) -> None:
        """Every context is the same, and its readable log has no gap."""
        for found in self.both(lambda s: s.state.list()):
            context = found.context_id
            events = self._whole_log(context)
            self._messages_and_turns(context)
            first = max(found.cleared_seq, 1)
            assert [e.seq for e in events] == list(range(first, found.last_seq + 1))
            self._inbox_and_queue(found)

    def _messages_and_turns(self, context: str) -> None:
        found = self.both(lambda s: s.messages.records(context))
        count = self.both(lambda s: s.messages.count(context))
        assert count == len(found)
        self.both(lambda s: s.messages.count(context, include_hidden=True))
        self.both(lambda s: s.journal.turns(context))
        self.both(lambda s: s.journal.lineage(context))

    def _inbox_and_queue(self, found: ContextRecord) -> None:
        head, entries = self.both(lambda s: s.journal.inbox(found.context_id))
        assert head == found.inbox
        assert head.waiting == len(entries)
        numbers = [entry.number for entry in entries]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[-1] <= head.last
        asked = head.cancel_turn
        assert asked is None or (found.open_turn is not None and found.open_turn.turn == asked)
        self.both(lambda s: s.state.wait_queue(found.context_id))

    def _whole_log(self, context: str) -> Any:
        return self.both(lambda s: s.journal.events(context))


async def _items(page: Awaitable[ContextPage | SearchPage]) -> Any:
    """A page without the place of the next one, which is a moment."""
    return (await page).items


async def _outcomes(ask: Callable[[Stores], Awaitable[Any]], *both: Stores) -> list[Any]:
    found: list[Any] = []
    for stores in both:
        try:
            found.append(await ask(stores))
        except (LooopyError, InboxNews) as error:
            found.append(error)
    return found
