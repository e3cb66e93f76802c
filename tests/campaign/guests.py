"""
People who are erased, over clears, forks and rewinds, beside a model of dictionaries.

Several people speak in each other's contexts. Each thing that is said has a word of its own. The
model knows whose word is where, and nothing of how a store finds it. After each erasure every word
of that person is gone from everything that can be read, and every word of the others is in its
place. All calls have the same id, artifacts and forks the same few names, so numbers and ids of
one thing are soon those of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.campaign.places import STORES, place
from tests.campaign.trial import Tally, Trial

from looopy import open_stores
from looopy.errors import ContextNotFound, LooopyError, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import ArtifactWrite, ContextState, NewSummary
from looopy.testing.contracts.turns import (
    answer,
    begin,
    commit,
    ends,
    finishes,
    said,
    starts,
    user,
)
from looopy.types.artifact import ArtifactKind
from looopy.types.event import AgentEvent, ArtifactUpdate, InputRequired
from looopy.types.message import StopReason, TokenLogprob, ToolCall
from looopy.types.state import PendingKind, PendingRequest
from looopy.types.summary import summary_message

_PEOPLE = ("olga", "bob", "cyd")
_NAMES = ("a", "b", "c")
_FILES = ("plan", "map")
_STEPS = 40


@dataclass
class Said:
    """A message, or a version of an artifact: whose words are in it, and what is left of it."""

    owners: frozenset[str]
    text: str
    erased: str = "[erased]"
    turn: int = 0
    is_summary: bool = False

    def without(self, person: str) -> None:
        """Take the words of *person* out."""
        if person in self.owners:
            self.owners, self.text = frozenset(), self.erased


@dataclass
class Context:
    """What the model knows of a context."""

    owner: str
    turns: int = 0
    messages: dict[int, Said] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)  # positions at which turns ended
    rewound: list[tuple[int, int]] = field(default_factory=list)
    files: dict[str, list[Said]] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)  # files that were deleted since the last turn
    asked: tuple[str, PendingRequest] | None = None  # by whose call, and what

    @property
    def last(self) -> int:
        """The newest position; 0 for none that is left."""
        return max(self.messages, default=0)

    def shown(self) -> list[int]:
        """The positions that are not rewound."""
        return [one for one in sorted(self.messages) if not self._is_hidden(one)]

    def _is_hidden(self, position: int) -> bool:
        return any(low <= position <= high for low, high in self.rewound)


class World:
    """
    The contexts of one run, in a store and in the model.

    Args:
        stores: Of a tenant of its own.
    """

    def __init__(self, stores: Stores, rng: random.Random) -> None:
        self._stores = stores
        self._rng = rng
        self._count = 0
        self.contexts: dict[str, Context] = {}
        self.words: dict[str, set[str]] = {one: set() for one in _PEOPLE}
        self.erased: set[str] = set()
        self.log: list[str] = []

    async def step(self) -> None:
        """Do something, in the store and in the model."""
        rng = self._rng
        name = rng.choice(_NAMES)
        steps = (
            *(self._speak,) * 8,
            *(self._save_outside, self._append, self._clear, self._rewind, self._rewind),
            *(self._undo, self._compact, self._compact, self._delete_file, self._delete),
            *(self._fork,) * 3,
            *(self._erase,) * 2,
        )
        step = rng.choice(steps)
        self.log.append(f"{step.__name__.strip('_')} {name}")
        await step(name)

    def _word(self, person: str) -> str:
        self._count += 1
        word = f"{person}{self._count}x"
        self.words.setdefault(person, set()).add(word)
        return word

    async def _speak(self, name: str) -> None:
        """A turn: an answer, a call with a result or without one, a file; an open call may end."""
        rng, actor = self._rng, self._rng.choice(_PEOPLE)
        known = self.contexts.setdefault(name, Context(actor))
        word = self._word(actor)
        self.log[-1] += f" {actor} {word}"
        claimed = await begin(
            self._stores,
            context_id=name,
            actor_id=actor,
            text=f"ask {word}",
            metadata={"of": word},
            key=word,
            input_hash="h",
        )
        known.turns, turn = claimed.turn, claimed.turn
        position = claimed.first_position
        mine = frozenset({actor})

        def told(text: str, owners: frozenset[str] = mine, erased: str = "[erased]") -> None:
            nonlocal position
            known.messages[position] = Said(owners, text, erased, turn)
            position += 1

        told(f"ask {word}")
        place: dict[str, Any] = {"context_id": name}
        events: list[AgentEvent] = []
        if known.asked is not None and rng.random() < 0.7:  # whoever speaks, the call ends
            whose, request = known.asked
            open_call = ToolCall("call_1", "look", dict(request.args))
            events += finishes(open_call, f"found {request.prompt}", **place)
            told(f"found {request.prompt}", frozenset({whose, actor}))  # it is in this turn
            known.asked = None
        what = rng.choice(("text", "call", "open", "file", "file"))
        self.log[-1] += f" {what}"
        call = ToolCall("call_1", "look", {"at": word})
        known.asked = None
        reason = StopReason.STOP
        if what == "text":
            reply = replace(answer(f"re {word}"), logprobs=(TokenLogprob(word, -0.1, ()),))
            events.append(said(reply, **place))
            told(f"re {word}")
        elif what != "file":
            events.append(said(answer(f"let me {word}", call), **place))
            told(f"let me {word}", erased="")
        if what == "call":
            events += [starts(call, **place), *finishes(call, f"found {word}", **place)]
            told(f"found {word}")
        if what == "open":
            request = PendingRequest(
                request_id=f"{turn}.1",
                kind=PendingKind.APPROVAL,
                tool_name="look",
                args={"at": word},
                tool_call_id="call_1",
                turn=turn,
                prompt=word,
            )
            events.append(InputRequired(pending=(request,), **place))
            known.asked, reason = (actor, request), StopReason.INPUT_REQUIRED
        await commit(self._stores, claimed, events, **place)
        if what == "file":
            await self._save(name, known, claimed, actor, word)
        record = await self._stores.state.load(name)
        assert record is not None
        state = ContextState(
            summary=record.state.summary,
            pending=(known.asked[1],) if known.asked else (),
            resumable=turn if known.asked else None,
        )
        over = [ends(reason, **place)]
        await commit(self._stores, claimed, over, state=state, release=True, **place)
        known.ends.append(known.last)
        known.fresh.clear()

    async def _save(self, name: str, known: Context, claimed: Any, actor: str, word: str) -> None:
        file, anew = self._rng.choice(_FILES), self._rng.random() < 0.5
        before = known.files.setdefault(file, [])
        text, owners = f"file {word}", frozenset({actor})
        if before and not anew:
            text, owners = f"{before[-1].text} {text}", owners | before[-1].owners
        write = ArtifactWrite(
            artifact_id=file,
            kind=ArtifactKind.FILE,
            stored=text.encode(),
            media_type="text/plain",
            description=word,
        )
        update = ArtifactUpdate(
            context_id=name,
            turn=claimed.turn,
            artifact_id=file,
            kind=write.kind,
            version=0,
            anew=anew,
        )
        await commit(self._stores, claimed, [update], artifact=write, context_id=name)
        before.append(Said(owners, text, "", claimed.turn))
        self.log[-1] += f" {file} {'anew' if anew else 'more'}"

    async def _save_outside(self, name: str) -> None:
        """The application saves a file: it belongs to nobody who can be erased."""
        known, file = self.contexts.get(name), self._rng.choice(_FILES)
        # One that begins anew between two turns cannot be told from the one before: decision 70.
        if known is None or file in known.fresh:
            return
        text = f"file {self._word('app')}"
        await self._stores.artifacts.save(name, file, text)
        known.files.setdefault(file, []).append(Said(frozenset(), text, "", known.turns))

    async def _delete_file(self, name: str) -> None:
        known, file = self.contexts.get(name), self._rng.choice(_FILES)
        if known is not None and known.files.pop(file, None):
            await self._stores.artifacts.delete(name, file)
            known.fresh.add(file)

    async def _append(self, name: str) -> None:
        """The application adds a message between two turns."""
        if (known := self.contexts.get(name)) is not None:
            text = f"note {self._word('app')}"
            at = await self._stores.messages.append(name, [user(text)])
            known.messages[at] = Said(frozenset(), text, turn=known.turns)

    async def _clear(self, name: str) -> None:
        if (known := self.contexts.get(name)) is not None:
            await self._stores.journal.clear(name)
            self.contexts[name] = Context(known.owner, known.turns)

    async def _delete(self, name: str) -> None:
        if self._rng.random() < 0.3 and self.contexts.pop(name, None) is not None:
            await self._stores.state.delete(name)

    async def _rewind(self, name: str) -> None:
        known = self.contexts.get(name)
        if known is None or not known.turns:
            return
        to = self._rng.randint(max(1, known.turns - 2), known.turns)
        with contextlib.suppress(ValueRefused):  # cleared, or hidden already
            _, event = await self._stores.journal.rewind(name, to)
            first = min(at for at, one in known.messages.items() if one.turn == to)
            assert event.covers == (first, known.last)
            known.rewound.append(event.covers)
            known.asked = None

    async def _undo(self, name: str) -> None:
        known = self.contexts.get(name)
        if known is None:
            return
        with contextlib.suppress(ValueRefused, StoreConflict):  # none, or it has gone on
            await self._stores.journal.undo_rewind(name)
            known.rewound.pop()
            known.asked = None

    async def _compact(self, name: str) -> None:
        """A summary that repeats every word that it covers, and those of the one before."""
        known, kept = self.contexts.get(name), self._rng.randint(0, 3)
        if known is None or not known.shown():
            return
        shown = known.shown()
        earlier = [known.messages[at] for at in shown if known.messages[at].is_summary][-1:]
        covered = [known.messages[at] for at in shown[: max(0, len(shown) - kept)]]
        made_of = [*earlier, *covered]
        text = f"sum {' '.join(one.text for one in made_of)}"
        record = await self._stores.state.load(name)
        assert record is not None
        new = NewSummary(message=summary_message(text, kept=kept), epoch=record.epoch)
        _, event = await self._stores.journal.compact(name, new)
        owners = frozenset[str]().union(*(one.owners for one in made_of))
        made = Said(owners, text, "", known.turns, is_summary=True)
        assert event.position is not None
        known.messages[event.position] = made

    async def _fork(self, name: str) -> None:
        known, new = self.contexts.get(name), self._rng.choice(_NAMES)
        if known is None or new in self.contexts:
            return
        at = None if not known.ends or self._rng.random() < 0.5 else self._rng.choice(known.ends)
        try:
            made = await self._stores.journal.fork(name, new, at=at)
        except ValueRefused:  # it was cleared
            return
        self.log[-1] += f" to {new} at {at}"
        copied = copy.deepcopy(known)
        whole, at = at is None, made.last_position
        copied.messages = {n: one for n, one in copied.messages.items() if n <= at}
        copied.ends = [one for one in copied.ends if one <= at]
        copied.rewound = [one for one in copied.rewound if one[1] < at + whole]
        copied.turns = made.turn_count
        files = {
            file: kept
            for file, versions in copied.files.items()
            if (kept := [one for one in versions if one.turn <= made.turn_count])
        }
        copied.files, copied.asked = files, None
        self.contexts[new] = copied

    async def _erase(self, name: str) -> None:
        person = self._rng.choice(_PEOPLE)
        self.log[-1] = f"erase {person}"
        await self._stores.contexts.erase_person(person)
        self.contexts = {n: one for n, one in self.contexts.items() if one.owner != person}
        for known in self.contexts.values():
            for one in (*known.messages.values(), *(v for f in known.files.values() for v in f)):
                one.without(person)
            if known.asked is not None and known.asked[0] == person:
                known.asked = None
        self.erased |= self.words[person]
        await self.check()

    async def check(self) -> None:
        """Compare all that can be read with the model; `AssertionError` for a difference."""
        stores = self._stores
        there = [one.context_id for one in await stores.state.list()]
        _same("contexts", there, sorted(self.contexts))
        for name, known in self.contexts.items():
            found = await stores.messages.records(name, include_hidden=True)
            texts = {one.position: getattr(one.message, "text", None) for one in found}
            _same(name, texts, {n: one.text for n, one in sorted(known.messages.items())})
            shown = [one.position for one in await stores.messages.records(name)]
            _same(name, shown, known.shown())
            record = await stores.state.load(name)
            assert record is not None
            asked = (known.asked[1],) if known.asked else ()
            _same(name, tuple(record.state.pending), asked)
            files: dict[str, list[str]] = {}
            for one in await stores.artifacts.list(name):
                versions = await stores.artifacts.versions(name, one.artifact_id)
                loaded = [
                    await stores.artifacts.load(name, v.artifact_id, v.version) for v in versions
                ]
                files[one.artifact_id] = [bytes(one).decode() for one in loaded]  # type: ignore[arg-type] # files
                files[f"about {one.artifact_id}"] = [repr(versions)]
            held = {n: v for n, v in files.items() if not n.startswith("about")}
            _same(name, held, {n: [one.text for one in v] for n, v in known.files.items()})
            everything = repr(
                [found, record, await stores.journal.events(name), files]
                + await stores.journal.turns(name)
            )
            left = [word for word in self.erased if word in everything]
            assert not left, f"{name} still says {left}"
        for word in sorted(self.erased)[:2]:
            assert not (await stores.contexts.search(word)).items, word


def _same(what: str, found: object, wanted: object) -> None:
    assert found == wanted, f"{what}: {found!r}, not {wanted!r}"


@contextlib.contextmanager
def _url_of(store: str) -> Iterator[str]:
    if store == "memory":
        yield "memory:"
    else:
        with place(store) as url:
            yield url


async def _runs(url: str, count: int, seed: int, tally: Tally) -> None:
    async with open_stores(url, migrate=True) as stores:
        for n in range(count):
            tenant = stores.for_tenant(f"guests-{secrets.token_hex(6)}")
            world = World(tenant, random.Random(seed + n))
            try:
                for _ in range(_STEPS):
                    await world.step()
                await world.check()
            except (AssertionError, LooopyError) as found:
                steps = "\n".join(world.log)
                tally.violations.append(f"seed {seed + n}: {found!r}\n{steps}"[:6000])
            tally.runs += 1
            for name in list(world.contexts):
                with contextlib.suppress(ContextNotFound):
                    await tenant.state.delete(name)


def _run(store: str, name: str, count: int, seed: int) -> Tally:
    tally = Tally(name)
    with _url_of(store) as url:
        asyncio.run(_runs(url, count, seed, tally))
    return tally


TRIALS = [
    Trial(name, 20_000, partial(_run, store, name))
    for store in ("memory", *STORES)
    for name in [f"erasing people over clears, forks and rewinds, {store}"]
]
