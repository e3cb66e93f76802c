"""
The beginning of the next turn: a new question, answers to requests, or calls that are still open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from looopy.agent.dead_turns import OpenCall, _of, _result, _untold, effective, unknown
from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyLost, KeyRing
from looopy.errors import (
    AccessDenied,
    CannotContinue,
    InputExpired,
    InputNotFound,
    ValueRefused,
)
from looopy.history.open_calls import can_continue
from looopy.loop.approval import digest
from looopy.loop.given import Resumed, TurnPlan
from looopy.loop.pending import waits_for
from looopy.stores.records import ContextState, Entry, EntryKind, TurnRecord
from looopy.tools.answering import check_answer, refused
from looopy.types.approval import EXPIRED, Approve, Deny, decision_of
from looopy.types.constructors import quick
from looopy.types.message import Message, StopReason, ToolCall, ToolResultMessage, UserMessage
from looopy.types.state import HeldCall, PendingKind, PendingRequest

SUPERSEDED = (
    "Cancelled: the user said something else instead of answering. The call was not run again."
    " The first run may have had its effect."
)
UNANSWERED = "Cancelled: the user said something else instead of answering."
DENIED = "The user denied this call. It was not run."
NOBODY_ANSWERED = (
    "The request to approve this call expired at {}. It was neither answered nor denied. The call"
    " was not run."
)
NOBODY_ANSWERED_INSIDE = (
    "Cancelled: the user said something else. The request to approve {}, which this call made,"
    " expired at {}. It was neither answered nor denied."
)
NOT_AGAIN = (
    "The user did not allow running this call again. The first run may have had its effect: check"
    " what it did."
)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(TurnPlan):
    """
    The plan of a turn that is claimed: its prompts are stored with the claim.

    Attributes:
        state: The state that the claim stores.
        continues: The turn that this one continues.
        anonymous: The turn runs without the `AuthContext` of its caller, who has answered the
            requests of a turn that had none.
    """

    state: ContextState
    continues: int | None = None
    anonymous: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Situation:
    """
    The state of a context between turns. `last`: the turn that `state.resumable` names; `queued`:
    the inbox entries of the next turn's actor.
    """

    state: ContextState
    history: Sequence[Message]
    open_calls: Sequence[OpenCall] = ()
    last: TurnRecord | None = None
    queued: Sequence[Entry] = ()
    context_id: str | None = None

    def is_of(self, actor_id: str | None) -> bool:
        """True if the turn to continue has this actor, or had no `AuthContext` at all."""
        return self.last is None or self.is_anonymous or self.last.actor_id == actor_id

    @property
    def is_anonymous(self) -> bool:
        """True if the turn to continue had no `AuthContext`."""
        return self.last is not None and self.last.actor_id is None and not self.last.had_auth


def plan_turn(
    situation: Situation,
    user_message: UserMessage | None,
    inputs: Mapping[str, Any] | None,
    *,
    has_auth: Callable[[], bool] = lambda: False,
    keys: KeyRing | None = None,
    redactor: Redactor | None = None,
    actor_id: str | None = None,
    decides: bool = False,
    judged: Mapping[str, PendingRequest] | None = None,
    answered_by: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """
    Decide how a turn begins; errors as `Agent.execute_turn`.

    A turn that continues another one acts for that one's actor. If another actor answers, the
    answer is stored, and the calls wait until their own actor continues.

    Args:
        has_auth: Returns true if the turn has credentials that have not expired.
        keys: Opens the credentials among *inputs*.
        redactor: Knows the secrets of the turn, which no answer to an approval may hold.
        actor_id: The person who answers.
        decides: Store the decisions in *inputs*, and end: see `Agent.decide`.
        judged: The requests that their answerer was shown, if they must still be those.
        answered_by: By request id, the persons who answered in an outer turn, if not *actor_id*.
    """
    inputs = inputs or {}
    is_own = situation.is_of(actor_id)
    if decides or not is_own:
        _refuse_answers(situation, inputs, actor_id, decides=decides, judged=judged)
    before = _still(situation, situation.state.answered)
    answers = receive(situation, inputs, before, keys or KeyRing(), redactor)
    if not is_own:
        earlier, new = answers.given[: len(before)], answers.given[len(before) :]
        new = [(replace(request, answered_by=actor_id), value) for request, value in new]
        answers = replace(answers, given=(*earlier, *new))
    late, decided = _unanswered_in_time(situation, inputs), []
    if late or inputs:
        decided += [
            _decided(answer, answered_by.get(answer[0].request_id, actor_id))
            for answer in answers.given[len(before) :]
        ]
        decided += [_decided(answer, None) for answer in late]
        decided = [one for one in decided if one]
    if user_message is not None and not inputs:
        plan = _say_instead(situation, user_message, late)
    else:
        answers = replace(answers, given=(*answers.given, *late))
        anew, is_theirs = bool(inputs or late), is_own and not decides
        plan = _planned(situation, user_message, answers, has_auth, anew=anew, is_theirs=is_theirs)
        signs_in = situation.state.needs_auth  # by passing the credentials that were lacking
        if answers.given and actor_id is not None and situation.is_anonymous and not signs_in:
            plan = replace(plan, anonymous=plan.ends is None)
    return replace(plan, decided=decided) if decided else plan


def _refuse_answers(
    situation: Situation,
    inputs: Mapping[str, Any],
    actor_id: str | None,
    *,
    decides: bool,
    judged: Mapping[str, PendingRequest] | None,
) -> None:
    """Refuse *inputs* that only the actor of the turn may answer, or whose request has changed."""
    for request in situation.state.pending:
        if request.request_id not in inputs:
            continue
        if judged is not None and request != judged.get(request.request_id):
            raise InputNotFound(
                f"the request {request.request_id!r} is another one by now: nothing was stored",
                request_id=request.request_id,
            )
        if decides and request.kind is not PendingKind.APPROVAL:
            raise refused(request, (), "it asks for no decision: its user answers it")
        if request.kind is PendingKind.AUTH and actor_id is not None:
            raise AccessDenied(
                f"the request {request.request_id!r} is for credentials of the actor of turn"
                f" {request.turn}: only that actor can give them; nothing was stored"
            )


def _say_instead(situation: Situation, user_message: UserMessage, late: Answered) -> Plan:
    """The plan of a turn whose text takes the place of all answers."""
    state = situation.state
    fresh = ContextState(**state.sums, summary=state.summary)
    if not situation.open_calls:
        return Plan(state=fresh, prompts=(user_message,), user_message=user_message)
    results = _dropped(situation, late)
    return Plan(state=fresh, prompts=(*results, user_message), user_message=user_message)


def drop_plan(situation: Situation, *, is_last: bool) -> Plan:
    """
    The plan of a turn that drops all that waits, without a message, and ends as `cancelled`.

    Args:
        is_last: The turn whose questions it drops is the last one.

    Raises:
        CannotContinue: It is not, or nothing waits.
    """
    state = situation.state
    asked = state.pending[0].turn if state.pending else None
    continues = state.resumable or asked
    if not is_last or continues is None:
        raise CannotContinue("nothing waits there any more", status="ready", action="continue")
    late = _unanswered_in_time(situation, {})
    decided = [one for one in (_decided(answer, None) for answer in late) if one]
    return Plan(
        state=ContextState(**state.sums, summary=state.summary),
        prompts=_dropped(situation, late),
        continues=continues,
        ends=StopReason.CANCELLED,
        decided=decided,
    )


def _dropped(situation: Situation, late: Answered) -> list[ToolResultMessage]:
    """The results of the open calls, which can no longer be answered."""
    held = {one.tool_call_id: one for one in situation.state.held}
    expired = {answer[0].tool_call_id: answer for answer in late}
    return [
        _not_in_time(situation, one.call, *expired[one.call.id], held.get(one.call.id))
        if one.call.id in expired
        else _superseded(situation, one)
        for one in situation.open_calls
    ]


def _not_in_time(
    situation: Situation,
    call: ToolCall,
    request: PendingRequest,
    value: Any,
    kept: HeldCall | None,
) -> ToolResultMessage:
    """The result of a call whose *request* has expired, as the user said something else."""
    if _is_ours(situation, request):
        return _denial(call, request, value, kept)
    text = NOBODY_ANSWERED_INSIDE.format(request.tool_name, _shown(request.expires_at))
    result = _result(call, text)
    return replace(result, details={"synthetic": True, "approval": "expired"})


def _planned(
    situation: Situation,
    user_message: UserMessage | None,
    answers: Answers,
    has_auth: Callable[[], bool],
    *,
    anew: bool,
    is_theirs: bool,
) -> Plan:
    """
    The plan of a turn that continues another one.

    Args:
        anew: Some of the *answers* are new.
        is_theirs: The turn may act for the actor of the other one; else it stores the answers.
    """
    state, given = situation.state, {request.request_id for request, _ in answers.given}
    fresh = ContextState(**state.sums, summary=state.summary)
    if anew or (user_message is None and answers.given and not state.pending):
        remaining = tuple(p for p in state.pending if p.request_id not in given)
        kept = replace(state, pending=remaining, answered=tuple(answers.stored), error=None)
        if not is_theirs:
            if user_message is not None:
                raise _lacks_auth()
            kept = replace(kept, resumable=_resumable(situation))
        if remaining and user_message is None:
            refuse_in_part(answers)
            return _waiting(kept, remaining[0].turn, waits_for(remaining))
        if not is_theirs:
            kept = replace(kept, needs_auth=not situation.is_anonymous)
            return _waiting(kept, kept.resumable, StopReason.AUTH_REQUIRED)
        plan = _answer(situation, fresh, user_message, answers, remaining)
        if plan.run and _had_auth(situation) and not has_auth():
            if user_message is not None:
                raise _lacks_auth()
            kept = replace(kept, resumable=_resumable(situation), needs_auth=True)
            return _waiting(kept, plan.continues, StopReason.AUTH_REQUIRED)
        return plan
    if state.pending:
        raise CannotContinue(
            "this context is waiting for input: pass inputs={request_id: value}, or send another"
            " message",
            status="waiting",
            action="continue",
        )
    return _continue(situation, fresh, has_auth, is_theirs=is_theirs)


def _unanswered_in_time(situation: Situation, inputs: Mapping[str, Any]) -> Answered:
    """The requests for approval that have expired, as answers; not a tool's own requests."""
    return [
        (request, dict(EXPIRED))
        for request in situation.state.pending
        if _expired(request)
        and request.request_id not in inputs
        and _resumed(situation, request).expires_by_itself(request)
    ]


def _is_ours(situation: Situation, request: PendingRequest) -> bool:
    """See `Resumed.is_ours`."""
    return _resumed(situation, request).is_ours(request)


def _resumed(situation: Situation, request: PendingRequest) -> Resumed:
    """The call of *request*, without its answers."""
    call_id = request.tool_call_id
    held = next((one for one in situation.state.held if one.tool_call_id == call_id), None)
    return Resumed(held)


def _decided(answer: tuple[PendingRequest, Any], actor_id: str | None) -> Mapping[str, Any]:
    """The fields of the event about an answer to an approval; empty for any other answer."""
    request, value = answer
    decision = decision_of(value)
    if request.kind is not PendingKind.APPROVAL or decision is None:
        return {}
    approved = isinstance(decision, Approve)
    said = "approved" if approved else "expired" if value == EXPIRED else "denied"
    return {
        "request_id": request.request_id,
        "tool_call_id": request.tool_call_id,
        "tool_name": request.tool_name,
        "decision": said,
        "actor_id": actor_id,
        "args": decision.args if isinstance(decision, Approve) else None,
        "text": decision.note if isinstance(decision, Approve) else decision.reason,
    }


def _lacks_auth() -> CannotContinue:
    return CannotContinue(
        "the calls that these inputs answer had credentials: pass a fresh auth_context of their"
        " actor with them, or only the text",
        status="waiting",
        action="continue",
    )


def _waiting(kept: ContextState, continues: int | None, ends: StopReason) -> Plan:
    """The plan of a turn that ends at once, with its requests still open."""
    return Plan(state=kept, pending=kept.pending, continues=continues, ends=ends)


def _still(situation: Situation, answered: Answered) -> Answered:
    """The entries of *answered* whose calls are still open."""
    still = {one.call.id for one in situation.open_calls}
    return [(request, value) for request, value in answered if request.tool_call_id in still]


def _resumable(situation: Situation) -> int | None:
    last = situation.last.turn if situation.last is not None else None
    return situation.state.resumable or last


def _answer(
    situation: Situation,
    fresh: ContextState,
    user_message: UserMessage | None,
    answers: Answers,
    superseded: Sequence[PendingRequest],
) -> Plan:
    answered = answers.given
    held = {one.tool_call_id: one for one in situation.state.held}
    denied = {
        request.tool_call_id: (request, value)
        for request, value in answered
        if isinstance(decision_of(value), Deny) and _is_ours(situation, request)
    }
    told = {request.tool_call_id for request, _ in answered}
    dropped = {request.tool_call_id for request in superseded}
    # Calls with pending requests: those were made after all that had started.
    now = {r.tool_call_id for r in situation.state.pending} - dropped
    prompts: list[Message] = []
    run: list[ToolCall] = []
    for open_call in situation.open_calls:
        call = open_call.call
        if call.id in denied:
            prompts.append(_denial(call, *denied[call.id], held.get(call.id)))
        elif call.id in dropped:
            prompts.append(_superseded(situation, open_call))
        elif open_call.unknown and call.id not in now:
            prompts.append(_result(call, unknown(held.get(call.id))))
        elif call.id in told or user_message is None:
            run.append(call)
        else:
            prompts.append(_superseded(situation, open_call))
    if user_message is not None:
        prompts.append(user_message)
    origin = next((c.turn for c in situation.open_calls), None)
    run, resumed, begun = _resume(situation, fresh, run, answers)
    continues = situation.state.resumable or answered[0][0].turn
    return Plan(
        state=begun,
        prompts=prompts,
        user_message=user_message,
        run=run,
        call_turn=origin,
        resumed=resumed,
        continues=continues,
    )


def _denial(
    call: ToolCall, request: PendingRequest, value: Any, kept: HeldCall | None
) -> ToolResultMessage:
    """The result of a call that was not allowed."""
    decision, late = decision_of(value), value == EXPIRED
    text = NOBODY_ANSWERED.format(_shown(request.expires_at)) if late else DENIED
    if kept is not None and kept.died:
        text = NOT_AGAIN
    if isinstance(decision, Deny) and decision.reason:
        text = f"{text} The user's reason: {decision.reason}"
    result = _result(call, text)
    return replace(result, details={"synthetic": True, "approval": "expired" if late else "denied"})


def _shown(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _edited(situation: Situation, answers: Answers) -> dict[str, HeldCall]:
    """The records of the held calls, by id, with the arguments that a person has approved."""
    held = {one.tool_call_id: one for one in situation.state.held}
    turns = {one.call.id: one.turn for one in situation.open_calls}
    for request, value in answers.given:
        decision, call_id = decision_of(value), request.tool_call_id
        if not isinstance(decision, Approve) or decision.args is None:
            continue
        if not _is_ours(situation, request):
            continue
        origin = turns.get(call_id, request.turn)
        kept = held.get(call_id) or HeldCall(tool_call_id=call_id, origin=origin, asked_in=0)
        args = dict(decision.args)
        bound = digest(request.tool_name, args, request.schema)
        held[call_id] = replace(kept, args=args, bound=bound)
    return held


def _resume(
    situation: Situation, fresh: ContextState, run: Sequence[ToolCall], answers: Answers
) -> tuple[list[ToolCall], dict[str, Resumed], ContextState]:
    """The calls to *run*, their answers, and *fresh* with answers that a crash must not lose."""
    held = _edited(situation, answers)
    told = {request.tool_call_id for request, _ in answers.given}
    resumed = {
        call.id: Resumed(
            held.get(call.id),
            [(r, value) for r, value in answers.stored if r.tool_call_id == call.id],
            {
                r.request_id: answers.opened[r.request_id]
                for r, _ in answers.given
                if r.tool_call_id == call.id and r.request_id in answers.opened
            },
        )
        for call in run
        if call.id in told or call.id in held
    }
    begun = replace(
        fresh,
        answered=tuple(answer for one in resumed.values() for answer in one.answered),
        held=tuple(one.held for one in resumed.values() if one.held is not None),
    )
    return [effective(call, held.get(call.id)) for call in run], resumed, begun


def _continue(
    situation: Situation, fresh: ContextState, has_auth: Callable[[], bool], *, is_theirs: bool
) -> Plan:
    resumable = situation.state.resumable
    open_calls = situation.open_calls
    first: Entry | None = None
    if not open_calls and not can_continue(situation.history):
        # As in a turn: steering before follow-ups, each in order of arrival.
        order = sorted(situation.queued, key=lambda e: (e.kind is not EntryKind.STEER, e.number))
        first = next(iter(order), None)
    if first is None and not open_calls and not can_continue(situation.history):
        raise CannotContinue(
            "there is nothing to continue: the last turn was answered; send a message instead",
            status="ready",
            action="continue",
        )
    if (_had_auth(situation) and not has_auth()) or not (is_theirs or first):
        kept = replace(
            situation.state, error=None, resumable=_resumable(situation), needs_auth=True
        )
        return _waiting(kept, resumable, StopReason.AUTH_REQUIRED)
    if first is not None:
        message = first.message
        return Plan(
            state=fresh,
            prompts=(message,),
            user_message=message,
            delivered=(first.number,),
            continues=resumable,
        )
    run = [c.call for c in open_calls if not c.unknown]
    fresh = replace(fresh, concluding=situation.state.concluding)
    run, resumed, begun = _resume(situation, fresh, run, Answers(()))
    held = {one.tool_call_id: one for one in situation.state.held}
    return Plan(
        state=begun,
        prompts=[_result(c.call, unknown(held.get(c.call.id))) for c in open_calls if c.unknown],
        run=run,
        call_turn=next((c.turn for c in open_calls), None),
        resumed=resumed,
        continues=resumable,
        concluding=begun.concluding,
    )


def _had_auth(situation: Situation) -> bool:
    """True if the turn to continue had credentials: it needs fresh ones."""
    return situation.last is not None and situation.last.had_auth


def _superseded(situation: Situation, open_call: OpenCall) -> ToolResultMessage:
    call = open_call.call
    held = next((h for h in situation.state.held if h.tool_call_id == call.id), None)
    if _of(call, situation.state.pending):
        died = held is None or held.died  # a call stored by an old version has no record
        return _result(call, SUPERSEDED if died else UNANSWERED)
    return _result(call, _untold(open_call, held))


_MAX_SHOWN = 10
Answered = Sequence[tuple[PendingRequest, Any]]


@quick
@dataclass(frozen=True, slots=True)
class Answers:
    """
    The answers to the open calls, new and earlier ones.

    Attributes:
        opened: Credentials, by `request_id`. If one can no longer be decrypted, it is missing, and
            its tool asks again.
        lost: The ids of the missing ones.
    """

    given: Answered
    opened: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lost: Collection[str] = ()

    @property
    def stored(self) -> Answered:
        """The answers that may be stored."""
        return [
            (request, value)
            for request, value in self.given
            if not in_plain(request) and request.request_id not in self.lost
        ]


def in_plain(request: PendingRequest) -> bool:
    """True if the answer holds credentials in plain text."""
    return request.kind is PendingKind.AUTH and request.auth is None


def receive(
    situation: Situation,
    inputs: Mapping[str, Any],
    before: Answered,
    keys: KeyRing,
    redactor: Redactor | None,
) -> Answers:
    """
    Read the answers *inputs* to the pending requests, together with *before*.

    Another context's agent may request credentials by way of this one; only that agent can decrypt
    them. Errors as `Agent.execute_turn`.
    """
    pending, context_id = situation.state.pending, situation.context_id
    by_id = {request.request_id: request for request in pending}
    new: list[tuple[PendingRequest, Any]] = []
    for request_id, value in inputs.items():
        request = by_id.get(request_id)
        if request is not None and _expired(request):
            raise _too_late(request, _resumed(situation, request))
        if request is None:
            ids = [repr(one.request_id) for one in pending if not _expired(one)]
            more = f" and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
            raise InputNotFound(
                f"no pending request has the id {request_id!r}: nothing was stored;"
                f" pending: {', '.join(ids[:_MAX_SHOWN]) or 'none'}{more}",
                request_id=request_id,
            )
        check_answer(request, value)
        if request.kind is PendingKind.APPROVAL and redactor and redactor.shows(value):
            raise refused(request, (), "it holds a credential of this turn; nothing was written")
        new.append((request, value))
    sealed = {name: text for one in situation.state.held for name, text in one.sealed.items()}
    opened, lost = {}, set()
    for request, value in (*before, *new):
        if request.kind is PendingKind.AUTH:
            try:
                elsewhere = context_id is not None and _asks_for_another(request, context_id)
                opened[request.request_id] = (
                    value if elsewhere else _opened(request, value, sealed, keys)
                )
            except KeyLost:
                lost.add(request.request_id)
            except ValueRefused as error:
                if request.request_id in inputs:
                    raise refused(request, (), error.message) from None
    for request, _ in new:
        if request.request_id in opened and request.auth is not None:
            check_answer(request, opened[request.request_id], opened=True)
    return Answers((*before, *new), opened, lost)


def _too_late(request: PendingRequest, resumed: Resumed) -> InputExpired:
    way_out = "a new message cancels it"
    if resumed.expires_by_itself(request):
        way_out = "execute_turn(None) reports that to the model, and a new message cancels the call"
    return InputExpired(
        f"the request {request.request_id!r} expired at {_shown(request.expires_at)}, before this"
        f" answer: nothing was stored; {way_out}",
        request_id=request.request_id,
        expired_at=request.expires_at,
    )


def _asks_for_another(request: PendingRequest, context_id: str) -> bool:
    return request.auth is not None and request.auth.context_id not in (None, context_id)


def _opened(request: PendingRequest, value: Any, sealed: Mapping[str, str], keys: KeyRing) -> Any:
    auth = request.auth
    if auth is None or auth.request_id != request.request_id or auth.context_id is None:
        return value  # plain, or for the key of an agent that works as a tool
    return keys.open(
        value,
        request_id=request.request_id,
        context_id=auth.context_id,
        sealed=sealed.get(request.request_id),
    )


def refuse_in_part(answers: Answers) -> None:
    """Raise `ValueRefused` for a plain credential: it may not wait for the other *answers*."""
    for request, _ in answers.given:
        if in_plain(request):
            raise refused(
                request,
                (),
                "credentials that are not encrypted are not kept: answer the other requests"
                " before, or together with this one",
            )


def _expired(request: PendingRequest) -> bool:
    return request.expires_at is not None and request.expires_at <= datetime.now(UTC)
