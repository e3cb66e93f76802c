"""
The content of a database: its conversations, and one of them with turns and messages.

It is read through the stores, page by page. No database is made, and only `fork` changes one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from looopy.cli.paths import default_url, shown_place
from looopy.cli.render import counted, json_line, shown_call
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError, ContextNotFound, ValueRefused
from looopy.server.items import context_to_json, placed_to_json, turn_to_json
from looopy.stores.bundle import Stores
from looopy.stores.contexts.lineage import Lineage
from looopy.stores.opening import open_stores
from looopy.stores.owner import provably_alive
from looopy.stores.pages import messages_of, turns_of
from looopy.stores.records import ContextRecord
from looopy.stores.rules import check_context_id
from looopy.types.message import AssistantMessage, Message, ToolResultMessage, UserMessage

_PAGE = 200


async def list_contexts(
    url: str | None,
    *,
    as_json: bool,
    metadata: Sequence[str] = (),
    after: str | None = None,
    limit: int | None = None,
    **conditions: Any,
) -> int:
    """
    Print the conversations in a database: a line each, or one JSON object.

    Raises:
        ValueRefused: A condition is invalid; see `ContextIndex.list`, which takes *conditions*.
    """
    conditions["metadata"] = dict(map(_entry, metadata))
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    items: list[dict[str, Any]] = []
    shown = 0
    async with existing(place) as stores:
        while True:
            most = _PAGE if limit is None else min(_PAGE, limit - shown)
            with _naming_after():
                page = await stores.contexts.list(**conditions, after=after, limit=most)
            shown += len(page.items)
            for record in page.items:
                if as_json:
                    items.append(context_to_json(record))
                else:
                    terminal.line(_context_line(record))
            after = page.next
            if after is None or shown == limit:
                break
        if as_json:
            terminal.raw_line(json_line({"items": items, "next": after}))
        elif not shown:
            some = any(conditions.values())
            said = "no such conversations" if some else "no conversations"
            terminal.notice(f"There are {said} in {shown_place(place)}.")
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


async def show_context(url: str | None, context_id: str, *, as_json: bool) -> int:
    """
    Print one conversation, its turns and its messages.

    Raises:
        ContextNotFound: No conversation has this name.
    """
    check_context_id(context_id)
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    async with existing(place) as stores:
        record = await stores.state.load(context_id)
        if record is None:
            where = shown_place(place)
            raise ContextNotFound(f"there is no conversation {context_id!r} in {where}")
        lineage = await stores.journal.lineage(context_id)
        if as_json:
            turns = [turn_to_json(turn) async for turn in turns_of(stores, context_id)]
            messages = [placed_to_json(m) async for m in messages_of(stores, context_id)]
            relatives = _lineage_to_json(lineage)
            whole = {**context_to_json(record), **relatives, "turns": turns, "messages": messages}
            terminal.raw_line(json_line(whole))
            return 0
        terminal.line(_context_line(record))
        if (wait := waiting_line(context_to_json(record))) is not None:
            terminal.line(wait)
        for line in _lineage_lines(lineage):
            terminal.line(line)
        shown = 0
        turns_left = turns_of(stores, context_id)
        async for message in messages_of(stores, context_id):
            while shown < message.turn and (turn := await anext(turns_left, None)) is not None:
                shown = turn.turn
                if shown == message.turn:
                    terminal.line(f"\n{turn_line(turn_to_json(turn))}")
            show_message(terminal, message.position, message.message)
    return 0


async def search_contexts(
    url: str | None, query: Sequence[str], *, as_json: bool, limit: int, **others: Any
) -> int:
    """
    Print the messages that have all words of *query*: a line each, or one JSON object.

    Raises:
        ValueRefused: An argument is invalid; see `ContextIndex.search`, which takes *others*.
    """
    place = url or default_url()
    terminal = Terminal(quiet_out=True)
    async with existing(place) as stores:
        with _naming_after():
            page = await stores.contexts.search(" ".join(query), limit=limit, **others)
    items = [asdict(hit) for hit in page.items]
    show_hits(terminal, items, page.next, shown_place(place), as_json=as_json)
    return 0


def show_hits(
    terminal: Terminal,
    items: Sequence[Mapping[str, Any]],
    following: str | None,
    place: str,
    *,
    as_json: bool,
) -> None:
    """Print what a search in *place* has found; *following* is where the next page begins."""
    if as_json:
        terminal.raw_line(json_line({"items": items, "next": following}))
        return
    for hit in items:
        said = " ".join(hit["snippet"].split())
        terminal.line(f"{hit['context_id']} {hit['position']} {hit['role']}: {said}")
    if not items:
        terminal.notice(f"No message has these words in {place}.")
    elif following is not None:
        terminal.notice(f"More with --after {following}")


async def fork_context(
    url: str | None, context_id: str, new_context_id: str, at: int | None, *, as_json: bool
) -> int:
    """
    Make a conversation that begins with the past of another one, and print it.

    Raises:
        ContextNotFound: No conversation has this name.
        StoreConflict: One has the new name.
        ValueRefused: *at* is not the end of a turn.
    """
    check_context_id(context_id)
    terminal = Terminal(quiet_out=True)
    async with existing(url or default_url()) as stores:
        made = await stores.journal.fork(context_id, new_context_id, at=at)
    if as_json:
        terminal.raw_line(json_line(context_to_json(made)))
    else:
        terminal.line(_context_line(made))
    return 0


@dataclass(frozen=True, slots=True)
class Past:
    """The newest messages of a context, oldest first, and why its last turn failed, if it did."""

    messages: Sequence[Message] = ()
    failure: str | None = None


async def read_past(url: str, context_id: str, limit: int) -> Past:
    """The newest messages, at most *limit*; makes no database."""
    if not _exists(url):
        return Past()
    async with open_stores(url) as stores:
        record = await stores.state.load(context_id)
        if record is None:
            return Past()
        recent = await stores.messages.recent(context_id, limit=limit)
        failure = record.state.error[1] if record.state.error is not None else None
        return Past([r.message for r in recent], failure)


async def newest_contexts(url: str, limit: int) -> list[str]:
    """
    A line for each of the conversations that were active last.

    Raises:
        ConfigurationError: There is no database that is kept.
    """
    async with existing(url) as stores:
        page = await stores.contexts.list(limit=limit)
    return [_context_line(record) for record in page.items]


async def has_context(url: str, context_id: str) -> bool:
    """
    True if a conversation has this name; makes no database.

    Raises:
        ValueRefused: No conversation can have it.
    """
    check_context_id(context_id)
    if not _exists(url):
        return False
    async with open_stores(url) as stores:
        return await stores.state.load(context_id) is not None


async def owner_is_seen(url: str, context_id: str) -> bool:
    """True if the owner of a context is seen to run on this host."""
    async with open_stores(url) as stores:
        record = await stores.state.load(context_id)
        return record is not None and record.holder is not None and provably_alive(record.holder)


def _exists(url: str) -> bool:
    """True if there may be something to read: an existing file, or a server, which knows better."""
    from looopy.stores.sql.sqlite.connection import sqlite_path

    if url.startswith("sqlite"):
        return sqlite_path(url).exists()
    return not url.startswith("memory:")


@asynccontextmanager
async def existing(url: str) -> AsyncIterator[Stores]:
    """The stores of a database that is there; none is made or changed."""
    if url.startswith("memory:"):
        raise ConfigurationError("name a database that is kept: --db sqlite:///path/to/file.db")
    if not _exists(url):
        raise ConfigurationError(
            f"there is no database at {shown_place(url)}: `looopy chat` makes one, --db names"
            " another"
        )
    async with open_stores(url, migrate=False) as stores:
        yield stores


@contextmanager
def _naming_after() -> Iterator[None]:
    """Say in words of this program that `--after` is not of this query."""
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


def waiting_line(item: Mapping[str, Any]) -> str | None:
    """The whole sentence about the budget that has no room; `None` if none is waited for."""
    wait = item["waits_for"]
    return None if wait is None else f"turn {item['interrupted_turn']} waits: {wait}"


def _context_line(record: ContextRecord) -> str:
    item = {**context_to_json(record), "tags": record.tags, "owner": record.owner_actor}
    return context_line(item)


def _lineage_lines(lineage: Lineage) -> Iterator[str]:
    if lineage.parent is not None:
        name = lineage.parent.context_id or "a conversation that is gone"
        yield f"forked from {name} at {lineage.parent.at}"
    for fork in lineage.forks:
        yield f"fork {fork.context_id} at {fork.at}"


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


# --- for programs ------------------------------------------------------------------------------


def _lineage_to_json(lineage: Lineage) -> dict[str, Any]:
    parent = lineage.parent
    return {
        "parent": None if parent is None else {"context_id": parent.context_id, "at": parent.at},
        "forks": [{"context_id": fork.context_id, "at": fork.at} for fork in lineage.forks],
    }
