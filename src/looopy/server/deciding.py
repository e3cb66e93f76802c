"""
Decisions of a person in another person's conversation.

An application that passes `may_answer` lets one person decide requests for approval of another.
Such a person sees the requests and nothing else of the conversation. A conversation without a
request for that person looks like one that does not exist, as for every stranger.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

from looopy.agent.decisions import request_named
from looopy.errors import FactoryFailed
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord
from looopy.types.context import AuthContext
from looopy.types.event import utc_now
from looopy.types.state import AgentStatus, PendingKind, PendingRequest

_PAGE: Final = 100
_PAGES: Final = 5  # a listing looks at no more pages of waiting contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest(PendingRequest):
    """
    A request for approval, as `may_answer` judges it and its second person sees it.

    Attributes:
        context_id: The conversation in which it was asked.
        owner: The actor whose conversation that is, and for whom the call would run.
    """

    context_id: str
    owner: str | None


MayAnswer: TypeAlias = Callable[[OpenRequest, AuthContext], bool | Awaitable[bool]]
"""Decides if a person may answer another person's request. A function or coroutine function."""


@dataclass(frozen=True, slots=True)
class RequestPage:
    """
    A page of requests.

    Attributes:
        items: May be empty although there is a next page.
        next: Pass it as `after` for the next page; `None` if this is the last one.
    """

    items: Sequence[OpenRequest]
    next: str | None = None


async def requests_for(
    auth: AuthContext,
    stores: Stores,
    may_answer: MayAnswer,
    *,
    after: str | None,
    limit: int,
) -> RequestPage:
    """The requests in conversations of others that *auth* may answer, the newest contexts first."""
    found: list[OpenRequest] = []
    for _ in range(_PAGES):
        page = await stores.contexts.list(
            status=AgentStatus.WAITING, after=after, limit=min(limit, _PAGE)
        )
        for record in page.items:
            found += await open_in(record, auth, may_answer)
        after = page.next
        if after is None or len(found) >= limit:
            break
    return RequestPage(found, after)


async def open_in(
    record: ContextRecord, auth: AuthContext, may_answer: MayAnswer
) -> list[OpenRequest]:
    """The open requests in another person's context that *auth* may answer."""
    found: list[OpenRequest] = []
    for request in record.state.pending if record.owner_actor != auth.actor_id else ():
        if request.kind is PendingKind.APPROVAL and not _is_over(request):
            opened = _opened(request, record)
            if await _may(may_answer, opened, auth):
                found.append(opened)
    return found


async def requests_named(
    auth: AuthContext,
    stores: Stores,
    may_answer: MayAnswer,
    context_id: str,
    request_ids: Iterable[str],
) -> Mapping[str, PendingRequest] | None:
    """The requests of these ids, answered or not, if *auth* may answer all of them; else `None`."""
    record = await stores.state.load(context_id)
    if record is None:
        return None
    found: dict[str, PendingRequest] = {}
    for name in request_ids:
        request = await request_named(stores.journal, record, name)
        if request is None or request.kind is not PendingKind.APPROVAL:
            return None
        if not await _may(may_answer, _opened(request, record), auth):
            return None
        found[name] = request
    return found


def _opened(request: PendingRequest, record: ContextRecord) -> OpenRequest:
    said = {one.name: getattr(request, one.name) for one in fields(request)}
    return OpenRequest(**said, context_id=record.context_id, owner=record.owner_actor)


async def _may(may_answer: MayAnswer, request: OpenRequest, auth: AuthContext) -> bool:
    try:
        said = may_answer(request, auth)
        return (await said if inspect.isawaitable(said) else said) is True
    except Exception as error:
        text = f"may_answer raised {type(error).__name__}"
        raise FactoryFailed(text, context_id=request.context_id) from error


def _is_over(request: PendingRequest) -> bool:
    return request.expires_at is not None and request.expires_at <= utc_now()
