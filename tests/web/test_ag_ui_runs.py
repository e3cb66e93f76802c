"""Runs of AG-UI, read by its own client and judged by its validator."""

from __future__ import annotations

import asyncio
from typing import Any

from ag_ui.core import Event
from ag_ui_validate import create_validator
from pydantic import TypeAdapter
from tests.web.cases import QUICK, TOOLS, cases

from looopy import Agent, AuthContext, open_stores
from looopy.server import AgentHost
from looopy.server.protocols.ag_ui.request import read_run
from looopy.server.protocols.ag_ui.runs import Runs
from looopy.types.approval import answer_to_json

ADA = AuthContext("ada")
VALID = TypeAdapter(Event)


class Page:
    """Posts what AG-UI's client posts, and records the runs."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._last: Any = None
        self.count = 0
        self.recorded: list[Any] = []
        self.late: list[Any] = []
        self.committed: list[Any] = []

    async def step(self, step: Any, late_after: int) -> None:
        """Say or answer something; another page asks for the same run after some events."""
        self.count += 1
        body: dict[str, Any] = {"threadId": "c", "runId": f"r-{self.count}", "messages": []}
        outcome = (self._last or {}).get("outcome", {})
        interrupts = [one["id"] for one in outcome.get("interrupts", ())]
        if isinstance(step, str):
            body["messages"] = [{"id": f"u-{self.count}", "role": "user", "content": step}]
            body["resume"] = [{"interruptId": one, "status": "cancelled"} for one in interrupts]
        elif interrupts:
            answer = answer_to_json(step["answer"])
            body["resume"] = [
                {"interruptId": one, "status": "resolved", "payload": answer} for one in interrupts
            ]
        else:
            body["messages"] = [
                {"id": "t", "role": "tool", "toolCallId": one, "content": '{"n": 7}'}
                for one in outcome["pendingToolCallIds"]
            ]
        events: list[Any] = []
        late = None
        async for event in await self._runs.run(read_run(body), ADA):
            events.append(event)
            if len(events) == late_after:
                late = asyncio.ensure_future(self._attach(body))
        self._last = events[-1]
        recorded = {"events": events, "says": body["messages"], "resume": body.get("resume")}
        self.recorded.append({k: v for k, v in recorded.items() if v is not None})
        self.late.append(await late if late is not None else events)
        bare = {"threadId": "c", "runId": f"look-{self.count}", "messages": []}
        shown = [event async for event in await self._runs.run(read_run(bare), ADA)]
        assert [e["type"] for e in shown] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        self.committed.append(shown[1]["messages"])

    async def _attach(self, body: Any) -> list[Any]:
        return [event async for event in await self._runs.run(read_run(body), ADA)]


def _plain(messages: Any) -> list[Any]:
    """
    Messages without the error of a result, which a stream has no field for.

    Results come last: the client puts a result that it gets late behind the newest message.
    """
    left = [{k: v for k, v in m.items() if k not in ("error", "metadata")} for m in messages]
    results = sorted((m for m in left if m["role"] == "tool"), key=lambda m: m["toolCallId"])
    return [m for m in left if m["role"] != "tool"] + results


def _check(name: str, events: list[Any]) -> None:
    validator = create_validator()
    for event in events:
        VALID.validate_python(event)
        validator.feed(event)
    validator.finalize()
    wrong = [d for d in validator.report().diagnostics if d.severity != "info"]
    # It knows AG-UI 0.1, whose results were text; the models above are those of 1.0.
    wrong = [d for d in wrong if (d.rule, d.pointer) != ("AGUI504", "/content")]
    assert (name, [str(d) for d in wrong]) == (name, [])


async def test_the_ag_ui_client_has_the_messages_of_the_context(in_node):
    """In order, after every run: one that it watched, and one that it found in the middle."""
    asked: list[Any] = []
    expected: list[Any] = []
    for late_after in (3, 6):
        for name, (provider, steps) in cases().items():

            def build(context_id: str, stores: Any, provider: Any = provider) -> Agent:
                return Agent(
                    context_id, llm_provider=provider, tools=TOOLS, stores=stores, loop_config=QUICK
                )

            async with open_stores("memory:") as stores, AgentHost(build, stores) as host:
                page = Page(Runs(host))
                for step in steps:
                    await page.step(step, late_after)
            asked.append(page.recorded)
            expected.append((name, page.committed))
            for number, late in enumerate(page.late):
                asked.append([{"events": late, "says": []}])
                expected.append((f"{name}, late", page.committed[number : number + 1]))
            for events in (*(run["events"] for run in page.recorded), *page.late):
                _check(name, events)
    for (name, wanted), got in zip(expected, in_node("ag_ui.mjs", asked), strict=True):
        for number, messages in enumerate(wanted):
            assert not [e for e in got[number]["errors"] if e.startswith("THROWN")], (name, got)
            assert (name, _plain(got[number]["messages"])) == (name, _plain(messages))
