"""
A compaction between two turns: `Agent.compact`.

No lease is held while the model writes: the summary speaks for a part of the log that nobody can
change any more. Turns that came meanwhile are left to be shown; a history that was cleared
meanwhile is not brought back.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from looopy.compacting import part_to_cover, summarise
from looopy.errors import AgentBusy, StoreConflict
from looopy.known import Known
from looopy.llm.provider import LLMProvider
from looopy.settle import settle
from looopy.stores.records import NewSummary
from looopy.tools.provider import Tool
from looopy.types.context import LoopConfig
from looopy.types.event import Compaction
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.request import StreamOptions


async def condense(
    known: Known,
    provider: LLMProvider,
    config: LoopConfig,
    tools: Mapping[str, Tool],
    *,
    keep_turns: int,
) -> Compaction | None:
    """
    Summarise all but the newest questions and what followed them.

    Returns:
        The event; `None` when there was nothing to summarise.

    Raises:
        AgentBusy: A turn runs on the context.
        LLMError: The model wrote no summary; nothing was stored.
        StoreConflict: The history was cleared meanwhile.
    """
    await known.refresh(tools)
    record = known.record
    if known.busy_turn is not None:
        raise AgentBusy("a turn runs on this context", turn=known.busy_turn)
    part = part_to_cover(known.history, keep_turns=max(keep_turns, _questions_of_open(known)))
    if part is None or record is None:
        return None
    options = StreamOptions(
        session_id=known.context_id,
        api_key=await _api_key(provider, config),
        timeout_s=config.llm_timeout_s,
    )
    summary = await summarise(part, provider, options, window_tokens=known.window_tokens)
    if summary.error is not None:
        raise summary.error
    kept_from, visible_from = known.last_position - part.kept, record.visible_from
    while True:
        kept = known.last_position - kept_from
        message = summary.keeping(kept)
        new = NewSummary(
            message=message,
            epoch=known.epoch,
            tokens_before=part.tokens_before,
            tokens_after=summary.tokens_after(part),
        )
        try:
            write = known.stores.journal.compact(known.context_id, new)
            _, event = await settle(write)
        except StoreConflict:
            await known.refresh(tools)
            if known.record is None or known.record.visible_from != visible_from:
                raise
        else:
            known.stale = True
            await known.refresh(tools)
            return event


def _questions_of_open(known: Known) -> int:
    """How many questions have to stay, so that calls which wait keep their place in the history."""
    if not known.open_calls:
        return 1
    behind = 1
    for message in reversed(known.history):
        if isinstance(message, AssistantMessage):
            break
        behind += isinstance(message, UserMessage)
    return behind


async def _api_key(provider: LLMProvider, config: LoopConfig) -> str | None:
    hook = config.hooks.get_api_key
    if hook is None:
        return None
    key = hook(getattr(provider, "name", ""), None)
    found: str | None = await key if inspect.isawaitable(key) else key
    return found
