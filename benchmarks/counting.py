"""
Two measures of work: one that a busy machine does not change, one that it changes little.

*Steps* are the byte codes that Python executes and the functions written in C that it calls, in all
threads. They are the same at each run to a tenth of a percent, whatever else the machine does. They
do not see how long a function written in C takes: JSON of a whole history counts as one step.

*Loops* are CPU time, in units of a fixed piece of Python that runs in between. A neighbour or a
throttled core slows both down. Loops see every cost, but vary by a third on a busy machine. They
are good for finding work that became twice as expensive.
"""

import gc
import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class _Point:
    x: int
    label: str


def loop() -> int:
    """Run one unit: about a millisecond of typical library work, without any library."""
    kept: dict[str, Any] = {}
    for number in range(150):
        point = _Point(number, f"p{number % 17}")
        kept.setdefault(point.label, []).append((point.x, point))
        body = json.dumps({"role": "user", "x": point.x, "content": point.label * 10})
        kept[f"b{number % 5}"] = json.loads(body)["content"].upper().split("P")
    return len(kept)


class Steps:
    """
    Counts steps in every thread that starts after it was made, and in this one.

    Tracing is on from the constructor on, since a thread takes it over when it starts; only what
    happens between `start()` and `stop()` counts.

    Attributes:
        places: The steps by the function that took them.
    """

    def __init__(self) -> None:
        self.places: Counter[CodeType] = Counter()
        self._on = False
        threading.settrace(self._traced)
        threading.setprofile(self._called)
        sys.settrace(self._traced)
        sys.setprofile(self._called)

    def _traced(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":  # a coroutine that is resumed says so again
            frame.f_trace_opcodes = self._on
            frame.f_trace_lines = False
        elif event == "opcode" and self._on:
            self.places[frame.f_code] += 1
        return self._traced

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_call" and self._on:
            self.places[frame.f_code] += 1

    def start(self) -> None:
        """Count from here on."""
        self.places.clear()
        self._on = True

    def stop(self) -> int:
        """The steps since `start()`."""
        self._on = False
        return self.places.total()

    def end(self) -> None:
        """Trace no more, so that what follows has its own speed."""
        sys.settrace(None)
        sys.setprofile(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as its documentation says
        threading.setprofile(None)


async def loops(work: Callable[[int], Awaitable[None]], *, rounds: int) -> float:
    """
    The CPU time of *work* in loops: it is called with 0, 1, ... and timed between two loops.

    Returns:
        The median of the cheaper half, because disturbances hardly ever make work cheaper.
    """
    found = []
    for number in range(rounds + 2):
        gc.collect()
        before = _loop_s()
        began = time.process_time()
        await work(number)
        taken = time.process_time() - began
        unit = (before + _loop_s()) / 2
        if number > 1:  # the first ones fill caches
            found.append(taken / unit)
    found.sort()
    return statistics.median(found[: rounds // 2])


def _loop_s() -> float:
    times = []
    for _ in range(5):
        began = time.process_time()
        loop()
        times.append(time.process_time() - began)
    return statistics.median(times)
