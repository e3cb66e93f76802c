"""
Calls that are left open because a person is asked first, and what a turn says of them.

A call is held with one `PendingRequest` for each question, which everybody may see, and with a
`HeldCall`, which nobody is shown. Both are stored by the commit that ends the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from looopy.errors import ValueRefused
from looopy.llm.render import CANCELLED, synthetic_result
from looopy.stores.gate import dump
from looopy.stores.rows import pending_to_json
from looopy.tools.asking import NeedsInput
from looopy.turn import NOTHING_ASKED, Asked, Turn
from looopy.types.event import utc_now
from looopy.types.message import StopReason, ToolCall, now_ms
from looopy.types.state import HeldCall, PendingKind, PendingRequest


def hold(turn: Turn, call: ToolCall, asks: NeedsInput) -> None:
    """
    Leave *call* open until its tool's questions are answered.

    Raises:
        ValueRefused: A question cannot be stored, or shows a secret of the turn.
    """
    origin = turn.call_turn if turn.call_turn is not None else turn.context.turn
    number = turn.context.turn
    resumed = turn.resumed.get(call.id, NOTHING_ASKED)
    keys = dict(resumed.held.keys) if resumed.held is not None else {}
    pending: list[PendingRequest] = []
    for i, ask in enumerate(asks.requests):
        turn.redactor.refuse(key=ask.key, schema=ask.schema, options=ask.options)
        request = PendingRequest(
            request_id=f"{number}-{call.id}" + (f"-{i}" if i else ""),
            kind=ask.kind,
            tool_name=call.name,
            args=call.arguments,
            tool_call_id=call.id,
            turn=number,
            prompt=turn.redactor.text(ask.prompt),
            schema=ask.schema,
            options=tuple(ask.options),
            expires_at=None if ask.expires_s is None else utc_now() + timedelta(0, ask.expires_s),
        )
        keys[request.request_id] = ask.key
        dump(pending_to_json(request), f"/{ask.key}")
        pending.append(request)
    turn.redactor.refuse(state=asks.state)
    held = HeldCall(
        tool_call_id=call.id,
        origin=origin,
        asked_in=number,
        keys=keys,
        state=asks.state,
        bound=None if resumed.held is None else resumed.held.bound,
    )
    dump(keys, "/keys")
    dump({"state": asks.state}, "")
    turn.asked.append(Asked(call, held, pending, resumed.answered))


def refusal_of(call: ToolCall, error: ValueRefused) -> str:
    """What the model is told when the question of *call* cannot be asked."""
    return f"{call.name!r} needed an answer of the user, but could not ask: {error.message}"


def wait(turn: Turn) -> None:
    """End the turn with what its calls wait for, unless it fails anyway."""
    if any(message.number is None for message in turn.queued):
        drop(turn)  # said next, and kept in no inbox: a message cancels what would wait
    if turn.asked and turn.stop in (None, StopReason.MAX_TOOL_CALLS):
        turn.pending = [request for asked in turn.asked for request in asked.pending]
        turn.stop = waits_for(turn.pending)


def waits_for(pending: Sequence[PendingRequest]) -> StopReason:
    """How a turn ends that leaves these requests."""
    auth = any(request.kind is PendingKind.AUTH for request in pending)
    return StopReason.AUTH_REQUIRED if auth else StopReason.INPUT_REQUIRED


def drop(turn: Turn) -> None:
    """Answer the calls that were to wait: the turn ended before anybody was asked."""
    asked, turn.asked = turn.asked, []
    for one in asked:
        result = synthetic_result(one.call, CANCELLED, timestamp=now_ms())
        turn.answer(one.call, replace(result), announce=False)
