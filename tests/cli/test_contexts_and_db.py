"""`looopy contexts`, `db`, `models` and the program's own options."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from datetime import date
from importlib.metadata import version

import pytest
from tests.wire.fake_openai import refuses

from looopy.cli.data_folder import data_folder
from looopy.cli.models import list_models
from looopy.errors import how_to_install
from looopy.llm.price_list import PriceList
from looopy.stores import open_stores
from looopy.stores.sql.statements import HEAD
from looopy.testing.contracts.turns import answer, begin, commit, ends, said
from looopy.types.state import AgentStatus


async def test_conversations_are_listed_a_line_each(looopy):
    """With status, number of turns and last activity."""
    await looopy("chat", "bob", "--message", "one", "--message", "two")
    await looopy("chat", "ada", "--message", "one")
    ended = await looopy("contexts", "list")
    first, second = ended.out.splitlines()
    assert first.startswith("ada  ready  1 turn  last activity 20")
    assert second.startswith("bob  ready  2 turns  ")


async def test_list_says_that_a_conversation_is_paused_or_shut_down(looopy):
    """Until its next turn; programs get `left_as`."""
    await looopy("chat", "ada", "--message", "one")
    assert (await looopy("contexts", "list")).out.startswith("ada  ready  1 turn  ")
    for status, shown in ((AgentStatus.PAUSED, "paused"), (AgentStatus.SHUTDOWN, "shut down")):
        async with open_stores(f"sqlite:///{looopy.database}") as stores:
            record = await stores.state.load("ada")
            await stores.state.leave("ada", record.epoch, status)
        assert (await looopy("contexts", "list")).out.startswith(f"ada  {shown}  1 turn  ")
        (item,) = json.loads((await looopy("contexts", "list", "--json")).out)["items"]
        assert (item["status"], item["left_as"]) == ("ready", status)
    await looopy("chat", "ada", "--message", "two")
    assert (await looopy("contexts", "list")).out.startswith("ada  ready  2 turns  ")


async def test_the_list_takes_conditions_and_pages(looopy):
    """By tag, entry of metadata and status; `next` of a page is where the next one begins."""
    for name in ("ada", "bob", "eve"):
        await looopy("chat", name, "--message", "one")
    async with open_stores(f"sqlite:///{looopy.home / 'data' / 'looopy.db'}") as stores:
        await stores.contexts.tag("ada", add=["work"])
        for name, metadata in (("ada", {"n": 1}), ("bob", {"n": "1x"})):
            await stores.state.save(name, metadata, version=0)
    assert (await looopy("contexts", "list", "--tag", "work")).out.endswith("  #work\n")
    for entry, name in (("n=1", "ada"), ("n=1x", "bob")):
        found = await looopy("contexts", "list", "--metadata", entry, "--json")
        assert [item["context_id"] for item in json.loads(found.out)["items"]] == [name]
    first = json.loads((await looopy("contexts", "list", "--limit", "2", "--json")).out)
    assert [item["context_id"] for item in first["items"]] == ["eve", "bob"]
    rest = json.loads((await looopy("contexts", "list", "--after", first["next"], "--json")).out)
    assert ([item["context_id"] for item in rest["items"]], rest["next"]) == (["ada"], None)
    assert json.loads((await looopy("contexts", "list", "--due", "--json")).out)["items"] == []
    assert "no such conversations" in (await looopy("contexts", "list", "--status", "busy")).err
    for bad in (("--metadata", "n"), ("--tag", ""), ("--after", "x"), ("--status", "asleep")):
        assert (await looopy("contexts", "list", *bad)).status == 2


async def test_the_list_is_one_json_object_for_programs(looopy, model):
    """Its items say what an agent would say of each conversation."""
    model.answers.insert(0, refuses(400, "no", type="invalid_request_error"))
    await looopy("chat", "ada", "--message", "one")
    (item,) = json.loads((await looopy("contexts", "list", "--json")).out)["items"]
    assert (item["context_id"], item["status"], item["turn_count"]) == ("ada", "failed", 1)
    assert "refused" in item["error"]


async def test_a_conversation_is_shown_with_its_turns(looopy):
    """Messages stand below their turn, whole."""
    text = "word " * 300
    await looopy("chat", "--message", "calculate 6*7", "--message", text)
    out = (await looopy("contexts", "show", "chat")).out
    assert "turn 1  completed (stop)" in out
    assert '   2 calls calculate expression="6*7"\n   3 calculate answers: 42\n' in out
    assert "turn 2  completed (stop)" in out
    assert f"   5 user: {text}\n" in out


async def test_a_conversation_is_one_json_object_for_programs(looopy):
    """Turns and messages with their places; a message as everywhere else."""
    await looopy("chat", "--message", "one", "--message", "two")
    shown = json.loads((await looopy("contexts", "show", "chat", "--json")).out)
    assert [(t["turn"], t["outcome"]) for t in shown["turns"]] == [
        (1, "completed"),
        (2, "completed"),
    ]
    assert [(m["position"], m["turn"]) for m in shown["messages"]] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]
    assert shown["messages"][2]["message"]["content"] == "two"


async def test_messages_are_found_by_their_words(looopy):
    """A line each, or one JSON object; in all conversations, in one, and page by page."""
    await looopy("chat", "ada", "--message", "the lazy\ndog")
    await looopy("chat", "bob", "--message", "calculate 6*7", "--message", "a DOG")
    found = await looopy("contexts", "search", "dog", "-x")
    assert found.status == 2
    found = await looopy("contexts", "search", "dog")
    assert found.out.splitlines() == [
        "bob 6 assistant: You said: a DOG",
        "bob 5 user: a DOG",
        "ada 2 assistant: You said: the lazy dog",
        "ada 1 user: the lazy dog",
    ]
    for query, others, place in (
        (["lazy", "dog"], (), ("ada", 2)),
        (['"lazy dog"'], (), ("ada", 2)),
        (["dog"], ("--context", "bob"), ("bob", 6)),
        (["calculate 6*7"], ("--limit", "1"), ("bob", 2)),
    ):
        shown = await looopy("contexts", "search", *query, *others, "--json")
        item = json.loads(shown.out)["items"][0]
        assert (item["context_id"], item["position"]) == place
    assert (item["role"], item["turn"]) == ("assistant", 1)
    assert [item["snippet"][a:b] for a, b in item["matches"]] == ["calculate", "6*7"]
    first = await looopy("contexts", "search", "dog", "--limit", "2")
    more = first.err.rpartition(" ")[2].rstrip()
    assert (await looopy("contexts", "search", "dog", "--after", more)).out.startswith("ada 2")
    assert "No message" in (await looopy("contexts", "search", "dog", "--owner", "x")).err
    refused = await looopy("contexts", "search", "* & -")
    assert (refused.status, refused.out) == (2, "")
    assert "the query has no words" in refused.err


async def test_a_conversation_is_forked_where_a_turn_ends(looopy):
    """And shown with its past; other places, and names that are taken, are refused."""
    await looopy("chat", "ada", "--message", "one", "--message", "two")
    ended = await looopy("contexts", "fork", "ada", "ada-2", "--at", "2", "--json")
    made = json.loads(ended.out)
    assert (made["context_id"], made["turn_count"], made["status"]) == ("ada-2", 1, "ready")
    assert "   1 user: one\n" in (await looopy("contexts", "show", "ada-2")).out
    made = json.loads((await looopy("contexts", "show", "ada-2", "--json")).out)
    assert (made["parent"], made["forks"]) == ({"context_id": "ada", "at": 2}, [])
    parent = (await looopy("contexts", "show", "ada")).out.splitlines()
    assert parent[1] == "fork ada-2 at 2"
    child = (await looopy("contexts", "show", "ada-2")).out.splitlines()
    assert child[1] == "forked from ada at 2"
    whole = await looopy("contexts", "fork", "ada", "ada-3")
    assert whole.out.startswith("ada-3  ready  2 turns")
    for args, status in (
        (("ada", "ada-2"), 1),
        (("ada", "new", "--at", "1"), 2),
        (("nobody", "new"), 1),
    ):
        ended = await looopy("contexts", "fork", *args)
        assert (ended.status, ended.out) == (status, "")


async def test_an_unknown_conversation_is_status_one(looopy):
    """And one line that names database and id."""
    await looopy("chat", "--message", "one")
    ended = await looopy("contexts", "show", "nobody")
    assert (ended.status, ended.out) == (1, "")
    assert "no conversation 'nobody'" in ended.err
    assert (await looopy("contexts", "show", "no body")).status == 2


@pytest.mark.parametrize("args", [["list"], ["show", "chat"], ["list", "--json"], ["search", "x"]])
async def test_looking_never_makes_a_database(looopy, args):
    """What is not there is an error, and still not there afterwards."""
    ended = await looopy("contexts", *args)
    assert (ended.status, ended.out) == (2, "")
    assert f"there is no database at {looopy.database}" in ended.err
    assert not looopy.database.parent.exists()


async def test_looking_never_migrates_a_database(looopy):
    """A schema that is not the newest is left as it is, with the command to run."""
    await looopy("db", "upgrade")
    await looopy("db", "downgrade", "base", "--yes")
    ended = await looopy("contexts", "list")
    assert ended.status == 2
    assert "looopy db upgrade" in ended.err
    assert (await looopy("db", "check")).status == 1


# --- erasing -----------------------------------------------------------------------------------


async def test_conversations_are_deleted_with_a_report(looopy):
    """Those that are named, or all of a person; only with --yes where nobody can be asked."""
    for name in ("ada", "bob", "eve"):
        await looopy("chat", name, "--message", "one")
    refused = await looopy("contexts", "delete", "ada")
    assert (refused.status, refused.out) == (2, "")
    assert "pass --yes" in refused.err
    unknown = await looopy("contexts", "delete", "nobody", "--yes")
    assert (unknown.status, unknown.out) == (1, "")
    gone = await looopy("contexts", "delete", "ada", "bob", "--yes")
    assert gone.status == 0
    assert gone.out.startswith("Erased 2 conversations:\n  ada\n  bob\nturns                   2\n")
    found = json.loads((await looopy("contexts", "list", "--json")).out)
    assert [item["context_id"] for item in found["items"]] == ["eve"]
    told = json.loads((await looopy("contexts", "delete", "eve", "--yes", "--json")).out)
    assert (told["contexts"], told["context_ids"], told["turns"]) == (1, ["eve"], 1)
    nobody = await looopy("contexts", "delete", "--person", "ann", "--yes")
    assert (nobody.status, nobody.out) == (0, "Erased 0 conversations.\n")
    for bad in ((), ("eve", "--person", "ann"), ("no body",)):
        assert (await looopy("contexts", "delete", *bad, "--yes")).status == 2


async def test_a_conversation_that_cannot_be_deleted_stops_no_other(looopy):
    """Each that is busy or gone is a line; so a second run ends what a killed one began."""
    looopy.database.parent.mkdir()
    async with open_stores(f"sqlite:///{looopy.database}") as stores:
        claimed = {name: await begin(stores, context_id=name) for name in ("ada", "bob", "eve")}
        last = [said(answer("hi")), ends()]
        for name in ("ada", "eve"):
            await commit(stores, claimed[name], last, release=True, context_id=name)
        first = await looopy("contexts", "delete", "ada", "bob", "nobody", "eve", "--yes")
        await commit(stores, claimed["bob"], last, release=True, context_id="bob")
    assert first.status == 1
    assert first.out.startswith("Erased 2 conversations:\n  ada\n  eve\n")
    absent, held = first.err.splitlines()
    assert absent.startswith("error: there is no conversation 'nobody' in ")
    assert held == "error: a turn is running in 'bob': wait for it, or pass --force"
    again = await looopy("contexts", "delete", "ada", "bob", "--yes")
    assert (again.status, again.out.splitlines()[:2]) == (1, ["Erased 1 conversation:", "  bob"])


async def test_old_and_large_conversations_go(looopy):
    """After a dry run has said which."""
    for name in ("ada", "bob"):
        await looopy("chat", name, "--message", "one")
    assert (await looopy("contexts", "retain", "--older-than", "1d", "--yes")).out.startswith(
        "Erased 0 conversations."
    )
    would = await looopy("contexts", "retain", "--larger-than", "1b", "--dry-run")
    assert would.out.startswith("Would erase 2 conversations:\n  ada\n  bob\n")
    refused = await looopy("contexts", "retain", "--older-than", "0h")
    assert (refused.status, refused.out) == (2, "")
    assert "Would erase 2 conversations" in refused.err
    told = await looopy("contexts", "retain", "--older-than", "0h", "--yes", "--json")
    assert json.loads(told.out)["context_ids"] == ["ada", "bob"]
    for bad in ((), ("--older-than", "3"), ("--larger-than", "1XB"), ("--per", "actor")):
        assert (await looopy("contexts", "retain", *bad, "--yes")).status == 2


async def test_a_person_at_a_terminal_is_asked(looopy):
    """Anything but yes leaves everything as it is."""
    await looopy("chat", "ada", "--message", "one")
    for pressed, status in (("n\r", 1), ("y\r", 0)):
        session = await looopy.at_terminal("contexts", "delete", "ada")
        await session.see("Erase ada in ")
        await session.see("[y/N] ")
        session.press(pressed)
        await session.see("Erased 1 conversation" if status == 0 else "Nothing was erased.")
        assert await session.status() == status


# --- db ----------------------------------------------------------------------------------------


async def test_a_schema_goes_up_and_down_and_is_checked(looopy):
    """The check names what was found and what is needed, and its status tells them apart."""
    missing = await looopy("db", "check")
    assert missing.status == 1
    assert f"there is no schema yet, this version needs {HEAD}: run" in missing.err
    assert not looopy.database.exists()
    assert f"is now {HEAD}" in (await looopy("db", "upgrade")).out
    assert (await looopy("db", "check")).status == 0
    assert "is now nothing" in (await looopy("db", "downgrade", "base", "--yes")).out


async def test_dropping_all_tables_is_agreed_to_first(looopy):
    """By --yes or at a terminal; nobody there, or no, and every conversation stays."""
    await looopy("chat", "ada", "--message", "one")
    ended = await looopy("db", "downgrade", "base")
    assert (ended.status, "pass --yes" in ended.err) == (2, True)
    for pressed, status in (("n\r", 1), ("y\r", 0)):
        assert (await looopy("contexts", "list")).out.startswith("ada  ready")
        session = await looopy.at_terminal("db", "downgrade", "base")
        await session.see("with all conversations? [y/N] ")
        session.press(pressed)
        assert await session.status() == status
    assert (await looopy("db", "check")).status == 1


async def test_a_newer_schema_is_not_touched(looopy):
    """Neither up nor down; the check says both numbers."""
    await looopy("db", "upgrade")
    with sqlite3.connect(looopy.database) as database:
        database.execute("UPDATE looopy_version SET version_num = '9999'")
    database.close()
    for args in (["upgrade"], ["downgrade", "base", "--yes"]):
        ended = await looopy("db", *args)
        assert ended.status == 2
        assert "upgrade looopy" in ended.err
    checked = await looopy("db", "check")
    assert checked.status == 3
    assert "9999" in checked.err


async def test_an_unknown_revision_is_refused(looopy):
    """In one line, without a traceback."""
    await looopy("db", "upgrade")
    ended = await looopy("db", "downgrade", "nonsense", "--yes")
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1


async def test_the_statements_make_the_schema(looopy, tmp_path):
    """`looopy db sql` prints what an empty database needs; nothing is touched."""
    ended = await looopy("db", "sql")
    database = sqlite3.connect(tmp_path / "by_hand.db")
    database.executescript(ended.out)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    database.close()
    assert {"looopy_contexts", "looopy_turns", "looopy_messages", "looopy_artifacts"} <= tables
    assert not looopy.database.exists()


async def test_backups_are_listed_and_removed(looopy):
    """What migrations left beside the file, and nothing else that lies there."""
    assert (await looopy("db", "backups")).out.startswith("There are no backups of ")
    await looopy("chat", "--message", "one")
    await looopy("db", "downgrade", "base", "--yes")
    copy = looopy.database.with_name(f"{looopy.database.name}.before-leaving-{HEAD}")
    other = looopy.database.with_name(f"{looopy.database.name}.mine")
    other.write_text("kept")
    listed = await looopy("db", "backups")
    assert listed.out == f"{copy}  {copy.stat().st_size:,} bytes\n"
    assert (await looopy("db", "backups", "--remove")).out == f"removed {copy}\n"
    assert not copy.exists()
    assert other.exists()
    assert looopy.database.exists()


async def test_a_server_has_no_backups_of_ours(looopy):
    """Its administrator makes them."""
    ended = await looopy("db", "backups", "--remove", "--db", "postgresql://nowhere/app")
    assert ended.status == 2
    assert "Postgres" in ended.err


async def test_a_database_of_another_kind_is_refused(looopy):
    """Only files have a schema to migrate."""
    ended = await looopy("db", "check", "--db", "memory:")
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1


# --- the rest ----------------------------------------------------------------------------------


async def test_models_prints_the_choice_and_the_embedded_ones(looopy):
    """Which model would answer, why, how old its prices are, and what is there already."""
    looopy.env["LOOOPY_CACHE"] = str(looopy.home / "cache")
    out = (await looopy("models")).out
    assert "Without --model: openai/fake. OPENAI_BASE_URL points to" in out
    known = f"genai-prices {version('genai-prices')}, which knows no change after 20"
    assert re.search(f"^Prices: {known}", out, re.MULTILINE)
    assert "local/qwen2.5-coder-1.5b" in out
    assert "1.1 GB to fetch" in out


@pytest.mark.parametrize(
    ("source", "spec", "line"),
    [
        ("installed", True, ". They are old: upgrade genai-prices"),
        ("fetched", True, ". They are old: fetch it again"),
        (None, None, f"Prices: unknown, and so are costs: {how_to_install('prices')}"),
        (None, True, "costs: genai-prices cannot be used; see the log"),
    ],
    ids=["old", "old and fetched", "without the extra", "damaged"],
)
def test_models_prints_how_to_get_prices(monkeypatch, capsys, source, spec, line):
    """A line ends in the way out."""
    old = source and PriceList(source=source, version="0.2.3", known_until=date(2025, 1, 1))
    monkeypatch.setenv("LOOOPY_MODEL", "local")
    monkeypatch.setattr("looopy.cli.models.price_list", lambda: old)
    monkeypatch.setattr("looopy.cli.models.find_spec", lambda _: spec)
    list_models()
    assert line + "\n" in capsys.readouterr().out


async def test_the_version_is_printed(looopy):
    """As one line."""
    ended = await looopy("--version")
    assert (ended.status, ended.out) == (0, f"looopy {version('looopy')}\n")


@pytest.mark.parametrize("args", [[], ["contexts"], ["db"], ["nonsense"], ["chat", "--nonsense"]])
async def test_wrong_usage_has_a_status_of_its_own(looopy, args):
    """Two, and how to do it right."""
    ended = await looopy(*args)
    assert ended.status == 2
    assert "usage: looopy" in ended.out + ended.err


async def test_the_embedded_model_is_not_downloaded_unasked(looopy):
    """Without a terminal and `--yes`: size, licence, how to agree, each once; none is fetched."""
    pytest.importorskip("xllamacpp")
    looopy.env["LOOOPY_CACHE"] = str(looopy.home / "cache")
    ended = await looopy("chat", "--model", "local", "--message", "hello")
    assert ended.status == 2
    assert ended.err.count("demo-grade model") == ended.err.count("Apache-2.0") == 1
    assert "--yes" in ended.err.splitlines()[-1]
    assert not looopy.database.exists()


@pytest.mark.parametrize(
    ("env", "platform", "end"),
    [
        ({"LOOOPY_DATA": "/mine"}, "linux", "/mine"),
        ({"XDG_DATA_HOME": "/data"}, "linux", "/data/looopy"),
        ({"XDG_DATA_HOME": "data"}, "linux", "/.local/share/looopy"),
        ({}, "linux", "/.local/share/looopy"),
        ({}, "darwin", "/Library/Application Support/looopy"),
        ({}, "win32", "/AppData/Local/looopy"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/looopy"),
    ],
)
def test_data_is_in_the_data_folder_of_the_system(env, platform, end):
    """What the user sets wins over the system's habit."""
    if sys.platform == "win32":
        pytest.skip("paths are compared as POSIX writes them")
    assert str(data_folder(env, platform)).endswith(end)
