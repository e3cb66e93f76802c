"""The compact format of a stream: its bytes, by a clock that only the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest

from looopy.server.page.compact import compacted
from looopy.types.event import AgentEvent, MessageUpdate

TEXT = 'The "quick" brown fox jumps over the lazy dog.\nIt does not mind; naïve readers may. ' * 4
INNER = ("agent:research",)


async def _sent(
    pieces: Sequence[str], gap_s: float, path: tuple[str, ...] = ()
) -> list[tuple[float, bytes]]:
    """The frames of pieces that come every *gap_s* seconds, each with the time of its sending."""
    loop, now = asyncio.get_running_loop(), 100.0
    loop.time = lambda: now

    async def events() -> AsyncGenerator[AgentEvent, None]:
        nonlocal now
        for piece in pieces:
            yield MessageUpdate(context_id="c", delta=piece, path=path)
            for _ in range(round(gap_s / 0.005)):
                now += 0.005
                for _ in range(4):  # timers run, and the reader after them
                    await asyncio.sleep(0)

    return [(round(now - 100, 3), frame) async for frame in compacted(events())]


def _cut(size: int) -> Sequence[str]:
    return [TEXT[at : at + size] for at in range(0, len(TEXT), size)]


@pytest.mark.parametrize(
    ("size", "gap_s", "path"),
    [
        *((1, 0.005, ()), (1, 0.02, ()), (4, 0.02, ()), (4, 0.05, ()), (20, 0.05, ())),
        *((1, 0.005, INNER), (4, 0.02, INNER), (20, 0.05, INNER)),
    ],
)
async def test_short_pieces_cost_at_most_twice_their_text(size, gap_s, path):
    """An agent at work for a call has its path in each frame, so it has to write faster."""
    frames = await _sent(_cut(size), gap_s, path)
    said = [json.loads(frame.removeprefix(b"data:").removesuffix(b"\n\n")) for _, frame in frames]
    assert "".join(one[-1] if path else one for one in said) == TEXT
    assert all(tuple(one[:-1]) == path for one in said if path)
    last = len(frames[-1][1])  # it had to leave with the text that there was
    assert sum(len(frame) for _, frame in frames) <= 2 * len(TEXT.encode()) + last


async def test_text_waits_for_a_moment_only():
    """Longer if its frame would be dear, and not at all if it is long."""
    assert [at for at, _ in await _sent(["This is enough.", "!"], 1)] == [0.06, 1.24]
    assert [at for at, _ in await _sent(["A", "B", "C"], 0.1)] == [0.24]
    assert [at for at, _ in await _sent(["A" * 200], 1)] == [0.0]
