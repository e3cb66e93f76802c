"""Frames are made once for all readers, and few are kept."""

from __future__ import annotations

from looopy.server import sse
from looopy.types.event import AgentEvent, TurnWarning


def test_large_frames_are_not_kept_for_long(monkeypatch):
    """The newest stay while they are small together; each is made again when it is gone."""
    monkeypatch.setattr(sse, "_MOST_BYTES", 1_000)
    written: list[AgentEvent] = []

    def write(event: AgentEvent) -> dict[str, str]:
        written.append(event)
        return {"text": "x" * 400}

    frames = sse.Frames(write)
    one, two, three = (TurnWarning(context_id="c", turn=n, code="a", text="b") for n in (1, 2, 3))
    for event in (one, two, two, one):
        frames.of(event)
    assert written == [one, two]
    for event in (three, two, one):
        frames.of(event)
    assert written == [one, two, three, one]
