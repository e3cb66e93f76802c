"""
Read and check the body that `useChat` posts.

The page posts its whole list of messages, and the agent has them already. So only the last one is
read: a user's message, or an assistant's with the person's answers in its tool parts.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from looopy.errors import ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.stores.rules import check_context_id
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)

_MOST_ID_CHARS = 200
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII)
_TRIGGERS = ("submit-message", "regenerate-message")
_IGNORED = frozenset({"step-start", "reasoning", "source-url", "source-document", "custom"})
_ENDED = ("output-available", "output-error", "output-denied")


@dataclass(frozen=True, slots=True)
class Answer:
    """
    A person's answer in a tool part.

    Attributes:
        path: Where it stands in the body.
        request_id: Of an approval; `None`: the output of a tool that the page ran.
        value: Same as in `execute_turn(inputs=...)`.
    """

    path: str
    call_id: str
    value: Any
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """
    A request of `useChat`.

    Attributes:
        message: The user's message; `None` if the last message is the assistant's.
        message_id: The id of the last message.
        path: Where the last message stands.
        known: The tool calls of the last message, if it is the assistant's; *open*: the ones
            that have no result there.
        asked: Its requests for approval.
        inputs: Answers by `request_id`, from the body's own `inputs`.
        named: The message that the page edits or regenerates: the body's `messageId`.
        force: Regenerate although tools with effects run again.
    """

    context_id: str
    trigger: Literal["submit-message", "regenerate-message"]
    message_id: str
    path: str
    message: UserMessage | None = None
    known: Sequence[str] = ()
    open: Sequence[str] = ()
    asked: Sequence[str] = ()
    answers: Sequence[Answer] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    named: Any = None
    force: bool = False

    @property
    def decisions(self) -> Mapping[str, Any]:
        """Its answers as decisions by request id; empty if it brings more than decisions."""
        ids = [one.request_id for one in self.answers]
        if self.message is not None or self.trigger != "submit-message" or None in ids:
            return {}
        return {**self.inputs, **{str(one.request_id): one.value for one in self.answers}}


def read_request(body: Any) -> ChatRequest:
    """
    The request in the JSON value *body*. Fields that the page adds for itself are not read.

    Raises:
        ValueRefused: It is malformed; `path` is a JSON pointer to the place.
    """
    if not isinstance(body, Mapping):
        raise _refused("", "the body must be a JSON object")
    context_id = _text(body, "id", "")
    try:
        check_context_id(context_id)
    except ValueRefused as error:
        raise _refused("/id", str(error)) from None
    trigger = body.get("trigger", "submit-message")
    if trigger not in _TRIGGERS:
        raise _refused("/trigger", f"must be one of {', '.join(_TRIGGERS)}")
    inputs = body.get("inputs", {})
    if not isinstance(inputs, Mapping):
        raise _refused("/inputs", "must be an object of answers by request id")
    force = body.get("force", False)
    if not isinstance(force, bool):
        raise _refused("/force", "must be true or false")
    last, path = _last(body)
    message_id, role = _text(last, "id", path), _text(last, "role", path)
    parts = last.get("parts")
    if not isinstance(parts, list):
        raise _refused(f"{path}/parts", "must be a list")
    common: dict[str, Any] = {
        "context_id": context_id,
        "trigger": trigger,
        "message_id": message_id,
        "path": path,
        "inputs": dict(inputs),
        "named": body.get("messageId"),
        "force": force,
    }
    if role == "user":
        return ChatRequest(**common, message=_message(parts, f"{path}/parts"))
    if role != "assistant":
        raise _refused(f"{path}/role", "must be user or assistant")
    tools = list(_tools(parts, f"{path}/parts"))
    return ChatRequest(
        **common,
        known=[call for call, *_ in tools],
        open=[call for call, state, *_ in tools if state not in _ENDED],
        asked=[request for *_, request, _ in tools if request is not None],
        answers=[answer for *_, answer in tools if answer is not None],
    )


def _last(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The last message and its path: the last of `messages`, or the one in `message`."""
    if "messages" not in body and isinstance(body.get("message"), Mapping):
        return body["message"], "/message"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _refused("/messages", "must be a list of at least one message")
    path = f"/messages/{len(messages) - 1}"
    if not isinstance(messages[-1], Mapping):
        raise _refused(path, "must be an object")
    return messages[-1], path


def _message(parts: Sequence[Any], path: str) -> UserMessage:
    try:
        return as_user_message(UserMessage(_content(parts, path)), may_be_none=False)
    except ValueRefused as error:
        place = error.path if (error.path or "").startswith(path) else path
        raise _refused(str(place), str(error)) from None


def _content(parts: Sequence[Any], path: str) -> str | list[UserBlock]:
    blocks: list[UserBlock] = []
    for number, part in enumerate(parts):
        place = f"{path}/{number}"
        kind = _kind(part, place)
        if kind == "text":
            blocks.append(TextContent(_text(part, "text", place, most=None)))
        elif kind == "file":
            blocks.append(_file(part, place))
        elif not kind.startswith("data-"):
            raise _refused(f"{place}/type", f"a user's message has no part {kind[:40]!r}")
    if not blocks:
        raise _refused(path, "the message is empty")
    if len(blocks) == 1 and isinstance(blocks[0], TextContent):
        return blocks[0].text
    return blocks


def _file(part: Mapping[str, Any], path: str) -> UserBlock:
    media = "" if part.get("mediaType") == "" else _text(part, "mediaType", path)
    url = _text(part, "url", path, most=None)
    name = part.get("filename")
    if name is not None and not isinstance(name, str):
        raise _refused(f"{path}/filename", "must be text")
    data, found = "", _DATA_URL.match(url)
    if found is not None:
        data, media = url[found.end() :], found[1] or media
    elif not url.startswith(("https://", "http://")):
        raise _refused(f"{path}/url", "must be a data URL in base64, or begin with https://")
    media = media or _guessed(name, data)
    address = None if data else url
    family = media.partition("/")[0]
    if family == "image":
        return ImageContent(data, mime_type=media, url=address)
    if family == "audio":
        if address is not None:
            raise _refused(f"{path}/url", "audio must be a data URL")
        return AudioContent(data, mime_type=media)
    return DocumentContent(data, mime_type=media, url=address, name=name)


def _guessed(name: str | None, data: str) -> str:
    """The media type of a file whose type the browser does not know."""
    if known := mimetypes.guess_type(name or "")[0]:
        return known
    with suppress(ValueError):
        base64.b64decode(data, validate=True).decode()
        return "text/plain"
    return "application/octet-stream"


def _tools(parts: Sequence[Any], path: str) -> Any:
    """Each tool part's call, its state, its request for approval, and the person's answer."""
    for number, part in enumerate(parts):
        place = f"{path}/{number}"
        kind = _kind(part, place)
        if not kind.startswith("tool-") and kind != "dynamic-tool":
            if kind not in ("text", "file", "steering-message", "reasoning-file") and (
                kind not in _IGNORED and not kind.startswith("data-")
            ):
                raise _refused(f"{place}/type", f"unknown part {kind[:40]!r}")
            continue
        call, state = _text(part, "toolCallId", place), _text(part, "state", place)
        request, answer = None, None
        if part.get("approval") is not None:
            request, answer = _approval(part["approval"], state, call, f"{place}/approval")
        elif state == "output-available":
            answer = Answer(place, call, part.get("output"))
        elif state == "output-error":
            text = _text(part, "errorText", place, most=None)
            answer = Answer(place, call, {"is_error": True, "content": text})
        yield call, state, request, answer


def _approval(approval: Any, state: str, call: str, path: str) -> tuple[str, Answer | None]:
    if not isinstance(approval, Mapping):
        raise _refused(path, "must be an object")
    request = _text(approval, "id", path)
    if state != "approval-responded":
        return request, None
    approved, reason = approval.get("approved"), approval.get("reason")
    if not isinstance(approved, bool):
        raise _refused(f"{path}/approved", "must be true or false")
    if reason is not None and not isinstance(reason, str):
        raise _refused(f"{path}/reason", "must be text")
    told = {"note" if approved else "reason": reason} if reason else {}
    value: Any = {"approved": approved, **told} if told else approved
    return request, Answer(f"{path}/id", call, value, request)


def _kind(part: Any, path: str) -> str:
    if not isinstance(part, Mapping):
        raise _refused(path, "must be an object")
    return _text(part, "type", path)


def _text(value: Mapping[str, Any], name: str, path: str, most: int | None = _MOST_ID_CHARS) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise _refused(f"{path}/{name}", "must be text")
    if most is not None and not 0 < len(found) <= most:
        raise _refused(f"{path}/{name}", f"must have 1 to {most} characters")
    return found


def _refused(path: str, text: str) -> ValueRefused:
    return ValueRefused(text if text.startswith(path or " ") else f"{path}: {text}", path=path)
