"""
A compaction between two turns, and its undoing: `Agent.compact` and `Agent.undo_compact`.

No lease is held while the model writes, because the summary covers a part of the log that can no
longer change. Turns that were added in the meantime stay visible. A history that was cleared in the
meantime is not restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from looopy._failpoints import reach
from looopy.agent.context import ContextView
from looopy.agent.ledger import ledger_of, metered
from looopy.auth.redaction import Redactor
from looopy.errors import AgentBusy, AgentStateError, LLMUnavailable, StoreConflict, ValueRefused
from looopy.history.summarise import Summary, read_part, summarise
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.loop.interrupt import CancelScope, TurnInterrupted
from looopy.stores.records import NewSummary
from looopy.stores.shield import settle
from looopy.tools.base import Tool
from looopy.tools.call.hooks import value_of
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken
from looopy.types.event import Compaction
from looopy.types.message import AssistantMessage, CustomMessage, Message, UserMessage
from looopy.types.ranges import before, counted, shown
from looopy.types.request import StreamOptions
from looopy.types.storable import check_after, check_limit, check_number
from looopy.types.summary import is_summary, kept_by, repeated_by, summary_message

_logger = logging.getLogger("looopy")
_PAGE = 256  # messages read at once to find a summary


async def condense(
    known: ContextView,
    provider: LLMProvider,
    config: LoopConfig,
    tools: Mapping[str, Tool],
    token: CancelToken,
    *,
    keep_turns: int,
) -> Compaction | None:
    """
    Summarise all but the newest questions and the messages after them; see `Agent.compact`.

    Args:
        token: Stops it as long as nothing is stored.
    """
    await known.refresh(tools)
    known.tell_losses()
    record = known.record
    if known.busy_turn is not None:
        raise AgentBusy("a turn runs on this context", turn=known.busy_turn)
    if record is None:
        return None
    part = await read_part(
        known.history,
        known.backlog(),
        window_tokens=known.window_tokens,
        keep_turns=max(keep_turns, _questions_of_open(known)),
    )
    if part is None:
        return None
    turn, owner = record.turn_count, record.owner_actor
    ledger = ledger_of(known.stores, config, known.context_id, turn, owner)
    # The history may be newer than the record: a turn may have begun between the two reads.
    seen = known.position_at(len(known.history) - 1)
    abilities = abilities_of(provider)
    options = StreamOptions(
        session_id=known.context_id,
        api_key=await _api_key(abilities.name, config),
        timeout_s=config.llm_timeout_s,
    )
    redactor = Redactor()
    redactor.add(options.api_key)
    scope = CancelScope(token, config.llm_timeout_s)
    try:
        with scope:
            summary = await summarise(
                part,
                metered(provider, ledger),
                options,
                model=abilities.model,
                window_tokens=known.window_tokens,
                retry=config.retry,
            )
    except TurnInterrupted as stop:
        if stop.reason == "deadline":
            raise LLMUnavailable(
                f"no summary came within {config.llm_timeout_s:g} s (LoopConfig.llm_timeout_s)"
            ) from None
        raise AgentStateError("compact() was stopped: nothing was stored") from None
    finally:
        scope.close()
    if summary.error is not None:
        raise redactor.error(summary.error)
    if config.hooks.on_compact is not None:
        said = await _text_of_hook(config.hooks.on_compact, list(part.covered), summary)
        summary = summary.saying(said)
    born = (record.visible_from, record.created_at, record.hidden)
    while True:
        if known.busy_turn is not None:  # what it adds would not be counted, and its epoch fits
            raise AgentBusy("a turn runs on this context", turn=known.busy_turn)
        added = counted(shown(seen + 1, known.last_position, known.hidden))
        message = summary.keeping(part.kept + added)
        new = NewSummary(
            message=message,
            epoch=known.epoch,
            tokens_before=part.tokens_before,
            tokens_after=summary.tokens_after(part),
            unread=summary.unread,
            usage=summary.usage,
        )
        await known.heads_read()
        try:
            event = await _store(known, new)
        except StoreConflict:
            await known.refresh(tools)
            now = known.record
            if now is None or (now.visible_from, now.created_at, now.hidden) != born:
                raise
        else:
            known.stale = True
            await known.refresh(tools)
            return event


async def _store(known: ContextView, new: NewSummary) -> Compaction:
    reach("C1")
    _, event = await settle(known.stores.journal.compact(known.context_id, new))
    reach("C3")
    return event


async def _text_of_hook(hook: Callable[..., Any], covered: list[Message], made: Summary) -> object:
    """The value of `on_compact`; `None` if it fails, as no turn could warn of that."""
    try:
        return await value_of(hook(covered, made.message.content))
    except Exception:
        _logger.exception("the hook on_compact failed: the summary is stored as it is")
        return None


async def undo(known: ContextView, tools: Mapping[str, Tool]) -> Compaction | None:
    """Append the summary before the newest one, or an empty one; see `Agent.undo_compact`."""
    await known.refresh(tools)
    known.tell_losses()
    undone = known.state.summary
    while True:
        record = known.record
        if known.busy_turn is not None:
            raise AgentBusy("a turn runs on this context", turn=known.busy_turn)
        if record is None or undone is None:
            return None
        newest = await _summary_at(known, undone)
        if newest is None:
            return None
        previous = await _summary_before(known, repeated_by(newest, undone), record.visible_from)
        end = record.last_position
        if previous is None or not previous[0].content:
            message = summary_message(
                "", kept=counted(shown(record.visible_from, end, record.hidden))
            )
        else:
            earlier, place = previous
            message = summary_message(
                str(earlier.content),
                kept=counted(shown(place, end, record.hidden)) + kept_by(earlier),
                repeats=repeated_by(earlier, place),
            )
        await known.heads_read()
        try:
            new = NewSummary(message=message, epoch=known.epoch, undoes=undone)
            event = await _store(known, new)
        except StoreConflict:
            await known.refresh(tools)
            if known.state.summary != undone:
                raise
        else:
            known.stale = True
            await known.refresh(tools)
            return event


async def covered(
    known: ContextView, position: int | None, *, after: int, limit: int | None
) -> list[Message]:
    """The messages that a summary replaces, oldest first; see `Agent.get_covered`."""
    check_after(after)
    check_limit(limit)
    if position is not None:
        check_number(position, "/position", "pass a summary's, or None for the newest")
    record = await known.stores.state.load(known.context_id)
    at = position
    if at is None:
        at = None if record is None else record.state.summary
    if record is None or at is None:
        if position is None:
            return []
        raise ValueRefused("there is no summary at this position", path="/position")
    summary = await _summary_at(known, at)
    if summary is None:
        raise ValueRefused("there is no summary at this position", path="/position")
    start = max(after, record.visible_from - 1)
    end = before(at - 1, kept_by(summary), record.hidden)
    left = counted(shown(start + 1, end, record.hidden))
    most = left if limit is None else min(left, limit)
    if most <= 0:
        return []
    return await known.stores.messages.list(known.context_id, after=start, limit=most)


async def _summary_at(known: ContextView, position: int) -> CustomMessage | None:
    """The summary at *position*; `None` if there is another message, or none."""
    if position < 1:
        return None
    found = await known.stores.messages.records(known.context_id, after=position - 1, limit=1)
    message = found[0].message if found and found[0].position == position else None
    return message if message is not None and is_summary(message) else None


async def _summary_before(
    known: ContextView, position: int, visible_from: int
) -> tuple[CustomMessage, int] | None:
    """The newest summary before *position*, and its position."""
    while position > visible_from:
        after = max(visible_from - 1, position - 1 - _PAGE)
        page = await known.stores.messages.records(
            known.context_id, after=after, limit=position - 1 - after
        )
        for record in reversed(page):
            # Hidden messages are left out, so a page may reach beyond the place.
            if record.position < position and is_summary(record.message):
                return record.message, record.position
        position = after + 1
    return None


def _questions_of_open(known: ContextView) -> int:
    """The number of questions that must stay, so that waiting calls keep their place."""
    if not known.open_calls:
        return 1
    behind = 1
    for message in reversed(known.history):
        if isinstance(message, AssistantMessage):
            break
        behind += isinstance(message, UserMessage)
    return behind


async def _api_key(provider: str, config: LoopConfig) -> str | None:
    hook = config.hooks.get_api_key
    if hook is None:
        return None
    found: str | None = await value_of(hook(provider, None))  # no turn could warn of its failure
    return found
