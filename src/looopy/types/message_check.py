"""
Checks messages of callers, and repairs messages of others.

A dataclass takes any value, and a field of a wrong type would show only when it is read back, which
is too late. So messages of callers are refused before anything is written (`check_message`). Those
of models, tools and damaged rows are repaired (`mended_message`, `salvaged_message`): a number in
text becomes a number, arguments as JSON text become arguments, and an unusable value is replaced by
the field's default. `message_fields` has the type of each field.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar, cast

from looopy.errors import ValueRefused
from looopy.types.constructors import amended
from looopy.types.message import (
    DOLLARS,
    NO_COST,
    NO_USAGE,
    TOKENS,
    AssistantMessage,
    AudioContent,
    Block,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)
from looopy.types.message_fields import (
    BLOCKS_OF,
    FIELDS,
    ROLES,
    SHOWN,
    SPOKEN,
    Nothing,
    as_base64,
    as_text,
    from_mapping,
    mended,
)
from looopy.types.storable import MAX_INT

T = TypeVar("T")
Lost: TypeAlias = list[str]
"""Where something was left out, as JSON pointers."""

_MOST_DOLLARS: Final = 1_000_000
"""For one call: a higher cost is an error of its source."""
_ROUNDING: Final = 1e-9
_MEDIA: Final[dict[Any, str]] = {
    ImageContent: "an image",
    DocumentContent: "a document",
    AudioContent: "audio",
}
_BLOCK_NAMED: Final[dict[str, type[Any]]] = {kind.type: kind for kind in (*SPOKEN, *SHOWN)}
_MESSAGES: Final = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)


# --- of callers: refused --------------------------------------------------------------------------


def check_message(message: object, path: str = "") -> None:
    """
    Refuse a message with a field of another type than it should have.

    JSON within it, such as arguments, is not looked into: that is for `looopy.types.storable`.

    Args:
        path: JSON pointer of the message, for the error.

    Raises:
        ValueRefused: `path` points at the field.
    """
    kind = _class_of(message)
    if kind is None:
        raise _refused(path, f"{type(message).__name__} is not a message")
    _check_fields(kind, message, path)
    allowed = BLOCKS_OF.get(kind)
    content = getattr(message, "content", None)
    if allowed is None or (kind is UserMessage and isinstance(content, str)):
        return
    if not isinstance(content, (list, tuple)):
        raise _refused(f"{path}/content", "must be text or a list of blocks")
    for i, block in enumerate(content):
        here = f"{path}/content/{i}"
        if not isinstance(block, allowed):
            raise _refused(here, f"{type(block).__name__} is not a block of this message")
        _check_fields(next(one for one in allowed if isinstance(block, one)), block, here)
        _check_source(block, here)


def _check_source(block: object, path: str) -> None:
    """Refuse a block with two sources, and a document or a recording without one."""
    url = block.url if isinstance(block, (ImageContent, DocumentContent)) else None
    if not isinstance(block, (ImageContent, DocumentContent, AudioContent)):
        return
    if url is not None and block.data:
        raise _refused(f"{path}/url", "give the data or the url, not both")
    if url is None and not block.data and not isinstance(block, ImageContent):
        raise _refused(f"{path}/data", "must not be empty")


def check_usage(usage: object, path: str = "") -> None:
    """Raise `ValueRefused` unless *usage* is a `Usage` with numbers that can be stored."""
    if not isinstance(usage, Usage):
        raise _refused(path, f"must be a Usage, not {type(usage).__name__}")
    _check_fields(Usage, usage, path)


def _check_fields(kind: type, value: object, path: str) -> None:
    for name, field in FIELDS[kind].items():
        found = getattr(value, name)
        if not field.kind.fits(found):
            why = f"must be {field.kind.name}, not {type(found).__name__}"
            raise _refused(f"{path}/{name}", why)
        if isinstance(found, (Usage, Cost)):
            _check_fields(Usage if isinstance(found, Usage) else Cost, found, f"{path}/{name}")


def _class_of(message: object) -> type | None:
    return next((kind for kind in _MESSAGES if isinstance(message, kind)), None)


def _refused(path: str, why: str) -> ValueRefused:
    return ValueRefused(f"{path or 'message'}: {why}", path=path)


# --- of models and tools: repaired ----------------------------------------------------------------


def mended_message(message: Message, lost: Lost) -> Message:
    """*message* with each field of the type it should have, or itself; *lost* gets the places."""
    kind = _class_of(message)
    if kind is None:
        raise _refused("", f"{type(message).__name__} is not a message")
    changes = _changes(kind, message, "", lost)
    allowed = BLOCKS_OF.get(kind)
    if allowed is not None:
        content = getattr(message, "content", None)
        if kind is not UserMessage or not isinstance(content, str):
            blocks = mended_blocks(content, allowed, lost)
            if blocks is not content:
                changes["content"] = blocks
    if "stop_reason" in changes:
        calls = any(isinstance(b, ToolCall) for b in changes.get("content", ()) or message.content)
        changes["stop_reason"] = StopReason.TOOL_USE if calls else StopReason.STOP
    return replace(message, **changes) if changes else message


def mended_answer(answer: Any, lost: Lost) -> AssistantMessage:
    """The assistant message that a provider ended its stream with, or `ValueRefused`."""
    if type(answer) is AssistantMessage and is_plain_message(answer):  # as nearly all are
        return answer
    if not isinstance(answer, AssistantMessage):
        raise _refused("", f"{type(answer).__name__} is not an AssistantMessage")
    return cast("AssistantMessage", mended_message(answer, lost))


_plain_answer: AssistantMessage | None = None


def is_plain_message(message: Any) -> bool:
    """
    True if *message* is certainly valid, decided quickly; false if it needs a closer check.

    It must never be true of a message that `check_message` would refuse. JSON within it is not
    looked into.
    """
    global _plain_answer  # noqa: PLW0603 - an answer is checked as it comes and as it is written
    if message is _plain_answer:
        return True
    kind, stamp = type(message), message.timestamp
    if type(stamp) is not int or not 0 <= stamp < MAX_INT:
        return False
    if kind is AssistantMessage:
        if _is_plain_answer(message):
            _plain_answer = message
            return True
        return False
    if kind is UserMessage:
        return type(message.content) is str or _are_plain(message.content, _PLAIN_SHOWN)
    return (
        kind is ToolResultMessage
        and type(message.tool_call_id) is type(message.tool_name) is str
        and type(message.is_error) is bool
        and _are_plain(message.content, _PLAIN_SHOWN)
    )


def _is_plain_answer(answer: AssistantMessage) -> bool:
    usage, error, name = answer.usage, answer.error_message, answer.response_id
    return (
        type(answer.stop_reason) is StopReason
        and type(answer.api) is type(answer.provider) is type(answer.model) is str
        and (error is None or type(error) is str)
        and (name is None or type(name) is str)
        and type(answer.logprobs) is tuple
        and not answer.logprobs
        and (usage is NO_USAGE or is_plain_usage(usage))
        and _are_plain(answer.content, _PLAIN_SAID)
    )


_PLAIN_SHOWN: Final = (TextContent, ImageContent)
_PLAIN_SAID: Final = (TextContent, ToolCall, ThinkingContent)


def _are_plain(blocks: Any, allowed: tuple[type, ...]) -> bool:
    if type(blocks) is not tuple:
        return False
    for block in blocks:
        kind, more = type(block), None
        if kind not in allowed:
            return False
        if kind is TextContent:
            plain, signature = type(block.text) is str, block.text_signature
            plain = plain and type(block.citations) is tuple and not block.citations
        elif kind is ToolCall:
            plain, signature = type(block.id) is type(block.name) is str, block.thought_signature
            plain, more = plain and type(block.arguments) is dict, block.invalid_arguments
        elif kind is ThinkingContent:
            plain, signature = type(block.thinking) is str, block.thinking_signature
            plain = plain and type(block.redacted) is bool
        else:
            plain, signature = type(block.data) is type(block.mime_type) is str, None
            plain = plain and block.url is None
        if not plain or (signature is not None and type(signature) is not str):
            return False
        if more is not None and type(more) is not str:
            return False
    return True


def is_plain_usage(usage: Any) -> bool:
    """True if *usage* is certainly valid, decided quickly."""
    if type(usage) is not Usage:
        return False
    cost = usage.cost
    if cost is not None and cost is not NO_COST and not _is_plain_cost(cost):
        return False
    into, out, read, wrote, total, thought = (
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.total_tokens,
        usage.reasoning,
    )
    if type(into) is type(out) is type(read) is type(wrote) is type(total) is type(thought) is int:
        return 0 <= into | out | read | wrote | total | thought < MAX_INT
    return False


def _is_plain_cost(cost: Any) -> bool:
    if type(cost) is not Cost:
        return False
    into, out, read, wrote, total = (
        cost.input,
        cost.output,
        cost.cache_read,
        cost.cache_write,
        cost.total,
    )
    if type(into) is type(out) is type(read) is type(wrote) is type(total) is float:
        least, all_of_it = min(into, out, read, wrote, total), into + out + read + wrote + total
        return cost.complete is True and least >= 0 and all_of_it <= _MOST_DOLLARS  # false for NaN
    return False


def mended_usage(usage: Any, lost: Lost) -> Usage:
    """*usage* with numbers that can be stored; of something else, no usage."""
    if not isinstance(usage, Usage):
        usage = mended(AssistantMessage, "usage", usage, "/usage", lost)
    return _mended(Usage, cast("Usage", usage), "/usage", lost)


def mended_shown(blocks: Any, lost: Lost) -> tuple[UserBlock, ...]:
    """The blocks that a tool shows to a model; *blocks* itself if nothing is wrong with them."""
    return cast("tuple[UserBlock, ...]", mended_blocks(blocks, SHOWN, lost))


def mended_blocks(content: Any, allowed: tuple[type, ...], lost: Lost) -> tuple[Block, ...]:
    """The blocks of *content*, each of one of the *allowed* classes."""
    if isinstance(content, (str, bytes)):
        text = as_text(content) if isinstance(content, bytes) else content
        return (TextContent(text),) if text else ()
    if not isinstance(content, (list, tuple)):
        if content is not None:
            lost.append("/content")
        return ()
    found: list[Block] = []
    for i, block in enumerate(content):
        one = _mended_block(block, allowed, f"/content/{i}", lost)
        if one is not None:
            found.append(one)
    same = type(content) is tuple and len(found) == len(content)
    if same and all(new is old for new, old in zip(found, content, strict=True)):
        return cast("tuple[Block, ...]", content)
    return tuple(found)


def _mended_block(block: Any, allowed: tuple[type, ...], path: str, lost: Lost) -> Block | None:
    if isinstance(block, str):
        return TextContent(block)
    if isinstance(block, Mapping):
        named = block.get("type")
        known = _BLOCK_NAMED.get(named) if isinstance(named, str) else None
        block = None if known is None else from_mapping(known, block)
    for kind in allowed:
        if not isinstance(block, kind):
            continue
        found: Any = block
        if kind is ToolCall and not isinstance(found.arguments, Mapping):
            found = _with_arguments(found)
        if kind in _MEDIA and not FIELDS[kind]["data"].kind.fits(found.data):
            try:
                as_base64(found.data)
            except Nothing:
                lost.append(f"{path}/data")
                return TextContent(f"[{_MEDIA[kind]} that cannot be read was left out]")
        return _with_source(kind, _mended(kind, found, path, lost), path, lost)
    lost.append(path)
    return None


def _with_source(kind: type, block: Any, path: str, lost: Lost) -> Block:
    """*block*; a file with two sources keeps its data, and one without any becomes text."""
    try:
        _check_source(block, path)
    except ValueRefused as refused:
        lost.append(refused.path or path)
        if block.data:
            return cast("Block", replace(block, url=None))
        return TextContent(f"[{_MEDIA[kind]} that cannot be read was left out]")
    return cast("Block", block)


def _with_arguments(call: ToolCall) -> ToolCall:
    """*call* with its arguments as an object: parsed from text, or kept as text in one."""
    said = cast("Any", call.arguments)
    if said is None:
        return amended(call, arguments={})
    if isinstance(said, (bytes, bytearray)):
        said = as_text(said)
    try:
        text = said if isinstance(said, str) else json.dumps(said, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(said).__name__}>"
    found = None
    if isinstance(said, str):
        try:
            found = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            found = None
    if isinstance(found, dict):
        return amended(call, arguments=found)
    return amended(call, arguments={}, invalid_arguments=text)


def _mended(kind: type, value: T, path: str, lost: Lost) -> T:
    changes = _changes(kind, value, path, lost)
    return cast("T", replace(cast("Any", value), **changes)) if changes else value


def _changes(kind: type, value: object, path: str, lost: Lost) -> dict[str, Any]:
    """The fields of *value* that have to change, with what they become."""
    changes: dict[str, Any] = {}
    for name in FIELDS[kind]:
        found = getattr(value, name)
        here = mended(kind, name, found, f"{path}/{name}", lost)
        if isinstance(here, Usage) and here is not NO_USAGE:
            here = _mended(Usage, here, f"{path}/{name}", lost)
        elif isinstance(here, Cost) and here is not NO_COST:
            here = _known_cost(here, f"{path}/{name}", lost)
        elif kind is Usage and name in TOKENS and cast("int", here) < 0:
            lost.append(f"{path}/{name}")
            here = 0
        if here is not found:
            changes[name] = here
    return changes


def _known_cost(cost: Cost, path: str, lost: Lost) -> Cost | None:
    """*cost*, or `None` if a part is not an amount: a zero there would pass any budget."""
    wrong: Lost = []
    found = _mended(Cost, cost, path, wrong)
    for name in DOLLARS:
        if not -_ROUNDING <= getattr(found, name) <= _MOST_DOLLARS:
            wrong.append(f"{path}/{name}")
    if cast("Any", cost.total) is None:
        wrong.append(f"{path}/total")
    lost += wrong
    return None if wrong else found


# --- of damaged rows: saved -----------------------------------------------------------------------


def salvaged_message(data: Any, lost: Lost) -> Message:
    """
    The message in a JSON value, with fields of any type.

    Args:
        lost: Called if something was left out.

    Raises:
        ValueRefused: It is not an object with a role.
    """
    role = data.get("role") if isinstance(data, Mapping) else None
    if not isinstance(role, str) or not role:
        raise _refused("/role" if isinstance(data, Mapping) else "", "a message needs a role")
    kind = ROLES.get(role, CustomMessage)
    given = dict(data)
    if kind is not CustomMessage:
        content = given.get("content")
        if not (kind is UserMessage and isinstance(content, str)):
            given["content"] = mended_blocks(content, BLOCKS_OF[kind], lost)
    given.setdefault("timestamp", 0)
    return mended_message(cast("Message", from_mapping(kind, given)), lost)
