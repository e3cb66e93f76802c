"""
The transcript of a session: messages and events of looopy as `session/update`s.

Pure but for its memory of the calls: ACP wants an id that is unique in the session, and models
repeat theirs. The same class replays what is stored and shows what happens, so a client sees the
same transcript after a restart. Deltas come besides: a message that was streamed is not repeated
when it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, TypeAlias

from acp import schema

from looopy.stores.records import MessageRecord
from looopy.types.event import (
    AgentEvent,
    AuthRequired,
    InputRequired,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ServerToolEnd,
    ServerToolStart,
    StatusChange,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    ServerToolCall,
    ServerToolResult,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.notices import notice_of
from looopy.types.state import PendingKind, PendingRequest

Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
)
ContentBlock: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.EmbeddedResourceContentBlock
)
ToolContent: TypeAlias = (
    schema.ContentToolCallContent | schema.FileEditToolCallContent | schema.TerminalToolCallContent
)

_TITLE_CHARS: Final = 120
_WAIT_S: Final = 1.0  # a shorter wait is not worth a sentence that stays in the transcript
_PATHS: Final = ("path", "file_path", "filepath", "filename", "file", "abs_path")
# The kind is for the client's icon; it comes from a word of the tool's name.
_WORDS: Final[Mapping[schema.ToolKind, str]] = {
    "read": "read get show list view cat load open",
    "edit": "edit write patch save update replace insert append apply create",
    "delete": "delete remove rm erase",
    "move": "move rename mv",
    "search": "search find grep query glob lookup",
    "execute": "run exec execute shell bash command terminal python",
    "fetch": "fetch http download browse crawl url web",
    "think": "think plan reason",
}
_KINDS: Final[Mapping[str, schema.ToolKind]] = {
    word: kind for kind, words in _WORDS.items() for word in words.split()
}


class Transcript:
    """
    Makes the updates of one session.

    Args:
        cwd: The session's directory; a relative path in the arguments of a call begins there.
    """

    def __init__(self, cwd: str) -> None:
        self._cwd = PurePath(cwd)
        self._calls: dict[str, str] = {}  # the newest id in the session, by the model's id
        self._ended: set[str] = set()
        self._streamed: set[str] = set()  # the kinds of blocks that went out as deltas
        self._tries = 1
        self._hidden: UserMessage | None = None

    def hide(self, message: UserMessage | None) -> None:
        """Leave out *message*, once: the client shows its person's text itself."""
        self._hidden = message

    def again(self) -> None:
        """Restart an answer that is written again: the client will see it from its start."""
        self._streamed = set()
        self._tries += 1

    def replay(
        self, records: Iterable[MessageRecord], edits: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[Update]:
        """
        Show stored messages, oldest first.

        Args:
            edits: The arguments that a person put in the place of the model's, by request id.
        """
        for record in records:
            for update in self._message(record.message, record.turn, record.iteration):
                yield update
                key = update.tool_call_id if isinstance(update, schema.ToolCallStart) else ""
                if key in edits and isinstance(update, schema.ToolCallStart):
                    yield _edited(key, update.title.partition(" ")[0], edits[key])

    def show(self, event: AgentEvent) -> Iterator[Update]:
        """Show an event, in the order of the log."""
        if event.path:
            return  # of an agent that works for a call: the call's result has the outcome
        match event:
            case MessageStart():
                self._streamed = set()
                self._tries = 1
            case StatusChange(attempt=int()):
                self._streamed = set()
                self._tries += 1  # the model begins again, with another message
                if (event.delay_s or 0.0) >= _WAIT_S and (said := notice_of(event)):
                    yield notice(said, f"retry.{event.turn}.{event.iteration}.{event.attempt}")
            case MessageUpdate():
                yield from self._delta(event)
            case MessageEnd(message=message):
                if message == self._hidden:
                    self._hidden = None
                else:
                    yield from self._message(message, event.turn, event.iteration)
                self._streamed = set()
            case ToolExecutionStart() | ServerToolStart():
                yield from self._begun(event)
            case ToolExecutionUpdate():
                yield self._reported(event)
            case ToolExecutionEnd():
                yield from self._result(event.result, event.turn)
            case ServerToolEnd():
                yield self._served(event.tool_call_id, event.turn, failed=event.is_error)
            case InputRequired(pending=pending) | AuthRequired(pending=pending):
                yield from self.questions(pending)
            case _:
                return

    def questions(self, pending: Sequence[PendingRequest]) -> Iterator[Update]:
        """Show how to answer by a message; approvals have a dialog."""
        for request in pending:
            if request.kind is not PendingKind.APPROVAL:
                yield notice(question_of(request), request.kind.value)

    def id_of(self, request: PendingRequest) -> str:
        """The id, in the session, of the call that *request* is about."""
        return self._id(request.tool_call_id, request.turn)

    def pending_call(self, request: PendingRequest) -> schema.ToolCallUpdate:
        """The call of *request*, for the dialog that asks about it."""
        return schema.ToolCallUpdate(
            tool_call_id=self.id_of(request),
            title=title_of(request.tool_name, request.args),
            kind=kind_of(request.tool_name),
            status="pending",
            content=[_said_in_tool(request.prompt)] if request.prompt else None,
            locations=self._locations(request.args),
            raw_input=dict(request.args),
        )

    # --- messages ------------------------------------------------------------------------------

    def _message(self, message: Message, turn: int, iteration: int) -> Iterator[Update]:
        if isinstance(message, UserMessage):
            blocks = message.content
            if isinstance(blocks, str):
                blocks = (TextContent(blocks),)
            for block in blocks:
                yield schema.UserMessageChunk(
                    session_update="user_message_chunk",
                    content=content_of(block),
                    message_id=f"{turn}.{iteration}.user",
                )
        elif isinstance(message, AssistantMessage):
            yield from self._answer(message, turn, iteration)
        elif isinstance(message, ToolResultMessage):
            yield from self._result(message, turn)

    def _answer(self, message: AssistantMessage, turn: int, iteration: int) -> Iterator[Update]:
        at = self._message_id(turn, iteration)
        for block in message.content:
            match block:
                case TextContent(text=text) if text and "text" not in self._streamed:
                    yield _text_chunk(text, at)
                case ThinkingContent(thinking=text) if text and "thinking" not in self._streamed:
                    yield _thought_chunk(text, at)
                case ToolCall():
                    yield self._called(block.id, block.name, block.arguments, turn)
                case ServerToolCall() if self._calls.get(block.id) != _key(block.id, turn):
                    yield self._called(block.id, block.name, block.arguments, turn)
                case ServerToolResult() if _key(block.tool_call_id, turn) not in self._ended:
                    yield self._served(block.tool_call_id, turn, failed=False)
                case _:
                    pass

    def _delta(self, event: MessageUpdate) -> Iterator[Update]:
        at = self._message_id(event.turn, event.iteration)
        if event.delta:
            self._streamed.add("text")
            yield _text_chunk(event.delta, at)
        elif event.event is not None and event.event.type == "thinking_delta" and event.event.delta:
            self._streamed.add("thinking")
            yield _thought_chunk(event.event.delta, at)

    def _message_id(self, turn: int, iteration: int) -> str:
        again = f".{self._tries}" if self._tries > 1 else ""
        return f"{turn}.{iteration}{again}"

    # --- calls ---------------------------------------------------------------------------------

    def _id(self, call_id: str, turn: int) -> str:
        return self._calls.get(call_id) or _key(call_id, turn)

    def _called(
        self, call_id: str, name: str, args: Mapping[str, Any], turn: int
    ) -> schema.ToolCallStart:
        self._calls[call_id] = key = _key(call_id, turn)
        self._ended.discard(key)
        return schema.ToolCallStart(
            session_update="tool_call",
            tool_call_id=key,
            title=title_of(name, args),
            kind=kind_of(name),
            status="pending",
            locations=self._locations(args),
            raw_input=dict(args),
        )

    def _begun(self, event: ToolExecutionStart | ServerToolStart) -> Iterator[Update]:
        if event.tool_call_id not in self._calls:
            yield self._called(event.tool_call_id, event.tool_name, event.args, event.turn)
        key = self._id(event.tool_call_id, event.turn)
        if isinstance(event, ToolExecutionStart) and event.edited:
            yield _edited(key, event.tool_name, event.args)
        yield schema.ToolCallProgress(
            session_update="tool_call_update", tool_call_id=key, status="in_progress"
        )

    def _reported(self, event: ToolExecutionUpdate) -> schema.ToolCallProgress:
        said = event.partial_result
        if event.progress is not None:
            said = f"{event.progress:.0%}"
        return schema.ToolCallProgress(
            session_update="tool_call_update",
            tool_call_id=self._id(event.tool_call_id, event.turn),
            status="in_progress",
            content=[_said_in_tool(said if isinstance(said, str) else _json(said))],
        )

    def _result(self, result: ToolResultMessage, turn: int) -> Iterator[Update]:
        key = self._id(result.tool_call_id, turn)
        if key in self._ended:
            return  # shown when the tool ended; this is its message
        self._ended.add(key)
        shown = _shown_in_editors(result.details)
        content: list[ToolContent] = [
            schema.ContentToolCallContent(type="content", content=content_of(block))
            for block in result.content
        ]
        content += _diffs(shown.get("diffs"))
        kind = shown.get("kind")
        yield schema.ToolCallProgress(
            session_update="tool_call_update",
            tool_call_id=key,
            status="failed" if result.is_error else "completed",
            kind=kind if kind in _ALL_KINDS else None,
            content=content,
            locations=_given_locations(shown.get("locations")),
            raw_output=result.details,
        )

    def _served(self, call_id: str, turn: int, *, failed: bool) -> schema.ToolCallProgress:
        key = self._id(call_id, turn)
        self._ended.add(key)
        return schema.ToolCallProgress(
            session_update="tool_call_update",
            tool_call_id=key,
            status="failed" if failed else "completed",
        )

    def _locations(self, args: Mapping[str, Any]) -> list[schema.ToolCallLocation] | None:
        """The files that a call names in its arguments; ACP wants absolute paths."""
        line = args.get("line")
        at = line if isinstance(line, int) and not isinstance(line, bool) and line >= 0 else None
        found = [
            schema.ToolCallLocation(path=str(self._cwd / args[name]), line=at)
            for name in _PATHS
            if isinstance(args.get(name), str) and args[name] and "://" not in args[name]
        ]
        return found or None


_ALL_KINDS: Final = (*_WORDS, "other")


def notice(text: str, about: str) -> schema.AgentMessageChunk:
    """A sentence of looopy's own to the person; `_meta` marks it as not the model's."""
    return schema.AgentMessageChunk(
        session_update="agent_message_chunk",
        content=schema.TextContentBlock(type="text", text=text),
        message_id=f"notice.{about}",
        field_meta={"looopy": {"notice": about}},
    )


def question_of(request: PendingRequest) -> str:
    """A request that a message answers, for a person."""
    asked = request.prompt or f"{request.tool_name} waits for an answer."
    if request.kind is PendingKind.AUTH:
        return f"{asked}\n\nThis client cannot send credentials: answer in another one."
    if request.kind is PendingKind.CLIENT_TOOL:
        return f"{asked}\n\nThis client does not run {request.tool_name}: answer in another one."
    options = [option if isinstance(option, str) else _json(option) for option in request.options]
    return "\n".join([asked, *(f"- {option}" for option in options)])


def title_of(name: str, args: Mapping[str, Any]) -> str:
    """A call in one line: `add a=2 b=3`."""
    parts = (f"{key}={_json(value)}" for key, value in args.items())
    line = " ".join(" ".join((name, *parts)).split())
    return line if len(line) <= _TITLE_CHARS else f"{line[: _TITLE_CHARS - 3]}..."


def kind_of(name: str) -> schema.ToolKind:
    """The kind of a tool, by the first known word of its name."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    found: list[schema.ToolKind] = [_KINDS[word] for word in words if word in _KINDS]
    return found[0] if found else "other"


def content_of(block: UserBlock) -> ContentBlock:
    """A block of a message or a result."""
    match block:
        case TextContent(text=text):
            return schema.TextContentBlock(type="text", text=text)
        case ImageContent():
            return schema.ImageContentBlock(
                type="image", data=block.data, mime_type=block.mime_type, uri=block.url
            )
        case AudioContent():
            return schema.AudioContentBlock(
                type="audio", data=block.data, mime_type=block.mime_type
            )
        case DocumentContent():
            return schema.EmbeddedResourceContentBlock(
                type="resource",
                resource=schema.BlobResourceContents(
                    blob=block.data,
                    mime_type=block.mime_type,
                    uri=block.url or f"looopy:document/{block.name or ''}",
                ),
            )


def _edited(key: str, name: str, args: Mapping[str, Any]) -> schema.ToolCallProgress:
    """A call with other arguments than the model's."""
    return schema.ToolCallProgress(
        session_update="tool_call_update",
        tool_call_id=key,
        title=title_of(name, args),
        raw_input=dict(args),
    )


def _key(call_id: str, turn: int) -> str:
    return f"{turn}-{call_id}"


def _text_chunk(text: str, message_id: str) -> schema.AgentMessageChunk:
    return schema.AgentMessageChunk(
        session_update="agent_message_chunk",
        content=schema.TextContentBlock(type="text", text=text),
        message_id=message_id,
    )


def _thought_chunk(text: str, message_id: str) -> schema.AgentThoughtChunk:
    return schema.AgentThoughtChunk(
        session_update="agent_thought_chunk",
        content=schema.TextContentBlock(type="text", text=text),
        message_id=message_id,
    )


def _said_in_tool(text: str) -> schema.ContentToolCallContent:
    return schema.ContentToolCallContent(
        type="content", content=schema.TextContentBlock(type="text", text=text)
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown_in_editors(details: object) -> Mapping[str, Any]:
    """The part of a result's `details` for its display in an editor."""
    shown = details.get("acp") if isinstance(details, Mapping) else None
    return shown if isinstance(shown, Mapping) else {}


def _diffs(given: object) -> Iterator[schema.FileEditToolCallContent]:
    for one in given if isinstance(given, (list, tuple)) else ():
        if not isinstance(one, Mapping):
            continue
        path, old, new = one.get("path"), one.get("old_text"), one.get("new_text")
        if isinstance(path, str) and isinstance(new, str):
            yield schema.FileEditToolCallContent(
                type="diff", path=path, new_text=new, old_text=old if isinstance(old, str) else None
            )


def _given_locations(given: object) -> list[schema.ToolCallLocation] | None:
    found = [
        schema.ToolCallLocation(path=one["path"], line=line if _is_line(line) else None)
        for one in (given if isinstance(given, (list, tuple)) else ())
        if isinstance(one, Mapping) and isinstance(one.get("path"), str)
        for line in [one.get("line")]
    ]
    return found or None


def _is_line(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
