"""
An archive with a large artifact, out and in: how much memory and CPU it takes.

    python -m benchmarks.archives [--mib 1024] [--from URL] [--to URL]

One process makes an artifact of that size, exports its context to a file, and imports that file
into another database. It prints its peak resident memory, as `getrusage` counts it, and its CPU
time. It fails if an export or an import takes more than 64 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import tempfile
import time
from pathlib import Path

from benchmarks.artifacts import PIECE, peak_mib, piece_of

from looopy import open_stores
from looopy.stores import Stores, export_to_file, import_contexts


async def _digest(stores: Stores) -> str:
    digest = hashlib.sha256()
    async for piece in stores.artifacts.stream("large", "large"):
        digest.update(piece)
    return digest.hexdigest()


async def _measure(source: str, target: str, folder: Path, mib: int) -> float:
    async with open_stores(source) as here, open_stores(target) as there:
        await here.artifacts.save("small", "small", b"x" * 100_000)  # what every use needs once
        await export_to_file(here, "small", folder / "small.zip")
        await import_contexts(there, folder / "small.zip")
        await here.artifacts.open("large", "large")
        for number in range(mib):
            await here.artifacts.append("large", "large", piece_of(number))
        await here.artifacts.complete("large", "large")
        before = peak_mib()
        for name, work in (
            ("out", lambda: export_to_file(here, "large", folder / "large.zip")),
            ("in: ", lambda: import_contexts(there, folder / "large.zip")),
        ):
            began, cpu = time.perf_counter(), time.process_time()
            report = await work()
            print(
                f"{name}: {time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s"
                f" of CPU, {peak_mib() - before:.0f} MiB more memory at its peak,"
                f" {report.size / PIECE:.0f} MiB"
            )
        more = peak_mib() - before
        if await _digest(there) != await _digest(here):
            raise SystemExit("what came in is not what went out")
        return more


def main() -> None:
    """Measure once, and fail if it took more than 64 MiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--from", dest="source")
    parser.add_argument("--to", dest="target")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        source = given.source or f"sqlite:///{folder}/from.db"
        target = given.target or f"sqlite:///{folder}/to.db"
        more = asyncio.run(_measure(source, target, Path(folder), given.mib))
    if more > 64:
        raise SystemExit(f"{more:.0f} MiB are more than the 64 that were promised")


if __name__ == "__main__":
    main()
