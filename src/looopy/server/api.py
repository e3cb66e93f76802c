"""
The HTTP API: a path for each thing that one can do with a context.

Each handler asks who sends the request, then the host, which checks the owner; then it answers in
JSON. A turn that began runs on without its request. Its events are those of the context: a client
reads them from the response of its POST, or from `/contexts/{id}/events`, from any process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from looopy.agent.agent import Agent
from looopy.errors import LimitExceeded, LooopyError, ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.replay.beside import message_of
from looopy.replay.differences import PARTS
from looopy.server import models
from looopy.server.app_context import AppContext
from looopy.server.deciding import RequestPage
from looopy.server.download import download, newest
from looopy.server.gate.expiry import while_valid
from looopy.server.gate.fields import check_body, invalid, read_query, whole
from looopy.server.items import Model, context_to_json, item, placed_to_json, turn_to_json
from looopy.server.openapi import Media, Operation
from looopy.server.page.budgets import owner_budget
from looopy.server.page.clip import clip
from looopy.server.page.compact import Included, compacted
from looopy.server.page.replays import forked, name_beside, recorded, replayed
from looopy.server.page.timeline import timeline
from looopy.server.problems import Problem
from looopy.server.sse import LONG, EventStream, Frames, framed, json_bytes, place_of
from looopy.stores.base import MessageStore
from looopy.stores.contexts.search import SearchPage
from looopy.stores.pages import Portion
from looopy.stores.records import ContextRecord, MessageRecord
from looopy.stores.rules import check_idempotency_key, no_context
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, event_to_json
from looopy.types.message import UserMessage
from looopy.types.message_json import message_from_json
from looopy.types.state import AgentStatus
from looopy.types.storable import escape

_PAGE = 50
_TITLE_CHARS = 80
ARTIFACT: Final = "/contexts/{context_id}/artifacts/{artifact_id:path}"
"""The path of an artifact's content, which other protocols give out."""
OPERATIONS: Final[list[Operation]] = []
_Writer: TypeAlias = Callable[[AsyncGenerator[AgentEvent, None]], AsyncGenerator[bytes, None]]

_ONE: Final = "/contexts/{context_id}"
_AFTER: Final = "`next` of the page before."
_NUMBERED: Final = {"after": Annotated[models.Number, _AFTER], "limit": models.Limit}
_NAMED: Final = {"after": Annotated[str, _AFTER], "limit": models.Limit}
_STREAM: Final = {
    "format": Annotated[Literal["full", "compact"], "Each event whole, or each fact once."],
    "include": Annotated[list[Included], "With `format=compact`: send these as well."],
    "clip": Annotated[models.Clip, "With `format=compact`: cut longer texts of events."],
}
_EVENTS: Final = Media({"text/event-stream": str})
_KEY: Final = {
    "Idempotency-Key": Annotated[str, ("minLength", 1), ("maxLength", 256), "Names this request."]
}
_TOLD: Final = {"message": models.UserMessage, "expected_turn": models.Number | None}


@dataclass(slots=True)
class _Asked:
    """A request of a caller who is known; its body and its query have been checked."""

    request: Request
    auth: AuthContext
    body: Mapping[str, Any]
    query: Mapping[str, Any]

    @property
    def context_id(self) -> str:
        """The context in the address."""
        return str(self.request.path_params["context_id"])

    @property
    def turn(self) -> int:
        """The turn in the address."""
        return whole(self.request.path_params["turn"], "/turn")

    @property
    def key(self) -> str | None:
        """The idempotency key, if there is one."""
        key = self.request.headers.get("idempotency-key")
        if key is not None:
            check_idempotency_key(key)
        return key


_Handler = TypeVar("_Handler", bound=Callable[["_Api", _Asked], Awaitable[Any]])


def _operation(method: str, path: str, **facts: Any) -> Callable[[_Handler], _Handler]:
    """Put a handler into the table, with the *facts* of its `Operation`."""

    def add(handler: _Handler) -> _Handler:
        OPERATIONS.append(Operation(method, path, handler, **facts))
        return handler

    return add


class _Api:
    """The handlers, of one server."""

    def __init__(self, app_context: AppContext) -> None:
        self._app_context = app_context
        self._host = app_context.host
        self._frames = Frames()

    async def answer(self, operation: Operation, request: Request) -> Response:
        """Answer a request, which is refused unless its caller is known and its fields fit."""
        auth = await self._app_context.identify(request)
        body: Mapping[str, Any] = {}
        if operation.body is not None:
            body = await self._app_context.read_json(request)
            check_body(body, operation.body)
        asked = _Asked(request, auth, body, read_query(request, operation.query))
        answer = await operation.handler(self, asked)
        if isinstance(answer, Response):
            return answer
        if answer is None:
            return Response(status_code=operation.status)
        return JSONResponse(answer, operation.status)

    # --- turns ---------------------------------------------------------------------------------

    @_operation(
        "POST",
        f"{_ONE}/turns",
        answer=models.Accepted,
        status=202,
        body={
            "message": models.UserMessage | None,
            "inputs": models.Object | None,
            "metadata": models.Object | None,
        },
        query=_STREAM,
        headers=_KEY,
        others={200: _EVENTS},
    )
    async def begin_turn(self, asked: _Asked) -> models.Accepted | Response:
        """
        Begin or continue a turn.

        Without a message, it continues the last one. With `Accept: text/event-stream` it is
        streamed, with status 200.
        """
        write, context_id = self._writer(asked), asked.context_id
        message, key = self._message(asked), asked.key
        async with (
            self._host.agent(context_id, asked.auth, create=message is not None) as agent,
            self._app_context.turn(asked.auth, context_id, key),
        ):
            turn = agent.execute_turn(
                message,
                asked.auth,
                inputs=asked.body.get("inputs"),
                metadata=asked.body.get("metadata"),
                idempotency_key=key,
            )
            streams = "text/event-stream" in asked.request.headers.get("accept", "")
            view = aiter(turn) if streams else None  # from here on it misses no delta
            number = await turn.accepted()
        if view is not None:
            events = self._turn_events(context_id, asked.auth, view)
            return EventStream(
                self._app_context, asked.auth, write(while_valid(events, asked.auth))
            )
        return {"context_id": context_id, "turn": number}

    @_operation(
        "POST",
        f"{_ONE}/turns/{{turn}}/run-beside",
        status=202,
        body={"message": models.UserMessage | None},
        headers=_KEY,
    )
    async def run_beside(self, asked: _Asked) -> models.Accepted:
        """
        Run a turn's message, or another one, in a fork that begins where the turn began.

        Calls the model and the tools of the present agent.
        """
        record, key = await self._known(asked), asked.key
        recording = await recorded(self._host, asked.auth, record, asked.turn)
        message = self._message(asked) or message_of(recording)
        name = name_beside(recording, asked.auth, key)
        stores = self._host.stores_for(asked.auth)
        async with self._app_context.turn(asked.auth, name, key):
            made = await forked(stores, recording, name, again=key is not None)
            try:
                async with self._host.agent(name, asked.auth, create=False) as agent:
                    turn = agent.execute_turn(message, asked.auth, idempotency_key=key)
                    number = await turn.accepted()
            except Exception:
                if made:  # an empty fork is of no use
                    with suppress(LooopyError):
                        await self._app_context.erase(name, asked.auth)
                raise
        return {"context_id": name, "turn": number}

    async def _turn_events(
        self, context_id: str, auth: AuthContext, view: AsyncIterator[AgentEvent]
    ) -> AsyncGenerator[AgentEvent, None]:
        async with self._host.agent(context_id, auth):  # keeps it while somebody watches
            async for event in view:
                yield event

    @_operation("POST", f"{_ONE}/steer", status=202, body=_TOLD, headers=_KEY)
    async def steer(self, asked: _Asked) -> models.Accepted:
        """Send a message to the running turn."""
        return await self._tell(asked, Agent.steer)

    @_operation("POST", f"{_ONE}/follow-up", status=202, body=_TOLD, headers=_KEY)
    async def follow_up(self, asked: _Asked) -> models.Accepted:
        """Send a message for the end of the running turn."""
        return await self._tell(asked, Agent.follow_up)

    async def _tell(self, asked: _Asked, tell: Callable[..., Awaitable[None]]) -> models.Accepted:
        record, key = await self._known(asked), asked.key
        expected = asked.body.get("expected_turn")
        if key is not None and expected is None:
            raise invalid("/expected_turn", "is missing: an idempotency key is for one turn")
        await self._app_context.space(asked.auth)
        async with self._host.agent(record.context_id, asked.auth, create=False) as agent:
            message = self._message(asked)
            await tell(agent, message, asked.auth, expected_turn=expected, idempotency_key=key)
        return _accepted(record, expected)

    @_operation("POST", f"{_ONE}/cancel", status=202, body={})
    async def cancel(self, asked: _Asked) -> models.Accepted:
        """Stop the running turn."""
        record = await self._known(asked)
        async with self._host.agent(record.context_id, asked.auth, create=False) as agent:
            await agent.cancel()
        return _accepted(record)

    @_operation("GET", "/requests", query=_NAMED)
    async def requests(self, asked: _Asked) -> models.Page[models.OpenRequest, str]:
        """List the requests of others that the caller may decide."""
        page = await self._host.requests(
            asked.auth, after=asked.query.get("after"), limit=self._limit(asked)
        )
        return _page(models.OpenRequest, page)

    @_operation("POST", f"{_ONE}/decisions", body={"request_id": str, "answer": Any})
    async def decide(self, asked: _Asked) -> models.EventStored:
        """
        Decide a call that waits for approval.

        The context may be the caller's or another actor's. Then the call waits for its own actor:
        an empty turn of that actor runs it.
        """
        context_id, request_id = asked.context_id, asked.body["request_id"]
        answer = asked.body["answer"]
        async with self._app_context.turn(asked.auth, context_id):
            try:
                event = await self._host.decide(context_id, request_id, answer, asked.auth)
            except ValueRefused as error:
                place = (error.path or "").replace(f"/inputs/{escape(request_id)}", "/answer", 1)
                raise Problem(error.message, code="value_refused", path=place) from None
        return {"event": event_to_json(event)}

    # --- the past ------------------------------------------------------------------------------

    @_operation(
        "POST",
        f"{_ONE}/fork",
        status=201,
        body={"new_context_id": models.ContextId | None, "at": models.Number | None},
    )
    async def fork(self, asked: _Asked) -> models.Context:
        """Make a context that begins with the past of this one."""
        record = await self._known(asked)
        name = asked.body.get("new_context_id")
        name = secrets.token_urlsafe(16) if name is None else name
        await self._app_context.space(asked.auth)
        async with self._host.agent(record.context_id, asked.auth, create=False) as agent:
            try:
                await agent.fork(name, at=asked.body.get("at"))
            except ValueRefused as error:
                path = "/new_context_id" if error.path == "/context_id" else error.path
                raise ValueRefused(str(error), path=path) from None
        made = await self._host.authorise(name, asked.auth)
        if made is None:
            raise no_context(name)
        return context_to_json(made)

    @_operation(
        "POST",
        f"{_ONE}/rewind",
        body={"to": Annotated[int, ("minimum", 1), "The number of the first turn to hide."]},
    )
    async def rewind(self, asked: _Asked) -> models.EventStored:
        """Hide a turn and all after it."""
        async with self._host.agent(asked.context_id, asked.auth, create=False) as agent:
            event = await agent.rewind(asked.body["to"])
        return {"event": event_to_json(event)}

    @_operation("POST", f"{_ONE}/undo-rewind", body={})
    async def undo_rewind(self, asked: _Asked) -> models.EventStored:
        """Show again what the newest rewind hid."""
        async with self._host.agent(asked.context_id, asked.auth, create=False) as agent:
            event = await agent.undo_rewind()
        return {"event": event_to_json(event)}

    @_operation("POST", f"{_ONE}/compact", body={"keep_turns": models.Number | None})
    async def compact(self, asked: _Asked) -> models.Compacted:
        """Have the model summarise the older part."""
        keep = asked.body.get("keep_turns")
        async with self._host.agent(asked.context_id, asked.auth, create=False) as agent:
            await self._app_context.space(asked.auth)
            event = await agent.compact(1 if keep is None else keep)
        return {"event": None if event is None else event_to_json(event)}

    @_operation(
        "DELETE", _ONE, status=204, query={"force": Annotated[bool, "Also while a turn runs."]}
    )
    async def delete(self, asked: _Asked) -> None:
        """Erase a context."""
        force = asked.query.get("force", False)
        await self._app_context.erase(asked.context_id, asked.auth, force=force)

    # --- reading -------------------------------------------------------------------------------

    @_operation(
        "GET",
        f"{_ONE}/events",
        answer=_EVENTS,
        query={
            "after": Annotated[
                models.Number, "The `seq` behind which to begin; by default the head."
            ],
            **_STREAM,
        },
        headers={
            "Last-Event-ID": Annotated[
                models.Number, "The `seq` behind which to begin; wins over `after`."
            ]
        },
    )
    async def events(self, asked: _Asked) -> Response:
        """
        Follow the events.

        `id` is the `seq` of a durable event, `event` its type.
        """
        record = await self._known(asked)
        after, write = place_of(asked.request, record.last_seq), self._writer(asked)
        events = self._host.events(
            record.context_id, asked.auth, after=record.last_seq if after is None else after
        )
        return EventStream(self._app_context, asked.auth, write(while_valid(events, asked.auth)))

    @_operation(
        "GET",
        "/contexts",
        query={
            "status": Annotated[
                str, ("enum", [one.value for one in AgentStatus]), "Contexts of this status."
            ],
            "tag": Annotated[list[str], "Contexts that have all of these tags."],
            "title": Annotated[bool, "With the beginning of each, as `title`."],
            **_NAMED,
        },
    )
    async def contexts(self, asked: _Asked) -> models.Page[models.Context, str]:
        """List the caller's contexts, the last used first."""
        query = asked.query
        try:
            page = await self._host.stores_for(asked.auth).contexts.list(
                owner=asked.auth.actor_id,
                status=query.get("status"),
                tags=query.get("tag", ()),
                after=query.get("after"),
                limit=self._limit(asked),
            )
        except LimitExceeded as error:  # for ever, whenever the client comes again
            raise Problem(str(error), code="limit_exceeded", path="/tag") from None
        items = [context_to_json(one) for one in page.items]
        if query.get("title"):
            store = self._host.stores_for(asked.auth).messages
            for one in items:
                one["title"] = await _title(store, one["context_id"])
        return {"items": items, "next": page.next}

    @_operation(
        "GET",
        "/search",
        query={
            "query": Annotated[str, 'Words, `"a phrase"`, or `beginn*`.'],
            "context_id": Annotated[models.ContextId, "Only in this context."],
            **_NAMED,
        },
    )
    async def search(self, asked: _Asked) -> models.Page[models.Hit, str]:
        """Find the messages of the caller's contexts that have all words of a query."""
        query = asked.query
        page = await self._host.stores_for(asked.auth).contexts.search(
            query.get("query", ""),
            context_id=query.get("context_id"),
            owner=asked.auth.actor_id,
            after=query.get("after"),
            limit=self._limit(asked),
        )
        return _page(models.Hit, page)

    @_operation(
        "GET",
        "/budget",
        query={
            "day": Annotated[date, "Today by default, in UTC."],
            "context_id": Annotated[models.ContextId, "The context whose agent has the limits."],
        },
    )
    async def budget(self, asked: _Asked) -> models.BudgetOfOwner:
        """
        Show the caller's budget of a day and of its month.

        Only periods that a budget limits have an item.
        """
        name, day = asked.query.get("context_id"), asked.query.get("day")
        record = None if name is None else await self._host.authorise(name, asked.auth)
        return await owner_budget(self._host, asked.auth, record, day)

    @_operation("GET", _ONE)
    async def context(self, asked: _Asked) -> models.Context:
        """Describe a context."""
        return context_to_json(await self._host.current(asked.context_id, asked.auth))

    @_operation(
        "GET",
        f"{_ONE}/messages",
        answer=models.Page[models.PlacedMessage, int],
        query={
            "before": Annotated[models.Number, "The newest ones below this position instead."],
            "include_hidden": Annotated[bool, "Those too that were rewound."],
            "clip": models.Clip,
            **_NUMBERED,
        },
    )
    async def messages(self, asked: _Asked) -> Response:
        """List the messages, the oldest first."""
        record = await self._known(asked)
        limit, store = self._limit(asked), self._host.stores_for(asked.auth).messages
        most, hidden = asked.query.get("clip"), asked.query.get("include_hidden", False)
        before, after = asked.query.get("before"), asked.query.get("after", 0)
        if before is not None:
            below = min(before, record.last_position + 1)
            reading = _below(store, record.context_id, below, limit + 1, hidden=hidden)
        else:
            reading = _read(store, record.context_id, after, limit + 1, hidden=hidden)
        room = self._app_context.limits.page_bytes
        said: list[bytes] = []
        upto: int | None = None
        async with self._app_context.reading(asked.auth), aclosing(reading) as messages:
            async for one in messages:
                if said and len(said) == limit:
                    break
                written = json_bytes(_placed(one, most))
                room -= len(written)
                if said and room < 0:
                    break
                said.append(written)
                upto = one.position
                if len(written) > LONG:
                    await asyncio.sleep(0)
            else:
                upto = None
        if before is not None:
            said.reverse()
        end = f'],"next":{"null" if upto is None else upto}}}'.encode()
        return Response(b'{"items":[' + b",".join(said) + end, media_type="application/json")

    @_operation("GET", f"{_ONE}/messages/{{position}}")
    async def message(self, asked: _Asked) -> models.PlacedMessage:
        """Show one message, whole."""
        record = await self._known(asked)
        place = whole(asked.request.path_params["position"], "/position")
        found = await self._host.stores_for(asked.auth).messages.records(
            record.context_id, after=max(0, place - 1), limit=1, include_hidden=True
        )
        if not found or found[0].position != place:
            text = f"there is no message at position {place}"
            raise Problem(text, status=404, code="message_not_found")
        return placed_to_json(found[0])

    @_operation("GET", f"{_ONE}/turns", query=_NUMBERED)
    async def turns(self, asked: _Asked) -> models.Page[models.Turn, int]:
        """List the turns."""
        record = await self._known(asked)
        limit, journal = self._limit(asked), self._host.stores_for(asked.auth).journal
        after = asked.query.get("after", 0)
        found = await journal.turns(record.context_id, after=after, limit=limit + 1)
        return _cut([turn_to_json(one, record.hidden) for one in found], limit, "turn")

    @_operation("GET", f"{_ONE}/inbox", query=_NUMBERED)
    async def inbox(self, asked: _Asked) -> models.Page[models.WaitingMessage, int]:
        """List the caller's messages that no turn has taken yet."""
        record = await self._known(asked)
        limit, journal = self._limit(asked), self._host.stores_for(asked.auth).journal
        _, entries = await journal.inbox(record.context_id, after=asked.query.get("after", 0))
        mine = [one for one in entries if one.actor_id == asked.auth.actor_id][: limit + 1]
        return _cut([item(models.WaitingMessage, one) for one in mine], limit, "number")

    @_operation("GET", f"{_ONE}/turns/{{turn}}/timeline")
    async def timeline(self, asked: _Asked) -> models.Timeline:
        """Show the runs of a turn on an axis of time."""
        record = await self._known(asked)
        stores = self._host.stores_for(asked.auth)
        return await timeline(stores, record.context_id, asked.turn, record.hidden)

    @_operation(
        "POST",
        f"{_ONE}/turns/{{turn}}/replay",
        body={"ignore": list[Annotated[str, ("enum", PARTS)]] | None},
    )
    async def replay(self, asked: _Asked) -> models.Replay:
        """
        Run an ended turn again, answered from its log, and compare it with the present agent.

        Calls no model and no tool, and stores nothing.
        """
        record, ignore = await self._known(asked), tuple(asked.body.get("ignore") or ())
        with self._app_context.replay(asked.auth):
            recording = await recorded(self._host, asked.auth, record, asked.turn)
            return await replayed(self._host, asked.auth, recording, ignore)

    @_operation("GET", f"{_ONE}/artifacts", query=_NAMED)
    async def artifacts(self, asked: _Asked) -> models.Page[models.Artifact, str]:
        """List the newest version of each artifact."""
        record = await self._known(asked)
        limit, store = self._limit(asked), self._host.stores_for(asked.auth).artifacts
        after = asked.query.get("after", "")
        found = await store.list(record.context_id, after=after, limit=limit + 1)
        return _cut([item(models.Artifact, one) for one in found], limit, "artifact_id")

    @_operation(
        "GET",
        ARTIFACT,
        answer=Media({"application/octet-stream": bytes, "application/json": models.Artifact}),
        query={
            "version": Annotated[models.Number, "Another version than the newest complete one."],
            "describe": Annotated[bool, "As in a list, without the content."],
        },
        headers={
            "Range": Annotated[str, "One range of bytes, such as `bytes=100-`."],
            "If-Range": Annotated[str, "The `ETag` of the content that is continued."],
            "If-None-Match": Annotated[str, "The `ETag` of the content that is there."],
        },
        others={
            206: "The range that was asked for.",
            304: "The content is the one that the client has.",
            416: "The range begins behind the end of the content.",
        },
    )
    async def artifact(self, asked: _Asked) -> models.Artifact | Response:
        """Download or describe an artifact."""
        record = await self._known(asked)
        name, version = asked.request.path_params["artifact_id"], asked.query.get("version")
        store = self._host.stores_for(asked.auth).artifacts
        if asked.query.get("describe"):
            found = await store.get(record.context_id, name, version)
            return item(models.Artifact, found)
        if version is None:
            found = await newest(store, record.context_id, name)
        else:
            found = await store.get(record.context_id, name, version)
        return download(asked.request, self._app_context, asked.auth, record.context_id, found)

    # --- inside --------------------------------------------------------------------------------

    async def _known(self, asked: _Asked) -> ContextRecord:
        record = await self._host.authorise(asked.context_id, asked.auth)
        if record is None:
            raise no_context(asked.context_id)
        return record

    def _message(self, asked: _Asked) -> UserMessage | None:
        message = asked.body.get("message")
        if message is None:
            return None
        content = message if isinstance(message, str) else message["content"]
        try:
            user_message = as_user_message(
                cast("UserMessage", message_from_json({"role": "user", "content": content})),
                may_be_none=False,
            )
        except ValueRefused as error:
            raise ValueRefused(str(error), path=f"/message{error.path or ''}") from None
        self._app_context.check_size(user_message, "/message")
        return user_message

    def _writer(self, asked: _Asked) -> _Writer:
        """Writes events in the format that the request asks for."""
        if asked.query.get("format") == "compact":
            include = frozenset(asked.query.get("include", ()))
            return partial(compacted, include=include, clip_to=asked.query.get("clip"))
        return partial(framed, frames=self._frames)

    def _limit(self, asked: _Asked) -> int:
        most = self._app_context.limits.page
        limit: int = asked.query.get("limit", min(_PAGE, most))
        if limit > most:
            raise invalid("/limit", f"must be 1 to {most}")
        return limit


def routes(app_context: AppContext) -> Sequence[Route]:
    """The routes of the HTTP API."""
    answer = _Api(app_context).answer
    # Starlette tries them in order: short paths and GET, which clients ask for most, come first.
    table = sorted(OPERATIONS, key=lambda one: (one.path.count("/"), one.method != "GET"))
    return [Route(one.path, partial(answer, one), methods=[one.method]) for one in table]


async def _title(store: MessageStore, context_id: str) -> str | None:
    """The beginning of the first message that has text, on one line."""
    for message in await store.list(context_id, limit=1):
        text = message.text[: _TITLE_CHARS * 4] if isinstance(message, UserMessage) else ""
        words = " ".join(text.split())
        return words if len(words) <= _TITLE_CHARS else f"{words[: _TITLE_CHARS - 1]}…"
    return None


async def _below(
    store: MessageStore, context_id: str, below: int, limit: int, *, hidden: bool
) -> AsyncGenerator[MessageRecord, None]:
    """At most *limit* messages below a position, the newest first, read a few at a time."""
    portion = Portion(limit)
    while below > 1 and limit > 0:
        after = max(0, below - 1 - min(limit, portion.rows))
        page = await store.records(
            context_id, after=after, limit=below - 1 - after, include_hidden=hidden
        )
        found = [one for one in page if one.position < below]
        portion.took(len(found), (one.message for one in found))
        for one in reversed(found):
            yield one
        below = after + 1
        limit -= len(found)


def _placed(record: MessageRecord, most: int | None) -> models.PlacedMessage:
    """A message with its place; with *most*, its long texts are cut."""
    said = placed_to_json(record)
    if most is not None:
        said["message"], cut = clip(said["message"], most)
        if cut:
            said["clipped"] = cut
    return said


def _accepted(record: ContextRecord, turn: int | None = None) -> models.Accepted:
    if turn is None:
        turn = record.turn_count if record.open_turn is None else record.open_turn.turn
    return {"context_id": record.context_id, "turn": turn}


async def _read(
    store: MessageStore, context_id: str, after: int, limit: int, *, hidden: bool
) -> AsyncGenerator[MessageRecord, None]:
    """At most *limit* messages behind *after*, read a few at a time: each may be large."""
    portion = Portion(limit)
    while limit > 0:
        most = min(limit, portion.rows)
        found = await store.records(context_id, after=after, limit=most, include_hidden=hidden)
        portion.took(len(found), (one.message for one in found))
        for one in found:
            yield one
            after = one.position
        limit = limit - most if len(found) == most else 0


def _cut(items: list[Model], limit: int, key: str) -> models.Page[Model, Any]:
    """A page of *items*, of which one more than *limit* was read if there are more."""
    following = cast("Any", items[limit - 1])[key] if len(items) > limit else None
    return {"items": items[:limit], "next": following}


def _page(model: type[Model], page: RequestPage | SearchPage) -> models.Page[Model, str]:
    return {"items": [item(model, one) for one in page.items], "next": page.next}
