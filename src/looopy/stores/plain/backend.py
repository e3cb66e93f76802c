"""
Brings contexts out of plain stores into memory, and writes back what a step has changed.

A step (a claim, a commit, a message to the inbox) is what `looopy.stores.memory` does with it. Then
its changes are written in this order:

1. new contents of artifacts, each under a name of its own;
2. the chapters of the log that changed, under a key with the epoch of the step;
3. the head, with the messages that are not in the message store yet: **the step counts from here**;
4. the messages.

A process that dies before 3 leaves nothing that anybody reads. One that dies after it leaves the
messages in the head, and whoever reads the context next appends those that are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from looopy._failpoints import reach
from looopy.errors import StoreUnavailable, ValueRefused
from looopy.stores import rules
from looopy.stores.memory.context import Contexts, StoredContext, insert_messages
from looopy.stores.plain.contents import OwnContents, contents_of
from looopy.stores.plain.documents import (
    FORMAT,
    Chapters,
    Log,
    PlainContext,
    chapter_from_json,
    chapter_key,
    chapter_of,
    chapter_to_json,
    content_key,
    context_from_json,
    digest,
    full_chapters,
    head_to_json,
    key_of,
)
from looopy.stores.plain.messages import OwnMessages
from looopy.stores.plain.state import InProcess, Overtaken, OwnState
from looopy.stores.rows import events as rows
from looopy.types.artifact import ArtifactStatus
from looopy.types.event import utc_now

_TRIES: Final = 50
_PAUSE_S: Final = 0.002
T = TypeVar("T")


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

    def __init__(self, messages: object, artifacts: object | None, state: object | None) -> None:
        super().__init__()
        self.messages = OwnMessages(messages)
        self.state = OwnState(InProcess() if state is None else state)
        self.contents = OwnContents(artifacts, self.state)
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._full: dict[tuple[str, str], Chapters] = {}
        self._locks: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    async def close(self) -> None:
        """Refuse use from now on, and end the threads."""
        await super().close()
        self._contexts.clear()
        self._full.clear()
        self._kept.clear()
        for calls in (self.messages.calls, self.state.calls, self.contents.calls):
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
                except Overtaken:
                    self._forget(key)
                    if number == _TRIES:
                        raise self.state.calls.wrong(
                            "compare_and_set", f"wrote nothing to {key_of(*key)!r}, {number} times"
                        ) from None
                except BaseException:
                    self._forget(key)
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
        head = await self.state.document(key_of(*key))
        kept = self._kept.get(key)
        if head is None:
            self._forget(key)
            await self._adopt(key)
            return
        if head.get("format") != FORMAT:
            raise self.state.calls.wrong(
                "load",
                f"returned {key_of(*key)!r} in the format {head.get('format')!r}, but this version"
                f" reads format {FORMAT}: give looopy a place of its own",
            )
        if head.get("deleting"):
            await self._delete(key_of(*key), head)
            self._forget(key)
            return
        is_known = kept is not None and kept.stamp == head["stamp"]
        if is_known and (not looks or await self._has_all(key)):
            return
        full = self._full.get(key, {})
        places = [(number, epoch) for number, epoch in enumerate(head["chapters"]) if epoch]
        new = await self.state.chapters(key_of(*key), [one for one in places if one not in full])
        if new is None:  # another process has written since
            if not tries:
                raise self.state.calls.wrong(
                    "load", f"lacks parts of {key_of(*key)!r}, which were saved"
                )
            await self._bring(key, looks=looks, tries=tries - 1)
            return
        try:
            found = context_from_json(head)
            chapters = {
                one: full[one] if one in full else chapter_from_json(new[one], found)
                for one in places
            }
            log = Log(chapters, found)
        except (LookupError, TypeError, ValueError) as error:
            raise self.state.calls.wrong(
                "load", f"returned a part of {key_of(*key)!r} otherwise than it was saved: {error}"
            ) from error
        if head["cleared"] or head["removed"]:
            if tries and await self.state.has_moved(key_of(*key), head):
                await self._bring(key, looks=looks, tries=tries - 1)  # there may be new ones
                return
            await self._remove(key_of(*key), head)
        is_own = self.state.compares and not found.cleared_seq
        try:
            found.messages = await self.messages.placed(
                key_of(*key), log.places, head["unwritten"], is_own=is_own
            )
        except StoreUnavailable:
            if not tries or not await self.state.has_moved(key_of(*key), head):
                raise
            await self._bring(key, looks=looks, tries=tries - 1)  # they are of a later head
            return
        self._full[key] = full_chapters(chapters, found)
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
            contents=contents_of(found),
            facts=_facts(found, head_to_json(key_of(*key), found)),
        )

    async def _has_all(self, key: tuple[str, str]) -> bool:
        return await self.messages.has_all(key_of(*key), self._contexts[key].messages)

    async def _adopt(self, key: tuple[str, str]) -> None:
        """Take messages that were there before the first turn for the past of the context."""
        listed = await self.messages.listed(key_of(*key))
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
            self.messages.calls.require("clear", "clearing a context")
        first = max(kept.position, context.visible_from - 1)
        new = context.messages[first - context.visible_from + 1 :]
        document = {
            **self._next(kept.revision),
            **head,
            "chapters": chapters,
            "unwritten": [one.body for one in new],
            "cleared": cleared,
            "removed": sorted(kept.contents.keys() - contents_of(context).keys()),
        }
        reach("S1")
        await self.state.save_head(context_id, document, kept.revision)
        reach("S2")
        await self._remove(context_id, document)
        if new:
            await self.messages.append(context_id, new[0].position, document["unwritten"])
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
            contents=contents_of(context),
            loaded=kept.loaded,
            facts=facts,
        )

    @staticmethod
    def _next(revision: int) -> dict[str, Any]:
        return {"format": FORMAT, "revision": revision + 1, "stamp": secrets.token_hex(8)}

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
            await self.state.calls("save", key, chapter_to_json(context, number))
            chapters[number] = context.epoch
        return chapters

    async def _drop_chapters(self, context_id: str, old: list[int], new: list[int]) -> None:
        for number, epoch in enumerate(old):
            if epoch and new[number] != epoch:
                await self.state.remove(chapter_key(context_id, number, epoch))

    async def _remove(self, context_id: str, head: Mapping[str, Any]) -> None:
        """Remove what a step has left no place for: all messages, or contents of artifacts."""
        if head["cleared"]:
            await self.messages.calls("clear", context_id)
        for name in head["removed"]:
            await self.contents.remove(context_id, name)

    # --- artifacts -------------------------------------------------------------------------------

    async def _save_contents(self, context_id: str, context: StoredContext, kept: _Kept) -> None:
        for name, versions in context.artifacts.items():
            for one in versions:
                key = content_key(name, one.artifact.version)
                facts = (one.artifact.size, one.artifact.status)
                if kept.contents.get(key) == facts:
                    continue
                if kept.contents.get(key, (None,))[0] != one.artifact.size:
                    await self.contents.save(context_id, key, one)
                kept.loaded.add(key)

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
                await self.contents.fill(key_of(tenant, context_id), key, one)
                kept.loaded.add(key)

    # --- deletion --------------------------------------------------------------------------------

    async def delete(self, tenant: str, context_id: str) -> None:
        """Delete a context; its head goes last, so a half deletion is completed by the next."""
        self.messages.calls.require("clear", "deleting a context")
        self.state.calls.require("delete", "deleting a context")
        key = key_of(tenant, context_id)
        head = await self.state.document(key)
        if head is not None:
            document = {**head, **self._next(head["revision"]), "deleting": True}
            await self.state.save_head(key, document, head["revision"])
            await self._delete(key, document)
        else:
            await self.messages.calls("clear", key)
        self._forget((tenant, context_id))

    async def _delete(self, context_id: str, head: Mapping[str, Any]) -> None:
        await self.messages.calls("clear", context_id)
        for data in head["artifacts"]:
            await self.contents.remove(
                context_id, content_key(data["artifact_id"], data["version"])
            )
        for number, epoch in enumerate(head["chapters"]):
            if epoch:
                await self.state.calls("delete", chapter_key(context_id, number, epoch))
        await self.state.calls("delete", context_id)


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
