"""
Our content as A2A parts, and A2A parts as our content.

A file goes to the model as it came: an image, a recording, a document. Data goes to it as JSON. A
part that no model takes is refused before anything is stored.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import Message, Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import (  # type: ignore[import-untyped]  # it has no stubs
    MessageToDict,
    ParseDict,
)
from google.protobuf.struct_pb2 import Value  # type: ignore[import-untyped]  # as above

from looopy.server.gate.body import json_or_text
from looopy.server.protocols.text_answers import answer_in
from looopy.tools.call.results import to_json_text
from looopy.types.approval import decision_of
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)
from looopy.types.state import PendingKind, PendingRequest

_EXACT: Final = 2**53  # below it, each whole number is a double
_DOCUMENTS: Final = frozenset(
    {"application/pdf", "application/json", "application/xml", "application/yaml"}
)
_YES: Final = frozenset({"approve", "approved", "yes", "y", "ok", "true"})
_NO: Final = frozenset({"deny", "denied", "reject", "rejected", "no", "n", "false"})


@dataclass(frozen=True, slots=True)
class Said:
    """
    A message that was read.

    Attributes:
        blocks: All of it except the data, for the model.
        data: The values of its data parts.
    """

    blocks: Sequence[UserBlock] = ()
    data: Sequence[Any] = ()

    @property
    def text(self) -> str:
        """Its text alone."""
        return "\n".join(b.text for b in self.blocks if isinstance(b, TextContent)).strip()

    def message(self) -> UserMessage:
        """All of it, for the model."""
        data = (TextContent(to_json_text(value)) for value in self.data)
        return _message((*self.blocks, *data))


def read(message: Message, *, most_bytes: int) -> Said:
    """
    Read the parts of a message.

    Args:
        most_bytes: The longest text, as UTF-8.

    Raises:
        InvalidParamsError: A part is empty, or the text is too long.
        ContentTypeNotSupportedError: No model takes a file of this type.
    """
    blocks: list[UserBlock] = []
    data: list[Any] = []
    for number, part in enumerate(message.parts):
        path = f"/message/parts/{number}"
        kind = part.WhichOneof("content")
        if kind == "data":
            data.append(_exact(MessageToDict(part.data)))
        elif kind is None:
            raise invalid("the part is empty: send text, raw, url or data", path)
        else:
            blocks.append(_block(part, kind, path))
    said = Said(tuple(blocks), tuple(data))
    if len(said.message().text.encode()) > most_bytes:
        raise invalid(f"the text has more than {most_bytes:,} bytes", "/message/parts", "too_large")
    return said


def invalid(text: str, path: str, code: str = "invalid_request") -> InvalidParamsError:
    """The error for a wrong place in a request."""
    return InvalidParamsError(text, data={"code": code, "path": path})


def _message(blocks: Sequence[UserBlock]) -> UserMessage:
    if len(blocks) == 1 and isinstance(blocks[0], TextContent):
        return UserMessage(blocks[0].text)
    return UserMessage(tuple(blocks))


def _exact(value: Any) -> Any:
    """A value out of protobuf, in which each number is a double: whole ones as whole numbers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return value


def _block(part: Part, kind: str, path: str) -> UserBlock:
    if kind == "text":
        return TextContent(part.text)
    media_type = part.media_type
    if not media_type:
        media_type = mimetypes.guess_type(part.filename or part.url)[0] or ""
    plain = media_type.partition(";")[0].strip().lower()
    data = base64.b64encode(part.raw).decode() if kind == "raw" else ""
    url = part.url if kind == "url" else None
    if plain.startswith("image/"):
        return ImageContent(data, mime_type=plain, url=url)
    if plain.startswith("audio/") and url is None:
        return AudioContent(data, mime_type=plain)
    if plain in _DOCUMENTS or plain.startswith("text/"):
        return DocumentContent(data, mime_type=plain, url=url, name=part.filename or None)
    raise ContentTypeNotSupportedError(
        f"a file of the type {media_type or 'unknown'!r} cannot be read here: send text, an image,"
        " a PDF, or a recording with its data",
        data={"path": path},
    )


# --- to the client --------------------------------------------------------------------------------


def text_part(text: str) -> Part:
    """A part of text."""
    return Part(text=text, media_type="text/plain")


def file_part(content: bytes, name: str, media_type: str) -> Part:
    """A part with a file; a text that is UTF-8 as text."""
    kind, _, options = media_type.partition(";")
    charset = options.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower().startswith("text/") and charset in ("", "utf-8", "us-ascii"):
        with suppress(UnicodeDecodeError):
            return Part(text=content.decode(), filename=name, media_type=media_type)
    return Part(raw=content, filename=name, media_type=media_type)


def data_part(value: Any) -> Part:
    """A part of JSON."""
    return Part(data=ParseDict(value, Value()), media_type="application/json")


def parts_of(message: UserMessage) -> list[Part]:
    """The parts of a message of the user."""
    if isinstance(message.content, str):
        return [text_part(message.content)]
    return [_part(block) for block in message.content]


def _part(block: UserBlock) -> Part:
    if isinstance(block, TextContent):
        return text_part(block.text)
    part = Part(media_type=block.mime_type)
    if isinstance(block, DocumentContent) and block.name:
        part.filename = block.name
    url = None if isinstance(block, AudioContent) else block.url
    if url is not None:
        part.url = url
    else:
        part.raw = base64.b64decode(block.data)
    return part


# --- answers --------------------------------------------------------------------------------------


def answers(
    pending: Sequence[PendingRequest], said: Said
) -> tuple[Mapping[str, Any], UserMessage | None]:
    """
    The answers in a message, by request id, and its other text.

    A data part answers by request id. Anything else answers the one request that waits.

    Raises:
        InvalidParamsError: Several requests wait, or the text decides nothing.
    """
    known = {request.request_id for request in pending}
    given: dict[str, Any] = {}
    values: list[Any] = []
    for value in said.data:
        if isinstance(value, dict) and value and value.keys() <= known:
            given |= value
        else:
            values.append(value)
    if given and not values:
        return given, _message(said.blocks) if said.blocks else None
    if given or len(pending) != 1 or len(values) > 1:
        raise invalid(
            f"{len(pending)} requests wait: answer them by their ids, in one data part, such as"
            f" {to_json_text(_example(pending))}",
            "/message/parts",
        )
    [request] = pending
    if values and not said.blocks:
        return {request.request_id: values[0]}, None
    if values or not said.text or any(not isinstance(b, TextContent) for b in said.blocks):
        raise invalid("answer by a text, or by a data part, not both", "/message/parts")
    return {request.request_id: _value(request, said.text)}, None


def decisions(open_requests: Sequence[PendingRequest], said: Said) -> Mapping[str, Any]:
    """
    The decisions in a message about another person's calls, by request id; empty if it has more.

    A text decides the one of *open_requests*; a data part any request, also one that was decided.

    Raises:
        InvalidParamsError: Several requests are open, or the text decides nothing.
    """
    by_id = [one for one in said.data if isinstance(one, dict) and decision_of(one) is None]
    if by_id and len(by_id) == len(said.data) and not said.blocks:
        return {str(name): answer for one in by_id for name, answer in one.items()}
    if not open_requests:
        return {}
    given, more = answers(open_requests, said)
    return given if more is None else {}


def _example(pending: Iterable[PendingRequest]) -> dict[str, Any]:
    return {one.request_id: True if one.kind is PendingKind.APPROVAL else "..." for one in pending}


def _value(request: PendingRequest, text: str) -> Any:
    """The value that a text means as the answer to a request."""
    if request.kind is PendingKind.APPROVAL:
        word, _, reason = text.partition(":")
        if text.lower().rstrip(".!") in _YES:
            return True
        if word.lower().rstrip(".!") in _NO:
            reason = reason.strip()
            return {"approved": False, "reason": reason} if reason else False
        raise invalid(
            'say "approve" or "deny", or "deny: REASON"; or begin another task of this context,'
            " which drops the question",
            "/message/parts",
        )
    if request.kind is PendingKind.INPUT:
        heard = answer_in(UserMessage(text), [request])
        return text if heard is None else heard[request.request_id]  # the agent says what misfits
    if request.kind is PendingKind.AUTH:
        return text
    return json_or_text(text)
