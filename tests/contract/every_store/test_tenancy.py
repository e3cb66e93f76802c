"""
Another tenant's context answers exactly like one that does not exist, whatever is asked of it.

Every public coroutine of every store is called for one tenant with the ids of another, and then
with an id that nobody has: the answers, or the refusals, may differ in nothing but the id. What the
other tenant has is the same afterwards, row by row. A method that is not in the table fails the
test.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sqlite3
from dataclasses import dataclass, replace
from types import SimpleNamespace

import psycopg
import pytest

from looopy import Agent, Approve, AuthContext
from looopy.errors import LooopyError, ValueRefused
from looopy.stores import base, open_stores
from looopy.stores.artifacts.requests import to_save
from looopy.stores.memory import artifacts as memory_artifacts
from looopy.stores.memory import stores as memory
from looopy.stores.records import Commit, EntryKind, NewSummary
from looopy.stores.sql import artifacts, messages, state
from looopy.stores.sql import journal as events
from looopy.stores.sql.tables import metadata
from looopy.testing import ScriptedProvider, text
from looopy.testing.contracts.turns import (
    LONG_S,
    a_claim,
    answer,
    begin,
    ends,
    finishes,
    said,
    starts,
    user,
)
from looopy.testing.contracts.turns import commit as commit_turn
from looopy.types.message import ToolCall
from looopy.types.state import AgentStatus
from looopy.types.summary import summary_message

IDLE, BUSY, UNKNOWN = "theirs-idle", "theirs-busy", "nobodys-ctx"
ARTIFACT, KEY = "plan", "order-7"
_SUMMARY = summary_message("mine", kept=0)
PARTS = ("messages", "artifacts", "state", "journal")


@dataclass(frozen=True)
class Call:
    """A method as another tenant may call it, and what the owner does so that there is a target."""

    make: object
    prepare: object = None


async def _post(owner, known):
    await owner.journal.post(known.target, EntryKind.STEER, user("secret"), actor_id="u1")


async def _join(owner, known):
    known.ticket = await owner.state.join_wait_queue(known.target, "secret", LONG_S)


async def _wait(owner, known):
    await owner.state.join_wait_queue(known.target, "secret", LONG_S)


async def _join_and_die(owner, known):
    await owner.state.join_wait_queue(known.target, "secret and dead", 0.0)


def _claim(context_id, known, **others):
    ticket = getattr(known, "ticket", None)
    given = {"displace": known.holder, "ticket": ticket, **others}
    return a_claim(known.epoch, context_id=context_id, **given)


def _commit(context_id, known, **others):
    event = said(answer("mine now"), context_id=context_id)
    return Commit(
        context_id=context_id, epoch=known.epoch, turn=known.turn, events=[event], **others
    )


# What a stranger calls with, who has learned everything that the owner's stores handed out.
CALLS = {
    "messages.append": Call(lambda c, _: ((c, [user("mine")]), {})),
    "messages.records": Call(lambda c, _: ((c,), {"include_hidden": True})),
    "messages.recent": Call(lambda c, _: ((c,), {"limit": 10})),
    "messages.count": Call(lambda c, _: ((c,), {"include_hidden": True})),
    "messages.list": Call(lambda c, _: ((c,), {"include_hidden": True})),
    "artifacts.save": Call(lambda c, _: ((c, ARTIFACT, b"mine"), {})),
    "artifacts.load": Call(lambda c, _: ((c, ARTIFACT, 1), {})),
    "artifacts.list": Call(lambda c, _: ((c,), {})),
    "artifacts.delete": Call(lambda c, _: ((c, ARTIFACT), {})),
    "artifacts.open": Call(lambda c, _: ((c, ARTIFACT), {})),
    "artifacts.append": Call(lambda c, _: ((c, ARTIFACT, b"mine"), {"last": True})),
    "artifacts.complete": Call(lambda c, _: ((c, ARTIFACT), {"version": 1})),
    "artifacts.fail": Call(lambda c, _: ((c, ARTIFACT), {})),
    "artifacts.read": Call(lambda c, _: ((c, ARTIFACT), {"start": 1, "size": 2})),
    "artifacts.rows": Call(lambda c, _: ((c, ARTIFACT), {"version": 1})),
    "artifacts.get": Call(lambda c, _: ((c, ARTIFACT), {})),
    "artifacts.versions": Call(lambda c, _: ((c, ARTIFACT), {})),
    "artifacts.change": Call(lambda c, _: ((c, to_save(ARTIFACT, b"mine")), {})),
    "artifacts.collect": Call(lambda _, __: ((0.0,), {})),
    "state.load": Call(lambda c, _: ((c,), {})),
    "state.save": Call(lambda c, k: ((c, {"mine": True}), {"version": k.version})),
    "state.list": Call(lambda c, _: ((), {"after": c[:-1], "limit": 1})),
    "state.delete": Call(lambda c, _: ((c,), {})),
    "state.claim": Call(lambda c, k: ((_claim(c, k, key=KEY, input_hash="h"),), {}), _wait),
    "state.claim to recover": Call(lambda c, k: ((_claim(c, k, recover=True),), {})),
    "state.renew": Call(lambda c, k: ((c, k.epoch, LONG_S), {})),
    "state.release": Call(lambda c, k: ((c, k.epoch), {})),
    "state.leave": Call(lambda c, k: ((c, k.epoch, AgentStatus.PAUSED), {})),
    "state.join_wait_queue": Call(lambda c, _: ((c, "stranger", LONG_S), {}), _join),
    "state.keep_place": Call(lambda c, k: ((c, k.ticket, LONG_S), {}), _join),
    "state.leave_wait_queue": Call(lambda c, k: ((c, k.ticket), {}), _join),
    "state.wait_queue": Call(lambda c, _: ((c,), {}), _join),
    "journal.commit": Call(lambda c, k: ((_commit(c, k),), {})),
    "journal.commit of what came in": Call(lambda c, k: ((_commit(c, k, delivered=[1]),), {})),
    "journal.compact": Call(lambda c, _: ((c, NewSummary(message=_SUMMARY, epoch=1)), {})),
    "journal.clear": Call(lambda c, _: ((c,), {"force": True})),
    "journal.fork": Call(lambda c, _: ((c, f"{c}-stolen"), {})),
    "journal.rewind": Call(lambda c, _: ((c, 1), {})),
    "journal.undo_rewind": Call(lambda c, _: ((c,), {})),
    "journal.lineage": Call(lambda c, _: ((c,), {})),
    "journal.events": Call(lambda c, _: ((c,), {})),
    "journal.events from the middle": Call(lambda c, _: ((c,), {"after": 3})),
    "journal.turns": Call(lambda c, _: ((c,), {})),
    "journal.started_calls": Call(lambda c, k: ((c, k.turn), {})),
    "journal.turn_of_key": Call(lambda c, _: ((c, KEY), {})),
    "journal.post": Call(
        lambda c, _: ((c, EntryKind.STEER, user("mine")), {"actor_id": "u1"}), _post
    ),
    "journal.inbox": Call(lambda c, _: ((c,), {}), _post),
    "journal.withdraw": Call(lambda c, _: ((c,), {"actor_id": "u1"}), _post),
    "journal.ask_cancel": Call(lambda c, k: ((c, k.turn), {})),
}

# Coroutines of the classes that are no method of a store: how ours are made.
PLUMBING = {"write"}

CLASSES = {
    "memory": (
        memory.InMemoryMessageStore,
        memory_artifacts.InMemoryArtifactStore,
        memory.InMemoryStateStore,
        memory.InMemoryJournal,
    ),
    "sql": (
        messages.SQLMessageStore,
        artifacts.SQLArtifactStore,
        state.SQLStateStore,
        events.SQLJournal,
    ),
    "protocols": (base.MessageStore, base.ArtifactStore, base.StateStore, base.Journal),
}


def _methods(classes):
    return {
        f"{part}.{name}"
        for part, cls in zip(PARTS, classes, strict=True)
        for name, function in inspect.getmembers(cls)
        if inspect.iscoroutinefunction(function) and name[0] != "_" and name not in PLUMBING
    }


@pytest.mark.parametrize("kind", CLASSES)
def test_every_method_of_every_store_is_in_the_table(kind):
    """A new method has to say here how a stranger would call it."""
    assert _methods(CLASSES[kind]) == {name.partition(" ")[0] for name in CALLS}


# --- each store, with its rows read beside it ---


@pytest.fixture(params=["memory", "sqlite", "asyncpg"])
def world(request):
    """Open stores, and a function that reads every row of a tenant without them."""
    stores = request.getfixturevalue(f"{request.param}_stores")
    if request.param == "memory":
        contexts = stores.messages.backend._contexts

        def dump(tenant):
            return {key: repr(kept) for key, kept in contexts.items() if key[0] == tenant}

        yield SimpleNamespace(stores=stores, dump=dump)
        return
    if request.param == "sqlite":
        connection, mark = sqlite3.connect(request.getfixturevalue("sqlite_file")), "?"
    else:
        url = request.getfixturevalue("postgres")
        connection, mark = psycopg.connect(url, autocommit=True), "%s"
    with contextlib.closing(connection):
        yield SimpleNamespace(stores=stores, dump=lambda tenant: _rows(connection, tenant, mark))


def _rows(connection, tenant, mark):
    return {
        name: sorted(
            map(
                repr,
                connection.execute(f"SELECT * FROM {name} WHERE tenant_id = {mark}", (tenant,)),
            )
        )
        for name in metadata.tables
    }


async def _own(stores):
    """What a tenant has: a context at rest and one in the middle of a turn, each with all kinds."""
    await _busy(stores, BUSY)
    await _idle(stores, IDLE)


async def _busy(stores, context_id, earlier=()):
    """Make a context in the middle of a turn."""
    await stores.messages.append(context_id, earlier)
    await stores.state.save(context_id, {"secret": "metadata"}, version=0)
    epoch = (await stores.state.load(context_id)).epoch
    claimed = await begin(
        stores, epoch, context_id=context_id, actor_id="u1", key=KEY, input_hash="h"
    )
    call = ToolCall(id="call-1", name="look", arguments={"at": "secret"})
    said_so = said(answer("secret", call), context_id=context_id)
    begun = starts(call, context_id=context_id)
    await commit_turn(stores, claimed, [said_so, begun], context_id=context_id)
    await stores.artifacts.save(context_id, ARTIFACT, b"secret")
    return claimed, call


async def _idle(stores, context_id, earlier=()):
    """Make a context whose turn is over."""
    claimed, call = await _busy(stores, context_id, earlier)
    claimed = replace(claimed, epoch=(await stores.state.load(context_id)).epoch)
    done = [*finishes(call, "secret", context_id=context_id), ends(context_id=context_id)]
    await commit_turn(
        stores,
        claimed,
        done,
        context_id=context_id,
        assistant_position=claimed.first_position + 1,
        release=True,
    )


async def _learned(stores, target):
    """What the owner's stores handed out about a context."""
    record = await stores.state.load(target)
    return SimpleNamespace(
        target=target,
        epoch=record.epoch,
        turn=record.turn_count,
        version=record.version,
        holder=record.holder,
    )


async def _answer(called, context_id):
    """What a call comes to, told without its context's id and without times."""
    try:
        answered = await called
    except LooopyError as error:
        told = ("refused", type(error).__name__, str(error), repr(sorted(error.facts.items())))
    else:
        told = ("answered", repr(answered))
    return tuple(_told(part, context_id) for part in told)


def _told(part, context_id):
    part = re.sub(r"datetime\.datetime\([^()]*\)", "TIME", part)
    part = re.sub(r"lease_until=[\d.]+", "lease_until=TIME", part)
    part = re.sub(r"\b0x[0-9a-f]+\b", "ADDRESS", part)
    part = re.sub(r"\b\d{13}\b", "MILLISECONDS", part)
    part = re.sub(r"\b\d+(\.\d+(e-\d+)?|e-\d+)\b", "SECONDS", part)
    return part.replace(context_id, "CONTEXT")


@contextlib.contextmanager
def _case(name):
    """Name the case in a failure: a test makes each of them with tenants of its own."""
    try:
        yield f"owner of {name}", f"stranger to {name}"
    except BaseException as error:
        error.add_note(f"in the case: {name}")
        raise


def _methods_of(part):
    return [method for method in CALLS if method.startswith(f"{part}.")]


@pytest.mark.parametrize("part", PARTS)
async def test_a_context_of_another_tenant_answers_like_an_unknown_one(world, part):
    """The same answer or refusal as for an id that nobody has, and nothing of theirs changes."""
    for method, target in itertools.product(_methods_of(part), (IDLE, BUSY)):
        with _case(f"{method}, {target}") as tenants:
            owner, stranger = map(world.stores.for_tenant, tenants)
            await _own(owner)
            known = await _learned(owner, target)
            if CALLS[method].prepare is not None:
                await CALLS[method].prepare(owner, known)
            before = world.dump(tenants[0])
            told = [await _call(stranger, method, c, known) for c in (target, UNKNOWN)]
            assert told[0] == told[1]
            assert "secret" not in repr(told)
            assert world.dump(tenants[0]) == before


async def _call(stores, method, context_id, known):
    part, _, name = method.partition(" ")[0].partition(".")
    args, options = CALLS[method].make(context_id, known)
    return await _answer(getattr(getattr(stores, part), name)(*args, **options), context_id)


@pytest.mark.parametrize("world", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("part", PARTS)
async def test_contexts_of_one_name_never_meet(world, part):
    """What a tenant does to its own context is as if nobody else had one of that name."""
    name = "twin-ctx"
    for method, make in itertools.product(_methods_of(part), (_idle, _busy)):
        with _case(f"{method}, {make.__name__}") as tenants:
            owner, other = map(world.stores.for_tenant, tenants)
            await make(owner, name, [user("secret")] * 3)  # of the same epoch, with other numbers
            for context_id in (name, UNKNOWN):
                await make(other, context_id, [user("mine")])
            known = await _learned(owner, name)
            await _join(owner, known)
            await _join_and_die(owner, known)
            for _ in range(2):
                await _post(owner, known)
            before = world.dump(tenants[0])
            told = []
            for context_id in (name, UNKNOWN):
                known = await _learned(other, context_id)
                await _post(other, known)
                join = other.state.join_wait_queue
                places = [await join(context_id, "mine", LONG_S) for _ in range(2)]
                await other.state.leave_wait_queue(context_id, places[0])
                known.ticket = places[1]
                told.append(await _call(other, method, context_id, known))
            assert told[0] == told[1]
            assert world.dump(tenants[0]) == before


async def test_a_new_tenant_lists_no_context(world):
    """Nor does paging with another's ids show any."""
    await _own(world.stores.for_tenant("owner"))
    stranger = world.stores.for_tenant("stranger")
    assert await stranger.state.list() == []
    assert await stranger.state.list(after=IDLE[:-1]) == []
    assert len(await world.stores.for_tenant("owner").state.list()) == 2


async def test_the_owner_of_a_context_is_the_actor_of_its_first_turn(world):
    """For each tenant by itself, and whoever comes later."""
    for tenant, first in (("a", "u1"), ("b", "u2")):
        stores = world.stores.for_tenant(tenant)
        claimed = await begin(stores, actor_id=first)
        await commit_turn(stores, claimed, [said(answer("hi")), ends()], release=True)
        await begin(stores, claimed.epoch, actor_id="late")
        record = await stores.state.load("ada")
        assert record.owner_actor == first


# --- the same of an agent ---


def _agent(stores, context_id):
    return Agent(context_id, llm_provider=ScriptedProvider([text("hi")] * 3), stores=stores)


async def _turn(agent, **options):
    return await agent.execute_turn("hello", **options)


async def _replayed(agent):
    await agent.execute_turn("hello")
    seen = []
    async for event in agent.events(after=0):
        seen.append(event)
        if event.type == "turn_end":
            break
    return seen


async def _told_to_subscriber(agent):
    seen = []
    agent.subscribe(seen.append)
    await agent.execute_turn("hello")
    return seen


async def _used_as_tool(agent):
    return agent.as_tool().name


async def _state(agent):
    return agent.state


AGENT_CALLS = {
    "start": lambda agent: agent.start(),
    "pause": lambda agent: agent.pause(),
    "resume": lambda agent: agent.resume(),
    "shutdown": lambda agent: agent.shutdown(cancel=True),
    "clear": lambda agent: agent.clear(force=True),
    "save_state": lambda agent: agent.save_state(),
    "refresh": lambda agent: agent.refresh(),
    "tag": lambda agent: agent.tag(add=["mine"]),
    "undo_compact": lambda agent: agent.undo_compact(),
    "get_covered": lambda agent: agent.get_covered(),
    "get_messages": lambda agent: agent.get_messages(include_hidden=True),
    "get_artifacts": lambda agent: agent.get_artifacts(),
    "search": lambda agent: agent.search("hello secret"),
    "wait_for_idle": lambda agent: agent.wait_for_idle(),
    "decide": lambda agent: agent.decide("1-call_1", Approve(), AuthContext("u1")),
    "steer": lambda agent: agent.steer("mine", AuthContext("u1")),
    "follow_up": lambda agent: agent.follow_up("mine", AuthContext("u1")),
    "clear_queue": lambda agent: agent.clear_queue(None, AuthContext("u1")),
    "has_queued_messages": lambda agent: agent.has_queued_messages(AuthContext("u1")),
    "compact": lambda agent: agent.compact(),
    "fork": lambda agent: agent.fork("stolen"),
    "rewind": lambda agent: agent.rewind(1),
    "undo_rewind": lambda agent: agent.undo_rewind(),
    "as_tool": _used_as_tool,
    "cancel": lambda agent: agent.cancel(),
    "execute_turn": _turn,
    "events": _replayed,
    "subscribe": _told_to_subscriber,
    "state": _state,
}


def test_every_method_of_an_agent_is_in_its_table():
    """A new one has to say here how a stranger would call it."""
    public = {name for name, _ in inspect.getmembers(Agent) if name[0] != "_"}
    assert public == set(AGENT_CALLS)


async def test_an_agent_of_another_tenant_finds_no_context(world):
    """With another tenant's id it is as new as with any other, and touches nothing of theirs."""
    for method, target in itertools.product(AGENT_CALLS, (IDLE, BUSY)):
        with _case(f"{method}, {target}") as tenants:
            await _own(world.stores.for_tenant(tenants[0]))
            before = world.dump(tenants[0])
            told = []
            for context_id in (target, UNKNOWN):
                agent = _agent(world.stores.for_tenant(tenants[1]), context_id)
                await agent.start()
                told.append(await _answer(AGENT_CALLS[method](agent), context_id))
                told[-1] += (await _answer(_state(agent), context_id))[1:]
                await agent.shutdown(cancel=True)
            assert told[0] == told[1]
            assert "secret" not in repr(told)
            assert world.dump(tenants[0]) == before


async def test_credentials_of_another_tenant_are_refused(world):
    """An agent belongs to the tenant of its stores, whoever asks."""
    agent = _agent(world.stores.for_tenant("stranger"), IDLE)
    await agent.start()
    with pytest.raises(LooopyError, match="tenant") as refused:
        agent.execute_turn("hello", AuthContext("u1", tenant_id="owner"))
    assert type(refused.value).__name__ == "AccessDenied"
    await agent.shutdown()


@pytest.mark.parametrize("tenant", ["a\0b", "\ud800", "x" * 513, "漢" * 171])
def test_an_unstorable_tenant_is_refused(tenant, tmp_path):
    """By every store, and before it is opened: NUL, a lone surrogate, more than 512 bytes."""
    urls = ("memory:", f"sqlite:///{tmp_path / 'chat.db'}", "postgresql://nobody@127.0.0.1:1/x")
    for url in urls:
        with pytest.raises(ValueRefused) as refused:
            open_stores(url, tenant=tenant)
        assert refused.value.path == "/tenant"
        with pytest.raises(ValueRefused):
            open_stores(url).for_tenant(tenant)


async def test_the_longest_names_have_room_in_every_index(tmp_path, postgres):
    """Tenant, context and artifact at their longest, of characters that take most bytes."""
    tenant, context_id, artifact_id = chr(0x10000) * 128, "c" * 128, chr(0x10FFFF) * 256
    for url in ("memory:", f"sqlite:///{tmp_path / 'chat.db'}", postgres):
        async with open_stores(url, tenant=tenant) as stores:
            await stores.messages.append(context_id, [user("a")])
            await stores.artifacts.save(context_id, artifact_id, b"x")
            claimed = await begin(stores, 1, context_id=context_id, key="k" * 256, input_hash="h")
            assert await stores.artifacts.load(context_id, artifact_id) == b"x"
            assert await stores.journal.turn_of_key(context_id, "k" * 256) == (claimed.turn, "h")
