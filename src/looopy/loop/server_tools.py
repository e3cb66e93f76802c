"""
Events about tools that the provider's own server runs, while it runs them.

looopy runs nothing for these calls, and the answer's message holds them whole. The events show them
before that message is complete. Each is a commit of its own, so an answer has a limit of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from looopy.loop.outgoing import Group
from looopy.loop.parts import Turn
from looopy.loop.storable import kept_item
from looopy.types.event import ServerToolEnd, ServerToolStart
from looopy.types.message import ServerToolCall, ServerToolResult
from looopy.types.request import StreamEventType
from looopy.types.storable import repair

_MOST: Final = 128
_MOST_CHARS: Final = 64 * 1024  # of arguments, as JSON
_MOST_NAME_CHARS: Final = 200


class ServerTools:
    """The tools that the server runs for one answer of *turn*."""

    __slots__ = ("_begun", "_shown", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._begun: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._shown = 0

    def group(self, kind: StreamEventType, block: ServerToolCall | ServerToolResult) -> Group:
        """The group that shows a stream event of this *kind* about *block*."""
        out = self._turn.out
        self._shown += 1
        if self._shown > _MOST:
            return out.close_group()
        if isinstance(block, ServerToolResult):
            call_id = block.tool_call_id
            name, args = self._begun.get(call_id, (block.tool_name, {}))
        else:
            call_id, name, args = block.id, block.name, block.arguments
            if args:
                args = kept_item(args, _MOST_CHARS)
            elif call_id in self._begun:
                args = self._begun[call_id][1]
        facts = {
            "tool_call_id": repair(call_id)[:_MOST_NAME_CHARS],
            "tool_name": repair(name)[:_MOST_NAME_CHARS],
            "args": args,
        }
        if kind == "servertool_start":
            self._begun[call_id] = name, args
            out.emit(ServerToolStart, **facts)
        else:
            out.emit(ServerToolEnd, is_error=_failed(block), **facts)
        return out.close_group()


def _failed(block: ServerToolCall | ServerToolResult) -> bool:
    """True if the provider's block reports a failure, in the words of any of them."""
    item, content = block.item, block.item.get("content")
    told = isinstance(content, Mapping) and str(content.get("type")).endswith("_error")
    return told or item.get("status") == "failed" or bool(item.get("error") or item.get("is_error"))
