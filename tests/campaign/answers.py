"""
Kill a process at every point of an approval and of a question, and see what the next one does (T9).

One story: the model asks for a payment that a person approves, a booking that asks for a day, and a
look around. See `tests.campaign.stories` for how it is told.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from tests.agent.kit import assert_whole
from tests.campaign.stories import TURNS, Ledger, Story

from looopy import Agent, Approve, ToolContext, open_stores, tool
from looopy.agent.plan import DENIED
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.event import ApprovalDecided, ToolExecutionStart, TurnEnd
from looopy.types.message import ToolResultMessage
from looopy.types.request import LLMRequest
from looopy.types.state import Outcome, PendingKind

_EDITED = 'other arguments, which replace yours: {"cents": 5}'


def _reply(request: LLMRequest) -> Any:
    if any(isinstance(message, ToolResultMessage) for message in request.messages):
        return text("done")
    return tool_call("pay", cents=9), tool_call("look"), tool_call("book")


def _agent(url: str, ledger: Ledger) -> Agent:
    @tool(needs_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        ledger.note("paid", str(cents))
        return f"paid {cents}"

    @tool(effects="none")
    async def look() -> str:
        """Look around."""
        return "nothing"

    @tool
    async def book(context: ToolContext) -> str:
        """Book a day."""
        day = await context.ask("Which day?")
        ledger.note("booked", day)
        return f"booked {day}"

    provider = ScriptedProvider(_reply, repeat=True)
    return Agent("ada", llm_provider=provider, tools=[pay, look, book], stores=url)


_EDIT = Approve(args={"cents": 5}, note="less")


async def _tell(
    url: str, ledger: Ledger, *, in_parts: bool, denied: bool, edited: bool = False
) -> None:
    """Tell the story to its end, from wherever it stands; each turn with an agent of its own."""
    for _ in range(TURNS):
        async with _agent(url, ledger) as agent:
            state = agent.state
            inputs: dict[str, Any] = {}
            for request in state.pending:
                ledger.note("asked", request.tool_name, request.request_id)
                approval = request.kind is PendingKind.APPROVAL
                allowed = _EDIT if edited else not denied
                inputs[request.request_id] = allowed if approval else "Monday"
            if inputs and in_parts:
                inputs = dict([list(inputs.items())[-1]])
            said = "go" if state.turn_count == 0 else None
            if said is None and not inputs and state.interrupted_turn is None:
                return
            stream = agent.execute_turn(said, inputs=inputs)
            await stream.accepted()
            for request in state.pending:
                if request.request_id in inputs:
                    ledger.note("answered", request.tool_name, request.request_id)
            await stream
    raise RuntimeError("the story does not end")


async def _judge(url: str, ledger: Ledger, *, denied: bool, edited: bool = False) -> list[str]:
    """What is wrong with a story that has ended."""
    lines = ledger.lines()
    did = Counter(line.split()[0] for line in lines)
    found = []
    async with open_stores(url) as stores:
        await assert_whole(stores)
        messages = await stores.messages.list("ada")
        events = await stores.journal.events("ada")
    died = {e.turn for e in events if isinstance(e, TurnEnd) and e.outcome is Outcome.INTERRUPTED}
    starts = [e for e in events if isinstance(e, ToolExecutionStart)]
    began = {event.tool_name: event.turn for event in starts}  # the last time
    told = {m.tool_name: m.text for m in messages if isinstance(m, ToolResultMessage)}
    if edited:  # it stands before the result, whatever that is
        note, _, told["pay"] = told["pay"].partition("\n")
        if _EDITED not in note:
            found.append(f"the model was not told of the edit: {note}")
        if told["pay"] != OUTCOME_UNKNOWN:
            told["pay"] = told["pay"].removeprefix("The user's note: less").strip()
    decided = [e for e in events if isinstance(e, ApprovalDecided)]
    says = ("denied" if denied else "approved", _EDIT.args if edited else None)
    if [(e.decision, e.args) for e in decided] != [says]:
        found.append(f"the log has these decisions: {decided}")
    paid = "paid 5" if edited else "paid 9"
    for name, verb, result in (("pay", "paid", paid), ("book", "booked", "booked Monday")):
        if name == "pay" and denied:
            if did[verb] or told[name] != DENIED:
                found.append(f"denied, and yet: {told[name]}, {did[verb]} times")
        elif told[name] == OUTCOME_UNKNOWN:
            if did[verb] > 1 or began.get(name) not in died:
                found.append(f"{name} is of unknown outcome; it was {verb} {did[verb]} times")
        elif (told[name], did[verb]) != (result, 1):
            found.append(f"{told[name]}, and it was {verb} {did[verb]} times")
        found += _asked_in_vain(name, lines)
    if messages[-1].text != "done":
        found.append(f"it ends with {messages[-1].text!r}")
    return found


def _asked_in_vain(name: str, lines: list[str]) -> list[str]:
    """Whether an answer that was acknowledged is asked for again, or a question has got lost."""
    seen: list[str] = []
    answered = False
    for verb, who, what in (line.split() for line in lines if line.count(" ") == 2):
        if who != name:
            continue
        if verb == "answered":
            answered = True
        elif answered and what not in seen:
            return [f"{name} was answered, and asked about again"]
        elif verb == "asked" and what not in seen:
            seen.append(what)
    return [f"{name} was asked about as {seen}"] if len(seen) > 1 else []


def _story(name: str, full: int, *, in_parts: bool, denied: bool, edited: bool = False) -> Story:
    return Story(
        name,
        full,
        partial(_tell, in_parts=in_parts, denied=denied, edited=edited),
        partial(_judge, denied=denied, edited=edited),
        twice=not in_parts,
    )


TRIALS = [
    _story("approval and question", 92, in_parts=False, denied=False).trial,
    _story("approval and question, one by one", 55, in_parts=True, denied=False, edited=True).trial,
    _story("approval denied, question answered", 50, in_parts=True, denied=True).trial,
]
