"""
Turn any stored log into messages that a provider accepts.

Providers refuse a whole request for one flaw in its history: a call without a result, a result
without a call, an empty text, a thinking block of another model. Logs do get such flaws, from
crashes, aborts, windows and other programs, and a log is never edited, because it is evidence. So
this pure function renders each request from it; valid messages are returned as the same objects.

The idea: an assistant message reserves one place for the result of each of its calls, directly
after itself and in call order. A result goes to the place that the newest announcement reserved
for its id, wherever in the log it comes, so it ends up adjacent to its call. A result without a
place is an orphan or a duplicate and is left out. A place that stays empty gets a result of fixed
words, so that prompt caches stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeGuard, TypeVar, cast, overload

from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    Message,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
    url_of,
)

NOT_STARTED: Final = "This call was not run: the turn ended before it started. It had no effect."
OUTCOME_UNKNOWN: Final = (
    "The outcome of this call is unknown. It may have run, wholly or in part:"
    " check what it did before running it again."
)
CANCELLED: Final = "This call was cancelled or denied by the user and gave no result."
# Why a model's answer may have been cut off between two pieces of its stream.
CUT_OFF: Final = frozenset(
    {
        StopReason.ERROR,
        StopReason.ABORTED,
        StopReason.CANCELLED,
        StopReason.INTERRUPTED,
        StopReason.DEADLINE,
    }
)
# Call ids that Anthropic and OpenAI both accept: OpenAI's chat endpoint stops at 40 characters.
_MAX_ID: Final = 40
_MAX_NAME: Final = 64
_STRANGE: Final = r"[^A-Za-z0-9_-]"
_SNAPSHOT: Final = r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$"


def render(
    messages: Sequence[Message],
    *,
    provider: str = "",
    model: str = "",
    merge_same_role: bool = False,
    strict: bool = False,
) -> list[Message]:
    """
    Make a log valid for a provider.

    Args:
        messages: Oldest first; any log, whole or a part, however damaged.
        provider: The reader. Signed blocks are replayed only to the provider and model that made
            them, ids of other providers' calls are made acceptable, and for `"anthropic"` and
            `"openai"` ids are unique in the whole history. Empty: unknown, and all of this is left
            as it is.
        model: The model that will read it; snapshots (`-20250929`, `-latest`) count as one model.
            Empty: any of *provider*.
        merge_same_role: Join neighbouring messages of one role, for servers that insist on
            alternation. Messages with signed blocks are never joined.
        strict: For a second try after a history was refused: no thinking and no signatures at all,
            unique ids, same roles joined.

    Returns:
        User, assistant and tool result messages. Each tool call has exactly one result, after its
        message and in call order; nothing is empty (a result alone may have no content). Equal to
        *messages*, object for object, if they were valid. Rendering again changes nothing.
    """
    rendering = Rendering(provider=provider, model=model, strict=strict)
    rendering.extend(messages)
    rendered = rendering.settle()
    if merge_same_role or strict:
        rendered = _merged(rendered)
    if rendered and isinstance(rendered[-1], AssistantMessage):
        rendered[-1] = _without_trailing_space(rendered[-1])
    return rendered


def synthetic_result(call: ToolCall, text: str, *, timestamp: int) -> ToolResultMessage:
    """
    The substitute result, an error, of a call without a result.

    Args:
        text: `NOT_STARTED`, `OUTCOME_UNKNOWN` or `CANCELLED`.
        timestamp: Milliseconds since 1970.
    """
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text),),
        details={"synthetic": True},
        is_error=True,
        timestamp=timestamp,
    )


class _Reader:
    """The reader of the messages, which decides what opaque parts and ids may stay."""

    __slots__ = ("_family", "_provider", "_strict", "unique_ids")

    def __init__(self, provider: str, model: str, *, strict: bool) -> None:
        self._provider = provider
        self._family = _family(model)
        self._strict = strict
        # All of them need it within one answer; Anthropic and OpenAI's Responses, in the whole
        # history.
        self.unique_ids = strict or provider in ("anthropic", "openai")

    def may_replay(self, message: AssistantMessage) -> bool:
        """True if this model made the signatures of *message*, or no model was named."""
        if self._strict:
            return False
        if not self._provider:
            return True
        return message.provider == self._provider and (
            not self._family or _family(message.model) == self._family
        )

    @property
    def is_named(self) -> bool:
        """True if the provider is known, so that its own blocks can go back to it."""
        return bool(self._provider)

    def signed_only(self, message: AssistantMessage) -> bool:
        """True if unsigned thinking is dropped: providers refuse it, it may be half a thought."""
        return bool(self._provider) or message.stop_reason in CUT_OFF

    def plain_ids(self, message: AssistantMessage) -> bool:
        """True if the ids of *message* may be foreign to the reader: another provider made them."""
        return self._strict or (bool(self._provider) and message.provider != self._provider)


@lru_cache(maxsize=256)
def _family(model: str) -> str:
    return re.sub(_SNAPSHOT, "", model)


class Rendering:
    """
    A log for one reader, rendered as it grows: each new message is processed once.

    The messages so far are in a list, with a place for the result of each call after its message.
    A message that was sent once is settled: an empty place has its substitute by then. Only a
    result that comes later for such a place changes earlier messages, and it costs a new settling
    of all of them.
    """

    __slots__ = ("_items", "_open", "_reader", "_settled", "_settled_items", "_taken", "_waiting")

    def __init__(self, *, provider: str = "", model: str = "", strict: bool = False) -> None:
        self._reader = _Reader(provider, model, strict=strict)
        self._items: list[Message | ToolCall] = []  # a call stands where its result is missing
        self._waiting: dict[str, list[int]] = {}  # id in the log -> its newest places, if empty
        self._taken: set[str] = set()  # ids that no other call may have
        self._open = 0  # empty places after what is settled
        self._settled: list[Message] = []  # grows only: readers hold its beginnings
        self._settled_items = 0

    def extend(self, messages: Iterable[Message]) -> None:
        """Add *messages* to the end of the log."""
        reader, items = self._reader, self._items
        for message in messages:
            if isinstance(message, (UserMessage, AssistantMessage)) and _plain_text(message):
                items.append(message)
            elif isinstance(message, UserMessage):
                asked = _user(message)
                if asked is not None:
                    items.append(asked)
            elif isinstance(message, AssistantMessage):
                said = _assistant(message, reader)
                if said is not None:
                    self._announce(said)
            elif isinstance(message, ToolResultMessage):
                self._answer(message)

    def shown(self) -> Sequence[Message]:
        """
        The rendered messages of the log, in a sequence that never changes.

        It costs only the messages that were added since the last call.
        """
        self._settle()
        settled = self._settled
        if settled and isinstance(settled[-1], AssistantMessage):
            ended = _without_trailing_space(settled[-1])
            if ended is not settled[-1]:
                return Prefix([*settled[:-1], ended])
        return Prefix(settled)

    def settle(self) -> list[Message]:
        """All messages: missing results filled in, cut-off calls that never ran left out."""
        self._settle()
        return list(self._settled)

    def _announce(self, message: AssistantMessage) -> None:
        """Add a message and a place for each result of its calls."""
        items = self._items
        logged = calls = message.tool_calls
        if not calls:
            items.append(message)
            return
        reader, taken = self._reader, self._taken
        if not reader.unique_ids:
            taken.clear()
        new_ids = _new_ids(calls, taken, plain=reader.plain_ids(message))
        if new_ids is not None:
            message, calls = _renamed(message, calls, new_ids)
        items.append(message)
        mine: dict[str, list[int]] = {}
        for call, as_logged in zip(calls, logged, strict=True):
            mine.setdefault(as_logged.id, []).append(len(items))
            items.append(call)
        self._waiting.update(mine)
        self._open += len(calls)

    def _answer(self, result: ToolResultMessage) -> None:
        """Put a result in its place. The first one wins; one without a place is left out."""
        places = self._waiting.get(result.tool_call_id)
        if places is None:
            return
        place = places.pop(0)
        if not places:
            del self._waiting[result.tool_call_id]
        call = self._items[place]
        if isinstance(call, ToolCall) and call.id != result.tool_call_id:
            result = replace(result, tool_call_id=call.id)
        content = _visible_blocks(result.content)
        self._items[place] = result if content is None else replace(result, content=content)
        if place < self._settled_items:
            # Into a new list: a caller may still read the old one.
            self._settled, self._settled_items = [], 0
            self._open = sum(isinstance(item, ToolCall) for item in self._items)
        else:
            self._open -= 1

    def _settle(self) -> None:
        items, settled = self._items, self._settled
        first, self._settled_items = self._settled_items, len(items)
        if not self._open:
            settled += cast("list[Message]", items[first:])  # no call is among them
            return
        self._open = 0
        owner: AssistantMessage | None = None
        for i in range(first, len(items)):
            item = items[i]
            if isinstance(item, ToolCall):
                if owner is not None and owner.stop_reason not in CUT_OFF:
                    text = OUTCOME_UNKNOWN if item.invalid_arguments is None else NOT_STARTED
                    settled.append(synthetic_result(item, text, timestamp=owner.timestamp))
                continue
            if isinstance(item, AssistantMessage):
                owner = item
                if item.stop_reason in CUT_OFF:
                    kept = self._finished(i, item)
                    if kept is not None:
                        settled.append(kept)
                    continue
            settled.append(item)

    def _finished(self, place: int, message: AssistantMessage) -> AssistantMessage | None:
        """A message that was cut off, without calls that have no result: they never ran."""
        blocks: list[AssistantBlock] = []
        for block in message.content:
            if isinstance(block, ToolCall):
                place += 1
                if isinstance(self._items[place], ToolCall):
                    continue
            blocks.append(block)
        return _with_content(message, blocks)


def _plain_text(message: UserMessage | AssistantMessage) -> bool:
    """True for the usual message: one text that is not empty, which any reader takes."""
    content = message.content
    if not isinstance(content, str):
        if len(content) != 1:
            return False
        block = content[0]
        if not isinstance(block, TextContent) or block.text_signature is not None:
            return False
        if block.citations:
            return False
        content = block.text
    return bool(content) and not content.isspace()


def _user(message: UserMessage) -> UserMessage | None:
    content = message.content
    if isinstance(content, str):
        return message if _says_something(content) else None
    kept = _visible_blocks(content)
    if kept is None:
        return message if content else None
    return replace(message, content=kept) if kept else None


def _visible_blocks(content: Sequence[UserBlock]) -> tuple[UserBlock, ...] | None:
    """*content* without its empty blocks, or `None` when it has none."""
    for block in content:
        if not _shows_something(block):
            return tuple(b for b in content if _shows_something(b))
    return None


def _shows_something(block: UserBlock) -> bool:
    if isinstance(block, TextContent):
        return _says_something(block.text)
    return bool(block.data) or url_of(block) is not None


def _says_something(text: str) -> bool:
    return bool(text) and not text.isspace()


def _assistant(message: AssistantMessage, reader: _Reader) -> AssistantMessage | None:
    may_replay = reader.may_replay(message)
    if _sound(message.content, may_replay=may_replay):
        return message
    signed_only = reader.signed_only(message)
    blocks: list[AssistantBlock] = []
    for block in message.content:
        if isinstance(block, ThinkingContent):
            if may_replay and _replayable(block, signed_only=signed_only):
                blocks.append(block)
        elif isinstance(block, ToolCall):
            blocks.append(_call(block, may_replay=may_replay))
        elif isinstance(block, (ServerToolCall, ServerToolResult)):
            # An answer that was cut off may lack the result.
            if may_replay and reader.is_named and message.stop_reason not in CUT_OFF:
                blocks.append(block)
        elif _says_something(block.text):
            signed = block.text_signature is not None or block.citations
            blocks.append(TextContent(block.text) if signed and not may_replay else block)
    return _with_content(message, blocks)


def _sound(content: Sequence[AssistantBlock], *, may_replay: bool) -> bool:
    """True if there is plainly nothing to mend; thinking always needs a closer check."""
    for block in content:
        if isinstance(block, TextContent):
            if not block.text or block.text.isspace():
                return False
            if not may_replay and (block.text_signature is not None or block.citations):
                return False
        elif not isinstance(block, ToolCall) or not (
            (may_replay or block.thought_signature is None)
            and block.name.isidentifier()
            and block.name.isascii()
            and len(block.name) <= _MAX_NAME
        ):
            return False
    return bool(content)


def _call(call: ToolCall, *, may_replay: bool) -> ToolCall:
    # Models make names up, and one that no tool could have is refused with the whole request.
    name = _plain(call.name, _MAX_NAME) or "unnamed"
    signature = call.thought_signature if may_replay else None
    if name == call.name and signature == call.thought_signature:
        return call
    return replace(call, name=name, thought_signature=signature)


def _replayable(block: ThinkingContent, *, signed_only: bool) -> bool:
    # A signed block may hold no text: its provider redacted it, and wants it back all the same.
    return bool(block.thinking_signature) or (not signed_only and _says_something(block.thinking))


def _with_content(
    message: AssistantMessage, blocks: list[AssistantBlock]
) -> AssistantMessage | None:
    """*message* with other blocks, or `None` if it is then empty. Trailing thinking goes."""
    while blocks and isinstance(blocks[-1], ThinkingContent):
        blocks.pop()
    if not blocks:
        return None
    content = message.content
    if len(blocks) == len(content) and all(a is b for a, b in zip(blocks, content, strict=True)):
        return message
    return replace(message, content=tuple(blocks))


def _new_ids(calls: Sequence[ToolCall], taken: set[str], *, plain: bool) -> list[str] | None:
    """Take ids that are not blank, not *taken* and, if asked, plain; `None`: as they are."""
    wanted = [_plain(call.id, _MAX_ID) for call in calls] if plain else [call.id for call in calls]
    changed = False
    for i, call in enumerate(calls):
        new_id = wanted[i]
        if not new_id or new_id in taken:
            new_id = wanted[i] = _unused(new_id, taken)
        taken.add(new_id)
        changed = changed or new_id != call.id
    return wanted if changed else None


def _renamed(
    message: AssistantMessage, calls: list[ToolCall], new_ids: list[str]
) -> tuple[AssistantMessage, list[ToolCall]]:
    """*message* and its calls under *new_ids*, one for each call in order."""
    renamed = [replace(call, id=new_id) for call, new_id in zip(calls, new_ids, strict=True)]
    rest = iter(renamed)
    content = tuple(
        next(rest) if isinstance(block, ToolCall) else block for block in message.content
    )
    return replace(message, content=content), renamed


def _plain(text: str, most_chars: int) -> str:
    return re.sub(_STRANGE, "_", text)[:most_chars]


def _unused(call_id: str, taken: set[str]) -> str:
    number = 2 if call_id else 1
    while True:
        ending = f"-{number}"
        candidate = (call_id or "call")[: _MAX_ID - len(ending)] + ending
        if candidate not in taken:
            return candidate
        number += 1


def _merged(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        before = merged[-1] if merged else None
        if isinstance(message, UserMessage) and isinstance(before, UserMessage):
            merged[-1] = replace(before, content=_joined(before, message))
        elif _unsigned(message) and _unsigned(before):
            merged[-1] = replace(message, content=(*before.content, *message.content))
        else:
            merged.append(message)
    return merged


def _joined(first: UserMessage, second: UserMessage) -> str | tuple[UserBlock, ...]:
    if isinstance(first.content, str) and isinstance(second.content, str):
        return f"{first.content}\n\n{second.content}"
    return (*_as_blocks(first), *_as_blocks(second))


def _as_blocks(message: UserMessage) -> Sequence[UserBlock]:
    return (TextContent(message.content),) if isinstance(message.content, str) else message.content


def _unsigned(message: Message | None) -> TypeGuard[AssistantMessage]:
    """True for an assistant message without signatures, so that its blocks may be joined."""
    return isinstance(message, AssistantMessage) and not any(
        _signature(block) for block in message.content
    )


def _signature(block: AssistantBlock) -> str | None:
    if isinstance(block, TextContent):
        return block.text_signature
    if isinstance(block, ToolCall):
        return block.thought_signature
    if isinstance(block, ThinkingContent):
        return block.thinking_signature
    return block.type


def _without_trailing_space(message: AssistantMessage) -> AssistantMessage:
    last = message.content[-1]
    if not isinstance(last, TextContent) or not last.text[-1].isspace():
        return message
    # The signature stood for other bytes.
    ended = TextContent(last.text.rstrip(), citations=last.citations)
    return replace(message, content=(*message.content[:-1], ended))


T = TypeVar("T")


class Prefix(Sequence[T]):
    """
    The present content of *items*, whatever is appended to them later.

    Equal to a list, tuple or other prefix with the same items. A slice, a copy and an unpickled one
    are lists.

    Args:
        items: No item of this list may be changed or removed afterwards.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T]) -> None:
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: Any) -> Any:
        found = range(self._length)[index]  # the place, or the places
        if isinstance(found, int):
            return self._items[found]
        if found.step > 0:
            return self._items[found.start : found.stop : found.step]
        return [self._items[i] for i in found]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __reversed__(self) -> Iterator[T]:
        return map(self._items.__getitem__, range(self._length - 1, -1, -1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Prefix, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list, it has no hash

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[T]], tuple[list[T]]]:
        return list, (list(self),)
