"""
The content of a database: its conversations, and one of them with turns and messages.

It is read through the stores, page by page. No database is made, and only `fork` changes one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from looopy.agent.lease import seems_left
from looopy.cli.paths import default_url, shown_place
from looopy.cli.render import counted, json_line, shown_call
from looopy.cli.terminal import Terminal
from looopy.errors import ConfigurationError, ContextNotFound, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.opening import open_stores
from looopy.stores.owner import provably_alive
from looopy.stores.past import Lineage
from looopy.stores.records import ContextRecord, MessageRecord, TurnRecord
from looopy.stores.rules import check_context_id
from looopy.types.message import AssistantMessage, Message, ToolResultMessage, UserMessage
from looopy.types.message_json import message_to_json, usage_to_json
from looopy.types.state import AgentStatus, pending_to_json

_PAGE = 200


def list_contexts(
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
    return asyncio.run(_list(url or default_url(), conditions, after, limit, as_json=as_json))


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


def show_context(url: str | None, context_id: str, *, as_json: bool) -> int:
    """
    Print one conversation, its turns and its messages.

    Raises:
        ContextNotFound: No conversation has this name.
    """
    check_context_id(context_id)
    return asyncio.run(_show(url or default_url(), context_id, as_json=as_json))


def search_contexts(
    url: str | None, query: Sequence[str], *, as_json: bool, limit: int, **others: Any
) -> int:
    """
    Print the messages that have all words of *query*: a line each, or one JSON object.

    Raises:
        ValueRefused: An argument is invalid; see `ContextIndex.search`, which takes *others*.
    """
    said = " ".join(query)
    return asyncio.run(_search(url or default_url(), said, limit, others, as_json=as_json))


def fork_context(
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
    return asyncio.run(
        _fork(url or default_url(), context_id, new_context_id, at, as_json=as_json)
    )


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


async def _list(
    url: str,
    conditions: Mapping[str, Any],
    after: str | None,
    limit: int | None,
    *,
    as_json: bool,
) -> int:
    terminal = Terminal(quiet_out=True)
    items: list[dict[str, Any]] = []
    shown = 0
    async with existing(url) as stores:
        while True:
            most = _PAGE if limit is None else min(_PAGE, limit - shown)
            with _naming_after():
                page = await stores.contexts.list(**conditions, after=after, limit=most)
            shown += len(page.items)
            for record in page.items:
                if as_json:
                    items.append(_context_to_json(record))
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
            terminal.notice(f"There are {said} in {shown_place(url)}.")
        elif after is not None:
            terminal.notice(f"More with --after {after}")
    return 0


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


async def _search(
    url: str, query: str, limit: int, others: Mapping[str, Any], *, as_json: bool
) -> int:
    terminal = Terminal(quiet_out=True)
    async with existing(url) as stores:
        with _naming_after():
            page = await stores.contexts.search(query, limit=limit, **others)
    if as_json:
        items = [asdict(hit) for hit in page.items]
        terminal.raw_line(json_line({"items": items, "next": page.next}))
        return 0
    for hit in page.items:
        said = " ".join(hit.snippet.split())
        terminal.line(f"{hit.context_id} {hit.position} {hit.role}: {said}")
    if not page.items:
        terminal.notice(f"No message has these words in {shown_place(url)}.")
    elif page.next is not None:
        terminal.notice(f"More with --after {page.next}")
    return 0


async def _show(url: str, context_id: str, *, as_json: bool) -> int:
    terminal = Terminal(quiet_out=True)
    async with existing(url) as stores:
        record = await stores.state.load(context_id)
        if record is None:
            raise ContextNotFound(f"there is no conversation {context_id!r} in {shown_place(url)}")
        lineage = await stores.journal.lineage(context_id)
        if as_json:
            turns = [_turn_to_json(turn) async for turn in _turns(stores, context_id)]
            messages = [
                {"position": m.position, "turn": m.turn, "message": message_to_json(m.message)}
                async for m in _messages(stores, context_id)
            ]
            relatives = _lineage_to_json(lineage)
            whole = {**_context_to_json(record), **relatives, "turns": turns, "messages": messages}
            terminal.raw_line(json_line(whole))
            return 0
        terminal.line(_context_line(record))
        for line in _lineage_lines(lineage):
            terminal.line(line)
        shown = 0
        turns_left = _turns(stores, context_id)
        async for message in _messages(stores, context_id):
            while shown < message.turn and (turn := await anext(turns_left, None)) is not None:
                shown = turn.turn
                if shown == message.turn:
                    terminal.line(f"\n{_turn_line(turn)}")
            _show_message(terminal, message)
    return 0


async def _fork(
    url: str, context_id: str, new_context_id: str, at: int | None, *, as_json: bool
) -> int:
    terminal = Terminal(quiet_out=True)
    async with existing(url) as stores:
        made = await stores.journal.fork(context_id, new_context_id, at=at)
    if as_json:
        terminal.raw_line(json_line(_context_to_json(made)))
    else:
        terminal.line(_context_line(made))
    return 0


async def _turns(stores: Stores, context_id: str) -> AsyncIterator[TurnRecord]:
    after = 0
    while page := await stores.journal.turns(context_id, after=after, limit=_PAGE):
        after = page[-1].turn
        for turn in page:
            yield turn


async def _messages(stores: Stores, context_id: str) -> AsyncIterator[MessageRecord]:
    after = 0
    while page := await stores.messages.records(context_id, after=after, limit=_PAGE):
        after = page[-1].position
        for record in page:
            yield record


# --- for people --------------------------------------------------------------------------------


def _status(record: ContextRecord) -> tuple[AgentStatus, int | None]:
    """The status that an agent would show for the context, and the turn that it could continue."""
    turn = record.open_turn
    if turn is not None:
        return (AgentStatus.READY, turn.turn) if seems_left(record) else (AgentStatus.BUSY, None)
    if record.state.pending:
        return AgentStatus.WAITING, None
    if record.state.error is not None:
        return AgentStatus.FAILED, None
    return AgentStatus.READY, record.state.resumable


def _context_line(record: ContextRecord) -> str:
    status, interrupted = _status(record)
    how = status.value if interrupted is None else f"turn {interrupted} interrupted"
    turns = counted(record.turn_count, "turn")
    tags = "".join(f"  #{tag}" for tag in record.tags)
    return f"{record.context_id}  {how}  {turns}  last activity {_time(record.last_activity)}{tags}"


def _lineage_lines(lineage: Lineage) -> Iterator[str]:
    if lineage.parent is not None:
        name = lineage.parent.context_id or "a conversation that is gone"
        yield f"forked from {name} at {lineage.parent.at}"
    for fork in lineage.forks:
        yield f"fork {fork.context_id} at {fork.at}"


def _turn_line(turn: TurnRecord) -> str:
    outcome = turn.outcome.value if turn.outcome else "open"
    parts = [f"turn {turn.turn}", outcome]
    if turn.stop_reason is not None and turn.stop_reason.value != outcome:
        parts[1] += f" ({turn.stop_reason})"
    if turn.continues is not None:
        parts.append(f"continues turn {turn.continues}")
    parts.append(_time(turn.started_at))
    if turn.ended_at is not None:
        parts.append(f"{(turn.ended_at - turn.started_at).total_seconds():.1f} s")
    if turn.usage.total_tokens:
        parts.append(f"{turn.usage.total_tokens:,} tokens")
    return "  ".join(parts)


def _show_message(terminal: Terminal, record: MessageRecord) -> None:
    message = record.message
    where = f"{record.position:>4}"
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


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


# --- for programs ------------------------------------------------------------------------------


def _context_to_json(record: ContextRecord) -> dict[str, Any]:
    status, interrupted = _status(record)
    return {
        "context_id": record.context_id,
        "status": status.value,
        "turn_count": record.turn_count,
        "interrupted_turn": interrupted,
        "pending": [{**pending_to_json(r), "args": dict(r.args)} for r in record.state.pending],
        "error": None if record.state.error is None else record.state.error[1],
        "created_at": record.created_at.isoformat(),
        "last_activity": record.last_activity.isoformat(),
        "usage": usage_to_json(record.state.usage),
        "metadata": dict(record.metadata),
    }


def _lineage_to_json(lineage: Lineage) -> dict[str, Any]:
    parent = lineage.parent
    return {
        "parent": None if parent is None else {"context_id": parent.context_id, "at": parent.at},
        "forks": [{"context_id": fork.context_id, "at": fork.at} for fork in lineage.forks],
    }


def _turn_to_json(turn: TurnRecord) -> dict[str, Any]:
    return {
        "turn": turn.turn,
        "outcome": turn.outcome.value if turn.outcome else None,
        "stop_reason": turn.stop_reason.value if turn.stop_reason else None,
        "continues": turn.continues,
        "actor_id": turn.actor_id,
        "started_at": turn.started_at.isoformat(),
        "ended_at": turn.ended_at.isoformat() if turn.ended_at else None,
        "usage": usage_to_json(turn.usage),
        "metadata": dict(turn.metadata),
    }
