"""One scenario of one subject in this process: `python -m benchmarks.worker` and its arguments."""

import asyncio
import functools
import json
import sys
import tempfile

from benchmarks import scale, scenarios
from benchmarks.subjects import subject


def run(name: str, scenario: str, backend: str, url: str, number: int) -> scenarios.Figures:
    """
    Run a scenario.

    Args:
        name: `looopy` or `floor`.
        scenario: One of `catalogue.SCENARIOS`, or `fill`.
        backend: One of `subjects.BACKENDS`.
        url: An empty database, or one that was filled.
        number: Messages, turns, agents or contexts, for those that ask how many.
    """
    window = 100 if scenario == "S3W" else None
    make = functools.partial(subject, name, backend, url, window=window)
    path = url.removeprefix("sqlite:///")
    match scenario:
        case "S1":
            return asyncio.run(scenarios.text_turns(make))
        case "jwt":
            return asyncio.run(scenarios.turns_with_jwt(url))
        case "S2":
            return asyncio.run(scenarios.tool_turns(make))
        case "fill":
            return asyncio.run(scenarios.fill(make, number))
        case "S3" | "S3W":
            return asyncio.run(scenarios.resume(make, number))
        case "S4":
            return asyncio.run(scenarios.storage(make, path, number))
        case "S5":
            return asyncio.run(scenarios.concurrent(make, number or 64))
        case "S6":
            return asyncio.run(scenarios.deltas(make))
        case "S8":
            return asyncio.run(scenarios.two_workers(make))
        case "late":
            return asyncio.run(scale.late_turns(url, number))
        case "idle":
            return asyncio.run(scale.idle_agents(url, number))
        case "many":
            with tempfile.TemporaryDirectory() as folder:
                return asyncio.run(scale.many_contexts(folder, number))
        case "restart":
            with tempfile.TemporaryDirectory() as folder:
                return scale.restart(folder)
    raise SystemExit(f"there is no scenario {scenario}")


def main() -> None:
    """Print the figures as JSON."""
    if sys.argv[1] == "hang":
        asyncio.run(scale.hang(sys.argv[2]))
        return
    name, scenario, backend, url, number = sys.argv[1:]
    print(json.dumps(run(name, scenario, backend, url, int(number))))


if __name__ == "__main__":
    main()
