"""`ArtifactTools`: a model keeps files, objects and tables of its own context."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.agent.kit import assert_whole

from looopy import ToolContext, agent_loop, tool
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.faults import SpyStores
from looopy.tools import ArtifactTools
from looopy.tools.sources.artifact import DATASET
from looopy.types.event import ArtifactUpdate
from looopy.types.message import ImageContent, ToolResultMessage

ALL = {
    "create_file_artifact",
    "append_file_chunk",
    "get_file_content",
    "create_data_artifact",
    "update_data_artifact",
    "get_data_content",
    "get_data_artifact",
    "create_dataset_artifact",
    "append_dataset_row",
    "append_dataset_rows",
    "get_dataset_rows",
    "list_artifacts",
    "get_artifact",
    "delete_artifact",
}


@pytest.fixture
def ask(make_agent, stores):
    """Run a turn with these calls in one answer; what each gave, an error as its text."""

    async def ask(*calls, context_id="ada"):
        agent = await make_agent(
            [calls, text("ok")], tools=[ArtifactTools()], stores=stores, context_id=context_id
        )
        result = await agent.execute_turn("go")
        await assert_whole(stores, context_id)
        found = result.iterations[0].calls
        return [c.result.text if c.is_error else _read(c.result) for c in found]

    return ask


def _read(result):
    try:
        return json.loads(result.text)
    except ValueError:
        return result.content[0] if isinstance(result.content[0], ImageContent) else result.text


async def test_a_file_is_created_grown_and_read(ask, stores):
    """In the order of the calls of one answer; each write is a version."""
    made, grown, read, part, old = await ask(
        tool_call("create_file_artifact", artifact_id="notes", content="a"),
        tool_call("append_file_chunk", artifact_id="notes", chunk="é\nc"),
        tool_call("get_file_content", artifact_id="notes"),
        tool_call("get_file_content", artifact_id="notes", offset=1, limit=1),
        tool_call("get_file_content", artifact_id="notes", version=1),
    )
    assert (made["kind"], made["version"], grown["version"]) == ("file", 1, 2)
    assert read == {"content": "aé\nc", "offset": 0, "total_chars": 4, "more": 0}
    assert (part["content"], part["more"], old["content"]) == ("é", 2, "a")
    assert await stores.artifacts.load("ada", "notes") == "aé\nc".encode()


async def test_an_existing_name_is_replaced_only_on_request(ask):
    """`override`: the content is new, the version goes on; another context has its own names."""
    _, refused, made, read = await ask(
        tool_call("create_file_artifact", artifact_id="x", content="old"),
        tool_call("create_data_artifact", artifact_id="x", data={}),
        tool_call("create_file_artifact", artifact_id="x", content="new", override=True),
        tool_call("get_file_content", artifact_id="x"),
    )
    assert "there is an artifact 'x' already: pass override=true" in refused
    assert (made["version"], read["content"]) == (2, "new")
    [elsewhere] = await ask(
        tool_call("create_file_artifact", artifact_id="x", content="b"), context_id="ben"
    )
    assert elsewhere["version"] == 1


async def test_an_object_is_kept_and_changed(ask):
    """Replaced, or field by field."""
    results = await ask(
        tool_call("create_data_artifact", artifact_id="plan", data={"a": 1, "b": [2]}),
        tool_call("update_data_artifact", artifact_id="plan", data={"a": 3}, merge=True),
        tool_call("get_data_content", artifact_id="plan"),
        tool_call("update_data_artifact", artifact_id="plan", data={"c": 4}),
        tool_call("get_data_artifact", artifact_id="plan"),
        tool_call("get_data_content", artifact_id="plan", version=1),
    )
    assert results[2] == {"a": 3, "b": [2]}
    assert (results[4]["data"], results[4]["kind"]) == ({"c": 4}, "data")
    assert results[4]["version"] == 3
    assert results[5] == {"a": 1, "b": [2]}


async def test_a_table_grows_by_rows_that_fit(ask):
    """All of them or none; read in pieces."""
    columns = {"name": "string", "age": "integer"}
    made, one, more, wrong, unknown, read = await ask(
        tool_call("create_dataset_artifact", artifact_id="people", columns=columns),
        tool_call("append_dataset_row", artifact_id="people", row={"name": "Ada", "age": 36}),
        tool_call(
            "append_dataset_rows", artifact_id="people", rows=[{"name": "Ben"}, {"name": None}]
        ),
        tool_call("append_dataset_rows", artifact_id="people", rows=[{"name": "x"}, {"age": True}]),
        tool_call("append_dataset_row", artifact_id="people", row={"size": 1}),
        tool_call("get_dataset_rows", artifact_id="people", offset=1, limit=1),
    )
    assert (made["kind"], made["rows"], one["rows"], more["rows"]) == ("dataset", 0, 1, 3)
    assert wrong == "rows[1].age: must be integer, or null"
    assert unknown == "rows[0].size: no such column; there are: name, age"
    assert read == {"columns": columns, "rows": [{"name": "Ben"}], "offset": 1, "more": 1}


async def test_artifacts_are_listed_described_and_deleted(ask, stores):
    """By name; tables are told from objects."""
    results = await ask(
        tool_call("create_dataset_artifact", artifact_id="t", columns={"a": "any"}),
        tool_call("create_file_artifact", artifact_id="f"),
        tool_call("list_artifacts"),
        tool_call("get_artifact", artifact_id="t"),
        tool_call("delete_artifact", artifact_id="f"),
        tool_call("list_artifacts"),
    )
    assert [(one["artifact_id"], one["kind"]) for one in results[2]] == [
        ("f", "file"),
        ("t", "dataset"),
    ]
    assert results[3]["kind"] == "dataset"
    assert results[4] == "deleted f"
    assert [one["artifact_id"] for one in results[5]] == ["t"]
    assert [one.artifact_id for one in await stores.artifacts.list("ada")] == ["t"]


async def test_a_deletion_is_a_step_of_the_turn_with_an_event(make_agent, stores):
    """Stored before `tool_execution_end`; the result names no version that is gone."""
    calls = (
        tool_call("create_data_artifact", artifact_id="plan", data={"a": 1}),
        tool_call("update_data_artifact", artifact_id="plan", data={"a": 2}),
        tool_call("create_file_artifact", artifact_id="notes"),
        tool_call("delete_artifact", artifact_id="plan"),
    )
    agent = await make_agent([calls, text("ok")], tools=[ArtifactTools()], stores=stores)
    result = await agent.execute_turn("go")
    assert [one.artifact_id for one in result.artifacts] == ["notes"]
    log = await stores.journal.events("ada")
    updates = [one for one in log if isinstance(one, ArtifactUpdate)]
    assert [(u.artifact_id, u.kind, u.version, u.deleted) for u in updates] == [
        ("plan", "data", 1, False),
        ("plan", "data", 2, False),
        ("notes", "file", 1, False),
        ("plan", "data", 2, True),
    ]
    following = log[updates[-1].seq]  # the log counts from 1
    assert (following.type, following.tool_name) == ("tool_execution_end", "delete_artifact")
    await assert_whole(stores)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (tool_call("append_file_chunk", artifact_id="d", chunk="x"), "is a data artifact, not a"),
        (tool_call("get_data_content", artifact_id="f"), "is a file artifact, not a data"),
        (tool_call("append_dataset_row", artifact_id="d", row={}), "not a dataset"),
        (tool_call("update_data_artifact", artifact_id="t", data={}), "not a data"),
        (tool_call("get_file_content", artifact_id="no"), "there are: 'd', 'f', 't'"),
        (tool_call("delete_artifact", artifact_id="no"), "there is no artifact 'no'"),
        (tool_call("get_file_content", artifact_id="f", version=9), "no version 9"),
        (tool_call("create_file_artifact", artifact_id="a\nb"), "control character"),
        (tool_call("create_dataset_artifact", artifact_id="u", columns={}), "at least one"),
    ],
)
async def test_a_wrong_kind_name_or_version_is_refused_with_the_valid_ones(ask, call, says):
    """Another kind, no such name, no such version."""
    *_, told = await ask(
        tool_call("create_file_artifact", artifact_id="f"),
        tool_call("create_data_artifact", artifact_id="d", data={}),
        tool_call("create_dataset_artifact", artifact_id="t", columns={"a": "any"}),
        call,
    )
    assert says in told


async def test_a_picture_is_shown_and_bytes_are_not(ask, stores):
    """The model sees what it can see."""
    await stores.artifacts.save("ada", "logo", b"\x89PNG", media_type="image/png")
    await stores.artifacts.save("ada", "blob", b"\xff\xfe")
    picture, blob = await ask(
        tool_call("get_file_content", artifact_id="logo"),
        tool_call("get_file_content", artifact_id="blob"),
    )
    assert (picture.mime_type, picture.data) == ("image/png", "iVBORw==")
    assert blob == "'blob' is not text: 2 bytes"


async def test_there_are_fourteen_of_which_six_only_look():
    """Those that write run alone."""
    tools = {one.name: one for one in ArtifactTools().list_tools()}
    looking = {one.name for one in ArtifactTools(read_only=True).list_tools()}
    assert tools.keys() == ALL
    assert len(looking) == 6
    assert {name for name, one in tools.items() if one.parallel} == looking
    assert {name for name, one in tools.items() if one.effects == "none"} == looking


async def test_without_a_store_there_is_nowhere_to_keep_them():
    """A bare loop says so."""
    provider = ScriptedProvider([tool_call("list_artifacts"), text("ok")])
    events = [e async for e in agent_loop("go", llm_provider=provider, tools=[ArtifactTools()])]
    [told] = [m for m in events[-1].messages if isinstance(m, ToolResultMessage)]
    assert "nowhere to keep artifacts" in told.text


@pytest.mark.parametrize("act", ["save", "delete"])
async def test_an_artifact_waits_for_a_commit_of_its_turn_that_is_under_way(
    make_agent, stores, act
):
    """Or their events were announced out of order: one commit of a turn at a time."""
    spy = SpyStores(stores)
    committing, looked = asyncio.Event(), asyncio.Event()
    under_way = []

    @tool(parallel=True)
    async def quick() -> str:
        """End at once: a result to commit."""
        return "done"

    @tool(parallel=True)
    async def write(context: ToolContext) -> str:
        """Change an artifact while that commit is under way."""
        await committing.wait()
        change = asyncio.ensure_future(
            context.artifacts.save("b", "text") if act == "save" else context.artifacts.delete("a")
        )
        for _ in range(20):
            await asyncio.sleep(0)
        looked.set()
        await change
        return "written"

    async def hold(name, given):
        if name != "commit":
            return
        under_way.append(len(spy.of("commit")) - spy.done.count("commit"))
        if any(e.type == "tool_execution_end" for e in given.events) and not looked.is_set():
            committing.set()
            await looked.wait()

    await stores.artifacts.save("ada", "a", "old")
    agent = await make_agent(
        [(tool_call("quick"), tool_call("write")), text("ok")],
        tools=[quick, write],
        stores=spy.stores,
    )
    spy.hook = hold
    events = [event async for event in agent.execute_turn("go")]
    assert committing.is_set()
    assert set(under_way) == {1}
    seqs = [event.seq for event in events if event.seq is not None]
    assert seqs == sorted(seqs)
    await assert_whole(stores)


async def test_a_file_and_a_table_are_built_up_in_one_version(ask, stores):
    """Begun with `complete=false`, until the last piece; their status says so."""
    columns = {"n": "integer"}
    results = await ask(
        tool_call("create_file_artifact", artifact_id="log", content="a", complete=False),
        tool_call("append_file_chunk", artifact_id="log", chunk="b"),
        tool_call("get_file_content", artifact_id="log"),
        tool_call("append_file_chunk", artifact_id="log", chunk="c", last_chunk=True),
        tool_call("create_dataset_artifact", artifact_id="t", columns=columns, complete=False),
        tool_call("append_dataset_rows", artifact_id="t", rows=[{"n": 1}, {"n": 2}]),
        tool_call("append_dataset_row", artifact_id="t", row={"n": 3}, last_row=True),
        tool_call("get_dataset_rows", artifact_id="t", offset=1),
        tool_call("list_artifacts"),
    )
    assert [one["version"] for one in (*results[:2], results[3], *results[4:7])] == [1] * 6
    assert [one.get("status") for one in results[:2]] == ["building", "building"]
    assert results[2]["content"] == "ab"
    assert ("status" in results[3], results[5]["status"], "status" in results[6]) == (
        False,
        "building",
        False,
    )
    assert results[7] == {"columns": columns, "rows": [{"n": 2}, {"n": 3}], "offset": 1, "more": 0}
    assert [one["artifact_id"] for one in results[8]] == ["log", "t"]
    assert await stores.artifacts.load("ada", "log") == b"abc"
    updates = [e for e in await stores.journal.events("ada") if isinstance(e, ArtifactUpdate)]
    log = [(e.version, e.append, e.last_chunk) for e in updates if e.artifact_id == "log"]
    assert log == [(1, False, False), (1, True, False), (1, True, False), (1, True, True)]


async def test_a_table_of_an_earlier_version_is_read_and_grows(ask, stores):
    """It was one object; with its first new rows it becomes a dataset."""
    old = {"columns": {"n": "integer"}, "rows": [{"n": 1}, {"n": 2}]}
    await stores.artifacts.save("ada", "t", old, media_type=DATASET)
    before, grown, after = await ask(
        tool_call("get_dataset_rows", artifact_id="t", offset=1),
        tool_call("append_dataset_row", artifact_id="t", row={"n": 3}),
        tool_call("get_dataset_rows", artifact_id="t"),
    )
    assert before["rows"] == [{"n": 2}]
    assert (grown["version"], grown["rows"]) == (2, 3)
    assert after["rows"] == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_a_large_file_is_read_in_part_and_not_stored_again(ask, stores):
    """Characters are counted from its beginning; a piece would cost all of it."""
    content = "é0123456789" * 800_000
    await stores.artifacts.save("ada", "big", content)
    start, middle, end, refused = await ask(
        tool_call("get_file_content", artifact_id="big", limit=3),
        tool_call("get_file_content", artifact_id="big", offset=8_000_001, limit=5),
        tool_call("get_file_content", artifact_id="big", offset=8_799_998),
        tool_call("append_file_chunk", artifact_id="big", chunk="x"),
    )
    assert (start["content"], start["more"]) == ("é01", True)
    assert middle["content"] == content[8_000_001:8_000_006]
    assert (end["content"], end["more"], end["total_bytes"]) == ("89", False, 9_600_000)
    assert "begin another with complete=false" in refused


async def test_a_tool_writes_an_artifact_piece_by_piece(make_agent, stores):
    """Each piece is a step of the turn; a block that raises leaves a failed version."""

    @tool(effects="idempotent")
    async def write(name: str, fails: bool, context: ToolContext) -> str:
        """Write a file."""
        async with context.artifacts.open(name, media_type="text/plain") as log:
            await log.append("one ")
            await log.append(b"two")
            if fails:
                raise ValueError("no more")
        return log.artifact.status

    good = tool_call("write", name="good", fails=False)
    calls = (good, tool_call("write", name="bad", fails=True))
    agent = await make_agent([calls, text("ok")], tools=[write], stores=stores)
    result = await agent.execute_turn("go")
    told = [(one.artifact_id, one.status, one.size) for one in result.artifacts]
    assert told == [("good", "complete", 7), ("bad", "failed", 7)]
    updates = [e for e in await stores.journal.events("ada") if isinstance(e, ArtifactUpdate)]
    assert [(e.append, e.last_chunk, e.failed) for e in updates] == [
        *[(False, False, False), (True, False, False), (True, False, False)],
        (True, True, False),
        *[(False, False, False), (True, False, False), (True, False, False)],
        (True, True, True),
    ]
    assert await stores.artifacts.load("ada", "good") == b"one two"
    assert await stores.artifacts.list("ada", status="failed") == [result.artifacts[1]]
    await assert_whole(stores)
