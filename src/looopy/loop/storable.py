"""Repairs of the answers of models: they become values that can be shown, stored and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, cast

from looopy.errors import ValueRefused
from looopy.loop.parts import Turn
from looopy.types.constructors import amended
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    Citation,
    ServerToolCall,
    ServerToolResult,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
)
from looopy.types.request import PartialMessage, StreamEvent, StreamEventType
from looopy.types.storable import dump, repair, repair_json, repair_piece

_MAX_ITEM_CHARS: Final = 4 * 1024 * 1024  # as JSON
_ITEM_DEPTH: Final = 6  # within message, content, block, citations, citation


class Pieces:
    """
    The pieces of one answer as they may be shown, whatever the provider sends.

    No piece holds half a character: the first half waits for the other one. Unstorable text is
    repaired, as in the whole message.
    """

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[int, str] = {}  # by the number of their block

    def of(self, event: StreamEvent) -> Sequence[StreamEvent]:
        """The events that show *event*."""
        call, partial, rest = event.tool_call, event.partial, ""
        ours = getattr(partial, "keeps_pieces_whole", False)  # an Accumulator's
        if call is None:
            if ours:
                return (event,)
        elif not (ours and _is_plain(call, event.delta)):
            event = replace(event, tool_call=_clean_call(call, repair(call.id)))
        if ours:
            return (event,)
        half = self._halves.pop(event.content_index, "")
        if event.type.endswith("_delta"):
            delta, half = repair_piece(half + event.delta)
            if half:
                self._halves[event.content_index] = half
            if event.delta and not delta:
                return ()
        else:
            delta, rest = repair(event.delta), repair(half)
        whole = None if partial is None else _Mended(partial)
        event = replace(event, delta=delta, partial=whole)
        if rest:
            kind = cast("StreamEventType", event.type.replace("_end", "_delta"))
            return (replace(event, type=kind, delta=rest, tool_call=None), event)
        return (event,)


def _is_plain(call: ToolCall, arguments: str) -> bool:
    """True if a call that was read from the JSON *arguments* surely needs no repair."""
    escapes = "\\u" in arguments or not arguments.isascii()
    return not escapes and (call.id + call.name).isprintable()


class _Mended:
    """A partial message as it may be shown."""

    __slots__ = ("_partial",)

    def __init__(self, partial: PartialMessage) -> None:
        self._partial = partial

    @property
    def text(self) -> str:
        """The text so far."""
        return repair_piece(self._partial.text)[0]

    def snapshot(self) -> AssistantMessage:
        """A frozen copy of the message so far."""
        message = self._partial.snapshot()
        return replace(message, content=tuple(map(_mended, message.content)))


def _mended(block: AssistantBlock) -> AssistantBlock:
    if isinstance(block, TextContent):
        return replace(block, text=repair_piece(block.text)[0])
    if isinstance(block, ThinkingContent):
        return replace(block, thinking=repair_piece(block.thinking)[0])
    return _clean_call(block, repair(block.id)) if isinstance(block, ToolCall) else block


def _clean(turn: Turn, message: AssistantMessage) -> AssistantMessage:
    """The message without secrets, with storable text and call ids unique within the turn."""
    message = cast("AssistantMessage", turn.given.redactor.message(message))
    blocks: list[AssistantBlock] = [_clean_block(turn, block) for block in message.content]
    changes: dict[str, Any] = {}
    if not all(new is old for new, old in zip(blocks, message.content, strict=True)):
        changes["content"] = tuple(blocks)
    made_by = (message.api, message.provider, message.model)
    strange = message.error_message is not None or not _is_storable(message.response_id)
    if strange or not _are_storable(*made_by):
        for name in ("api", "provider", "model", "error_message", "response_id"):
            value = getattr(message, name)
            if value is not None and (text := repair(value)) is not value:
                changes[name] = text
    if message.logprobs and (kept := _kept_logprobs(message.logprobs)) != message.logprobs:
        changes["logprobs"] = kept
    return replace(message, **changes) if changes else message


def _kept_logprobs(found: Sequence[TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(replace(o, token=repair(o.token), top=_kept_logprobs(o.top)) for o in found)


@lru_cache(maxsize=64)
def _are_storable(*names: str) -> bool:
    """True if *names*, of an answer's API, provider and model, are storable; they repeat."""
    return all(repair(name) is name for name in names)


def _clean_block(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    if isinstance(block, TextContent):
        text, signature = repair(block.text), block.text_signature
        if block.citations:
            cited = [_clean_citation(one) for one in block.citations]
            if cited != list(block.citations):
                block = replace(block, citations=tuple(cited))
        if text is block.text and (signature is None or _is_storable(signature)):
            return block
        return _repaired(turn, replace(block, text=text, text_signature=_kept_signature(signature)))
    if isinstance(block, ThinkingContent):
        thinking = repair(block.thinking)
        if thinking is block.thinking and _is_storable(block.thinking_signature):
            return block
        # A provider would refuse a signature over other bytes: the block becomes an unsigned one.
        return _repaired(turn, ThinkingContent(thinking))
    if isinstance(block, ServerToolCall):
        arguments = kept_item(block.arguments)
        found: AssistantBlock = replace(
            block,
            id=repair(block.id),
            name=repair(block.name),
            arguments=arguments,
            item=kept_item(block.item),
        )
        return block if found == block else found
    if isinstance(block, ServerToolResult):
        found = replace(
            block,
            tool_call_id=repair(block.tool_call_id),
            tool_name=repair(block.tool_name),
            item=kept_item(block.item),
        )
        return block if found == block else found
    return _clean_call(block, turn.progress.own_call_id(repair(block.id)))


def _clean_call(call: ToolCall, call_id: str) -> ToolCall:
    raw, signature = call.invalid_arguments, call.thought_signature
    clean = (
        call_id,
        repair(call.name),
        repair_json(call.arguments),
        None if signature is None else _kept_signature(signature),
        None if raw is None else repair(raw),
    )
    if clean == (call.id, call.name, call.arguments, signature, raw):
        return call
    names = ("id", "name", "arguments", "thought_signature", "invalid_arguments")
    return amended(call, **dict(zip(names, clean, strict=True)))


def _clean_citation(one: Citation) -> Citation:
    texts = {name: getattr(one, name) for name in ("url", "title", "text")}
    clean = {name: text if text is None else repair(text) for name, text in texts.items()}
    return Citation(**clean, raw=kept_item(one.raw))


def kept_item(item: Mapping[str, Any], most_chars: int = _MAX_ITEM_CHARS) -> Mapping[str, Any]:
    """A server's JSON as every store keeps it; a note in place of one that is too large."""
    try:
        if len(dump(kept := repair_json(dict(item), _ITEM_DEPTH))) <= most_chars:
            return cast("Mapping[str, Any]", kept)
    except ValueRefused:
        pass
    return {"type": str(item.get("type")), "omitted": "it was too large to be stored"}


def _is_storable(signature: str | None) -> bool:
    return signature is None or repair(signature) is signature


def _kept_signature(signature: str | None) -> str | None:
    """*signature*, or `None` if it would have to be changed: a provider would refuse it."""
    return signature if _is_storable(signature) else None


def _repaired(turn: Turn, block: AssistantBlock) -> AssistantBlock:
    text = "characters that cannot be stored (NUL or lone surrogates) were replaced by U+FFFD"
    turn.out.warn("text_repaired", text)
    return block
