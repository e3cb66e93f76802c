"""
Calls that stay open for a person's answer or fresh credentials, and the turn's requests for them.

An open call has one `PendingRequest` for each question, which every subscriber sees, and one
`HeldCall`, which no subscriber sees. The commit that ends the turn stores both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from looopy.auth.sealing import KEY_LIFE_S
from looopy.errors import LooopyError
from looopy.llm.render import CANCELLED
from looopy.loop.approval import AskFirst, schema_to_edit
from looopy.loop.parts import Turn
from looopy.loop.progress import Asked
from looopy.tools.asking import NeedsCredentials, NeedsInput
from looopy.tools.base import Tool
from looopy.types.auth import AuthRequest, auth_to_json
from looopy.types.event import utc_now
from looopy.types.message import StopReason, ToolCall
from looopy.types.state import HeldCall, PendingKind, PendingRequest, pending_to_json
from looopy.types.storable import dump, repair


def hold(turn: Turn, call: ToolCall, asks: NeedsInput) -> None:
    """
    Leave *call* open until its tool's questions are answered, or fresh credentials arrive.

    Raises:
        ValueRefused: A question cannot be stored, or shows a secret of the turn.
        MissingExtra: It requests credentials, but the packages to decrypt them are not installed.
    """
    redactor, kept = turn.given.redactor, _kept(turn, call)
    answered = turn.resumed(call).answered
    if isinstance(asks, NeedsCredentials):
        if asks.reason:
            turn.warn_of_tools(asks.reason)
        _leave(turn, Asked(call, kept, (), answered))
        return
    keys, sealed, pending = dict(kept.keys), dict(kept.sealed), []
    for i, ask in enumerate(asks.requests):
        redactor.refuse(
            key=ask.key,
            schema=ask.schema,
            options=ask.options,
            tool_name=ask.tool_name,
            args=ask.args,
            auth=None if ask.auth is None else auth_to_json(ask.auth),
        )
        request = PendingRequest(
            request_id=_request_id(turn, call, i),
            kind=ask.kind,
            tool_name=call.name if ask.tool_name is None else ask.tool_name,
            args=call.arguments if ask.args is None else ask.args,
            tool_call_id=call.id,
            turn=turn.given.context.turn,
            prompt=repair(redactor.text(ask.prompt)),  # it may quote a server
            schema=ask.schema,
            options=tuple(ask.options),
            expires_at=_in(ask.expires_s),
            auth=ask.auth,
        )
        if ask.auth is not None and ask.auth.key is None:
            request, private = _with_key(turn, request, ask.auth)
            sealed |= {} if private is None else {request.request_id: private}
        keys[request.request_id] = ask.key
        pending.append(request)
    redactor.refuse(state=asks.state)
    held = replace(kept, keys=keys, sealed=sealed, state=asks.state)
    _leave(turn, Asked(call, held, pending, answered))


def hold_for_approval(turn: Turn, call: ToolCall, tool: Tool, first: AskFirst) -> None:
    """Leave *call* open until a person allows it; `ValueRefused` if its question is unstorable."""
    redactor = turn.given.redactor
    label = redactor.text(tool.label)
    prompt = f"May {label} run with these arguments?"
    if first.prompt is not None:
        prompt = redactor.text(first.prompt)
    if first.doubt is not None:
        prompt = f"{redactor.text(first.doubt)}. {prompt}"
    if first.changed:
        prompt = f"{label} was approved, but it or its arguments have changed. {prompt}"
    request = PendingRequest(
        request_id=_request_id(turn, call),
        kind=PendingKind.APPROVAL,
        tool_name=tool.name,
        args=first.args,
        tool_call_id=call.id,
        turn=turn.given.context.turn,
        prompt=prompt,
        schema=schema_to_edit(tool, redactor),
        expires_at=_in(tool.approval_expires_s),
    )
    resumed = turn.resumed(call)
    answered = [(one, value) for one, value in resumed.answered if not resumed.is_ours(one)]
    held = replace(_kept(turn, call), bound=first.bound)
    _leave(turn, Asked(call, held, [request], answered, started=False))


def hold_for_credentials(turn: Turn, call: ToolCall) -> None:
    """Leave *call*, which was not announced, open until a turn has fresh credentials."""
    resumed = turn.resumed(call)
    held = resumed.held or HeldCall(tool_call_id=call.id, origin=turn.origin, asked_in=0)
    _leave(turn, Asked(call, held, (), resumed.answered, started=False))


def hold_for_sign_in(turn: Turn, call: ToolCall) -> None:
    """Leave *call* open until the server of its tool, which is not known, lets the user in."""
    name = turn.given.redactor.text(call.name)
    turn.warn_of_tools(
        f"the call of {name!r} stays open: sign the user in, then call execute_turn(None)"
    )
    hold_for_credentials(turn, call)


def _with_key(
    turn: Turn, request: PendingRequest, auth: AuthRequest
) -> tuple[PendingRequest, str | None]:
    """*request* with a key of its own, with which it expires, and the encrypted private key."""
    request_id, context_id = request.request_id, turn.given.context.context_id
    public, private = turn.given.keys.issue(request_id, context_id)
    auth = replace(auth, key=public, request_id=request_id, context_id=context_id)
    ends = utc_now() + timedelta(seconds=KEY_LIFE_S)
    until = ends if request.expires_at is None else min(ends, request.expires_at)
    return replace(request, auth=auth, expires_at=until), private


def _kept(turn: Turn, call: ToolCall) -> HeldCall:
    """The stored record of *call*, or a new one."""
    kept, now = turn.resumed(call).held, turn.given.context.turn
    if kept is not None:
        return replace(kept, asked_in=now)
    return HeldCall(tool_call_id=call.id, origin=turn.origin, asked_in=now)


def _leave(turn: Turn, asked: Asked) -> None:
    """Hold a call, after a check that it can be stored."""
    for request in asked.pending:
        dump(pending_to_json(request), "/pending")
    dump(asked.held.keys, "/keys")
    dump({"state": asked.held.state})
    turn.leave_open(asked)


def _request_id(turn: Turn, call: ToolCall, number: int = 0) -> str:
    # The number comes first: a call's id is from the model, and may end like a number.
    return f"{turn.given.context.turn}" + (f".{number}" if number else "") + f"-{call.id}"


def _in(seconds: float | None) -> datetime | None:
    return None if seconds is None else utc_now() + timedelta(seconds=seconds)


def refusal_of(turn: Turn, call: ToolCall, error: LooopyError) -> str:
    """The text for the model if the question of *call* cannot be asked."""
    why = turn.given.redactor.text(error.message)
    return f"{call.name!r} needed an answer of the user, but could not ask: {why}"


def wait(turn: Turn) -> None:
    """End the turn with the requests of its calls, unless it fails anyway."""
    progress = turn.progress
    if any(message.number is None for message in progress.queued):
        drop(turn)  # the next message is in no inbox: it cancels open calls
    if progress.asked and progress.stop in (None, StopReason.MAX_TOOL_CALLS):
        lacks = any(not asked.pending for asked in progress.asked)
        reason = StopReason.AUTH_REQUIRED if lacks else waits_for(requests_of(progress.asked))
        progress.end(reason)


def requests_of(asked: Sequence[Asked]) -> Sequence[PendingRequest]:
    """The requests that these calls wait for."""
    return [request for one in asked for request in one.pending]


def waits_for(pending: Sequence[PendingRequest]) -> StopReason:
    """The stop reason of a turn that leaves these requests."""
    auth = any(request.kind is PendingKind.AUTH for request in pending)
    return StopReason.AUTH_REQUIRED if auth else StopReason.INPUT_REQUIRED


def drop(turn: Turn) -> None:
    """Answer the calls that were to wait: the turn ended before the question was shown."""
    asked, turn.progress.asked = turn.progress.asked, []
    for one in asked:
        turn.excuse(one.call, CANCELLED, announce=not one.started)
