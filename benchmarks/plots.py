"""
Draw three pictures for the documentation: costs that stay flat, and costs that grow as they should.

Needs matplotlib: `uv run --all-extras --group dev --group plots python -m benchmarks --plots DIR`.
"""

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scenarios import concurrent, stored_bytes, timed
from benchmarks.subjects import BACKENDS, Subject, subject
from benchmarks.targets import Targets

COLOURS = {"memory": "#4c9f70", "sqlite": "#2f5d8a", "postgres": "#b0563a"}
HISTORY = (0, 100, 300, 1000, 3000, 10_000, 20_000)
CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
TURNS = (50, 100, 200, 500, 1000, 2000)
Line = tuple[Sequence[float], Sequence[float]]


async def _by_history(given: Subject) -> Line:
    """
    Milliseconds of CPU of a turn behind so many messages, the cheapest quarter.

    The lengths alternate, so that other work of the machine falls on each of them.
    """
    await given.open()
    await timed(given, "warm", 5)
    found: dict[int, list[float]] = {count: [] for count in HISTORY}
    for count in HISTORY:
        if count:
            await given.fill(f"old-{count}", count)
        await timed(given, f"old-{count}", 3)
    for _ in range(10):
        for count in HISTORY:
            found[count] += (await timed(given, f"old-{count}", 4))[1]
    await given.close()
    return HISTORY, [statistics.quantiles(found[count], n=4)[0] * 1e3 for count in HISTORY]


def _by_contexts(name: str, backend: str, place: Targets) -> Line:
    """Turns a second with so many contexts at once."""
    found = []
    for count in CONTEXTS:
        with place.fresh(backend) as url:
            figures = asyncio.run(
                concurrent(lambda url=url: subject(name, backend, url), count, 640 // count)
            )
        found.append(figures["turns_per_s"])
    return CONTEXTS, found


async def _by_turns(given: Subject, path: str) -> Line:
    """KiB in a SQLite file after so many turns."""
    await given.open()
    found: list[float] = []
    done = 0
    for count in TURNS:
        await timed(given, "chat", count - done, start=done)
        done = count
        found.append(stored_bytes(path)[0] / 1024)
    await given.close()
    return TURNS, found


def _picture(
    path: Path, lines: dict[tuple[str, str], Line], x: str, y: str, *, logarithmic: bool
) -> None:
    """Draw lines: looopy's in full, the floor's dashed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), dpi=110)
    for (name, backend), (xs, ys) in lines.items():
        style = "-" if name == "looopy" else ":"
        label = f"{name}, {backend}"
        axes.plot(xs, ys, style, color=COLOURS[backend], marker="o", markersize=3, label=label)
    if logarithmic:
        axes.set_xscale("symlog", linthresh=100)  # 0 is on it
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw(place: Targets, folder: Path, backends: Sequence[str] = BACKENDS) -> None:
    """Measure and draw `history.png`, `concurrency.png` and `storage.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    history: dict[tuple[str, str], Line] = {}
    contexts: dict[tuple[str, str], Line] = {}
    storage: dict[tuple[str, str], Line] = {}
    for backend in backends:
        for name in ("looopy", "floor"):
            with place.fresh(backend) as url:
                history[name, backend] = asyncio.run(_by_history(subject(name, backend, url)))
            if backend != "memory":
                contexts[name, backend] = _by_contexts(name, backend, place)
            if backend == "sqlite":
                with place.fresh(backend) as url:
                    given = subject(name, backend, url)
                    storage[name, backend] = asyncio.run(
                        _by_turns(given, url.removeprefix("sqlite:///"))
                    )
    _picture(
        folder / "history.png", history, "messages before the turn", "ms of CPU a turn",
        logarithmic=True,
    )  # fmt: skip
    _picture(
        folder / "concurrency.png", contexts, "contexts at once", "turns a second",
        logarithmic=False,
    )  # fmt: skip
    _picture(folder / "storage.png", storage, "turns", "KiB in the file", logarithmic=False)
