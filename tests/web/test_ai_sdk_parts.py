"""The parts of the UI message stream, read by the AI SDK's own client, and the transcript."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.web.cases import QUICK, TOOLS, cases

from looopy import Agent, open_stores
from looopy.server.protocols.ai_sdk.parts import Parts
from looopy.server.protocols.ai_sdk.transcript import Transcript
from looopy.types.event import AgentEvent, MessageUpdate


@dataclass
class Watched:
    """The streams of one assistant message, as three viewers have them."""

    live: list[Any] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)
    replay: list[Any] = field(default_factory=list)
    before: Any = None
    after: Any = None


async def _watch(turn: Any, parts: Parts) -> list[Any]:
    return [part async for event in turn for part in parts.see(event)]


def _known(message: Any) -> dict[str, list[str]]:
    tools = [p for p in (message or {"parts": []})["parts"] if "toolCallId" in p]
    return {
        "known": [p["toolCallId"] for p in tools],
        "asked": [p["approval"]["id"] for p in tools if "approval" in p],
    }


async def _play(provider: Any, steps: list[Any], late_after: int) -> list[Watched]:
    """Run the *steps*; a late viewer attaches after some deltas of each turn."""
    watched: list[Watched] = []
    async with (
        open_stores("memory:") as stores,
        Agent(
            "c",
            llm_provider=provider,
            tools=TOOLS,
            stores=stores,
            loop_config=QUICK,
        ) as agent,
    ):
        for step in steps:
            chain = step is None or isinstance(step, dict)
            inputs = None
            if isinstance(step, dict):
                inputs = {request.request_id: step["answer"] for request in agent.state.pending}
            told = None if chain else step
            transcript = await _transcript(stores)
            before = transcript[-1] if chain else None
            message_id = before["id"] if before else None
            turn = agent.execute_turn(told, inputs=inputs)
            seen, late = 0, asyncio.get_running_loop().create_future()

            def attach(event: AgentEvent, turn: Any = turn, late: Any = late) -> None:
                nonlocal seen
                seen += isinstance(event, MessageUpdate)
                if seen == late_after and not late.done():
                    parts = Parts(message_id, **_known(before))  # noqa: B023 - of this step
                    late.set_result(asyncio.ensure_future(_watch(turn, parts)))

            leave = agent.subscribe(attach)
            one = Watched(before=before)
            one.live = await _watch(turn, Parts(message_id, **_known(before)))
            leave()
            one.late = await late.result() if late.done() else one.live
            log = await stores.journal.events("c")
            parts = Parts(message_id, **_known(before))
            number = max(event.turn for event in log)
            one.replay = [p for e in log if e.turn == number for p in parts.see(e)]
            one.after = (await _transcript(stores))[-1]
            watched.append(one)
        return watched


async def _transcript(stores: Any) -> Any:
    transcript = Transcript()
    for event in await stores.journal.events("c"):
        transcript.see(event)
    return transcript.messages()


async def test_the_ai_sdk_reads_every_stream_as_the_transcript_has_it(in_node):
    """Live, attached late and replayed from the log, its client ends with the same message."""
    asked: list[Any] = []
    expected: list[Any] = []
    for late_after in (1, 4):
        for name, (provider, steps) in cases().items():
            for number, one in enumerate(await _play(provider, steps, late_after)):
                for way in ("live", "late", "replay"):
                    asked.append({"chunks": getattr(one, way), "message": one.before})
                    expected.append((f"{name}, turn {number + 1}, {way}", one.after))
    for (name, wanted), got in zip(expected, in_node("fold.mjs", asked), strict=True):
        assert (name, got["wrong"]) == (name, [])
        assert (name, got["message"]) == (name, wanted)
