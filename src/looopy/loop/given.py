"""
The input of a turn: the caller's objects, and the plan of its beginning.

None of these is replaced while the turn runs; `looopy.loop.progress` has the parts that change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from looopy.auth.redaction import Redactor
from looopy.auth.sealing import KeyRing
from looopy.history.view import View
from looopy.llm.provider import LLMProvider
from looopy.loop.guards import Spent
from looopy.loop.incoming import Inbox
from looopy.loop.output import OutputType
from looopy.tools.gather import ToolSource
from looopy.types.approval import EXPIRED, Approve, Deny, decision_of
from looopy.types.config import LoopConfig
from looopy.types.constructors import quick
from looopy.types.context import TurnContext
from looopy.types.message import Message, StopReason, ToolCall, UserMessage
from looopy.types.state import HeldCall, PendingKind, PendingRequest

if TYPE_CHECKING:
    from looopy.loop.metered import Meter
    from looopy.telemetry.watch import TurnWatch


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """
    The objects that a turn works with.

    Attributes:
        redactor: Knows the secrets of the turn, at first the secrets of `context.auth_context`.
        view: The history, and the part of it that the model saw last. The turn adds to the history.
        keys: Makes the keys that credentials are encrypted to.
        inbox: Brings steering and follow-ups.
        output_type: The type of the answer; `None`: any.
        auto_compact: True if the turn summarises a history that the model would not see whole.
        spent: The usage of the context's turns before this one.
        meter: Counts model calls of tools in accounts that limit them; `None`: there are none.
        watched: Returns false if no subscriber would see a delta now, which then is not made;
            `None`: each one is made.
        watch: Makes the turn's spans and metrics; `None`: they are not wanted.
        is_replay: The turn has happened before. The log does not report its failure again.
    """

    context: TurnContext
    provider: LLMProvider
    sources: Sequence[ToolSource]
    config: LoopConfig
    redactor: Redactor
    view: View
    keys: KeyRing = field(default_factory=KeyRing)
    inbox: Inbox = field(default_factory=Inbox)
    output_type: OutputType | None = None
    auto_compact: bool = False
    spent: Spent = field(default_factory=Spent)
    meter: "Meter | None" = None
    watched: Callable[[], bool] | None = None
    watch: "TurnWatch | None" = None
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """
    The answers for a call that an earlier turn left open.

    Attributes:
        opened: The decrypted credentials, by `request_id`; they live one turn.
    """

    held: HeldCall | None = None
    answered: Sequence[tuple[PendingRequest, Any]] = ()
    opened: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def answers(self) -> dict[str, Any]:
        """The answers, by the tool's own keys."""
        keys = self.held.keys if self.held is not None else {}
        given = {
            request.request_id: value
            for request, value in self.answered
            if request.kind is not PendingKind.AUTH
        }
        for request, value in self.answered:  # a tool's own question: it gets the answer
            as_it_is = isinstance(value, bool) or value == EXPIRED  # which only an agent gets
            if request.kind is PendingKind.APPROVAL and not as_it_is:
                given[request.request_id] = decision_of(value)
        given.update(self.opened)
        return {keys[name]: value for name, value in given.items() if name in keys}

    @property
    def answered_by(self) -> dict[str, str]:
        """The actors who answered for the turn's own, by the tool's own keys."""
        keys = self.held.keys if self.held is not None else {}
        return {
            keys[request.request_id]: request.answered_by
            for request, _ in self.answered
            if request.answered_by is not None and request.request_id in keys
        }

    def is_ours(self, request: PendingRequest) -> bool:
        """True if *request* asks if the call may run, and is not a question of its tool."""
        own = self.held is not None and request.request_id in self.held.keys
        return request.kind is PendingKind.APPROVAL and not own

    def expires_by_itself(self, request: PendingRequest) -> bool:
        """True if *request*, once it has expired, is answered by that."""
        inner = self.held is not None and self.held.of_an_agent
        return self.is_ours(request) or (inner and request.kind is PendingKind.APPROVAL)

    @property
    def decisions(self) -> Sequence[Approve | Deny]:
        """The decisions if the call may run, oldest first."""
        ours = (decision_of(value) for one, value in self.answered if self.is_ours(one))
        return [one for one in ours if one is not None]


NOTHING_ASKED = Resumed()


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """
    The beginning of a turn.

    Attributes:
        prompts: Messages that the turn adds first: results of calls that an earlier turn left open,
            then the user's message. The first group announces them.
        user_message: The one of *prompts* that `turn_start` names.
        run: Calls of the last assistant message, to run before the model call.
        call_turn: The turn that announced them; their idempotency keys name it.
        resumed: Their questions and answers, by call id.
        delivered: Inbox entries that are among *prompts*.
        ends: The turn ends with this reason after the first group: `input_required`,
            `auth_required` or, where it drops what waits, `cancelled`.
        pending: The requests that it then waits for.
        decided: The approvals that were answered or expired: the fields of their events.
        concluding: The turn may only answer, without tools: see `Guards`.
    """

    prompts: Sequence[Message] = ()
    user_message: UserMessage | None = None
    run: Sequence[ToolCall] = ()
    call_turn: int | None = None
    resumed: Mapping[str, Resumed] = field(default_factory=dict)
    delivered: Sequence[int] = ()
    ends: StopReason | None = None
    pending: Sequence[PendingRequest] = ()
    decided: Sequence[Mapping[str, Any]] = ()
    concluding: bool = False
