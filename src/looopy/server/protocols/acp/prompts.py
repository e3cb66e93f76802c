"""
The words of a client: content blocks as a message, and answers to requests.

Each block becomes one block, so that the place in a refusal is the place in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from acp import schema

from looopy.errors import ValueRefused
from looopy.types.approval import Approve, Deny
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)

CONTINUE: Final = "continue"
ALLOW: Final = "allow"
REJECT: Final = "reject"
OPTIONS: Final = (
    schema.PermissionOption(option_id=ALLOW, name="Allow", kind="allow_once"),
    schema.PermissionOption(option_id=REJECT, name="Reject", kind="reject_once"),
)


def message_of(prompt: Sequence[Block]) -> UserMessage | None:
    """A prompt as a message; `None` if it asks to continue: `/continue`, or nothing at all."""
    text = "".join(block.text for block in prompt if isinstance(block, schema.TextContentBlock))
    only_text = all(isinstance(block, schema.TextContentBlock) for block in prompt)
    if only_text and text.strip() in ("", f"/{CONTINUE}"):
        return None
    return UserMessage([_block(block) for block in prompt])


def _block(block: Block) -> UserBlock:
    match block:
        case schema.TextContentBlock():
            return TextContent(block.text)
        case schema.ImageContentBlock():
            return ImageContent(
                block.data, mime_type=block.mime_type, url=None if block.data else block.uri
            )
        case schema.AudioContentBlock():
            return AudioContent(block.data, mime_type=block.mime_type)
        case schema.ResourceContentBlock():
            return TextContent(f"[{block.title or block.name}]({block.uri})")
        case schema.EmbeddedResourceContentBlock():
            return _resource(block.resource)


def _resource(found: schema.TextResourceContents | schema.BlobResourceContents) -> UserBlock:
    if isinstance(found, schema.TextResourceContents):
        return TextContent(f"<resource uri={json.dumps(found.uri)}>\n{found.text}\n</resource>")
    mime_type = found.mime_type or "application/octet-stream"
    if mime_type.startswith("image/"):
        return ImageContent(found.blob, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return AudioContent(found.blob, mime_type=mime_type)
    name = found.uri.rpartition("/")[2] or None
    return DocumentContent(found.blob, mime_type=mime_type, name=name)


def decision_in(response: schema.RequestPermissionResponse) -> Approve | Deny | None:
    """
    The decision of a person; `None` if the client closed the question.

    The protocol has options alone. A client that supports more sends it in `_meta`, under `looopy`:
    `args` and `note` of an approval, `reason` of a rejection.

    Raises:
        ValueRefused: An option that was not offered, or `_meta` of another form.
    """
    outcome = response.outcome
    if isinstance(outcome, schema.DeniedOutcome):
        return None
    more: Any = (outcome.field_meta or response.field_meta or {}).get("looopy") or {}
    if not isinstance(more, Mapping):
        raise ValueRefused("_meta.looopy takes an object", path="/_meta/looopy")
    args, note, reason = more.get("args"), more.get("note"), more.get("reason")
    if args is not None and not isinstance(args, Mapping):
        raise ValueRefused("args takes an object", path="/_meta/looopy/args")
    for name, value in (("note", note), ("reason", reason)):
        if value is not None and not isinstance(value, str):
            raise ValueRefused(f"{name} takes text", path=f"/_meta/looopy/{name}")
    if outcome.option_id == ALLOW:
        return Approve(args=args, note=note)
    if outcome.option_id == REJECT:
        return Deny(reason=reason)
    raise ValueRefused(
        f"there is no option {outcome.option_id!r}: {ALLOW} or {REJECT}", path="/outcome/optionId"
    )
