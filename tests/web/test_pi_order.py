"""pi's own loop, from npm, over the scripts that `looopy.compat.pi` gets with `order="1.6"`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looopy import LoopConfig, RetryPolicy
from looopy.compat import pi
from looopy.testing import ScriptedProvider, text, tool_call

CALL = [{"call": "plain"}]
TWO = [{"call": "first"}, {"call": "second"}]
END = [{"text": "done"}]
MANY = [[{"call": "plain"}, {"call": "boom"}], END]

CASES = {
    "text": {"script": [END]},
    "no tools": {"script": [END], "tools": []},
    "one call": {"script": [CALL, END]},
    "sequential": {"script": MANY, "mode": "sequential"},
    "second ends first": {"script": [TWO, END]},
    "failure": {"script": [[{"call": "boom"}], END]},
    "unknown": {"script": [[{"call": "absent"}], END]},
    "steering at the start": {"script": [END], "steer": {"0": "wait"}},
    "steering after a turn": {"script": [CALL, END, END], "steer": {"1": "wait"}},
    "steering before a turn": {"script": [MANY[0], END], "steer": {"2": "wait"}},
    "no call is skipped": {"script": [*MANY, END], "mode": "sequential", "steer": {"1": "stop"}},
    "steering at the end": {"script": [END, END], "steer": {"1": "more"}},
    "follow-ups": {"script": [END, CALL, END, END], "follow": ["a", "b"]},
    "steering and a follow-up": {
        "script": [CALL, END, END, END],
        "steer": {"3": "x"},
        "follow": ["a"],
    },
}


class _Tool(pi.AgentTool):
    """Ends as the tool of the same name in `pi_loop.mjs`."""

    def __init__(self, name: str, second: asyncio.Event) -> None:
        super().__init__(name, name)
        self._second = second

    async def execute(self, *_: Any) -> pi.AgentToolResult:
        if self.name == "boom":
            raise ValueError("it broke")
        if self.name == "first":
            await self._second.wait()
        if self.name == "second":
            asyncio.get_running_loop().call_later(0.001, self._second.set)
        return pi.AgentToolResult([pi.TextContent(f"{self.name} done")], {})


def _texts(messages: Any) -> list[list[str]]:
    return [
        [m.role, ",".join(getattr(b, "text", None) or b.name for b in m.content)]
        if not isinstance(m.content, str)
        else [m.role, m.content]
        for m in messages
    ]


async def _ours(given: dict[str, Any]) -> dict[str, Any]:
    polls, follow, second = 0, list(given["follow"]), asyncio.Event()

    def steer() -> list[pi.UserMessage]:
        nonlocal polls
        polls += 1
        said = given["steer"].get(str(polls - 1))
        return [] if said is None else [pi.UserMessage(said)]

    model = ScriptedProvider(
        [
            tuple(
                text(b["text"]) if "text" in b else tool_call(b["call"], id=f"{b['call']}-{i}")
                for i, b in enumerate(blocks)
            )
            for blocks in given["script"]
        ]
    )
    config = pi.AgentLoopConfig(
        model=model,
        order=given["order"],
        tool_execution=given["mode"],
        loop=LoopConfig(retry=RetryPolicy(attempts=0)),
    )
    events: list[Any] = [
        event
        async for event in pi.agent_loop(
            [pi.UserMessage("go")],
            config=config,
            tools=[_Tool(name, second) for name in given["tools"]],
            get_steering_messages=steer,
            get_follow_up_messages=lambda: [pi.UserMessage(follow.pop(0))] if follow else [],
        )
        if event.type != "message_update"
    ]
    shown = []
    for event in events:
        about = getattr(event, "tool_name", None)
        if event.type in ("message_start", "message_end"):
            about = event.message.role
        shown.append(f"{event.type} {about}" if about else event.type)
    last = events[-1].messages
    return {
        "events": shown,
        "polls": polls,
        "requests": [_texts(request.messages) for request in model.requests],
        "added": _texts(last),
        "declared": [
            [tool["name"] for tool in m.metadata["tools_added"]] for m in last if m.role == "system"
        ],
    }


@pytest.mark.parametrize("name", CASES)
async def test_a_run_in_the_order_of_1_6_equals_pis_own(name, in_node):
    """Events, calls of the steering function, requests, and the messages that the run added."""
    tools = ["plain", "boom", "first", "second"]
    case = {"tools": tools, "mode": "parallel", "steer": {}, "follow": [], "order": "1.6"}
    given = {**case, **CASES[name]}
    theirs, ours = in_node("pi_loop.mjs", given), await _ours(given)
    if name in ("unknown", "failure"):  # the words of an error are our own
        for run in (theirs, ours):
            run["requests"] = [[role for role, _ in request] for request in run["requests"]]
            run["added"] = [role for role, _ in run["added"]]
    assert ours == theirs
