"""
A chat of the AI SDK in front of an `AgentHost`; no web framework.

`id` is the context. A message's own id is the key of its turn, and the answers of a person are the
key of the turn that they continue; `looopy.server.protocols.repeats` has the rule for repetitions.
`useChat` sends `regenerate-message` to have a message answered again. It names the message that it
edits in `messageId`, which a repeated POST of a message does not have.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from looopy.agent.agent import Agent
from looopy.agent.decisions import already_answered
from looopy.errors import ContextNotFound, InputNotFound, ValueRefused
from looopy.server.gate.limits import Limits
from looopy.server.host import AgentHost
from looopy.server.protocols.ai_sdk.parts import RESULTS, Part, Parts, answer_id, response_part
from looopy.server.protocols.ai_sdk.request import Answer, ChatRequest
from looopy.server.protocols.ai_sdk.transcript import Transcript
from looopy.server.protocols.call_ids import newest_id
from looopy.server.protocols.chains import (
    last_of,
    newest_part,
    newest_with_root,
    record_of,
    root_of,
)
from looopy.server.protocols.repeats import (
    Begun,
    begun_with,
    check_again,
    decided,
    digest,
    effect_of,
    is_rewound,
    replacing,
)
from looopy.stores.bundle import Stores
from looopy.stores.pages import events_of
from looopy.stores.records import TurnRecord
from looopy.types.approval import Approve, decision_of
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.message import UserMessage
from looopy.types.state import Outcome, PendingKind


class Chat:
    """
    The work of the endpoints of the AI SDK.

    Args:
        host: Keeps the agents, and judges who may use them.
        page_bytes: How long a page of messages may be, as JSON.
    """

    def __init__(self, host: AgentHost, page_bytes: int = Limits().page_bytes) -> None:
        self.host = host
        self._page_bytes = page_bytes

    async def post(
        self, request: ChatRequest, auth: AuthContext | None = None
    ) -> AsyncGenerator[Part, None]:
        """
        Begin or continue a turn. When this returns, its message and answers are stored.

        Decisions about calls in another person's chat are stored, if the host lets the caller
        decide them, and the answer confirms them and shows nothing else.

        Returns:
            The parts of the answer. To close the generator does not cancel the turn.

        Raises:
            InputNotFound: An answer is for a request that was never made; `AlreadyAnswered` if it
                was decided otherwise.
            LooopyError: Same as `AgentHost.agent` and `Agent.execute_turn`.
        """
        try:
            return await self._post(request, auth)
        except ContextNotFound:
            if not request.decisions:
                raise
            made = await self.host.decide_all(request.context_id, request.decisions, auth)
            return _decisions(request, made)

    async def _post(
        self, request: ChatRequest, auth: AuthContext | None
    ) -> AsyncGenerator[Part, None]:
        create = request.message is not None and request.trigger == "submit-message"
        async with self.host.agent(request.context_id, auth, create=create) as agent:
            if request.message is None:
                return await self._continue(agent, request, auth)
            stores, key = self.host.stores_for(auth), _key(request)
            begun = await begun_with(stores, request.context_id, key, request.message_id)
            if begun:
                return await self._repeat(agent, request, auth, begun)
            if request.trigger == "regenerate-message":
                path = f"{request.path}/id"
                raise ValueRefused(f"{path}: the context has no such message", path=path)
            return await _say(agent, request.message, auth, key, request.inputs)

    async def resume(
        self, context_id: str, auth: AuthContext | None = None
    ) -> AsyncGenerator[Part, None] | None:
        """
        The whole answer that is being written, from its beginning; `None` if no turn runs.

        Raises:
            ContextNotFound: There is no such context, or it is somebody else's.
        """
        record = await self.host.current(context_id, auth)
        if record.open_turn is None:
            return None
        stores = self.host.stores_for(auth)
        return self._replay(context_id, auth, await root_of(stores, context_id, record.open_turn))

    async def messages(
        self, context_id: str, auth: AuthContext | None = None, *, before: int | None = None
    ) -> tuple[list[Part], int | None]:
        """
        The newest `UIMessage`s of the context, for a page that loads.

        Args:
            before: Those before this turn.

        Returns:
            The messages, of about `page_bytes` bytes, and the turn before which there are more.

        Raises:
            ContextNotFound: There is no such context, or it is somebody else's.
        """
        await self.host.authorise(context_id, auth)
        stores, transcript = self.host.stores_for(auth), Transcript()
        first = await newest_part(stores, context_id, self._page_bytes, before)
        end = None if before is None else await record_of(stores, context_id, before)
        after = 0 if first is None else first.start_seq - 1
        upto = None if end is None else end.end_seq  # results of calls that were open before it
        async for event in events_of(stores, context_id, after, upto):
            transcript.see(event)
        below = None if end is None else end.first_position
        return transcript.messages(below), None if first is None else first.turn

    async def stop(self, context_id: str, auth: AuthContext | None = None) -> None:
        """
        Cancel the turn that runs, in any process; without one, do nothing.

        Raises:
            ContextNotFound: There is no such context, or it is somebody else's.
        """
        async with self.host.agent(context_id, auth, create=False) as agent:
            await agent.cancel()

    async def _continue(
        self, agent: Agent, request: ChatRequest, auth: AuthContext | None
    ) -> AsyncGenerator[Part, None]:
        """Answer what waits, or continue a turn that was interrupted."""
        state = await agent.refresh()
        waiting = {one.request_id: one for one in state.pending}
        own = (PendingKind.CLIENT_TOOL, PendingKind.INPUT)
        by_call = {
            newest_id(one.tool_call_id, request.known): one.request_id
            for one in state.pending
            if one.kind in own
        }
        inputs, others = dict(request.inputs), []
        for answer in request.answers:
            if answer.request_id is None:
                if (found := by_call.get(answer.call_id)) is not None:
                    inputs.setdefault(found, answer.value)
            elif answer.request_id in waiting:
                inputs.setdefault(answer.request_id, answer.value)
            else:
                others.append(answer)
        stores, context_id = self.host.stores_for(auth), request.context_id
        known = await stores.journal.turn_of_key(context_id, _answers_key(request))
        if others and known is None:
            await _check_decided(stores, context_id, state.turn_count, others)
        turn = None if known is None else known[0]
        return await self._answered(agent, request, auth, inputs, turn)

    async def _answered(
        self,
        agent: Agent,
        request: ChatRequest,
        auth: AuthContext | None,
        inputs: Mapping[str, Any],
        known: int | None,
    ) -> AsyncGenerator[Part, None]:
        """Continue the turn of the page's last message, unless this request did so: in *known*."""
        stores, context_id, state = self.host.stores_for(auth), request.context_id, agent.state
        newest, root = await newest_with_root(stores, context_id, state.turn_count)
        own = newest if root is not None and request.message_id == answer_id(root.turn) else None
        begun = None if known is None else await record_of(stores, context_id, known)
        if begun is None and own is not None and own.continues is not None:
            begun = None if inputs or state.pending or state.needs_auth else own
        missed = await self._missed(request, auth, root if own is not None else None)
        parts = Parts(request.message_id, known=request.known, asked=request.asked)
        if begun is not None and (own is None or state.interrupted_turn != own.turn):
            return self._replay(context_id, auth, begun, parts, missed)
        key = _answers_key(request) if inputs and known is None else None
        turn = agent.execute_turn(None, auth, inputs=inputs or None, idempotency_key=key)
        events = aiter(turn)
        await turn.accepted()
        return _shown(events, parts, missed)

    async def _missed(
        self, request: ChatRequest, auth: AuthContext | None, root: TurnRecord | None
    ) -> list[Part]:
        """The stored results of calls of which the page has seen none: it was cut off."""
        if root is None or not request.open:
            return []
        stores, context_id = self.host.stores_for(auth), request.context_id
        parts = Parts(request.message_id)
        missed: list[Part] = []
        async for event in events_of(stores, context_id, root.start_seq - 1):
            seen = [part for part in parts.see(event) if part["type"] in RESULTS]
            missed += [part for part in seen if part["toolCallId"] in request.open]
        return missed

    async def _repeat(
        self, agent: Agent, request: ChatRequest, auth: AuthContext | None, begun: list[Begun]
    ) -> AsyncGenerator[Part, None]:
        """The page repeats a message, edits it, or asks for another answer to it."""
        stores, context_id = self.host.stores_for(auth), request.context_id
        state, last = await agent.refresh(), begun[-1]
        newest, root = await newest_with_root(stores, context_id, state.turn_count)
        own = newest if root is not None and root.turn == last.turn.turn else None
        died = own is not None and state.interrupted_turn == own.turn
        message = request.message or UserMessage()
        same = [one for one in begun if one.says(message, request.inputs)]
        shown = same[-1] if same else None
        path, force = request.path, "pass force: true in the body"
        if request.trigger == "regenerate-message":
            message, same, path = last.message or message, begun, "/trigger"
            runs = own is not None and own.outcome is None
            replaced = [answer_id(one.turn.turn) for one in begun[:-1]]
            shown = last if runs or request.named in replaced else None
            if shown is None and own is not None and (died or state.error) and not request.force:
                died = await effect_of(stores, context_id, [last.turn]) is not None
                shown = last if died else None
        elif request.named == request.message_id and own is None and shown is not None:
            # It edits, and changes nothing; or it came twice, and the first took the place.
            shown = last if shown is last and len(begun) > 1 else None
        if shown is None:
            if not request.force:
                await check_again(stores, context_id, same, path=path, force=force)
            if not await is_rewound(stores, context_id, last.turn):
                await agent.rewind(last.turn.turn)
            return await _say(agent, message, auth, replacing(_key(request), last.turn.turn))
        if shown is last and died:
            await agent.execute_turn(None, auth).accepted()
        return self._replay(context_id, auth, shown.turn)

    async def _replay(
        self,
        context_id: str,
        auth: AuthContext | None,
        turn: TurnRecord,
        parts: Parts | None = None,
        missed: Sequence[Part] = (),
    ) -> AsyncGenerator[Part, None]:
        """The parts of *turn* and of turns that continue it, stored ones and ones to come."""
        last = await last_of(self.host.stores_for(auth), context_id, turn)
        parts = parts or Parts(answer_id(turn.turn))
        parts.until = last.turn
        async with aclosing(self.host.events(context_id, auth, after=turn.start_seq - 1)) as events:
            async for part in _shown(events, parts, missed):
                yield part


async def _say(
    agent: Agent,
    message: UserMessage,
    auth: AuthContext | None,
    key: str,
    inputs: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Part, None]:
    turn = agent.execute_turn(message, auth, inputs=inputs or None, idempotency_key=key)
    events = aiter(turn)
    await turn.accepted()
    return _shown(events, Parts())


async def _decisions(
    request: ChatRequest, made: Sequence[ApprovalDecided]
) -> AsyncGenerator[Part, None]:
    """The answer to a person who has decided calls in another person's chat."""
    yield {"type": "start", "messageId": request.message_id}
    for event in made:
        if event.request_id in request.asked:
            yield response_part(event)
    # A page that sends a message once all in its last step is decided would send it again.
    yield {"type": "start-step"}
    yield {"type": "finish-step"}
    about = {"outcome": Outcome.AUTH_REQUIRED.value}  # the call waits for its owner
    yield {"type": "finish", "finishReason": "tool-calls", "messageMetadata": about}


async def _shown(
    events: AsyncIterator[AgentEvent], parts: Parts, missed: Sequence[Part] = ()
) -> AsyncGenerator[Part, None]:
    """The parts of *events*, to the end of the answer; *missed* come when it has begun."""
    async for event in events:
        for part in parts.see(event):
            yield part
            if part["type"] == "start":
                for one in missed:
                    yield one
        if parts.ended:
            return


def _key(request: ChatRequest) -> str:
    """The key of the turn that a message began."""
    return f"ai-sdk:{request.message_id}"


def _answers_key(request: ChatRequest) -> str:
    """The key of the turn that the answers in an assistant's message continued."""
    told = {one.request_id or one.call_id: one.value for one in request.answers}
    return f"ai-sdk-answers:{digest(request.message_id, decided(told), decided(request.inputs))}"


async def _check_decided(
    stores: Stores, context_id: str, newest: int, answers: list[Answer]
) -> None:
    """
    Let answers pass that were given to the newest message before; the page posts them with it.

    Raises:
        AlreadyAnswered: A request was decided otherwise.
        InputNotFound: The message has no such request.
    """
    left = {one.request_id: one for one in answers}
    turn = await record_of(stores, context_id, newest)
    if turn is not None:
        after = (await root_of(stores, context_id, turn)).start_seq - 1
        async for event in events_of(stores, context_id, after):
            if isinstance(event, ApprovalDecided) and event.request_id in left:
                approves = isinstance(decision_of(left.pop(event.request_id).value), Approve)
                if approves != (event.decision == "approved"):
                    raise already_answered(event)
    for request_id, answer in left.items():
        raise InputNotFound(
            f"{answer.path}: no request for approval has the id {str(request_id)[:80]!r}",
            request_id=request_id,
        )


__all__ = ["Chat"]
