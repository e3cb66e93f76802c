"""The messages of a context as AG-UI has them, folded from the log, for `MESSAGES_SNAPSHOT`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from looopy.server.protocols.ag_ui.events import (
    Out,
    content_of,
    message_id_of,
    server_results,
    thought_id_of,
)
from looopy.server.protocols.call_ids import CallIds
from looopy.types.event import (
    AgentEvent,
    HistoryCleared,
    HistoryRewound,
    MessageEnd,
    TurnStart,
)
from looopy.types.message import (
    AssistantMessage,
    ServerToolCall,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)


class Snapshot:
    """
    Folds the stored events of a context, fed from `seq` 0, into the messages of AG-UI.

    Args:
        names: By turn, the id that the page gave the user's message. A page keeps the order of its
            messages by their ids.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._shown: list[tuple[int, int, Out]] = []  # with the position and the turn
        self._hidden: list[tuple[int, int]] = []
        self._said: UserMessage | None = None

    def see(self, event: AgentEvent) -> None:
        """Add what follows from *event*."""
        match event:
            case HistoryCleared():
                self._shown, self._hidden = [], []
            case HistoryRewound(covers=covers, undone=True):
                self._hidden = [one for one in self._hidden if one != covers]
            case HistoryRewound(covers=covers):
                self._hidden.append(covers)
            case TurnStart():
                self._said = event.user_message
            case MessageEnd(position=int() as position):
                made = self._messages(event, position)
                self._shown += [(position, event.turn, message) for message in made]
            case _:
                pass

    def messages(self) -> list[Out]:
        """The messages, oldest first, without rewound ones."""
        ids = CallIds()
        return [
            _with_ids(message, turn, ids)
            for position, turn, message in self._shown
            if not any(first <= position <= last for first, last in self._hidden)
        ]

    def _messages(self, event: MessageEnd, position: int) -> list[Out]:
        message, named = event.message, f"message-{position}"
        if isinstance(message, UserMessage):
            if message == self._said:
                named = self._names.get(event.turn, named)
            return [{"id": named, "role": "user", "content": content_of(message.content)}]
        if isinstance(message, ToolResultMessage):
            said: Out = {"id": named, "role": "tool", "toolCallId": message.tool_call_id}
            said["content"] = content_of(message.content)
            return [said | ({"error": message.text} if message.is_error else {})]
        if isinstance(message, AssistantMessage):
            return _answer(message, message_id_of(event.turn, event.iteration))
        return []


def _with_ids(message: Out, turn: int, ids: CallIds) -> Out:
    """*message* with ids of calls that no other call in the thread has."""
    if "toolCalls" in message:
        calls = [{**call, "id": ids.new(call["id"], turn)} for call in message["toolCalls"]]
        ids.commit()
        return {**message, "toolCalls": calls}
    if "toolCallId" in message:
        return {**message, "toolCallId": ids.of(message["toolCallId"])}
    return message


def call_ids_in(messages: Iterable[Out]) -> set[str]:
    """The ids of the calls in *messages*."""
    return {call["id"] for message in messages for call in message.get("toolCalls", ())}


def _answer(message: AssistantMessage, message_id: str) -> list[Out]:
    found: list[Out] = []
    calls: list[Out] = []
    block_number = 0
    for block in message.content:
        if isinstance(block, ThinkingContent) and block.thinking:
            named = thought_id_of(message_id, block_number)
            found.append({"id": named, "role": "reasoning", "content": block.thinking})
        elif isinstance(block, (ToolCall, ServerToolCall)) and block.id:
            calls.append(_call(block.id, block.name, block.arguments))
        if isinstance(block, (TextContent, ThinkingContent)):
            block_number += bool(block.text if isinstance(block, TextContent) else block.thinking)
    said: Out = {"id": message_id, "role": "assistant"}
    if message.text:
        said["content"] = message.text
    if calls:
        said["toolCalls"] = calls
    results = [
        {"id": f"{call_id}-result", "role": "tool", "toolCallId": call_id, "content": text}
        for call_id, text in server_results(message)
    ]
    return [*found, said, *results] if len(said) > 2 else found


def _call(call_id: str, name: str, args: Mapping[str, Any]) -> Out:
    text = json.dumps(dict(args), ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
