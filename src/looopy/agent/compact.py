"""
A compaction between two turns: `Agent.compact`.

No lease is held while the model writes, because the summary covers a part of the log that can no
longer change. Turns that were added in the meantime stay visible. A history that was cleared in the
meantime is not restored.
"""

from __future__ import annotations

from collections.abc import Mapping

from looopy.agent.context import Known
from looopy.auth.redaction import Redactor
from looopy.errors import AgentBusy, AgentStateError, LLMUnavailable, StoreConflict
from looopy.history.summarise import read_part, summarise
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.loop.interrupt import CancelScope, TurnInterrupted
from looopy.stores.records import NewSummary
from looopy.stores.shield import settle
from looopy.tools.base import Tool
from looopy.tools.call.hooks import value_of
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken
from looopy.types.event import Compaction
from looopy.types.message import AssistantMessage, UserMessage
from looopy.types.request import StreamOptions


async def condense(
    known: Known,
    provider: LLMProvider,
    config: LoopConfig,
    tools: Mapping[str, Tool],
    token: CancelToken,
    *,
    keep_turns: int,
) -> Compaction | None:
    """
    Summarise all but the newest questions and the messages after them.

    Args:
        token: Stops it as long as nothing is stored.

    Returns:
        The event; `None` if there was nothing to summarise.

    Raises:
        AgentBusy: A turn runs on the context.
        LLMError: The model wrote no summary; nothing was stored.
        StoreConflict: The history was cleared, or the context deleted, in the meantime.
        AgentStateError: It was stopped.
    """
    await known.refresh(tools)
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
                provider,
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
    kept_from = known.last_position - part.kept
    born = (record.visible_from, record.created_at)
    while True:
        kept = known.last_position - kept_from
        message = summary.keeping(kept)
        new = NewSummary(
            message=message,
            epoch=known.epoch,
            tokens_before=part.tokens_before,
            tokens_after=summary.tokens_after(part),
            unread=summary.unread,
        )
        await known.heads_read()
        try:
            write = known.stores.journal.compact(known.context_id, new)
            _, event = await settle(write)
        except StoreConflict:
            await known.refresh(tools)
            now = known.record
            if now is None or (now.visible_from, now.created_at) != born:
                raise
        else:
            known.stale = True
            await known.refresh(tools)
            return event


def _questions_of_open(known: Known) -> int:
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
