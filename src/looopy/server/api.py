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
from datetime import date
from functools import partial
from typing import Any, Final, TypeAlias, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from looopy.agent.agent import Agent
from looopy.errors import LimitExceeded, LooopyError, ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.replay.beside import message_of
from looopy.server.app_context import AppContext
from looopy.server.deciding import request_to_json
from looopy.server.download import download, newest
from looopy.server.gate.body import check_fields
from looopy.server.gate.expiry import while_valid
from looopy.server.items import (
    artifact_to_json,
    context_to_json,
    entry_to_json,
    hit_to_json,
    is_hidden,
    lease_to_json,
    placed_to_json,
    turn_to_json,
)
from looopy.server.page.budgets import owner_budget
from looopy.server.page.clip import LEAST, clip
from looopy.server.page.compact import CHOICES, compacted
from looopy.server.page.replays import forked, name_beside, recorded, replayed
from looopy.server.page.timeline import timeline
from looopy.server.problems import Problem
from looopy.server.sse import LONG, EventStream, Frames, framed, json_bytes, place_of
from looopy.stores.base import MessageStore
from looopy.stores.pages import Portion
from looopy.stores.records import ContextRecord, MessageRecord
from looopy.stores.rules import check_idempotency_key, no_context
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, event_to_json
from looopy.types.message import UserMessage
from looopy.types.message_json import message_from_json
from looopy.types.ranges import counted
from looopy.types.storable import escape

_PAGE = 50
_TITLE_CHARS = 80
ARTIFACT: Final = "/contexts/{context_id}/artifacts/{artifact_id:path}"
"""The path of an artifact's content, which other protocols give out."""
_Body: TypeAlias = dict[str, Any]
_Writer: TypeAlias = Callable[[AsyncGenerator[AgentEvent, None]], AsyncGenerator[bytes, None]]


class _Api:
    """The handlers, of one server."""

    def __init__(self, app_context: AppContext) -> None:
        self._app_context = app_context
        self._host = app_context.host
        self._frames = Frames()

    # --- turns ---------------------------------------------------------------------------------

    async def begin_turn(self, request: Request) -> Response:
        """Begin or continue a turn: `POST /contexts/{id}/turns`."""
        auth, body = await self._asked(request, ("message", "inputs", "metadata"))
        write = self._writer(request)
        context_id = request.path_params["context_id"]
        message = None if body.get("message") is None else self._message(body)
        inputs, metadata = _object(body, "inputs"), _object(body, "metadata")
        key = _key(request)
        async with (
            self._host.agent(context_id, auth, create=message is not None) as agent,
            self._app_context.turn(auth, context_id, key),
        ):
            turn = agent.execute_turn(
                message,
                auth,
                inputs=inputs,
                metadata=metadata,
                idempotency_key=key,
            )
            streams = "text/event-stream" in request.headers.get("accept", "")
            view = aiter(turn) if streams else None  # from here on it misses no delta
            number = await turn.accepted()
        if view is not None:
            frames = write(while_valid(self._turn_events(context_id, auth, view), auth))
            return EventStream(self._app_context, auth, frames)
        return JSONResponse({"context_id": context_id, "turn": number}, 202)

    async def run_beside(self, request: Request) -> Response:
        """Run a turn's message in a fork: `POST /contexts/{id}/turns/{turn}/run-beside`."""
        auth, body = await self._asked(request, ("message",))
        record, key = await self._known(request, auth), _key(request)
        message = None if body.get("message") is None else self._message(body)
        recording = await recorded(self._host, auth, record, _turn(request))
        asked = message_of(recording)
        name = name_beside(recording, auth, key)
        stores = self._host.stores_for(auth)
        async with self._app_context.turn(auth, name, key):
            made = await forked(stores, recording, name, again=key is not None)
            try:
                async with self._host.agent(name, auth, create=False) as agent:
                    turn = agent.execute_turn(message or asked, auth, idempotency_key=key)
                    number = await turn.accepted()
            except Exception:
                if made:  # an empty fork is of no use
                    with suppress(LooopyError):
                        await self._app_context.erase(name, auth)
                raise
        return JSONResponse({"context_id": name, "turn": number}, 202)

    async def _turn_events(
        self, context_id: str, auth: AuthContext, view: AsyncIterator[AgentEvent]
    ) -> AsyncGenerator[AgentEvent, None]:
        async with self._host.agent(context_id, auth):  # keeps it while somebody watches
            async for event in view:
                yield event

    async def steer(self, request: Request) -> Response:
        """Send a message to the running turn: `POST /contexts/{id}/steer`."""
        return await self._tell(request, Agent.steer)

    async def follow_up(self, request: Request) -> Response:
        """Send a message for the end of the running turn: `POST /contexts/{id}/follow-up`."""
        return await self._tell(request, Agent.follow_up)

    async def _tell(self, request: Request, tell: Callable[..., Awaitable[None]]) -> Response:
        auth, body = await self._asked(request, ("message", "expected_turn"))
        record, key = await self._known(request, auth), _key(request)
        expected = _number(body, "expected_turn")
        if key is not None and expected is None:
            raise _invalid("/expected_turn", "is missing: an idempotency key is for one turn")
        await self._app_context.space(auth)
        async with self._host.agent(record.context_id, auth, create=False) as agent:
            message = self._message(body)
            await tell(agent, message, auth, expected_turn=expected, idempotency_key=key)
        return _accepted(record, expected)

    async def cancel(self, request: Request) -> Response:
        """Stop the running turn: `POST /contexts/{id}/cancel`."""
        auth, _ = await self._asked(request, ())
        record = await self._known(request, auth)
        async with self._host.agent(record.context_id, auth, create=False) as agent:
            await agent.cancel()
        return _accepted(record)

    async def requests(self, request: Request) -> Response:
        """List the requests of others that the caller may decide: `GET /requests`."""
        auth = await self._app_context.identify(request)
        page = await self._host.requests(
            auth, after=request.query_params.get("after"), limit=self._limit(request)
        )
        items = [request_to_json(one) for one in page.items]
        return JSONResponse({"items": items, "next": page.next})

    async def decide(self, request: Request) -> Response:
        """Decide a call that waits for approval: `POST /contexts/{id}/decisions`."""
        auth, body = await self._asked(request, ("request_id", "answer"))
        context_id, request_id = request.path_params["context_id"], body.get("request_id")
        if not isinstance(request_id, str):
            raise _invalid("/request_id", "must be text")
        async with self._app_context.turn(auth, context_id):
            try:
                event = await self._host.decide(context_id, request_id, body.get("answer"), auth)
            except ValueRefused as error:
                place = (error.path or "").replace(f"/inputs/{escape(request_id)}", "/answer", 1)
                raise Problem(error.message, code="value_refused", path=place) from None
        return JSONResponse({"event": event_to_json(event)})

    # --- the past ------------------------------------------------------------------------------

    async def fork(self, request: Request) -> Response:
        """Make a context that begins with the past of this one: `POST /contexts/{id}/fork`."""
        auth, body = await self._asked(request, ("new_context_id", "at"))
        record = await self._known(request, auth)
        name = body.get("new_context_id")
        if name is not None and not isinstance(name, str):
            raise _invalid("/new_context_id", "must be text")
        name = secrets.token_urlsafe(16) if name is None else name
        at = _number(body, "at")
        await self._app_context.space(auth)
        async with self._host.agent(record.context_id, auth, create=False) as agent:
            try:
                await agent.fork(name, at=at)
            except ValueRefused as error:
                path = "/new_context_id" if error.path == "/context_id" else error.path
                raise ValueRefused(str(error), path=path) from None
        made = await self._host.authorise(name, auth)
        return JSONResponse({} if made is None else _item(made), 201)

    async def rewind(self, request: Request) -> Response:
        """Hide a turn and all after it: `POST /contexts/{id}/rewind`."""
        auth, body = await self._asked(request, ("to",))
        to = _number(body, "to")
        if to is None:
            raise _invalid("/to", "is missing: the number of the first turn to hide")
        async with self._host.agent(_name(request), auth, create=False) as agent:
            event = await agent.rewind(to)
        return JSONResponse({"event": event_to_json(event)})

    async def undo_rewind(self, request: Request) -> Response:
        """Show again what the newest rewind hid: `POST /contexts/{id}/undo-rewind`."""
        auth, _ = await self._asked(request, ())
        async with self._host.agent(_name(request), auth, create=False) as agent:
            event = await agent.undo_rewind()
        return JSONResponse({"event": event_to_json(event)})

    async def compact(self, request: Request) -> Response:
        """Have the model summarise the older part: `POST /contexts/{id}/compact`."""
        auth, body = await self._asked(request, ("keep_turns",))
        keep = _number(body, "keep_turns")
        async with self._host.agent(_name(request), auth, create=False) as agent:
            await self._app_context.space(auth)
            event = await agent.compact(1 if keep is None else keep)
        return JSONResponse({"event": None if event is None else event_to_json(event)})

    async def delete(self, request: Request) -> Response:
        """Erase a context: `DELETE /contexts/{id}`."""
        auth = await self._app_context.identify(request)
        await self._app_context.erase(_name(request), auth, force=_flag(request, "force"))
        return Response(status_code=204)

    # --- reading -------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Follow the events: `GET /contexts/{id}/events`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        after, write = place_of(request, record.last_seq), self._writer(request)
        events = self._host.events(
            record.context_id, auth, after=record.last_seq if after is None else after
        )
        return EventStream(self._app_context, auth, write(while_valid(events, auth)))

    async def contexts(self, request: Request) -> Response:
        """List the caller's contexts: `GET /contexts`."""
        auth = await self._app_context.identify(request)
        query = request.query_params
        try:
            page = await self._host.stores_for(auth).contexts.list(
                owner=auth.actor_id,
                status=query.get("status"),
                tags=query.getlist("tag"),
                after=query.get("after"),
                limit=self._limit(request),
            )
        except LimitExceeded as error:  # for ever, whenever the client comes again
            raise Problem(str(error), code="limit_exceeded", path="/tag") from None
        items = [_item(one) for one in page.items]
        if _flag(request, "title"):
            store = self._host.stores_for(auth).messages
            for item in items:
                item["title"] = await _title(store, item["context_id"])
        return JSONResponse({"items": items, "next": page.next})

    async def search(self, request: Request) -> Response:
        """Search the messages of the caller's contexts: `GET /search`."""
        auth = await self._app_context.identify(request)
        query = request.query_params
        page = await self._host.stores_for(auth).contexts.search(
            query.get("query", ""),
            context_id=query.get("context_id"),
            owner=auth.actor_id,
            after=query.get("after"),
            limit=self._limit(request),
        )
        return JSONResponse({"items": [hit_to_json(one) for one in page.items], "next": page.next})

    async def budget(self, request: Request) -> Response:
        """The caller's budget of a day and of its month: `GET /budget`."""
        auth = await self._app_context.identify(request)
        name = request.query_params.get("context_id")
        record = None if name is None else await self._host.authorise(name, auth)
        return JSONResponse(await owner_budget(self._host, auth, record, _day(request)))

    async def context(self, request: Request) -> Response:
        """Describe a context: `GET /contexts/{id}`."""
        auth = await self._app_context.identify(request)
        return JSONResponse(_item(await self._host.current(_name(request), auth)))

    async def messages(self, request: Request) -> Response:
        """List the messages: `GET /contexts/{id}/messages`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        limit, store = self._limit(request), self._host.stores_for(auth).messages
        most, hidden = _clip(request), _flag(request, "include_hidden")
        before = request.query_params.get("before")
        if before is not None:
            below = min(_whole(before, "/before"), record.last_position + 1)
            reading = _below(store, record.context_id, below, limit + 1, hidden=hidden)
        else:
            reading = _read(store, record.context_id, _after(request), limit + 1, hidden=hidden)
        room = self._app_context.limits.page_bytes
        said: list[bytes] = []
        upto: int | None = None
        async with self._app_context.reading(auth), aclosing(reading) as messages:
            async for one in messages:
                if said and len(said) == limit:
                    break
                item = json_bytes(_placed(one, most))
                room -= len(item)
                if said and room < 0:
                    break
                said.append(item)
                upto = one.position
                if len(item) > LONG:
                    await asyncio.sleep(0)
            else:
                upto = None
        if before is not None:
            said.reverse()
        end = f'],"next":{"null" if upto is None else upto}}}'.encode()
        return Response(b'{"items":[' + b",".join(said) + end, media_type="application/json")

    async def message(self, request: Request) -> Response:
        """One message, whole: `GET /contexts/{id}/messages/{position}`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        place = _whole(request.path_params["position"], "/position")
        found = await self._host.stores_for(auth).messages.records(
            record.context_id, after=max(0, place - 1), limit=1, include_hidden=True
        )
        if not found or found[0].position != place:
            text = f"there is no message at position {place}"
            raise Problem(text, status=404, code="message_not_found")
        return JSONResponse(placed_to_json(found[0]))

    async def turns(self, request: Request) -> Response:
        """List the turns: `GET /contexts/{id}/turns`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        limit, journal = self._limit(request), self._host.stores_for(auth).journal
        found = await journal.turns(record.context_id, after=_after(request), limit=limit + 1)
        items = [{**turn_to_json(one), "hidden": is_hidden(one, record.hidden)} for one in found]
        return _page(items, limit, "turn")

    async def inbox(self, request: Request) -> Response:
        """List the caller's messages that no turn has taken yet: `GET /contexts/{id}/inbox`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        limit, journal = self._limit(request), self._host.stores_for(auth).journal
        _, entries = await journal.inbox(record.context_id, after=_after(request))
        mine = [one for one in entries if one.actor_id == auth.actor_id][: limit + 1]
        return _page([entry_to_json(one) for one in mine], limit, "number")

    async def timeline(self, request: Request) -> Response:
        """A turn on an axis of time: `GET /contexts/{id}/turns/{turn}/timeline`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        stores = self._host.stores_for(auth)
        found = await timeline(stores, record.context_id, _turn(request), record.hidden)
        return JSONResponse(found)

    async def replay(self, request: Request) -> Response:
        """Compare a turn with the present agent: `POST /contexts/{id}/turns/{turn}/replay`."""
        auth, body = await self._asked(request, ("ignore",))
        record, ignore = await self._known(request, auth), _texts(body, "ignore")
        with self._app_context.replay(auth):
            recording = await recorded(self._host, auth, record, _turn(request))
            return JSONResponse(await replayed(self._host, auth, recording, ignore))

    async def artifacts(self, request: Request) -> Response:
        """List the newest version of each artifact: `GET /contexts/{id}/artifacts`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        limit, store = self._limit(request), self._host.stores_for(auth).artifacts
        after = request.query_params.get("after", "")
        found = await store.list(record.context_id, after=after, limit=limit + 1)
        return _page([artifact_to_json(one) for one in found], limit, "artifact_id")

    async def artifact(self, request: Request) -> Response:
        """Download or describe an artifact: `GET /contexts/{id}/artifacts/{artifact_id}`."""
        auth = await self._app_context.identify(request)
        record = await self._known(request, auth)
        name, store = request.path_params["artifact_id"], self._host.stores_for(auth).artifacts
        asked = request.query_params.get("version")
        version = None if asked is None else _whole(asked, "/version")
        if _flag(request, "describe"):
            return JSONResponse(artifact_to_json(await store.get(record.context_id, name, version)))
        if version is None:
            found = await newest(store, record.context_id, name)
        else:
            found = await store.get(record.context_id, name, version)
        return download(request, self._app_context, auth, record.context_id, found)

    # --- inside --------------------------------------------------------------------------------

    async def _asked(self, request: Request, fields: Sequence[str]) -> tuple[AuthContext, _Body]:
        """The caller, and the body with none but these fields."""
        auth = await self._app_context.identify(request)
        body = await self._app_context.read_json(request)
        check_fields(body, fields)
        return auth, body

    async def _known(self, request: Request, auth: AuthContext) -> ContextRecord:
        name = _name(request)
        record = await self._host.authorise(name, auth)
        if record is None:
            raise no_context(name)
        return record

    def _message(self, body: _Body) -> UserMessage:
        said = body.get("message")
        data: dict[str, Any] = {"role": "user"}
        if isinstance(said, str):
            data["content"] = said
        elif isinstance(said, Mapping):
            check_fields(said, ("content",), "/message")
            data |= said
        else:
            raise _invalid("/message", 'must be text, or {"content": [...]}')
        try:
            parsed = cast("UserMessage", message_from_json(data))
            message = as_user_message(parsed, may_be_none=False)
        except ValueRefused as error:
            raise ValueRefused(str(error), path=f"/message{error.path or ''}") from None
        self._app_context.check_size(message, "/message")
        return message

    def _writer(self, request: Request) -> _Writer:
        """Writes events in the format that the request asks for."""
        asked = request.query_params.get("format", "full")
        if asked not in ("full", "compact"):
            raise _invalid("/format", "must be full or compact")
        include, most = request.query_params.getlist("include"), _clip(request)
        if not CHOICES.issuperset(include):
            raise _invalid("/include", f"must be one of {', '.join(sorted(CHOICES))}")
        if asked == "compact":
            return partial(compacted, include=frozenset(include), clip_to=most)
        return partial(framed, frames=self._frames)

    def _limit(self, request: Request) -> int:
        asked = request.query_params.get("limit")
        if asked is None:
            return min(_PAGE, self._app_context.limits.page)
        limit = _whole(asked, "/limit")
        if not 1 <= limit <= self._app_context.limits.page:
            raise _invalid("/limit", f"must be 1 to {self._app_context.limits.page}")
        return limit


def routes(app_context: AppContext) -> Sequence[Route]:
    """The routes of the HTTP API."""
    api = _Api(app_context)
    one = "/contexts/{context_id}"
    table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "/contexts", api.contexts),
        ("GET", "/search", api.search),
        ("GET", "/budget", api.budget),
        ("GET", "/requests", api.requests),
        ("GET", one, api.context),
        ("DELETE", one, api.delete),
        ("GET", f"{one}/events", api.events),
        ("GET", f"{one}/messages", api.messages),
        ("GET", f"{one}/messages/{{position}}", api.message),
        ("GET", f"{one}/turns", api.turns),
        ("GET", f"{one}/turns/{{turn}}/timeline", api.timeline),
        ("POST", f"{one}/turns", api.begin_turn),
        ("POST", f"{one}/turns/{{turn}}/replay", api.replay),
        ("POST", f"{one}/turns/{{turn}}/run-beside", api.run_beside),
        ("GET", f"{one}/artifacts", api.artifacts),
        ("GET", ARTIFACT, api.artifact),
        ("GET", f"{one}/inbox", api.inbox),
        ("POST", f"{one}/steer", api.steer),
        ("POST", f"{one}/follow-up", api.follow_up),
        ("POST", f"{one}/cancel", api.cancel),
        ("POST", f"{one}/decisions", api.decide),
        ("POST", f"{one}/fork", api.fork),
        ("POST", f"{one}/rewind", api.rewind),
        ("POST", f"{one}/undo-rewind", api.undo_rewind),
        ("POST", f"{one}/compact", api.compact),
    ]
    return [Route(path, handler, methods=[method]) for method, path, handler in table]


def _item(record: ContextRecord) -> dict[str, Any]:
    """A context, with the `seq` from which a client that has read it follows its events."""
    more = {
        "tags": list(record.tags),
        "last_seq": record.last_seq,
        "last_position": record.last_position,
        "hidden_messages": counted(record.hidden),
        "lease": lease_to_json(record),
    }
    return {**context_to_json(record), **more}


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


def _placed(record: MessageRecord, most: int | None) -> dict[str, Any]:
    """A message with its place; with *most*, its long texts are cut."""
    said = placed_to_json(record)
    if most is not None:
        said["message"], cut = clip(said["message"], most)
        said |= {"clipped": cut} if cut else {}
    return said


def _accepted(record: ContextRecord, turn: int | None = None) -> Response:
    if turn is None:
        turn = record.turn_count if record.open_turn is None else record.open_turn.turn
    return JSONResponse({"context_id": record.context_id, "turn": turn}, 202)


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


def _page(items: list[dict[str, Any]], limit: int, key: str) -> Response:
    following = items[limit - 1][key] if len(items) > limit else None
    return JSONResponse({"items": items[:limit], "next": following})


def _name(request: Request) -> str:
    return str(request.path_params["context_id"])


def _invalid(path: str, text: str) -> Problem:
    return Problem(f"{path[1:]} {text}", code="invalid_request", path=path)


def _object(body: _Body, name: str) -> Mapping[str, Any] | None:
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise _invalid(f"/{name}", "must be an object")
    return found


def _number(body: _Body, name: str) -> int | None:
    found = body.get(name)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        raise _invalid(f"/{name}", "must be a whole number")
    return found


def _texts(body: _Body, name: str) -> tuple[str, ...]:
    found = body.get(name)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _invalid(f"/{name}", "must be a list of texts")
    return tuple(found)


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None:
        check_idempotency_key(key)
    return key


def _turn(request: Request) -> int:
    return _whole(request.path_params["turn"], "/turn")


def _whole(text: str, path: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise _invalid(path, "must be a whole number")
    return int(text)


def _after(request: Request) -> int:
    asked = request.query_params.get("after")
    return 0 if asked is None else _whole(asked, "/after")


def _day(request: Request) -> date | None:
    asked = request.query_params.get("day")
    if asked is None:
        return None
    try:
        return date.fromisoformat(asked)
    except ValueError:
        raise _invalid("/day", "must be a date such as 2026-11-23") from None


def _clip(request: Request) -> int | None:
    asked = request.query_params.get("clip")
    if asked is None:
        return None
    most = _whole(asked, "/clip")
    if most < LEAST:
        raise _invalid("/clip", f"must be a number from {LEAST}")
    return most


def _flag(request: Request, name: str) -> bool:
    asked = request.query_params.get(name, "false")
    if asked not in ("true", "false"):
        raise _invalid(f"/{name}", "must be true or false")
    return asked == "true"
