"""Frames are made once for all readers, and few are kept."""

from __future__ import annotations

import asyncio
import json

from looopy.server import sse
from looopy.types.event import AgentEvent, TurnEnd, TurnWarning, event_to_json
from looopy.types.message import StopReason, UserMessage
from looopy.types.state import Outcome


async def test_the_loop_runs_between_two_long_messages_of_a_turn() -> None:
    """The end of a turn has all of its messages; the frame is what it would be at once."""
    said = tuple(UserMessage(one * sse.LONG, timestamp=1) for one in "abc")
    end = TurnEnd(
        context_id="c", turn=1, seq=9, outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP,
        messages=said,
    )  # fmt: skip
    ran = 0

    def run() -> None:
        nonlocal ran
        ran += 1
        loop.call_soon(run)

    loop = asyncio.get_running_loop()
    loop.call_soon(run)
    made = await sse.Frames().of(end)
    assert ran >= len(said)
    at_once = sse.frame("turn_end", event_to_json(end), 9)
    place, data = (b"id: 9\nevent: turn_end\n", b"data: ")
    assert made.startswith(place + data)
    assert made.endswith(b"}\n\n")
    found, wanted = (json.loads(one.partition(data)[2]) for one in (made, at_once))
    assert found == wanted


async def test_large_frames_are_not_kept_for_long(monkeypatch):
    """The newest stay while they are small together; each is made again when it is gone."""
    monkeypatch.setattr(sse, "_MOST_BYTES", 1_000)
    written: list[AgentEvent] = []

    def write(event: AgentEvent) -> dict[str, str]:
        written.append(event)
        return {"text": "x" * 400}

    frames = sse.Frames(write)
    one, two, three = (TurnWarning(context_id="c", turn=n, code="a", text="b") for n in (1, 2, 3))
    for event in (one, two, two, one):
        await frames.of(event)
    assert written == [one, two]
    for event in (three, two, one):
        await frames.of(event)
    assert written == [one, two, three, one]
