"""
`looopy contexts list`, `show`, `search` and `fork`: the conversations of a database or of a server.

The other files print a conversation as text with the functions at the end of this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from looopy.cli.conversations.base import Conversations
from looopy.cli.render import counted, json_line, shown_call
from looopy.cli.terminal import Terminal
from looopy.errors import ValueRefused
from looopy.stores.rules import check_context_id
from looopy.types.message import AssistantMessage, Message, ToolResultMessage, UserMessage
from looopy.types.message_json import message_from_json
from looopy.types.state import AgentStatus

if TYPE_CHECKING:
    from looopy.server.models import Context


async def list_contexts(
    place: Conversations,
    terminal: Terminal,
    *,
    as_json: bool,
    metadata: Sequence[str] = (),
    after: str | None = None,
    limit: int | None = None,
    **conditions: Any,
) -> int:
    """
    Print the conversations: a line each, or one JSON object.

    Raises:
        ValueRefused: A condition is invalid; see `Conversations.contexts`, which takes them.
    """
    conditions["metadata"] = dict(map(_entry, metadata))
    items: list[Context] = []
    shown = 0
    while True:
        most = None if limit is None else limit - shown
        with _naming_after():
            page = await place.contexts(**conditions, after=after, limit=most)
        shown += len(page["items"])
        if as_json:
            items += page["items"]
        else:
            for item in page["items"]:
                terminal.line(context_line(item))
        if (after := page["next"]) is None or shown == limit:
            break
    if as_json:
        terminal.raw_line(json_line({"items": items, "next": after}))
    elif not shown:
        some = "no such conversations" if any(conditions.values()) else "no conversations"
        terminal.notice(f"There are {some}{place.whose} {place.where}.")
    elif after is not None:
        terminal.notice(f"More with --after {after}")
    return 0


def _entry(text: str) -> tuple[str, str | int]:
    """An entry of metadata from `KEY=VALUE`."""
    key, found, value = text.partition("=")
    if not found:
        raise ValueRefused(f"{text!r} is not KEY=VALUE", path="/metadata")
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    return key, read if isinstance(read, int) else value


async def show_context(
    place: Conversations, terminal: Terminal, *, context_id: str, as_json: bool
) -> int:
    """
    Print one conversation, its turns and its messages.

    Raises:
        ContextNotFound: No conversation has this name.
    """
    check_context_id(context_id)
    item = await place.context(context_id)
    turns = place.turns(context_id)
    if as_json:
        whole = {
            **item,
            "turns": [turn async for turn in turns],
            "messages": [one async for one in place.messages(context_id)],
        }
        terminal.raw_line(json_line(whole))
        return 0
    for line in (context_line(item), *_more_lines(item)):
        terminal.line(line)
    shown = 0
    async for message in place.messages(context_id):
        while shown < message["turn"] and (turn := await anext(turns, None)) is not None:
            shown = turn["turn"]
            if shown == message["turn"]:
                terminal.line(f"\n{turn_line(turn)}")
        show_message(terminal, message["position"], message_from_json(message["message"]))
    return 0


async def search_contexts(
    place: Conversations, terminal: Terminal, *, query: Sequence[str], as_json: bool, **others: Any
) -> int:
    """
    Print the messages that have all words of *query*: a line each, or one JSON object.

    Raises:
        ValueRefused: An argument is invalid; see `Conversations.search`, which takes *others*.
    """
    with _naming_after():
        page = await place.search(" ".join(query), **others)
    if as_json:
        terminal.raw_line(json_line({"items": page["items"], "next": page["next"]}))
        return 0
    for hit in page["items"]:
        said = " ".join(hit["snippet"].split())
        terminal.line(f"{hit['context_id']} {hit['position']} {hit['role']}: {said}")
    if not page["items"]:
        terminal.notice(f"No message has these words {place.where}.")
    elif page["next"] is not None:
        terminal.notice(f"More with --after {page['next']}")
    return 0


async def fork_context(
    place: Conversations,
    terminal: Terminal,
    *,
    context_id: str,
    new_context_id: str,
    at: int | None,
    as_json: bool,
) -> int:
    """
    Make a conversation that begins with the past of another one, and print it.

    Raises:
        LooopyError: See `Conversations.fork`.
    """
    check_context_id(context_id)
    made = await place.fork(context_id, new_context_id, at=at)
    if as_json:
        terminal.raw_line(json_line(made))
    else:
        terminal.line(context_line(made))
    return 0


@contextmanager
def _naming_after() -> Iterator[None]:
    """Report in words of this program that `--after` is not of this query."""
    try:
        yield
    except ValueRefused as error:
        if error.path != "/after":
            raise
        said = "--after takes what `More with --after` printed for the same words and conditions"
        raise ValueRefused(said, path=error.path) from None


# --- for people --------------------------------------------------------------------------------


def context_line(item: Mapping[str, Any]) -> str:
    """A context, as the HTTP API describes it, in one line."""
    interrupted = item["interrupted_turn"]
    how = item["status"] if interrupted is None else f"turn {interrupted} interrupted"
    if item["waits_for"] is not None:
        how = f"turn {interrupted} waits for {_budget(item)}"
    elif item["needs_auth"]:
        how = f"turn {interrupted} waits for credentials of {item.get('owner') or 'its owner'}"
    if (left_as := item.get("left_as")) is not None:
        left = "shut down" if left_as == AgentStatus.SHUTDOWN else left_as
        how = left if how == AgentStatus.READY else f"{how}, {left}"
    turns = counted(item["turn_count"], "turn")
    tags = "".join(f"  #{tag}" for tag in item["tags"])
    last = _time(item["last_activity"])
    return f"{item['context_id']}  {how}  {turns}  last activity {last}{tags}"


def _budget(item: Mapping[str, Any]) -> str:
    """The budget that has no room for a turn, in a few words."""
    whose, _, rest = (item["waits_for_limit"] or "").partition("_")
    period = rest.partition("_")[0]
    if whose == "tenant":
        return f"the tenant's budget of the {period}"
    if whose == "owner":
        return f"the budget of the {period} of {item.get('owner') or 'its owner'}"
    return "its budget"


def _more_lines(item: Mapping[str, Any]) -> Iterator[str]:
    """The budget that has no room, open questions, and relatives, where there are any."""
    if item["waits_for"] is not None:
        yield f"turn {item['interrupted_turn']} waits: {item['waits_for']}"
    for request in item["pending"]:
        yield f"{request['tool_name']} waits for an answer: {request['request_id']}"
    if (parent := item.get("parent")) is not None:
        name = parent["context_id"] or "a conversation that is gone"
        yield f"forked from {name} at {parent['at']}"
    for fork in item.get("forks", ()):
        yield f"fork {fork['context_id']} at {fork['at']}"


def turn_line(item: Mapping[str, Any]) -> str:
    """A turn, as the HTTP API describes it, in one line."""
    outcome = item["outcome"] or "open"
    parts = [f"turn {item['turn']}", outcome]
    if item["stop_reason"] is not None and item["stop_reason"] != outcome:
        parts[1] += f" ({item['stop_reason']})"
    if item["continues"] is not None:
        parts.append(f"continues turn {item['continues']}")
    parts.append(_time(item["started_at"]))
    if item["ended_at"] is not None:
        took = datetime.fromisoformat(item["ended_at"]) - datetime.fromisoformat(item["started_at"])
        parts.append(f"{took.total_seconds():.1f} s")
    if item["usage"].get("total_tokens"):
        parts.append(f"{item['usage']['total_tokens']:,} tokens")
    if item.get("process") is not None:
        parts.append(f"process {item['process']}")
    if item.get("recovered_by") is not None:
        parts.append(f"taken over by {item['recovered_by']}")
    return "  ".join(parts)


def show_message(terminal: Terminal, position: int, message: Message) -> None:
    """Print a message with its place, as a line or more."""
    where = f"{position:>4}"
    if isinstance(message, UserMessage):
        terminal.line(f"{where} user: {message.text}")
    elif isinstance(message, AssistantMessage):
        if message.text:
            terminal.line(f"{where} assistant: {message.text}")
        for call in message.tool_calls:
            terminal.line(f"{where} calls {shown_call(call.name, call.arguments)}")
    elif isinstance(message, ToolResultMessage):
        how = "failed" if message.is_error else "answers"
        terminal.line(f"{where} {message.tool_name} {how}: {message.text}")
    else:
        terminal.line(f"{where} {message.role}: {json_line(message.content)}")


def _time(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
