"""
A walk through the writes of a store, step by step, and the view of a context that it leaves.

The memory stores take the same steps, so a test knows the view that any other store must show. The
steps find their epoch in the store, because another process may have made the step before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pydantic_core.core_schema  # noqa: F401 - else the first step imports it, and is killed there
import pytest

from looopy.stores.bundle import Stores
from looopy.stores.memory_backend import MemoryBackend
from looopy.stores.records import (
    ArtifactWrite,
    Claimed,
    EntryKind,
    MessageRecord,
    NewSummary,
)
from looopy.testing.contracts.state import STATE
from looopy.testing.contracts.turns import (
    AT,
    Contract,
    answer,
    begin,
    commit,
    ends,
    finishes,
    plain,
    record_of,
    said,
    starts,
    user,
)
from looopy.testing.processes import Processes
from looopy.types.artifact import ArtifactKind
from looopy.types.event import AgentEvent, ArtifactUpdate, Event, MessageEnd
from looopy.types.message import ToolCall, Usage
from looopy.types.summary import summary_message

_CALL = ToolCall("call-1", "add", {"a": 1, "b": [2.5]})
_STEERED = user("and quickly")
_REPORT = ArtifactWrite(
    artifact_id="report", kind=ArtifactKind.FILE, stored=b"the report", media_type="text/plain"
)
_METADATA = {"title": "a walk", "n": [1, None]}
_MOST_SHOWN = 300  # characters of a value in a message
View = Mapping[str, Any]


class ProcessContract(Contract):
    """A contract that other processes check as well: they open the store by `factory`."""

    @pytest.fixture
    def processes(self, place: str) -> Iterator[Processes]:
        """Other processes on the store."""
        if not self.factory:
            pytest.fail("give your class the attribute `factory`, such as 'my_package.stores:open'")
        if not hasattr(os, "fork"):
            pytest.skip("kills and races of processes need os.fork: Linux or macOS")
        modules = sorted(
            {one.__module__ for one in type(self).__mro__ if one.__module__.startswith("looopy.")}
        )
        with Processes(self.factory, place, modules) as processes:
            yield processes


async def _owned(stores: Stores, context_id: str) -> Claimed:
    """The claim of the turn that is open."""
    record = await record_of(stores, context_id)
    turn = record.open_turn
    return Claimed(
        epoch=record.epoch,
        turn=0 if turn is None else turn.turn,
        first_seq=record.last_seq + 1,
        first_position=record.last_position + 1,
    )


async def _claim(stores: Stores, context_id: str) -> object:
    named: dict[str, Any] = {"key": "key-1", "input_hash": "hash-1", "metadata": {"of": "the turn"}}
    return await begin(stores, context_id=context_id, actor_id="u1", **named)


async def _answer(stores: Stores, context_id: str) -> object:
    events: list[AgentEvent] = [said(answer("let me see", _CALL)), starts(_CALL)]
    return await commit(
        stores, await _owned(stores, context_id), events, context_id=context_id, state=STATE
    )


async def _post(stores: Stores, context_id: str) -> object:
    post = stores.journal.post
    await post(context_id, EntryKind.FOLLOW_UP, user("later"), actor_id="u1")
    return await post(context_id, EntryKind.STEER, _STEERED, actor_id="u1")


async def _result(stores: Stores, context_id: str) -> object:
    steered = MessageEnd(message=_STEERED, iteration=1, **AT)
    events: list[AgentEvent] = [*finishes(_CALL, "3.5"), steered]
    return await commit(
        stores, await _owned(stores, context_id), events, context_id=context_id, delivered=[2]
    )


async def _report(stores: Stores, context_id: str) -> object:
    claimed = await _owned(stores, context_id)
    update = ArtifactUpdate(
        artifact_id="report", kind=ArtifactKind.FILE, version=0, turn=claimed.turn, **AT
    )
    return await commit(stores, claimed, [update], context_id=context_id, artifact=_REPORT)


async def _end(stores: Stores, context_id: str) -> object:
    end = ends(usage=Usage(input=7, total_tokens=7))
    events: list[AgentEvent] = [said(answer("it is 3.5")), end]
    claimed = await _owned(stores, context_id)
    return await commit(stores, claimed, events, context_id=context_id, release=True)


async def _summarise(stores: Stores, context_id: str) -> object:
    message = replace(summary_message("so far", kept=2), timestamp=1)
    epoch = (await record_of(stores, context_id)).epoch
    return await stores.journal.compact(context_id, NewSummary(message=message, epoch=epoch))


STEPS: Mapping[str, Callable[[Stores, str], Awaitable[object]]] = {
    "messages.append()": lambda s, c: s.messages.append(c, [user("by the way"), answer("noted")]),
    "state.save()": lambda s, c: s.state.save(c, _METADATA, version=0),
    "the claim of a turn": _claim,
    "the commit of an answer with a call": _answer,
    "journal.post()": _post,
    "the commit of a result with a delivered message": _result,
    "the commit of an artifact": _report,
    "journal.ask_cancel()": lambda s, c: s.journal.ask_cancel(c),
    "the commit that ends the turn": _end,
    "journal.withdraw()": lambda s, c: s.journal.withdraw(c, actor_id="u1"),
    "artifacts.open()": lambda s, c: s.artifacts.open(c, "log", description="grows"),
    "artifacts.append()": lambda s, c: s.artifacts.append(c, "log", b"one line\n"),
    "journal.compact()": _summarise,
    "journal.clear()": lambda s, c: s.journal.clear(c),
    "state.delete()": lambda s, c: s.state.delete(c),
}
"""The steps of the walk, in order."""
NAMES = tuple(STEPS)


async def take(stores: Stores, context_id: str, name: str) -> None:
    """Take the step called *name*."""
    await STEPS[name](stores, context_id)


async def view(stores: Stores, context_id: str) -> View:
    """Everything that a reader can see of a context, without epochs, which are any numbers."""
    record = await stores.state.load(context_id)
    shown: dict[str, Any] = {"context": record is not None}
    if record is not None:
        left_out = ("context_id", "epoch", "lease_until", "created_at", "last_activity")
        shown |= {f.name: getattr(record, f.name) for f in fields(record) if f.name not in left_out}
    shown["messages"] = await stores.messages.records(context_id)
    events = await stores.journal.events(context_id)
    shown["events"] = [replace(event, context_id="") for event in events]
    shown["turns"] = await stores.journal.turns(context_id)
    shown["messages of the inbox"] = (await stores.journal.inbox(context_id))[1]
    shown["turn of the key"] = await stores.journal.turn_of_key(context_id, "key-1")
    newest = await stores.artifacts.list(context_id)
    shown["versions of artifacts"] = versions = [
        version
        for artifact in newest
        for version in await stores.artifacts.versions(context_id, artifact.artifact_id)
    ]
    shown["contents of artifacts"] = [
        await stores.artifacts.read(context_id, one.artifact_id, version=one.version)
        for one in versions
    ]
    return shown


async def views() -> list[View]:
    """The view of a context before the walk, and after each of its steps."""
    stores = MemoryBackend().stores()
    found = [await view(stores, "ada")]
    for name in NAMES:
        await take(stores, "ada", name)
        found.append(await view(stores, "ada"))
    return found


def same(found: View, wanted: View) -> bool:
    """True if two views differ in moments at most."""
    return bool(plain(found) == plain(wanted))


def difference(found: View, wanted: View) -> str:
    """Lines with what *found* lacks, has too much, or has otherwise."""
    lines: list[str] = []
    for name in {**wanted, **found}:
        has, needs = found.get(name), wanted.get(name)
        if plain(has) == plain(needs):
            continue
        if isinstance(has, Sequence) and isinstance(needs, Sequence):
            lines += [f"lost of {name}: {_short(one)}" for one in _beyond(needs, has)]
            lines += [f"too much of {name}: {_short(one)}" for one in _beyond(has, needs)]
            lines += _fields_that_differ(has, needs)
        else:
            lines.append(f"{name}: expected {_short(needs)}, found {_short(has)}")
    return "\n".join(f"  {line}" for line in lines)


def _beyond(some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    known = [plain(one) for one in others]
    return [one for one in some if plain(one) not in known]


def _fields_that_differ(has: Sequence[Any], needs: Sequence[Any]) -> list[str]:
    """The fields of records that only look alike: of one type, at one place."""
    lines: list[str] = []
    for found, wanted in zip(has, needs, strict=False):
        if type(found) is not type(wanted) or not is_dataclass(wanted):
            continue
        for one in fields(wanted):
            was, should = getattr(found, one.name), getattr(wanted, one.name)
            if one.compare and plain(was) != plain(should):
                name = f"{_short(wanted)} has another {one.name}"
                lines.append(f"{name}: expected {_short(should)}, found {_short(was)}")
    return lines


def _short(value: object) -> str:
    if isinstance(value, MessageRecord):
        return f"message {value.position} ({value.message.role}): {value.message.text!r}"
    if isinstance(value, Event):
        return f"event {value.seq} ({value.type}) of turn {value.turn}"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


@contextlib.contextmanager
def failing_as(words: str) -> Iterator[None]:
    """Let an error of the store within the block fail the test, with *words* before it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - another author's store may raise anything
        pytest.fail(f"{words}: {type(error).__name__}: {error}", pytrace=False)
