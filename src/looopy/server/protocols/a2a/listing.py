"""
The tasks of a caller, page by page: the last active context first, and its newest task first.

A page reads no more contexts than it shows tasks of, and no page is lost or repeated because a
context becomes active: it moves to the front. The total is counted as far as it was read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from looopy.agent.lease import seems_left
from looopy.errors import ContextNotFound, ValueRefused
from looopy.server.host import AgentHost
from looopy.server.protocols.a2a.calls import Call
from looopy.server.protocols.a2a.parts import invalid
from looopy.server.protocols.a2a.tasks import INLINE_BYTES, Chain, TaskReader, answers_before
from looopy.stores.base import Journal
from looopy.stores.records import ContextRecord, TurnRecord
from looopy.types.context import AuthContext

_PAGE: Final = 50
_TURNS: Final = 100
_MOST_READ: Final = 1_000  # tasks that one request looks at
Reader: TypeAlias = Callable[[str, Call], TaskReader]


@dataclass(frozen=True, slots=True)
class _Place:
    """
    The place of a task in the listing.

    Attributes:
        after: The cursor of the contexts before its own; `None` for the first.
        context_id: Its context.
        turn: Its first turn.
        count: How many tasks were shown up to it.
    """

    after: str | None = None
    context_id: str = ""
    turn: int = 0
    count: int = 0

    def token(self) -> str:
        said = json.dumps([self.after, self.context_id, self.turn, self.count])
        return base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")


def _place(token: str) -> _Place:
    """
    The place that a page token names.

    Raises:
        InvalidParamsError: It is not a token of a page.
    """
    try:
        said = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        after, context_id, turn, count = said
    except (ValueError, TypeError, RecursionError):
        raise _no_token() from None
    fits = isinstance(context_id, str) and _is_count(turn) and _is_count(count)
    if not fits or not (after is None or isinstance(after, str)):
        raise _no_token()
    return _Place(after, context_id, turn, count)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _no_token() -> Exception:
    return invalid("pageToken takes the nextPageToken of a page", "/pageToken")


async def tasks(
    host: AgentHost, params: ListTasksRequest, call: Call, reader_of: Reader
) -> ListTasksResponse:
    """
    A page of the caller's tasks.

    Raises:
        InvalidParamsError: A number or the token is wrong.
    """
    validate_history_length(params)
    if params.HasField("page_size"):
        validate_page_size(params.page_size)
    size = params.page_size or _PAGE
    start = _place(params.page_token) if params.page_token else _Place()
    since: datetime | None = None
    if params.HasField("status_timestamp_after"):
        since = params.status_timestamp_after.ToDatetime(UTC)
    response = ListTasksResponse(page_size=size)
    read, count = 0, start.count
    last: _Place | None = None
    async with aclosing(_chains(host, call, params.context_id, start, since)) as found:
        async for place, listed in found:
            if len(response.tasks) == size or read == _MOST_READ:
                response.next_page_token = (last or start).token()
                break
            read += 1
            reader, chain = reader_of(place.context_id, call), listed
            if await settle_dead(host, chain, call.auth) or chain.torn:
                chain = await reader.find(place.turn) or chain
            last = _Place(place.after, place.context_id, place.turn, count)
            if params.status not in (TaskState.TASK_STATE_UNSPECIFIED, chain.state):
                continue
            count += 1
            last = _Place(place.after, place.context_id, place.turn, count)
            task = await reader.task(
                chain,
                history=params.history_length > 0,
                artifacts=params.include_artifacts,
                inline=INLINE_BYTES,
            )
            response.tasks.append(apply_history_length(task, params))
    response.total_size = count + bool(response.next_page_token)
    return response


async def settle_dead(host: AgentHost, chain: Chain, auth: AuthContext) -> bool:
    """End the turn of *chain* if its process died; true if there was something to end."""
    record = chain.context
    if chain.settled or record.open_turn is None or not seems_left(record):
        return False
    async with host.agent(record.context_id, auth, create=False) as agent:
        await agent.refresh()
    return True


async def _chains(
    host: AgentHost, call: Call, context_id: str, start: _Place, since: datetime | None
) -> AsyncGenerator[tuple[_Place, Chain], None]:
    """The tasks after *start*, with their places."""
    journal = host.stores_for(call.auth).journal
    async for after, record in _contexts(host, call, context_id, start, since):
        below = start.turn if record.context_id == start.context_id else 0
        async for turns in _backwards(journal, record, below):
            chain = Chain(record, turns)
            if since is not None and chain.changed_at < since:
                break
            yield _Place(after, record.context_id, turns[0].turn), chain


async def _contexts(
    host: AgentHost, call: Call, context_id: str, start: _Place, since: datetime | None
) -> AsyncIterator[tuple[str | None, ContextRecord]]:
    """The contexts of the caller, or the one that is asked for, each with the cursor before it."""
    if context_id:
        try:
            record = await host.authorise(context_id, call.auth)
        except (ContextNotFound, ValueRefused):
            return  # as one without tasks
        if record is not None:
            yield None, record
        return
    after = start.after
    while True:
        page = await host.stores_for(call.auth).contexts.list(
            owner=call.auth.actor_id, active_since=since, after=after, limit=1
        )
        for record in page.items:
            yield after, record
        if page.next is None:
            return
        after = page.next


async def _backwards(
    journal: Journal, record: ContextRecord, below: int
) -> AsyncIterator[Sequence[TurnRecord]]:
    """The turns of each task of a context, the newest task first; only those before *below*."""
    upto = (below or record.turn_count + 1) - 1
    chain: list[TurnRecord] = []
    while upto > 0:
        after = max(upto - _TURNS, 0)
        found = await journal.turns(record.context_id, after=max(after - 1, 0), limit=_TURNS + 1)
        by_number = {turn.turn: turn for turn in found if turn.turn <= upto}
        for number in range(upto, after, -1):
            turn = by_number.get(number)
            if turn is None:
                continue
            chain.insert(0, turn)
            if not answers_before(turn, by_number.get(number - 1)):
                yield chain
                chain = []
        upto = after
