"""
Replay each turn that the tests of `tests/agent` store, as soon as it has ended.

    python -m tests.campaign.replays                      all of tests/agent
    python -m tests.campaign.replays tests/agent/turns    some of it

Each turn is replayed twice: with the agent that ran it, and without one. The tests break, cancel
and race turns in every way that their authors thought of, and none of them knows of this. The
status is 1 if a replay differed from its turn, or if all of them had fewer than 1,000 turns.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import asyncio
import collections
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import looopy.replay.running as replaying
from looopy.agent.running import RunningTurn
from looopy.errors import StoreError
from looopy.replay.recording import read_recording

_FILE = "LOOOPY_REPLAYS"
_LEAST = 1000
_PATIENCE_S = 30.0


def pytest_configure() -> None:
    """Replay turns from now on; pytest calls it for `-p tests.campaign.replays`."""
    run = RunningTurn.run

    async def replayed(turn: RunningTurn, before: Any) -> Any:
        result = await run(turn, before)
        if turn.setup.buffer is None and turn._log is not None:
            await _replay(turn)
        return result

    RunningTurn.run = replayed  # type: ignore[method-assign]  # for this run alone


async def _replay(turn: RunningTurn) -> None:
    setup, number = turn.setup, turn._log.turn if turn._log is not None else 0
    try:
        recording = await read_recording(setup.known.stores, setup.known.context_id, number)
    except StoreError as error:
        _note(skipped=type(error).__name__)
        return
    kind = None if turn._log is None else turn._log.output_type
    making = replaying.Making(
        model=setup.provider,
        tools=setup.sources,
        system_prompt=setup.system_prompt,
        config=setup.config,
        auto_compact=setup.auto_compact,
    )
    for made in (making, None):
        try:
            async with asyncio.timeout(_PATIENCE_S):
                found = await replaying.replay_made(recording, made, kind)
        except Exception as error:  # noqa: BLE001 - a finding
            _note(broke=f"{type(error).__name__}: {error}", with_agent=made is not None)
            continue
        difference = None if found.difference is None else str(found.difference)
        _note(difference=difference, with_agent=made is not None)


def _note(**facts: Any) -> None:
    facts["test"] = os.environ.get("PYTEST_CURRENT_TEST", "")
    with Path(os.environ[_FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def main(paths: list[str]) -> int:
    """Run the tests with this plugin, and count."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "replays.jsonl"
        file.touch()
        os.environ[_FILE] = str(file)
        pytest.main(["-q", "-p", "tests.campaign.replays", *(paths or ["tests/agent"])])
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kinds = collections.Counter(_kind(one) for one in found)
    for kind, count in sorted(kinds.items()):
        print(f"{count:7,} {kind}")
    shown: set[tuple[str, bool]] = set()
    for one in found:
        test = one["test"].partition("[")[0], one.get("with_agent")
        if (one.get("difference") or one.get("broke")) and test not in shown:
            shown.add(test)
            who = "with the agent" if one["with_agent"] else "without an agent"
            print(f"\n{one['test']}, {who}\n{one.get('difference') or one.get('broke')}")
    same = kinds["with the agent: the same"]
    return int(bool(shown) or (not paths and same < _LEAST))


def _kind(one: dict[str, Any]) -> str:
    if "skipped" in one:
        return f"not replayed: {one['skipped']}"
    who = "with the agent" if one["with_agent"] else "without an agent"
    if "broke" in one:
        return f"{who}: broke"
    return f"{who}: {'the same' if one['difference'] is None else 'another'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
