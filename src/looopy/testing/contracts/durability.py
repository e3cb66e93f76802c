"""
The contract of a store that survives a killed process.

A process takes a step and dies by SIGKILL; the next one opens the store and looks. SIGKILL leaves
the written bytes in the operating system's cache, so this cannot find a missing sync: only a power
cut can.
"""

from __future__ import annotations

import pytest

from looopy.testing.contracts.walk import (
    NAMES,
    ProcessContract,
    difference,
    failing_as,
    same,
    take,
    view,
    views,
)
from looopy.testing.processes import OtherProcess, ProcessDied, Processes

_TORN = ("messages.append()", "the commit of a result with a delivered message", "journal.clear()")
_MOST_KILLS = 5


class DurabilityContract(ProcessContract):
    """An acknowledged write outlives the process, and an unfinished one is whole or absent."""

    async def test_an_acknowledged_step_survives_a_kill(self, processes: Processes) -> None:
        """Each acknowledged step of a walk survives kill -9."""
        wanted = await views()
        for number, name in enumerate(NAMES):
            with failing_as(f"the store cannot be used after kill -9 after {_before(number)}"):
                process = processes.start()
                found = process.run(view, "ada")
            if not same(found, wanted[number]):
                pytest.fail(
                    f"kill -9 after {_before(number)}, which was acknowledged, has changed the"
                    f" context:\n{difference(found, wanted[number])}",
                    pytrace=False,
                )
            with failing_as(f"after kill -9, the next process cannot take the step {name}"):
                process.run(take, "ada", name)
            process.kill()

    @pytest.mark.parametrize("name", _TORN)
    async def test_a_step_is_whole_or_absent(self, processes: Processes, name: str) -> None:
        """A process that dies in the middle of a step has made all of it, or no part of it."""
        wanted = await views()
        step = NAMES.index(name)
        process = processes.start(watched=True)
        places = _walked(process, "ada", step).places_of(take, "ada", name)
        process.kill()
        for number in _spread(len(places)):
            context_id = f"ada-{number}"
            where = f"kill -9 within {name}, right after {places[number - 1]}"
            with failing_as("the steps before cannot be taken"):
                process = _walked(processes.start(watched=True), context_id, step)
            with failing_as(where):
                _until_killed(process, number, context_id, name)
            process.kill()
            with failing_as(f"the store cannot be used after {where}"):
                process = processes.start()
                found = process.run(view, context_id)
            process.kill()
            if not same(found, wanted[step]) and not same(found, wanted[step + 1]):
                pytest.fail(
                    f"{where}, has left a part of it, or lost what was acknowledged before. Beside"
                    f" the context before the step:\n{difference(found, wanted[step])}\nBeside the"
                    f" context after it:\n{difference(found, wanted[step + 1])}",
                    pytrace=False,
                )


def _before(number: int) -> str:
    return NAMES[number - 1] if number else "no step"


def _walked(process: OtherProcess, context_id: str, steps: int) -> OtherProcess:
    """*process*, after the first *steps* of the walk."""
    for name in NAMES[:steps]:
        process.run(take, context_id, name)
    return process


def _until_killed(process: OtherProcess, number: int, context_id: str, name: str) -> None:
    try:
        process.run_until(number, take, context_id, name)
    except ProcessDied:
        return


def _spread(count: int) -> list[int]:
    """At most so many numbers from 1 to *count*, the first and the last among them."""
    if count <= _MOST_KILLS:
        return list(range(1, count + 1))
    return sorted({1 + round(n * (count - 1) / (_MOST_KILLS - 1)) for n in range(_MOST_KILLS)})
