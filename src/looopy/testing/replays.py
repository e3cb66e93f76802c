"""
A fixture that replays recorded turns, so that a turn of production becomes a test.

`looopy replay CONTEXT --turn N --agent MODULE:FACTORY --save FILE` writes the recording, and a test
like this beside it:

    from app import build
    from looopy.testing.replays import replay_turn

    def test_the_payment(replay_turn):
        replay_turn("payment.json", build).check()
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

import pytest

from looopy.replay.beside import AgentFactory, built
from looopy.replay.differences import Replayed
from looopy.replay.recording import Recording
from looopy.replay.running import replay
from looopy.stores.opening import open_stores


class ReplayTurn(Protocol):
    """The function that the fixture `replay_turn` is."""

    def __call__(
        self,
        file: str | Path,
        factory: AgentFactory | None = None,
        *,
        output_type: Any = None,
        ignore: Collection[str] = (),
    ) -> Replayed:
        """
        Replay the recording in *file*, a path beside the test's own file.

        Args:
            factory: Makes the application's agent, as for `looopy serve`; `None`: only the loop is
                compared.
            output_type, ignore: As for `looopy.replay.replay`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueRefused: It is not a recording.
        """
        ...


@pytest.fixture
def replay_turn(request: pytest.FixtureRequest) -> ReplayTurn:
    """A function that replays a recorded turn; see `ReplayTurn`."""

    def replayed(
        file: str | Path,
        factory: AgentFactory | None = None,
        *,
        output_type: Any = None,
        ignore: Collection[str] = (),
    ) -> Replayed:
        path = request.path.parent / file
        recording = Recording.from_json(path.read_text(encoding="utf-8"))

        async def run() -> Replayed:
            agent = None
            if factory is not None:
                agent = await built(factory, recording.context_id, open_stores("memory:"))
            return await replay(recording, agent, output_type=output_type, ignore=ignore)

        return asyncio.run(run())

    return replayed
