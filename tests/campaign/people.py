"""
Two people on one approval: processes that decide at the same moment, and are killed on the way.

One person asks for a payment. Two others decide it, each in a process of their own, one of them in
two, by an agent or over a protocol; and the first one keeps trying to continue. Any of them may be
killed at a named place. Then all come back, without kills. Afterwards there is one decision,
everybody was told of that one or was refused with its name, and the call ran at most once, as the
person who asked.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from tests.campaign.life import FileLedger, Ledger
from tests.campaign.places import STORES, broken, lines_of, place, wrong
from tests.campaign.trial import Tally, Trial

from looopy import Agent, Approve, AuthContext, Deny, Stores, ToolContext, open_stores, tool
from looopy._failpoints import arm
from looopy.agent.plan import Situation
from looopy.errors import (
    AgentBusy,
    AlreadyAnswered,
    CannotContinue,
    InputNotFound,
    StoreConflict,
)
from looopy.server import AgentHost, ag_ui_api, create_app, responses_api
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait
from looopy.types.approval import answer_to_json
from looopy.types.event import ApprovalDecided
from looopy.types.message import UserMessage
from looopy.types.request import LLMRequest
from looopy.types.state import Outcome

_DECIDERS = (("boss", True), ("boss", True), ("eve", False))
_DECIDING = ("B1", "B2", "B3", "B13", "B14")
_CONTINUING = (*_DECIDING, "B8", "B9")
_TRIES = 20
_LATER = (Outcome.AUTH_REQUIRED, Outcome.INTERRUPTED)


def _who(name: str) -> AuthContext:
    return AuthContext(name, credentials={"token": f"the-token-of-{name}"})


def _reply(request: LLMRequest) -> object:
    asked = isinstance(request.messages[-1], UserMessage)
    return tool_call("pay", cents=5) if asked else text("done")


def _agent(url: str | Stores, ledger: Ledger) -> Agent:
    @tool(effects="external", needs_approval=True)
    async def pay(cents: int, context: ToolContext) -> str:
        """Pay."""
        actor = context.auth_context.actor_id if context.auth_context else None
        ledger.write("ran", actor=actor, token=context.credentials.get("token"))
        return f"paid {cents}"

    return Agent("c", llm_provider=ScriptedProvider(_reply), tools=[pay], stores=url)


async def _ask(url: str, ledger: Ledger) -> None:
    async with _agent(url, ledger) as agent:
        await agent.execute_turn("pay", _who("ada"))


_WAYS = ("decide", "inputs", "/ag-ui", "/v1/responses")


def _answer(*, approves: bool) -> Approve | Deny:
    return Approve(note="fine") if approves else Deny(reason="no")


def _body(path: str, *, approves: bool) -> dict[str, Any]:
    """The request to a path that says the same."""
    if path == "/ag-ui":
        said = answer_to_json(_answer(approves=approves))
        resume = [{"interruptId": _ID, "status": "resolved", "payload": said}]
        empty = {"state": {}, "messages": [], "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": "c", "runId": "r", **empty, "resume": resume}
    item = {"type": "mcp_approval_response", "approval_request_id": _ID, "approve": approves}
    item["reason"] = "fine" if approves else "no"
    return {"model": "looopy", "conversation": "c", "input": [item]}


async def _decide_over(path: str, url: str, ledger: Ledger, name: str, *, approves: bool) -> None:
    """Decide over a protocol, and note what the person is told."""
    async with (
        open_stores(url) as stores,
        AgentHost(lambda _, s: _agent(s, ledger), stores, may_answer=lambda *_: True) as host,
    ):
        app = create_app(
            host, authenticate=lambda _: _who(name), protocols=[ag_ui_api, responses_api]
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            told = await client.post(path, json=_body(path, approves=approves))
    late = re.search(r"before by '(\w+)'", told.text)
    if late is not None:
        ledger.write("refused", first=late[1])
    elif told.status_code == 200:
        ledger.write("told", actor=name, decision="approved" if approves else "denied")
    else:
        raise RuntimeError(f"{path}: {told.status_code} {told.text}")


async def _decide(url: str, ledger: Ledger, name: str, *, approves: bool, by: str) -> None:
    """Decide, and note what the person is told."""
    if by.startswith("/"):
        await _decide_over(by, url, ledger, name, approves=approves)
        return
    answer = _answer(approves=approves)
    async with _agent(url, ledger) as agent:
        agent.on_busy = "wait"
        try:
            if by == "inputs":
                async for event in agent.execute_turn(None, _who(name), inputs={_ID: answer}):
                    if isinstance(event, ApprovalDecided):
                        ledger.write("told", actor=event.actor_id, decision=event.decision)
            else:
                made = await agent.decide(_ID, answer, _who(name))
                ledger.write("told", actor=made.actor_id, decision=made.decision)
        except AlreadyAnswered as late:
            ledger.write("refused", first=late.actor_id)


_ID = "1-call_1"


async def _continue(url: str, ledger: Ledger, *, until_over: bool) -> None:
    """Continue as the person who asked."""
    for _ in range(_TRIES if until_over else 1):
        async with _agent(url, ledger) as agent:
            try:
                result = await agent.execute_turn(None, _who("ada"))
            except (CannotContinue, AgentBusy, InputNotFound, StoreConflict):
                if until_over and not agent.state.pending:
                    return
                continue
            if result.outcome not in _LATER:
                return


def _armed(point: str | None, work: Callable[[], object]) -> None:
    if point is not None:
        arm(point)
    asyncio.run(work())  # type: ignore[arg-type]  # a coroutine


async def _judge(url: str, ledger: Path) -> list[str]:
    """What is wrong with what is left."""
    async with open_stores(url) as stores:
        log = await stores.journal.events("c")
        record = await stores.state.load("c")
        said = [message.text for message in await stores.messages.list("c")]
    decided = [event for event in log if isinstance(event, ApprovalDecided)]
    lines = lines_of(ledger)
    ran = [one for one in lines if one["kind"] == "ran"]
    if len(decided) != 1:
        return [f"{len(decided)} decisions are stored"]
    made, problems = decided[0], []
    for one in lines:
        if one["kind"] == "told" and (one["actor"], one["decision"]) != (
            made.actor_id,
            made.decision,
        ):
            problems.append(f"somebody was told {one}, and {made.actor_id} {made.decision} it")
        if one["kind"] == "refused" and one["first"] != made.actor_id:
            problems.append(f"somebody was told that {one['first']} was first, not {made.actor_id}")
    problems += [f"the call ran as {one}" for one in ran if (one["actor"], one["token"]) != _ADA]
    unknown = any("outcome" in text and "unknown" in text for text in said)
    least, most = (not unknown, 1) if made.decision == "approved" else (0, 0)
    if not least <= len(ran) <= most:
        problems.append(f"{made.decision}, and the call ran {len(ran)} times; said: {said}")
    if record is None or record.state.pending or record.state.answered or record.state.held:
        problems.append("something waits still")
    return problems


_ADA = ("ada", "the-token-of-ada")


def _one(url: str, seed: int, folder: Path) -> tuple[list[str], int]:
    """One run: what went wrong, and how many processes were killed."""
    chance, path, log = random.Random(seed), folder / "ledger", folder / "log"
    ledger = FileLedger(path)
    run(lambda: asyncio.run(_ask(url, ledger)), log)
    ways = [chance.choice(_WAYS) for _ in _DECIDERS]
    deciding = [
        partial(_decide, url, ledger, name, approves=approves, by=way)
        for (name, approves), way in zip(_DECIDERS, ways, strict=True)
    ]
    points = [chance.choice([None, *_DECIDING]) for _ in deciding]
    bodies = [partial(_armed, point, work) for point, work in zip(points, deciding, strict=True)]
    owner = partial(_continue, url, ledger, until_over=False)
    bodies += [partial(_armed, chance.choice([None, *_CONTINUING]), owner) for _ in range(2)]
    chance.shuffle(bodies)
    ends = [wait(pid) for pid in [fork(body, log) for body in bodies]]
    killed = sum(end == -signal.SIGKILL for end in ends)
    problems = [f"a process ended with {end}" for end in ends if end not in (0, -signal.SIGKILL)]
    for work in [*deciding, partial(_continue, url, ledger, until_over=True)]:
        run(partial(_armed, None, work), log)
    problems += asyncio.run(_judge(url, path))
    return [f"{one}; {log.read_text()[-1500:]}" for one in problems], killed


def _trial(store: str) -> Trial:
    name = f"two people on one approval, {store}"

    def run_all(count: int, seed: int) -> Tally:
        tally, killed = Tally(name), 0
        for number in range(seed, seed + count):
            with (
                tempfile.TemporaryDirectory(prefix="looopy-people-") as kept,
                place(store) as url,
            ):
                problems, died = _one(url, number, Path(kept))
            tally.runs += 1
            killed += died
            tally.violations += [f"seed {number}: {problem}" for problem in problems]
        tally.notes.append(f"{killed} processes killed")
        return tally

    return Trial(name, 200, run_all)


TRIALS = [_trial(store) for store in STORES]


def _anybody() -> AbstractContextManager[None]:
    """Let a turn act for whoever answers."""
    return broken(Situation, "is_of", lambda _: lambda _self, _actor: True)


WRONG = [wrong(TRIALS[0], "a turn acts for whoever answers", _anybody)]
