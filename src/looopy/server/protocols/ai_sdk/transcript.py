"""
The messages of a context as the AI SDK keeps them, `UIMessage`s, for a page that loads.

They are folded from the same parts that the stream sends, by the rules of the AI SDK's client. So a
page that loads shows what a page that watched shows.
"""

from __future__ import annotations

from typing import Any

from looopy.server.protocols.ai_sdk.parts import Part, Parts, answer_id, blocks_to_parts
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    HistoryCleared,
    HistoryRewound,
    MessageEnd,
    TurnStart,
)
from looopy.types.message import AssistantMessage, ToolCall, ToolResultMessage, UserMessage

_KINDS = {"text": "text", "reasoning": "reasoning"}


class Answer:
    """One assistant message, as the AI SDK's client makes it of the parts of a stream."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts
        self.message: Part = {"id": "", "role": "assistant", "metadata": {}, "parts": []}
        self._open: dict[str, Part] = {}

    def see(self, event: AgentEvent) -> None:
        """Add what follows from *event*."""
        for part in self.source.see(event):
            self.add(part)

    def add(self, part: Part) -> None:
        """Add one part of the stream."""
        kind: str = part["type"]
        parts: list[Part] = self.message["parts"]
        if "messageMetadata" in part:
            self.message["metadata"] |= part["messageMetadata"]
        if kind == "start":
            self.message["id"] = part["messageId"]
        elif kind == "start-step":
            parts.append({"type": "step-start"})
        elif kind == "reset-step":
            self._open.clear()
            while parts and parts[-1]["type"] != "step-start":
                parts.pop()
        elif kind.startswith("tool-"):
            self._tool(kind, part)
        elif kind in ("source-url", "source-document", "steering-message"):
            parts.append(part)
        elif kind.startswith("data-"):
            self._data(part)
        elif (name := kind.partition("-")[0]) in _KINDS:
            self._text(name, kind, part)

    def _text(self, name: str, kind: str, part: Part) -> None:
        if kind.endswith("-start"):
            made: Part = {"type": name, "text": "", "state": "streaming"}
            if name == "reasoning":
                made["id"] = part["id"]
            self._open[part["id"]] = made
            self.message["parts"].append(made)
        elif kind.endswith("-delta"):
            self._open[part["id"]]["text"] += part["delta"]
        else:
            self._open.pop(part["id"])["state"] = "done"

    def _data(self, part: Part) -> None:
        if part.get("transient"):
            return
        for known in self.message["parts"]:
            if known["type"] == part["type"] and known.get("id") == part["id"]:
                known["data"] = part["data"]
                return
        self.message["parts"].append(part)

    def _tool(self, kind: str, part: Part) -> None:
        call_id = part.get("toolCallId")
        if kind == "tool-approval-response":
            tool = self._found("approval", part["approvalId"])
            tool["state"] = "approval-responded"
            reason = {"reason": part["reason"]} if "reason" in part else {}
            tool["approval"] |= {"approved": part["approved"], **reason}
            return
        if kind == "tool-input-start":
            shown = f"tool-{part['toolName']}"
            begun = {"type": shown, "toolCallId": call_id, "state": "input-streaming"}
            self.message["parts"].append(begun)
            return
        if kind == "tool-input-delta":  # all of it comes with the committed call
            return
        if kind in ("tool-input-available", "tool-input-error"):
            found = [p for p in self.message["parts"] if p.get("toolCallId") == call_id]
            if not found:
                found = [{"type": f"tool-{part['toolName']}", "toolCallId": call_id}]
                self.message["parts"] += found
            tool = found[0]
            tool |= {"state": "input-available", "input": part["input"]}
            if "providerExecuted" in part:
                tool["providerExecuted"] = True
            if kind == "tool-input-error":
                tool |= {"state": "output-error", "errorText": part["errorText"]}
            return
        tool = self._found("toolCallId", call_id)
        if kind == "tool-approval-request":
            reason = {"requestReason": part["reason"]} if "reason" in part else {}
            approval = {"id": part["approvalId"], **reason}
            tool |= {"state": "approval-requested", "approval": approval}
        elif kind == "tool-output-available":
            tool |= {"state": "output-available", "output": part["output"]}
            tool.pop("preliminary", None)
        elif kind == "tool-output-error":
            tool |= {"state": "output-error", "errorText": part["errorText"]}
        elif kind == "tool-output-denied":
            tool["state"] = "output-denied"

    def _found(self, field: str, wanted: Any) -> Part:
        """The tool part with this call or approval; `Parts` has announced it."""
        for part in reversed(self.message["parts"]):
            value = part.get(field)
            if value == wanted or (isinstance(value, dict) and value.get("id") == wanted):
                return part  # type: ignore[no-any-return]  # a list of parts in a dict of Any
        raise LookupError(wanted)


class Transcript:
    """
    Folds the stored events of a context into its `UIMessage`s.

    Feed it the log from `seq` 0, or from the beginning of a turn that began with a message. A turn
    that runs is there as far as it is committed.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._shown: list[tuple[int, Part]] = []  # each with the position of its first message
        self._hidden: list[tuple[int, int]] = []
        self._owners: dict[str, Answer] = {}  # by the model's ids of the calls
        self._answer: Answer | None = None
        self._turns: set[int] = set()  # the turns that write the newest answer
        self._said: UserMessage | None = None
        self._position = 0

    def see(self, event: AgentEvent) -> None:
        """Add what follows from *event*."""
        match event:
            case HistoryCleared():
                self._clear()
            case HistoryRewound(covers=covers, undone=True):
                self._hidden = [one for one in self._hidden if one != covers]
            case HistoryRewound(covers=covers):
                self._hidden.append(covers)
            case TurnStart():
                self._begin(event)
            case MessageEnd(message=UserMessage() as message, position=int() as position):
                self._position = position
                if message == self._said:
                    shown = blocks_to_parts(message.content)
                    named = f"message-{position}"
                    self._shown.append((position, {"id": named, "role": "user", "parts": shown}))
            case MessageEnd(position=int() as position):
                self._position = position
            case _:
                pass
        self._grow(event)

    def _begin(self, event: TurnStart) -> None:
        self._said = event.user_message
        if self._said is None and event.continues in self._turns and self._answer is not None:
            self._turns.add(event.turn)
        else:
            self._turns = {event.turn}
            self._answer = Answer(Parts(answer_id(event.turn)))

    def _grow(self, event: AgentEvent) -> None:
        """Add to the answer that *event* is about: a call may be of an earlier one."""
        answer = self._answer
        match event:
            case MessageEnd(message=ToolResultMessage(tool_call_id=call)):
                answer = self._owners.get(call, answer)
            case ApprovalDecided(tool_call_id=call):
                answer = self._owners.get(call, answer)
            case _:
                pass
        if answer is None:
            return
        anew = not answer.message["parts"]
        answer.see(event)
        parts = answer.message["parts"]
        if anew and parts:
            ended = isinstance(event, MessageEnd)
            self._shown.append((self._position + (not ended), answer.message))
        if isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            made = [one.id for one in event.message.content if isinstance(one, ToolCall)]
            self._owners |= dict.fromkeys(made, answer)

    def messages(self, below: int | None = None) -> list[Part]:
        """The messages, oldest first, without rewound ones; only *below* a position."""
        return [
            message
            for position, message in self._shown
            if (below is None or position < below)
            and not any(first <= position <= last for first, last in self._hidden)
        ]
