"""`looopy contexts export` and `import`: real files, and pipes."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import zipfile

from looopy.cli.main import main
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


async def test_wrong_usage_of_archives_prints_the_way_out(looopy):
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


def test_errors_name_the_options_of_the_program(tmp_path, sqlite_file, capsys):
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
    for status, words, args in (
        (1, "--owner ACTOR", ("import", str(archive), "--new-ids")),
        (1, "context 'bob'", ("delete", "--person", "ann", "--yes")),
        (1, "--force", ("delete", "--person", "ann", "--yes")),
        (2, "--older-than AGE", ("retain", "--yes")),
        (2, "--after takes", ("list", "--due", "--after", after)),
        (2, "--after takes", ("search", "hi", "--after", after)),
    ):
        assert main(["contexts", *args, "--db", url]) == status
        said = capsys.readouterr().err
        assert words in said
        assert "`owner=" not in said
