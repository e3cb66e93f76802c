"""
A compaction inside a turn: before a model call with too long a history, or after its refusal.

It is a step like any other: the summary and its event are one group, committed before the next
model call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from looopy.errors import ContextOverflow
from looopy.history.window import Limits
from looopy.loop.parts import Turn
from looopy.types.constructors import amended
from looopy.types.event import AgentEvent, Compaction, MessageEnd, MessageStart
from looopy.types.ranges import Range, before
from looopy.types.request import ThinkingLevel
from looopy.types.summary import is_summary, kept_by

_logger = logging.getLogger("looopy")


async def before_call(turn: Turn) -> bool:
    """
    Handle a history that does not fit the limits whole: summarise it if `auto_compact` is on, and
    else warn, once.

    Returns:
        True if there is a summary to commit.
    """
    given = turn.given
    turn.progress.compacted = True
    if given.auto_compact:
        window = turn.progress.abilities.window_tokens
        return await _compact(turn, given.view.limits(given.config, window).half(), surely=False)
    if not given.view.told:
        given.view.told = True
        text = (
            "the model is no longer shown the beginning of the conversation: see auto_compact,"
            " compact(), LoopConfig.max_messages and LoopConfig.history_tokens"
        )
        turn.out.warn("history_cut", text)
    return False


async def relieve(turn: Turn, _error: ContextOverflow) -> bool:
    """
    Summarise all but the newest question, and return true if there was more; see `Relief`.
    """
    return await _compact(turn, None, surely=True)


async def _compact(turn: Turn, room: Limits | None, *, surely: bool) -> bool:
    """
    Emit a summary of the earlier messages.

    Args:
        room: The room for the messages that stay; `None`: little.
        surely: Also if the model writes no summary: a sentence replaces it.
    """
    from looopy.history.summarise import read_part, summarise  # few turns need it

    given, progress, out, view = turn.given, turn.progress, turn.out, turn.given.view
    abilities = progress.abilities
    window = abilities.window_tokens
    backlog = None if view.backlog is None else view.backlog()
    part = await read_part(view.history, backlog, window_tokens=window, room=room, split=True)
    if part is None:
        return False
    level = progress.options.thinking_level
    asked = replace(
        progress.options,
        thinking_level=None if level is None else ThinkingLevel.OFF,
        thinking_budgets=None,
        output_schema=None,
        max_tokens=None,
        tool_choice=None,
        stop=(),
        extra_body={},
    )
    summary = await summarise(
        part,
        given.provider,
        asked,
        model=abilities.model,
        window_tokens=window,
        retry=given.config.retry,
    )
    progress.use(summary.usage)
    if summary.error is not None:
        _logger.warning("no summary could be written: %s", summary.error)
        out.warn("summary_failed", str(summary.error))
        if not surely:
            return False  # the model is shown less, as without a summary; the next turn tries again
    covered, said = list(part.covered), summary.message.content
    hook = given.config.hooks.on_compact
    summary = summary.saying(await turn.ask("on_compact", hook, covered, said, default=None))
    # Written by a model: unlike other custom messages it may repeat a secret of a tool.
    message = replace(summary.message, content=given.redactor.value(summary.message.content))
    out.emit(MessageStart, message=message)
    turn.append(message)
    out.emit(
        Compaction,
        tokens_before=part.tokens_before,
        tokens_after=summary.tokens_after(part),
        unread=summary.unread,
    )
    return True


def placed(
    events: Sequence[AgentEvent],
    last_position: int,
    visible_from: int,
    hidden: Sequence[Range] = (),
) -> tuple[Sequence[AgentEvent], int | None]:
    """
    *events*, with the positions in the compaction among them filled in, and the position of its
    summary.

    Args:
        last_position: The position of the newest message before them.
        visible_from: The position where the readable history begins.
        hidden: The parts of it that were rewound.
    """
    done: list[AgentEvent] = []
    position, kept, summary = last_position, 0, None
    for event in events:
        if isinstance(event, MessageEnd):
            position += 1
            if is_summary(event.message):
                kept = kept_by(event.message)
        elif isinstance(event, Compaction):
            summary = position
            covers = (visible_from, before(position - 1, kept, hidden))
            done.append(amended(event, position=position, covers=covers))
            continue
        done.append(event)
    return done, summary
