"""An import that is killed leaves nothing that anybody can see, and can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.shares import split

from looopy.stores import open_stores
from looopy.testing.contracts.restore import exported, fill, imported, told

IMPORT = """
import asyncio, sys
from looopy.stores import import_contexts, open_stores

async def run(url, blobs, archive):
    async with open_stores(url, blobs=blobs) as stores:
        await import_contexts(stores, archive, keep_owners=True)

asyncio.run(run(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("kind", "failpoint"),
    split([("sqlite", "A3:2"), ("postgres", "B2:9")], [("sqlite", "A2"), ("sqlite", "B2:9")]),
)
async def test_a_killed_import_leaves_no_context_and_can_be_repeated(
    kind, failpoint, sqlite_file, postgres, tmp_path, memory_stores
):
    """While bytes are put into the folder, and after the last row, before the commit."""
    await fill(memory_stores)
    await fill(memory_stores, "bob")
    archive = tmp_path / "two.zip"
    archive.write_bytes(await exported(memory_stores, "ada", "bob"))
    url = postgres if kind == "postgres" else f"sqlite:///{sqlite_file}"
    blobs = str(tmp_path / "blobs")
    killed = subprocess.run(
        [sys.executable, "-c", IMPORT, url, blobs, str(archive)],
        env={**os.environ, "LOOOPY_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with open_stores(url, blobs=blobs) as stores:
        assert await stores.state.list() == []
        assert (await stores.contexts.list()).items == []
        for name in ("ada", "bob"):
            assert await stores.journal.events(name) == []
            assert await stores.artifacts.list(name) == []
        assert await stores.artifacts.collect(0.0) > 0
        await imported(stores, archive.read_bytes())
        assert await told(stores, "bob") == await told(memory_stores, "bob")
        assert await exported(stores, "ada", "bob") == archive.read_bytes()
