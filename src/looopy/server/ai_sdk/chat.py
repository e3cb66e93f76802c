"""
A chat of the AI SDK in front of an `AgentHost`; no web framework.

`id` is the context. A message's own id is the idempotency key of its turn. So a request that is
repeated shows the turn that it began, and one whose turn died continues that turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from looopy.agent.agent import Agent
from looopy.errors import InputNotFound, ValueRefused
from looopy.server.ai_sdk.parts import Part, Parts, answer_id, blocks_to_parts
from looopy.server.ai_sdk.request import Answer, ChatRequest
from looopy.server.ai_sdk.transcript import Transcript
from looopy.server.call_ids import newest_id
from looopy.server.chains import begun_by, message_of, record_of, root_of
from looopy.server.host import AgentHost
from looopy.stores.bundle import Stores
from looopy.stores.records import TurnRecord
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.message import UserMessage
from looopy.types.state import PendingKind

_PAGE = 500


class Chat:
    """
    The work of the endpoints of the AI SDK.

    Args:
        host: Keeps the agents, and judges who may use them.
    """

    def __init__(self, host: AgentHost) -> None:
        self.host = host

    async def post(
        self, request: ChatRequest, auth: AuthContext | None = None
    ) -> AsyncGenerator[Part, None]:
        """
        Begin or continue a turn. When this returns, its message and answers are stored.

        Returns:
            The parts of the answer. To close the generator does not cancel the turn.

        Raises:
            InputNotFound: An answer is for a request that was never made.
            LooopyError: As `AgentHost.agent` and `Agent.execute_turn` raise.
        """
        create = request.message is not None and request.trigger == "submit-message"
        async with self.host.agent(request.context_id, auth, create=create) as agent:
            if request.message is None:
                return await self._continue(agent, request, auth)
            turn = await _turn_of(self.host.stores_for(auth), request)
            if request.trigger == "regenerate-message":
                if turn is None:
                    path = f"{request.path}/id"
                    raise ValueRefused(f"{path}: the context has no such message", path=path)
                return await self._again(agent, request, auth, turn)
            if turn is None:
                key = _key(request.message_id)
                return await _say(agent, request.message, auth, key, request.inputs)
            return await self._repeat(agent, request, auth, turn)

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
        return self._replay(context_id, auth, record.open_turn)

    async def messages(self, context_id: str, auth: AuthContext | None = None) -> list[Part]:
        """
        The `UIMessage`s of the context, for a page that loads.

        Raises:
            ContextNotFound: There is no such context, or it is somebody else's.
        """
        await self.host.authorise(context_id, auth)
        journal, transcript = self.host.stores_for(auth).journal, Transcript()
        after = 0
        while found := await journal.events(context_id, after=after, limit=_PAGE):
            for event in found:
                transcript.see(event)
                after = event.seq or after
        return transcript.messages()

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
        if others:
            stores = self.host.stores_for(auth)
            await _check_decided(stores, request.context_id, state.turn_count, others)
        turn = agent.execute_turn(None, auth, inputs=inputs or None)
        events = aiter(turn)
        await turn.accepted()
        parts = Parts(request.message_id, known=request.known, asked=request.asked)
        return _shown(events, parts)

    async def _repeat(
        self, agent: Agent, request: ChatRequest, auth: AuthContext | None, turn: int
    ) -> AsyncGenerator[Part, None]:
        """The page sends a message again, or in other words, which edits it."""
        stores = self.host.stores_for(auth)
        said = await _said_in(stores, request.context_id, turn)
        told = request.message
        state = await agent.refresh()
        newest = await record_of(stores, request.context_id, state.turn_count)
        if newest is None or said is None or told is None or not _same(said, told):
            return await self._anew(agent, request, auth, turn, told or UserMessage())
        root = await root_of(stores, request.context_id, newest)
        if root.turn != turn:
            return await self._anew(agent, request, auth, turn, told)
        if state.interrupted_turn == newest.turn:
            running = agent.execute_turn(None, auth)
            events = aiter(running)
            await running.accepted()
            return _shown(events, Parts(answer_id(turn)))
        return self._replay(request.context_id, auth, newest)

    async def _again(
        self, agent: Agent, request: ChatRequest, auth: AuthContext | None, turn: int
    ) -> AsyncGenerator[Part, None]:
        """Answer a message once more: the stored one, not what the page has of it."""
        said = await _said_in(self.host.stores_for(auth), request.context_id, turn)
        told = said or request.message or UserMessage()
        return await self._anew(agent, request, auth, turn, told)

    async def _anew(
        self,
        agent: Agent,
        request: ChatRequest,
        auth: AuthContext | None,
        turn: int,
        message: UserMessage,
    ) -> AsyncGenerator[Part, None]:
        """Go back to before *turn*, and say *message* in its place."""
        await agent.rewind(turn)
        return await _say(agent, message, auth, _key(request.message_id, turn))

    async def _replay(
        self, context_id: str, auth: AuthContext | None, turn: TurnRecord
    ) -> AsyncGenerator[Part, None]:
        """The parts of *turn* and of those that it continues, stored ones and those to come."""
        root = await root_of(self.host.stores_for(auth), context_id, turn)
        parts = Parts(answer_id(root.turn), until=turn.turn)
        async with aclosing(self.host.events(context_id, auth, after=root.start_seq - 1)) as events:
            async for part in _shown(events, parts):
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


async def _shown(events: AsyncIterator[AgentEvent], parts: Parts) -> AsyncGenerator[Part, None]:
    async for event in events:
        for part in parts.see(event):
            yield part
        if parts.ended:
            return


def _key(message_id: str, instead_of: int | None = None) -> str:
    """The idempotency key of the turn that a message began, or of the one in its place."""
    return f"ai-sdk:{message_id}" + ("" if instead_of is None else f"@{instead_of}")


async def _turn_of(stores: Stores, request: ChatRequest) -> int | None:
    """The turn that the last message began, by the page's id of it or by the transcript's."""
    context_id, message_id = request.context_id, request.message_id
    known = await stores.journal.turn_of_key(context_id, _key(message_id))
    turn = known[0] if known is not None else None
    place = message_id.removeprefix("message-")
    if turn is None and place != message_id and place.isdecimal() and len(place) < 16:
        begun = await begun_by(stores, context_id, int(place))
        turn = begun.turn if begun is not None else None
    while turn is not None:  # what took its place, as often as it was edited
        later = await stores.journal.turn_of_key(context_id, _key(message_id, turn))
        if later is None:
            break
        turn = later[0]
    return turn


async def _said_in(stores: Stores, context_id: str, turn: int) -> UserMessage | None:
    record = await record_of(stores, context_id, turn)
    return None if record is None else await message_of(stores, context_id, record)


def _same(said: UserMessage, told: UserMessage) -> bool:
    return blocks_to_parts(said.content) == blocks_to_parts(told.content)


async def _check_decided(
    stores: Stores, context_id: str, newest: int, answers: list[Answer]
) -> None:
    """
    Let answers pass that were given to the newest message before; the page posts them with it.

    Raises:
        InputNotFound: The message has no such request.
    """
    left = {one.request_id: one for one in answers}
    turn = await record_of(stores, context_id, newest)
    if turn is not None:
        after = (await root_of(stores, context_id, turn)).start_seq - 1
        while left and (found := await stores.journal.events(context_id, after=after, limit=_PAGE)):
            for event in found:
                after = event.seq or after
                if isinstance(event, ApprovalDecided):
                    left.pop(event.request_id, None)
    for request_id, answer in left.items():
        raise InputNotFound(
            f"{answer.path}: no request for approval has the id {str(request_id)[:80]!r}",
            request_id=request_id,
        )


__all__ = ["Chat"]
