"""
The conversations of a server: list and show them, speak in them, follow them, erase them.

Each command is one or two requests of the HTTP API. `follow` and `send` show events as they come.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from looopy.cli.contexts import context_line, show_hits, show_message, turn_line, waiting_line
from looopy.cli.erasing import agrees
from looopy.cli.remote.connection import Away, connect
from looopy.cli.remote.view import View
from looopy.cli.render import json_line
from looopy.cli.terminal import Terminal, one_line
from looopy.errors import (
    AgentBusy,
    ConfigurationError,
    ContextNotFound,
    InputNotFound,
    LooopyError,
)
from looopy.server.client import Client, ContextItem, RequestItem
from looopy.stores.rules import check_context_id
from looopy.types.approval import Approve, Deny
from looopy.types.event import InputRequired, TurnEnd, event_to_json
from looopy.types.message_json import message_from_json
from looopy.types.state import Outcome

_PAGE: Final = 50
FIRST_S: Final = 1.0  # how long a program looks for a server that it has not seen yet


@asynccontextmanager
async def _reaching(url: str, token: str | None, terminal: Terminal) -> AsyncIterator[Client]:
    """A client that gives up at once if the server is not there, and says if it goes away later."""

    def tell(error: LooopyError | None) -> None:
        if reached:
            tell_of(terminal, Away(error))

    reached = False
    async with connect(url, token, terminal, patience_s=FIRST_S, on_away=tell) as client:
        await client.contexts(limit=1)
        reached = True
        client.patience_s = float("inf")
        yield client


def tell_of(terminal: Terminal, change: Away) -> None:
    """Say that the server is away, or back."""
    if change.error is None:
        terminal.notice("[the server is back]")
    else:
        terminal.notice("[the server does not answer; trying again]")


async def list_contexts(
    url: str,
    *,
    token: str | None,
    as_json: bool,
    status: str | None,
    tags: Sequence[str],
    after: str | None,
    limit: int | None,
    **others: Any,
) -> int:
    """
    Print the caller's conversations: a line each, or one JSON object.

    Raises:
        ConfigurationError: A condition is for databases only.
    """
    _refuse(others, owner="--owner", metadata="--metadata", due="--due")
    terminal = Terminal(quiet_out=True)
    items: list[ContextItem] = []
    shown = 0
    async with _reaching(url, token, terminal) as client:
        while True:
            most = _PAGE if limit is None else min(_PAGE, limit - shown)
            page = await client.contexts(status=status, tags=tags, after=after, limit=most)
            shown += len(page["items"])
            for item in page["items"]:
                if as_json:
                    items.append(item)
                else:
                    terminal.line(context_line(item))
            after = page["next"]
            if after is None or shown == limit:
                break
    if as_json:
        terminal.raw_line(json_line({"items": items, "next": after}))
    elif not shown:
        some = status is not None or tags
        said = "no such conversations" if some else "no conversations of yours"
        terminal.notice(f"There are {said} on {client.url}.")
    elif after is not None:
        terminal.notice(f"More with --after {after}")
    return 0


async def show_context(url: str, context_id: str, *, token: str | None, as_json: bool) -> int:
    """
    Print one conversation, its turns and its messages.

    Raises:
        ContextNotFound: The caller has no conversation of this name.
    """
    check_context_id(context_id)
    terminal = Terminal(quiet_out=True)
    async with _reaching(url, token, terminal) as client:
        item = await client.context(context_id)
        if as_json:
            turns = [turn async for turn in client.turns(context_id)]
            messages = [one async for one in client.messages(context_id)]
            terminal.raw_line(json_line({**item, "turns": turns, "messages": messages}))
            return 0
        terminal.line(context_line(item))
        if (wait := waiting_line(item)) is not None:
            terminal.line(wait)
        for request in item["pending"]:
            terminal.line(f"{request['tool_name']} waits for an answer: {request['request_id']}")
        shown, turns_left = 0, client.turns(context_id)
        async for message in client.messages(context_id):
            while shown < message["turn"] and (turn := await anext(turns_left, None)) is not None:
                shown = turn["turn"]
                if shown == message["turn"]:
                    terminal.line(f"\n{turn_line(turn)}")
            show_message(terminal, message["position"], message_from_json(message["message"]))
    return 0


async def search_contexts(
    url: str,
    query: Sequence[str],
    *,
    token: str | None,
    as_json: bool,
    context_id: str | None,
    owner: str | None,
    after: str | None,
    limit: int,
) -> int:
    """Print the caller's messages that have all words of *query*: a line each, or one object."""
    _refuse({"owner": owner}, owner="--owner")
    terminal = Terminal(quiet_out=True)
    async with _reaching(url, token, terminal) as client:
        page = await client.search(" ".join(query), context_id=context_id, after=after, limit=limit)
    show_hits(terminal, page["items"], page["next"], client.url, as_json=as_json)
    return 0


async def fork_context(
    url: str,
    context_id: str,
    new_context_id: str,
    at: int | None,
    *,
    token: str | None,
    as_json: bool,
) -> int:
    """Make a conversation that begins with the past of another one, and print it."""
    check_context_id(context_id)
    terminal = Terminal(quiet_out=True)
    async with _reaching(url, token, terminal) as client:
        made = await client.fork(context_id, new_context_id, at=at)
    if as_json:
        terminal.raw_line(json_line(made))
    else:
        terminal.line(context_line(made))
    return 0


async def delete_contexts(
    url: str,
    context_ids: Sequence[str],
    *,
    token: str | None,
    force: bool,
    agreed: bool,
    as_json: bool,
    **others: Any,
) -> int:
    """
    Erase conversations. A missing or busy one is an error line and the status 1.

    Raises:
        ConfigurationError: None is named, nobody can agree, or an option is for databases only.
    """
    _refuse(others, person="--person", keep_backups="--keep-backups")
    for name in context_ids:
        check_context_id(name)
    if not context_ids:
        raise ConfigurationError("name the conversations to erase")
    terminal = Terminal(quiet_out=True)
    erased: list[str] = []
    refused: list[str] = []
    async with _reaching(url, token, terminal) as client:
        question = f"Erase {', '.join(context_ids)} on {client.url} for good?"
        if not (agreed or agrees(terminal, question)):
            return 1
        for name in context_ids:
            try:
                await client.delete(name, force=force)
                erased.append(name)
            except ContextNotFound:
                refused.append(f"there is no conversation {name!r} on {client.url}")
            except AgentBusy:
                refused.append(f"a turn is running in {name!r}: wait for it, or pass --force")
    if as_json:
        terminal.raw_line(json_line({"contexts": len(erased), "context_ids": erased}))
    else:
        for name in erased:
            terminal.line(f"erased {name}")
    for line in refused:
        terminal.error(line)
    return 1 if refused else 0


async def follow_context(
    url: str,
    context_id: str,
    *,
    token: str | None,
    after: int | None,
    until_end: bool,
    as_json: bool,
) -> int:
    """
    Print the events of a conversation as they come, until Ctrl-C.

    Args:
        after: Begin behind this `seq`; `None`: behind the newest event.
        until_end: Leave when a turn has ended and none runs.
    """
    check_context_id(context_id)
    terminal = Terminal(quiet_out=as_json)
    async with _reaching(url, token, terminal) as client:
        item = await client.context(context_id)
        place = item["last_seq"] if after is None else after
        if until_end and item["status"] != "busy" and place >= item["last_seq"]:
            return 0
        view = View(terminal, as_json=as_json)
        async with aclosing(client.events(context_id, after=place)) as events:
            async for event in events:
                view.show(event)
                if isinstance(event, InputRequired) and not as_json:
                    _say_what_waits(terminal, event, view)
                if until_end and isinstance(event, TurnEnd) and not event.path:
                    item = await client.context(context_id)
                    if item["status"] != "busy" and item["last_seq"] == event.seq:
                        return 0
    return 0


async def send_message(
    url: str,
    context_id: str,
    message: str | None,
    *,
    token: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """
    Send a message, or continue the conversation (`None`), and show its turn.

    Returns:
        The exit status: 0, or 1 if the turn did not complete.
    """
    check_context_id(context_id)
    if message == "-":
        message = sys.stdin.read().removesuffix("\n")
    return await _turn(url, context_id, message, None, token=token, wait=wait, as_json=as_json)


async def continue_turn(url: str, context_id: str, **options: Any) -> int:
    """Continue an interrupted or failed turn, and show it."""
    return await send_message(url, context_id, None, **options)


async def approve_call(
    url: str,
    context_id: str,
    request_id: str | None,
    *,
    args: str | None,
    note: str | None,
    **options: Any,
) -> int:
    """
    Allow a call that waits for approval, and show how its turn goes on.

    Args:
        request_id: `None`: the only one that waits.
        args: Other arguments, as a JSON object.
    """
    given = None if args is None else _object(args)
    answer = Approve(args=given, note=note)
    return await _answer(url, context_id, request_id, answer, **options)


async def deny_call(
    url: str, context_id: str, request_id: str | None, *, reason: str | None, **options: Any
) -> int:
    """Refuse a call that waits for approval, and show how its turn goes on."""
    return await _answer(url, context_id, request_id, Deny(reason=reason), **options)


async def answer_request(
    url: str, context_id: str, value: str, *, request_id: str | None, **options: Any
) -> int:
    """Answer a question of a call: with JSON, or with text."""
    try:
        answer = json.loads(value)
    except ValueError:
        answer = value
    return await _answer(url, context_id, request_id, answer, **options)


async def cancel_turn(url: str, context_id: str, *, token: str | None) -> int:
    """Stop the running turn."""
    check_context_id(context_id)
    async with _reaching(url, token, Terminal(quiet_out=True)) as client:
        await client.cancel(context_id)
    return 0


# --- turns -------------------------------------------------------------------------------------


async def _answer(
    url: str, context_id: str, request_id: str | None, answer: Any, **options: Any
) -> int:
    check_context_id(context_id)
    return await _turn(url, context_id, None, (request_id, answer), **options)


async def _turn(
    url: str,
    context_id: str,
    message: str | None,
    answer: tuple[str | None, Any] | None,
    *,
    token: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    terminal = Terminal(quiet_out=True)
    async with _reaching(url, token, terminal) as client:
        place, inputs = 0, None
        try:
            item = await client.context(context_id)
            place = item["last_seq"]
            if answer is not None:
                inputs = {answer[0] or _only(item): answer[1]}
        except ContextNotFound:
            if answer is not None:
                return await _decide(client, terminal, context_id, *answer, as_json=as_json)
            if message is None:
                raise
        turn = await client.begin_turn(context_id, message, inputs=inputs)
        if not wait:
            if as_json:
                terminal.raw_line(json_line({"context_id": context_id, "turn": turn}))
            else:
                terminal.line(f"turn {turn}")
            return 0
        view = View(terminal, as_json=as_json)
        if message is not None:
            view.typed(message)
        return await _until_end(client, context_id, turn, place, view, terminal, as_json=as_json)


async def list_requests(url: str, *, token: str | None, as_json: bool) -> int:
    """List the calls in conversations of others that wait for the caller's approval."""
    terminal = Terminal(quiet_out=True)
    async with _reaching(url, token, terminal) as client:
        items = [item async for item in _requests(client)]
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


async def _requests(client: Client) -> AsyncIterator[RequestItem]:
    after: str | None = None
    while True:
        page = await client.requests(after=after)
        for item in page["items"]:
            yield item
        if (after := page["next"]) is None:
            return


async def _decide(
    client: Client,
    terminal: Terminal,
    context_id: str,
    request_id: str | None,
    answer: Any,
    *,
    as_json: bool,
) -> int:
    """Decide a call in the conversation of somebody else, which this user may not look at."""
    if request_id is None:
        asked = [one async for one in _requests(client) if one["context_id"] == context_id]
        request_id = _only({"context_id": context_id, "pending": asked})
    made = await client.decide(context_id, request_id, answer)
    if as_json:
        terminal.raw_line(json_line(event_to_json(made)))
    else:
        terminal.line(f"{made.tool_name} was {made.decision}; it waits for its owner now")
    return 0


async def _until_end(
    client: Client,
    context_id: str,
    turn: int,
    place: int,
    view: View,
    terminal: Terminal,
    *,
    as_json: bool,
) -> int:
    """Show a turn to its end."""
    with terminal.working("working"):
        async with aclosing(client.events(context_id, after=place)) as events:
            async for event in events:
                if event.turn not in (turn, 0):
                    continue
                view.show(event)
                if isinstance(event, InputRequired) and not as_json:
                    _say_what_waits(terminal, event, view)
                if isinstance(event, TurnEnd) and not event.path:
                    return 0 if event.outcome is Outcome.COMPLETED else 1
    return 1


def _say_what_waits(terminal: Terminal, event: InputRequired, view: View) -> None:
    if event.reason:  # the warning that says it as well is not stored
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


def _refuse(given: Mapping[str, Any], **flags: str) -> None:
    for name, flag in flags.items():
        if given.get(name):
            raise ConfigurationError(f"{flag} is for a database: a server knows who you are")
