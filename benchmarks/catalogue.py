"""
The scenarios by name, and the goals of each.

A goal names its metric, says which direction is better, and derives its bound from the floor and
from the fastest peer of the same run. Without peers, the fastest one of an earlier run takes that
place, with an asterisk. `docs/performance.md` describes the method behind the figures.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Bound = Callable[[float | None, float | None], float | None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    Something to measure.

    Attributes:
        title: For people.
        backends: Those for which it makes a difference.
        numbers: How many messages, turns, agents or contexts; one process for each.
        full: The same, with `--full`.
        floor: Whether the floor can do it.
    """

    title: str
    backends: tuple[str, ...]
    numbers: tuple[int, ...] = (0,)
    full: tuple[int, ...] = ()
    floor: bool = True


_ALL = ("memory", "sqlite", "postgres")
SCENARIOS = {
    "S1": Scenario("200 text turns on one context", _ALL),
    "S2": Scenario("100 tool turns on one context", _ALL),
    "jwt": Scenario("S1 with a JWT against S1, and by HTTP", ("memory", "sqlite"), floor=False),
    "S3": Scenario("open a context, whole history", ("sqlite", "postgres"), (1000, 10_000)),
    "S3W": Scenario(
        "open a context, window of 100 messages", ("sqlite", "postgres"), (10_000, 100_000)
    ),
    "S4": Scenario("bytes on disk", ("sqlite",), (2000,), (10_000,)),
    "S5": Scenario("64 contexts, 20 turns each, at once", _ALL),
    "S6": Scenario("5,000 deltas of one answer", ("memory", "sqlite")),
    "S7": Scenario("import and install", ("-",), floor=False),
    "S8": Scenario("two workers on one context", ("sqlite", "postgres")),
    "late": Scenario(
        "turn 10,000 against turn 10", ("memory", "sqlite", "postgres"), (10_000,), floor=False
    ),
    "idle": Scenario(
        "idle live agents", ("memory", "sqlite"), (2000,), full=(10_000,), floor=False
    ),
    "many": Scenario(
        "a full database against 1,000 contexts", ("sqlite",), (50_000,), (1_000_000,), floor=False
    ),
    "restart": Scenario("restart after kill -9 in a turn", ("sqlite",), floor=False),
}


def _at_most(limit: float) -> Bound:
    return lambda floor, peer: limit


def _of_peer(share: float) -> Bound:
    return lambda floor, peer: None if peer is None else share * peer


def _above_floor(more: float) -> Bound:
    return lambda floor, peer: None if floor is None else floor + more


@dataclass(frozen=True, slots=True)
class Goal:
    """
    The goal for one metric.

    Attributes:
        scenario: A key of `SCENARIOS`.
        metric: As `scenarios` and `scale` name it.
        unit: For people.
        bound: The limit, of the floor's figure and the fastest peer's.
        words: The bound for people.
        higher: More is better.
        peer_last: The fastest peer's figure in an earlier run.
        only: The backends it is for; empty: all.
    """

    scenario: str
    metric: str
    unit: str
    bound: Bound | None = None
    words: str = ""
    higher: bool = False
    peer_last: float | None = None
    only: tuple[str, ...] = field(default=())

    def met(self, value: float, floor: float | None, peer: float | None) -> bool | None:
        """Whether *value* is good enough; `None` when there is no goal, or nothing to compare."""
        limit = None if self.bound is None else self.bound(floor, peer)
        if limit is None:
            return None
        return value >= limit if self.higher else value <= limit


_STORED = ("sqlite", "postgres")


def _goals() -> Iterator[Goal]:
    for scenario, turns, cpu in (("S1", 153, 6.9), ("S2", 99, 9.5)):
        yield Goal(scenario, "turns_per_s", "turns/s", higher=True, peer_last=turns)
        yield Goal(
            scenario, "client_cpu_ms_per_turn", "ms", _of_peer(1 / 5), "1/5 of the peer",
            peer_last=cpu,
        )  # fmt: skip
        yield Goal(
            scenario, "wall_ms_per_turn", "ms", _above_floor(1.0), "floor + 1 ms", only=_STORED
        )
        yield Goal(scenario, "growth", "x", _at_most(1.1), "1.1")
        yield Goal(scenario, "messages_missing", "", _at_most(0), "0")
    for where in ("", "_by_http"):
        yield Goal("jwt", f"client_cpu_ms_per_turn{where}", "ms")
        yield Goal("jwt", f"cpu_with_jwt_to_without{where}", "x", _at_most(1.05), "1.05")
    for count in (1000, 10_000):
        last = {"resume": 165.0, "warm": 110.0, "rss": 87.0, "second": 159.0}
        known = count == 10_000
        yield Goal(
            "S3", f"resume_first_llm_call@{count}", "ms",
            _of_peer(1.0) if known else None, "ahead of all" if known else "",
            peer_last=last["resume"] if known else None,
        )  # fmt: skip
        yield Goal(
            "S3", f"warm_resume_first_llm_call@{count}", "ms",
            _of_peer(1.0) if known else None, "ahead of all" if known else "",
            peer_last=last["warm"] if known else None,
        )  # fmt: skip
        yield Goal("S3", f"warm_resume_turn_cpu@{count}", "ms")
        yield Goal(
            "S3", f"second_turn@{count}", "ms", _at_most(5.0), "5 ms",
            peer_last=last["second"] if known else None,
        )  # fmt: skip
        yield Goal("S3", f"second_turn_cpu@{count}", "ms")
        yield Goal(
            "S3", f"peak_rss@{count}", "MiB", _of_peer(1.0) if known else None,
            "ahead of all" if known else "", peer_last=last["rss"] if known else None,
        )  # fmt: skip
    for count in (10_000, 100_000):
        yield Goal("S3W", f"resume_first_llm_call@{count}", "ms")
        yield Goal("S3W", f"warm_resume_first_llm_call@{count}", "ms", _at_most(15.0), "15 ms")
        yield Goal("S3W", f"second_turn@{count}", "ms", _at_most(5.0), "5 ms")
    yield Goal("S4", "bytes_per_msg_at_end", "B", peer_last=290)
    yield Goal("S4", "bytes_over_bodies", "x", _at_most(1.4), "1.4 times the bodies")
    yield Goal("S4", "bytes_exponent", "", _at_most(1.05), "linear (1.05)")
    yield Goal(
        "S5", "turns_per_s", "turns/s", _of_peer(1.0), "ahead of all", higher=True, peer_last=315
    )
    # A peer uses one core whole, so that its CPU is a second over its turns in a second.
    yield Goal(
        "S5", "client_cpu_ms_per_turn", "ms", _of_peer(1 / 3), "1/3 of the peer",
        peer_last=1000 / 315,
    )  # fmt: skip
    yield Goal("S5", "errors", "", _at_most(0), "0")
    yield Goal("S5", "messages_missing", "", _at_most(0), "0")
    for name in ("", "_3_readers"):
        yield Goal(
            "S6", f"deltas_per_s{name}", "/s", _of_peer(1.0), "ahead of all", higher=True,
            peer_last=155_640,
        )  # fmt: skip
        yield Goal("S6", f"cpu_us_per_delta{name}", "us")
        yield Goal("S6", f"deltas_merged{name}", "", _at_most(0), "0")
    yield Goal("S7", "import_cpu_over_bare_python", "ms", _at_most(250.0), "250 ms")
    yield Goal("S7", "import_wall", "ms", peer_last=516)
    yield Goal("S7", "modules_imported", "")
    yield Goal("S7", "distributions", "", _at_most(15), "15", peer_last=19)
    yield Goal("S7", "venv_mib", "MiB", peer_last=33)
    yield Goal("S8", "turns_refused", "", _at_most(0), "0")
    yield Goal("S8", "messages_missing", "", _at_most(0), "0")
    yield Goal("late", "cpu_ms_turn_10", "ms")
    yield Goal("late", "cpu_ms_turn_10000", "ms")
    yield Goal("late", "late_over_early", "x", _at_most(1.2), "1.2")
    yield Goal("idle", "kib_per_started_agent", "KiB", _at_most(20.0), "20 KiB")
    yield Goal("idle", "kib_added_by_a_turn", "KiB")
    yield Goal("many", "contexts", "")
    yield Goal("many", "cpu_full_over_small", "x", _at_most(1.2), "1.2")
    yield Goal("many", "wall_full_over_small", "x")
    yield Goal("restart", "restart_to_accepted_s", "s", _at_most(1.0), "1 s")
    yield Goal("restart", "restart_to_accepted_cpu_s", "s")


GOALS = tuple(_goals())
