"""
An agent as another agent's tool: each call is its own conversation, equally durable.

A call of such a tool is a context in a store, which has a record of the call that the context works
for. So a process that runs the call again, after a crash or after a person's answer, finds that
context and its outcome. The id is derived from the call as well: an agent in stores of its own is
found by that alone.

The turns of that context have the idempotency keys 1, 2 and so on:

- An accepted turn is watched, not run again.
- The next turn continues an interrupted one.
- A turn that waits for input asks the outer turn's user, and the answer begins the next turn.

The outer turn's stream shows the inner agent's events, under a `path`. They are stored in the inner
agent's own context alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TypeAlias, TypedDict, runtime_checkable

from looopy.errors import (
    CannotContinue,
    ConfigurationError,
    Fenced,
    InputExpired,
    InvalidTool,
    LooopyError,
    StoreConflict,
    ToolError,
)
from looopy.tools.asking import Ask, NeedsCredentials, NeedsInput, answered_for
from looopy.tools.base import Enabled, NeedsApproval, Tool, ToolContext, ToolResult
from looopy.tools.call.results import to_json_text
from looopy.tools.gather import UsesSources
from looopy.tools.schema import arguments_of
from looopy.types.approval import EXPIRED
from looopy.types.constructors import amended
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, AuthRequired, InputRequired
from looopy.types.message import AssistantMessage, Message, StopReason, Usage
from looopy.types.message_json import usage_to_json
from looopy.types.result import TurnResult
from looopy.types.state import OF_AN_AGENT, AgentState, Outcome, PendingKind, PendingRequest

MAX_DEPTH = 5
_LEAST_S = 0.001  # an expired question is still asked, and expires at once
_ASKED_OF_A_CALL = (PendingKind.APPROVAL, PendingKind.CLIENT_TOOL)
# The agents that call each other here, outermost first. A task inherits it, so it reaches the tools
# of an inner agent however deep.
_chain: ContextVar[tuple[str, ...]] = ContextVar("looopy_agents", default=())


class TurnView(Protocol):
    """A turn of the inner agent: a `TurnStream`."""

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        """Its events."""
        ...

    def __await__(self) -> Generator[Any, None, TurnResult]:
        """Its result."""
        ...

    def cancel(self) -> None:
        """Ask it to stop."""
        ...


class InnerAgent(Protocol):
    """The part of an agent that works as a tool: an `Agent`."""

    @property
    def state(self) -> AgentState:
        """The state of its context."""
        ...

    async def start(self) -> None:
        """Read its context."""
        ...

    async def get_messages(self) -> list[Message]:
        """The messages of its context."""
        ...

    async def shutdown(self, cancel: bool = False) -> None:
        """Release everything."""
        ...

    def execute_turn(
        self,
        user_message: str | None = None,
        auth_context: AuthContext | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output_type: Any = None,
    ) -> TurnView:
        """Run a turn, or watch the one with this key."""
        ...


@runtime_checkable
class InStores(Protocol):
    """An inner agent with a context in stores that record the call it works for: an `Agent`."""

    def __stores__(self) -> Any:
        """The `Stores` that hold its context; `None` before its start."""
        ...


MakeAgent: TypeAlias = Callable[[str, Any], InnerAgent | Awaitable[InnerAgent]]
"""Makes the agent of one call, not started: from its context id and the outer agent's stores."""


class AgentToolOptions(TypedDict, total=False):
    """Options of `AgentTool`, and of `Agent.as_tool`."""

    output_type: Any
    show_events: bool
    max_depth: int
    label: str | None
    timeout_s: float | None
    parallel: bool
    needs_approval: NeedsApproval
    is_enabled: Enabled | None
    max_result_bytes: int | None


class AgentTool(UsesSources, Tool):
    """
    A tool that calls another agent. `Agent.as_tool` makes one.

    Args:
        make_agent: Makes the agent of one call, not started: `(context_id, stores) -> Agent`, sync
            or async. *stores* are the outer agent's, `None` in a bare loop; the agent may have its
            own.
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        description: For the model: the tasks for this agent.
        output_type: The type of its answer, as for `execute_turn`; the result is then JSON.
        show_events: True if the outer turn shows the agent's events.
        max_depth: The largest number of agents that call each other, this one included.
        timeout_s: Seconds for one call; `None`: as long as the agent's own turns may take.
        parallel: See `Tool`, also for the other options.

    Raises:
        InvalidTool: A name or an option is invalid.
    """

    def __init__(
        self,
        make_agent: MakeAgent,
        *,
        name: str,
        description: str = "",
        output_type: Any = None,
        show_events: bool = True,
        max_depth: int = MAX_DEPTH,
        label: str | None = None,
        timeout_s: float | None = None,
        parallel: bool = False,
        needs_approval: NeedsApproval = False,
        is_enabled: Enabled | None = None,
        max_result_bytes: int | None = None,
    ) -> None:
        if not callable(make_agent):
            raise InvalidTool(
                f"AgentTool takes a function (context_id, stores) -> Agent, not {make_agent!r}:"
                " of an Agent, agent.as_tool() makes a tool"
            )
        if not isinstance(max_depth, int) or isinstance(max_depth, bool) or max_depth < 1:
            raise InvalidTool(f"tool {name!r}: max_depth must be at least 1")
        super().__init__(
            name=name,
            description=description
            or f"Ask the agent {name!r}. It knows nothing of this conversation.",
            parameters=arguments_of(
                prompt={
                    "type": "string",
                    "minLength": 1,
                    "description": "What to do, with all that has to be known for it.",
                }
            ),
            label=label,
            timeout_s=math.inf if timeout_s is None else timeout_s,
            parallel=parallel,
            effects="idempotent",
            needs_approval=needs_approval,
            is_enabled=is_enabled,
            max_result_bytes=max_result_bytes,
        )
        self._make_agent = make_agent
        self.output_type = output_type
        self.show_events = show_events
        self._max_depth = max_depth

    def sharing(self, sources: Sequence[object]) -> Self:
        """Hold these sources of the agent's tools while an outer agent is started."""
        self._sources = sources
        return self

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Run the agent until it answers, or continue its work for this call.

        Raises:
            NeedsInput: The agent waits for a person.
            NeedsCredentials: The agent's turn ended because its credentials expired.
            ToolError: Agents call each other too deep.
            LooopyError: The agent could not be started.
        """
        chain = _chain.get()
        if len(chain) >= self._max_depth:
            raise ToolError(
                f"agents may work for each other {self._max_depth} deep"
                f" ({' -> '.join((*chain, self.name))}): do this one's part yourself",
                tool_name=self.name,
            )
        linked = await self._linked(context)
        context_id = linked or await self._context_id(context)
        made = self._make_agent(context_id, context.stores)
        agent = await made if inspect.isawaitable(made) else made
        before = _chain.set((*chain, self.name))
        try:
            await agent.start()
            own = agent.__stores__() if isinstance(agent, InStores) else None
            await self._enclose(own, context_id, context)
            inner_run = _InnerRun(self, agent, context_id, context)
            if linked and own is not None and agent.state.turn_count:
                known = await own.journal.turn_of_key(context_id, "1")
                if known is None:  # it came from an archive, which keeps no keys
                    return await inner_run.resume()
            return await inner_run.run(arguments["prompt"])
        finally:
            _chain.reset(before)
            await agent.shutdown(cancel=True)

    async def _linked(self, context: ToolContext) -> str | None:
        """The context that the store has recorded for this call."""
        if context.stores is None:
            return None
        with contextlib.suppress(ConfigurationError):  # it lists contexts by id alone
            call = self._call_key(context)
            for found in await context.stores.contexts.inner(context.context_id, call=call):
                return str(found)
        return None

    async def _context_id(self, context: ToolContext) -> str:
        """
        The id of the context of this call, the same in each run.

        A context that is deleted and created again numbers its turns from 1 again. The time at
        which its first turn began distinguishes the calls of the two. Nothing changes that time:
        neither a redaction, which changes the time of creation, nor `clear`.
        """
        made = ""
        if context.stores is not None:
            for first in await context.stores.journal.turns(context.context_id, limit=1):
                made = first.started_at.astimezone(UTC).isoformat()
        call = json.dumps([context.idempotency_key, self.name, made])
        digest = hashlib.sha256(call.encode()).hexdigest()[:24]
        return f"{context.context_id[:80]}:{self.name[:20]}:{digest}"

    def _call_key(self, context: ToolContext) -> str:
        """The key of the call within its context, which another id of that does not change."""
        call = context.idempotency_key.removeprefix(f"{context.context_id}/")
        unsaved = context.epoch is None  # an earlier life may have ended without a trace
        said = json.dumps([call, self.name, unsaved])
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    async def _enclose(self, own: Any, context_id: str, context: ToolContext) -> None:
        """
        Let the agent's *own* stores record that its context works for this call.

        Raises:
            Fenced: The turn that makes the call owns its context no more.
            StoreConflict: The call has got another context meanwhile.
        """
        outer = context.stores
        if outer is None or own is None or own.tenant != outer.tenant:
            return
        backend = getattr(own.state, "backend", None)
        beside = backend is not None and backend is getattr(outer.state, "backend", None)
        if not beside and context.epoch is None:
            return
        try:
            made = await own.contexts.enclose(
                context_id,
                outer=context.context_id,
                call=self._call_key(context),
                epoch=context.epoch,
            )
        except Fenced:
            if beside:
                raise
            return  # its stores know no such turn: they are others
        except ConfigurationError:  # stores that keep no links
            return
        if made != context_id:
            raise StoreConflict(f"the call has got the context {made!r} meanwhile: run it again")


class _InnerRun:
    """The work of the agent for one call."""

    def __init__(
        self, tool: AgentTool, agent: InnerAgent, context_id: str, context: ToolContext
    ) -> None:
        self._tool = tool
        self._agent = agent
        self._context_id = context_id
        self._context = context
        self._usage = Usage()
        self._artifacts: list[str] = []

    async def resume(self) -> ToolResult:
        """Like `run`, in a context whose turns have no idempotency keys."""
        pending = self._agent.state.pending
        if not pending and self._agent.state.interrupted_turn is None:
            return await self._said_last()
        inputs = self._answers_to(pending) if pending else None
        return await self.run(None, inputs, self._agent.state.turn_count + 1)

    async def run(
        self, said: str | None, inputs: Mapping[str, Any] | None = None, number: int = 1
    ) -> ToolResult:
        """Run the agent's turns, or watch existing ones, until there is an answer."""
        there_were = self._agent.state.turn_count
        pending = self._agent.state.pending if number > 1 else ()
        last = None
        while True:
            before = answered_for.set(self._context.answered_by)
            try:
                stream = self._agent.execute_turn(
                    said,
                    self._context.auth_context,
                    inputs=inputs,
                    idempotency_key=str(number),
                    metadata={"works_for": self._context.idempotency_key},
                    output_type=self._tool.output_type,
                )
            finally:
                answered_for.reset(before)
            try:
                result, pending = await self._watch(stream)
            except InputExpired as error:
                inputs = self._without(error, pending, inputs)
                continue
            except CannotContinue:  # it broke off after its answer, or before it began
                if any(self._is_late(one) for one in pending):
                    return self._unanswered(pending)
                return self._answer(last, broke_off=True)
            self._count(result, anew=number > there_were)
            said, inputs, last = None, None, result
            if pending and number < there_were and not self._answered(pending):
                # It was answered by an input that is not stored: continue from the turn that
                # followed.
                number, pending = there_were, self._agent.state.pending
                if not pending and self._agent.state.interrupted_turn is None:
                    return await self._said_last()
            if pending:
                inputs = self._answers_to(pending)
            elif result.outcome is Outcome.AUTH_REQUIRED and number > there_were:
                raise NeedsCredentials
            elif number == result.turn and not self._goes_on(result, anew=number > there_were):
                return self._answer(result)
            number += 1

    async def _said_last(self) -> ToolResult:
        """The agent's answer in a turn that can no longer be watched."""
        messages = await self._agent.get_messages()
        all_of_them = [m for m in messages if isinstance(m, AssistantMessage)]
        if not all_of_them:
            return self._answer(None)
        said = all_of_them[-1]
        in_a_type = to_json_text(said.tool_calls[-1].arguments) if said.tool_calls else ""
        details = {"agent": self._tool.name, "context_id": self._context_id}
        return ToolResult(said.text or in_a_type, details)

    def _goes_on(self, result: TurnResult, *, anew: bool) -> bool:
        """True if the next turn has to continue this one, which waits for nothing."""
        if result.outcome in (Outcome.INTERRUPTED, Outcome.AUTH_REQUIRED):
            return True
        # A turn that was stopped before this call ran again was stopped with the outer turn, which
        # now continues. A turn that is stopped now was stopped on purpose: the stop was meant for
        # this agent.
        return result.outcome is Outcome.CANCELLED and not anew

    async def _watch(self, stream: TurnView) -> tuple[TurnResult, Sequence[PendingRequest]]:
        """Watch a turn to its end; return its result and its open requests."""
        pending: Sequence[PendingRequest] = ()
        prefix = f"agent:{self._tool.name}"
        try:
            async for event in stream:
                if isinstance(event, (InputRequired, AuthRequired)) and not event.path:
                    pending = event.pending
                if self._tool.show_events:
                    self._context.show(amended(event, path=(prefix, *event.path)))
            return await stream, pending
        except BaseException:
            stream.cancel()
            with contextlib.suppress(LooopyError):
                await stream
            raise

    def _answered(self, pending: Sequence[PendingRequest]) -> bool:
        return all(request.request_id in self._context.answers for request in pending)

    def _answers_to(self, pending: Sequence[PendingRequest]) -> Mapping[str, Any]:
        """The answers to *pending*; `NeedsInput` if some are missing."""
        answers = self._context.answers
        asked = {request.request_id: request for request in pending}
        if self._answered(pending):
            return {key: answers[key] for key, one in asked.items() if not self._is_late(one)}
        left = [self._ask(one) for key, one in asked.items() if key not in answers]
        raise NeedsInput(left, OF_AN_AGENT)

    def _is_late(self, request: PendingRequest) -> bool:
        """True for an approval that expired unanswered, by the outer turn's answers."""
        said = self._context.answers.get(request.request_id)
        return request.kind is PendingKind.APPROVAL and said == EXPIRED

    def _without(
        self,
        error: InputExpired,
        pending: Sequence[PendingRequest],
        inputs: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """*inputs* without the approval that expired between the user's answer and here."""
        late = {one.request_id for one in pending if one.kind is PendingKind.APPROVAL}
        if error.request_id not in late:
            raise error
        rest = {key: value for key, value in (inputs or {}).items() if key != error.request_id}
        return rest or None

    def _ask(self, request: PendingRequest) -> Ask:
        """*request* of the agent, as a question to the outer turn's user."""
        left = None
        if request.expires_at is not None:
            left = max(_LEAST_S, (request.expires_at - datetime.now(UTC)).total_seconds())
        of_a_call = request.kind in _ASKED_OF_A_CALL
        return Ask(
            request.request_id,
            kind=request.kind,
            prompt=f"{self._tool.label}: {request.prompt}",
            schema=request.schema,
            options=request.options,
            expires_s=left,
            tool_name=request.tool_name if of_a_call else None,
            args=request.args if of_a_call else None,
            auth=request.auth,
        )

    def _count(self, result: TurnResult, *, anew: bool) -> None:
        self._usage += result.usage
        self._artifacts += [one.artifact_id for one in result.artifacts]
        if anew:
            self._context.charge(result.usage)

    def _answer(self, result: TurnResult | None, *, broke_off: bool = False) -> ToolResult:
        """The result of the call."""
        if result is None:
            raise LooopyError(f"the agent {self._tool.name!r} has nothing to continue")
        details = {
            "agent": self._tool.name,
            "context_id": self._context_id,
            "turns": result.turn,
            "outcome": result.outcome.value,
            "stop_reason": result.stop_reason.value,
            "usage": usage_to_json(self._usage),
            "artifacts": list(dict.fromkeys(self._artifacts)),
        }
        wrong = self._wrong(result, broke_off=broke_off)
        if wrong is not None:
            return ToolResult(f"The agent {self._tool.name!r} {wrong}", details, is_error=True)
        if self._tool.output_type is not None:
            return ToolResult(to_json_text(result.output), details)
        text = result.text
        if result.stop_reason is not StopReason.STOP and not broke_off:
            how = "answered at its limit" if result.answered else "was stopped early"
            text = f"[The agent {how}: {result.stop_reason.value}]\n{text}"
        return ToolResult(text, details)

    def _unanswered(self, pending: Sequence[PendingRequest]) -> ToolResult:
        """The result of a call whose agent cannot continue, because its approval expired."""
        names = ", ".join(one.tool_name for one in pending if self._is_late(one))
        text = (
            f"The agent {self._tool.name!r} asked for an approval of {names}, which expired. It was"
            " neither answered nor denied."
        )
        details = {"agent": self._tool.name, "context_id": self._context_id}
        return ToolResult(text, details, is_error=True)

    def _wrong(self, result: TurnResult, *, broke_off: bool) -> str | None:
        """Why there is no answer, or `None` if there is one."""
        if broke_off:
            wants_more = self._tool.output_type is not None
            return None if result.text and not wants_more else "was stopped before it answered."
        if result.outcome is Outcome.FAILED:
            return f"failed: {result.error}"
        if result.outcome is Outcome.CANCELLED:
            return "was stopped before it answered."
        if result.outcome is not Outcome.COMPLETED:
            return f"did not answer: it ended as {result.outcome.value}."
        if self._tool.output_type is not None and not result.answered:
            return f"was stopped early, without an answer: {result.stop_reason.value}."
        return None
