"""
What a context must look like, given what its users were told.

The ledger is kept outside of what is tested: `ack` when a user message was accepted, `event` for
every numbered event that was shown, `effect` for everything a tool did, `saved` for an artifact,
`posted` for what went into the inbox, `invalid` for a request that a provider would refuse. It is
compared with what the public interface gives afterwards; the store is never compared with itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.property.strict import check_anthropic, check_openai

from looopy import (
    AgentEvent,
    AssistantMessage,
    Message,
    ToolResultMessage,
    UserMessage,
    event_to_json,
)
from looopy.errors import ArtifactNotFound
from looopy.llm.render import render
from looopy.stores import Stores

Line = dict[str, Any]
"""One entry of a ledger: its `kind`, and facts."""

ARTIFACT = "doc"
"""The artifact that tools save."""

ONCE = ("e", "x", "s")
"""Names of the tools whose effect must not come about twice, whatever happened."""


def comparable(event: AgentEvent) -> dict[str, Any]:
    """An event as it must be read back: all of it, durations to the microsecond."""
    data = json.loads(json.dumps(event_to_json(event)), parse_float=lambda s: round(float(s), 6))
    if event.type == "turn_end":
        del data["iteration"]  # of no meaning there: the turn is over
    return data


def invalid_history(messages: Sequence[Message]) -> list[str]:
    """What the strictest providers would say, each to what it would be sent."""
    return [
        *check_openai(render(messages, provider="openai")),
        *check_anthropic(render(messages, provider="anthropic")),
    ]


def compare(
    context_id: str,
    lines: Sequence[Line],
    messages: Sequence[Message],
    events: Sequence[AgentEvent],
    *,
    pending: bool,
) -> list[str]:
    """
    What is wrong with a context.

    Args:
        lines: The ledger, oldest first.
        messages: All of the context.
        events: All of the context.
        pending: Whether calls of the last turn may still wait for their results.
    """
    return [
        *(f"a request was invalid: {x['problem']}" for x in lines if x["kind"] == "invalid"),
        *_said_once(lines, messages),
        *_events_agree(lines, events),
        *_effects_agree(context_id, lines, events),
        *(f"history: {p}" for p in invalid_history(messages)),
        *log_is_whole(messages, pending=pending),
    ]


def posts_are_said(lines: Sequence[Line], messages: Sequence[Message]) -> list[str]:
    """What went into the inbox was said once, when no turn runs and none has to be continued."""
    said = Counter(m.text for m in messages if isinstance(m, UserMessage))
    posted = [line["said"] for line in lines if line["kind"] == "posted"]
    return [f"queued message {p!r} is there {said[p]} times" for p in posted if said[p] != 1]


async def saves_agree(context_id: str, lines: Sequence[Line], stores: Stores) -> list[str]:
    """Every version that was shown, or said to be saved, is there, and as it was."""
    problems = []
    saved = {line["version"]: line["content"] for line in lines if line["kind"] == "saved"}
    for line in lines:
        if line["kind"] == "event" and line["event"]["type"] == "artifact_update":
            saved.setdefault(line["event"]["version"], None)
    for version, content in saved.items():
        try:
            found = await stores.artifacts.load(context_id, ARTIFACT, version)
        except ArtifactNotFound:
            problems.append(f"version {version} of the artifact is gone")
            continue
        if content is not None and found != content.encode():
            problems.append(f"version {version} of the artifact was {content!r}, is {found!r}")
    return problems


def _said_once(lines: Sequence[Line], messages: Sequence[Message]) -> list[str]:
    """Each acknowledged message is there once, and no other more than once."""
    said = Counter(m.text for m in messages if isinstance(m, UserMessage))
    acknowledged = {x["said"] for x in lines if x["kind"] == "ack" and x["said"] is not None}
    return [
        f"acknowledged message {text!r} is there {said[text]} times"
        for text in sorted(acknowledged)
        if said[text] != 1
    ] + [
        f"message {text!r} is there {times} times"
        for text, times in said.items()
        if times > 1 and text not in acknowledged
    ]


def _events_agree(lines: Sequence[Line], events: Sequence[AgentEvent]) -> list[str]:
    problems = []
    if [e.seq for e in events] != list(range(1, len(events) + 1)):
        problems.append("the log's numbers have gaps or repeat")
    shown: dict[int, Any] = {}
    told = [(line["seq"], line["event"]) for line in lines if line["kind"] == "event"]
    problems += [
        f"event {seq} was shown as two different ones"
        for seq, event in told
        if shown.setdefault(seq, event) != event
    ]
    for seq, event in shown.items():
        if seq > len(events):
            problems.append(f"event {seq} was shown and is not stored")
        elif comparable(events[seq - 1]) != event:
            now = comparable(events[seq - 1])
            problems.append(f"event {seq} was shown as {event}, is now {now}")
    open_turn = None
    for event in events:
        if event.type == "turn_start":
            if open_turn is not None:
                problems.append(f"turn {open_turn} has no end")
            open_turn = event.turn
        elif event.type == "turn_end":
            if open_turn != event.turn:
                problems.append(f"turn {event.turn} ends twice or out of order")
            open_turn = None
    if open_turn is not None:
        problems.append(f"turn {open_turn} has no end")
    return problems


def _effects_agree(
    context_id: str, lines: Sequence[Line], events: Sequence[AgentEvent]
) -> list[str]:
    """No effect after its result was shown, none of an external tool twice without a yes."""
    problems = []
    effects: Counter[str] = Counter()
    names: dict[str, str] = {}
    for event in events:
        if event.type == "message_end" and isinstance(event.message, AssistantMessage):
            calls = event.message.tool_calls
            names |= {f"{context_id}/{event.turn}/{c.id}": c.name for c in calls}
    finished: set[str] = set()
    for line in lines:
        if line["kind"] == "effect":
            key = line["key"]
            effects[key] += 1
            if key in finished:
                problems.append(f"{key} ran again after its result was shown")
            if names.get(key) in ONCE and effects[key] > 1:
                problems.append(f"external {key} ran {effects[key]} times")
            if key not in names:
                problems.append(f"{key} ran without a stored intent")
        elif line["kind"] == "event" and line["event"]["type"] == "tool_execution_end":
            finished.add(f"{context_id}/{line['event']['turn']}/{line['event']['tool_call_id']}")
    return problems


def log_is_whole(messages: Sequence[Message], *, pending: bool) -> list[str]:
    """Each announced call has exactly one result, save those that wait to be continued."""
    problems = []
    announced: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            problems += [f"call {c} has no result" for c in announced]
            announced = [c.id for c in message.tool_calls]
        elif isinstance(message, ToolResultMessage):
            if message.tool_call_id in announced:
                announced.remove(message.tool_call_id)
            else:
                problems.append(f"result of {message.tool_call_id} without its call")
    if announced and not pending:
        problems += [f"call {c} has no result" for c in announced]
    return problems
