"""
A call of the tool as a turn: its arguments, its progress, its questions, its result.

A client of the 2026 protocol gets the questions in the result, and calls again with the answers. So
the answers may come after a restart, at another process. An older client is asked in the middle of
the call. A client that cannot ask gets a result that names the person who has to answer.

The protocol has no id for a call that is made again: request ids belong to a connection. So a
client that repeats calls names them, in `_meta`. The answers to questions are known by themselves.
See `looopy.server.protocols.repeats`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mcp.server.context import ServerRequestContext

from looopy.agent.agent import Agent
from looopy.errors import ContextNotFound, IdempotencyConflict, LooopyError, ValueRefused
from looopy.server.codes import code_of
from looopy.server.gate.expiry import while_valid
from looopy.server.host import AgentHost
from looopy.server.problems import Problem
from looopy.server.protocols.chains import last_of, message_of, record_of
from looopy.server.protocols.mcp.forms import answer_in, form_of
from looopy.server.protocols.repeats import Begun, digest
from looopy.server.protocols.text_answers import answer_in as spoken_answer
from looopy.stores.bundle import Stores
from looopy.stores.pages import messages_of
from looopy.stores.rules import check_idempotency_key
from looopy.tools.schema import misfits
from looopy.types.context import AuthContext
from looopy.types.event import (
    AgentEvent,
    HistoryCleared,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from looopy.types.message import AssistantMessage, StopReason, UserMessage
from looopy.types.notices import notice_of
from looopy.types.result import TurnResult
from looopy.types.state import AgentStatus, Outcome, PendingKind, PendingRequest, pending_to_json
from mcp import types

if TYPE_CHECKING:
    from looopy.server.app_context import AppContext

_Context = ServerRequestContext[Any, Any]
ASKS_IN_RESULTS: Final = "2026-07-28"
KEY: Final = "looopy/idempotencyKey"
"""The name in `_meta` of the key of a call."""

_SHOWN_CHARS: Final = 120
_ELICITATION: Final = types.ClientCapabilities(elicitation=types.ElicitationCapability())

INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "prompt": {
            "type": "string",
            "minLength": 1,
            "description": "The message to the agent. Leave it out to continue a conversation"
            " that was interrupted, or that waits for a person.",
        },
        "context_id": {
            "type": "string",
            "description": "The conversation to continue, as an earlier result names it. Leave it"
            " out to begin one.",
        },
    },
    "additionalProperties": False,
}
OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "context_id": {"type": "string", "description": "Continues the conversation."},
        "turn": {"type": "integer"},
        "outcome": {"type": "string", "enum": [outcome.value for outcome in Outcome]},
        "text": {"type": "string"},
        "stop_reason": {
            "type": "string",
            "description": "A limit that ended a completed turn, such as max_iterations.",
        },
        "pending": {"type": "array", "items": {"type": "object"}},
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "path": {"type": "string"},
            },
        },
    },
    "required": ["text"],
}


class Call:
    """
    One call of the tool.

    Args:
        is_closing: True once the client has left: its calls are cancelled then, and turns are not.
        app_context: Limits messages and turns; `None` for a client of this machine.
    """

    def __init__(
        self,
        host: AgentHost,
        context: _Context,
        auth_context: AuthContext | None,
        is_closing: Any,
        app_context: AppContext | None = None,
    ) -> None:
        self._host = host
        self._context = context
        self._auth = auth_context
        self._is_closing = is_closing
        self._app_context = app_context
        self._steps = 0

    async def run(
        self, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run the call; an error of looopy is a result that the model of the client sees."""
        arguments = dict(params.arguments or {})
        context_id = arguments.get("context_id")
        try:
            for path, line in misfits(INPUT_SCHEMA, arguments):
                place = "".join(f"/{part}" for part in path)
                raise ValueRefused(f"{place or '/'}: {line}", path=place)
            prompt = arguments.get("prompt")
            if prompt is not None and self._app_context is not None:
                _check_size(prompt, self._app_context.limits.message_bytes)
            key = _key_of(params)
            if context_id is None:
                context_id = params.request_state or (self._new_name(key) if prompt else None)
            if context_id is None:
                raise ValueRefused("/prompt: pass a message, or a context_id", path="/prompt")
            new = prompt is not None and params.request_state is None
            async with self._host.agent(context_id, self._auth, create=new) as agent:
                return await self._turns(agent, prompt, params, key)
        except LooopyError as error:
            return _refused(context_id, error)

    async def _turns(
        self,
        agent: Agent,
        prompt: str | None,
        params: types.CallToolRequestParams,
        key: str | None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        await self._progress(f"context_id: {agent.context_id}")
        if agent.state.status is not AgentStatus.BUSY:
            await agent.refresh()
        stores = self._host.stores_for(self._auth)
        known = None
        if key is not None:
            known = await stores.journal.turn_of_key(agent.context_id, key)
        if known is not None and (shown := await self._again(agent, *known, prompt)) is not None:
            return shown
        pending = agent.state.pending
        inputs: Mapping[str, Any] = {}
        message = None if prompt is None else UserMessage(prompt)
        if known is not None:  # its process died
            message, key = None, None
        elif params.request_state is not None:  # the call again, with answers
            message, inputs = None, _answers(pending, params.input_responses or {})
            if pending and not inputs:
                return _waiting(agent)
        elif message is not None and (answer := spoken_answer(message, pending)):
            message, inputs = None, answer
        elif message is None and pending:
            asked = await self._ask(agent)
            if not isinstance(asked, Mapping):
                return asked
            inputs = asked
        while True:
            result = await self._turn(agent, message, inputs, key)
            if result.outcome is not Outcome.INPUT_REQUIRED:
                return _result(agent, result)
            asked = await self._ask(agent)
            if not isinstance(asked, Mapping):
                return asked
            message, inputs, key = None, asked, None

    def _new_name(self, key: str | None) -> str:
        """The context of a call that begins one: the same for a call that comes again."""
        if key is None:
            return uuid4().hex
        auth = self._auth
        return digest(None if auth is None else [auth.tenant_id, auth.actor_id], key)

    async def _again(
        self, agent: Agent, number: int, asked_as: str, prompt: str | None
    ) -> types.CallToolResult | types.InputRequiredResult | None:
        """The result of the turn that this call began before; `None` if it has to be continued."""
        stores, name = self._host.stores_for(self._auth), agent.context_id
        first = await record_of(stores, name, number)
        if first is None:
            return None
        begun = Begun(first, await message_of(stores, name, first), asked_as)
        if prompt is not None and not begun.says(UserMessage(prompt)):
            raise IdempotencyConflict(f"/_meta/{KEY.replace('/', '~1')}: it named another prompt")
        turn = await last_of(stores, name, first)
        async with aclosing(self._host.events(name, self._auth, after=turn.start_seq - 1)) as log:
            async for event in log:
                if said := _said(event):
                    await self._progress(said)
                if isinstance(event, TurnEnd | HistoryCleared) and event.turn >= turn.turn:
                    break
        state = await agent.refresh()
        if state.interrupted_turn == turn.turn:
            return None
        if state.turn_count == turn.turn and state.pending:
            asked = await self._ask(agent)
            return _waiting(agent) if isinstance(asked, Mapping) else asked
        return await _stored(stores, name, turn.turn)

    async def _turn(
        self,
        agent: Agent,
        message: UserMessage | None,
        inputs: Mapping[str, Any],
        key: str | None,
    ) -> TurnResult[Any]:
        async with AsyncExitStack() as place:
            if self._app_context is not None and self._auth is not None:
                await place.enter_async_context(
                    self._app_context.turn(self._auth, agent.context_id)
                )
            stream = agent.execute_turn(
                message, self._auth, inputs=inputs or None, idempotency_key=key
            )
            try:
                events = aiter(stream)  # from here on it misses no event
                await stream.accepted()
                await place.aclose()
                async for event in while_valid(events, self._auth):
                    if said := _said(event):
                        await self._progress(said)
                return await stream
            except asyncio.CancelledError:
                if not self._is_closing():
                    stream.cancel()
                raise

    async def _progress(self, said: str) -> None:
        self._steps += 1
        await self._context.session.report_progress(float(self._steps), message=said)

    async def _ask(
        self, agent: Agent
    ) -> Mapping[str, Any] | types.InputRequiredResult | types.CallToolResult:
        """The person's answers; or the result that asks for them, or reports them missing."""
        session = self._context.session
        forms = {one.request_id: (one, form_of(one)) for one in agent.state.pending}
        shown = {name: (one, form) for name, (one, form) in forms.items() if form is not None}
        if not shown or not session.check_client_capability(_ELICITATION):
            return _waiting(agent)
        if self._context.protocol_version >= ASKS_IN_RESULTS:
            return types.InputRequiredResult(
                input_requests={name: form for name, (_, form) in shown.items()},
                request_state=agent.context_id,
            )
        inputs: dict[str, Any] = {}
        for request, form in shown.values():
            params = form.params
            if not isinstance(params, types.ElicitRequestFormParams):
                continue
            answer = await session.elicit_form(
                params.message, params.requested_schema, self._context.request_id
            )
            inputs.update(answer_in(request, answer))
        return inputs or _waiting(agent)


def _check_size(prompt: str, most: int) -> None:
    if len(prompt.encode()) > most:
        text = f"/prompt: the message has more than {most:,} bytes"
        raise Problem(text, code="too_large", path="/prompt")


def _answers(
    pending: Sequence[PendingRequest], given: Mapping[str, types.InputResponse]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for request in pending:
        answer = given.get(request.request_id)
        if isinstance(answer, types.ElicitResult):
            found.update(answer_in(request, answer))
    return found


def _said(event: AgentEvent) -> str | None:
    """A step of the turn in a line; of deltas, nothing."""
    match event:
        case TurnStart():
            return f"turn {event.turn}"
        case ToolExecutionStart():
            args = json.dumps(dict(event.args), ensure_ascii=False, default=str)
            return _short(f"{event.tool_name} {args}")
        case ToolExecutionUpdate(progress=float(done)):
            return f"{event.tool_name} {done:.0%}"
        case ToolExecutionUpdate():
            return _short(f"{event.tool_name} {event.partial_result}")
        case _:
            return None if event.path else notice_of(event)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _key_of(params: types.CallToolRequestParams) -> str | None:
    """The key of a call; `None` if it has none, and answers nothing."""
    if params.request_state is not None:
        given = params.input_responses or {}
        told = {name: _decision(one) for name, one in given.items()}
        return f"mcp-answers:{digest(told)}" if told else None
    meta: Mapping[str, Any] = dict(params.meta or {})
    key = meta.get(KEY)
    if key is not None:
        check_idempotency_key(key)
    return key


def _decision(response: types.InputResponse) -> Any:
    """The decision in an answer; the digest of another answer could reveal a credential."""
    if not isinstance(response, types.ElicitResult):
        return None
    return [response.action, (response.content or {}).get("approve")]


async def _stored(stores: Stores, context_id: str, number: int) -> types.CallToolResult:
    """The result of a turn that is over, as the store has it."""
    turn = await record_of(stores, context_id, number)
    if turn is None or turn.outcome is None:
        raise ContextNotFound("the context was deleted")
    text = ""
    async for one in messages_of(stores, context_id, turn.first_position - 1, include_hidden=True):
        if one.position > turn.last_position:
            break
        if isinstance(one.message, AssistantMessage):
            text = one.message.text
    said: dict[str, Any] = {"context_id": context_id, "turn": number}
    said |= {"outcome": turn.outcome.value, "text": text}
    if turn.outcome is Outcome.COMPLETED:
        return _made(text, said | _limit(turn.stop_reason), failed=False)
    why = turn.stop_reason.value if turn.stop_reason else turn.outcome.value
    said["error"] = {"code": why, "message": why}
    return _made(f"The turn ended as {turn.outcome.value}", said, failed=True)


def _result(agent: Agent, result: TurnResult[Any]) -> types.CallToolResult:
    if result.outcome is Outcome.AUTH_REQUIRED:
        return _waiting(agent)
    said: dict[str, Any] = {"context_id": agent.context_id, "turn": result.turn}
    said |= {"outcome": result.outcome.value, "text": result.text}
    text = result.text
    if result.outcome is Outcome.COMPLETED:
        said |= _limit(result.stop_reason)
    if result.outcome is not Outcome.COMPLETED:
        why = str(result.error) if result.error else result.stop_reason.value
        text = f"The turn ended as {result.outcome.value}: {why}"
        said["error"] = {"code": result.stop_reason.value, "message": why}
    return _made(text, said, failed=result.outcome is not Outcome.COMPLETED)


def _limit(reason: StopReason | None) -> dict[str, str]:
    """The limit that ended a completed turn, if one did."""
    return {} if reason in (None, StopReason.STOP) else {"stop_reason": reason.value}


def _waiting(agent: Agent) -> types.CallToolResult:
    """The result of a turn that waits for a person whom this client cannot ask."""
    state = agent.state
    lacks = not state.pending and state.waits_for is None
    auth = lacks or any(one.kind is PendingKind.AUTH for one in state.pending)
    outcome = Outcome.AUTH_REQUIRED if auth else Outcome.INPUT_REQUIRED
    lines = [f"- {one.prompt or one.tool_name} ({one.kind.value})" for one in state.pending]
    text = "\n".join(["The agent waits for a person, who has not answered:", *lines])
    if state.waits_for is not None:
        text = f"The turn waits: {state.waits_for}\nThen call again without a prompt."
    elif len(state.pending) == 1 and state.pending[0].kind is PendingKind.INPUT:
        text += "\nCall again with the answer as the prompt."
    else:
        text += "\nAnswer elsewhere, then call again without a prompt; a prompt cancels it."
    said = {"context_id": agent.context_id, "turn": state.turn_count, "outcome": outcome.value}
    pending = [pending_to_json(one) for one in state.pending]
    return _made(text, {**said, "text": text, "pending": pending}, failed=False)


def _refused(context_id: str | None, error: LooopyError) -> types.CallToolResult:
    code = error.code if isinstance(error, Problem) else code_of(type(error))
    about: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(path := getattr(error, "path", None), str):
        about["path"] = path
    said: dict[str, Any] = {"text": str(error), "error": about}
    if context_id is not None:
        said["context_id"] = context_id
    return _made(str(error), said, failed=True)


def _made(text: str, said: dict[str, Any], *, failed: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    if "context_id" in said:  # many clients show the model no structured content
        note = f"[context_id: {said['context_id']}]"
        content.append(types.TextContent(type="text", text=note))
    return types.CallToolResult(content=content, structured_content=said, is_error=failed)
