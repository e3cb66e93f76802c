"""
Repairs of foreign output: answers of models and results of tools become values that can be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from operator import is_
from typing import Any

from looopy.errors import ValueRefused
from looopy.loop.parts import Turn
from looopy.types.maker import amended
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserBlock,
)
from looopy.types.message_json import message_to_json
from looopy.types.storable import SURELY_SHORT, dump, repair, repair_json

_MAX_DETAILS_CHARS = 1024 * 1024  # as JSON


def _storable(result: ToolResultMessage) -> ToolResultMessage:
    """The result with text and details that every store keeps."""
    content = tuple(map(_storable_block, result.content))
    details = _details(repair_json(result.details))
    # By identity: the tool's own values may not be comparable.
    same = details is result.details and all(map(is_, content, result.content))
    kept = result if same else amended(result, content=content, details=details)
    if details is None and _are_short(content):
        return kept
    try:
        dump(message_to_json(kept, compact=True))
    except ValueRefused as refused:
        why = f"The tool has run, but its result cannot be stored: {refused.message}"
        return replace(result, content=(TextContent(why),), details=None, is_error=True)
    return kept


def _storable_block(block: UserBlock) -> UserBlock:
    if isinstance(block, ImageContent):
        return block
    text = repair(block.text)
    return block if text is block.text else replace(block, text=text)


def _are_short(content: Sequence[UserBlock]) -> bool:
    """True if these are texts so short that every store takes them, with any other fields."""
    chars = 0
    for block in content:
        if not isinstance(block, TextContent) or block.text_signature is not None:
            return False
        chars += len(block.text)
    return chars <= SURELY_SHORT


def _details(value: Any) -> Any:
    """Details that fit. A finished tool's result must not be lost for data that no model reads."""
    if value is None:
        return None
    try:
        if len(dump(value)) <= _MAX_DETAILS_CHARS:
            return value
    except ValueRefused:
        pass  # too large: other problems were repaired before
    return {"omitted": "the details were too large to be stored"}


def _clean(turn: Turn, message: AssistantMessage) -> AssistantMessage:
    """
    The message in a form that can be stored and replayed: without secrets, storable text, call ids
    unique within the turn.
    """
    message = turn.given.redactor.value(message)
    blocks: list[AssistantBlock] = [_clean_block(turn, block) for block in message.content]
    changes: dict[str, Any] = {}
    if not all(new is old for new, old in zip(blocks, message.content, strict=True)):
        changes["content"] = tuple(blocks)
    made_by = (message.api, message.provider, message.model)
    if message.error_message is not None or not _are_storable(*made_by):
        for name in ("api", "provider", "model", "error_message"):
            value = getattr(message, name)
            if value is not None and (text := repair(value)) is not value:
                changes[name] = text
    return replace(message, **changes) if changes else message


@lru_cache(maxsize=64)
def _are_storable(*names: str) -> bool:
    """
    True if the names of an answer's API, provider and model are storable; cached, as they repeat.
    """
    return all(repair(name) is name for name in names)


def _clean_block(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    if isinstance(block, TextContent):
        text, signature = repair(block.text), block.text_signature
        if text is block.text and (signature is None or _is_storable(signature)):
            return block
        return _repaired(turn, replace(block, text=text, text_signature=_kept_signature(signature)))
    if isinstance(block, ThinkingContent):
        thinking = repair(block.thinking)
        if thinking is block.thinking and _is_storable(block.thinking_signature):
            return block
        # A provider would refuse a signature over other bytes: the block becomes an unsigned one.
        return _repaired(turn, ThinkingContent(thinking))
    arguments = repair_json(block.arguments)
    raw, signature = block.invalid_arguments, block.thought_signature
    fixed = amended(
        block,
        id=turn.progress.own_call_id(repair(block.id)),
        name=repair(block.name),
        arguments=arguments,
        thought_signature=signature if signature is None else _kept_signature(signature),
        invalid_arguments=None if raw is None else repair(raw),
    )
    return block if fixed == block else fixed


def _is_storable(signature: str | None) -> bool:
    return signature is None or repair(signature) is signature


def _kept_signature(signature: str | None) -> str | None:
    """*signature*, or `None` if it would have to be changed: a provider would refuse it."""
    return signature if _is_storable(signature) else None


def _repaired(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    text = "characters that cannot be stored (NUL or lone surrogates) were replaced by U+FFFD"
    turn.out.warn("text_repaired", text)
    return block
