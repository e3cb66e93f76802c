"""
Arguments of a wrong type: every reader of every store refuses them by their place, as any other.

A table names the readers, and a test runs all of it on one store. So each store costs one opening.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.backends import InMemory, OnAsyncpg, OnSQLite

from looopy import Agent
from looopy.errors import ArtifactNotFound, ContextNotFound, ValueRefused
from looopy.stores import export_contexts, export_to_file, import_contexts
from looopy.testing.contracts.turns import CONTEXT, user
from looopy.testing.llm import ScriptedProvider

_NO_NUMBER: tuple[Any, ...] = ("x", "a\0", "\ud800", b"1", 1.0, True, [], {})
_NUMBER = (*_NO_NUMBER, None)
_FROM_0 = (*_NUMBER, -1, -(10**5000))
_LIMIT = (*_NO_NUMBER, -1)
_TEXT: tuple[Any, ...] = (None, 7, True, b"x", [], {})
_STORABLE = (*_TEXT, "a\0", "\ud800")
_CURSOR = tuple(one for one in _STORABLE if one is not None)
_TABLE: tuple[tuple[str, tuple[Any, ...], dict[str, tuple[Any, ...]]], ...] = (
    ("messages.list", (CONTEXT,), {"after": _NUMBER, "limit": _LIMIT}),
    ("messages.records", (CONTEXT,), {"after": _NUMBER, "limit": _LIMIT}),
    ("messages.recent", (CONTEXT,), {"limit": (*_LIMIT, None)}),
    ("state.list", (), {"after": _TEXT, "limit": (*_LIMIT, None)}),
    ("state.save", (CONTEXT, {}), {"version": _NUMBER}),
    ("journal.events", (CONTEXT,), {"after": _NUMBER, "limit": _LIMIT}),
    ("journal.turns", (CONTEXT,), {"after": _NUMBER, "limit": (*_LIMIT, None)}),
    ("journal.started_calls", (CONTEXT,), {"turn": _NUMBER}),
    ("journal.inbox", (CONTEXT,), {"after": _NUMBER}),
    ("journal.ask_cancel", (CONTEXT,), {"turn": _NO_NUMBER}),
    ("journal.fork", (CONTEXT, "new"), {"at": (*_NO_NUMBER, -1, -(10**5000), 10**5000)}),
    ("journal.rewind", (CONTEXT,), {"to": (*_FROM_0, 10**5000)}),
    ("artifacts.get", (CONTEXT, "art"), {"version": (*_NO_NUMBER, 10**5000)}),
    ("artifacts.load", (CONTEXT, "art"), {"version": (*_NO_NUMBER, 10**5000)}),
    ("artifacts.read", (CONTEXT, "art"), {"version": _NO_NUMBER, "start": _FROM_0}),
    ("artifacts.read", (CONTEXT, "art"), {"size": (*_NO_NUMBER, -1, "")}),
    ("artifacts.rows", (CONTEXT, "art"), {"version": _NO_NUMBER, "after": _FROM_0}),
    ("artifacts.rows", (CONTEXT, "art"), {"limit": (*_LIMIT, None)}),
    ("artifacts.append", (CONTEXT, "art", b""), {"version": (*_NO_NUMBER, 10**5000)}),
    ("artifacts.complete", (CONTEXT, "art"), {"version": _NO_NUMBER}),
    ("artifacts.fail", (CONTEXT, "art"), {"version": _NO_NUMBER}),
    ("artifacts.list", (CONTEXT,), {"turn": _NO_NUMBER, "after": _STORABLE, "limit": _LIMIT}),
    ("contexts.list", (), {"due": ("x", None, 1), "limit": (*_LIMIT, None), "after": _CURSOR}),
    ("contexts.log_page", (CONTEXT,), {"after": _NUMBER, "limit": (*_LIMIT, None)}),
    ("contexts.log_page", (CONTEXT,), {"most_bytes": (*_FROM_0, 0)}),
    ("contexts.list", (), {"metadata": ([], "", 0, [1])}),
    ("contexts.running", (), {"owner": _CURSOR, "limit": (*_LIMIT, None)}),
    ("contexts.sizes", (), {"after": _TEXT, "limit": (*_LIMIT, None)}),
    ("contexts.search", ("fox",), {"after": _CURSOR, "limit": (*_LIMIT, None)}),
)
_UNKNOWN = (None, 7, [], {}, b"c", "a\0", "\ud800", "no id!")
_READERS_OF_UNKNOWN = (
    "state.load",
    "messages.count",
    "messages.list",
    "journal.events",
    "journal.inbox",
    "journal.lineage",
    "state.wait_queue",
    "artifacts.list",
    "contexts.erase",
)


def _method(stores: Any, name: str) -> Any:
    part, _, method = name.partition(".")
    return getattr(getattr(stores, part), method)


async def _texts() -> AsyncIterator[str]:
    yield "PK"


async def _refusals(stores: Any) -> list[str]:
    """What each wrong argument of the table leads to, unless it is as it should be."""
    wrong = []
    for name, args, options in _TABLE:
        for option, values in options.items():
            for value in values:
                said = await _outcome(_method(stores, name)(*args, **{option: value}))
                if said != f"/{option}":
                    wrong.append(f"{name}({option}={ascii(value)[:20]}): {said}")
    return wrong


async def _reads_of_unknown_ids(stores: Any) -> None:
    """No context can have these ids, whatever their type, also where they have no hash."""
    for name in _UNKNOWN:
        for reader in _READERS_OF_UNKNOWN:
            await _method(stores, reader)(name)
        for work in (stores.journal.fork(name, "new"), stores.artifacts.get(name, "art")):
            with pytest.raises((ContextNotFound, ArtifactNotFound)):
                await work
        assert await stores.journal.turn_of_key(CONTEXT, name) is None


async def _outcome(work: Any) -> str:
    try:
        found = await work
    except ValueRefused as error:
        str(error).encode()  # whoever prints it does
        return str(error.path)
    except Exception as error:  # noqa: BLE001 - it is what the test looks for
        return f"{type(error).__name__} {error!r}"
    return f"returned {found!r}"


class Arguments:
    """Run by the classes below, once for each store."""

    async def test_wrong_arguments_are_refused_by_their_place(self, stores):
        """With a typed error whose text can be printed; nothing was changed."""
        await stores.messages.append(CONTEXT, [user("a fox")])
        await stores.artifacts.open(CONTEXT, "art", kind="dataset", columns={"n": "integer"})
        before = await stores.state.load(CONTEXT)
        assert await _refusals(stores) == []
        assert await stores.state.load(CONTEXT) == before
        await _reads_of_unknown_ids(stores)


_SOURCES = (None, 7, b"PK", [b"PK"], "", "a\0", "\ud800", io.StringIO("PK"), _texts())
_NEW_IDS = (None, 7, "ada", [("ada", "eve")], {7: "eve"}, {"ada": 7}, {"ada": []}, {"bob": "eve"})
_PATHS = (None, 7, "", "a\0", b"a\0", "\ud800", [])


async def test_wrong_arguments_of_archives_are_refused_by_their_place(memory_stores, tmp_path):
    """Whatever a source, a path or new ids may be."""
    await memory_stores.messages.append(CONTEXT, [user("a fox")])
    archive = b"".join([piece async for piece in export_contexts(memory_stores, CONTEXT)])
    wrong = []
    for source in _SOURCES:
        said = await _outcome(import_contexts(memory_stores, source))
        wrong += [] if said == "/source" else [f"{source!a}: {said}"]
    for ids in _NEW_IDS:
        said = await _outcome(import_contexts(memory_stores, io.BytesIO(archive), new_ids=ids))
        wrong += [] if said in ("/new_ids", "/context_id") else [f"{ids!a}: {said}"]
    for path in _PATHS:
        said = await _outcome(export_to_file(memory_stores, CONTEXT, path))
        wrong += [] if said == "/path" else [f"{path!a}: {said}"]
    for names in (None, 7):
        said = await _outcome(export_to_file(memory_stores, names, tmp_path / "x.zip"))
        wrong += [] if said == "/context_ids" else [f"{names!a}: {said}"]
    assert wrong == []
    assert list(tmp_path.iterdir()) == []
    assert [one.context_id for one in await memory_stores.state.list()] == [CONTEXT]


async def test_wrong_arguments_of_an_agent_are_refused_by_their_place(memory_stores):
    """Before anything is read, by each method that takes a number or the `next` of a page."""
    async with Agent(CONTEXT, stores=memory_stores, llm_provider=ScriptedProvider([])) as agent:
        await memory_stores.messages.append(CONTEXT, [user("a fox")])
        wrong = []
        for name, args, options in (
            ("get_messages", (), {"after": _NUMBER, "limit": _LIMIT}),
            ("get_covered", (), {"position": _NO_NUMBER, "after": _NUMBER, "limit": _LIMIT}),
            ("search", ("fox",), {"after": _CURSOR, "limit": (*_LIMIT, None)}),
            ("fork", ("new",), {"at": (*_NO_NUMBER, -1)}),
            ("rewind", (), {"to": _FROM_0}),
            ("compact", (), {"keep_turns": (*_FROM_0, 0)}),
            ("steer", ("hi",), {"expected_turn": _NO_NUMBER}),
        ):
            for option, values in options.items():
                for value in values:
                    said = await _outcome(getattr(agent, name)(*args, **{option: value}))
                    wrong += [] if said == f"/{option}" else [f"{name}({value!a}): {said}"]
        for value in _NO_NUMBER:
            with pytest.raises(ValueRefused):
                agent.events(after=value)
        assert wrong == []


class TestArgumentsInMemory(InMemory, Arguments):
    pass


class TestArgumentsOnSQLite(OnSQLite, Arguments):
    pass


class TestArgumentsOnAsyncpg(OnAsyncpg, Arguments):
    pass
