"""
What the caller answers, compared with what was asked before anything is stored.

Credentials are opened here, and only the turn that goes on is given them. What is stored of them is
what was sent, encrypted; credentials that came in plain are stored by nobody, so a turn that dies
with them, or that records a part of the answers, asks for them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from looopy.auth.sealing import KeyLost, KeyRing
from looopy.errors import InputNotFound, ValueRefused
from looopy.tools.answering import check_answer, refused
from looopy.types.maker import quick
from looopy.types.state import HeldCall, PendingKind, PendingRequest

_MAX_SHOWN = 10

Answered = Sequence[tuple[PendingRequest, Any]]


@quick
@dataclass(frozen=True, slots=True)
class Answers:
    """
    What was answered to the calls that are open, now and before.

    Attributes:
        opened: Credentials, by `request_id`. One that cannot be opened any more is missing, and
            its tool asks again.
        lost: The ids of those.
    """

    given: Answered
    opened: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lost: Collection[str] = ()

    @property
    def stored(self) -> Answered:
        """Those that may be stored."""
        return [
            (request, value)
            for request, value in self.given
            if not in_plain(request) and request.request_id not in self.lost
        ]


def in_plain(request: PendingRequest) -> bool:
    """Whether the answer holds credentials that nobody has encrypted."""
    return request.kind is PendingKind.AUTH and request.auth is None


def hear(
    pending: Sequence[PendingRequest],
    inputs: Mapping[str, Any],
    before: Answered,
    held: Sequence[HeldCall],
    keys: KeyRing,
    context_id: str | None = None,
) -> Answers:
    """
    Take the answers *inputs* to *pending*, together with those of *before*.

    Args:
        context_id: Of the requests: credentials that another context's agent asks for, by way of
            this one, are for that one to open.

    Raises:
        InputNotFound: An id is not pending, or has expired.
        ValueRefused: A value is no answer to its request.
    """
    by_id = {request.request_id: request for request in pending}
    new: list[tuple[PendingRequest, Any]] = []
    for request_id, value in inputs.items():
        request = by_id.get(request_id)
        if request is None or _expired(request):
            ids = [repr(one.request_id) for one in pending if not _expired(one)]
            more = f" and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
            raise InputNotFound(
                f"no pending request has the id {request_id!r}: nothing was stored;"
                f" pending: {', '.join(ids[:_MAX_SHOWN]) or 'none'}{more}",
                request_id=request_id,
            )
        check_answer(request, value)
        new.append((request, value))
    sealed = {name: text for one in held for name, text in one.sealed.items()}
    opened, lost = {}, set()
    for request, value in (*before, *new):
        if request.kind is PendingKind.AUTH:
            try:
                elsewhere = context_id is not None and _asks_for_another(request, context_id)
                opened[request.request_id] = (
                    value if elsewhere else _opened(request, value, sealed, keys)
                )
            except KeyLost:
                lost.add(request.request_id)
            except ValueRefused as error:
                if request.request_id in inputs:
                    raise refused(request, (), error.message) from None
    for request, _ in new:
        if request.request_id in opened and request.auth is not None:
            check_answer(request, opened[request.request_id], opened=True)
    return Answers((*before, *new), opened, lost)


def _asks_for_another(request: PendingRequest, context_id: str) -> bool:
    return request.auth is not None and request.auth.context_id not in (None, context_id)


def _opened(request: PendingRequest, value: Any, sealed: Mapping[str, str], keys: KeyRing) -> Any:
    auth = request.auth
    if auth is None or auth.request_id != request.request_id or auth.context_id is None:
        return value  # plain, or for somebody else's key, as of an agent that is a tool
    return keys.open(
        value,
        request_id=request.request_id,
        context_id=auth.context_id,
        sealed=sealed.get(request.request_id),
    )


def refuse_in_part(answers: Answers) -> None:
    """
    See that all of *answers* can be recorded until the others come.

    Raises:
        ValueRefused: There are credentials in plain.
    """
    for request, _ in answers.given:
        if in_plain(request):
            raise refused(
                request,
                (),
                "credentials that are not encrypted are kept by nobody: answer the other requests"
                " before, or together with this one",
            )


def _expired(request: PendingRequest) -> bool:
    return request.expires_at is not None and request.expires_at <= datetime.now(UTC)
