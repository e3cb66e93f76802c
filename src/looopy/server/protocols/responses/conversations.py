"""
The routes of conversations in the Responses API: a conversation is a context.

A conversation that was begun has a name and no context yet: its first response makes the context,
for the actor who sends it. Items come from its turns: the user's message, then the output of the
response.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from looopy.errors import ValueRefused
from looopy.server.app_context import AppContext
from looopy.server.problems import Problem
from looopy.server.protocols.chains import message_of, record_of
from looopy.server.protocols.responses.items import Json, ResponseBuilder
from looopy.stores.bundle import Stores
from looopy.stores.pages import events_of
from looopy.stores.records import ContextRecord, TurnRecord
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)

_MOST = 100
_USUAL = 20


class Conversations:
    """
    The handlers of the routes.

    Args:
        model: The name by which clients know the agent.
    """

    def __init__(self, app_context: AppContext, model: str) -> None:
        self._app_context = app_context
        self._model = model

    async def begin(self, request: Request) -> Response:
        """POST /v1/conversations."""
        await self._app_context.identify(request)
        body = await self._app_context.read_json(request, may_miss=True)
        for name, value in body.items():
            if value:
                text = f"{name} is not supported here: send it with the first response"
                raise ValueRefused(text, path=f"/{name}")
        return JSONResponse(_conversation(f"conv_{secrets.token_hex(16)}", int(time.time())))

    async def retrieve(self, request: Request) -> Response:
        """GET /v1/conversations/{conversation_id}."""
        _, record = await self._found(request)
        return JSONResponse(_conversation(record.context_id, int(record.created_at.timestamp())))

    async def erase(self, request: Request) -> Response:
        """DELETE /v1/conversations/{conversation_id}: nothing of it stays."""
        auth = await self._app_context.identify(request)
        name = request.path_params["conversation_id"]
        await self._app_context.erase(name, auth)
        return JSONResponse({"id": name, "object": "conversation.deleted", "deleted": True})

    async def items(self, request: Request) -> Response:
        """GET /v1/conversations/{conversation_id}/items?limit&order&after."""
        stores, record = await self._found(request)
        limit = number_of(request, "limit", _USUAL, _MOST) or 1
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise Problem("order is asc or desc", path="/order")
        after = request.query_params.get("after")
        found: list[Json] = []
        seen = after is None
        walk = self._items(stores, record, descending=order == "desc", after=after)
        async with aclosing(walk):
            async for item in walk:
                if seen:
                    found.append(item)
                seen = seen or item["id"] == after
                if len(found) > limit:
                    break
        if not seen:
            raise Problem("the conversation has no such item", code="invalid_place", path="/after")
        return JSONResponse(page_of(found[:limit], more=len(found) > limit))

    async def _found(self, request: Request) -> tuple[Stores, ContextRecord]:
        auth = await self._app_context.identify(request)
        record = await self._app_context.host.current(request.path_params["conversation_id"], auth)
        return self._app_context.host.stores_for(auth), record

    async def _items(
        self, stores: Stores, record: ContextRecord, *, descending: bool, after: str | None
    ) -> AsyncGenerator[Json, None]:
        """The items that are visible, beginning with the turn of the item *after*."""
        known = _turn_in(after) or (record.turn_count if descending else 1)
        first = min(known, record.turn_count)
        turns = range(first, 0, -1) if descending else range(first, record.turn_count + 1)
        for number in turns:
            turn = await record_of(stores, record.context_id, number)
            if turn is None or _is_hidden(record, turn):
                continue
            items = await self._items_of(stores, record.context_id, turn)
            for item in reversed(items) if descending else items:
                yield item

    async def _items_of(self, stores: Stores, context_id: str, turn: TurnRecord) -> list[Json]:
        message = await message_of(stores, context_id, turn)
        begun = [] if message is None else [input_item(message, context_id, turn.turn)]
        builder = ResponseBuilder(context_id, turn.turn, model=self._model)
        async for event in events_of(stores, context_id, turn.start_seq - 1, turn.end_seq):
            builder.take(event)
            if builder.done:
                break
        return [*begun, *builder.response()["output"]]


def input_item(message: UserMessage, context_id: str, turn: int) -> Json:
    """The item of the user's message that began *turn*."""
    content = message.content
    blocks = [TextContent(content)] if isinstance(content, str) else content
    return {
        "id": f"msg_{turn}_in_{context_id}",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [_part(block) for block in blocks],
    }


def page_of(items: Sequence[Json], *, more: bool) -> Json:
    """A page of a list, as the API has it."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def number_of(request: Request, name: str, usual: int, most: int) -> int:
    """
    A whole number of the query, from 0 to *most*.

    Raises:
        Problem: 400; it is not such a number.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > most:
        raise Problem(f"{name} is a whole number from 0 to {most:,}", path=f"/{name}")
    return int(text)


def _conversation(name: str, created: int) -> Json:
    return {"id": name, "object": "conversation", "created_at": created, "metadata": {}}


def _turn_in(item_id: str | None) -> int | None:
    """The turn that the id of an item names; ids of approvals name none."""
    found = re.match(r"[a-z]+_([0-9]{1,15})_", item_id or "", re.ASCII)
    return int(found[1]) if found else None


def _is_hidden(record: ContextRecord, turn: TurnRecord) -> bool:
    return any(first <= turn.first_position <= last for first, last in record.hidden)


def _part(block: UserBlock) -> Json:
    match block:
        case TextContent():
            return {"type": "input_text", "text": block.text}
        case ImageContent():
            url = block.url or f"data:{block.mime_type};base64,{block.data}"
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case DocumentContent():
            place: dict[str, Any] = {"file_url": block.url}
            if block.url is None:
                place = {"file_data": f"data:{block.mime_type};base64,{block.data}"}
            return {"type": "input_file", "filename": block.name, **place}
        case AudioContent():
            sound = {"data": block.data, "format": block.mime_type.partition("/")[2]}
            return {"type": "input_audio", "input_audio": sound}
