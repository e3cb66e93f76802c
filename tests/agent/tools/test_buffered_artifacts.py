"""With `auto_save=False` artifacts wait for the save like messages, and the agent sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from looopy import Agent, ToolContext, open_stores, tool
from looopy.errors import ArtifactNotFound, StoreConflict
from looopy.stores.artifacts import parts
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.contracts.turns import begin
from looopy.types.event import ArtifactUpdate

LARGE = b"0123456789abcdef" * 10_000


@tool
async def write(context: ToolContext) -> str:
    """Make every kind of change, and read them back."""
    artifacts = context.artifacts
    await artifacts.save("note", "one")
    await artifacts.save("note", "two", description="the second")
    async with artifacts.open("log") as log:
        await log.append("a")
        await log.append("b")
    await artifacts.append("old", LARGE)
    await artifacts.append("old", "end", last=True)
    await artifacts.save("large", LARGE)
    await artifacts.open("left").__aenter__()
    await artifacts.delete("gone")
    await artifacts.save("gone", {"again": True})
    assert await artifacts.load("note") == b"two"
    assert await artifacts.load("note", 1) == b"one"
    assert await artifacts.load("log") == b"ab"
    assert await artifacts.load("old") == LARGE + LARGE + b"end"
    assert await artifacts.read("old", start=len(LARGE) - 2, size=4) == b"ef01"
    assert await artifacts.read("old", start=2 * len(LARGE) - 1, size=9) == b"fend"
    assert await artifacts.load("gone") == {"again": True}
    assert [(one.artifact_id, one.version) for one in await artifacts.list()] == WRITTEN
    assert [one.version for one in await artifacts.versions("note")] == [1, 2]
    assert [one.artifact_id for one in await artifacts.list(status="building")] == ["left"]
    assert [one.artifact_id for one in await artifacts.list(after="log", limit=1)] == ["note"]
    assert (await artifacts.get("note")).turn == context.turn
    return "written"


@tool
async def again(context: ToolContext) -> str:
    """Go on from the turn before, which is not saved either."""
    await context.artifacts.save("note", "three")
    await context.artifacts.append("left", "x", last=True)
    await context.artifacts.delete("log")
    return (await context.artifacts.load("note", 2)).decode()


@tool
async def lose(context: ToolContext) -> str:
    """Delete an artifact."""
    await context.artifacts.delete("old")
    return "lost"


WRITTEN = [("gone", 1), ("large", 1), ("left", 1), ("log", 1), ("note", 2), ("old", 1)]


@pytest.fixture
async def begun(stores):
    """A context with an artifact to go on with, and one to delete."""
    await stores.artifacts.open("ada", "old")
    await stores.artifacts.append("ada", "old", LARGE)
    await stores.artifacts.save("ada", "gone", b"first")
    await stores.artifacts.save("ada", "gone", b"second")
    return stores


async def stored(stores):
    """What everybody else sees: the newest versions, and the events of artifacts."""
    newest = [(one.artifact_id, one.version) for one in await stores.artifacts.list("ada")]
    events = await stores.journal.events("ada")
    return newest, [event for event in events if isinstance(event, ArtifactUpdate)]


async def test_artifacts_are_stored_by_the_save_and_not_before(make_agent, begun):
    """Two turns, each with its changes in order; the events have kinds, versions and numbers."""
    stores = begun
    before = await stored(stores)
    replies = [tool_call("write"), text("ok"), tool_call("again"), text("ok")]
    agent = await make_agent(replies, tools=[write, again], stores=stores, auto_save=False)
    first = await agent.execute_turn("a")
    assert [m.text for m in first.messages if m.role == "toolResult"] == ["written"]
    second = await agent.execute_turn("b")
    assert [m.text for m in second.messages if m.role == "toolResult"] == ["two"]
    assert await stored(stores) == before == ([("gone", 2), ("old", 1)], [])
    seen = [(one.artifact_id, one.version) for one in await agent.get_artifacts()]
    assert seen == [("gone", 1), ("large", 1), ("left", 1), ("note", 3), ("old", 1)]
    await agent.save_state()
    newest, events = await stored(stores)
    assert newest == seen
    said = [(e.artifact_id, e.version, e.turn, e.deleted, e.last_chunk) for e in events]
    assert said == [
        ("note", 1, 1, False, True),
        ("note", 2, 1, False, True),
        ("log", 1, 1, False, False),
        ("log", 1, 1, False, False),
        ("log", 1, 1, False, False),
        ("log", 1, 1, False, True),
        ("old", 1, 1, False, False),
        ("old", 1, 1, False, True),
        ("large", 1, 1, False, True),
        ("left", 1, 1, False, False),
        ("gone", 2, 1, True, True),
        ("gone", 1, 1, False, True),
        ("note", 3, 2, False, True),
        ("left", 1, 2, False, True),
        ("log", 1, 2, True, True),
    ]
    assert await stores.artifacts.load("ada", "old") == LARGE + LARGE + b"end"
    assert await stores.artifacts.load("ada", "left") == b"x"
    assert await stores.artifacts.load("ada", "large") == LARGE
    assert [one.turn for one in await stores.artifacts.versions("ada", "note")] == [1, 1, 2]
    assert [one.artifact_id for one in await agent.get_artifacts()] == [name for name, _ in newest]


@tool
async def make_and_delete(context: ToolContext) -> str:
    """Delete an artifact that is stored, and one of this turn; keep a third one."""
    await context.artifacts.delete("old")
    await context.artifacts.save("short", LARGE[::-1])
    await context.artifacts.delete("short")
    await context.artifacts.save("kept", LARGE * 2)
    return "deleted"


async def test_a_save_removes_the_bytes_of_what_it_deletes(make_agent, tmp_path):
    """At once, like a turn that commits for itself: none is left to the collector."""
    folder = tmp_path / "a.db.blobs"

    def sizes():
        return sorted(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    async with open_stores(f"sqlite:///{tmp_path}/a.db") as stores:
        await stores.artifacts.save("ada", "old", LARGE)
        replies, tools = [tool_call("make_and_delete"), text("ok")], [make_and_delete]
        agent = await make_agent(
            replies, tools=tools, stores=stores, context_id="ada", auto_save=False
        )
        await agent.execute_turn("a")
        assert sizes() == [len(LARGE), len(LARGE), 2 * len(LARGE)]
        await agent.save_state()
        assert sizes() == [2 * len(LARGE)]
        assert await stores.artifacts.load("ada", "kept") == LARGE * 2
        await agent.shutdown()


async def test_a_conflict_keeps_the_buffered_artifacts(make_agent, begun):
    """Another process was first: nothing of it is stored, and the agent still shows it."""
    stores = begun
    agent = await make_agent(
        [tool_call("write"), text("ok")], tools=[write], stores=stores, auto_save=False
    )
    await agent.execute_turn("a")
    await stores.messages.append("ada", (await agent.get_messages())[:1])
    before = await stored(stores)
    for _ in range(2):
        with pytest.raises(StoreConflict):
            await agent.save_state()
    assert await stored(stores) == before
    assert [(one.artifact_id, one.version) for one in await agent.get_artifacts()] == WRITTEN


@tool
async def extend(context: ToolContext) -> str:
    """Append to an artifact, and save another one."""
    await context.artifacts.append("old", "x")
    await context.artifacts.save("note", "one")
    return "done"


async def _deleted(stores):
    await stores.artifacts.delete("ada", "old")


async def _appended(stores):
    await stores.artifacts.append("ada", "old", b"more")


async def _saved(stores):
    await stores.artifacts.save("ada", "old", b"another")


@pytest.fixture
async def changing(make_agent, begun):
    """A function that makes an agent with a turn that waits and has changed `old`."""

    async def made(change):
        replies = [tool_call(change.name), text("ok"), text("next")]
        agent = await make_agent(replies, tools=[change], stores=begun, auto_save=False)
        await agent.execute_turn("a")
        return agent

    return made


@pytest.mark.parametrize(
    ("change", "meanwhile"),
    [(lose, _deleted), (lose, _saved), (extend, _deleted), (extend, _appended), (extend, _saved)],
)
async def test_an_artifact_that_was_changed_meanwhile_is_a_conflict(
    changing, begun, change, meanwhile
):
    """The error names it, the turn is not begun, and it can be saved without that change."""
    stores, agent = begun, await changing(change)
    await meanwhile(stores)
    before = await stored(stores)
    for _ in range(2):
        with pytest.raises(StoreConflict, match=r"without=\['old'\]") as refused:
            await agent.save_state()
        assert refused.value.artifact_id == "old"
    assert await stores.journal.turns("ada") == []
    assert await stored(stores) == before
    await agent.save_state(without=["old"])
    assert [turn.outcome for turn in await stores.journal.turns("ada")] == ["completed"]
    newest, events = await stored(stores)
    assert [event.artifact_id for event in events] == ["note"] * (change is extend)
    assert dict(newest) == dict(before[0]) | ({"note": 1} if change is extend else {})
    assert [one.artifact_id for one in await agent.get_artifacts()] == [name for name, _ in newest]


@tool
async def upload(context: ToolContext) -> str:
    """Save more than a row takes."""
    await context.artifacts.save("large", LARGE)
    return "done"


@pytest.fixture
async def half_stored(changing, begun, monkeypatch):
    """An agent whose save has met a change in the moment between its claim and its commit."""
    agent = await changing(lose)
    claim = type(begun.state).claim

    async def then_deleted(self, given):
        claimed = await claim(self, given)
        await _deleted(begun)
        return claimed

    with monkeypatch.context() as once:
        once.setattr(type(begun.state), "claim", then_deleted)
        with pytest.raises(StoreConflict) as refused:
            await agent.save_state()
    assert refused.value.artifact_id == "old"
    (turn,) = await begun.journal.turns("ada")
    assert turn.outcome is None
    return agent


async def test_a_half_stored_turn_is_ended_by_the_next_save(half_stored, begun):
    """At once: it need not wait for a lease."""
    await half_stored.save_state(without=["old"])
    assert [turn.outcome for turn in await begun.journal.turns("ada")] == ["completed"]
    assert (await begun.state.load("ada")).holder is None


async def test_dropping_a_half_stored_turn_releases_its_context(half_stored, begun):
    """It counts as one whose process died."""
    with pytest.raises(StoreConflict):
        await half_stored.shutdown()
    record = await begun.state.load("ada")
    assert (record.holder, record.open_turn.turn) == (None, 1)
    await begin(begun, record.epoch, context_id="ada", recover=True)


async def test_clear_drops_the_buffered_artifacts(make_agent, begun):
    """As it drops the turns."""
    stores = begun
    agent = await make_agent(
        [tool_call("write"), text("ok")], tools=[write], stores=stores, auto_save=False
    )
    await agent.execute_turn("a")
    await agent.clear()
    assert await agent.get_artifacts() == []
    await agent.save_state()
    assert await stores.artifacts.list("ada") == []


@tool
async def report(context: ToolContext) -> str:
    """Save bytes that lie outside of the database."""
    await context.artifacts.save("report", LARGE)
    return "saved"


def _buffering(stores):
    model = ScriptedProvider([tool_call("report"), text("ok")])
    return Agent("ada", llm_provider=model, tools=[report], stores=stores, auto_save=False)


async def test_collect_in_another_process_leaves_the_bytes_of_a_buffered_turn(tmp_path: Path):
    """Whatever its grace time: the turn holds them, and its save is whole."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_stores(url) as stores, open_stores(url) as other, _buffering(stores) as agent:
        await agent.execute_turn("a")
        assert await other.artifacts.collect(0) == 0
        await agent.save_state()
        assert await other.artifacts.collect(0) == 0
        assert await other.artifacts.load("ada", "report") == LARGE


async def test_a_buffered_turn_whose_bytes_were_collected_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch
):
    """Its time was over: the error names the artifact, and the turn is saved without it."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_stores(url) as stores, open_stores(url) as other, _buffering(stores) as agent:
        with monkeypatch.context() as patch:
            patch.setattr(parts, "HELD_S", 0.0)
            await agent.execute_turn("a")
        assert await other.artifacts.collect(0) == 1
        with pytest.raises(StoreConflict) as refused:
            await agent.save_state()
        assert refused.value.artifact_id == "report"
        assert await other.state.load("ada") is None
        await agent.save_state(without=["report"])
        assert await other.artifacts.list("ada") == []
        assert [m.role for m in await other.messages.list("ada")][-1] == "assistant"


_DIES = """
import asyncio, os, sys
from looopy import Agent, ToolContext, tool
from looopy.testing import ScriptedProvider, text, tool_call

@tool
async def write(context: ToolContext) -> str:
    \"\"\"Write.\"\"\"
    await context.artifacts.save("large", b"0123456789abcdef" * 10_000)
    return "written"

async def main():
    model = ScriptedProvider([tool_call("write"), text("ok")])
    agent = Agent("ada", llm_provider=model, tools=[write], stores=sys.argv[1], auto_save=False)
    await agent.start()
    await agent.execute_turn("a")
    assert [one.artifact_id for one in await agent.get_artifacts()] == ["large"]
    os._exit(9)

asyncio.run(main())
"""


async def test_a_process_that_dies_before_the_save_leaves_an_orphan_at_most(tmp_path: Path):
    """No artifact, and bytes that `collect` finds."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    done = subprocess.run([sys.executable, "-c", _DIES, url], check=False)
    assert done.returncode == 9
    async with open_stores(url) as stores:
        assert await stores.state.load("ada") is None
        with pytest.raises(ArtifactNotFound):
            await stores.artifacts.get("ada", "large")
        assert await stores.artifacts.collect(0) == 1
        assert await stores.artifacts.collect(0) == 0
