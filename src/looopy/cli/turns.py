"""
`looopy contexts send`, `follow`, `approve` and the like: the turns of a server, which runs them.

Each command is one or two requests of the HTTP API. `follow` and `send` show events as they come.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from looopy.cli.conversations.server import ServedConversations
from looopy.cli.event_view import View
from looopy.cli.render import json_line
from looopy.cli.terminal import Terminal, one_line
from looopy.errors import ConfigurationError, ContextNotFound, InputNotFound
from looopy.stores.rules import check_context_id
from looopy.types.approval import Approve, Deny
from looopy.types.event import InputRequired, TurnEnd, event_to_json
from looopy.types.state import Outcome

if TYPE_CHECKING:
    from looopy.server.models import OpenRequest


async def follow_context(
    place: ServedConversations,
    terminal: Terminal,
    *,
    context_id: str,
    after: int | None,
    until_end: bool,
    as_json: bool,
) -> int:
    """
    Print the events of a conversation as they come, until Ctrl-C.

    Args:
        after: Begin after this `seq`; `None`: after the newest event.
        until_end: Return when a turn has ended and no other one runs.
    """
    check_context_id(context_id)
    terminal = Terminal(quiet_out=as_json)  # the events are what is asked for, notices included
    item = await place.context(context_id)
    seq = item["last_seq"] if after is None else after
    if until_end and item["status"] != "busy" and seq >= item["last_seq"]:
        return 0
    view = View(terminal, as_json=as_json)
    async with aclosing(place.events(context_id, after=seq)) as events:
        async for event in events:
            view.show(event)
            if isinstance(event, InputRequired) and not as_json:
                _show_requests(terminal, event, view)
            if until_end and isinstance(event, TurnEnd) and not event.path:
                item = await place.context(context_id)
                if item["status"] != "busy" and item["last_seq"] == event.seq:
                    return 0
    return 0


async def send_message(
    place: ServedConversations,
    terminal: Terminal,
    *,
    context_id: str,
    message: str | None = None,
    **options: Any,
) -> int:
    """
    Send a message, or continue the conversation (`None`), and show its turn.

    Returns:
        The exit status: 0, or 1 if the turn did not complete.
    """
    if message == "-":
        message = sys.stdin.read().removesuffix("\n")
    return await _turn(place, terminal, context_id, message, **options)


async def approve_call(
    place: ServedConversations,
    terminal: Terminal,
    *,
    context_id: str,
    request_id: str | None,
    args: str | None,
    note: str | None,
    **options: Any,
) -> int:
    """
    Allow a call that waits for approval, and show how its turn continues.

    Args:
        request_id: `None`: the only one that waits.
        args: Other arguments, as a JSON object.
    """
    given = None if args is None else _object(args)
    answer = Approve(args=given, note=note)
    return await _turn(place, terminal, context_id, answer=(request_id, answer), **options)


async def deny_call(
    place: ServedConversations,
    terminal: Terminal,
    *,
    context_id: str,
    request_id: str | None,
    reason: str | None,
    **options: Any,
) -> int:
    """Refuse a call that waits for approval, and show how its turn continues."""
    answer = (request_id, Deny(reason=reason))
    return await _turn(place, terminal, context_id, answer=answer, **options)


async def answer_request(
    place: ServedConversations,
    terminal: Terminal,
    *,
    context_id: str,
    value: str,
    request_id: str | None,
    **options: Any,
) -> int:
    """Answer a question of a call: with JSON, or with text."""
    try:
        answer = json.loads(value)
    except ValueError:
        answer = value
    return await _turn(place, terminal, context_id, answer=(request_id, answer), **options)


async def cancel_turn(
    place: ServedConversations,
    terminal: Terminal,  # noqa: ARG001 - as each command
    *,
    context_id: str,
) -> int:
    """Stop the running turn."""
    check_context_id(context_id)
    await place.cancel(context_id)
    return 0


# --- turns -------------------------------------------------------------------------------------


async def _turn(
    place: ServedConversations,
    terminal: Terminal,
    context_id: str,
    message: str | None = None,
    *,
    answer: tuple[str | None, Any] | None = None,
    wait: bool,
    as_json: bool,
) -> int:
    """Begin or continue a turn, and show it; *answer* is for a request, or for the only one."""
    check_context_id(context_id)
    seq, inputs = 0, None
    try:
        item = await place.context(context_id)
        seq = item["last_seq"]
        if answer is not None:
            inputs = {answer[0] or _only(item): answer[1]}
    except ContextNotFound:
        if answer is not None:
            return await _decide(place, terminal, context_id, *answer, as_json=as_json)
        if message is None:
            raise
    turn = await place.begin_turn(context_id, message, inputs=inputs)
    if not wait:
        if as_json:
            terminal.raw_line(json_line({"context_id": context_id, "turn": turn}))
        else:
            terminal.line(f"turn {turn}")
        return 0
    view = View(terminal, as_json=as_json)
    if message is not None:
        view.typed(message)
    with terminal.working("working"):
        async with aclosing(place.events(context_id, after=seq)) as events:
            async for event in events:
                if event.turn not in (turn, 0):
                    continue
                view.show(event)
                if isinstance(event, InputRequired) and not as_json:
                    _show_requests(terminal, event, view)
                if isinstance(event, TurnEnd) and not event.path:
                    return 0 if event.outcome is Outcome.COMPLETED else 1
    return 1


async def list_requests(place: ServedConversations, terminal: Terminal, *, as_json: bool) -> int:
    """List the calls in conversations of others that wait for the caller's approval."""
    items = [item async for item in _requests(place)]
    if as_json:
        terminal.raw_line(json_line({"items": items}))
        return 0
    for item in items:
        args = json.dumps(item["args"], ensure_ascii=False)
        ends = "" if item["expires_at"] is None else f"  until {item['expires_at']}"
        terminal.line(f"{item['context_id']}  {item['request_id']}  of {item['owner']}{ends}")
        terminal.line(f"  {one_line(item['prompt'], 300)}")
        terminal.line(f"  {item['tool_name']} {args}")
    return 0


async def _requests(place: ServedConversations) -> AsyncIterator[OpenRequest]:
    after: str | None = None
    while True:
        page = await place.requests(after=after)
        for item in page["items"]:
            yield item
        if (after := page["next"]) is None:
            return


async def _decide(
    place: ServedConversations,
    terminal: Terminal,
    context_id: str,
    request_id: str | None,
    answer: Any,
    *,
    as_json: bool,
) -> int:
    """Decide a call in the conversation of another user, which this user may not read."""
    if request_id is None:
        asked = [one async for one in _requests(place) if one["context_id"] == context_id]
        request_id = _only({"context_id": context_id, "pending": asked})
    made = await place.decide(context_id, request_id, answer)
    if as_json:
        terminal.raw_line(json_line(event_to_json(made)))
    else:
        terminal.line(f"{made.tool_name} was {made.decision}; it waits for its owner now")
    return 0


def _show_requests(terminal: Terminal, event: InputRequired, view: View) -> None:
    if event.reason:  # the warning about it is not stored
        said = "for the budget" if view.warned else one_line(event.reason, 500)
        terminal.notice(f"[turn {event.turn} waits: {said}]")
    for request in event.pending:
        args = json.dumps(dict(request.args), ensure_ascii=False, default=str)
        terminal.notice(f"[{request.tool_name} {args} waits for an answer: {request.request_id}]")


def _only(item: Mapping[str, Any]) -> str:
    """The id of the only request that waits."""
    pending = item["pending"]
    if not pending:
        raise InputNotFound(f"nothing waits for an answer in {item['context_id']!r}")
    if len(pending) > 1:
        ids = ", ".join(f"{one['request_id']} ({one['tool_name']})" for one in pending)
        raise ConfigurationError(f"several requests wait, so name one of them: {ids}")
    return str(pending[0]["request_id"])


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--args takes a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError("--args takes a JSON object, all arguments by name")
    return found
