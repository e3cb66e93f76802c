"""
The routes of the Responses API: create, retrieve, stream again, cancel, delete; and the models.

A conversation is a context, and a response is one turn of it. `previous_response_id` continues the
conversation after that response: if others came after it, in a fork of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from looopy.agent.agent import Agent
from looopy.agent.decisions import made_before
from looopy.agent.hosted import port_of
from looopy.agent.stream import TurnStream
from looopy.errors import (
    AlreadyAnswered,
    ConfigurationError,
    ContextNotFound,
    LooopyError,
    ValueRefused,
)
from looopy.server.app_context import AppContext
from looopy.server.gate.expiry import while_valid
from looopy.server.problems import Problem, problem_of
from looopy.server.protocols.chains import message_of, record_of
from looopy.server.protocols.responses.attempts import Attempt, Delivered, continued
from looopy.server.protocols.responses.conversations import (
    Conversations,
    input_item,
    number_of,
    page_of,
)
from looopy.server.protocols.responses.items import (
    Json,
    ResponseBuilder,
    place_of,
    response_id,
    rest_of,
)
from looopy.server.protocols.responses.request import BRINGS, FACE, Asked, read
from looopy.server.sse import EventStream, frame
from looopy.stores.bundle import Stores
from looopy.stores.pages import events_of
from looopy.stores.records import TurnRecord
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, TurnEnd, TurnStart
from looopy.types.message import StopReason
from looopy.types.result import FINAL_ANSWER
from looopy.types.state import Outcome
from looopy.types.storable import MAX_INT

_CANCELLED_WITHIN_S: Final = 10.0
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def responses_api(
    app_context: AppContext, *, model: str = "looopy", allow: Collection[str] = ()
) -> Sequence[BaseRoute]:
    """
    The routes of OpenAI's Responses API, for `create_app(protocols=[responses_api])`.

    Args:
        model: The name by which clients address the agent: `client.responses.create(model=...)`.
        allow: What a client may bring for a turn: `"instructions"`, `"tools"` or both. They are in
            `TurnContext.metadata["responses"]`, where a prompt function of the agent and its
            `PageTools` find them. By default they are refused.

    Raises:
        ConfigurationError: *allow* has another name.
    """
    if unknown := set(allow) - set(BRINGS):
        raise ConfigurationError(f"allow takes {' and '.join(BRINGS)}, not {min(unknown)!r}")
    endpoints, conversations = (
        _Endpoints(app_context, model, allow),
        Conversations(app_context, model),
    )
    one, whole = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
    return [
        Route("/v1/responses", _answered(endpoints.create), methods=["POST"]),
        Route(one, _answered(endpoints.retrieve), methods=["GET"]),
        Route(one, _answered(endpoints.delete), methods=["DELETE"]),
        Route(f"{one}/input_items", _answered(endpoints.input_items), methods=["GET"]),
        Route(f"{one}/cancel", _answered(endpoints.cancel), methods=["POST"]),
        Route("/v1/conversations", _answered(conversations.begin), methods=["POST"]),
        Route(whole, _answered(conversations.retrieve), methods=["GET"]),
        Route(whole, _answered(conversations.erase), methods=["DELETE"]),
        Route(f"{whole}/items", _answered(conversations.items), methods=["GET"]),
        Route("/v1/models", _answered(endpoints.models), methods=["GET"]),
        Route("/v1/models/{model:path}", _answered(endpoints.one_model), methods=["GET"]),
    ]


class _Endpoints:
    def __init__(self, app_context: AppContext, model: str, allow: Collection[str]) -> None:
        self._app_context = app_context
        self._model = model
        self._allow = allow
        self._delivered = Delivered()

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        await self._app_context.identify(request)
        return JSONResponse({"object": "list", "data": [self._as_model()]})

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        await self._app_context.identify(request)
        self._check_model(request.path_params["model"])
        return JSONResponse(self._as_model())

    def _as_model(self) -> Json:
        return {"id": self._model, "object": "model", "created": 0, "owned_by": "looopy"}

    def _check_model(self, name: str) -> None:
        if name != self._model:
            raise Problem(
                f"the model {name!r} does not exist; this server has {self._model!r}",
                status=404,
                code="model_not_found",
                path="/model",
            )

    async def create(self, request: Request) -> Response:
        """POST /v1/responses."""
        auth = await self._app_context.identify(request)
        body = await self._app_context.read_json(request)
        asked = read(body, allowed=self._allow)
        self._app_context.check_size(asked.message, "/input")
        self._check_model(asked.model)
        attempt = Attempt(request, body, asked, auth)
        earlier = await attempt.earlier(self._app_context.host, auth, self._delivered)
        if earlier is not None:
            builder, events = await self._again(asked, auth, *earlier)
            return await self._answer(request, asked, auth, builder, events)
        try:
            return await self._created(request, asked, auth, attempt)
        except ContextNotFound:
            if asked.context_id is None or not asked.decisions:
                raise
            builder, events = await self._decided(asked.context_id, asked, auth)
        except AlreadyAnswered:
            made = await self._made_before(asked, auth)
            if made is None:
                raise
            builder, events = await self._again(asked, auth, *made)
        return await self._answer(request, asked, auth, builder, events)

    async def _decided(
        self, context_id: str, asked: Asked, auth: AuthContext
    ) -> tuple[ResponseBuilder, AsyncGenerator[AgentEvent, None]]:
        """The response to decisions in another person's conversation, without its contents."""
        admission = self._app_context.turn(auth, context_id)
        made = await self._app_context.host.decide_all(
            context_id, asked.decisions, auth, admission=admission
        )
        turn, when = made[-1].turn, made[-1].timestamp
        about: dict[str, Any] = {"context_id": context_id, "turn": turn, "timestamp": when}
        metadata = {**asked.metadata, FACE: {"background": asked.background}}
        return self._builder(context_id, turn, metadata), _events(
            TurnStart(**about),
            TurnEnd(**about, outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP),
        )

    async def _made_before(self, asked: Asked, auth: AuthContext) -> tuple[str, TurnRecord] | None:
        """The context and the turn in which the caller has given the decisions of *asked*."""
        if asked.context_id is None or not asked.decisions:
            return None
        stores, name = self._app_context.host.stores_for(auth), asked.context_id
        made = await made_before(stores.journal, name, asked.decisions, auth.actor_id)
        return None if made is None else (name, await self._turn(stores, name, made[-1].turn))

    async def _created(
        self, request: Request, asked: Asked, auth: AuthContext, attempt: Attempt
    ) -> Response:
        """The response of a new turn."""
        context_id, fork_behind = await self._context_of(asked, auth, attempt)
        async with AsyncExitStack() as held:
            async with self._app_context.turn(auth, context_id, attempt.key):
                if fork_behind is not None:
                    await self._fork(asked, auth, context_id, fork_behind)
                create = asked.after_turn is None and asked.message is not None
                agent = await held.enter_async_context(
                    self._app_context.host.agent(context_id, auth, create=create)
                )
                await _check_choice(agent, asked)
                turn = self._begin(agent, asked, auth, attempt)
                view = aiter(turn)  # from here on it misses no delta
                number = await turn.accepted()
                builder = self._builder(context_id, number, attempt.metadata)
            events = self._watched(context_id, auth, view)
            return await self._answer(request, asked, auth, builder, events)

    async def _answer(
        self,
        request: Request,
        asked: Asked,
        auth: AuthContext,
        builder: ResponseBuilder,
        events: AsyncGenerator[AgentEvent, None],
    ) -> Response:
        """The response, once it is there; in the background at once; or its stream."""
        tenant = self._app_context.host.stores_for(auth).tenant

        def delivered() -> None:
            self._delivered.add(tenant, builder.context_id, builder.turn)

        if asked.stream:
            return self._streamed(builder, events, auth, delivered)
        async with aclosing(events):
            if not asked.background:
                async for event in events:
                    builder.take(event)
                    if builder.done:
                        break
        if not await request.is_disconnected():
            delivered()
        return JSONResponse(builder.response())

    def _builder(self, context_id: str, turn: int, metadata: Mapping[str, Any]) -> ResponseBuilder:
        """The builder of the response of a turn with this *metadata*."""
        own = metadata.get(FACE)
        return ResponseBuilder(
            context_id,
            turn,
            model=self._model,
            metadata={key: one for key, one in metadata.items() if isinstance(one, str)},
            background=isinstance(own, Mapping) and own.get("background") is True,
        )

    async def _again(
        self, asked: Asked, auth: AuthContext, context_id: str, turn: TurnRecord
    ) -> tuple[ResponseBuilder, AsyncGenerator[AgentEvent, None]]:
        """The turn that an earlier attempt began, continued if its process died."""
        stores = self._app_context.host.stores_for(auth)
        async with self._app_context.host.agent(context_id, auth, create=False) as agent:
            state = await agent.refresh()
            turn = await continued(stores, context_id, turn)
            if state.interrupted_turn == turn.turn:
                async with self._app_context.turn(auth, context_id):
                    again = agent.execute_turn(None, auth, options=asked.options)
                    turn = await self._turn(stores, context_id, await again.accepted())
        builder = self._builder(context_id, turn.turn, turn.metadata)
        if turn.end_seq is not None:
            return builder, events_of(stores, context_id, turn.start_seq - 1, turn.end_seq)
        return builder, self._app_context.host.events(context_id, auth, after=turn.start_seq - 1)

    async def _watched(
        self, context_id: str, auth: AuthContext, view: AsyncIterator[AgentEvent]
    ) -> AsyncGenerator[AgentEvent, None]:
        async with self._app_context.host.agent(
            context_id, auth
        ):  # keeps it while there is a reader
            async for event in view:
                yield event

    def _begin(
        self, agent: Agent, asked: Asked, auth: AuthContext, attempt: Attempt
    ) -> TurnStream[Any]:
        return agent.execute_turn(
            asked.message,
            auth,
            inputs=asked.inputs or None,
            idempotency_key=attempt.key,
            metadata=attempt.metadata,
            output_type=asked.output_type,
            options=asked.options,
        )

    async def _context_of(
        self, asked: Asked, auth: AuthContext, attempt: Attempt
    ) -> tuple[str, TurnRecord | None]:
        """The context of the new turn; if it is a new fork, the turn after which it forks."""
        if asked.context_id is None:
            return attempt.name(), None
        if asked.after_turn is None:
            return asked.context_id, None
        host = self._app_context.host
        record = await host.authorise(asked.context_id, auth)
        count = record.turn_count if record is not None else 0
        if asked.after_turn == count or asked.inputs:  # a fork has no requests to answer
            return asked.context_id, None
        stores, name = host.stores_for(auth), attempt.name()
        if await stores.state.load(name) is not None:  # an earlier attempt made it, and no more
            return name, None
        return name, await self._turn(stores, asked.context_id, asked.after_turn)

    async def _fork(self, asked: Asked, auth: AuthContext, name: str, behind: TurnRecord) -> None:
        async with self._app_context.host.agent(str(asked.context_id), auth, create=False) as agent:
            await _check_choice(agent, asked)
            await agent.fork(name, at=behind.last_position)

    async def retrieve(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}."""
        auth = await self._app_context.identify(request)
        stores, context_id, turn = await self._found(request, auth)
        builder = self._builder(context_id, turn.turn, turn.metadata)
        again = request.query_params.get("stream", "false").lower()
        if again not in ("true", "false"):
            raise Problem("stream is true or false", path="/stream")
        after = number_of(request, "starting_after", -1, MAX_INT)
        if again == "true":
            events = self._app_context.host.events(context_id, auth, after=turn.start_seq - 1)
            return self._streamed(builder, events, auth, after=after)
        await _replay(stores, builder, context_id, turn)
        return JSONResponse(builder.response())

    async def cancel(self, request: Request) -> Response:
        """POST /v1/responses/{response_id}/cancel."""
        auth = await self._app_context.identify(request)
        stores, context_id, turn = await self._found(request, auth)
        if turn.outcome is None:
            async with self._app_context.host.agent(context_id, auth, create=False) as agent:
                await agent.cancel()
            builder = self._builder(context_id, turn.turn, turn.metadata)
            await self._to_the_end(builder, context_id, auth, turn.start_seq - 1)
        builder = self._builder(context_id, turn.turn, turn.metadata)
        await _replay(stores, builder, context_id, turn)
        return JSONResponse(builder.response())

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/responses/{response_id}: erases its conversation, if it is all of it."""
        auth = await self._app_context.identify(request)
        _, context_id, turn = await self._found(request, auth)
        record = await self._app_context.host.authorise(context_id, auth)
        if record is not None and record.turn_count > 1:
            raise Problem(
                "this response belongs to a conversation with others, which need it: delete the"
                f" conversation {context_id}",
                status=409,
                code="response_in_conversation",
            )
        await self._app_context.erase(context_id, auth)
        name = response_id(context_id, turn.turn)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}/input_items: the message and answers that began it."""
        auth = await self._app_context.identify(request)
        stores, context_id, turn = await self._found(request, auth)
        message = await message_of(stores, context_id, turn)
        items = [] if message is None else [input_item(message, context_id, turn.turn)]
        return JSONResponse(page_of(items, more=False))

    async def _to_the_end(
        self, builder: ResponseBuilder, context_id: str, auth: AuthContext, after: int
    ) -> None:
        """Wait until the turn has ended, but not for ever: a tool may hold it."""
        events = self._app_context.host.events(context_id, auth, after=after)
        try:
            async with asyncio.timeout(_CANCELLED_WITHIN_S), aclosing(events):
                async for event in events:
                    builder.take(event)
                    if builder.done:
                        return
        except TimeoutError:
            return

    async def _found(self, request: Request, auth: AuthContext) -> tuple[Stores, str, TurnRecord]:
        """
        The turn that the path names.

        Raises:
            Problem: 404; the caller has no such response.
        """
        place = place_of(request.path_params["response_id"])
        if place is None:
            raise _no_response()
        context_id, number = place
        await self._app_context.host.current(
            context_id, auth
        )  # a dead process leaves none in progress
        stores = self._app_context.host.stores_for(auth)
        return stores, context_id, await self._turn(stores, context_id, number)

    async def _turn(self, stores: Stores, context_id: str, number: int) -> TurnRecord:
        found = await record_of(stores, context_id, number)
        if found is None:
            raise _no_response()
        return found

    def _streamed(
        self,
        builder: ResponseBuilder,
        events: AsyncGenerator[AgentEvent, None],
        auth: AuthContext,
        delivered: Callable[[], None] = lambda: None,
        *,
        after: int = -1,
    ) -> Response:
        async def frames() -> AsyncGenerator[bytes, None]:
            try:
                async with aclosing(while_valid(events, auth)) as valid:
                    async for event in valid:
                        for made in builder.take(event):
                            if (one := rest_of(made, after)) is not None:
                                yield frame(one["type"], one)
                        if builder.done:
                            delivered()
                            return
            except LooopyError as error:
                one = builder.failed(problem_of(error).message)
                yield frame(one["type"], one)

        return EventStream(self._app_context, auth, frames())


async def _events(*events: AgentEvent) -> AsyncGenerator[AgentEvent, None]:
    for event in events:
        yield event


async def _check_choice(agent: Agent, asked: Asked) -> None:
    """
    Refuse a `tool_choice` of a tool that there is not, before the turn.

    Raises:
        ValueRefused: There is no such tool.
    """
    choice = None if asked.options is None else asked.options.tool_choice
    if choice in (None, "auto", "none", "required", "any"):
        return
    tools = await port_of(agent).enabled_tools()
    if choice not in tools and not (choice == FINAL_ANSWER and asked.output_type is not None):
        known = ", ".join(sorted(tools)) or "there are none"
        text = f"tool_choice names {choice!r}, which is not a tool of this agent: {known}"
        raise ValueRefused(text, path="/tool_choice")


async def _replay(
    stores: Stores, builder: ResponseBuilder, context_id: str, turn: TurnRecord
) -> None:
    """Build the response of *turn* from the log, as far as it has come."""
    async for event in events_of(stores, context_id, turn.start_seq - 1, turn.end_seq):
        builder.take(event)
        if builder.done:
            return


def _no_response() -> Problem:
    return Problem("no such response", status=404, code="response_not_found")


def _answered(handler: Handler) -> Handler:
    """*handler*, with errors in the form of the API."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except LooopyError as error:
            problem = problem_of(error)
            kind = _TYPES.get(problem.status) or (
                "invalid_request_error" if problem.status < 500 else "server_error"
            )
            said = {
                "message": problem.message,
                "type": kind,
                "param": None if problem.path is None else _param(problem.path),
                "code": problem.code,
            }
            return JSONResponse({"error": said}, problem.status, headers=dict(problem.headers))

    return answer


def _param(path: str) -> str | None:
    """A JSON pointer as the API writes a place: `input[0].role`."""
    if path == "/context_id":
        return "conversation"
    dotted = re.sub(r"/(\d+)(?=/|$)", r"[\1]", path).replace("/", ".").lstrip(".")
    return dotted or None
