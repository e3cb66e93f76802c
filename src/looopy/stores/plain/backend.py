"""
Brings contexts out of plain stores into memory, and writes back what a step has changed.

A step (a claim, a commit, a message to the inbox) is what `looopy.stores.memory` does with it. Then
its changes are written in this order:

1. new contents of artifacts, each under a name of its own;
2. the chapters of the log that changed, under a key with the epoch of the step;
3. the head, with the messages that are not in the message store yet: **the step counts from here**;
4. the messages.

A process that dies before 3 leaves nothing that anybody reads. One that dies after it leaves the
messages in the head, and whoever reads the context next appends those that are missing. The places
of messages and the digests of their texts are in the log, so a message that was appended twice, by
a process that was taken for dead, is read once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import random
import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from looopy._failpoints import reach
from looopy.errors import StoreUnavailable, ValueRefused
from looopy.stores import rules
from looopy.stores.artifacts.rows import StoredPart, Version
from looopy.stores.contexts.log import StoredMessage
from looopy.stores.memory.context import Contexts, StoredContext, insert_messages
from looopy.stores.plain.calls import Calls
from looopy.stores.plain.documents import (
    FORMAT,
    Log,
    Placed,
    PlainContext,
    chapter_key,
    chapter_of,
    chapter_to_json,
    content_document,
    content_key,
    context_from_json,
    digest,
    head_to_json,
    key_of,
)
from looopy.stores.rows import events as rows
from looopy.stores.rows.reading import read_message
from looopy.types.artifact import ArtifactStatus
from looopy.types.event import utc_now
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.message_json import message_from_json

_logger = logging.getLogger("looopy")
_TRIES: Final = 50
_PAUSE_S: Final = 0.002
T = TypeVar("T")
_MESSAGES: Final = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)


class Documents:
    """A state store in this process, for an application that keeps messages alone."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def load(self, key: str) -> Any:
        """See `PlainStateStore`."""
        text = self._texts.get(key)
        return None if text is None else json.loads(text)

    async def save(self, key: str, document: Mapping[str, Any]) -> None:
        """See `PlainStateStore`."""
        self._texts[key] = json.dumps(document)

    async def compare_and_set(self, key: str, document: Mapping[str, Any], revision: int) -> bool:
        """See `PlainStateStore`."""
        found = await self.load(key)
        if (found["revision"] if found else 0) != revision:
            return False
        await self.save(key, document)
        return True

    async def delete(self, key: str) -> None:
        """See `PlainStateStore`."""
        self._texts.pop(key, None)

    async def list(self) -> Any:
        """See `PlainStateStore`."""
        return list(self._texts)


class Overtaken(Exception):
    """Another process has changed the context meanwhile; nothing counts of what was written."""


@dataclass(slots=True)
class _Kept:
    """The state of the stores that a context in memory stands for."""

    revision: int = 0
    stamp: str = ""
    epoch: int = 0
    chapters: list[int] = field(default_factory=list)
    seq: int = 0
    position: int = 0
    cleared_seq: int = 0
    open_turn: int | None = None
    contents: dict[str, tuple[int, ArtifactStatus]] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)


class PlainBackend(Contexts):
    """
    Contexts in three stores of an application's own.

    Raises:
        ConfigurationError: A store lacks a method that it needs.
    """

    def __init__(self, messages: object, artifacts: object | None, state: object) -> None:
        super().__init__()
        self.messages = Calls(messages, "messages", "append", ("list", "get_all"))
        self.state = Calls(state, "state", "load", "save")
        self.artifacts = (
            None if artifacts is None else Calls(artifacts, "artifacts", "save", "load")
        )
        self._list = "list" if self.messages.has("list") else "get_all"
        self._positions = self.messages.takes("append", "position")
        self._compares = self.state.has("compare_and_set")
        self._is_proved = False
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._locks: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        if not self._compares:
            _logger.warning(
                "%s has no method `compare_and_set`: two processes that use one context at the same"
                " time may both begin a turn, and one of them fails later",
                self.state.name,
            )

    async def close(self) -> None:
        """Refuse use from now on, and end the threads."""
        await super().close()
        self._contexts.clear()
        self._kept.clear()
        for calls in (self.messages, self.state, self.artifacts):
            if calls is not None:
                calls.close()

    def make(self, tenant: str, context_id: str) -> StoredContext:
        """The context, created on first use."""
        rules.check_context_id(context_id)
        found = self.contexts.get((tenant, context_id))
        if found is None:
            now = utc_now()
            found = self.contexts[tenant, context_id] = PlainContext(now, now)
        return found

    @contextlib.asynccontextmanager
    async def reading(self, tenant: str, context_id: Any) -> AsyncIterator[None]:
        """The context is in memory, as the stores have it, and stays so meanwhile."""
        if not _usable(context_id):
            yield  # there is none
            return
        async with self._lock((tenant, context_id)):
            await self._bring((tenant, context_id))
            yield

    async def write(
        self,
        tenant: str,
        context_id: Any,
        step: Callable[[], Awaitable[T]],
        *,
        looks: bool = False,
    ) -> T:
        """
        Take a *step* that changes a context in memory, and store what it changed.

        Args:
            step: Taken again if another process has changed the context meanwhile.
            looks: See that the messages are all there, even if this process knows them.
        """
        if not _usable(context_id):
            return await step()
        key = (tenant, context_id)
        for number in itertools.count(1):
            async with self._lock(key):
                try:
                    await self._bring(key, looks=looks)
                    result = await step()
                    await self._write(key)
                except BaseException as error:
                    self._forget(key)
                    if not isinstance(error, Overtaken) or number == _TRIES:
                        raise
                else:
                    return result
            await asyncio.sleep(random.random() * number * _PAUSE_S)  # noqa: S311
        raise AssertionError  # not reached

    def _lock(self, key: tuple[str, str]) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _forget(self, key: tuple[str, str]) -> None:
        self._contexts.pop(key, None)
        self._kept.pop(key, None)

    # --- out of the stores -----------------------------------------------------------------------

    async def _bring(
        self, key: tuple[str, str], *, looks: bool = False, tries: int = _TRIES
    ) -> None:
        _ = self.contexts  # refused once it is closed
        head = await self._document(key_of(*key))
        kept = self._kept.get(key)
        if head is None:
            self._forget(key)
            await self._adopt(key)
            return
        if head.get("format") != FORMAT:
            raise StoreUnavailable(
                f"{self.state.name} has {key_of(*key)!r} in the format {head.get('format')!r}: this"
                f" version reads format {FORMAT}"
            )
        if head.get("deleting"):
            await self._delete(key_of(*key), head)
            self._forget(key)
            return
        is_known = kept is not None and kept.stamp == head["stamp"]
        if is_known and (not looks or await self._has_all(key)):
            return
        found = context_from_json(head)
        chapters = await self._chapters(key_of(*key), head["chapters"])
        if chapters is None:  # another process has written since
            if not tries:
                raise self.state.wrong("load", f"lacks parts of {key_of(*key)!r}, which were saved")
            await self._bring(key, looks=looks, tries=tries - 1)
            return
        log = Log(chapters, found)
        if head["cleared"] or head["removed"]:
            await self._remove(key_of(*key), head)
        await self._place_messages(key_of(*key), found, log, head["unwritten"])
        self._contexts[key] = found
        self._kept[key] = _Kept(
            revision=head["revision"],
            stamp=head["stamp"],
            epoch=found.epoch,
            chapters=list(head["chapters"]),
            seq=found.last_seq,
            position=found.last_position,
            cleared_seq=found.cleared_seq,
            open_turn=found.open_turn,
            contents=_contents(found),
            facts=_facts(found, head_to_json(key_of(*key), found)),
        )

    async def _document(self, key: str) -> Mapping[str, Any] | None:
        found = await self.state("load", key)
        if found is not None and not isinstance(found, Mapping):
            dumped = getattr(found, "model_dump", None)
            found = dumped() if callable(dumped) else found
        if found is None or isinstance(found, Mapping):
            return found
        raise self.state.wrong(
            "load", f"returned {type(found).__name__} for {key!r}, not a mapping"
        )

    async def _chapters(self, context_id: str, epochs: list[int]) -> list[Mapping[str, Any]] | None:
        found = []
        for number, epoch in enumerate(epochs):
            if epoch:
                chapter = await self._document(chapter_key(context_id, number, epoch))
                if chapter is None:
                    return None
                found.append(chapter)
        return found

    async def _listed(self, context_id: str) -> list[tuple[Message, str]]:
        found = await self.messages(self._list, context_id)
        if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__"):
            raise self.messages.wrong(
                self._list, f"returned {type(found).__name__}, not a list of messages"
            )
        listed = []
        for number, one in enumerate(found):
            message = self._message(one, number)
            try:
                (row,) = rows.message_rows([message]).messages
            except ValueRefused as error:
                raise self.messages.wrong(self._list, f"item {number}: {error}") from error
            listed.append((message, row.body))
        return listed

    def _message(self, one: object, number: int) -> Message:
        if isinstance(one, _MESSAGES):
            return one
        dumped = getattr(one, "model_dump", None)
        data = dumped() if callable(dumped) else one
        if not isinstance(data, Mapping):
            raise self.messages.wrong(
                self._list, f"item {number} is {type(one).__name__}, not a message"
            )
        try:
            return message_from_json(data)
        except ValueRefused as error:
            raise self.messages.wrong(self._list, f"item {number}: {error}") from error

    async def _place_messages(
        self, context_id: str, context: StoredContext, log: Log, unwritten: list[str]
    ) -> None:
        """Give each place of the log its message; append those that a dead process left."""
        bodies = [body for _, body in await self._listed(context_id)]
        found = _aligned(log.places, bodies)
        left = log.places[len(found) :]
        waiting = {digest(body): body for body in unwritten}
        if left and all(hashed in waiting for _, hashed in left):
            texts = [waiting[hashed] for _, hashed in left]
            await self._append(context_id, left[0][0].position, texts)
            reach("S4")
            bodies = [body for _, body in await self._listed(context_id)]
            found = _aligned(log.places, bodies)
        self._check_all(context_id, log.places, found, bodies)
        context.messages = found

    async def _has_all(self, key: tuple[str, str]) -> bool:
        """True if the store still has the messages that are in memory."""
        bodies = [body for _, body in await self._listed(key_of(*key))]
        known = self._contexts[key].messages
        return len(_aligned([(one, digest(one.body)) for one in known], bodies)) == len(known)

    def _check_all(
        self, context_id: str, places: list[Placed], found: list[StoredMessage], bodies: list[str]
    ) -> None:
        if len(found) == len(places):
            return
        missing = places[len(found)][0].position
        number = f"message {missing} of context {context_id!r}"
        if len(bodies) >= len(places):
            raise self.messages.wrong(
                self._list,
                f"returned {number} otherwise than it was appended, or in another order: keep the"
                " whole message, as `message_to_json` writes it, and the order",
            )
        raise self.messages.wrong(
            self._list,
            f"did not return {number}, which was appended: {len(bodies)} messages are there,"
            f" {len(places)} must be",
        )

    async def _adopt(self, key: tuple[str, str]) -> None:
        """Take messages that were there before the first turn for the past of the context."""
        listed = await self._listed(key_of(*key))
        if listed:
            context = self.make(*key)
            encoded = rows.message_rows([message for message, _ in listed])
            insert_messages(context, encoded, 0)
            # The same at each look, until the first step is written.
            context.epoch = 1 + int(digest("".join(body for _, body in listed))[:12], 16)
            context.last_seq += encoded.seqs
            self._kept[key] = _Kept(position=context.last_position)

    # --- into the stores -------------------------------------------------------------------------

    async def _write(self, key: tuple[str, str]) -> None:
        context = self._contexts.get(key)
        kept = self._kept.get(key) or _Kept()
        if context is None:
            return
        context_id = key_of(*key)
        head = head_to_json(context_id, context)
        facts = _facts(context, head)
        if kept.facts == facts:
            return
        await self._save_contents(context_id, context, kept)
        cleared = context.cleared_seq != kept.cleared_seq
        chapters = await self._save_chapters(context_id, context, kept, cleared=cleared)
        if cleared:
            self.messages.require("clear", "clearing a context")
        first = max(kept.position, context.visible_from - 1)
        new = context.messages[first - context.visible_from + 1 :]
        document = {
            "format": FORMAT,
            "revision": kept.revision + 1,
            "stamp": secrets.token_hex(8),
            **head,
            "chapters": chapters,
            "unwritten": [one.body for one in new],
            "cleared": cleared,
            "removed": sorted(kept.contents.keys() - _contents(context).keys()),
        }
        reach("S1")
        await self._save_head(context_id, document, kept.revision)
        reach("S2")
        await self._remove(context_id, document)
        if new:
            await self._append(context_id, new[0].position, document["unwritten"])
        reach("S3")
        await self._drop_chapters(context_id, kept.chapters, chapters)
        self._kept[key] = _Kept(
            revision=kept.revision + 1,
            stamp=document["stamp"],
            epoch=context.epoch,
            chapters=chapters,
            seq=context.last_seq,
            position=context.last_position,
            cleared_seq=context.cleared_seq,
            open_turn=context.open_turn,
            contents=_contents(context),
            loaded=kept.loaded,
            facts=facts,
        )

    async def _save_head(self, context_id: str, document: dict[str, Any], revision: int) -> None:
        if not self._compares:
            await self.state("save", context_id, document)
            return
        written = await self.state("compare_and_set", context_id, document, revision)
        if not isinstance(written, bool):
            raise self.state.wrong(
                "compare_and_set", f"returned {type(written).__name__}, not whether it wrote"
            )
        if not written:
            raise Overtaken

    async def _save_chapters(
        self, context_id: str, context: StoredContext, kept: _Kept, *, cleared: bool
    ) -> list[int]:
        last = chapter_of(context.last_seq) if context.last_seq else -1
        chapters = [*kept.chapters, *([0] * (last + 1 - len(kept.chapters)))]
        if context.last_seq == kept.seq and context.epoch == kept.epoch:
            return chapters  # of a step of another one than the owner, who may be writing them
        changed = set(range(0 if cleared else chapter_of(kept.seq + 1), last + 1))
        for turn in (kept.open_turn, context.open_turn):
            if turn is not None and turn <= len(context.turns):
                changed.add(chapter_of(context.turns[turn - 1].start_seq))
        for number in sorted(changed):
            key = chapter_key(context_id, number, context.epoch)
            await self.state("save", key, chapter_to_json(context, number))
            chapters[number] = context.epoch
        return chapters

    async def _drop_chapters(self, context_id: str, old: list[int], new: list[int]) -> None:
        if self.state.has("delete"):
            for number, epoch in enumerate(old):
                if epoch and new[number] != epoch:
                    await self.state("delete", chapter_key(context_id, number, epoch))

    async def _append(self, context_id: str, position: int, bodies: list[str]) -> None:
        """Append messages of a step that counts already, so whether they are there is all."""
        messages = [read_message(body, position=position + n) for n, body in enumerate(bodies)]
        more = {"position": position} if self._positions else {}
        failed: StoreUnavailable | None = None
        try:
            await self.messages("append", context_id, messages, **more)
        except StoreUnavailable as error:
            failed = error  # it may have written, or another process was first
        if failed is None and self._is_proved:
            return
        there = [body for _, body in await self._listed(context_id)]
        places = [
            (StoredMessage(position + n, 0, 0, 0, 0, None, ""), digest(body))
            for n, body in enumerate(bodies)
        ]
        found = _aligned(places, there)
        if failed is not None and len(found) < len(bodies):
            raise failed
        # A store that is not what it must be shows it at its first append.
        self._check_all(context_id, places, found, there)
        self._is_proved = True

    async def _remove(self, context_id: str, head: Mapping[str, Any]) -> None:
        """Remove what a step has left no place for: all messages, or contents of artifacts."""
        if head["cleared"]:
            await self.messages("clear", context_id)
        for name in head["removed"]:
            await self._remove_content(context_id, name)

    # --- artifacts -------------------------------------------------------------------------------

    async def _save_contents(self, context_id: str, context: StoredContext, kept: _Kept) -> None:
        for name, versions in context.artifacts.items():
            for one in versions:
                key = content_key(name, one.artifact.version)
                facts = (one.artifact.size, one.artifact.status)
                if kept.contents.get(key) == facts:
                    continue
                if kept.contents.get(key, (None,))[0] != one.artifact.size:
                    await self._save_content(context_id, key, _bytes_of(one))
                kept.loaded.add(key)

    async def _save_content(self, context_id: str, name: str, content: bytes) -> None:
        if self.artifacts is None:
            await self.state(
                "save", content_document(context_id, name), {"content": content.decode("latin-1")}
            )
        else:
            await self.artifacts("save", context_id, name, content)

    async def fill(self, tenant: str, context_id: str, artifact_id: str) -> None:
        """Bring the contents of an artifact into memory."""
        context, kept = (
            self._contexts.get((tenant, context_id)),
            self._kept.get((tenant, context_id)),
        )
        if context is None or kept is None:
            return
        for one in context.artifacts.get(artifact_id, ()):
            key = content_key(artifact_id, one.artifact.version)
            if key not in kept.loaded:
                _fill(
                    one,
                    await self._load_content(key_of(tenant, context_id), key, one.artifact.size),
                )
                kept.loaded.add(key)

    async def _load_content(self, context_id: str, name: str, size: int) -> bytes:
        if self.artifacts is None:
            found = await self._document(content_document(context_id, name))
            content: Any = None if found is None else found["content"].encode("latin-1")
            calls = self.state
        else:
            calls, content = self.artifacts, await self.artifacts("load", context_id, name)
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise calls.wrong("load", f"returned {type(content).__name__} for {name!r}, not bytes")
        if len(content) < size:
            raise calls.wrong("load", f"returned {len(content)} of the {size} bytes of {name!r}")
        return bytes(content[:size])  # a longer one was saved for a step that did not count

    async def _remove_content(self, context_id: str, name: str) -> None:
        if self.artifacts is None:
            if self.state.has("delete"):
                await self.state("delete", content_document(context_id, name))
        elif self.artifacts.has("delete"):
            await self.artifacts("delete", context_id, name)

    # --- deletion --------------------------------------------------------------------------------

    async def delete(self, tenant: str, context_id: str) -> None:
        """Delete a context; its head goes last, so a half deletion is completed by the next."""
        self.messages.require("clear", "deleting a context")
        self.state.require("delete", "deleting a context")
        key = key_of(tenant, context_id)
        head = await self._document(key)
        if head is not None:
            document = {**head, "revision": head["revision"] + 1, "deleting": True}
            await self._save_head(key, document, head["revision"])
            await self._delete(key, document)
        else:
            await self.messages("clear", key)
        self._forget((tenant, context_id))

    async def _delete(self, context_id: str, head: Mapping[str, Any]) -> None:
        await self.messages("clear", context_id)
        for data in head["artifacts"]:
            await self._remove_content(
                context_id, content_key(data["artifact_id"], data["version"])
            )
        for number, epoch in enumerate(head["chapters"]):
            if epoch:
                await self.state("delete", chapter_key(context_id, number, epoch))
        await self.state("delete", context_id)


def _usable(context_id: object) -> bool:
    try:
        rules.check_context_id(context_id)
    except ValueRefused:
        return False
    return True


def _facts(context: StoredContext, head: Mapping[str, Any]) -> dict[str, Any]:
    """All that a step may change; times are by the clock of this process, which never jumps."""
    places = [(ticket, one.holder, one.alive_until) for ticket, one in context.places.items()]
    return {**head, "lease_until": context.lease_until, "places": places}


def _contents(context: StoredContext) -> dict[str, tuple[int, ArtifactStatus]]:
    return {
        content_key(name, one.artifact.version): (one.artifact.size, one.artifact.status)
        for name, versions in context.artifacts.items()
        for one in versions
    }


def _bytes_of(version: Version) -> bytes:
    if version.text is not None:
        return version.text.encode()
    return b"".join(part.data or b"" for part in version.parts) + version.tail


def _fill(version: Version, content: bytes) -> None:
    from looopy.stores.artifacts.parts import INLINE_BYTES, stored_parts
    from looopy.types.artifact import ArtifactKind

    kind = version.artifact.kind
    if kind is ArtifactKind.DATA and len(content) <= INLINE_BYTES:
        version.text = content.decode()
        return
    parts: list[StoredPart] = []
    for part, tail in stored_parts(iter([content]), is_rows=kind is ArtifactKind.DATASET):
        if part is None:
            version.tail = tail
        else:
            parts.append(part)
    version.parts = parts


def _aligned(places: list[Placed], bodies: list[str]) -> list[StoredMessage]:
    """The places with their texts, up to the first one without. Other texts are left out."""
    found: list[StoredMessage] = []
    rest = iter(bodies)
    for place, hashed in places:
        body = next((one for one in rest if digest(one) == hashed), None)
        if body is None:
            break
        found.append(place._replace(body=body))
    return found
