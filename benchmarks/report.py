"""Show the figures as a table, beside the floor, the fastest peer and the goals."""

import statistics
from dataclasses import dataclass, field

from benchmarks import peers
from benchmarks.catalogue import GOALS, SCENARIOS, Goal

HEAD = ("scenario", "backend", "metric", "value", "floor", "ratio", "fastest peer", "goal", "met")


@dataclass(slots=True)
class Results:
    """
    The figures of a run.

    Attributes:
        ours: `(subject, scenario, backend, metric)` to the figure of each repetition.
        peers: The rows of the harness, by scenario.
    """

    ours: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    peers: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    def add(self, subject: str, scenario: str, backend: str, figures: dict[str, float]) -> None:
        """Keep the figures that a process printed."""
        for metric, value in figures.items():
            self.ours.setdefault((subject, scenario, backend, metric), []).append(value)

    def get(self, subject: str, goal: Goal, backend: str) -> float | None:
        """The median over the repetitions."""
        found = self.ours.get((subject, goal.scenario, backend, goal.metric))
        return statistics.median(found) if found else None


def number(value: float | None) -> str:
    """Format a number with three significant digits."""
    if value is None:
        return ""
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _goal(goal: Goal) -> str:
    if goal.words == "ahead of all":
        return goal.words
    return f"at {'least' if goal.higher else 'most'} {goal.words}"


def rows(results: Results) -> list[tuple[str, ...]]:
    """The table, in the order of the catalogue; lines without a figure are left out."""
    lines = []
    for goal in GOALS:
        for backend in SCENARIOS[goal.scenario].backends:
            value = results.get("looopy", goal, backend)
            if value is None:
                continue
            floor = results.get("floor", goal, backend)
            peer, whose = goal.peer_last, "*"
            measured = results.peers.get(goal.scenario)
            if measured:
                found = peers.fastest(measured, goal.scenario, backend, goal.metric)
                peer, whose = (found[0], f" {found[1]}") if found else (goal.peer_last, "*")
            if backend == "memory" and goal.scenario != "S6":
                peer = None  # they were measured where they keep things
            bounded = not goal.only or backend in goal.only
            met = goal.met(value, floor, peer) if bounded else None
            lines.append(
                (
                    goal.scenario,
                    backend,
                    f"{goal.metric} ({goal.unit})" if goal.unit else goal.metric,
                    number(value),
                    number(floor),
                    number(value / floor) if floor else "",
                    f"{number(peer)}{whose}" if peer is not None else "",
                    "" if met is None else _goal(goal),
                    {True: "yes", False: "NO", None: ""}[met],
                )
            )
    return lines


def text(lines: list[tuple[str, ...]]) -> str:
    """Columns for a terminal."""
    table = [HEAD, *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def markdown(lines: list[tuple[str, ...]], said: str) -> str:
    """A sentence and a table for a page."""
    table = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    table += ["| " + " | ".join(cell.replace("_", " ") for cell in line) + " |" for line in lines]
    return "\n".join([said, "", *table])
