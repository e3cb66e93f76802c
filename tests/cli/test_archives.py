"""`looopy contexts export` and `import`: real files, and pipes."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import zipfile

import pytest

from looopy.cli.archives import read_archive
from looopy.cli.contexts import list_contexts, search_contexts
from looopy.cli.erasing import delete_contexts, retain_contexts
from looopy.errors import AgentBusy, ArchiveRefused, ConfigurationError, ValueRefused
from looopy.stores import export_to_file, open_stores
from looopy.testing.contracts.turns import begin, commit, ends


async def test_a_conversation_moves_to_another_database(looopy):
    """Through a file that only its owner may read; there it continues."""
    await looopy("chat", "ada", "--message", "one")
    file = looopy.home / "ada.zip"
    ended = await looopy("contexts", "export", "ada", "--to", "ada.zip")
    assert (ended.status, ended.out) == (0, "")
    assert "exported 1 conversation: 2 messages" in ended.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = f"sqlite:///{looopy.home / 'other.db'}"
    assert (await looopy("contexts", "import", "ada.zip", "--db", other)).status == 2
    await looopy("chat", "bob", "--db", other, "--message", "x")
    moved = await looopy("contexts", "import", "ada.zip", "--db", other)
    assert (moved.status, moved.out) == (0, "ada\n")
    shown = [
        (await looopy("contexts", "show", "ada", "--json", *where)).out
        for where in ((), ("--db", other))
    ]
    assert shown[0] == shown[1]
    again = await looopy("contexts", "import", "ada.zip", "--db", other)
    assert (again.status, "exists" in again.err or "already" in again.err) == (1, True)
    assert (await looopy("chat", "ada", "--db", other, "--message", "two")).status == 0
    renamed = await looopy("contexts", "import", "ada.zip", "--rename", "ada=eve", "--json")
    assert json.loads(renamed.out)["items"] == [{"context_id": "eve", "archived_as": "ada"}]


async def test_an_archive_goes_through_pipes(looopy):
    """`-` is standard output and standard input; all of an owner in one archive."""
    await looopy("chat", "ada", "--message", "one")
    pipe = asyncio.subprocess.PIPE
    process = await looopy.start("contexts", "export", "ada", "--to", "-", stdout=pipe)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert zipfile.ZipFile(io.BytesIO(out)).testzip() is None
    ended = await looopy("contexts", "import", "-", "--new-ids", stdin=out)
    assert ended.out.endswith("  was ada\n")
    async with open_stores(f"sqlite:///{looopy.database}") as stores:
        assert len(await stores.state.list()) == 2


async def test_wrong_usage_of_archives_says_what_to_do(looopy):
    """And a file that is there stays as it was."""
    await looopy("chat", "ada", "--message", "one")
    kept = looopy.home / "kept.zip"
    kept.write_bytes(b"mine")
    for status, why, args in (
        (2, "--force", ("export", "ada", "--to", "kept.zip")),
        (1, "no conversation 'bob'", ("export", "bob", "--to", "kept.zip")),
        (1, "owns no conversation", ("export", "--owner", "u1", "--to", "x.zip")),
        (2, "name conversations", ("export", "--to", "x.zip")),
        (2, "cannot be written", ("export", "ada", "--to", "none/x.zip")),
        (2, "there is no file", ("import", "x.zip")),
        (1, "truncated", ("import", "kept.zip")),
        (2, "exclude each other", ("import", "kept.zip", "--owner", "u1", "--keep-owners")),
    ):
        ended = await looopy("contexts", *args)
        assert (ended.status, why in ended.err) == (status, True), ended.err
    assert kept.read_bytes() == b"mine"
    assert (await looopy("contexts", "export", "ada", "--to", "kept.zip", "--force")).status == 0
    assert kept.read_bytes().startswith(b"PK")
    assert sorted(path.name for path in looopy.home.glob("*.zip*")) == ["kept.zip"]
    assert list(looopy.home.glob(".*.part")) == []


def test_errors_name_the_options_of_the_program(tmp_path, sqlite_file):
    """Not the arguments of the functions that it calls; one of a thing is no plural."""
    url, archive = f"sqlite:///{sqlite_file}", tmp_path / "ada.zip"

    async def prepare():
        async with open_stores(url) as stores:
            for name in ("ada", "bob"):
                claimed = await begin(stores, context_id=name, actor_id="ann")
                if name == "ada":
                    await commit(stores, claimed, [ends(context_id=name)], context_id=name)
            await export_to_file(stores, "ada", archive)
            return (await stores.contexts.list(limit=1)).next

    after = asyncio.run(prepare())
    into = {"new_ids": True, "keep_owners": False, "as_json": True}
    common = {"force": False, "keep_backups": False, "agreed": True, "as_json": True}
    age = {"older_than": None, "larger_than": None}
    for kind, words, call in (
        (ArchiveRefused, "--owner ACTOR", lambda: read_archive(url, archive, [], None, **into)),
        (AgentBusy, "context 'bob'", lambda: delete_contexts(url, [], "ann", **common)),
        (AgentBusy, "--force", lambda: delete_contexts(url, [], "ann", **common)),
        (
            ConfigurationError,
            "--older-than AGE",
            lambda: retain_contexts(url, agreed=True, dry_run=False, as_json=True, **age),
        ),
        (
            ValueRefused,
            "--after takes",
            lambda: list_contexts(url, as_json=True, due=True, after=after),
        ),
        (
            ValueRefused,
            "--after takes",
            lambda: search_contexts(url, ["hi"], as_json=True, limit=1, after=after),
        ),
    ):
        with pytest.raises(kind) as refused:
            asyncio.run(call())
        assert words in str(refused.value)
        assert "`owner=" not in str(refused.value)
