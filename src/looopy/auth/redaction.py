"""
Keeps the secrets of a turn out of everything that leaves it.

A failing tool often names the URL, header or token with which it failed; a server echoes the key it
refused. Such text cannot be excluded, so looopy searches for it. A `Redactor` knows the credentials
of one turn in every form in which programs write them, and puts `[redacted]` in their place: in
results before the model sees them, in events before they are committed, in errors before they reach
the caller, and in the records of the logger `looopy`.

Values without a secret are returned as they are, the same object. A turn without credentials has an
empty `Redactor`, which costs the comparison of two lengths. So do texts that are shorter than every
secret; `secret_forms` describes the search in others.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import is_
from typing import Any, NoReturn, TypeVar, cast
from weakref import ref

from looopy.auth.secret_forms import (
    LEAST,
    MASK,
    Found,
    Secret,
    Spelling,
    lowered,
    members_of,
    search,
    secrets_in,
)
from looopy.errors import LooopyError, ValueRefused
from looopy.types.constructors import maker
from looopy.types.context import AuthContext
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    AudioContent,
    Block,
    Citation,
    CustomMessage,
    DocumentContent,
    ImageContent,
    Message,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import PartialMessage, StreamEvent, StreamEventType
from looopy.types.state import PendingRequest

T = TypeVar("T")
_MAX_DEPTH = 64
_BLOCKS = (
    *(TextContent, ThinkingContent, ToolCall, ServerToolCall, ServerToolResult),
    *(ImageContent, DocumentContent, AudioContent),
)
_CUT = (StopReason.ERROR, StopReason.ABORTED, StopReason.LENGTH)
_DELTA_OF: dict[StreamEventType, StreamEventType] = {
    "text_end": "text_delta",
    "thinking_end": "thinking_delta",
    "toolcall_end": "toolcall_delta",
}


class Redactor:
    """
    Replaces the secrets of one turn by `[redacted]`; free of cost if the turn has no secrets.

    Args:
        auth_context: Its credentials are secrets as they are now: texts and bytes of at least 8
            characters in nested mappings, sequences, dataclasses and models, and objects with
            `get_secret_value()`.

    It dies with its turn: it is never copied or pickled, and its `repr` shows nothing.

    Attributes:
        free: True if it knows no secret, and changes nothing.
    """

    __slots__ = ("__weakref__", "_least", "_secrets", "free")

    def __init__(self, auth_context: AuthContext | None = None) -> None:
        self.free = True
        self._secrets: dict[str | bytes, Secret] = {}
        self._least = sys.maxsize  # no shorter text holds a secret
        if auth_context is not None:
            self.add(auth_context.credentials)

    def add(self, secret: Any) -> None:
        """Learn one more secret, such as the key of a call: text, bytes, or what holds them."""
        new = secrets_in(secret).difference(self._secrets)
        for one in new:
            known = self._secrets[one] = Secret(one)
            self._least = min(self._least, known.least)
        if new and self.free:
            self.free = False
            _watch(self)

    def __repr__(self) -> str:
        return "<Redactor>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Redactor holds secrets of one turn: it is never copied or stored")

    # --- values --------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """*text* without secrets."""
        if len(text) < self._least:
            return text
        spellings = self._suspected(lowered(text))
        return _masked(text, search(text, spellings).spans) if spellings else text

    def _suspected(self, low: str) -> list[Spelling]:
        """Those that may be in a text with these letters and digits."""
        secrets = self._secrets.values()
        return [one for known in secrets for one in known.begun_in(low) if one.fragment in low]

    def value(self, value: T) -> T:
        """
        *value* without secrets: text, bytes, JSON values, messages, blocks, exceptions.

        Any other object is replaced as a whole if its `repr` shows a secret. The type of a changed
        container is a JSON one: `dict`, `list` or `tuple`.
        """
        if value is None or self.free:
            return value
        return cast("T", self.text(value) if isinstance(value, str) else self._value(value, 1))

    def shows(self, value: Any) -> bool:
        """True if a secret is in *value*."""
        return self.value(value) is not value

    def refuse(self, **parts: Any) -> None:
        """
        See that no secret is in any of *parts*.

        Raises:
            ValueRefused: `path` names the part. A changed one would not be what was asked for.
        """
        for name, value in parts.items():
            if self.shows(value):
                raise ValueRefused(
                    f"/{name}: it holds a credential of this turn; nothing was written",
                    path=f"/{name}",
                )

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)):
            return self.message(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._in_bytes(value)
        if depth <= _MAX_DEPTH:
            if isinstance(value, (dict, Mapping)):
                return self._in_mapping(value, depth)
            if isinstance(value, (list, tuple)):
                items = [self._value(item, depth + 1) for item in value]
                if _same(items, value):
                    return value
                return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, BaseException):
            return self.error(value)
        if isinstance(value, _BLOCKS):
            return self.block(value)
        if isinstance(value, PendingRequest):
            args = self._in_mapping(value.args, depth)
            return replace(value, args=args, prompt=self.text(value.prompt))
        return MASK if self._in_object(value, depth) else value

    def _in_bytes(self, value: bytes | bytearray | memoryview) -> Any:
        data = bytes(value)
        if len(data) < self._least or not (spellings := self._suspected(lowered(data))):
            return value
        text = data.decode("latin-1")
        clean = _masked(text, search(text, spellings).spans)
        return value if clean is text else clean.encode("latin-1")

    def _in_mapping(self, value: Mapping[Any, Any], depth: int) -> Mapping[Any, Any]:
        found: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            new_key, new_item = self._value(key, depth + 1), self._value(item, depth + 1)
            if new_key is not key or new_item is not item:
                changed = True
            while new_key is not key and (new_key in found or new_key in value):
                new_key = f"{new_key}'"  # two keys that held secrets stay two
            found[new_key] = new_item
        return found if changed else value

    def _in_object(self, value: Any, depth: int) -> bool:
        try:
            if self.text(shown := repr(value)) is not shown:
                return True
        except Exception:  # noqa: BLE001 - what cannot be shown shows nothing
            return False
        parts = members_of(value) if depth <= _MAX_DEPTH else ()
        return any(self._value(part, depth + 1) is not part for part in parts)

    # --- messages ------------------------------------------------------------------------------

    def message(self, message: Message) -> Message:
        """
        *message* without secrets. A message of the user is left alone.

        If signed text had to be changed, its signature is removed too: a provider would refuse it.
        """
        if self.free or isinstance(message, (UserMessage, CustomMessage)):
            return message
        if isinstance(message, ToolResultMessage):
            changes: dict[str, Any] = {
                "tool_call_id": self.text(message.tool_call_id),
                "tool_name": self.text(message.tool_name),
                "content": self.blocks(message.content),
                "details": self.value(message.details),
            }
        else:
            content = self._answer(message)
            if content is message.content and self._is_short(message):
                return message
            changes = {
                "content": content,
                "api": self.value(message.api),
                "provider": self.value(message.provider),
                "model": self.value(message.model),
                "response_id": self.value(message.response_id),
            }
            if message.error_message is not None:
                changes["error_message"] = self.text(message.error_message)
            if message.logprobs:
                changes["logprobs"] = self._logprobs(message, changes["content"])
        for name, value in changes.items():
            if value is not getattr(message, name):
                return replace(message, **changes)
        return message

    def _is_short(self, message: AssistantMessage) -> bool:
        """True if nothing but the content of *message* is long enough to hold a secret."""
        if message.error_message is not None or message.logprobs:
            return False
        made_by = (message.api, message.provider, message.model, message.response_id or "")
        return len("".join(made_by)) < self._least

    def blocks(self, blocks: Sequence[UserBlock]) -> Sequence[UserBlock]:
        """The blocks of a tool's result without secrets; a file that holds one becomes text."""
        if self.free:
            return blocks
        found = tuple(cast("UserBlock", self.block(block)) for block in blocks)
        return blocks if _same(found, blocks) else found

    def _answer(self, message: AssistantMessage) -> Sequence[AssistantBlock]:
        content = message.content
        found = [cast("AssistantBlock", self.block(block)) for block in content]
        if found and message.stop_reason in _CUT:  # perhaps in the middle of a secret
            found[-1] = self._without_end(content[-1], LEAST)
        return content if _same(found, content) else tuple(found)

    def block(self, block: Block) -> Block:
        """*block* without secrets."""
        if isinstance(block, TextContent):
            text = self.text(block.text)
            if text is block.text and block.text_signature is None and not block.citations:
                return block
            sources = self._citations(block.citations)
            signed = text is block.text and not self.shows(block.text_signature)
            if signed and sources is block.citations:
                return block
            kept = block.text_signature if signed else None
            return TextContent(text, text_signature=kept, citations=sources)
        if isinstance(block, (ImageContent, DocumentContent, AudioContent)):
            names = (f.name for f in fields(block))
            return TextContent(MASK) if any(self.shows(getattr(block, n)) for n in names) else block
        if isinstance(block, ThinkingContent):
            thinking = self.text(block.thinking)
            if thinking is block.thinking and not self.shows(block.thinking_signature):
                return block
            return ThinkingContent(thinking)
        if isinstance(block, (ServerToolCall, ServerToolResult)):
            parts = {f.name: self.value(getattr(block, f.name)) for f in fields(block)}
            same = all(part is getattr(block, name) for name, part in parts.items())
            return block if same else replace(block, **parts)
        fixed = ToolCall(
            self.text(block.id),
            self.text(block.name),
            self.value(block.arguments),
            invalid_arguments=self.value(block.invalid_arguments),
        )
        same = all(
            getattr(fixed, name) is getattr(block, name)
            for name in ("id", "name", "arguments", "invalid_arguments")
        )
        return block if same and not self.shows(block.thought_signature) else fixed

    def _citations(self, found: Sequence[Citation]) -> Sequence[Citation]:
        if not found:
            return found
        clean = [
            Citation(**{f.name: self.value(getattr(one, f.name)) for f in fields(one)})
            for one in found
        ]
        return found if clean == list(found) else tuple(clean)

    def _logprobs(
        self, message: AssistantMessage, content: Sequence[AssistantBlock]
    ) -> Sequence[TokenLogprob]:
        """Log-probabilities of *message*; empty if they spell a secret, even over many tokens."""
        found = message.logprobs
        said = "".join([one.token for one in found])
        others = (other.token for one in found for other in one.top)
        hides = content is not message.content or message.stop_reason in _CUT
        return () if hides or self.shows(said) or any(map(self.shows, others)) else found

    def _without_end(self, block: AssistantBlock, least: int) -> AssistantBlock:
        """*block* without secrets, nor the beginning of one at its end of *least* characters."""
        if isinstance(block, (TextContent, ThinkingContent)):
            text = block.text if isinstance(block, TextContent) else block.thinking
            found = self._found(text)
            if found is not None and found.letters >= least:
                clean = _masked(text[: found.opened], found.spans)
                if isinstance(block, ThinkingContent):
                    return ThinkingContent(clean)
                return TextContent(clean + (MASK if least > 1 else ""))
        return cast("AssistantBlock", self.block(block))

    # --- what comes in pieces ------------------------------------------------------------------

    def split(self, text: str) -> tuple[str, str]:
        """
        *text* as the part that may be shown, without secrets, and an end that may become one.

        Shown first, the end followed by what comes next is given to `split` again; the last end is
        no secret, or one that `text` finds.
        """
        found = self._found(text)
        if found is None:
            return text, ""
        return _masked(text[: found.opened], found.spans), text[found.opened :]

    def _found(self, text: str) -> Found | None:
        """The secrets in *text*, and at its end; `None` if it has none."""
        if self.free or not text:
            return None
        low = lowered(text)
        suspected: list[Spelling] = []
        for known in self._secrets.values():
            suspected += known.begun_in(low, at_end=True)
        return search(text, suspected) if suspected else None

    def partial(self, partial: PartialMessage | None) -> PartialMessage | None:
        """*partial* as it may be shown."""
        return partial if partial is None or self.free else _Veiled(partial, self)

    def deltas(self) -> Deltas:
        """A filter that makes one answer's stream fit to be shown."""
        return Deltas(self)

    # --- errors --------------------------------------------------------------------------------

    def error(self, error: T) -> T:
        """
        *error* itself if neither it nor the errors chained to it can show a secret.

        Otherwise: for an error of ours a copy, its message and facts without secrets, chained to
        nothing and without a traceback; for any other error, a `LooopyError` with the same text.
        """
        if self.free or not isinstance(error, BaseException) or self._harmless(error):
            return error
        if not isinstance(error, LooopyError):
            return cast("T", LooopyError(f"{type(error).__name__}: {self.text(_said(error))}"))
        message = self.text(error.message)
        copy = type(error).__new__(type(error), message)
        copy.args = (message,)
        copy.__dict__.update(self._in_mapping(vars(error), 1))
        return copy

    def _harmless(self, error: BaseException) -> bool:
        """True if everything attached to *error* can be inspected, and holds no secret."""
        links: list[BaseException] = [error]
        seen: set[int] = set()
        while links:
            link = links.pop()
            if id(link) in seen:
                continue
            seen.add(id(link))
            if not isinstance(link, LooopyError) and type(link).__module__ != "builtins":
                return False  # a client's error may carry its request, headers and all
            parts = (_said(link), repr(link), link.args, vars(link))
            if any(self.shows(part) for part in parts):
                return False
            links += [one for one in (link.__cause__, link.__context__) if one is not None]
            if isinstance(link, BaseExceptionGroup):
                links += link.exceptions
        return True


class Deltas:
    """
    The stream of one answer as it may be shown: text that may become a secret is held back until it
    is known not to.
    """

    __slots__ = ("_held", "_partial", "_passed", "_redactor", "_veiled")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[int, str] = {}
        self._passed: dict[int, list[str]] = {}  # not shown, by block; usually all of it
        self._partial: PartialMessage | None = None  # the newest event's
        self._veiled: PartialMessage | None = None

    def __call__(self, event: StreamEvent) -> Sequence[StreamEvent]:
        """The text to show for *event*; all such texts together make the text of the block."""
        redactor, block = self._redactor, event.content_index
        if redactor.free:
            return (event,)
        delta = event.delta
        held = self._held.pop(block, "") if self._held else ""
        if self._passed and (passed := self._passed.pop(block, None)):
            held = redactor.split("".join(passed))[1]
        if event.type.endswith("_delta"):
            shown, rest = redactor.split(held + delta)
            if rest:
                self._held[block] = rest
            return (self._changed(event, shown),) if shown or not delta else ()
        ended = self._changed(event, redactor.text(delta) if delta else delta)
        if not held or event.type not in _DELTA_OF:
            return (ended,)
        last = _made(_DELTA_OF[event.type], block, redactor.text(held), ended.partial)
        return last, ended

    def skip(self, event: StreamEvent) -> None:
        """
        Pass over an event that is not shown.

        Its text may begin a secret that a later event ends. It is searched when one is shown.
        """
        if event.type.endswith("_delta"):
            block = event.content_index
            if (passed := self._passed.get(block)) is None:
                passed = self._passed[block] = [self._held.pop(block, "")]
            passed.append(event.delta)
        elif event.type in _DELTA_OF:
            self._held.pop(event.content_index, None)
            self._passed.pop(event.content_index, None)

    def _changed(self, event: StreamEvent, delta: str) -> StreamEvent:
        """*event* with other text."""
        if event.partial is not self._partial:
            self._partial, self._veiled = event.partial, self._redactor.partial(event.partial)
        call = event.tool_call
        return _made(
            event.type,
            event.content_index,
            delta,
            self._veiled,
            None if call is None else self._redactor.value(call),
            event.message,
            event.error,
            event.server_tool,
        )


_made = maker(StreamEvent)


class _Veiled:
    """A partial message as it may be shown."""

    __slots__ = ("_partial", "_redactor")

    def __init__(self, partial: PartialMessage, redactor: Redactor) -> None:
        self._partial = partial
        self._redactor = redactor

    @property
    def text(self) -> str:
        """The text so far, without an end that may become a secret."""
        return self._redactor.split(self._partial.text)[0]

    def snapshot(self) -> AssistantMessage:
        """A frozen copy of what may be shown so far."""
        message = self._partial.snapshot()
        blocks = [cast("AssistantBlock", self._redactor.block(b)) for b in message.content]
        if blocks:
            end = message.content[-1]
            blocks[-1] = self._redactor._without_end(end, 1)  # noqa: SLF001 - its other half
        return replace(message, content=tuple(blocks))


def _masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """*text* with the mask in place of these; the same object if there are none."""
    shown, done = [], 0
    for start, end in spans:
        if start >= len(text):
            break
        shown += [text[done:start], MASK]
        done = end
    return "".join([*shown, text[done:]]) if shown else text


def _same(new: Iterable[object], old: Iterable[object]) -> bool:
    return all(map(is_, new, old))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure
        return ""


# --- the log --------------------------------------------------------------------------------------

_logger = logging.getLogger("looopy")
# Used by all threads: each step of a set is one of C. A `WeakSet` would run Python for each turn.
_live: set[ref[Redactor]] = set()
_RECORDS_OWN = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime"})


def _watch(redactor: Redactor) -> None:
    """From now on, and as long as *redactor* lives, its secrets are kept out of our log."""
    _live.add(ref(redactor, _live.discard))
    _logger.addFilter(_redact_record)  # once, however often


def _redact_record(record: logging.LogRecord) -> bool:
    """Replace the secrets of the turns that run now in what our logger is about to write."""
    for known in list(_live):
        if (redactor := known()) is None:
            continue
        said = record.getMessage()
        if redactor.shows(said):
            record.msg, record.args = redactor.text(said), ()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.exc_text = record.exc_text or "".join(traceback.format_exception(error)).rstrip()
        if record.exc_text and redactor.shows(record.exc_text):
            record.exc_text, record.exc_info = redactor.text(record.exc_text), None
        for name, value in vars(record).items() if not redactor.free else ():
            if isinstance(value, str) and name not in _RECORDS_OWN and redactor.shows(value):
                setattr(record, name, redactor.text(value))
    return True
