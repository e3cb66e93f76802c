"""
A large artifact in and out: how much memory and CPU it takes.

    python -m benchmarks.artifacts [--mib 1024] [--db URL] [--blobs PLACE]

A child process appends pieces of 1 MiB, completes the artifact, and reads it again as a stream. It
prints its peak resident memory before and after, as `getrusage` counts it, and its CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import resource
import tempfile
import time
from pathlib import Path

from looopy import open_stores

PIECE = 1024 * 1024


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def piece_of(number: int) -> bytes:
    """A piece that no other number has."""
    return hashlib.sha256(str(number).encode()).digest() * (PIECE // 32)


async def _measure(url: str, blobs: str | None, mib: int) -> float:
    async with open_stores(url, blobs=blobs) as stores:
        artifacts = stores.artifacts
        await artifacts.save("bench", "small", b"x" * 100_000)  # what every use needs once
        await artifacts.load("bench", "small")
        before, began, cpu = peak_mib(), time.perf_counter(), time.process_time()
        await artifacts.open("bench", "large")
        for number in range(mib):
            await artifacts.append("bench", "large", piece_of(number))
        done = await artifacts.complete("bench", "large")
        written = peak_mib()
        print(
            f"in:  {time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU,"
            f" {written - before:.0f} MiB more memory at its peak"
        )
        began, cpu = time.perf_counter(), time.process_time()
        digest, size = hashlib.sha256(), 0
        async for piece in artifacts.stream("bench", "large"):
            digest.update(piece)
            size += len(piece)
        print(
            f"out: {time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU,"
            f" {peak_mib() - before:.0f} MiB more memory at its peak"
        )
        if (digest.hexdigest(), size) != (done.sha256, mib * PIECE):
            raise SystemExit("what came out is not what went in")
        return peak_mib() - before


def main() -> None:
    """Measure once, and fail if it took more than 64 MiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--db")
    parser.add_argument("--blobs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        url = given.db or f"sqlite:///{folder}/chat.db"
        more = asyncio.run(_measure(url, given.blobs, given.mib))
    if more > 64:
        raise SystemExit(f"{more:.0f} MiB are more than the 64 that were promised")


if __name__ == "__main__":
    main()
